"""The ``formula`` directive: the labelled equation of a function, read from its docstring.

``{formula} fetch_time`` prints the equation of ``kvpaper.formulas`` with this name, numbered and
labelled ``eq-fetch-time``, notes on its use and where it is from, and its arguments, folded away.
"""

import difflib
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path

from datatables import nomenclature, table
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import MathDirective
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

from kvpaper import formulas

_LOGGER = logging.getLogger(__name__)
_ARCHIVES = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
_SECTION = re.compile(r"^(\w+)\n-+\n", re.M)
_PARAMETERS = re.compile(r"^([\w, ]+) : (?:float or )?array \[([^\]]+)\]", re.M)


@dataclass(frozen=True, slots=True)
class Equation:
    """One formula as its docstring states it."""

    module: str
    summary: str
    unit: str
    latex: str
    parameters: dict[str, str]
    conditions: str
    source: str


def sections(docstring: str) -> dict[str, str]:
    """Text of a docstring by heading; what stands before the first has none.

    >>> sections("Told.\\n\\nRaises\\n------\\nValueError\\n    If not.")
    {'': 'Told.', 'Raises': 'ValueError\\n    If not.'}
    """
    text, *rest = _SECTION.split(inspect.cleandoc(docstring))
    found = {"": text, **dict(zip(rest[::2], rest[1::2], strict=True))}
    return {heading: body.strip() for heading, body in found.items()}


def equations() -> dict[str, Equation]:
    """Every public formula by name, read from the docstrings in the order of the source.

    >>> equations()["fetch_time"].unit
    's'
    """
    found = {}
    for part in pkgutil.iter_modules(formulas.__path__):
        module = importlib.import_module(f"{formulas.__name__}.{part.name}")
        for name, function in vars(module).items():
            defined_here = getattr(function, "__module__", None) == module.__name__
            if defined_here and part.name[0] != "_" and name[0] != "_":
                found[name] = _equation(part.name, function.__doc__)
    return found


def _equation(module: str, docstring: str) -> Equation:
    parts = sections(docstring)
    first_line, *paragraphs = parts[""].split("\n\n")
    summary, unit = re.fullmatch(r"(.+) \[(.+)\]\.", first_line).groups()
    # What follows the first paragraph, or stands in its place, is the example.
    text = paragraphs[0] if not paragraphs[0].startswith(">>>") else ""
    conditions, _, source = " ".join(text.split()).partition("Source: ")
    parameters = {
        argument: argument_unit
        for names, argument_unit in _PARAMETERS.findall(parts["Parameters"])
        for argument in names.split(", ")
    }
    source = source or "derived here"
    return Equation(
        module, summary, unit, parts["Equation"], parameters, conditions.strip(), source
    )


class details(nodes.General, nodes.Element):
    """Content that a reader unfolds by its summary."""


def visit_details(translator: HTML5Translator, node: details) -> None:
    summary = translator.encode(node["summary"])
    translator.body.append(translator.starttag(node, "details"))
    translator.body.append(f"<summary>{summary}</summary>")


def depart_details(translator: HTML5Translator, node: details) -> None:
    translator.body.append("</details>\n")


def label(name: str) -> str:
    """Label of a formula's equation.

    >>> label("fetch_time")
    'eq-fetch-time'
    """
    return "eq-" + name.replace("_", "-")


def prose(text: str) -> list[nodes.Node]:
    """Text of a docstring; what stands in backquotes is code, and an identifier is a link.

    >>> [type(node).__name__ for node in prose("the rate ``r``, after arXiv:2302.11665, page 3")]
    ['Text', 'literal', 'Text', 'reference', 'Text']
    """
    parts = re.split(r"(``[^`]+``|(?:arXiv|doi):[\w./-]*\w)", " ".join(text.split()))
    return [_inline(part) for part in parts if part]


def _inline(part: str) -> nodes.Node:
    if part.startswith("``"):
        return nodes.literal("", part.strip("`"))
    archive, _, identifier = part.partition(":")
    if archive in _ARCHIVES:
        return nodes.reference("", part, refuri=_ARCHIVES[archive] + identifier)
    return nodes.Text(part)


def notes(conditions: str) -> str:
    """What a reader of the equation has to know, without what the code raises.

    >>> notes("One reader. Raises InputError if ``a`` is not inside (0, 1).")
    'One reader.'
    """
    return re.sub(r"Raises InputError[^.]*\.", "", conditions).strip()


class Formula(MathDirective):
    """Print one formula of the package."""

    has_content = False
    required_arguments = 1
    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        known = equations()
        name = self.arguments[0]
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.3)
            message = "no formula %r; near are %s"
            _LOGGER.warning(message, name, ", ".join(near), location=self.get_location())
            return []
        equation = known[name]
        self.env.note_dependency(str(Path(formulas.__file__).with_name(f"{equation.module}.py")))
        unit = "" if equation.unit == "1" else f" [{equation.unit}]"
        summary = [nodes.literal("", name), nodes.Text(f"{unit}: ")]
        source = f"{equation.source[0].upper()}{equation.source[1:].rstrip('.')}."
        told = [nodes.strong("", "Source. "), *prose(source)]
        if conditions := notes(equation.conditions):
            told = [nodes.strong("", "Notes. "), *prose(conditions), nodes.Text(" "), *told]
        return [
            nodes.container(
                "",
                *self._equation(equation.latex, label(name)),
                nodes.paragraph("", "", *summary, *prose(equation.summary), nodes.Text(".")),
                nodes.paragraph("", "", *told, classes=["formula-notes"]),
                details("", self._arguments(equation.parameters), summary="Arguments"),
                classes=["formula"],
            )
        ]

    def _equation(self, latex: str, name: str) -> list[nodes.Node]:
        node = nodes.math_block(latex, latex, nowrap=False, number=None, label=name)
        node["docname"] = self.env.docname
        self.options["label"] = name
        self.set_source_info(node)
        found = [node]
        self.add_target(found)
        return found

    def _arguments(self, parameters: dict[str, str]) -> nodes.Node:
        symbols = nomenclature(self)
        rows = []
        for name, unit in parameters.items():
            known = symbols.get(name)
            if known is None:
                message = "argument %s of %s is not in the nomenclature"
                location = self.get_location()
                _LOGGER.warning(message, name, self.arguments[0], location=location)
                continue
            symbol, meaning = nodes.math("", known["symbol"]), nodes.Text(known["meaning"])
            rows.append([[symbol], [nodes.literal("", name)], [nodes.Text(unit)], [meaning]])
        return table(("Symbol", "Name", "Unit", "Meaning"), rows, "arguments")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(details, html=(visit_details, depart_details))
    app.add_directive("formula", Formula)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
