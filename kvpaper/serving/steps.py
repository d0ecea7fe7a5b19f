"""Latency tables in compiled code: prefill of a prompt, and runs of decode steps by closed form.

A step of ``batch`` sequences lasts ``step(batch, mean context)``; each step makes every context one
token longer. Along a run the step is linear between two points of the table, so that a run of any
length is a few arithmetic series.
"""

import numba
import numpy as np


@numba.njit(cache=True, inline="always")
def _left(axis, point):
    """Index of the interval of ``axis`` that holds a point."""
    low, high = 0, len(axis) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if axis[middle] <= point:
            low = middle
        else:
            high = middle
    return low


@numba.njit(cache=True)
def prefill_s(new_axis, cached_axis, seconds, new, cached):
    """Prefill time, bilinear between the points [s]."""
    row, column = _left(new_axis, new), _left(cached_axis, cached)
    right = (new - new_axis[row]) / (new_axis[row + 1] - new_axis[row])
    up = (cached - cached_axis[column]) / (cached_axis[column + 1] - cached_axis[column])
    lower = seconds[row, column] * (1 - up) + seconds[row, column + 1] * up
    upper = seconds[row + 1, column] * (1 - up) + seconds[row + 1, column + 1] * up
    return lower * (1 - right) + upper * right


def rows_by_batch(batch: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Step times at every whole batch from 1 to the largest, shape (batch + 1, contexts) [s]."""
    every = np.arange(int(batch[-1]) + 1)
    return np.stack([np.interp(every, batch, column) for column in seconds.T], axis=1)


@numba.njit(cache=True, inline="always")
def _piece(contexts, row, context):
    """Step time at a context, its slope per token, and where the slope ends [s, s, token]."""
    if context < contexts[0]:
        return row[0], 0.0, contexts[0]
    i = _left(contexts, context)
    slope = (row[i + 1] - row[i]) / (contexts[i + 1] - contexts[i])
    end = contexts[i + 1] if i + 2 < len(contexts) else np.inf
    return row[i] + slope * (context - contexts[i]), slope, end


@numba.njit(cache=True)
def step_s(contexts, row, context):
    """Time of one step [s]; below the least tabulated context that of the least."""
    return _piece(contexts, row, context)[0]


@numba.njit(cache=True)
def run_s(contexts, row, context, steps):
    """Time of ``steps`` steps that start at a mean context [s]."""
    total = 0.0
    while steps > 0:
        first, slope, end = _piece(contexts, row, context)
        count = steps
        if end - context < steps:
            count = max(1, int(np.ceil(end - context)))
        total += count * first + slope * (0.5 * count * (count - 1))
        context += count
        steps -= count
    return total


@numba.njit(cache=True)
def steps_until(contexts, row, context, seconds, most):
    """Least number of whole steps, at most ``most``, that last ``seconds`` or longer."""
    done = 0
    while done < most:
        first, slope, end = _piece(contexts, row, context)
        count = most - done
        if end - context < count:
            count = max(1, int(np.ceil(end - context)))
        whole = count * first + slope * (0.5 * count * (count - 1))
        if whole < seconds:
            seconds -= whole
            context += count
            done += count
            continue
        # first k + slope k (k - 1) / 2 = seconds, by the root that does not cancel.
        half = 0.5 * slope
        linear = first - half
        root = 2 * seconds / (linear + np.sqrt(linear * linear + 4 * half * seconds))
        k = max(0, int(np.ceil(root)) - 1)
        while k < count and k * first + half * k * (k - 1) < seconds:
            k += 1
        return done + k
    return most
