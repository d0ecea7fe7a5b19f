"""The closed form of a fleet: exact where theory is, and what it says of a replay."""

from dataclasses import replace

import fleets
import numpy as np
import pytest

from kvpaper.formulas import queueing
from kvpaper.reuse.curve import hit_curve
from kvpaper.serving import arrivals
from kvpaper.serving.closed_form import Load, highest_rate, predicted
from kvpaper.serving.fleet import Tier
from kvpaper.serving.replay import replay
from kvpaper.traces.generated import conversations

SERVICE_S, OUTPUT = 0.16, 20
POISSON = arrivals.poisson(1.0, np.full(4000, 160), OUTPUT, fleets.BLOCK)


def split(**changes):
    """Prefill in a constant time, decode with room to spare."""
    one = fleets.pool(prefill_s=SERVICE_S / 160)
    return fleets.fleet(one, replace(one, instances=8), **changes)


@pytest.mark.parametrize("busy", [0.5, 0.8])
def test_first_tokens_of_one_server_follow_its_queue(busy):
    found = predicted(split(), Load.of(POISSON), busy / SERVICE_S, 0.05)
    wait_s = queueing.mean_queue_wait(SERVICE_S, 0.0, busy, 1)
    late = queueing.late_share(found.ttft_s - SERVICE_S, wait_s, busy)
    assert late == pytest.approx(0.1, rel=0.01)
    assert found.tpot_s == pytest.approx(0.01, rel=1e-6)  # constant steps


def test_a_replay_of_poisson_arrivals_is_met():
    busy = 0.6
    rate = busy / SERVICE_S
    trace = arrivals.poisson(rate, np.full(40_000, 160), OUTPUT, fleets.BLOCK)
    replayed = replay(split(), trace)
    found = predicted(split(), Load.of(trace), rate, 0.05)
    # Constant service has a shorter tail than the exponential one that the closed form takes.
    assert found.ttft_s == pytest.approx(np.quantile(replayed.ttft_s, 0.9), rel=0.1)
    assert found.tpot_s == pytest.approx(replayed.tpot_s.mean(), rel=0.05)


def test_without_a_steady_state_times_are_infinite():
    found = predicted(split(), Load.of(POISSON), 1.01 / SERVICE_S, 0.05)
    assert np.isinf([found.ttft_s, found.tpot_s]).all()
    full = split(tiers=(Tier("dram", 1e9, read_bytes_per_s=1.0),))
    assert highest_rate(full, Load.of(POISSON), 1.0, 0.05) > 0  # nothing is ever read


def test_a_target_below_the_prefill_is_met_at_no_rate():
    assert highest_rate(split(), Load.of(POISSON), 0.9 * SERVICE_S, 0.05) == 0
    rate = highest_rate(split(), Load.of(POISSON), 10 * SERVICE_S, 0.05)
    assert 0.8 < rate * SERVICE_S < 1


def test_hits_are_those_of_the_curve_at_the_capacity_of_a_copy():
    trace = conversations()
    load, curve = Load.of(trace), hit_curve(trace, rate="token")
    held = 4000
    pool = fleets.pool(kv_tokens=held * trace.block_tokens, prefill_s=1e-6)
    one = fleets.fleet(pool, pool)
    for copies in (0.5, 1.0, 2.0):
        found = predicted(one, load, copies * load.requests_per_s, 0.05)
        assert found.hit_shares[0] == pytest.approx(float(curve.at(int(held / copies))))


def test_a_tier_adds_what_it_holds_beyond_the_faster_one():
    load = Load.of(conversations())
    block_bytes = load.block_tokens * fleets.KV_BYTES
    pool = fleets.pool(kv_tokens=100 * load.block_tokens, prefill_s=1e-6)
    tiers = (Tier("dram", 50 * block_bytes, 1e12), Tier("nvme", 1e6 * block_bytes, 1e12))
    one = fleets.fleet(pool, pool, tiers=tiers)
    shares = predicted(one, load, load.requests_per_s, 0.05).hit_shares
    assert shares[1] == 0  # less than GPU memory holds
    assert shares.sum() == pytest.approx(load.curve.ceiling)
    assert shares[2] > 0


def test_a_saturated_link_or_tier_is_no_steady_state():
    trace = conversations()
    load = Load.of(trace)
    sent = load.requests_per_s * load.input_tokens.mean() * fleets.KV_BYTES
    pool = fleets.pool(prefill_s=1e-6)
    for share, reachable in ((0.9, False), (1.1, True)):
        slow = replace(pool, link_bytes_per_s=share * sent)
        one = fleets.fleet(slow, slow)
        assert np.isfinite(predicted(one, load, load.requests_per_s, 0.05).ttft_s) == reachable
