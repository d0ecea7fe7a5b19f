"""The replay itself: events in order of time, compiled.

Sources of events are the next arrival, a heap of timers (fetches that end, caches that arrive,
prefetches that are due), the units of the tiers and the instances. Each source holds one time; at
equal times arrivals come first and instances last.

An instance works in periods: a prompt, a step that mixes a chunk with the batch, or a run of decode
steps. A run ends at the step in which something new can join, so that a request costs two events
there and every step still counts.
"""

import numba
import numpy as np

from kvpaper.serving.cache import keep, mark_computed, unpin
from kvpaper.serving.compiled import compiled, inlined
from kvpaper.serving.heap import NONE, popped, pushed
from kvpaper.serving.lookup import plan, set_todo, start
from kvpaper.serving.routing import route, route_decode
from kvpaper.serving.state import (
    ANSWER,
    ARRIVED,
    JOBS,
    JOINING,
    LANDING,
    PREFETCH,
    PROMPT,
    TIMERS,
    WAITING,
    answer_of,
    append,
    ids_of,
    prefill_of,
    queue_node,
    set_timer,
)
from kvpaper.serving.steps import run_s, step_s, steps_until
from kvpaper.serving.tiers import unit_event, write_back

# What is to be prefilled


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
    """All that was to be fetched is there; the request keeps its place by arrival."""
    x = w.engine[w.request[r].engine]
    x.ready = pushed(w.node, x.ready, queue_node(w, r), np.float64(r))
    _poke(w, w.request[r].engine, t)


@compiled
def _pick(w, e, t):
    """The next request to prefill in order of arrival; -1 if none is ready or has room."""
    x, none, room = w.engine[e], len(w.request), True
    while True:
        ready = x.ready - queue_node(w, 0) if x.ready >= 0 else none
        head = x.head[WAITING] if x.head[WAITING] >= 0 and room else none
        if head < ready:
            room = start(w, e, head, t, True)
            if room:
                x.head[WAITING] = w.request[head].after[WAITING]
                if w.request[head].pending == 0 or w.request[head].front:
                    return head
        elif ready < none:
            x.ready = popped(w.node, x.ready)
            return ready
        else:
            return NONE


@compiled
def _serve(w, e, r, tokens, t):
    """An instance computes tokens of a request from now on."""
    x, q = w.engine[e], w.request[r]
    if np.isnan(q.prefill_start_s):
        q.prefill_start_s = t
        x.waiting -= 1
    q.serve_s, q.part = t, tokens
    q.behind += tokens
    q.todo -= tokens
    done = q.work if q.todo == 0 else q.work * tokens // (tokens + q.todo)
    x.work -= done
    q.work -= done
    if q.todo == 0:
        append(w, x, LANDING, r)
        if q.front == 0:
            # What follows on this instance may count on the blocks.
            mark_computed(w.links, e, ids_of(w, r))


# Periods


@inlined
def _next_period(w, e, t):
    """What an instance does next."""
    x = w.engine[e]
    x.start_s, x.run, x.steps, x.part_s, x.head[LANDING] = t, False, 0, 0.0, NONE
    if x.prefills and (_mix(w, e, t) if x.chunk else _prefill(w, e, t)):
        return
    x.next_s = np.inf
    if x.batch:
        x.run, x.steps = True, np.int64(w.node[x.running].key) - x.done
        x.next_s = t + run_s(w.steps, x.batch, x.context / x.batch, x.steps)


@inlined
def _prefill(w, e, t):
    """A whole prompt; False if there is none."""
    x, r = w.engine[e], _pick(w, e, t)
    if r < 0:
        return False
    q = w.request[r]
    took = prefill_of(w, q.todo, q.behind)
    q.prefill_s += took
    x.prefill_busy_s += took
    q.end_s = x.next_s = t + took
    _serve(w, e, r, q.todo, t)
    if q.front == 0 and not x.decodes and w.rules[0].layers > 1:
        _offer(w, r, t)
    return True


@inlined
def _mix(w, e, t):
    """A step of prompt tokens and the running batch; False if no prompt can go on.

    It lasts the prefill of all its tokens, weights read once, and what the attention of the batch
    adds: its step beyond that at the least context.
    """
    x = w.engine[e]
    new, cached = 0, 0.0
    while new + x.batch < x.chunk:
        r = x.current if x.current >= 0 else _pick(w, e, t)
        if r < 0:
            break
        q = w.request[r]
        tokens = min(x.chunk - x.batch - new, q.todo)
        new += tokens
        cached += tokens * q.behind
        _serve(w, e, r, tokens, t)
        x.current = r if q.todo else NONE
    if new == 0:
        return False
    alone = took = prefill_of(w, new, cached / new)
    if x.batch:
        attention = step_s(w.steps, x.batch, x.context / x.batch) - w.steps[x.batch, 0]
        took = prefill_of(w, new + x.batch, cached / new) + attention
        x.steps, x.part_s = 1, took - alone
    x.prefill_busy_s += alone
    x.next_s = t + took
    r = x.head[LANDING]
    while r >= 0:
        w.request[r].prefill_s += alone * w.request[r].part / new
        r = w.request[r].after[LANDING]
    if x.current >= 0:
        w.request[x.current].prefill_s += alone * w.request[x.current].part / new
    return True


@inlined
def _engine_event(w, e, t):
    """A period has ended: answers end, prompts land, what waits joins the batch."""
    x = w.engine[e]
    if x.steps:
        part = t - x.start_s if x.run else x.part_s
        x.decode_busy_s += part
        x.share_s += part / x.batch
        x.done += x.steps
        x.context += x.batch * x.steps
        while x.running >= 0 and w.node[x.running].key <= x.done:
            r = x.running - queue_node(w, 0)
            x.running = popped(w.node, x.running)
            x.batch -= 1
            x.context -= w.request[r].input + w.request[r].output
            w.request[r].decode_s = x.share_s - w.request[r].share_s
            _finish(w, e, r, t)
    r = x.head[LANDING]
    while r >= 0:
        _land(w, e, r, t)
        r = w.request[r].after[LANDING]
    while x.head[JOINING] >= 0 and x.batch < w.rules[0].max_batch:
        r = x.head[JOINING]
        x.head[JOINING] = w.request[r].after[JOINING]
        _join(w, x, r)
    _next_period(w, e, t)


@inlined
def _join(w, x, r):
    q = w.request[r]
    _expect(x, q, -1)
    x.batch += 1
    x.context += q.input + 1
    q.share_s = x.share_s
    x.running = pushed(w.node, x.running, queue_node(w, r), np.float64(x.done + q.output - 1))


@inlined
def _expect(x, q, more):
    """A request is bound for the batch of an instance, or no longer."""
    x.coming += more
    x.coming_context += more * q.input


@inlined
def _land(w, e, r, t):
    """A phase of a prefill has ended."""
    q, x, rules = w.request[r], w.engine[e], w.rules[0]
    if q.front:
        q.front = 0
        set_todo(w, r)
        if q.pending == 0:
            x.ready = pushed(w.node, x.ready, queue_node(w, r), np.float64(r))
        return
    write_back(w, e, r, t, PROMPT)
    if x.decodes or not rules.first_from_decode:
        q.first_token_s = t
    if x.decodes and q.output == 1:
        _finish(w, e, r, t)
    elif x.decodes:
        _expect(x, q, 1)
        append(w, x, JOINING, r)
    elif q.output == 1 and not rules.first_from_decode:
        _release(w, e, r)
        _finish(w, NONE, r, t)
    elif rules.layers == 1:
        _offer(w, r, t)


@compiled
def _release(w, e, r):
    """An instance lets a request go; where it decoded, it keeps the answer."""
    x = w.engine[e]
    x.private -= w.request[r].room
    if x.decodes:
        keep(w.links, x, e, answer_of(w, r))
    unpin(w.links, x, e, ids_of(w, r))


@compiled
def _finish(w, e, r, t):
    """A request has its last token at instance ``e``; -1 if it needed no instance to decode."""
    q, lead_s = w.request[r], w.rules[0].lead_s
    q.finish_s = t
    if e >= 0:
        x = w.engine[e]
        if x.prefills:
            _release(w, e, r)
        else:
            x.private -= q.need
            _grant(w, x, t)
        if q.answers:
            write_back(w, e, r, t, ANSWER)
    if q.next_turn >= 0 and lead_s > 0 and w.request[q.next_turn].arrival_s > t:
        due_s = max(t, w.request[q.next_turn].arrival_s - lead_s)
        set_timer(w, q.next_turn, PREFETCH, due_s)


# Between the pools


@compiled
def _offer(w, r, t):
    """Choose the instance that decodes and wait there for room."""
    q = w.request[r]
    if q.output > 1 or w.rules[0].first_from_decode:
        q.target = route_decode(w, r, t)
        x = w.engine[q.target]
        _expect(x, q, 1)
        append(w, x, WAITING, r)
        _grant(w, x, t)


@compiled
def _grant(w, x, t):
    """Reserve cache in order of waiting, and send."""
    while x.head[WAITING] >= 0 and x.private + w.request[x.head[WAITING]].need <= x.capacity:
        r = x.head[WAITING]
        x.head[WAITING] = w.request[r].after[WAITING]
        x.private += w.request[r].need
        _send(w, r, x, t)


@inlined
def _send(w, r, sink, t):
    """Send a cache layer by layer; both ends send or receive one after another.

    Alone it takes what ``visible_transfer_time`` says.
    """
    q, rules = w.request[r], w.rules[0]
    source = w.engine[q.engine]
    q.sent = q.input * rules.kv_bytes + rules.boundary_bytes
    alone = q.sent / min(source.link_rate, sink.link_rate)
    first_layer_s = q.end_s - (q.end_s - q.serve_s) * (rules.layers - 1) / rules.layers
    begin = max(max(t, first_layer_s), max(source.link_free_s, sink.link_free_s))
    source.link_free_s = begin + q.sent / source.link_rate
    sink.link_free_s = begin + q.sent / sink.link_rate
    sent_s = max(begin + alone, q.end_s + alone / rules.layers)
    set_timer(w, r, ARRIVED, sent_s + rules.latency_s)


@inlined
def _arrived(w, r, t):
    """The cache is on the other side."""
    q = w.request[r]
    _release(w, q.engine, r)
    _poke(w, q.engine, t)
    if w.rules[0].first_from_decode:
        q.first_token_s = t
    if q.output == 1:
        _expect(w.engine[q.target], q, -1)
        _finish(w, q.target, r, t)
    else:
        append(w, w.engine[q.target], JOINING, r)
        _poke(w, q.target, t)


# Arrivals


@compiled
def _fetch_early(w, e, r, t):
    """Start a request before its turn if it has something to fetch; False if not."""
    q = w.request[r]
    plan(w, e, r, False)
    return q.cut[q.taken] > q.cut[0] and start(w, e, r, t, False)


@inlined
def _forget(x, q):
    """An instance no longer waits for a request."""
    x.work -= q.work
    x.waiting -= 1


@inlined
def _arrival(w, r, t):
    q, rules = w.request[r], w.rules[0]
    if not q.started:
        e = route(w, r, t)
        x = w.engine[e]
        if x.waiting > rules.queue_limit:
            q.rejected = True
            _forget(x, q)
            return
        for block in ids_of(w, r):
            w.links[len(w.links) - 1, block, 0] = r
        if rules.tiers == 0 or rules.lead_s < 0 or not _fetch_early(w, e, r, t):
            append(w, x, WAITING, r)
            _poke(w, e, t)
            return
    if q.pending == 0:
        _make_ready(w, r, t)


@inlined
def _timer_event(w, t):
    number = w.rules[0].timers
    w.rules[0].timers = popped(w.node, number)
    number -= JOBS * len(w.request)
    r, kind = number // TIMERS, number % TIMERS
    q = w.request[r]
    if kind == PREFETCH:
        e = route(w, r, t)
        if not _fetch_early(w, e, r, t):
            _forget(w.engine[e], q)
    elif kind == ARRIVED:
        _arrived(w, r, t)
    else:
        q.pending -= 1
        if q.pending == 0 and q.front == 0 and q.arrival_s <= t:
            _make_ready(w, r, t)


@numba.njit(cache=True, error_model="numpy")
def run(w):
    """All events from the first arrival until nothing is left to happen."""
    rules, arrivals, units = w.rules[0], len(w.request), len(w.unit)
    while True:
        source, t = -3, np.inf
        if rules.arrivals < arrivals:
            source, t = -2, w.request[rules.arrivals].arrival_s
        if rules.timers >= 0 and w.node[rules.timers].key < t:
            source, t = -1, w.node[rules.timers].key
        for u in range(units):
            if w.unit[u].next_s < t:
                source, t = u, w.unit[u].next_s
        for e in range(len(w.engine)):
            if w.engine[e].next_s < t:
                source, t = units + e, w.engine[e].next_s
        if source == -3:
            return
        if source == -2:
            rules.arrivals += 1
            _arrival(w, rules.arrivals - 1, t)
        elif source == -1:
            _timer_event(w, t)
        elif source < units:
            unit_event(w, source, t)
        else:
            _engine_event(w, source - units, t)
