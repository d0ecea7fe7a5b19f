"""Other eviction policies at chosen capacities, by libCacheSim (an optional extra).

It counts single references and knows no requests: a block may hit although one before it was
dropped. Its rate is therefore named ``reference``. Blocks go in last first, as in the LRU pass.
"""

import tempfile
from pathlib import Path

import numpy as np

from kvpaper.errors import InputError
from kvpaper.traces.block_trace import BlockTrace

# Our names and theirs.
POLICIES = {
    "lru": "LRU",
    "fifo": "FIFO",
    "s3fifo": "S3FIFO",
    "sieve": "Sieve",
    "belady": "Belady",
    "arc": "ARC",
    "lfu": "LFU",
}
NOTE = (
    "policies: rate of single references by libCacheSim, named reference; LRU's own there differs "
    "from the block rate by .002 at most on the public traces"
)
# The record of its oracleGeneral format.
_RECORD = np.dtype([("time", "<u4"), ("block", "<u8"), ("bytes", "<u4"), ("next_use", "<i8")])


def records(trace: BlockTrace) -> np.ndarray:
    """References as oracleGeneral records, shape (N,); the next use is -1 where there is none."""
    request = trace.request_of_reference
    order = np.lexsort((-np.arange(trace.references), request))  # the last of a request first
    blocks = trace.blocks[order]
    grouped = np.argsort(blocks, kind="stable")
    next_use = np.full(len(blocks), -1, np.int64)
    same = blocks[grouped[1:]] == blocks[grouped[:-1]]
    next_use[grouped[:-1][same]] = grouped[1:][same] + 1
    made = np.empty(len(blocks), _RECORD)
    made["time"] = trace.arrival_s[request]
    made["block"], made["bytes"], made["next_use"] = blocks, 1, next_use
    return made


def named(text: str | None) -> list[str]:
    """Policies of a list with commas.

    Raises
    ------
    InputError
        For one that is not known.
    """
    names = [name.strip().lower() for name in text.split(",")] if text else []
    for name in names:
        if name not in POLICIES:
            raise InputError("--policy", repr(name), "one of " + ", ".join(POLICIES))
    return names


def policy_rates(
    trace: BlockTrace, policies: list[str], capacities_blocks: list[int]
) -> list[dict[str, float]]:
    """Rate of single references for each policy and capacity.

    Raises
    ------
    InputError
        Where libCacheSim is not installed.
    """
    try:
        import libcachesim
    except ImportError:
        raise InputError("--policy", "no libCacheSim", "pip install 'kvpaper[policies]'") from None
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        records(trace).tofile(path)
        for policy in policies:
            for capacity in capacities_blocks:
                reader = libcachesim.TraceReader(
                    str(path),
                    libcachesim.TraceType.ORACLE_GENERAL_TRACE,
                    libcachesim.ReaderInitParam(ignore_obj_size=True),
                )
                cache = getattr(libcachesim, POLICIES[policy])(cache_size=capacity)
                missed, _ = cache.process_trace(reader)
                row = {"policy": policy, "capacity_blocks": capacity, "reference": 1 - missed}
                rows.append(row)
    return rows
