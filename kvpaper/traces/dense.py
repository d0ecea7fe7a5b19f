"""Numbers and hashes of block ids."""

import numba
import numpy as np

_MIX = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(cache=True)
def mixed(value):
    """A 64-bit finaliser: every bit of the result depends on every bit of ``value``."""
    value = np.uint64(value) * _MIX
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def dense_ids(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number ids 0, 1, 2... in order of first appearance.

    Parameters
    ----------
    raw : integer array, shape (N,)
        Ids of any size and sign.

    Returns
    -------
    dense : int32 array (int64 from 2**31 references on), shape (N,)
    ids : array, shape (U,)
        The id behind each number.
    """
    import pyarrow

    encoded = pyarrow.array(raw).dictionary_encode()
    kind = np.int32 if len(raw) < 2**31 - 2 else np.int64
    # Copied, since what Arrow lends is read-only, and compiled code tells the two apart.
    return encoded.indices.to_numpy().astype(kind), encoded.dictionary.to_numpy()


@numba.njit(cache=True)
def chained_ids(offsets, blocks):
    """Ids in which each block stands for itself and all before it in its request."""
    chained = np.empty(len(blocks), np.int64)
    for request in range(len(offsets) - 1):
        parent = np.uint64(0)
        for i in range(offsets[request], offsets[request + 1]):
            parent = mixed(parent ^ mixed(np.uint64(blocks[i]) + np.uint64(1)))
            chained[i] = np.int64(parent)
    return chained
