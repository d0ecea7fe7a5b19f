"""Records to rows: the fit on data whose latency and rate are known, and what is held apart."""

import copy

import numpy as np
import pandas
import pytest

from kvpaper import answers, measured, results
from kvpaper.figures import measured as figures

BYTES = 12_288.0 * 2 ** np.arange(7, 18)
LATENCY_S, RATE = 150e-6, 2.7e9
MACHINE = {
    "processor": "EPYC",
    "cores": 2,
    "memory_bytes": 24 << 30,
    "kernel": "Linux 6.1",
    "gpus": [],
}


def test_theory_exact_times_give_latency_and_rate_back():
    fit = measured.fit_fetch_time(BYTES, LATENCY_S + BYTES / RATE)
    assert fit["latency_s"] == pytest.approx(LATENCY_S, rel=1e-9)
    assert fit["bytes_per_s"] == pytest.approx(RATE, rel=1e-9)
    assert fit["residual"] < 1e-9


def test_theory_the_interval_holds_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(5)
    trials, held = 400, np.zeros(2)
    for _ in range(trials):
        noise = 1 + 0.05 * draw.standard_normal(BYTES.size)
        fit = measured.fit_fetch_time(BYTES, (LATENCY_S + BYTES / RATE) * noise)
        for place, (name, truth) in enumerate((("latency_s", LATENCY_S), ("bytes_per_s", RATE))):
            held[place] += fit[f"{name}_low"] <= truth <= fit[f"{name}_high"]
    error = np.sqrt(0.95 * 0.05 / trials)
    # Weights by the noisy times themselves cost a little of the coverage.
    assert (np.abs(held / trials - 0.95) < 3 * error + 0.01).all()


def test_theory_a_latency_below_zero_is_none():
    fit = measured.fit_fetch_time(BYTES, BYTES / RATE * np.linspace(0.8, 1, BYTES.size))
    assert fit["latency_s"] == fit["latency_s_low"] == 0
    assert RATE < fit["bytes_per_s"] < RATE / 0.8


def test_a_bend_shows_in_the_residual():
    bent = LATENCY_S + BYTES / np.where(BYTES > 1e8, RATE / 3, RATE)
    assert measured.fit_fetch_time(BYTES, bent)["residual"] > 0.2


def record(instrument, rows, parameters=None, machine=MACHINE, start="2026-01-01", **more):
    told = {"instrument": instrument, "rows": rows, "machine": machine, "started_at": start}
    return {**told, "parameters": parameters or {}, "outcome": "completed", **more}


def row(quantity, values, **at):
    return {"quantity": quantity, "unit": "", "kind": "measured", "warmups": [], **at} | {
        "values": values
    }


def tier_record(rate, machine=MACHINE, start="2026-01-01"):
    at = {"tier": "disk", "way": "direct", "shape": "canary", "to": "cpu"}
    rows = [
        row("fetch_time_s", [LATENCY_S + size / rate] * 3, tokens=size / 12_288, bytes=size, **at)
        for size in BYTES
    ]
    return record("tiers", rows, machine=machine, start=start)


def test_a_formula_is_set_by_one_run_and_held_against_another():
    rows = measured.ratios([tier_record(RATE), tier_record(2 * RATE, start="2026-01-02")])
    longest = max(one["tokens"] for one in rows)
    at_the_end = {one["run"]: one["value"] for one in rows if one["tokens"] == longest}
    assert at_the_end[1] == pytest.approx(2, rel=0.01)
    assert at_the_end[2] == pytest.approx(0.5, rel=0.01)


def test_one_run_alone_is_held_against_nothing():
    assert measured.ratios([tier_record(RATE)]) == []


def test_machines_are_never_pooled():
    other = {**MACHINE, "gpus": [{"name": "H200"}]}
    found = [tier_record(RATE), tier_record(RATE / 4, machine=other, start="2026-01-02")]
    assert measured.ratios(found) == []
    fits = [one for one in measured.fits(found) if one["quantity"] == "fitted_bytes_per_s"]
    rates = {one["machine"]: one["value"] for one in fits}
    assert rates["EPYC, 2 cores, 24 GiB, Linux 6.1"] == pytest.approx(RATE)
    assert rates["H200, EPYC, 2 cores, 24 GiB, Linux 6.1"] == pytest.approx(RATE / 4)


def test_a_run_that_did_not_complete_gives_no_number():
    found = tier_record(RATE) | {"outcome": "interrupted"}
    assert measured.everything([found]) == []


def level_record(start, cached_behind):
    rows = []
    for level, ttft_s, cached in (("engine", 0.5, 1024), ("connector", 0.6, cached_behind)):
        at = {"prompt_tokens": 1088, "level": level}
        rows.append(row("ttft_s", [ttft_s], **at))
        rows.append(row("cached_tokens", [cached], **at))
    rows.append(row("read_bytes", [1088 * 12_288], prompt_tokens=1088, level="disk"))
    engine = {"model": ".cache/lab/canary-abc", "dtype": "bfloat16"}
    return record("canary", rows, {"connector": "lmcache", "engine": engine}, start=start)


def test_a_hit_is_the_engines_own_hit_and_the_fetch():
    tier = tier_record(RATE)
    for one in tier["rows"]:
        one["tier"], one["way"] = "LMCache DRAM", "get"
    rows = measured.ratios([tier, level_record("2026-01-02", 1024)])
    (one,) = (one for one in rows if one["formula"] == "ttft")
    fetch_s = LATENCY_S + 1024 * 12_288 / RATE
    assert one["value"] == pytest.approx(0.6 / (0.5 + fetch_s))
    rows = measured.ratios([tier, level_record("2026-01-02", 1087)])
    assert [(one["formula"], one["value"]) for one in rows] == [("kv_bytes_per_token", 1.0)]


def test_prefill_at_one_rate_for_all_lengths():
    found = []
    for start in ("2026-01-01", "2026-01-02"):
        one = level_record(start, 0)
        one["rows"] = [
            row("ttft_s", [tokens / 100], prompt_tokens=tokens, level="recompute")
            for tokens in (256, 4096)
        ]
        found.append(one)
    rows = {
        (one["run"], one["tokens"]): one["value"]
        for one in measured.ratios(found)
        if one["formula"] == "recompute_time"
    }
    assert rows[1, 4096] == pytest.approx(1)
    # Attention makes a token of a long prompt dearer, so the rate found there is too high for a
    # short one that takes as long a token.
    assert rows[1, 256] > 1


def cell(cap, connector, stages, logprobs, **more):
    parameters = {"cap": cap, "connector": connector, "tokens": 1024}
    parameters["engine"] = {"model": ".cache/lab/canary-abc", "dtype": "float32"}
    rows = [row("cached_tokens", [tokens], stage=stage) for stage, tokens in stages.items()]
    for stage, values in logprobs.items():
        rows.append(row("logprob", values, stage=stage, prompt=0, tokens="t1 t2 t3"))
    return record("factorial", rows, parameters, **more)


@pytest.fixture
def two_by_two():
    line = {"process": "EngineCore", "file": "engine.log", "line": 73, "text": "ValueError"}
    outer = {"text": "Failed core proc(s): {}", "why": "outer message: it says not why"}
    cause = {"cause": "kv_cache", "kind": "kv_cache_too_small", "evidence": [line]}
    cause["ruled_out"] = [{"text": "warning", "why": "it follows"}, outer]
    right = {"first": [-1.0, -2.0, -3.0]}
    return [
        cell("none", "none", {"first": 0, "evicted": 896}, right),
        cell("fits", "none", {"first": 0, "evicted": 0}, {"first": [-1.0, -2.0, -3.000001]}),
        cell("fits", "lmcache", {"first": 0, "evicted": 1023}, right),
        cell("none", "spoiled", {"spoiled disk": 1023}, {"spoiled disk": [-1.5, -2.0, -3.0]}),
        cell("too small", "none", {}, {}, outcome="failed", cause=cause),
    ]


def test_a_death_tells_what_was_seen_and_what_was_the_cause(two_by_two):
    (died,) = measured.deaths(two_by_two)
    assert (died["message"], died["line"]) == ("Failed core proc(s): {}", "ValueError")
    assert (died["process"], died["cause"]) == ("EngineCore", "kv_cache_too_small")


def test_a_message_that_names_a_process_is_not_counted_as_empty(two_by_two):
    dead = copy.deepcopy(two_by_two[-1])
    dead["parameters"]["connector"] = "lmcache"
    dead["cause"]["ruled_out"][1]["text"] = "Failed core proc(s): {'EngineCore': 1}"
    found = [*two_by_two, dead]
    said = answers.measured(found, [], results.table(measured.everything(found)))
    assert "2 times, 1 without the connector, 2 with the paper's message, 1 with its empty" in said


def test_a_conflict_of_cap_and_connector_would_be_told(two_by_two):
    dead = cell("fits", "lmcache", {}, {}, outcome="failed", cause=two_by_two[-1]["cause"])
    found = [*two_by_two, dead]
    said = answers.measured(found, [], results.table(measured.everything(found)))
    assert "is not refuted: 1 of 2 starts with both lived" in said


def test_the_spread_over_runs_names_the_load_of_each():
    busy = [{"busy_cores_of_others": cores} for cores in (0.01, 0.5)]
    found = [
        tier_record(RATE * (1 + number), MACHINE | told, f"2026-01-0{number + 1}")
        for number, told in enumerate([{}, *busy])
    ]
    assert [at["load"] for _, at in measured.runs(found, "tiers")] == ["unknown", "quiet", "shared"]
    rows = measured.over_runs(measured.fits(found), ["machine", "tier"])
    rate = next(row for row in rows if row["quantity"] == "fitted_bytes_per_s")
    assert rate["value"] == pytest.approx(2 * RATE)
    assert (rate["low"], rate["high"]) == (pytest.approx(RATE), pytest.approx(3 * RATE))
    assert rate["runs"] == "1 quiet, 1 unknown, 1 shared"
    told = {row["load"] for row in measured.summary(measured.ratios(found))}
    assert told == {"unknown", "shared"}  # of a pair, the worse
    said = answers.measured(found, [], results.table(measured.everything(found)))
    assert "(3 runs: 1 " in said
    assert "on a shared machine" in said
    figure = figures.tiers(
        *(results.table(p(found)) for p in (measured.tiers, measured.fits)), "canary"
    )
    (axes,) = figure.axes
    assert axes.get_title(loc="left").endswith("1 quiet, 1 shared, 1 unknown")
    assert {line.get_alpha() for line in axes.lines} >= {0.4, 1}


def test_a_run_without_spread_has_no_band():
    rows = measured.over_runs(measured.fits([tier_record(RATE)]), ["machine", "tier"])
    assert {row["low"] for row in rows} == {None}


def test_every_run_is_listed_with_its_load(two_by_two):
    found = [*two_by_two, tier_record(RATE, MACHINE | {"busy_cores_of_others": 1.5})]
    rows = measured.overview([one | {"duration_s": 1.0} for one in found])
    assert [row["load"] for row in rows].count("shared") == 1
    assert {row["of"] for row in rows} >= {"", "canary, cap fits, connector lmcache"}
    assert [row["outcome"] for row in rows].count("failed") == 1


def test_a_model_of_ones_own_is_told_and_held_against_nothing():
    found = [level_record(start, 1024) for start in ("2026-01-02", "2026-01-03")]
    for one in found:
        one["parameters"]["engine"]["model"] = "/models/my-model"
    assert {row["model"] for row in measured.levels(found)} == {"my-model"}
    assert measured.ratios(found) == []


def test_without_a_connector_the_engines_own_hit_is_its_own():
    one = level_record("2026-01-02", 1024)
    one["parameters"]["connector"] = "none"
    assert {row["level"] for row in measured.levels([one])} == {"engine alone", "connector"}


def test_open_loops_are_told_by_quantiles():
    record_ = split_record("2026-01-01")
    at = {"part": "comparison", "pattern": "shared", "rate_per_s": 0.3, "seed": 1}
    ttft_s = np.arange(1.0, 12.0)
    played = {"ttft_s": ttft_s, "latency_s": ttft_s + 0.7, "output_tokens": np.full(11, 8)}
    played |= {"prompt_tokens": np.full(11, 100), "cached_tokens": np.zeros(11)}
    played |= {"prefill_cached_tokens": np.full(11, 25)}
    record_["rows"] += [row(name, list(values), **at) for name, values in played.items()]
    rows = {one["shown"]: one["value"] for one in measured.loops([record_])}
    assert rows["TTFT, median"] == 6
    assert rows["TTFT, 90 %"] == 10
    assert rows["TPOT, 90 %"] == pytest.approx(0.1)
    assert rows["cached share"] == 0.25


def test_a_decode_step_of_a_batch_reads_more_experts():
    found = [split_record("2026-01-01"), split_record("2026-01-02")]
    for one in found:
        at = {"part": "calibration", "batch": 2, "context_tokens": 256}
        one["rows"].append(row("tpot_s", [0.02], **at))
    rows = [one for one in measured.ratios(found) if one["formula"] == "decode_step_time"]
    assert len(rows) == 2
    # As long as a batch of one, though a second sequence has experts and a cache of its own.
    assert all(0.5 < one["value"] < 1 for one in rows)


def test_cells_and_their_agreement(two_by_two):
    counts = {(one["cell"], one["stage"]): one["value"] for one in measured.cells(two_by_two)}
    assert counts["fits, none", "evicted"] == 0
    assert counts["fits, lmcache", "evicted"] == 1023
    worst = {one["cell"]: one["value"] for one in measured.agreement(two_by_two)}
    assert worst["fits, none"] == pytest.approx(1e-6)
    assert worst["none, spoiled"] == pytest.approx(0.5)


def test_an_answer_without_the_reference_is_compared_with_nothing(two_by_two):
    assert measured.agreement(two_by_two[1:]) == []


def test_other_tokens_than_the_likeliest_are_no_agreement():
    told = [{"t1": -1.0, "t9": -2.0, "t8": -3.0}]
    assert measured._difference(told, [{"t1": -1.0, "t2": -2.0, "t3": -3.0}]) == np.inf


def test_the_answer_follows_from_the_rows(two_by_two):
    said = answers.measured(two_by_two, [], results.table(measured.everything(two_by_two)))
    assert said.startswith("5 records, of which 4 completed. The paper's hypothesis")
    assert "- Of 1,024 tokens of canary" in said
    assert "the cap alone still had 0 (1 run) and cap and LMCache still had 1,023 (1 run)" in said
    assert "is not borne out: 1 of 1 start with both lived" in said
    assert "died at start 1 time, 1 without the connector, 1 with the paper's message" in said
    assert "1 with its empty list of processes; the cause, kv_cache_too_small" in said
    assert "EngineCore" in said
    assert "same prompt, 1e-06 at most (3 runs)" in said
    assert "spoiled cache, 0.5 at least (1 run)" in said


def test_an_answer_says_nothing_of_cells_that_have_no_record(two_by_two):
    some = two_by_two[:1]
    said = answers.measured(some, [], results.table(measured.everything(some)))
    assert "hypothesis" not in said
    assert "pushed out" not in said
    assert "spoiled" not in said


def split_record(start, step_s=0.02, rate=1e9):
    rows = [row("tpot_s", [step_s] * 3, part="calibration", batch=1, context_tokens=256)]
    for tokens in (128, 256, 512, 1024):
        at = {"part": "proof", "prompt_tokens": tokens}
        moved_s = 0.005 + tokens * 8192 / rate
        rows.append(row("prefill_s", [0.1], split="two engines", **at))
        rows.append(row("ttft_s", [0.1 + moved_s + step_s], split="two engines", **at))
        rows.append(row("ttft_s", [0.1], split="one engine", **at))
        told = {"engine": "decode", "requests": 4, **at}
        name = "vllm:nixl_bytes_transferred_sum"
        rows.append(row("counter", [4 * tokens * 8192], name=name, **told))
        name = "vllm:external_prefix_cache_hits_total"
        rows.append(row("counter", [4 * (tokens - 1)], name=name, **told))
    for engine, last in (("prefill", -3.0), ("decode", -3.25)):
        rows.append(row("logprob", [-1.0, -2.0, last], engine=engine, tokens="t1 t2 t3"))
    engine = {"model": ".cache/lab/small-moe-abc", "dtype": "float32"}
    return record("disagg", rows, {"connector": "nixl", "engine": engine}, start=start)


def test_a_transfer_is_what_neither_prefill_nor_step_explains():
    found = [split_record("2026-01-01"), split_record("2026-01-02", rate=0.5e9)]
    times = {(one["run"], one["prompt_tokens"]): one["value"] for one in measured.transfers(found)}
    assert times[1, 1024] == pytest.approx(0.005 + 1024 * 8192 / 1e9)
    rows = [one for one in measured.ratios(found) if one["formula"] == "visible_transfer_time"]
    assert {one["run"] for one in rows} == {1, 2}
    last = next(one for one in rows if one["run"] == 2 and one["tokens"] == 1024)
    assert last["value"] == pytest.approx(times[2, 1024] / times[1, 1024])


def test_what_went_between_engines_is_the_cache_of_the_prompts_and_gives_the_same_answer():
    found = [split_record("2026-01-01")]
    share = {one["prompt_tokens"]: one["value"] for one in measured.moved(found)}
    assert share[1024] == 1023 / 1024
    sizes = [one for one in measured.ratios(found) if one["formula"] == "kv_bytes_per_token"]
    # 2 x 8 layers x 2 heads x 64 x 4 bytes
    assert [one["value"] for one in sizes] == [1.0] * 4
    (differs,) = measured.agreement(found)
    assert (differs["cell"], differs["value"]) == ("two engines, nixl", 0.25)


def test_the_answer_tells_what_the_split_costs():
    found = [split_record("2026-01-01")]
    said = answers.measured(found, [], results.table(measured.everything(found)))
    assert "- Two engines joined by nixl (1 run, load unknown): a prompt of 1,024 tokens" in said
    assert "13.4\N{NO-BREAK SPACE}ms of it for the transfer" in said


def test_figures_have_a_panel_for_each_machine():
    other = {**MACHINE, "gpus": [{"name": "H200"}]}
    found = [tier_record(RATE), tier_record(RATE / 4, machine=other, start="2026-01-02")]
    times, fits = (results.table(part(found)) for part in (measured.tiers, measured.fits))
    figure = figures.tiers(times, fits, "canary")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "EPYC, 2 cores, 24 GiB, Linux 6.1\nruns: 1 unknown",
        "H200, EPYC, 2 cores, 24 GiB, Linux 6.1\nruns: 1 unknown",
    ]
    assert figure.axes[0].lines[0].get_color() == figure.axes[1].lines[0].get_color()
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]


def test_a_title_is_no_wider_than_its_panel():
    rows = results.table(measured.splits([split_record("2026-01-01")]))
    several = pandas.concat([rows.assign(connector=f"connector {i}") for i in range(5)])
    (split,) = figures.splits(several).axes
    lines = split.get_title(loc="left").splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 62


def test_figures_stand_without_a_record():
    for draw in (figures.levels, figures.splits):
        assert "Nothing to draw" in draw(results.table([])).axes[0].texts[0].get_text()
    (split,) = figures.splits(results.table(measured.splits([split_record("2026-01-01")]))).axes
    title = "small-moe: EPYC, 2 cores, 24 GiB, Linux 6.1\nruns: nixl 1 unknown"
    assert split.get_title(loc="left") == title
    told = results.table(measured.levels([level_record("2026-01-02", 1024)]))
    assert figures.levels(told).axes[0].get_xlabel() == "prompt [tokens]"


def test_two_hosts_under_one_processor_name_are_two_machines():
    one, other = (
        {"machine": MACHINE | {"kernel": kernel}} for kernel in ("Linux 6.1", "Linux 6.2")
    )
    assert measured.machine(one) != measured.machine(other)
