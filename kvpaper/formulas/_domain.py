"""The domain checks that the formula modules share."""

import numpy as np

from kvpaper.errors import InputError


def require(name, value, expected, *, above=None, least=None, below=None, most=None):
    """Refuse ``value`` outside its bounds, naming the first element at fault.

    >>> require("tail_exponent", [0.5, 1.2], "a number below 1", below=1)
    Traceback (most recent call last):
    ...
    kvpaper.errors.InputError: tail_exponent: found 1.2, expected a number below 1
    """
    holds = True
    for bound, within in (
        (above, np.greater), (least, np.greater_equal), (below, np.less), (most, np.less_equal),
    ):  # fmt: skip
        if bound is not None:
            holds = holds & within(value, bound)
    holds, value = np.broadcast_arrays(holds, value)
    if not np.all(holds):
        raise InputError(name, f"{value[~holds].flat[0]:g}", expected)


def require_tail_exponent(tail_exponent):
    """Refuse what is no exponent of a concave power law."""
    require("tail_exponent", tail_exponent, "a number inside (0, 1)", above=0, below=1)


def require_load(offered_load):
    """Refuse a load at which a queue never ends."""
    expected = (
        "a load from 0 to below 1; at 1 or more there is no steady state, the queue never ends"
    )
    require("offered_load", offered_load, expected, least=0, below=1)


def require_servers(servers):
    """Refuse a pool of less than one server."""
    require("servers", servers, "at least one server", least=1)
