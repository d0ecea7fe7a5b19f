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
    repeats : int
        Prompts that count, at each length; one more is a warm-up.
    mode, l1_bytes : str and int
        Transfer mode and DRAM of LMCache's server.
    disk : Path, optional
        Folder in which LMCache's server keeps a disk tier while the run lasts.
    places : Path
        ``runs`` and ``folder`` of `capture.Run`.
    """
    parameters: dict[str, Any] = {"engine": asdict(settings), "connector": connector}
    parameters |= {"lengths": list(lengths), "repeats": repeats, "warmups": 1}
    lmcache: dict[str, Any] = {}
    if connector == "lmcache":
        lmcache = {"mode": mode, "l1_bytes": l1_bytes}
        parameters["lmcache"] = {**lmcache, "disk": disk is not None}
    python, image, at = settings.python, settings.image, disk or Path()
    with Run("canary", parameters, python=python, image=image, disk=at, **places) as run:
        if disk and lmcache:
            lmcache["disk"] = run.scratch(disk)
        server = engine.start(run, settings, connector, **lmcache)
        drawn = [
            [
                settings.prompt(tokens, _SEED + 1000 * tokens + number)
                for number in range(1 + repeats)
            ]
            for tokens in lengths
        ]
        levels = ["recompute", "engine"] + ["connector"] * (connector != "none")
        for prompts in drawn:
            _time(server, prompts, levels)
        if "disk" in lmcache:
            server.overflow(l1_bytes, seed=2)
            for prompts in drawn:
                _time(server, prompts, ["disk"])
        for name, value in server.counters().items():
            run.add("counter", "", [value], name=name)
        server.stop()
    return run


def _time(server: engine.Engine, prompts: Sequence[Sequence[int]], levels: Sequence[str]) -> None:
    """Send each prompt once for each level; add a row for each level and quantity."""
    taken: dict[str, list[dict[str, float]]] = {level: [] for level in levels}
    lmcache = server.run.started.get("lmcache")
    for ids in prompts:
        for level in levels:
            if level in ("connector", "disk"):
                server.reset_prefix_cache()
            before = processes.read_bytes(lmcache.process.pid) if lmcache else 0
            answer = server.complete(ids)
            found = {"ttft_s": answer.ttft_s, "cached_tokens": answer.cached_tokens}
            if lmcache:
                found["read_bytes"] = processes.read_bytes(lmcache.process.pid) - before
            taken[level].append(found)
    tokens = len(prompts[0])
    for level, found in taken.items():
        server.run.add_each(found, prompt_tokens=tokens, level=level)
    server.run.say(f"{tokens} tokens: {', '.join(levels)}")
