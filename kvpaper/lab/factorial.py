"""The paper's 2x2: KV block cap by connector, each cell a start of a real engine and a record.

A cell asks the same prompts again and again: at once, after others have pushed them out, after the
engine forgot its prefixes. What was cached is counted by the engine; whether the answer is right
shows in the log-probabilities, which are kept raw. A control spoils the cache on purpose.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvpaper.lab import engine, machine, records
from kvpaper.lab.capture import RUNS, Run, Stopped

# Blocks of 128 tokens: room for three prompts, and for less than one.
CAPS = {"none": None, "fits": 24, "too small": 4}
CONNECTORS = ("none", "lmcache")
TOKENS, MAX_TOKENS = 1024, 2048
PROMPTS, OTHERS = 2, 4
TOP = 20
_SEED = 20_000
_CONTROL_L1_BYTES = 1 << 28


def cells() -> Iterator[tuple[str, str]]:
    """Cap and connector of each cell, and last the control."""
    yield from ((cap, connector) for cap in CAPS for connector in CONNECTORS)
    yield "none", "spoiled"


def run_cells(
    settings: engine.Settings,
    chosen: Iterable[tuple[str, str]] | None = None,
    resume: bool = False,
    runs: Path = RUNS,
    folder: Path = records.FOLDER,
) -> list[dict[str, Any]]:
    """Run cells one after the other and return their records.

    Parameters
    ----------
    settings : Settings
        How the engine is started; cap and longest prompt are set here.
    chosen : iterable of (cap, connector), optional
        By default all `cells`.
    resume : bool
        Whether a cell that ended in an earlier, interrupted call is taken from its run folder.
    runs, folder : Path
        See `capture.Run`.
    """
    found = []
    asked = {"tokens": TOKENS, "prompts": PROMPTS, "others": OTHERS, "seed": _SEED}
    for cap, connector in chosen or cells():
        mine = replace(settings, cap_blocks=CAPS[cap], max_tokens=MAX_TOKENS)
        parameters = {"engine": asdict(mine), "cap": cap, "connector": connector, **asked}
        done = ended(parameters, runs) if resume else None
        found.append(done or _run_cell(mine, parameters, runs, folder))
    return found


def ended(parameters: dict[str, Any], runs: Path) -> dict[str, Any] | None:
    """The record of an earlier run with these parameters that was not interrupted, if any."""
    checksum = records.parameters_sha256(machine.public(json.loads(json.dumps(parameters))))
    for path in sorted(runs.glob(f"factorial-*-{checksum[:8]}/record.json"), reverse=True):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["outcome"] != "interrupted":
            return record
    return None


def _run_cell(
    settings: engine.Settings, parameters: dict[str, Any], runs: Path, folder: Path
) -> dict[str, Any]:
    cap, connector = parameters["cap"], parameters["connector"]
    of = {"python": settings.python, "image": settings.image, "runs": runs, "folder": folder}
    with Run("factorial", parameters, **of) as run:
        run.say(f"cap {cap}, connector {connector}")
        if connector == "spoiled":
            disk = run.scratch(runs)
            below = {"l1_bytes": _CONTROL_L1_BYTES, "disk": disk}
            server = engine.start(run, settings, "lmcache", **below)
            _control(server, disk)
        else:
            server = engine.start(run, settings, connector)
            _stages(server)
        server.stop()
    return run.record


def _stages(server: engine.Engine) -> None:
    """Ask the prompts at each stage; the last one asks prompts that differ in one token."""
    drawn = _prompts(server.settings)
    _ask(server, "first", drawn)
    _ask(server, "repeat", drawn)
    for number in range(OTHERS):
        server.complete(server.settings.prompt(TOKENS, _SEED + 100 + number))
    _ask(server, "evicted", drawn)
    server.reset_prefix_cache()
    _ask(server, "reset", drawn)
    _ask(server, "one token differs", [[*ids[:-2], ids[0], ids[-1]] for ids in drawn])
    for name, value in server.counters().items():
        server.run.add("counter", "", [value], name=name)


def _control(server: engine.Engine, disk: Path) -> None:
    """Fetch the prompts from LMCache's disk tier as they were stored, then with bits flipped."""
    drawn = _prompts(server.settings)
    _ask(server, "first", drawn)
    for stage in ("disk", "spoiled disk"):
        server.overflow(_CONTROL_L1_BYTES, seed=_SEED + 1000 * len(stage))
        if stage == "spoiled disk":
            stored = [path for path in disk.rglob("*.data") if path.is_file()]
            if not stored:
                raise Stopped("LMCache's disk tier holds no file to spoil")
            server.run.add("spoiled", "bytes", [sum(map(spoil, stored))])
        server.reset_prefix_cache()
        if not all(_ask(server, stage, drawn)):
            raise Stopped(f"{stage}: of a prompt nothing came from LMCache's disk tier")


def spoil(path: Path) -> int:
    """Flip the sign bit of every 32-bit number in the second half of a file, in place [bytes]."""
    content = np.fromfile(path, np.uint8)
    signs = content[(content.size // 2 + 3) // 4 * 4 + 3 :: 4]
    signs ^= 0x80
    content.tofile(path)
    return 4 * signs.size


def _prompts(settings: engine.Settings) -> list[list[int]]:
    return [settings.prompt(TOKENS, _SEED + number) for number in range(PROMPTS)]


def _ask(server: engine.Engine, stage: str, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Send prompts, return what was cached of each.

    That is one row, the log-probabilities are one row for each prompt.
    """
    answers = [server.complete(ids, logprobs=TOP) for ids in prompts]
    cached = [one.cached_tokens for one in answers]
    server.run.add("cached_tokens", "tokens", cached, stage=stage)
    for number, answer in enumerate(answers):
        engine.add_logprobs(server.run, answer.top_logprobs[0], stage=stage, prompt=number)
    server.run.say(f"{stage}: {cached} tokens cached")
    return cached
