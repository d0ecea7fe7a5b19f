"""A fork speaks of its own numbers: the whole book of a scenario that a reader would write.

The example of the tutorial (``data/examples``: another model, hardware, target, price and trace) is
put into a copy of the repository, and ``make paper SCENARIO=mine`` makes everything there.
"""

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from statements import QUOTED, numbers

ROOT = Path(__file__).resolve().parents[2]
NOT_NEEDED = (".*", "build", "tests", "benchmarks", "_build", "results")
EXAMPLE = ("mine.yaml", "our-model.json", "requests.jsonl")
LIMIT_S = 600

# Elements whose text is no statement of the book about its scenario: code, equations, tables of
# rows, works cited and the way around.
LEFT_OUT = {"math", "pre", "code", "table", "nav", "script", "style", "head", "title"}
LEFT_OUT_CLASSES = {"citation", "prev-next-area", "bd-sidebar", "formula"}
VOID = {"br", "img", "hr", "input", "link", "meta", "wbr", "source"}


class Prose(HTMLParser):
    """The text of a page that a reader reads, one item a paragraph, list item or caption."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.left_out: list[bool] = []
        self.feed("".join(re.findall(r"<article.*?</article>", page, re.S)))

    def handle_starttag(self, tag, attrs):
        if tag in VOID:
            return
        classes = set((dict(attrs).get("class") or "").split())
        left_out = tag in LEFT_OUT or bool(classes & LEFT_OUT_CLASSES)
        self.left_out.append(left_out or any(self.left_out[-1:]))
        if tag in ("p", "li", "figcaption", "dd", "h1", "h2", "h3"):
            self.texts.append("")

    def handle_endtag(self, tag):
        if tag not in VOID:
            self.left_out.pop()

    def handle_data(self, data):
        if self.texts and not any(self.left_out[-1:]):
            self.texts[-1] += data


def prose(page: Path) -> list[str]:
    # The book sets apostrophes as printers do.
    html = page.read_text("utf-8").replace("’", "'")
    texts = (" ".join(text.split()) for text in Prose(html).texts)
    return [text for text in texts if text]


def said(answer: str) -> list[str]:
    """Paragraphs and items of an answer as a reader sees them, names in code left out."""
    items = re.split(r"\n\n|\n(?=- )", re.sub(r"`[^`]*`", "", answer))
    return [" ".join(item.removeprefix("- ").split()) for item in items]


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    """A copy of the repository after ``make paper SCENARIO=mine``."""
    if subprocess.run(["make", "-q", "env"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("the environment is not that of the lock (make env)")
    copy = tmp_path_factory.mktemp("fork") / "kvpaper"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_NEEDED))
    for name in ("paper", "public"):
        shutil.copytree(ROOT / "data/results" / name, copy / "data/results" / name)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    for name in EXAMPLE:
        shutil.copy(ROOT / "data/examples" / name, copy / "data/scenarios")
    done = subprocess.run(
        ["make", "paper", "SCENARIO=mine"],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return copy


@pytest.fixture(scope="module")
def pages(fork):
    html = fork / "book/_build/mine/html"
    # The reference is of the package's docstrings, which know no scenario.
    return {path.stem: prose(path) for path in sorted(html.glob("*.html")) if path.stem != "api"}


@pytest.fixture(scope="module")
def answers(fork):
    folder = fork / "data/results"
    return {
        name: {path.stem: path.read_text("utf-8") for path in (folder / name).glob("*.txt")}
        for name in ("mine", "paper")
    }


def test_every_chapter_answers_anew(answers, pages):
    same = {stem for stem, text in answers["mine"].items() if answers["paper"].get(stem) == text}
    assert same <= {"60_fleet_fidelity", "80_measured", "90_startup_failure"}
    for stem, text in answers["mine"].items():
        page = max((page for page in pages if stem.startswith(page)), key=len)
        for item in said(text):
            assert item in pages[page], stem
    assert "Acme-7B" in answers["mine"]["10_kv_bytes"]
    assert "requests" in answers["mine"]["50_reuse"]


def test_no_sentence_states_a_number_that_the_scenario_does_not_produce(answers, pages):
    produced = {item for text in answers["mine"].values() for item in said(text)}
    strays = {
        page: found
        for page, texts in pages.items()
        for found in [
            set().union(*(numbers(text) for text in texts if text not in produced))
            - QUOTED.get(page, set())
        ]
        if found
    }
    assert strays == {}


def test_nothing_of_the_paper_is_left(fork, answers, pages):
    of_paper, of_mine = (numbers(" ".join(answers[name].values())) for name in ("paper", "mine"))
    assert len(of_paper - of_mine) > 20
    left = {
        (page, number)
        for page, texts in pages.items()
        for number in numbers(" ".join(texts)) & (of_paper - of_mine)
        if number not in QUOTED.get(page, set())
    }
    assert left == set()
    html = "".join(path.read_text("utf-8") for path in fork.glob("book/_build/mine/html/*.html"))
    assert re.findall(r'class="result" title="\w+, (?!mine/)[^"]*', html) == []
    for figure in (fork / "figures/mine").glob("*.svg"):
        built = fork / "book/_build/mine/html/_images" / figure.name
        assert not built.exists() or built.read_bytes() == figure.read_bytes()
