"""The canary: one engine, a few requests by every road to a prefix, its counters."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvpaper.lab import engine, processes
from kvpaper.lab.capture import Run

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
    **places: Path,
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
    places : Path
        ``runs`` and ``folder`` of `capture.Run`.
    """
    parameters: dict[str, Any] = {"engine": asdict(settings), "connector": connector}
    parameters |= {"lengths": list(lengths), "repeats": repeats, "warmups": warmups}
    lmcache: dict[str, Any] = {}
    if connector == "lmcache":
        lmcache = {"mode": mode, "l1_bytes": l1_bytes}
        parameters["lmcache"] = {**lmcache, "disk": disk is not None}
    python, image, at = settings.python, settings.image, disk or Path()
    with Run("canary", parameters, python=python, image=image, disk=at, **places) as run:
        if disk and lmcache:
            lmcache["disk"] = run.scratch(disk)
        server = engine.start(run, settings, connector, **lmcache)
        size = engine.vocabulary(settings.model)
        drawn = {
            tokens: [
                engine.prompt(tokens, _SEED + 1000 * tokens + number, size)
                for number in range(warmups + repeats)
            ]
            for tokens in lengths
        }
        levels = ["recompute", "engine"] + ["connector"] * (connector != "none")
        for prompts in drawn.values():
            _time(server, prompts, levels, warmups)
        if "disk" in lmcache:
            server.overflow(l1_bytes, seed=2)
            for prompts in drawn.values():
                _time(server, prompts, ["disk"], warmups)
        for name, value in server.counters().items():
            run.add("counter", "", [value], name=name)
        server.stop()
    return run


def _time(
    server: engine.Engine, prompts: Sequence[Sequence[int]], levels: Sequence[str], warmups: int
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
    tokens = len(prompts[0])
    for (level, quantity, unit), values in taken.items():
        at = {"prompt_tokens": tokens, "level": level}
        server.run.add(quantity, unit, values[warmups:], values[:warmups], **at)
    server.run.say(f"{tokens} tokens: {', '.join(levels)}")
