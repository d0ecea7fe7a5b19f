"""The canonical trace: requests in order of arrival and the blocks that each refers to."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError

PARQUET_KEY = b"kvpaper.block_trace"
_COLUMNS = {
    "arrival_s": np.float64,
    "input_tokens": np.int64,
    "output_tokens": np.int64,
    "session": np.int32,
}


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """A columnar trace; R requests, N references to U distinct blocks.

    Attributes
    ----------
    arrival_s : float64 array, shape (R,)
        Arrival since the first request [s], never decreasing.
    input_tokens, output_tokens : int64 array, shape (R,)
        Length of prompt and answer [token].
    session : int32 array, shape (R,)
        Number of the session, -1 where the log names none.
    offsets : int64 array, shape (R + 1,)
        Request ``i`` refers to ``blocks[offsets[i]:offsets[i + 1]]``, first block first.
    blocks : int32 array (int64 from 2**31 references on), shape (N,)
        Block numbers 0..U-1 in order of first appearance.
    block_tokens : int
        Tokens of a full block; 0 if the log says nothing of prefixes (arrivals only).
    unit_tokens : int32 array, shape (U,), or None
        Tokens of each block where blocks differ in size (components); else None.
    prefix : bool
        True if a block can be used only when all blocks before it in the request hit too.
    """

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    session: np.ndarray
    offsets: np.ndarray
    blocks: np.ndarray
    block_tokens: int
    unit_tokens: np.ndarray | None = None
    prefix: bool = True

    @property
    def requests(self) -> int:
        return len(self.arrival_s)

    @property
    def references(self) -> int:
        return len(self.blocks)

    @property
    def unique_blocks(self) -> int:
        return int(self.blocks.max()) + 1 if len(self.blocks) else 0

    @property
    def mean_block_tokens(self) -> float:
        """Tokens of a block, the mean of distinct ones where they differ [token]."""
        return float(self.block_tokens if self.unit_tokens is None else self.unit_tokens.mean())

    @property
    def duration_s(self) -> float:
        return float(self.arrival_s[-1] - self.arrival_s[0]) if self.requests else 0.0

    @property
    def names_sessions(self) -> bool:
        """Whether the log names the session of every request."""
        return bool((self.session >= 0).all())

    @property
    def blocks_per_request(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def request_of_reference(self) -> np.ndarray:
        """Request number of every reference, int32, shape (N,)."""
        return np.repeat(np.arange(self.requests, dtype=np.int32), self.blocks_per_request)

    @property
    def reference_tokens(self) -> np.ndarray:
        """Tokens of every reference [token], int32, shape (N,); the last block may be partial."""
        if self.unit_tokens is not None:
            return self.unit_tokens[self.blocks]
        tokens = np.full(self.references, self.block_tokens, np.int32)
        counts = self.blocks_per_request
        filled = np.flatnonzero(counts)
        rest = self.input_tokens[filled] - (counts[filled] - 1) * self.block_tokens
        tokens[self.offsets[filled + 1] - 1] = np.clip(rest, 0, self.block_tokens)
        return tokens

    def select(self, requests: np.ndarray) -> "BlockTrace":
        """The trace of some of its requests, blocks numbered anew; order is kept."""
        from kvpaper.traces.dense import dense_ids

        counts = self.blocks_per_request[requests]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        starts = self.offsets[:-1][requests]
        raw = self.blocks[np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])]
        blocks, kept = dense_ids(raw)
        columns = {name: getattr(self, name)[requests] for name in _COLUMNS}
        units = None if self.unit_tokens is None else self.unit_tokens[kept]
        return replace(self, **columns, offsets=offsets, blocks=blocks, unit_tokens=units)


def require_identity(block_tokens: int, where: str) -> None:
    """Refuse questions of reuse about a trace that only knows arrivals: blocks of 0 tokens."""
    if not block_tokens:
        expected = "block ids or prompt text; without them nobody can tell which prefixes repeat"
        raise InputError(where, "arrivals and lengths only", expected)


def write_parquet(trace: BlockTrace, path: Path | str) -> None:
    """Write ``trace`` as Parquet, one row a request, by way of a temporary file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {name: getattr(trace, name) for name in _COLUMNS}
    columns["blocks"] = pa.LargeListArray.from_arrays(trace.offsets, trace.blocks)
    metadata = {PARQUET_KEY: b"1", b"block_tokens": str(trace.block_tokens).encode()}
    metadata[b"prefix"] = b"1" if trace.prefix else b"0"
    if trace.unit_tokens is not None:
        metadata[b"unit_tokens"] = trace.unit_tokens.astype("<i4").tobytes()
    table = pa.table(columns).replace_schema_metadata(metadata)
    try:
        with data.replacing(Path(path)) as temporary:
            pq.write_table(
                table, temporary, compression="zstd", use_dictionary=False, row_group_size=2**17
            )
    except OSError as error:
        raise InputError(str(path), f"{error.strerror or error}", "a file to write") from None


@contextmanager
def parquet_errors(path: Path | str) -> Iterator[None]:
    """Turn what pyarrow raises on a damaged file into one line."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, KeyError) as error:
        told = " ".join(str(error).split())
        raise InputError(
            str(path), f"a damaged Parquet file ({told:.150})", "a whole one"
        ) from None


def saved_header(metadata: dict[bytes, bytes] | None, path: Path | str) -> tuple[int, bool] | None:
    """Block tokens and prefix of a trace that :func:`write_parquet` wrote; None for others."""
    if not metadata or PARQUET_KEY not in metadata:
        return None
    tokens = metadata.get(b"block_tokens", b"none").decode("ascii", "replace")
    if not tokens.isdecimal():
        raise InputError(str(path), f"block_tokens {tokens!r:.40}", "a whole number")
    return int(tokens), metadata.get(b"prefix") == b"1"


def read_parquet(path: Path | str) -> BlockTrace:
    """Read a trace that :func:`write_parquet` wrote; nothing is parsed.

    Raises
    ------
    InputError
        If it is no such file, or does not hold what a trace holds.
    """
    import pyarrow.parquet as pq

    with parquet_errors(path):
        table = pq.read_table(path)
        header = saved_header(table.schema.metadata, path)
        if header is None:
            raise InputError(str(path), "a Parquet file of another make", "a block trace")
        columns = {name: table[name].to_numpy() for name in _COLUMNS}
        blocks = table["blocks"].combine_chunks()
        units = table.schema.metadata.get(b"unit_tokens")
        if hasattr(blocks, "offsets") and len(units or b"") % 4 == 0:
            trace = BlockTrace(
                **columns,
                offsets=blocks.offsets.to_numpy(),
                blocks=blocks.values.to_numpy(),
                block_tokens=header[0],
                unit_tokens=None if units is None else np.frombuffer(units, "<i4"),
                prefix=header[1],
            )
            if _sound(trace):
                return trace
    raise InputError(str(path), "columns that contradict each other", "a trace written by --save")


def stream_parquet(path: Path | str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Arrivals, blocks per request and blocks of such a file, some rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with parquet_errors(path):
        for rows in pq.ParquetFile(path).iter_batches(2**16, columns=["arrival_s", "blocks"]):
            arrival_s = rows["arrival_s"].cast(pa.float64()).to_numpy()
            blocks = rows["blocks"].cast(pa.large_list(pa.int64()))
            yield arrival_s, np.diff(blocks.offsets), blocks.flatten().to_numpy()


def _sound(trace: BlockTrace) -> bool:
    """Whether compiled code may index by the numbers of a trace that comes from outside."""
    kinds = {name: getattr(trace, name).dtype for name in _COLUMNS}
    if kinds != _COLUMNS or trace.blocks.dtype not in (np.int32, np.int64) or not trace.requests:
        return False
    newest = np.maximum.accumulate(trace.blocks)
    units = trace.unit_tokens
    return bool(
        np.isfinite(trace.arrival_s).all()
        and (np.diff(trace.arrival_s) >= 0).all()
        and min(trace.input_tokens.min(), trace.output_tokens.min(), trace.block_tokens) >= 0
        and trace.blocks.min(initial=0) >= 0
        and (np.diff(newest, prepend=-1) <= 1).all()
        and (units is None or (len(units) == trace.unique_blocks and units.min(initial=0) >= 0))
    )
