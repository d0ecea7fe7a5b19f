"""Disaggregation and its open loops, with stand-ins for the engines."""

import json
import sys
import threading
from collections import Counter

import numpy as np
import pytest

from kvpaper import cli
from kvpaper.errors import InputError
from kvpaper.lab import command, disagg, engine, openloop, records


@pytest.mark.parametrize("pattern", openloop.PATTERNS)
def test_arrivals_are_poisson_at_the_rate_asked_for(pattern):
    drawn = openloop.workload(pattern, 4000, 2.5, 7)
    gaps = np.diff([one.arrival_s for one in drawn])
    # An exponential gap has its mean as standard deviation.
    assert abs(gaps.mean() - 0.4) < 4 * 0.4 / np.sqrt(gaps.size)
    assert abs(gaps.std() - 0.4) < 4 * 0.4 * np.sqrt(2 / gaps.size)
    assert drawn == openloop.workload(pattern, 4000, 2.5, 7)
    assert drawn != openloop.workload(pattern, 4000, 2.5, 8)


def test_the_groups_of_shared_prefixes_follow_zipf():
    drawn = openloop.workload("shared", 6000, 1, 3)
    count = Counter(one.group for one in drawn)
    total = sum(1 / rank for rank in range(1, 13))
    for rank in (1, 2, 12):
        share = 1 / rank / total
        error = np.sqrt(share * (1 - share) / 6000)
        assert abs(count[rank - 1] / 6000 - share) < 4 * error


def test_prompts_share_what_they_say_and_nothing_else():
    drawn = openloop.workload("shared", 60, 1, 3)
    ids = openloop.prompts(drawn, 3, 1000)
    assert [len(prompt) for prompt in ids] == [one.prompt_tokens for one in drawn]
    for one, prompt in zip(drawn, ids, strict=True):
        for other, another in zip(drawn, ids, strict=True):
            same = one.group == other.group
            assert (prompt[:512] == another[:512]) == same
            assert one is other or prompt[512:600] != another[512:600]


def test_a_turn_of_a_session_has_the_turn_before_as_its_prefix():
    drawn = openloop.workload("sessions", 80, 1, 3)
    ids = openloop.prompts(drawn, 3, 1000)
    last = {}
    for one, prompt in zip(drawn, ids, strict=True):
        before = last.get(one.group, [])
        assert prompt[: len(before)] == before
        assert len(prompt) == len(before) + 256
        last[one.group] = prompt
    assert max(map(len, last.values())) == 1280


MOVES = [True]


class Side:
    """One engine: it knows prompts by whole blocks, and so does its peer where they are joined."""

    def __init__(self, run, name, joined):
        self.run, self.started = run, type("Started", (), {"name": name})
        self.known, self.joined, self.moved = set(), joined, 0

    def cached(self, ids):
        blocks = [tuple(ids[:end]) for end in range(128, len(ids), 128)]
        held = [block for block in blocks if block in self.known or block in self.joined]
        self.known |= {tuple(ids[:end]) for end in range(128, len(ids) + 1, 128)}
        return len(held[-1]) if held else 0

    def wait(self):
        pass

    def complete(self, ids, tokens=1, logprobs=None, extra=None):
        if extra and MOVES:
            self.moved += len(ids)
            self.joined |= {tuple(ids[:end]) for end in range(128, len(ids), 128)}
        cached = self.cached(ids)
        top = {"t1": -float(sum(ids) % 97)}
        sent = disagg.time.perf_counter()
        times = tuple(0.01 * (step + 1) for step in range(tokens))
        return engine.Completion(sent, times, cached, (top,))

    def post(self, path, body):
        ids = body["prompt"]
        cached = self.cached(ids)
        usage = {"prompt_tokens_details": {"cached_tokens": cached}}
        top = {"top_logprobs": [{"t1": -float(sum(ids) % 97)}]}
        answer = {"usage": usage, "choices": [{"logprobs": top}]}
        return answer | {"kv_transfer_params": {"remote": 1}}

    def counters(self):
        return {"vllm:external_prefix_cache_hits_total": self.moved, "vllm:other": 1.0}

    def reset_prefix_cache(self):
        self.known.clear()
        self.joined.clear()


@pytest.fixture
def sides(monkeypatch, model):
    def launch(run, settings, kv, name):
        return Side(run, name, set())

    monkeypatch.setattr(engine, "launch", launch)
    monkeypatch.setattr(disagg, "LENGTHS", (256, 512))
    return engine.Settings(model, sys.executable)


def rows(run, **at):
    record = json.loads(run.record_path.read_text())
    records.Record.model_validate(record)
    return [row for row in record["rows"] if at.items() <= row.items()]


@pytest.mark.parametrize("connector", ["nixl", "none"])
def test_a_run_has_its_parts_and_a_replay_finds_what_it_needs(sides, places, connector):
    loops = [("shared", 0.8, 1), ("sessions", 1.6, 2)]
    run = disagg.run_disagg(sides, connector, loops, requests=20, repeats=2, **places)
    assert run.record["outcome"] == "completed", run.record["cause"]
    (alone,) = rows(run, part="pace", quantity="latency_s")
    for pattern, load, seed in loops:
        rate = float(f"{load / np.median(alone['values']):.2g}")
        at = {"part": "comparison", "pattern": pattern, "rate_per_s": rate, "seed": seed}
        found = {row["quantity"]: row["values"] for row in rows(run, **at)}
        moved = found.pop("counter", [0])
        assert (moved[0] > 0) == (connector == "nixl")
        needed = {"arrival_s", "group", "shared_tokens", "prompt_tokens", "output_tokens"}
        needed |= {"sent_s", "ttft_s", "latency_s", "cached_tokens"}
        assert needed <= found.keys()
        assert {len(values) for values in found.values()} == {20}
        late = np.subtract(found["sent_s"], found["arrival_s"])
        assert (late >= 0).all()
        drawn = openloop.workload(pattern, 20, rate, seed)
        assert [one.group for one in drawn] == found["group"]
    assert rows(run, part="calibration", quantity="tpot_s", batch=4)
    split = {row["split"] for row in rows(run, part="proof", quantity="ttft_s")}
    assert split == ({"one engine", "two engines"} if connector == "nixl" else {"one engine"})


def test_the_first_token_is_timed_from_the_first_engine_on(sides, places):
    run = disagg.run_disagg(sides, "nixl", [], repeats=3, **places)
    for row in rows(run, part="proof", quantity="prefill_s"):
        at = {"prompt_tokens": row["prompt_tokens"], "split": "two engines", "part": "proof"}
        (whole,) = rows(run, quantity="ttft_s", **at)
        assert all(t >= p + 0.01 for t, p in zip(whole["values"], row["values"], strict=True))


def test_a_transfer_that_moves_nothing_is_no_success(sides, places, monkeypatch):
    monkeypatch.setattr(f"{__name__}.MOVES", [])
    run = disagg.run_disagg(sides, "nixl", [], repeats=1, **places)
    assert run.record["outcome"] == "failed"
    assert run.record["cause"]["cause"] == "degraded"


@pytest.mark.parametrize("text", ["shared", "shared:2", "shared:-1:1", "other:1:1", "shared:nan:1"])
def test_a_loop_that_cannot_be_read_is_one_line(text):
    with pytest.raises(InputError, match="PATTERN:LOAD:SEED"):
        command.loop(text)


def test_the_command_knows_its_connectors(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["measure", "disagg", "--connector", "nixxl"])
    assert ended.value.code == 2
    assert "'nixxl'" in capsys.readouterr().err


def test_an_interrupted_loop_does_not_wait_for_answers(monkeypatch):
    answered, asked, returned = threading.Event(), threading.Event(), []

    def ask(ids, tokens):
        asked.set()
        returned.append(answered.wait(10))
        return {}

    def sleep(_, calls=[]):  # noqa: B006, counts the calls
        calls.append(asked.wait(5) if calls else None)
        if len(calls) > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(openloop.time, "sleep", sleep)
    drawn = openloop.workload("unique", 3, 1000, 1)
    with pytest.raises(KeyboardInterrupt):
        openloop.play(None, drawn, [[1]] * 3, ask)
    assert asked.is_set()
    assert not returned
    answered.set()
