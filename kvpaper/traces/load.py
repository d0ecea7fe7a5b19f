"""From files to one block trace: what was parsed is joined, numbered and put in order."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from kvpaper.errors import InputError
from kvpaper.traces.block_trace import BlockTrace, read_parquet, stream_parquet
from kvpaper.traces.lines import Damage
from kvpaper.traces.parse import DAMAGES_KEPT, Batch, expand, read_batches, recognise
from kvpaper.traces.readers import Options

_MOST_PER_S = 10_000  # requests


class Log:
    """Files and folders as one log, read batch by batch as often as asked, or as one trace.

    In batches requests come in the order of the files; ``late`` counts those that arrived before
    the one ahead of them. The counts and warnings are those of the last complete pass.

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

    def __init__(
        self,
        paths: Iterable[Path | str],
        options: Options | None = None,
        strict: bool = False,
        processes: int | None = None,
        dask: str | None = None,
    ) -> None:
        self.options = options or Options()
        self._workers = processes, dask
        self._left_out: list[str] = []
        files = list(expand(paths))
        first = files[0][0]
        self.parts = []
        for path, in_folder in files:
            try:
                self.parts.append(recognise(path, self.options, strict))
            except InputError as error:
                if strict or not in_folder:
                    raise
                self._left_out.append(f"not read: {error}")
        formats = {part.format for part in self.parts if part.format}
        saved = [part.path for part in self.parts if part.container == "block trace"]
        if len(formats) > 1 or len(saved) > 1:
            names = ["several block traces"] if len(saved) > 1 else sorted(f.name for f in formats)
            raise InputError(str(first.parent), " and ".join(names), "one format in one trace")
        if not formats:
            raise InputError(str(first), "no requests", "a trace")
        self.format = formats.pop()
        self._saved = saved[0] if saved else None
        self._start()

    def _start(self) -> None:
        self.requests = self.skipped_lines = self.late = 0
        self.damages: list[Damage] = []
        self._block_tokens: set[int] = set()
        self._odd: list[str] = []

    @property
    def prefix(self) -> bool:
        """Whether the trace is one of prefixes, by its format or because it is asked for."""
        return self.format.prefix or self.options.components == "prefix"

    @property
    def block_tokens(self) -> int:
        """Tokens of a full block, 0 if nothing tells blocks apart."""
        columns, told = self.options.columns, self._block_tokens
        if not self.format.block_tokens or (columns and "blocks" not in columns):
            return 0
        if len(told) > 1:
            raise InputError("block_size", f"{sorted(told)}", "one size in one trace")
        return self.options.block_tokens or max(told, default=self.format.block_tokens)

    @property
    def warnings(self) -> list[str]:
        """What was not read, and what is odd in the rest."""
        skipped = []
        if self.skipped_lines:
            first = self.damages[0].error()
            skipped = [f"{self.skipped_lines} damaged lines skipped, the first {first}"]
        return self._left_out + skipped + self._odd

    def batches(self) -> Iterator[Batch]:
        """Requests as the log has them."""
        self._start()
        latest_s = -np.inf
        saved = self._saved and (Batch(*columns) for columns in stream_parquet(self._saved))
        for batch in saved or read_batches(self.parts, *self._workers):
            arrival_s = np.append(latest_s, np.asarray(batch.arrival_s))
            self.late += int((np.diff(arrival_s) < 0).sum())
            latest_s = arrival_s[-1]
            self.requests += len(arrival_s) - 1
            self.skipped_lines += batch.skipped
            self.damages += batch.damages[: DAMAGES_KEPT - len(self.damages)]
            self._block_tokens |= batch.block_tokens
            yield batch
        if self.damages and not self.requests:
            raise self.damages[0].error()
        if not self.requests:
            raise InputError(str(self.parts[0].path), "no requests", f"some of {self.format.name}")

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks per request and block ids of each batch."""
        from kvpaper.traces.dense import chained_ids

        for batch in self.batches():
            counts, ids = np.asarray(batch.counts, np.int64), batch.ids
            if self.prefix and not self.format.prefix:
                ids = chained_ids(np.concatenate([[0], np.cumsum(counts)]), ids)
            yield counts, ids

    def trace(self) -> BlockTrace:
        """All of it, in order of arrival."""
        trace = read_parquet(self._saved) if self._saved else self._joined()
        return _chained(trace) if self.prefix and not trace.prefix else trace

    def _joined(self) -> BlockTrace:
        # Parsing processes have no use for the compiler.
        from kvpaper.traces.dense import dense_ids

        batches, odd = list(self.batches()), self._odd
        arrival_s, input_tokens, output_tokens, counts, raw = (
            np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("arrival_s", "input_tokens", "output_tokens", "counts", "ids")
        )
        for batch in batches:
            batch.ids = np.empty(0, np.int64)  # the copy in ``raw`` is enough
        scopes = [scope for batch in batches for scope in batch.scopes]
        repeated = len(scopes) - len(set(scopes))
        if repeated:
            odd.append(f"{repeated} sessions repeat an id; they are kept apart")
        blocks, ids = dense_ids(raw)
        del raw
        prefix, block_tokens = self.format.prefix, self.block_tokens
        units = None
        if not prefix:
            units, unknown = _unit_tokens(batches, ids, input_tokens.sum() / max(len(blocks), 1))
            if unknown:
                odd.append(f"{unknown} items without a known length; given the mean")
        trace = BlockTrace(
            arrival_s - arrival_s.min(), input_tokens, output_tokens, _session_codes(batches),
            np.concatenate([[0], np.cumsum(counts)]), blocks, block_tokens, units, prefix,
        )  # fmt: skip
        if self.late:
            odd.append(f"{self.late} requests out of order of arrival; sorted")
            trace = trace.select(np.argsort(arrival_s, kind="stable"))
        if trace.requests > 10 and trace.requests > _MOST_PER_S * trace.duration_s > 0:
            told = f"{trace.requests} requests in {trace.duration_s:.2g} s"
            odd.append(f"{told}: are their times in another unit than read?")
        if block_tokens and prefix:
            unlike = -(-trace.input_tokens // block_tokens) != trace.blocks_per_request
            if unlike.any():
                odd.append(f"{unlike.sum()} requests whose length is not that of their blocks")
        return trace


def read_trace(
    paths: Iterable[Path | str], options: Options | None = None, processes: int | None = None
) -> BlockTrace:
    """The trace of files and folders; parameters and errors as in :class:`Log`.

    Raises
    ------
    InputError
        If nothing can be read, or formats are mixed.
    """
    return Log(paths, options, processes=processes).trace()


def _chained(trace: BlockTrace) -> BlockTrace:
    """A trace of components as one of prefixes: a block stands for itself and all before it."""
    from kvpaper.traces.dense import chained_ids, dense_ids

    blocks, ids = dense_ids(chained_ids(trace.offsets, trace.blocks))
    units = np.empty(len(ids), np.int32)
    units[blocks] = trace.reference_tokens
    return replace(trace, blocks=blocks, unit_tokens=units, prefix=True)


def _session_codes(batches: list[Batch]) -> np.ndarray:
    """Numbers of sessions; a chat that continues a known one has its number."""
    session = np.full(sum(len(batch.arrival_s) for batch in batches), -1, np.int32)
    codes: dict[str, int] = {}
    fresh, first = count(), 0
    for batch in batches:
        for row, (own, parent) in enumerate(batch.sessions or (), first):
            if own is None:
                continue
            told = own if parent is None else parent
            codes[own] = session[row] = codes[told] if told in codes else next(fresh)
        first += len(batch.arrival_s)
    return session


def _unit_tokens(batches: list[Batch], ids: np.ndarray, usual: float) -> tuple[np.ndarray, int]:
    """Tokens of each item from the component tables, and how many items no table has.

    Those are given the mean of the known ones, ``usual`` if none is known.
    """
    sizes = {item: tokens for batch in batches for item, tokens in batch.sizes.items()}
    tokens = np.array([sizes.get(item, -1) for item in ids.tolist()], np.int32)
    known = tokens >= 0
    tokens[~known] = round(float(tokens[known].mean() if known.any() else usual))
    return tokens, int((~known).sum())
