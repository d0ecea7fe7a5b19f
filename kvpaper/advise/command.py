"""``kvpaper advise``: a scenario and a log in, the decision of the contract out."""

import argparse
import json
import os
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
    writes = report and os.access(report.resolve().parent, os.W_OK) and not report.is_dir()
    if report and not (writes and report.suffix in (".html", ".md")):
        raise InputError("--report", str(report), "a file to write, .html or .md")
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
    from kvpaper.serving.command import source_of
    from kvpaper.serving.simulate import read

    stated = scenarios.load(name)
    scenario, odd = decide.sized(stated), []
    source, where = source_of(stated, log)
    trace = read(source, where, odd.append)
    bench = decide.bench_of(scenario, trace)
    moved, number = flips.inputs(bench), count(1)

    def told(step: str) -> None:
        print(f"{next(number)} of {2 + len(moved)}: {step}", file=sys.stderr, flush=True)

    decision = decide.decide(bench, told)
    turned = list(flips.flips(decision, moved, told))
    found = answer(decision, turned)
    late = [one.key for one in moved if one not in [flip.input for flip in turned]]
    parts = ["kvpaper", "advise", name, *(["--trace", log] if log else [])]
    found |= {
        "trace": source or "generated",
        "warnings": odd + _warnings(found, stated, bench, trace, late),
        "inputs": stated.inputs(
            ("model", "hardware", "serving", "workload", "slo", "prices", "fleet")
        ),
        "command": shlex.join(parts),
    }
    return found, scenario


def _warnings(found: dict[str, Any], stated, bench, trace, late: list[str]) -> list[str]:
    from kvpaper import evaluate
    from kvpaper.answers import counted, duration, listed

    gpus, mean = counted(bench.case.gpus, "GPU"), float(trace.input_tokens.mean())
    asked, spans = stated.workload.prompt_tokens, duration(trace.duration_s)
    free = [n for n in stated.hardware.tiers if n not in ("hbm", *evaluate.priced_tiers(stated))]
    told = {
        f"no fleet is stated: taken as {gpus}": bench.case.scenario is not stated,
        f"of the log, superposed, {duration(bench.trace.duration_s)} are replayed": bench.trace
        is not trace,
        f"the log spans {spans}: what comes back later counts as new": True,
        f"its prompts have {mean:,.0f} tokens; slack is told for the scenario's {asked:,.0f}": not (
            0.8 < mean / asked < 1.25
        ),
        f"no price for {listed(free)}: not on offer": free,
        "latencies are predicted, not tabulated": not found["basis"]["tabulated"],
        f"for lack of time not moved: {listed(late)}": late,
        "pools come in whole instances: a larger fleet may divide better": True,
        "bands are those of the seeds; what formulas and tables leave out is not in them": True,
    }
    return [text for text, holds in told.items() if holds]
