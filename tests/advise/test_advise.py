"""From a scenario and a log to the decision: the contract, each verdict, what changes it."""

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from kvpaper import cli, data, scenario
from kvpaper.advise import answer, decide, flips, report
from kvpaper.advise.decide import CRITICAL_PATH, NOT, PREFETCH, cheaper, kind
from kvpaper.serving.cells import Bench, costed
from kvpaper.serving.simulate import read
from kvpaper.traces import generated

EXAMPLES = data.FOLDER / "examples"
HOSTILE = "<script>alert(1)</script> | *x* & </style>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example's model and a smaller log."""
    folder = tmp_path_factory.mktemp("advise")
    log = generated.log(generated.conversations(60, 3, 300.0))
    (folder / "requests.jsonl").write_text("\n".join(log))
    (folder / "our-model.json").write_text((EXAMPLES / "our-model.json").read_text())
    return folder


def written(folder, name, *changes, without=()):
    """The example with leaves of its text changed and lines left out."""
    text = (EXAMPLES / "mine.yaml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    lines = [line for line in text.splitlines() if not line.strip().startswith(without or "\0")]
    (folder / f"{name}.yaml").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / f"{name}.yaml")


def bench_of(path):
    stated = scenario.load(path)
    return decide.bench_of(stated, read(stated.workload.trace, "workload.trace"))


@pytest.fixture(scope="module")
def decided(folder):
    return decide.decide(bench_of(written(folder, "plain")))


class TestVerdicts:
    def test_fast_memory_is_waited_for_and_a_dear_disk_not_bought(self, decided):
        assert kind(decided.chosen.configuration) == (False, ("dram",))
        dram, nvme = decided.tiers["dram"], decided.tiers["nvme"]
        assert (dram.use, nvme.use) == (CRITICAL_PATH, NOT)
        assert dram.saving["low"] > 0
        assert dram.saving_waiting["low"] > 0
        assert 0 < dram.bytes <= 2 * 256 * 2**30
        assert (nvme.bytes, nvme.saving["high"] < 0) == (0, True)

    def test_a_tight_target_for_a_token_splits_the_pools(self, folder):
        tight = bench_of(written(folder, "tight", ("tpot: {value: 40 ms", "tpot: {value: 8 ms")))
        found = decide.decide(tight)
        assert kind(found.chosen.configuration) == (True, ("dram",))
        assert cheaper(found.chosen, found.cells["tiered"])
        # Only what prefills holds tiers.
        assert found.tiers["dram"].bytes <= 256 * 2**30

    def test_a_disk_that_only_a_head_start_makes_fast_is_to_prefetch_from(self, folder):
        slow = written(
            folder,
            "slow",
            ("capacity: {value: 80 GB", "capacity: {value: 24 GB"),
            ("read: {value: 6.5 GB/s", "read: {value: 2.5 GB/s"),
            ("ttft: {value: 600 ms", "ttft: {value: 360 ms"),
            without=("dram: {value: 13.8", "dram: {value: 3 USD"),
        )
        bench = bench_of(slow)
        ahead = replace(bench.case, base=replace(bench.case.base, prefetch_lead_s=1.0))
        found = decide.decide(bench.on(ahead))
        nvme = found.tiers["nvme"]
        assert nvme.use == PREFETCH
        assert nvme.saving["value"] > 0 >= nvme.saving_waiting["value"]

    def test_targets_that_nothing_meets_are_an_answer(self, folder, tmp_path):
        none = decide.decide(
            bench_of(written(folder, "none", ("ttft: {value: 600", "ttft: {value: 1")))
        )
        told = answer.answer(none, [])
        assert told["decision"]["feasible"] is False
        assert told["decision"]["split_pools"] is False
        assert {tier["use"] for tier in told["decision"]["tiers"]} == {NOT}
        assert told["saving"]["value"] is None
        assert "TTFT" in told["reasons"][0]
        json.dumps(told, allow_nan=False)
        told |= {"trace": "", "warnings": [], "inputs": [], "command": ""}
        report.write(tmp_path / "none.html", told, none.bench.case.scenario)
        assert "Nothing to advise" in (tmp_path / "none.html").read_text(encoding="utf-8")

    def test_one_gpu_is_not_split_and_says_so(self, folder):
        single = written(folder, "single", ("instances: {value: 2", "instances: {value: 1"))
        told = answer.answer(decide.decide(bench_of(single)), [])
        assert told["decision"]["split_pools"] is False
        assert any("needs more GPUs" in reason for reason in told["reasons"])


class TestSimplest:
    """By made-up costs of configurations that exist."""

    def test_what_noise_does_not_tell_apart_is_decided_for_the_simpler(self, decided, monkeypatch):
        noise = 1 + 0.05 * np.array([-1, 1, -0.5, 0.5])
        usd = {
            "none": noise[::-1],
            "disaggregated": 2 + noise,
            "tiered": 0.99 * noise,
            "both": 3 * noise,
        }
        cells = {
            name: replace(decided.cells[name], usd_per_token=values) for name, values in usd.items()
        }
        monkeypatch.setattr(decide, "best_cells", lambda *_: cells)
        found = decide.decide(decided.bench)
        assert found.best.name == "tiered"
        assert found.chosen.name == "none"


class TestFlips:
    def test_prices_need_no_replay_and_give_what_a_scenario_with_them_gives(self, decided):
        bench, before = decided.bench, len(decided.bench._served)
        dearer = bench.changed({"prices.dram": 1e-7, "prices.gpu_usd_per_s": 2e-3})
        anew, cell = Bench(dearer.case, bench.trace), decided.chosen
        again = flips.repriced(dearer, cell)
        assert len(bench._served) == before
        whole = costed(anew, "", cell.configuration, cell.steps[0])
        np.testing.assert_allclose(again.usd_per_token, whole.usd_per_token, rtol=1e-12)
        assert (again.usd_per_token > cell.usd_per_token).all()

    def test_a_price_flips_where_the_two_costs_meet(self, decided):
        (dram,) = (one for one in flips.inputs(decided.bench) if one.key == "prices.dram")
        found = flips._flip(decided, dram, 400 * dram.value)
        assert found.to == (False, ())
        assert 1 < found.at / found.last < 1.1

        def pays(price):
            dearer = decided.bench.changed({"prices.dram": price})
            bare, held = (
                min(
                    (flips.repriced(dearer, one) for one in decided.options
                     if kind(one.configuration) == (False, tiers)),
                    key=lambda one: one.usd_per_token.mean(),
                )
                for tiers in ((), ("dram",))
            )  # fmt: skip
            return not cheaper(bare, held)

        assert pays(found.last)
        assert not pays(found.at)

    @pytest.mark.parametrize(("end", "turn"), [(8.0, 3.0), (0.5, 0.7), (0.0, 0.4)])
    def test_halving_brackets_a_known_turn(self, decided, monkeypatch, end, turn):
        base, other = kind(decided.chosen.configuration), (True, ())
        turned = (lambda value: value >= turn) if end > 1 else (lambda value: value <= turn)
        monkeypatch.setattr(
            flips, "_decided", lambda _, __, value: other if turned(value) else base
        )
        found = flips._flip(decided, flips.Input("slo.ttft", "s", ("slo", "ttft_s"), 1.0), end)
        assert found.to == other
        assert min(found.last, found.at) <= turn <= max(found.last, found.at)
        monkeypatch.setattr(flips, "_decided", lambda *_: base)
        assert flips._flip(decided, found.input, end).at is None

    def test_only_ends_that_can_change_something_are_looked_at(self, decided):
        ends = {one.key: flips._ends(decided, one) for one in flips.inputs(decided.bench)}
        dram, nvme, link = (
            decided.bench.case.scenario.hardware.tiers["dram"].read_bytes_per_s,
            decided.bench.case.scenario.hardware.tiers["nvme"].read_bytes_per_s,
            decided.bench.case.scenario.serving.transfer.rate_bytes_per_s,
        )
        assert ends["hardware.tiers.dram.read"] == [dram / flips.SPAN]
        assert ends["hardware.tiers.nvme.read"] == [nvme * flips.SPAN]
        assert ends["serving.transfer.rate"] == [link * flips.SPAN]
        assert ends["workload.ceiling"] == [0.0]
        assert len(ends["slo.ttft"]) == len(ends["prices.gpu"]) == 2


@pytest.fixture(scope="module")
def ran(folder, tmp_path_factory):
    """What the command prints and writes, once; a source of the scenario would break a page."""
    path = written(folder, "whole", ("source: our SLO", f'source: "{HOSTILE}"'))
    page = tmp_path_factory.mktemp("report") / "out.html"
    with pytest.MonkeyPatch.context() as patch:
        told = []
        patch.setattr("builtins.print", lambda text="", **to: told.append((text, "file" in to)))
        assert cli.main(["advise", path, "--json", "--report", str(page)]) == 0
    (printed,) = (text for text, aside in told if not aside)
    return json.loads(printed), [text for text, aside in told if aside], page


class TestCommand:
    def test_json_has_the_keys_of_the_contract(self, ran):
        found, _, _ = ran
        assert {"decision", "saving", "flips", "basis"} <= found.keys()
        assert isinstance(found["decision"]["split_pools"], bool)
        for tier in found["decision"]["tiers"]:
            assert tier["use"] in (CRITICAL_PATH, PREFETCH, NOT)
            assert (tier["bytes"] > 0) == (tier["use"] != NOT)
        saved = found["saving"]
        assert saved["low"] <= saved["value"] <= saved["high"]
        assert saved["unit"] == "USD per million output tokens"
        assert all({"input", "at", "to"} <= flip.keys() for flip in found["flips"])
        assert found["basis"].keys() == {"predicted", "simulated", "tabulated", "measured"}
        kinds = [row["kind"] for row in found["rows"]]
        assert found["basis"] == {kind: kinds.count(kind) for kind in found["basis"]}

    def test_every_input_is_either_flipped_or_said_to_stay(self, ran):
        found, _, _ = ran
        stays = {one["input"]: one for one in found["unchanged"]}
        assert {
            "slo.ttft",
            "slo.tpot",
            "prices.gpu",
            "prices.dram",
            "workload.ceiling",
        } <= stays.keys()
        for flip in found["flips"]:
            stay = stays[flip["input"]]
            assert not stay["from"] < flip["at"] < stay["to"]

    def test_steps_and_warnings_go_aside(self, ran):
        found, aside, _ = ran
        steps = [text for text in aside if re.match(r"\d+ of \d+: ", text)]
        assert steps[0] == f"1 of {len(steps)}: the four cells"
        assert aside[len(steps) :] == [f"warning: {text}" for text in found["warnings"]]

    def test_words_for_people_begin_with_the_decision(self, ran):
        text = report.text(ran[0])
        assert text.startswith(ran[0]["decision"]["told"][:60])
        assert max(map(len, text.splitlines())) <= 100
        assert 10 <= len(text.splitlines()) <= 40

    def test_an_interrupt_ends_with_130_and_leaves_nothing(
        self, folder, capsys, monkeypatch, tmp_path
    ):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(decide, "best_cells", interrupted)
        code = cli.main(["advise", written(folder, "plain"), "--report", str(tmp_path / "out.md")])
        out, err = capsys.readouterr()
        assert (code, out) == (130, "")
        assert err.splitlines()[-1] == "interrupted: nothing was written"
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nowhere"], "nowhere"),
            (["quick", "--trace", "nowhere.jsonl"], "--trace: found 'nowhere.jsonl'"),
            (["quick", "--report", "out.pdf"], "--report: found out.pdf"),
            (["quick", "--report", "no/such/folder/out.md"], "--report"),
            (["quick", "--report", "folder.html"], "--report: found folder.html"),
            (["quick", "--trace", ""], "--trace: found ''"),
        ],
    )
    def test_what_is_wrong_is_told_in_one_line(
        self, capsys, tmp_path, monkeypatch, arguments, message
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder.html").mkdir()
        code = cli.main(["advise", *arguments])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err

    def test_arrivals_without_blocks_are_refused(self, capsys, tmp_path):
        rows = (f"2023-11-16 18:{i // 60:02}:{i % 60:02},10,5\n" for i in range(200))
        log = tmp_path / "azure.csv"
        log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
        code = cli.main(["advise", "quick", "--trace", str(log)])
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "arrivals and lengths only" in err

    def test_a_log_too_small_says_so(self, folder, capsys, tmp_path):
        log = (folder / "requests.jsonl").read_text().splitlines()[:20]
        (tmp_path / "few.jsonl").write_text("\n".join(log))
        code = cli.main(
            ["advise", written(folder, "plain"), "--trace", str(tmp_path / "few.jsonl")]
        )
        assert code == 2
        assert "found 20 requests" in capsys.readouterr().err


class Page(HTMLParser):
    """Tags, what they refer to, and the text outside pictures and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.ids, self.words, self.silent = [], [], [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.silent += tag in ("svg", "style")
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)

    def handle_endtag(self, tag):
        self.silent -= tag in ("svg", "style")

    def handle_data(self, text):
        if not self.silent:
            self.words.append(text)


class TestReport:
    def test_the_page_needs_nothing_else(self, ran):
        text = ran[2].read_text(encoding="utf-8")
        page = Page(text)
        assert "script" not in page.tags
        assert all(link.startswith("#") for link in page.links)
        assert not re.search(r"@import|url\((?!#)|https?://", re.sub(r"<td>.*?</td>", "", text))
        assert len(set(page.ids)) == len(page.ids)
        assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
        assert page.tags.count("svg") == 2

    def test_what_a_scenario_says_cannot_break_it(self, ran, tmp_path):
        assert HOSTILE in " ".join(Page(ran[2].read_text(encoding="utf-8")).words)
        marked = self.marked(ran, tmp_path)
        assert r"\<script\>alert(1)\</script\> \| \*x\* \&" in marked

    def marked(self, ran, folder):
        found = ran[0]
        stated = decide.sized(scenario.load(found["command"].split()[2]))
        report.write(folder / "out.md", found, stated)
        return (folder / "out.md").read_text(encoding="utf-8")

    def test_both_forms_say_the_same(self, ran, tmp_path):
        marked = re.sub(r"\\(.)", r"\1", self.marked(ran, tmp_path))
        lines = [line for line in marked.splitlines() if not re.match(r"!\[|```|\| ---", line)]
        words = [re.sub(r"^(- |#+ )|\|", " ", line).split() for line in lines]
        page = " ".join(Page(ran[2].read_text(encoding="utf-8")).words).replace("|", " ")
        assert [one for line in words for one in line] == page[
            page.index("What to buy f") :
        ].split()
        pictures = sorted(path.name for path in tmp_path.iterdir())
        assert pictures == ["out.cells.svg", "out.md", "out.tiers.svg"]

    def test_it_tells_the_decision_its_inputs_and_how_to_run_again(self, ran):
        words = unescape(" ".join(Page(ran[2].read_text(encoding="utf-8")).words))
        found = ran[0]
        assert found["decision"]["told"] in words
        assert found["command"] in words
        for one in (
            *found["reasons"],
            *(flip["told"] for flip in found["flips"]),
            *found["warnings"],
        ):
            assert one in words
        assert {"prices.gpu", "2.20 USD/hour", "our contract", "2026-11"} <= {
            one[name] for one in found["inputs"] for name in one
        }
        assert "our contract" in words
