"""The sample against the exact curve, its stated error, and memory that follows the sample."""

import numpy as np
import pytest
from at_hand import TRACES
from hypothesis import given, settings
from strategies import anything, block_trace

from kvpaper.reuse.curve import hit_curve
from kvpaper.reuse.sampling import sampled_curve
from kvpaper.traces.block_trace import write_parquet
from kvpaper.traces.load import Log, read_trace


def chunks_of(trace):
    return lambda: [(trace.blocks_per_request, trace.blocks)]


@settings(deadline=None)
@given(anything)
@pytest.mark.parametrize("prefix", [True, False])
def test_keeping_every_block_is_exact(prefix, requests):
    trace = block_trace(requests, prefix=prefix)
    found = sampled_curve(chunks_of(trace), 1, prefix=prefix)
    exact = hit_curve(trace).at(found.capacities_blocks)
    assert found.hits == pytest.approx(exact)
    assert (found.standard_error == 0).all()
    assert found.unique_blocks == trace.unique_blocks


def conversation():
    path = TRACES / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("trace not fetched")
    return read_trace([path])


@pytest.mark.parametrize("every", [10, 100])
def test_error_is_as_stated_and_hot_blocks_remove_the_bias(every):
    trace = conversation()
    curve = hit_curve(trace)
    plain_bias = []
    for seed in range(4):
        found = sampled_curve(chunks_of(trace), every, seed=seed)
        inside = (found.capacities_blocks > 20) & (found.capacities_blocks < trace.unique_blocks)
        exact = curve.at(found.capacities_blocks[inside])
        error = np.abs(found.hits[inside] - exact)
        assert (error < 3 * found.standard_error[inside]).mean() > 0.97
        assert error.mean() < 0.01
        assert found.unique_blocks == pytest.approx(trace.unique_blocks, rel=0.1)
        plain = sampled_curve(chunks_of(trace), every, hot_blocks=0, seed=seed)
        plain_bias.append(np.abs(plain.hits[inside] - exact).mean())
    assert np.median(plain_bias) == pytest.approx(0.036, abs=0.006)


def test_pieces_and_moves_of_the_tables_change_nothing():
    random = np.random.default_rng(0)
    requests = [random.integers(0, 5000, 200).tolist() for _ in range(3000)]
    trace = block_trace(requests, prefix=False)
    counts = trace.blocks_per_request

    def chunks():
        for first in range(0, 3000, 7):
            rows = slice(first, min(first + 7, 3000))
            yield counts[rows], trace.blocks[trace.offsets[first] : trace.offsets[rows.stop]]

    whole = sampled_curve(chunks_of(trace), 7, hot_blocks=0, prefix=False)
    assert (sampled_curve(chunks, 7, hot_blocks=0, prefix=False).hits == whole.hits).all()


def test_streams_of_files_and_of_parquet_agree(tmp_path):
    trace = conversation()
    write_parquet(trace, tmp_path / "t.parquet")
    logs = Log([TRACES / "mooncake_conversation.jsonl"])
    saved = Log([tmp_path / "t.parquet"])
    from_logs, from_saved = (
        sampled_curve(log.chunks, 1, prefix=log.prefix) for log in (logs, saved)
    )
    assert (from_logs.hits == from_saved.hits).all()
    assert logs.requests == saved.requests == trace.requests
    assert logs.block_tokens == saved.block_tokens == 512
