"""How long requests wait for a busy pool, and how fast a busy pool decodes."""

import numpy as np

from kvpaper.formulas._domain import require_load, require_servers


def wait_probability(offered_load, servers):
    r"""Probability that a request finds all servers of a pool busy [1].

    Poisson arrivals, one queue. Exact for one server; for two to sixteen within 0.06 of Erlang's
    formula from a load of 0.5 on. Raises InputError if the load is negative or 1 or more, or
    ``servers`` is below 1.
    Source: Sakasegawa, Annals of the Institute of Statistical Mathematics 29 (1977), 67-75.

    >>> print(f"{wait_probability(0.8, 1):.2f} {wait_probability(0.8, 8):.2f}")
    0.80 0.49

    Equation
    --------
    P_{\text{wait}} = \rho^{\sqrt{2 (N + 1)} - 1}

    Parameters
    ----------
    offered_load, servers : float or array [1]
    """
    require_load(offered_load)
    require_servers(servers)
    return np.power(offered_load, np.sqrt(2 * (np.asarray(servers, float) + 1)) - 1)


def mean_queue_wait(mean_service_s, service_variation, offered_load, servers):
    r"""Mean time that a request waits for a pool of like servers [s].

    Poisson arrivals, one queue, any distribution of the service time, of which only the mean and
    the squared coefficient of variation count. Exact for one server; for more an approximation,
    best at a high load. Raises InputError if the load is negative or 1 or more, or ``servers`` is
    below 1.
    Source: Pollaczek and Khinchine for one server; for more, Allen and Cunneen with
    ``wait_probability``.

    Constant and exponential service of 0.1 s at a load of 0.8:

    >>> print(f"{mean_queue_wait(0.1, 0, 0.8, 1):.2f} {mean_queue_wait(0.1, 1, 0.8, 1):.2f}")
    0.20 0.40

    Equation
    --------
    T_{\text{wait}} = \frac{1 + c_{\text{srv}}^2}{2}
    \cdot \frac{\bar{T}_{\text{srv}}}{N (1 - \rho)}\, \rho^{\sqrt{2 (N + 1)} - 1}

    Parameters
    ----------
    mean_service_s : float or array [s]
    service_variation, offered_load, servers : float or array [1]
    """
    waits = wait_probability(offered_load, servers)
    spread = (1 + service_variation) / 2
    return waits * spread * mean_service_s / (servers * (1 - offered_load))


def late_share(ttft_slack_s, queue_wait_s, wait_probability):
    r"""Share of requests that wait longer than their slack allows [1].

    A wait is zero or, with ``wait_probability``, exponential around the mean that makes
    ``queue_wait_s`` the mean of all. Exact for Poisson arrivals and exponential service. A request
    without slack is late.
    Source: derived here; the waiting time of M/M/c.

    >>> print(f"{late_share(1.0, 0.4, 0.8):.3f} {late_share(-0.1, 0.4, 0.8):.0f}")
    0.108 1

    Equation
    --------
    P_{\text{late}} = \begin{cases}
    P_{\text{wait}}\, e^{- P_{\text{wait}} \sigma / T_{\text{wait}}} & \sigma \ge 0 \\
    1 & \sigma < 0
    \end{cases}

    Parameters
    ----------
    ttft_slack_s, queue_wait_s : float or array [s]
    wait_probability : float or array [1]
    """
    waiting = np.divide(queue_wait_s, wait_probability)
    tail = wait_probability * np.exp(-np.maximum(ttft_slack_s, 0) / waiting)
    return np.where(np.less(ttft_slack_s, 0), 1.0, tail)[()]


def mean_tpot(requests_per_s, output_tokens, decode_floor_s, decode_s_per_token, offered_load):
    r"""Mean time per output token of an instance that decodes continuously [s].

    A step lasts its floor plus a time in proportion to the batch, and the batch is what Little's
    law leaves in it. ``offered_load`` is the share of the time that prefill takes on the same
    instance: 0 where prefill has GPUs of its own. The mean, not a percentile. Raises InputError
    where decode and prefill ask for more than the instance has.
    Source: derived here; at the TPOT target it is the rate of ``one_pool_gpu_time``.

    >>> print(f"{mean_tpot(1.0, 500, 0.01, 2e-4, offered_load=0.4):.3f} s")
    0.020 s

    Equation
    --------
    T_{\text{token}} = \frac{T_{\text{floor}}}
    {1 - \rho - \lambda_{\text{req}}\, \delta\, n_{\text{out}}}

    Parameters
    ----------
    requests_per_s : float or array [request/s]
    output_tokens : float or array [token]
    decode_floor_s : float or array [s]
    decode_s_per_token : float or array [s/token]
    offered_load : float or array [1]
    """
    load = offered_load + requests_per_s * decode_s_per_token * np.asarray(output_tokens)
    require_load(load)
    return decode_floor_s / (1 - load)
