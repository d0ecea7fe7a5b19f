"""Rows of the chapter on reuse: every derived curve of a trace, public or named by a scenario."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kvpaper import results
from kvpaper.errors import InputError
from kvpaper.formulas.pooling import pooled_gain
from kvpaper.reuse import curve as curves
from kvpaper.reuse import fleet, optimum, tail, timers
from kvpaper.reuse.distances import Distances, reuse_intervals, stack_distances
from kvpaper.traces import fetch, generated
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.load import read_trace

Row = dict[str, Any]
_row = partial(results.row, kind="simulated")

_SERVERS = (2, 4, 8)
_WINDOWS = 4


def public() -> pandas.DataFrame:
    """Derived curves of the public traces, as committed with the checksums of their inputs."""
    return results.read("public", "50_reuse")


def of_scenario(trace: str | None, where: str = "workload.trace") -> pandas.DataFrame:
    """Rows of the named trace: a public one, a file or folder of logs, or a generated one.

    Raises
    ------
    InputError
        If the name is neither a public trace nor a path.
    """
    if trace is None:
        rows = reuse_rows(generated.conversations(), generated.NAME, "")
        return results.table(rows)
    known = public()
    if trace in set(known.trace):
        return known[known.trace == trace].dropna(axis=1, how="all").reset_index(drop=True)
    if not Path(trace).exists():
        raise InputError(where, repr(trace), f"a path or one of {', '.join(fetch.TRACES)}")
    path = Path(trace)
    digest = fetch.sha256(path) if path.is_file() else ""
    return results.table(reuse_rows(read_trace([path]), path.stem, digest))


def _many(quantity: str, coordinate: str, at, values, **rest: Any) -> list[Row]:
    pairs = zip(np.asarray(at).tolist(), np.asarray(values, float).tolist(), strict=True)
    return [_row(quantity, value, **{coordinate: place}, **rest) for place, value in pairs]


def reuse_rows(
    trace: BlockTrace, name: str, sha256: str, break_even_s: tuple[float, ...] = ()
) -> list[Row]:
    """All rows of one trace; each carries the trace's name and the checksum of its input.

    ``break_even_s`` are the intervals to price timers at; figures are drawn from these rows alone.
    """
    distances = stack_distances(trace)
    block = curves.hit_curve(trace, distances)
    rows = curve_rows(trace, distances, block)
    rows += _tail_rows(trace, distances, block)
    for interval_s in break_even_s:
        for entry in timers.policy_table(trace, block, interval_s):
            cost = entry.pop("block_recomputes")
            rows.append(_row("cost_block_recomputes", cost, **entry, break_even_s=interval_s))
    rows += _fleet_rows(trace, block)
    prices = optimum.hull(block).slopes
    if len(prices) > 1:
        prices = np.geomspace(prices[0], prices[-1], 61)
        lost = fleet.regret(fleet.window_curves(trace, distances, _WINDOWS), prices)
        for window, losses in enumerate(lost, start=1):
            rows += _many("regret", "price_ratio", prices, losses, window=window, windows=_WINDOWS)
    return [row | {"trace": name, "trace_sha256": sha256} for row in rows]


def public_rows(folder: Path = fetch.FOLDER, break_even_s: tuple[float, ...] = ()) -> list[Row]:
    """Rows of every public trace that is at hand in ``folder``, as fetched from its publisher.

    The checksum is that of the file of requests.
    """
    rows = []
    for name, files in fetch.TRACES.items():
        path = fetch.fetched(name, folder)
        if path is not None:
            trace = read_trace([path])
            rows += reuse_rows(trace, name, files[0].sha256, break_even_s)
    return rows


def curve_rows(trace: BlockTrace, distances: Distances, block: curves.Curve) -> list[Row]:
    """Counts, ceilings, curves, hull and reuse intervals of one trace."""
    counts = {
        "requests": trace.requests,
        "block_references": trace.references,
        "unique_blocks": trace.unique_blocks,
        "block_tokens": trace.block_tokens,
        "duration_s": trace.duration_s,
        "mean_input_tokens": float(trace.input_tokens.mean()),
    }
    rows = [_row(quantity, value) for quantity, value in counts.items()]
    for rate, ceiling in curves.ceilings(trace, distances).items():
        rows.append(_row("ceiling", ceiling, rate=rate))
    capacities = curves.log_spaced(trace.unique_blocks, 121)
    for rate in ("block", "token"):
        hits = curves.hit_curve(trace, distances, rate).at(capacities)
        rows += _many("hit_rate", "capacity_blocks", capacities, hits, rate=rate)
    slopes = tail.elasticity(block, capacities)
    known = np.isfinite(slopes)
    rows += _many("elasticity", "capacity_blocks", capacities[known], slopes[known])
    upper = optimum.hull(block)
    rows += _many("hull_hit_rate", "capacity_blocks", upper.capacities_blocks, upper.hits)
    intervals_s = np.sort(reuse_intervals(trace))
    known = intervals_s[np.isfinite(intervals_s) & (intervals_s > 0)]
    if len(known):
        at_s = np.geomspace(known[0], known[-1], 100)
        share = np.searchsorted(intervals_s, at_s, "right") / len(intervals_s)
        rows += _many("reuse_share", "interval_s", at_s, share)
    for capacity in curves.log_spaced(block.saturation_blocks, 13).tolist():
        for share, value in timers.write_shares(trace, block, capacity).items():
            rows.append(_row(f"{share}_share", value, capacity_blocks=capacity))
    gaps_s = fleet.turn_gaps(trace)
    if len(gaps_s):
        shares = np.linspace(0.1, 0.9, 9).round(1)
        sessions = "told" if trace.names_sessions else "inferred"
        rows += _many("turn_gap_s", "share", shares, np.quantile(gaps_s, shares), sessions=sessions)
    return rows


def _tail_rows(trace: BlockTrace, distances: Distances, block: curves.Curve) -> list[Row]:
    fitted = tail.fit_tail(trace, distances, block)
    judged = tail.verdict(block, fitted)
    rows = [_row("closed_form_loss", judged.loss, verdict=judged.closed_form)]
    if fitted is None:
        return rows
    law = fitted.law
    low, high = law.range_blocks
    values = {"beta": law.beta, "beta_low": fitted.beta_low, "beta_high": fitted.beta_high}
    values |= {"beta_r2": law.r2, "beta_range_low_blocks": low, "beta_range_high_blocks": high}
    rows += [_row(quantity, value) for quantity, value in values.items()]
    rows += [_row("curve_aicc", score, form=form) for form, score in fitted.rivals.items()]
    upper = optimum.hull(block)
    compared = optimum.compare(block, upper, law.beta, law.scale, law.range_blocks)
    if compared is not None:
        prices, best, closed, loss = compared
        rows += _many("optimum_blocks", "price_ratio", prices, best)
        rows += _many("optimum_blocks", "price_ratio", prices, closed, kind="predicted")
        rows += _many("net_value_loss", "price_ratio", prices, loss)
    return rows


def _fleet_rows(trace: BlockTrace, block: curves.Curve) -> Iterator[Row]:
    capacities = curves.log_spaced(block.saturation_blocks, 21)
    slopes = tail.elasticity(block, capacities)
    fair = (slopes > 0) & (slopes < 1)
    for count in _SERVERS:
        yield from _many(
            "pooled_gain", "capacity_blocks", capacities[fair],
            pooled_gain(count, slopes[fair]), kind="predicted", servers=count,
        )  # fmt: skip
        for routing in fleet.ROUTINGS:
            split = fleet.split_rates(trace, routing, count, capacities)
            known = split > 0
            gain = block.at(capacities[known]) / split[known]
            at = {"routing": routing, "servers": count}
            yield from _many("pooled_gain", "capacity_blocks", capacities[known], gain, **at)
