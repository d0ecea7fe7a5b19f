"""Code, equations and pages agree in both directions."""

import doctest
import json
import re
from collections import Counter
from pathlib import Path

import statements
from formula import equations

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")}
PAGES.pop("README.md")
NOTEBOOKS = {
    path.name: "\n".join(
        "".join(cell["source"])
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
    )
    for path in (ROOT / "notebooks").glob("*.ipynb")
}


def test_every_formula_is_printed_once_and_nothing_else_is():
    printed = Counter(
        name for text in PAGES.values() for name in re.findall(r"^```\{formula\} (\w+)", text, re.M)
    )
    assert printed == Counter(list(equations()))


def test_every_equation_that_a_page_refers_to_exists():
    known = {f"eq-{name.replace('_', '-')}" for name in equations()}
    for name, text in {**PAGES, **NOTEBOOKS}.items():
        assert set(re.findall(r"\{eq\}`([^`]+)`", text)) <= known, name


def test_every_chapter_stands_in_the_table_of_contents_and_has_a_figure_of_its_stem():
    contents = (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8")
    for name, text in NOTEBOOKS.items():
        stem = name.removesuffix(".ipynb")
        assert f"file: {stem}\n" in contents
        figures = re.findall(r"\.\./figures/paper/(\w+)\.svg", text)
        assert all(figure.startswith(stem) for figure in figures), name
        assert figures or stem == "80_measured", name
        for figure in figures:
            assert (ROOT / "figures" / "paper" / f"{figure}.svg").is_file(), figure


def test_every_figure_has_a_name_and_words_for_those_who_do_not_see_it():
    for name, text in NOTEBOOKS.items():
        for block in re.findall(r"```\{figure\}.*?```", text, re.S):
            assert re.search(r"^:name: fig-", block, re.M), name
            assert len(re.search(r"^:alt: (.*)", block, re.M)[1]) > 60, name


def test_the_numbers_of_a_statement_are_seen():
    outcome = doctest.testmod(statements)
    assert (outcome.failed, outcome.attempted) == (0, 1)


def test_prose_states_no_number_of_a_scenario():
    """Numbers of a scenario come from its rows; prose may quote the paper's, and no others."""
    for name, text in {**PAGES, **NOTEBOOKS}.items():
        code = r"(?ms)^```\w.*?^```|\{\w+\}`[^`]*`|`[^`]*`|\$[^$]*\$"
        quoted = statements.QUOTED.get(name.partition(".")[0], set())
        assert statements.numbers(re.sub(code, "", text)) <= quoted, name
