import csv
import heapq
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.formulas import recovery

TIERS = {"hbm": 4.8e12, "nvme": 3.0e9}
MODEL = dict(active_params=8.0e9, layers=32, query_heads=32, head_dim=128, flops_per_s=580e12)
DISK = dict(kv_bytes_per_token=131_072, read_bytes_per_s=3.0e9, access_latency_s=0.0)
with (Path(__file__).resolve().parents[2] / "data" / "published.csv").open() as _file:
    PUBLISHED = [row for row in csv.DictReader(_file) if row["quantity"] == "fetch_time"]

counts = st.integers(0, 60)
rates = st.floats(1e8, 1e13)


def test_published_fetch_times():
    assert len(PUBLISHED) == 2
    for row in PUBLISHED:
        given_bytes, tier = (pair.split("=")[1] for pair in row["arguments"].split())
        found = recovery.fetch_time(float(given_bytes), TIERS[tier], 0)
        assert found == pytest.approx(float(row["value"]), rel=float(row["rtol"]))


def test_the_papers_chart():
    hbm, nvme = recovery.fetch_time(1e9, np.array([4.8e12, 3.0e9]), 0)
    assert (hbm, nvme) == (pytest.approx(0.2083e-3, rel=1e-3), pytest.approx(0.3333, rel=1e-3))
    assert nvme / hbm == pytest.approx(1600)


@given(st.floats(0, 1e12), rates, st.floats(0, 1))
def test_fetch_time_is_latency_and_a_line_through_it(kv_bytes, rate, latency):
    assert recovery.fetch_time(0, rate, latency) == latency
    once = recovery.fetch_time(kv_bytes, rate, 0)
    assert recovery.fetch_time(2 * kv_bytes, rate, latency) == pytest.approx(latency + 2 * once)


@given(counts, counts, st.one_of(st.integers(1, 80), st.just(np.inf)))
def test_attention_pairs_are_those_of_the_mask(new, cached, window):
    query = cached + np.arange(new)[:, None]
    key = np.arange(cached + new)[None]
    mask = (key <= query) & (key > query - window)
    assert recovery.attention_pairs(new, cached, window) == mask.sum()


@given(counts, counts, counts, st.one_of(st.integers(1, 80), st.just(np.inf)))
def test_chunks_do_the_attention_of_the_whole(first, second, cached, window):
    whole = recovery.attention_pairs(first + second, cached, window)
    chunks = recovery.attention_pairs(np.array([first, second]), [cached, cached + first], window)
    assert chunks.sum() == whole


def test_work_by_hand():
    # 2 layers, 3 heads of width 5; 2 new tokens on 1 cached see 2 and 3 tokens.
    assert recovery.attention_flops(2, 1, 2, 3, 5) == 2 * 3 * 5 * (4 * 5)
    assert recovery.prefill_flops(7, 1e3, 11) == 14_011
    assert recovery.recompute_time(2, 1, 1e3, 2, 3, 5, 1e3) == (4000 + 600) / 1e3


def test_latent_attention_of_deepseek_v3():
    pairs = recovery.attention_pairs(100, 1000)
    expanded = recovery.mla_attention_flops(100, 1000, 61, 128, 512, 128, 64, 128)
    assert expanded == 61 * (2 * 128 * (192 + 128) * pairs + 2 * 512 * 128 * 256 * 1000)
    absorbed = recovery.mla_absorbed_attention_flops(100, 1000, 61, 128, 512, 64)
    assert absorbed == 61 * 2 * 128 * (576 + 512) * pairs


def test_latent_attention_without_cache_is_attention_of_the_mean_width():
    latent = recovery.mla_attention_flops(500, 0, 61, 128, 512, 128, 64, 128)
    assert latent == recovery.attention_flops(500, 0, 61, 128, (192 + 128) / 2)


def test_latent_space_is_cheaper_for_few_new_tokens_only():
    shape = dict(layers=61, query_heads=128, kv_lora_rank=512, qk_rope_head_dim=64)
    few, many = np.array([1, 8192])
    expanded = recovery.mla_attention_flops(
        np.array([few, many]), 8192, qk_nope_head_dim=128, v_head_dim=128, **shape
    )
    absorbed = recovery.mla_absorbed_attention_flops(np.array([few, many]), 8192, **shape)
    assert absorbed[0] < expanded[0]
    assert absorbed[1] > expanded[1]


def test_recompute_time_is_attention_alone_without_parameters():
    free = MODEL | {"active_params": 0.0}
    one, double = recovery.recompute_time(np.array([1e6, 2e6]), 0, **free)
    assert double / one == pytest.approx(4, rel=1e-5)


def test_recovery_is_the_better_way():
    assert recovery.recovery_time(np.array([1, 3]), np.array([2, 2])).tolist() == [1, 2]


def test_the_papers_disk_loses_below_35600_tokens():
    assert recovery.crossover_tokens(**MODEL, **DISK) == pytest.approx(35_600, rel=2e-3)


@given(
    rate=st.floats(5e8, 1e12),
    latency=st.floats(0, 1),
    fixed=st.floats(0, 1e9),
    params=st.floats(1e9, 1e11),
)
def test_both_ways_take_as_long_at_the_crossover(rate, latency, fixed, params):
    model = MODEL | {"active_params": params}
    crossover = recovery.crossover_tokens(
        **model,
        **DISK | dict(read_bytes_per_s=rate, access_latency_s=latency),
        fixed_kv_bytes=fixed,
    )

    def times(tokens):
        fetched = recovery.fetch_time(fixed + 131_072 * tokens, rate, latency)
        return fetched, recovery.recompute_time(tokens, 0, **model)

    fetched, recomputed = times(crossover)
    assert fetched == pytest.approx(recomputed, rel=1e-6, abs=1e-12)
    fetched, recomputed = times(1.01 * crossover + 1)
    assert fetched < recomputed
    fetched, recomputed = times(0.99 * crossover)
    assert fetched > recomputed or crossover < 1e-6


def test_no_crossover_without_full_attention():
    """Recurrent layers: both ways are lines, and the flatter one wins in the end."""
    model = MODEL | {"layers": 0}
    slow, fast = recovery.crossover_tokens(
        **model, **DISK | dict(read_bytes_per_s=np.array([1e9, 1e11]), access_latency_s=0.1)
    )
    assert np.isnan(slow)
    assert fast == pytest.approx(0.1 / (16e9 / 580e12 - 131_072 / 1e11))


def test_fetching_wins_everywhere_on_a_fast_tier_without_latency():
    assert recovery.crossover_tokens(**MODEL, **DISK | dict(read_bytes_per_s=64e9)) == 0


def test_a_filled_window_folds_into_the_parameters():
    """As the docstring says; against a scan over lengths of a model with window layers."""
    window, tokens = 128, np.arange(200, 60_000)
    attention = recovery.attention_flops(
        tokens, 0, np.array([[18], [18]]), 64, 64, np.array([[np.inf], [window]])
    ).sum(axis=0)
    recomputed = recovery.prefill_flops(tokens, 5.1e9, attention) / 300e12
    fetched = recovery.fetch_time(36_864.0 * (tokens + window), 1e9, 1e-3)
    scanned = tokens[np.argmax(recomputed > fetched)]
    folded = recovery.crossover_tokens(
        5.1e9 + 2 * 18 * 64 * 64 * window, 18, 64, 64, 300e12, 36_864, 1e9, 1e-3, 36_864 * window
    )
    assert 0 < scanned - folded < 0.002 * scanned


@given(
    new=st.floats(1, 2e5),
    cached=st.floats(0, 1e5),
    rate=st.floats(1e8, 1e12),
    latency=st.floats(0, 2),
)
def test_two_ends_meet(new, cached, rate, latency):
    disk = DISK | dict(read_bytes_per_s=rate, access_latency_s=latency)
    time = recovery.two_ended_recovery_time(new, cached, **MODEL, **disk)
    alone = recovery.recompute_time(new, cached, **MODEL)
    fetched = recovery.fetch_time(131_072 * new, rate, latency)
    assert time <= recovery.recovery_time(fetched, alone) * (1 + 1e-9)
    if alone <= latency:
        assert time == pytest.approx(alone)
    else:
        front = new - (time - latency) * rate / 131_072
        assert -1e-6 * new <= front <= new
        met = recovery.recompute_time(front, cached, **MODEL)
        assert met == pytest.approx(time, rel=1e-5, abs=1e-9)


def test_two_ends_halve_a_tie():
    """Without attention and latency the two rates add up."""
    model = MODEL | {"layers": 0}
    disk = DISK | dict(read_bytes_per_s=131_072 * 580e12 / 16e9)
    both = recovery.two_ended_recovery_time(1e4, 0, **model, **disk)
    assert both == pytest.approx(recovery.recompute_time(1e4, 0, **model) / 2)


def sojourn_times(arrivals, sizes):
    """Processor sharing at rate 1: in the time of a permanent job, every job leaves in turn."""
    running, now, virtual, sojourns = [], 0.0, 0.0, np.empty(len(arrivals))
    for job, arrival in [*enumerate(arrivals), (None, np.inf)]:
        while running and now + (running[0][0] - virtual) * len(running) <= arrival:
            now += (running[0][0] - virtual) * len(running)
            virtual, done = heapq.heappop(running)
            sojourns[done] = now - arrivals[done]
        if job is not None:
            virtual += (arrival - now) / len(running) if running else 0.0
            now = arrival
            heapq.heappush(running, (virtual + sizes[job], job))
    return sojourns


def test_sojourns_of_two_jobs_by_hand():
    # Alone from 0 to 1, shared from 1 to 3, then the longer one alone for its last unit.
    assert sojourn_times(np.array([0.0, 1.0]), np.array([3.0, 1.0])).tolist() == [4.0, 2.0]


def test_shared_fetch_time_is_that_of_a_simulated_queue():
    """Means per size over independent runs; tolerance three standard errors of the runs."""
    rng, load, runs = np.random.default_rng(7), 0.6, 60
    sizes_of = np.array([1.0, 4.0])
    means = np.empty((runs, 2))
    for run in range(runs):
        sizes = rng.choice(sizes_of, 2500)
        arrivals = np.cumsum(rng.exponential(sizes_of.mean() / load, 2500))
        sojourns, kept = sojourn_times(arrivals, sizes), slice(400, 2300)
        means[run] = [sojourns[kept][sizes[kept] == size].mean() for size in sizes_of]
    error = means.std(axis=0, ddof=1) / np.sqrt(runs)
    theory = recovery.shared_fetch_time(sizes_of, 1.0, 0.0, load)
    assert np.all(error < 0.03 * theory), "too few runs to tell"
    assert np.all(np.abs(means.mean(axis=0) - theory) < 3 * error)


def test_an_idle_tier_is_not_shared():
    assert recovery.shared_fetch_time(1e9, 3e9, 0.1, 0) == recovery.fetch_time(1e9, 3e9, 0.1)


def test_load_of_the_prefill_workers_alone():
    all_workers = recovery.offered_load(12, 1e9, 8 * 3e9)
    assert recovery.offered_load(12, 1e9, 4 * 3e9) == 2 * all_workers


@pytest.mark.parametrize("load", [1.0, 1.5, -0.1, np.nan])
def test_no_steady_state_is_refused(load):
    with pytest.raises(InputError, match=rf"offered_load: found {load:g}, .* no steady state"):
        recovery.shared_fetch_time(1e9, 3e9, 0.0, np.array([0.5, load]))
