"""Percentiles, goodput, money and energy by hand."""

from dataclasses import replace

import numpy as np
import pytest
from fleets import BLOCK, constant_decode, fleet, linear_prefill, pool, trace

from kvpaper import scenario
from kvpaper.serving import measures
from kvpaper.serving.fleet import Pool, Tier
from kvpaper.serving.replay import replay

PAPER = scenario.load("paper")


def steady_fleet(**changes):
    """An hour of requests that never meet: 0.1 s of prefill, 10 steps of 10 ms each."""
    requests = trace([[i, 10_000 + i] for i in range(3600)], np.arange(3600.0), 11)
    return replay(fleet(pool(prefill_s=0.1 / (2 * BLOCK)), **changes), requests)


def test_a_percentile_is_met_by_so_many():
    values = np.arange(1.0, 11.0)
    assert measures.percentile(values, 90) == 9.0
    assert measures.percentile(np.append(values[:8], [np.inf] * 2), 90) == np.inf
    assert np.isnan(measures.percentile(values[:0], 90))


def test_warm_up_is_cut():
    done = steady_fleet()
    window = measures.Window(done)
    assert window.seconds == pytest.approx(0.75 * 3599)
    assert done.arrival_s[window.requests].min() >= 0.25 * 3599
    assert window.requests.sum() == 2700
    assert not window.finished[:899].any()


def test_times_goodput_money_and_energy_of_a_steady_hour():
    done = steady_fleet()
    found = measures.measures(done, PAPER)
    assert found["ttft_s"] == pytest.approx({"p50": 0.1, "p90": 0.1, "p99": 0.1})
    assert found["tpot_s"] == pytest.approx({"p50": 0.01, "p90": 0.01, "p99": 0.01})
    assert found["feasible"]
    assert found["binding"] == "ttft"
    assert found["goodput_per_s"] == pytest.approx(1.0, rel=1e-3)
    assert found["output_tokens_per_s"] == pytest.approx(11.0, rel=1e-3)
    # One GPU at 3.50 USD an hour, 11 tokens a second.
    expected = 3.5 / 3600 / 11 * 1e6
    assert found["usd_per_million_output_tokens"] == pytest.approx(expected, rel=1e-3)
    # 600 W while it computes: 0.1 s of prefill and 0.1 s of decode a request.
    assert found["joules_per_million_output_tokens"] == pytest.approx(600 * 0.2 / 11e-6, rel=1e-3)


def rents(done, **prices):
    """Rent of all GPUs, and of the tiers on top [USD/s]."""
    scenario = PAPER.changed({f"prices.{name}": value for name, value in prices.items()})
    gpus, stocks = done.fleet.gpus, measures.Window(done).stocks()
    gpu = measures.usd_per_s(scenario, gpus, {})
    return gpu, measures.usd_per_s(scenario, gpus, stocks) - gpu


def test_every_instance_and_tier_is_paid_for():
    done = steady_fleet(tiers=(Tier("dram", 1e12, 1e9),))
    gpu, dram = rents(done)
    assert gpu == pytest.approx(3.5 / 3600)
    assert dram == pytest.approx(1e12 * (13.8e-9 / (3 * 365.25 * 86400) + 0.08e-9 * 2.58e-8), 0.01)
    (_, bundled), (_, rented) = rents(done, reading="bundled"), rents(done, reading="rented")
    assert bundled < dram < rented
    more = replace(done, fleet=replace(done.fleet, prefill=pool(3, gpus=4)))
    assert rents(more) == pytest.approx((12 * gpu, 3 * dram))


def test_a_drive_wears_out_by_what_is_written():
    requests = trace([[i] for i in range(3600)], np.arange(3600.0))
    tier = Tier("nvme", 1e4, 1e9, 1e9)
    # 160 B a second on 10 kB is 1,382 writes a day where one is rated for five years.
    life_s = 5 * 365.25 * 86400 / (160 / 1e4 * 86400)
    energy = 0.0007e-9 * PAPER.prices.energy_usd_per_j
    _, found = rents(replay(fleet(tiers=(tier,)), requests))
    assert found == pytest.approx(1e4 * (0.365e-9 / life_s + energy), rel=0.01)


def test_a_fleet_without_power_has_no_energy():
    plain = PAPER.changed({"hardware.gpu_power_w": None})
    assert measures.measures(steady_fleet(), plain)["joules_per_million_output_tokens"] is None


def test_overload_is_infeasible_and_does_not_count_what_it_owes():
    count = 4000
    requests = trace([[i] for i in range(count)], np.arange(count) * BLOCK * 1e-4)
    found = measures.measures(replay(fleet(), requests), PAPER)
    assert not found["feasible"]
    assert found["binding"] == "ttft"
    # It works at one request in 16 ms, whatever is asked for.
    assert found["output_tokens_per_s"] == pytest.approx(1 / (BLOCK * 1e-3), rel=0.01)


def test_slow_steps_bind_tpot():
    requests = trace([[i] for i in range(100)], np.arange(100.0) * 9, 101)
    split = fleet(
        Pool(1, 1, 10**6, linear_prefill(1e-4)), Pool(1, 1, 10**6, None, constant_decode(0.08))
    )
    found = measures.measures(replay(split, requests), PAPER)
    assert (found["feasible"], found["binding"]) == (False, "tpot")


def test_a_request_turned_away_never_has_a_first_token():
    requests = trace([[i] for i in range(50)], np.arange(50) * 1e-4)
    done = replay(fleet(queue_limit=5), requests)
    found = measures.measures(done, PAPER)
    assert found["rejected"] == done.rejected.sum() > 40
    assert not found["feasible"]
    assert found["ttft_s"]["p90"] is None


def test_rising_hits_are_told():
    """Ever more of the prompts repeat; or always the same share does."""
    random = np.random.default_rng(0)
    rising = [[0 if random.random() < i / 600 else i] for i in range(600)]
    level = [[i // 2] for i in range(600)]
    for rows, expected in ((rising, True), (level, False)):
        done = replay(fleet(), trace(rows, np.arange(600.0)))
        assert measures.measures(done, PAPER)["hits_still_rise"] is expected
