import dataclasses
import math

import numpy as np
import pytest

from kvpaper import evaluate, models, results, scenario
from kvpaper.errors import InputError
from kvpaper.formulas import capacity


@pytest.fixture(scope="module")
def paper():
    return scenario.load("paper")


def change(base, **parts):
    """The scenario with fields of its parts replaced: ``slo={"ttft_s": 2.0}``."""
    return dataclasses.replace(
        base, **{name: getattr(base, name).model_copy(update=new) for name, new in parts.items()}
    )


def value(rows, quantity, **at):
    found = [
        row["value"]
        for row in rows
        if row["quantity"] == quantity and all(row.get(key) == want for key, want in at.items())
    ]
    assert len(found) == 1, (quantity, at, len(found))
    return found[0]


class TestPublishedExample:
    def test_size(self, paper):
        rows = evaluate.sizes(paper)
        assert value(rows, "kv_bytes_per_token") == 131_072
        assert value(rows, "prefix_tokens") == 7_629

    def test_chart(self, paper):
        rows = evaluate.gigabyte_chart(paper)
        assert value(rows, "fetch_time_s", tier="hbm") == pytest.approx(0.208e-3, rel=2e-3)
        assert value(rows, "fetch_time_s", tier="nvme") == pytest.approx(0.333, rel=2e-3)
        assert value(rows, "fetch_time_ratio") == pytest.approx(1600)

    def test_disk_is_off_the_critical_path_with_either_pool(self, paper):
        rows = evaluate.slacks(paper)
        for pool in evaluate.POOLS:
            assert value(rows, "on_critical_path", tier="nvme", pool=pool) == 0
            assert value(rows, "on_critical_path", tier="dram", pool=pool) == 1

    def test_recomputing_beats_the_disk_below_some_35_thousand_tokens(self, paper):
        rows = evaluate.crossovers(paper)
        assert value(rows, "crossover_tokens", tier="nvme") == pytest.approx(35_600, rel=0.01)


class TestIdentities:
    def test_fetching_and_recomputing_cost_the_same_at_the_crossover(self, paper):
        start = value(evaluate.crossovers(paper), "crossover_tokens", tier="nvme")
        rows = evaluate.recoveries(paper, [start - 1, start])
        for tokens, fetch_wins in ((start - 1, False), (start, True)):
            fetched = value(rows, "fetch_time_s", tier="nvme", tokens=tokens)
            assert (fetched < value(rows, "recompute_time_s", tokens=tokens)) is fetch_wins

    def test_marginal_benefit_is_rent_at_the_break_even_capacity(self, paper):
        work = paper.workload
        rows = evaluate.capacities(paper)
        best = value(rows, "break_even_bytes", tier="dram", band="middle")
        token_value = value(evaluate.costs(paper), "value_usd_per_token")  # DRAM may be waited for
        rent = value(evaluate.costs(paper), "rent_usd_per_byte_s", tier="dram")

        def net(bytes_):
            hit = capacity.hit_rate(
                bytes_, work.ceiling, work.working_set_bytes, work.tail_exponent
            )
            tokens_per_s = work.requests_per_s * work.prompt_tokens
            return tokens_per_s * token_value * hit - rent * bytes_

        step = best * 1e-4
        slope = (net(best + step) - net(best - step)) / (2 * step)
        assert abs(slope) < 1e-6 * rent

    def test_keeping_for_the_interval_costs_what_recomputing_costs(self, paper):
        prefix = paper.workload.prompt_tokens - paper.workload.new_tokens
        interval = value(
            evaluate.intervals(paper), "break_even_interval_s", tier="dram", loading="free"
        )
        rent = value(evaluate.costs(paper), "rent_usd_per_byte_s", tier="dram")
        recomputed = value(evaluate.recoveries(paper), "recompute_time_s")
        held = 131_072 * prefix
        assert rent * held * interval == pytest.approx(recomputed * paper.prices.gpu_usd_per_s)

    def test_pools_differ_by_the_visible_transfer(self, paper):
        rows = evaluate.slacks(paper)
        gap = value(rows, "ttft_slack_s", pool="one") - value(
            rows, "ttft_slack_s", pool="disaggregated"
        )
        assert gap == pytest.approx(value(rows, "visible_transfer_time_s", pool="disaggregated"))
        assert gap > 0


class TestTurns:
    def test_first_token_from_prefill_takes_the_transfer_out_of_the_target(self, paper):
        rows = evaluate.slacks(change(paper, serving={"first_token_from": "prefill"}))
        assert value(rows, "ttft_slack_s", pool="one") == value(
            rows, "ttft_slack_s", pool="disaggregated"
        )

    def test_a_loose_target_does_not_make_a_slow_tier_worth_waiting_for(self, paper):
        rows = evaluate.slacks(change(paper, slo={"ttft_s": 100.0}))
        at = {"tier": "nvme", "pool": "disaggregated"}
        assert value(rows, "within_slack", **at) == 1
        assert value(rows, "on_critical_path", **at) == 0

    def test_both_branches_of_the_exponent(self, paper):
        rows = evaluate.capacities(paper, [0.6, 0.9])
        for tier, grows in (("dram", False), ("nvme", True)):
            ratio = value(rows, "marginal_ratio", tier=tier, beta=0.6, band="middle")
            low, high = (
                value(rows, "break_even_bytes", tier=tier, beta=beta, band="middle")
                for beta in (0.6, 0.9)
            )
            assert (ratio > 1) is grows
            assert (high > low) is grows

    def test_band_encloses_the_middle(self, paper):
        rows = evaluate.capacities(paper)
        for tier in ("dram", "nvme"):
            low, middle, high = (
                value(rows, "break_even_bytes", tier=tier, band=band)
                for band in ("low", "middle", "high")
            )
            assert low < middle < high

    def test_readings_of_rent(self, paper):
        rents = {
            reading: value(
                evaluate.costs(change(paper, prices={"reading": reading})),
                "rent_usd_per_byte_s",
                tier="dram",
            )
            for reading in ("amortised", "rented", "bundled")
        }
        energy = paper.hardware.tiers["dram"].power_w_per_byte * paper.prices.energy_usd_per_j
        assert rents["bundled"] == pytest.approx(energy)
        assert rents["amortised"] - energy == pytest.approx(13.8e-9 / paper.prices.lifetime_s)
        assert rents["rented"] == pytest.approx(paper.prices.rent.dram)

    def test_an_overloaded_tier_is_named(self, paper):
        with pytest.raises(
            InputError, match=r"paper\.yaml:\d+ hardware\.tiers\.nvme\.read: found a load"
        ):
            evaluate.loads(change(paper, workload={"requests_per_s": 20.0}))

    def test_two_ends_meet_where_the_closed_form_says(self, paper):
        from kvpaper.formulas import recovery

        model, tier = paper.model, paper.hardware.tiers["nvme"]
        expected = recovery.two_ended_recovery_time(
            7744, 0, model.active_params, 32, 32, 128, 580e12, 131_072, tier.read_bytes_per_s, 0.0
        )
        rows = evaluate.recoveries(paper)
        assert value(rows, "two_ended_time_s", tier="nvme") == pytest.approx(expected, rel=1e-6)

    def test_a_tier_off_the_critical_path_counts_as_a_prefetch(self, paper):
        rows = evaluate.costs(paper)
        share = value(rows, "share_of_value", tier="nvme", use="prefetch")
        fetched = value(evaluate.recoveries(paper), "fetch_time_s", tier="nvme")
        assert share == pytest.approx(math.exp(-fetched / 1.0))
        assert value(rows, "share_of_value", tier="dram", use="critical path") == 1
        none = evaluate.costs(change(paper, workload={"lead_time_s": None}))
        assert value(none, "share_of_value", tier="nvme") == 0

    def test_wear_shortens_the_life_that_the_rent_is_counted_over(self, paper):
        rows = evaluate.costs(paper)
        written = 2 * 8000 * (1 - 0.3736) * 131_072 / 30e12 * 86400
        assert value(rows, "drive_writes_per_day", tier="nvme") == pytest.approx(written)
        assert value(rows, "life_s", tier="nvme") == pytest.approx(5 * 31_557_600 / written)
        gentle = evaluate.costs(change(paper, workload={"admitted_share": 0.1}))
        assert value(gentle, "life_s", tier="nvme") == paper.prices.lifetime_s
        assert value(gentle, "rent_usd_per_byte_s", tier="nvme") < value(
            rows, "rent_usd_per_byte_s", tier="nvme"
        )

    def test_parts_that_a_wrong_seam_would_drop(self, paper):
        def slack(case):
            return value(evaluate.slacks(case), "ttft_slack_s", pool="disaggregated")

        def recompute(case):
            return value(evaluate.recoveries(case), "recompute_time_s")

        transfer = paper.serving.transfer.model_copy(update={"layerwise": False})
        whole = change(paper, serving={"transfer": transfer})
        computed = 0.3 - 0.02 - value(evaluate.slacks(paper), "ttft_slack_s", pool="one")
        assert slack(paper) - slack(whole) == pytest.approx(
            0.001 + 131_072 * 8000 / 50e9 - (0.28 - computed - slack(paper)), rel=1e-9
        )
        pairs = 256 * 7744 + 256 * 257 / 2
        assert computed == pytest.approx(
            (2 * 8.0e9 * 256 + 4 * 32 * 32 * 128 * pairs) / 580e12, rel=1e-9
        )
        assert recompute(change(paper, hardware={"gpus": 4})) == pytest.approx(recompute(paper) / 4)
        nvme = value(evaluate.loads(paper), "offered_load", tier="nvme")
        held = 131_072 * 7744
        assert nvme == pytest.approx((2 * 0.3736 + 2 * (1 - 0.3736)) * held / 3e9)
        with pytest.raises(InputError, match="a load of 1"):
            evaluate.loads(change(paper, workload={"requests_per_s": 2.96}))
        free = dict(paper.hardware.tiers)
        free["dram"] = free["dram"].model_copy(update={"power_w_per_byte": 0.0})
        unpowered = evaluate.costs(change(paper, hardware={"tiers": free}))
        energy = 0.08e-9 * paper.prices.energy_usd_per_j
        with_power = value(evaluate.costs(paper), "rent_usd_per_byte_s", tier="dram")
        assert with_power - value(unpowered, "rent_usd_per_byte_s", tier="dram") == (
            pytest.approx(energy)
        )

    def test_heads_of_two_widths_count_both(self):
        model = dataclasses.replace(models.load("llama-3.1-8b"), qk_head_dim=192, v_head_dim=128)
        assert evaluate._attention_flops(model, 2, 1) == 2 * 32 * 32 * (192 + 128) * 5

    def test_a_prefix_beyond_a_table_leaves_that_model_out(self, paper):
        long = change(paper, workload={"prompt_tokens": 140_000, "requests_per_s": 0.01})
        assert {row["model"] for row in evaluate.needed_rates(long)} == {"Llama-3.1-8B"}

    def test_no_requests_earn_nothing(self, paper):
        rows = evaluate.capacities(change(paper, workload={"requests_per_s": 0.0}))
        assert {row["value"] for row in rows} == {0.0}

    def test_the_reading_of_rent_can_turn_the_verdict(self, paper):
        rows = evaluate.readings(paper)
        ratio = {
            reading: value(rows, "reading_marginal_ratio", tier="nvme", reading=reading)
            for reading in evaluate.READINGS
        }
        assert ratio["rented"] < 1 < ratio["amortised"] < ratio["bundled"]

    @pytest.mark.parametrize(("table", "gpus"), [("llama-3.1-70b", 4), ("qwen3-235b-fp8", 1)])
    def test_a_table_of_another_model_or_gpu_count_is_refused(self, table, gpus):
        moe = scenario.load("h200-moe")
        prefill = moe.serving.prefill.model_copy(update={"table": table})
        wrong = change(moe, serving={"prefill": prefill}, hardware={"gpus": gpus})
        with pytest.raises(InputError, match=r"serving\.prefill\.table: found a table of"):
            evaluate.recoveries(wrong)

    def test_stated_parameters_stand_in_for_unknown_ones(self, paper):
        unknown = dataclasses.replace(
            paper, model=dataclasses.replace(paper.model, active_params=None)
        )
        stated = paper.serving.prefill.model_copy(update={"active_params": 8.0e9})
        assert evaluate.recoveries(change(unknown, serving={"prefill": stated})) == (
            evaluate.recoveries(paper)
        )

    def test_a_rate_for_a_model_of_unknown_size_is_refused(self, paper):
        unknown = dataclasses.replace(
            paper, model=dataclasses.replace(paper.model, active_params=None)
        )
        with pytest.raises(InputError, match=r"serving\.prefill"):
            evaluate.recoveries(unknown)

    def test_a_prompt_beyond_the_table_is_refused(self):
        moe = change(scenario.load("h200-moe"), workload={"prompt_tokens": 1e6})
        with pytest.raises(InputError, match=r"workload\.prompt: found a prompt outside table"):
            evaluate.recoveries(moe)


class TestModels:
    def test_needed_rate_by_hand(self, paper):
        rows = evaluate.needed_rates(paper)
        own = {"model": "Llama-3.1-8B"}
        left = value(rows, "ttft_slack_s", **own)
        recomputed = value(rows, "recompute_time_s", **own)
        needed = value(rows, "needed_bytes_per_s", **own)
        assert needed == pytest.approx(131_072 * 7744 / min(left, recomputed))
        slack = value(evaluate.slacks(paper), "ttft_slack_s", pool="disaggregated")
        assert left == pytest.approx(slack)

    def test_latent_attention_makes_the_papers_disk_fast_enough(self, paper):
        rows = evaluate.needed_rates(paper)
        assert value(rows, "needed_bytes_per_s", model="DeepSeek-V3") < 3e9
        assert value(rows, "needed_bytes_per_s", model="Llama-3.1-8B") > 3e9
        assert {row["kind"] for row in rows if row["quantity"] == "recompute_time_s"} == {
            "predicted",
            "tabulated",
        }

    def test_an_engine_that_keeps_full_windows_needs_a_faster_disk(self, paper):
        full = evaluate.needed_rates(change(paper, serving={"window_cache": "full"}))
        ratio = value(full, "needed_bytes_per_s", model="gpt-oss-120b") / value(
            evaluate.needed_rates(paper), "needed_bytes_per_s", model="gpt-oss-120b"
        )
        assert 1.9 < ratio < 2.1

    def test_halving_the_element_doubles_the_interval(self, paper):
        rows = evaluate.intervals_by_model(paper)
        at = {"model": "DeepSeek-V3", "tokens": 8192, "tier": "dram"}
        ratio = value(rows, "break_even_interval_s", element="fp8", **at) / value(
            rows, "break_even_interval_s", element="bf16", **at
        )
        assert ratio == pytest.approx(2)

    def test_work_of_attention_by_hand(self):
        dense, latent = models.load("llama-3.1-8b"), models.load("deepseek-v3")
        assert evaluate._attention_flops(dense, 2, 1) == 4 * 32 * 32 * 128 * (2 + 3)
        expanded = 2 * 61 * 128 * ((192 + 128) * (2 + 3) + 512 * (128 + 128) * 1)
        absorbed = 2 * 61 * 128 * (2 * 512 + 64) * (2 + 3)
        assert evaluate._attention_flops(latent, 2, 1) == min(expanded, absorbed)
        long = evaluate._attention_flops(latent, 4096, 4096)
        pairs = 4096 * 4096 + 4096 * 4097 / 2
        assert long == 2 * 61 * 128 * ((192 + 128) * pairs + 512 * 256 * 4096)

    def test_windows_bend_the_curve(self):
        rows = evaluate.cache_sizes(["gpt-oss-120b"], [64, 128, 1128])
        sizes = [row["value"] for row in rows]
        assert sizes[1] == 2 * sizes[0]
        assert sizes[2] - sizes[1] == 1000 * 36_864


@pytest.mark.parametrize("name", ["paper", "h200-moe", "quick"])
def test_everything_is_predicted_finite_and_unambiguous(name):
    rows = evaluate.everything(scenario.load(name))
    assert {row["kind"] for row in rows} == {"predicted"}
    may_be_infinite = ("crossover_tokens", "reading_marginal_ratio")  # never, and without rent
    assert all(math.isfinite(row["value"]) or row["quantity"] in may_be_infinite for row in rows)
    keys = [tuple(sorted((key, str(row[key])) for key in row if key != "value")) for row in rows]
    assert len(set(keys)) == len(keys)
    assert results.jsonable(rows)


def test_grids_are_the_points_one_by_one(paper):
    lengths = np.array([1000.0, 5000.0])
    both = evaluate.recoveries(paper, lengths)
    apart = [row for length in lengths for row in evaluate.recoveries(paper, [length])]
    assert both == apart
