"""Drift over time, and one pooled cache against n servers with a share of it each."""

from itertools import pairwise

import numba
import numpy as np

from kvpaper.reuse.curve import Curve, hit_curve, of_counts
from kvpaper.reuse.distances import Distances
from kvpaper.reuse.optimum import hull, net_value
from kvpaper.traces.block_trace import BlockTrace

ROUTINGS = ("random", "round robin", "least loaded", "session", "prefix")
# A prefix decides where a request goes only if it makes up this share of it; a block that every
# request starts with would else send all of them to one server.
MATCHED_SHARE = 0.5
UTILISATION = 0.7


def window_curves(trace: BlockTrace, distances: Distances, windows: int) -> list[Curve]:
    """Block curve of each of ``windows`` equal spans of time, in a cache that never restarts."""
    edges_s = np.linspace(0, trace.duration_s, windows + 1)
    edges = np.searchsorted(trace.arrival_s, edges_s[1:-1])
    starts = trace.offsets[np.concatenate([[0], edges, [trace.requests]])]
    expanded = distances.expanded()
    return [
        of_counts(np.bincount(expanded[start:stop], minlength=distances.cold + 1), stop - start)
        for start, stop in pairwise(starts)
    ]


def regret(curves: list[Curve], price_ratio: np.ndarray) -> np.ndarray:
    """Share of the net value lost by sizing each window by the curve of the one before.

    Returns
    -------
    float array, shape (windows - 1, prices)
        NaN where not even the best capacity earns its rent.
    """
    price_ratio = np.atleast_1d(price_ratio)
    hulls = [hull(curve) for curve in curves]
    rows = []
    for before, now, curve in zip(hulls[:-1], hulls[1:], curves[1:], strict=True):
        best = net_value(curve, now.optimum_blocks(price_ratio), price_ratio)
        had = net_value(curve, before.optimum_blocks(price_ratio), price_ratio)
        rows.append(np.where(best > 0, 1 - had / np.where(best > 0, best, 1), np.nan))
    return np.array(rows)


def turn_gaps(trace: BlockTrace) -> np.ndarray:
    """Seconds between the arrivals of consecutive requests of a session: lead time to prefetch."""
    session = sessions_of(trace)
    order = np.argsort(session, kind="stable")
    same = session[order[1:]] == session[order[:-1]]
    return np.diff(trace.arrival_s[order])[same]


@numba.njit(cache=True)
def _follows(owner, blocks, start, stop, matched_share):
    """Owner of the deepest known block of a request, -1 if too little of it is known."""
    matched, found = start, -1
    while matched < stop and owner[blocks[matched]] >= 0:
        found = owner[blocks[matched]]
        matched += 1
    return found if matched - start >= matched_share * (stop - start) else -1


@numba.njit(cache=True)
def _inferred(offsets, blocks, unique, matched_share):
    owner = np.full(unique, -1, np.int32)
    session = np.empty(len(offsets) - 1, np.int32)
    sessions = 0
    for request in range(len(session)):
        start, stop = offsets[request], offsets[request + 1]
        found = _follows(owner, blocks, start, stop, matched_share)
        if found < 0:
            found, sessions = sessions, sessions + 1
        session[request] = found
        for i in range(start, stop):
            owner[blocks[i]] = found
    return session


def sessions_of(trace: BlockTrace) -> np.ndarray:
    """Session of every request: as the log names them, or told by what each continues.

    Where a name is missing, a request continues the last one that used its deepest known block,
    if at least half of its blocks are known.
    """
    if trace.names_sessions:
        return trace.session
    return _inferred(trace.offsets, trace.blocks, trace.unique_blocks, MATCHED_SHARE)


@numba.njit(cache=True)
def _least_loaded(arrival_s, work_s, servers, offsets, blocks, unique, matched_share):
    """The server that holds enough of the prefix, else the one with the least work left."""
    free_s, worked_s = np.zeros(servers), np.zeros(servers)
    owner = np.full(unique, -1, np.int32)
    chosen = np.empty(len(arrival_s), np.int32)
    for request in range(len(arrival_s)):
        now = arrival_s[request]
        start, stop = offsets[request], offsets[request + 1]
        server = _follows(owner, blocks, start, stop, matched_share)
        if server < 0:
            # Of idle servers, the one that has worked least.
            server = np.argmin(np.maximum(free_s - now, 0.0) + 1e-9 * worked_s)
        chosen[request] = server
        free_s[server] = max(free_s[server], now) + work_s[request]
        worked_s[server] += work_s[request]
        for i in range(start, stop):
            owner[blocks[i]] = server
    return chosen


def route(trace: BlockTrace, routing: str, servers: int, seed: int = 0) -> np.ndarray:
    """Server of every request under one of ``ROUTINGS``.

    Load is prompt tokens, worked off at a rate that keeps the servers 70 % busy on average.
    """
    match routing:
        case "random":
            return np.random.default_rng(seed).integers(0, servers, trace.requests)
        case "round robin":
            return np.arange(trace.requests) % servers
        case "session":
            session = sessions_of(trace)
            places = np.random.default_rng(seed).integers(0, servers, int(session.max()) + 1)
            return places[session]
    tokens_per_s = trace.input_tokens.sum() / (servers * UTILISATION * max(trace.duration_s, 1e-9))
    work_s = trace.input_tokens / max(tokens_per_s, 1e-9)
    share = MATCHED_SHARE if routing == "prefix" else np.inf
    return _least_loaded(
        trace.arrival_s, work_s, servers, trace.offsets, trace.blocks, trace.unique_blocks, share
    )


def split_rates(
    trace: BlockTrace, routing: str, servers: int, capacities_blocks: np.ndarray, seed: int = 0
) -> np.ndarray:
    """Block hit rate of n servers with an equal share of each capacity, from a curve a server."""
    each = np.asarray(capacities_blocks) // servers
    server = route(trace, routing, servers, seed)
    hits = np.zeros(len(each))
    for one in range(servers):
        part = trace.select(np.flatnonzero(server == one))
        hits += hit_curve(part).at(each) * part.references
    return hits / max(trace.references, 1)
