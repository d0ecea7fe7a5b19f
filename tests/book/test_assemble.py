"""The book is put together whole, or not at all."""

import doctest
import json
import re
import shutil

import assemble
import pytest
from conftest import BOOK

from kvpaper import data
from kvpaper.errors import InputError

PICTURE = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "iVBORw0KGgo="}}
TABLE = {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "131072"}}

FIRST_PAGE = """# A book

See {numref}`fig-one` and {cite:p}`cake`.

```{include} answers/10_one.txt
```
"""


def markdown(text):
    return {"cell_type": "markdown", "id": text[:3], "metadata": {}, "source": [text]}


def code(source, *outputs, tags=()):
    metadata = {"tags": list(tags), "papermill": {"duration": 1.0}}
    cell = {"cell_type": "code", "id": source[:3], "metadata": metadata, "source": source}
    return cell | {"execution_count": 1, "outputs": list(outputs)}


def notebook(*cells):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "papermill": {"start_time": "now"}}
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_examples():
    outcome = doctest.testmod(assemble)
    assert outcome.failed == 0
    assert outcome.attempted > 0


def test_pages_in_order():
    toc = {"root": "a", "parts": [{"chapters": [{"file": "b"}, {"file": "c"}]}, {"file": "d"}]}
    assert list(assemble.pages(toc)) == ["a", "b", "c", "d"]


def test_silent_cells_share_a_fold():
    read = assemble.for_readers(
        notebook(
            code("one = 1", tags=["parameters"]),
            code("one = 2"),
            code("one", TABLE),
            code("three"),
            markdown("text"),
            code("four"),
        )
    )
    sources = ["".join(cell["source"]) for cell in read["cells"]]
    assert sources == ["one = 1\n\none = 2\n\none", "three", "text", "four"]
    assert read["cells"][0]["outputs"] == [TABLE]


def test_code_is_folded_and_pictures_are_dropped():
    read = assemble.for_readers(
        notebook(code("draw()", PICTURE, TABLE, tags=["kept"]), code("no", tags=["remove-cell"]))
    )
    (cell,) = read["cells"]
    assert cell["outputs"] == [TABLE]
    assert cell["metadata"] == {"tags": ["kept", "hide-input"]}
    assert "papermill" not in read["metadata"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A repository with a book of one page and one chapter."""
    book = tmp_path / "book"
    shutil.copytree(BOOK, book, ignore=shutil.ignore_patterns("_build", "*.md", "__pycache__"))
    (book / "README.md").write_text("# Not a page\n")
    (book / "index.md").write_text(FIRST_PAGE)
    (book / "bibliography.md").write_text("# Bibliography\n\n```{bibliography}\n```\n")
    (book / "_toc.yml").write_text(
        "format: jb-book\nroot: index\noptions: {numbered: true}\n"
        "chapters: [{file: 10_one}, {file: bibliography}]\n"
    )
    (tmp_path / "requirements.lock").write_text("")
    (tmp_path / "figures/mine").mkdir(parents=True)
    (tmp_path / "figures/mine/10_one.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    )
    answers = tmp_path / "data/results/mine"
    answers.mkdir(parents=True)
    (answers / "10_one.txt").write_text("It is one.\n")
    figure = (
        "```{figure} ../figures/paper/10_one.svg\n:name: fig-one\n:alt: A square\n\nOne.\n```\n"
    )
    (tmp_path / "build/mine/notebooks").mkdir(parents=True)
    (tmp_path / "build/mine/notebooks/10_one.ipynb").write_text(
        json.dumps(notebook(markdown(f"# One\n\n{figure}"), code("print(131072)", TABLE)))
    )
    monkeypatch.setattr(data, "FOLDER", tmp_path / "data")
    monkeypatch.setattr(assemble, "ROOT", tmp_path)
    monkeypatch.setattr(assemble, "BOOK", book)
    return tmp_path


def test_source(small):
    tree = assemble.source_tree("mine")
    assert "README.md" not in tree
    assert b"kvpaper_scenario: mine" in tree["_config.yml"]
    assert b"{figure} figures/10_one.svg" in tree["10_one.ipynb"]
    assert tree["answers/10_one.txt"] == b"It is one.\n"
    assert tree["figures/10_one.svg"].startswith(b"<svg")


def test_missing_notebook(small, capsys):
    (small / "build/mine/notebooks/10_one.ipynb").unlink()
    assert assemble.main(["mine"]) == 2
    assert capsys.readouterr().err == (
        "build/mine/notebooks/10_one.ipynb: found no file, "
        "expected an executed notebook (make notebooks SCENARIO=mine)\n"
    )


def test_truncated_notebook(small):
    path = small / "build/mine/notebooks/10_one.ipynb"
    path.write_text(path.read_text()[:40])
    with pytest.raises(InputError, match="found broken JSON"):
        assemble.source_tree("mine")


def test_a_warning_fails_the_build_and_leaves_the_book_before_it(small, capsys):
    first_page = small / "book/_build/mine/html/index.html"
    first_page.parent.mkdir(parents=True)
    first_page.write_text("the book before")
    (small / "book/index.md").write_text(FIRST_PAGE + "\n{numref}`fig-two`\n")
    assert assemble.main(["mine"]) == 1
    error = capsys.readouterr().err
    assert re.fullmatch(r"book/index\.md:\d+: WARNING: .*fig-two.*", error.strip())
    assert first_page.read_text() == "the book before"
    unfinished = (small / "book/_build/mine/unfinished/_build/html/index.html").read_text("utf-8")
    assert "Figure 1.1" in unfinished
    assert "It is one." in unfinished


def test_a_whole_book_takes_the_place_of_the_one_before_it(small, capsys, monkeypatch):
    def build(command, **options):
        source, output = command[2], command[4]
        assert not (source / "stale.md").exists()
        (output / "_build/html").mkdir(parents=True)
        (output / "_build/html/index.html").write_text("the new book")

    monkeypatch.setattr(assemble.subprocess, "run", build)
    folder = small / "book/_build/mine"
    for left_over in ("unfinished/src/stale.md", "html/stale.html"):
        (folder / left_over).parent.mkdir(parents=True)
        (folder / left_over).write_text("of an earlier build")
    assert assemble.main(["mine"]) == 0
    assert capsys.readouterr().out.startswith("book: ")
    assert [path.name for path in folder.iterdir()] == ["html"]
    assert [path.read_text() for path in (folder / "html").iterdir()] == ["the new book"]
