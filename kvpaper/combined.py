"""The experiment behind the title: pools x tiers over models, traces, targets, routing and scope.

``python -m kvpaper.combined`` replays the grid and writes the rows that are committed. A finished
task is kept under the checksum of all that it follows from, so that a run goes on where it stopped.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import inf, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvpaper import data, evaluate, results
from kvpaper.errors import InputError
from kvpaper.parallel import map_tasks
from kvpaper.results import Row
from kvpaper.scenario import Reads, Scenario, load
from kvpaper.serving import arrivals, grid
from kvpaper.serving.case import Case, Configuration
from kvpaper.serving.cells import Bench, Cell, best_cells, rows
from kvpaper.serving.simulate import read
from kvpaper.serving.sweep import checksum
from kvpaper.traces import fetch, generated
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.load import read_trace

FOLDER = data.FOLDER.parent / ".cache" / "combined"
BASE = "h200-moe"
# Of the usual way to run a model: enough to split finely, few enough that the whole grid is
# replayed within an hour or two on two cores. Of a user's fleet at least so many that it splits.
_INSTANCES, _LEAST = 8, 4
TABLES = ("qwen3-235b-fp8", "deepseek-v3", "llama-3.1-70b", "gpt-oss-120b", "qwen3-30b-a3b")
TRACES = ("mooncake_conversation", "mooncake_synthetic", "mooncake_conversation_strangers")
TTFTS_S, TTFT_S, TPOT_S = (2.0, 5.0, 1.0, 0.5), 2.0, 0.04
# Varied one at a time on the first trace: target, prices, rates of a GPU; for all models the fleet.
VARIED = TABLES[:3]
PRICES = {"dram price": "dram", "nvme price": "nvme", "gpu price": "gpu_usd_per_s"}
VALUES = {
    "tpot": (0.025, 0.04, 0.08, 0.15),
    "disk": (0.5e9, 1.5e9, 3e9, 7e9, 14e9),
    "nic": (0.25e9, 1.25e9, 3e9, 12.5e9, 50e9),
    "gpus": (4, 8),
}
INPUTS = (*VALUES, *PRICES)
_PREFIX_TOKENS, _STRANGERS = 8192, "_strangers"
# Of a user's scenario: what must be declared, and a generated trace whose replays take seconds.
READS = ("model", "hardware", "serving", "fleet", "workload", "slo", "prices")
_REQUESTS = 6000


class Task(NamedTuple):
    """What one process does at a time: the benches that share replays.

    ``scopes`` of the tiers are compared, or, at one pair of targets, the values of ``varied``.
    """

    table: str
    trace: str
    router: str = "prefix"
    scopes: tuple[str, ...] = ("instance",)
    varied: tuple[str, ...] = ()


def tasks() -> list[Task]:
    """The main grid, routing at random for two of its traces, and the varied inputs."""
    two = TRACES[:2]
    main = [
        Task(table, trace, scopes=("instance", "pooled") if trace in two else ("instance",))
        for trace, table in product(TRACES, TABLES)
    ]
    random = [Task(table, trace, "random") for trace, table in product(two, TABLES)]
    varied = [
        Task(table, TRACES[0], varied=INPUTS if table in VARIED else ("gpus",)) for table in TABLES
    ]
    return main + random + varied


def case_of(table: str, router: str = "prefix") -> Scenario:
    """The shipped scenario of H200 GPUs with another tabulated model and a fleet to split.

    Each GPU has the tiers and the link that it has there; the targets are those of the experiment.
    """
    base = load(BASE).changed({"slo.ttft_s": TTFT_S, "slo.tpot_s": TPOT_S})
    held = (base.hardware.tiers[tier].capacity_bytes for tier in ("dram", "nvme"))
    return grid.at(base, grid.Point((_INSTANCES,), *held, router, table))


@lru_cache(maxsize=1)
def trace_of(name: str, folder: Path = fetch.FOLDER) -> BlockTrace:
    """A public trace; by its name with ``_strangers``, one whose sessions are half strangers.

    Raises
    ------
    InputError
        If it is not at hand.
    """
    path = fetch.fetched(name.removesuffix(_STRANGERS), folder)
    if path is None:
        raise InputError("trace", f"no {name} in {folder}", "it fetched: make traces")
    trace = read_trace([path], processes=1)
    return arrivals.strangers(trace) if name.endswith(_STRANGERS) else trace


def _short(scenario: Scenario) -> str:
    """The model's name without its publisher."""
    return scenario.model.name.rpartition("/")[2]


def _point(
    bench: Bench, near: dict[str, Cell] | None = None, **at: Any
) -> tuple[dict[str, Cell], list[Row]]:
    """The four cells, and their rows at their coordinates."""
    found, case = best_cells(bench, near), bench.case
    at = {
        "model": _short(case.scenario),
        "ceiling": bench.load.curve.ceiling,
        "router": case.base.router,
        "scope": case.offers[0][0].scope if case.offers else "instance",
        "ttft_slo_s": case.scenario.slo.ttft_s,
        "tpot_slo_s": case.scenario.slo.tpot_s,
        "varied": "",
        "at": np.nan,
    } | at
    return found, [row | at for row in rows(bench, found)]


def _cold(bench: Bench, trace: str) -> Row:
    """Prefill time of a long prompt that no cache knows, on the usual instance."""
    case = bench.case
    prefill_s = case.ways[0].prefill.prefill_table.prefill_time(bench.trace.input_tokens)
    value = float(np.percentile(prefill_s, case.scenario.slo.percentile))
    kind, model = case.base.prefill.prefill_table.kind, _short(case.scenario)
    return results.row("cold_prefill_s", value, kind, model=model, trace=trace)


def task_rows(task: Task, folder: Path = fetch.FOLDER) -> list[Row]:
    """Rows of one task; the best of near targets is tried first at the next."""
    trace, scenario = trace_of(task.trace, folder), case_of(task.table, task.router)
    bench = Bench(Case.of(scenario, trace), trace)
    if task.varied:
        return _varied_rows(bench, task)
    prefix = task.router == "prefix"
    found = [_cold(bench, task.trace)] if prefix else []
    for scope in task.scopes:
        scoped, near = bench.on(bench.case.offering(scope=scope)), None
        for ttft_s in TTFTS_S if prefix else TTFTS_S[:2]:
            aimed = scoped.changed({"slo.ttft_s": ttft_s})
            near, more = _point(aimed, near, trace=task.trace)
            found += more
    return found


def _varied_rows(bench: Bench, task: Task) -> list[Row]:
    near, found = best_cells(bench), []
    for varied, at, other in _variations(bench):
        if varied in task.varied:
            known = near if other.case.offers is bench.case.offers else None  # else of other rates
            found += _point(other, known, trace=task.trace, varied=varied, at=at)[1]
    return found


def _variations(bench: Bench) -> Iterator[tuple[str, float, Bench]]:
    """Every input at every value: its name, the value, and on what to find the cells."""
    case, scenario = bench.case, bench.case.scenario
    for tpot_s in VALUES["tpot"]:
        yield "tpot", tpot_s, bench.changed({"slo.tpot_s": tpot_s})
    for name, price in PRICES.items():
        ends = (scenario.low, scenario.prices, scenario.high)
        for value in dict.fromkeys(getattr(end, price) for end in ends):
            yield name, value, bench.changed({f"prices.{price}": value})
    disk = next(offer[0] for offer in case.offers if offer[0].name == "nvme")
    for rate in VALUES["disk"]:
        written = rate * disk.write_bytes_per_s / disk.read_bytes_per_s
        rates = {"read_bytes_per_s": rate, "write_bytes_per_s": written}
        yield "disk", rate, bench.on(case.offering(("nvme",), **rates))
    for rate in VALUES["nic"]:
        of_instance = {"serving.transfer.rate_bytes_per_s": rate * scenario.hardware.gpus}
        yield "nic", rate, bench.on(Case.of(scenario.changed(of_instance), bench.trace))
    for instances in VALUES["gpus"]:  # what the choice of whole instances costs
        sized = Case.of(scenario.changed({"fleet.prefill.instances": instances}), bench.trace)
        yield "gpus", float(sized.gpus), bench.on(sized)


def flips(found: Iterable[Row]) -> list[Row]:
    """Values of one input at which another cell becomes the cheapest, for each model.

    Between two neighbouring values at which the cheapest cell is so beyond noise, the ratio of the
    two cells' costs is interpolated in logarithms; ``low`` and ``high`` are those values. Where one
    of the two misses the targets at one of them, the value is the geometric middle.
    """
    series: dict[tuple, dict[float, dict]] = {}
    for row in found:
        base = (row.get("trace"), row.get("router"), row.get("scope"))
        if base != (TRACES[0], "prefix", "instance"):
            continue
        main = not row["varied"]
        key = (row["model"], "ttft" if main else row["varied"])
        point = series.setdefault(key, {}).setdefault(row["ttft_slo_s" if main else "at"], {})
        if (row["quantity"], row["kind"]) == ("usd_per_million_output_tokens", "simulated"):
            if row["band"] == "middle":
                point[row["cell"]] = row["value"]
        elif row["quantity"] == "log_saving" and row["band"] == "low" and not row["value"] <= 0:
            point["cheapest"] = row["cell"]
    return [row for (model, name), points in series.items() for row in _flips(model, name, points)]


def _flips(model: str, name: str, points: dict[float, dict]) -> Iterator[Row]:
    sure = sorted((at, point) for at, point in points.items() if "cheapest" in point)
    for (low, before), (high, after) in pairwise(sure):
        old, new = before["cheapest"], after["cheapest"]
        if old == new:
            continue
        ends = [point.get(new, inf) / point.get(old, inf) for point in (before, after)]
        share = log(ends[0]) / log(ends[0] / ends[1]) if ends[1] > 0 and ends[0] < inf else 0.5
        value = low * (high / low) ** share
        at = {"model": model, "input": name, "to": new, "over": old, "low": low, "high": high}
        yield results.row("flips_at", value, "simulated", **at)


def intervals() -> list[Row]:
    """How long a prefix may stay away from each tier, by model."""
    found = evaluate.intervals_by_model(load(BASE), (_PREFIX_TOKENS,), ("bf16",))
    return [row for row in found if row["quantity"] == "break_even_interval_s"]


def of_scenario(scenario: Scenario | Reads) -> list[Row]:
    """The same rows for a scenario at its own targets: four cells, cold prefill, intervals.

    A fleet of one instance cannot be split and is taken as four. In place of a public trace a
    generated one is replayed, so that the rows take seconds and do not depend on what is at hand;
    the coordinate ``trace`` says so.

    Raises
    ------
    InputError
        If the trace, by its path, or the fleet is at fault.
    """
    case = scenario.whole(*READS) if isinstance(scenario, Reads) else scenario
    if case.fleet.decode is None and case.fleet.prefill.instances == 1:
        case = case.changed({"fleet.prefill.instances": _LEAST})
    name = case.workload.trace
    if name is None or name in fetch.TRACES:
        name, trace = generated.NAME, _generated(case)
    else:
        name, trace = Path(name).stem, read(name, case.where("workload.trace"))
    bench = Bench(Case.of(case, trace), trace)
    found = _point(bench, trace=name)[1]
    free = [row for row in evaluate.intervals(case) if row["loading"] == "free"]
    found += [row | {"model": _short(case)} for row in free]
    return [_cold(bench, name), *found]


def _generated(scenario: Scenario) -> BlockTrace:
    """A generated trace near the rate that the fleet can serve, with as many requests as needed.

    Times between turns stay as they are, so that a fast fleet sees the less of each session.
    """
    trace = generated.conversations()
    bench = Bench(Case.of(scenario, trace), trace)
    case, way = bench.case, bench.case.ways[0]
    most = Configuration(way, case.gpus // way.gpus, tiers=case.stocks()[-1])
    seconds = _REQUESTS / max(bench.predicted(most)[0], bench.load.requests_per_s)
    sessions = round(_REQUESTS * len(np.unique(trace.session)) / trace.requests)
    trace = generated.conversations(sessions, 0, seconds)
    return trace.select(np.flatnonzero(trace.arrival_s <= seconds))


def _kept(task: Task, common: tuple[Path, Path]) -> list[Row]:
    """Rows of a task, from its file if it has been done."""
    folder, kept = common
    key = checksum(case_of(task.table, task.router), trace_of(task.trace, folder), repr(task), 0)
    path = kept / f"{key}.json"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        with data.replacing(path) as temporary:
            temporary.write_text(json.dumps(task_rows(task, folder)), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def public_rows(
    folder: Path = fetch.FOLDER,
    chosen: Sequence[Task] | None = None,
    kept: Path = FOLDER,
    processes: int | None = 2,
) -> list[Row]:
    """All rows: the cells of every point, cold prefills, flips, break-even intervals.

    Parameters
    ----------
    folder : pathlib.Path
        Where the public traces are.
    chosen : sequence of Task, optional
        Instead of :func:`tasks`.
    kept : pathlib.Path
        Where the rows of finished tasks are kept.
    processes : int, optional

    Raises
    ------
    InputError
        If a trace is not at hand, or a search ends on its bound.
    """
    chosen, found = tasks() if chosen is None else chosen, []
    made = map_tasks(_kept, chosen, processes, common=(folder, kept))
    for done, (task, more) in enumerate(zip(chosen, made, strict=True), 1):
        print(f"{done} of {len(chosen)}: {task}", file=sys.stderr, flush=True)
        found += more
    return found + flips(found) + intervals()


if __name__ == "__main__":
    try:
        print(results.write(public_rows(), "public", "70_combined"))
    except InputError as error:
        sys.exit(str(error))
