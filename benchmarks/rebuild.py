"""Times of what a reader waits for: ``python benchmarks/rebuild.py [--rounds N]``.

Method: a clone of the committed state in a temporary folder, so that nothing of this checkout is
touched. There, in this order: ``make paper`` with nothing there (the environment from the package
index or its cache, the notebooks, the book); ``make clean`` and ``make paper`` with the environment
in place; ``make paper`` with nothing to do; ``make test``; then fresh interpreters that print the
help, answer one question, or import a module. Wall time by the clock, processor time of all child
processes by the kernel's accounting. The first and ``make test`` run once, the others ROUNDS times:
minimum and median are printed. As a yardstick of the machine, the same run times importing the
plotting stack in a fresh interpreter, so that figures of two machines can be compared as ratios.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
YARDSTICK = "import the plotting stack"


def spent(command: list[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of one command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def measured(clone: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of every run, by what was run."""
    runs = {"make paper, nothing there": [spent(["make", "paper"], clone)]}
    rebuilds, idle = [], []
    for _ in range(rounds):
        subprocess.run(["make", "clean"], cwd=clone, check=True, stdout=subprocess.DEVNULL)
        rebuilds.append(spent(["make", "paper"], clone))
        idle.append(spent(["make", "paper"], clone))
    runs |= {"make paper, environment there": rebuilds, "make paper, nothing to do": idle}
    runs["make test"] = [spent(["make", "test"], clone)]
    python, program = str(clone / ".venv/bin/python"), str(clone / ".venv/bin/kvpaper")
    small = {
        "start the interpreter": [python, "-c", "pass"],
        "import kvpaper": [python, "-c", "import kvpaper"],
        "import kvpaper.scenario": [python, "-c", "import kvpaper.scenario"],
        "kvpaper --help": [program, "--help"],
        "kvpaper size llama-3.1-8b": [program, "size", "llama-3.1-8b"],
        "kvpaper evaluate paper": [program, "evaluate", "paper"],
        YARDSTICK: [python, "-c", "import matplotlib.figure, pandas, seaborn"],
    }
    for name, command in small.items():
        spent(command, clone)  # bytecode and the disk's cache
        runs[name] = [spent(command, clone) for _ in range(5 * rounds)]
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "kvpaper")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        runs = measured(clone, rounds)
    yardstick = min(cpu for _, cpu in runs[YARDSTICK])
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {rounds} rounds, seconds")
    heads = f"{'wall min':>10}{'median':>10}{'cpu min':>10}{'median':>10}"
    print(f"{'':32}{heads}{'cpu / yardstick':>17}")
    for name, times in runs.items():
        wall, cpu = zip(*times, strict=True)
        print(
            f"{name:32}{min(wall):10.2f}{statistics.median(wall):10.2f}"
            f"{min(cpu):10.2f}{statistics.median(cpu):10.2f}{min(cpu) / yardstick:17.2f}"
        )


if __name__ == "__main__":
    main()
