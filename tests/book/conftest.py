"""The book's folder as a place to import from, and a tab of a browser."""

import sys
from pathlib import Path

import browser
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"
for folder in (BOOK, BOOK / "_ext"):
    sys.path.append(str(folder))


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.tab(tmp_path_factory.mktemp("profile")) as opened:
        opened.emulate("light")
        yield opened
