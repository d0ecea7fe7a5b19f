"""The ``reference`` directive: what a module offers, from its signatures and docstrings.

``{reference} units`` prints the public functions and classes of ``kvpaper.units``; names in its
content, one a line, pick some of them. The source is parsed and not imported.
"""

import ast
import inspect
import re
from pathlib import Path

from docutils import nodes
from formula import prose, sections
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import kvpaper

_LOGGER = logging.getLogger(__name__)
_PACKAGE = Path(kvpaper.__file__).parent

Definition = ast.FunctionDef | ast.ClassDef


def source(module: str) -> Path:
    """File of a module of the package.

    >>> source("formulas.size").name, source("models").name
    ('size.py', '__init__.py')
    """
    path = _PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def public(body: list[ast.stmt]) -> list[Definition]:
    """Functions and classes without an underscore that say what they are."""
    return [
        node
        for node in body
        if isinstance(node, Definition) and node.name[0] != "_" and ast.get_docstring(node)
    ]


def signature(node: Definition) -> str:
    """How a function is called, or a class with the values it holds is made.

    >>> signature(ast.parse("def f(a: int, *, b=1) -> str: ...").body[0])
    'f(a: int, *, b=1) -> str'
    >>> signature(ast.parse("class C:\\n  x: float\\n  y: int = 0").body[0])
    'C(x: float, y: int)'
    """
    if isinstance(node, ast.ClassDef):
        parts = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        fields = [f"{ast.unparse(part.target)}: {ast.unparse(part.annotation)}" for part in parts]
        return f"{node.name}({', '.join(fields)})" if fields else node.name
    given = f"{node.name}({ast.unparse(node.args)})"
    return f"{given} -> {ast.unparse(node.returns)}" if node.returns else given


def paragraphs(text: str) -> list[nodes.Node]:
    """Paragraphs of a docstring; those that begin with a prompt are examples."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)
    return [
        nodes.literal_block(part, part, language="pycon")
        if part.startswith(">>>")
        else nodes.paragraph("", "", *prose(part))
        for part in re.split(r"\n\s*\n", text)
        if part.strip()
    ]


def definitions(text: str) -> nodes.definition_list:
    """Names with what is said of each, as under Parameters or Raises."""
    items = []
    for entry in re.split(r"\n(?=\S)", text):
        name, _, said = entry.partition("\n")
        term = nodes.term("", "", nodes.literal("", name))
        meaning = nodes.definition("", *paragraphs(inspect.cleandoc(said)))
        items.append(nodes.definition_list_item("", term, meaning))
    return nodes.definition_list("", *items)


def described(node: Definition, module: str, owner: str = "") -> nodes.definition_list_item:
    """One function or class, with the methods of the latter."""
    name = f"{owner}{node.name}"
    # An arrow of two signs would be broken between them.
    called = signature(node).replace(" -> ", " → ")
    term = nodes.term("", "", nodes.literal("", called), ids=[f"{module}.{name}"])
    body: list[nodes.Node] = []
    for heading, text in sections(ast.get_docstring(node)).items():
        if heading == "Equation":
            continue
        if heading in ("", "Examples", "Notes"):
            body += paragraphs(text)
        else:
            body += [nodes.paragraph("", "", nodes.strong("", heading)), definitions(text)]
    methods = public(node.body) if isinstance(node, ast.ClassDef) else []
    if methods:
        inner = [described(method, module, f"{name}.") for method in methods]
        body.append(nodes.definition_list("", *inner))
    return nodes.definition_list_item("", term, nodes.definition("", *body))


class Reference(SphinxDirective):
    """Print what a module offers."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        module, wanted = self.arguments[0], list(self.content)
        path = source(module)
        if not path.is_file():
            _LOGGER.warning("no module kvpaper.%s", module, location=self.get_location())
            return []
        self.env.note_dependency(str(path))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {node.name: node for node in public(tree.body)}
        for name in set(wanted) - set(found):
            _LOGGER.warning("no %s in kvpaper.%s", name, module, location=self.get_location())
        shown = [found[name] for name in wanted or found if name in found]
        title = nodes.title("", "", nodes.literal("", f"kvpaper.{module}"))
        told = paragraphs(ast.get_docstring(tree) or "")
        listed = nodes.definition_list("", *(described(node, module) for node in shown))
        return [nodes.section("", title, *told, listed, ids=[f"kvpaper.{module}"])]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("reference", Reference)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
