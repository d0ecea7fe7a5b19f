"""Tiers of this machine: how long a prefix of each length takes to be fetched.

Fixed overhead and rate are not found here: a record holds the times, `kvpaper.measured` fits them.
"""

import json
import math
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvpaper.errors import InputError
from kvpaper.lab import drive, machine
from kvpaper.lab.capture import Run, Stopped

# The paper's canary (Qwen2.5-0.5B) and the shape of its formulas (Llama-3.1-8B), both in bf16.
SHAPES: dict[str, dict[str, Any]] = {
    "canary": {"layers": 24, "kv_heads": 2, "head_dim": 64, "most_tokens": 131072},
    "paper": {"layers": 32, "kv_heads": 8, "head_dim": 128, "most_tokens": 16384},
}
_LEAST_TOKENS = 128
_FILLING_BYTES = 64 << 20


def run_tiers(
    shapes: Sequence[str] = ("canary", "paper"),
    most_tokens: int | None = None,
    disk: Path = Path(),
    engine: str | None = None,
    gpu: str | None = None,
    **places: Path,
) -> Run:
    """Time every tier of this machine over prefix lengths, and record it.

    Rows are ``fetch_time_s`` by ``tier``, ``way``, ``shape`` and ``tokens``.

    Parameters
    ----------
    shapes : sequence of str
        Names in `SHAPES`.
    most_tokens : int, optional
        Longest prefix, if shorter than the shape's own.
    disk : Path
        Folder on the disk that is measured; what is written there is removed.
    engine, gpu : str, optional
        Interpreters with LMCache and with a CUDA build of torch. Without one its tiers are left
        out.
    places : Path
        ``runs`` and ``folder`` of `capture.Run`.

    Raises
    ------
    InputError
        If a shape is unknown, or memory or disk are too small for the longest prefix.
    """
    asked = [_shape(name, most_tokens) for name in shapes]
    most = max(one["token_bytes"] * one["tokens"][-1] for one in asked)
    _require_room(most, disk)
    parameters = {"shapes": asked, "lmcache": engine is not None, "gpu": gpu is not None}
    with Run("tiers", parameters, python=engine or gpu, disk=disk, **places) as run:
        place = run.scratch(disk)
        for shape in asked:
            for row in _host_rows(shape, place):
                run.check()
                run.add(unit="s", **row)
            run.say(f"memory and disk done for the {shape['name']} shape")
        # LMCache is slow to fill: every other length, the longest among them.
        fewer = [one | {"tokens": one["tokens"][::-2][::-1]} for one in asked]
        for what, python, some in (("lmcache", engine, fewer), ("device", gpu, asked)):
            if python:
                request = {"folder": str(place), "direct": True, "shapes": some}
                _drive(run, what, python, request)
    return run


def _shape(name: str, most_tokens: int | None) -> dict[str, Any]:
    if name not in SHAPES:
        raise InputError("--shapes", repr(name), f"one of {', '.join(SHAPES)}")
    shape = dict(SHAPES[name])
    longest = min(shape.pop("most_tokens"), most_tokens or math.inf)
    doubled = (_LEAST_TOKENS << times for times in range(32))
    lengths = [tokens for tokens in doubled if tokens <= longest]
    if not lengths:
        raise InputError("--most-tokens", str(most_tokens), f"at least {_LEAST_TOKENS}")
    token_bytes = 4 * shape["layers"] * shape["kv_heads"] * shape["head_dim"]
    return {"name": name, **shape, "token_bytes": token_bytes, "tokens": lengths}


def _require_room(most_bytes: int, disk: Path) -> None:
    """Two copies of the longest prefix and the page cache in memory, and its file on the disk."""
    if not disk.is_dir():
        raise InputError("--disk", str(disk), "a folder")
    free = shutil.disk_usage(disk).free
    if free < 2 * most_bytes:
        raise InputError(f"--disk {disk}", f"{free:.3g} B free", f"{2 * most_bytes:.3g} B")
    memory = machine.memory_bytes("MemAvailable")
    if memory < 4 * most_bytes:
        wanted = f"{4 * most_bytes:.3g} B, or a smaller --most-tokens"
        raise InputError("memory", f"{memory:.3g} B available", wanted)


def _host_rows(shape: dict[str, Any], place: Path) -> Iterator[dict[str, Any]]:
    """Memory copy, and the disk with and without the page cache."""
    most = shape["token_bytes"] * shape["tokens"][-1]
    held, target = _arena(most), _arena(most)
    source, sink = np.frombuffer(held, np.uint8), np.frombuffer(target, np.uint8)
    path = place / "prefix.bin"
    with path.open("wb") as file:
        file.write(held)
        os.fdatasync(file.fileno())
    with ExitStack() as stack:
        ways = {}
        for way, flag in (("page cache", 0), ("direct", os.O_DIRECT)):
            with suppress(OSError):  # tmpfs takes nothing direct; there is no disk below it either
                ways[way] = os.open(path, os.O_RDONLY | flag)
                stack.callback(os.close, ways[way])
        path.unlink()
        for tokens in shape["tokens"]:
            count = tokens * shape["token_bytes"]
            at = {"shape": shape["name"], "tokens": tokens, "bytes": count, "to": "cpu"}
            copy = partial(_copy, source, sink, count)
            yield drive.timed(copy, most // count, tier="host DRAM", way="copy", **at)
            for way, opened in ways.items():
                read = partial(_read, opened, target, count)
                yield drive.timed(read, most // count, tier="disk", way=way, **at)
    if not np.array_equal(source, sink):
        raise Stopped("a tier gave back other bytes than were stored")


def _copy(source: np.ndarray, sink: np.ndarray, count: int, place: int) -> None:
    part = slice(place * count, (place + 1) * count)
    np.copyto(sink[part], source[part])


def _read(file: int, target: memoryview, count: int, place: int) -> None:
    drive.read_into(file, target[place * count : (place + 1) * count], place * count)


def _arena(count: int) -> memoryview:
    """Page-aligned memory, touched, filled with what does not compress."""
    arena = memoryview(mmap.mmap(-1, count))
    filling = np.random.default_rng(0).bytes(min(count, _FILLING_BYTES))
    for start in range(0, count, len(filling)):
        part = filling[: count - start]
        arena[start : start + len(part)] = part
    return arena


def _drive(run: Run, what: str, python: str, request: dict[str, Any]) -> None:
    """Run `drive` in another environment and take its rows as they come."""
    asked, answer = (run.path / f"{what}.{suffix}" for suffix in ("request.json", "rows.jsonl"))
    asked.write_text(json.dumps(request), encoding="utf-8")
    command = [python, str(Path(drive.__file__)), what, str(asked), str(answer)]
    started = run.start(what, command)
    started.stopping = True  # it ends by itself
    run.wait_until(lambda: started.exit_code is not None, 900, f"the tiers of {what}")
    for line in answer.read_text(encoding="utf-8").splitlines() if answer.exists() else ():
        run.add(unit="s", **json.loads(line))
    if started.exit_code:
        raise Stopped(f"{what} ended with exit code {started.exit_code}")
    run.say(f"tiers of {what} done")
