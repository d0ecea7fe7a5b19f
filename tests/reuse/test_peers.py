"""Equality with independent simulators, where they are installed and their semantics agree."""

import json
from pathlib import Path

import numpy as np
import pytest
from at_hand import TRACES

from kvpaper.reuse import policies
from kvpaper.reuse.curve import hit_curve
from kvpaper.reuse.distances import stack_distances
from kvpaper.traces.load import read_trace


def small_log(folder: Path) -> Path:
    """Sessions that share two system prompts and grow."""
    random = np.random.default_rng(0)
    sessions = [[0, 1], [2, 3, 4]]
    path, fresh = folder / "log.jsonl", 5
    with open(path, "w") as file:
        for moment in range(400):
            known = sessions[int(random.integers(len(sessions)))]
            grown = known + list(range(fresh, fresh + int(random.integers(1, 6))))
            fresh = max(fresh, grown[-1] + 1)
            sessions.append(grown[:40])
            row = {"timestamp": moment, "output_length": 1, "hash_ids": grown[:40]}
            row["input_length"] = 512 * len(grown[:40]) - int(random.integers(512))
            file.write(json.dumps(row) + "\n")
    return path


def logs(folder: Path) -> list[Path]:
    public = [TRACES / f"mooncake_{name}.jsonl" for name in ("conversation", "synthetic")]
    return [small_log(folder), *(path for path in public if path.exists())]


def test_hit_tokens_are_those_of_kvcache_simulator(tmp_path):
    pytest.importorskip("kvcache_sim")
    from kvcache_sim.plan import build_execution_plan
    from kvcache_sim.policies import simulate_policy
    from kvcache_sim.trace import parse_trace_file

    for path in logs(tmp_path):
        trace = read_trace([path])
        # It counts the second half of the requests, once the cache is full before. A request that
        # is longer than the cache leaves its first blocks in ours, its last ones in theirs.
        half = trace.offsets[trace.requests // 2]
        distances, tokens = stack_distances(trace).expanded()[half:], trace.reference_tokens[half:]
        plan = build_execution_plan(parse_trace_file(path, block_size=512))
        compared = 0
        longest = trace.blocks_per_request.max()
        for capacity in (size for size in (50, 200, 1000, 10_000) if size >= longest):
            theirs = simulate_policy(plan, "lru", capacity)
            if theirs.measurementMode == "fixed_window":
                assert theirs.hitTokens == tokens[distances < capacity].sum()
                compared += 1
        assert compared >= 2


def test_lru_of_libcachesim_differs_by_its_single_references_only(tmp_path):
    pytest.importorskip("libcachesim")
    for path in logs(tmp_path)[1:] or logs(tmp_path):
        trace = read_trace([path])
        curve = hit_curve(trace)
        for row in policies.policy_rates(trace, ["lru"], [1000, 10_000]):
            assert abs(row["reference"] - curve.at(row["capacity_blocks"])) <= 0.002
