"""``kvpaper reuse``: logs in, the answer of the contract out."""

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError

# Functions import what they need, so that --help stays fast.
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
    answer = exact(arguments) if arguments.sample is None else sampled(arguments)
    for warning in answer["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps(answer, indent=1, allow_nan=False) if arguments.json else render(answer))
    return 0


def exact(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole answer, from the exact curve of every capacity."""
    from kvpaper import results
    from kvpaper.reuse import curve as curves
    from kvpaper.reuse import policies, popularity, tail, timers
    from kvpaper.reuse.distances import stack_distances
    from kvpaper.reuse.optimum import hull
    from kvpaper.traces.block_trace import require_identity, write_parquet
    from kvpaper.traces.load import read_trace

    bytes_per_token, depth_tokens = _model(arguments)
    _capacities(arguments.capacities, bytes_per_token)  # refused before the log is read
    _tiers(arguments.tiers, bytes_per_token)
    chosen = policies.named(arguments.policy)
    reading = read_trace(*_log(arguments))
    trace, warnings = reading.trace, list(reading.warnings)
    require_identity(trace.block_tokens, arguments.traces[0])
    if arguments.save:
        write_parquet(trace, arguments.save)
    distances = stack_distances(trace)
    rates = {rate: curves.hit_curve(trace, distances, rate) for rate in ("block", "token")}
    ceiling = curves.ceilings(trace, distances)
    if depth_tokens:
        rates["worth"] = curves.hit_curve(trace, distances, "worth", depth_tokens)
        ceiling["worth"] = rates["worth"].ceiling
    block = rates["block"]
    block_bytes = bytes_per_token and bytes_per_token * trace.mean_block_tokens
    capacities = _capacities(arguments.capacities, block_bytes)
    if capacities is None:
        capacities = curves.log_spaced(max(trace.unique_blocks, 1)).tolist()
    fitted = tail.fit_tail(trace, distances, block)
    uses = popularity.fit_popularity(trace)
    answer = _opening(trace.requests, trace.references, trace.unique_blocks, trace.block_tokens)
    if trace.unit_tokens is not None:
        answer["mean_block_tokens"] = trace.mean_block_tokens
        if arguments.model:
            warnings.append("components differ in size: bytes are those of their mean")
    answer |= {
        "formats": list(reading.formats),
        "ceiling": ceiling,
        "curve": [
            _point(capacity, block_bytes)
            | {rate: float(curve.at(capacity)) for rate, curve in rates.items()}
            for capacity in capacities
        ],
        "jumps": hull(block).jumps(),
        "tail": None if fitted is None else fitted.summary(),
        "popularity": None if uses is None else dataclasses.asdict(uses),
        "verdict": dataclasses.asdict(tail.verdict(block, fitted)),
        "skipped_lines": reading.skipped_lines,
        "skipped": [dataclasses.asdict(damage) for damage in reading.damages],
        "warnings": warnings,
    }
    if arguments.tiers:
        answer["tiers"] = curves.tier_rates(block, _tiers(arguments.tiers, block_bytes))
    if chosen:
        some = capacities if arguments.capacities else capacities[::10]
        answer["policies"] = policies.policy_rates(trace, chosen, some)
        warnings.append(policies.NOTE)
    if arguments.break_even:
        answer["timers"] = timers.policy_table(trace, block, arguments.break_even)
        horizon = timers.horizon_warning(trace, arguments.break_even)
        warnings += [horizon] if horizon else []
    if arguments.figure:
        _draw(trace, Path(arguments.traces[0]).stem, arguments.figure)
    return results.finite(answer)


def _draw(trace: "BlockTrace", name: str, path: str) -> None:  # noqa: F821
    from kvpaper import results
    from kvpaper.figures import reuse as figures
    from kvpaper.figures.style import save_to
    from kvpaper.reuse.chapter import curve_rows

    table = results.table(row | {"trace": name} for row in curve_rows(trace))
    try:
        save_to(figures.curve(table), path)
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or str(error)
        raise InputError("--figure", found, "a file to write, such as curve.svg") from None


def sampled(arguments: argparse.Namespace) -> dict[str, Any]:
    """The block curve from a sample, in memory that follows the sample."""
    from kvpaper.reuse.sampling import sampled_curve
    from kvpaper.traces.block_trace import require_identity
    from kvpaper.traces.load import Stream

    if not 1e-6 <= arguments.sample <= 1:
        raise InputError("--sample", f"{arguments.sample:g}", "a share from 0.000001 to 1")
    for option in ("tiers", "policy", "break_even", "figure", "save"):
        if getattr(arguments, option):
            expected = "one of the two: it needs the exact trace"
            raise InputError(_flag(option), "it beside --sample", expected)
    bytes_per_token, _ = _model(arguments)
    _capacities(arguments.capacities, bytes_per_token)
    stream = Stream(*_log(arguments))
    every = round(1 / arguments.sample)
    estimate = sampled_curve(stream.chunks, every, prefix=stream.prefix)
    require_identity(stream.block_tokens, arguments.traces[0])
    if arguments.model and not stream.format.prefix:
        raise InputError("--model", "components of unknown size", "no --sample beside them")
    block_bytes = bytes_per_token and bytes_per_token * stream.block_tokens
    capacities = _capacities(arguments.capacities, block_bytes)
    if capacities is None:
        reach = int(estimate.hits.searchsorted(estimate.hits[-1]))
        capacities = estimate.capacities_blocks[: reach + 1 : max(1, reach // 60)].tolist()
    estimates = "unique_blocks, ceiling and curve are estimates from a sample"
    warnings = [*stream.warnings, estimates]
    if stream.late:
        warnings.append(f"{stream.late} requests out of order of arrival; not sorted")
    unique = round(estimate.unique_blocks)
    answer = _opening(stream.requests, estimate.references, unique, stream.block_tokens)
    answer |= {
        "ceiling": {"block": float(estimate.hits[-1])},
        "curve": [
            _point(capacity, block_bytes) | {"block": rate, "standard_error": error}
            for capacity, rate, error in estimate.at(capacities)
        ],
        "kept_references": estimate.kept_references,
        "tail": None,
        "verdict": {
            "closed_form": "refused",
            "reason": "a sample does not tell the closed form's loss; run without --sample",
            "loss": None,
        },
        "skipped_lines": stream.skipped_lines,
        "warnings": warnings,
    }
    return answer


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _log(arguments: argparse.Namespace) -> tuple:
    """What to read and how, as the reader takes it."""
    from kvpaper.traces.readers import OURS, Options

    columns = {}
    for pair in filter(None, (arguments.columns or "").split(",")):
        ours, _, theirs = pair.partition("=")
        if not theirs or ours not in OURS:
            raise InputError("--columns", pair, f"NAME=COLUMN with a name of {', '.join(OURS)}")
        columns[ours] = theirs
    if columns and not ("input_tokens" in columns and columns.keys() & set(OURS[:4])):
        raise InputError("--columns", arguments.columns, "an arrival and input_tokens among them")
    for option in ("block_tokens", "processes"):
        value = getattr(arguments, option)
        if value is not None and not 1 <= value <= 10**6:
            expected = "a whole number from 1 to a million"
            raise InputError(_flag(option), str(value), expected)
    break_even_s = arguments.break_even
    if break_even_s is not None and not 0 < break_even_s < math.inf:
        raise InputError("--break-even", f"{break_even_s:g}", "seconds above 0")
    options = Options(arguments.block_tokens, arguments.tokenizer, arguments.components, columns)
    return arguments.traces, options, arguments.strict, arguments.processes, arguments.dask


def _model(arguments: argparse.Namespace) -> tuple[float | None, float | None]:
    """KV bytes of a token, and the depth at which attention costs as much as the rest [token]."""
    if not arguments.model:
        return None, None
    from kvpaper import models
    from kvpaper.formulas.recovery import attention_flops, prefill_flops

    model = models.load(arguments.model)
    bytes_per_token = models.size(model, dtype=arguments.dtype)["kv_bytes_per_token"]
    full = sum(group.layers for group in model.groups if group.kind in ("full", "mla"))
    widths = (model.query_heads, model.qk_head_dim, model.v_head_dim)
    if not (model.active_params and full and all(widths)):
        return bytes_per_token, None
    head_dim = (model.qk_head_dim + model.v_head_dim) / 2
    per_pair = attention_flops(1, 0, full, model.query_heads, head_dim)
    return bytes_per_token, float(prefill_flops(1, model.active_params, 0) / per_pair)


def _capacities(text: str | None, block_bytes: float | None) -> list[int] | None:
    from kvpaper import units

    if text is None:
        return None
    blocks = []
    for part in (part.strip() for part in text.split(",")):
        try:
            value = float(part) if part.isdigit() else units.quantity(part, "B") // block_bytes
        except (ValueError, TypeError):
            value = -1.0
        if not 0 <= value < 2**62:
            expected = "a whole number of blocks, or bytes such as 100GB with --model"
            raise InputError("--capacities", repr(part), expected)
        blocks.append(int(value))
    return blocks


def _tiers(text: str | None, block_bytes: float | None) -> dict[str, int]:
    stack = {}
    for part in text.split(",") if text else ():
        name, _, capacity = part.partition("=")
        if not name or name in stack:
            raise InputError("--tiers", repr(part), "NAME=CAPACITY, each name once")
        stack[name] = _capacities(capacity, block_bytes)[0]
    return stack


def _opening(requests: int, references: int, unique: int, block_tokens: int) -> dict[str, int]:
    return {
        "requests": requests,
        "block_references": references,
        "unique_blocks": unique,
        "block_tokens": block_tokens,
    }


def _point(capacity: int, block_bytes: float | None) -> dict[str, float]:
    point = {"capacity_blocks": capacity}
    return point | {"capacity_bytes": capacity * block_bytes} if block_bytes else point


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
