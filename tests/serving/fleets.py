"""Fleets and traces for the tests of the replay: by hand, and at random."""

import math

import numpy as np

from kvpaper.latency import DecodeTable, PrefillTable
from kvpaper.serving.fleet import (
    ADMISSIONS,
    FETCHES,
    FIRST_TOKENS,
    ROUTERS,
    SCOPES,
    Fleet,
    Pool,
    Tier,
)
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.dense import dense_ids

BLOCK = 16
KV_BYTES = 10.0


def linear_prefill(seconds_per_token: float, most_tokens: float = 1e7) -> PrefillTable:
    """Prefill in proportion to new tokens, whatever is cached."""
    new, cached = np.array([1.0, most_tokens]), np.array([0.0, most_tokens])
    return PrefillTable("linear", new, cached, np.outer(new * seconds_per_token, [1, 1]), 1)


def constant_decode(step_s: float, most_batch: float = 512) -> DecodeTable:
    """Steps that last the same whatever the batch and its context."""
    batch, context = np.array([1.0, most_batch]), np.array([1.0, 1e7])
    return DecodeTable("constant", batch, context, np.full((2, 2), step_s), 1)


def pool(instances=1, kv_tokens=10**6, prefill_s=1e-3, step_s=1e-2, **changes) -> Pool:
    """A pool that does both, with the two tables above."""
    tables = {"prefill_table": linear_prefill(prefill_s), "decode_table": constant_decode(step_s)}
    return Pool(**{"instances": instances, "gpus": 1, "kv_tokens": kv_tokens, **tables, **changes})


def fleet(prefill=None, decode=None, **changes) -> Fleet:
    """One pool, or two; every hit counts, answers do not."""
    values = {"kv_bytes_per_token": KV_BYTES, "fetch": "always", "answers": False}
    return Fleet(prefill or pool(), decode, **values | changes)


def trace(requests, arrival_s, output=1, input_tokens=None, session=None) -> BlockTrace:
    """Requests by their block ids, all blocks full unless lengths are given."""
    counts = np.array([len(ids) for ids in requests])
    raw = np.array([block for ids in requests for block in ids], np.int64)
    return BlockTrace(
        arrival_s=np.asarray(arrival_s, float),
        input_tokens=np.asarray(counts * BLOCK if input_tokens is None else input_tokens, np.int64),
        output_tokens=np.broadcast_to(np.asarray(output, np.int64), counts.shape).copy(),
        session=np.asarray(np.full(len(counts), -1) if session is None else session, np.int32),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        blocks=dense_ids(raw)[0],
        block_tokens=BLOCK,
    )


def _curved_tables() -> tuple[PrefillTable, DecodeTable]:
    """Small tables with the shapes of real ones."""
    new, cached = np.array([1, 64, 256, 1024, 4096.0]), np.array([0, 128, 1024, 4096.0])
    pairs = new[:, None] * (cached + new[:, None] / 2)
    batch, context = np.array([1, 2, 4, 16.0]), np.array([16, 128, 512, 8192.0])
    step_s = 1e-3 + 2e-4 * np.sqrt(batch)[:, None] + 2e-8 * batch[:, None] * context
    prefill = PrefillTable("curved", new, cached, 2e-3 + new[:, None] * 2e-5 + 4e-9 * pairs, 1)
    return prefill, DecodeTable("curved", batch, context, step_s, 1)


def random_trace(random: np.random.Generator, requests: int = 60) -> BlockTrace:
    """Sessions that grow by their answers or break off, some behind a shared block."""
    arrival_s = np.cumsum(random.exponential(1 / random.choice([20, 60, 200]), requests))
    sessions, rows, fresh = [], [], 0
    for _ in range(requests):
        if sessions and random.random() < 0.6:
            number = int(random.integers(len(sessions)))
            ids, size, answer = sessions[number]
            kept = size // BLOCK if random.random() < 0.7 else random.integers(size // BLOCK + 1)
            added = random.integers(1, 60) + (answer if random.random() < 0.8 else 0)
            whole = min(size + added, 1500) if kept == size // BLOCK else kept * BLOCK + added
            ids, size = list(ids[:kept]), int(max(kept * BLOCK + 1, whole))
        else:
            number, ids, size = len(sessions), [], int(random.integers(1, 300))
            sessions.append(None)
            if random.random() < 0.3:
                ids, size = [-1], size + BLOCK
        count = -(-size // BLOCK) - len(ids)
        ids = [*ids, *range(fresh, fresh + count)]
        fresh += count
        output = int(random.integers(1, 60)) if random.random() < 0.9 else 1
        sessions[number] = ids, size, output
        rows.append((ids, size, output, number))
    ids, sizes, outputs, numbers = zip(*rows, strict=True)
    named = numbers if random.random() < 0.5 else None
    return trace(ids, arrival_s - arrival_s[0], outputs, sizes, named)


def random_fleet(random: np.random.Generator, trace: BlockTrace) -> Fleet:
    """Any mode, router, tier and scarcity that the trace fits into."""

    def one(*options):
        return options[random.integers(len(options))]

    prefill, decode = _curved_tables()
    least = int((trace.input_tokens + trace.output_tokens).max()) + BLOCK
    link = one(math.inf, 2e6, 2e5)

    def some(gpus, *tables, chunk=None):
        memory = int(least * one(1.05, 1.5, 3, 20))
        return Pool(int(random.integers(1, 4)), gpus, memory, *tables, chunk, link)

    split = random.random() < 0.5
    layers = one(1, 4)
    chunk = None if split and layers > 1 else one(None, None, 20, 64, 300)
    kv_bytes = one(10.0, 100.0)
    tiers = [
        Tier(
            name,
            capacity_bytes=one(5, 40, 500) * 2 * BLOCK * kv_bytes,
            read_bytes_per_s=one(1e5, 1e6, 1e7),
            write_bytes_per_s=one(math.inf, 1e5, 1e6),
            access_latency_s=one(0.0, 1e-3, 2e-2),
            scope=one(*SCOPES),
            admission=one(*ADMISSIONS),
        )
        for name in ("dram", "nvme", "remote")[: random.integers(4)]
    ]
    return Fleet(
        some(one(1, 4), prefill, decode, chunk=chunk),
        some(1, None, decode) if split else None,
        kv_bytes_per_token=kv_bytes,
        boundary_bytes=one(0.0, 50.0),
        tiers=tuple(tiers),
        router=one(*ROUTERS),
        decode_router=one(*ROUTERS[:3]),
        fetch=one(*FETCHES),
        prefetch_lead_s=one(None, 0.0, 0.05, math.inf),
        first_token_from=one(*FIRST_TOKENS),
        transfer_latency_s=one(0.0, 1e-3),
        transfer_layers=layers,
        answers=random.random() < 0.7,
        queue_limit=one(None, None, 3),
    )
