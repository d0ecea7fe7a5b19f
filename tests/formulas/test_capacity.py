import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import differential_evolution

from kvpaper.errors import InputError
from kvpaper.formulas import capacity, cost

exponents = st.floats(0.05, 0.95)
GPU_USD_PER_S = 3.5 / 3600
DRAM_RENT = cost.amortised_rent(13.8e-9, 3 * 365.25 * 86_400)


@given(exponents, st.floats(0.01, 0.9))
def test_hit_rate_is_a_power_law_up_to_its_ceiling(beta, ceiling):
    half, whole, more = capacity.hit_rate(np.array([0.5, 1, 7]) * 1e12, ceiling, 1e12, beta)
    assert half / whole == pytest.approx(0.5**beta)
    assert whole == more == pytest.approx(ceiling)
    assert capacity.hit_rate(0, ceiling, 1e12, beta) == 0


def test_a_small_reference_can_be_exceeded_up_to_the_catalogue():
    found = capacity.hit_rate(np.array([4e12, 100e12]), 0.1, 1e12, 0.5, catalogue_ratio=9)
    assert found.tolist() == pytest.approx([0.2, 0.3])


@given(exponents, st.floats(0.05, 20))
def test_one_more_byte_earns_its_rent_at_the_break_even(beta, ratio):
    """Marginal equality, by a central difference of the net value."""
    rent = cost_of_ratio(ratio, beta)
    optimum = 1e12 * capacity.break_even_capacity(ratio, beta)

    def net(capacity_bytes):
        hits = capacity.hit_rate(capacity_bytes, 0.3, 1e12, beta, np.inf)
        return cost.net_value(1e4, 3e-8, hits, rent, capacity_bytes)

    step = 1e-4
    slope = (net(optimum * (1 + step)) - net(optimum * (1 - step))) / (2 * step * optimum)
    assert slope / rent == pytest.approx(0, abs=1e-5)
    assert net(optimum) > max(net(1.1 * optimum), net(0.9 * optimum))


def cost_of_ratio(ratio, beta):
    """Rent at which the marginal ratio is the one given."""
    rent = 1e-16 / ratio * capacity.marginal_ratio(1e4, 3e-8, 0.3, beta, 1e12, 1e-16)
    assert capacity.marginal_ratio(1e4, 3e-8, 0.3, beta, 1e12, rent) == pytest.approx(ratio)
    return rent


def test_marginal_ratio_is_the_slope_of_benefit_over_rent():
    step = 1e-5
    hits = capacity.hit_rate(1e12 * np.array([1 - step, 1 + step]), 0.3, 1e12, 0.4, np.inf)
    slope = np.diff(cost.benefit_rate(1e4, 3e-8, hits))[0] / (2 * step * 1e12)
    found = capacity.marginal_ratio(1e4, 3e-8, 0.3, 0.4, 1e12, DRAM_RENT)
    assert found == pytest.approx(slope / DRAM_RENT, rel=1e-8)


def test_a_byte_without_rent_earns_without_limit():
    assert capacity.marginal_ratio(1e4, 3e-8, 0.3, 0.4, 1e12, 0.0) == np.inf
    assert capacity.break_even_capacity(np.inf, 0.4, catalogue_ratio=5) == 5


def test_the_capacity_explodes_collapses_or_stays():
    """The paper's sentence holds for a marginal ratio above 1 alone."""
    betas = np.array([0.1, 0.5, 0.9, 0.99, 0.999])
    above, at, below = capacity.break_even_capacity(np.array([[1.5], [1], [0.5]]), betas)
    assert np.all(np.diff(above) > 0)
    assert above[-1] > 1e100
    assert np.all(at == 1)
    assert np.all(np.diff(below) < 0)
    assert below[-1] < 1e-100


def test_an_overflow_is_infinite_or_the_catalogue():
    assert capacity.break_even_capacity(2.0, 0.9999) == np.inf
    assert capacity.break_even_capacity(2.0, 0.9999, catalogue_ratio=40) == 40


def test_the_optimum_rises_then_falls_where_the_reference_is_the_catalogue():
    """The marginal ratio holds the exponent itself: here it is 0.8 times the exponent."""
    betas = np.linspace(0.02, 0.98, 97)
    ratios = capacity.marginal_ratio(1e4, 3e-8, 0.4, betas, 1e12, 1.5e-16)
    assert ratios == pytest.approx(0.8 * betas)
    optimum = capacity.break_even_capacity(ratios, betas)
    peak = int(np.argmax(optimum))
    assert 0 < peak < 96
    assert np.all(np.diff(optimum[: peak + 1]) > 0)
    assert np.all(np.diff(optimum[peak:]) < 0)
    assert optimum[-1] < 1e-4 * optimum[peak]


@given(exponents, st.floats(0.2, 5), st.floats(1.1, 4))
def test_price_elasticity_is_that_of_the_optimum(beta, ratio, factor):
    before, after = capacity.break_even_capacity(np.array([ratio, ratio / factor]), beta)
    assert np.log(after / before) / np.log(factor) == pytest.approx(capacity.price_elasticity(beta))


def test_a_price_that_moves_3_6_fold():
    moved = capacity.break_even_capacity(3.6, np.array([0.177, 0.78]))
    assert moved == pytest.approx([4.7, 340], rel=0.01)


@pytest.mark.parametrize("exponent", [0.3, 0.5, 0.7])
def test_zipf_popularity_gives_the_tail_exponent(exponent):
    """The most popular items, exactly; the sum is off its integral by about zeta(a)."""
    from scipy.special import zeta

    popularity = np.cumsum(np.arange(1, 1_000_001.0) ** -exponent)
    small, large = 10_000, 100_000
    gain = popularity[large - 1] / popularity[small - 1]
    beta = capacity.tail_exponent_from_zipf(exponent)
    assert 10**beta == pytest.approx(gain, rel=2 * beta * abs(zeta(exponent)) / small**beta)


NESTED = [
    # marginal ratio, value ratio, rent ratio, exponent, catalogue
    (1.0, 0.8, 0.2, 0.5, np.inf),
    (0.6, 0.5, 0.05, 0.3, np.inf),
    (1.4, 0.9, 0.6, 0.7, np.inf),
    (0.8, 0.3, 0.5, 0.5, np.inf),  # the slower tier loses more value than rent
    (0.9, 0.55, 0.5, 0.4, np.inf),  # kept if exclusive, dropped if inclusive
    (2.0, 0.8, 0.2, 0.5, 3.0),  # the catalogue is smaller than the slower tier's optimum
    (4.0, 0.6, 0.1, 0.5, 2.0),
]


def net_of_nested_tiers(fast, slow, case, inclusive):
    """Net value over the rent of the reference capacity in the faster tier."""
    ratio, value_ratio, rent_ratio, beta, catalogue = case

    def hits(amount):
        return ratio / beta * min(amount, catalogue) ** beta

    behind = max(0.0, hits(slow) - hits(fast)) if inclusive else hits(fast + slow) - hits(fast)
    return hits(fast) + value_ratio * behind - fast - rent_ratio * slow


@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
@pytest.mark.parametrize("case", NESTED)
def test_nested_tiers_are_where_a_search_finds_the_maximum(case, inclusive):
    form = capacity.inclusive_capacities if inclusive else capacity.exclusive_capacities
    found = form(*case)
    search = differential_evolution(
        lambda log: -net_of_nested_tiers(*np.exp(log), case, inclusive),
        bounds=[(-25, 7), (-25, 7)],
        seed=1,
        tol=1e-12,
        popsize=20,
    )
    assert net_of_nested_tiers(*found, case, inclusive) == pytest.approx(-search.fun, rel=1e-6)
    assert found == pytest.approx(np.exp(search.x), rel=0.01, abs=0.01)


@given(st.floats(0.1, 5), st.floats(0, 1), st.floats(0.01, 1.5), exponents, st.floats(0.5, 100))
def test_nested_tiers_never_lose_to_one(ratio, value_ratio, rent_ratio, beta, catalogue):
    case = ratio, value_ratio, rent_ratio, beta, catalogue
    alone = capacity.break_even_capacity(ratio, beta, catalogue)
    only_fast = net_of_nested_tiers(alone, 0.0, case, False)
    for inclusive, form in [
        (False, capacity.exclusive_capacities),
        (True, capacity.inclusive_capacities),
    ]:
        fast, slow = form(*case)
        assert fast >= 0
        assert slow >= 0
        assert net_of_nested_tiers(fast, slow, case, inclusive) >= only_fast * (1 - 1e-9)


def test_the_slower_tier_is_dropped_when_it_loses_more_value_than_rent():
    fast, slow = capacity.exclusive_capacities(0.8, np.array([0.49, 0.51]), 0.5, 0.5)
    assert fast[0] == pytest.approx(0.64)
    assert slow[0] == 0
    assert slow[1] > 0


def test_copies_raise_the_bar_for_the_slower_tier():
    case = (0.9, 0.55, 0.5, 0.4)
    assert capacity.exclusive_capacities(*case)[1] > 0
    assert capacity.inclusive_capacities(*case)[1] == 0


# Tabulated H200 prefill of 8,192 tokens [s] (aiconfigurator 0.12.0, vLLM tables), GPUs, and bf16
# bytes per token; the intervals are those that a hand calculation gives.
INTERVALS = {
    "qwen3-30b-a3b": (0.1384, 1, 98_304, 19 * 60),
    "gpt-oss-120b": (0.1941, 1, 36_864, 1.2 * 3600),
    "qwen3-235b-a22b-fp8": (0.3368, 4, 192_512, 1.6 * 3600),
    "deepseek-v3": (0.4626, 8, 70_272, 12 * 3600),
}


@pytest.mark.parametrize("model", INTERVALS)
def test_break_even_interval_of_tabulated_models(model):
    prefill, gpus, per_token, expected = INTERVALS[model]
    recompute_usd = cost.recompute_cost(prefill, gpus, GPU_USD_PER_S)
    interval = capacity.break_even_interval(recompute_usd, 0, DRAM_RENT, 8192 * per_token)
    assert interval == pytest.approx(expected, rel=0.02)


@given(st.floats(1e-6, 1), st.floats(0, 1), st.floats(1e-17, 1e-14), st.floats(1e6, 1e12))
def test_keeping_and_recomputing_cost_the_same_at_the_interval(saved, loading, rent, kv_bytes):
    interval = capacity.break_even_interval(saved + loading, loading, rent, kv_bytes)
    kept = capacity.timer_cost(interval, np.inf, saved + loading, loading, rent, kv_bytes)
    dropped = capacity.timer_cost(interval, 0, saved + loading, loading, rent, kv_bytes)
    assert kept == pytest.approx(dropped)


def test_loading_that_costs_more_than_it_saves_is_never_kept():
    assert capacity.break_even_interval(1e-4, 2e-4, DRAM_RENT, 1e9) == 0
    assert capacity.break_even_interval(1e-4, 0, 0.0, 1e9) == np.inf


PREFIX = dict(recompute_usd=3.0, loading_usd=0.5, rent_usd_per_byte_s=1e-12, kv_bytes=1e10)
BREAK_EVEN = capacity.break_even_interval(3.0, 0.5, 1e-12, 1e10)


def foresight(gaps):
    """Keep until the next use, or drop at once, whichever is cheaper for each gap."""
    kept = capacity.timer_cost(gaps, np.inf, **PREFIX)
    return np.minimum(kept, capacity.timer_cost(gaps, 0, **PREFIX))


@given(st.lists(st.floats(0.01, 5000), max_size=30))
def test_the_break_even_timer_costs_at_most_twice_foresight(gaps):
    gaps, first_fill = np.array([*gaps, np.inf]), PREFIX["recompute_usd"]
    timer = first_fill + capacity.timer_cost(gaps, BREAK_EVEN, **PREFIX).sum()
    assert timer <= 2 * (first_fill + foresight(gaps).sum()) * (1 + 1e-12)


def test_the_break_even_timer_can_cost_more_than_no_cache():
    gaps = np.full(10, 1.01 * BREAK_EVEN)
    assert capacity.timer_cost(gaps, BREAK_EVEN, **PREFIX).sum() > 1.8 * 10 * 3.0


def test_after_the_last_use_only_rent_is_paid():
    assert capacity.timer_cost(np.inf, 100, **PREFIX) == pytest.approx(1.0)
    assert capacity.timer_cost(np.inf, 0, **PREFIX) == 0


def test_a_tier_off_the_critical_path_counts_by_its_prefetches():
    value = capacity.tier_value(2e-8, np.array([True, False, False]), np.array([0.1, 0.7, 0]))
    assert value.tolist() == pytest.approx([2e-8, 1.4e-8, 0])


@pytest.mark.parametrize("beta", [0.0, 1.0, 1.2, -0.5, np.nan])
@pytest.mark.parametrize(
    "form",
    [
        lambda beta: capacity.hit_rate(1, 0.3, 2, beta),
        lambda beta: capacity.marginal_ratio(1, 1, 1, beta, 1, 1),
        lambda beta: capacity.break_even_capacity(2, beta),
        capacity.price_elasticity,
        lambda beta: capacity.exclusive_capacities(1, 0.5, 0.1, beta),
        lambda beta: capacity.inclusive_capacities(1, 0.5, 0.1, beta),
    ],
)
def test_a_tail_exponent_outside_0_to_1_is_refused(form, beta):
    expected = rf"tail_exponent: found {beta:g}, expected a number inside \(0, 1\)"
    with pytest.raises(InputError, match=expected):
        form(beta)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (lambda: capacity.break_even_capacity(-1, 0.5), "marginal_ratio: found -1, expected"),
        (lambda: capacity.tail_exponent_from_zipf(1.1), "zipf_exponent: found 1.1, expected"),
        (lambda: capacity.exclusive_capacities(1, 1.2, 0.1, 0.5), "value_ratio: found 1.2, exp"),
        (lambda: capacity.inclusive_capacities(1, 0.5, 0, 0.5), "rent_ratio: found 0, expected"),
    ],
)
def test_what_has_no_meaning_is_refused(form, message):
    with pytest.raises(InputError, match=message):
        form()
