"""What a cached byte costs, what a hit is worth, and how two techniques share a saving."""

import numpy as np

from kvpaper.formulas._domain import require


def amortised_rent(price_usd_per_byte, lifetime_s):
    r"""Rent of a byte that was bought [USD/B/s].

    Charge it on the peak capacity: a bought byte costs the same when it is empty. Without power; on
    flash no longer than the drive's endurance lasts at the rate of ``drive_writes_per_s``.
    Source: straight-line depreciation.

    DRAM at 13.8 USD/GB over 36 months.

    >>> print(f"{amortised_rent(13.8e-9, 94_672_800):.3g}")
    1.46e-16

    Equation
    --------
    r_{\text{bought}} = \frac{\pi_{\text{byte}}}{T_{\text{life}}}

    Parameters
    ----------
    price_usd_per_byte : float or array [USD/B]
    lifetime_s : float or array [s]
    """
    return price_usd_per_byte / lifetime_s


def rented_rent(usage_usd_per_byte_s, occupancy):
    r"""Rent of a byte of peak capacity where only use is paid [USD/B/s].

    >>> print(f"{rented_rent(4e-16, 0.6):.3g}")
    2.4e-16

    Equation
    --------
    r_{\text{rented}} = \theta\, \pi_{\text{use}}

    Parameters
    ----------
    usage_usd_per_byte_s : float or array [USD/B/s]
    occupancy : float or array [1]
    """
    return usage_usd_per_byte_s * occupancy


def bundled_rent(capacity_bytes, included_bytes, rent_usd_per_byte_s):
    r"""Rent of one more byte where some come with the GPU [USD/B/s].

    What is paid for already has no marginal rent. The bracket in the equation is 1 where true,
    else 0.

    >>> print(bundled_rent(np.array([1e12, 3e12]), 2e12, 1.5e-16))
    [0.0e+00 1.5e-16]

    Equation
    --------
    r_{\text{bundled}} = r \left[ C > C_{\text{incl}} \right]

    Parameters
    ----------
    capacity_bytes, included_bytes : float or array [B]
    rent_usd_per_byte_s : float or array [USD/B/s]
    """
    return np.multiply(rent_usd_per_byte_s, np.greater(capacity_bytes, included_bytes))


def displacement_rent(gpus, gpu_usd_per_s, decode_floor_s, decode_step_s, kv_pool_bytes):
    r"""Rent of a byte of GPU memory that a running decode batch would use [USD/B/s].

    Memory limits the batch and a step lasts its floor plus a time in proportion to the batch: one
    byte less costs the GPU time that makes up for the lost tokens. Where the TPOT target limits the
    batch instead, the byte costs nothing. For a byte, not for much of the pool.
    Source: derived here: the relative slope of throughput, batch over step time, in the batch.

    >>> print(f"{displacement_rent(1, 3.5 / 3600, 0.01, 0.02, 60e9):.2g}")
    8.1e-15

    Equation
    --------
    r_{\text{HBM}} = \frac{g\, \pi_{\text{GPU}}}{K} \cdot \frac{T_{\text{floor}}}{T_{\text{step}}}

    Parameters
    ----------
    gpus : float or array [GPU]
    gpu_usd_per_s : float or array [USD/GPU/s]
    decode_floor_s, decode_step_s : float or array [s]
    kv_pool_bytes : float or array [B]
    """
    return gpus * gpu_usd_per_s / kv_pool_bytes * decode_floor_s / decode_step_s


def recompute_energy(recompute_time_s, gpus, power_w_per_gpu):
    r"""Energy that recomputing a prefix burns [J].

    Power while computing. A GPU that would idle instead saves only the difference.

    >>> print(f"{recompute_energy(0.237, 1, 600):.0f}")
    142

    Equation
    --------
    E = T_{\text{rec}}\, g\, P_{\text{GPU}}

    Parameters
    ----------
    recompute_time_s : float or array [s]
    gpus : float or array [GPU]
    power_w_per_gpu : float or array [W/GPU]
    """
    return recompute_time_s * gpus * power_w_per_gpu


def energy_cost(energy_j, electricity_usd_per_joule):
    r"""Price of energy [USD].

    >>> print(f"{energy_cost(142, 0.12 / 3.6e6):.3g}")
    4.73e-06

    Equation
    --------
    U_{\text{E}} = E\, \pi_{\text{E}}

    Parameters
    ----------
    energy_j : float or array [J]
    electricity_usd_per_joule : float or array [USD/J]
    """
    return energy_j * electricity_usd_per_joule


def recompute_cost(recompute_time_s, gpus, gpu_usd_per_s):
    r"""Price of the GPU time that recomputing a prefix takes [USD].

    >>> print(f"{recompute_cost(0.237, 1, 3.5 / 3600):.3g}")
    0.00023

    Equation
    --------
    U_{\text{rec}} = T_{\text{rec}}\, g\, \pi_{\text{GPU}}

    Parameters
    ----------
    recompute_time_s : float or array [s]
    gpus : float or array [GPU]
    gpu_usd_per_s : float or array [USD/GPU/s]
    """
    return recompute_time_s * gpus * gpu_usd_per_s


def value_per_token(recompute_time_s, new_tokens, gpus, gpu_usd_per_s, released_share=1.0):
    r"""Value of a hit: the GPU time that a token's recomputation would take [USD/token].

    Saved GPU time is money only as far as capacity is released or sold: that is the share. A mean
    over the recomputed tokens; deeper ones are worth more.
    Source: the paper's benefit is the recomputation saved; the form is derived here.

    >>> print(f"{value_per_token(0.237, 7629, 1, 3.5 / 3600):.3g}")
    3.02e-08

    Equation
    --------
    v = \varphi\, \frac{T_{\text{rec}}\, g\, \pi_{\text{GPU}}}{n_{\text{new}}}

    Parameters
    ----------
    recompute_time_s : float or array [s]
    new_tokens : float or array [token]
    gpus : float or array [GPU]
    gpu_usd_per_s : float or array [USD/GPU/s]
    released_share : float or array [1], default 1
    """
    return released_share * recompute_cost(recompute_time_s, gpus, gpu_usd_per_s) / new_tokens


def value_density(value_usd_per_token, kv_bytes_per_token):
    r"""Value of a hit per byte that has to be kept for it [USD/B].

    Where the architecture enters: routing to experts lowers the value, latent attention the bytes.

    >>> print(f"{value_density(3.02e-8, 131072):.3g}")
    2.3e-13

    Equation
    --------
    v_{\text{byte}} = \frac{v}{s}

    Parameters
    ----------
    value_usd_per_token : float or array [USD/token]
    kv_bytes_per_token : float or array [B/token]
    """
    return value_usd_per_token / kv_bytes_per_token


def benefit_rate(prompt_tokens_per_s, value_usd_per_token, hit_rate):
    r"""Value of the hits of a cache per second [USD/s].

    Source: the paper's benefit, per second.

    >>> print(f"{benefit_rate(1e4, 3.02e-8, 0.4):.3g}")
    0.000121

    Equation
    --------
    b = \lambda\, v\, H

    Parameters
    ----------
    prompt_tokens_per_s : float or array [token/s]
    value_usd_per_token : float or array [USD/token]
    hit_rate : float or array [1]
    """
    return prompt_tokens_per_s * value_usd_per_token * hit_rate


def cost_rate(rent_usd_per_byte_s, capacity_bytes):
    r"""Rent of a cache per second [USD/s].

    Source: the paper's cost, per second.

    >>> print(f"{cost_rate(1.46e-16, 1e12):.3g}")
    0.000146

    Equation
    --------
    b_{\text{rent}} = r\, C

    Parameters
    ----------
    rent_usd_per_byte_s : float or array [USD/B/s]
    capacity_bytes : float or array [B]
    """
    return rent_usd_per_byte_s * capacity_bytes


def net_value(
    prompt_tokens_per_s, value_usd_per_token, hit_rate, rent_usd_per_byte_s, capacity_bytes
):
    r"""Value of the hits of a cache less its rent, per second [USD/s].

    The hit rate is the one that this capacity reaches.

    >>> print(f"{net_value(1e4, 3.02e-8, 0.4, 1.46e-16, 0.5e12):.3g}")
    4.78e-05

    Equation
    --------
    b_{\text{net}} = \lambda\, v\, H - r\, C

    Parameters
    ----------
    prompt_tokens_per_s : float or array [token/s]
    value_usd_per_token : float or array [USD/token]
    hit_rate : float or array [1]
    rent_usd_per_byte_s : float or array [USD/B/s]
    capacity_bytes : float or array [B]
    """
    benefit = benefit_rate(prompt_tokens_per_s, value_usd_per_token, hit_rate)
    return benefit - cost_rate(rent_usd_per_byte_s, capacity_bytes)


def drive_writes_per_s(prompt_tokens_per_s, admitted_share, kv_bytes_per_token, capacity_bytes):
    r"""Times per second that a drive is written over in full [1/s].

    The admitted share is that of the prompt tokens whose cache is written: no hits, and with
    admission on the second use no first uses. Compare with the drive's rated writes per day.

    Qwen3-30B-A3B prefilling without pause, every token kept on a disk of 30 TB: 17 a day.

    >>> print(f"{86400 * drive_writes_per_s(59_200, 1, 98_304, 30e12):.0f}")
    17

    Equation
    --------
    w_{\text{drive}} = \frac{\lambda\, \varepsilon\, s}{C}

    Parameters
    ----------
    prompt_tokens_per_s : float or array [token/s]
    admitted_share : float or array [1]
    kv_bytes_per_token : float or array [B/token]
    capacity_bytes : float or array [B]
    """
    return prompt_tokens_per_s * admitted_share * kv_bytes_per_token / capacity_bytes


def log_interaction(none, disaggregated, tiered, both):
    r"""Interaction of two techniques as a log ratio of costs; negative is synergy [1].

    Every cell at its own best configuration under one SLO; any one unit of cost. Zero where the
    techniques save independent percentages. Within noise its sign means nothing. Raises InputError
    if a cost is not positive.
    Source: derived here: the interaction term of a 2 x 2 design in logarithms.

    >>> print(f"{log_interaction(100, 50, 50, 20):.3f}")
    -0.223

    Equation
    --------
    \Lambda = \ln \frac{U_{\text{DT}}\, U_0}{U_{\text{D}}\, U_{\text{T}}}

    Parameters
    ----------
    none, disaggregated, tiered, both : float or array [USD/token]
    """
    _require_costs(none, disaggregated, tiered, both)
    return np.log(np.divide(both, disaggregated) * np.divide(none, tiered))


def money_interaction(none, disaggregated, tiered, both):
    r"""Interaction of two techniques in money; negative is synergy [USD/token].

    Independent percentage savings look like cancellation here: show ``log_interaction`` beside it.
    Source: derived here: the interaction term of a 2 x 2 design.

    >>> money_interaction(100, 50, 50, 20)
    20

    Equation
    --------
    I = U_{\text{DT}} - U_{\text{D}} - U_{\text{T}} + U_0

    Parameters
    ----------
    none, disaggregated, tiered, both : float or array [USD/token]
    """
    return both - disaggregated - tiered + none


def shapley_split(none, disaggregated, tiered, both):
    r"""Shares of disaggregation and of tiers in the log saving of both [1].

    Raises InputError if a cost is not positive.
    Source: Shapley 1953, on the logarithm of cost: the mean over the two orders of adding them.

    >>> disaggregation, tiers = shapley_split(21.5, 15.3, 20.4, 13.5)
    >>> print(f"{1 - np.exp(-disaggregation):.2f} {1 - np.exp(-tiers):.2f}")
    0.31 0.09

    Equation
    --------
    \begin{aligned}
    \phi_{\text{D}} &= \tfrac{1}{2} \ln \frac{U_0}{U_{\text{D}}}
    + \tfrac{1}{2} \ln \frac{U_{\text{T}}}{U_{\text{DT}}}, \\
    \phi_{\text{T}} &= \tfrac{1}{2} \ln \frac{U_0}{U_{\text{T}}}
    + \tfrac{1}{2} \ln \frac{U_{\text{D}}}{U_{\text{DT}}}
    \end{aligned}

    Parameters
    ----------
    none, disaggregated, tiered, both : float or array [USD/token]

    Returns
    -------
    tuple of two : float or array [1]
        Disaggregation, tiers. They add up to the log of the cost of none over that of both; a
        part as a percentage saving is 1 - exp(-part).
    """
    _require_costs(none, disaggregated, tiered, both)
    first = np.log(np.divide(none, disaggregated)), np.log(np.divide(none, tiered))
    second = np.log(np.divide(tiered, both)), np.log(np.divide(disaggregated, both))
    return (first[0] + second[0]) / 2, (first[1] + second[1]) / 2


def one_pool_gpu_time(
    prefill_time_s, output_tokens, decode_s_per_token, decode_floor_s, tpot_slo_s
):
    r"""GPU time of a request where prefill and decode share their GPUs [s].

    A fluid picture: every step lasts the TPOT target, of which the floor carries no work; prefill
    fills what decode leaves. Memory, queueing and the TTFT target do not bind. Raises InputError if
    the TPOT target is not above the floor of a decode step.

    >>> print(f"{one_pool_gpu_time(0.4, 500, 2e-4, 0.01, 0.04):.3f} s")
    0.667 s

    Equation
    --------
    Z_{\text{one}} = \left( T_{\text{pre}} + \delta\, n_{\text{out}} \right)
    \frac{\tau}{\tau - T_{\text{floor}}}

    Parameters
    ----------
    prefill_time_s, decode_floor_s, tpot_slo_s : float or array [s]
    output_tokens : float or array [token]
    decode_s_per_token : float or array [s/token]
    """
    _require_tpot(tpot_slo_s, decode_floor_s)
    work = prefill_time_s + decode_s_per_token * output_tokens
    return work * tpot_slo_s / (tpot_slo_s - decode_floor_s)


def disaggregated_gpu_time(
    prefill_time_s, output_tokens, decode_s_per_token, decode_floor_s, tpot_slo_s
):
    r"""GPU time of a request where prefill has GPUs of its own [s].

    As ``one_pool_gpu_time``; no transfer, any split of the GPUs, and no cache lost to decode. So
    disaggregation always saves ``prefill * floor / (target - floor)`` here, and tiers shrink the
    prefill that it saves on: the two compete. Raises InputError if the TPOT target is not above the
    floor of a decode step.

    >>> print(f"{disaggregated_gpu_time(0.4, 500, 2e-4, 0.01, 0.04):.3f} s")
    0.533 s

    Equation
    --------
    Z_{\text{two}} = T_{\text{pre}} + \delta\, n_{\text{out}}
    \frac{\tau}{\tau - T_{\text{floor}}}

    Parameters
    ----------
    prefill_time_s, decode_floor_s, tpot_slo_s : float or array [s]
    output_tokens : float or array [token]
    decode_s_per_token : float or array [s/token]
    """
    _require_tpot(tpot_slo_s, decode_floor_s)
    decode = decode_s_per_token * output_tokens
    return prefill_time_s + decode * tpot_slo_s / (tpot_slo_s - decode_floor_s)


def _require_tpot(tpot_slo_s, decode_floor_s):
    expected = "a target above the floor of a decode step"
    require("tpot_slo_s", tpot_slo_s, expected, above=decode_floor_s)


def _require_costs(none, disaggregated, tiered, both):
    costs = {"none": none, "disaggregated": disaggregated, "tiered": tiered, "both": both}
    for name, cost in costs.items():
        require(name, cost, "a positive cost", above=0)
