import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.formulas import cost, recovery, size

costs = st.floats(0.1, 1000)
fluid = {
    "prefill_time_s": st.floats(0, 5),
    "output_tokens": st.floats(1, 5000),
    "decode_s_per_token": st.floats(1e-6, 1e-2),
    "decode_floor_s": st.floats(1e-4, 0.05),
    "tpot_slo_s": st.floats(0.06, 0.5),
}


def test_rent_by_hand():
    assert cost.amortised_rent(6e-9, 3e7) == pytest.approx(2e-16)
    assert cost.rented_rent(4e-16, 0.25) == 1e-16
    assert cost.bundled_rent(np.array([1, 2, 3]), 2, 5e-16).tolist() == [0, 0, 5e-16]


def test_displacement_rent_is_the_slope_of_decode_throughput():
    """A byte less: how much GPU time per second makes the same tokens again."""
    floor, per_sequence, bytes_per_sequence, pool = 0.012, 1e-4, 1e9, 60e9

    def throughput(pool_bytes):
        batch = pool_bytes / bytes_per_sequence
        return batch / (floor + per_sequence * batch)

    step = 1e-5
    lost = np.log(throughput(pool * (1 + step)) / throughput(pool * (1 - step))) / (2 * step * pool)
    step_time = floor + per_sequence * pool / bytes_per_sequence
    found = cost.displacement_rent(2, 1e-3, floor, step_time, pool)
    assert found == pytest.approx(2 * 1e-3 * lost, rel=1e-6)


def test_energy_in_joules_and_in_money():
    joules = cost.recompute_energy(0.5, 4, 700)
    assert joules == 1400
    assert cost.energy_cost(3.6e6, 0.12 / 3.6e6) == pytest.approx(0.12)


def test_value_per_token_is_the_recomputation_spread_over_its_tokens():
    value = cost.value_per_token(0.4, 8000, 4, 1e-3)
    assert value * 8000 == pytest.approx(cost.recompute_cost(0.4, 4, 1e-3))
    assert cost.value_per_token(0.4, 8000, 4, 1e-3, released_share=0) == 0


def test_value_density_where_the_architecture_enters():
    """Recomputed bytes per second that a disk has to beat: few for latent attention."""
    densities = {}
    for name, per_token, params in [
        ("llama-3.1-8b", size.kv_bytes_per_token(32, 8, 128, 2), 8.0e9),
        ("qwen3-30b-a3b", size.kv_bytes_per_token(48, 4, 128, 2), 3.3e9),
        ("deepseek-v3", size.mla_kv_bytes_per_token(61, 512, 64, 2), 37e9),
    ]:
        time = recovery.prefill_flops(8192, params, 0) / 580e12
        densities[name] = cost.value_density(cost.value_per_token(time, 8192, 1, 1e-3), per_token)
    assert densities["qwen3-30b-a3b"] < densities["llama-3.1-8b"] < densities["deepseek-v3"]


def test_net_value_is_benefit_less_cost():
    benefit, rent = cost.benefit_rate(1e4, 3e-8, 0.4), cost.cost_rate(1.5e-16, 5e11)
    assert benefit == pytest.approx(1.2e-4)
    assert rent == pytest.approx(7.5e-5)
    assert cost.net_value(1e4, 3e-8, 0.4, 1.5e-16, 5e11) == pytest.approx(benefit - rent)


def test_steady_prefill_writes_a_disk_17_times_a_day():
    """Qwen3-30B-A3B, 8,192 tokens in 138.4 ms: 5.8 GB/s onto 30 TB."""
    tokens_per_s = 8192 / 0.1384
    assert tokens_per_s * 98_304 == pytest.approx(5.8e9, rel=0.01)
    writes = 86_400 * cost.drive_writes_per_s(tokens_per_s, 1.0, 98_304, 30e12)
    assert writes == pytest.approx(17, rel=0.03)


def test_savings_that_look_like_cancellation_in_money_are_synergy():
    assert cost.money_interaction(100, 50, 50, 20) == 20
    assert np.exp(cost.log_interaction(100, 50, 50, 20)) == pytest.approx(0.8)


@given(costs, st.floats(0.1, 1), st.floats(0.1, 1))
def test_independent_percentage_savings_do_not_interact(none, first, second):
    cells = none, none * first, none * second, none * first * second
    assert cost.log_interaction(*cells) == pytest.approx(0, abs=1e-12)
    assert cost.money_interaction(*cells) >= -1e-9
    assert cost.shapley_split(*cells) == pytest.approx((-np.log(first), -np.log(second)), abs=1e-12)


@given(costs, costs, costs, costs)
def test_the_parts_add_up_and_change_places_with_the_techniques(none, disaggregated, tiered, both):
    parts = cost.shapley_split(none, disaggregated, tiered, both)
    assert sum(parts) == pytest.approx(np.log(none / both), abs=1e-9)
    assert cost.shapley_split(none, tiered, disaggregated, both) == pytest.approx(parts[::-1])


def test_the_split_of_a_known_case():
    """Cells 21.5, 15.3, 20.4, 13.5: the parts multiply to the whole saving of 37 %."""
    disaggregation, tiers = 1 - np.exp(-np.array(cost.shapley_split(21.5, 15.3, 20.4, 13.5)))
    assert (disaggregation, tiers) == (pytest.approx(0.31, abs=0.01), pytest.approx(0.08, abs=0.01))
    assert (1 - disaggregation) * (1 - tiers) == pytest.approx(13.5 / 21.5)


@given(st.fixed_dictionaries(fluid))
def test_a_step_of_one_pool_is_full(case):
    """At the rate that the GPU time allows, floor, decode and prefill fill the TPOT target."""
    rate = 1 / cost.one_pool_gpu_time(**case)
    running = rate * case["output_tokens"] * case["tpot_slo_s"]
    prefill = rate * case["prefill_time_s"] * case["tpot_slo_s"]
    step = case["decode_floor_s"] + case["decode_s_per_token"] * running + prefill
    assert step == pytest.approx(case["tpot_slo_s"])


@given(st.fixed_dictionaries(fluid))
def test_a_step_of_the_decode_pool_is_full(case):
    decode = cost.disaggregated_gpu_time(**case) - case["prefill_time_s"]
    running = case["output_tokens"] * case["tpot_slo_s"] / decode
    step = case["decode_floor_s"] + case["decode_s_per_token"] * running
    assert step == pytest.approx(case["tpot_slo_s"], rel=1e-5)


@given(st.fixed_dictionaries(fluid))
def test_what_disaggregation_saves_in_the_fluid_picture(case):
    saved = cost.one_pool_gpu_time(**case) - cost.disaggregated_gpu_time(**case)
    floor, target = case["decode_floor_s"], case["tpot_slo_s"]
    assert saved == pytest.approx(case["prefill_time_s"] * floor / (target - floor), abs=1e-8)


def test_tiers_compete_with_disaggregation_in_the_fluid_picture():
    """Less prefill: a smaller saving, and a positive interaction in money."""
    decode = dict(output_tokens=500, decode_s_per_token=2e-4, decode_floor_s=0.01, tpot_slo_s=0.03)
    none, tiered = cost.one_pool_gpu_time(np.array([0.4, 0.2]), **decode)
    disaggregated, both = cost.disaggregated_gpu_time(np.array([0.4, 0.2]), **decode)
    assert tiered - both == pytest.approx((none - disaggregated) / 2)
    assert cost.money_interaction(none, disaggregated, tiered, both) > 0
    assert cost.log_interaction(none, disaggregated, tiered, both) > 0


@pytest.mark.parametrize("form", [cost.one_pool_gpu_time, cost.disaggregated_gpu_time])
def test_a_target_below_the_floor_is_refused(form):
    with pytest.raises(InputError, match=r"tpot_slo_s: found 0.01, expected a target above"):
        form(0.4, 500, 2e-4, 0.01, np.array([0.04, 0.01]))


@pytest.mark.parametrize("form", [cost.log_interaction, cost.shapley_split])
def test_a_cost_that_is_not_positive_is_refused(form):
    with pytest.raises(InputError, match="tiered: found 0, expected a positive cost"):
        form(100, 50, 0, 20)
