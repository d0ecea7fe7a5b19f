"""The experiment of the four cells: its tasks, what is kept of them, flips, and its rows."""

import json
from itertools import product
from math import exp, inf, log, nan

import numpy as np
import pytest

from kvpaper import combined, results
from kvpaper.combined import TABLES, TRACES, Task
from kvpaper.errors import InputError
from kvpaper.scenario import Reads, load
from kvpaper.serving.case import Case
from kvpaper.serving.cells import CELLS, Bench
from kvpaper.traces.generated import conversations

AT = ["model", "trace", "router", "scope", "ttft_slo_s", "tpot_slo_s", "varied", "at"]


def test_the_main_grid_comes_first_and_nothing_twice():
    found = combined.tasks()
    assert len(set(found)) == len(found)
    main = found[: len(TABLES) * len(TRACES)]
    assert {(task.table, task.trace) for task in main} == set(product(TABLES, TRACES))
    assert {task.router for task in main} == {"prefix"}
    assert not any(task.varied for task in main)
    assert sum("pooled" in task.scopes for task in found) == 2 * len(TABLES)
    varied = {task.table: task.varied for task in found if task.varied}
    assert list(varied) == list(TABLES)
    for table, inputs in varied.items():
        assert inputs == (combined.INPUTS if table in combined.VARIED else ("gpus",))


@pytest.mark.parametrize("table", ["llama-3.1-70b", "deepseek-v3"])  # of 4 GPUs, and of 8
def test_every_model_has_the_same_hardware_for_a_gpu(table):
    trace = conversations()
    case = Case.of(combined.case_of(table, "random"), trace)
    assert case.base.router == "random"
    assert case.gpus == combined._INSTANCES * case.ways[0].gpus
    assert case.ways[0].name == table
    for (offer, *_), (size, read) in zip(
        case.offers, ((2**40 / 16, 64e9), (30e12 / 16, 3.25e9)), strict=True
    ):
        assert offer.capacity_bytes == pytest.approx(size)
        assert offer.read_bytes_per_s == pytest.approx(read)
    assert case.base.prefill.link_bytes_per_s == pytest.approx(50e9 * case.base.prefill.gpus)


def test_inputs_are_varied_one_at_a_time_and_each_passes_its_present_value():
    trace = conversations()
    bench = Bench(Case.of(combined.case_of("llama-3.1-70b"), trace), trace)
    found, slo = list(combined._variations(bench)), bench.case.scenario.slo
    prices = bench.case.scenario.prices
    for varied, at, other in found:
        aims, changed = other.case.scenario.slo, other.case.scenario.prices
        assert aims == (slo.model_copy(update={"tpot_s": at}) if varied == "tpot" else slo)
        price = {combined.PRICES[varied]: at} if varied.endswith("price") else {}
        assert changed == prices.model_copy(update=price)
        if varied == "disk":
            (offer,) = other.case.offers
            assert {(tier.name, tier.read_bytes_per_s) for tier in offer} == {("nvme", at)}
        if varied == "nic":
            links = {way.decode.link_bytes_per_s / way.decode.gpus for way in other.case.ways}
            assert list(links) == pytest.approx([at])
            assert other.case.offers == bench.case.offers
        if varied == "gpus":
            assert other.case.gpus == at
        same_ways = other.case.offers is bench.case.offers
        assert same_ways == (varied not in ("disk", "nic", "gpus"))
    assert {varied for varied, *_ in found} == set(combined.INPUTS)
    values = {(varied, at) for varied, at, *_ in found}
    assert len(values) == len(found)
    assert {("tpot", combined.TPOT_S), ("dram price", prices.dram), ("nic", 50e9)} <= values


class TestKept:
    chosen = tuple(Task(table, TRACES[0]) for table in TABLES[:3])

    @pytest.fixture
    def done(self, monkeypatch):
        """Tasks that were worked on; the work is a row, and the third one fails at first."""
        found = []

        def work(task, folder):
            found.append(task)
            if len(found) == 3:
                raise KeyboardInterrupt
            return [results.row("feasible", nan, "simulated", model=task.table)]

        monkeypatch.setattr(combined, "trace_of", lambda name, folder: conversations(10))
        monkeypatch.setattr(combined, "task_rows", work)
        return found

    def test_an_interrupted_run_goes_on_where_it_stopped(self, done, tmp_path, capsys):
        kept = tmp_path / "kept"
        with pytest.raises(KeyboardInterrupt):
            combined.public_rows(tmp_path, self.chosen, kept, 1)
        assert len(list(kept.iterdir())) == 2
        rows = combined.public_rows(tmp_path, self.chosen, kept, 1)
        assert done == [*self.chosen, self.chosen[2]]
        assert [row["model"] for row in rows if "varied" not in row][:3] == list(TABLES[:3])
        assert "3 of 3" in capsys.readouterr().err
        again = combined.public_rows(tmp_path, self.chosen, kept, 1)
        assert json.dumps(again) == json.dumps(rows)
        assert len(done) == 4

    def test_what_a_task_follows_from_is_in_its_name(self, done, tmp_path, monkeypatch):
        common = tmp_path, tmp_path / "kept"
        combined._kept(self.chosen[0], common)
        monkeypatch.setattr(combined, "trace_of", lambda name, folder: conversations(11))
        combined._kept(self.chosen[0], common)
        assert len(done) == 2

    def test_a_trace_that_is_not_at_hand_is_told(self, tmp_path):
        with pytest.raises(InputError, match="make traces"):
            combined.trace_of(TRACES[2], tmp_path)


class TestFlips:
    """By hand."""

    def rows(self, points, low=None, **at):
        """Rows of one input: value -> cost by cell; the winner is sure unless ``low`` says else."""
        common = {"model": "m", "trace": TRACES[0], "router": "prefix", "scope": "instance",
                  "ttft_slo_s": 2.0, "varied": "disk"} | at  # fmt: skip
        for value, usd in points.items():
            here = common | ({"at": value} if common["varied"] else {"ttft_slo_s": value})
            for cell, cost in usd.items():
                one = results.row("usd_per_million_output_tokens", cost, "simulated", cell=cell)
                yield one | here | {"band": "middle"}
                yield one | here | {"band": "high", "value": 9.9}
            best = min(usd, key=usd.get)
            saved = (low or {}).get(value, 0.1)
            one = results.row("log_saving", saved, "simulated", cell=best, band="low")
            yield one | here

    def test_the_crossing_is_interpolated_in_logarithms(self):
        d, b = exp(0.3), exp(0.1)
        points = {1.0: {"none": 1.0, "both": d}, 16.0: {"none": b, "both": 1.0}}
        (flip,) = combined.flips(self.rows(points))
        # The log ratio falls from .3 to -.1: three quarters of the way from 1 to 16.
        assert flip["value"] == pytest.approx(8.0)
        assert (flip["to"], flip["over"], flip["input"]) == ("both", "none", "disk")
        assert (flip["low"], flip["high"]) == (1.0, 16.0)
        assert flip["kind"] == "simulated"

    def test_a_change_within_noise_is_none(self):
        points = {1.0: {"none": 1.0, "both": 2.0}, 2.0: {"none": 1.01, "both": 1.0}}
        assert combined.flips(self.rows(points, low={2.0: -0.01})) == []
        points[4.0] = {"none": 2.0, "both": 1.0}
        (flip,) = combined.flips(self.rows(points, low={2.0: -0.01}))
        assert flip["value"] == pytest.approx(2.0)  # halfway from 1 to 4

    def test_a_cell_that_misses_the_targets_flips_in_the_middle(self):
        points = {1.0: {"none": 1.0}, 4.0: {"none": 2.0, "both": 1.0}}
        (flip,) = combined.flips(self.rows(points))
        assert flip["value"] == pytest.approx(2.0)
        points = {1.0: {"none": 1.0, "both": 1.5}, 4.0: {"both": 1.0}}
        (flip,) = combined.flips(self.rows(points, low={4.0: nan}))  # no other to compare with
        assert flip["value"] == pytest.approx(2.0)

    def test_the_main_grid_is_an_input_too_at_the_point_of_the_others(self):
        points = {1.0: {"none": 1.0, "both": 2.0}, 2.0: {"none": 2.0, "both": 1.0}}
        (flip,) = combined.flips(self.rows(points, varied=""))
        assert flip["input"] == "ttft"
        for other in ({"trace": TRACES[1]}, {"router": "random"}, {"scope": "pooled"}):
            assert combined.flips(self.rows(points, varied="", **other)) == []


def test_break_even_intervals_have_one_row_a_model_and_tier():
    rows = combined.intervals()
    assert len({(row["model"], row["tier"]) for row in rows}) == len(rows) == 2 * len(TABLES)
    assert {row["kind"] for row in rows} == {"predicted"}


class TestOfScenario:
    @pytest.fixture(scope="class")
    def rows(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(combined, "_REQUESTS", 1500)
            return combined.of_scenario(Reads(load("paper"), combined.READS))

    def of(self, rows, quantity, **at):
        return [
            row["value"]
            for row in rows
            if row["quantity"] == quantity and all(row.get(key) == at[key] for key in at)
        ]

    def test_every_row_of_the_cells_has_all_coordinates(self, rows):
        told = [row for row in rows if "ceiling" in row]
        assert {row["quantity"] for row in told} >= {"feasible", "log_saving", "hit_share"}
        case = load("paper")
        for row in told:
            assert (row["model"], row["trace"], row["router"], row["scope"], row["varied"]) == (
                "Llama-3.1-8B", "generated", "prefix", "instance", ""
            )  # fmt: skip
            assert (row["ttft_slo_s"], row["tpot_slo_s"]) == (case.slo.ttft_s, case.slo.tpot_s)
            assert np.isnan(row["at"])
        assert {row["cell"] for row in told if row["quantity"] == "feasible"} == set(CELLS)

    def test_one_instance_is_taken_as_four_that_every_cell_pays_for(self, rows):
        (whole,) = self.of(rows, "prefill_gpus", cell="none")
        split = self.of(rows, "prefill_gpus", cell="both") + self.of(rows, "decode_gpus")[:1]
        assert whole == sum(split) == 4

    def test_cold_prefill_and_intervals_come_with_it(self, rows):
        (cold_s,) = self.of(rows, "cold_prefill_s")
        assert 0.01 < cold_s < 10
        kinds = {row["kind"] for row in rows if row["quantity"] == "cold_prefill_s"}
        assert kinds == {"predicted"}  # by the scenario's rate
        assert len(self.of(rows, "break_even_interval_s")) == 2

    def test_what_is_not_declared_cannot_be_read(self):
        with pytest.raises(AttributeError, match="prices"):
            combined.of_scenario(Reads(load("paper"), combined.READS[:-1]))

    def test_a_log_of_ones_own_is_replayed_whole(self, monkeypatch, tmp_path):
        def told(bench, near=None, **at):
            return {}, [results.row("requests", bench.trace.requests, "simulated", **at)]

        log_file = tmp_path / "mine.jsonl"
        from kvpaper.traces.generated import log as lines

        log_file.write_text("\n".join(lines(conversations())) + "\n", encoding="utf-8")
        monkeypatch.setattr(combined, "_point", told)
        case = load("paper")
        rows = combined.of_scenario(case.changed({"workload.trace": str(log_file)}))
        (row,) = (row for row in rows if row["quantity"] == "requests")
        assert (row["trace"], row["value"]) == ("mine", conversations().requests)


class TestCommitted:
    """The rows as published."""

    @pytest.fixture(scope="class")
    def table(self):
        table = results.read("public", "70_combined")
        return table.fillna({"varied": "", "at": -1.0})

    def usd(self, table, band="middle"):
        known = table[
            (table.quantity == "usd_per_million_output_tokens")
            & (table.kind == "simulated")
            & (table.band == band)
        ]
        return known.pivot_table(index=AT, columns="cell", values="value")

    def test_the_grid_is_whole(self, table):
        cells = table[table.quantity == "feasible"]
        main = cells[
            (cells.varied == "") & (cells.router == "prefix") & (cells.scope == "instance")
        ]
        points = main.groupby(["model", "trace"]).size()
        assert len(points) == len(TABLES) * len(TRACES)
        assert set(points) == {4 * len(combined.TTFTS_S)}
        assert not cells.duplicated([*AT, "cell"]).any()

    def test_tiers_are_no_dearer_than_none_up_to_the_noise_of_the_seeds(self, table):
        low, high = self.usd(table, "low"), self.usd(table, "high")
        for without, with_tiers in (("none", "tiered"), ("disaggregated", "both")):
            known = high[without].notna()
            assert (low[with_tiers][known] <= high[without][known]).all()

    def test_a_saving_is_the_log_of_the_ratio_of_costs(self, table):
        usd = self.usd(table)
        saved = table[(table.quantity == "log_saving") & table.over.notna()]
        bands = saved.pivot_table(index=[*AT, "cell", "over"], columns="band", values="value")
        for row in bands.reset_index().itertuples():
            costs = usd.loc[tuple(getattr(row, name) for name in AT)]
            expected = log(costs[row.over] / costs[row.cell])
            # Of seeds the mean of the logarithms, not the logarithm of the means.
            assert row.middle == pytest.approx(expected, abs=max(0.01, (row.high - row.low) / 4))
            assert costs.min() == pytest.approx(costs[row.cell], rel=0.005)

    def test_flips_lie_between_the_values_that_were_tried(self, table):
        flips = table[table.quantity == "flips_at"]
        assert len(flips)
        assert ((flips.low <= flips.value) & (flips.value <= flips.high)).all()
        assert (flips.to != flips.over).all()
        assert not np.isin(flips.value, (0, inf)).any()
