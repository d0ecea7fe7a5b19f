"""Published figures, and what this repository gives for the same arguments.

``data/published.csv`` has one row a figure: quantity, arguments, value, tolerance, source.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvpaper import data, models, results, scenario
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


def _floats(given: dict[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in given.items()}


def _kv_bytes_per_token(**given: str) -> float:
    if "model" in given:
        return models.size(models.load(given["model"]), dtype=given["dtype"])["kv_bytes_per_token"]
    return size.kv_bytes_per_token(**_floats(given))


def _fetch_time(kv_bytes: str, tier: str) -> float:
    part = scenario.load("paper").hardware.tiers[tier]
    return recovery.fetch_time(float(kv_bytes), part.read_bytes_per_s, part.access_latency_s)


def _replayed(trace: str, quantity: str, **at: str) -> "pandas.Series":
    """Values of a public trace by capacity, as derived once from the published file."""
    rows = results.read("public", "50_reuse")
    rows = rows[(rows.trace == trace) & (rows.quantity == quantity)]
    for name, value in at.items():
        rows = rows[rows[name] == value]
    if rows.empty:
        raise Missing(_UNAVAILABLE.get(trace, "no rows of this trace"))
    return rows.set_index("capacity_blocks").value


def _share_of_ceiling(trace: str, tokens: str) -> float:
    """Token hit rate of a capacity over that without limit, between the points in log capacity."""
    import numpy

    curve = _replayed(trace, "hit_rate", rate="token")
    blocks = math.log(float(tokens) / _replayed(trace, "block_tokens").iloc[0])
    hits = numpy.interp(blocks, numpy.log(curve.index), curve)
    return hits / _replayed(trace, "ceiling", rate="token").iloc[0]


FORMULAS: dict[str, Callable[..., float]] = {
    "kv_bytes_per_token": _kv_bytes_per_token,
    "prefix_tokens": lambda **given: size.prefix_tokens(**_floats(given)),
    "fetch_time": _fetch_time,
    "fetch_time_ratio": lambda slow, fast: _fetch_time("1e9", slow) / _fetch_time("1e9", fast),
    "requests": lambda trace: _replayed(trace, "requests").iloc[0],
    "mean_input_tokens": lambda trace: _replayed(trace, "mean_input_tokens").iloc[0],
    "full_block_ceiling": lambda trace: _replayed(trace, "ceiling", rate="full_block").iloc[0],
    "share_of_ceiling": _share_of_ceiling,
}


def reproduced(row: dict[str, str]) -> float:
    """What this repository gives for a row.

    Raises
    ------
    Missing
        If it needs a trace that cannot be had.
    InputError
        If the row names a quantity that nothing here computes.
    """
    if row["quantity"] not in FORMULAS:
        known = ", ".join(FORMULAS)
        raise InputError("published.csv: quantity", repr(row["quantity"]), f"one of {known}")
    return float(FORMULAS[row["quantity"]](**arguments(row)))


def fetch_times(chart: "pandas.DataFrame") -> "pandas.DataFrame":
    """The printed times to recover 1 GB, for the tiers whose predicted time in ``chart`` agrees."""
    import pandas

    predicted = chart[chart.quantity == "fetch_time_s"].set_index("tier").value
    printed = [
        {"tier": arguments(row)["tier"], "value": float(row["value"])}
        for row in figures()
        if row["quantity"] == "fetch_time"
        and agrees(predicted.get(arguments(row)["tier"], math.nan), row)
    ]
    return pandas.DataFrame(printed, columns=["tier", "value"])


def agrees(here: float, row: dict[str, str]) -> bool:
    """Whether a value is the published one within its tolerance."""
    value = float(row["value"])
    return abs(here - value) <= float(row["rtol"]) * abs(value)


def compared() -> list[Row]:
    """Every published figure beside what this repository gives, with its status."""
    rows = []
    for row in figures():
        try:
            here = reproduced(row)
            status = "agrees" if agrees(here, row) else "differs"
            if row["basis"] == "input" and status == "agrees":
                status = "by construction: its inputs were derived from it"
        except Missing as reason:
            here, status = None, f"not reproduced here: {reason}"
        printed = {"kind": "published", "value": float(row["value"])}
        rows.append({**row, **printed, "reproduced": here, "status": status})
    return rows
