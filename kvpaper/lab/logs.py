"""A log of bounded size from what a process tree writes: secrets out, head and tail kept."""

import hashlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from kvpaper.redact import Redactor

HEAD_BYTES = 8 << 20
TAIL_BYTES = 4 << 20
LONGEST_BYTES = 1 << 16
# No secret that is known by its form is longer; what a cut might leave of one lies within this.
_MARGIN = 3 << 12
_BEGIN, _END = "-----BEGIN ", "-----END "


class BoundedLog:
    """Takes bytes as they come and writes whole redacted lines.

    The first ``head_bytes`` are written at once, so that they survive whatever happens. Of the rest
    the last ``tail_bytes`` are kept in memory and written by `close`; what is between is counted.
    A line longer than 64 KiB is cut. A full disk ends the writing, not the reading.

    Parameters
    ----------
    path : Path
        File to be made; it must not exist.
    known : iterable of str
        Values that are secret whatever they look like.
    """

    def __init__(
        self,
        path: Path,
        known: Iterable[str] = (),
        head_bytes: int = HEAD_BYTES,
        tail_bytes: int = TAIL_BYTES,
    ) -> None:
        self.path, self.error, self.left_out_bytes = path, "", 0
        self._file = path.open("xb", buffering=0)
        self._room_bytes, self._tail_bytes = head_bytes, tail_bytes
        self._pending, self._overlong = b"", False
        self._tail: deque[bytes] = deque()
        self._held_bytes = 0
        self._in_key: bool | None = None
        self._redact = Redactor(known)

    def feed(self, chunk: bytes) -> None:
        """Take what a stream gave; lines may be cut anywhere."""
        if self._overlong:
            rest, newline, chunk = chunk.partition(b"\n")
            self.left_out_bytes += len(rest)
            self._overlong = not newline
        lines, newline, self._pending = (self._pending + chunk).rpartition(b"\n")
        if newline:
            self.record(lines)
        if len(self._pending) > LONGEST_BYTES:
            self.record(self._pending)
            self._pending, self._overlong = b"", True

    def record(self, lines: bytes) -> None:
        """Take whole lines, the last without its end, that need not come by the stream."""
        if self._room_bytes <= 0:
            self._hold(lines + b"\n")
            return
        texts, split = [], lines.split(b"\n")
        for number, line in enumerate(split):
            if self._room_bytes <= 0:
                self._hold(b"\n".join(split[number:]) + b"\n")
                break
            texts.append(self._line_out(line))
            self._room_bytes -= len(texts[-1])
        self._write(b"".join(texts))

    def close(self) -> dict[str, int | str]:
        """Write what is held back, and tell size, what was left out, and checksum of the file."""
        if self._pending:
            self.record(self._pending)
        if self.left_out_bytes or self._tail:
            self._write(b"[kvpaper: %d bytes left out of this log]\n" % self.left_out_bytes)
        if self._in_key is not None:  # as the part that was left out ended
            self._redact(f"{_BEGIN if self._in_key else _END}PRIVATE KEY-----")
        tail = b"".join(self._tail).removesuffix(b"\n")
        self._write(b"".join(map(self._line_out, tail.split(b"\n"))) if tail else b"")
        self._file.close()
        return summary(self.path, self.left_out_bytes, self.error)

    def _line_out(self, line: bytes) -> bytes:
        text = self._redact(line[:LONGEST_BYTES].decode("utf-8", "replace"))
        if len(line) > LONGEST_BYTES:
            text = text[:-_MARGIN] + " [kvpaper: the rest of this line left out]"
            self.left_out_bytes += len(line) - LONGEST_BYTES + _MARGIN
        return text.encode("utf-8", "replace") + b"\n"

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.error = error.strerror or type(error).__name__
            self.left_out_bytes += len(data)
            self._room_bytes = 0

    def _hold(self, lines: bytes) -> None:
        self._tail.append(lines)
        self._held_bytes += len(lines)
        while self._held_bytes - len(self._tail[0]) >= self._tail_bytes:
            dropped = self._tail.popleft()
            self._held_bytes -= len(dropped)
            self.left_out_bytes += len(dropped)
            begin, end = dropped.rfind(_BEGIN.encode()), dropped.rfind(_END.encode())
            if begin != end:
                self._in_key = begin > end


def summary(path: Path, left_out_bytes: int = 0, error: str = "") -> dict[str, int | str]:
    """A log as a record tells of it: size, what is not in it, checksum."""
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "left_out_bytes": left_out_bytes,
        "sha256": checksum,
        "error": error,
    }
