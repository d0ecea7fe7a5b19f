"""A small generated trace, for a scenario that names none: conversations behind shared prompts.

``python -m kvpaper.traces.generated`` prints one as a log, ``data/examples/requests.jsonl``.
"""

import json
from collections.abc import Iterator

import numpy as np

from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.dense import dense_ids

NAME = "generated"
_BLOCK_TOKENS = 512


def conversations(sessions: int = 400, seed: int = 0, duration_s: float = 3600.0) -> BlockTrace:
    """Sessions of a few turns each; every turn repeats the session so far and adds to it.

    Sessions begin evenly over ``duration_s``; their first blocks are one of a few shared prompts,
    drawn by a Zipf law. Nothing in it is a claim on any real workload.
    """
    random = np.random.default_rng(seed)
    turns = random.geometric(0.35, sessions)
    shared = np.minimum(random.zipf(1.6, sessions), 50)
    starts = np.sort(random.uniform(0, duration_s, sessions))
    requests = []
    for session in range(sessions):
        blocks = [(int(shared[session]) << 32) + place for place in range(4)]
        arrival = starts[session]
        for turn in range(turns[session]):
            added = int(random.integers(1, 12))
            blocks += [((100 + session) << 32) + (turn << 16) + place for place in range(added)]
            requests.append((arrival, session, tuple(blocks)))
            arrival += random.exponential(60.0)
    arrivals, owners, blocks = zip(*sorted(requests), strict=True)
    lengths = np.array([len(one) for one in blocks])
    return BlockTrace(
        arrival_s=np.array(arrivals) - arrivals[0],
        input_tokens=lengths * _BLOCK_TOKENS,
        output_tokens=np.full(len(requests), 300),
        session=np.array(owners, np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        blocks=dense_ids(np.concatenate(blocks))[0],
        block_tokens=_BLOCK_TOKENS,
    )


def log(trace: BlockTrace) -> Iterator[str]:
    """The trace as lines of JSON with the keys of the Mooncake traces."""
    arrivals_ms = np.rint(1000 * trace.arrival_s).astype(int).tolist()
    for request, arrival_ms in enumerate(arrivals_ms):
        start, end = trace.offsets[request : request + 2]
        row = {
            "timestamp": arrival_ms,
            "input_length": int(trace.input_tokens[request]),
            "output_length": int(trace.output_tokens[request]),
            "hash_ids": trace.blocks[start:end].tolist(),
        }
        yield json.dumps(row, separators=(",", ":"))


if __name__ == "__main__":
    print("\n".join(log(conversations(240, 3, 600.0))))
