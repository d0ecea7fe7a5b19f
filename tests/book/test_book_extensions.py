"""The book's extensions: equations, formulas, numbers and tables on pages."""

import csv
import doctest
import html
import importlib
import io
import os
import re
from pathlib import Path

import console
import datatables
import formula
import mathml
import pytest
import reference
import result
from fontTools.ttLib import TTFont
from math_core import LatexError
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from kvpaper import data, formulas

ROOT = Path(__file__).resolve().parents[2]
FONTS = ROOT / "book" / "_static" / "fonts"
ROWS = """quantity,kind,value,tier,tokens
fetch_time_s,predicted,0.333333,nvme,
fetch_time_s,predicted,0.000208333,hbm,
kv_bytes,predicted,1073741824,,8192
kv_bytes,predicted,4294967296,,32768
gap,predicted,1600,,
"""


def rows():
    return list(csv.DictReader(io.StringIO(ROWS)))


def shown(text):
    query = result.parse(text)
    value = float(result.only_row(query, rows())["value"])
    return "".join(node.astext() for node in result.printed(query, value))


@pytest.mark.parametrize("module", [console, datatables, formula, mathml, reference, result])
def test_examples(module):
    outcome = doctest.testmod(module)
    assert outcome.failed == 0
    assert outcome.attempted > 0


# Numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20_recovery fetch_time_s tier=nvme in ms : .0f", "333\xa0ms"),
        ("20_recovery fetch_time_s tier=hbm in us : .3g", "208\xa0µs"),
        ("20_recovery fetch_time_s tier=hbm", "0.000208"),
        ("20_recovery kv_bytes tokens=8192.0 : ,.0f", "1,073,741,824"),
        ("20_recovery kv_bytes tokens=8192\n  in GiB : .1f", "1.0\xa0GiB"),
        ("20_recovery kv_bytes tokens=32768", "4.29\xa0×\xa0109"),
        ("20_recovery gap : ,.0f", "1,600"),
    ],
)
def test_number(text, expected):
    assert shown(text) == expected


def test_small_and_negative_numbers():
    query = result.parse("a b : .2g")
    assert [node.astext() for node in result.printed(query, -3e-7)] == ["−3\xa0×\xa010", "−7"]


@pytest.mark.parametrize("text", ["", "stem", "stem quantity tier", "stem quantity =nvme"])
def test_unreadable_query(text):
    with pytest.raises(ValueError, match="STEM QUANTITY"):
        result.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s fetch_tme_s tier=nvme", "near are fetch_time_s"),
        ("s fetch_time_s tier=dram", "no rows of fetch_time_s fit; there is tier=hbm|nvme"),
        ("s fetch_time_s", "2 rows of fetch_time_s fit; there is tier=hbm|nvme"),
        ("s kv_bytes rank=1", "no rows of kv_bytes fit; there is tokens=32768|8192"),
    ],
)
def test_not_one_row(text, message):
    with pytest.raises(LookupError, match=re.escape(message)):
        result.only_row(result.parse(text), rows())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s fetch_time_s tier=nvme in GB", "fetch_time_s is not in GB"),
        ("s fetch_time_s tier=nvme in parsec", "unknown unit 'parsec'"),
        ("s gap in s", "unknown unit 'gap'"),
        ("s fetch_time_s tier=nvme : .3q", "format"),
    ],
)
def test_unprintable(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        shown(text)


# Equations


def test_lines_are_aligned():
    assert mathml.mathml(r"a &= b \\ c &= d", display=True).count("<mtr>") == 2
    split = r"\begin{split} a &= b \\ c &= d \end{split}"
    assert mathml.mathml(split, display=True).count("<mtr>") == 2


def test_unknown_command():
    with pytest.raises(LatexError):
        mathml.mathml(r"\substack{a}", display=True)


def italic(character):
    """The character that a browser draws for a single letter in <mi>."""
    if character == "h":
        return "\N{PLANCK CONSTANT}"
    for first, last, target in (
        ("A", "Z", 0x1D434),
        ("a", "z", 0x1D44E),
        ("Α", "Ω", 0x1D6E2),
        ("α", "ω", 0x1D6FC),
    ):
        if first <= character <= last:
            return chr(target + ord(character) - ord(first))
    return {"ϵ": "𝜖", "ϑ": "𝜗", "ϕ": "𝜙", "ϱ": "𝜚"}.get(character, character)


def drawn(markup):
    """All characters that a browser draws for a piece of MathML."""
    characters = set()
    for tag, attributes, content in re.findall(r"<(m[iones]\w*)\b([^>]*)>([^<]*)</\1>", markup):
        text = html.unescape(content)
        single = tag == "mi" and len(text) == 1 and "mathvariant" not in attributes
        characters |= {italic(text)} if single else set(text)
    return characters


def test_every_character_of_an_equation_is_in_the_font():
    known = TTFont(FONTS / "math.woff").getBestCmap()
    with (data.FOLDER / "nomenclature.csv").open(encoding="utf-8", newline="") as file:
        symbols = [row["symbol"] for row in csv.DictReader(file)]
    latex = [equation.latex for equation in formula.equations().values()]
    markup = [mathml.mathml(text, display=True) for text in [*latex, *symbols]]
    pages = (ROOT / "book" / "_build").glob("*/html/*.html")
    markup += [math for page in pages for math in re.findall("<math.*?</math>", page.read_text())]
    used = set().union(*map(drawn, markup))
    assert len(used) > 50
    assert sorted(character for character in used if ord(character) not in known) == []


def test_fonts_are_small_and_licensed():
    assert (FONTS / "math.woff").stat().st_size < 80_000
    readme = (FONTS / "README.md").read_text("utf-8")
    for path in FONTS.iterdir():
        assert path.name in readme or path.name == "README.md"


# Pages

EXTENSIONS = [
    "mathml", "formula", "result", "datatables", "bibliography", "console", "reference",
]  # fmt: skip
CONFIGURATION = {
    "extensions": ["myst_parser", "sphinxcontrib.bibtex", *EXTENSIONS],
    "html_theme": "basic",
    "html_math_renderer": "mathml",
    "myst_enable_extensions": ["colon_fence", "dollarmath"],
    "bibtex_bibfiles": ["references.bib"],
    "bibtex_default_style": "author_year",
    "bibtex_reference_style": "author_year",
    "math_numfig": True,
    "numfig": True,
    "kvpaper_scenario": "small",
}
PAGE = r"""# A chapter

From NVMe in {result}`20_recovery fetch_time_s tier=nvme in ms : .0f`, see {eq}`eq-fetch-time`
and {eq}`eq-own`.

```{formula} fetch_time
```

$$ a &= b \\ c &= d $$ (eq-own)

```{nomenclature}
```

```{published}
```

```{bibliography}
```
"""
FAULTS = r"""# A chapter

{result}`20_recovery fetch_tme_s tier=nvme`

{result}`21_recovery fetch_time_s tier=nvme`

```{formula} fetch_tme
```

$$ \substack{a} $$

```{console}
kvpaper size llama-3.1-9b
rm -rf data
```

## Modules

```{reference} unit
```

```{reference} units
parse
text
```
"""


class SmallBook:
    """A book of one page in a temporary folder."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "data/results/small").mkdir(parents=True)
        self.results = folder / "data/results/small/20_recovery.csv"
        self.results.write_text(ROWS)
        for name in ("nomenclature.csv", "published.csv"):
            (folder / "data" / name).write_bytes((data.FOLDER / name).read_bytes())
        (folder / "references.bib").write_bytes((ROOT / "book/references.bib").read_bytes())
        (folder / "index.md").write_text(PAGE)

    def build(self):
        """Warnings of a build, and the pages that were read for it."""
        warnings, read = io.StringIO(), []
        configuration = CONFIGURATION | {"kvpaper_data": str(self.folder / "data")}
        with patch_docutils(), docutils_namespace():
            app = Sphinx(
                self.folder,
                None,
                self.folder / "html",
                self.folder / "doctrees",
                "html",
                confoverrides=configuration,
                status=None,
                warning=warnings,
            )
            app.connect("source-read", lambda app, page, source: read.append(page))
            app.build()
        return warnings.getvalue(), read

    @property
    def html(self):
        return (self.folder / "html/index.html").read_text("utf-8")


@pytest.fixture
def book(tmp_path):
    return SmallBook(tmp_path)


def test_page(book):
    warnings, _ = book.build()
    assert warnings == ""
    page = book.html
    assert '<span class="result" title="predicted, small/20_recovery.csv">333\xa0ms</span>' in page
    assert page.count('<div class="equation"') == 2
    assert 'id="equation-eq-fetch-time"' in page
    assert 'href="#equation-eq-fetch-time">(1)</a>' in page
    assert 'tabindex="0"' in page
    assert "<summary>Arguments</summary>" in page
    assert page.count("<code") > len(formula.equations()["fetch_time"].parameters)
    assert "One reader;" in page
    assert not re.search(r"src=.https?:", page)


def test_published_values_stand_beside_their_sources(book):
    path = book.folder / "data/published.csv"
    path.write_text(
        "quantity,arguments,value,unit,rtol,source,locator\n"
        "gap,a,1600,1,0.01,cake,figure 1\n"
        "requests,t,12031,request,0,cake,table 2\n"
        "ceiling,b,0.62,1,0.05,widely published,\n"
    )
    (book.results.parent / "published.csv").write_text(
        "quantity,arguments,value,unit,rtol,source,locator,reproduced,status\n"
        "gap,a,1600,1,0.01,cake,figure 1,1608,reproduced\n"
        "requests,t,12031,request,0,cake,table 2,12031,by construction\n"
        "ceiling,b,0.62,1,0.05,widely published,,,not reproduced here: the trace is not public\n"
    )
    warnings, _ = book.build()
    assert warnings == ""
    table = re.search(r'<table class="published.*?</table>', book.html, re.S)[0]
    text = " ".join(re.sub("<[^>]+>", " ", table).split())
    assert "gap a 1,600 1,608 0.5 % 1 % agrees Jin et al." in text
    assert "requests t 12,031 requests 12,031 requests 0 % exact by construction Jin" in text
    assert "ceiling b 0.62 – – 5 % cannot be had: the trace is not public widely" in text
    assert table.count('<td data-label="Tolerance">') == 3


def test_the_bibliography_is_labelled_as_the_text_cites(book):
    page = "# A\n\n{cite:p}`cake`, {cite:p}`gray-putzolu-1987`\n\n```{bibliography}\n:all:\n```\n"
    (book.folder / "index.md").write_text(page)
    warnings, _ = book.build()
    assert warnings == ""
    text = html.unescape(re.sub("<[^>]+>", "", book.html))
    assert "Jin et al., 2025, Gray and Putzolu, 1987" in text.replace("[", "").replace("]", "")
    labels = re.findall(r'class="label">(.*?)</span>\s*<p>', book.html, re.S)
    labels = [re.sub("<[^>]+>", "", label).strip("[]") for label in labels]
    assert {"Jin et al. 2025", "Gray and Putzolu 1987"} <= set(labels)
    assert labels == sorted(labels, key=str.lower)


def test_notes_of_a_formula():
    assert formula.notes("Raises InputError if `servers` is below 1.") == ""
    for equation in formula.equations().values():
        assert "Raises" not in formula.notes(equation.conditions)
        assert "`" not in "".join(node.astext() for node in formula.prose(equation.conditions))


def test_identifiers_of_sources_are_links():
    sources = [equation.source for equation in formula.equations().values()]
    links = [
        node["refuri"]
        for source in sources
        for node in formula.prose(source)
        if node.tagname == "reference"
    ]
    assert len(links) == len(re.findall(r"(?:arXiv|doi):", " ".join(sources)))
    assert "https://doi.org/10.1007/BF01762111" in links
    assert "https://arxiv.org/abs/2405.04434" in links


def test_published_value_that_the_results_lack(book):
    (book.results.parent / "published.csv").write_text(
        "quantity,arguments,value,unit,rtol,source,locator,reproduced,status\n"
        "gap,none,1600,1,0.01,cake,figure 1,1608,agrees\n"
    )
    warnings, _ = book.build()
    assert "is not among the results" in warnings


def test_a_wide_table_of_a_page_becomes_blocks_on_a_phone(book):
    two = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    three = "| tool | made for | better at |\n|---|---|---|\n| one | two | *three* |\n"
    (book.folder / "index.md").write_text(f"# A\n\n{two}\n{three}")
    assert book.build()[0] == ""
    assert '<td data-label="better at"><p><em>three</em></p>' in book.html
    assert book.html.count("data-label") == 3


def test_commands_are_shown_with_what_they_print(book):
    (book.folder / "index.md").write_text("# A\n\n```{console}\nkvpaper --help\n```\n")
    assert book.build()[0] == ""
    text = re.sub("<[^>]+>", "", html.unescape(book.html))
    assert "$ kvpaper --help\nusage: kvpaper" in text


def test_docstrings_become_a_reference(book):
    (book.folder / "index.md").write_text(
        "# A\n\n## B\n\n```{reference} errors\nInputError\n```\n\n```{reference} traces.load\n```\n"
    )
    assert book.build()[0] == ""
    text = " ".join(re.sub("<[^>]+>", " ", html.unescape(book.html)).split())
    assert "kvpaper.errors" in text
    assert "where : str FILE:LINE , FILE: KEY or KEY , as exact as is known." in text
    assert ">>> str ( InputError (" in text
    assert 'id="traces.load.read_trace"' in book.html
    assert "Raises InputError" in text


def test_the_reference_tells_of_every_room():
    page = (ROOT / "book/api.md").read_text("utf-8")
    named = set(re.findall(r"^```\{reference\} (\w+)", page, re.M))
    rooms = {path.stem for path in Path(formulas.__file__).parents[1].iterdir()}
    # Formulas have a page of their own; what is a command first of all is told by its help.
    rooms -= {"__init__", "__main__", "__pycache__", "_data", "cli", "advise", "formulas"}
    assert named == rooms


def test_faults_are_told_with_their_place(book):
    (book.folder / "index.md").write_text(FAULTS)
    warnings, _ = book.build()
    found = dict(re.findall(r"index\.md:(\d+): WARNING: (.*)", warnings))
    assert "near are fetch_time_s" in found["3"]
    assert "21_recovery.csv" in found["5"]
    assert "no formula 'fetch_tme'; near are fetch_time" in found["7"]
    assert "substack" in found["10"]
    assert "kvpaper size llama-3.1-9b: exit code 2: model: found" in warnings
    assert "rm -rf data: found rm, expected kvpaper" in warnings
    assert re.search(r"no module kvpaper\.unit\b", warnings)
    assert "no parse in kvpaper.units" in warnings
    assert 'id="units.text"' in book.html


def test_changed_results_are_read_again(book):
    (book.folder / "index.md").write_text(PAGE.replace("```{published}\n```", ""))
    book.build()
    assert book.build()[1] == []
    book.results.write_text(ROWS.replace("0.333333", "0.5"))
    os.utime(book.results, ns=(0, book.results.stat().st_mtime_ns + 10**9))
    assert book.build()[1] == ["index"]
    assert "500\xa0ms" in book.html


def test_every_extension_is_in_the_configuration():
    configuration = (ROOT / "book/_config.yml").read_text("utf-8")
    for path in (ROOT / "book/_ext").glob("*.py"):
        assert f"- {path.stem}\n" in configuration
        assert hasattr(importlib.import_module(path.stem), "setup")
