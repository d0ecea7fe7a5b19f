"""``kvpaper measure``: the instruments of the lab, and the check of their records."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError

# Heavy imports wait until an instrument runs, so that --help stays fast.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The instruments as subcommands of ``measure``."""
    instruments = parser.add_subparsers(dest="instrument", metavar="INSTRUMENT", required=True)
    canary = instruments.add_parser("canary", help="one engine: does it live, TTFT by hit level")
    engine_arguments(canary)
    kinds = ("none", "lmcache", "lmcache-in-process")
    canary.add_argument("--connector", default="none", choices=kinds)
    canary.add_argument("--cap", type=count, metavar="N", help="upper limit of KV blocks")
    canary.add_argument("--lengths", type=counts, default=[256, 1024], metavar="N,N")
    canary.add_argument("--repeats", type=count, default=5, metavar="N")
    modes, text = ("auto", "engine_driven", "lmcache_driven"), "of the LMCache server"
    canary.add_argument("--transfer-mode", default="auto", choices=modes, help=text)
    canary.add_argument("--l1-bytes", type=count, default=1 << 30, metavar="N", help="its DRAM")
    canary.add_argument("--disk", type=Path, metavar="FOLDER", help="of its disk tier")
    record_arguments(canary)
    canary.set_defaults(measure=_canary)

    from kvpaper.lab import experiments  # which use what is below

    experiments.add_arguments(instruments)

    check = instruments.add_parser("check", help="check every record")
    check.add_argument("folder", nargs="?", type=Path, help="default: data/measured")
    check.set_defaults(measure=_check)
    schema = instruments.add_parser("schema", help="JSON Schema of a record")
    schema.set_defaults(measure=_schema)


def engine_arguments(parser: argparse.ArgumentParser) -> None:
    """How an engine is started, for every instrument that starts one."""
    parser.add_argument("--model", default="canary", metavar="SHAPE", help="or a model's folder")
    parser.add_argument("--python", default=".engine/bin/python", metavar="P")
    parser.add_argument("--image", metavar="NAME@sha256:...", help="a container instead")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--memory-utilization", type=float, default=0.1, metavar="X")
    parser.add_argument("--kv-cache-bytes", type=count, default=1 << 29, metavar="N")
    parser.add_argument("--max-tokens", type=count, default=4096, metavar="N")
    parser.add_argument("--threads", type=count, default=2, metavar="N")
    parser.add_argument("--start-s", type=float, default=600, metavar="S", help="deadline")
    parser.add_argument("--request-s", type=float, default=120, metavar="S", help="deadline")


def record_arguments(parser: argparse.ArgumentParser) -> None:
    """Where records and run folders go, for every instrument."""
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="default: data/measured")
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print the record")


def settings(arguments: argparse.Namespace, **more: Any) -> Any:
    """`engine.Settings` from `engine_arguments`; a shape's weights are made where needed."""
    from kvpaper.lab import engine, weights

    model = arguments.model
    if model in weights.SHAPES:
        model = str(weights.model(model))
    engine.vocabulary(model)
    names = ("python", "image", "dtype", "memory_utilization", "kv_cache_bytes", "max_tokens")
    names += ("threads", "start_s", "request_s")
    given = {name: getattr(arguments, name) for name in names}
    return engine.Settings(model=model, **given, **more)


def places(arguments: argparse.Namespace) -> dict[str, Path]:
    """Keyword arguments of `capture.Run` from `record_arguments`."""
    from kvpaper.lab import records

    return {"runs": arguments.runs, "folder": arguments.records or records.FOLDER}


def finished(run: Any, as_json: bool) -> int:
    """Print the record if asked; exit code 0 if it is of a completed run, else 1."""
    if as_json:
        print(json.dumps(run.record, allow_nan=False))
    return 0 if run.record["outcome"] == "completed" else 1


def run(arguments: argparse.Namespace) -> int:
    """Run one instrument; Ctrl-C leaves a record and ends with 130."""
    measure: Callable[[argparse.Namespace], int] = arguments.measure
    try:
        return measure(arguments)
    except KeyboardInterrupt:
        return 130


def _canary(arguments: argparse.Namespace) -> int:
    from kvpaper.lab.canary import run_canary

    chosen = settings(arguments, cap_blocks=arguments.cap)
    if arguments.disk and not arguments.disk.is_dir():
        raise InputError("--disk", str(arguments.disk), "a folder")
    done = run_canary(
        chosen,
        arguments.connector,
        arguments.lengths,
        arguments.repeats,
        mode=arguments.transfer_mode,
        l1_bytes=arguments.l1_bytes,
        disk=arguments.disk,
        **places(arguments),
    )
    return finished(done, arguments.json)


def _check(arguments: argparse.Namespace) -> int:
    from kvpaper.lab import records

    folder = arguments.folder or records.FOLDER
    if not folder.is_dir():
        raise InputError(str(folder), "no folder", "a folder of records")
    count, problems = records.check(folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{count} records, {len(problems)} problems")
    return 2 if problems else 0


def _schema(_: argparse.Namespace) -> int:
    from kvpaper.lab import records

    print(json.dumps(records.schema(), indent=1))
    return 0


def count(text: str) -> int:
    """A whole number above 0, as an argument."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 53):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number above 0")
    return int(text)


def counts(text: str) -> list[int]:
    """Several of them, with commas between."""
    return [count(part) for part in text.split(",")]
