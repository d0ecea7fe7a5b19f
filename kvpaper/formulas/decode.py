"""How long a step of decoding takes: what it reads from memory, or what it computes."""

import numpy as np


def weight_bytes(batch, total_params, active_params, expert_share, weight_element_bytes):
    r"""Weights that a decode step of a batch reads [B].

    One sequence reads the parameters that work on its token; each further one adds the experts
    that nobody before it chose, each expert being as likely as any other. With a share of 1 there
    are no experts to choose and all is read.
    Source: derived here.

    >>> print(f"{weight_bytes(1, 30.5e9, 3.3e9, 8 / 128, 2) / 1e9:.1f} GB")
    6.6 GB

    Equation
    --------
    \begin{aligned}
    S_{\text{w}} &= e_{\text{w}}\, ( A_{\text{all}} \\
    &\quad - ( A_{\text{all}} - A ) ( 1 - \kappa )^{n_{\text{batch}} - 1} )
    \end{aligned}

    Parameters
    ----------
    batch, total_params, active_params, expert_share : float or array [1]
    weight_element_bytes : float or array [B]
    """
    untouched = np.power(1.0 - np.asarray(expert_share), np.asarray(batch) - 1.0)
    return weight_element_bytes * (total_params - (total_params - active_params) * untouched)


def decode_step_time(
    batch, kv_bytes, weight_bytes, active_params, read_bytes_per_s, flops_per_s, launch_time_s=0.0
):
    r"""Time of a decode step: one token for each sequence of a batch [s].

    The step reads the weights once and the cache of every sequence, or computes, whichever takes
    longer. A lower bound: memory is read at its full rate, GPUs wait for nothing, and attention's
    own work is left out.
    Source: the roofline model, Williams, Waterman and Patterson, CACM 52 (4), 2009.

    >>> print(f"{decode_step_time(32, 1e9, 16e9, 8e9, 4.8e12, 580e12) * 1e3:.1f} ms")
    10.0 ms

    Equation
    --------
    \begin{aligned}
    T_{\text{step}} &= T_{\text{launch}} + \max ( T_{\text{m}}, T_{\text{f}} ) \\
    T_{\text{m}} &= \frac{S_{\text{w}} + n_{\text{batch}}\, S}{B_{\text{read}}} \\
    T_{\text{f}} &= \frac{2\, A\, n_{\text{batch}}}{F}
    \end{aligned}

    Parameters
    ----------
    batch, active_params : float or array [1]
    kv_bytes, weight_bytes : float or array [B]
        The cache of one sequence; the weights that the step reads.
    read_bytes_per_s : float or array [B/s]
        Of the memory of all GPUs together.
    flops_per_s : float or array [FLOP/s]
    launch_time_s : float or array [s], default 0
        What a step takes apart from its work.
    """
    read = (weight_bytes + batch * np.asarray(kv_bytes)) / read_bytes_per_s
    computed = 2 * active_params * np.asarray(batch) / flops_per_s
    return launch_time_s + np.maximum(read, computed)
