"""Costs of the four cells out of the results of a replay, case by case.

The rows are ``usd_per_million_output_tokens`` by ``cell`` and ``band``, and ``feasible`` with what
binds; their other coordinates tell the case. What a file leaves out of these is the scenario's.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvpaper import results
from kvpaper.scenario import Scenario

CELLS = ("none", "disaggregated", "tiered", "both")
_COST, _FEASIBLE = "usd_per_million_output_tokens", "feasible"
_OF_A_ROW = {"quantity", "kind", "value", "cell", "band", "binding"}


def cases(scenario: Scenario) -> list[dict[str, Any]]:
    """Every case with all four cells: its coordinates, and by cell its cost or what binds.

    >>> from kvpaper import scenario
    >>> all(set(case["cells"]) == set(CELLS) for case in cases(scenario.load("quick")))
    True
    """
    own = {
        "model": scenario.model.name.rpartition("/")[2],
        "trace": scenario.workload.trace or "generated",
        "ttft_slo_s": scenario.slo.ttft_s,
        "tpot_slo_s": scenario.slo.tpot_s,
        "ceiling": scenario.workload.ceiling,
    }
    found: dict[tuple, dict[str, Any]] = {}
    for name in (scenario.name, "public"):
        for row in _rows(results.folder(name)):
            at = own | {
                column: _number(text)
                for column, text in row.items()
                if text and column not in _OF_A_ROW
            }
            case = found.setdefault(tuple(at.items()), {"at": at, "cells": {}})
            cell = case["cells"].setdefault(row["cell"], {})
            if row["quantity"] == _COST:
                cell[row.get("band") or "middle"] = float(row["value"])
            elif not float(row["value"]):
                cell["binding"] = row["binding"]
    return [case for case in found.values() if set(case["cells"]) == set(CELLS)]


def _rows(folder: Path) -> Iterator[dict[str, str]]:
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                is_cell = row.get("cell") in CELLS and row["kind"] == "simulated"
                if is_cell and row["quantity"] in (_COST, _FEASIBLE):
                    yield row


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
