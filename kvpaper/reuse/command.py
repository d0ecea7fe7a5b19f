"""``kvpaper reuse``: logs in, the answer of the contract out."""

import argparse
import json
import sys
from typing import Any

_OPTIONS = (
    ("--model", "M", str, "a model, to tell capacities in bytes and what a hit is worth"),
    ("--dtype", "D", str, "element of its KV cache"),
    ("--capacities", "C,...", str, "in blocks, or in bytes such as 100GB with --model"),
    ("--tiers", "NAME=C,...", str, "capacities of a stack, fastest first; each tier's hits"),
    ("--policy", "P,...", str, "other policies too: fifo, s3fifo, sieve, belady, ..."),
    ("--sample", "R", float, "share of blocks to sample, such as 0.01"),
    ("--break-even", "S", float, "seconds; adds the table of timers"),
    ("--block-tokens", "N", int, "tokens of a block, where the log does not tell"),
    ("--columns", "OURS=THEIRS,...", str, "arrival_s (or _ms, _us), input_tokens, blocks, ..."),
    ("--processes", "N", int, "default: all cores"),
    ("--dask", "ADDRESS", str, "a Dask scheduler, as tcp://host:port"),
    ("--save", "F", str, "write the block trace as Parquet"),
    ("--figure", "F", str, "draw the curve"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command; nothing heavy is imported for them."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="log files or folders of them")
    for name, metavar, kind, text in _OPTIONS:
        parser.add_argument(name, metavar=metavar, type=kind, help=text)
    parser.add_argument("--tokenizer", default="builtin", metavar="F", help="a tokenizer.json")
    choices, text = ("component", "prefix"), "RAGPulse: items wherever they stand, or in order"
    parser.add_argument("--components", choices=choices, default=choices[0], help=text)
    parser.add_argument("--strict", action="store_true", help="fail on the first damaged line")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Read, answer, print; messages go to standard error."""
    from kvpaper.reuse.answer import exact, sampled  # only here, so that --help stays fast

    answer = exact(arguments) if arguments.sample is None else sampled(arguments)
    for warning in answer["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps(answer, indent=1, allow_nan=False) if arguments.json else render(answer))
    return 0


def render(answer: dict[str, Any]) -> str:
    """The answer as text for a reader."""
    counts = "{requests:,} requests, {block_references:,} references to {unique_blocks:,} blocks"
    tokens = answer.get("mean_block_tokens", answer["block_tokens"])
    ceiling = ", ".join(f"{value:.4f} {rate}" for rate, value in answer["ceiling"].items())
    columns = [name for name in answer["curve"][0] if name != "capacity_blocks"]
    text = [
        f"{counts.format(**answer)} of {tokens:.4g} tokens",
        f"ceiling: {ceiling}",
        "".join(f"{name:>16}" for name in ("capacity_blocks", *columns)),
    ]
    for point in answer["curve"]:
        values = "".join(f"{point[name]:>16.4g}" for name in columns)
        text.append(f"{point['capacity_blocks']:>16,}{values}")
    if answer["tail"]:
        fit = "beta {beta:.3f}, R2 {r2:.3f}, preferred form: {preferred}"
        text.append(fit.format(**answer["tail"]))
    text.append("closed form: {closed_form}: {reason}".format(**answer["verdict"]))
    for name, share in answer.get("tiers", {}).items():
        text.append(f"{name:>16} serves {share:.4f} block")
    for row in answer.get("policies", ()):
        line = "{policy:>8} {capacity_blocks:>12,} blocks: {reference:.4f} reference"
        text.append(line.format(**row))
    for row in answer.get("timers", ()):
        unit = "blocks" if row["policy"] == "best fixed capacity" else "s"
        setting = "" if row["setting"] is None else f" ({row['setting']:,.0f} {unit})"
        cost = f"{row['block_recomputes']:,.0f} block recomputes"
        text.append(f"{row['policy'] + setting:>35}: {cost}")
    return "\n".join(text)
