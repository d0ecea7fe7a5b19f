import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.formulas import decode

MOE = dict(total_params=30.5e9, active_params=3.3e9, expert_share=8 / 128, weight_element_bytes=2)


def test_one_sequence_reads_the_active_parameters_and_many_read_all():
    assert decode.weight_bytes(1, **MOE) == pytest.approx(2 * 3.3e9)
    assert decode.weight_bytes(4096, **MOE) == pytest.approx(2 * 30.5e9)


def test_a_dense_model_is_read_whole_by_any_batch():
    read = decode.weight_bytes(np.array([1, 2, 512]), 70e9, 70e9, 1.0, 2)
    assert read.tolist() == [140e9] * 3


def test_experts_touched_are_those_of_random_choices():
    """Distinct experts that sequences choose without looking at each other, counted."""
    rng = np.random.default_rng(0)
    experts, chosen, batch, trials = 32, 4, 12, 4000
    picks = rng.random((trials, batch, experts)).argpartition(chosen, axis=2)[:, :, :chosen]
    touched = np.zeros((trials, experts), bool)
    np.put_along_axis(touched, picks.reshape(trials, -1), True, axis=1)
    counts = touched.sum(axis=1)
    # Experts alone, one parameter each: total 32, active 4.
    expected = decode.weight_bytes(batch, experts, chosen, chosen / experts, 1)
    assert counts.mean() == pytest.approx(expected, abs=4 * counts.std() / np.sqrt(trials))


def test_a_step_by_hand():
    # 16 GB of weights and 32 caches of 1 GB at 4.8 TB/s.
    step = decode.decode_step_time(32, 1e9, 16e9, 8e9, 4.8e12, 580e12, 0.002)
    assert step == pytest.approx(0.002 + 0.010)


def test_a_large_batch_of_short_sequences_computes():
    step = decode.decode_step_time(1000, 0.0, 16e9, 8e9, 4.8e12, 580e12)
    assert step == pytest.approx(2 * 8e9 * 1000 / 580e12)


@given(st.integers(1, 512), st.integers(1, 512), st.floats(0, 1e10))
def test_more_sequences_never_take_less_time(few, more, kv_bytes):
    few, more = sorted((few, more))
    shorter, longer = (
        decode.decode_step_time(batch, kv_bytes, decode.weight_bytes(batch, **MOE), 3e9, 5e12, 6e14)
        for batch in (few, more)
    )
    assert shorter <= longer * (1 + 1e-12)
