"""Sentences follow from rows: the same function, other rows, another verdict."""

import dataclasses

import pytest

from kvpaper import answers, evaluate, results, scenario


@pytest.fixture(scope="module")
def paper():
    return scenario.load("paper")


def slack_answer(case):
    tokens = case.workload.prompt_tokens - case.workload.new_tokens
    return answers.slack(results.table(evaluate.slacks(case)), tokens)


def test_recovery_of_the_paper(paper):
    said = answers.recovery(
        results.table(evaluate.gigabyte_chart(paper)), results.table(evaluate.crossovers(paper))
    )
    assert "208\N{NO-BREAK SPACE}µs from HBM" in said
    assert "333\N{NO-BREAK SPACE}ms from NVMe, a factor of 1,600." in said
    assert "from NVMe only beyond 35,6" in said


def test_slack_names_what_stays_and_what_falls(paper):
    said = slack_answer(paper)
    assert "NVMe is too slow either way" in said
    assert "On the critical path stay HBM, host DRAM and the remote tier." in said


def test_slack_says_when_the_split_is_what_disqualifies(paper):
    slo = paper.slo.model_copy(update={"ttft_s": 0.26})
    tiers = dict(paper.hardware.tiers)
    tiers["nvme"] = tiers["nvme"].model_copy(update={"read_bytes_per_s": 4.5e9})
    hardware = paper.hardware.model_copy(update={"tiers": tiers})
    case = dataclasses.replace(paper, slo=slo, hardware=hardware)
    assert "The split takes NVMe off the critical path." in slack_answer(case)


def test_slack_says_when_recomputing_is_the_reason(paper):
    case = dataclasses.replace(paper, slo=paper.slo.model_copy(update={"ttft_s": 60.0}))
    assert "NVMe would be in time, but recomputing is faster." in slack_answer(case)


def test_slack_says_when_nothing_is_left(paper):
    case = dataclasses.replace(paper, slo=paper.slo.model_copy(update={"ttft_s": 0.001}))
    said = slack_answer(case)
    assert "nothing (" in said
    assert "No tier stays on the critical path." in said


def test_break_even_tells_both_branches(paper):
    said = answers.break_even(
        results.table(evaluate.capacities(paper)), results.table(evaluate.intervals(paper))
    )
    assert "For host DRAM" in said
    assert "do not earn their rent" in said
    assert "the whole working set earns its rent" in said


def test_overview_splits_the_models(paper):
    rows = results.table(evaluate.one_disk(paper))
    said = answers.overview(rows, evaluate.disaggregated_slack(paper))
    fits, _, misses = said.partition("too slow for")
    assert "DeepSeek-V3" in fits
    assert "Llama-3.1-70B" in misses
    assert "too slow for every model compared" in answers.overview(rows, -0.1)
    assert "fast enough for every" in answers.overview(rows[rows.model == "DeepSeek-V3"], 1.0)


def test_measured_says_nothing_yet_or_counts():
    wanted = [{"what": "a"}, {"what": "b"}]
    assert answers.measured([], wanted).startswith("Nothing yet.")
    said = answers.measured([{"outcome": "completed", "machine": {"cpu": "x"}}], wanted)
    assert said == "1 record from 1 machine, of which 1 completed."
