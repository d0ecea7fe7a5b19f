"""A replay written a second time: plain Python, one decode step after another, nothing clever.

It shares the value objects with the package, and no code of the replay. The
order of simultaneous events is part of the semantics: arrivals, timers, tiers, instances.
"""

import bisect
import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from kvpaper.reuse.fleet import sessions_of

ARRIVAL, TIMER, UNIT, INSTANCE = range(4)


@dataclass(eq=False)
class Request:
    number: int
    arrival_s: float
    input: int
    output: int
    ids: list
    answer: list = field(default_factory=list)
    next_turn: object = None
    instance: object = None
    target: object = None
    started: bool = False
    pending: int = 0
    cuts: list = None
    taken: int = 0
    front: int = 0
    todo: int = 0
    base: int = 0
    work_left: int = 0
    serve_s: float = 0.0
    end_s: float = 0.0
    written: dict = field(default_factory=dict)
    context: int = 0
    left: int = 0
    # Outcome.
    rejected: bool = False
    prefill_start_s: float = math.nan
    first_token_s: float = math.nan
    finish_s: float = math.nan
    prefill_s: float = 0.0
    decode_s: float = 0.0
    hits: list = None
    fetched: list = None
    wrote: list = None
    sent: float = 0.0


def bilinear(rows, columns, values, row, column):
    i = min(bisect.bisect_right(rows, row), len(rows) - 1)
    j = min(bisect.bisect_right(columns, column), len(columns) - 1)
    down = (row - rows[i - 1]) / (rows[i] - rows[i - 1])
    right = (column - columns[j - 1]) / (columns[j] - columns[j - 1])
    above = values[i - 1][j - 1] * (1 - right) + values[i - 1][j] * right
    below = values[i][j - 1] * (1 - right) + values[i][j] * right
    return float(above * (1 - down) + below * down)


class Unit:
    """A tier that some instances share: an LRU list, and a device under processor sharing."""

    def __init__(self, k, tier, lanes, capacity):
        self.k, self.tier, self.lanes, self.capacity = k, tier, lanes, capacity
        self.blocks, self.seen = OrderedDict(), set()
        self.jobs, self.at_s = [], 0.0

    def speed(self):
        return min(1.0, self.lanes / len(self.jobs))

    def advance(self, t):
        for job in self.jobs:
            job[0] -= (t - self.at_s) * self.speed()
        self.at_s = t

    def next_s(self):
        if not self.jobs:
            return math.inf
        return self.at_s + max(0.0, min(self.jobs)[0]) / self.speed()


class Instance:
    def __init__(self, number, pool, prefills, decodes, capacity, chunk):
        self.number, self.pool = number, pool
        self.prefills, self.decodes, self.chunk = prefills, decodes, chunk
        self.capacity, self.units = capacity, []
        self.holders, self.computed, self.cached, self.private = {}, set(), OrderedDict(), 0
        self.queue, self.ready, self.joining, self.batch, self.coming = [], [], [], [], []
        self.waiting, self.current = 0, None
        self.next_s, self.start_s, self.landing = math.inf, 0.0, []
        self.stepping, self.only_decode, self.part_s = [], False, 0.0
        self.link_free_s = 0.0
        self.prefill_busy_s = self.decode_busy_s = 0.0

    def usable(self, block):
        return block in self.cached or (block in self.holders and block in self.computed)

    def used(self):
        return len(self.holders) + self.private


class Reference:
    def __init__(self, fleet, trace, seed=0):
        self.fleet, self.block = fleet, trace.block_tokens
        self.kv, self.boundary = fleet.kv_bytes_per_token, fleet.boundary_bytes
        self.requests = [
            Request(
                r,
                float(trace.arrival_s[r]),
                int(trace.input_tokens[r]),
                max(1, int(trace.output_tokens[r])),
                trace.blocks[trace.offsets[r] : trace.offsets[r + 1]].tolist(),
            )
            for r in range(trace.requests)
        ]
        for q in self.requests:
            q.hits = [0] * (len(fleet.tiers) + 1)
            q.fetched, q.wrote = [0.0] * len(fleet.tiers), [0.0] * len(fleet.tiers)
        self.find_answers()
        self.find_turns_and_places(trace, seed)
        self.build()
        self.timers, self.promised = [], {}
        self.last = self.decode_last = -1

    def find_answers(self):
        if not self.fleet.answers:
            return
        for q in self.requests:
            full = min(q.input // self.block, len(q.ids))
            later = self.requests[q.number + 1 :]
            follower = next((n for n in later if full and q.ids[full - 1] in n.ids), None)
            whole = q.input + q.output - 1
            if follower is None or follower.input < whole:
                continue
            stop = whole // self.block
            if len(follower.ids) >= stop and follower.ids[full - 1] == q.ids[full - 1]:
                q.answer = follower.ids[full:stop]

    def find_turns_and_places(self, trace, seed):
        random, fleet = np.random.default_rng(seed), self.fleet
        session = sessions_of(trace)
        if fleet.router == "session" or (fleet.prefetch_lead_s or 0) > 0:
            for q in self.requests:
                later = self.requests[q.number + 1 :]
                same = (n for n in later if session[n.number] == session[q.number])
                q.next_turn = next(same, None)
        self.places, self.decode_places = (
            self.places_of(router, pool, random, session)
            for router, pool in (
                (fleet.router, fleet.prefill),
                (fleet.decode_router, fleet.decode),
            )
        )

    def places_of(self, router, pool, random, session):
        n, count = pool.instances if pool else 1, len(self.requests)
        if router == "random":
            return random.integers(0, n, count)
        if router == "round robin":
            return np.arange(count) % n
        if router == "session":
            return random.integers(0, n, int(session.max()) + 1)[session]
        return None

    def build(self):
        fleet, colocated = self.fleet, self.fleet.decode is None
        blocks = [pool.kv_tokens // self.block for pool in fleet.pools]
        self.front = [
            Instance(i, fleet.prefill, True, colocated, blocks[0], fleet.prefill.chunk_tokens)
            for i in range(fleet.prefill.instances)
        ]
        self.back = [
            Instance(len(self.front) + i, fleet.decode, False, True, blocks[1], None)
            for i in range(0 if colocated else fleet.decode.instances)
        ]
        self.instances, self.units = self.front + self.back, []
        stored = self.block * self.kv + self.boundary
        for k, tier in enumerate(fleet.tiers):
            sharing = fleet.instances_sharing(tier)
            for first in range(0, len(self.front), sharing):
                group = self.front[first : first + sharing]
                unit = Unit(k, tier, len(group), len(group) * tier.capacity_bytes // stored)
                self.units.append(unit)
                for x in group:
                    x.units.append(unit)
            for x in self.back:
                x.units.append(unit if tier.scope == "pooled" else None)
        self.decoding = fleet.decode or fleet.prefill

    # Times

    def prefill(self, new, cached):
        table = self.fleet.prefill.prefill_table
        return bilinear(table.new_tokens, table.cached_tokens, table.seconds, new, cached)

    def step(self, batch, context):
        table = self.decoding.decode_table
        context = max(context, table.context[0])
        return bilinear(table.batch, table.context, table.seconds, batch, context)

    def rest(self, q, blocks):
        return max(1, q.input - blocks * self.block)

    def tokens(self, q, low, high):
        return sum(
            max(0, min(self.block, q.input - j * self.block)) for j in range(low, max(low, high))
        )

    # Lookup

    def cut(self, x, q, k):
        for j, block in enumerate(q.ids):
            if not x.usable(block) and not any(block in u.blocks for u in x.units[:k]):
                return j
        return len(q.ids)

    def fetch_s(self, x, q, k, front):
        longest, boundary = 0.0, self.boundary
        for i in range(k, 0, -1):
            count = self.tokens(q, max(q.cuts[i - 1], q.cuts[0] + front), q.cuts[i])
            if count:
                unit = x.units[i - 1]
                alone = (count * self.kv + boundary) / unit.tier.read_bytes_per_s
                slower = max(1.0, (len(unit.jobs) + 1) / unit.lanes)
                longest = max(longest, unit.tier.access_latency_s + alone * slower)
                boundary = 0.0
        return longest

    def front_s(self, q, front):
        return self.prefill(front * self.block, q.cuts[0] * self.block) if front else 0.0

    def recovered_s(self, x, q, k, front):
        new = self.rest(q, q.cuts[k])
        first = max(self.fetch_s(x, q, k, front), self.front_s(q, front))
        return first + self.prefill(new, q.input - new)

    def plan(self, x, q, two_ended):
        tiers = len(self.fleet.tiers)
        q.cuts = [self.cut(x, q, k) for k in range(tiers + 1)]
        q.front = 0
        if self.fleet.fetch == "always":
            q.taken = tiers
            return self.recovered_s(x, q, tiers, 0)
        best, q.taken = self.recovered_s(x, q, 0, 0), 0
        for k in range(1, tiers + 1):
            if q.cuts[k] == q.cuts[k - 1]:
                continue
            fronts = [0]
            if two_ended and self.fleet.fetch == "two-ended":
                most = q.cuts[k] - q.cuts[0]
                meeting = next(
                    f
                    for f in range(most + 1)
                    if f == most or self.front_s(q, f) >= self.fetch_s(x, q, k, f)
                )
                fronts += [f for f in (meeting - 1, meeting) if f > 0]
            for front in fronts:
                found = self.recovered_s(x, q, k, front)
                if found < best:
                    best, q.taken, q.front = found, k, front
        return best

    def room(self, x, q):
        tokens = q.input + q.output - 1 if x.decodes else q.input
        return max(0, -(-tokens // self.block) - len(q.ids))

    def start(self, x, q, t, two_ended):
        new = sum(block not in x.holders for block in q.ids)
        if x.used() + self.room(x, q) + new > x.capacity:
            return False
        self.plan(x, q, two_ended)
        q.started, q.instance = True, x
        for block in q.ids:
            if block in x.cached:
                x.computed.add(block)
                del x.cached[block]
            x.holders[block] = x.holders.get(block, 0) + 1
        x.private += self.room(x, q)
        while x.used() + len(x.cached) > x.capacity:
            x.cached.popitem(last=False)
        for unit in x.units:
            for block in reversed(q.ids):
                if block in unit.blocks:
                    unit.blocks.move_to_end(block)
        q.hits[0] = self.tokens(q, 0, q.cuts[0])
        boundary = self.boundary
        for k in range(q.taken, 0, -1):
            count = self.tokens(q, max(q.cuts[k - 1], q.cuts[0] + q.front), q.cuts[k])
            if count:
                q.hits[k] = count
                q.fetched[k - 1] = count * self.kv + boundary
                boundary = 0.0
                q.pending += 1
                seconds = q.fetched[k - 1] / x.units[k - 1].tier.read_bytes_per_s
                self.submit(x.units[k - 1], seconds, q, "read", t)
        self.set_todo(q)
        return True

    def set_todo(self, q):
        if q.front:
            q.todo, q.base = q.front * self.block, q.cuts[0] * self.block
        else:
            q.todo = self.rest(q, q.cuts[q.taken])
            q.base = q.input - q.todo

    # Tiers

    def submit(self, unit, seconds, q, kind, t):
        unit.advance(t)
        order = q.number * 9 + ("read", "prompt", "answer").index(kind) * 3 + unit.k
        unit.jobs.append([seconds, order, q, kind])

    def write(self, x, q, t, kind):
        ids = q.ids if kind == "prompt" else q.answer
        for unit in x.units:
            if unit is None:
                continue
            first, stop, size = None, len(ids), 0.0
            for j, block in enumerate(ids):
                if block in unit.blocks:
                    continue
                fresh = unit.tier.admission == "second use" and block not in unit.seen
                unit.seen.add(block)
                if fresh:
                    stop = min(stop, j)
                elif j < stop:
                    first = j if first is None else first
                    tokens = self.tokens(q, j, j + 1) if kind == "prompt" else self.block
                    size += tokens * self.kv + self.boundary
            if first is None:
                continue
            q.written[kind, unit.k] = (first, stop)
            q.wrote[unit.k] += size
            self.submit(unit, size / unit.tier.write_bytes_per_s, q, kind, t)

    def unit_event(self, unit, t):
        unit.advance(t)
        job = min(unit.jobs)
        unit.jobs.remove(job)
        _, _, q, kind = job
        if kind == "read":
            self.timer(t + unit.tier.access_latency_s, q, 1 + unit.k)
            return
        ids = q.ids if kind == "prompt" else q.answer
        first, stop = q.written[kind, unit.k]
        for j in reversed(range(len(ids))):
            if ids[j] in unit.blocks:
                unit.blocks.move_to_end(ids[j])
            elif first <= j < stop:
                if len(unit.blocks) >= unit.capacity:
                    gone, _ = unit.blocks.popitem(last=False)
                    unit.seen.add(gone)
                unit.blocks[ids[j]] = None

    # Routing

    def step_if_joined(self, x, q):
        batch = len(x.batch) + len(x.coming) + 1
        context = sum(one.context for one in x.batch) + sum(one.input for one in x.coming)
        most = min(batch, int(self.decoding.decode_table.batch[-1]))
        return self.step(most, (context + q.input) / batch) * (batch / most)

    def backlog_s(self, x, q, t):
        bound = (one for one in self.requests if one.instance is x and not one.rejected)
        load = sum(one.work_left for one in bound if one is not q) * 1e-9
        if not x.only_decode and t < x.next_s < math.inf:
            load += x.next_s - t
        return load + (self.step_if_joined(x, q) if x.decodes else 0.0)

    def expected_s(self, x, q):
        j = 0
        for block in q.ids:
            owner = self.promised.get(block)
            waits = owner is not None and owner.instance is x and not owner.started
            if block not in x.cached and block not in x.holders and not waits:
                break
            j += 1
        new = self.rest(q, j)
        return min(self.plan(x, q, False), self.prefill(new, q.input - new))

    def route(self, q, t):
        cold = self.prefill(self.rest(q, 0), 0)
        if self.places is not None:
            x, work = self.front[self.places[q.number]], cold
        else:
            n, best = len(self.front), None
            for i in range(n):
                one = self.front[(self.last + 1 + i) % n]
                own = cold if self.fleet.router == "least loaded" else self.expected_s(one, q)
                load = self.backlog_s(one, q, t) + own
                if best is None or load < best[0]:
                    best = load, one, own
            _, x, work = best
            self.last = x.number
        q.instance, q.work_left = x, math.ceil(work * 1e9)
        x.waiting += 1
        return x

    def route_decode(self, q):
        if self.decode_places is not None:
            return self.back[self.decode_places[q.number]]
        n = len(self.back)
        order = [self.back[(self.decode_last + 1 + i) % n] for i in range(n)]
        chosen = min(order, key=lambda x: self.step_if_joined(x, q))
        self.decode_last = self.back.index(chosen)
        return chosen

    # Requests

    def timer(self, at_s, q, kind):
        heapq.heappush(self.timers, (at_s, q.number * 5 + kind, q, kind))

    def wake(self, x, t):
        """What comes at the very start of a step still joins it."""
        if x.next_s == math.inf:
            x.next_s = x.start_s = t
        elif x.only_decode and x.start_s == t:
            x.next_s, x.stepping = t, []

    def make_ready(self, q, t):
        q.instance.ready.append(q)
        self.wake(q.instance, t)

    def fetch_early(self, x, q, t):
        self.plan(x, q, False)
        return q.cuts[q.taken] > q.cuts[0] and self.start(x, q, t, False)

    def arrival(self, q, t):
        if q.started:
            if q.pending == 0:
                self.make_ready(q, t)
            return
        x, limit = self.route(q, t), self.fleet.queue_limit
        if limit is not None and x.waiting > limit:
            q.rejected, q.work_left = True, 0
            x.waiting -= 1
            return
        for block in q.ids:
            self.promised[block] = q
        early = self.fleet.tiers and self.fleet.prefetch_lead_s is not None
        if early and self.fetch_early(x, q, t):
            if q.pending == 0:
                self.make_ready(q, t)
            return
        x.queue.append(q)
        self.wake(x, t)

    def timer_event(self, q, kind, t):
        if kind == 0:
            x = self.route(q, t)
            if not self.fetch_early(x, q, t):
                q.work_left, q.instance = 0, None
                x.waiting -= 1
        elif kind == 4:
            self.arrived(q, t)
        else:
            q.pending -= 1
            if q.pending == 0 and not q.front and q.arrival_s <= t:
                self.make_ready(q, t)

    def pick(self, x, t):
        room = True
        while True:
            ready = min(x.ready, key=lambda q: q.number, default=None)
            head = x.queue[0] if x.queue and room else None
            if head is not None and (ready is None or head.number < ready.number):
                if not self.start(x, head, t, True):
                    room = False
                    continue
                x.queue.pop(0)
                if head.pending == 0 or head.front:
                    return head
            elif ready is not None:
                x.ready.remove(ready)
                return ready
            else:
                return None

    # Instances

    def serve(self, x, q, t):
        if math.isnan(q.prefill_start_s):
            q.prefill_start_s = t
            x.waiting -= 1
        q.serve_s = t

    def next_period(self, x, t):
        x.start_s, x.landing, x.stepping, x.only_decode, x.part_s = t, [], [], False, 0.0
        x.next_s = math.inf
        if x.prefills and x.chunk is None:
            q = self.pick(x, t)
            if q is not None:
                self.serve(x, q, t)
                took = self.prefill(q.todo, q.base)
                q.prefill_s += took
                x.prefill_busy_s += took
                q.work_left = 0
                x.landing, x.next_s = [q], t + took
                if not q.front:
                    x.computed.update(q.ids)
                    q.end_s = t + took
                    if not x.decodes and self.fleet.transfer_layers > 1:
                        self.offer(q, t)
                return
        elif x.prefills and self.mix(x, t):
            return
        if x.batch:
            x.stepping, x.only_decode = list(x.batch), True
            x.part_s = self.step(len(x.batch), sum(q.context for q in x.batch) / len(x.batch))
            x.next_s = t + x.part_s

    def mix(self, x, t):
        left, taken = x.chunk - len(x.batch), []
        while left > 0:
            q = x.current or self.pick(x, t)
            if q is None:
                break
            x.current = None
            self.serve(x, q, t)
            take = min(left, q.todo)
            taken.append((q, take, q.base))
            left -= take
            q.base += take
            q.todo -= take
            if q.todo:
                x.current = q
            else:
                x.landing.append(q)
                if not q.front:
                    x.computed.update(q.ids)
        if not taken:
            return False
        new = sum(take for _, take, _ in taken)
        cached = sum(float(take * base) for _, take, base in taken) / new
        alone = took = self.prefill(new, cached)
        if x.batch:
            n, context = len(x.batch), sum(q.context for q in x.batch) / len(x.batch)
            least = self.decoding.decode_table.context[0]
            took = self.prefill(new + n, cached) + self.step(n, context) - self.step(n, least)
            x.stepping, x.part_s = list(x.batch), took - alone
        x.prefill_busy_s += alone
        x.next_s = t + took
        for q, take, _ in taken:
            q.prefill_s += alone * take / new
            q.work_left -= q.work_left if not q.todo else q.work_left * take // (take + q.todo)
        return True

    def instance_event(self, x, t):
        if x.stepping:
            x.decode_busy_s += x.part_s
        ended = []
        for q in x.stepping:
            q.decode_s += x.part_s / len(x.stepping)
            q.context += 1
            q.left -= 1
            if q.left == 0:
                ended.append(q)
        for q in sorted(ended, key=lambda q: q.number):
            x.batch.remove(q)
            self.finish(x, q, t)
        for q in x.landing:
            self.land(x, q, t)
        while x.joining and len(x.batch) < int(self.decoding.decode_table.batch[-1]):
            q = x.joining.pop(0)
            x.coming.remove(q)
            q.context, q.left = q.input + 1, q.output - 1
            x.batch.append(q)
        self.next_period(x, t)

    def land(self, x, q, t):
        if q.front:
            q.front = 0
            self.set_todo(q)
            if q.pending == 0:
                x.ready.append(q)
            return
        self.write(x, q, t, "prompt")
        if x.decodes or self.fleet.first_token_from == "prefill":
            q.first_token_s = t
        if x.decodes and q.output == 1:
            self.finish(x, q, t)
        elif x.decodes:
            x.coming.append(q)
            x.joining.append(q)
        elif q.output == 1 and self.fleet.first_token_from == "prefill":
            self.release(x, q)
            self.finish(None, q, t)
        elif self.fleet.transfer_layers == 1:
            self.offer(q, t)

    def release(self, x, q):
        x.private -= self.room(x, q)
        if x.decodes:
            for block in reversed(q.answer):
                if block in x.holders:
                    continue
                if block in x.cached:
                    x.cached.move_to_end(block)
                    continue
                if x.used() + len(x.cached) >= x.capacity:
                    if not x.cached:
                        continue
                    x.cached.popitem(last=False)
                x.cached[block] = None
        for block in reversed(q.ids):
            x.holders[block] -= 1
            if x.holders[block] == 0:
                del x.holders[block]
                x.computed.discard(block)
                x.cached[block] = None

    def finish(self, x, q, t):
        q.finish_s = t
        if x is not None:
            if x.prefills:
                self.release(x, q)
            else:
                x.private -= self.need(q)
                self.grant(x, t)
            if q.answer:
                self.write(x, q, t, "answer")
        after, lead_s = q.next_turn, self.fleet.prefetch_lead_s
        if after is not None and lead_s and after.arrival_s > t:
            self.timer(max(t, after.arrival_s - lead_s), after, 0)

    # Between the pools

    def need(self, q):
        return -(-(q.input + q.output - 1) // self.block)

    def offer(self, q, t):
        if q.output == 1 and self.fleet.first_token_from == "prefill":
            return
        q.target = self.route_decode(q)
        q.target.coming.append(q)
        q.target.queue.append(q)
        self.grant(q.target, t)

    def grant(self, x, t):
        while x.queue and x.private + self.need(x.queue[0]) <= x.capacity:
            q = x.queue.pop(0)
            x.private += self.need(q)
            self.send(q, t)

    def send(self, q, t):
        source, sink, layers = q.instance, q.target, self.fleet.transfer_layers
        rates = source.pool.link_bytes_per_s, sink.pool.link_bytes_per_s
        q.sent = q.input * self.kv + self.boundary
        alone, took = q.sent / min(rates), q.end_s - q.serve_s
        begin = max(t, q.end_s - took * (layers - 1) / layers, source.link_free_s, sink.link_free_s)
        source.link_free_s, sink.link_free_s = (begin + q.sent / rate for rate in rates)
        done = max(begin + alone, q.end_s + alone / layers) + self.fleet.transfer_latency_s
        self.timer(done, q, 4)

    def arrived(self, q, t):
        self.release(q.instance, q)
        self.wake(q.instance, t)
        if self.fleet.first_token_from == "decode":
            q.first_token_s = t
        if q.output == 1:
            q.target.coming.remove(q)
            self.finish(q.target, q, t)
        else:
            q.target.joining.append(q)
            self.wake(q.target, t)

    def run(self):
        arrivals = list(self.requests)
        while True:
            events = [(x.next_s, INSTANCE, x.number) for x in self.instances]
            events += [(unit.next_s(), UNIT, u) for u, unit in enumerate(self.units)]
            if arrivals:
                events.append((arrivals[0].arrival_s, ARRIVAL, 0))
            if self.timers:
                events.append((self.timers[0][0], TIMER, 0))
            t, kind, number = min(events)
            if t == math.inf:
                return self
            if kind == ARRIVAL:
                self.arrival(arrivals.pop(0), t)
            elif kind == TIMER:
                _, _, q, what = heapq.heappop(self.timers)
                self.timer_event(q, what, t)
            elif kind == UNIT:
                self.unit_event(self.units[number], t)
            else:
                self.instance_event(self.instances[number], t)

    def column(self, name):
        return np.array([getattr(q, name) for q in self.requests])
