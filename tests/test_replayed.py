"""Sentences and figures of replayed fleets follow from rows: other rows, other words."""

import pytest

from kvpaper import answers, figures, replayed, results
from kvpaper.figures import fleet, style
from kvpaper.scenario import Slo

SLO = Slo(ttft="300 ms", tpot="40 ms", percentile="90")
COST = "usd_per_million_output_tokens"
# Pools, DRAM, TTFT, TPOT and cost of the points of a grid; 2 GPUs where both kinds of pool are.
POINTS = [
    ("2", 0.0, 0.250, 0.02, 5.0, "none"),
    ("2", 1e12, 0.120, 0.02, 5.5, "tiered"),
    ("1:1", 0.0, 0.400, 0.01, 5.0, "disaggregated"),
    ("1:1", 1e12, 0.280, 0.01, 5.4, "both"),
    ("4", 1e12, 0.110, 0.01, 11.0, "tiered"),
]
FRONTIER = {0: "frontier", 1: "knee", 4: "frontier"}


def made(slower=1.0, **trace):
    """Rows as of a replay; ``slower`` stretches every time to the first token."""
    one = {"requests": 1254, "duration_s": 3600.0, "cold_prefill_s": 0.2 * slower}
    rows = [results.row(name, value, "simulated") for name, value in one.items()]
    rows[0] |= {"trace": "generated"} | trace
    for number, (pools, dram, ttft_s, tpot_s, usd, cell) in enumerate(POINTS):
        at = {"pools": pools, "dram_bytes": dram, "nvme_bytes": 0.0, "router": "prefix",
              "model": "A", "gpus": 4 if pools == "4" else 2, "cell": cell}  # fmt: skip
        values = {"feasible": ttft_s * slower <= 0.3, "ttft_s": ttft_s * slower, "tpot_s": tpot_s}
        for name, value in (values | {COST: usd}).items():
            standing = FRONTIER.get(number, "beaten")
            rows.append(results.row(name, float(value), "simulated", standing=standing, **at))
        if number == 4:
            continue
        rows += [
            results.row("ttft_s", ttft_s * slower * share, "simulated", share=share, **at)
            for share in (0.5, 0.9)
        ]
        hits = {"hbm": 0.1, **({"dram": 0.25} if dram else {})}
        rows += [
            results.row("hit_share", v, "simulated", tier=tier, **at) for tier, v in hits.items()
        ]
        rising = [0.0, 0.1, 0.2, 0.3, 0.35, 0.4] if dram else [0.0, 0.1, 0.1, 0.1, 0.1, 0.1]
        for part, share in enumerate(rising):
            rows.append(results.row("hit_share", share, "simulated", at_s=600.0 * (part + 1), **at))
    return results.table(rows)


def said(rows):
    return replayed.fleet(rows, SLO).replace("\N{NO-BREAK SPACE}", " ")


def test_frontier_levers_and_warmth():
    text = said(made())
    assert "The trace is generated: 1,254 requests over 1 hour." in text
    assert "4 of 5 fleets serve 90% of requests within 300 ms to the first token" in text
    assert "The cheapest is one pool of 2 instances with no tiers, with 250 ms" in text
    assert "The fastest is one pool of 4 instances with 1 TB of host DRAM each" in text
    assert "2.2 times the cost" in text
    assert "At the knee of the frontier stands one pool of 2 instances with 1 TB" in text
    assert "On the same 2 GPUs" in text
    assert "225 ms with one pool without tiers" in text
    assert "Caches serve 10% (" in text
    assert " to 35% (" in text
    assert "hits still rise: one pool with tiers from 25% to 38%; split pools with tiers" in text


def test_when_none_meets_the_targets_it_says_what_is_nearest():
    text = said(made(slower=10))
    assert "None of 5 fleets serves 90% of requests" in text
    assert "The nearest, one pool of 4 instances with 1 TB of host DRAM each, takes 1.1 s" in text
    assert "within 2 s, which is beyond the target" in text
    assert "The cheapest of those that miss the targets is one pool of 2 instances" in text


def test_a_stand_in_is_told():
    text = said(made(instead_of="mooncake_conversation"))
    assert "names the trace mooncake conversation, which is not at hand" in text


def test_one_fleet_may_be_both_fastest_and_cheapest():
    rows = made()
    rows.loc[rows.standing == "frontier", "standing"] = "beaten"
    assert "The cheapest is also the fastest: one pool of 2 instances" in said(rows)


def test_fleets_that_differ_by_router_alone_are_told_apart():
    rows = made()
    rows.loc[rows.pools.eq("4"), "router"] = "random"
    assert "4 instances with 1 TB of host DRAM each, random routing, with 110 ms" in said(rows)


def test_caches_that_are_warm_are_called_so():
    rows = made()
    rows.loc[rows.at_s.notna(), "value"] = 0.3
    assert "the caches are warm" in said(rows)


def test_without_the_four_kinds_or_any_point_it_says_less():
    rows = made()
    alone = rows[rows.standing.notna() | rows.cell.isna()].dropna(axis=1, how="all")
    assert "On the same" not in said(alone)
    assert len(replayed.hits(alone)) == 0
    none = rows[rows.cell.isna()].dropna(axis=1, how="all")
    assert len(replayed.worth_having(replayed.points(none))) == 0
    assert "No fleet of the grid could be replayed." in said(none)
    for figure in (
        fleet.pareto(replayed.points(none), 0.3),
        fleet.first_tokens(none, 0.3),
        fleet.warmth(alone),
    ):
        assert "Nothing to draw" in style.as_svg(figure)


def test_tables_of_the_frontier_and_of_hits():
    worth = replayed.worth_having(replayed.points(made()))
    assert list(worth.usd) == [5.0, 5.5, 11.0]
    assert worth.fleet.iloc[1].endswith(
        "2 instances with 1\N{NO-BREAK SPACE}TB of host DRAM each (knee)"
    )
    assert set(replayed.hits(made()).fleet) == set(answers.CELLS.values())


@pytest.mark.parametrize("slower", [1, 1000])
def test_figures_give_the_same_bytes_and_fit_a_phone(slower, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "FOLDER", tmp_path)
    rows = made(slower)
    rows.loc[rows.quantity.eq("ttft_s") & rows.pools.eq("1:1"), "value"] = 5000.0  # overloaded
    for name in ("first", "second"):
        for stem, figure in {
            "pareto": fleet.pareto(replayed.points(rows), 0.3),
            "ttft": fleet.first_tokens(rows, 0.3),
            "warmth": fleet.warmth(rows),
        }.items():
            assert figure.get_figwidth() <= 4.4
            figures.save(figure, name, stem)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_the_knee_is_marked_and_overload_stays_at_the_edge():
    rows = made()
    rows.loc[rows.quantity.eq("ttft_s") & rows.pools.eq("1:1"), "value"] = 5000.0
    figure = fleet.pareto(replayed.points(rows), 0.3)
    axes = figure.axes[0]
    assert 20 * 0.3 < axes.get_ylim()[1] < 10
    assert "knee" in [text.get_text() for text in axes.texts]
