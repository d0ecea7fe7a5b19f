"""Devices of the tiers under processor sharing, and what is written back to them."""

import numpy as np

from kvpaper.serving.cache import admitted, store_written
from kvpaper.serving.compiled import compiled, inlined
from kvpaper.serving.heap import popped, pushed
from kvpaper.serving.state import (
    ANSWER,
    FETCHED,
    JOBS,
    PROMPT,
    READ,
    answer_of,
    ids_of,
    set_timer,
    tokens_between,
)


@inlined
def _advance(unit, t):
    """Each of n jobs is served at 1/n of the lanes, at most at one."""
    if unit.active:
        unit.work_s += (t - unit.at_s) * min(1.0, unit.lanes / unit.active)
    unit.at_s = t


@inlined
def _schedule(w, unit):
    unit.next_s = np.inf
    if unit.active:
        left = max(0.0, w.node[unit.jobs].key - unit.work_s)
        unit.next_s = unit.at_s + left / min(1.0, unit.lanes / unit.active)


@compiled
def submit(w, u, job, seconds, t):
    """A job that would take ``seconds`` alone."""
    unit = w.unit[u]
    _advance(unit, t)
    unit.jobs = pushed(w.node, unit.jobs, job, unit.work_s + seconds)
    unit.active += 1
    _schedule(w, unit)


@inlined
def unit_event(w, u, t):
    """A job has ended: what was read is on its way, what was written is there."""
    unit = w.unit[u]
    _advance(unit, t)
    job = unit.jobs
    unit.work_s = w.node[job].key
    unit.jobs = popped(w.node, job)
    unit.active -= 1
    _schedule(w, unit)
    r, kind = job // JOBS, job % JOBS // 3
    if kind == READ:
        set_timer(w, r, FETCHED + unit.tier, t + unit.latency)
    else:
        q, k = w.request[r], 3 * kind - 3 + unit.tier
        ids = ids_of(w, r) if kind == PROMPT else answer_of(w, r)
        store_written(w.links, unit, ids, q.written_from[k], q.written_to[k])


@compiled
def write_back(w, e, r, t, kind):
    """Start to write a prompt or an answer to every tier in reach that admits it."""
    q, rules = w.request[r], w.rules[0]
    ids = answer_of(w, r) if kind == ANSWER else ids_of(w, r)
    for k in range(rules.tiers):
        u = w.engine[e].unit[k]
        if u < 0:
            continue
        unit, size = w.unit[u], 0.0
        first, stop = admitted(w.links, unit.store, ids, unit.second_use)
        for i in range(first, stop):
            if w.links[unit.store, ids[i], 0] == 0:
                tokens = rules.block if kind == ANSWER else tokens_between(w, r, i, i + 1)
                size += tokens * rules.kv_bytes + rules.boundary_bytes
        if first < stop:
            q.written_from[3 * kind - 3 + k], q.written_to[3 * kind - 3 + k] = first, stop
            q.written[k] += size
            submit(w, u, JOBS * r + 3 * kind + k, size / unit.write, t)
