"""Rows to a table that a person reads: words for names, units that fit, no empty columns."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import pandas

from kvpaper import units

if TYPE_CHECKING:
    from IPython.display import HTML

_TIMES = ("ns", "us", "ms", "s", "min", "hour", "day", "year")
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_YES_NO = ("within_slack", "on_critical_path")
# Suffix of a quantity -> units to choose from, ascending.
_UNITS = {"_usd_per_byte_s": ("USD/GB/month",), "_usd_per_byte": ("USD/GB",), "_s": _TIMES}
_UNITS |= {"_bytes": _SIZES, "bytes": _SIZES, "_j": ("J", "kJ", "MJ")}


def _cell(quantity: str, value: Any) -> str:
    if value is None or value != value:
        return ""
    if not isinstance(value, int | float):
        return str(value)
    if quantity in _YES_NO or isinstance(value, bool):
        return "yes" if value else "no"
    for suffix, choices in _UNITS.items():
        if quantity.endswith(suffix):
            return units.text(float(value), choices).replace("us", "µs")
    return f"{value:,.4g}" if value != int(value) else f"{value:,.0f}"


def _words(name: str) -> str:
    for suffix in _UNITS:
        if suffix.startswith("_") and name.endswith(suffix) and suffix != "_bytes":
            name = name.removesuffix(suffix)
            break
    return name.replace("_", " ")


def readable(
    rows: Iterable[Mapping[str, Any]] | pandas.DataFrame, columns: list[str] | str | None = None
) -> "HTML":
    """The rows as an HTML table.

    ``columns`` picks columns, or names the one whose values become columns of their own.
    """
    from IPython.display import HTML

    frame = pandas.DataFrame(rows).dropna(axis=1, how="all")
    if isinstance(columns, list):
        frame = frame[[name for name in columns if name in frame]]
    elif columns:
        at = [name for name in frame if name not in (columns, "kind", "value")]
        frame = frame.pivot_table(index=at, columns=columns, values="value", sort=False)
        frame = frame.reset_index()
    if "quantity" in frame:
        kinds = frame.quantity.tolist()
        values = [_cell(*pair) for pair in zip(kinds, frame.value, strict=True)]
        frame = frame.assign(quantity=[_words(kind) for kind in kinds], value=values)
    cells = [[_cell(name, value) for value in frame[name]] for name in frame]
    classes = [' class="number"' if _numeric(column) else "" for column in cells]
    heads = "".join(
        f'<th scope="col"{kind}>{escape(_words(name))}</th>'
        for name, kind in zip(frame, classes, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(map('<td{}>{}</td>'.format, classes, map(escape, row)))}</tr>"
        for row in zip(*cells, strict=True)
    )
    head = f'<table class="dataframe"><thead><tr>{heads}</tr></thead>'
    return HTML(f"{head}<tbody>{body}</tbody></table>")


def _numeric(column: list[str]) -> bool:
    """Whether most cells that say something begin with a digit and are short."""
    told = [text for text in column if text]
    return sum(text[0] in "0123456789-" and len(text) < 24 for text in told) * 2 > len(told)
