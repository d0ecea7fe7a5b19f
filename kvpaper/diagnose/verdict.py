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
    """What one start left in one file: ``seen`` has the first hit of each role."""

    file: str
    hits: dict[str, list[Hit]] = field(default_factory=dict)
    ruled_out: dict[str, Hit] = field(default_factory=dict)
    seen: dict[str, Hit] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    failed: bool = False

    def take(self, event: Event, matched: tuple[Signature, dict[str, str]] | None) -> bool:
        """Take one event into account; whether more lines of its kind could tell more."""
        told = {name: value for name, value in facts(event.line.body).items() if value}
        self.facts |= told
        if matched is None:
            return bool(told)
        signature, numbers = matched
        rank = RANKS[signature.confidence]
        if event.line.level == "WARNING" and not signature.hint:
            rank -= 1
        hit = Hit(self.file, event, signature, rank, numbers)
        first = self.seen.setdefault(signature.role, hit) is hit
        stopping = "stop" in self.seen
        match signature.role:
            case "cause" | "degraded":
                return self._take_cause(hit)
            case "exception" | "cap":
                return not stopping and self._keep(hit)
            case "outer" | "shutdown" | "harmless":
                self._rule_out(hit)
            case "up" if first:
                self._came_up()
        self.failed |= signature.role in ("outer", "failed") and not stopping
        return signature.role == "start"

    def _take_cause(self, hit: Hit) -> bool:
        up = "up" in self.seen
        if up and "stop" in self.seen:
            self.ruled_out.setdefault(f"stopped:{hit.signature.id}", hit)
            return False
        self.failed |= up and hit.signature.fatal
        return hit.rank > 0 and self._keep(hit)

    def _keep(self, hit: Hit) -> bool:
        kept = self.hits.setdefault(hit.signature.id, [])
        if len(kept) < _KEPT_HITS:
            kept.append(hit)
        return len(kept) < _KEPT_HITS

    def _rule_out(self, hit: Hit) -> None:
        known = self.ruled_out.setdefault(hit.signature.id, hit)
        if hit.event.exception and not known.event.exception:  # not the code line that raises it
            self.ruled_out[hit.signature.id] = hit

    def _came_up(self) -> None:
        for key, kept in list(self.hits.items()):
            if kept[0].signature.role != "degraded":
                self.ruled_out.setdefault(f"before_up:{key}", self.hits.pop(key)[0])
        self.failed = False

    def ends_before(self, event: Event, matched: tuple[Signature, dict[str, str]] | None) -> bool:
        """Whether this event opens a new start after this one ended."""
        if matched is None or matched[0].role != "start":
            return False
        ended = bool(self.seen.keys() & {"outer", "stop", "up"})
        return ended or (self.failed and "server version" in event.line.body)


def read_attempts(path: str) -> tuple[list[Attempt], int]:
    """The attempts one log holds (the last ones if there are very many) and how many there were.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    attempts, count = [Attempt(path)], 1
    skip: set[bytes] = set()  # lines that tell nothing more of this attempt
    dull: set[bytes] = set()  # those that tell nothing of any
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


def state(attempts: list[Attempt]) -> str:
    """``up``, ``failed`` or ``unknown``: how these files of one start say it ended."""
    if any(attempt.failed for attempt in attempts):
        return "failed"
    up = any(attempt.seen.keys() & {"up", "engine_up"} for attempt in attempts)
    return "up" if up else "unknown"


def cause_hits(attempts: list[Attempt], how: str) -> list[Hit]:
    """The hits that may be the cause of that state, the likeliest first.

    A message that proves more comes before one that proves less; among equals the earliest line
    comes first, as the child that fails first pulls the others down.
    """
    hits = [kept[0] for attempt in attempts for kept in attempt.hits.values()]
    hits = [hit for hit in hits if hit.signature.cause]
    if how == "up":
        hits = [hit for hit in hits if hit.signature.role == "degraded"]
    if how == "unknown":  # a mere hint needs to know that the start failed
        hits = [hit for hit in hits if not hit.signature.hint and hit.event.line.level != "WARNING"]
    return sorted(hits, key=lambda hit: -hit.rank)
