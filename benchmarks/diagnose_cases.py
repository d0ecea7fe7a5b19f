"""Diagnose a folder of labelled cases, write the answers to data/incident/handed.csv, score them.

python benchmarks/diagnose_cases.py FOLDER
"""

import csv
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvpaper import data
from kvpaper.diagnose import diagnose
from kvpaper.diagnose.accuracy import score


def case_rows(folder: Path) -> list[dict[str, str]]:
    """The answers for a folder of labelled cases, one row a case.

    A case is a JSON file with ``id``, ``source``, ``log``, ``super_class``, ``evidence``,
    ``evidence_in_log`` and ``ambiguous``. Where the log lacks the deciding line, the right answer
    is insufficient.
    """
    return [
        _case_row(json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))
    ]


def _case_row(case: Mapping) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.log"
        path.write_text(case["log"], encoding="utf-8")
        answer = diagnose([path])
    expected = case["super_class"] if case["evidence_in_log"] else "insufficient"
    given = case["evidence"]
    shown = any(given[:40] in e["text"] or e["text"][:40] in given for e in answer["evidence"])
    return {
        "case": case["id"],
        "report": case["source"].partition(" (")[0],
        "ambiguous": "yes" if case["ambiguous"] else "no",
        "true_class": expected,
        "predicted_class": answer["cause"],
        "kind": answer["kind"],
        "confidence": answer["confidence"],
        "evidence_shown": "" if expected == "insufficient" else "yes" if shown else "no",
    }


def main(folder: Path) -> None:
    rows = case_rows(folder)
    path = data.FOLDER / "incident" / "handed.csv"
    with (
        data.replacing(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(score(row for row in rows if row["ambiguous"] == "no"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
