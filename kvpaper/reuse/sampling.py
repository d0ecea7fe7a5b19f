"""The hit curve from a spatial sample of blocks (SHARDS), with very hot blocks kept exactly.

A block is in the sample if its hash says so, with all its uses; distances between sampled blocks
are then too short by the rate, which is known. A few blocks may hold a large share of all
references, and whether the hash takes them would decide the whole curve: they are kept apart, each
counting for itself. Source: Waldspurger et al., "Efficient MRC Construction with SHARDS", USENIX
FAST 2015; the exact part and the error from groups are of this package.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numba
import numpy as np

from kvpaper.reuse.distances import add
from kvpaper.traces.dense import mixed

GROUPS = 16
HOT_SHARE = 1e-4
Chunks = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True, slots=True)
class SampledCurve:
    """Estimated block hit rate of LRU.

    Attributes
    ----------
    capacities_blocks : int64 array, shape (K,)
    hits, standard_error : float64 array, shape (K,)
        The block rate and its standard error: scatter between sixteen groups of sampled blocks,
        scatter of the distances, and one block just too cold to be kept.
    references, kept_references : int
    unique_blocks : float
        Estimate of the distinct blocks.
    """

    capacities_blocks: np.ndarray
    hits: np.ndarray
    standard_error: np.ndarray
    references: int
    kept_references: int
    unique_blocks: float

    def at(self, capacities_blocks: list[int]) -> list[tuple[int, float, float]]:
        """Capacity, rate and standard error at capacities in blocks, linear in between."""
        known = np.append(0, self.capacities_blocks)
        rates, errors = (
            np.interp(capacities_blocks, known, np.append(0, values)).tolist()
            for values in (self.hits, self.standard_error)
        )
        return list(zip(capacities_blocks, rates, errors, strict=True))


@numba.njit(cache=True)
def _slot(keys, weights, key):
    """Place of ``key`` in a table of open addresses, or the free one (of no weight) for it."""
    mask = len(keys) - 1
    slot = np.int64(mixed(key) & np.uint64(mask))
    while weights[slot] and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@numba.njit(cache=True)
def _advance(counts, ids, hot, prefix, every, seed, edges, table, line, scalars, histogram):
    """One chunk; ``scalars``: positions used, weight alive, blocks kept, references kept.

    ``hot`` is (keys, weights), ``table`` (keys, weights, last positions), ``line`` (Fenwick tree,
    slot at a position).
    ``histogram`` has a row for hot blocks, then a row a group; its last column takes first uses.
    """
    keys, weights, last = table
    tree, owner = line
    salt = mixed(np.int64(seed) + 1)
    within = ~np.uint64(0) // np.uint64(every)
    kept = np.empty(counts.max() if len(counts) else 0, np.int64)
    begin = 0
    for request in range(len(counts)):
        found, deepest = 0, np.int64(0)
        for i in range(begin, begin + counts[request]):
            key = np.int64(ids[i])
            share = mixed(np.uint64(key) ^ salt)
            # Most blocks are neither: the small table of hot ones, which stays close, tells.
            if share > within and not hot[1][_slot(hot[0], hot[1], key)]:
                continue
            slot = _slot(keys, weights, key)
            if not weights[slot]:
                is_hot = hot[1][_slot(hot[0], hot[1], key)]
                keys[slot], weights[slot], last[slot] = key, 1 if is_hot else every, -1
                scalars[2] += 1
            row = 0
            if weights[slot] > 1 or every == 1:
                row = 1 + np.int64(share % np.uint64(histogram.shape[0] - 1))
            distance = np.int64(2**62)
            if last[slot] >= 0:
                distance, node = scalars[1], last[slot] + 1
                while node > 0:
                    distance -= tree[node]
                    node &= node - 1
            deepest = max(deepest, distance) if prefix else distance
            column = np.searchsorted(edges, deepest, "right")
            histogram[row, column] += 1
            kept[found] = slot
            found += 1
        begin += counts[request]
        scalars[3] += found
        for j in range(found - 1, -1, -1):
            slot = kept[j]
            if last[slot] >= 0:
                add(tree, len(owner), last[slot], -weights[slot])
                owner[last[slot]] = -1
            else:
                scalars[1] += weights[slot]
            last[slot] = scalars[0]
            owner[last[slot]] = slot
            add(tree, len(owner), last[slot], weights[slot])
            scalars[0] += 1


@numba.njit(cache=True)
def _rebuild(table, line, scalars, fresh, fresh_line):
    """Moves all to ``fresh`` tables; positions on the line of time close up, order kept."""
    keys, weights, last = fresh
    tree, owner = fresh_line
    position = 0
    for slot in line[1][: scalars[0]]:
        if slot >= 0:
            place = _slot(keys, weights, table[0][slot])
            keys[place], weights[place], last[place] = table[0][slot], table[1][slot], position
            owner[position] = place
            add(tree, len(owner), position, weights[place])
            position += 1
    scalars[0] = position


def _tables(blocks: int, positions: int) -> tuple[tuple, tuple]:
    size = 1 << int(2 * blocks + 64).bit_length()
    table = tuple(np.zeros(size, np.int64) for _ in range(3))
    return table, (np.zeros(positions + 1, np.int64), np.full(positions, -1, np.int64))


def hottest(chunks: Chunks, most: int, share: float = HOT_SHARE) -> np.ndarray:
    """Ids of at most ``most`` blocks that take more than ``share`` of the references each.

    Judged by a sample of requests, about half a million references of each chunk at most.
    """
    counted, total = Counter(), 0
    for counts, ids in chunks():
        step = max(1, len(ids) // 500_000)
        chosen = np.repeat(np.arange(len(counts)) % step == 0, counts)
        values, times = np.unique(ids[chosen], return_counts=True)
        total += int(times.sum())
        often = np.argsort(times)[::-1][: 4 * most]
        counted.update(dict(zip(values[often].tolist(), times[often].tolist(), strict=True)))
    hot = [block for block, uses in counted.most_common(most) if uses > share * total]
    return np.array(hot, np.int64)


def sampled_curve(
    chunks: Chunks, every: int, hot_blocks: int = 1024, seed: int = 0, prefix: bool = True
) -> SampledCurve:
    """Estimate the LRU block rate from one in ``every`` blocks and the hottest ones.

    Memory follows the blocks that are kept, not the length of the trace.

    Parameters
    ----------
    chunks : callable
        Gives, each time it is called, the trace anew as pairs (blocks per request, block ids), in
        order of arrival.
    every : int
        One block in so many is sampled; 1 keeps all and is exact.
    hot_blocks : int
        At most so many blocks are kept whatever their hash; 0 is plain sampling.
    prefix : bool
        As in a block trace.
    """
    hot = hottest(chunks, hot_blocks) if hot_blocks and every > 1 else np.empty(0, np.int64)
    octaves = np.geomspace(1024, 2**42, 38 * 128).astype(np.int64)
    edges = np.concatenate([np.arange(1, 1024), octaves])
    histogram = np.zeros((1 + GROUPS, len(edges) + 1), np.int64)
    scalars, references = np.zeros(4, np.int64), 0
    hot_keys, hot_weights, _ = _tables(len(hot), 0)[0]
    for key in hot.tolist():
        place = _slot(hot_keys, hot_weights, key)
        hot_keys[place], hot_weights[place] = key, 1
    table, line = _tables(0, 0)
    for counts, ids in chunks():
        references += len(ids)
        for part_counts, part_ids in _pieces(np.asarray(counts), np.asarray(ids)):
            # What a piece may add is known only from above; half of it is a fair start.
            need = int(scalars[0]) + len(part_ids)
            if need > len(line[1]) or 2 * (int(scalars[2]) + len(part_ids)) > len(table[0]):
                kept = int(scalars[2]) + len(part_ids)
                fresh = _tables(kept, 2 * kept)
                _rebuild(table, line, scalars, *fresh)
                table, line = fresh
            _advance(
                part_counts, part_ids, (hot_keys, hot_weights), prefix, every, seed, edges,
                table, line, scalars, histogram,
            )  # fmt: skip
    return _estimate(histogram, edges, every, references, scalars, len(hot))


def _pieces(counts: np.ndarray, ids: np.ndarray, most: int = 2**18):
    """Pieces of a chunk of about ``most`` references, cut between requests."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        start = int(ends[begin - 1]) if begin else 0
        stop = max(begin + 1, int(np.searchsorted(ends, start + most, "right")))
        yield counts[begin:stop], ids[start : int(ends[stop - 1])]
        begin = stop


def _estimate(histogram, edges, every, references, scalars, hot_blocks) -> SampledCurve:
    """Hot references count for themselves; the sampled ones give a rate for all others."""
    reach = np.cumsum(histogram[:, :-1], axis=1)
    hot_references, group_references = int(histogram[0].sum()), histogram[1:].sum(axis=1)
    others = references - hot_references
    sampled = int(group_references.sum())
    rate = reach[1:].sum(axis=0) / max(sampled, 1)
    # Ratio estimator: residuals of the groups around the common rate.
    residuals = reach[1:] - np.outer(group_references, rate)
    error = np.sqrt(GROUPS / (GROUPS - 1) * (residuals**2).sum(axis=0)) / max(sampled, 1)
    hits = (reach[0] + others * rate) / max(references, 1)
    # The number of sampled blocks within a distance scatters too, and shifts the curve sideways.
    shift = np.sqrt(edges * (every - 1.0))
    sideways = (np.interp(edges + shift, edges, hits) - np.interp(edges - shift, edges, hits)) / 2
    # One block just below the threshold may be missed, or stand for ``every`` of its like.
    single = HOT_SHARE * np.sqrt(every - 1.0)
    error = np.sqrt((error * others / max(references, 1)) ** 2 + sideways**2 + single**2)
    if every == 1:
        error[:] = 0.0
    unique = hot_blocks + every * (int(scalars[2]) - hot_blocks)
    return SampledCurve(edges, hits, error, references, int(scalars[3]), unique)
