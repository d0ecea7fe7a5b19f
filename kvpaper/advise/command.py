"""``kvpaper advise``: a scenario and a log in, the decision of the contract out."""

import argparse
import json
import shlex
import sys
from itertools import count
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError

# Functions import what they need, so that --help stays fast.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command; nothing heavy is imported for them."""
    parser.add_argument("scenario", metavar="SCENARIO", help="a name in data/scenarios or a file")
    parser.add_argument("--trace", metavar="T", help="a log, instead of the scenario's trace")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--report", type=Path, metavar="FILE", help="to write, .html or .md")


def run(arguments: argparse.Namespace) -> int:
    """Decide, print, write the report; Ctrl-C ends with 130 and leaves nothing behind."""
    report = arguments.report
    if report and not (report.suffix in (".html", ".md") and report.resolve().parent.is_dir()):
        raise InputError("--report", str(report), "a file in a folder, ending in .html or .md")
    try:
        answer, scenario = advise(arguments.scenario, arguments.trace)
        if report:
            from kvpaper.advise.report import write

            write(report, answer, scenario)
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    for warning in answer["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    from kvpaper.advise.report import text

    print(json.dumps(answer, indent=1, allow_nan=False) if arguments.json else text(answer))
    return 0


def advise(name: str, log: str | None = None) -> tuple[dict[str, Any], Any]:
    """The answer for a scenario and a log, and the scenario as it was decided for.

    Raises
    ------
    InputError
        If scenario, log or fleet is at fault.
    """
    from kvpaper import scenario as scenarios
    from kvpaper.advise import decide, flips
    from kvpaper.advise.answer import answer
    from kvpaper.serving.command import read

    stated = scenarios.load(name)
    scenario, source = decide.sized(stated), log or stated.workload.trace
    trace = read(source, "--trace" if log else "workload.trace")
    bench = decide.bench_of(scenario, trace)
    moved, number = flips.inputs(bench), count(1)

    def told(step: str) -> None:
        print(f"{next(number)} of {2 + len(moved)}: {step}", file=sys.stderr, flush=True)

    decision = decide.decide(bench, told)
    found = answer(decision, list(flips.flips(decision, moved, told)))
    parts = ["kvpaper", "advise", name, *(["--trace", log] if log else [])]
    found |= {
        "trace": source or "generated",
        "warnings": _warnings(found, stated, bench, trace),
        "inputs": stated.inputs(
            ("model", "hardware", "serving", "workload", "slo", "prices", "fleet")
        ),
        "command": shlex.join(parts),
    }
    return found, scenario


def _warnings(found: dict[str, Any], stated, bench, trace) -> list[str]:
    from kvpaper import evaluate
    from kvpaper.answers import counted, duration, listed

    told, workload = [], stated.workload
    if bench.case.scenario is not stated:
        told.append(
            f"no fleet is stated: taken as {counted(bench.case.gpus, 'GPU')}; bytes follow it"
        )
    if bench.trace is not trace:
        span = duration(bench.trace.duration_s)
        told.append(
            f"replayed for {span}, as superposed sessions: the fleet serves far more than the log"
        )
    told.append(f"the log spans {duration(trace.duration_s)}: what comes back later counts as new")
    mean = float(trace.input_tokens.mean())
    if not 0.8 < mean / workload.prompt_tokens < 1.25:
        own = f"prompts of the log have {mean:,.0f} tokens"
        told.append(f"{own}; the scenario's {workload.prompt_tokens:,.0f} give the slack")
    free = [n for n in stated.hardware.tiers if n not in ("hbm", *evaluate.priced_tiers(stated))]
    if free:
        told.append(f"no price for {listed(free)}: not on offer")
    if not found["basis"]["tabulated"]:
        told.append("latencies are predicted, not tabulated, for this model or these lengths")
    told.append("bands are those of the seeds; what formulas and tables leave out is not in them")
    return told
