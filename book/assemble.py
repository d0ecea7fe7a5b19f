"""Assemble the book of one scenario and build it: ``python book/assemble.py SCENARIO``.

The source is put together from the pages of this folder and from what the notebooks of the
scenario gave: their executed copies, figures and answers. jupyter-book builds it with warnings as
errors, and only a whole book is moved to ``book/_build/SCENARIO/html``.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from kvpaper import __version__, results
from kvpaper.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
BOOK = Path(__file__).resolve().parent


def pages(toc: Any) -> Iterator[str]:
    """Names of all pages of a table of contents, in its order."""
    if isinstance(toc, list):
        for entry in toc:
            yield from pages(entry)
    elif isinstance(toc, dict):
        yield from (toc[key] for key in ("root", "file") if key in toc)
        for value in toc.values():
            yield from pages(value)


def for_readers(notebook: dict[str, Any]) -> dict[str, Any]:
    """An executed notebook as a paper shows it.

    Code is folded away, and neighbouring cells that print nothing share one fold. Cells tagged
    ``remove-cell`` are dropped, and so are pictures among the outputs: a figure stands where the
    text has it, from its file.
    """
    cells: list[dict[str, Any]] = []
    for original in notebook["cells"]:
        tags = original["metadata"].get("tags", [])
        cell = {**original, "metadata": {"tags": tags}}
        if "remove-cell" in tags:
            continue
        if cell["cell_type"] == "code":
            cell["metadata"]["tags"] = [*tags, "hide-input"]
            cell["outputs"] = [
                output
                for output in cell["outputs"]
                if not any(kind.startswith("image/") for kind in output.get("data", {}))
            ]
            before = cells[-1] if cells else {}
            if before.get("cell_type") == "code" and not before["outputs"]:
                cell["source"] = f"{_text(before)}\n\n{_text(cell)}"
                cells.pop()
        cells.append(cell)
    metadata = {"kernelspec": notebook["metadata"].get("kernelspec", {})}
    return {**notebook, "cells": cells, "metadata": metadata}


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def source_tree(scenario: str) -> dict[str, bytes]:
    """All files of the book's source, by their path in it.

    Raises
    ------
    InputError
        If a page of the table of contents is neither written here nor an executed notebook.
    """
    toc = yaml.safe_load((BOOK / "_toc.yml").read_text("utf-8"))
    config = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))
    config["sphinx"]["config"]["kvpaper_scenario"] = scenario
    tree = {
        "_config.yml": yaml.safe_dump(config, sort_keys=False).encode(),
        "edition.txt": f"Edition {__version__}, computed for the scenario `{scenario}`.\n".encode(),
    }
    for path in [BOOK / "_toc.yml", BOOK / "references.bib", *BOOK.glob("*.md")]:
        if path.name != "README.md":
            tree[path.name] = path.read_bytes()
    for folder in ("_ext", "_static"):
        for path in sorted((BOOK / folder).rglob("*.*")):
            if "__pycache__" not in path.parts:
                tree[path.relative_to(BOOK).as_posix()] = path.read_bytes()
    for path in sorted((ROOT / "figures" / scenario).glob("*.svg")):
        tree[f"figures/{path.name}"] = path.read_bytes()
    for path in sorted(results.folder(scenario).glob("*.txt")):
        tree[f"answers/{path.name}"] = path.read_bytes()
    for name in pages(toc):
        if f"{name}.md" not in tree:
            tree[f"{name}.ipynb"] = _notebook(Path("build", scenario, "notebooks", f"{name}.ipynb"))
    for name in tree:
        if name.endswith((".md", ".ipynb")):
            # The sources name the figures of the paper, which every checkout has.
            tree[name] = tree[name].replace(b"../figures/paper/", b"figures/")
    return tree


def _notebook(path: Path) -> bytes:
    try:
        notebook = json.loads((ROOT / path).read_bytes())
    except FileNotFoundError:
        expected = f"an executed notebook (make notebooks SCENARIO={path.parts[1]})"
        raise InputError(path.as_posix(), "no file", expected) from None
    except ValueError as error:
        raise InputError(path.as_posix(), f"broken JSON ({error})", "a notebook") from None
    return json.dumps(for_readers(notebook), indent=1).encode()


def render(scenario: str, builder: str = "html") -> Path:
    """Render the book of a scenario in a folder of its own and return that folder.

    Every book is built anew: most of the time goes into starting Sphinx, and a page that is kept
    would keep its warnings to itself.

    Raises
    ------
    InputError
        If a notebook is missing.
    subprocess.CalledProcessError
        If jupyter-book fails or warns; its output is in the error.
    """
    tree = source_tree(scenario)
    work = BOOK / "_build" / scenario / "unfinished"
    shutil.rmtree(work, ignore_errors=True)
    for name, content in tree.items():
        path = work / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    program = Path(sys.executable).with_name("jupyter-book")
    options = ["--path-output", work, "--builder", builder, "-W", "-n", "--keep-going", "-q"]
    subprocess.run(
        [program, "build", work / "src", *options],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return work / "_build" / builder


def build(scenario: str) -> Path:
    """Build the book of a scenario and return its first page; raises what ``render`` raises."""
    book, rendered = BOOK / "_build" / scenario / "html", render(scenario)
    work = rendered.parents[1]
    if book.exists():
        book.rename(work / "before")
    rendered.rename(book)
    shutil.rmtree(work)
    return book / "index.html"


def complaints(output: str, scenario: str) -> str:
    """What jupyter-book complained of, with the paths that an author knows.

    >>> page = BOOK / "_build/paper/unfinished/src/index.md"
    >>> complaints(f"Output Path: x\\n{page}:3: WARNING: y\\nTraceback (most ...", "paper")
    'book/index.md:3: WARNING: y'
    """
    text = re.sub(r"\x1b\[[\d;]*m", "", output)
    text = text.partition("Output Path: ")[2].partition("\n")[2] or text
    text = re.split(r"^(?:Traceback \(most|=====)", text, maxsplit=1, flags=re.M)[0]
    source = re.escape(f"{BOOK / '_build' / scenario / 'unfinished' / 'src'}{os.sep}")
    text = re.sub(rf"{source}(?=\S+\.ipynb)", "notebooks/", text)
    return re.sub(source, "book/", text).strip()


def main(arguments: list[str], make: Callable[[str], Path] = build, what: str = "book") -> int:
    """Make the book of a scenario, or something else of it, and tell what came of it."""
    if len(arguments) != 1:
        print(f"usage: python {sys.argv[0]} SCENARIO", file=sys.stderr)
        return 2
    start = time.monotonic()
    try:
        made = make(arguments[0])
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(complaints(error.stdout, arguments[0]), file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"{what}: the browser did not finish in {error.timeout} s", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{what}: {time.monotonic() - start:.1f} s, {made.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
