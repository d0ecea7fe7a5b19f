"""Queues, shared devices and caches against theory.

The tolerance is four standard errors, from independent replications.
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fleets import BLOCK, KV_BYTES, constant_decode, fleet, linear_prefill, pool, trace

from kvpaper.formulas import recovery, slack
from kvpaper.formulas.pooling import random_routing_hit_probability
from kvpaper.reuse.curve import hit_curve
from kvpaper.serving.arrivals import poisson, spread
from kvpaper.serving.fleet import Pool, Tier
from kvpaper.serving.replay import replay
from kvpaper.traces.generated import conversations

ERRORS = 4


def assert_mean(replications, expected):
    """The mean of independent replications is the expected one."""
    values = np.array(replications)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - expected) < ERRORS * error
    assert error < 0.05 * expected  # or the test could not fail


def erlang_c(servers, load):
    """Probability to wait, by its definition; ``load`` is that of one server."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last)


def waits(one, requests):
    found = replay(one, requests)
    return found.prefill_start_s - found.arrival_s


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_constant_service_waits_as_theory_says(load):
    service_s = 0.1
    one = fleet(pool(prefill_s=service_s / 1600))
    found = [
        waits(one, poisson(load / service_s, np.full(10_000, 1600), 1, BLOCK, seed)).mean()
        for seed in range(40)
    ]
    assert_mean(found, service_s * load / (2 * (1 - load)))


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_exponential_service_waits_as_theory_says(servers):
    """The least loaded of several queues is one queue, since load is time of work."""
    load, mean = 0.7, 20_000
    one = fleet(pool(servers, prefill_s=1e-3 / mean), router="least loaded")
    found = []
    for seed in range(40):
        lengths = np.ceil(np.random.default_rng([seed, 1]).exponential(mean, 10_000))
        found.append(waits(one, poisson(servers * load / 1e-3, lengths, 1, 4096, seed)).mean())
    assert_mean(found, erlang_c(servers, load) * 1e-3 / (servers * (1 - load)))


def test_a_busy_fleet_keeps_littles_law():
    """Requests in the system, counted at random moments, are rate times mean time in it."""
    load, service_s = 0.7, 0.1
    one = fleet(pool(prefill_s=service_s / 1600))
    found = []
    for seed in range(40):
        requests = poisson(load / service_s, np.full(10_000, 1600), 1, BLOCK, seed)
        done = replay(one, requests)
        at_s = np.random.default_rng([seed, 1]).uniform(0, done.arrival_s[-1], 2000)
        inside = np.searchsorted(done.arrival_s, at_s)
        found.append((inside - np.searchsorted(np.sort(done.finish_s), at_s)).mean())
    assert_mean(found, load + load**2 / (2 * (1 - load)))


def test_running_answers_keep_littles_law():
    """With steps of constant time the batch is rate times steps times the step, plus the joining.

    A request waits for the next step to begin: half a step where a step is under way.
    """
    rate, steps, step_s = 20.0, 50, 0.01
    split = fleet(
        Pool(1, 1, 10**6, linear_prefill(1e-9)), Pool(1, 1, 10**6, None, constant_decode(step_s))
    )
    found = []
    for seed in range(40):
        requests = poisson(rate, np.full(5000, 16), steps + 1, BLOCK, seed)
        done = replay(split, requests)
        found.append((done.finish_s - done.first_token_s).mean())
    busy = 1 - math.exp(-rate * steps * step_s)  # M/G/infinity: somebody is always there but rarely
    assert busy > 0.9999
    assert_mean(found, steps * step_s + step_s / 2)


def test_a_tier_shares_its_device_among_readers():
    """Processor sharing: the mean time of a fetch is latency + alone / (1 - load), any sizes.

    First every prefix is written, which costs nothing here; then each is read once.
    """
    rate, load, latency_s = 50.0, 0.6, 5e-3
    found = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        sizes = np.where(random.random(4000) < 0.2, 10, 2)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        rows = [list(range(a, b)) for a, b in pairwise(starts)]
        first_s = np.arange(4000) * 1e-3
        later_s = 100 + np.cumsum(random.exponential(1 / rate, 4000))
        requests = trace(rows + rows, np.concatenate([first_s, later_s]))
        read = KV_BYTES * BLOCK * 3.6 * rate / load
        tier = Tier("dram", 1e12, read, math.inf, latency_s)
        # Memory for some dozen requests: in this order nothing stays there until it is asked for.
        one = fleet(pool(kv_tokens=300 * BLOCK, prefill_s=1e-9), tiers=(tier,))
        done = replay(one, requests)
        assert (done.hit_tokens[4000:, 1] == sizes * BLOCK).all()
        found.append(done.ttft_s[4000:].mean())
    alone_s = load / rate
    assert_mean(found, latency_s + alone_s / (1 - load))


def test_coarse_timestamps_spread_at_random_are_poisson_again():
    """Given their number in an interval, Poisson arrivals are uniform in it."""
    load, service_s, grid_s = 0.6, 0.1, 3.0
    one = fleet(pool(prefill_s=service_s / 1600))
    fine, coarse = [], []
    for seed in range(40):
        requests = poisson(load / service_s, np.full(10_000, 1600), 1, BLOCK, seed)
        requests.arrival_s[:] = np.floor(requests.arrival_s / grid_s) * grid_s
        coarse.append(waits(one, requests).mean())
        fine.append(waits(one, spread(requests, seed)).mean())
    expected = service_s * load / (2 * (1 - load))
    assert_mean(fine, expected)
    assert min(coarse) > 5 * expected


def apart(requests, gap_s=1e4):
    """The trace with its requests far apart and answers of one token."""
    return replace(
        requests,
        arrival_s=np.arange(requests.requests) * gap_s,
        output_tokens=np.ones(requests.requests, np.int64),
    )


@pytest.mark.parametrize("capacity", [100, 200, 1000, 100_000])
@pytest.mark.parametrize("split", [False, True])
def test_hits_are_those_of_the_reuse_curve_when_requests_do_not_overlap(capacity, split):
    requests = apart(conversations())
    memory = capacity * requests.block_tokens
    prefill = pool(kv_tokens=memory, prefill_s=1e-6)
    decode = Pool(1, 1, memory, None, constant_decode(1e-3)) if split else None
    done = replay(fleet(prefill, decode, router="prefix"), requests)
    expected = hit_curve(requests, rate="token").at(capacity) * requests.input_tokens.sum()
    assert done.hit_tokens.sum() == round(float(expected))


@pytest.mark.parametrize("scope", ["instance", "node", "pooled"])
def test_inclusive_tiers_hit_as_the_largest_alone(scope):
    """Each level is one more LRU list over the same requests."""
    requests = apart(conversations())
    block_bytes = requests.block_tokens * KV_BYTES
    sizes = {"hbm": 100, "dram": 200, "nvme": 1000}
    tiers = [Tier(name, size * block_bytes, 1e9, 1e9, scope=scope) for name, size in sizes.items()]
    one = pool(kv_tokens=100 * requests.block_tokens, prefill_s=1e-6)
    done = replay(fleet(one, tiers=tuple(tiers[1:])), requests)
    curve, tokens = hit_curve(requests, rate="token"), requests.input_tokens.sum()
    reached = np.cumsum(done.hit_tokens.sum(axis=0))
    assert reached.tolist() == [round(float(curve.at(size) * tokens)) for size in sizes.values()]


def test_random_routing_hits_as_the_closed_form_says():
    """A use with j earlier uses of its block finds it with probability 1 - (1 - 1/n)^j."""
    requests, earlier, expected = apart(conversations()), {}, 0.0
    for block in requests.blocks.tolist():
        earlier[block] = earlier.get(block, -1) + 1
        expected += random_routing_hit_probability(earlier[block], 4)
    one = fleet(pool(4, kv_tokens=10**8, prefill_s=1e-6), router="random")
    found = [replay(one, requests, seed).hit_tokens.sum() for seed in range(40)]
    assert_mean(np.array(found) / requests.block_tokens, float(expected))


SIZE, LAYERS = 40, 8


@pytest.mark.parametrize("layers", [1, LAYERS])
@pytest.mark.parametrize("link", [2e4, 1e6, math.inf])
@pytest.mark.parametrize("side", ["decode", "prefill"])
def test_one_request_takes_what_the_formulas_say(layers, link, side):
    """A prefix in a tier, a lone request: fetch, prefill and visible transfer."""
    rows = [[*range(SIZE)], [100 + i for i in range(50)], [*range(SIZE), *range(200, 210)]]
    requests = trace(rows, [0, 100, 200])
    tier = Tier("dram", 1e9, 5e4, math.inf, 0.01)
    prefill = Pool(1, 1, 50 * BLOCK, linear_prefill(1e-3), None, None, link)
    decode = Pool(1, 1, 10**6, None, constant_decode(0.01), None, math.inf)
    split = fleet(
        prefill, decode, tiers=(tier,), first_token_from=side,
        transfer_layers=layers, transfer_latency_s=0.002,
    )  # fmt: skip
    done = replay(split, requests)
    assert done.hit_tokens[2].tolist() == [0, SIZE * BLOCK]
    fetch_s = recovery.fetch_time(SIZE * BLOCK * KV_BYTES, 5e4, 0.01)
    prefill_s = 10 * BLOCK * 1e-3
    visible_s = slack.visible_transfer_time(
        (SIZE + 10) * BLOCK * KV_BYTES, link, 0.002, layers, prefill_s
    )
    shown_s = visible_s if side == "decode" else 0.0
    expected = slack.ttft(0.0, fetch_s, prefill_s, shown_s)
    assert done.ttft_s[2] == pytest.approx(expected)
    left_s = slack.ttft_slack(expected, 0.0, prefill_s, shown_s)
    assert left_s == pytest.approx(fetch_s)


def test_a_fetch_runs_while_the_request_queues():
    """max(queue, fetch) + prefill where it starts on arrival; the sum where it starts in turn."""
    rows = [[*range(SIZE)], [100 + i for i in range(42)], [500], [*range(SIZE), 600], [700]]
    passing = trace(rows, [0, 100, 200, 200, 200.01])
    requests = passing.select(np.arange(4))
    tier = Tier("dram", 1e9, 5e4, math.inf, 0.01)
    one = pool(kv_tokens=42 * BLOCK, prefill_s=1e-2)
    fetch_s = recovery.fetch_time(SIZE * BLOCK * KV_BYTES, 5e4, 0.01)
    service_s = BLOCK * 1e-2
    for lead_s, expected in ((0.0, max(service_s, fetch_s)), (None, service_s + fetch_s)):
        done = replay(fleet(one, tiers=(tier,), prefetch_lead_s=lead_s), requests)
        assert done.ttft_s[3] == pytest.approx(expected + service_s), lead_s
    # A fifth passes by while the fourth, next in turn, still fetches.
    done = replay(fleet(one, tiers=(tier,), prefetch_lead_s=None), passing)
    assert done.ttft_s[4] == pytest.approx(2 * service_s - 0.01)


def test_two_ended_recovery_meets_in_the_middle():
    """As fast as both together: x blocks computed while the others are fetched."""
    rows = [[*range(SIZE)], [100 + i for i in range(45)], [*range(SIZE), *range(200, 205)]]
    requests = trace(rows, [0, 100, 200])
    block_s, read_s = BLOCK * 1e-3, BLOCK * KV_BYTES / 1e4
    found = {}
    for way in ("always", "better", "two-ended"):
        tier = Tier("dram", 1e9, 1e4)
        one = fleet(pool(kv_tokens=45 * BLOCK), tiers=(tier,), fetch=way, prefetch_lead_s=None)
        found[way] = replay(one, requests).ttft_s[2] - 5 * block_s
    assert found["always"] == pytest.approx(SIZE * read_s)
    assert found["better"] == pytest.approx(min(SIZE * read_s, SIZE * block_s))
    meeting = SIZE * read_s / (block_s + read_s)
    best = min(max(x * block_s, (SIZE - x) * read_s) for x in (int(meeting), int(meeting) + 1))
    assert found["two-ended"] == pytest.approx(best)
    assert found["two-ended"] < found["better"]
