"""LRU stack distances of a whole trace in one compiled pass.

Semantics. A request looks up all its blocks at its start, atomically. Afterwards they become the
most recent, last block first, so that the first block stays youngest and eviction takes leaves
first. A reference hits in a cache of C blocks if its distance is below C: the number of distinct
blocks used more recently than its block.
"""

from dataclasses import dataclass

import numba
import numpy as np

from kvpaper.traces.block_trace import BlockTrace

_ONE = np.uint64(1)


@numba.njit(cache=True, inline="always")
def _ones(word):
    """Bits set in a 64-bit word."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    low = np.uint64(0x3333333333333333)
    word = (word & low) + ((word >> np.uint64(2)) & low)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@numba.njit(cache=True)
def add(tree, words, word, amount):
    """Adds to the count of ``word`` in a Fenwick tree over ``words`` words."""
    node = word + 1
    while node <= words:
        tree[node] += amount
        node += node & -node


@numba.njit(cache=True)
def _younger(tree, bits, position, alive):
    """Blocks whose last use lies after ``position``."""
    word = position >> 6
    within = np.uint64(position & 63)
    older = _ones(bits[word] & ((_ONE << within) | ((_ONE << within) - _ONE)))
    node = word
    while node > 0:
        older += tree[node]
        node &= node - 1
    return alive - older


@numba.njit(cache=True)
def _mark(tree, bits, start, stop):
    """Sets the bits of positions ``start`` to ``stop``, which end the line of time."""
    words = (start + 63) >> 6
    while start < stop:
        word, within = start >> 6, start & 63
        if word == words:
            words += 1
            tree[words] = 0
            child = 1
            while child < words & -words:
                tree[words] += tree[words - child]
                child <<= 1
        count = min(64 - within, stop - start)
        bits[word] |= (~np.uint64(0) >> np.uint64(64 - count)) << np.uint64(within)
        add(tree, words, word, count)
        start += count
    return words


@numba.njit(cache=True)
def _clear(tree, bits, words, start, stop):
    """Clears the bits of positions ``start`` to ``stop``."""
    while start < stop:
        word, within = start >> 6, start & 63
        count = min(64 - within, stop - start)
        mask = (~np.uint64(0) >> np.uint64(64 - count)) << np.uint64(within)
        add(tree, words, word, -_ones(bits[word] & mask))
        bits[word] &= ~mask
        start += count


@numba.njit(cache=True)
def _runs(offsets, blocks, unique, longest, prefix, starts, firsts):
    """Distances as runs: ``starts`` of a run and its first distance, which then rises by one.

    Each use gets a position on a line of time; a bit marks the last use of a block. A Fenwick
    tree over words of 64 positions counts the bits. Blocks that were last used side by side still
    lie side by side, so that one look into the tree serves a whole run of them. A run of first
    uses has the distance ``unique`` throughout.
    """
    bits = np.zeros((len(blocks) >> 6) + 1, np.uint64)
    tree = np.empty(len(bits) + 1, starts.dtype)
    # Two past the position of the last use, so that one below the least is no mark of any; 0: none.
    two_after = np.zeros(unique, starts.dtype)
    lows, highs = np.empty(longest, np.int64), np.empty(longest, np.int64)
    alive, runs, stop = 0, 0, np.uint64(0)
    for request in range(1, len(offsets)):
        start, stop = stop, np.uint64(offsets[request])
        stale, deepest = 0, np.int64(-1)
        i = start
        while i < stop:
            mark = np.int64(two_after[blocks[i]])
            if mark == 0:
                if deepest < unique:
                    starts[runs], firsts[runs] = i, unique
                    runs += 1
                deepest = unique
                i += _ONE
                if prefix:
                    break
                continue
            distance = _younger(tree, bits, mark - 2, alive)
            highs[stale] = mark - 1
            first = i
            i += _ONE
            mark -= 1
            while i < stop and two_after[blocks[i]] == mark:
                mark -= 1
                i += _ONE
            lows[stale] = mark - 1
            stale += 1
            # What a deeper block before it keeps out of reach is no nearer than that block.
            while prefix and distance < deepest and first < i:
                starts[runs], firsts[runs] = first, deepest
                runs += 1
                first += _ONE
                distance += 1
            if first < i:
                starts[runs], firsts[runs] = first, distance
                runs += 1
                deepest = distance + np.int64(i - first) - 1
        before = np.int64(start)
        words = _mark(tree, bits, before, np.int64(stop))
        for run in range(stale):
            _clear(tree, bits, words, lows[run], highs[run])
        use, j = before + 1, stop
        while j > start:
            j -= _ONE
            position = np.int64(two_after[blocks[j]]) - 2
            use += 1
            two_after[blocks[j]] = use
            if position < 0:
                alive += 1
            elif j >= i or position >= before:
                # Known but behind a first use, or used twice in this request.
                _clear(tree, bits, words, position, position + 1)
    return runs


@numba.njit(cache=True)
def _expand(starts, firsts, cold, distances):
    for run in range(len(starts)):
        stop = starts[run + 1] if run + 1 < len(starts) else len(distances)
        rise = 0 if firsts[run] == cold else 1
        for i in range(starts[run], stop):
            distances[i] = firsts[run] + rise * (i - starts[run])


@dataclass(frozen=True, slots=True)
class Distances:
    """LRU distances of all references, as runs in which they rise by one.

    Attributes
    ----------
    starts : array, shape (runs,)
        First reference of each run.
    firsts : array, shape (runs,)
        Its distance, 0..U-1; U, the number of distinct blocks, for first uses.
    references, cold : int
        N and U.
    """

    starts: np.ndarray
    firsts: np.ndarray
    references: int
    cold: int

    def expanded(self) -> np.ndarray:
        """Distance of every reference, shape (N,)."""
        distances = np.empty(self.references, self.firsts.dtype)
        _expand(self.starts, self.firsts, self.cold, distances)
        return distances


def stack_distances(trace: BlockTrace) -> Distances:
    """LRU distance of every reference, in blocks.

    With ``trace.prefix`` a block counts with the largest distance of all blocks up to it, since
    it is of use only when they all hit.
    """
    starts = np.empty(trace.references, trace.blocks.dtype)
    firsts = np.empty(trace.references, trace.blocks.dtype)
    unique = trace.unique_blocks
    longest = int(trace.blocks_per_request.max(initial=0))
    # Unsigned: compiled code then asks of no index whether it is negative.
    blocks = trace.blocks.view(f"u{trace.blocks.itemsize}")
    runs = _runs(trace.offsets, blocks, unique, longest, trace.prefix, starts, firsts)
    return Distances(starts[:runs], firsts[:runs], trace.references, unique)


@numba.njit(cache=True)
def _intervals(arrival_s, offsets, blocks, last_s, intervals_s):
    for request in range(len(offsets) - 1):
        now = arrival_s[request]
        for i in range(offsets[request], offsets[request + 1]):
            intervals_s[i] = now - last_s[blocks[i]]
        for i in range(offsets[request], offsets[request + 1]):
            last_s[blocks[i]] = now


def reuse_intervals(trace: BlockTrace) -> np.ndarray:
    """Seconds since the last use of each reference's block; infinite for a first use.

    Returns
    -------
    float64 array, shape (N,)
    """
    intervals_s = np.empty(trace.references)
    last_s = np.full(trace.unique_blocks, -np.inf)
    _intervals(trace.arrival_s, trace.offsets, trace.blocks, last_s, intervals_s)
    return intervals_s
