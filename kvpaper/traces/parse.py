"""Files to batches of requests: recognise by content, parse in parts, count what is damaged."""

import codecs
import csv
import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import orjson

from kvpaper.errors import InputError
from kvpaper.parallel import map_tasks
from kvpaper.traces import readers
from kvpaper.traces.block_trace import parquet_errors, saved_header
from kvpaper.traces.lines import BROKEN_STREAM, Damage, DamagedError, compression, lines, open_bytes
from kvpaper.traces.readers import Format, Options, Request

PART_BYTES = 32 * 2**20
LARGEST_DOCUMENT_BYTES = 256 * 2**20
DAMAGES_KEPT = 20
_LINES_SNIFFED = 50
# What readers raise on rows that are not as they expect; recursion, on values nested deeply.
_DAMAGE = (KeyError, StopIteration, TypeError, AttributeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of one file that one task parses."""

    path: Path
    container: str  # "jsonl", "json", "csv", "parquet" or "sizes"
    format: Format | None
    options: Options
    strict: bool
    start: int = 0
    stop: int | None = None
    header: tuple[str, ...] = ()


@dataclass(slots=True)
class Batch:
    """Requests of one part, ids as the log has them."""

    arrival_s: array | np.ndarray = field(default_factory=lambda: array("d"))
    counts: array | np.ndarray = field(default_factory=lambda: array("q"))
    ids: array | np.ndarray = field(default_factory=lambda: array("q"))
    input_tokens: array = field(default_factory=lambda: array("q"))
    output_tokens: array = field(default_factory=lambda: array("q"))
    sessions: list[tuple[str | None, str | None]] | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    block_tokens: set[int] = field(default_factory=set)
    scopes: list[str] = field(default_factory=list)
    lines: int = 0
    skipped: int = 0
    damages: list[Damage] = field(default_factory=list)

    def extend(self, requests: list[Request], part: Part) -> None:
        """Adds the requests of one row."""
        if requests and requests[0].scope is not None:
            self.scopes.append(requests[0].scope)
            requests = _scoped(requests, f"{part.path}:{part.start}:{self.lines}")
        for request in requests:
            if request.session is not None and self.sessions is None:
                self.sessions = [(None, None)] * len(self.arrival_s)
            if self.sessions is not None:
                self.sessions.append((request.session, request.parent))
            self.arrival_s.append(request.arrival_s)
            self.input_tokens.append(request.input_tokens)
            self.output_tokens.append(request.output_tokens)
            self.counts.append(len(request.ids))
            self.ids.extend(request.ids)


def _scoped(requests: list[Request], place: str) -> list[Request]:
    """Requests of a row whose ids hold within it only, told apart from those of any other row."""
    salt = np.uint64(int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest()))
    scoped = []
    for request in requests:
        spread = np.asarray(request.ids).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        ids = array("q", (spread ^ salt).tobytes())
        scoped.append(request._replace(ids=ids, session=place, parent=None))
    return scoped


def expand(paths: Iterable[Path | str]) -> Iterator[tuple[Path, bool]]:
    """All files meant, folders opened; and whether a folder merely contains it."""
    for path in map(Path, paths):
        if os.path.isdir(path):
            inside = sorted(_inside(path))
            if not inside:
                raise InputError(str(path), "an empty folder", "trace files")
            yield from ((file, True) for file in inside)
        elif os.path.isfile(path):
            yield path, False
        else:
            found = "no plain file" if os.path.exists(path) else "no such file"
            raise InputError(str(path), found, "a trace")


def _inside(folder: Path) -> Iterator[Path]:
    """Plain files of a folder and of those in it; links to folders and hidden names apart."""

    def refuse(error: OSError) -> None:
        raise InputError(str(error.filename), f"{error.strerror}", "a folder that can be read")

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def recognise(path: Path, options: Options, strict: bool) -> Part:
    """How ``path`` is to be read, told by its content."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InputError(str(path), f"{error.strerror}", "a file that can be read") from None
    if not start:
        raise InputError(str(path), "an empty file", "a trace")
    if start == b"PAR1":
        return _recognise_parquet(path, options, strict)
    first, rows = _sniffed(path)
    container, header = "jsonl", ()
    if not rows and first[:1] in b"{[":
        container, rows = "json", _document(path)[:_LINES_SNIFFED]
    elif not rows:
        container, header = "csv", _header(first)
        rows = [dict.fromkeys(header)]
    found = readers.recognised(rows, options)
    if found is None:
        sizes = container == "jsonl" and any(len(r) == 2 and "token_length" in r for r in rows)
        if not sizes:
            known = ", ".join(known.name for known in readers.FORMATS)
            raise InputError(f"{path}:1", f"{first[:60]!r}", f"one of {known}, or --columns")
        container = "sizes"
    readers.tokenizer(options.tokenizer)  # refused here, not in a process that parses
    return Part(path, container, found, options, strict, header=header)


def _sniffed(path: Path) -> tuple[bytes, list[dict]]:
    """The first line that says something, and the objects among the first lines."""
    first, rows, damage = None, [], DamagedError("no lines", "a trace")
    for line in islice(lines(path), _LINES_SNIFFED):
        if isinstance(line, DamagedError):
            damage = line
        elif line.strip():
            first = first or line.strip()
            row = None if first.startswith(b"[") else _row(line, ())
            rows += [row] if isinstance(row, dict) else []
    if first is None:
        raise InputError(str(path), damage.found, damage.expected)
    return first, rows


def _header(line: bytes) -> tuple[str, ...]:
    try:
        return tuple(next(csv.reader([line.decode("utf-8", "replace")])))
    except csv.Error:
        return ()


def _recognise_parquet(path: Path, options: Options, strict: bool) -> Part:
    import pyarrow.parquet as pq

    with parquet_errors(path):
        schema = pq.read_schema(path)
    saved = saved_header(schema.metadata, path)
    if saved is not None:
        kind = Format("block trace", bool, readers.named_columns, *saved)
        return Part(path, "block trace", kind, options, strict)
    found = readers.recognised([dict.fromkeys(schema.names)], options)
    if found is None:
        raise InputError(str(path), f"columns {', '.join(schema.names)}", "--columns for them")
    return Part(path, "parquet", found, options, strict)


def _document(path: Path) -> list[dict]:
    """Rows of a file that is one JSON value."""
    try:
        with open_bytes(path) as file:
            content = file.read(LARGEST_DOCUMENT_BYTES + 1)
    except BROKEN_STREAM as error:
        raise InputError(str(path), f"a stream that breaks off ({error})", "JSON") from None
    if len(content) > LARGEST_DOCUMENT_BYTES:
        largest = f"at most {LARGEST_DOCUMENT_BYTES // 2**20} MiB, or JSON lines"
        raise InputError(str(path), "a larger JSON document", largest)
    try:
        value = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}", f"broken JSON ({error.msg})", "JSON") from None
    return [row for row in (value if isinstance(value, list) else [value]) if isinstance(row, dict)]


def _rows(part: Part) -> Iterator[dict | DamagedError | None]:
    """Rows of a part, one item a line; None for a blank line."""
    if part.container == "json":
        yield from _document(part.path)
    elif part.container == "parquet":
        import pyarrow.parquet as pq

        with parquet_errors(part.path):
            for batch in pq.ParquetFile(part.path).iter_batches(4096):
                yield from batch.to_pylist()
    else:
        heading = bool(part.header) and not part.start
        for line in lines(part.path, part.start, part.stop):
            if isinstance(line, DamagedError):
                yield line
            elif heading or not line.strip():
                heading = False
                yield None
            else:
                yield _row(line, part.header)


def _row(line: bytes, header: tuple[str, ...]) -> dict | DamagedError:
    try:
        if header:
            return dict(zip(header, next(csv.reader([line.decode()])), strict=False))
        row = orjson.loads(line)
    except (ValueError, csv.Error) as error:
        return DamagedError(f"{line[:40]!r} ({error})", "a row of JSON or CSV")
    return row if isinstance(row, dict) else DamagedError(f"{line[:40]!r}", "an object")


def parse(part: Part) -> Batch:
    """Requests of one part; damaged lines are counted, their first ones kept."""
    batch = Batch()
    for row in _rows(part):
        batch.lines += 1
        if row is None:
            continue
        try:
            if isinstance(row, DamagedError):
                raise row
            if part.container == "sizes":
                item, tokens = readers.ragpulse_sizes(row)
                batch.sizes[item] = tokens
                continue
            requests = part.format.read(row, part.options)
            if "block_size" in row:
                batch.block_tokens.add(readers.count(row, "block_size"))
        except _DAMAGE as error:
            batch.skipped += 1
            if len(batch.damages) < DAMAGES_KEPT:
                batch.damages.append(Damage(str(part.path), batch.lines, *_told(error)))
            if part.strict:
                break
        else:
            batch.extend(requests, part)
    ids = np.asarray(batch.ids)
    # Between processes the narrowest array travels.
    narrow = ids.min(initial=0) >= -(2**31) and ids.max(initial=0) < 2**31
    batch.ids = ids.astype(np.int32) if narrow else ids
    return batch


def _told(error: Exception) -> tuple[str, str]:
    """What was found in a damaged row, and what is expected."""
    if isinstance(error, DamagedError):
        return error.found, error.expected
    if isinstance(error, RecursionError):
        return "values nested too deep", "a row like the first"
    missing = isinstance(error, KeyError | StopIteration)
    return f"no {error}" if missing else f"{error}", "a row like the first"


def split(part: Part) -> list[Part]:
    """Parts of a plain file of lines that can be parsed apart; else the file itself."""
    size = part.path.stat().st_size
    if part.container not in ("jsonl", "csv") or size <= PART_BYTES or compression(part.path):
        return [part]
    starts = range(0, size, PART_BYTES)
    return [replace(part, start=start, stop=min(start + PART_BYTES, size)) for start in starts]


def read_batches(
    parts: list[Part], processes: int | None = None, dask: str | None = None
) -> Iterator[Batch]:
    """Batches in the order of files and lines, damages with their true line."""
    pieces = [piece for part in parts for piece in split(part)]
    if dask is None and sum(part.path.stat().st_size for part in parts) < PART_BYTES:
        processes = 1
    lines_before: dict[Path, int] = {}
    for piece, batch in zip(pieces, map_tasks(parse, pieces, processes, dask), strict=True):
        before = lines_before.get(piece.path, 0)
        lines_before[piece.path] = before + batch.lines
        batch.damages = [replace(one, line=one.line + before) for one in batch.damages]
        if piece.strict and batch.damages:
            raise batch.damages[0].error()
        yield batch
