"""Speed and memory of diagnose on 100 MB logs, beside a plain loop over the lines.

    python benchmarks/diagnose.py [MEGABYTES]

Each log is made here. Every figure comes from a process of its own; seconds are processor time,
as other work on the machine would add to the clock. ``lines`` decodes and splits the log and does
nothing else.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STARTED = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:1805] vLLM API server version 0.11.0\n"
)
FAILURE = (
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] EngineCore failed to start.\n"
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] Traceback (most recent call last):\n"
    '(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708]   File "/site/vllm/v1/core/'
    'kv_cache_utils.py", line 600, in check_enough_kv_cache_memory\n'
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708]     raise ValueError(\n"
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] ValueError: No available memory for "
    "the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {}\n"
)


def chatter(rng: random.Random) -> Iterator[str]:
    """What a server at debug level prints while it starts and serves."""
    while True:
        yield (
            f"(EngineCore_DP0 pid=7) DEBUG 01-01 00:{rng.randrange(60):02}:00 [core.py:335] step "
            f"{rng.random():.6f} s, {rng.randrange(9999)} tokens of request cmpl-{rng.random()}\n"
        )
        yield (
            f"(APIServer pid=1) INFO 01-01 00:{rng.randrange(60):02}:10 [loggers.py:127] Engine 0: "
            f"generation throughput: {rng.random() * 999:.1f} tokens/s, Running: 3 reqs\n"
        )


def errors(rng: random.Random) -> Iterator[str]:
    """Every line an exception, no two alike."""
    while True:
        yield (
            f"(Worker_TP0 pid=9) ERROR 01-01 00:00:{rng.randrange(60):02} [x.py:7] RuntimeError: "
            f"request {rng.random()} failed\n"
        )


def restarts(rng: random.Random) -> Iterator[str]:
    """A crash loop: the same failed start over and over."""
    while True:
        yield STARTED
        yield from (next(lines) for lines in [chatter(rng)] * 20)
        yield FAILURE


def cut(rng: random.Random) -> Iterator[str]:
    """Every line as wide as a terminal, so that they look like pieces of longer ones."""
    while True:
        yield f"{rng.random():.17f} {rng.random():.17f} {rng.random():.17f} no Error\n"


def unbroken(rng: random.Random) -> Iterator[str]:
    """One line without an end."""
    while True:
        yield f"(EngineCore_DP0 pid=7) ERROR token {rng.random()} failed "


def write_log(path: Path, kind: str, size_bytes: int) -> None:
    """A log of at least that size, with one failed start at its end."""
    rng, written = random.Random(1), 0
    with path.open("w") as file:
        for text in globals()[kind](rng):
            written += file.write(text)
            if written >= size_bytes:
                break
        file.write("\n" + STARTED + FAILURE)


def plain_lines(path: str) -> None:
    """Read the log as text, line by line."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for _ in file:
            pass


def measured(task: str, path: Path) -> tuple[float, float]:
    """Processor seconds and peak resident MiB of one task in a process of its own."""
    run = [sys.executable, __file__, "--task", task, str(path)]
    seconds, peak_mib = subprocess.run(
        run, capture_output=True, text=True, check=True
    ).stdout.split()
    return float(seconds), float(peak_mib)


def child(task: str, path: str) -> None:
    """Run one task and print its processor seconds and its peak."""
    from kvpaper.diagnose import diagnose

    start = time.process_time()
    if task == "diagnose":
        assert diagnose([path])["cause"] == "kv_cache"
    else:
        plain_lines(path)
    seconds = time.process_time() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("megabytes", type=int, nargs="?", default=100)
    parser.add_argument("--task", nargs=2, metavar=("TASK", "LOG"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        child(*arguments.task)
        return
    head = ("log", "MB", "diagnose s", "lines s", "of lines", "MB/s", "peak MiB")
    print("".join(f"{name:>12}" for name in head))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "engine.log"
        for kind in ("chatter", "restarts", "errors", "cut", "unbroken"):
            write_log(path, kind, arguments.megabytes * 10**6)
            size_mb = path.stat().st_size / 1e6
            seconds, peak_mib = measured("diagnose", path)
            lines_s, _ = measured("lines", path)
            cells = (
                kind,
                f"{size_mb:.0f}",
                f"{seconds:.2f}",
                f"{lines_s:.2f}",
                f"{seconds / lines_s:.1f}",
                f"{size_mb / seconds:.0f}",
                f"{peak_mib:.0f}",
            )
            print("".join(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
