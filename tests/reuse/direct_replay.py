"""One LRU cache of one capacity, replayed: the second road beside the stack distances."""

import numba
import numpy as np

from kvpaper.traces.block_trace import BlockTrace


@numba.njit(cache=True)
def _unlink(younger, older, block):
    younger[older[block]] = younger[block]
    older[younger[block]] = older[block]


@numba.njit(cache=True)
def _replay(offsets, blocks, unique, capacity, prefix, hits):
    """A linked list from the youngest block to the oldest, closed by the number ``unique``."""
    end = blocks.dtype.type(unique)
    absent = blocks.dtype.type(unique + 1)
    younger = np.full(unique + 1, absent)
    older = np.full(unique + 1, absent)
    younger[end] = older[end] = end
    resident = 0
    stop = np.uint64(0)
    for request in range(1, len(offsets)):
        start, stop = stop, np.uint64(offsets[request])
        whole = True
        for i in range(start, stop):
            found = younger[blocks[i]] != absent
            whole = whole and found
            hits[i] = whole if prefix else found
        i = stop
        while i > start:
            i -= np.uint64(1)
            block = blocks[i]
            if younger[block] != absent:
                _unlink(younger, older, block)
            elif resident < capacity:
                resident += 1
            else:
                oldest = younger[end]
                _unlink(younger, older, oldest)
                younger[oldest] = absent
            younger[block], older[block] = end, older[end]
            younger[older[end]] = block
            older[end] = block


def replay(trace: BlockTrace, capacity_blocks: int) -> np.ndarray:
    """Which references hit in a cache of one capacity, by replaying it: the second road.

    Returns
    -------
    bool array, shape (N,)
    """
    hits = np.zeros(trace.references, np.bool_)
    if capacity_blocks > 0:
        blocks = trace.blocks.view(f"u{trace.blocks.itemsize}")
        unique = trace.unique_blocks
        _replay(trace.offsets, blocks, unique, capacity_blocks, trace.prefix, hits)
    return hits
