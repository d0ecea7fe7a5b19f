"""The command line. Thin: it reads arguments, calls one function, prints what it returns."""

import argparse
import json
import os
import re
import sys
from typing import Any, NoReturn

from kvpaper.advise import command as advise
from kvpaper.errors import InputError, hint
from kvpaper.lab import command as lab
from kvpaper.reuse import command as reuse
from kvpaper.serving import command as serving

# Each handler imports what it needs, so that --help stays fast.


def _size(arguments: argparse.Namespace) -> None:
    from kvpaper import models

    model = models.load(arguments.model)
    answer = models.size(model, arguments.tokens, arguments.dtype, arguments.tp)
    print(_json(answer) if arguments.json else models.render(answer))


def _evaluate(arguments: argparse.Namespace) -> None:
    from kvpaper import evaluate, results, scenario

    loaded = scenario.load(arguments.scenario)
    rows = evaluate.everything(loaded)
    if arguments.json:
        print(_json({"scenario": loaded.name, "rows": results.jsonable(rows)}))
    else:
        from kvpaper import answers

        print("\n\n".join(answers.all_of(loaded, results.table(rows))))
        print(f"\n{len(rows)} rows in all: kvpaper evaluate {arguments.scenario} --json")


def _diagnose(arguments: argparse.Namespace) -> int:
    from kvpaper import diagnose

    return diagnose.main(arguments.logs, arguments.json)


def _schema(_: argparse.Namespace) -> None:
    from kvpaper import scenario

    print(_json(scenario.schema()))


def _json(answer: dict[str, Any]) -> str:
    return json.dumps(answer, indent=1, allow_nan=False)


def _whole_number(text: str) -> int:
    digits = text.strip().replace(",", "").replace("_", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number such as 8192")
    return int(digits)


class _Parser(argparse.ArgumentParser):
    """Tells a wrong command line in one line, with the nearest word and the right usage."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if found:
            near = hint(found[1], re.findall(r"[\w-]+", found[2]))
            message = f"found {found[1]!r}{near}"
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        self.exit(2, f"{self.prog}: {message}; expected {usage}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kvpaper",
        description="How much DRAM and flash to buy for KV caches; whether to split prefill off.",
        epilog="Exit codes: 0 done, 2 bad input (one line says where), 1 a fault of kvpaper.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    size = commands.add_parser("size", help="what a model's KV cache takes")
    size.add_argument("model", metavar="MODEL_OR_CONFIG", help="a shipped name or a config.json")
    size.add_argument("--tokens", type=_whole_number, default=8192, metavar="N")
    size.add_argument("--dtype", metavar="D", help="default: the config's KV setting, else bf16")
    size.add_argument(
        "--tp", type=_whole_number, default=1, metavar="N", help="tensor parallel size"
    )
    size.add_argument("--json", action="store_true")
    size.set_defaults(run=_size)

    evaluate = commands.add_parser("evaluate", help="what the formulas predict for a scenario")
    evaluate.add_argument("scenario", metavar="SCENARIO", help="a name in data/scenarios or a file")
    evaluate.add_argument("--json", action="store_true")
    evaluate.set_defaults(run=_evaluate)

    for name, text, add_arguments, run in (
        ("reuse", "hit rates, tail and capacity of a log", reuse.add_arguments, reuse.run),
        ("simulate", "replay a log on a scenario's fleet", serving.add_arguments, serving.run),
        ("sweep", "replay a grid of fleets", serving.add_sweep_arguments, serving.run_sweep),
        ("advise", "what to buy, and whether to split", advise.add_arguments, advise.run),
        ("measure", "run an instrument of the lab", lab.add_arguments, lab.run),
    ):
        command = commands.add_parser(name, help=text)
        add_arguments(command)
        command.set_defaults(run=run)

    diagnose = commands.add_parser(
        "diagnose",
        help="why an engine did not start",
        description="The cause of a failed start, the line that proves it, and what to do next.",
        epilog="Exit codes: 0 a cause, 3 the log cannot tell, 4 healthy or degraded, 2 unreadable.",
    )
    diagnose.add_argument("logs", nargs="+", metavar="LOG", help="files, folders or -")
    diagnose.add_argument("--json", action="store_true")
    diagnose.set_defaults(run=_diagnose)

    schema = commands.add_parser("schema", help="JSON Schema of a scenario, for editors")
    schema.set_defaults(run=_schema)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
        return code or 0
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output went away; that is its choice and no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"output: found {error.strerror}, expected a place to write to", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
