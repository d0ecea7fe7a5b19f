"""Time of a full rebuild and of a no-op: ``python benchmarks/rebuild.py``.

Method: the environment stands already (its download depends on the network). ``make clean`` and
``make paper`` are one full rebuild; the ``make paper`` after it is the no-op. Wall time by the
clock, processor time of all child processes by the kernel's accounting. Each is run ROUNDS times;
minimum and median are printed. As a yardstick of the machine, the same run times importing the
plotting stack in a fresh interpreter, so that figures of two machines can be compared as ratios.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3


def spent(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of one command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def main() -> None:
    python = str(ROOT / ".venv/bin/python")
    subprocess.run(["make", "env"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    runs: dict[str, list[tuple[float, float]]] = {"full rebuild": [], "no-op": [], "yardstick": []}
    for _ in range(ROUNDS):
        subprocess.run(["make", "clean"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        runs["full rebuild"].append(spent(["make", "paper"]))
        runs["no-op"].append(spent(["make", "paper"]))
        runs["yardstick"].append(spent([python, "-c", "import matplotlib.figure, pandas, seaborn"]))
    yardstick = min(cpu for _, cpu in runs["yardstick"])
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {ROUNDS} rounds")
    heads = f"{'wall min':>10}{'median':>10}{'cpu min':>10}{'median':>10}"
    print(f"{'':14}{heads}{'cpu / yardstick':>17}")
    for name, times in runs.items():
        wall, cpu = zip(*times, strict=True)
        print(
            f"{name:14}{min(wall):10.2f}{statistics.median(wall):10.2f}"
            f"{min(cpu):10.2f}{statistics.median(cpu):10.2f}{min(cpu) / yardstick:17.1f}"
        )


if __name__ == "__main__":
    main()
