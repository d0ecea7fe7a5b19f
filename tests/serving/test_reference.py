"""The compiled replay against the plain one, request by request, over every mode and scarcity."""

from collections import Counter

import numpy as np
import pytest
from fleets import random_fleet, random_trace
from plain_replay import Reference

from kvpaper.serving.replay import replay

SEEDS = 240
COLUMNS = {
    "prefill_start_s": "prefill_start_s",
    "first_token_s": "first_token_s",
    "finish_s": "finish_s",
    "prefill_s": "prefill_s",
    "decode_s": "decode_s",
    "rejected": "rejected",
    "hit_tokens": "hits",
    "fetched_bytes": "fetched",
    "written_bytes": "wrote",
    "transferred_bytes": "sent",
}


def case(seed):
    random = np.random.default_rng(seed)
    trace = random_trace(random)
    return random_fleet(random, trace), trace


def assert_equal(fleet, trace, seed):
    fast, slow = replay(fleet, trace, seed), Reference(fleet, trace, seed).run()
    for name, plain in COLUMNS.items():
        found, expected = getattr(fast, name), slow.column(plain)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=f"{name} {seed}")
    for name in ("prefill_busy_s", "decode_busy_s"):
        expected = [getattr(x, name) for x in slow.instances]
        np.testing.assert_allclose(getattr(fast, name), expected, rtol=1e-9, err_msg=str(seed))
    return fast


def happened(fleet, fast):
    """What of the semantics a case put to work."""
    tiers = [tier.name for k, tier in enumerate(fleet.tiers) if fast.fetched_bytes[:, k].any()]
    waits = fast.prefill_start_s - fast.arrival_s
    split = fleet.decode is not None
    yield from (f"fetched from {name}" for name in tiers)
    yield from (f"fetched, {tier.scope}" for tier in fleet.tiers if tier.name in tiers)
    yield from (f"fetched, {tier.admission}" for tier in fleet.tiers if tier.name in tiers)
    yield from [f"fetched, {fleet.fetch}"] * bool(tiers)
    yield from [f"fetched, lead {fleet.prefetch_lead_s}"] * bool(tiers)
    yield f"router {fleet.router}"
    yield f"split {split}, chunk {fleet.prefill.chunk_tokens}"
    yield from [f"decode router {fleet.decode_router}", f"token {fleet.first_token_from}"] * split
    yield from ["turned away"] * bool(fast.rejected.any())
    yield from ["queued"] * bool(np.nanmax(waits) > 0)
    yield from ["several tiers at once"] * bool(((fast.fetched_bytes > 0).sum(axis=1) > 1).any())


def test_the_fast_replay_is_the_slow_one():
    seen = Counter()
    for seed in range(SEEDS):
        fleet, trace = case(seed)
        seen.update(happened(fleet, assert_equal(fleet, trace, seed)))
    # 5 routers, 8 ways to decode and chunk, 3 decode routers, 2 senders of the first token,
    # 3 tiers, 3 scopes, 2 admissions, 3 fetches, 4 leads, and the last three.
    assert len(seen) == 5 + 8 + 3 + 2 + 3 + 3 + 2 + 3 + 4 + 3
    assert min(seen.values()) >= 3, seen


@pytest.mark.parametrize("seed", [1001, 1002])
def test_the_fast_replay_is_the_slow_one_on_longer_traces(seed):
    random = np.random.default_rng(seed)
    trace = random_trace(random, 400)
    assert_equal(random_fleet(random, trace), trace, seed)
