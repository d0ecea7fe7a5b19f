import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.formulas import recovery, slack

times = st.floats(0, 2)


@given(st.integers(1, 100), times, times, times)
def test_visible_transfer_is_that_of_layers_sent_in_turn(layers, whole, prefill, latency):
    sent = 0.0
    for layer in range(layers):
        computed = prefill * (layer + 1) / layers
        sent = max(sent, computed) + whole / layers
    visible = slack.visible_transfer_time(whole * 50e9, 50e9, latency, layers, prefill)
    assert visible == pytest.approx(latency + sent - prefill, abs=1e-9)


def test_one_layer_hides_nothing_and_a_fast_link_all_but_the_last():
    assert slack.visible_transfer_time(1e9, 50e9, 0.001, 1, 10.0) == 0.021
    assert slack.visible_transfer_time(1e9, 50e9, 0, 32, 10.0) == 0.02 / 32


def test_time_to_first_token_by_hand():
    assert slack.ttft(0.1, 0.3, 0.2, 0.05) == pytest.approx(0.65)
    assert slack.ttft(0.1, 0.3, 0.2, 0.05, 1) == pytest.approx(0.55)
    assert slack.ttft(0.4, 0.3, 0.2, 0.05, 1) == pytest.approx(0.65)


@given(times, times, times, times, times, st.floats(0, 1))
def test_a_fetch_within_the_slack_meets_the_target_and_no_other(
    target, wait, fetch, prefill, visible, overlap
):
    first = slack.ttft(wait, fetch, prefill, visible, overlap)
    left = slack.ttft_slack(target, wait, prefill, visible, overlap)
    assume(abs(first - target) > 1e-9)
    assert (first <= target) == (fetch <= left)


def test_slack_by_hand():
    assert slack.ttft_slack(0.3, 0.05, 0.15, 0.02) == pytest.approx(0.08)
    assert slack.ttft_slack(0.3, 0.05, 0.15, 0.02, 1) == pytest.approx(0.13)
    assert slack.ttft_slack(0.3, 0.2, 0.15, 0.02, 1) == pytest.approx(-0.07)


def test_a_transfer_takes_what_a_fetch_could_have():
    colocated = slack.ttft_slack(0.3, 0, 0.15, 0.0)
    assert colocated - slack.ttft_slack(0.3, 0, 0.15, 0.04) == pytest.approx(0.04)


@given(st.floats(0.01, 2), st.floats(1e8, 1e12), st.floats(0, 0.009))
def test_the_largest_fetch_takes_the_whole_slack(left, rate, latency):
    largest = slack.max_fetch_bytes(left, rate, latency)
    assert recovery.fetch_time(largest, rate, latency) == pytest.approx(left)


def test_no_slack_fetches_nothing():
    assert slack.max_fetch_bytes(np.array([-1, 0.0, 0.01]), 3e9, 0.01).tolist() == [0, 0, 0]


def test_the_papers_disk_leaves_the_critical_path_and_dram_does_not():
    """1 GB, 300 ms to the first token, 100 ms of it prefill: the paper's verdict."""
    fetched = recovery.fetch_time(1e9, np.array([4.8e12, 64e9, 3e9]), 0)
    left = slack.ttft_slack(0.3, 0, 0.1, 0)
    assert slack.on_critical_path(fetched, left, 0.237).tolist() == [True, True, False]


def test_a_fetch_that_meets_the_target_must_beat_computing_too():
    assert not slack.on_critical_path(0.3, 1.0, 0.237)


def test_prefetch_probability_is_that_of_an_exponential_sample():
    rng, size = np.random.default_rng(3), 40_000
    sample = rng.exponential(0.5, size)
    fetched = np.array([0.01, 0.333, 2.0])
    theory = slack.prefetch_probability(fetched, 0.5)
    error = np.sqrt(theory * (1 - theory) / size)
    assert np.all(
        np.abs(slack.empirical_prefetch_probability(fetched, sample) - theory) < 3 * error
    )


def test_a_prefetch_without_duration_is_always_in_time():
    assert slack.prefetch_probability(0.0, 0.5) == 1
    assert slack.prefetch_probability(0.5, 0.5) == pytest.approx(np.exp(-1))


@pytest.mark.parametrize("overlap", [-0.1, 1.1])
def test_an_overlap_outside_0_to_1_is_refused(overlap):
    expected = rf"queue_overlap: found {overlap}, expected a share from 0"
    with pytest.raises(InputError, match=expected):
        slack.ttft(0.1, 0.1, 0.1, 0.0, overlap)
    with pytest.raises(InputError, match=expected):
        slack.ttft_slack(0.3, 0.1, 0.1, 0.0, overlap)
