"""What a cache gains when servers share it, and how much of that routing already gives."""

import numpy as np

from kvpaper.formulas._domain import require_servers, require_tail_exponent


def pooled_gain(servers, tail_exponent):
    r"""Hit rate of one pooled cache over that of one server's share of it [1].

    The hit rate is a power law up to the pooled capacity, and a server's own cache sees the mix of
    the whole stream: random routing of independent references. Routing by session or prefix already
    splits the catalogue over the servers, and pooling then gains nothing. Raises InputError if
    ``servers`` is below 1 or ``tail_exponent`` is not inside (0, 1).
    Source: the paper's first force, without a formula; derived here from ``hit_rate``.

    >>> print(f"{pooled_gain(8, 0.287):.2f}")
    1.82

    Equation
    --------
    G = N^{\beta}

    Parameters
    ----------
    servers, tail_exponent : float or array [1]
    """
    require_servers(servers)
    require_tail_exponent(tail_exponent)
    return np.power(np.asarray(servers, float), tail_exponent)


def random_routing_hit_probability(earlier_uses, servers):
    r"""Probability that a use of a block lands where an earlier use left it [1].

    Every request goes to any server alike, and no server evicts. The first use never hits. Raises
    InputError if ``servers`` is below 1.

    >>> print(random_routing_hit_probability(np.array([0, 1, 2]), 2))
    [0.   0.5  0.75]

    Equation
    --------
    P_{\text{random}} = 1 - \left(1 - \frac{1}{N}\right)^{j}

    Parameters
    ----------
    earlier_uses, servers : float or array [1]
    """
    require_servers(servers)
    return 1 - np.power(1 - np.divide(1, servers), earlier_uses)


def expected_copies(uses, servers):
    r"""Servers that come to hold a copy of a block [1].

    Random routing, no eviction. Of the uses, all but these hit: one pool would miss once. Raises
    InputError if ``servers`` is below 1.
    Source: derived here: the uses less the sum of ``random_routing_hit_probability``.

    >>> print(expected_copies(2, 8))
    1.875

    Equation
    --------
    K_{\text{copies}} = N \left[ 1 - \left(1 - \frac{1}{N}\right)^{u} \right]

    Parameters
    ----------
    uses, servers : float or array [1]
    """
    require_servers(servers)
    return servers * (1 - np.power(1 - np.divide(1, servers), uses))
