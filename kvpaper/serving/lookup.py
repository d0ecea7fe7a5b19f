"""What a request finds at an instance, what of it to fetch, and its start."""

from kvpaper.serving.cache import pin, refresh, usable
from kvpaper.serving.compiled import compiled, inlined
from kvpaper.serving.state import (
    ALWAYS,
    JOBS,
    TWO_ENDED,
    ids_of,
    prefill_of,
    rest_of,
    tokens_between,
)
from kvpaper.serving.tiers import submit


@inlined
def _look_up(w, e, r):
    """Count the leading blocks that GPU memory holds, or it and the tiers up to each."""
    q, ids, j = w.request[r], ids_of(w, r), 0
    for level in range(w.rules[0].tiers + 1):
        while j < len(ids):
            held = usable(w.links, e, ids[j])
            for k in range(level):
                held = held or w.links[w.unit[w.engine[e].unit[k]].store, ids[j], 0] > 0
            if not held:
                break
            j += 1
        q.cut[level] = j


@compiled
def _fetched_tokens(w, r, k, front):
    """Tokens to fetch from tier ``k``, counted from 1, behind ``front`` computed blocks."""
    q = w.request[r]
    return tokens_between(w, r, max(q.cut[k - 1], q.cut[0] + front), q.cut[k])


@compiled
def _fetch_s(w, e, r, most, front):
    """Time to fetch the hits of tiers up to ``most`` by their load now; they work side by side."""
    longest, boundary = 0.0, w.rules[0].boundary_bytes
    for k in range(most, 0, -1):
        tokens = _fetched_tokens(w, r, k, front)
        if tokens > 0:
            unit = w.unit[w.engine[e].unit[k - 1]]
            alone = (tokens * w.rules[0].kv_bytes + boundary) / unit.read
            boundary = 0.0
            slower = max(1.0, (unit.active + 1) / unit.lanes)
            longest = max(longest, unit.latency + alone * slower)
    return longest


@compiled
def _front_s(w, r, front):
    block = w.rules[0].block
    return prefill_of(w, front * block, w.request[r].cut[0] * block) if front else 0.0


@inlined
def _meeting(w, e, r, most):
    """Least number of blocks at the front whose computation outlasts the fetch of the others."""
    low, high = 0, (w.request[r].cut[most] - w.request[r].cut[0])
    while low < high:
        middle = (low + high) // 2
        if _front_s(w, r, middle) < _fetch_s(w, e, r, most, middle):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _recovered_s(w, e, r, most, front):
    """Time until the prompt is computed if the hits of tiers up to ``most`` are used."""
    new = rest_of(w, r, w.request[r].cut[most])
    recovered = max(_fetch_s(w, e, r, most, front), _front_s(w, r, front))
    return recovered + prefill_of(w, new, w.request[r].input - new)


@compiled
def plan(w, e, r, two_ended):
    """Look the prompt up at an instance, choose what to fetch, and tell how long it would take."""
    q, tiers = w.request[r], w.rules[0].tiers
    _look_up(w, e, r)
    q.front, q.taken = 0, tiers if w.rules[0].fetch == ALWAYS else 0
    best = _recovered_s(w, e, r, q.taken, 0)
    for k in range(q.taken + 1, tiers + 1):
        if q.cut[k] == q.cut[k - 1]:
            continue
        low = high = 0
        if two_ended and w.rules[0].fetch == TWO_ENDED:
            high = _meeting(w, e, r, k)
            low = max(0, high - 1)
        for front in (0, low, high):
            found = _recovered_s(w, e, r, k, front)
            if found < best:
                best, q.taken, q.front = found, k, front
    return best


@compiled
def start(w, e, r, t, two_ended):
    """Look up, hold the blocks and start to fetch; False if there is no room."""
    x, q, ids = w.engine[e], w.request[r], ids_of(w, r)
    wanted = x.pinned + x.private + q.room
    if wanted > x.capacity:
        return False
    for block in ids:
        wanted += w.links[e, block, 0] >= 0
    if wanted > x.capacity:
        return False
    plan(w, e, r, two_ended)
    q.started, q.engine = True, e
    x.private += q.room
    pin(w.links, x, e, ids)
    for k in range(w.rules[0].tiers):
        refresh(w.links, w.unit[x.unit[k]].store, ids)
    q.hit[0] = tokens_between(w, r, 0, q.cut[0])
    boundary = w.rules[0].boundary_bytes
    for k in range(q.taken, 0, -1):
        q.hit[k] = _fetched_tokens(w, r, k, q.front)
        if q.hit[k] > 0:
            u = x.unit[k - 1]
            q.fetched[k - 1] = q.hit[k] * w.rules[0].kv_bytes + boundary
            boundary = 0.0
            q.pending += 1
            submit(w, u, JOBS * r + k - 1, q.fetched[k - 1] / w.unit[u].read, t)
    set_todo(w, r)
    return True


@compiled
def set_todo(w, r):
    """Tokens of the phase to come: the front of a two-ended recovery, then what is new."""
    q, block = w.request[r], w.rules[0].block
    if q.front:
        q.todo, q.behind = q.front * block, q.cut[0] * block
    else:
        q.todo = rest_of(w, r, q.cut[q.taken])
        q.behind = q.input - q.todo
