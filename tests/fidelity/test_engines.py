"""The replay beside engines: hits by hand, no leak, an exact law comes back."""

import copy

import pytest

from kvpaper import results
from kvpaper.errors import InputError
from kvpaper.fidelity import engines, words
from kvpaper.figures import fidelity as figures

BLOCK = 128
FLOOR_S, TOKEN_S, STEP_S, LINK_S, LINK_RATE = 0.1, 1e-3, 0.02, 0.005, 1e9
TOKEN_BYTES = 8192  # 2 x 8 layers x 2 heads x 64 x 4 bytes
MACHINE = {"processor": "EPYC", "cores": 2, "memory_bytes": 24 << 30, "gpus": [], "kernel": "6"}
LOOP = {"part": "comparison", "pattern": "shared", "rate_per_s": 0.1, "seed": 1}


def row(quantity, values, **at):
    return {"quantity": quantity, "unit": "", "kind": "measured", "warmups": [], **at} | {
        "values": values
    }


def prefill_s(prompt, cached=0):
    return FLOOR_S + TOKEN_S * (prompt - cached)


def singles(split):
    """Single requests that follow a law exactly."""
    rows = []
    for tokens in (128, 256, 512, 1024):
        at = {"part": "proof", "prompt_tokens": tokens}
        if split:
            sent_s = LINK_S + tokens * TOKEN_BYTES / LINK_RATE
            rows += [row("prefill_s", [prefill_s(tokens)], split="two engines", **at)]
            rows += [row("prefill_cached_tokens", [0], split="two engines", **at)]
            first_s = prefill_s(tokens) + sent_s + STEP_S
            rows += [row("ttft_s", [first_s], split="two engines", **at)]
            at |= {"requests": 4}
            rows += [row("counter", [1], name="vllm:external_prefix_cache_hits_total", **at)]
        for prefix in (0, tokens // 2):
            at = {"part": "calibration", "prompt_tokens": tokens, "prefix_tokens": prefix}
            names = {"ttft_s": prefill_s(tokens, prefix), "cached_tokens": prefix}
            if split:
                names = {"prefill_s": names["ttft_s"], "prefill_cached_tokens": prefix}
            rows += [row(name, [value], **at) for name, value in names.items()]
    for context in (256, 1024):
        rows += [
            row("tpot_s", [STEP_S] * batch, part="calibration", batch=batch, context_tokens=context)
            for batch in (1, 2, 4, 8)
        ]
    return rows


def loop(requests, split, blocks=None, scale=1.0):
    """An open loop whose times are those of the law, each request long after the last one.

    ``requests`` are pairs of group and length of the prompt, of which 512 tokens are shared, and
    the cached tokens that an engine should find.
    """
    groups, prompts, cached = zip(*requests, strict=True)
    at_s = [100.0 * number for number in range(len(requests))]
    first_s = []
    for prompt, held in zip(prompts, cached, strict=True):
        took = prefill_s(prompt, held)
        if split:
            took += LINK_S + prompt * TOKEN_BYTES / LINK_RATE + STEP_S
        first_s.append(scale * took)
    values = {
        "arrival_s": at_s,
        "sent_s": at_s,
        "group": groups,
        "shared_tokens": [512] * len(requests),
        "prompt_tokens": prompts,
        "output_tokens": [11] * len(requests),
        "ttft_s": first_s,
        "latency_s": [first + 10 * STEP_S for first in first_s],
        "prefill_cached_tokens" if split else "cached_tokens": cached,
    }
    return [row(name, list(value), **LOOP) for name, value in values.items()]


def record(requests, connector="none", blocks=64, start="2026-01-01", scale=1.0):
    split = connector != "none"
    engine = {"model": ".cache/lab/small-moe-abc", "dtype": "float32"}
    configuration = {"engine": {"block_size": str(BLOCK), "num_gpu_blocks": str(blocks)}}
    return {
        "instrument": "disagg",
        "outcome": "completed",
        "started_at": start,
        "machine": MACHINE,
        "parameters": {"connector": connector, "engine": engine},
        "software": {"engine": {"configuration": configuration}},
        "rows": singles(split) + loop(requests, split, scale=scale),
    }


# Group, prompt, and what is cached by hand: 512 tokens are four blocks, a prompt of 640 has five.
PLAIN = [(0, 640, 0), (0, 640, 512), (1, 576, 0), (0, 768, 512), (1, 704, 512)]


def value(rows, quantity, kind, **at):
    (found,) = (
        one["value"]
        for one in rows
        if (one["quantity"], one["kind"]) == (quantity, kind)
        and all(one.get(name) == wanted for name, wanted in at.items())
    )
    return found


@pytest.mark.parametrize("connector", ["none", "nixl"])
def test_theory_requests_that_follow_a_law_are_replayed_by_it(connector):
    rows = engines.rows([record(PLAIN, connector)])
    for percentile in engines.PERCENTILES:
        at = {"percentile": percentile, "over": "simulated"}
        assert value(rows, "ttft_ratio", "measured", **at) == pytest.approx(1, rel=1e-3)
        assert value(rows, "tpot_ratio", "measured", **at) == pytest.approx(1, rel=1e-3)
    assert value(rows, "requests_that_differ", "measured") == 0
    assert value(rows, "cached_tokens", "simulated") == 3 * 512


@pytest.mark.parametrize("connector", ["none", "nixl"])
def test_hits_by_hand_where_the_cache_is_too_small(connector):
    """Ten blocks: five of group 0, five of group 1; a prompt of group 2 takes those of group 0.

    A prompt of group 1 with six blocks then finds its four and takes the oldest two: the tails of
    groups 1 and 2. Group 2 still has its four, and group 0 nothing.
    """
    requests = [(0, 576, 0), (1, 576, 0), (2, 576, 0), (1, 704, 512), (2, 576, 512), (0, 576, 0)]
    rows = engines.rows([record(requests, connector, blocks=11)])
    assert value(rows, "requests_that_differ", "measured") == 0
    told = record([*requests[:-1], (0, 576, 128)], connector, blocks=11)
    rows = engines.rows([told])
    assert value(rows, "requests_that_differ", "measured") == 1
    assert value(rows, "cached_tokens_difference", "measured") == 128


def test_blocks_of_an_answer_age_like_others():
    """With their answers the first prompt leaves five full blocks and the second takes five."""
    requests = [(0, 640, 0), (1, 512, 0), (0, 640, 512)]
    for blocks, cached in ((10, 512), (9, 384)):
        rows = engines.rows([record(requests, blocks=blocks)])
        assert value(rows, "cached_tokens", "simulated") == cached


def test_a_block_that_is_not_full_does_not_age():
    """Of fifteen blocks three prompts fill five each; the one in work takes a sixth for a while."""
    requests = [(0, 640, 0), (1, 640, 0), (2, 640, 0), (0, 640, 512)]
    for blocks, cached in ((16, 512), (15, 384)):
        rows = engines.rows([record(requests, blocks=blocks)])
        assert value(rows, "cached_tokens", "simulated") == cached


def test_a_request_that_the_machine_held_up_sets_nothing():
    plain = record(PLAIN)
    held_up = copy.deepcopy(plain)
    for one in held_up["rows"]:
        if one.get("part") == "calibration" and one.get("prompt_tokens") == 512:
            one["values"] = [*one["values"], one["values"][0]]
            one["values"][0] *= 5 if one["quantity"] == "ttft_s" else 1
    first, second = (
        [one["value"] for one in simulated(engines.rows([told]), 1)] for told in (plain, held_up)
    )
    assert second == pytest.approx(first)


def changed(told, part, names, factor):
    told = copy.deepcopy(told)
    for one in told["rows"]:
        if one.get("part") in part and one["quantity"] in names:
            one["values"] = [factor * each for each in one["values"]]
    return told


def simulated(rows, run):
    return [one for one in rows if one["kind"] == "simulated" and one["run"] == run]


TIMES = ("ttft_s", "latency_s", "prefill_s", "tpot_s", "cached_tokens", "prefill_cached_tokens")


@pytest.mark.parametrize("connector", ["none", "nixl"])
def test_no_loop_sets_a_replay_nor_does_a_run_its_own_where_there_is_another(connector):
    own = record(PLAIN, connector)
    other = record(PLAIN, connector, start="2026-01-02")
    plain = engines.rows([own, other])
    loops = [changed(one, ("comparison",), TIMES, 3) for one in (own, other)]
    for run in (1, 2):
        assert simulated(engines.rows(loops), run) == simulated(plain, run)
    slower = changed(own, ("proof", "calibration"), ("ttft_s", "prefill_s", "tpot_s"), 2)
    found = engines.rows([slower, other])
    assert simulated(found, 1) == simulated(plain, 1)
    at = {"run": 2, "percentile": 50, "over": None}
    ratio = value(found, "ttft_s", "simulated", **at) / value(plain, "ttft_s", "simulated", **at)
    assert ratio == pytest.approx(2, rel=0.01)
    assert {one["set_by"] for one in plain} == {"another run"}
    assert {one["set_by"] for one in engines.rows([own])} == {"single requests of the run"}


def test_a_run_of_other_engines_or_of_another_machine_sets_nothing():
    own = record(PLAIN)
    threads = own["parameters"]["engine"] | {"threads": 2}
    for other in (
        record(PLAIN, "nixl"),
        record(PLAIN) | {"machine": MACHINE | {"cores": 64}},
        record(PLAIN) | {"parameters": own["parameters"] | {"engine": threads}},
    ):
        rows = engines.rows([own, changed(other, ("calibration",), ("ttft_s", "prefill_s"), 5)])
        assert {one["set_by"] for one in rows} == {"single requests of the run"}


def test_a_record_without_calibration_is_refused():
    told = record(PLAIN)
    told["rows"] = [one for one in told["rows"] if one["part"] != "calibration"]
    with pytest.raises(InputError, match="record of 2026-01-01: found no calibration"):
        engines.rows([told])


def test_the_answer_and_the_figure_follow_from_the_rows():
    rows = results.table(engines.rows([record(PLAIN, "nixl"), record(PLAIN)]))
    said = words.answer(results.joined(rows, results.read("public", "60_fleet_planner")))
    assert "1 open loop of two engines ran. " in said
    assert "1 open loop of one engine ran. " in said
    assert "set by single requests of the run, finds as many" in said
    assert said.count("cached tokens for 5 of 5 requests") == 2
    assert said.count("first token is 1.00, within 10% in 1 of 1") == 2
    (axes,) = figures.engines(rows).axes
    assert [label.get_text().partition("\n")[0] for label in axes.get_yticklabels()] == [
        "nixl, shared",
        "none, shared",
    ]


def test_without_a_loop_the_answer_says_so():
    planner = results.read("public", "60_fleet_planner")
    assert words.answer(planner).startswith("No open loop of real engines")
    assert "Nothing to draw" in figures.engines(results.table([])).axes[0].texts[0].get_text()
