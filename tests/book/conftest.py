"""The book's folder as a place to import from, and a small book to build."""

import sys
from pathlib import Path

BOOK = Path(__file__).resolve().parents[2] / "book"
for folder in (BOOK, BOOK / "_ext"):
    sys.path.append(str(folder))
