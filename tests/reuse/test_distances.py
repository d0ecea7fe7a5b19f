"""Distances against two roads that share no code with them."""

from collections import OrderedDict

import numpy as np
import pytest
from at_hand import TRACES
from direct_replay import replay
from hypothesis import given, settings
from strategies import anything, block_trace, prefix_tree

from kvpaper.reuse.curve import ceilings, hit_curve, log_spaced, tier_rates
from kvpaper.reuse.distances import reuse_intervals, stack_distances
from kvpaper.traces.load import read_trace
from kvpaper.traces.readers import Options


def cache_hits(requests: list[list[int]], capacity: int, prefix: bool) -> list[bool]:
    """A cache by the book: an ordered dictionary, oldest first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for request in requests:
        found = [block in cache for block in request]
        hits += [all(found[: i + 1]) if prefix else found[i] for i in range(len(request))]
        for block in reversed(request):
            cache[block] = None
            cache.move_to_end(block)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


@settings(deadline=None, max_examples=60)
@given(anything | prefix_tree())
@pytest.mark.parametrize("prefix", [True, False])
def test_three_roads_agree_on_random_traces(prefix, requests):
    trace = block_trace(requests, prefix=prefix)
    distances = stack_distances(trace).expanded()
    for capacity in [1, 2, 3, 5, 17, 40, trace.unique_blocks, trace.unique_blocks + 1]:
        if capacity:
            expected = np.array(cache_hits(requests, capacity, prefix), bool)
            assert (replay(trace, capacity) == expected).all()
            assert ((distances < min(capacity, trace.unique_blocks)) == expected).all()


@settings(deadline=None)
@given(prefix_tree())
def test_a_closed_set_of_prefixes_needs_no_rule_for_prefixes(requests):
    closed = stack_distances(block_trace(requests, prefix=True)).expanded()
    assert (closed == stack_distances(block_trace(requests, prefix=False)).expanded()).all()


@pytest.mark.parametrize("components", ["component", "prefix"])
@pytest.mark.parametrize(
    "name", ["mooncake_conversation.jsonl", "mooncake_synthetic.jsonl", "ragpulse"]
)
def test_equals_direct_replay_at_thirty_capacities(name, components):
    if not (TRACES / name).exists():
        pytest.skip("trace not fetched")
    trace = read_trace([TRACES / name], Options(components=components))
    distances = stack_distances(trace).expanded()
    for capacity in log_spaced(trace.unique_blocks, 30):
        assert ((distances < capacity) == replay(trace, int(capacity))).all()


CAPACITIES = np.array([10**9, 100_000, 50_000, 30_000, 10_000, 1000])
KNOWN = {
    "conversation": [0.3664, 0.3637, 0.3546, 0.3257, 0.2116, 0.0445],
    "synthetic": [0.6396, 0.6396, 0.6396, 0.6242, 0.4239, 0.0841],
}


@pytest.mark.parametrize(
    ("name", "requests", "references", "blocks", "mean_tokens"),
    [("conversation", 12031, 288500, 182790, 12035), ("synthetic", 3993, 121877, 43924, 15325)],
)
def test_known_values_of_public_traces(name, requests, references, blocks, mean_tokens):
    path = TRACES / f"mooncake_{name}.jsonl"
    if not path.exists():
        pytest.skip("trace not fetched")
    trace = read_trace([path])
    assert (trace.requests, trace.references, trace.unique_blocks) == (requests, references, blocks)
    assert int(trace.input_tokens.mean()) == mean_tokens
    curve = hit_curve(trace)
    assert curve.at(CAPACITIES).round(4).tolist() == KNOWN[name]
    share = curve.at(50_000_000 // 512) / curve.ceiling
    assert round(float(share), 3) == {"conversation": 0.992, "synthetic": 1.0}[name]


def test_every_rate_has_its_name_and_value():
    path = TRACES / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("trace not fetched")
    trace = read_trace([path])
    found = ceilings(trace, stack_distances(trace))
    assert {rate: round(value, 4) for rate, value in found.items()} == {
        "block": 0.3664,
        "token": 0.3736,
        "full_block": 0.3819,
        "request_mean_block": 0.3843,
        "request_mean_token": 0.4094,
    }


def test_rates_by_hand():
    # 4 tokens a block; the second request ends in a block of 2 tokens, the third repeats it.
    trace = block_trace([[0, 1], [0, 1, 2], [0, 1, 2]], input_tokens=np.array([8, 10, 10]))
    distances = stack_distances(trace)
    assert distances.expanded().tolist() == [3, 3, 0, 1, 3, 0, 1, 2]
    found = ceilings(trace, distances)
    assert found["block"] == pytest.approx(5 / 8)
    assert found["token"] == pytest.approx(18 / 28)
    assert found["full_block"] == pytest.approx(4 / 6)
    assert found["request_mean_block"] == pytest.approx((0 + 2 / 3 + 1) / 3)
    assert found["request_mean_token"] == pytest.approx((0 + 8 / 10 + 1) / 3)
    # With depth 4 a token at depth x costs 1 + x / 4.
    worth = hit_curve(trace, distances, "worth", worth_depth_tokens=4.0)
    first, second, rest = 4 * 1.5, 4 * 2.5, 2 * 3.25
    assert worth.ceiling == pytest.approx(
        (2 * first + 2 * second + rest) / (3 * first + 3 * second + 2 * rest)
    )
    assert hit_curve(trace, distances).hits.tolist() == [0, 2 / 8, 4 / 8, 5 / 8]


def test_exclusive_tiers_share_the_hits():
    curve = hit_curve(block_trace([[0, 1, 2, 3]] * 2))
    assert tier_rates(curve, {"hbm": 1, "dram": 2, "nvme": 9}) == pytest.approx(
        {"hbm": 1 / 8, "dram": 2 / 8, "nvme": 1 / 8}
    )


def test_intervals_are_those_of_the_clock():
    trace = block_trace([[0, 1], [2], [1, 0, 0]])
    assert reuse_intervals(trace).tolist() == [np.inf, np.inf, np.inf, 2, 2, 2]
