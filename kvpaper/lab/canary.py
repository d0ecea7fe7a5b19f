"""The canary: one engine, a few requests by every road to a prefix, its counters."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvpaper.lab import engine, records
from kvpaper.lab.capture import RUNS, Run

COUNTERS = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:num_preemptions_total",
)


def run_canary(
    settings: engine.Settings,
    connector: str = "none",
    lengths: Sequence[int] = (256, 1024),
    repeats: int = 5,
    warmups: int = 1,
    lmcache: Mapping[str, Any] | None = None,
    runs: Path = RUNS,
    folder: Path = records.FOLDER,
) -> Run:
    """Start an engine, time the first token by where the prefix comes from, and record it.

    Rows are ``ttft_s`` and ``cached_tokens`` by ``prompt_tokens`` and ``level``: ``recompute`` (a
    new prompt), ``engine`` (the prompt again), ``connector`` (again, after the engine forgot it).

    Parameters
    ----------
    settings : Settings
    connector : str
        One of `engine.CONNECTORS`.
    lengths : sequence of int
        Prompt lengths [tokens].
    repeats, warmups : int
        Prompts that count and that do not, at each length.
    lmcache : mapping, optional
        Arguments of `engine.start_lmcache`.
    """
    lmcache = dict(lmcache or {})
    asked = {"connector": connector, "lengths": list(lengths), "repeats": repeats}
    asked |= {"warmups": warmups, "lmcache": lmcache}
    parameters = {"engine": asdict(settings), **asked}
    with Run(
        "canary",
        parameters,
        python=settings.python,
        image=settings.image,
        runs=runs,
        folder=folder,
    ) as run:
        server = engine.start(run, settings, connector, **lmcache)
        if connector != "none":
            run.add("proof_hit_tokens", "tokens", [server.prove_active()])
        for tokens in lengths:
            _by_level(run, server, connector, tokens, repeats, warmups)
            run.say(f"{tokens} tokens done")
        for name, value in server.counters().items():
            if name in COUNTERS:
                run.add("counter", "", [value], name=name)
        server.stop()
    return run


def _by_level(
    run: Run, server: engine.Engine, connector: str, tokens: int, repeats: int, warmups: int
) -> None:
    size = engine.vocabulary(server.settings.model)
    levels: dict[str, list[engine.Completion]] = {"recompute": [], "engine": []}
    if connector != "none":
        levels["connector"] = []
    for number in range(warmups + repeats):
        ids = engine.prompt(tokens, 1_000_000 + 1000 * tokens + number, size)
        for level, answers in levels.items():
            if level == "connector":
                server.reset_prefix_cache()
            answers.append(server.complete(ids))
    for level, answers in levels.items():
        at = {"prompt_tokens": tokens, "level": level}
        for quantity, unit, values in (
            ("ttft_s", "s", [one.ttft_s for one in answers]),
            ("cached_tokens", "tokens", [one.cached_tokens for one in answers]),
        ):
            run.add(quantity, unit, values[warmups:], values[:warmups], **at)
