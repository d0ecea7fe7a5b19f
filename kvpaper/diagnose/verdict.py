"""From events to a verdict: attempts, causal order, what proves the cause, what was ruled out."""

from dataclasses import dataclass, field

from kvpaper.diagnose.reader import Event, events, numbered_blocks, open_log
from kvpaper.diagnose.signatures import RANKS, Signature, facts, match

_KEPT_HITS = 4
_KEPT_ATTEMPTS = 32
_SKIPPED_KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that carries a signature; ``rank`` 3 proves its cause, 0 tells nothing of it."""

    file: str
    event: Event
    signature: Signature
    rank: int
    numbers: dict[str, str]


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
            return bool(told)
        signature, numbers = matched
        rank = RANKS[signature.confidence]
        if event.line.level == "WARNING" and not signature.failed:
            rank -= 1
        hit = Hit(self.file, event, signature, rank, numbers)
        match signature.role:
            case "cause" | "degraded":
                return self._take_cause(hit)
            case "exception":
                return not self.stopped and self._keep(hit)
            case "cap":
                return self._keep(hit)
            case "outer" | "shutdown" | "harmless":
                known = self.ruled_out.setdefault(signature.id, hit)
                if (
                    event.exception and not known.event.exception
                ):  # not the code line that raises it
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

    def _keep(self, hit: Hit) -> bool:
        kept = self.hits.setdefault(hit.signature.id, [])
        if len(kept) < _KEPT_HITS:
            kept.append(hit)
        return len(kept) < _KEPT_HITS

    def _take_cause(self, hit: Hit) -> bool:
        if self.stopped and self.up is not None:
            self.ruled_out.setdefault(f"stopped:{hit.signature.id}", hit)
            return False
        self.failed |= hit.signature.fatal and self.up is not None
        return hit.rank > 0 and self._keep(hit)

    def _came_up(self, hit: Hit) -> None:
        for key in [k for k, kept in self.hits.items() if not _degrades(kept[0])]:
            self.ruled_out.setdefault(f"before_up:{key}", self.hits.pop(key)[0])
        self.failed, self.up = False, hit

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
                if matched is None:
                    dull.add(event.key)
            if len(skip) > _SKIPPED_KEYS:
                skip.clear()
                dull.clear()
    return attempts, count


def _degrades(hit: Hit) -> bool:
    return hit.signature.role == "degraded"


def state(attempts: list[Attempt]) -> str:
    """``up``, ``failed`` or ``unknown``: how these files of one start say it ended."""
    if any(attempt.failed for attempt in attempts):
        return "failed"
    return "up" if any(attempt.up or attempt.engine_up for attempt in attempts) else "unknown"


def cause_hits(attempts: list[Attempt], how: str) -> list[Hit]:
    """The hits that may be the cause of that state, the likeliest first.

    A message that proves more comes before one that proves less; among equals the earliest line
    comes first, as the child that fails first pulls the others down.
    """
    hits = [
        kept[0]
        for attempt in attempts
        for kept in attempt.hits.values()
        if kept[0].signature.cause and _counts(kept[0], how)
    ]
    return sorted(hits, key=lambda hit: -hit.rank)


def _counts(hit: Hit, how: str) -> bool:
    """Whether a hit tells why a start ended so; a mere hint needs to know that it failed."""
    if how == "up":
        return _degrades(hit)
    hint = hit.event.line.level == "WARNING" or hit.signature.failed
    return how == "failed" or not hint
