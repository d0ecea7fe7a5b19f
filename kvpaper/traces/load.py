"""From files to one block trace: what was parsed is joined, numbered and put in order."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvpaper.errors import InputError
from kvpaper.traces import readers
from kvpaper.traces.block_trace import BlockTrace, read_parquet
from kvpaper.traces.lines import Damage
from kvpaper.traces.parse import DAMAGES_KEPT, Batch, Part, expand, read_batches, recognise
from kvpaper.traces.readers import Format, Options


@dataclass(frozen=True, slots=True)
class Reading:
    """A trace and what reading it met with."""

    trace: BlockTrace
    formats: tuple[str, ...]
    skipped_lines: int
    damages: tuple[Damage, ...]
    warnings: tuple[str, ...]


def _recognise_all(
    paths: Iterable[Path | str], options: Options, strict: bool
) -> tuple[list[Part], Format | None, list[str]]:
    """Parts of all files, their one format (None for a block trace), and what was left out."""
    files, in_folder = expand(paths)
    parts, warnings = [], []
    for path in files:
        try:
            parts.append(recognise(path, options, strict))
        except InputError as error:
            if strict or path not in in_folder:
                raise
            warnings.append(f"not read: {error}")
    formats = {part.format for part in parts if part.format}
    whole = sum(part.container == "block trace" for part in parts)
    if len(formats) + whole > 1:
        names = sorted(known.name for known in formats) + ["a block trace"] * whole
        raise InputError(str(files[0].parent), " and ".join(names), "one format in one trace")
    if not formats and not whole:
        raise InputError(str(files[0]), "no requests", "a trace")
    return parts, formats.pop() if formats else None, warnings


def read_trace(
    paths: Iterable[Path | str],
    options: Options | None = None,
    strict: bool = False,
    processes: int | None = None,
    dask: str | None = None,
) -> Reading:
    """Read files and folders as one trace.

    Parameters
    ----------
    paths : iterable of path
        Files of one format, plain, gzip or zstd, or folders of them.
    options : Options, optional
        What the content does not tell.
    strict : bool
        Fail on the first damaged line, or file in a folder that is no trace.
    processes, dask
        As in :func:`kvpaper.parallel.map_tasks`.

    Raises
    ------
    InputError
        If nothing can be read, formats are mixed, or ``strict`` finds damage.
    """
    options = options or Options()
    parts, found, warnings = _recognise_all(paths, options, strict)
    if found is None:
        return Reading(read_parquet(parts[0].path), ("block trace",), 0, (), tuple(warnings))
    batches = list(read_batches(parts, processes, dask))
    skipped = sum(batch.skipped for batch in batches)
    damages = [damage for batch in batches for damage in batch.damages]
    if not any(len(batch.arrival_s) for batch in batches):
        if damages:
            raise damages[0].error()
        raise InputError(str(parts[0].path), "no requests", f"a trace of {found.name}")
    trace = join(batches, found, options, warnings)
    return Reading(trace, (found.name,), skipped, tuple(damages[:DAMAGES_KEPT]), tuple(warnings))


class Stream:
    """A trace read chunk by chunk, as often as asked, for what needs it only once through.

    Requests come in the order of the files; ``late`` counts those that arrived before the one
    ahead of them. The counts are those of the last complete pass.
    """

    def __init__(self, paths, options=None, strict=False, processes=None, dask=None) -> None:
        self._options = options or Options()
        self._workers = processes, dask
        self._parts, self._format, _ = _recognise_all(paths, self._options, strict)
        self.requests = self.skipped_lines = self.late = self.block_tokens = 0
        self.prefix = self._format is None or self._format.prefix
        self.prefix |= self._options.components == "prefix"

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks per request and block ids of each chunk."""
        from kvpaper.traces.dense import chained_ids

        self.requests = self.skipped_lines = self.late = 0
        latest_s = -np.inf
        for batch in self._batches():
            arrival_s = np.append(latest_s, np.asarray(batch.arrival_s))
            self.late += int((np.diff(arrival_s) < 0).sum())
            latest_s = arrival_s[-1]
            self.requests += len(arrival_s) - 1
            self.skipped_lines += batch.skipped
            counts = np.asarray(batch.counts, np.int64)
            if self._format and self.prefix and not self._format.prefix:
                offsets = np.concatenate([[0], np.cumsum(counts)])
                batch.ids = chained_ids(offsets, batch.ids)
            yield counts, batch.ids

    def _batches(self) -> Iterator[Batch]:
        if self._format is None:
            yield from self._whole(self._parts[0].path)
            return
        for batch in read_batches(self._parts, *self._workers):
            if len(batch.arrival_s) and not self.block_tokens:
                self.block_tokens = _block_tokens([batch], self._format, self._options)
            yield batch

    def _whole(self, path: Path) -> Iterator[Batch]:
        import pyarrow.parquet as pq

        file = pq.ParquetFile(path)
        self.block_tokens = int(file.schema_arrow.metadata[b"block_tokens"])
        self.prefix = file.schema_arrow.metadata[b"prefix"] == b"1"
        for rows in file.iter_batches(2**16, columns=["arrival_s", "blocks"]):
            blocks = rows["blocks"]
            yield Batch(
                arrival_s=rows["arrival_s"].to_numpy(),
                counts=np.diff(blocks.offsets.to_numpy()),
                ids=blocks.flatten().to_numpy(),
            )


def join(batches: list[Batch], found: Format, options: Options, warnings: list[str]) -> BlockTrace:
    """One trace of all batches, in order of arrival; oddities are added to ``warnings``."""
    # Parsing processes have no use for the compiler.
    from kvpaper.traces.dense import chained_ids, dense_ids

    arrival_s, input_tokens, output_tokens, counts = (
        np.concatenate([np.asarray(getattr(batch, name)) for batch in batches])
        for name in ("arrival_s", "input_tokens", "output_tokens", "counts")
    )
    raw = np.concatenate([batch.ids for batch in batches])
    session = _session_codes(batches)
    scopes = [scope for batch in batches for scope in batch.scopes]
    if len(scopes) > len(set(scopes)):
        repeated = len(scopes) - len(set(scopes))
        warnings.append(f"{repeated} sessions repeat an id; they are kept apart")
    block_tokens = _block_tokens(batches, found, options)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    for batch in batches:
        batch.ids = np.empty(0, np.int64)  # the copy in ``raw`` is enough
    blocks, first = dense_ids(raw)
    units = None
    if not found.prefix:
        units = _unit_tokens(batches, raw[first], input_tokens, len(raw), warnings)
    del raw, first
    trace = BlockTrace(
        arrival_s - arrival_s.min(), input_tokens, output_tokens, session,
        offsets, blocks, block_tokens, units, found.prefix,
    )  # fmt: skip
    late = int((np.diff(arrival_s) < 0).sum())
    if late:
        warnings.append(f"{late} requests out of order of arrival; sorted")
        trace = trace.select(np.argsort(arrival_s, kind="stable"))
    if not found.prefix and options.components == "prefix":
        blocks, first = dense_ids(chained_ids(trace.offsets, trace.blocks))
        units = trace.unit_tokens[trace.blocks[first]]
        trace = replace(trace, blocks=blocks, unit_tokens=units, prefix=True)
    if block_tokens and found.prefix:
        odd = int((-(-trace.input_tokens // block_tokens) != trace.blocks_per_request).sum())
        if odd:
            warnings.append(f"{odd} requests whose length is not that of their blocks")
    return trace


def _session_codes(batches: list[Batch]) -> np.ndarray:
    """Numbers of sessions; a chat that continues a known one has its number."""
    codes: dict[str, int] = {}
    session = []
    sessions = 0
    for batch in batches:
        if batch.sessions is None:
            session.append(np.full(len(batch.arrival_s), -1, np.int32))
            continue
        numbers = np.full(len(batch.sessions), -1, np.int32)
        for row, (own, parent) in enumerate(batch.sessions):
            if own is None:
                continue
            code = codes.get(own if parent is None else parent)
            if code is None:
                code, sessions = sessions, sessions + 1
            codes[own] = numbers[row] = code
        session.append(numbers)
    return np.concatenate(session)


def _block_tokens(batches: list[Batch], found: Format, options: Options) -> int:
    if found is readers.GENERIC and "blocks" not in options.columns:
        return 0
    told = set().union(*(batch.block_tokens for batch in batches))
    if len(told) > 1:
        raise InputError("block_size", f"{sorted(told)}", "one size of block in one trace")
    return options.block_tokens or (told.pop() if told else found.block_tokens)


def _unit_tokens(
    batches: list[Batch], ids: np.ndarray, input_tokens: np.ndarray, references: int, warnings: list
) -> np.ndarray:
    """Tokens of each item from the component tables; the mean where a table is missing."""
    sizes = {item: tokens for batch in batches for item, tokens in batch.sizes.items()}
    tokens = np.array([sizes.get(item, -1) for item in ids.tolist()], np.int32)
    unknown = tokens < 0
    if unknown.any():
        warnings.append(f"{int(unknown.sum())} items without a known length; given the mean")
        mean = tokens[~unknown].mean() if (~unknown).any() else input_tokens.sum() / references
        tokens[unknown] = round(float(mean))
    return tokens
