"""The table of messages: loaded once from signatures.toml, matched against one event."""

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from kvpaper.diagnose.reader import Event

RANKS = {"high": 3, "medium": 2, "low": 1}
_LONGEST_SEARCHED = 4096
_SENTENCE = re.compile(r"(?!File )[A-Z][\w'-]*,? [\w'\"`(<{]")


@dataclass(frozen=True, slots=True)
class Signature:
    """One message an engine, a library or a system prints, and what it proves.

    The fields are explained at the head of ``signatures.toml``.
    """

    id: str
    why: str
    any: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    example: str = ""
    role: str = "cause"
    cause: str = ""
    kind: str = ""
    confidence: str = "high"
    pattern: re.Pattern[str] | None = None
    numbers: re.Pattern[str] | None = None
    frames: re.Pattern[str] | None = None
    source_line: re.Pattern[str] | None = None
    exception: bool = False
    hint: bool = False
    fatal: bool = False
    next: tuple[str, ...] = ()
    related: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """All signatures, with what is said of classes, modules, prefixes, facts and answers."""

    signatures: tuple[Signature, ...]
    classes: dict[str, dict]
    modules: tuple[tuple[re.Pattern[str], Signature], ...]
    prefixes: tuple[dict[str, str], ...]
    facts: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]
    words: dict[str, dict]


@cache
def table() -> Table:
    """The shipped table."""
    raw = tomllib.loads(Path(__file__).with_name("signatures.toml").read_text(encoding="utf-8"))
    return Table(
        tuple(_signature(entry) for entry in raw["signature"]),
        raw["class"],
        tuple((re.compile(entry["frames"]), _unknown(entry["cause"])) for entry in raw["module"]),
        tuple(raw["prefix"]),
        tuple((tuple(entry["any"]), re.compile(entry["pattern"])) for entry in raw["fact"]),
        raw["words"],
    )


def _signature(entry: dict) -> Signature:
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    for name in ("pattern", "numbers", "frames", "source_line"):
        if name in fields:
            fields[name] = re.compile(fields[name])
    return Signature(**fields)


@cache
def _unknown(cause: str = "") -> Signature:
    """What stands for an exception that no signature knows, from a part of the engine if known."""
    return Signature(
        id=f"exception:{cause}",
        why="an exception from that part of the engine" if cause else "an unknown exception",
        role="exception",
        cause=cause,
        kind=f"{cause}_exception",
        confidence="low",
    )


def match(event: Event) -> tuple[Signature, dict[str, str]] | None:
    """The first signature that fits the event, with the numbers it finds in the text.

    The line alone is tried first, then the line with its wrapped continuations, then the code
    that an exception's innermost frame quotes. An exception that no signature knows has that of
    the innermost frame in a known module.
    """
    quiet = event.line.level in ("INFO", "DEBUG")
    logged = event.line.level in ("ERROR", "CRITICAL") and _SENTENCE.match(event.line.body)
    told = "exception" if event.exception else "sentence" if logged else ""
    for text in (event.line.body, *event.joined, event.source_line):
        text = text[:_LONGEST_SEARCHED]
        form = "exception" if "Value error," in text else told
        for signature in _candidates(text, quiet, form):
            if signature.frames and not signature.frames.search(event.frames):
                continue
            if signature.source_line and not signature.source_line.search(event.source_line):
                continue
            if signature.pattern and not signature.pattern.search(text):
                continue
            return signature, _numbers(signature, (text, *event.joined))
    return (_of_module(event.frames), {}) if event.exception else None


def _of_module(frames: str) -> Signature:
    for frame in reversed(frames.split("\n")):
        for pattern, signature in table().modules:
            if pattern.search(frame):
                return signature
    return _unknown()


def _numbers(signature: Signature, texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts if signature.numbers else ():
        if found := signature.numbers.search(text[:_LONGEST_SEARCHED]):
            return {name: value for name, value in found.groupdict().items() if value}
    return {}


@lru_cache(maxsize=8192)
def _candidates(text: str, quiet: bool, form: str) -> tuple[Signature, ...]:
    return tuple(
        signature
        for signature in _tested(quiet, form)
        if any(needle in text for needle in signature.any)
    )


@cache
def _tested(quiet: bool, form: str) -> tuple[Signature, ...]:
    """Signatures that a line of this kind can carry.

    Information never tells a cause. A sentence logged as an error is no exception, and may name
    what stopped nothing: only messages that prove the cause alone count in it.
    """
    return tuple(
        signature
        for signature in table().signatures
        if (signature.role != "cause" or not quiet)
        and (not signature.exception or form == "exception" or _proves(signature, form))
    )


def _proves(signature: Signature, form: str) -> bool:
    return form == "sentence" and signature.confidence == "high"


def facts(text: str) -> dict[str, str]:
    """What a line tells of the start itself: version, parallel size, cap, connector."""
    found: dict[str, str] = {}
    for needles, pattern in table().facts:
        if any(needle in text for needle in needles) and (matched := pattern.search(text)):
            found |= matched.groupdict()
    return found
