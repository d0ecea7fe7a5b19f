"""Speed of the replay over random configurations of a fleet, against the time that the trace spans.

::

    python benchmarks/serving.py one TRACE.jsonl      # one process, each configuration timed alone
    python benchmarks/serving.py many TRACE.jsonl     # 1,000 configurations on two processes
    python benchmarks/serving.py compile              # what the first replay of a checkout costs

Configurations are drawn with a fixed seed: five models, 2 to 16 instances in one pool or two, every
router, chunk, scope and way to fetch, up to two tiers. Some are overloaded, as in any search. The
time is that of ``replay`` from a trace in memory to its rows, once each, after one that compiles.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path

import numpy as np

from kvpaper import latency, models
from kvpaper.parallel import map_tasks
from kvpaper.serving.fleet import ADMISSIONS, FETCHES, ROUTERS, SCOPES, Fleet, Pool, Tier
from kvpaper.serving.replay import replay
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.generated import conversations
from kvpaper.traces.load import read_trace


def configuration(number: int) -> Fleet:
    """Fleet of a number: the same on every machine."""
    random = np.random.default_rng(number)

    def one(*options):
        return options[random.integers(len(options))]

    instance = one(*latency.usual())
    tables = latency.prefill_table(instance.name), latency.decode_table(instance.name)
    model = models.load(instance.model)
    count, split = int(random.integers(2, 17)), random.random() < 0.5
    prefills = int(random.integers(1, count)) if split else count
    chunk = None if split else one(None, 512, 2048, 8192)
    link = 50e9 * instance.gpus

    def pool(instances, chunk):
        return Pool(instances, instance.gpus, instance.kv_tokens, *tables, chunk, link)

    drives = (("dram", one(0.25e12, 1e12, 2e12), 64e9, 64e9), ("nvme", 15e12, 13e9, 6.6e9))
    tiers = [
        Tier(
            name,
            size * instance.gpus / 8,
            read * instance.gpus,
            write * instance.gpus,
            1e-4,
            one(*SCOPES),
            one(*ADMISSIONS),
        )
        for name, size, read, write in drives[: random.integers(3)]
    ]
    return Fleet(
        pool(prefills, chunk),
        pool(count - prefills, None) if split else None,
        kv_bytes_per_token=float(models.cache_bytes(model.groups, 1, "bf16")),
        tiers=tuple(tiers),
        router=one(*ROUTERS),
        decode_router=one(*ROUTERS[:3]),
        fetch=one(*FETCHES),
        prefetch_lead_s=one(None, 0.0, np.inf),
        transfer_layers=one(1, model.layers),
    )


@cache
def loaded(path: Path) -> BlockTrace:
    return read_trace([path], processes=1)


def timed(path: Path, number: int) -> float:
    """Seconds of one replay."""
    trace, fleet = loaded(path), configuration(number)
    start = time.perf_counter()
    replay(fleet, trace, number)
    return time.perf_counter() - start


def peak_bytes(who: int) -> int:
    return 1024 * resource.getrusage(who).ru_maxrss


def one(path: Path, count: int) -> dict:
    """Each configuration in this process."""
    trace = loaded(path)
    timed(path, 0)
    seconds = np.array([timed(path, number) for number in range(count)])
    return {
        "requests": trace.requests,
        "trace_s": trace.duration_s,
        "configurations": count,
        "median_s": float(np.median(seconds)),
        "worst_s": float(seconds.max()),
        "worst_configuration": int(seconds.argmax()),
        "median_times_real_time": trace.duration_s / float(np.median(seconds)),
        "worst_times_real_time": trace.duration_s / float(seconds.max()),
        "peak_bytes": peak_bytes(resource.RUSAGE_SELF),
    }


def many(path: Path, count: int, processes: int) -> dict:
    """All configurations on some processes, their start included."""
    timed(path, 0)
    start = time.perf_counter()
    seconds = list(map_tasks(partial(timed, path), range(count), processes))
    return {
        "configurations": count,
        "processes": processes,
        "total_s": time.perf_counter() - start,
        "replay_s": sum(seconds),
        "peak_bytes_of_a_process": peak_bytes(resource.RUSAGE_CHILDREN),
    }


def first() -> None:
    """The first replay of a checkout, timed where nothing is compiled."""
    start = time.perf_counter()
    replay(configuration(0), conversations(20))
    print(time.perf_counter() - start)


def compiling() -> dict:
    """Seconds of the first replay without and with what it leaves on disk."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "first"]
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        cold, warm = (
            float(subprocess.check_output(command, env=environment, text=True)) for _ in range(2)
        )
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return {"first_replay_s": cold, "next_process_s": warm, "cache_bytes": size}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, count in (("one", 200), ("many", 1000)):
        command = commands.add_parser(name)
        command.add_argument("trace", type=Path)
        command.add_argument("--configurations", type=int, default=count)
        command.add_argument("--processes", type=int, default=2)
    commands.add_parser("compile")
    commands.add_parser("first")
    arguments = parser.parse_args()
    match arguments.command:
        case "one":
            answer = one(arguments.trace, arguments.configurations)
        case "many":
            answer = many(arguments.trace, arguments.configurations, arguments.processes)
        case "compile":
            answer = compiling()
        case _:
            first()
            return 0
    print(json.dumps(answer, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
