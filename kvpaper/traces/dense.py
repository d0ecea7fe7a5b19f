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


@numba.njit(cache=True)
def _dense_by_table(raw, lowest, span, dense, first):
    number = np.full(span, -1, dense.dtype)
    unique = 0
    for i in range(len(raw)):
        key = raw[i] - lowest
        if number[key] < 0:
            number[key] = unique
            first[unique] = i
            unique += 1
        dense[i] = number[key]
    return unique


@numba.njit(cache=True)
def _dense_by_hash(raw, dense, first):
    mask = 1023
    slots = np.full(mask + 1, -1, dense.dtype)
    unique = 0
    for i in range(len(raw)):
        slot = np.int64(mixed(raw[i]) & np.uint64(mask))
        while slots[slot] >= 0 and raw[first[slots[slot]]] != raw[i]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = unique
            first[unique] = i
            unique += 1
            if 3 * unique > 2 * mask:
                mask = 2 * mask + 1
                slots = np.full(mask + 1, -1, dense.dtype)
                for number in range(unique):
                    place = np.int64(mixed(raw[first[number]]) & np.uint64(mask))
                    while slots[place] >= 0:
                        place = (place + 1) & mask
                    slots[place] = number
            dense[i] = unique - 1
        else:
            dense[i] = slots[slot]
    return unique


def dense_ids(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number ids 0, 1, 2... in order of first appearance.

    Arrow and pandas do the same in several times the memory.

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
    kind = np.int32 if len(raw) < 2**31 - 2 else np.int64
    dense, first = np.empty(len(raw), kind), np.empty(len(raw), kind)
    lowest, highest = (int(raw.min()), int(raw.max())) if len(raw) else (0, 0)
    if highest - lowest < 4 * len(raw) + 1024:
        unique = _dense_by_table(raw, lowest, highest - lowest + 1, dense, first)
    else:
        unique = _dense_by_hash(raw, dense, first)
    return dense, raw[first[:unique]]


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
