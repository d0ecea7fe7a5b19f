"""Arrivals: rates, gaps and order."""

from dataclasses import replace

import numpy as np
import pytest
from fleets import BLOCK, fleet, pool, trace

from kvpaper.errors import InputError
from kvpaper.reuse.curve import hit_curve
from kvpaper.reuse.fleet import sessions_of
from kvpaper.serving.arrivals import SHIFT_S, poisson, scaled, spread, strangers
from kvpaper.serving.replay import replay
from kvpaper.traces.generated import conversations


def gaps(requests):
    """Times between turns of each session, sorted."""
    session = sessions_of(requests)
    order = np.argsort(session, kind="stable")
    same = np.diff(session[order]) == 0
    return np.sort(np.diff(requests.arrival_s[order])[same])


@pytest.mark.parametrize("rate", [1.0, 2.0, 3.0])
def test_copies_of_sessions_keep_the_gaps_between_turns(rate):
    requests = conversations()
    more = scaled(requests, rate, seed=5)
    assert more.requests == rate * requests.requests
    assert more.unique_blocks == rate * requests.unique_blocks
    np.testing.assert_allclose(gaps(more), np.sort(np.tile(gaps(requests), int(rate))), atol=1e-9)
    assert (np.diff(more.arrival_s) >= 0).all()
    assert more.duration_s == pytest.approx(requests.duration_s, abs=2 * SHIFT_S)


def test_copies_reuse_as_much_as_the_original():
    requests = conversations()
    more = scaled(requests, 2.0)
    assert hit_curve(more).ceiling == pytest.approx(hit_curve(requests).ceiling)


def test_squeezing_time_would_hit_more_than_copies_of_sessions():
    """The trap: twice the rate with the same sessions makes each come back sooner."""
    requests = conversations(200)
    squeezed = replace(requests, arrival_s=requests.arrival_s / 4)
    small = fleet(pool(kv_tokens=150 * 512, prefill_s=1e-5, step_s=1e-3))
    share = {}
    for name, more in (("copies", scaled(requests, 4.0)), ("squeezed", squeezed)):
        done = replay(small, more)
        share[name] = done.hit_tokens.sum() / more.input_tokens.sum()
    assert share["squeezed"] > 1.2 * share["copies"]


def test_a_fraction_takes_so_many_sessions():
    requests = conversations()
    half = scaled(requests, 0.5, seed=1)
    assert len(np.unique(half.session)) == round(len(np.unique(requests.session)) / 2)
    assert scaled(requests, 1.5).requests > requests.requests
    again = scaled(requests, 0.5, seed=1)
    assert again.arrival_s.tobytes() == half.arrival_s.tobytes()
    assert scaled(requests, 0.5, seed=2).requests != half.requests


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e-9, np.nan, np.inf])
def test_a_rate_that_leaves_nothing_is_refused(rate):
    with pytest.raises(InputError, match="rate"):
        scaled(conversations(10), rate)


def test_spreading_keeps_order_and_stays_within_a_step():
    coarse = trace([[i] for i in range(7)], [0, 0, 0, 3, 6, 6, 60])
    fine = spread(coarse, seed=2)
    moved = fine.arrival_s - coarse.arrival_s
    assert (np.diff(fine.arrival_s) >= 0).all()
    assert (moved[[3, 6]] == 0).all()
    assert (moved[[0, 1, 2, 4, 5]] > 0).all()
    assert moved.max() < 3
    single = trace([[0], [1]], [4.0, 4.0])
    assert spread(single) is single


def test_strangers_share_nothing_and_the_others_what_they_shared():
    a, b, c, d = range(4)  # two sessions of two turns
    requests = trace([[a], [b], [a, c], [b, d]], [0, 1, 2, 3])
    half = strangers(requests)
    first, second = ([half.blocks[half.offsets[r]] for r in pair] for pair in ((0, 2), (1, 3)))
    assert sorted(len(set(pair)) for pair in (first, second)) == [1, 2]
    assert half.unique_blocks == 5
    np.testing.assert_array_equal(half.offsets, requests.offsets)
    np.testing.assert_array_equal(strangers(requests, 0.0).blocks, requests.blocks)
    assert strangers(requests, 1.0).unique_blocks == requests.references


def test_half_of_the_sessions_as_strangers_leave_about_half_of_the_reuse():
    requests = conversations()
    ceilings = [hit_curve(strangers(requests, 0.5, seed)).ceiling for seed in range(8)]
    assert np.mean(ceilings) == pytest.approx(0.5 * hit_curve(requests).ceiling, rel=0.1)
    again = strangers(requests, 0.5, 3)
    assert again.blocks.tobytes() == strangers(requests, 0.5, 3).blocks.tobytes()


def test_poisson_has_its_rate_and_no_reuse():
    requests = poisson(5.0, np.full(20_000, 33), 7, BLOCK, seed=3)
    error = 1 / 5.0 / np.sqrt(20_000)
    assert np.diff(requests.arrival_s).mean() == pytest.approx(1 / 5.0, abs=4 * error)
    assert requests.unique_blocks == requests.references == 3 * 20_000
    assert (requests.output_tokens == 7).all()
