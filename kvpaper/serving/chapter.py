"""Rows of the chapter on fleets: the grid of a scenario, and four fleets of the same GPUs.

``python -m kvpaper.serving.chapter`` replays the shipped scenarios that name a public trace and
writes the rows that are committed, so that a machine without the trace shows the same.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpaper import data, results
from kvpaper.results import Row, row
from kvpaper.scenario import Reads, Scenario, load
from kvpaper.serving import build, measures, simulate
from kvpaper.serving.cells import CELLS
from kvpaper.serving.grid import Point, at
from kvpaper.serving.replay import replay
from kvpaper.serving.sweep import best, sweep
from kvpaper.traces import fetch
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.generated import NAME as GENERATED

if TYPE_CHECKING:
    import pandas

STEM = "60_fleet"
READS = (
    "model", "hardware", "serving", "fleet", "sweep", "slo", "prices", "workload.trace",
    "data/latency", "data/results/public",
)  # fmt: skip
# By whether pools are split and whether there is a tier.
_CELL = {levers: name for name, levers in CELLS.items()}
_SHARES = np.linspace(0.01, 0.99, 50).round(2).tolist()
_PARTS = 12


def of_scenario(case: Reads) -> "pandas.DataFrame":
    """Rows of a scenario on its trace, of which no more is read than ``READS``.

    Those that are committed where it names a public trace and has the values that they were
    replayed with. A generated trace stands in for a public one that is not at hand; a column
    ``instead_of`` says so.

    Raises
    ------
    InputError
        If the scenario, its trace or its grid is at fault.
    """
    scenario = case.whole(*READS)
    named = scenario.workload.trace
    if named in fetch.TRACES:
        kept = results.read("public", STEM)
        own = kept[kept.inputs == digest(scenario)].drop(columns="inputs")
        if len(own):
            return own.dropna(axis=1, how="all").reset_index(drop=True)
        if fetch.fetched(named) is None:
            return results.table(one | {"instead_of": named} for one in rows(scenario, None))
    return results.table(rows(scenario, named))


def digest(scenario: Scenario) -> str:
    """Checksum of the values that the rows follow from, without their sources."""
    leaves = scenario.inputs(READS)
    told = json.dumps({leaf["input"]: leaf["written"] for leaf in leaves}, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def public_rows(processes: int | None = None) -> list[Row]:
    """Rows of every shipped scenario that names a public trace, all of them at hand."""
    found = []
    for scenario in map(load, data.names("scenarios")):
        if scenario.workload.trace in fetch.TRACES:
            inputs = {"inputs": digest(scenario)}
            found += [one | inputs for one in rows(scenario, scenario.workload.trace, processes)]
    return found


def rows(scenario: Scenario, trace: str | None, processes: int | None = 1) -> list[Row]:
    """Rows of the grid and of the four cells, all of them simulated.

    Raises
    ------
    InputError
        If the scenario, the trace or the grid is at fault.
    """
    requests = simulate.read(trace, scenario.where("workload.trace"))
    requests = simulate.asked(requests, scenario.fleet.rate, 0)
    answer = sweep(scenario, requests, trace, processes=processes)
    table = build.fleet(scenario, requests).prefill.prefill_table
    cold_s = table.prefill_time(np.maximum(requests.input_tokens, 1))
    late_s = measures.percentile(cold_s, scenario.slo.percentile)
    found = [
        _row("requests", requests.requests, trace=trace or GENERATED),
        _row("duration_s", requests.duration_s),
        _row("failed_points", len(answer["failed"])),
        row("cold_prefill_s", late_s, table.kind),
        *_points(answer, scenario.slo.percentile),
    ]
    for one in _cells(answer, scenario).values():
        found += _cell(scenario, requests, one)
    return found


def _row(quantity: str, value: float, **at: Any) -> Row:
    return row(quantity, math.inf if value is None else value, "simulated", **at)


def _points(answer: dict[str, Any], percentile: float) -> Iterable[Row]:
    """Latency and cost of each point, and how it stands: on the frontier, or its knee.

    Where no point meets the targets the frontier is that of those that miss them.
    """
    points, cost = answer["points"], "usd_per_million_output_tokens"
    worth = answer if answer["frontier"] else best(points, percentile, lambda one: True)
    for number, one in enumerate(points):
        standing = "frontier" if number in worth["frontier"] else "beaten"
        where = _where(one) | {"standing": "knee" if number == worth["knee"] else standing}
        yield _row("feasible", float(one["feasible"]), binding=one["binding"], **where)
        yield _row(cost, one[cost], **where)
        yield _row("ttft_s", one["ttft_s"][f"p{percentile:g}"], **where)
        yield _row("tpot_s", _tpot_s(one, percentile), **where)


def _tpot_s(one: dict[str, Any], percentile: float) -> float:
    """Of answers of one token it is 0."""
    return one["tpot_s"][f"p{percentile:g}"] or 0.0


def _where(one: dict[str, Any]) -> dict[str, Any]:
    """Coordinates of a point."""
    model = one["cell"]["model"].rpartition("/")[2]
    return one["point"] | {"model": model, "gpus": one["cell"]["gpus"], "cell": _kind(one)}


def _kind(one: dict[str, Any]) -> str:
    return _CELL[":" in one["point"]["pools"], bool(one["cell"]["tiers"])]


def _cells(answer: dict[str, Any], scenario: Scenario) -> dict[str, dict[str, Any]]:
    """A point of each of the four kinds, all of the same GPUs and of the first model.

    The GPUs are those of the knee, or else the fewest for which the grid has all kinds. Of a kind,
    the point whose first token comes soonest, among those that meet the target for a token.
    """
    slo, late, points = scenario.slo, f"p{scenario.slo.percentile:g}", answer["points"]

    def rank(one: dict[str, Any]) -> tuple:
        return _tpot_s(one, slo.percentile) > slo.tpot_s, one["ttft_s"][late]

    alike = [one for one in points if one["cell"]["model"] == points[0]["cell"]["model"]]
    kinds: dict[int, dict[str, dict[str, Any]]] = {}
    for one in sorted((one for one in alike if one["ttft_s"][late] is not None), key=rank):
        kinds.setdefault(one["cell"]["gpus"], {}).setdefault(_kind(one), one)
    whole = {gpus: own for gpus, own in kinds.items() if len(own) == len(CELLS)}
    if not whole:
        return {}
    knee = answer["knee"]
    gpus = None if knee is None else points[knee]["cell"]["gpus"]
    own = whole.get(gpus) or whole[min(whole)]
    return {cell: own[cell] for cell in _CELL.values()}


def _cell(scenario: Scenario, requests: BlockTrace, one: dict[str, Any]) -> Iterable[Row]:
    """Times to the first token, hits by tier, and hits over time of one point."""
    chosen = at(scenario, Point.of(one["point"]))
    done = replay(build.fleet(chosen, requests), requests)
    where, cost = _where(one), "usd_per_million_output_tokens"
    yield _row(cost, one[cost], **where)
    times_s = measures.Window(done).ttft_s
    for share in sorted({*_SHARES, scenario.slo.percentile / 100}):
        yield _row("ttft_s", measures.percentile(times_s, 100 * share), share=share, **where)
    hits = one["hit_tokens"]
    whole = one["computed_tokens"] + sum(hits.values())
    for tier in ("hbm", *one["cell"]["tiers"]):
        yield _row("hit_share", hits[tier] / max(1, whole), tier=tier, **where)
    shares = measures.Window(done, warm_up=0.0).hit_shares(_PARTS)
    ends = [part[-1] for part in np.array_split(np.flatnonzero(~done.rejected), len(shares))]
    for at_s, share in zip(done.arrival_s[ends].tolist(), shares.tolist(), strict=True):
        yield _row("hit_share", share, at_s=at_s, **where)


if __name__ == "__main__":
    print(results.write(public_rows(), "public", STEM))
