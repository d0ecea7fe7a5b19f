"""Diagnose a folder of labelled cases, write the answers to data/incident/handed.csv, score them.

python benchmarks/diagnose_cases.py FOLDER
"""

import csv
import os
import sys
from pathlib import Path

from kvpaper import data
from kvpaper.diagnose.accuracy import case_rows, score


def main(folder: Path) -> None:
    rows = case_rows(folder)
    path = data.FOLDER / "incident" / "handed.csv"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)
    print(score(row for row in rows if row["ambiguous"] == "no"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
