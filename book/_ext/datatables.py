"""Directives that print data as a table: ``nomenclature``, ``published`` and ``inputs``."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from docutils import nodes
from result import results_folder
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from kvpaper import data, scenario, units

_LOGGER = logging.getLogger(__name__)

_STATUS = {"reproduced": "agrees", "not reproduced here": "cannot be had"}
_COUNTS = ("token", "request")

Cell = list[nodes.Node]


class cell(nodes.entry):
    """A cell that knows the head of its column, for pages too narrow for columns."""


def visit_cell(translator: HTML5Translator, node: cell) -> None:
    translator.body.append(translator.starttag(node, "td", "", **{"data-label": node["label"]}))


def depart_cell(translator: HTML5Translator, node: cell) -> None:
    translator.body.append("</td>\n")


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], name: str) -> nodes.table:
    """A table whose cells are given as nodes, with ``name`` as its class."""
    columns = [nodes.colspec(colwidth=1) for _ in head]
    heads = [nodes.entry("", nodes.paragraph("", text)) for text in head]
    body = [
        nodes.row(
            "",
            *(
                cell("", nodes.paragraph("", "", *content), label=label)
                for label, content in zip(head, row, strict=True)
            ),
        )
        for row in rows
    ]
    group = nodes.tgroup("", *columns, cols=len(columns))
    group += [nodes.thead("", nodes.row("", *heads)), nodes.tbody("", *body)]
    return nodes.table("", group, classes=[name, "stacking", "colwidths-auto"])


def stack(app: Sphinx, doctree: nodes.document) -> None:
    """Let tables of three columns or more, written in a page, become blocks where it is narrow."""
    for found in doctree.findall(nodes.table):
        head = next(found.findall(nodes.thead), None)
        labels = [entry.astext() for entry in head.findall(nodes.entry)] if head else []
        if len(labels) < 3 or "stacking" in found["classes"]:
            continue
        found["classes"].append("stacking")
        for row in next(found.findall(nodes.tbody)).findall(nodes.row):
            row[:] = [
                cell("", *entry.children, label=label)
                for label, entry in zip(labels, row.children, strict=True)
            ]


def read(directive: SphinxDirective, path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; a page with this directive is read again when the file changes."""
    directive.env.note_dependency(str(path))
    return data.table(path)


def nomenclature(directive: SphinxDirective) -> dict[str, dict[str, str]]:
    """The nomenclature by name."""
    rows = read(directive, Path(directive.config.kvpaper_data, "nomenclature.csv"))
    return {row["name"]: row for row in rows}


class Nomenclature(SphinxDirective):
    """Every symbol: how it is written, what the code calls it, its unit and its meaning."""

    def run(self) -> list[nodes.Node]:
        rows = [
            [
                [nodes.math("", row["symbol"])],
                [nodes.literal("", name)],
                [nodes.Text(row["unit"])],
                [nodes.Text(row["meaning"])],
            ]
            for name, row in nomenclature(self).items()
        ]
        return [table(("Symbol", "Name", "Unit", "Meaning"), rows, "nomenclature")]


class Published(SphinxDirective):
    """Every published value beside what this repository computes from the same inputs."""

    def run(self) -> list[nodes.Node]:
        rows = read(self, Path(self.config.kvpaper_data, "published.csv"))
        computed = self._computed()
        head = ("Quantity", "Published", "Here", "Difference", "Tolerance", "Status", "Source")
        return [table(head, [self._row(row, computed) for row in rows], "published")]

    def _computed(self) -> dict[tuple[str, str, str], dict[str, str]]:
        path = results_folder(self.config) / "published.csv"
        self.env.note_dependency(str(path))
        rows = read(self, path) if path.is_file() else []
        return {_key(row): row for row in rows}

    def _row(self, row: dict[str, str], computed: dict) -> list[Cell]:
        here = computed.get(_key(row), {})
        if computed and not here:
            message = "%s of %s is not among the results"
            location = self.get_location()
            _LOGGER.warning(message, row["quantity"], row["arguments"], location=location)
        value, tolerance = float(row["value"]), float(row["rtol"])
        reproduced = here.get("reproduced", "")
        status, colon, reason = here.get("status", "not computed yet").partition(": ")
        if reproduced:
            computed_here = number(float(reproduced), row["unit"])
            difference = percent(float(reproduced) / value - 1)
        else:
            computed_here = difference = "–"
        texts = (
            number(value, row["unit"]),
            computed_here,
            difference,
            percent(tolerance) if tolerance else "exact",
            _STATUS.get(status, status) + colon + reason,
        )
        arguments = " ".join(map(breakable, row["arguments"].split()))
        what = [nodes.literal("", row["quantity"]), nodes.Text(f" {arguments}")]
        return [what, *([nodes.Text(text)] for text in texts), self._source(row)]

    def _source(self, row: dict[str, str]) -> Cell:
        """A source without a space is a key of the bibliography."""
        if " " in row["source"]:
            cited = [nodes.Text(row["source"])]
        else:
            cited, _ = self.parse_inline(f"{{cite:t}}`{row['source']}`")
        return [*cited, nodes.Text(f", {row['locator']}")] if row["locator"] else cited


class Inputs(SphinxDirective):
    """Every input of the scenario as it is written, with its source and date."""

    def run(self) -> list[nodes.Node]:
        name = self.config.kvpaper_scenario
        path = Path(self.config.kvpaper_data, "scenarios", f"{name}.yaml")
        self.env.note_dependency(str(path))
        loaded = scenario.load(str(path))
        rows = [
            [
                [nodes.literal("", breakable(row["input"], "."))],
                *([nodes.Text(row[column] or "")] for column in ("written", "source", "date")),
            ]
            for row in loaded.inputs(loaded.leaves)
        ]
        return [table(("Input", "Value", "Source", "Date"), rows, "inputs")]


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["quantity"], row["arguments"], row["source"]


def number(value: float, unit: str) -> str:
    """A value with its unit, times in the one that fits.

    >>> number(131072.0, "B/token"), number(1600.0, "1"), number(8000.0, "token")
    ('131,072 B/token', '1,600', '8,000 tokens')
    >>> number(0.00021, "s")
    '210 µs'
    """
    if unit == "s":
        return units.text(value, ("us", "ms", "s")).replace("us", "µs")
    text = f"{value:,.0f}" if value >= 1e3 else f"{value:.4g}"
    plural = "s" if unit in _COUNTS and text != "1" else ""
    return text if unit == "1" else f"{text} {unit}{plural}"


def breakable(word: str, mark: str = "_") -> str:
    r"""A word that breaks behind its marks if it is too long for a column.

    >>> breakable("kv_heads=8"), breakable("kv_bytes_per_token=131072")
    ('kv_heads=8', 'kv_\u200bbytes_\u200bper_\u200btoken=131072')
    """
    return word.replace(mark, f"{mark}\N{ZERO WIDTH SPACE}") if len(word) > 18 else word


def percent(share: float) -> str:
    r"""A share in percent.

    >>> percent(-0.0082), percent(0.05), percent(1e-17)
    ('−0.82\xa0%', '5\xa0%', '0\xa0%')
    """
    return f"{round(100 * share, 3):.2g}\N{NO-BREAK SPACE}%".replace("-", "−")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(cell, html=(visit_cell, depart_cell))
    app.connect("doctree-read", stack)
    app.add_directive("nomenclature", Nomenclature)
    app.add_directive("published", Published)
    app.add_directive("inputs", Inputs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
