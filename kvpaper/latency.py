"""Tabulated H200 latencies: read from ``data/latency``, interpolated, continued only on demand."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError


@dataclass(frozen=True, slots=True)
class Instance:
    """One way to run a model: a row of ``data/latency/kv.csv``.

    With attention data parallelism an instance has several ranks, each with a batch and a cache
    of its own; its tables and ``kv_tokens`` are of one rank while the others do the same.

    Attributes
    ----------
    name : str
        ``TABLE`` for the usual instance of a table, ``TABLE/PARALLELISM`` for another one, with
        ``-fp8`` after it where the cache is in fp8.
    model : str
        Name of a file in ``data/models``.
    parallelism : str
        Ranks of tensor (``tp``), attention data (``dp``), expert tensor (``etp``) and expert
        (``ep``) parallelism, those of one left out.
    element : str
        Element of the cache: ``bf16`` or ``fp8``.
    gpus, ranks : int
        GPUs of the instance; ranks that decode and prefill each for themselves.
    kv_tokens, decode_kv_tokens : int
        Tokens whose cache fits into one rank; the same where it only decodes, which needs less
        room for a step. None fit where it is 0.
    kv_bytes_per_token_per_gpu : float
        What a token takes on each GPU of its rank, as the source counts it.
    """

    name: str
    model: str
    parallelism: str
    element: str
    gpus: int
    ranks: int
    kv_tokens: int
    decode_kv_tokens: int
    kv_bytes_per_token_per_gpu: float

    @property
    def table(self) -> str:
        """Name of the files that hold its times."""
        return self.name.partition("/")[0]


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
        GPUs of the rank that decodes the batch.
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
        last = max(end, axis[-1])
        more = np.geomspace(axis[-1], last, int(np.ceil(4 * np.log2(last / axis[-1]))) + 1)[1:]
        # Scaled, or the fit loses digits.
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


@lru_cache
def _columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        return dict(zip(names, np.loadtxt(file, delimiter=",", unpack=True), strict=True))


def _grid(instance: Instance, what: str, first: str, second: str):
    """Axes and times [s] from a file that lists every pair of two coordinates."""
    path = data.named("latency", instance.table, f".{what}.csv")
    columns = _columns(path)
    rows, across = np.unique(columns[first]), np.unique(columns[second])
    grid = np.full((len(rows), len(across)), np.nan)
    at = np.searchsorted(rows, columns[first]), np.searchsorted(across, columns[second])
    suffix = "" if instance.element == "bf16" else f"-{instance.element}"
    grid[at] = columns[instance.parallelism + suffix] / 1e3
    if grid.size != len(columns[first]) or np.isnan(grid).any():
        found, expected = f"{len(columns[first])} rows", f"{len(rows)} x {len(across)} of them"
        raise InputError(str(path), found, expected)
    return rows, across, grid


@lru_cache
def prefill_table(name: str) -> PrefillTable:
    """The tabulated prefill of an instance of this name.

    Raises
    ------
    InputError
        If there is no such instance; the message names those there are.
    """
    of = instance(name)
    axes_and_times = _grid(of, "prefill", "new_tokens", "cached_tokens")
    return PrefillTable(name, *axes_and_times, of.gpus // of.ranks)


@lru_cache
def decode_table(name: str) -> DecodeTable:
    """The tabulated decode step of an instance of this name.

    Raises
    ------
    InputError
        If there is no such instance; the message names those there are.
    """
    of = instance(name)
    return DecodeTable(name, *_grid(of, "decode", "batch", "context"), of.gpus // of.ranks)


@lru_cache
def instances() -> dict[str, Instance]:
    """Every tabulated instance by its name."""
    return {
        row["name"]: Instance(**{part.name: part.type(row[part.name]) for part in fields(Instance)})
        for row in data.table("latency/kv.csv")
    }


def instance(name: str) -> Instance:
    """The tabulated instance of this name.

    Raises
    ------
    InputError
        If there is none; the message names those of the same table.
    """
    table = name.partition("/")[0]
    data.named("latency", table, ".prefill.csv")
    if name not in instances():
        known = ", ".join(each.name for each in instances().values() if each.table == table)
        raise InputError("latency", repr(name), f"one of {known}")
    return instances()[name]


def ways(table: str, element: str = "bf16") -> list[Instance]:
    """Every tabulated way to run a table's model with a cache of this element, the usual first."""
    return [each for each in instances().values() if (each.table, each.element) == (table, element)]


def usual() -> list[Instance]:
    """The usual instance of every table."""
    return [each for each in instances().values() if each.name == each.table]
