"""How much of the target for the first token is left for a fetch."""

import numpy as np

from kvpaper.formulas._domain import require

_OVERLAP = "a share from 0 (the fetch starts after the queue) to 1 (on arrival)"


def visible_transfer_time(
    kv_bytes, transfer_bytes_per_s, transfer_latency_s, layers, prefill_time_s
):
    r"""Time by which sending the cache layer by layer outlasts the prefill [s].

    Like layers, each sent when it is computed, one after another. One layer stands for a transfer
    that starts when the prefill ends. Colocated pools have no transfer.
    Source: derived here; on the scheme, Splitwise, Patel et al., ISCA 2024, arXiv:2311.18677.

    >>> print(f"{visible_transfer_time(1e9, 50e9, 0, layers=32, prefill_time_s=0.2):.6f} s")
    0.000625 s

    Equation
    --------
    \begin{aligned}
    T_{\text{vis}} ={}& \ell_{\text{net}} + \max\Bigl( \frac{S}{B_{\text{net}} L},\, \\
    & \quad \frac{S}{B_{\text{net}}} - \frac{L - 1}{L} T_{\text{pre}} \Bigr)
    \end{aligned}

    Parameters
    ----------
    kv_bytes : float or array [B]
    transfer_bytes_per_s : float or array [B/s]
    transfer_latency_s, prefill_time_s : float or array [s]
    layers : float or array [1]
    """
    whole = np.divide(kv_bytes, transfer_bytes_per_s)
    hidden = np.multiply(prefill_time_s, (layers - 1) / layers)
    return transfer_latency_s + np.maximum(whole / layers, whole - hidden)


def ttft(queue_wait_s, fetch_time_s, prefill_time_s, visible_transfer_time_s, queue_overlap=0.0):
    r"""Time to the first token of a request that fetches its prefix [s].

    The fetch ends before the prefill starts. An overlap of 0 starts it when the request leaves the
    queue, 1 when it arrives. Pass no visible transfer where the prefill side emits the first token:
    the second token then waits for it. Raises InputError if ``queue_overlap`` is outside 0 to 1.
    Source: derived here; on the transfer, DistServe, Zhong et al., OSDI 2024, arXiv:2401.09670.

    >>> print(f"{ttft(0.1, 0.08, 0.15, 0.02):.2f} s, {ttft(0.1, 0.08, 0.15, 0.02, 1):.2f} s")
    0.35 s, 0.27 s

    Equation
    --------
    \begin{aligned}
    T_{\text{first}} ={}& \max\bigl( T_{\text{wait}},\, \\
    & \quad (1 - \omega)\, T_{\text{wait}} + T_{\text{fetch}} \bigr) \\
    &{}+ T_{\text{pre}} + T_{\text{vis}}
    \end{aligned}

    Parameters
    ----------
    queue_wait_s, fetch_time_s, prefill_time_s, visible_transfer_time_s : float or array [s]
    queue_overlap : float or array [1], default 0
    """
    require("queue_overlap", queue_overlap, _OVERLAP, least=0, most=1)
    fetched = (1 - queue_overlap) * queue_wait_s + fetch_time_s
    return np.maximum(queue_wait_s, fetched) + prefill_time_s + visible_transfer_time_s


def ttft_slack(
    ttft_slo_s, queue_wait_s, prefill_time_s, visible_transfer_time_s, queue_overlap=0.0
):
    r"""Longest fetch that still meets the target; negative where no fetch does [s].

    The bracket in the equation is 1 where true, else 0. The prefill is that of the tokens which are
    not cached. ``ttft`` meets the target exactly where the fetch is within the slack. Raises
    InputError if ``queue_overlap`` is outside 0 to 1.
    Source: the paper names this slack; the form is derived here from ``ttft``.

    >>> print(f"{ttft_slack(0.3, 0.1, 0.15, 0.02):.2f} s")
    0.03 s

    Equation
    --------
    \begin{aligned}
    \sigma ={}& T_{\text{left}} - T_{\text{wait}} \\
    &{}+ \omega\, T_{\text{wait}} \left[ T_{\text{wait}} \le T_{\text{left}} \right], \\
    T_{\text{left}} ={}& T_{\text{SLO}} - T_{\text{pre}} - T_{\text{vis}}
    \end{aligned}

    Parameters
    ----------
    ttft_slo_s, queue_wait_s, prefill_time_s, visible_transfer_time_s : float or array [s]
    queue_overlap : float or array [1], default 0
    """
    require("queue_overlap", queue_overlap, _OVERLAP, least=0, most=1)
    left = np.subtract(ttft_slo_s, prefill_time_s) - visible_transfer_time_s
    charged = np.where(queue_wait_s <= left, (1 - queue_overlap) * queue_wait_s, queue_wait_s)
    return left - charged


def max_fetch_bytes(ttft_slack_s, read_bytes_per_s, access_latency_s):
    r"""Largest prefix that a tier returns within the slack [B].

    Source: derived here: the inverse of ``fetch_time``.

    >>> print(f"{max_fetch_bytes(0.1, 3.0e9, 80e-6):.4g}")
    2.998e+08

    Equation
    --------
    S_{\max} = \max\left(0,\, B_{\text{read}} \left(\sigma - \ell_{\text{read}}\right)\right)

    Parameters
    ----------
    ttft_slack_s, access_latency_s : float or array [s]
    read_bytes_per_s : float or array [B/s]
    """
    return np.maximum(0, read_bytes_per_s * np.subtract(ttft_slack_s, access_latency_s))


def on_critical_path(fetch_time_s, ttft_slack_s, recompute_time_s):
    r"""Whether a request may wait for a tier: the fetch meets the target and beats computing [1].

    The brackets in the equation are 1 where true, else 0. A tier that fails can still be a source
    of prefetches.
    Source: the first bracket is the paper's; the second is added here.

    >>> print(on_critical_path(0.333, 0.1, 0.237), on_critical_path(0.016, 0.1, 0.237))
    False True

    Equation
    --------
    q = \left[ T_{\text{fetch}} \le \sigma \right] \cdot
    \left[ T_{\text{fetch}} < T_{\text{rec}} \right]

    Parameters
    ----------
    fetch_time_s, ttft_slack_s, recompute_time_s : float or array [s]
    """
    return np.less_equal(fetch_time_s, ttft_slack_s) & np.less(fetch_time_s, recompute_time_s)


def prefetch_probability(fetch_time_s, mean_lead_time_s):
    r"""Probability that a prefetch ends before its request needs it [1].

    Exponential lead times, from knowing of the request to needing its cache. A prefetch that is
    still under way counts for nothing.
    Source: derived here; the paper demotes a slow tier to prefetching without a probability.

    >>> print(f"{prefetch_probability(0.333, 1.0):.3f}")
    0.717

    Equation
    --------
    p = \exp\left( - \frac{T_{\text{fetch}}}{\bar{T}_{\text{lead}}} \right)

    Parameters
    ----------
    fetch_time_s, mean_lead_time_s : float or array [s]
    """
    return np.exp(-np.divide(fetch_time_s, mean_lead_time_s))


def empirical_prefetch_probability(fetch_time_s, lead_times_s):
    r"""Share of observed lead times that a prefetch fits in [1].

    K lead times; the bracket in the equation is 1 where true, else 0.
    Source: derived here: the empirical form of ``prefetch_probability``.

    >>> print(empirical_prefetch_probability(0.333, np.array([0.1, 0.3, 0.5, 2.0])))
    0.5

    Equation
    --------
    \hat{p} = \frac{1}{K} \sum_{i=1}^{K} \left[ \tilde{T}_i > T_{\text{fetch}} \right]

    Parameters
    ----------
    fetch_time_s : float or array [s]
    lead_times_s : array [s], the sample on the last axis
    """
    return np.mean(np.asarray(lead_times_s) > np.asarray(fetch_time_s)[..., None], axis=-1)
