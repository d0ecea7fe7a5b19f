"""From events to a verdict: attempts, causal order, what proves the cause, what was ruled out."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvpaper.diagnose.reader import Event, Line, events, numbered_blocks, open_log
from kvpaper.diagnose.signatures import RANKS, Signature, facts, match, module_cause

_KEPT_HITS = 4
_KEPT_ATTEMPTS = 32
_SKIPPED_KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that carries a signature, or an exception that none knows (``signature`` None)."""

    file: str
    line: Line
    signature: Signature | None
    cause: str
    rank: int
    numbers: dict[str, str]
    exception: str
    source: tuple[int, str]


@dataclass(slots=True)
class Attempt:
    """What one start left in one file."""

    file: str
    hits: dict[str, list[Hit]] = field(default_factory=dict)
    ruled_out: dict[str, Hit] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    outer: bool = False
    engine_up: bool = False
    up: Hit | None = None
    stopped: bool = False
    hang: Hit | None = None
    started: bool = False

    def take(self, event: Event, matched: tuple[Signature, dict[str, str]] | None) -> bool:
        """Take one event into account; whether more lines of its kind could tell more."""
        told = {name: value for name, value in facts(event.line.body).items() if value}
        self.facts |= told
        if matched is None:
            if not event.exception:
                return bool(told)
            cause = module_cause(event)
            hit = self._hit(event, None, cause, 1 if cause else 0, {})
            return not self.stopped and self._keep(f"exception:{cause}", hit)
        signature, numbers = matched
        rank = RANKS[signature.confidence]
        if event.line.level == "WARNING" and not signature.failed:
            rank -= 1
        hit = self._hit(event, signature, signature.cause, rank, numbers)
        match signature.role:
            case "cause" | "degraded":
                return self._take_cause(hit)
            case "cap":
                return self._keep("cap", hit)
            case "outer" | "shutdown" | "harmless":
                known = self.ruled_out.setdefault(signature.id, hit)
                if hit.exception and not known.exception:  # not the code line that raises it
                    self.ruled_out[signature.id] = hit
                self.outer |= signature.role == "outer"
                self.failed |= signature.role == "outer" and not self.stopped
            case "failed":
                self.failed |= not self.stopped
            case "up" if self.up is None:
                self._came_up(hit)
            case "engine_up":
                self.engine_up = True
            case "stop":
                self.stopped = True
            case "hang":
                self.hang = hit
            case "start":
                self.started = True
                return True
        return False

    def _keep(self, key: str, hit: Hit) -> bool:
        kept = self.hits.setdefault(key, [])
        if len(kept) < _KEPT_HITS:
            kept.append(hit)
        return len(kept) < _KEPT_HITS

    def _take_cause(self, hit: Hit) -> bool:
        key = hit.signature.id
        if self.stopped and self.up is not None:
            self.ruled_out.setdefault(f"stopped:{key}", hit)
            return False
        self.failed |= hit.signature.fatal and self.up is not None
        return hit.rank > 0 and self._keep(key, hit)

    def _came_up(self, hit: Hit) -> None:
        for key in [k for k, kept in self.hits.items() if not _degrades(kept[0])]:
            self.ruled_out.setdefault(f"before_up:{key}", self.hits.pop(key)[0])
        self.failed, self.up = False, hit

    def _hit(
        self, event: Event, signature: Signature | None, cause: str, rank: int, numbers: dict
    ) -> Hit:
        source = (event.source_number, event.source_line)
        return Hit(self.file, event.line, signature, cause, rank, numbers, event.exception, source)

    def ends_before(self, event: Event, matched: tuple[Signature, dict[str, str]] | None) -> bool:
        """Whether this event opens a new start after this one ended."""
        if matched is None or matched[0].role != "start":
            return False
        ended = self.outer or self.stopped or self.up is not None
        return ended or (self.failed and "server version" in event.line.body)


def read_attempts(path: str) -> tuple[list[Attempt], int]:
    """The attempts one log holds (the last ones if there are very many) and how many there were.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    attempts, count = [Attempt(path)], 1
    dull: set[bytes] = set()
    skip: set[bytes] = set()
    with open_log(path) as stream:
        for event in events(numbered_blocks(stream, path), skip):
            matched = match(event)
            if attempts[-1].ends_before(event, matched):
                attempts = [*attempts[1 - _KEPT_ATTEMPTS :], Attempt(path)]
                count += 1
                skip.clear()
                skip |= dull
            if not attempts[-1].take(event, matched):
                skip.add(event.key)
                if matched is None and not event.exception:
                    dull.add(event.key)
            if len(skip) > _SKIPPED_KEYS:
                skip.clear()
                dull.clear()
    return attempts, count


def _degrades(hit: Hit) -> bool:
    return hit.signature is not None and hit.signature.role == "degraded"


def _needs_failure(hit: Hit) -> bool:
    """Whether the line alone does not tell that a start failed."""
    return hit.line.level == "WARNING" or (hit.signature is not None and hit.signature.failed)


def cause_hits(attempts: Iterable[Attempt]) -> list[Hit]:
    """The hits that may be the cause, the likeliest first.

    A message that proves more comes before one that proves less; among equals the earliest line
    comes first, as the child that fails first pulls the others down.
    """
    attempts = list(attempts)
    failed = any(attempt.failed for attempt in attempts)
    hits = [
        kept[0]
        for attempt in attempts
        for kept in attempt.hits.values()
        if kept[0].cause and (failed or not _needs_failure(kept[0]))
    ]
    return sorted(hits, key=lambda hit: -hit.rank)


def state(attempts: list[Attempt]) -> str:
    """``up``, ``failed`` or ``unknown``: how these files of one start say it ended."""
    if any(attempt.failed for attempt in attempts):
        return "failed"
    return "up" if any(attempt.up or attempt.engine_up for attempt in attempts) else "unknown"
