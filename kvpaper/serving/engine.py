"""The replay itself: events in order of time, compiled.

Sources of events are the next arrival, a heap of timers (fetches that end, caches that arrive,
prefetches that are due), the units of the tiers and the instances. Each source holds one time; at
equal times arrivals come first and instances last.

An instance works in periods: a prompt, a step that mixes a chunk with the batch, or a run of decode
steps. A run ends at the step in which something new can join, so that a request costs two events
there and every step still counts.
"""

from collections import namedtuple

import numba
import numpy as np

from kvpaper.serving.cache import (
    admitted,
    keep,
    mark_computed,
    pin,
    refresh,
    store_written,
    unpin,
    usable,
)
from kvpaper.serving.compiled import compiled, inlined
from kvpaper.serving.heap import NONE, popped, pushed
from kvpaper.serving.steps import prefill_s, run_s, step_s, steps_until

LEVELS = 4  # GPU memory and three tiers
REQUEST = np.dtype(
    [
        ("arrival_s", "f8"), ("input", "i8"), ("output", "i8"),
        ("first_block", "i8"), ("blocks", "i4"), ("first_answer", "i8"), ("answers", "i4"),
        ("preset", "i4"), ("decode_preset", "i4"), ("next_turn", "i4"),
        # State.
        ("engine", "i4"), ("target", "i4"), ("after", "i4"), ("landing_after", "i4"),
        ("started", "b1"),
        ("pending", "i4"), ("cut", "i4", (LEVELS,)), ("taken", "i4"), ("front", "i4"),
        ("todo", "i8"), ("behind", "i8"), ("part", "i8"), ("work", "i8"), ("work_left", "i8"),
        ("room", "i4"), ("need", "i4"), ("share_s", "f8"), ("serve_s", "f8"), ("end_s", "f8"),
        ("written_from", "i4", (6,)), ("written_to", "i4", (6,)),
        # Outcome.
        ("rejected", "b1"), ("prefill_start_s", "f8"), ("first_token_s", "f8"),
        ("finish_s", "f8"), ("prefill_s", "f8"), ("decode_s", "f8"), ("hit", "i8", (LEVELS,)),
        ("fetched", "f8", (3,)), ("written", "f8", (3,)), ("sent", "f8"),
    ],
    align=True,
)  # fmt: skip
ENGINE = np.dtype(
    [
        ("prefills", "b1"), ("decodes", "b1"), ("chunk", "i8"), ("link_rate", "f8"),
        ("unit", "i4", (3,)), ("capacity", "i8"),
        # Period.
        ("next_s", "f8"), ("start_s", "f8"), ("steps", "i8"), ("run", "b1"), ("part_s", "f8"),
        ("landing", "i4"), ("landing_last", "i4"), ("current", "i4"),
        # Batch: sequences, sum of contexts, steps done, heap by the step of completion.
        ("batch", "i8"), ("context", "i8"), ("done", "i8"), ("running", "i4"), ("share_s", "f8"),
        ("joining", "i4"), ("joining_last", "i4"),
        # Queues, and what is bound for the batch but not in it.
        ("fifo", "i4"), ("fifo_last", "i4"), ("ready", "i4"), ("waiting", "i8"), ("work", "i8"),
        ("coming", "i8"), ("coming_context", "i8"),
        # Memory in blocks: held by requests, cached, rooms for answers.
        ("pinned", "i8"), ("listed", "i8"), ("private", "i8"),
        ("link_free_s", "f8"), ("prefill_busy_s", "f8"), ("decode_busy_s", "f8"),
    ],
    align=True,
)  # fmt: skip
UNIT = np.dtype(
    [
        ("tier", "i4"), ("store", "i4"), ("capacity", "i8"), ("listed", "i8"), ("lanes", "f8"),
        ("read", "f8"), ("write", "f8"), ("latency", "f8"), ("second_use", "b1"),
        ("next_s", "f8"), ("at_s", "f8"), ("work_s", "f8"), ("active", "i8"), ("jobs", "i4"),
    ],
    align=True,
)  # fmt: skip
RULES = np.dtype(
    [
        ("block", "i8"), ("kv_bytes", "f8"), ("boundary_bytes", "f8"), ("tiers", "i8"),
        ("fetch", "i8"), ("lead_s", "f8"), ("first_from_decode", "b1"), ("latency_s", "f8"),
        ("layers", "i8"), ("queue_limit", "i8"), ("router", "i8"), ("decode_router", "i8"),
        ("prefilling", "i8"), ("max_batch", "i8"),
        # State: heap of timers, next arrival, instances chosen last.
        ("timers", "i4"), ("arrivals", "i8"), ("last", "i8"), ("decode_last", "i8"),
    ],
    align=True,
)  # fmt: skip
World = namedtuple("World", "rules request engine unit blocks links node prefill steps")

PRESET, LEAST_LOADED, PREFIX = 0, 1, 2
ALWAYS, BETTER, TWO_ENDED = 0, 1, 2
READ, WRITE_PROMPT, WRITE_ANSWER = 0, 1, 2
PREFETCH, FETCHED, ARRIVED = 0, 1, 4  # timers; one FETCHED a tier
JOBS, TIMERS = 9, 5
NODES = JOBS + TIMERS + 1


@inlined
def _ids(w, r):
    first = w.request[r].first_block
    return w.blocks[first : first + w.request[r].blocks]


@inlined
def _answer_ids(w, r):
    first = w.request[r].first_answer
    return w.blocks[first : first + w.request[r].answers]


@inlined
def _timer(w, r, kind, at_s):
    number = JOBS * len(w.request) + TIMERS * r + kind
    w.rules[0].timers = pushed(w.node, w.rules[0].timers, number, at_s)


@inlined
def _queue_node(w, r):
    return (JOBS + TIMERS) * len(w.request) + r


@compiled
def _prefill(w, new, cached):
    return prefill_s(w.prefill, np.float64(new), np.float64(cached))


# Tiers


@compiled
def _advance_unit(w, u, t):
    """Processor sharing: each of n jobs is served at 1/n of the lanes, at most at one."""
    unit = w.unit[u]
    if unit.active:
        unit.work_s += (t - unit.at_s) * min(1.0, unit.lanes / unit.active)
    unit.at_s = t


@compiled
def _schedule_unit(w, u):
    unit = w.unit[u]
    if unit.active == 0:
        unit.next_s = np.inf
        return
    left = max(0.0, w.node[unit.jobs].key - unit.work_s)
    unit.next_s = unit.at_s + left / min(1.0, unit.lanes / unit.active)


@compiled
def _submit(w, u, job, seconds, t):
    """A job that would take ``seconds`` alone."""
    unit = w.unit[u]
    _advance_unit(w, u, t)
    unit.jobs = pushed(w.node, unit.jobs, job, unit.work_s + seconds)
    unit.active += 1
    _schedule_unit(w, u)


@inlined
def _unit_event(w, u, t):
    unit = w.unit[u]
    _advance_unit(w, u, t)
    job = unit.jobs
    unit.work_s = w.node[job].key
    unit.jobs = popped(w.node, job)
    unit.active -= 1
    _schedule_unit(w, u)
    r, kind = job // JOBS, job % JOBS // 3
    if kind == READ:
        _timer(w, r, FETCHED + unit.tier, t + unit.latency)
    else:
        ids = _ids(w, r) if kind == WRITE_PROMPT else _answer_ids(w, r)
        k = 3 * kind - 3 + unit.tier
        store_written(w.links, unit, ids, w.request[r].written_from[k], w.request[r].written_to[k])


@compiled
def _write(w, e, r, t, kind):
    """Start the write-back of a prompt or an answer to every tier in reach that admits it."""
    q = w.request[r]
    ids = _ids(w, r) if kind == WRITE_PROMPT else _answer_ids(w, r)
    for k in range(w.rules[0].tiers):
        u = w.engine[e].unit[k]
        if u < 0:
            continue
        unit = w.unit[u]
        first, stop = admitted(w.links, unit.store, ids, unit.second_use)
        size = 0.0
        for i in range(first, stop):
            if w.links[unit.store, ids[i], 0] == 0:
                tokens = w.rules[0].block
                if kind == WRITE_PROMPT:
                    tokens = min(tokens, q.input - i * w.rules[0].block)
                size += tokens * w.rules[0].kv_bytes + w.rules[0].boundary_bytes
        if first == stop:
            continue
        q.written_from[3 * kind - 3 + k], q.written_to[3 * kind - 3 + k] = first, stop
        q.written[k] += size
        _submit(w, u, JOBS * r + 3 * kind + k, size / unit.write, t)


# Lookup


@compiled
def _fetch_s(w, e, r, k, front):
    """Time to fetch the hits of tiers up to ``k`` behind ``front`` blocks, by their load now."""
    q, longest = w.request[r], 0.0
    boundary = w.rules[0].boundary_bytes
    for i in range(k, 0, -1):
        size = _tokens_between(w, r, max(q.cut[i - 1], q.cut[0] + front), q.cut[i])
        if size > 0:
            unit = w.unit[w.engine[e].unit[i - 1]]
            alone = (size * w.rules[0].kv_bytes + boundary) / unit.read
            boundary = 0.0
            slower = max(1.0, (unit.active + 1) / unit.lanes)
            longest = max(longest, unit.latency + alone * slower)
    return longest


@inlined
def _tokens_between(w, r, low, high):
    """Tokens of the prompt in blocks ``low`` to ``high``."""
    size, block = w.request[r].input, w.rules[0].block
    return max(0, min(high * block, size) - min(low * block, size))


@inlined
def _rest(w, r, blocks):
    """Tokens to compute behind so many cached blocks: at least the one that gives the answer."""
    return max(1, w.request[r].input - blocks * w.rules[0].block)


@compiled
def _front_s(w, r, front):
    if front == 0:
        return 0.0
    return _prefill(w, front * w.rules[0].block, w.request[r].cut[0] * w.rules[0].block)


@compiled
def _meeting(w, e, r, k):
    """Least number of blocks at the front whose computation outlasts the fetch of the others."""
    q = w.request[r]
    low, high = 0, (q.cut[k] - q.cut[0])
    while low < high:
        middle = (low + high) // 2
        if _front_s(w, r, middle) < _fetch_s(w, e, r, k, middle):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _recovered_s(w, e, r, k, front):
    """Time until the prompt is computed if the hits of tiers up to ``k`` are used."""
    new = _rest(w, r, w.request[r].cut[k])
    recovered = max(_fetch_s(w, e, r, k, front), _front_s(w, r, front))
    return recovered + _prefill(w, new, w.request[r].input - new)


@compiled
def _plan(w, e, r, two_ended):
    """Look the prompt up at an instance, choose what to fetch, and tell how long it would take."""
    q, ids, tiers = w.request[r], _ids(w, r), w.rules[0].tiers
    j = 0
    while j < len(ids) and usable(w.links, e, ids[j]):
        j += 1
    q.cut[0] = j
    for k in range(tiers):
        while j < len(ids):
            held = usable(w.links, e, ids[j])
            for i in range(k + 1):
                held = held or w.links[w.unit[w.engine[e].unit[i]].store, ids[j], 0] > 0
            if not held:
                break
            j += 1
        q.cut[k + 1] = j
    q.front = 0
    if w.rules[0].fetch == ALWAYS:
        q.taken = tiers
        return _recovered_s(w, e, r, tiers, 0)
    q.taken = 0
    best = _recovered_s(w, e, r, 0, 0)
    for k in range(1, tiers + 1):
        if q.cut[k] == q.cut[k - 1]:
            continue
        found = _recovered_s(w, e, r, k, 0)
        if found < best:
            best, q.taken, q.front = found, k, 0
        if two_ended and w.rules[0].fetch == TWO_ENDED:
            meeting = _meeting(w, e, r, k)
            for front in range(max(1, meeting - 1), meeting + 1):
                found = _recovered_s(w, e, r, k, front)
                if found < best:
                    best, q.taken, q.front = found, k, front
    return best


@compiled
def _start(w, e, r, t, two_ended):
    """Look up, hold the blocks and start to fetch; False if there is no room."""
    x, q, ids = w.engine[e], w.request[r], _ids(w, r)
    wanted = x.pinned + x.private + q.room
    if wanted > x.capacity:
        return False
    for block in ids:
        wanted += w.links[e, block, 0] >= 0
    if wanted > x.capacity:
        return False
    _plan(w, e, r, two_ended)
    q.started = True
    q.engine = e
    x.private += q.room
    pin(w.links, w.engine, e, ids)
    for k in range(w.rules[0].tiers):
        refresh(w.links, w.unit[x.unit[k]].store, ids)
    q.hit[0] = _tokens_between(w, r, 0, q.cut[0])
    boundary = w.rules[0].boundary_bytes
    for k in range(q.taken, 0, -1):
        tokens = _tokens_between(w, r, max(q.cut[k - 1], q.cut[0] + q.front), q.cut[k])
        if tokens > 0:
            u = x.unit[k - 1]
            q.hit[k] = tokens
            q.fetched[k - 1] = tokens * w.rules[0].kv_bytes + boundary
            boundary = 0.0
            q.pending += 1
            _submit(w, u, JOBS * r + k - 1, q.fetched[k - 1] / w.unit[u].read, t)
    _set_todo(w, r)
    return True


@inlined
def _set_todo(w, r):
    """Tokens of the phase to come: the front of a two-ended recovery, then what is new."""
    q = w.request[r]
    if q.front:
        q.todo, q.behind = q.front * w.rules[0].block, q.cut[0] * w.rules[0].block
    else:
        q.todo = _rest(w, r, q.cut[q.taken])
        q.behind = q.input - q.todo


# Routing


@compiled
def _context_now(w, d, t):
    """Sum of contexts of the running batch, steps of the present run included."""
    x = w.engine[d]
    if not x.run or x.batch == 0:
        return x.context
    mean = x.context / x.batch
    steps = steps_until(w.steps, x.batch, mean, t - x.start_s, x.steps)
    if steps and run_s(w.steps, x.batch, mean, steps) > t - x.start_s:
        steps -= 1
    return x.context + x.batch * steps


@compiled
def _step_if_joined(w, d, r, t):
    """Step time of an instance with all that is bound for it and one request more."""
    x = w.engine[d]
    batch = x.batch + x.coming + 1
    context = _context_now(w, d, t) + x.coming_context + w.request[r].input
    most = min(batch, w.rules[0].max_batch)
    return step_s(w.steps, most, context / batch) * (batch / most)


@compiled
def _backlog_s(w, e, r, t):
    """Prefill work before a new request [s]; where the instance decodes too, a step beside it."""
    x = w.engine[e]
    load = x.work * 1e-9
    if not x.run and x.next_s > t and x.next_s < np.inf:
        load += x.next_s - t
    if x.decodes:
        load += _step_if_joined(w, e, r, t)
    return load


@compiled
def _expected_prefill_s(w, e, r):
    """Time to recover and prefill at an instance; what is promised to it counts as there."""
    ids, owners = _ids(w, r), len(w.links) - 1
    j = 0
    while j < len(ids):
        if w.links[e, ids[j], 0] == 0:
            owner = w.links[owners, ids[j], 0]
            if owner < 0 or w.request[owner].engine != e or w.request[owner].started:
                break
        j += 1
    new = _rest(w, r, j)
    return min(_plan(w, e, r, False), _prefill(w, new, w.request[r].input - new))


@compiled
def _route(w, r, t):
    """Choose the instance that prefills; among equals the next in turn."""
    q, n = w.request[r], w.rules[0].prefilling
    chosen, least, work = q.preset, np.inf, 0.0
    if w.rules[0].router == PRESET:
        work = _prefill(w, _rest(w, r, 0), 0)
    else:
        cold = _prefill(w, _rest(w, r, 0), 0)
        for i in range(n):
            e = (w.rules[0].last + 1 + i) % n
            own = cold if w.rules[0].router == LEAST_LOADED else _expected_prefill_s(w, e, r)
            load = _backlog_s(w, e, r, t) + own
            if load < least:
                chosen, least, work = e, load, own
        w.rules[0].last = chosen
    q.engine = chosen
    q.work = q.work_left = np.int64(np.ceil(work * 1e9))
    return chosen


@compiled
def _route_decode(w, r, t):
    q, first = w.request[r], w.rules[0].prefilling
    n = len(w.engine) - first
    chosen, least = first + q.decode_preset, np.inf
    if w.rules[0].decode_router == LEAST_LOADED:
        for i in range(n):
            d = first + (w.rules[0].decode_last + 1 + i) % n
            load = _step_if_joined(w, d, r, t)
            if load < least:
                chosen, least = d, load
        w.rules[0].decode_last = chosen - first
    return chosen


# Queues


@inlined
def _append(w, x, r):
    w.request[r].after = NONE
    if x.fifo < 0:
        x.fifo = r
    else:
        w.request[x.fifo_last].after = r
    x.fifo_last = r


@inlined
def _append_joining(w, x, r):
    w.request[r].after = NONE
    if x.joining < 0:
        x.joining = r
    else:
        w.request[x.joining_last].after = r
    x.joining_last = r


@inlined
def _append_landing(w, x, r):
    w.request[r].landing_after = NONE
    if x.landing < 0:
        x.landing = r
    else:
        w.request[x.landing_last].landing_after = r
    x.landing_last = r


@compiled
def _poke(w, e, t):
    """Something new: an idle instance turns to it now, a run of steps ends with the step."""
    x = w.engine[e]
    if x.next_s == np.inf:
        x.next_s = x.start_s = t
    elif x.run:
        mean = x.context / x.batch
        steps = steps_until(w.steps, x.batch, mean, t - x.start_s, x.steps)
        if steps < x.steps:
            x.steps = steps
            x.next_s = x.start_s + run_s(w.steps, x.batch, mean, steps)


@compiled
def _make_ready(w, r, t):
    q = w.request[r]
    x = w.engine[q.engine]
    x.ready = pushed(w.node, x.ready, _queue_node(w, r), np.float64(r))
    _poke(w, q.engine, t)


@compiled
def _pick(w, e, t):
    """The next request to prefill in order of arrival; -1 if none is ready or has room."""
    x, first = w.engine[e], _queue_node(w, 0)
    room = True
    while True:
        ready = x.ready - first if x.ready >= 0 else len(w.request)
        head = x.fifo if x.fifo >= 0 and room else len(w.request)
        if head < ready:
            if not _start(w, e, head, t, True):
                room = False
                continue
            x.fifo = w.request[head].after
            if w.request[head].pending == 0 or w.request[head].front:
                return head
        elif ready < len(w.request):
            x.ready = popped(w.node, x.ready)
            return ready
        else:
            return NONE


# Instances


@inlined
def _serve(w, e, r, t):
    """First or further service of a request at an instance."""
    q = w.request[r]
    if np.isnan(q.prefill_start_s):
        q.prefill_start_s = t
        w.engine[e].waiting -= 1
    q.serve_s = t


@compiled
def _scheduled(w, e, r, t, end_s):
    """The last tokens of a phase are on their way: what follows may count on the blocks."""
    q, x = w.request[r], w.engine[e]
    _append_landing(w, x, r)
    if q.front:
        return
    mark_computed(w.links, e, _ids(w, r))
    q.end_s = end_s
    if not x.decodes and w.rules[0].layers > 1:
        _offer(w, r, t)


@compiled
def _next_period(w, e, t):
    """What an instance does next."""
    x = w.engine[e]
    x.start_s = t
    x.run, x.steps, x.part_s = False, 0, 0.0
    x.landing = NONE
    if x.prefills:
        if x.chunk == 0:
            r = _pick(w, e, t)
            if r >= 0:
                q = w.request[r]
                _serve(w, e, r, t)
                took = _prefill(w, q.todo, q.behind)
                q.prefill_s += took
                x.prefill_busy_s += took
                x.work -= q.work_left
                q.work_left = 0
                _scheduled(w, e, r, t, t + took)
                x.next_s = t + took
                return
        elif _mix(w, e, t):
            return
    if x.batch:
        x.run = True
        x.steps = np.int64(w.node[x.running].key) - x.done
        x.next_s = t + run_s(w.steps, x.batch, x.context / x.batch, x.steps)
    else:
        x.next_s = np.inf


@compiled
def _mix(w, e, t):
    """A step of prompt tokens and the running batch; False if no prompt can go on.

    It lasts the prefill of all its tokens, weights read once, and what the attention of the batch
    adds: its step beyond that at the least context.
    """
    x = w.engine[e]
    left, new, cached, current = x.chunk - x.batch, 0, 0.0, x.current
    while left > 0:
        r = current if current >= 0 else _pick(w, e, t)
        if r < 0:
            break
        current = NONE
        q = w.request[r]
        _serve(w, e, r, t)
        take = min(left, q.todo)
        cached += take * q.behind
        new += take
        left -= take
        q.part = take
        q.behind += take
        q.todo -= take
        if q.todo:
            current = r
        else:
            _append_landing(w, x, r)
            if not q.front:
                mark_computed(w.links, e, _ids(w, r))
    x.current = current
    if new == 0:
        return False
    alone = _prefill(w, new, cached / new)
    took = alone
    if x.batch:
        attention = step_s(w.steps, x.batch, x.context / x.batch) - w.steps[x.batch, 0]
        took = _prefill(w, new + x.batch, cached / new) + attention
        x.steps = 1
        x.part_s = took - alone
    x.prefill_busy_s += alone
    x.next_s = t + took
    r = x.landing
    while r >= 0:
        _charge(w, x, r, alone, new)
        r = w.request[r].landing_after
    if current >= 0:
        _charge(w, x, current, alone, new)
    return True


@inlined
def _charge(w, x, r, seconds, tokens):
    """A request's share of a mixed step, and of the work that it still means to the router."""
    q = w.request[r]
    q.prefill_s += seconds * q.part / tokens
    done = q.work_left if q.todo == 0 else q.work_left * q.part // (q.part + q.todo)
    x.work -= done
    q.work_left -= done


@inlined
def _engine_event(w, e, t):
    """A period has ended."""
    x = w.engine[e]
    if x.steps:
        part = t - x.start_s if x.run else x.part_s
        x.decode_busy_s += part
        x.share_s += part / x.batch
        x.done += x.steps
        x.context += x.batch * x.steps
        while x.running >= 0 and w.node[x.running].key <= x.done:
            r = x.running - _queue_node(w, 0)
            x.running = popped(w.node, x.running)
            x.batch -= 1
            x.context -= w.request[r].input + w.request[r].output
            w.request[r].decode_s = x.share_s - w.request[r].share_s
            _finish(w, e, r, t)
    r = x.landing
    while r >= 0:
        _land(w, e, r, t)
        r = w.request[r].landing_after
    while x.joining >= 0 and x.batch < w.rules[0].max_batch:
        r = x.joining
        x.joining = w.request[r].after
        _join(w, x, r)
    _next_period(w, e, t)


@inlined
def _join(w, x, r):
    q = w.request[r]
    x.coming -= 1
    x.coming_context -= q.input
    x.batch += 1
    x.context += q.input + 1
    q.share_s = x.share_s
    x.running = pushed(w.node, x.running, _queue_node(w, r), np.float64(x.done + q.output - 1))


@inlined
def _land(w, e, r, t):
    """A phase of a prefill has ended."""
    q, x = w.request[r], w.engine[e]
    if q.front:
        q.front = 0
        _set_todo(w, r)
        if q.pending == 0:
            x.ready = pushed(w.node, x.ready, _queue_node(w, r), np.float64(r))
        return
    _write(w, e, r, t, WRITE_PROMPT)
    if x.decodes or not w.rules[0].first_from_decode:
        q.first_token_s = t
    if x.decodes:
        if q.output <= 1:
            _finish(w, e, r, t)
        else:
            x.coming += 1
            x.coming_context += q.input
            _append_joining(w, x, r)
    elif q.output <= 1 and not w.rules[0].first_from_decode:
        _release(w, e, r)
        _finish(w, NONE, r, t)
    elif w.rules[0].layers == 1:
        _offer(w, r, t)


@compiled
def _release(w, e, r):
    """An instance lets a request go; where it decoded, it keeps the answer."""
    w.engine[e].private -= w.request[r].room
    if w.engine[e].decodes:
        keep(w.links, w.engine, e, _answer_ids(w, r))
    unpin(w.links, w.engine, e, _ids(w, r))


@compiled
def _finish(w, e, r, t):
    """A request has its last token at instance ``e``; -1 if it needed no instance to decode."""
    q = w.request[r]
    q.finish_s = t
    if e >= 0:
        x = w.engine[e]
        if x.prefills:
            _release(w, e, r)
        else:
            x.private -= q.need
            _grant(w, e, t)
        if q.answers:
            _write(w, e, r, t, WRITE_ANSWER)
    after = q.next_turn
    if after >= 0 and w.rules[0].lead_s > 0 and w.request[after].arrival_s > t:
        _timer(w, after, PREFETCH, max(t, w.request[after].arrival_s - w.rules[0].lead_s))


# Between the pools


@compiled
def _offer(w, r, t):
    """Choose the instance that decodes and wait there for room."""
    q = w.request[r]
    if q.output <= 1 and not w.rules[0].first_from_decode:
        return
    d = _route_decode(w, r, t)
    x = w.engine[d]
    q.target = d
    x.coming += 1
    x.coming_context += q.input
    _append(w, x, r)
    _grant(w, d, t)


@compiled
def _grant(w, d, t):
    """Reserve cache in order of waiting, and send."""
    x = w.engine[d]
    while x.fifo >= 0 and x.private + w.request[x.fifo].need <= x.capacity:
        r = x.fifo
        x.fifo = w.request[r].after
        x.private += w.request[r].need
        _send(w, r, t)


@inlined
def _send(w, r, t):
    """Send a cache layer by layer; both ends send or receive one after another.

    Alone it takes what ``visible_transfer_time`` says.
    """
    q, layers = w.request[r], w.rules[0].layers
    source, sink = w.engine[q.engine], w.engine[q.target]
    q.sent = q.input * w.rules[0].kv_bytes + w.rules[0].boundary_bytes
    alone = q.sent / min(source.link_rate, sink.link_rate)
    first_layer_s = q.end_s - (q.end_s - q.serve_s) * (layers - 1) / layers
    start = max(max(t, first_layer_s), max(source.link_free_s, sink.link_free_s))
    source.link_free_s = start + q.sent / source.link_rate
    sink.link_free_s = start + q.sent / sink.link_rate
    _timer(w, r, ARRIVED, max(start + alone, q.end_s + alone / layers) + w.rules[0].latency_s)


@inlined
def _arrived(w, r, t):
    """The cache is on the other side."""
    q = w.request[r]
    x = w.engine[q.target]
    _release(w, q.engine, r)
    _poke(w, q.engine, t)
    if w.rules[0].first_from_decode:
        q.first_token_s = t
    if q.output <= 1:
        x.coming -= 1
        x.coming_context -= q.input
        _finish(w, q.target, r, t)
    else:
        _append_joining(w, x, r)
        _poke(w, q.target, t)


# Arrivals


@inlined
def _enter(w, r, t):
    """Route a request that nobody knows yet, with its load; tells the instance."""
    e = _route(w, r, t)
    w.engine[e].work += w.request[r].work
    w.engine[e].waiting += 1
    return e


@inlined
def _fetch_early(w, e, r, t):
    """Start a request before its turn if it has something to fetch; False if not."""
    _plan(w, e, r, False)
    q = w.request[r]
    return q.cut[q.taken] > q.cut[0] and _start(w, e, r, t, False)


@inlined
def _arrival(w, r, t):
    q = w.request[r]
    if q.started:
        if q.pending == 0:
            _make_ready(w, r, t)
        return
    e = _enter(w, r, t)
    x = w.engine[e]
    if x.waiting > w.rules[0].queue_limit:
        q.rejected = True
        x.work -= q.work
        x.waiting -= 1
        return
    for block in _ids(w, r):
        w.links[len(w.links) - 1, block, 0] = r
    if w.rules[0].tiers and w.rules[0].lead_s >= 0 and _fetch_early(w, e, r, t):
        if q.pending == 0:
            _make_ready(w, r, t)
        return
    _append(w, x, r)
    _poke(w, e, t)


@inlined
def _prefetch(w, r, t):
    """A coming turn is known: fetch for it where it would go."""
    e = _enter(w, r, t)
    if not _fetch_early(w, e, r, t):
        w.engine[e].work -= w.request[r].work
        w.engine[e].waiting -= 1


@inlined
def _timer_event(w, t):
    number = w.rules[0].timers
    w.rules[0].timers = popped(w.node, number)
    number -= JOBS * len(w.request)
    r, kind = number // TIMERS, number % TIMERS
    q = w.request[r]
    if kind == PREFETCH:
        _prefetch(w, r, t)
    elif kind == ARRIVED:
        _arrived(w, r, t)
    else:
        q.pending -= 1
        if q.pending == 0 and q.front == 0 and q.arrival_s <= t:
            _make_ready(w, r, t)


@numba.njit(cache=True, error_model="numpy")
def run(w):
    """All events from the first arrival until nothing is left to happen."""
    arrivals = len(w.request)
    while True:
        source, t = -3, np.inf
        if w.rules[0].arrivals < arrivals:
            source, t = -2, w.request[w.rules[0].arrivals].arrival_s
        if w.rules[0].timers >= 0 and w.node[w.rules[0].timers].key < t:
            source, t = -1, w.node[w.rules[0].timers].key
        for u in range(len(w.unit)):
            if w.unit[u].next_s < t:
                source, t = u, w.unit[u].next_s
        for e in range(len(w.engine)):
            if w.engine[e].next_s < t:
                source, t = len(w.unit) + e, w.engine[e].next_s
        if source == -3:
            return
        if source == -2:
            w.rules[0].arrivals += 1
            _arrival(w, w.rules[0].arrivals - 1, t)
        elif source == -1:
            _timer_event(w, t)
        elif source < len(w.unit):
            _unit_event(w, source, t)
        else:
            _engine_event(w, source - len(w.unit), t)
