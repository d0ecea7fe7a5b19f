"""``kvpaper simulate`` and ``sweep``: what is asked for in, the answer of the contract out."""

import argparse
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError

# Functions import what they need, so that --help stays fast.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command; nothing heavy is imported for them."""
    parser.add_argument("scenario", metavar="SCENARIO", help="a name in data/scenarios or a file")
    parser.add_argument("--trace", metavar="T", help="a log, instead of the scenario's trace")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Replay, answer, print; messages go to standard error."""
    from kvpaper.serving import simulate

    case = given(arguments.scenario, arguments.trace, arguments.seed)
    with _stated(case[0]):
        found = simulate.answer(*case)
    for warning in found["warnings"]:
        simulate.warn(warning)
    print(json.dumps(found, indent=1, allow_nan=False) if arguments.json else render(found))
    return 0


def add_sweep_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``sweep``: those of ``simulate`` and where it runs and keeps its points."""
    add_arguments(parser)
    parser.add_argument("--processes", type=int, metavar="N", help="default: all cores")
    parser.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler, as tcp://host:port")
    parser.add_argument("--keep", metavar="FOLDER", help="of finished points; default .cache/sweep")


def run_sweep(arguments: argparse.Namespace) -> int:
    """Replay the grid, answer, print; progress and messages go to standard error."""
    from kvpaper.serving import simulate, sweep

    processes = arguments.processes
    if processes is not None and not 1 <= processes <= 10**4:
        raise InputError("--processes", str(processes), "a whole number from 1 on")
    folder = sweep.FOLDER if arguments.keep is None else Path(arguments.keep)
    case = given(arguments.scenario, arguments.trace, arguments.seed)
    try:
        answer = sweep.sweep(*case, folder, processes, arguments.dask, _progress)
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {folder}", file=sys.stderr)
        return 130
    for warning in answer["warnings"]:
        simulate.warn(warning)
    reasons: dict[str, list[dict]] = {}
    for one in answer["failed"]:
        reasons.setdefault(one["reason"], []).append(one["point"])
    for reason, (first, *more) in reasons.items():
        words = ", ".join(f"{name} {value}" for name, value in first.items() if value is not None)
        others = f" and {len(more)} more" if more else ""
        print(f"failed: {words}{others}: {reason}", file=sys.stderr)
    print(json.dumps(answer, indent=1, allow_nan=False) if arguments.json else table(answer))
    return 0 if answer["points"] else 2


def _progress(done: int, of: int) -> None:
    """Tell every twentieth part."""
    if done * 20 // of > (done - 1) * 20 // of:
        print(f"{done} of {of} points", file=sys.stderr, flush=True)


def given(name: str, trace: str | None, seed: int) -> tuple:
    """Scenario, what its trace asks at the fleet's rate, the trace's name, seed.

    A generated trace stands in for a public one that the scenario names and that is not at hand,
    which a line on standard error tells.

    Raises
    ------
    InputError
        If scenario, trace or seed is at fault.
    """
    from kvpaper import scenario as scenarios
    from kvpaper.serving import simulate
    from kvpaper.traces import fetch

    if not 0 <= seed < 2**63:
        raise InputError("--seed", str(seed), "a whole number from 0 on")
    scenario = scenarios.load(name)
    named = scenario.workload.trace
    if trace is None and named in fetch.TRACES and fetch.fetched(named) is None:
        simulate.warn(f"no {named} (make traces): a generated trace instead")
        requests, source = simulate.read(None, ""), f"generated instead of {named}"
    else:
        source, where = source_of(scenario, trace)
        requests = simulate.read(source, where)
    with _stated(scenario):
        requests = simulate.asked(requests, scenario.fleet.rate, seed)
    return scenario, requests, source, seed


def source_of(scenario, trace: str | None) -> tuple[str | None, str]:
    """The log that is meant, and where it is named."""
    if trace is None:
        return scenario.workload.trace, scenario.where("workload.trace")
    return trace, "--trace"


@contextmanager
def _stated(scenario):
    """What a replay refuses is told by where the scenario states it."""
    table = scenario.serving.prefill.table
    keys = {
        "rate": "fleet.rate",
        "instances": "fleet.prefill.instances",
        "chunk_tokens": "fleet.chunk",
        "prefill.chunk_tokens": "fleet.chunk",
        "kv_tokens": "serving.prefill.table" if table else "hardware.tiers.hbm.capacity",
    }
    keys |= {f"tier {name}": f"hardware.tiers.{name}.capacity" for name in scenario.hardware.tiers}
    try:
        yield
    except InputError as error:
        key = keys.get(error.where)
        raise error.at(scenario.where(key)) if key else error from None


def render(answer: dict[str, Any]) -> str:
    """The answer for a person."""

    def of(name: str) -> str:
        points = answer[name].items()
        return ", ".join(f"{point} {_shown(value, 1e3)} ms" for point, value in points)

    tokens = answer["computed_tokens"] + sum(answer["hit_tokens"].values())
    hits = ", ".join(
        f"{name} {count / max(1, tokens):.1%}"
        for name, count in answer["hit_tokens"].items()
        if name in ("hbm", *answer["cell"]["tiers"])
    )
    verdict = "meets the targets" if answer["feasible"] else "misses the targets"
    usd = _shown(answer["usd_per_million_output_tokens"])
    return "\n".join(
        [
            f"{answer['requests']} requests on {answer['cell']['gpus']} GPUs, simulated: {verdict}",
            f"TTFT     {of('ttft_s')}",
            f"TPOT     {of('tpot_s')}",
            f"hits     {hits} of prompt tokens",
            f"cost     {usd} USD per million output tokens",
            f"energy   {_shown(answer['joules_per_million_output_tokens'], 1e-6)} MJ per million",
            f"binding  {answer['binding'].upper()}",
        ]
    )


def _shown(value: float | None, scale: float = 1.0) -> str:
    return "unknown" if value is None else f"{value * scale:.4g}"


_COLUMNS = "  {:>9} {:>9} {:>12} {:>5} {:>7} {:>9} {:>9}  {:<12} {}"


def table(answer: dict[str, Any]) -> str:
    """The points worth having, or the nearest to the targets, for a person."""
    targets, points = answer["targets"], answer["points"]
    late, names = f"p{targets['percentile']:g}", ("ttft_s", "tpot_s")
    meets = sum(one["feasible"] for one in points)
    lines = [
        f"{len(points)} points, simulated; {meets} meet the targets, {len(answer['failed'])} failed"
    ]
    shown = [points[index] for index in answer["frontier"]]
    if not shown and points:
        lines.append("none meets the targets; the nearest:")
        ever = [one for one in points if one["ttft_s"][late] is not None]
        ever.sort(key=lambda one: max((one[name][late] or 0) / targets[name] for name in names))
        shown = ever[:3]
    if not shown:
        return lines[0]
    head = (f"TTFT {late}", f"TPOT {late}", "USD/M tokens", "GPUs", "pools", "DRAM", "NVMe")
    lines.append(_COLUMNS.format(*head, "router", "model"))
    lines += [_line(one, late) for one in shown]
    if answer["knee"] is not None:
        lines[2 + answer["frontier"].index(answer["knee"])] += "  <- knee"
    return "\n".join(lines)


def _line(one: dict[str, Any], late: str) -> str:
    from kvpaper import units

    point, cell = one["point"], one["cell"]
    sizes = (point[name] for name in ("dram_bytes", "nvme_bytes"))
    return _COLUMNS.format(
        *(f"{_shown(one[name][late], 1e3)} ms" for name in ("ttft_s", "tpot_s")),
        _shown(one["usd_per_million_output_tokens"]),
        cell["gpus"],
        point["pools"],
        *(units.text(size, units.SIZES) if size else "none" for size in sizes),
        point["router"],
        cell["model"],
    )
