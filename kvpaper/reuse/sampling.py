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
def _hashes(ids, salt):
    hashes = np.empty(len(ids), np.uint64)
    for i in range(len(ids)):
        hashes[i] = mixed(np.uint64(np.int64(ids[i])) ^ salt)
    return hashes


@numba.njit(cache=True)
def _advance(
    counts, ids, hashes, likely, kept, weights, prefix, every, tree, last, state, edges, histogram
):
    """One chunk of references, of which those that are not ``likely`` kept are passed over.

    ``kept`` are the ids that count, in order; ``weights`` and ``last`` their weights and positions
    on a line of time, -1 before the first use; ``tree`` counts the weights along it. ``state``:
    positions used, weight alive, references kept. ``histogram`` has a row for hot blocks, then a
    row a group; its last column takes first uses.
    """
    slots = np.empty(counts.max() if len(counts) else 0, np.int64)
    begin = 0
    for request in range(len(counts)):
        found, deepest = 0, np.int64(0)
        for i in range(begin, begin + counts[request]):
            if not likely[i]:
                continue
            slot = np.searchsorted(kept, ids[i])
            if slot == len(kept) or kept[slot] != ids[i]:
                continue
            row = 0
            if weights[slot] > 1 or every == 1:
                row = 1 + np.int64(hashes[i] % np.uint64(GROUPS))
            distance = np.int64(2**62)
            if last[slot] >= 0:
                distance, node = state[1], last[slot] + 1
                while node > 0:
                    distance -= tree[node]
                    node &= node - 1
            deepest = max(deepest, distance) if prefix else distance
            histogram[row, np.searchsorted(edges, deepest, "right")] += 1
            slots[found] = slot
            found += 1
        begin += counts[request]
        state[2] += found
        for slot in slots[:found][::-1]:
            if last[slot] >= 0:
                add(tree, len(tree) - 1, last[slot], -weights[slot])
            else:
                state[1] += weights[slot]
            last[slot] = state[0]
            add(tree, len(tree) - 1, last[slot], weights[slot])
            state[0] += 1


def _closed_up(last: np.ndarray, weights: np.ndarray, room: int) -> np.ndarray:
    """Close up the positions on the line of time, order kept; its tree, with room for more."""
    order = np.argsort(last)[np.count_nonzero(last < 0) :]
    last[order] = np.arange(len(order))
    reach = np.cumsum(np.concatenate([[0], weights[order], np.zeros(room, np.int64)]))
    nodes = np.arange(len(reach))
    return reach - reach[nodes & (nodes - 1)]


def _to_keep(
    chunks: Chunks, within: int, salt: np.uint64, hot_blocks: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the blocks in the sample and of hot ones, in order; and the hot ones alone.

    Hot are at most ``hot_blocks`` that take more than ``HOT_SHARE`` of the references each, judged
    by a sample of requests, about half a million references of each chunk at most.
    """
    sampled, counted, total = [], Counter(), 0
    for counts, ids in chunks():
        sampled.append(np.unique(ids[_hashes(ids, salt) <= within]))
        step = max(1, len(ids) // 500_000)
        chosen = np.repeat(np.arange(len(counts)) % step == 0, counts)
        values, times = np.unique(ids[chosen], return_counts=True)
        total += int(times.sum())
        often = np.argsort(times)[::-1][: 4 * hot_blocks]
        counted.update(dict(zip(values[often].tolist(), times[often].tolist(), strict=True)))
    hot = [block for block, uses in counted.most_common(hot_blocks) if uses > HOT_SHARE * total]
    hot = np.array(hot, np.int64)
    return np.unique(np.concatenate([*sampled, hot])), hot


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
    salt, within = np.uint64(mixed(np.int64(seed) + 1)), np.uint64((2**64 - 1) // every)
    kept, hot = _to_keep(chunks, within, salt, hot_blocks if every > 1 else 0)
    weights = np.where(np.isin(kept, hot), 1, every)
    near_hot = np.zeros(2**16, bool)
    near_hot[_hashes(hot, salt) % 2**16] = True
    octaves = np.geomspace(1024, 2**42, 38 * 128).astype(np.int64)
    edges = np.concatenate([np.arange(1, 1024), octaves])
    histogram = np.zeros((1 + GROUPS, len(edges) + 1), np.int64)
    last, tree = np.full(len(kept), -1), np.zeros(1, np.int64)
    state, references = np.zeros(3, np.int64), 0
    for counts, ids in chunks():
        references += len(ids)
        hashes = _hashes(ids, salt)
        likely = (hashes <= within) | near_hot[hashes % 2**16]
        most = np.count_nonzero(likely)
        if state[0] + most >= len(tree):
            tree = _closed_up(last, weights, most + len(kept))
            state[0] = np.count_nonzero(last >= 0)
        _advance(
            counts, ids, hashes, likely, kept, weights, prefix, every, tree, last, state, edges,
            histogram,
        )  # fmt: skip
    unique = len(hot) + every * (len(kept) - len(hot))
    return _estimate(histogram, edges, every, references, int(state[2]), unique)


def _estimate(histogram, edges, every, references, kept_references, unique) -> SampledCurve:
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
    return SampledCurve(edges, hits, error, references, kept_references, unique)
