"""Rows of the chapter on fleets: those of the grid, of four fleets alike, and those committed."""

import json
from dataclasses import replace

import pytest

from kvpaper import data, results, scenario
from kvpaper.scenario import Reads
from kvpaper.serving import chapter, simulate
from kvpaper.traces import fetch

QUICK = (data.FOLDER / "scenarios" / "quick.yaml").read_text(encoding="utf-8")
SMALL = "\nsweep: {pools: [1, 2, 1:1], dram: [0 GB, 64 GB], nvme: 0 GB, routers: prefix}\n"


def written(folder, *changes, section=SMALL):
    text = QUICK
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "mine.yaml").write_text(text + section, encoding="utf-8")
    return scenario.load(str(folder / "mine.yaml"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    case = written(tmp_path_factory.mktemp("small"))
    return case, chapter.of_scenario(Reads(case, chapter.READS))


def test_a_point_is_what_simulate_says_of_it(small):
    case, rows = small
    answer = simulate.answer(case, simulate.asked(simulate.read(None, ""), 1.0, 0), None, 0)
    one = rows[(rows.pools == "1") & (rows.dram_bytes == 0) & rows.standing.notna()]
    found = dict(zip(one.quantity, one.value, strict=True))
    assert found["ttft_s"] == answer["ttft_s"]["p90"]
    assert found["tpot_s"] == answer["tpot_s"]["p90"]
    cost = "usd_per_million_output_tokens"
    # The scenario's own fleet has its tiers and pays for them.
    assert 0 < found[cost] < answer[cost]
    assert (rows[rows.standing.notna()].groupby("quantity").size() == 6).all()
    assert (rows[rows.standing == "knee"].groupby("quantity").size() == 1).all()


def test_four_fleets_have_the_same_gpus_and_their_distributions_rise(small):
    _, rows = small
    four = rows[rows.standing.isna() & rows.cell.notna()]
    assert list(dict.fromkeys(four.cell)) == ["none", "disaggregated", "tiered", "both"]
    assert set(four.gpus) == {2}
    for _, part in four[four.share.notna()].groupby("cell"):
        assert part.value.is_monotonic_increasing
    at = rows[(rows.share == 0.9)].set_index("cell").value
    point = rows[(rows.pools == "1:1") & (rows.dram_bytes == 0) & (rows.quantity == "ttft_s")]
    assert at["disaggregated"] == point[point.standing.notna()].value.iloc[0]


def test_hits_are_shares_and_begin_cold(small):
    _, rows = small
    hits = rows[rows.quantity == "hit_share"]
    assert hits.value.between(0, 1).all()
    over = hits[hits.at_s.notna() & (hits.cell == "none")]
    assert len(over) == 12
    assert over.at_s.is_monotonic_increasing
    assert over.value.iloc[0] < over.value.iloc[1:].mean()


def test_where_none_meets_the_targets_the_frontier_is_that_of_the_others(tmp_path):
    case = written(tmp_path, ("ttft: {value: 300 ms", "ttft: {value: 1 ms"))
    rows = results.table(chapter.rows(case, None))
    assert (rows[rows.quantity == "feasible"].value == 0).all()
    assert (rows.standing == "knee").sum() == 4


def test_a_grid_without_all_kinds_has_points_alone(tmp_path):
    case = written(tmp_path, section="\nsweep: {pools: [1, 2], dram: 0 GB, nvme: 0 GB}\n")
    rows = results.table(chapter.rows(case, None))
    assert "share" not in rows


def test_a_trace_that_is_not_at_hand_has_a_stand_in(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "fetched", lambda name: None)
    case = written(tmp_path, ("trace: null", "trace: mooncake_conversation"))
    rows = chapter.of_scenario(Reads(case, chapter.READS))
    assert set(rows.instead_of) == {"mooncake_conversation"}
    assert rows.trace.iloc[0] == "generated"


@pytest.mark.parametrize("name", ["paper", "h200-moe"])
def test_a_shipped_scenario_needs_no_trace(name, monkeypatch):
    monkeypatch.setattr(fetch, "fetched", lambda name: None)
    case = scenario.load(name)
    rows = chapter.of_scenario(Reads(case, chapter.READS))
    assert rows.trace.iloc[0] == case.workload.trace
    assert "instead_of" not in rows
    # Another price, another case.
    dearer = replace(case, leaves=case.leaves | {"prices.gpu": case.leaves["prices.dram"]})
    assert chapter.digest(dearer) != chapter.digest(case)


def test_what_is_not_declared_changes_nothing(tmp_path, small):
    changes = [
        ("requests: {value: 2 /s", "requests: {value: 1 /s"),
        ("beta: {value: 0.6", "beta: {value: 0.5"),
    ]
    other = written(tmp_path, *changes)
    rows = chapter.of_scenario(Reads(other, chapter.READS))
    assert chapter.digest(other) == chapter.digest(small[0])
    assert rows.equals(small[1])


@pytest.mark.skipif(fetch.fetched("mooncake_conversation") is None, reason="needs make traces")
@pytest.mark.parametrize("name", ["paper", "h200-moe"])
def test_committed_rows_are_what_the_code_gives(name):
    """Of a few points of the grid, since all of them take long."""
    case = scenario.load(name)
    kept = results.read("public", chapter.STEM)
    kept = kept[(kept.inputs == chapter.digest(case)) & kept.standing.notna()]
    few = kept.drop_duplicates(["pools", "dram_bytes", "nvme_bytes", "router"]).iloc[::40]
    requests = simulate.read(case.workload.trace, "")
    requests = simulate.asked(requests, case.fleet.rate, 0)
    for told in json.loads(few.to_json(orient="records")):
        names = {name: told[name] for name in chapter.Point._fields}
        point = chapter.Point.of(names | {"model": None})
        answer = simulate.answer(chapter.at(case, point), requests, None, 0)
        at = (kept[list(point._fields[1:3])] == [point.dram_bytes, point.nvme_bytes]).all(axis=1)
        at &= (kept.pools == told["pools"]) & (kept.router == point.router)
        found = kept[at].set_index("quantity").value
        assert found["ttft_s"] == pytest.approx(answer["ttft_s"]["p90"], rel=1e-9)
        cost = "usd_per_million_output_tokens"
        assert found[cost] == pytest.approx(answer[cost], rel=1e-9)
