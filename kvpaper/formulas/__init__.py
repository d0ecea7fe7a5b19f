"""The paper's formulas: pure functions of numbers and arrays, one module per question.

``size``, ``recovery``, ``decode``, ``slack``, ``queueing``, ``capacity``, ``pooling`` and ``cost``
need numpy alone and none needs another. Every argument is a number or an array in base units,
arrays broadcast, and a result has the shape of its arguments. The first line of a docstring names
the result and its unit; ``data/nomenclature.csv`` defines every name. A formula that names no
source is derived here.
"""

import importlib
import inspect
import re
from dataclasses import dataclass

MODULES = ("size", "recovery", "decode", "slack", "queueing", "capacity", "pooling", "cost")

_SECTION = re.compile(r"^(\w+)\n-+\n", re.M)
_PARAMETERS = re.compile(r"^([\w, ]+) : (?:float or )?array \[([^\]]+)\]", re.M)


@dataclass(frozen=True, slots=True)
class Equation:
    """One formula as its docstring states it."""

    name: str
    module: str
    summary: str
    unit: str
    latex: str
    parameters: dict[str, str]
    conditions: str
    source: str


def equations() -> dict[str, Equation]:
    """Every public formula by name, read from the docstrings in the order of the source.

    >>> equations()["fetch_time"].unit
    's'
    """
    found = {}
    for module_name in MODULES:
        module = importlib.import_module(f"{__name__}.{module_name}")
        for name, function in vars(module).items():
            defined_here = getattr(function, "__module__", None) == module.__name__
            if inspect.isfunction(function) and defined_here and not name.startswith("_"):
                found[name] = _equation(name, module_name, inspect.getdoc(function))
    return found


def _equation(name: str, module: str, docstring: str) -> Equation:
    head, *rest = _SECTION.split(docstring)
    sections = {title: body.strip() for title, body in zip(rest[::2], rest[1::2], strict=True)}
    first_line, *paragraphs = head.strip().split("\n\n")
    summary, unit = re.fullmatch(r"(.+) \[(.+)\]\.", first_line).groups()
    # What follows the first paragraph, or stands in its place, is the example.
    text = paragraphs[0] if not paragraphs[0].startswith(">>>") else ""
    conditions, _, source = " ".join(text.split()).partition("Source: ")
    parameters = {
        argument: argument_unit
        for names, argument_unit in _PARAMETERS.findall(sections["Parameters"])
        for argument in names.split(", ")
    }
    return Equation(
        name=name,
        module=module,
        summary=summary,
        unit=unit,
        latex=sections["Equation"],
        parameters=parameters,
        conditions=conditions.strip(),
        source=source or "derived here",
    )
