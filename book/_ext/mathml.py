"""Equations as MathML, made while the book is built, so that a page needs no script for them."""

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

_CONVERTER = LatexToMathML(fancy_error=False)
_LOGGER = logging.getLogger(__name__)


def mathml(latex: str, display: bool) -> str:
    r"""MathML of a formula; lines parted by ``\\`` are aligned at their ``&``.

    Raises
    ------
    math_core.LatexError
        If the converter does not know a command.

    Examples
    --------
    >>> mathml("x", display=False)
    '<math><mi>x</mi></math>'
    """
    # math-core has no split environment, and would number the lines of align by itself.
    latex = latex.strip().replace("{split}", "{aligned}")
    if display and r"\\" in latex and r"\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    return _CONVERTER.convert_with_local_state(latex, displaystyle=display)


def _append(translator: HTML5Translator, node: nodes.Element, display: bool) -> None:
    try:
        translator.body.append(mathml(node.astext(), display))
    except LatexError as error:
        _LOGGER.warning("%s in %r", error, node.astext(), location=node)
        translator.body.append(f"<code>{translator.encode(node.astext())}</code>")


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    _append(translator, node, display=False)
    raise nodes.SkipNode


def visit_math_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    number = get_node_equation_number(translator, node) if node["number"] else ""
    label = f"Equation {number}".strip()
    translator.body.append(translator.starttag(node, "div", CLASS="equation"))
    # The box scrolls when the equation is wider than the page; the keyboard must reach it.
    translator.body.append(
        f'<div class="equation-box" role="group" aria-label="{label}" tabindex="0">'
    )
    _append(translator, node, display=True)
    translator.body.append("</div>")
    if number:
        translator.body.append('<span class="equation-number">')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append(f"<span>({number})</span></span>")
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
