"""The answer: a verdict with its evidence, as data and as text."""

import json
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
    count = max(count for _, count in logs)
    chosen, answer = _choose([attempts for attempts, _ in logs])
    answer |= {
        "ruled_out": _ruled_out(chosen, answer["evidence"]),
        "attempts": count,
        "version": _facts(chosen).get("version"),
    }
    return answer


def _files(paths: Iterable[str | Path]) -> list[str]:
    files: list[str] = []
    for path in map(str, paths):
        if path != "-" and Path(path).is_dir():
            inside = sorted(
                str(p) for p in Path(path).rglob("*") if p.suffix in LOG_SUFFIXES and p.is_file()
            )
            if not inside:
                expected = "a folder with files ending in " + ", ".join(LOG_SUFFIXES)
                raise InputError(path, "no log inside", expected)
            files += inside
        else:
            files.append(path)
    if not files:
        raise InputError("LOG", "nothing", "at least one log file, folder or -")
    return files


def _choose(logs: list[list[Attempt]]) -> tuple[list[Attempt], dict]:
    """The last start that tells something, over all files of the incident."""
    first: tuple[list[Attempt], dict] | None = None
    for back in range(1, max(map(len, logs)) + 1):
        attempts = [log[-min(back, len(log))] for log in logs]
        answer = _answer(attempts)
        if answer["cause"] != "insufficient":
            return attempts, answer
        first = first or (attempts, answer)
    return first


def _answer(attempts: list[Attempt]) -> dict:
    hits, how = cause_hits(attempts), state(attempts)
    if how == "up":
        lapses = [hit for hit in hits if hit.signature and hit.signature.role == "degraded"]
        return _degraded(attempts, lapses) if lapses else _healthy(attempts)
    return _cause(attempts, hits) if hits else _insufficient(attempts)


def _cause(attempts: list[Attempt], hits: list[Hit]) -> dict:
    best = hits[0]
    key = best.signature.id if best.signature else f"exception:{best.cause}"
    lines = [hit for attempt in attempts for hit in attempt.hits.get(key, [])]
    # A quoted `raise` or `assert` line is weaker evidence than the exception it raises.
    lines.sort(key=lambda hit: not hit.exception and hit.line.body.lstrip().startswith("raise "))
    rivals = sorted({h.cause for h in hits if h.rank == best.rank and h.cause != best.cause})
    rank = best.rank - bool(rivals)
    numbers = _facts(attempts) | best.numbers
    evidence = _evidence(lines)
    if "cap_blocks" in numbers and best.cause == "kv_cache":
        evidence += [_line_of(hit) for attempt in attempts for hit in attempt.hits.get("cap", [])]
    meaning = table().classes[best.cause]
    signature = best.signature
    steps = (*(signature.next if signature else ()), *meaning["next"])
    return {
        "cause": best.cause,
        "kind": signature.kind if signature else f"{best.cause}_exception",
        "confidence": _CONFIDENCES[max(rank, 0)],
        "confidence_why": _confidence_why(best, rivals),
        "why": f"{signature.why if signature else 'an exception from that part of the engine'}: "
        + meaning["meaning"],
        "evidence": evidence,
        "next_steps": next_steps(steps, numbers),
        "related": list(signature.related) if signature else [],
    }


def _confidence_why(best: Hit, rivals: list[str]) -> str:
    if best.signature is None:
        text = "no signature knows this exception; the class is that of the module that raised it"
    else:
        text = {
            "high": "the message is raised for this cause alone",
            "medium": "the message usually, not always, has this cause",
            "low": "the message only hints at this cause",
        }[best.signature.confidence]
    if best.line.process:
        text += f"; {best.line.process} wrote it"
    if rivals:
        text += f"; messages of {', '.join(rivals)} are in the log as well, later"
    return text


def _degraded(attempts: list[Attempt], lapses: list[Hit]) -> dict:
    signature = lapses[0].signature
    lines = [hit for attempt in attempts for hit in attempt.hits[signature.id]]
    return {
        "cause": "degraded",
        "kind": signature.kind,
        "confidence": "high",
        "confidence_why": "the server came up and the connector says that it is not active",
        "why": signature.why,
        "evidence": _evidence(lines),
        "next_steps": next_steps(signature.next, _facts(attempts)),
        "related": list(signature.related),
    }


def _healthy(attempts: list[Attempt]) -> dict:
    up = [attempt.up for attempt in attempts if attempt.up]
    stopped = any(attempt.stopped for attempt in attempts)
    return {
        "cause": "healthy",
        "kind": "stopped_on_request" if stopped else "running",
        "confidence": "high" if up else "medium",
        "confidence_why": "the server reported that it is up"
        if up
        else "the engine initialised itself; the log ends before the server reports that it is up",
        "why": "the start succeeded"
        + (
            ", and what the last lines print comes from the stop that was asked for"
            if stopped
            else ""
        ),
        "evidence": _evidence(up),
        "next_steps": [],
        "related": [],
    }


def _insufficient(attempts: list[Attempt]) -> dict:
    facts = _facts(attempts)
    hang = [attempt.hang for attempt in attempts if attempt.hang]
    outer = [a.ruled_out["outer"] for a in attempts if "outer" in a.ruled_out]
    unknown = [hit for attempt in attempts for hit in attempt.hits.get("exception:", [])]
    failed = state(attempts) == "failed"
    if unknown:
        kind, why = "unknown_exception", "no signature knows the exception in the log"
    elif outer:
        kind, why = (
            "outer_only",
            "only the outer message is there; the child's lines are missing",
        )
    elif failed:
        kind, why = "frames_only", "a process says that it failed and its exception is missing"
    elif hang:
        kind, why = "hang", "a process waits for another whose log is not here"
    elif any(attempt.stopped for attempt in attempts):
        kind, why = "interrupted", "the start was stopped from outside before it ended"
    elif any(attempt.started for attempt in attempts):
        kind, why = "truncated", "the log ends before the start does"
    else:
        kind, why = "no_engine_lines", "no line here tells how a start went"
    evidence = _evidence(unknown or outer or hang)
    return {
        "cause": "insufficient",
        "kind": kind,
        "confidence": "high" if outer and not unknown else "medium",
        "confidence_why": "no line here is known to prove a cause",
        "why": why,
        "evidence": evidence,
        "next_steps": capture(facts.get("version", ""), facts.get("connector", ""), bool(hang)),
        "related": [],
    }


def _facts(attempts: list[Attempt]) -> dict[str, str]:
    return {name: value for attempt in attempts for name, value in attempt.facts.items()}


def _evidence(hits: list[Hit]) -> list[dict]:
    evidence: list[dict] = []
    for hit in hits:
        number, source = hit.source
        bare = hit.exception and hit.line.body.strip().rstrip(":").endswith(hit.exception)
        if bare and source:
            evidence.append(_line_of(hit) | {"line": number, "text": _shown(source)})
        evidence.append(_line_of(hit))
    return evidence


def _line_of(hit: Hit) -> dict:
    return {
        "file": "standard input" if hit.file == "-" else hit.file,
        "line": hit.line.number,
        "process": hit.line.process or "unprefixed",
        "text": _shown(hit.line.body),
    }


def _shown(text: str) -> str:
    text = redact(text.strip()[: 8 * _TEXT_CHARS])
    return text if len(text) <= _TEXT_CHARS else text[:_TEXT_CHARS] + " ..."


def _ruled_out(attempts: list[Attempt], evidence: list[dict]) -> list[dict]:
    used = {(line["file"], line["line"]) for line in evidence}
    ruled_out = []
    for attempt in attempts:
        for key, hit in attempt.ruled_out.items():
            why = hit.signature.why if hit.signature else "an exception that stopped nothing"
            if key.startswith("before_up:"):
                why = f"the server came up after it ({why})"
            elif key.startswith("stopped:"):
                why = f"printed after the stop was asked for ({why})"
            ruled_out.append(_line_of(hit) | {"why": why})
        for key, kept in attempt.hits.items():
            hit = kept[0]
            if (_line_of(hit)["file"], hit.line.number) not in used and key != "cap":
                what = hit.cause or "no known class"
                why = f"comes later or proves less than the evidence ({what})"
                ruled_out.append(_line_of(hit) | {"why": why})
    return ruled_out


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
