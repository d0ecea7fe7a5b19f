"""Rows to a table that a person reads: words for names, units that fit, no empty columns."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pandas

from kvpaper import results, units

if TYPE_CHECKING:
    from IPython.display import HTML

Rows = Iterable[Mapping[str, Any]] | pandas.DataFrame

_YES_NO = ("within_slack", "on_critical_path")
_TIERS = {"hbm": "HBM", "dram": "host DRAM", "nvme": "NVMe", "remote": "remote"}
# Characters of a cell above which its table stacks on a narrow page.
_WORDS = 36
_CAPITALS = {"kv": "KV", "ttft": "TTFT", "tpot": "TPOT", "usd": "USD", "gpus": "GPUs"}
_CAPITALS |= {"hbm": "HBM", "dram": "DRAM", "nvme": "NVMe"}
# Suffix of a quantity -> units to choose from, ascending, and the words in its place.
_UNITS = {
    "_usd_per_byte_s": (("USD/GB/month",), ""),
    "_usd_per_byte": (("USD/GB",), ""),
    "_usd_per_token": (("USD/token",), "_per_token"),
    "_usd": (("USD",), "_cost"),
    "_bytes_per_s": (tuple(f"{unit}/s" for unit in units.SIZES), "_rate"),
    "_bytes_per_token": (("B",), "_bytes_per_token"),
    "_bytes_per_sequence": (units.SIZES, "_bytes_per_sequence"),
    "bytes": (units.SIZES, "bytes"),
    "_j": (("J", "kJ", "MJ"), ""),
    "_s": (units.TIMES, ""),
    "": (("",), ""),
}


def _suffix(name: str) -> str:
    return next(suffix for suffix in _UNITS if name.endswith(suffix))


def _number(value: float) -> str:
    """All digits of a whole or a large number, four of another.

    >>> _number(131072.0), _number(0.25284), _number(3.7274e-6)
    ('131,072', '0.2528', '3.727 × 10⁻⁶')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == int(value) or 1e3 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    mantissa, exponential, exponent = f"{value:,.4g}".partition("e")
    power = str(int(exponent or 0)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa} × 10{power}" if exponential else mantissa


def _cell(quantity: str, value: Any) -> str:
    if value is None or value != value:
        return ""
    if not isinstance(value, int | float):
        text = "none" if value in ({}, []) else str(value)
        if quantity == "tier":
            return _TIERS.get(text, text)
        return re.sub(r"(\d) us\b", r"\1 µs", text)
    if quantity in _YES_NO or isinstance(value, bool):
        return "yes" if value else "no"
    choices, _ = _UNITS[_suffix(quantity)]
    if choices == ("USD/token",):
        return f"{1e6 * value:.3g} USD per million tokens"
    if len(choices) == 1:
        return f"{_number(units.per(float(value), *choices))} {choices[0]}".rstrip()
    if math.isinf(value):
        return _number(value)
    return units.text(float(value), choices).replace("us", "µs")


def _words(name: str) -> str:
    suffix = _suffix(name)
    words = (name.removesuffix(suffix) + _UNITS[suffix][1]).split("_")
    return " ".join(_CAPITALS.get(word, word) for word in words)


def _table(rows: Rows, columns: list[str] | str | None, at: Sequence[str] = ()) -> str:
    """One HTML table, or one for each machine; the caption has those of ``at`` that rows share."""
    frame = pandas.DataFrame(rows).dropna(axis=1, how="all")
    if frame.empty:
        return "<p>Nothing to list in this scenario.</p>"
    if isinstance(columns, list):
        frame = frame[[name for name in columns if name in frame]]
    if "machine" in frame and frame["machine"].nunique() > 1:
        parts = frame.groupby("machine", sort=False)
        return "".join(_table(part, columns, at) for _, part in parts)
    caption, kinds, machines = "", set(frame.get("kind", ())), set(frame.get("machine", ()))
    if len(kinds) == 1 and kinds <= set(results.KINDS):
        where = f" on {escape(machines.pop())}" if len(machines) == 1 else ""
        same = [name for name in at if frame[name].nunique() == 1]
        told = [f"; {_words(name)}: {_cell(name, frame[name].iloc[0])}" for name in same]
        frame = frame.drop(columns=same)
        caption = f"<caption>All values are {kinds.pop()}{where}{escape(''.join(told))}.</caption>"
        frame = frame.drop(columns=["kind", "machine"] if where else "kind")
    if isinstance(columns, str):
        at = [name for name in frame if name not in (columns, "kind", "value")]
        frame = frame.pivot_table(index=at, columns=columns, values="value", sort=False)
        frame = frame.reset_index()
    if "quantity" in frame:
        quantities = frame["quantity"].tolist()
        values = [*map(_cell, quantities, frame["value"])]
        frame = frame.assign(quantity=[_words(name) for name in quantities], value=values)
    cells = [[_cell(name, value) for value in frame[name]] for name in frame]
    numeric = [_numeric(column) for column in cells]
    heads = [escape(_words(name)) for name in frame]
    kinds_of_cell = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(map('<th scope="col"{}>{}</th>'.format, kinds_of_cell, heads))
    starts = list(map('<td{} data-label="{}">'.format, kinds_of_cell, heads))
    body = "".join(
        f"<tr>{''.join(map('{}{}</td>'.format, starts, map(escape, row)))}</tr>"
        for row in zip(*cells, strict=True)
    )
    # Numbers are there to be compared along their columns, so those stay on a narrow page, unless
    # long words beside them would stand one below the other.
    long = any(len(text) > _WORDS for column in cells for text in column)
    stacking = "" if 2 * sum(numeric) > len(numeric) and not long else " stacking"
    return (
        f'<table class="dataframe{stacking}">{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _numeric(column: list[str]) -> bool:
    """Whether most cells that say something begin with a digit and are short."""
    told = [text for text in column if text]
    return sum(text[0] in "0123456789-" and len(text) < 24 for text in told) * 2 > len(told)


def readable(rows: Rows, columns: list[str] | str | None = None) -> "HTML":
    """The rows as an HTML table.

    ``columns`` picks columns, or names the one whose values become columns of their own.
    """
    from IPython.display import HTML

    return HTML(_table(rows, columns))


def banded(rows: Rows, columns: str = "quantity", at: list[str] | None = None) -> "HTML":
    """Values with their band, as value (low to high), those of ``columns`` beside each other.

    ``at`` are the coordinates that a row shows, by default all; the caption has those that are the
    same in every row.
    """
    from IPython.display import HTML

    frame = pandas.DataFrame(rows)
    if frame.empty:
        return readable(frame)
    texts = []
    for row in frame.itertuples():
        told = [_cell(row.quantity, _short(value)) for value in (row.value, row.low, row.high)]
        unit = re.search(r"( [^\d ]+)?$", told[0])[0]
        unit = unit if all(text.endswith(unit) for text in told) else ""
        value, low, high = (text.removesuffix(unit) for text in told)
        texts.append((f"{value} ({low} to {high})" if low else value) + unit)
    own = ("quantity", "value", "low", "high", columns)
    at = at or [name for name in frame if name not in own]
    wide = frame.assign(value=texts).pivot_table(
        index=at, columns=columns, values="value", aggfunc="first", sort=False
    )
    wide = wide.reset_index()
    wide = wide[sorted(wide, key=lambda name: name == "runs")]  # last of all
    return HTML(_table(wide, None, [name for name in at if name not in ("kind", "machine")]))


def _short(value: Any) -> Any:
    """Three digits of what is no whole number."""
    whole = not isinstance(value, float) or not math.isfinite(value) or value % 1 == 0
    return value if whole else float(f"{value:.3g}")


def folded(table: "HTML | Rows", summary: str) -> "HTML":
    """A table, or rows as one, that a reader unfolds by its summary."""
    from IPython.display import HTML

    table = table if isinstance(table, HTML) else readable(table)
    return HTML(f"<details><summary>{escape(summary)}</summary>{table.data}</details>")
