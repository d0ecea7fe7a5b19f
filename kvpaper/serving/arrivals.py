"""When requests arrive and what they share: more of them, between coarse timestamps, strangers."""

from dataclasses import replace

import numpy as np

from kvpaper.errors import InputError
from kvpaper.reuse.fleet import sessions_of
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.dense import dense_ids

SHIFT_S = 60.0
_MOST_REQUESTS = 10**7


def spread(trace: BlockTrace, seed: int = 0) -> BlockTrace:
    """The trace with requests of one timestamp spread at random until the next one.

    A log with coarse timestamps would else arrive in bursts that its service never saw. The order
    stays; no request moves further than the median step of the timestamps.
    """
    at_s, place, count = np.unique(trace.arrival_s, return_inverse=True, return_counts=True)
    if len(at_s) < 2:
        return trace
    steps_s = np.diff(at_s)
    width_s = np.minimum(np.append(steps_s, np.inf), np.median(steps_s)) * (count > 1)
    share = np.random.default_rng(seed).random(trace.requests)
    share = share[np.lexsort((share, place))]
    return replace(trace, arrival_s=at_s[place] + share * width_s[place])


def scaled(trace: BlockTrace, rate: float, seed: int = 0) -> BlockTrace:
    """The trace at a multiple of its rate: copies of its sessions, each with blocks of its own.

    Times between turns stay, so that a cache sees the same gaps between uses; squeezed time would
    bring them closer. A copied session starts up to ``SHIFT_S`` earlier or later. A fraction takes
    so many sessions at random.

    Raises
    ------
    InputError
        If the rate is not above zero, leaves no session, or asks for too many requests.
    """
    if not 0 < rate < np.inf:
        raise InputError("rate", f"{rate:g}", "a multiple above zero")
    if rate * trace.requests > _MOST_REQUESTS:
        found = f"{rate:g} times {trace.requests:,} requests"
        raise InputError("rate", found, f"at most {_MOST_REQUESTS:,} requests")
    random, session = np.random.default_rng(seed), sessions_of(trace)
    sessions = int(session.max(initial=-1)) + 1
    first_s, last_s = np.full(sessions, np.inf), np.zeros(sessions)
    np.minimum.at(first_s, session, trace.arrival_s)
    np.maximum.at(last_s, session, trace.arrival_s)
    chosen, arrival_s, copy_of = [], [], []
    for copy in range(int(np.ceil(rate))):
        kept = random.permutation(sessions) < round(min(1, rate - copy) * sessions)
        shift_s = random.uniform(-SHIFT_S, SHIFT_S, sessions) * (copy > 0)
        shift_s = np.where(first_s + shift_s < 0, -shift_s, shift_s)
        shift_s = np.where(last_s + shift_s > trace.arrival_s[-1], 0, shift_s)
        requests = np.flatnonzero(kept[session])
        chosen.append(requests)
        arrival_s.append(np.maximum(trace.arrival_s[requests] + shift_s[session[requests]], 0))
        copy_of.append(np.full(len(requests), copy))
    requests, copies, at_s = (np.concatenate(part) for part in (chosen, copy_of, arrival_s))
    if not len(requests):
        raise InputError("rate", f"{rate:g} of {sessions} sessions", "one session or more")
    order = np.argsort(at_s, kind="stable")
    part, copies, at_s = trace.select(requests[order]), copies[order], at_s[order]
    own = np.repeat(copies, part.blocks_per_request) * np.int64(part.unique_blocks)
    return replace(
        part,
        arrival_s=at_s - at_s[0],
        session=(session[requests[order]] + copies * sessions).astype(np.int32),
        blocks=dense_ids(part.blocks + own)[0],
    )


def strangers(trace: BlockTrace, share: float = 0.5, seed: int = 0) -> BlockTrace:
    """The trace with this share of its sessions, at random, made of requests that know no other.

    Every block of such a request is its own. Arrivals and lengths stay, so that only the reuse is
    less. (Blocks of its own for a session as a whole would spare nearly all of the reuse, which
    is between its turns.)
    """
    session = sessions_of(trace)
    sessions = int(session.max(initial=-1)) + 1
    chosen = np.random.default_rng(seed).permutation(sessions) < round(share * sessions)
    own = np.repeat(chosen[session], trace.blocks_per_request)
    blocks = trace.blocks.astype(np.int64)
    blocks[own] = trace.unique_blocks + np.arange(own.sum())
    return replace(trace, blocks=dense_ids(blocks)[0])


def poisson(
    requests_per_s: float,
    input_tokens: np.ndarray,
    output_tokens: np.ndarray | int = 1,
    block_tokens: int = 512,
    seed: int = 0,
) -> BlockTrace:
    """Requests with nothing in common, at exponential intervals."""
    lengths = np.asarray(input_tokens, np.int64)
    counts = -(-lengths // block_tokens)
    gaps_s = np.random.default_rng(seed).exponential(1 / requests_per_s, len(lengths))
    return BlockTrace(
        arrival_s=np.cumsum(gaps_s) - gaps_s[0],
        input_tokens=lengths,
        output_tokens=np.broadcast_to(np.asarray(output_tokens, np.int64), lengths.shape).copy(),
        session=np.full(len(lengths), -1, np.int32),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        blocks=np.arange(counts.sum(), dtype=np.int32),
        block_tokens=block_tokens,
    )
