"""The replay beside the planner: what is committed, and what goes into it."""

import numpy as np
import pytest

from kvpaper import data, results
from kvpaper.fidelity import planner, words
from kvpaper.figures import fidelity as figures

AT = ["model", "element", "factors"]


@pytest.fixture(scope="module")
def rows():
    return results.read("public", "60_fleet_planner")


def gains(rows, **at):
    found = rows[rows.quantity == "two_over_one"]
    for name, value in at.items():
        found = found[found[name] == value]
    return found.set_index(AT).value.sort_index()


def test_the_replay_splits_the_models_that_the_planner_splits(rows):
    """With and without its factors, requests coming as steadily as its arithmetic takes them."""
    said, own = gains(rows, kind="tabulated"), gains(rows, kind="simulated", arrivals="steady")
    assert len(said) == len(own) == 14
    assert ((own > 1) == (said > 1)).all()
    assert said["qwen3-235b-fp8", "fp8", "the planner's"] == pytest.approx(1.93, abs=0.005)
    assert own["qwen3-235b-fp8", "fp8", "the planner's"] > 1.5
    assert own["gpt-oss-120b", "bf16", "the planner's"] < 1
    assert own["gpt-oss-120b", "bf16", "none"] > 1
    assert np.log(own / said).abs().max() < np.log(1.25)


def test_ratios_are_those_of_the_rates(rows):
    at = ["kind", "arrivals", *AT]
    rates = rows[rows.quantity == "tokens_per_s_per_gpu"].fillna("")
    rates = rates.pivot(index=at, columns="pools", values="value")
    found = rows[rows.quantity == "two_over_one"].fillna("").set_index(at).value
    assert (rates.two / rates.one).to_dict() == pytest.approx(found.to_dict())


def test_what_the_planner_says_is_its_own_and_its_arithmetic(rows):
    for told in data.table("latency/verdict.csv"):
        if told["tpot_slo_ms"] != "40" or told["pools"] != "two":
            continue
        said = rows[(rows.kind == "tabulated") & (rows.pools == "two")].set_index(AT).value
        at = told["model"], told["element"]
        assert said[*at, "the planner's"] == float(told["tokens_per_s_per_gpu"])
        # Its factors take at least the lower of their rates over their times, at most the higher.
        lost = said[*at, "the planner's"] / said[*at, "none"]
        assert 0.9 / 1.1 * 0.99 < lost < 0.92 / 1.08 * 1.01
        assert said[*at, "none"] == pytest.approx(planner._without_factors(told))


@pytest.mark.parametrize("spread", planner.ARRIVALS)
def test_requests_are_equal_and_share_nothing(spread):
    trace = planner._equal(8000, 500, 4.0, spread, 0)
    assert trace.requests == 1200
    assert trace.unique_blocks == trace.references == 1200 * 16
    gaps_s = np.diff(trace.arrival_s)
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.1)
    assert (gaps_s.std() < 1e-9) == (spread == "steady")


def test_factors_lie_on_what_two_pools_alone_use():
    told = next(one for one in data.table("latency/verdict.csv") if one["model"] == "gpt-oss-120b")
    case = planner._case(told, 50.0)
    assert case.gpus == 16
    assert case.stocks() == [()]
    for way, slower in zip(case.ways, planner._slower(case).ways, strict=True):
        for one, other, factor in (
            (way.prefill.prefill_table, slower.prefill.prefill_table, 1.1),
            (way.decode.decode_table, slower.decode.decode_table, 1.08),
        ):
            np.testing.assert_allclose(other.seconds, factor * one.seconds)


def test_the_answer_and_the_figure_follow_from_the_rows(rows):
    said = words.answer(rows)
    assert "for 6 of 7 models and caches; its ratio of throughput is 0.97 to 1.93" in said
    assert "- steady arrivals, with its factors on two pools: 7 of 7 verdicts are the same" in said
    (axes,) = figures.planner(rows).axes
    assert len(axes.get_yticklabels()) == 7
    assert len(axes.lines) == 7 * 2 * 3 + 1
