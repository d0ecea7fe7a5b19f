"""The experiments as subcommands of ``kvpaper measure``: tiers, factorial, disagg."""

import argparse
from pathlib import Path
from typing import Any

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
