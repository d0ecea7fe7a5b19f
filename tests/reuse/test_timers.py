"""Timers against a replay of every block, and the bound that theory gives."""

from dataclasses import replace

import numpy as np
import pytest
from at_hand import TRACES
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import anything, block_trace

from kvpaper.reuse import timers
from kvpaper.reuse.curve import hit_curve
from kvpaper.traces.load import read_trace

NAMES = ["mooncake_conversation.jsonl", "mooncake_synthetic.jsonl", "ragpulse"]


def by_hand(requests: list[list[int]], timer_s: float, break_even_s: float) -> float:
    """Every block's life, second by second, one request a second."""
    cost, last = 0.0, {}
    for now, request in enumerate(requests):
        for block in request:
            if block not in last:
                cost += 1
            else:
                gap = now - last[block]
                cost += min(gap, timer_s) / break_even_s + (gap > timer_s)
        for block in request:
            last[block] = now
    return cost + sum(min(len(requests) - 1 - at, timer_s) / break_even_s for at in last.values())


unique_blocks = anything.map(lambda requests: [sorted(set(request)) for request in requests])


@settings(deadline=None)
@given(unique_blocks, st.floats(0, 30), st.floats(0.5, 30))
def test_timer_costs_what_a_replay_costs(requests, timer_s, break_even_s):
    gaps = timers.gaps_of(block_trace(requests))
    found = timers.timer_total(gaps, timer_s, break_even_s)
    assert found == pytest.approx(by_hand(requests, timer_s, break_even_s))


def unending(gaps: timers.Gaps) -> timers.Gaps:
    """The same trace, whose end comes so late that every timer runs out before it."""
    return replace(gaps, remaining_s=np.full(len(gaps.remaining_s), np.inf))


def check_bounds(trace, break_even_s: float) -> None:
    gaps = timers.gaps_of(trace)
    foresight = timers.foresight_total(gaps, break_even_s)
    for rented in (gaps, unending(gaps)):
        rule = timers.timer_total(rented, break_even_s, break_even_s)
        assert rule <= 2 * foresight * (1 + 1e-9)
    best = timers.best_timer(gaps, break_even_s)
    least = timers.timer_total(gaps, best, break_even_s)
    assert foresight - 1e-6 <= least <= gaps.uses + 1e-6
    hazard = timers.hazard_timer(gaps, break_even_s)
    assert least <= timers.timer_total(gaps, hazard, break_even_s) + 1e-6


@settings(deadline=None)
@given(unique_blocks.filter(any), st.floats(0.5, 30))
def test_break_even_timer_costs_at_most_twice_foresight(requests, break_even_s):
    check_bounds(block_trace(requests), break_even_s)


def test_an_adversary_comes_close_to_the_bound():
    # Every block comes again just after the timer let it go.
    requests = [[i % 11] for i in range(1100)]
    gaps = timers.gaps_of(block_trace(requests))
    rule = timers.timer_total(unending(gaps), 10.9, 10.9)
    ratio = rule / timers.foresight_total(gaps, 10.9)
    assert 1.95 < ratio <= 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("break_even_s", [10.0, 1146.0, 1e5])
def test_bounds_hold_on_real_traces(name, break_even_s):
    if not (TRACES / name).exists():
        pytest.skip("trace not fetched")
    check_bounds(read_trace([TRACES / name]), break_even_s)


def test_conversation_table():
    path = TRACES / NAMES[0]
    if not path.exists():
        pytest.skip("trace not fetched")
    trace = read_trace([path])
    table = timers.policy_table(trace, hit_curve(trace), 1146.0)
    costs = {row["policy"]: row["block_recomputes"] for row in table}
    assert costs["no cache"] == 288_500
    assert round(costs["break-even timer"], -3) == 351_000
    assert 255_000 < costs["best single timer"] < 259_000
    assert round(costs["foresight"], -3) == 201_000
    rule = timers.timer_total(unending(timers.gaps_of(trace)), 1146.0, 1146.0)
    assert round(rule, -3) == 386_000
    assert timers.horizon_warning(trace, 12 * 3600)
    assert timers.horizon_warning(trace, 1146.0) is None


def test_best_fixed_capacity_is_the_best_of_all():
    requests = [[i % 5, 10 + i % 3, 100 + i] for i in range(60)]
    trace = block_trace(requests)
    curve = hit_curve(trace)
    table = timers.policy_table(trace, curve, 200.0)
    row = next(row for row in table if row["policy"] == "best fixed capacity")
    at = np.arange(len(curve.hits))
    every = trace.references * (1 - curve.hits) + at * trace.duration_s / 200.0
    assert row["block_recomputes"] == pytest.approx(every.min())


def second_use_by_hand(requests: list[list[int]], capacity: int) -> tuple[int, int]:
    cache, seen, hits, written = [], set(), 0, 0
    for request in requests:
        hits += sum(block in cache for block in request)
        for block in reversed(request):
            if block in cache:
                cache.remove(block)
                cache.append(block)
            elif block in seen:
                written += 1
                cache = [*cache, block][-capacity:]
        seen.update(request)
    return hits, written


@settings(deadline=None)
@given(unique_blocks.filter(any), st.integers(1, 45))
def test_admission_on_second_use_against_a_replay(requests, capacity):
    trace = block_trace(requests, prefix=False)
    shares = timers.write_shares(trace, hit_curve(trace), capacity)
    hits, _ = second_use_by_hand(requests, capacity)
    assert shares["hits_second_use"] * trace.references == pytest.approx(hits)
    assert shares["written_second_use"] <= shares["written"] + 1e-12
