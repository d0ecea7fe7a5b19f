"""An open loop of requests: they come when they come, whether or not the last one is answered.

What a simulator needs to replay a run stands in the rows: when each request was sent, what it
shares with others, its lengths; and what it is held against: times and cached tokens, raw.
"""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from kvpaper.lab.capture import Run

PATTERNS = ("unique", "shared", "sessions")
_GROUPS, _SHARED_TOKENS = 12, 512
_TURNS, _TURN_TOKENS = 5, 256


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a run.

    Attributes
    ----------
    arrival_s : float
        When it is due, after the start of the run.
    group, shared_tokens : int
        The first ``shared_tokens`` of the prompt are those of its group, the rest its own.
    """

    arrival_s: float
    group: int
    shared_tokens: int
    prompt_tokens: int
    output_tokens: int


def workload(pattern: str, requests: int, rate_per_s: float, seed: int) -> list[Request]:
    """Requests with Poisson arrivals.

    Parameters
    ----------
    pattern : str
        ``unique``: nothing is shared. ``shared``: one of twelve groups, the first the most popular
        (Zipf, exponent 1), each with a prefix of 512 tokens. ``sessions``: five turns, each with
        the prompt before and 256 tokens more; of six sessions at a time one goes on.
    requests : int
    rate_per_s : float
    seed : int
    """
    draw = random.Random(f"{pattern} {seed}")
    shapes = {"unique": _unique, "shared": _shared, "sessions": _sessions}[pattern](draw)
    arrivals = itertools.accumulate(draw.expovariate(rate_per_s) for _ in range(requests))
    return [
        Request(round(arrival, 6), *next(shapes), draw.choice((8, 16, 32))) for arrival in arrivals
    ]


def _unique(draw: random.Random):
    for number in itertools.count():
        yield number, 0, draw.choice((256, 512, 768, 1024))


def _shared(draw: random.Random):
    weights = [1 / (1 + group) for group in range(_GROUPS)]
    while True:
        group = draw.choices(range(_GROUPS), weights)[0]
        yield group, _SHARED_TOKENS, _SHARED_TOKENS + draw.choice((64, 128, 256, 384))


def _sessions(draw: random.Random):
    turns, fresh = dict.fromkeys(range(6), 0), 6
    while True:
        session = draw.choice(sorted(turns))
        turns[session] += 1
        tokens = _TURN_TOKENS * turns[session]
        yield session, tokens, tokens
        if turns[session] == _TURNS:
            del turns[session]
            turns[fresh] = 0
            fresh += 1


def prompts(requests: Sequence[Request], seed: int, vocabulary: int) -> list[list[int]]:
    """Token ids of the requests: of each group's own stream, then unique."""

    def drawn(of: str, count: int) -> list[int]:
        return random.Random(f"{seed} {of}").choices(range(10, vocabulary), k=count)

    return [
        drawn(f"group {one.group}", one.shared_tokens)
        + drawn(f"request {number}", one.prompt_tokens - one.shared_tokens)
        for number, one in enumerate(requests)
    ]


def play(
    run: Run,
    requests: Sequence[Request],
    ids: Sequence[Sequence[int]],
    ask: Callable[[Sequence[int], int], dict[str, float]],
    **coordinates: Any,
) -> None:
    """Send each request when it is due and add one row for each quantity.

    Parameters
    ----------
    ask : callable
        Takes token ids and output tokens, returns quantities of one request; called in threads.
    coordinates
        What tells this run's rows from others.
    """
    begin = time.perf_counter()

    def one(request: Request, prompt: Sequence[int]) -> dict[str, float]:
        sent_s = time.perf_counter() - begin
        return {"sent_s": sent_s, **ask(prompt, request.output_tokens)}

    pool = ThreadPoolExecutor(max_workers=len(requests))
    try:
        coming = []
        for request, prompt in zip(requests, ids, strict=True):
            time.sleep(max(0.0, begin + request.arrival_s - time.perf_counter()))
            coming.append(pool.submit(one, request, prompt))
        answers = [future.result() for future in coming]
    finally:
        # Ctrl-C does not wait for answers: the run ends the engines, and that the threads.
        pool.shutdown(wait=False, cancel_futures=True)
    taken = [
        {**asdict(request), **{name: round(value, 6) for name, value in answer.items()}}
        for request, answer in zip(requests, answers, strict=True)
    ]
    run.add_each(taken, warmups=0, **coordinates)
