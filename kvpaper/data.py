"""Where the data of this repository lies, in a checkout or beside an installed package."""

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError, hint

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent / "data"
FOLDER = _CHECKOUT if (_CHECKOUT / "scenarios").is_dir() else _PACKAGE / "_data"


def names(folder: str, suffix: str = ".yaml") -> list[str]:
    """Names of the files ``data/<folder>/<name><suffix>``, sorted."""
    return sorted(path.name.removesuffix(suffix) for path in (FOLDER / folder).glob(f"*{suffix}"))


def named(folder: str, name: str, suffix: str = ".yaml") -> Path:
    """Path of ``data/<folder>/<name><suffix>``; an unknown name suggests the nearest.

    Raises
    ------
    InputError
        If there is no such file.
    """
    known = names(folder, suffix)
    if name in known:
        return FOLDER / folder / f"{name}{suffix}"
    expected = f"a file or one of {', '.join(known)}{hint(name, known)}"
    raise InputError(folder.rstrip("s"), f"{name!r}", expected)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; what was written takes its place if nothing failed."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def table(path: str) -> list[dict[str, str]]:
    """Rows of the CSV file ``data/<path>``, as text."""
    with (FOLDER / path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mapping(path: str) -> dict[str, Any]:
    """The YAML file ``data/<path>``, plain values only."""
    import yaml

    return yaml.safe_load((FOLDER / path).read_text(encoding="utf-8"))
