"""The ``result`` role: a number in the text, read from the results of the scenario.

``{result}`10_kv_bytes kv_bytes_per_token model=llama-3.1-8b : ,.0f` `` prints the one row of
``data/results/<scenario>/10_kv_bytes.csv`` that has this quantity and these coordinates, in the
Python format after the colon (``.3g`` without one). ``in ms`` before the colon converts the base
unit and prints the unit behind the number.
"""

import difflib
import functools
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole
from sphinx.writers.html5 import HTML5Translator

from kvpaper import data, units

_LOGGER = logging.getLogger(__name__)
_UNIT_WORDS = {"usd": "USD", "joules": "J", "gpu": "GPU"}
_PRINTED_UNITS = {"us": "µs"}
_SPACE = "\N{NO-BREAK SPACE}"

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Query:
    """Which number to print, and how."""

    stem: str
    quantity: str
    coordinates: dict[str, str]
    unit: str
    spec: str


def parse(text: str) -> Query:
    """Read the content of the role.

    >>> parse("20_recovery fetch_time_s tier=nvme in ms : .0f")
    Query(stem='20_recovery', quantity='fetch_time_s', coordinates={'tier': 'nvme'}, \
unit='ms', spec='.0f')

    Raises
    ------
    ValueError
        If it is not ``STEM QUANTITY [COLUMN=VALUE ...] [in UNIT] [: FORMAT]``.
    """
    text = " ".join(text.split())
    head, colon, spec = text.rpartition(" : ")
    words = shlex.split(head if colon else text)
    unit = ""
    if len(words) > 3 and words[-2] == "in":
        unit = words[-1]
        words = words[:-2]
    filters = [word.partition("=") for word in words[2:]]
    if len(words) < 2 or not all(column and equals for column, equals, _ in filters):
        raise ValueError("expected STEM QUANTITY [COLUMN=VALUE ...] [in UNIT] [: FORMAT]")
    coordinates = {column: value for column, _, value in filters}
    return Query(words[0], words[1], coordinates, unit, spec if colon else ".3g")


def _same(found: str, expected: str) -> bool:
    try:
        return float(found) == float(expected)
    except ValueError:
        return found == expected


def only_row(query: Query, rows: Iterable[Row]) -> Row:
    """The one row that the query names.

    Raises
    ------
    LookupError
        If no row or more than one row fits; the message says what is near.
    """
    rows = list(rows)
    of_quantity = [row for row in rows if row["quantity"] == query.quantity]
    if not of_quantity:
        names = sorted({row["quantity"] for row in rows})
        near = difflib.get_close_matches(query.quantity, names, 3, 0.3) or names
        raise LookupError(f"no quantity {query.quantity!r}; near are {', '.join(near)}")
    fitting = [
        row
        for row in of_quantity
        if all(_same(row.get(column) or "", value) for column, value in query.coordinates.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    shown = fitting or of_quantity
    differing = {
        column: sorted({row[column] or "(empty)" for row in shown})
        for column in shown[0]
        if column not in ("quantity", "value") and len({row[column] for row in shown}) > 1
    }
    choices = "; ".join(f"{column}={'|'.join(values[:8])}" for column, values in differing.items())
    raise LookupError(f"{len(fitting) or 'no'} rows of {query.quantity} fit; there is {choices}")


def unit_of(quantity: str) -> str:
    """Unit that a quantity's name ends in, as ``kvpaper.units`` spells it.

    >>> unit_of("kv_bytes_per_token"), unit_of("fetch_time_s"), unit_of("rent_usd_per_bytes_per_s")
    ('bytes/token', 's', 'USD/bytes/s')
    """
    first, *rest = quantity.split("_per_")
    parts = [first.rpartition("_")[2], *rest]
    return "/".join(_UNIT_WORDS.get(part, part) for part in parts)


def printed(query: Query, value: float) -> list[nodes.Node]:
    """The number as text nodes, with its unit if one was asked for.

    Raises
    ------
    ValueError
        If the format is none, or the unit is not one of this quantity.
    """
    if query.unit:
        if units.dimension(query.unit) != units.dimension(unit_of(query.quantity)):
            raise ValueError(f"{query.quantity} is not in {query.unit}")
        value = units.per(value, query.unit)
    mantissa, exponential, exponent = format(value, query.spec).replace("-", "−").partition("e")
    if exponential:
        power = exponent.lstrip("+0").replace("−0", "−")
        text = [nodes.Text(f"{mantissa}{_SPACE}×{_SPACE}10"), nodes.superscript("", power)]
    else:
        text = [nodes.Text(mantissa)]
    if query.unit:
        text.append(nodes.Text(_SPACE + _PRINTED_UNITS.get(query.unit, query.unit)))
    return text


@functools.cache
def _rows(path: Path, modified_ns: int) -> list[Row]:
    return data.table(path)


def results_folder(config: Config) -> Path:
    """Folder of the results of the scenario that the book is about."""
    return Path(config.kvpaper_data, "results", config.kvpaper_scenario)


class result_number(nodes.inline):
    """A number with the file it comes from."""


def visit_result_number(translator: HTML5Translator, node: result_number) -> None:
    translator.body.append(translator.starttag(node, "span", "", title=node["from"]))


def depart_result_number(translator: HTML5Translator, node: result_number) -> None:
    translator.body.append("</span>")


class ResultRole(SphinxRole):
    """Print one number of the scenario's results."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            return [self._number()], []
        except (ValueError, LookupError, OSError) as error:
            message = error.args[0] if isinstance(error, LookupError) else error
            _LOGGER.warning("result %r: %s", self.text, message, location=self.get_location())
            return [nodes.problematic(self.rawtext, self.text)], []

    def _number(self) -> nodes.Node:
        query = parse(self.text)
        path = results_folder(self.config) / f"{query.stem}.csv"
        self.env.note_dependency(str(path))
        row = only_row(query, _rows(path, path.stat().st_mtime_ns))
        node = result_number(self.rawtext, "", *printed(query, float(row["value"])))
        node["classes"] = ["result"]
        node["from"] = f"{row['kind']}, {path.parent.name}/{path.name}"
        return node


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("kvpaper_data", str(data.FOLDER), "env")
    app.add_config_value("kvpaper_scenario", "", "env")
    app.add_node(result_number, html=(visit_result_number, depart_result_number))
    app.add_role("result", ResultRole())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
