"""What a replay does, by hand: every trap that an earlier simulator fell into has its test."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fleets import (
    BLOCK,
    KV_BYTES,
    constant_decode,
    fleet,
    linear_prefill,
    pool,
    random_fleet,
    random_trace,
    trace,
)

from kvpaper.errors import InputError
from kvpaper.latency import DecodeTable
from kvpaper.serving.fleet import Fleet, Pool, Tier
from kvpaper.serving.replay import replay

SERVICE_S = BLOCK * 1e-3  # of one block by the tables of ``pool``


def split(decodes=1, kv_tokens=10**6, step_s=1e-2, prefills=1, **changes):
    prefill = Pool(prefills, 1, 10**6, linear_prefill(1e-3))
    return fleet(prefill, Pool(decodes, 1, kv_tokens, None, constant_decode(step_s)), **changes)


def cases(count):
    for seed in range(count):
        random = np.random.default_rng(seed)
        requests = random_trace(random)
        yield random_fleet(random, requests), requests, seed


# Conservation


def test_tokens_bytes_and_time_are_conserved():
    for one, requests, seed in cases(60):
        done = replay(one, requests, seed)
        kept = ~done.rejected
        served = done.hit_tokens.sum(axis=1) + done.computed_tokens
        assert (served[kept] == requests.input_tokens[kept]).all()
        assert not done.hit_tokens[~kept].any()
        assert done.prefill_s.sum() == pytest.approx(done.prefill_busy_s.sum())
        assert done.decode_s.sum() == pytest.approx(done.decode_busy_s.sum())
        assert np.isfinite(done.finish_s[kept]).all()
        steps = (done.output_tokens > 1) & kept
        if one.tiers:
            fetched = done.fetched_bytes.sum(axis=1)
            last = one.boundary_bytes * (fetched > 0)
            tokens = done.hit_tokens[:, 1:].sum(axis=1)
            assert fetched == pytest.approx(tokens * one.kv_bytes_per_token + last)
        sent = requests.input_tokens * one.kv_bytes_per_token + one.boundary_bytes
        crosses = kept & (steps | (one.first_token_from == "decode"))
        if one.decode is None:
            crosses &= False
        assert done.transferred_bytes == pytest.approx(np.where(crosses, sent, 0))


def test_moments_come_in_order():
    for one, requests, seed in cases(60):
        done = replay(one, requests, seed)
        kept = ~done.rejected
        moments = (done.arrival_s, done.prefill_start_s, done.first_token_s, done.finish_s)
        for before, after in pairwise(moments):
            assert (before[kept] <= after[kept]).all()


# Determinism and monotony


def test_the_same_seed_gives_the_same_bytes_and_another_does_not():
    requests = random_trace(np.random.default_rng(1))
    one = fleet(pool(3), router="random")
    rows = [replay(one, requests, seed) for seed in (7, 7, 8)]
    for name in ("first_token_s", "finish_s", "hit_tokens", "prefill_instance"):
        first, again, other = (getattr(row, name).tobytes() for row in rows)
        assert first == again
    assert first != other


def test_more_of_anything_is_never_worse():
    """One request after another: memory, tiers, rates and links only help."""
    requests = random_trace(np.random.default_rng(3), 200)
    requests = replace(requests, arrival_s=np.arange(200.0) * 60)
    tier = Tier("dram", 2e4, 1e5, 1e5)
    base = fleet(pool(kv_tokens=2000), tiers=(tier,), fetch="better")
    slow = replay(base, requests)
    for better in (
        replace(base, prefill=pool(kv_tokens=8000)),
        replace(base, tiers=(replace(tier, capacity_bytes=1e6),)),
        replace(base, tiers=(replace(tier, read_bytes_per_s=1e7),)),
        replace(base, fetch="two-ended"),
    ):
        assert (replay(better, requests).ttft_s <= slow.ttft_s + 1e-12).all()
    times = []
    for link in (1e4, 1e5, math.inf):
        prefill = Pool(1, 1, 10**6, linear_prefill(1e-3), None, None, link)
        two = fleet(prefill, Pool(1, 1, 10**6, None, constant_decode(1e-2)))
        times.append(replay(two, requests).ttft_s)
    assert all((faster < slower).all() for slower, faster in pairwise(times))


# Traps


def test_the_router_sees_a_decode_instance_as_it_is_now():
    """Two instances; the answer on the first has just ended when the third request is placed.

    With a load that is brought up to date only when the instance itself has an event, both look
    busy, and the third joins the batch of the second.
    """
    table = DecodeTable(
        "b", np.array([1.0, 9.0]), np.array([1.0, 1e6]), np.array([[0.01] * 2, [0.09] * 2]), 1
    )
    prefill = Pool(1, 1, 10**6, linear_prefill(1e-9))
    two = fleet(prefill, Pool(2, 1, 10**6, None, table))
    requests = trace([[0], [1], [2]], [0, 0.001, 1.5], output=[101, 1001, 101])
    done = replay(two, requests)
    assert done.finish_s[0] < 1.5 < done.finish_s[1]
    assert done.decode_instance.tolist() == [0, 1, 0]
    assert done.tpot_s[1:] == pytest.approx([0.01, 0.01])


def test_load_counts_the_steps_of_a_run_under_way():
    """Contexts grow along a run: the router must know the sum of now, not that of its start."""
    batch, contexts = np.array([1.0, 9.0]), np.array([1.0, 1e6])
    table = DecodeTable("c", batch, contexts, np.outer(batch, contexts) * 1e-5, 1)
    prefill = Pool(1, 1, 10**6, linear_prefill(1e-9))
    two = fleet(prefill, Pool(2, 1, 10**6, None, table))
    # One began with 100 tokens and has over 300 by now; the other began with 250 a moment ago.
    rows = [[*range(7)], [*range(10, 26)], [30]]
    done = replay(two, trace(rows, [0, 0.45, 0.5], [401, 401, 2], [100, 250, 16]))
    assert done.finish_s[0] > 0.5
    assert done.decode_instance.tolist() == [0, 1, 1]


def test_waiting_for_room_to_decode_is_not_charged_to_prefill():
    """Over all splits of eight instances: prefill starts and works as if decode had no limit."""
    random = np.random.default_rng(5)
    requests = random_trace(random, 200)
    least = int((requests.input_tokens + requests.output_tokens).max()) + BLOCK
    for prefills in range(1, 8):
        tight = split(8 - prefills, least, prefills=prefills)
        loose = split(8 - prefills, 10**6, prefills=prefills)
        found, free = replay(tight, requests), replay(loose, requests)
        assert (found.first_token_s >= free.first_token_s - 1e-9).all()
        assert found.prefill_start_s == pytest.approx(free.prefill_start_s)
        assert found.prefill_busy_s == pytest.approx(free.prefill_busy_s)
        if prefills == 7:
            assert found.first_token_s.mean() > 2 * free.first_token_s.mean()


def test_a_prefix_whose_producer_still_runs_elsewhere_is_computed_again():
    rows, tier = [[0, 1, 2, 3], [0, 1, 2, 3]], Tier("dram", 1e9, 1e9, scope="pooled")
    two = fleet(pool(2), tiers=(tier,), router="round robin")
    for arrival_s, hits in ((0.03, 0), (1.0, 4)):
        done = replay(two, trace(rows, [0, arrival_s]))
        assert done.hit_tokens[1].tolist() == [0, hits * BLOCK]


def test_a_prefix_is_not_there_before_it_is_written():
    """The write takes 0.64 s from the end of the prefill at 0.064 s."""
    rows, tier = [[0, 1, 2, 3], [0, 1, 2, 3]], Tier("dram", 1e9, 1e9, 1e3, scope="pooled")
    two = fleet(pool(2), tiers=(tier,), router="round robin")
    for arrival_s, hits in ((0.70, 0), (0.71, 4)):
        done = replay(two, trace(rows, [0, arrival_s]))
        assert done.hit_tokens[1].tolist() == [0, hits * BLOCK]


@pytest.mark.parametrize("chunk", [None, 40, 200])
def test_on_one_instance_the_second_follows_the_first_and_hits(chunk):
    done = replay(fleet(pool(chunk_tokens=chunk)), trace([[0, 1, 2, 3]] * 2, [0, 0]))
    assert done.hit_tokens[1].tolist() == [4 * BLOCK]


def test_what_another_request_still_fetches_is_not_there():
    """The fourth request passes by while the third fetches the same prefix, and fetches it too."""
    rows = [[0, 1, 2], [*range(10, 16)], [0, 1, 2], [0, 1, 2]]
    tier = Tier("nvme", 1e9, 1e4)
    one = fleet(pool(kv_tokens=6 * BLOCK), tiers=(tier,))
    done = replay(one, trace(rows, [0, 1, 2, 2.001]))
    assert done.hit_tokens[2:].tolist() == [[0, 3 * BLOCK]] * 2
    assert done.fetched_bytes[2:].tolist() == [[3 * BLOCK * KV_BYTES]] * 2


def test_answers_enter_the_cache_of_the_next_turn():
    """20 tokens of prompt and 30 of answer: three full blocks, of which the prompt filled one."""
    rows, sizes = [[0, 1], [0, 2, 3, 4, 5]], [20, 70]
    requests = trace(rows, [0, 10], [30, 1], sizes)
    for answers, hits in ((False, 1), (True, 3)):
        done = replay(fleet(answers=answers), requests)
        assert done.hit_tokens[1].tolist() == [hits * BLOCK]
    # The last token is never written: with 29 tokens of answer the third block is not full.
    short = trace(rows, [0, 10], [28, 1], sizes)
    assert replay(fleet(answers=True), short).hit_tokens[1].tolist() == [2 * BLOCK]
    # With split pools an answer comes back only through a tier that both sides reach.
    for scope, hits in (("instance", 1), ("pooled", 3)):
        tier = Tier("dram", 1e9, 1e9, scope=scope)
        done = replay(split(answers=True, tiers=(tier,)), requests)
        assert done.hit_tokens[1].sum() == hits * BLOCK
    # Who does not continue it does not find it.
    other = trace([[0, 1], [0, 2]], [0, 10], [30, 1], [20, 30])
    assert replay(fleet(answers=True), other).hit_tokens[1].tolist() == [BLOCK]


def test_a_small_budget_evicts_leaves_before_roots():
    """Five blocks; the second request takes four, so the first keeps its first one."""
    one = fleet(pool(kv_tokens=5 * BLOCK))
    done = replay(one, trace([[0, 1, 2], [10, 11, 12, 13], [0, 1, 2]], [0, 1, 2]))
    assert done.hit_tokens[2].tolist() == [BLOCK]


def test_room_for_running_answers_is_taken_from_the_cache():
    """While an answer of 48 tokens runs, its room is not there for others."""
    one = fleet(pool(kv_tokens=6 * BLOCK))
    rows = [[0, 1], [5], [0, 1]]
    done = replay(one, trace(rows, [0, 1, 1.1], [1, 49, 1]))
    assert done.hit_tokens[2].tolist() == [2 * BLOCK]
    done = replay(one, trace(rows, [0, 1, 1.1], [1, 65, 1]))
    assert done.hit_tokens[2].tolist() == [BLOCK]


def test_a_request_waits_for_room_and_then_runs():
    """Two answers fit; the third waits for the first to end, and prompts of others wait behind."""
    one = fleet(pool(kv_tokens=5 * BLOCK))
    done = replay(one, trace([[0], [1], [2]], [0, 0.1, 0.15], [17, 33, 17]))
    assert done.prefill_start_s[2] == done.finish_s[0]


def test_each_pool_has_its_own_parallelism():
    prefill = Pool(2, 4, 10**6, linear_prefill(1e-4))
    decode = Pool(1, 8, 10**6, None, constant_decode(5e-3))
    done = replay(fleet(prefill, decode), trace([[0]], [0], 11))
    assert done.fleet.gpus == 2 * 4 + 8
    assert done.ttft_s[0] == pytest.approx(BLOCK * 1e-4)
    assert done.tpot_s[0] == pytest.approx(5e-3)
    assert done.prefill_busy_s.tolist() == pytest.approx([BLOCK * 1e-4, 0, 0])
    assert done.decode_busy_s.tolist() == pytest.approx([0, 0, 10 * 5e-3])


# Instances, tiers and links


def test_prompts_go_first_or_share_the_step():
    """A prompt of 64 tokens arrives in the first step of a running answer of two more steps."""
    requests = trace([[0], [1, 2, 3, 4]], [0, SERVICE_S + 1e-4], [4, 1])
    first = replay(fleet(pool()), requests)
    assert first.ttft_s[1] == pytest.approx(0.01 - 1e-4 + 4 * SERVICE_S)
    assert first.finish_s[0] == pytest.approx(SERVICE_S + 3 * 0.01 + 4 * SERVICE_S)
    # 32 prompt tokens beside one of the batch: steps of 33 tokens, at constant attention.
    mixed = replay(fleet(pool(chunk_tokens=33)), requests)
    assert mixed.ttft_s[1] == pytest.approx(0.01 - 1e-4 + 2 * 0.033)
    assert mixed.finish_s[0] == pytest.approx(SERVICE_S + 0.01 + 2 * 0.033)


def test_a_mixed_step_takes_what_the_planner_composes():
    from kvpaper import latency

    name = "qwen3-30b-a3b"
    prefill, decode = latency.prefill_table(name), latency.decode_table(name)
    both = Pool(1, 1, 10**6, prefill, decode, chunk_tokens=513)
    one = Fleet(both, None, KV_BYTES, answers=False)
    sizes = [2048, 512]
    rows = [[*range(128)], [*range(200, 232)]]
    done = replay(one, trace(rows, [0, 10.0], [10_000, 1], sizes))
    steps = round(float((10.0 - done.first_token_s[0]) / done.tpot_s[0]))
    attention = decode.step_time(1, 2048 + steps) - decode.step_time(1, decode.context[0])
    expected = prefill.prefill_time(512 + 1) + attention
    assert done.ttft_s[1] == pytest.approx(expected, abs=0.006)  # and the rest of a step
    assert done.ttft_s[1] > expected


def test_second_use_admission_writes_at_the_second_use():
    tier = Tier("dram", 1e9, 1e9, admission="second use")
    one = fleet(pool(kv_tokens=4 * BLOCK), tiers=(tier,))
    rows = [[0, 1], [10, 11, 12, 13]] * 3
    done = replay(one, trace(rows, np.arange(6.0)))
    assert (done.written_bytes[:, 0] > 0).tolist() == [False, False, True, True, False, False]
    assert done.hit_tokens[:, 1].tolist() == [0, 0, 0, 0, 2 * BLOCK, 2 * BLOCK]
    assert done.hit_tokens[5].sum() == 4 * BLOCK


def test_writes_slow_the_reads_of_a_shared_device():
    """A write of 1.28 s is under way when a fetch of 0.32 s comes: half speed."""
    rows = [[0, 1], [*range(10, 18)], [0, 1]]
    requests = trace(rows, [0, 5, 5 + 8 * SERVICE_S + 0.1])
    times = {}
    for written in (1e3, math.inf):
        tier = Tier("nvme", 1e9, 1e3, written)
        one = fleet(pool(kv_tokens=8 * BLOCK), tiers=(tier,))
        times[written] = replay(one, requests).ttft_s[2] - 1e-3
    assert times[math.inf] == pytest.approx(0.32)
    assert times[1e3] == pytest.approx(0.64)


@pytest.mark.parametrize(
    ("scope", "hits"), [("instance", [0, 0]), ("node", [2, 0]), ("pooled", [2, 2])]
)
def test_who_shares_a_tier(scope, hits):
    """Four instances, two to a node: the first writes, the second and the third ask."""
    tier = Tier("dram", 1e9, 1e9, scope=scope)
    four = fleet(pool(4), tiers=(tier,), router="round robin", gpus_per_node=2)
    done = replay(four, trace([[0, 1]] * 3, np.arange(3.0)))
    assert (done.hit_tokens[1:, 1] // BLOCK).tolist() == hits


def test_a_pooled_tier_is_as_large_and_fast_as_its_parts():
    """Two requests at once are read side by side; three share two lanes."""
    rows = [[i, i + 1] for i in range(0, 60, 2)]
    prefixes = trace(rows + rows[:3], [*np.arange(30.0), 100, 100, 100])
    tier = Tier("dram", 60 * BLOCK * KV_BYTES / 2, 1e3, scope="pooled")
    two = fleet(pool(2, kv_tokens=8 * BLOCK), tiers=(tier,), router="round robin")
    done = replay(two, prefixes)
    assert done.hit_tokens[30:, 1].tolist() == [2 * BLOCK] * 3
    alone = 2 * BLOCK * KV_BYTES / 1e3
    assert done.ttft_s[30:].max() == pytest.approx(alone * 1.5, abs=3e-3)
    pair = replay(two, prefixes.select(np.arange(32)))
    assert pair.ttft_s[30:] == pytest.approx([alone, alone], abs=3e-3)


def test_a_shared_link_sends_one_cache_after_another():
    prefill = Pool(1, 1, 10**6, linear_prefill(1e-9), None, None, 1e3)
    two = fleet(prefill, Pool(1, 1, 10**6, None, constant_decode(1e-2)))
    done = replay(two, trace([[0], [1], [2]], [0, 0, 0]))
    assert done.ttft_s == pytest.approx(np.array([1, 2, 3]) * BLOCK * KV_BYTES / 1e3, rel=1e-5)


def test_a_prefetch_from_the_previous_turn_hides_the_fetch():
    """Another request clears the memory in between; the lead is what is left of the fetch."""
    rows = [[0, 1, 2], [*range(10, 18)], [0, 1, 2, 3]]
    requests = trace(rows, [0, 1, 1.5], 1, session=[0, 1, 0])
    tier = Tier("nvme", 1e9, 1e3)
    fetch_s = 3 * BLOCK * KV_BYTES / 1e3
    for lead_s, left_s in ((None, fetch_s), (0.0, fetch_s), (0.3, fetch_s - 0.3)):
        one = fleet(pool(kv_tokens=8 * BLOCK), tiers=(tier,), prefetch_lead_s=lead_s)
        done = replay(one, requests)
        assert done.ttft_s[2] == pytest.approx(left_s + SERVICE_S)
        assert done.hit_tokens[2].tolist() == [0, 3 * BLOCK]


def test_sessions_stay_and_prefixes_pull():
    rows = [[0], [1], [0, 2], [1, 3], [0, 2, 4]]
    requests = trace(rows, np.arange(5.0), session=[0, 1, 0, 1, 0])
    done = replay(fleet(pool(4), router="session"), requests)
    assert len(set(done.prefill_instance[[0, 2, 4]])) == 1
    done = replay(fleet(pool(4), router="prefix"), requests)
    assert len(set(done.prefill_instance[[0, 2, 4]])) == 1
    assert len(set(done.prefill_instance[[1, 3]])) == 1
    assert done.prefill_instance[0] != done.prefill_instance[1]


def test_a_prefix_gives_way_to_a_queue():
    """One block of two is cached on the first; behind another request it is no quicker there."""
    done = replay(fleet(pool(2), router="prefix"), trace([[0], [0, 1], [0, 2]], [0, 1, 1]))
    assert done.prefill_instance.tolist() == [0, 0, 1]


# Overload and refusals


def test_overload_ends_and_shows():
    """Ten times what it can do: the queue grows to the end, all are served, none is lost."""
    count = 2000
    requests = trace([[i] for i in range(count)], np.arange(count) * SERVICE_S / 10, 3)
    for one in (fleet(), fleet(pool(chunk_tokens=64)), split()):
        done = replay(one, requests)
        assert np.isfinite(done.finish_s).all()
        waits = done.ttft_s
        assert waits[-100:].mean() > 1.5 * waits[count // 2 :][:100].mean() > 100 * SERVICE_S


def test_admission_turns_away_what_would_queue_too_long():
    requests = trace([[i] for i in range(50)], np.arange(50) * 1e-4)
    done = replay(fleet(queue_limit=5), requests)
    assert 40 <= done.rejected.sum() < 50
    assert (done.ttft_s[~done.rejected] <= 6 * SERVICE_S + 1e-9).all()
    assert np.isnan(done.finish_s[done.rejected]).all()
    assert (done.prefill_instance[done.rejected] == -1).all()


def test_a_tier_smaller_than_a_prefix_serves_its_front():
    """Two blocks of room: of four blocks the first two stay."""
    tier = Tier("dram", 2 * BLOCK * KV_BYTES, 1e9)
    one = fleet(pool(kv_tokens=5 * BLOCK), tiers=(tier,))
    done = replay(one, trace([[0, 1, 2, 3], [*range(10, 15)], [0, 1, 2, 3]], np.arange(3.0)))
    assert done.hit_tokens[2].tolist() == [0, 0]
    rows = [[0, 1, 2, 3], [*range(10, 15)]]
    cold = replay(one, trace([*rows, [10, 11]], np.arange(3.0)))
    assert cold.hit_tokens[2].tolist() == [2 * BLOCK, 0]


def refusal(build):
    with pytest.raises(InputError) as error:
        build()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_cannot_be_replayed_is_refused():
    good = trace([[0, 1]], [0.0], 5)
    late = trace([[0], [1]], [1.0, 0.0])
    table = linear_prefill(1e-3, 10.0)
    tier = Tier("dram", 10.0, 1e9)
    refused = {
        "instances: found 0": lambda: pool(0),
        "kv_tokens: found 0": lambda: pool(kv_tokens=0),
        "no requests": lambda: replay(fleet(), trace([[]], [0.0]).select(np.array([], int))),
        "out of order": lambda: replay(fleet(), late),
        "arrivals and lengths only": lambda: replay(fleet(), replace(good, block_tokens=0)),
        "components": lambda: replay(fleet(), replace(good, prefix=False)),
        "3 blocks of 16": lambda: replay(fleet(pool(kv_tokens=2 * BLOCK)), good),
        "a request of 32 tokens": lambda: replay(fleet(pool(prefill_table=table)), good),
        "room for a block": lambda: replay(fleet(tiers=(tier,)), good),
        "tier dram.capacity_bytes": lambda: Tier("dram", 0, 1e9),
        "tier dram.scope": lambda: Tier("dram", 1e9, 1e9, scope="rack"),
        "router": lambda: fleet(router="fastest"),
        "decode_router": lambda: fleet(decode_router="prefix"),
        "decode_table": lambda: fleet(pool(), Pool(1, 1, 100)),
        "prefill.chunk_tokens": lambda: fleet(pool(chunk_tokens=9), pool(), transfer_layers=2),
        "queue_limit": lambda: fleet(queue_limit=0),
        "4 tiers": lambda: fleet(tiers=(Tier("a", 1, 1),) * 4),
        "prefetch_lead_s": lambda: fleet(prefetch_lead_s=-1.0),
        "link_bytes_per_s": lambda: pool(link_bytes_per_s=0),
    }
    for expected, build in refused.items():
        assert expected in refusal(build), expected


def test_a_decode_pool_too_small_for_a_request_is_refused():
    assert "kv_tokens" in refusal(
        lambda: replay(split(kv_tokens=2 * BLOCK), trace([[0, 1]], [0.0], 5))
    )
