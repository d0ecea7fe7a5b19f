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


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole or not at all, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def table(path: Path | str) -> list[dict[str, str]]:
    """Rows of a CSV file, as text; a relative path is one below ``data``."""
    with (FOLDER / path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mapping(path: Path | str) -> dict[str, Any]:
    """A YAML file that holds a mapping, plain values only; a text is one below ``data``.

    Raises
    ------
    InputError
        If it cannot be read or holds something else.
    """
    import yaml

    path = path if isinstance(path, Path) else FOLDER / path
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parsed = loader(path.read_text("utf-8")).get_single_data()
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(where, str(error).splitlines()[0], "YAML in UTF-8") from None
    if not isinstance(parsed, dict):
        raise InputError(str(path), f"a YAML {type(parsed).__name__}", "a mapping")
    return parsed
