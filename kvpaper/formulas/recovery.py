"""How long a prefix takes to come back: read from a tier, recomputed, or both at once."""

import numpy as np

from kvpaper.formulas._domain import require_load


def fetch_time(kv_bytes, read_bytes_per_s, access_latency_s):
    r"""Time to read a cached prefix from an idle tier [s].

    One reader; the rate is the one that a copy reaches, not the line rate.
    Source: the paper's recovery chart: 1 GB from HBM in about 0.21 ms, from NVMe in about 333 ms.

    >>> print(f"{fetch_time(1e9, np.array([4.8e12, 3.0e9]), 0)[1]:.3f} s")
    0.333 s

    Equation
    --------
    T_{\text{fetch}} = \ell_{\text{read}} + \frac{S}{B_{\text{read}}}

    Parameters
    ----------
    kv_bytes : float or array [B]
    read_bytes_per_s : float or array [B/s]
    access_latency_s : float or array [s]
    """
    return access_latency_s + kv_bytes / read_bytes_per_s


def attention_pairs(new_tokens, cached_tokens, window_tokens=np.inf):
    r"""Pairs of a new token and a token that it attends to, itself included [1].

    Causal attention. Without a window the sum is ``new * cached + new * (new + 1) / 2``.

    >>> print(attention_pairs(3, 2))
    12.0

    Equation
    --------
    P = \sum_{i=1}^{n_{\text{new}}} \min\left(n_{\text{cached}} + i,\, w\right)

    Parameters
    ----------
    new_tokens, cached_tokens : float or array [token]
    window_tokens : float or array [token], default inf
    """
    growing = np.clip(window_tokens - np.asarray(cached_tokens, float), 0, new_tokens)
    widest = np.minimum(window_tokens, np.add(cached_tokens, new_tokens))
    return growing * cached_tokens + growing * (growing + 1) / 2 + (new_tokens - growing) * widest


def attention_flops(new_tokens, cached_tokens, layers, query_heads, head_dim, window_tokens=np.inf):
    r"""Work of attention in one prefill pass, for layers of one kind [FLOP].

    Scores and weighted values take 2 d FLOP each per pair and query head. Only the causal half is
    counted. Add up the kinds of layer where a model has several.
    Source: derived here from the two matrix products of scaled dot-product attention.

    >>> print(f"{attention_flops(8192, 0, 32, 32, 128):.3g}")
    1.76e+13

    Equation
    --------
    \begin{aligned}
    W_{\text{attn}} &= 4\, L\, n_{\text{q}}\, d\, P, \\
    P &= \sum_{i=1}^{n_{\text{new}}} \min\left(n_{\text{cached}} + i,\, w\right)
    \end{aligned}

    Parameters
    ----------
    new_tokens, cached_tokens : float or array [token]
    layers, query_heads, head_dim : float or array [1]
    window_tokens : float or array [token], default inf
    """
    pairs = attention_pairs(new_tokens, cached_tokens, window_tokens)
    return 4 * layers * query_heads * head_dim * pairs


def mla_attention_flops(
    new_tokens,
    cached_tokens,
    layers,
    query_heads,
    kv_lora_rank,
    qk_nope_head_dim,
    qk_rope_head_dim,
    v_head_dim,
):
    r"""Work of latent attention in one prefill pass that expands keys and values [FLOP].

    The second term of the equation expands the cached latents once; a prefill in chunks expands
    them in every chunk. The expansion of new tokens is in the work of the parameters.
    Source: derived here from DeepSeek-V2, arXiv:2405.04434, section 2.1.

    >>> print(f"{mla_attention_flops(1, 8191, 61, 128, 512, 128, 64, 128):.3g}")
    1.68e+13

    Equation
    --------
    \begin{aligned}
    W_{\text{MLA}} &= 2\, L\, n_{\text{q}} \bigl(E_{\text{pair}}\, P \\
    & \qquad {} + E_{\text{token}}\, n_{\text{cached}}\bigr), \\
    E_{\text{pair}} &= d_{\text{nope}} + d_{\text{rope}} + d_{\text{v}}, \\
    E_{\text{token}} &= d_{\text{c}} \left(d_{\text{nope}} + d_{\text{v}}\right), \\
    P &= \sum_{i=1}^{n_{\text{new}}} \left(n_{\text{cached}} + i\right)
    \end{aligned}

    Parameters
    ----------
    new_tokens, cached_tokens : float or array [token]
    layers, query_heads : float or array [1]
    kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim : float or array [1]
    """
    pairs = attention_pairs(new_tokens, cached_tokens)
    per_pair = qk_nope_head_dim + qk_rope_head_dim + v_head_dim
    expansion = kv_lora_rank * (qk_nope_head_dim + v_head_dim) * cached_tokens
    return 2 * layers * query_heads * (per_pair * pairs + expansion)


def mla_absorbed_attention_flops(
    new_tokens, cached_tokens, layers, query_heads, kv_lora_rank, qk_rope_head_dim
):
    r"""Work of latent attention in one prefill pass that stays in the latent space [FLOP].

    Nothing is expanded, but a pair costs more: 1,088 against 320 elements per head for DeepSeek-V3.
    It is the cheaper way for few new tokens on a long cache.
    Source: derived here from DeepSeek-V2, arXiv:2405.04434, section 2.1.

    >>> print(f"{mla_absorbed_attention_flops(1, 8191, 61, 128, 512, 64):.3g}")
    1.39e+11

    Equation
    --------
    \begin{aligned}
    W_{\text{absorbed}} &= 2 L n_{\text{q}} (2 d_{\text{c}} + d_{\text{rope}}) P, \\
    P &= \sum_{i=1}^{n_{\text{new}}} \left(n_{\text{cached}} + i\right)
    \end{aligned}

    Parameters
    ----------
    new_tokens, cached_tokens : float or array [token]
    layers, query_heads, kv_lora_rank, qk_rope_head_dim : float or array [1]
    """
    pairs = attention_pairs(new_tokens, cached_tokens)
    return 2 * layers * query_heads * (2 * kv_lora_rank + qk_rope_head_dim) * pairs


def prefill_flops(new_tokens, active_params, attention_flops):
    r"""Work of one prefill pass: parameters and attention [FLOP].

    Every active parameter does one multiplication and one addition per token. Input embeddings and
    the output head of all but the last token are counted though they do no work.
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.

    >>> print(f"{prefill_flops(8192, 8.0e9, 1.76e13):.3g}")
    1.49e+14

    Equation
    --------
    W = 2\, A\, n_{\text{new}} + W_{\text{attn}}

    Parameters
    ----------
    new_tokens : float or array [token]
    active_params : float or array [1]
    attention_flops : float or array [FLOP]
    """
    return 2 * active_params * new_tokens + attention_flops


def recompute_time(
    new_tokens,
    cached_tokens,
    active_params,
    layers,
    query_heads,
    head_dim,
    flops_per_s,
    window_tokens=np.inf,
):
    r"""Time to compute the cache of new tokens on top of cached ones [s].

    Layers of one kind, and one rate for all lengths. The reached share moves with length, so a
    measured or tabulated prefill curve is better where there is one.
    Source: derived here; work as in ``prefill_flops``.

    >>> print(f"{recompute_time(7629, 0, 8.0e9, 32, 32, 128, 580e12):.3f} s")
    0.237 s

    Equation
    --------
    \begin{aligned}
    T_{\text{rec}} &= \frac{2\, A\, n_{\text{new}} + 4\, L\, n_{\text{q}}\, d\, P}{F}, \\
    P &= \sum_{i=1}^{n_{\text{new}}} \min\left(n_{\text{cached}} + i,\, w\right)
    \end{aligned}

    Parameters
    ----------
    new_tokens, cached_tokens : float or array [token]
    active_params, layers, query_heads, head_dim : float or array [1]
    flops_per_s : float or array [FLOP/s]
        GPUs times peak rate times the share of it that prefill reaches.
    window_tokens : float or array [token], default inf
    """
    attention = attention_flops(
        new_tokens, cached_tokens, layers, query_heads, head_dim, window_tokens
    )
    return prefill_flops(new_tokens, active_params, attention) / flops_per_s


def recovery_time(fetch_time_s, recompute_time_s):
    r"""Time to recover a prefix by the better of fetching and recomputing [s].

    Recomputation is the rival of every tier.

    >>> print(recovery_time(0.333, 0.237))
    0.237

    Equation
    --------
    T_{\text{recover}} = \min\left(T_{\text{fetch}},\, T_{\text{rec}}\right)

    Parameters
    ----------
    fetch_time_s, recompute_time_s : float or array [s]
    """
    return np.minimum(fetch_time_s, recompute_time_s)


def crossover_tokens(
    active_params,
    layers,
    query_heads,
    head_dim,
    flops_per_s,
    kv_bytes_per_token,
    read_bytes_per_s,
    access_latency_s,
    fixed_kv_bytes=0.0,
):
    r"""Prefix length from which fetching beats recomputing; nan where it never does [token].

    Nothing is cached before; ``layers`` counts full-attention layers. Recomputing is convex in
    length and fetching linear, so there is at most one crossing; without full-attention layers
    there may be none. Filled windows and states are ``fixed_kv_bytes``, and a filled window adds
    ``2 * layers * query_heads * head_dim * window_tokens`` to ``active_params``. For latent
    attention the head dimension is the mean of the query and value widths (160 for DeepSeek-V3).
    Source: derived here from ``recompute_time`` and ``fetch_time``.

    >>> print(f"{crossover_tokens(8.0e9, 32, 32, 128, 580e12, 131072, 3.0e9, 0):.0f}")
    35631

    Equation
    --------
    \begin{aligned}
    & \frac{2\, A\, n_{\times} + 2\, L\, n_{\text{q}}\, d\, n_{\times} (n_{\times} + 1)}{F} \\
    & \quad = \ell_{\text{read}} + \frac{S_{\text{fixed}} + s\, n_{\times}}{B_{\text{read}}}
    \end{aligned}

    Parameters
    ----------
    active_params, layers, query_heads, head_dim : float or array [1]
    flops_per_s : float or array [FLOP/s]
    kv_bytes_per_token : float or array [B/token]
    read_bytes_per_s : float or array [B/s]
    access_latency_s : float or array [s]
    fixed_kv_bytes : float or array [B], default 0
    """
    curvature = np.divide(2.0 * layers * query_heads * head_dim, flops_per_s)
    slope = 2 * active_params / flops_per_s + curvature - kv_bytes_per_token / read_bytes_per_s
    start = access_latency_s + fixed_kv_bytes / read_bytes_per_s
    root = np.sqrt(slope**2 + 4 * curvature * start)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Each branch of the root cancels nothing where it is used, and serves curvature 0.
        crossing = np.where(
            slope > 0, np.divide(2 * start, slope + root), np.divide(root - slope, 2 * curvature)
        )
    return np.where(np.isfinite(crossing), crossing, np.nan)[()]


def two_ended_recovery_time(
    new_tokens,
    cached_tokens,
    active_params,
    layers,
    query_heads,
    head_dim,
    flops_per_s,
    kv_bytes_per_token,
    read_bytes_per_s,
    access_latency_s,
):
    r"""Time to recover a prefix computed from its front and fetched from its back [s].

    The two ends do not slow each other and meet at any token, here a real number. Where all is
    computed before the first byte arrives, nothing is fetched. Full-attention layers.
    Source: the scheme is Cake, Jin et al., ICML 2025, arXiv:2410.03065; the form is derived here.

    >>> print(f"{two_ended_recovery_time(7629, 0, 8e9, 32, 32, 128, 580e12, 131072, 3e9, 0):.3f}")
    0.135

    Equation
    --------
    \begin{aligned}
    T_{\text{two}} &= \frac{2\, A\, x_{\text{front}} + 4\, L\, n_{\text{q}}\, d\, P}{F}, \\
    P &= \sum_{i=1}^{x_{\text{front}}} \left(n_{\text{cached}} + i\right), \\
    T_{\text{two}} &= \ell_{\text{read}}
    + \frac{s \left(n_{\text{new}} - x_{\text{front}}\right)}{B_{\text{read}}} \\
    & \quad \text{unless } x_{\text{front}} = n_{\text{new}}
    \end{aligned}

    Parameters
    ----------
    new_tokens, cached_tokens : float or array [token]
    active_params, layers, query_heads, head_dim : float or array [1]
    flops_per_s : float or array [FLOP/s]
    kv_bytes_per_token : float or array [B/token]
    read_bytes_per_s : float or array [B/s]
    access_latency_s : float or array [s]
    """
    curvature = np.divide(2.0 * layers * query_heads * head_dim, flops_per_s)
    slope = 2 * active_params / flops_per_s + curvature * (2 * cached_tokens + 1)
    slope = slope + kv_bytes_per_token / read_bytes_per_s
    all_fetched = access_latency_s + kv_bytes_per_token * new_tokens / read_bytes_per_s
    front = 2 * all_fetched / (slope + np.sqrt(slope**2 + 4 * curvature * all_fetched))
    return recompute_time(
        np.minimum(front, new_tokens),
        cached_tokens,
        active_params,
        layers,
        query_heads,
        head_dim,
        flops_per_s,
    )


def offered_load(requests_per_s, mean_bytes, bytes_per_s):
    r"""Share of a tier's or a link's rate that its traffic asks for [1].

    Bytes that are really moved: writes count, hits that are recomputed instead do not. In a
    disaggregated fleet the prefill workers alone read the tiers, so the rate is theirs.
    Source: the utilisation of queueing theory; on who reads, Wu et al. 2026, arXiv:2602.21548.

    >>> print(offered_load(requests_per_s=2, mean_bytes=1e9, bytes_per_s=4e9))
    0.5

    Equation
    --------
    \rho = \frac{\lambda_{\text{req}}\, \bar{S}}{B}

    Parameters
    ----------
    requests_per_s : float or array [request/s]
    mean_bytes : float or array [B/request]
    bytes_per_s : float or array [B/s]
    """
    return requests_per_s * mean_bytes / bytes_per_s


def shared_fetch_time(kv_bytes, read_bytes_per_s, access_latency_s, offered_load):
    r"""Mean time to read a cached prefix from a tier that other requests share [s].

    Poisson arrivals, the rate shared equally among the reads under way, any distribution of their
    sizes. The tail is several times longer than this mean: an SLO percentile needs a replay. Raises
    InputError if the load is negative, or is 1 or more: then there is no steady state.
    Source: processor sharing: Kleinrock, Queueing Systems, volume II (1976), chapter 4.

    >>> print(f"{shared_fetch_time(1e9, 3.0e9, 0, offered_load=0.5):.3f} s")
    0.667 s

    Equation
    --------
    T_{\text{shared}} = \ell_{\text{read}} + \frac{S}{B_{\text{read}} (1 - \rho)}

    Parameters
    ----------
    kv_bytes : float or array [B]
    read_bytes_per_s : float or array [B/s]
    access_latency_s : float or array [s]
    offered_load : float or array [1]
    """
    require_load(offered_load)
    return access_latency_s + kv_bytes / (read_bytes_per_s * (1 - offered_load))
