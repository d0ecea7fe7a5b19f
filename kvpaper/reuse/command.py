"""``kvpaper reuse``: the logs in, the answer of the contract out."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command; nothing heavy is imported for them."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="log files or folders of them")
    parser.add_argument("--model", metavar="M", help="a model, to tell capacities in bytes too")
    parser.add_argument("--dtype", metavar="D", help="element of its KV cache")
    parser.add_argument(
        "--capacities", metavar="C,...", help="in blocks, or in bytes such as 100GB with --model"
    )
    parser.add_argument(
        "--policy", metavar="P,...", help="other policies: fifo, s3fifo, sieve, ..."
    )
    parser.add_argument(
        "--sample", type=float, metavar="R", help="share of blocks to sample, such as 0.01"
    )
    parser.add_argument(
        "--break-even", type=float, metavar="S", help="seconds; adds the table of timers"
    )
    parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens of a block")
    parser.add_argument("--tokenizer", default="builtin", metavar="FILE", help="a tokenizer.json")
    parser.add_argument(
        "--components",
        choices=("component", "prefix"),
        default="component",
        help="RAGPulse: items wherever they stand, or as a strict prefix",
    )
    parser.add_argument(
        "--columns",
        metavar="OURS=THEIRS,...",
        help="arrival_s (or _ms, _us, _ns), input_tokens, output_tokens, session, blocks",
    )
    parser.add_argument("--strict", action="store_true", help="fail on the first damaged line")
    parser.add_argument("--processes", type=int, metavar="N", help="default: all cores")
    parser.add_argument("--dask", metavar="ADDRESS", help="a scheduler, as tcp://host:port")
    parser.add_argument("--save", metavar="F", help="write the block trace as Parquet")
    parser.add_argument("--figure", metavar="F", help="draw the curve")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Read, answer, print; messages go to standard error."""
    answer = sampled(arguments) if arguments.sample is not None else exact(arguments)
    for warning in answer["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(answer, indent=1, allow_nan=False))
    else:
        print(render(answer))
    return 0


def exact(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole answer, from the exact curve of every capacity."""
    import numpy as np

    from kvpaper.reuse import curve as curves
    from kvpaper.reuse import policies, popularity, tail, timers
    from kvpaper.reuse.distances import reuse_intervals, stack_distances
    from kvpaper.reuse.optimum import hull
    from kvpaper.traces.block_trace import require_identity, write_parquet
    from kvpaper.traces.load import read_trace

    reading = read_trace(
        arguments.traces, _options(arguments), arguments.strict, arguments.processes, arguments.dask
    )
    trace = reading.trace
    require_identity(trace.block_tokens, str(arguments.traces[0]))
    if arguments.save:
        write_parquet(trace, arguments.save)
    model, depth_tokens = _model(arguments)
    block_bytes = trace.block_tokens * model["kv_bytes_per_token"] if model else None
    distances = stack_distances(trace)
    rates = {rate: curves.hit_curve(trace, distances, rate) for rate in ("block", "token")}
    if depth_tokens:
        rates["worth"] = curves.hit_curve(trace, distances, "worth", depth_tokens)
    block = rates["block"]
    fitted = tail.fit_tail(trace, distances, block)
    judged = tail.verdict(block, fitted)
    capacities = _capacities(arguments.capacities, block_bytes)
    if capacities is None:
        capacities = curves.log_spaced(trace.unique_blocks)
    ceiling = curves.ceilings(trace, distances)
    if depth_tokens:
        ceiling["worth"] = rates["worth"].ceiling
    intervals_s = reuse_intervals(trace)
    known = intervals_s[np.isfinite(intervals_s)]
    answer = _opening(trace.requests, trace.references, trace.unique_blocks, trace.block_tokens)
    answer |= {
        "formats": list(reading.formats),
        "ceiling": ceiling,
        "curve": [
            _point(capacity, block_bytes)
            | {rate: float(curve.at(capacity)) for rate, curve in rates.items()}
            for capacity in capacities.tolist()
        ],
        "reuse_interval_s": _quantiles(known),
        "jumps": hull(block).jumps(),
        "tail": None if fitted is None else _tail(fitted),
        "popularity": _popularity(popularity.fit_popularity(trace)),
        "verdict": {
            "closed_form": judged.closed_form,
            "reason": judged.reason,
            "loss": _finite(judged.loss),
            "loss_high": _finite(judged.loss_high),
            "range_blocks": judged.range_blocks,
        },
        "skipped_lines": reading.skipped_lines,
        "skipped": [
            {"file": one.path, "line": one.line, "found": one.found, "expected": one.expected}
            for one in reading.damages
        ],
        "warnings": _warnings(reading),
    }
    if arguments.policy:
        chosen = [name.strip().lower() for name in arguments.policy.split(",")]
        some = capacities if arguments.capacities else capacities[capacities >= 10][::10]
        answer["policies"] = policies.policy_rates(trace, chosen, some.tolist())
        answer["warnings"].append(policies.NOTE)
    if arguments.break_even:
        answer["timers"] = timers.policy_table(trace, block, arguments.break_even)
        horizon = timers.horizon_warning(trace, arguments.break_even)
        answer["warnings"] += [horizon] if horizon else []
    if arguments.figure:
        from kvpaper import figures_reuse, results
        from kvpaper.reuse.rows import curve_rows

        name = Path(arguments.traces[0]).stem
        table = results.table(row | {"trace": name} for row in curve_rows(trace))
        figures_reuse.save_to(figures_reuse.curve(table), arguments.figure)
    return answer


def sampled(arguments: argparse.Namespace) -> dict[str, Any]:
    """The block curve from a sample, in memory that follows the sample."""
    from kvpaper.errors import InputError
    from kvpaper.reuse.sampling import sampled_curve
    from kvpaper.traces.block_trace import require_identity
    from kvpaper.traces.load import Stream

    if not 0 < arguments.sample <= 1:
        raise InputError("--sample", f"{arguments.sample:g}", "a share above 0 and up to 1")
    for option in ("policy", "break_even", "figure", "save"):
        if getattr(arguments, option):
            name = f"--{option.replace('_', '-')}"
            raise InputError(name, "it beside --sample", "one of the two: it needs the exact trace")
    stream = Stream(
        arguments.traces, _options(arguments), arguments.strict, arguments.processes, arguments.dask
    )
    every = max(1, round(1 / arguments.sample))
    estimate = sampled_curve(stream.chunks, every, prefix=stream.prefix)
    require_identity(stream.block_tokens, str(arguments.traces[0]))
    model, _ = _model(arguments)
    block_bytes = stream.block_tokens * model["kv_bytes_per_token"] if model else None
    reach = int(estimate.hits.searchsorted(estimate.hits[-1]))
    capacities = _capacities(arguments.capacities, block_bytes)
    if capacities is None:
        capacities = estimate.capacities_blocks[: reach + 1 : max(1, reach // 60)]
    unique = round(estimate.unique_blocks)
    answer = _opening(stream.requests, estimate.references, unique, stream.block_tokens)
    answer |= {
        "ceiling": {"block": float(estimate.hits[-1])},
        "curve": [
            _point(capacity, block_bytes) | {"block": rate, "standard_error": error}
            for capacity, rate, error in estimate.at(capacities)
        ],
        "sample": {
            "every": every,
            "kept_references": estimate.kept_references,
            "kept_blocks": estimate.kept_blocks,
        },
        "tail": None,
        "verdict": {
            "closed_form": "refused",
            "reason": "a sample does not tell the closed form's loss; run without --sample",
            "loss": None,
        },
        "skipped_lines": stream.skipped_lines,
        "warnings": ["unique_blocks, ceiling and curve are estimates from a sample"],
    }
    if stream.late:
        answer["warnings"].append(f"{stream.late} requests out of order of arrival; not sorted")
    return answer


def _options(arguments: argparse.Namespace) -> "Options":  # noqa: F821
    from kvpaper.errors import InputError
    from kvpaper.traces.readers import OURS, Options

    columns = {}
    for pair in (arguments.columns or "").split(","):
        if not pair:
            continue
        ours, equals, theirs = pair.partition("=")
        if not equals or ours not in OURS:
            raise InputError("--columns", pair, f"NAME=COLUMN with a name of {', '.join(OURS)}")
        columns[ours] = theirs
    if columns and not (
        "input_tokens" in columns and any(name.startswith("arrival_") for name in columns)
    ):
        raise InputError("--columns", arguments.columns, "an arrival and input_tokens among them")
    if arguments.block_tokens is not None and arguments.block_tokens < 1:
        raise InputError("--block-tokens", str(arguments.block_tokens), "at least 1")
    return Options(arguments.block_tokens, arguments.tokenizer, arguments.components, columns)


def _model(arguments: argparse.Namespace) -> tuple[dict[str, Any] | None, float | None]:
    """Sizes of the model, and the depth at which attention costs as much as the rest [token]."""
    if not arguments.model:
        return None, None
    from kvpaper import models
    from kvpaper.formulas.recovery import attention_flops, prefill_flops

    model = models.load(arguments.model)
    sizes = models.size(model, dtype=arguments.dtype)
    full = sum(group.layers for group in model.groups if group.kind in ("full", "mla"))
    widths = (model.query_heads, model.qk_head_dim, model.v_head_dim)
    if not (model.active_params and full and all(widths)):
        return sizes, None
    head_dim = (model.qk_head_dim + model.v_head_dim) / 2
    # Attention of one token grows by this much with every token before it.
    slope = attention_flops(1, 1, full, model.query_heads, head_dim) / 2
    return sizes, float(prefill_flops(1, model.active_params, 0) / slope)


def _capacities(text: str | None, block_bytes: float | None) -> "np.ndarray | None":  # noqa: F821
    if text is None:
        return None
    import numpy as np

    from kvpaper import units
    from kvpaper.errors import InputError

    blocks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        expected = "a whole number of blocks, or bytes such as 100GB with --model"
        try:
            value = float(part)
        except ValueError:
            try:
                value = units.quantity(part, "B") // block_bytes
            except (ValueError, TypeError):
                raise InputError("--capacities", part, expected) from None
        if not 0 <= value < 2**62 or value != int(value):
            raise InputError("--capacities", part, expected)
        blocks.append(int(value))
    if not blocks:
        raise InputError("--capacities", repr(text), "at least one capacity")
    return np.array(blocks, np.int64)


def _opening(requests: int, references: int, unique: int, block_tokens: int) -> dict[str, int]:
    return {
        "requests": requests,
        "block_references": references,
        "unique_blocks": unique,
        "block_tokens": block_tokens,
    }


def _point(capacity: int, block_bytes: float | None) -> dict[str, float]:
    point = {"capacity_blocks": int(capacity)}
    return point if block_bytes is None else point | {"capacity_bytes": capacity * block_bytes}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None  # NaN compares false


def _quantiles(values: "np.ndarray") -> dict[str, float] | None:  # noqa: F821
    import numpy as np

    if not len(values):
        return None
    shares = (0.1, 0.5, 0.9, 0.99)
    return {
        f"p{round(100 * share)}": float(value)
        for share, value in zip(shares, np.quantile(values, shares), strict=True)
    }


def _tail(fitted: "Tail") -> dict[str, Any]:  # noqa: F821
    return {
        "beta": fitted.law.beta,
        "beta_low": _finite(fitted.beta_low),
        "beta_high": _finite(fitted.beta_high),
        "r2": fitted.law.r2,
        "range_blocks": fitted.law.range_blocks,
        "elasticity": fitted.law.thirds,
        "preferred": fitted.preferred,
        "rivals_aicc": fitted.rivals,
    }


def _popularity(fitted: "Popularity | None") -> dict[str, Any] | None:  # noqa: F821
    if fitted is None:
        return None
    import dataclasses

    return dataclasses.asdict(fitted)


def _warnings(reading: "Reading") -> list[str]:  # noqa: F821
    warnings = list(reading.warnings)
    if reading.skipped_lines:
        first = reading.damages[0].error()
        warnings.insert(0, f"{reading.skipped_lines} damaged lines skipped, the first {first}")
    return warnings


def render(answer: dict[str, Any]) -> str:
    """The answer as text for a reader."""
    text = [
        f"{answer['requests']:,} requests, {answer['block_references']:,} references to "
        f"{answer['unique_blocks']:,} blocks of {answer['block_tokens']} tokens",
        "ceiling: " + ", ".join(f"{value:.4f} {rate}" for rate, value in answer["ceiling"].items()),
        "",
    ]
    columns = [name for name in answer["curve"][0] if name != "capacity_blocks"]
    text.append(f"{'capacity_blocks':>16}" + "".join(f"{name:>16}" for name in columns))
    text += [
        f"{point['capacity_blocks']:>16,}" + "".join(f"{point[name]:>16.4g}" for name in columns)
        for point in answer["curve"]
    ]
    if answer["tail"]:
        tail = answer["tail"]
        low, high = (
            "?" if value is None else f"{value:.3f}"
            for value in (tail["beta_low"], tail["beta_high"])
        )
        text.append(
            f"\nbeta {tail['beta']:.3f} ({low} to {high}), R2 {tail['r2']:.3f}, "
            f"preferred form: {tail['preferred']}"
        )
    verdict = answer["verdict"]
    text.append(f"closed form: {verdict['closed_form']}: {verdict['reason']}")
    for row in answer.get("policies", ()):
        text.append(
            f"{row['policy']:>8} {row['capacity_blocks']:>12,} blocks: "
            f"{row['reference']:.4f} reference"
        )
    for row in answer.get("timers", ()):
        setting = "" if row["setting"] is None else f" ({row['setting']:,.0f})"
        text.append(f"{row['policy'] + setting:>30}: {row['block_recomputes']:,.0f} recomputes")
    return "\n".join(text)
