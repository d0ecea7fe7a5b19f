"""Numbers of the paper that moved since its last release: ``python book/drift.py``.

The numbers of the last release lie in ``data/released/VERSION``, so that no history is needed.
Each number that moved or is gone is printed with from, to and its line in ``CHANGELOG.md``, which
names it in backquotes: a table, and where needed a quantity and coordinates, as in
``20_recovery fetch_time_s tier=nvme``. A move without a line ends with exit code 1.
``--keep VERSION`` takes the present numbers as those of a release.
"""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from kvpaper import data, results
from kvpaper.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
RELEASED = data.FOLDER / "released"
CHANGELOG = ROOT / "CHANGELOG.md"
SCENARIO = "paper"
VALUES = ("value", "reproduced")
NO_COORDINATES = (*VALUES, "quantity", "rtol", "locator", "basis", "status", "trace_sha256")

Name = tuple[str, ...]  # table, quantity, then COLUMN=VALUE


def numbers(folder: Path) -> dict[Name, str]:
    """Every number of the tables in a folder, as it is written there, by what names it."""
    found: dict[Name, str] = {}
    for path in sorted(folder.glob("*.csv")):
        for row in data.table(path):
            at = [f"{k}={v}" for k, v in row.items() if v and k not in NO_COORDINATES]
            for column in VALUES:
                if row.get(column):
                    more = [] if column == "value" else [f"column={column}"]
                    name, times = (path.stem, row["quantity"], *at, *more), 1
                    while name in found:
                        times += 1
                        name = (path.stem, row["quantity"], *at, *more, f"row={times}")
                    found[name] = row[column]
    return found


def moved(before: dict[Name, str], now: dict[Name, str]) -> Iterator[tuple[Name, str, str]]:
    """Names, from and to, of what changed beyond the digits of a file."""
    for name, value in before.items():
        here = now.get(name, "gone")
        if here == value:
            continue
        if here == "gone" or not math.isclose(float(here), float(value), rel_tol=1e-9):
            yield name, value, here


def lines(changelog: str, version: str) -> list[tuple[int, str, list[str]]]:
    """Number, text and words of every line above a version's heading that names numbers."""
    since = re.split(rf"^## {re.escape(version)}\b", changelog, maxsplit=1, flags=re.M)[0]
    return [
        (number, line.strip("-| "), quoted.split())
        for number, line in enumerate(since.splitlines(), 1)
        for quoted in re.findall(r"`([^`]+)`", line)
    ]


def names(words: list[str], name: Name) -> bool:
    """Whether words name a number: its table, then its quantity, then coordinates in any order.

    >>> names(["20_recovery", "fetch_time_s", "tier=nvme"],
    ...       ("20_recovery", "fetch_time_s", "kind=predicted", "tier=nvme"))
    True
    >>> names(["20_recovery", "load"], ("20_recovery", "fetch_time_s"))
    False
    """
    return tuple(words[:2]) == name[: len(words[:2])] and set(words[2:]) <= set(name[2:])


def change(start: str, end: str) -> str:
    """From and to, with the relative change where there is one.

    >>> change("0.5", "0.6"), change("2", "gone")
    ('0.5 -> 0.6 (+20 %)', '2 -> gone')
    """
    share = math.nan if end == "gone" or not float(start) else float(end) / float(start) - 1
    return f"{start} -> {end}" + (f" ({100 * share:+.3g} %)" if math.isfinite(share) else "")


def released() -> Path:
    """Folder of the last release's numbers.

    Raises
    ------
    InputError
        If there is not exactly one.
    """
    folders = [path for path in RELEASED.glob("*") if path.is_dir()]
    if len(folders) != 1:
        raise InputError("data/released", f"{len(folders)} folders", "one, named by its version")
    return folders[0]


def keep(version: str) -> None:
    """Take the present numbers as those of a release."""
    for before in RELEASED.glob("*/"):
        shutil.rmtree(before)
    (RELEASED / version).mkdir(parents=True)
    for path in sorted(results.folder(SCENARIO).glob("*.csv")):
        shutil.copy(path, RELEASED / version)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", metavar="VERSION")
    version = parser.parse_args(arguments).keep
    if version:
        keep(version)
        return 0
    try:
        folder = released()
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    before, now = numbers(folder), numbers(results.folder(SCENARIO))
    told = lines(CHANGELOG.read_text("utf-8"), folder.name)
    silent = count = 0
    for name, start, end in moved(before, now):
        line = next((entry for entry in told if names(entry[2], name)), None)
        reason = f"{CHANGELOG.name}:{line[0]}: {line[1]}" if line else "no changelog line"
        print(f"{' '.join(name)}: {change(start, end)}; {reason}")
        count, silent = count + 1, silent + (line is None)
    print(
        f"{count} of {len(before):,} numbers moved since {folder.name}, {silent} of them without a "
        f"changelog line; {len(now.keys() - before.keys()):,} are new"
    )
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
