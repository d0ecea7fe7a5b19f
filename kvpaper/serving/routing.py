"""Which instance serves a request, by the load of this moment; among equals the next in turn."""

import numpy as np

from kvpaper.serving.compiled import compiled, inlined
from kvpaper.serving.lookup import plan
from kvpaper.serving.state import LEAST_LOADED, PRESET, ids_of, prefill_of, rest_of
from kvpaper.serving.steps import run_s, step_s, steps_until


@inlined
def _context_now(w, x, t):
    """Sum of contexts of the running batch, steps of the present run included."""
    if not x.run:
        return x.context
    mean = x.context / x.batch
    steps = steps_until(w.steps, x.batch, mean, t - x.start_s, x.steps)
    if steps and run_s(w.steps, x.batch, mean, steps) > t - x.start_s:
        steps -= 1
    return x.context + x.batch * steps


@compiled
def _step_if_joined(w, x, r, t):
    """Step time of an instance with all that is bound for it and one request more."""
    batch = x.batch + x.coming + 1
    context = _context_now(w, x, t) + x.coming_context + w.request[r].input
    most = min(batch, w.rules[0].max_batch)
    return step_s(w.steps, most, context / batch) * (batch / most)


@inlined
def _backlog_s(w, x, r, t):
    """Prefill work before a new request [s]; where the instance decodes too, a step beside it."""
    load = x.work * 1e-9
    if not x.run and x.next_s > t and x.next_s < np.inf:
        load += x.next_s - t
    return load + (_step_if_joined(w, x, r, t) if x.decodes else 0.0)


@inlined
def _expected_prefill_s(w, e, r):
    """Time to recover and prefill at an instance; what is promised to it counts as there."""
    ids, j = ids_of(w, r), 0
    while j < len(ids):
        if w.links[e, ids[j], 0] == 0:
            owner = w.links[len(w.links) - 1, ids[j], 0]
            if owner < 0 or w.request[owner].engine != e or w.request[owner].started:
                break
        j += 1
    new = rest_of(w, r, j)
    return min(plan(w, e, r, False), prefill_of(w, new, w.request[r].input - new))


@compiled
def route(w, r, t):
    """The instance that prefills; it has the request's work and one more waiting from now on."""
    q, rules = w.request[r], w.rules[0]
    chosen, least = q.preset, np.inf
    cold = work = prefill_of(w, rest_of(w, r, 0), 0)
    if rules.router != PRESET:
        for i in range(rules.prefilling):
            e = (rules.last + 1 + i) % rules.prefilling
            own = cold if rules.router == LEAST_LOADED else _expected_prefill_s(w, e, r)
            load = _backlog_s(w, w.engine[e], r, t) + own
            if load < least:
                chosen, least, work = e, load, own
        rules.last = chosen
    q.engine, q.work = chosen, np.int64(np.ceil(work * 1e9))
    w.engine[chosen].work += q.work
    w.engine[chosen].waiting += 1
    return chosen


@compiled
def route_decode(w, r, t):
    """The instance that decodes."""
    rules, first = w.rules[0], w.rules[0].prefilling
    n = len(w.engine) - first
    chosen, least = first + w.request[r].decode_preset, np.inf
    if rules.decode_router == LEAST_LOADED:
        for i in range(n):
            d = first + (rules.decode_last + 1 + i) % n
            load = _step_if_joined(w, w.engine[d], r, t)
            if load < least:
                chosen, least = d, load
        rules.decode_last = chosen - first
    return chosen
