"""The printed book: numbered like the book of pages, whole, and told plainly what is missing."""

import re
import shutil

import assemble
import pdf
import pytest
import yaml
from conftest import BOOK

HTML = BOOK / "_build" / "paper" / "html"
NUMBERS = r'class="(?:caption-number|section-number|equation-number)">.*?</span>'


def numbers(page):
    """Numbers of chapters, sections, figures, tables and equations, in their order."""
    article = re.search(r"<article.*</article>", page, re.S)[0]
    return [
        re.sub(r"<[^>]*>|class=[^>]*>", "", text) for text in re.findall(NUMBERS, article, re.S)
    ]


def test_without_a_browser_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(pdf, "BROWSERS", ("no-such-browser",))
    monkeypatch.setattr(assemble, "render", lambda *_: pytest.fail("it must ask first"))
    assert pdf.main(["paper"]) == 2
    assert capsys.readouterr().err == (
        "pdf: found neither Chromium nor Chrome, expected one of them "
        "(apt install chromium, or brew install --cask chromium)\n"
    )


def test_a_browser_that_fails_leaves_the_pdf_before_it(monkeypatch, tmp_path, capsys):
    (tmp_path / "paper.pdf").write_text("the one before")
    page = tmp_path / "unfinished/_build/singlehtml"
    page.mkdir(parents=True)
    monkeypatch.setattr(pdf, "BROWSERS", ("false",))
    monkeypatch.setattr(assemble, "render", lambda *_: page)
    assert pdf.main(["paper"]) == 1
    assert (tmp_path / "paper.pdf").read_text() == "the one before"
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not HTML.is_dir(), reason="the book is not built (make paper)")
@pytest.mark.skipif(not any(map(shutil.which, pdf.BROWSERS)), reason="no Chromium to print with")
def test_the_print_has_the_numbers_of_the_book_and_every_page(tmp_path):
    folder = assemble.render("paper", "singlehtml")
    contents = yaml.safe_load((BOOK / "_toc.yml").read_text("utf-8"))
    pages = [(HTML / f"{name}.html").read_text("utf-8") for name in assemble.pages(contents)]
    in_book = [number for page in pages for number in numbers(page)]
    in_print = numbers((folder / "index.html").read_text("utf-8"))
    shutil.move(folder, tmp_path / "print")
    shutil.rmtree(folder.parents[1])
    assert len(in_book) > 60
    assert in_print == in_book

    target = tmp_path / "paper.pdf"
    pdf.print_page(pdf.browser(), tmp_path / "print/index.html", target, tmp_path / "profile")
    printed = target.read_bytes()
    assert len(re.findall(rb"/Type /Page\b", printed)) > len(pages)
    assert b"/Outlines" in printed
    assert b"/MarkInfo" in printed  # tagged, so that it can be read aloud
    links = set(re.findall(rb"/URI \(([^)]*)\)", printed))
    assert any(link.startswith(b"https://arxiv.org/") for link in links)
    assert [link for link in links if not link.startswith((b"https://", b"http://"))] == []
