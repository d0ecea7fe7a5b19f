"""How a run ends on paper: its cause from the logs, its record, and what a killed harness left."""

import fcntl
import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvpaper import diagnose
from kvpaper.errors import InputError
from kvpaper.lab import machine, processes, records
from kvpaper.lab.logs import summary

STATE, LOCK, RESERVE = "run.json", "run.lock", "reserve"
_KINDS = {"failed": "died_after_start", "timed out": "hang", "interrupted": "interrupted"}


def cause(
    path: Path, outcome: str, why: str, degraded: bool = False, signal: str = ""
) -> dict[str, Any]:
    """Why a run did not complete: what its logs say, or what the harness knows where they do not.

    Parameters
    ----------
    path : Path
        The run folder.
    outcome, why : str
        Of the run.
    degraded : bool
        Whether the harness saw that a connector is not active.
    signal : str
        Name of the one that first ended a process without being asked to, if any did.
    """
    log = path / "harness.log"
    count = log.read_bytes().count(b"\n") if log.exists() else 0
    last = {"file": log.name, "line": count, "process": "harness", "text": why}
    try:
        told = diagnose.diagnose([path])
    except Exception as error:  # a record without a diagnosis is better than none
        told = {"cause": "insufficient", "kind": "no_log", "confidence": "high", "why": str(error)}
        told |= {"evidence": [], "ruled_out": [], "next_steps": [], "related": [], "attempts": 0}
    answer = {**told, "harness": why}
    for name in ("evidence", "ruled_out"):
        answer[name] = [{**line, "file": Path(line["file"]).name} for line in told[name]]
    answer["evidence"] = answer["evidence"] or [last]
    silent = told["cause"] in ("healthy", "degraded", "insufficient")
    known = None
    if degraded:
        known = ("degraded", "connector_inactive") if told["cause"] != "degraded" else None
    elif outcome == "interrupted" or told["cause"] in ("healthy", "degraded"):
        known = ("insufficient", _KINDS[outcome])
    if silent and signal and outcome == "failed":
        killed = signal == "SIGKILL"
        known = ("host_kill", "host_killed") if killed else ("insufficient", "ended_by_signal")
    if known:
        answer |= {"cause": known[0], "kind": known[1], "confidence": "high"}
        answer |= {"evidence": [last], "why": why, "next_steps": []}
        answer["confidence_why"] = "the harness saw it"
    return answer


def tell(text: str) -> None:
    """Print to standard error, if anybody still reads it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def write(record: dict[str, Any], path: Path, folder: Path) -> Path:
    """Write the record where it belongs, else where there is room; then mark the run as done."""
    (path / RESERVE).unlink(missing_ok=True)
    written, why = None, ""
    for place in (folder, path, Path(tempfile.gettempdir())):
        try:
            written = records.write(record, place)
            break
        except OSError as error:
            if records.path_of(record, place).exists():  # by an earlier attempt
                written = records.path_of(record, place)
                break
            why = why or f"{place}: {error.strerror}"
    (path / LOCK).unlink(missing_ok=True)  # works even on a full disk
    if written is None:
        tell(json.dumps(record))
        raise OSError(0, why)
    if why:
        tell(f"{why}; the record went elsewhere")
    with suppress(OSError):
        (path / "record.json").write_bytes(written.read_bytes())
    return written


def end_orphans(runs: Path, folder: Path = records.FOLDER) -> list[Path]:
    """End what a killed harness left running, and write the records that it could not.

    A run folder whose lock is held belongs to a living harness and is left alone. Only processes
    that bear the run's marker, or that it noted by number and start time, are ended.

    Returns
    -------
    list of Path
        The records written.
    """
    written = []
    for path in sorted(runs.glob("*/")):
        if not ((path / LOCK).exists() and (path / STATE).exists()):
            continue
        with (path / LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            try:
                written.append(_recover(path, folder))
            except (InputError, KeyError, ValueError) as error:  # as another version left it
                tell(f"{path}: no record can be made of it: {error}")
                (path / LOCK).unlink()
    return written


def _recover(path: Path, folder: Path) -> Path:
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    noted = _json_lines(path / "processes.jsonl")
    same_boot = state["boot"] == processes.boot()
    known = {(one["pid"], one["started"]) for one in noted} if same_boot else set()
    ended = processes.end_strays(state["marker"], known)
    for left in (state["temporary"], *state.get("scratch", ())):
        shutil.rmtree(left, ignore_errors=True)
    why = f"the harness was killed; the next start ended {len(ended)} processes that it left"
    tell(f"{path.name}: {why}")
    record = state["record"] | {
        "rows": _json_lines(path / "rows.jsonl"),
        "logs": [summary(log) for log in sorted(path.glob("*.log"))],
        "cause": cause(path, "interrupted", why),
    }
    return write(machine.public(record), path, folder)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a file that may end in the middle of one."""
    rows: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, ValueError):
        rows.extend(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
    return rows
