"""The canary: one engine, a few requests by every road to a prefix, its counters."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvpaper.lab import engine, processes, records
from kvpaper.lab.capture import RUNS, Run

COUNTERS = (
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:num_preemptions_total",
)
_SEED = 1_000_000


def run_canary(
    settings: engine.Settings,
    connector: str = "none",
    lengths: Sequence[int] = (256, 1024),
    repeats: int = 5,
    warmups: int = 1,
    mode: str = "auto",
    l1_bytes: int = 1 << 30,
    disk: Path | None = None,
    runs: Path = RUNS,
    folder: Path = records.FOLDER,
) -> Run:
    """Start an engine, time the first token by where the prefix comes from, and record it.

    Rows are ``ttft_s``, ``cached_tokens`` and, of LMCache's server, ``read_bytes`` by
    ``prompt_tokens`` and ``level``: ``recompute`` (a new prompt), ``engine`` (the prompt again),
    ``connector`` (again, after the engine forgot it), ``disk`` (again, after LMCache's DRAM was
    filled with other prompts; its server then reads what it returns).

    Parameters
    ----------
    settings : Settings
    connector : str
        One of `engine.CONNECTORS`.
    lengths : sequence of int
        Prompt lengths [tokens].
    repeats, warmups : int
        Prompts that count and that do not, at each length.
    mode, l1_bytes : str and int
        Transfer mode and DRAM of LMCache's server.
    disk : Path, optional
        Folder in which LMCache's server keeps a disk tier while the run lasts.
    """
    parameters: dict[str, Any] = {"engine": asdict(settings), "connector": connector}
    parameters |= {"lengths": list(lengths), "repeats": repeats, "warmups": warmups}
    lmcache: dict[str, Any] = {}
    if connector == "lmcache":
        lmcache = {"mode": mode, "l1_bytes": l1_bytes}
        parameters["lmcache"] = {**lmcache, "disk": disk is not None}
    levels = ["recompute", "engine"]
    levels += ["connector"] if connector != "none" else []
    levels += ["disk"] if disk and lmcache else []
    with ExitStack() as stack:
        if "disk" in levels:
            lmcache["disk"] = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk)))
        run = stack.enter_context(
            Run(
                "canary",
                parameters,
                python=settings.python,
                image=settings.image,
                disk=disk or Path(),
                runs=runs,
                folder=folder,
            )
        )
        server = engine.start(run, settings, connector, **lmcache)
        if connector != "none":
            run.add("proof_hit_tokens", "tokens", [server.prove_active()])
        size = engine.vocabulary(settings.model)
        drawn = {
            tokens: [
                engine.prompt(tokens, _SEED + 1000 * tokens + number, size)
                for number in range(warmups + repeats)
            ]
            for tokens in lengths
        }
        for tokens, prompts in drawn.items():
            _time(server, tokens, prompts, [level for level in levels if level != "disk"], warmups)
        if "disk" in levels:
            _overflow(server, l1_bytes, size)
            for tokens, prompts in drawn.items():
                _time(server, tokens, prompts, ["disk"], warmups)
        for name, value in server.counters().items():
            if name in COUNTERS:
                run.add("counter", "", [value], name=name)
        server.stop()
    return run


def _time(
    server: engine.Engine,
    tokens: int,
    prompts: Sequence[Sequence[int]],
    levels: Sequence[str],
    warmups: int,
) -> None:
    """Send each prompt once for each level; add a row for each level and quantity."""
    taken: dict[tuple[str, str, str], list[float]] = {}
    lmcache = server.run.started.get("lmcache")
    for ids in prompts:
        for level in levels:
            if level in ("connector", "disk"):
                server.reset_prefix_cache()
            before = processes.read_bytes(lmcache.process.pid) if lmcache else 0
            answer = server.complete(ids)
            taken.setdefault((level, "ttft_s", "s"), []).append(answer.ttft_s)
            taken.setdefault((level, "cached_tokens", "tokens"), []).append(answer.cached_tokens)
            if lmcache:
                read_bytes = processes.read_bytes(lmcache.process.pid) - before
                taken.setdefault((level, "read_bytes", "bytes"), []).append(read_bytes)
    for (level, quantity, unit), values in taken.items():
        at = {"prompt_tokens": tokens, "level": level}
        server.run.add(quantity, unit, values[warmups:], values[:warmups], **at)
    server.run.say(f"{tokens} tokens: {', '.join(levels)}")


def _overflow(server: engine.Engine, l1_bytes: int, size: int) -> None:
    """Send other prompts until LMCache's DRAM can hold nothing older."""
    at_once = server.settings.max_tokens - 1
    count = 3 * l1_bytes // (2 * engine.kv_bytes_per_token(server.settings) * at_once) + 1
    for number in range(count):
        server.complete(engine.prompt(at_once, number + 2, size))
    server.run.say(f"{count} other prompts have gone through LMCache's DRAM")
