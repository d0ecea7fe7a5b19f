"""Random traces for the tests of reuse."""

import numpy as np
from hypothesis import strategies as st

from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.dense import dense_ids


def block_trace(requests: list[list[int]], block_tokens: int = 4, **changes) -> BlockTrace:
    """A trace with one request a second, full blocks unless ``input_tokens`` says otherwise."""
    counts = np.array([len(request) for request in requests], np.int64)
    raw = np.array([block for request in requests for block in request], np.int64)
    values = {
        "arrival_s": np.arange(len(requests), dtype=float),
        "input_tokens": counts * block_tokens,
        "output_tokens": np.ones(len(requests), np.int64),
        "session": np.full(len(requests), -1, np.int32),
        "offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "blocks": dense_ids(raw)[0],
        "block_tokens": block_tokens,
    }
    return BlockTrace(**values | changes)


# Any ids in any order, repeats within a request included: nothing keeps them prefix-closed.
anything = st.lists(st.lists(st.integers(0, 40), max_size=70), max_size=40)


@st.composite
def prefix_tree(draw) -> list[list[int]]:
    """Requests whose blocks have one parent each, as hashing with the parent makes them."""
    paths: list[list[int]] = [[]]
    fresh = 0
    for _ in range(draw(st.integers(1, 40))):
        path = paths[draw(st.integers(0, len(paths) - 1))]
        kept = path[: draw(st.integers(0, len(path)))]
        added = draw(st.integers(0, 90))
        paths.append(kept + list(range(fresh, fresh + added)))
        fresh += added
    return paths[1:]
