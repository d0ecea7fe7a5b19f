"""The canonical trace: requests in order of arrival and the blocks that each refers to."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvpaper.errors import InputError

PARQUET_KEY = b"kvpaper.block_trace"


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
    blocks : int32 array (int64 from 2**31 blocks on), shape (N,)
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
    def duration_s(self) -> float:
        return float(self.arrival_s[-1] - self.arrival_s[0]) if self.requests else 0.0

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

    def select(self, requests: np.ndarray | slice) -> "BlockTrace":
        """The trace of some of its requests, blocks numbered anew; order is kept."""
        from kvpaper.traces.dense import dense_ids

        counts = self.blocks_per_request[requests]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if isinstance(requests, slice) and requests.step in (None, 1):
            start, stop, _ = requests.indices(self.requests)
            raw = self.blocks[self.offsets[start] : self.offsets[max(start, stop)]]
        else:
            starts = self.offsets[:-1][requests]
            raw = self.blocks[np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])]
        blocks, first = dense_ids(raw)
        return replace(
            self,
            arrival_s=self.arrival_s[requests],
            input_tokens=self.input_tokens[requests],
            output_tokens=self.output_tokens[requests],
            session=self.session[requests],
            offsets=offsets,
            blocks=blocks,
            unit_tokens=None if self.unit_tokens is None else self.unit_tokens[raw[first]],
        )


def require_identity(block_tokens: int, where: str) -> None:
    """Refuse questions of reuse about a trace that only knows arrivals: blocks of 0 tokens."""
    if not block_tokens:
        expected = "block ids or prompt text; without them nobody can tell which prefixes repeat"
        raise InputError(where, "arrivals and lengths only", expected)


def write_parquet(trace: BlockTrace, path: Path | str) -> None:
    """Write ``trace`` as Parquet, one row a request, by way of a temporary file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    blocks = pa.LargeListArray.from_arrays(trace.offsets, trace.blocks)
    columns = {
        "arrival_s": trace.arrival_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "session": trace.session,
        "blocks": blocks,
    }
    metadata = {PARQUET_KEY: b"1", b"block_tokens": str(trace.block_tokens).encode()}
    metadata[b"prefix"] = b"1" if trace.prefix else b"0"
    if trace.unit_tokens is not None:
        metadata[b"unit_tokens"] = trace.unit_tokens.astype("<i4").tobytes()
    table = pa.table(columns).replace_schema_metadata(metadata)
    temporary = Path(f"{path}.part")
    pq.write_table(table, temporary, compression="zstd", use_dictionary=False, row_group_size=2**17)
    os.replace(temporary, path)


def read_parquet(path: Path | str) -> BlockTrace:
    """Read a trace that :func:`write_parquet` wrote; nothing is parsed."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    if PARQUET_KEY not in metadata:
        raise InputError(str(path), "a Parquet file of another make", "a block trace")
    blocks = table["blocks"].combine_chunks()
    units = metadata.get(b"unit_tokens")
    return BlockTrace(
        *(table[name].to_numpy() for name in ("arrival_s", "input_tokens", "output_tokens")),
        session=table["session"].to_numpy(),
        offsets=blocks.offsets.to_numpy(),
        blocks=blocks.values.to_numpy(),
        block_tokens=int(metadata[b"block_tokens"]),
        unit_tokens=None if units is None else np.frombuffer(units, "<i4"),
        prefix=metadata[b"prefix"] == b"1",
    )
