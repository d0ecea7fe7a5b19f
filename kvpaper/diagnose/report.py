"""The answer: a verdict with its evidence, as data and as text."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from kvpaper.diagnose.advice import capture, next_steps
from kvpaper.diagnose.signatures import table
from kvpaper.diagnose.verdict import Attempt, Hit, cause_hits, read_attempts, state
from kvpaper.errors import InputError
from kvpaper.redact import redact

LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".gz", ".stdout", ".stderr")
EXIT_CODES = {"insufficient": 3, "healthy": 4, "degraded": 4}
_TEXT_CHARS = 400
_CONFIDENCES = ("low", "low", "medium", "high")


def diagnose(paths: Iterable[str | Path]) -> dict:
    """Name the cause of a failed start from its logs.

    Parameters
    ----------
    paths : iterable of str or Path
        Logs of one incident: files (plain or gzip), folders of them, or ``-`` for standard input.

    Returns
    -------
    dict
        ``cause`` (one of the 16 classes, or insufficient, degraded, healthy), ``kind``,
        ``confidence``, ``confidence_why``, ``why``, ``evidence``, ``ruled_out``, ``next_steps``,
        ``related``, ``attempts``, ``version``.

    Raises
    ------
    InputError
        If a path cannot be read, or a folder holds no log.
    """
    logs = [read_attempts(path) for path in _files(paths)]
    attempts, answer = _choose([attempts for attempts, _ in logs])
    return answer | {
        "ruled_out": _ruled_out(attempts, answer["evidence"]),
        "attempts": max(count for _, count in logs),
        "version": _facts(attempts).get("version"),
    }


def _files(paths: Iterable[str | Path]) -> list[str]:
    """The files to read, each once, however often and by whatever path it is named."""
    files: dict[str, str] = {}
    for path in map(str, paths):
        inside = [path]
        if path and os.path.isdir(path):
            found = (p for p in Path(path).rglob("*") if p.suffix in LOG_SUFFIXES and p.is_file())
            inside = sorted(map(str, found))
            if not inside:
                expected = "a folder with files ending in " + ", ".join(LOG_SUFFIXES)
                raise InputError(path, "no log inside", expected)
        for file in inside:
            files.setdefault(os.path.realpath(file), file)
    if not files:
        raise InputError("LOG", "nothing", "at least one log file, folder or -")
    return list(files.values())


def _choose(logs: list[list[Attempt]]) -> tuple[list[Attempt], dict]:
    """The last start that tells something, over all files of the incident."""
    told = []
    for back in range(1, max(map(len, logs)) + 1):
        attempts = [log[-min(back, len(log))] for log in logs]
        told.append((attempts, _answer(attempts)))
        if told[-1][1]["cause"] != "insufficient":
            return told[-1]
    return told[0]


def _answer(attempts: list[Attempt]) -> dict:
    how = state(attempts)
    hits = cause_hits(attempts, how)
    if how == "up":
        return _degraded(attempts, hits) if hits else _healthy(attempts)
    return _cause(attempts, hits) if hits else _insufficient(attempts)


def _cause(attempts: list[Attempt], hits: list[Hit]) -> dict:
    best = hits[0]
    signature, cause = best.signature, best.signature.cause
    lines = _all_hits(attempts, signature.id)
    # A quoted `raise` or `assert` line is weaker evidence than the exception it raises.
    lines.sort(key=lambda hit: not hit.event.exception and _text(hit).startswith("raise "))
    rivals = sorted({hit.signature.cause for hit in hits if hit.rank == best.rank} - {cause})
    numbers = _facts(attempts) | best.numbers
    evidence = _evidence(lines)
    if "cap_blocks" in numbers and cause == "kv_cache":
        evidence += [_line_of(hit) for hit in _all_hits(attempts, "block_cap")]
    meaning = table().classes[cause]
    return {
        "cause": cause,
        "kind": signature.kind,
        "confidence": _CONFIDENCES[max(best.rank - bool(rivals), 0)],
        "confidence_why": _confidence_why(best, rivals),
        "why": f"{signature.why}: {meaning['meaning']}",
        "evidence": evidence,
        "next_steps": next_steps((*signature.next, *meaning["next"]), numbers),
        "related": list(signature.related),
    }


def _confidence_why(best: Hit, rivals: list[str]) -> str:
    text = table().words["proof"][best.signature.confidence]
    if best.signature.role == "exception":
        text = "no signature knows this exception; the class is that of the module that raised it"
    if best.event.line.process:
        text += f"; {best.event.line.process} wrote it"
    if rivals:
        text += f"; messages of {', '.join(rivals)} are in the log as well, later"
    return text


def _degraded(attempts: list[Attempt], lapses: list[Hit]) -> dict:
    signature = lapses[0].signature
    return _cause(attempts, lapses) | {
        "cause": "degraded",
        "confidence": "high",
        "confidence_why": "the server came up and the connector says that it is not active",
        "why": signature.why,
        "next_steps": next_steps(signature.next, _facts(attempts)),
    }


def _healthy(attempts: list[Attempt]) -> dict:
    up = _first(attempts, "up")
    sure, so_far = "the server reported that it is up", "the start succeeded"
    if not up:
        sure = "the engine initialised itself; the log ends before the server reports that it is up"
    stopped = _first(attempts, "stop")
    if stopped:
        so_far += ", and what the last lines print comes from the stop that was asked for"
    return {
        "cause": "healthy",
        "kind": "stopped_on_request" if stopped else "running",
        "confidence": "high" if up else "medium",
        "confidence_why": sure,
        "why": so_far,
        "evidence": _evidence(up),
        "next_steps": [],
        "related": [],
    }


def _insufficient(attempts: list[Attempt]) -> dict:
    facts = _facts(attempts)
    waiting = _first(attempts, "hang")
    outer = [a.ruled_out["outer"] for a in attempts if "outer" in a.ruled_out]
    unknown = _all_hits(attempts, "exception:")
    holds = {
        "unknown_exception": unknown,
        "outer_only": outer,
        "frames_only": state(attempts) == "failed",
        "hang": waiting,
        "interrupted": _first(attempts, "stop"),
        "truncated": _first(attempts, "start"),
        "no_engine_lines": True,
    }
    kind = next(kind for kind, held in holds.items() if held)
    return {
        "cause": "insufficient",
        "kind": kind,
        "confidence": "high" if kind == "outer_only" else "medium",
        "confidence_why": "no line here is known to prove a cause",
        "why": table().words["silence"][kind],
        "evidence": _evidence(unknown or [*outer, *waiting]),
        "next_steps": capture(facts.get("version", ""), facts.get("connector", ""), bool(waiting)),
        "related": [],
    }


def _facts(attempts: list[Attempt]) -> dict[str, str]:
    return {name: redact(text) for attempt in attempts for name, text in attempt.facts.items()}


def _all_hits(attempts: list[Attempt], key: str) -> list[Hit]:
    return [hit for attempt in attempts for hit in attempt.hits.get(key, [])]


def _first(attempts: list[Attempt], role: str) -> list[Hit]:
    return [attempt.seen[role] for attempt in attempts if role in attempt.seen]


def _text(hit: Hit) -> str:
    return hit.event.line.body.strip()


def _evidence(hits: list[Hit]) -> list[dict]:
    evidence: list[dict] = []
    for hit in hits:
        event = hit.event
        bare = event.exception and _text(hit).rstrip(":").endswith(event.exception)
        if bare and event.source_line:
            above = {"line": event.source_number, "text": _shown(event.source_line)}
            evidence.append(_line_of(hit) | above)
        evidence.append(_line_of(hit))
    return evidence


def _line_of(hit: Hit) -> dict:
    return {
        "file": "standard input" if hit.file == "-" else redact(hit.file),
        "line": hit.event.line.number,
        "process": hit.event.line.process or "unprefixed",
        "text": _shown(_text(hit)),
    }


def _shown(text: str) -> str:
    text = redact(text[: 8 * _TEXT_CHARS])
    return text if len(text) <= _TEXT_CHARS else text[:_TEXT_CHARS] + " ..."


def _ruled_out(attempts: list[Attempt], evidence: list[dict]) -> list[dict]:
    ruled_out = []
    for attempt in attempts:
        for key, hit in attempt.ruled_out.items():
            why = hit.signature.why
            if key.startswith("before_up:"):
                why = f"the server came up after it ({why})"
            elif key.startswith("stopped:"):
                why = f"printed after the stop was asked for ({why})"
            ruled_out.append(_line_of(hit) | {"why": why})
        for key, kept in attempt.hits.items():
            what = kept[0].signature.cause or "no known class"
            if key != "block_cap":
                why = f"comes later or proves less than the evidence ({what})"
                ruled_out.append(_line_of(kept[0]) | {"why": why})
    used = {(line["file"], line["line"]) for line in evidence}
    return [line for line in ruled_out if (line["file"], line["line"]) not in used]


def render(answer: dict) -> str:
    """The answer as text for a terminal."""
    head = f"{answer['cause']} ({answer['kind']}), confidence {answer['confidence']}"
    lines = [head, f"  {answer['why']}.", f"  Why so sure: {answer['confidence_why']}."]
    if answer["attempts"] > 1:
        lines.append(f"  {answer['attempts']} starts in the log; this is the last that tells.")
    for title, key in (("Evidence", "evidence"), ("Ruled out", "ruled_out")):
        if answer[key]:
            lines.append(f"{title}:")
        for line in answer[key]:
            lines.append(f"  {line['file']}:{line['line']} [{line['process']}] {line['text']}")
            if "why" in line:
                lines.append(f"      {line['why']}")
    for title, key in (("Next", "next_steps"), ("Related public reports", "related")):
        if answer[key]:
            lines.append(f"{title}:")
            lines += [f"  {n}. {step}" for n, step in enumerate(answer[key], 1)]
    return "\n".join(lines)


def main(paths: Iterable[str], as_json: bool = False) -> int:
    """Diagnose, print, and return the exit code: 0 a cause, 3 insufficient, 4 healthy or degraded.

    Raises
    ------
    InputError
        As `diagnose`; the command line turns it into exit code 2.
    """
    answer = diagnose(paths)
    text = json.dumps(answer, ensure_ascii=False) if as_json else render(answer)
    sys.stdout.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
    return EXIT_CODES.get(answer["cause"], 0)
