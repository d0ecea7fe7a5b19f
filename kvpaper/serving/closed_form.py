"""A fleet in closed form: hits by the reuse curve, waits by queueing theory, steps by Little's law.

It explains a replay and orders what is worth replaying; it does not decide. It does not tell
chunked prefill from prefill priority, a tier per instance from a pooled one, nor a percentile of
TPOT from its mean, and takes requests to be routed to where their prefix is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvpaper.formulas import queueing, recovery, slack
from kvpaper.reuse.curve import Curve, hit_curve
from kvpaper.serving.fleet import Fleet, Pool
from kvpaper.traces.block_trace import BlockTrace

_SAMPLE = 100


@dataclass(frozen=True, slots=True)
class Load:
    """What the closed form knows of a trace.

    Attributes
    ----------
    input_tokens : float64 array, shape (Q,)
        Evenly spaced quantiles of the length of a prompt [token].
    output_tokens : float
        Mean length of an answer [token].
    requests_per_s : float
        Of the trace as it is [1/s]; at k times this rate every distance of reuse is k times as far.
    curve : Curve
        Token hit rate over capacity.
    block_tokens : int
    """

    input_tokens: np.ndarray
    output_tokens: float
    requests_per_s: float
    curve: Curve
    block_tokens: int

    @classmethod
    def of(cls, trace: BlockTrace) -> "Load":
        shares = (np.arange(_SAMPLE) + 0.5) / _SAMPLE
        return cls(
            input_tokens=np.quantile(trace.input_tokens, shares),
            output_tokens=float(np.maximum(trace.output_tokens, 1).mean()),
            requests_per_s=trace.requests / trace.duration_s,
            curve=hit_curve(trace, rate="token"),
            block_tokens=trace.block_tokens,
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What to expect of a fleet at one rate; infinite times where there is no steady state.

    Attributes
    ----------
    ttft_s : float
        Percentile of the time to the first token [s].
    tpot_s : float
        Mean time per output token [s].
    hit_shares : float64 array, shape (K + 1,)
        Share of prompt tokens that GPU memory and each tier serve.
    """

    ttft_s: float
    tpot_s: float
    hit_shares: np.ndarray


def predicted(
    fleet: Fleet, load: Load, requests_per_s: float, tpot_slo_s: float, percentile: float = 90.0
) -> Prediction:
    """Times and hits of a fleet at a rate of requests.

    ``tpot_slo_s`` is where the line through the decode table is right: its secant from one
    sequence to the batch whose step takes that long.
    """
    tpot_s, shares, late = _steady(fleet, load, requests_per_s, _line(fleet, load, tpot_slo_s))
    return Prediction(_first_below(late, 1 - percentile / 100), tpot_s, shares)


def highest_rate(
    fleet: Fleet, load: Load, ttft_slo_s: float, tpot_slo_s: float, percentile: float = 90.0
) -> float:
    """Highest rate of requests at which the closed form meets both targets [1/s]; 0 if none."""
    line = _line(fleet, load, tpot_slo_s)

    def meets(requests_per_s: float) -> bool:
        tpot_s, _, late = _steady(fleet, load, requests_per_s, line)
        return tpot_s <= tpot_slo_s and late(ttft_slo_s) <= 1 - percentile / 100

    low, high = 1e-3 * load.requests_per_s, load.requests_per_s
    if not meets(low):
        return 0.0
    while meets(high):
        low, high = high, 2 * high
    while high > 1.003 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def written_bytes_per_s(fleet: Fleet, load: Load, requests_per_s: float) -> tuple[float, ...]:
    """What is written to each tier if it takes every miss [B/s]."""
    missed = 1 - _hit_shares(fleet, load, requests_per_s, 0.0).sum()
    written = requests_per_s * load.input_tokens.mean() * missed * fleet.kv_bytes_per_token
    return (float(written),) * len(fleet.tiers)


def decode_rate(pool: Pool, context: float, tpot_slo_s: float) -> float:
    """Most tokens per second that an instance decodes within the target; 0 if none [token/s]."""
    batch, step_s = _steps(pool, context)
    return float((batch / step_s)[step_s <= tpot_slo_s].max(initial=0.0))


def context_tokens(load: Load) -> float:
    """Mean context of a running sequence [token]."""
    return float(load.input_tokens.mean() + load.output_tokens / 2)


def _steady(
    fleet: Fleet, load: Load, requests_per_s: float, line: tuple[float, float]
) -> tuple[float, np.ndarray, Callable[[float], float]]:
    """Mean TPOT [s], infinite without a steady state; hits; share that is later than a time."""
    split = fleet.decode is not None
    decoding, servers = fleet.decoding, fleet.prefill.instances
    own, context, running = requests_per_s / decoding.instances, context_tokens(load), 0.0
    for _ in range(1 if split else 3):  # the batch takes memory from the cache that spares it work
        shares = _hit_shares(fleet, load, requests_per_s, running * context)
        cached = shares.sum() * load.input_tokens
        work_s = _prefill_s(fleet.prefill, load.input_tokens - cached, cached)
        busy = requests_per_s * work_s.mean() / servers
        beside = 0.0 if split else busy
        if busy >= 1 or own * load.output_tokens * line[1] + beside >= 1:
            return np.inf, shares, lambda _: 1.0
        tpot_s = float(queueing.mean_tpot(own, load.output_tokens, *line, beside))
        running = own * load.output_tokens * tpot_s
    if running * context > decoding.kv_tokens:
        return np.inf, shares, lambda _: 1.0
    rest_s = work_s + _visible_s(fleet, load, requests_per_s, work_s)
    fetch_s = _fetch_s(fleet, load, requests_per_s, shares)
    spread = work_s.var() / work_s.mean() ** 2
    wait_s = queueing.mean_queue_wait(work_s.mean(), spread, busy, servers)
    waits = queueing.wait_probability(busy, servers)

    def late(ttft_s: float) -> float:
        left_s = slack.ttft_slack(ttft_s, 0.0, rest_s, 0.0)
        left_s = np.where(fetch_s <= left_s, left_s, -1.0)  # fetched while the request queues
        return float(queueing.late_share(left_s, wait_s, waits).mean())

    return tpot_s, shares, late


def _steps(pool: Pool, context: float) -> tuple[np.ndarray, np.ndarray]:
    """Batches that the cache has room for, two at least, and the time of their steps [s]."""
    table = pool.decode_table
    batch = np.arange(1, max(2, min(pool.kv_tokens / context, table.batch[-1])) + 1)
    return batch, table.step_time(batch, min(context, table.context[-1]))


def _line(fleet: Fleet, load: Load, tpot_slo_s: float) -> tuple[float, float]:
    """Floor of a step and time of a further sequence [s], by a secant of the decode table."""
    _, step_s = _steps(fleet.decoding, context_tokens(load))
    most = max(1, int(np.searchsorted(step_s, tpot_slo_s)) - 1)
    each_s = max(0.0, float(step_s[most] - step_s[0]) / most)
    return float(step_s[0]) - each_s, each_s


def _hit_shares(fleet: Fleet, load: Load, requests_per_s: float, in_use: float) -> np.ndarray:
    """Share of prompt tokens by level; a slower tier holds what a faster one does, and more."""
    pool = fleet.prefill
    block_bytes = fleet.block_bytes(load.block_tokens)
    free = pool.kv_tokens if fleet.decode else max(0.0, pool.kv_tokens - in_use)
    each = [free / load.block_tokens, *(tier.capacity_bytes / block_bytes for tier in fleet.tiers)]
    held = np.maximum.accumulate(each) * pool.instances
    copies = requests_per_s / load.requests_per_s
    return np.diff(load.curve.at(held / copies), prepend=0.0)


def _prefill_s(pool: Pool, new: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Prefill times [s]; a prompt beyond the table takes what its longest does."""
    table = pool.prefill_table
    new = np.clip(new, table.new_tokens[0], table.new_tokens[-1])
    return table.prefill_time(new, np.minimum(cached, table.cached_tokens[-1]))


def _fetch_s(
    fleet: Fleet, load: Load, requests_per_s: float, shares: np.ndarray
) -> np.ndarray | float:
    """Time to fetch a prompt's hits, all tiers at once, each shared with the other requests [s]."""
    longest = 0.0
    for tier, share in zip(fleet.tiers, shares[1:], strict=True):
        if share == 0:
            continue
        held = share * load.input_tokens * fleet.kv_bytes_per_token
        rate = tier.read_bytes_per_s
        busy = recovery.offered_load(requests_per_s / fleet.prefill.instances, held.mean(), rate)
        if busy >= 1:
            return np.inf
        fetched = recovery.shared_fetch_time(held, rate, tier.access_latency_s, busy)
        longest = np.maximum(longest, fetched)
    return longest


def _visible_s(
    fleet: Fleet, load: Load, requests_per_s: float, work_s: np.ndarray
) -> np.ndarray | float:
    """What a transfer adds to the first token [s]; infinite where the links cannot carry it."""
    if fleet.decode is None:
        return 0.0
    sent = load.input_tokens * fleet.kv_bytes_per_token + fleet.boundary_bytes
    for pool in fleet.pools:
        own = requests_per_s / pool.instances
        if recovery.offered_load(own, sent.mean(), pool.link_bytes_per_s) >= 1:
            return np.inf
    if fleet.first_token_from == "prefill":
        return 0.0
    rate = min(pool.link_bytes_per_s for pool in fleet.pools)
    at = (fleet.transfer_latency_s, fleet.transfer_layers, work_s)
    return slack.visible_transfer_time(sent, rate, *at)


def _first_below(falling, share: float) -> float:
    """Least time at which a falling share is no more than ``share`` [s]; infinite if never."""
    low, high = 0.0, 1.0
    while falling(high) > share:
        low, high = high, 2 * high
        if high > 1e6:
            return np.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > share else (low, middle)
    return high
