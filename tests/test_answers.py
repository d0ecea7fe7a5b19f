"""Sentences follow from rows: the same function, other rows, another verdict."""

import dataclasses

import pytest

from kvpaper import answers, evaluate, results, scenario


@pytest.fixture(scope="module")
def paper():
    return scenario.load("paper")


def slack_answer(case):
    tokens = case.workload.prompt_tokens - case.workload.new_tokens
    return answers.slack(results.table(evaluate.slacks(case)), tokens, case.slo.ttft_s)


def test_recovery_of_the_paper(paper):
    said = answers.recovery(
        results.table(evaluate.gigabyte_chart(paper)), results.table(evaluate.crossovers(paper))
    )
    assert "208\N{NO-BREAK SPACE}µs from HBM" in said
    assert "333\N{NO-BREAK SPACE}ms from NVMe, a factor of 1,600." in said
    assert "Fetching beats recomputing from NVMe only beyond 35,6" in said


def with_disk(case, **changes):
    tiers = dict(case.hardware.tiers)
    tiers["nvme"] = tiers["nvme"].model_copy(update=changes)
    return dataclasses.replace(case, hardware=case.hardware.model_copy(update={"tiers": tiers}))


def test_slack_names_what_stays_and_what_falls(paper):
    said = slack_answer(paper)
    assert "NVMe alone is too slow; fetching the back" in said
    assert "On the critical path stay HBM, host DRAM and the remote tier." in said
    assert "Without any cache the first token comes after 271\N{NO-BREAK SPACE}ms, within" in said


def test_slack_says_when_the_split_is_what_disqualifies(paper):
    slo = paper.slo.model_copy(update={"ttft_s": 0.26})
    case = with_disk(dataclasses.replace(paper, slo=slo), read_bytes_per_s=4.5e9)
    assert "The split takes NVMe off the critical path" in slack_answer(case)


def test_slack_says_when_recomputing_is_the_reason(paper):
    case = dataclasses.replace(paper, slo=paper.slo.model_copy(update={"ttft_s": 60.0}))
    assert "NVMe would be in time, but recomputing is faster" in slack_answer(case)


def test_slack_says_when_nothing_is_left(paper):
    case = dataclasses.replace(paper, slo=paper.slo.model_copy(update={"ttft_s": 0.001}))
    said = slack_answer(case)
    assert "nothing (" in said
    assert "beyond the target" in said
    assert "No tier stays on the critical path." in said


def break_even_answer(case):
    table = results.table
    held = {name: tier.capacity_bytes for name, tier in case.hardware.tiers.items()}
    return answers.break_even(
        table(evaluate.capacities(case)),
        table(evaluate.intervals(case)),
        table(evaluate.costs(case)),
        held,
    )


def test_break_even_tells_both_branches_the_use_and_the_wear(paper):
    said = break_even_answer(paper)
    assert "Alone, host DRAM has a marginal ratio of" in said
    assert "do not earn their rent" in said
    assert "NVMe, as a source of prefetches, has" in said
    assert "the whole working set earns its rent" in said
    assert "against a rating of 1; their rent is counted over" in said
    assert "0\N{NO-BREAK SPACE}s (the GPU waits while it loads)" in said


def test_break_even_buys_nothing_that_can_be_neither_waited_for_nor_prefetched(paper):
    work = paper.workload.model_copy(update={"lead_time_s": None})
    said = break_even_answer(dataclasses.replace(paper, workload=work))
    assert "NVMe is off the critical path and no prefetch is in time: buy none." in said


def test_break_even_with_bundled_bytes_names_what_there_is(paper):
    case = with_disk(paper, power_w_per_byte=0.0)
    prices = case.prices.model_copy(update={"reading": "bundled"})
    said = break_even_answer(dataclasses.replace(case, prices=prices, low=prices, high=prices))
    assert "has no rent: use what there is, 30\N{NO-BREAK SPACE}TB" in said
    assert "inf" not in said


def test_overview_follows_the_rate(paper):
    rows = results.table(evaluate.needed_rates(paper))
    fits, _, misses = answers.overview(rows, "nvme", 3e9).partition("too slow for")
    assert "DeepSeek-V3" in fits.partition("fast enough for")[2]
    assert "Llama-3.1-70B" in misses
    assert "too slow for every model compared" in answers.overview(rows, "nvme", 1e6)
    assert "fast enough for every model compared" in answers.overview(rows, "dram", 64e9)


def test_all_of_is_the_same_words_as_the_chapters(paper):
    said = answers.all_of(paper, results.table(evaluate.everything(paper)))
    assert len(said) == 4
    assert said[2] == slack_answer(paper)
    assert said[3] == break_even_answer(paper)


@pytest.mark.parametrize("tier", ["remote", "nvme", "dram"])
def test_every_answer_stands_without_a_tier(paper, tier):
    tiers = {name: part for name, part in paper.hardware.tiers.items() if name != tier}
    case = dataclasses.replace(paper, hardware=paper.hardware.model_copy(update={"tiers": tiers}))
    said = " ".join(answers.all_of(case, results.table(evaluate.everything(case))))
    assert answers.TIERS[tier] not in said
    assert "nan" not in said


def test_measured_says_nothing_yet_or_counts():
    wanted = [{"what": "a"}, {"what": "b"}]
    assert answers.measured([], wanted).startswith("Nothing yet.")
    said = answers.measured([{"outcome": "completed", "machine": {"cpu": "x"}}], wanted)
    assert said == "1 record, of which 1 completed."
