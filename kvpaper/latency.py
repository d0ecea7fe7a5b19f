"""Tabulated H200 latencies: read from ``data/latency``, interpolated, continued only on demand."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError


@dataclass(frozen=True, slots=True)
class Instance:
    """One way to run a model: a row of ``data/latency/kv.csv``.

    Attributes
    ----------
    name : str
        ``TABLE`` at the table's usual parallelism, ``TABLE/PARALLELISM`` at another one.
    model : str
        Name of a file in ``data/models``.
    parallelism : str
        Such as ``tp4ep4``.
    gpus : int
        GPUs of one instance.
    kv_tokens : int
        Tokens whose cache fits into one instance.
    kv_bytes_per_token_per_gpu : float
        What a token takes on each GPU, as the source counts it.
    """

    name: str
    model: str
    parallelism: str
    gpus: int
    kv_tokens: int
    kv_bytes_per_token_per_gpu: float


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
    kind : str
        ``tabulated``, or ``predicted`` where some of the values are not the source's.
    """

    name: str
    new_tokens: np.ndarray
    cached_tokens: np.ndarray
    seconds: np.ndarray
    gpus: int
    kind: str = "tabulated"

    def prefill_time(self, new_tokens, cached_tokens=0.0):
        """Time to prefill ``new_tokens`` behind ``cached_tokens`` [s], bilinear between the points.

        Raises
        ------
        ValueError
            Outside the table: what was not tabulated is not guessed.
        """
        return _bilinear(self, new_tokens=new_tokens, cached_tokens=cached_tokens)

    def extended(self, new_tokens: float, cached_tokens: float) -> "PrefillTable":
        """The table up to these ends, of kind ``predicted`` if it had to be continued.

        Attention makes the time quadratic in new tokens and linear in cached ones: a parabola
        continues the last three points of the one axis, a line the last two of the other.
        """
        return _extended(self, new_tokens=(new_tokens, 2), cached_tokens=(cached_tokens, 1))


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """Time of one decode step over the sequences in the batch and their mean context.

    Attributes
    ----------
    batch : array [1], shape (b,)
    context : array [token], shape (c,)
    seconds : array [s], shape (b, c)
    gpus : int
        GPUs of the instance.
    kind : str
        ``tabulated``, or ``predicted`` where some of the values are not the source's.
    """

    name: str
    batch: np.ndarray
    context: np.ndarray
    seconds: np.ndarray
    gpus: int
    kind: str = "tabulated"

    def step_time(self, batch, context):
        """Time of one step of ``batch`` sequences at ``context`` tokens [s], bilinear.

        Raises
        ------
        ValueError
            Outside the table: what was not tabulated is not guessed.
        """
        return _bilinear(self, batch=batch, context=context)

    def extended(self, batch: float, context: float) -> "DecodeTable":
        """The table up to these ends, of kind ``predicted`` if it had to be continued.

        A step reads each sequence's cache once, so a line continues the last interval of an axis.
        """
        return _extended(self, batch=(batch, 1), context=(context, 1))


def _bilinear(table, **at):
    """Value of ``table`` at two coordinates, named as its axes in the order of its array."""
    given = dict(zip(at, np.broadcast_arrays(*map(np.asarray, at.values())), strict=True))
    places = []
    for name, points in given.items():
        axis = getattr(table, name)
        if points.size and not (points.min() >= axis[0] and points.max() <= axis[-1]):
            raise ValueError(
                f"{name}: found {points.min():g} to {points.max():g}, "
                f"expected {axis[0]:g} to {axis[-1]:g}"
            )
        left = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
        places.append((left, (points - axis[left]) / (axis[left + 1] - axis[left])))
    (row, down), (column, right) = places
    corner = table.seconds
    upper = corner[row, column] * (1 - right) + corner[row, column + 1] * right
    lower = corner[row + 1, column] * (1 - right) + corner[row + 1, column + 1] * right
    return (upper * (1 - down) + lower * down)[()]


def _extended(table, **ends):
    """``table`` with each axis continued to its end by a polynomial of the degree beside it."""
    seconds, axes = table.seconds, {}
    for name, (end, degree) in ends.items():
        axis = getattr(table, name)
        doublings = np.log2(max(end / axis[-1], 1))
        more = axis[-1] * np.geomspace(1, 2**doublings, int(np.ceil(4 * doublings)) + 1)[1:]
        # Centred and scaled, or the fit loses digits.
        scale = axis[-1]
        fit = np.polynomial.polynomial.polyfit(
            axis[-degree - 1 :] / scale, seconds[-degree - 1 :], degree
        )
        beyond = np.polynomial.polynomial.polyval(more / scale, fit)
        axes[name] = np.concatenate([axis, more])
        seconds = np.vstack([seconds, beyond.T]).T
    if seconds.shape == table.seconds.shape:
        return table
    return replace(table, seconds=seconds, kind="predicted", **axes)


def _grid(name: str, kind: str, first: str, second: str):
    """Axes and times [s] of a file that lists every pair of two coordinates."""
    path = data.named("latency", name, f".{kind}.csv")
    columns = np.genfromtxt(path, delimiter=",", names=True)
    rows, across = np.unique(columns[first]), np.unique(columns[second])
    if len(columns) != len(rows) * len(across):
        found, expected = f"{len(columns)} rows", f"{len(rows)} x {len(across)} of them"
        raise InputError(str(path), found, expected)
    grid = np.full((len(rows), len(across)), np.nan)
    at = np.searchsorted(rows, columns[first]), np.searchsorted(across, columns[second])
    grid[at] = columns[columns.dtype.names[2]] / 1e3
    return rows, across, grid


@lru_cache
def prefill_table(name: str) -> PrefillTable:
    """The tabulated prefill of an instance of this name.

    Raises
    ------
    InputError
        If there is no such table; the message names those there are.
    """
    return PrefillTable(name, *_grid(name, "prefill", "new_tokens", "cached_tokens"), _gpus(name))


@lru_cache
def decode_table(name: str) -> DecodeTable:
    """The tabulated decode step of an instance of this name.

    Raises
    ------
    InputError
        If there is no such table; the message names those there are.
    """
    return DecodeTable(name, *_grid(name, "decode", "batch", "context"), _gpus(name))


def _gpus(name: str) -> int:
    return instances()[name].gpus


@lru_cache
def instances() -> dict[str, Instance]:
    """Every tabulated instance by its name."""
    return {
        row["name"]: Instance(
            row["name"],
            row["model"],
            row["parallelism"],
            int(row["gpus"]),
            int(row["kv_tokens"]),
            float(row["kv_bytes_per_token_per_gpu"]),
        )
        for row in data.table("latency/kv.csv")
    }
