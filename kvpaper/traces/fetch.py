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


_HOST = "https://raw.githubusercontent.com"


def _mooncake(name: str, commit: str, checksum: str) -> tuple[PublicFile, ...]:
    url = f"{_HOST}/kvcache-ai/Mooncake/{commit}/FAST25-release/traces/{name}_trace.jsonl"
    return (PublicFile(url, f"mooncake_{name}.jsonl", checksum),)


def _ragpulse(commit: str, checksums: dict[str, str]) -> tuple[PublicFile, ...]:
    folder = f"{_HOST}/flashserve/RAGPulse/{commit}/data"
    return tuple(
        PublicFile(f"{folder}/{name}.jsonl", f"ragpulse/{name}.jsonl", checksum)
        for name, checksum in checksums.items()
    )


TRACES: dict[str, tuple[PublicFile, ...]] = {
    "mooncake_conversation": _mooncake(
        "conversation",
        "a2a4b18ac537fd798d50e6e9f57031ce86419a37",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
    ),
    "mooncake_synthetic": _mooncake(
        "synthetic",
        "3cca71daccf2a7afb8fe3f0295358f70e3a69fdb",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
    ),
    "ragpulse": _ragpulse(
        "99a62769a91d5ebd17a2d4ddbbc88c1d16edc0e8",
        {
            "0_trace": "cd371571bef3320907147f8901729e37f412aafb067ec8eb153e2828e1801e65",
            "1_sys_prompt": "e7bf9bc66493629fa279d67ffb9d6a44e4ec3a7ac60549f5c679319c54564f6d",
            "2_passages": "8575941cab2eb1cae25e589b7fab3ccb6affc3809e4156b1dc6db40d9e65b891",
            "3_history": "fdd9b1ca962c2b4d0f48785497007e20aa961442eb93cb1afbe3f23c383ae467",
            "4_user_input": "5adeff33a44850f5a1c0892aaaf7000114d7ac24821d4238175abb92b77dd12d",
            "5_web_search": "5e4cba4e2e449eb1a26c1c94aa57a59204f29c8ed0395da03cf0f43b7d75891c",
        },
    ),
}


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
