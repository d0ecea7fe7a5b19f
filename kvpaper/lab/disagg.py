"""Prefill and decode on two real engines of one host, or on one for comparison.

Three parts, told apart by the coordinate ``part``: ``proof`` (what moves, whether the answer is
right, time to first token by length), ``calibration`` (one request or one batch at a time: what a
simulator is set with) and ``comparison`` (open loops: what it is held against).
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from kvpaper.lab import engine, openloop
from kvpaper.lab.capture import Run, Stopped

LENGTHS = (128, 256, 512, 1024, 1536)
BATCHES = (1, 2, 4, 8)
TOP = 20
_OUTPUT_TOKENS = 33
_LOAD_TOKENS, _LOAD_OUTPUT_TOKENS = 768, 16
_SEED = 40_000
# To be told by the prefill engine where its blocks lie.
_ASK_NIXL = {"do_remote_decode": True, "do_remote_prefill": False}
_ASK_NIXL |= dict.fromkeys(f"remote_{what}" for what in ("engine_id", "block_ids", "host", "port"))
Told = dict[str, float]
Ask = Callable[[Sequence[int]], Told]


class Pair:
    """Two engines that share KV by a connector, or one engine that does both.

    Parameters
    ----------
    connector : str
        ``nixl``, ``lmcache``, or ``none``: one engine for both.
    repeats : int
        Values at each point, see `take`.
    """

    def __init__(self, run: Run, settings: engine.Settings, connector: str, repeats: int) -> None:
        self.run, self.settings, self.connector = run, settings, connector
        self.repeats, self.split = repeats, connector != "none"
        names = ("prefill", "decode") if self.split else ("engine",)
        kv = None
        if connector == "lmcache":
            kv = engine.start_lmcache(run, settings)
        elif connector == "nixl":
            kv = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
            # Its threads poll; the four by default would take the cores from both engines.
            kv["kv_connector_extra_config"] = {"num_threads": 0}
        self.engines: dict[str, engine.Engine] = {}
        for name in names:
            side = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.free_port())}
            own = replace(settings, environment={**settings.environment, **side})
            with _on_cores(names.index(name), len(names)):
                self.engines[name] = engine.launch(run, own, kv, name)
        for one in self.engines.values():
            one.wait()
        self.prefill, self.decode = self.engines[names[0]], self.engines[names[-1]]
        self._drawn = 0

    def first(self, ids: Sequence[int], logprobs: int | None = None) -> dict[str, Any]:
        """Prefill on the prefill engine, and what the decode engine must be told."""
        body = {"prompt": list(ids), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        if logprobs:
            body["logprobs"] = logprobs
        if self.connector == "nixl":
            body["kv_transfer_params"] = _ASK_NIXL
        return self.prefill.post("/v1/completions", body)

    def ask(self, ids: Sequence[int], tokens: int = 1, pause_s: float = 0.0) -> Told:
        """One request through both engines, its first token from the decode engine.

        ``pause_s`` is waited between the two, and not counted: LMCache goes on saving after the
        answer.
        """
        begin = time.perf_counter()
        answer, found = {}, {}
        if self.split:
            answer = self.first(ids)
            found["prefill_s"] = time.perf_counter() - begin
            found["prefill_cached_tokens"] = engine.cached_tokens(answer["usage"])
            time.sleep(pause_s)
        done = self.decode.complete(ids, tokens, extra=_told(answer))
        before_s = done.sent_at_s - begin - pause_s
        times = {"ttft_s": before_s + done.token_s[0], "latency_s": before_s + done.token_s[-1]}
        return {**times, "cached_tokens": done.cached_tokens, **found}

    def alone(self, ids: Sequence[int]) -> Told:
        """One request to the decode engine, which computes all that it has not cached."""
        done = self.decode.complete(ids)
        return {"ttft_s": done.ttft_s, "cached_tokens": done.cached_tokens}

    def take(self, ask: Ask, tokens: int, cached: int = 0, **at: Any) -> list[Told]:
        """Ask new prompts one at a time, each after a prefix of its own; add their rows.

        One more than ``repeats`` is asked, as a warm-up.
        """
        taken = []
        for ids in self.fresh(tokens, self.repeats + 1):
            if cached:
                ask(ids[:cached])
            taken.append(ask(ids))
        self.run.add_each(taken, prompt_tokens=tokens, **at)
        return taken

    def reset(self) -> None:
        """Forget the prefixes that the engines hold."""
        for one in self.engines.values():
            one.reset_prefix_cache()

    @contextmanager
    def counting(self, **at: Any) -> Iterator[None]:
        """Add by how much the counters of caches and transfers grow meanwhile."""
        before = self._counters()
        yield
        for (name, counter), value in self._counters().items():
            if grown := value - before.get((name, counter), 0.0):
                self.run.add("counter", "", [grown], name=counter, engine=name, **at)

    def _counters(self) -> dict[tuple[str, str], float]:
        return {
            (name, counter): value
            for name, one in self.engines.items()
            for counter, value in one.counters().items()
        }

    def fresh(self, tokens: int, count: int) -> list[list[int]]:
        """Prompts that nobody has sent before."""
        seeds = range(_SEED + self._drawn, _SEED + self._drawn + count)
        self._drawn += count
        return [self.settings.prompt(tokens, seed) for seed in seeds]


def _told(answer: dict[str, Any]) -> dict[str, Any] | None:
    """What the prefill engine's answer says of where its blocks lie, for the decode engine."""
    told = answer.get("kv_transfer_params")
    return {"kv_transfer_params": told} if told else None


@contextmanager
def _on_cores(number: int, parts: int) -> Iterator[None]:
    """Have what is started here run on one part of the cores, so that engines do not share any.

    Their threads poll for each other's messages; on the same cores one would slow the other down.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= parts:
        os.sched_setaffinity(0, cores[number::parts])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def run_disagg(
    settings: engine.Settings,
    connector: str,
    loops: Sequence[tuple[str, float, int]],
    requests: int = 150,
    repeats: int = 3,
    **places: Path,
) -> Run:
    """Run all three parts and record them.

    Parameters
    ----------
    settings : Settings
        Of each of the engines.
    connector : str
        ``nixl``, ``lmcache``, or ``none``: one engine for both.
    loops : sequence of (str, float, int)
        Pattern, load and seed of each open loop, see `openloop.workload`. A load of 1 sends as many
        requests per second as the engines answer one at a time, so that a loop loads every machine
        alike.
    requests, repeats : int
        Requests of a loop, and values at each point of proof and calibration.
    places : Path
        ``runs`` and ``folder`` of `capture.Run`.
    """
    parameters = {"engine": asdict(settings), "connector": connector, "requests": requests}
    parameters |= {"repeats": repeats, "loops": [list(loop) for loop in loops], "seed": _SEED}
    python, image = settings.python, settings.image
    with Run("disagg", parameters, python=python, image=image, **places) as run:
        pair = Pair(run, settings, connector, repeats)
        _prove(pair)
        _calibrate(pair)
        pace_per_s = _pace_per_s(pair) if loops else 0.0
        for pattern, load, seed in loops:
            pair.reset()
            rate_per_s = float(f"{load * pace_per_s:.2g}")
            drawn = openloop.workload(pattern, requests, rate_per_s, seed)
            at = {"part": "comparison", "pattern": pattern, "rate_per_s": rate_per_s, "seed": seed}
            ids = openloop.prompts(drawn, seed, engine.vocabulary(settings.model))
            with pair.counting(**at):
                openloop.play(run, drawn, ids, pair.ask, **at)
            run.say(f"open loop: {pattern}, {rate_per_s:g} requests/s, seed {seed}")
    return run


def _prove(pair: Pair) -> None:
    """Time to first token with and without the split, and log-probabilities of both engines."""
    pause_s = 0.5 if pair.connector == "lmcache" else 0.0
    for tokens in LENGTHS:
        split = "two engines" if pair.split else "one engine"
        with pair.counting(part="proof", prompt_tokens=tokens, requests=pair.repeats + 1):
            pair.take(partial(pair.ask, pause_s=pause_s), tokens, part="proof", split=split)
        if pair.split:
            pair.take(pair.alone, tokens, part="proof", split="one engine")
    if not pair.split:
        return
    before = pair.decode.counters()[engine.HITS]
    ids = pair.fresh(1024, 1)[0]
    answer = pair.first(ids, TOP)
    time.sleep(pause_s)
    done = pair.decode.complete(ids, 1, TOP, _told(answer))
    came = pair.decode.counters()[engine.HITS] - before
    if not came:
        why = "the decode engine computed a prompt that the prefill engine had computed"
        raise Stopped(why, degraded=True)
    first = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    engine.add_logprobs(pair.run, first, part="proof", engine="prefill")
    engine.add_logprobs(pair.run, done.top_logprobs[0], part="proof", engine="decode")
    pair.run.say(f"proof done: {came:.0f} of 1024 tokens came from the other engine")


def _calibrate(pair: Pair) -> None:
    """Prefill by length and cached prefix, decode by batch and context, on the decode engine."""
    for tokens in LENGTHS:
        for cached in (0, tokens // 2) if tokens >= 512 else (0,):
            at = {"part": "calibration", "prefix_tokens": cached}
            pair.take(pair.alone, tokens, cached, **at)
            if pair.split and cached:  # the prefill engine alone is slower: it polls for the other
                pair.take(pair.ask, tokens, cached, split="two engines", **at)
    for context in (256, 1024):
        for batch in BATCHES:
            prompts = pair.fresh(context, batch)
            for ids in prompts:
                pair.decode.complete(ids)
            with ThreadPoolExecutor(batch) as pool:
                decoded = partial(pair.decode.complete, tokens=_OUTPUT_TOKENS)
                answers = list(pool.map(decoded, prompts))
            at = {"part": "calibration", "batch": batch, "context_tokens": context}
            pair.run.add("tpot_s", "s", [one.tpot_s for one in answers], **at)
    pair.run.say("calibration done")


def _pace_per_s(pair: Pair) -> float:
    """Requests per second of a middling length that the engines answer one at a time."""
    ask = partial(pair.ask, tokens=_LOAD_OUTPUT_TOKENS)
    taken = pair.take(ask, _LOAD_TOKENS, part="pace", output_tokens=_LOAD_OUTPUT_TOKENS)
    return 1 / statistics.median(one["latency_s"] for one in taken[1:])
