"""What ``kvpaper reuse`` tells of a log: the contract's answer, exact or from a sample."""

import argparse
import dataclasses
import math
from pathlib import Path
from typing import Any

from kvpaper import models, results, units
from kvpaper.errors import InputError
from kvpaper.formulas.recovery import attention_flops, prefill_flops
from kvpaper.reuse import policies, popularity, tail, timers
from kvpaper.reuse.curve import Curve, ceilings, hit_curve, log_spaced, tier_rates
from kvpaper.reuse.distances import Distances, stack_distances
from kvpaper.reuse.optimum import hull
from kvpaper.reuse.sampling import sampled_curve
from kvpaper.traces.block_trace import BlockTrace, require_identity, write_parquet
from kvpaper.traces.load import Log
from kvpaper.traces.readers import OURS, Options


def exact(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole answer, from the exact curve of every capacity."""
    bytes_per_token, depth_tokens = _model(arguments)
    _capacities(arguments.capacities, bytes_per_token)  # refused before the log is read
    _tiers(arguments.tiers, bytes_per_token)
    chosen = policies.named(arguments.policy)
    log = _log(arguments)
    trace, warnings = log.trace(), log.warnings
    require_identity(trace.block_tokens, arguments.traces[0])
    if arguments.save:
        write_parquet(trace, arguments.save)
    distances = stack_distances(trace)
    rates = {rate: hit_curve(trace, distances, rate) for rate in ("block", "token")}
    ceiling = ceilings(trace, distances)
    if depth_tokens:
        rates["worth"] = hit_curve(trace, distances, "worth", depth_tokens)
        ceiling["worth"] = rates["worth"].ceiling
    block = rates["block"]
    block_bytes = bytes_per_token and bytes_per_token * trace.mean_block_tokens
    capacities = _capacities(arguments.capacities, block_bytes)
    if capacities is None:
        capacities = log_spaced(max(trace.unique_blocks, 1)).tolist()
    fitted = tail.fit_tail(trace, distances, block)
    uses = popularity.fit_popularity(trace)
    mean = {} if trace.unit_tokens is None else {"mean_block_tokens": trace.mean_block_tokens}
    if mean and arguments.model:
        warnings.append("components differ in size: bytes are those of their mean")
    answer = {
        "requests": trace.requests,
        "block_references": trace.references,
        "unique_blocks": trace.unique_blocks,
        "block_tokens": trace.block_tokens,
        **mean,
        "formats": [log.format.name],
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
        "skipped_lines": log.skipped_lines,
        "skipped": [dataclasses.asdict(damage) for damage in log.damages],
        "warnings": warnings,
    }
    if arguments.tiers:
        answer["tiers"] = tier_rates(block, _tiers(arguments.tiers, block_bytes))
    if chosen:
        some = capacities if arguments.capacities else capacities[::10]
        answer["policies"] = policies.policy_rates(trace, chosen, some)
        warnings.append(policies.NOTE)
    if arguments.break_even:
        answer["timers"] = timers.policy_table(trace, block, arguments.break_even)
        horizon = timers.horizon_warning(trace, arguments.break_even)
        warnings += [horizon] if horizon else []
    if arguments.figure:
        _draw(trace, distances, block, arguments)
    return results.finite(answer)


def _draw(
    trace: BlockTrace, distances: Distances, block: Curve, arguments: argparse.Namespace
) -> None:
    # Only a figure needs matplotlib and pandas.
    from kvpaper.figures import reuse as figures
    from kvpaper.figures.style import save_to
    from kvpaper.reuse.chapter import curve_rows

    rows = results.table(curve_rows(trace, distances, block))
    try:
        name = Path(arguments.traces[0]).stem
        save_to(figures.curve(rows.assign(trace=name)), arguments.figure)
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or str(error)
        raise InputError("--figure", found, "a file to write, such as curve.svg") from None


def sampled(arguments: argparse.Namespace) -> dict[str, Any]:
    """The block curve from a sample, in memory that follows the sample."""
    if not 1e-6 <= arguments.sample <= 1:
        raise InputError("--sample", f"{arguments.sample:g}", "a share from 0.000001 to 1")
    for option in ("tiers", "policy", "break_even", "figure", "save"):
        if getattr(arguments, option):
            expected = "one of the two: it needs the exact trace"
            raise InputError(_flag(option), "it beside --sample", expected)
    bytes_per_token, _ = _model(arguments)
    _capacities(arguments.capacities, bytes_per_token)
    log = _log(arguments)
    estimate = sampled_curve(log.chunks, round(1 / arguments.sample), prefix=log.prefix)
    require_identity(log.block_tokens, arguments.traces[0])
    if arguments.model and not log.format.prefix:
        raise InputError("--model", "components of unknown size", "no --sample beside them")
    block_bytes = bytes_per_token and bytes_per_token * log.block_tokens
    capacities = _capacities(arguments.capacities, block_bytes)
    if capacities is None:
        reach = int(estimate.hits.searchsorted(estimate.hits[-1]))
        capacities = estimate.capacities_blocks[: reach + 1 : max(1, reach // 60)].tolist()
    warnings = [*log.warnings, "unique_blocks, ceiling and curve are estimates from a sample"]
    if log.late:
        warnings.append(f"{log.late} requests out of order of arrival; not sorted")
    reason = "a sample does not tell the closed form's loss; run without --sample"
    return {
        "requests": log.requests,
        "block_references": estimate.references,
        "unique_blocks": round(estimate.unique_blocks),
        "block_tokens": log.block_tokens,
        "ceiling": {"block": float(estimate.hits[-1])},
        "curve": [
            _point(capacity, block_bytes) | {"block": rate, "standard_error": error}
            for capacity, rate, error in estimate.at(capacities)
        ],
        "kept_references": estimate.kept_references,
        "tail": None,
        "verdict": {"closed_form": "refused", "reason": reason, "loss": None},
        "skipped_lines": log.skipped_lines,
        "warnings": warnings,
    }


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _log(arguments: argparse.Namespace) -> Log:
    """The log that is asked about; what is wrong with an option is refused before it is opened."""
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
    return Log(arguments.traces, options, arguments.strict, arguments.processes, arguments.dask)


def _model(arguments: argparse.Namespace) -> tuple[float | None, float | None]:
    """KV bytes of a token, and the depth at which attention costs as much as the rest [token]."""
    if not arguments.model:
        return None, None
    model = models.load(arguments.model)
    bytes_per_token = models.size(model, dtype=arguments.dtype)["kv_bytes_per_token"]
    full = sum(group.layers for group in model.groups if group.kind in ("full", "mla"))
    widths = (model.query_heads, model.qk_head_dim, model.v_head_dim)
    if not (model.active_params and full and all(widths)):
        return bytes_per_token, None
    head_dim = (model.qk_head_dim + model.v_head_dim) / 2
    per_pair = attention_flops(1, 0, full, model.query_heads, head_dim)
    return bytes_per_token, float(prefill_flops(1, model.active_params, 0) / per_pair)


def _tiers(text: str | None, block_bytes: float | None) -> dict[str, int]:
    stack = {}
    for part in text.split(",") if text else ():
        name, _, capacity = part.partition("=")
        if not name or name in stack:
            raise InputError("--tiers", repr(part), "NAME=CAPACITY, each name once")
        stack[name] = _capacities(capacity, block_bytes)[0]
    return stack


def _capacities(text: str | None, block_bytes: float | None) -> list[int] | None:
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


def _point(capacity: int, block_bytes: float | None) -> dict[str, float]:
    point = {"capacity_blocks": capacity}
    return point | {"capacity_bytes": capacity * block_bytes} if block_bytes else point
