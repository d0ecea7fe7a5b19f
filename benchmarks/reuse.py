"""Speed of the reuse curve against peers, in one run; and its scale on generated traces.

Peers are no part of the project's environment. In one of its own::

    python -m venv peers && peers/bin/pip install -e . libcachesim==0.3.5 kvcache-simulator==0.1.3
    peers/bin/python benchmarks/reuse.py peers TRACE.jsonl
    peers/bin/python benchmarks/reuse.py scale 100_000_000

Every time is the least of several runs in this process, after one that compiles. One thread each;
only ``scale`` reads on all cores.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numba
import numpy as np

from kvpaper.reuse.curve import hit_curve, log_spaced
from kvpaper.reuse.distances import stack_distances
from kvpaper.reuse.policies import records
from kvpaper.reuse.sampling import sampled_curve
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.load import read_trace

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "reuse"))
from direct_replay import replay


def least_s(function: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest of ``runs`` calls, after one that does not count."""
    function()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def libcachesim_s(
    trace: BlockTrace, capacity_blocks: int, runs: int, **table: int
) -> tuple[float, float]:
    """Seconds of one LRU capacity by its native reader, set-up apart; and its rate.

    Its hash table has 2**24 places unless ``hashpower`` says otherwise.
    """
    import libcachesim

    rates, times = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral"
        records(trace).tofile(path)
        for _ in range(runs + 1):
            reader = libcachesim.TraceReader(
                str(path),
                libcachesim.TraceType.ORACLE_GENERAL_TRACE,
                libcachesim.ReaderInitParam(ignore_obj_size=True),
            )
            cache = libcachesim.LRU(cache_size=capacity_blocks, **table)
            start = time.perf_counter()
            missed, _ = cache.process_trace(reader)
            times.append(time.perf_counter() - start)
            rates.append(1 - missed)
    return min(times[1:]), rates[-1]


def kvcache_simulator_s(path: Path, capacities: list[int], runs: int) -> float:
    """Seconds from JSONL to LRU at all ``capacities`` by its compiled backend."""
    from kvcache_sim.cpp_backend import run_cpp_sweep
    from kvcache_sim.trace import parse_trace_file

    def whole() -> None:
        trace = parse_trace_file(path, block_size=512)
        half = trace.request_count // 2
        run_cpp_sweep(trace, capacities=capacities, policies=["lru"], warmup_requests=half)

    return least_s(whole, runs)


def peers(path: Path, capacity_blocks: int) -> dict:
    """The whole curve against one capacity elsewhere; times in seconds, ratios above 1 are ours."""
    trace = read_trace([path], processes=1)
    curve_s = least_s(lambda: hit_curve(trace, stack_distances(trace)), 30)
    replay_s = least_s(lambda: replay(trace, capacity_blocks), 30)
    theirs_s, reference = libcachesim_s(trace, capacity_blocks, 5)
    small_s, _ = libcachesim_s(trace, capacity_blocks, 5, hashpower=16)
    points = log_spaced(trace.unique_blocks, 61)
    ours_s = least_s(lambda: hit_curve(read_trace([path], processes=1)).at(points), 5)
    simulator_s = kvcache_simulator_s(path, points.tolist(), 2)
    return {
        "input": path.name,
        "references": trace.references,
        "capacity_blocks": capacity_blocks,
        "block": float(hit_curve(trace).at(capacity_blocks)),
        "reference": reference,
        "whole_curve_s": curve_s,
        "direct_replay_s": replay_s,
        "libcachesim_one_capacity_s": theirs_s,
        "libcachesim_one_capacity_small_table_s": small_s,
        "from_jsonl_s": ours_s,
        "kvcache_simulator_from_jsonl_s": simulator_s,
        "kvcache_simulator_capacities": len(points),
        "direct_replay_over_curve": replay_s / curve_s,
        "libcachesim_over_curve": theirs_s / curve_s,
        "libcachesim_small_table_over_curve": small_s / curve_s,
        "kvcache_simulator_over_ours": simulator_s / ours_s,
        "versions": {
            name: version(name) for name in ("libcachesim", "kvcache-simulator", "numba", "numpy")
        },
    }


@numba.njit(cache=True)
def _sessions(references: int, random: np.random.Generator, first_block: int, most: int):
    """Sessions that start with one of a hundred system prompts and grow turn by turn."""
    recent = np.zeros((4096, most), np.int64)
    lengths = np.zeros(4096, np.int64)
    blocks = np.empty(references + most, np.int64)
    counts = np.empty(references, np.int32)
    fresh, filled, requests = first_block, 0, 0
    while filled < references:
        slot = int(random.random() * 4096)
        if random.random() < 0.3 or lengths[slot] + 8 >= most or not lengths[slot]:
            prompt = int(random.random() * 100)
            lengths[slot] = 1 + prompt % 6
            for j in range(lengths[slot]):
                recent[slot, j] = prompt * 6 + j
        for _ in range(1 + int(random.random() * 8)):
            recent[slot, lengths[slot]] = fresh
            fresh += 1
            lengths[slot] += 1
        blocks[filled : filled + lengths[slot]] = recent[slot, : lengths[slot]]
        filled += lengths[slot]
        counts[requests] = lengths[slot]
        requests += 1
    return counts[:requests], blocks[:filled], fresh


def write_jsonl(path: Path, references: int) -> None:
    """A generated log of Mooncake's format, in pieces of a million references."""
    clock, fresh, random = 0, 600, np.random.default_rng(0)
    with open(path, "w") as file:
        for _ in range(max(1, references // 1_000_000)):
            counts, blocks, fresh = _sessions(min(references, 1_000_000), random, fresh, 64)
            ends = np.cumsum(counts)
            texts = list(map(str, blocks.tolist()))
            for start, stop in zip((ends - counts).tolist(), ends.tolist(), strict=True):
                file.write(
                    f'{{"timestamp": {clock}, "input_length": {512 * (stop - start)}, '
                    f'"output_length": 1, "hash_ids": [{", ".join(texts[start:stop])}]}}\n'
                )
                clock += 1


def scale(references: int, folder: Path) -> dict:
    """Read and price a generated log of so many references, all cores."""
    path = folder / f"generated_{references}.jsonl"
    if not path.exists():
        write_jsonl(path, references)
    start = time.perf_counter()
    trace = read_trace([path])
    read_s = time.perf_counter() - start
    curve = hit_curve(trace)
    return {
        "references": trace.references,
        "unique_blocks": trace.unique_blocks,
        "file_bytes": path.stat().st_size,
        "ceiling": curve.ceiling,
        "read_s": read_s,
        "total_s": time.perf_counter() - start,
        "processor_s": _processor_s(),
        "peak_bytes": _peak_bytes(),
    }


def sample(references: int, every: int) -> dict:
    """Sample a generated stream of so many references that is never held in memory."""

    def chunks():
        fresh, done, random = 600, 0, np.random.default_rng(0)
        while done < references:
            counts, blocks, fresh = _sessions(4_000_000, random, fresh, 64)
            done += len(blocks)
            yield counts, blocks

    start = time.perf_counter()
    curve = sampled_curve(chunks, every)
    return {
        "references": curve.references,
        "every": every,
        "ceiling": float(curve.hits[-1]),
        "standard_error": float(curve.standard_error[-1]),
        "kept_references": curve.kept_references,
        "total_s": time.perf_counter() - start,
        "peak_bytes": _peak_bytes(),
    }


def _processor_s() -> float:
    """Processor time of this process and its children, generation of the log included if made."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _peak_bytes() -> int:
    """Largest resident memory of this process and, apart, of its largest child, added."""
    own, child = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return 1024 * (own + child)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    against = commands.add_parser("peers")
    against.add_argument("trace", type=Path)
    against.add_argument("--capacity", type=int, default=10_000)
    large = commands.add_parser("scale")
    large.add_argument("references", type=int)
    large.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    sampling = commands.add_parser("sample")
    sampling.add_argument("references", type=int)
    sampling.add_argument("--every", type=int, default=100)
    arguments = parser.parse_args()
    match arguments.command:
        case "peers":
            answer = peers(arguments.trace, arguments.capacity)
        case "scale":
            answer = scale(arguments.references, arguments.folder)
        case _:
            answer = sample(arguments.references, arguments.every)
    print(json.dumps(answer, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
