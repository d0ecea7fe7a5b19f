"""Lines of plain, gzip and zstd files, in bounded memory whatever the file holds."""

import codecs
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvpaper.errors import InputError

LONGEST_LINE_BYTES = 64 * 2**20
# What the decompressors raise; pyarrow's errors are kinds of OSError and ValueError.
BROKEN_STREAM = (OSError, EOFError, ValueError, zlib.error)
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class DamagedError(ValueError):
    """A line that cannot be used: what was found, what is expected."""

    def __init__(self, found: str, expected: str) -> None:
        self.found, self.expected = found, expected
        super().__init__(f"found {found}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Damage:
    """One line that was skipped."""

    path: str
    line: int
    found: str
    expected: str

    def error(self) -> InputError:
        return InputError(f"{self.path}:{self.line}", self.found, self.expected)


def compression(path: Path) -> str | None:
    """``"gzip"``, ``"zstd"`` or None, by the first bytes of the file."""
    with open(path, "rb") as file:
        start = file.read(4)
    return "gzip" if start[:2] == _GZIP else "zstd" if start == _ZSTD else None


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, decompressed as its first bytes ask for."""
    match compression(path):
        case "gzip":
            return gzip.open(path, "rb")
        case "zstd":
            import pyarrow as pa

            return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), 2**20)
        case _:
            return open(path, "rb", buffering=2**20)


def _skip(file: BinaryIO, most: float) -> int:
    """Read on to the end of a line, or for ``most`` bytes; how many were read."""
    skipped = 0
    while skipped < most:
        part = file.readline(min(most - skipped, 2**20))
        skipped += len(part)
        if not part or part.endswith(b"\n"):
            break
    return skipped


def lines(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes | DamagedError]:
    """Lines that begin in bytes ``start`` to ``stop`` of a file (of a plain one, if not all).

    A line longer than ``LONGEST_LINE_BYTES``, or a stream that breaks off, comes as the damage
    that it is.
    """
    with open_bytes(path) as file:
        position = start
        if start:
            # The line that is under way belongs to the part before, unless it just ended.
            file.seek(start - 1)
            position += _skip(file, stop - start + 1) - 1
        while stop is None or position < stop:
            try:
                read = file.readline(LONGEST_LINE_BYTES)
                line = read if position else read.removeprefix(codecs.BOM_UTF8)
                position += len(read)
                endless = len(read) == LONGEST_LINE_BYTES and not read.endswith(b"\n")
                if endless:
                    position += _skip(file, math.inf)
            except BROKEN_STREAM as error:
                yield DamagedError(f"a stream that breaks off ({error})", "a whole file")
                return
            if endless:
                longest = f"at most {LONGEST_LINE_BYTES // 2**20} MiB"
                yield DamagedError("a line without end", longest)
            elif line:
                yield line
            else:
                return
