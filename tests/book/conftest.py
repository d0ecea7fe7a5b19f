"""The book's folder, and a tab of a browser."""

from pathlib import Path

import browser
import pytest

BOOK = Path(__file__).resolve().parents[2] / "book"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.tab(tmp_path_factory.mktemp("profile")) as opened:
        opened.emulate("light")
        yield opened
