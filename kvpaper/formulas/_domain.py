"""The domain check that the formula modules share."""

import numpy as np

from kvpaper.errors import InputError


def require(holds, name, value, expected):
    """Refuse ``value`` where ``holds`` is false, naming the first element at fault.

    >>> require(np.array([True, False]), "tail_exponent", [0.5, 1.2], "a number below 1")
    Traceback (most recent call last):
    ...
    kvpaper.errors.InputError: tail_exponent: found 1.2, expected a number below 1
    """
    holds, value = np.broadcast_arrays(holds, value)
    if not np.all(holds):
        raise InputError(name, f"{value[~holds].flat[0]:g}", expected)
