"""Routing, splitting and drift, against the closed form and by hand."""

from dataclasses import replace

import numba
import numpy as np
import pytest
from at_hand import TRACES
from direct_replay import replay
from strategies import block_trace

from kvpaper.formulas.pooling import random_routing_hit_probability
from kvpaper.reuse import fleet
from kvpaper.reuse.curve import hit_curve
from kvpaper.reuse.distances import stack_distances
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.load import read_trace


def conversation():
    path = TRACES / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("trace not fetched")
    return read_trace([path])


def expected_random_hits(trace: BlockTrace, servers: int) -> tuple[float, float]:
    """Hits of unlimited caches under random routing by the closed form, and a bound of its error.

    The second value is a standard deviation that takes blocks of one request as hitting together,
    which they do: requests are routed, not blocks.
    """
    most = int(np.bincount(trace.blocks).max())
    probability = np.asarray(random_routing_hit_probability(np.arange(most + 1), servers), float)
    uses = np.zeros(trace.unique_blocks, np.int64)
    mean, variance = _expected(trace.offsets, trace.blocks, uses, probability)
    return float(mean), float(np.sqrt(variance))


@numba.njit(cache=True)
def _expected(offsets, blocks, uses, probability):
    mean, variance = 0.0, 0.0
    for request in range(len(offsets) - 1):
        start, stop = offsets[request], offsets[request + 1]
        # Hits of a request are nested along its prefix: E[hits**2] = sum (2 j + 1) p_j.
        first, second = 0.0, 0.0
        for i in range(start, stop):
            p = probability[uses[blocks[i]]]
            first += p
            second += (2 * (i - start) + 1) * p
        for i in range(start, stop):
            uses[blocks[i]] += 1
        mean += first
        variance += second - first * first
    return mean, variance


def test_random_routing_hits_as_the_closed_form_says():
    trace = conversation()
    mean, deviation = expected_random_hits(trace, 8)
    assert round(mean) == 38_021
    for seed in range(3):
        unlimited = np.array([8 * trace.unique_blocks])
        found = fleet.split_rates(trace, "random", 8, unlimited, seed)[0] * trace.references
        assert abs(found - mean) < 3 * deviation


def test_expected_hits_of_three_uses_by_hand():
    trace = block_trace([[0], [0], [0]])
    mean, deviation = expected_random_hits(trace, 2)
    assert mean == pytest.approx(0 + 1 / 2 + 3 / 4)
    assert deviation == pytest.approx(np.sqrt(1 / 4 + 3 / 16))


def test_pooling_gains_by_routing():
    trace = conversation()
    curve = hit_curve(trace)
    at = np.array([10_000, 20_000, 50_000])
    gains = {
        routing: curve.at(at) / fleet.split_rates(trace, routing, 8, at)
        for routing in fleet.ROUTINGS
    }
    for routing in ("random", "round robin", "least loaded"):
        assert ((gains[routing] > 2.9) & (gains[routing] < 6.1)).all()
    for routing in ("session", "prefix"):
        assert ((gains[routing] > 0.95) & (gains[routing] < 1.25)).all()


def test_a_split_is_the_replay_of_its_servers():
    random = np.random.default_rng(0)
    trace = block_trace([random.integers(0, 60, 5).tolist() for _ in range(300)], prefix=False)
    for routing in fleet.ROUTINGS:
        server = fleet.route(trace, routing, 3)
        assert server.min() >= 0
        assert server.max() < 3
        hits = sum(replay(trace.select(np.flatnonzero(server == one)), 7).sum() for one in range(3))
        split = fleet.split_rates(trace, routing, 3, np.array([21]))
        assert split[0] == pytest.approx(hits / trace.references)


def test_sessions_are_told_by_what_they_continue():
    trace = block_trace([[0, 1], [0, 5, 6], [0, 1, 2], [0, 5, 6, 7], [0, 1, 2, 3, 4]])
    assert fleet.sessions_of(trace).tolist() == [0, 1, 0, 1, 0]
    assert fleet.turn_gaps(trace).tolist() == [2, 2, 2]
    named = replace(trace, session=np.array([4, 2, 2, 2, 7], np.int32))
    assert fleet.sessions_of(named).tolist() == [4, 2, 2, 2, 7]
    assert fleet.turn_gaps(named).tolist() == [1, 1]


def test_prefix_routing_follows_the_cache_and_load_routing_the_load():
    trace = block_trace([[0, 1], [5, 6], [0, 1, 2], [5, 6, 7], [0, 1, 2, 3]])
    assert fleet.route(trace, "prefix", 2).tolist() == [0, 1, 0, 1, 0]
    long = block_trace([[0] * 9, [1], [2], [3]], arrival_s=np.zeros(4))
    assert fleet.route(long, "least loaded", 2).tolist() == [0, 1, 1, 1]


def test_window_curves_add_up_to_the_whole():
    trace = conversation()
    distances = stack_distances(trace)
    curves = fleet.window_curves(trace, distances, 4)
    edges = np.searchsorted(trace.arrival_s, np.linspace(0, trace.duration_s, 5)[1:-1])
    counts = np.diff(trace.offsets[np.concatenate([[0], edges, [trace.requests]])])
    whole = sum(curve.hits * count for curve, count in zip(curves, counts, strict=True))
    assert whole / trace.references == pytest.approx(hit_curve(trace, distances).hits)


def test_regret_is_never_negative_and_zero_on_equal_windows():
    trace = conversation()
    curves = fleet.window_curves(trace, stack_distances(trace), 2)
    prices = np.geomspace(1e-6, 1e-4, 13)
    losses = fleet.regret(curves, prices)
    assert (losses[np.isfinite(losses)] >= -1e-12).all()
    assert np.nanmedian(losses) < 0.04
    assert (fleet.regret([curves[0], curves[0]], prices) == 0).all()
