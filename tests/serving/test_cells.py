"""Four cells: each is the best of its kind, no one cheats on GPUs, and what they say together."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from kvpaper import decision, latency, models, results, scenario
from kvpaper.scenario import Instances
from kvpaper.serving import cells
from kvpaper.serving.case import Case, Configuration
from kvpaper.serving.cells import CELLS, SEARCH_SEED, SEEDS, Bench, Cell, best_cells
from kvpaper.traces.generated import conversations

TTFT_S, TPOT_S = 1.0, 0.02


def of_table(table, instances):
    """A scenario with a fleet of a tabulated model."""
    moe, instance = scenario.load("h200-moe"), latency.instance(table)
    return moe.changed(
        {
            "model": models.load(instance.model),
            "hardware.gpus": instance.gpus,
            "serving.prefill.table": table,
            "fleet.prefill": Instances(instances=instances),
            "slo.ttft_s": TTFT_S,
            "slo.tpot_s": TPOT_S,
        }
    )


@pytest.fixture(scope="module")
def bench():
    trace = conversations(3000, 0, 600.0)
    case = Case.of(of_table("qwen3-30b-a3b", 4), trace)
    # Two ways, one size of one tier: few enough to try them all.
    case = replace(case, ways=case.ways[:2]).offering(("dram",))
    return Bench(replace(case, offers=(case.offers[0][-1:],)), trace)


@pytest.fixture(scope="module")
def found(bench):
    return best_cells(bench)


def everything(case, split):
    """Every configuration of a kind, by another road than the search takes."""
    stocks = case.stocks()
    if not split:
        for way, chunk, stock in product(case.ways, cells.CHUNKS, stocks):
            yield Configuration(way, case.gpus // way.gpus, None, 0, chunk, stock)
        return
    for one, other, count, stock in product(case.ways, case.ways, range(1, case.gpus), stocks):
        rest = (case.gpus - count * one.gpus) // other.gpus
        if rest >= 1:
            yield Configuration(one, count, other, rest, None, stock)


@pytest.mark.parametrize("name", CELLS)
def test_no_configuration_of_its_kind_is_cheaper(bench, found, name):
    split, tiers = CELLS[name]
    costs = [
        bench.highest(chosen, SEARCH_SEED, 0)[1]
        for chosen in everything(bench.case, split)
        if tiers or not chosen.tiers
    ]
    chosen = found[name].configuration
    own = bench.highest(chosen, SEARCH_SEED, 0)[1]
    assert own == pytest.approx(min(costs), rel=0.01)
    assert len(set(costs)) > 2


def test_a_cell_with_tiers_is_no_dearer_than_its_twin_without_on_the_seed_of_the_search(
    bench, found
):
    for without, cell in (("none", "tiered"), ("disaggregated", "both")):
        costs = [
            bench.highest(found[name].configuration, SEARCH_SEED, 0)[1] for name in (cell, without)
        ]
        assert costs[0] <= costs[1]


def test_where_nothing_is_on_offer_tiers_change_nothing(bench):
    bare = bench.on(replace(bench.case, offers=()))
    found = best_cells(bare)
    for without, cell in (("none", "tiered"), ("disaggregated", "both")):
        np.testing.assert_array_equal(found[cell].usd_per_token, found[without].usd_per_token)
    rows = cells.rows(bare, found)
    interaction = [row["value"] for row in rows if row["quantity"] == "log_interaction"]
    assert interaction == pytest.approx([0, 0, 0], abs=1e-12)


def test_a_tier_beyond_price_is_not_bought(bench):
    price = bench.case.scenario.prices.dram
    dear = best_cells(bench.changed({"prices.dram": 1e3 * price}))
    assert not dear["tiered"].configuration.tiers
    assert not dear["both"].configuration.tiers


def test_targets_that_no_prefill_meets_make_every_cell_infeasible(bench):
    hurried = bench.changed({"slo.ttft_s": 1e-3})
    rows = cells.rows(hurried, best_cells(hurried))
    assert {(row["quantity"], row["value"], row["binding"]) for row in rows} == {
        ("feasible", 0.0, "ttft")
    }


def test_every_configuration_is_paid_for_all_gpus_and_uses_no_more(bench):
    case = bench.case
    for split in (False, True):
        tried = cells._structures(bench, split)
        assert tried
        for chosen in tried:
            assert case.fleet(chosen).gpus <= case.gpus
            assert case.usd_per_s(chosen, ()) == case.gpus * case.scenario.prices.gpu_usd_per_s
    odd = replace(case, gpus=5)
    (one,) = {
        chosen.prefill_instances
        for chosen in cells._structures(bench.on(odd), False)
        if chosen.prefill.gpus == 2
    }
    assert one == 2


def test_wear_is_paid_for(bench):
    case = Case.of(bench.case.scenario, conversations())
    (nvme,) = (offer for offer in case.offers if offer[0].name == "nvme")
    chosen = Configuration(case.ways[0], 4, None, 0, None, nvme[-1:])
    held = 4 * nvme[-1].capacity_bytes
    price = case.scenario.prices.nvme
    rated_life_s = case.scenario.hardware.tiers["nvme"].rated_life_s
    idle, worn = (case.usd_per_s(chosen, (rate,)) for rate in (0.0, 100 * held / 86400))
    # A hundred drive writes a day at a rating of one: written off in a hundredth of its life.
    assert worn - idle == pytest.approx(
        price * held * (100 / rated_life_s - 1 / case.scenario.prices.lifetime_s), rel=1e-6
    )


def test_replays_are_shared_between_targets_and_scopes(bench, found):
    before = len(bench._served)
    again = best_cells(bench)
    assert len(bench._served) == before
    for name, cell in again.items():
        np.testing.assert_array_equal(cell.usd_per_token, found[name].usd_per_token)
    pooled = bench.on(bench.case.offering(scope="pooled"))
    one = found["none"].configuration
    assert pooled.served(one, 1, 0) is bench.served(one, 1, 0)


def test_rows_are_unambiguous_and_finite(bench, found):
    rows = cells.rows(bench, found)
    keys = [tuple(sorted((key, str(row[key])) for key in row if key != "value")) for row in rows]
    assert len(set(keys)) == len(keys)
    assert all(np.isfinite(row["value"]) for row in rows)
    assert {row["kind"] for row in rows} == {"predicted", "simulated"}
    usd = [row for row in rows if row["quantity"] == "usd_per_million_output_tokens"]
    assert {row["cell"] for row in usd} == set(CELLS)
    for cell in found.values():
        low, middle, high = (
            next(row["value"] for row in usd if (row["cell"], row.get("band")) == (cell.name, band))
            for band in ("low", "middle", "high")
        )
        assert low < middle < high
        assert middle == pytest.approx(1e6 * cell.usd_per_token.mean())


def test_the_answer_reads_the_rows_as_they_are_written(bench, found):
    at = {"model": "m", "trace": "t", "ttft_slo_s": TTFT_S, "tpot_slo_s": TPOT_S}
    rows = cells.rows(bench, found)
    (case,) = decision.cases(results.table([row | at for row in rows])).to_dict("records")
    assert case["cheapest"] == min(found.values(), key=lambda cell: cell.usd_per_token.mean()).name
    for cell in found.values():
        usd, predicted = case[f"usd_{cell.name}"], case[f"rate_predicted_{cell.name}"]
        assert usd == pytest.approx(1e6 * cell.usd_per_token.mean())
        assert predicted == cell.predicted_requests_per_s
        bought = {tier.name: tier.capacity_bytes for tier in cell.configuration.tiers}
        held = {tier: case[f"bytes_{cell.name}_{tier}"] for tier in ("dram", "nvme")}
        assert {tier: size for tier, size in held.items() if size == size} == bought
        assert case[f"way_prefill_{cell.name}"] == cell.configuration.prefill.name
    assert np.isfinite(
        [case[name] for name in ("saved_low", "interaction", "share_tiers_high")]
    ).all()


class TestContrasts:
    """By hand, with costs that need no replay."""

    def cell(self, name, usd, configuration=()):
        usd = np.broadcast_to(np.asarray(usd, float), (len(SEEDS),))
        return Cell(name, configuration or (name,), usd, usd, None, "ttft", 0.0)

    def value(self, cells_, quantity, **at):
        (found,) = (
            row["value"]
            for row in cells._contrasts({cell.name: cell for cell in cells_})
            if row["quantity"] == quantity and all(row.get(key) == at[key] for key in at)
        )
        return found

    def test_of_a_known_case(self):
        usd = dict(zip(CELLS, (100.0, 50.0, 50.0, 20.0), strict=True))
        four = [self.cell(name, cost) for name, cost in usd.items()]
        assert self.value(four, "log_interaction", band="middle") == pytest.approx(np.log(0.8))
        money = self.value(four, "money_interaction_usd_per_million_output_tokens")
        assert money == pytest.approx(20e6)
        saving = self.value(four, "log_saving", band="low", cell="both", over="disaggregated")
        assert saving == pytest.approx(np.log(2.5))
        parts = [
            self.value(four, "log_saving_share", band="middle", lever=lever)
            for lever in cells.LEVERS
        ]
        assert sum(parts) == pytest.approx(np.log(5))

    def test_cells_of_one_configuration_are_one(self):
        one = self.cell("disaggregated", 10.0, ("same",))
        two = self.cell("both", 10.0, ("same",))
        three = self.cell("none", 12.0)
        saving = self.value([three, one, two], "log_saving", band="middle", over="none")
        assert saving == pytest.approx(np.log(1.2))

    def test_the_band_is_that_of_paired_seeds(self):
        noise = np.array([0.0, 0.2, -0.2, 0.1])
        four = [self.cell(name, np.exp(noise + i)) for i, name in enumerate(CELLS)]
        ends = [
            self.value(four, "log_saving", band=band, cell="none", over="disaggregated")
            for band in ("low", "middle", "high")
        ]
        assert ends == pytest.approx([1, 1, 1])  # all cells of a seed move together

    def test_half_width_by_the_table_of_student(self):
        values = np.array([1.0, 2.0, 3.0, 4.0])
        assert cells.half_width(values) == pytest.approx(2.353 * values.std(ddof=1) / 2, rel=1e-3)
        coverage = [
            abs(sample.mean()) <= cells.half_width(sample)
            for sample in np.random.default_rng(0).normal(size=(4000, 4))
        ]
        assert np.mean(coverage) == pytest.approx(0.9, abs=4 * (0.09 / 4000) ** 0.5)


def test_ways_that_cannot_hold_the_longest_request_are_left_out():
    trace = conversations()
    long = replace(trace, output_tokens=np.full(trace.requests, 100_000))
    ways = {way.name for way in Case.of(of_table("qwen3-235b-fp8", 2), long).ways}
    assert "qwen3-235b-fp8/tp1dp2etp2" not in ways
    assert "qwen3-235b-fp8" in ways


def test_a_scenario_without_tables_has_its_one_way():
    case = Case.of(scenario.load("paper"), conversations())
    assert [way.name for way in case.ways] == ["scenario"]
    assert case.gpus == 1
    assert [offer[0].name for offer in case.offers] == ["dram", "nvme"]  # what has a price
    sizes = [tier.capacity_bytes for tier in case.offers[0]]
    assert all(less < more for less, more in pairwise(sizes))
