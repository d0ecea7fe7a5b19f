"""Costs of the four cells out of the results of ``70_combined``, case by case.

The rows are ``usd_per_million_output_tokens`` by ``cell`` and ``band``, the same by the closed
form, and ``feasible`` with what binds; their other coordinates tell the case. What a file leaves
out of these is the scenario's.
"""

from typing import Any

from kvpaper import answers, data, results, scenario
from kvpaper.scenario import Scenario

STEM = "70_combined"
CELLS = ("none", "disaggregated", "tiered", "both")
# The scenario at whose prices the published grid was replayed.
BASE = "h200-moe"
_COST = "usd_per_million_output_tokens"
_READ = {"quantity": (_COST, "feasible"), "kind": ("simulated", "predicted"), "cell": CELLS}
# Which of its cases are shown: it also varies inputs one at a time, the router and who shares a
# tier.
_SHOWN = {"varied": ("",), "router": ("", "prefix"), "scope": ("", "instance")}


def cases(own: Scenario) -> list[dict[str, Any]]:
    """Every case with all four cells: its coordinates, its prices, and the cells.

    A cell has its cost with the band, and what the closed form predicts, or what binds.

    >>> all(set(case["cells"]) == set(CELLS) for case in cases(scenario.load("quick")))
    True
    """
    at_home = {
        "model": own.model.name.rpartition("/")[2],
        "trace": own.workload.trace or "generated",
        "ttft_slo_s": own.slo.ttft_s,
        "tpot_slo_s": own.slo.tpot_s,
        "ceiling": own.workload.ceiling,
    }
    found: dict[tuple, dict[str, Any]] = {}
    for name, prices in ((own.name, _prices(own)), ("public", _prices(scenario.load(BASE)))):
        for row in _rows(name, _READ if name == own.name else _READ | _SHOWN):
            at = at_home | {key: _number(row[key]) for key in at_home if row.get(key)}
            new = {"own": name == own.name, "at": at, "prices": prices, "cells": {}}
            case = found.setdefault((name, *at.values()), new)
            cell = case["cells"].setdefault(row["cell"], {})
            if row["quantity"] == _COST:
                band = "predicted" if row["kind"] == "predicted" else row.get("band") or "middle"
                cell[band] = float(row["value"])
            elif not float(row["value"]):
                cell["binding"] = row["binding"]
    return [case for case in found.values() if set(case["cells"]) == set(CELLS)]


def _prices(of: Scenario) -> dict[str, str]:
    """What a GPU and a byte cost there, as written."""
    written = {leaf["input"]: leaf["written"] for leaf in of.inputs(("prices",))}
    titles = {"gpu": "a GPU", **answers.TIERS}
    names = {key: f"prices.{key}" for key in titles}
    return {titles[key]: written[name] for key, name in names.items() if name in written}


def _rows(name: str, wanted: dict[str, tuple[str, ...]]) -> list[dict[str, str]]:
    path = results.folder(name) / f"{STEM}.csv"
    rows = data.table(path) if path.exists() else []
    return [row for row in rows if all((row.get(key) or "") in wanted[key] for key in wanted)]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
