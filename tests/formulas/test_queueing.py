"""Waiting and decoding of a busy pool, against exact results and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.formulas import cost, queueing

loads = st.floats(0.05, 0.95)


def erlang(load, servers):
    """The exact probability of waiting, M/M/c."""
    work = load * servers
    terms = [work**k / math.factorial(k) for k in range(servers)]
    last = work**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last)


@given(loads)
def test_one_server_is_exact(load):
    """M/M/1 waits load/(1 - load) services; constant service waits half of it."""
    assert queueing.wait_probability(load, 1) == pytest.approx(load)
    expected = load / (1 - load)
    assert queueing.mean_queue_wait(1.0, 1.0, load, 1) == pytest.approx(expected)
    assert queueing.mean_queue_wait(1.0, 0.0, load, 1) == pytest.approx(expected / 2)


@pytest.mark.parametrize("servers", [2, 4, 8, 16])
@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_more_servers_follow_erlang(servers, load):
    assert queueing.wait_probability(load, servers) == pytest.approx(
        erlang(load, servers), abs=0.06
    )


@given(loads, st.floats(0, 4))
def test_waits_grow_with_the_spread_and_shrink_when_pools_join(load, spread):
    alone = queueing.mean_queue_wait(1.0, spread, load, 1)
    assert queueing.mean_queue_wait(1.0, spread + 1, load, 1) > alone
    assert queueing.mean_queue_wait(1.0, spread, load, 4) < alone


def test_late_shares_by_hand_and_at_the_ends():
    assert queueing.late_share(0.0, 0.4, 0.8) == pytest.approx(0.8)
    assert queueing.late_share(-1e-9, 0.4, 0.8) == 1.0
    assert queueing.late_share(0.5, 0.4, 0.8) == pytest.approx(0.8 * math.exp(-1))


@given(st.floats(0.05, 2), loads)
def test_the_tail_integrates_to_the_mean(wait_s, probability):
    at_s = np.linspace(0, 40 * wait_s / probability, 200_001)
    tail = queueing.late_share(at_s, wait_s, probability)
    assert np.trapezoid(tail, at_s) == pytest.approx(wait_s, rel=1e-3)


@given(st.floats(0.01, 1), st.floats(50, 800), st.floats(1e-5, 5e-4), st.floats(0.002, 0.02))
def test_at_the_rate_of_the_gpu_time_tpot_is_its_target(prefill_s, output, per_token, floor_s):
    target_s = 3 * floor_s
    rate = 1 / cost.one_pool_gpu_time(prefill_s, output, per_token, floor_s, target_s)
    found = queueing.mean_tpot(rate, output, floor_s, per_token, rate * prefill_s)
    assert found == pytest.approx(target_s)


def test_littles_law_holds_in_a_step():
    tpot_s = queueing.mean_tpot(2.0, 300, 0.01, 1e-4, 0.0)
    assert 0.01 + 1e-4 * (2.0 * 300 * tpot_s) == pytest.approx(tpot_s)


@pytest.mark.parametrize("load", [1.0, 1.2, -0.1])
def test_without_a_steady_state_there_is_no_answer(load):
    for form, arguments in (
        (queueing.wait_probability, (load, 4)),
        (queueing.mean_queue_wait, (0.1, 1.0, load, 4)),
        (queueing.mean_tpot, (0.0, 500, 0.01, 1e-4, load)),
    ):
        with pytest.raises(InputError, match="offered_load: found"):
            form(*arguments)
    with pytest.raises(InputError, match="servers: found 0"):
        queueing.wait_probability(0.5, 0)
