"""Latency tables in compiled code: prefill of a prompt, and runs of decode steps by closed form.

A step of ``batch`` sequences lasts ``step(batch, mean context)``; each step makes every context one
token longer. Along a run the step is linear between two points of the table, so that a run of any
length is a few arithmetic series.
"""

import numpy as np

from kvpaper.serving.compiled import compiled

FOREVER = 1 << 62


@compiled
def _left(axis, first, point):
    """Index of the interval of a rising axis, from index ``first`` on, that holds a point."""
    low, high = first, len(axis) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if axis[middle] <= point:
            low = middle
        else:
            high = middle
    return low


def with_axes(rows: np.ndarray, columns: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """One array of a table: its first column and row are the axes."""
    table = np.empty((len(rows) + 1, len(columns) + 1))
    table[0, 0], table[1:, 0], table[0, 1:], table[1:, 1:] = 0, rows, columns, seconds
    return table


@compiled
def prefill_s(table, new, cached):
    """Prefill time, bilinear between the points [s]."""
    i, j = _left(table[:, 0], 1, new), _left(table[0], 1, cached)
    down = (new - table[i, 0]) / (table[i + 1, 0] - table[i, 0])
    right = (cached - table[0, j]) / (table[0, j + 1] - table[0, j])
    upper = table[i, j] * (1 - right) + table[i, j + 1] * right
    lower = table[i + 1, j] * (1 - right) + table[i + 1, j + 1] * right
    return upper * (1 - down) + lower * down


def steps_by_batch(batch: np.ndarray, contexts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Step times [s] at every whole batch: row b is that of b, row 0 the contexts [token]."""
    every = np.arange(1, int(batch[-1]) + 1)
    rows = [np.interp(every, batch, column) for column in seconds.T]
    return np.vstack([contexts, np.stack(rows, axis=1)])


@compiled
def _piece(steps, batch, context):
    """Step time at a context, its slope per token, and where the slope ends [s, s, token]."""
    if context < steps[0, 0]:
        return steps[batch, 0], 0.0, steps[0, 0]
    i = _left(steps[0], 0, context)
    slope = (steps[batch, i + 1] - steps[batch, i]) / (steps[0, i + 1] - steps[0, i])
    end = steps[0, i + 1] if i + 2 < steps.shape[1] else np.inf
    return steps[batch, i] + slope * (context - steps[0, i]), slope, end


@compiled
def step_s(steps, batch, context):
    """Time of one step [s]; below the least tabulated context that of the least."""
    return _piece(steps, batch, context)[0]


@compiled
def _steps_to(end, context):
    return max(1, np.int64(np.ceil(end - context))) if end < np.inf else FOREVER


@compiled
def run_s(steps, batch, context, count):
    """Time of ``count`` steps that start at a mean context [s]."""
    total = 0.0
    while count > 0:
        first, slope, end = _piece(steps, batch, context)
        here = min(count, _steps_to(end, context))
        total += here * first + slope * (0.5 * here * (here - 1))
        context += here
        count -= here
    return total


@compiled
def steps_until(steps, batch, context, seconds, most):
    """Least number of whole steps, at most ``most``, that last ``seconds`` or longer."""
    done = 0
    while done < most:
        first, slope, end = _piece(steps, batch, context)
        count = min(most - done, _steps_to(end, context))
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
