"""Fetch the public traces from their publishers, each checked by its sha256.

``python -m kvpaper.traces.fetch [NAME...]`` writes to ``.cache/traces``. A file whose checksum does
not match never takes its final name.
"""

import argparse
import hashlib
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

from kvpaper import data
from kvpaper.errors import InputError

FOLDER = data.FOLDER.parent / ".cache" / "traces"
_TIMEOUT_S = 60


class PublicFile(NamedTuple):
    """A file of a public trace: where its publisher keeps it, and its sha256."""

    url: str
    path: str
    sha256: str


TRACES: dict[str, tuple[PublicFile, ...]] = {}
for _row in data.table("traces.csv"):
    _file = PublicFile(_row["url"], _row["path"], _row["sha256"])
    TRACES[_row["trace"]] = (*TRACES.get(_row["trace"], ()), _file)


def sha256(path: Path | str) -> str:
    """Checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _intact(path: Path, source: PublicFile) -> bool:
    return path.exists() and sha256(path) == source.sha256


def fetch_file(source: PublicFile, folder: Path = FOLDER) -> Path:
    """Fetch one file unless it is there already, and check it.

    Raises
    ------
    InputError
        If it cannot be fetched, or is not the file that is meant.
    """
    path = folder / source.path
    if _intact(path, source):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            urllib.request.urlopen(source.url, timeout=_TIMEOUT_S) as answer,
            data.replacing(path) as temporary,
        ):
            with open(temporary, "wb") as file:
                shutil.copyfileobj(answer, file)
            found = sha256(temporary)
            if found != source.sha256:
                raise InputError(source.url, f"sha256 {found}", source.sha256)
    except OSError as error:
        raise InputError(source.url, f"no answer ({error})", "the publisher's file") from None
    return path


def fetched(name: str, folder: Path = FOLDER) -> Path | None:
    """Path of a public trace that is at hand and intact: a file, or a folder of several."""
    files = TRACES[name]
    if not all(_intact(folder / file.path, file) for file in files):
        return None
    path = folder / files[0].path
    return path if len(files) == 1 else path.parent


def main(argv: list[str] | None = None) -> int:
    """Fetch the named traces, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *TRACES], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args(argv)
    try:
        for name in arguments.names or TRACES:
            for file in TRACES[name]:
                print(fetch_file(file, arguments.folder))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
