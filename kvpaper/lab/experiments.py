"""The experiments as subcommands of ``kvpaper measure``: tiers, factorial, disagg."""

import argparse
import json
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError
from kvpaper.lab import command

_LOOPS = "shared:0.3:1,sessions:0.3:2"

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

    disagg = instruments.add_parser("disagg", help="prefill and decode on two engines of this host")
    command.engine_arguments(disagg)
    kinds = ("nixl", "lmcache", "none")
    disagg.add_argument("--connector", default="nixl", choices=kinds, help="none: one engine")
    disagg.add_argument("--cap", type=command.count, default=64, metavar="N", help="KV blocks")
    text = "open loops, PATTERN:REQUESTS_PER_S:SEED; unique, shared or sessions"
    disagg.add_argument("--loops", default=_LOOPS, help=text)
    disagg.add_argument(
        "--requests", type=command.count, default=60, metavar="N", help="of a loop"
    )
    disagg.add_argument("--repeats", type=command.count, default=3, metavar="N")
    command.record_arguments(disagg)
    disagg.set_defaults(
        measure=_disagg, model="small-moe", threads=1, max_tokens=2048, kv_cache_bytes=1 << 29
    )


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


def _disagg(arguments: argparse.Namespace) -> int:
    from kvpaper.lab.disagg import run_disagg

    done = run_disagg(
        command.settings(arguments, cap_blocks=arguments.cap),
        arguments.connector,
        [_loop(text) for text in arguments.loops.split(",") if text],
        arguments.requests,
        arguments.repeats,
        **command.places(arguments),
    )
    return command.finished(done, arguments.json)


def _loop(text: str) -> tuple[str, float, int]:
    """``PATTERN:RATE:SEED``, such as ``shared:1.5:2``."""
    from kvpaper.lab.openloop import PATTERNS

    pattern, _, rest = text.partition(":")
    rate, _, seed = rest.partition(":")
    try:
        found = pattern, float(rate), int(seed)
    except ValueError:
        found = "", 0.0, 0
    if pattern not in PATTERNS or not 0 < found[1] < float("inf"):
        wanted = f"PATTERN:RATE:SEED with a pattern of {', '.join(PATTERNS)}"
        raise InputError("--loops", repr(text), wanted)
    return found
