"""Hit-rate curves: which rate is meant is always said."""

from dataclasses import dataclass

import numba
import numpy as np

from kvpaper.reuse.distances import Distances, stack_distances
from kvpaper.traces.block_trace import BlockTrace

# What a reference weighs in each rate.
RATES = {
    "block": "hits over references",
    "token": "hit tokens over prompt tokens",
    "full_block": "hits over references, blocks that are full only",
    "request_mean_block": "mean over requests of their block rate",
    "request_mean_token": "mean over requests of their token rate",
    "worth": "hit tokens over prompt tokens, each weighed by what its recomputation costs",
}
_CODES = {name: code for code, name in enumerate(RATES)}


@numba.njit(cache=True)
def _weigh(offsets, distances, sizes, full, code, depth, counts):
    """Adds the weight of every reference to ``counts[distance]``; first uses to the last entry."""
    for request in range(len(offsets) - 1):
        start, stop = offsets[request], offsets[request + 1]
        tokens, before = sizes[start:stop].sum(), 0
        for i in range(start, stop):
            size = np.int64(sizes[i])
            weight = 1.0
            if code == 1:
                weight = size
            elif code == 2:
                weight = 1.0 if full == 0 or size == full else 0.0
            elif code == 3:
                weight = 1.0 / (stop - start)
            elif code == 4:
                weight = size / tokens if tokens else 0.0
            elif code == 5:
                weight = size * (1.0 + (before + 0.5 * size) / depth)
            counts[distances[i]] += weight
            before += size


@numba.njit(cache=True)
def _block_hits(starts, firsts, references, hits):
    """The block rate from runs, each of which adds one to a span of distances."""
    cold = len(hits) - 1
    steps = np.zeros(cold + 1, np.int32)
    for run in range(len(starts)):
        first = np.int64(firsts[run])
        if first < cold:
            stop = starts[run + 1] if run + 1 < len(starts) else references
            steps[first] += 1
            steps[first + stop - starts[run]] -= 1
    share, count, total = 1.0 / max(references, 1), np.int64(0), np.int64(0)
    for capacity in range(cold + 1):
        hits[capacity] = total * share
        count += steps[capacity]
        total += count


@dataclass(frozen=True, slots=True)
class Curve:
    """One named hit rate as a function of capacity.

    Attributes
    ----------
    hits : float64 array, shape (U + 1,)
        Hit rate of an LRU cache of C blocks at index C.
    """

    hits: np.ndarray

    @property
    def ceiling(self) -> float:
        """Hit rate of a cache without limit."""
        return float(self.hits[-1])

    @property
    def saturation_blocks(self) -> int:
        """Least capacity that reaches the ceiling."""
        return int(np.searchsorted(self.hits, self.hits[-1]))

    def at(self, capacity_blocks: np.ndarray | int) -> np.ndarray:
        """Hit rate at capacities in blocks, which may exceed all that the trace uses."""
        index = np.clip(capacity_blocks, 0, len(self.hits) - 1)
        return self.hits[np.asarray(index, np.int64)]


def of_counts(counts: np.ndarray, total: float) -> Curve:
    """The curve of weights at distances, those of first uses last, that add up to ``total``."""
    hits = np.zeros(len(counts))
    np.cumsum(counts[:-1], out=hits[1:])
    return Curve(hits / (total or 1))


def hit_curve(
    trace: BlockTrace,
    distances: Distances | None = None,
    rate: str = "block",
    worth_depth_tokens: float = np.inf,
) -> Curve:
    """Exact LRU hit rate of every capacity.

    Parameters
    ----------
    trace : BlockTrace
    distances : Distances, optional
        Made here if absent.
    rate : str
        A key of ``RATES``.
    worth_depth_tokens : float
        For ``worth``: the depth at which attention costs as much as the rest of the layer, so
        that recomputing a token at depth x costs in proportion to ``1 + x / depth``.
    """
    if distances is None:
        distances = stack_distances(trace)
    if rate == "block":
        hits = np.empty(distances.cold + 1)
        _block_hits(distances.starts, distances.firsts, distances.references, hits)
        return Curve(hits)
    counts = np.zeros(distances.cold + 1)
    full = 0 if trace.unit_tokens is not None else trace.block_tokens  # a component is always full
    _weigh(
        trace.offsets, distances.expanded(), trace.reference_tokens, full,
        _CODES[rate], worth_depth_tokens, counts,
    )  # fmt: skip
    filled = np.count_nonzero(trace.blocks_per_request)
    return of_counts(counts, filled if rate.startswith("request_mean") else counts.sum())


def ceilings(trace: BlockTrace, distances: Distances) -> dict[str, float]:
    """Hit rate of a cache without limit, by the name of the rate; ``worth`` needs a model."""
    return {rate: hit_curve(trace, distances, rate).ceiling for rate in RATES if rate != "worth"}


def log_spaced(largest: int, points: int = 61) -> np.ndarray:
    """Whole capacities from 1 to ``largest`` blocks, evenly spaced in the logarithm."""
    if largest < 1:
        return np.empty(0, np.int64)
    return np.unique(np.geomspace(1, largest, points).round().astype(np.int64))


def tier_rates(curve: Curve, capacities_blocks: dict[str, int]) -> dict[str, float]:
    """Share of hits served by each tier of a stack, fastest first, each holding what the tiers
    above it dropped (exclusive)."""
    edges = np.cumsum([0, *capacities_blocks.values()])
    shares = np.diff(curve.at(edges)).tolist()
    return dict(zip(capacities_blocks, shares, strict=True))
