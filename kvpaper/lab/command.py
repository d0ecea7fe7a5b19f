"""``kvpaper measure``: the instruments of the lab, and the check of their records."""

import argparse
import json
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError

# Heavy imports wait until an instrument runs, so that --help stays fast.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The instruments as subcommands of ``measure``."""
    instruments = parser.add_subparsers(dest="instrument", metavar="INSTRUMENT", required=True)
    _add_canary(instruments)
    _add_tiers(instruments)
    _add_factorial(instruments)
    _add_disagg(instruments)
    checking = instruments.add_parser("check", help="check every record")
    checking.add_argument("folder", nargs="?", type=Path, help="default: data/measured")
    checking.set_defaults(measure=_check)
    instruments.add_parser("schema", help="JSON Schema of a record").set_defaults(measure=_schema)


def run(arguments: argparse.Namespace) -> int:
    """Run one instrument; Ctrl-C leaves a record and ends with 130."""
    try:
        return arguments.measure(arguments)
    except KeyboardInterrupt:
        return 130


def _instrument(instruments: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add an instrument with the options of every one."""
    parser = instruments.add_parser(name, help=text)
    option = parser.add_argument
    option("--records", type=Path, metavar="FOLDER", help="default: data/measured")
    option("--runs", type=Path, default=Path("runs"), metavar="FOLDER")
    option("--json", action="store_true", help="print the record")
    return parser


def _engine_options(parser: argparse.ArgumentParser) -> None:
    """How an engine is started, for every instrument that starts one; see `engine.Settings`."""
    option = parser.add_argument
    option("--model", default="canary", metavar="SHAPE", help="or a model's folder")
    option("--python", default=".engine/bin/python", metavar="P")
    option("--image", metavar="NAME@sha256:...", help="a container instead")
    option("--dtype", default="float32", choices=("float32", "bfloat16"))
    option("--memory-utilization", type=positive, default=0.1, metavar="X")
    option("--kv-cache-bytes", type=count, default=1 << 29, metavar="N")
    option("--max-tokens", type=count, default=4096, metavar="N")
    option("--threads", type=count, default=2, metavar="N")
    option("--start-s", type=positive, default=600, metavar="S", help="deadline")
    option("--request-s", type=positive, default=120, metavar="S", help="deadline")


def _settings(arguments: argparse.Namespace) -> Any:
    """`engine.Settings` from the options; a shape's weights are made where needed."""
    from kvpaper.lab import engine, weights

    names = {field.name for field in fields(engine.Settings)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    if arguments.model in weights.SHAPES:
        given["model"] = str(weights.model(arguments.model))
    engine.vocabulary(given["model"])  # refuses what is no model
    return engine.Settings(**given)


def _places(arguments: argparse.Namespace) -> dict[str, Path]:
    from kvpaper.lab import records

    return {"runs": arguments.runs, "folder": arguments.records or records.FOLDER}


def _finished(arguments: argparse.Namespace, record: dict[str, Any]) -> int:
    """Print the record if asked; exit code 0 if it is of a completed run, else 1."""
    if arguments.json:
        print(json.dumps(record, allow_nan=False))
    return 0 if record["outcome"] == "completed" else 1


def _add_canary(instruments: Any) -> None:
    parser = _instrument(instruments, "canary", "one engine: does it live, TTFT by hit level")
    _engine_options(parser)
    option = parser.add_argument
    kinds = ("none", "lmcache", "lmcache-in-process")
    option("--connector", default="none", choices=kinds)
    option("--cap", dest="cap_blocks", type=count, metavar="N", help="upper limit of KV blocks")
    option("--lengths", type=counts, default=[256, 1024], metavar="N,N")
    option("--repeats", type=count, default=5, metavar="N")
    text, modes = "of the LMCache server", ("auto", "engine_driven", "lmcache_driven")
    option("--transfer-mode", default="auto", choices=modes, help=text)
    option("--l1-bytes", type=count, default=1 << 30, metavar="N", help="its DRAM")
    option("--disk", type=Path, metavar="FOLDER", help="of its disk tier")
    parser.set_defaults(measure=_canary)


def _canary(arguments: argparse.Namespace) -> int:
    from kvpaper.lab.canary import run_canary

    chosen = _settings(arguments)
    if arguments.disk and not arguments.disk.is_dir():
        raise InputError("--disk", str(arguments.disk), "a folder")
    if (longest := max(arguments.lengths)) >= arguments.max_tokens:
        raise InputError("--lengths", str(longest), f"less than --max-tokens {chosen.max_tokens}")
    done = run_canary(
        chosen,
        arguments.connector,
        arguments.lengths,
        arguments.repeats,
        mode=arguments.transfer_mode,
        l1_bytes=arguments.l1_bytes,
        disk=arguments.disk,
        **_places(arguments),
    )
    return _finished(arguments, done.record)


def _add_tiers(instruments: Any) -> None:
    parser = _instrument(instruments, "tiers", "fetch times of this machine's tiers")
    option = parser.add_argument
    option("--shapes", default="canary,paper", metavar="NAME,NAME")
    option("--most-tokens", type=count, metavar="N", help="longest prefix")
    option("--disk", type=Path, default=Path(), metavar="FOLDER", help="default: here")
    option("--python", metavar="P", help="of an environment with LMCache")
    option("--gpu-python", metavar="P", help="of one with a CUDA build of torch")
    parser.set_defaults(measure=_tiers)


def _tiers(arguments: argparse.Namespace) -> int:
    from kvpaper.lab.tiers import run_tiers

    shapes, pythons = arguments.shapes.split(","), (arguments.python, arguments.gpu_python)
    at = _places(arguments)
    done = run_tiers(shapes, arguments.most_tokens, arguments.disk, *pythons, **at)
    return _finished(arguments, done.record)


def _add_factorial(instruments: Any) -> None:
    parser = _instrument(instruments, "factorial", "KV block cap by connector, cell by cell")
    _engine_options(parser)
    option = parser.add_argument
    option("--cells", metavar="CAP/CONNECTOR,...", help="default: all")
    text = "keep the cells that an interrupted call left in --runs"
    option("--resume", action="store_true", help=text)
    parser.set_defaults(measure=_factorial)


def _factorial(arguments: argparse.Namespace) -> int:
    from kvpaper.lab import factorial

    known = {f"{cap}/{connector}": (cap, connector) for cap, connector in factorial.cells()}
    names = arguments.cells.split(",") if arguments.cells else list(known)
    for name in names:
        if name not in known:
            raise InputError("--cells", repr(name), f"one of {', '.join(known)}")
    chosen = [known[name] for name in names]
    at = _places(arguments)
    found = factorial.run_cells(_settings(arguments), chosen, arguments.resume, **at)
    if arguments.json:
        print(json.dumps(found, allow_nan=False))
    # The cell whose cap is too small is there to die.
    died = {"completed": False, "failed": True}
    as_meant = (
        died.get(one["outcome"]) == (one["parameters"]["cap"] == "too small") for one in found
    )
    return 0 if all(as_meant) else 1


def _add_disagg(instruments: Any) -> None:
    text = "prefill and decode on two engines of this host"
    parser = _instrument(instruments, "disagg", text)
    _engine_options(parser)
    option = parser.add_argument
    kinds = ("nixl", "lmcache", "none")
    option("--connector", default="nixl", choices=kinds, help="none: one engine")
    option("--cap", dest="cap_blocks", type=count, default=64, metavar="N", help="KV blocks")
    default = "shared:0.4:1,sessions:0.4:2"
    text = "open loops, PATTERN:LOAD:SEED; unique, shared or sessions; load 1: a request at a time"
    option("--loops", default=default, help=text)
    option("--requests", type=count, default=60, metavar="N", help="of a loop")
    option("--repeats", type=count, default=3, metavar="N")
    parser.set_defaults(measure=_disagg, model="small-moe", threads=1, max_tokens=2048)


def _disagg(arguments: argparse.Namespace) -> int:
    from kvpaper.lab.disagg import run_disagg

    loops = [loop(text) for text in arguments.loops.split(",") if text]
    counted, at = (arguments.requests, arguments.repeats), _places(arguments)
    done = run_disagg(_settings(arguments), arguments.connector, loops, *counted, **at)
    return _finished(arguments, done.record)


def _check(arguments: argparse.Namespace) -> int:
    from kvpaper.lab import records

    folder = arguments.folder or records.FOLDER
    if not folder.is_dir():
        raise InputError(str(folder), "no folder", "a folder of records")
    number, problems = records.check(folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{number} records, {len(problems)} problems")
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


def positive(text: str) -> float:
    """A finite number above 0, as an argument."""
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")


def counts(text: str) -> list[int]:
    """Several of them, with commas between."""
    return [count(part) for part in text.split(",")]


def loop(text: str) -> tuple[str, float, int]:
    """``PATTERN:LOAD:SEED``, such as ``shared:0.4:2``; see `disagg.run_disagg`."""
    from kvpaper.lab.openloop import PATTERNS

    try:
        pattern, load, seed = text.split(":")
        found = pattern, float(load), int(seed)
    except ValueError:
        found = "", 0.0, 0
    if found[0] not in PATTERNS or not 0 < found[1] < float("inf"):
        wanted = f"PATTERN:LOAD:SEED with a pattern of {', '.join(PATTERNS)}"
        raise InputError("--loops", repr(text), wanted)
    return found
