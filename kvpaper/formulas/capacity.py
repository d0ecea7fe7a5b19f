"""How much of a tier to buy, and how long to keep what is in it.

Capacities are in units of a reference capacity wherever that suffices: then the answer needs one
number, the marginal ratio, and no unit.
"""

import numpy as np

from kvpaper.formulas._domain import require, require_tail_exponent


def _require_tiers(value_ratio, rent_ratio):
    expected = "a ratio from 0 to 1: a hit in the slower tier is worth no more"
    require("value_ratio", value_ratio, expected, least=0, most=1)
    expected = "a positive ratio: a tier without rent is filled whatever the curve"
    require("rent_ratio", rent_ratio, expected, above=0)


def hit_rate(
    capacity_bytes, reference_hit_rate, reference_capacity_bytes, tail_exponent, catalogue_ratio=1.0
):
    r"""Share of prompt tokens that a cache holds, as a power law of its capacity [1].

    By default the reference holds the whole catalogue, so that its hit rate is the ceiling. Many
    real reuse curves are no power law: test the fit before use. Raises InputError if
    ``tail_exponent`` is not inside (0, 1).
    Source: the paper assumes it; for Zipf popularity, Breslau et al., INFOCOM 1999.

    >>> print(f"{hit_rate(1e12, 0.4, 4e12, 0.5):.2f}")
    0.20

    Equation
    --------
    H = h_0 \min\left( \frac{C}{C_0},\, c_{\max} \right)^{\beta}

    Parameters
    ----------
    capacity_bytes, reference_capacity_bytes : float or array [B]
    reference_hit_rate, tail_exponent : float or array [1]
    catalogue_ratio : float or array [1], default 1
    """
    require_tail_exponent(tail_exponent)
    filled = np.minimum(np.divide(capacity_bytes, reference_capacity_bytes), catalogue_ratio)
    return reference_hit_rate * np.power(filled, tail_exponent)


def marginal_ratio(
    prompt_tokens_per_s,
    value_usd_per_token,
    reference_hit_rate,
    tail_exponent,
    reference_capacity_bytes,
    rent_usd_per_byte_s,
):
    r"""Benefit of one more byte over its rent, at the reference capacity [1].

    Infinite without rent. It stands with the date of its price, and it holds the tail exponent:
    vary both together. Raises InputError if ``tail_exponent`` is not inside (0, 1).
    Source: the slope of ``hit_rate``, priced; derived here.

    >>> print(f"{marginal_ratio(1e4, 2e-8, 0.4, 0.5, 4e12, 1.5e-16):.3f}")
    0.067

    Equation
    --------
    M = \frac{\lambda\, v\, h_0\, \beta}{C_0\, r}

    Parameters
    ----------
    prompt_tokens_per_s : float or array [token/s]
    value_usd_per_token : float or array [USD/token]
    reference_hit_rate, tail_exponent : float or array [1]
    reference_capacity_bytes : float or array [B]
    rent_usd_per_byte_s : float or array [USD/B/s]
    """
    require_tail_exponent(tail_exponent)
    benefit = prompt_tokens_per_s * value_usd_per_token * reference_hit_rate * tail_exponent
    with np.errstate(divide="ignore"):
        return np.divide(benefit, reference_capacity_bytes * rent_usd_per_byte_s)


def break_even_capacity(marginal_ratio, tail_exponent, catalogue_ratio=np.inf):
    r"""Capacity at which one more byte just earns its rent, over the reference capacity [1].

    As the tail exponent approaches 1 it explodes only for a marginal ratio above 1, as the paper
    says; below 1 it collapses to nothing, and at 1 it stays. A catalogue is finite, so it stops at
    ``catalogue_ratio``. The slope of a power law is infinite at 0: it never says to buy nothing.
    Raises InputError if ``marginal_ratio`` is negative or ``tail_exponent`` is not inside (0, 1).
    Source: the exponent is the paper's; the form without units is derived here.

    >>> print(np.round(break_even_capacity(np.array([2, 1, 0.5]), 0.75), 4))
    [16.      1.      0.0625]

    Equation
    --------
    c^{\ast} = \min\left( c_{\max},\, M^{1 / (1 - \beta)} \right)

    Parameters
    ----------
    marginal_ratio, tail_exponent : float or array [1]
    catalogue_ratio : float or array [1], default inf
    """
    require("marginal_ratio", marginal_ratio, "a ratio >= 0", least=0)
    require_tail_exponent(tail_exponent)
    with np.errstate(over="ignore"):
        balanced = np.power(np.asarray(marginal_ratio, float), 1 / np.subtract(1, tail_exponent))
    return np.minimum(catalogue_ratio, balanced)


def price_elasticity(tail_exponent):
    r"""Relative change of the break-even capacity for a relative change of the rent [1].

    Inside the catalogue. Raises InputError if ``tail_exponent`` is not inside (0, 1).
    Source: derived here from ``break_even_capacity``.

    A price that rises 3.6-fold divides the optimum by 4.7 or by 338.

    >>> print(np.round(3.6 ** -price_elasticity(np.array([0.177, 0.78])), 1))
    [  4.7 337.8]

    Equation
    --------
    \eta = \frac{\mathrm{d} \ln c^{\ast}}{\mathrm{d} \ln r} = - \frac{1}{1 - \beta}

    Parameters
    ----------
    tail_exponent : float or array [1]
    """
    require_tail_exponent(tail_exponent)
    return -1 / np.subtract(1, tail_exponent)


def tail_exponent_from_zipf(zipf_exponent):
    r"""Tail exponent of the hit rate where popularity is Zipf [1].

    Popularity of rank i falls as i to the power -a, a below 1; independent references; capacity
    well above one item and below the catalogue. Exact for a cache of the most popular items in a
    large catalogue. Raises InputError if ``zipf_exponent`` is not inside (0, 1).
    Source: Breslau et al., INFOCOM 1999.

    >>> tail_exponent_from_zipf(0.75)
    0.25

    Equation
    --------
    \beta \approx 1 - a

    Parameters
    ----------
    zipf_exponent : float or array [1]
    """
    expected = "a number inside (0, 1); at 1 and above the hit rate is no power of the capacity"
    require("zipf_exponent", zipf_exponent, expected, above=0, below=1)
    return 1 - zipf_exponent


def exclusive_capacities(
    marginal_ratio, value_ratio, rent_ratio, tail_exponent, catalogue_ratio=np.inf
):
    r"""Capacities of a faster and a slower tier that share no block, over the reference [1].

    Both tiers live on one power-law curve. The slower one is dropped unless it loses less in value
    than it saves in rent. A tier off the critical path enters with its ``tier_value``. Raises
    InputError if a ratio or ``tail_exponent`` is out of its range.

    >>> fast, slow = exclusive_capacities(1.0, 0.8, 0.2, 0.5)
    >>> print(f"{fast:.4f} {slow:.4f}")
    0.0625 15.9375

    Equation
    --------
    \begin{aligned}
    & c^{\ast}(z) = \min\left(c_{\max},\, z^{1 / (1 - \beta)}\right) \\
    & x > y: \\
    & \quad c_1^{\text{ex}} = c^{\ast}\left( M\, \frac{1 - x}{1 - y} \right), \\
    & \quad c_1^{\text{ex}} + c_2^{\text{ex}} = c^{\ast}\left( M\, \frac{x}{y} \right) \\
    & x \le y: \\
    & \quad c_1^{\text{ex}} = c^{\ast}(M),\quad c_2^{\text{ex}} = 0
    \end{aligned}

    Parameters
    ----------
    marginal_ratio : float or array [1]
        That of the faster tier, alone.
    value_ratio, rent_ratio, tail_exponent : float or array [1]
    catalogue_ratio : float or array [1], default inf

    Returns
    -------
    tuple of two : float or array [1]
        Faster tier, slower tier.
    """
    _require_tiers(value_ratio, rent_ratio)
    kept = np.greater(value_ratio, rent_ratio)
    # 1 stands in for the rent that is saved where the slower tier is dropped anyway.
    saved_rent = np.where(kept, np.subtract(1, rent_ratio), 1)
    fast_ratio = np.where(
        kept, marginal_ratio * np.subtract(1, value_ratio) / saved_rent, marginal_ratio
    )
    both_ratio = np.where(kept, marginal_ratio * np.divide(value_ratio, rent_ratio), marginal_ratio)
    fast = break_even_capacity(fast_ratio, tail_exponent, catalogue_ratio)
    return fast, break_even_capacity(both_ratio, tail_exponent, catalogue_ratio) - fast


def inclusive_capacities(
    marginal_ratio, value_ratio, rent_ratio, tail_exponent, catalogue_ratio=np.inf
):
    r"""Capacities of a faster tier and a slower one that copies it, over the reference [1].

    Both tiers live on one power-law curve. A copy in the slower tier of what the faster one holds
    earns nothing, so marginals alone do not decide whether to keep it: the net values do. Raises
    InputError if a ratio or ``tail_exponent`` is out of its range.

    >>> fast, slow = inclusive_capacities(1.0, 0.8, 0.2, 0.5)
    >>> print(f"{fast:.4f} {slow:.4f}")
    0.0400 16.0000

    Equation
    --------
    \begin{aligned}
    & c^{\ast}(z) = \min\left(c_{\max},\, z^{1 / (1 - \beta)}\right) \\
    & f(c) = \frac{M}{\beta}\, c^{\beta} \\
    & c_1^{\text{in}} = c^{\ast}(M (1 - x)) \\
    & c_2^{\text{in}} = c^{\ast}\left( M\, \frac{x}{y} \right) \\
    & \text{if } (1 - x)\, f(c_1^{\text{in}}) + x\, f(c_2^{\text{in}}) \\
    & \quad {} - c_1^{\text{in}} - y\, c_2^{\text{in}} \\
    & \quad {} > \max_{c \le c_{\max}} (f(c) - c), \\
    & c_1^{\text{in}} = c^{\ast}(M), \quad c_2^{\text{in}} = 0 \quad \text{otherwise}
    \end{aligned}

    Parameters
    ----------
    marginal_ratio : float or array [1]
        That of the faster tier, alone.
    value_ratio, rent_ratio, tail_exponent : float or array [1]
    catalogue_ratio : float or array [1], default inf

    Returns
    -------
    tuple of two : float or array [1]
        Faster tier, slower tier.
    """
    _require_tiers(value_ratio, rent_ratio)
    lost = np.subtract(1, value_ratio)
    alone = break_even_capacity(marginal_ratio, tail_exponent, catalogue_ratio)
    fast = break_even_capacity(marginal_ratio * lost, tail_exponent, catalogue_ratio)
    slow_ratio = marginal_ratio * np.divide(value_ratio, rent_ratio)
    slow = break_even_capacity(slow_ratio, tail_exponent, catalogue_ratio)
    scale = np.divide(marginal_ratio, tail_exponent)
    both_value = scale * (lost * fast**tail_exponent + value_ratio * slow**tail_exponent)
    kept = both_value - fast - rent_ratio * slow > scale * alone**tail_exponent - alone
    return np.where(kept, fast, alone)[()], np.where(kept, slow, 0.0)[()]


def break_even_interval(recompute_usd, loading_usd, rent_usd_per_byte_s, kv_bytes):
    r"""Time to the next use at which keeping a prefix costs as much as recomputing it [s].

    The next use is certain; no tail exponent is needed. Where it is not, stop keeping when the
    hazard of a next use falls below the inverse of this time. A trace shorter than the interval
    cannot support it.
    Source: Gray and Putzolu 1987, doi:10.1145/38714.38755, on disk pages; applied to prefixes here.

    >>> print(f"{break_even_interval(1.35e-4, 0, 1.46e-16, 8.05e8):.0f} s")
    1149 s

    Equation
    --------
    T_{\text{even}} = \frac{\max\left(0,\, U_{\text{rec}} - U_{\text{load}}\right)}{r\, S}

    Parameters
    ----------
    recompute_usd, loading_usd : float or array [USD]
    rent_usd_per_byte_s : float or array [USD/B/s]
    kv_bytes : float or array [B]
    """
    saved = np.maximum(0, np.subtract(recompute_usd, loading_usd))
    with np.errstate(divide="ignore"):
        return np.divide(saved, rent_usd_per_byte_s * kv_bytes)


def timer_cost(gap_s, timer_s, recompute_usd, loading_usd, rent_usd_per_byte_s, kv_bytes):
    r"""Cost from one use of a prefix to the next when a timer drops it [USD].

    An infinite gap follows the last use. Timer 0 is no cache; the least over timers, gap by gap, is
    perfect foresight. With first fills counted, the break-even interval as timer costs at most
    twice foresight, but it can cost more than no cache.
    Source: ski rental: Karlin et al., Algorithmica 3 (1988), doi:10.1007/BF01762111.

    >>> print(timer_cost(np.array([60, 600, np.inf]), 120, 3.0, 0.0, 1e-11, 1e9))
    [0.6 4.2 1.2]

    Equation
    --------
    \begin{aligned}
    U_{\text{gap}} ={}& r\, S \min\left(T_{\text{gap}}, T_{\text{timer}}\right) \\
    &{}+ \begin{cases}
    U_{\text{load}} & \text{if } T_{\text{gap}} \le T_{\text{timer}}, \\
    0 & \text{if } T_{\text{gap}} = \infty, \\
    U_{\text{rec}} & \text{otherwise}
    \end{cases}
    \end{aligned}

    Parameters
    ----------
    gap_s, timer_s : float or array [s]
    recompute_usd, loading_usd : float or array [USD]
    rent_usd_per_byte_s : float or array [USD/B/s]
    kv_bytes : float or array [B]
    """
    gap, timer = np.asarray(gap_s, float), np.asarray(timer_s, float)
    rent = rent_usd_per_byte_s * kv_bytes * np.minimum(gap, timer)
    at_next_use = np.where(gap <= timer, loading_usd, recompute_usd)
    return rent + np.where(np.isinf(gap), 0.0, at_next_use)


def tier_value(value_usd_per_token, on_critical_path, prefetch_probability):
    r"""Value of a hit in a tier, by the way in which requests may use it [USD/token].

    On the critical path a hit has its full value, else that of a prefetch that comes in time.
    Source: derived here from the paper's demotion of a slow tier to prefetching.

    >>> print(tier_value(2e-8, np.array([True, False]), 0.7))
    [2.0e-08 1.4e-08]

    Equation
    --------
    v_{\text{tier}} = v \left[ q + (1 - q)\, p \right]

    Parameters
    ----------
    value_usd_per_token : float or array [USD/token]
    on_critical_path, prefetch_probability : float or array [1]
    """
    return value_usd_per_token * np.where(on_critical_path, 1.0, prefetch_probability)
