"""Tabulated H200 latencies: read from ``data/latency``, interpolated, never extended."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError


@dataclass(frozen=True, slots=True)
class PrefillTable:
    """Prefill time at batch 1 over new and cached tokens.

    Attributes
    ----------
    new_tokens : array [token], shape (n,)
    cached_tokens : array [token], shape (c,)
    seconds : array [s], shape (n, c)
    gpus : int
        GPUs that work on one prompt.
    """

    name: str
    new_tokens: np.ndarray
    cached_tokens: np.ndarray
    seconds: np.ndarray
    gpus: int

    def prefill_time(self, new_tokens, cached_tokens=0.0):
        """Time to prefill ``new_tokens`` behind ``cached_tokens`` [s], bilinear between the points.

        Raises
        ------
        ValueError
            Outside the table: what was not tabulated is not guessed.
        """
        new, cached = np.broadcast_arrays(*map(np.asarray, (new_tokens, cached_tokens)))
        for name, given, axis in (
            ("new_tokens", new, self.new_tokens),
            ("cached_tokens", cached, self.cached_tokens),
        ):
            if given.size and not (given.min() >= axis[0] and given.max() <= axis[-1]):
                raise ValueError(
                    f"{name}: found {given.min():g} to {given.max():g}, "
                    f"expected {axis[0]:g} to {axis[-1]:g}"
                )
        row, column = _interval(new, self.new_tokens), _interval(cached, self.cached_tokens)
        right = _share(new, self.new_tokens, row)
        up = _share(cached, self.cached_tokens, column)
        corner = self.seconds
        lower = corner[row, column] * (1 - up) + corner[row, column + 1] * up
        upper = corner[row + 1, column] * (1 - up) + corner[row + 1, column + 1] * up
        return (lower * (1 - right) + upper * right)[()]


def _interval(points, axis):
    return np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)


def _share(points, axis, left):
    return (points - axis[left]) / (axis[left + 1] - axis[left])


@lru_cache
def prefill_table(name: str) -> PrefillTable:
    """The table ``data/latency/<name>.prefill.csv``.

    Raises
    ------
    InputError
        If there is no such table; the message names those there are.
    """
    path = data.named("latency", name, ".prefill.csv")
    new, cached, milliseconds = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
    rows, columns = np.unique(new), np.unique(cached)
    if len(new) != len(rows) * len(columns):
        raise InputError(str(path), f"{len(new)} rows", f"{len(rows)} x {len(columns)} of them")
    grid = np.full((len(rows), len(columns)), np.nan)
    grid[np.searchsorted(rows, new), np.searchsorted(columns, cached)] = milliseconds / 1e3
    return PrefillTable(name, rows, columns, grid, int(instances()[name]["tp"]))


@lru_cache
def instances() -> dict[str, dict[str, str]]:
    """Rows of ``data/latency/kv.csv`` by table: model, GPUs per instance, cache that fits."""
    return {row["name"]: row for row in data.table("latency/kv.csv")}
