"""The experiments as subcommands of ``kvpaper measure``: tiers, factorial, disagg."""

import argparse
import json
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError
from kvpaper.lab import command

# Heavy imports wait until an experiment runs, so that --help stays fast.


def add_arguments(instruments: Any) -> None:
    """Add the experiments to the subcommands of ``measure``."""
    tiers = instruments.add_parser("tiers", help="fetch and store times of this machine's tiers")
    tiers.add_argument("--shapes", default="canary,paper", metavar="NAME,NAME")
    tiers.add_argument("--most-tokens", type=command.count, metavar="N", help="longest prefix")
    tiers.add_argument("--disk", type=Path, default=Path(), metavar="FOLDER", help="default: here")
    tiers.add_argument("--python", metavar="P", help="of an environment with LMCache")
    tiers.add_argument("--gpu-python", metavar="P", help="of one with a CUDA build of torch")
    command.record_arguments(tiers)
    tiers.set_defaults(measure=_tiers)

    factorial = instruments.add_parser("factorial", help="KV block cap by connector, cell by cell")
    command.engine_arguments(factorial)
    factorial.add_argument("--cells", metavar="CAP/CONNECTOR,...", help="default: all")
    text = "keep the cells that an interrupted call left in --runs"
    factorial.add_argument("--resume", action="store_true", help=text)
    command.record_arguments(factorial)
    factorial.set_defaults(measure=_factorial, kv_cache_bytes=1 << 29)


def _tiers(arguments: argparse.Namespace) -> int:
    from kvpaper.lab.tiers import run_tiers

    done = run_tiers(
        arguments.shapes.split(","),
        arguments.most_tokens,
        arguments.disk,
        arguments.python,
        arguments.gpu_python,
        **command.places(arguments),
    )
    return command.finished(done, arguments.json)


def _factorial(arguments: argparse.Namespace) -> int:
    from kvpaper.lab import factorial

    known = {f"{cap}/{connector}": (cap, connector) for cap, connector in factorial.cells()}
    names = arguments.cells.split(",") if arguments.cells else list(known)
    for name in names:
        if name not in known:
            raise InputError("--cells", repr(name), f"one of {', '.join(known)}")
    found = factorial.run_cells(
        command.settings(arguments),
        [known[name] for name in names],
        arguments.resume,
        **command.places(arguments),
    )
    if arguments.json:
        print(json.dumps(found, allow_nan=False))
    # The cell whose cap is too small is there to die.
    died = {"completed": False, "failed": True}
    as_meant = (
        died.get(one["outcome"]) == (one["parameters"]["cap"] == "too small") for one in found
    )
    return 0 if all(as_meant) else 1
