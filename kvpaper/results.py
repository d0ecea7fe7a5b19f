"""The one table of rows: written, read, and nothing else.

A row is a mapping with ``quantity`` (the unit is its suffix), ``kind``, ``value`` and its
coordinates. The kind is the only column in which predicted, simulated, tabulated, measured and
published rows differ. A file carries no time, host or commit, so that a rerun gives the same bytes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpaper import data

if TYPE_CHECKING:  # imported where it is needed, so that the command line stays fast
    import pandas

KINDS = ("predicted", "simulated", "tabulated", "measured", "published")
_FIRST = ("quantity", "kind", "value")
Row = Mapping[str, Any]


def row(quantity: str, value: float, kind: str = "predicted", **coordinates: Any) -> dict[str, Any]:
    """One row; the unit is the suffix of its quantity."""
    return {"quantity": quantity, "kind": kind, "value": value, **coordinates}


def table(rows: Iterable[Row]) -> "pandas.DataFrame":
    """Rows as a table, the coordinates after quantity, kind and value.

    Raises
    ------
    ValueError
        On a row of an unknown kind or without one of the three first columns.
    """
    import pandas

    rows = list(rows)
    for row in rows:
        if row.get("kind") not in KINDS or not {"quantity", "value"} <= row.keys():
            raise ValueError(f"no row of results: {dict(row)}")
    frame = pandas.DataFrame(rows, columns=None if rows else list(_FIRST))
    return frame[[*_FIRST, *(name for name in frame if name not in _FIRST)]]


def folder(scenario: str) -> Path:
    """Folder of a scenario's results."""
    return data.FOLDER / "results" / scenario


def write(rows: "Iterable[Row] | pandas.DataFrame", scenario: str, stem: str) -> Path:
    """Write rows to ``data/results/<scenario>/<stem>.csv``, twelve significant digits.

    Twelve digits, since the last bits of a float differ between processors and a rerun should not.
    """
    frame = rows if hasattr(rows, "columns") else table(rows)
    path = folder(scenario) / f"{stem}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with data.replacing(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.12g", lineterminator="\n")
    return path


def read(scenario: str, stem: str) -> "pandas.DataFrame":
    """The table that a notebook of this stem wrote."""
    import pandas

    return pandas.read_csv(folder(scenario) / f"{stem}.csv")


def joined(*parts: "Iterable[Row] | pandas.DataFrame") -> "pandas.DataFrame":
    """Several tables or lists of rows as one table."""
    import pandas

    frames = [part if hasattr(part, "columns") else table(part) for part in parts]
    return pandas.concat([frame for frame in frames if len(frame)], ignore_index=True)


def by_tier(rows: Iterable[Row], quantity: str, **at: Any) -> dict[str, float]:
    """Values of one quantity by tier, at the given coordinates."""
    return {
        row["tier"]: row["value"]
        for row in rows
        if row["quantity"] == quantity and all(row.get(name) == at[name] for name in at)
    }


def write_answer(text: str, scenario: str, stem: str) -> Path:
    """Write a chapter's answer to ``data/results/<scenario>/<stem>.txt`` for other pages."""
    path = folder(scenario) / f"{stem}.txt"
    data.write_text(path, text + "\n")
    return path


def counted(rows: Iterable[Mapping[str, str]], by: Sequence[str]) -> list[Row]:
    """How many published reports there are for each combination of the columns in ``by``."""
    counts = Counter(tuple(report[name] for name in by) for report in rows)
    return [
        row("reports", count, "published", **dict(zip(by, key, strict=True)))
        for key, count in sorted(counts.items())
    ]


def finite(value: Any) -> Any:
    """The same with None for what is no finite number, however deep: JSON has no word for it."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def jsonable(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows for JSON: without empty coordinates, and null where a value is no finite number."""
    return [
        {name: finite(one) for name, one in row.items() if name == "value" or one is not None}
        for row in rows
    ]
