"""The state of a replay as records of arrays, and what all parts of it need.

A request takes numbered nodes in the heaps: jobs of reading and writing at each tier, timers, and
one for the queues of its instance.

Compiled code has one short name for each thing: ``w`` is the world and ``t`` the time; ``r`` is the
number of a request and ``q`` its record, ``e`` and ``x`` are those of an instance, ``u`` and
``unit`` those of a unit of a tier; ``k`` is a tier, fastest first.
"""

from collections import namedtuple

import numpy as np

from kvpaper.serving.compiled import compiled, inlined
from kvpaper.serving.heap import NONE, pushed
from kvpaper.serving.steps import prefill_s

LEVELS = 4  # GPU memory and three tiers
REQUEST = np.dtype(
    [
        ("arrival_s", "f8"), ("input", "i8"), ("output", "i8"),
        ("first_block", "i8"), ("blocks", "i4"), ("first_answer", "i8"), ("answers", "i4"),
        ("preset", "i4"), ("decode_preset", "i4"), ("next_turn", "i4"),
        ("room", "i4"), ("need", "i4"),
        # State: where it is, what it looked up, what is to be computed behind what, work left [ns].
        ("engine", "i4"), ("target", "i4"), ("after", "i4", (3,)), ("started", "b1"),
        ("pending", "i4"), ("cut", "i4", (LEVELS,)), ("taken", "i4"), ("front", "i4"),
        ("todo", "i8"), ("behind", "i8"), ("part", "i8"), ("work", "i8"),
        ("share_s", "f8"), ("serve_s", "f8"), ("end_s", "f8"),
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
        # Period: its ends, decode steps in it, whether it is nothing else, what it takes of a mix.
        ("next_s", "f8"), ("start_s", "f8"), ("steps", "i8"), ("run", "b1"), ("part_s", "f8"),
        ("current", "i4"),
        # Batch: sequences, sum of contexts, steps done, heap by the step of completion.
        ("batch", "i8"), ("context", "i8"), ("done", "i8"), ("running", "i4"), ("share_s", "f8"),
        # Queues; work of prefill [ns]; what is bound for the batch but not in it.
        ("head", "i4", (3,)), ("last", "i4", (3,)), ("ready", "i4"), ("waiting", "i8"),
        ("work", "i8"), ("coming", "i8"), ("coming_context", "i8"),
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
        # Processor sharing: jobs by the work at which they end, work done for each, until when.
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
# The last row of ``links`` tells which request last named a block.
World = namedtuple("World", "rules request engine unit blocks links node prefill steps")

PRESET, LEAST_LOADED, PREFIX = 0, 1, 2
ALWAYS, BETTER, TWO_ENDED = 0, 1, 2
WAITING, JOINING, LANDING = 0, 1, 2  # queues of an instance
READ, PROMPT, ANSWER = 0, 1, 2  # jobs, each at three tiers
PREFETCH, FETCHED, ARRIVED = 0, 1, 4  # timers; one FETCHED a tier
JOBS, TIMERS = 9, 5
NODES = JOBS + TIMERS + 1


@inlined
def ids_of(w, r):
    first = w.request[r].first_block
    return w.blocks[first : first + w.request[r].blocks]


@inlined
def answer_of(w, r):
    first = w.request[r].first_answer
    return w.blocks[first : first + w.request[r].answers]


@inlined
def tokens_between(w, r, low, high):
    """Tokens of the prompt in blocks ``low`` to ``high``."""
    size, block = w.request[r].input, w.rules[0].block
    return max(0, min(high * block, size) - min(low * block, size))


@inlined
def rest_of(w, r, blocks):
    """Tokens to compute behind so many cached blocks: at least the one that gives the answer."""
    return max(1, w.request[r].input - blocks * w.rules[0].block)


@compiled
def prefill_of(w, new, cached):
    return prefill_s(w.prefill, np.float64(new), np.float64(cached))


@inlined
def set_timer(w, r, kind, at_s):
    number = JOBS * len(w.request) + TIMERS * r + kind
    w.rules[0].timers = pushed(w.node, w.rules[0].timers, number, at_s)


@inlined
def queue_node(w, r):
    return (JOBS + TIMERS) * len(w.request) + r


@compiled
def append(w, x, queue, r):
    """A request joins the end of a queue."""
    w.request[r].after[queue] = NONE
    if x.head[queue] < 0:
        x.head[queue] = r
    else:
        w.request[x.last[queue]].after[queue] = r
    x.last[queue] = r
