"""Published figures, and what this repository gives for the same arguments.

``data/published.csv`` has one row a figure: quantity, arguments, value, tolerance, source.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvpaper import data, models, scenario
from kvpaper.errors import InputError
from kvpaper.formulas import recovery, size
from kvpaper.results import Row

if TYPE_CHECKING:
    import pandas

_UNAVAILABLE = {"bailian_a": "the trace is not redistributable"}


class Missing(Exception):
    """The figure needs data that is not here; the text says which and why."""


def figures() -> list[dict[str, str]]:
    """The rows of the table, as text."""
    return data.table("published.csv")


def arguments(row: dict[str, str]) -> dict[str, str]:
    """``name=value`` pairs of a row."""
    return dict(pair.split("=", 1) for pair in row["arguments"].split())


def _kv_bytes_per_token(**given: str) -> float:
    if "model" in given:
        return models.size(models.load(given["model"]), dtype=given["dtype"])["kv_bytes_per_token"]
    return size.kv_bytes_per_token(**{name: float(value) for name, value in given.items()})


def _prefix_tokens(kv_bytes: str, kv_bytes_per_token: str) -> float:
    return size.prefix_tokens(float(kv_bytes), float(kv_bytes_per_token))


def _fetch_time(kv_bytes: str, tier: str) -> float:
    part = scenario.load("paper").hardware.tiers[tier]
    return recovery.fetch_time(float(kv_bytes), part.read_bytes_per_s, part.access_latency_s)


def _fetch_time_ratio(slow: str, fast: str) -> float:
    return _fetch_time("1e9", slow) / _fetch_time("1e9", fast)


FORMULAS: dict[str, Callable[..., float]] = {
    "kv_bytes_per_token": _kv_bytes_per_token,
    "prefix_tokens": _prefix_tokens,
    "fetch_time": _fetch_time,
    "fetch_time_ratio": _fetch_time_ratio,
}


def reproduced(row: dict[str, str]) -> float:
    """What this repository gives for a row.

    Raises
    ------
    Missing
        If it needs a trace that has not been fetched or cannot be had.
    InputError
        If the row names a quantity that nothing here computes.
    """
    given = arguments(row)
    if "trace" in given:
        if given["trace"] in _UNAVAILABLE:
            raise Missing(_UNAVAILABLE[given["trace"]])
        raise Missing("the trace has not been fetched: make traces")
    if row["quantity"] not in FORMULAS:
        known = ", ".join(FORMULAS)
        raise InputError("published.csv: quantity", repr(row["quantity"]), f"one of {known}")
    return float(FORMULAS[row["quantity"]](**given))


def fetch_times() -> "pandas.DataFrame":
    """The printed times to recover 1 GB, by tier [s]."""
    import pandas

    printed = [row for row in figures() if row["quantity"] == "fetch_time"]
    return pandas.DataFrame(
        {
            "tier": [arguments(row)["tier"] for row in printed],
            "value": [float(row["value"]) for row in printed],
        }
    )


def compared() -> list[Row]:
    """Every published figure beside what this repository gives, with its status."""
    rows = []
    for row in figures():
        value, tolerance = float(row["value"]), float(row["rtol"])
        try:
            here, status = reproduced(row), "reproduced"
            if abs(here - value) > tolerance * abs(value):
                status = "differs"
        except Missing as reason:
            here, status = None, f"not reproduced here: {reason}"
        rows.append(
            {**row, "kind": "published", "value": value, "reproduced": here, "status": status}
        )
    return rows
