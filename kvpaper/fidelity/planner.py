"""The replay held against the planner whose tables it uses: one pool or two?

The planner is arithmetic: means, no arrivals, no queue, no transfer. Here the same question goes to
the search over replays, with and without the factors that the planner puts on two pools alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvpaper import data, latency, models
from kvpaper import scenario as scenarios
from kvpaper.results import Row, row
from kvpaper.serving import arrivals, cells
from kvpaper.serving.case import Case
from kvpaper.serving.fleet import Pool
from kvpaper.serving.search import STEP
from kvpaper.traces.block_trace import BlockTrace

# How requests come, and the percentile that must meet the targets: the planner knows means alone.
ARRIVALS = {"steady": 50.0, "Poisson": 90.0}
# What the planner puts on two pools alone: longer prefills and steps, lower rates by what binds.
FACTORS = {"prefill": 1.1, "decode": 1.08, "ttft": 0.9, "tpot": 0.92}
_TPOT_MS = "40"


def rows() -> list[Row]:
    """The planner's question put to the replay, with and without its factors on two pools."""
    told = [one for one in data.table("latency/verdict.csv") if one["tpot_slo_ms"] == _TPOT_MS]
    found = []
    for one, two in zip(told[::2], told[1::2], strict=True):
        at = {"model": one["model"], "element": one["element"]}
        said = [float(answer["tokens_per_s_per_gpu"]) for answer in (one, two)]
        found += _gain_rows(*said, "tabulated", factors="the planner's", **at)
        found += _gain_rows(said[0], _without_factors(two), "tabulated", factors="none", **at)
        for spread in ARRIVALS:
            found += _replayed(one, spread, at)
    return found


def _gain_rows(one: float, two: float, kind: str, **at: Any) -> Iterator[Row]:
    for pools, value in (("one", one), ("two", two)):
        yield row("tokens_per_s_per_gpu", value, kind, pools=pools, **at)
    yield row("two_over_one", two / one, kind, **at)


def _without_factors(told: Mapping[str, str]) -> float:
    """What the planner's two pools do in its own arithmetic without a factor [token/s/GPU]."""
    ways = {way.parallelism: way for way in latency.ways(told["model"], told["element"])}
    prefill, decode = ways[told["prefill"]], ways[told["decode"]]
    new, output = int(told["input_tokens"]), int(told["output_tokens"])
    batch = int(told["decode_batch"])
    step_s = latency.decode_table(decode.name).step_time(batch, new + output / 2)
    prefilled = prefill.ranks / latency.prefill_table(prefill.name).prefill_time(new)
    decoded = decode.ranks * batch / ((output - 1) * step_s)
    rates = int(told["prefill_instances"]) * prefilled, int(told["decode_instances"]) * decoded
    return float(min(rates)) * output / int(told["gpus"])


def _replayed(asked: Mapping[str, str], spread: str, at: Row) -> Iterator[Row]:
    """The best of either kind by replay, and what the closed form expects of it."""
    gpus, output = int(asked["gpus"]), int(asked["output_tokens"])
    at = {**at, "arrivals": spread}

    def requests(step: int, seed: int) -> BlockTrace:
        return _equal(int(asked["input_tokens"]), output, STEP**step, spread, seed)

    case = _case(asked, ARRIVALS[spread])
    bench = cells.Bench(case, requests(0, 0), requests)
    one, two = (cells.best_cell(bench, name) for name in ("none", "disaggregated"))
    slow = cells.Bench(_slower(case), requests(0, 0), requests)
    slower = cells.best_cell(slow, "disaggregated")
    each = output / gpus
    rates = [float(cell.requests_per_s.mean()) * each for cell in (one, two, slower)]
    yield from _gain_rows(*rates[:2], "simulated", factors="none", **at)
    lowered = rates[2] * FACTORS[slower.binding]
    yield from _gain_rows(rates[0], lowered, "simulated", factors="the planner's", **at)
    expected = [cell.predicted_requests_per_s * each for cell in (one, two)]
    yield from _gain_rows(*expected, "predicted", factors="none", **at)


def _equal(new: int, output: int, requests_per_s: float, spread: str, seed: int) -> BlockTrace:
    """Equal requests with nothing in common, for five minutes at least."""
    count = max(1000, int(300 * requests_per_s))
    found = arrivals.poisson(requests_per_s, np.full(count, new), output, seed=seed)
    if spread == "steady":
        return replace(found, arrival_s=np.arange(count) / requests_per_s)
    return found


def _case(asked: Mapping[str, str], percentile: float) -> Case:
    """The planner's GPUs, model and targets; nothing but GPU memory holds a cache."""
    way = latency.ways(asked["model"], asked["element"])[0]
    told = scenarios.load("h200-moe").changed(
        {
            "model": models.load(way.model),
            "serving.element": asked["element"],
            "serving.prefill.table": way.name,
            "slo.ttft_s": float(asked["ttft_slo_ms"]) / 1e3,
            "slo.tpot_s": float(asked["tpot_slo_ms"]) / 1e3,
            "slo.percentile": percentile,
            "fleet.prefill": scenarios.Instances(instances=int(asked["gpus"]) // way.gpus),
        }
    )
    lengths = int(asked["input_tokens"]), int(asked["output_tokens"])
    return replace(Case.of(told, _equal(*lengths, 1.0, "steady", 0)), offers=())


def _slower(case: Case) -> Case:
    """The case with the planner's longer prefills and steps, for two pools."""

    def longer(pool: Pool, name: str) -> Pool:
        table = getattr(pool, f"{name}_table")
        slower = replace(table, seconds=table.seconds * FACTORS[name])
        return replace(pool, **{f"{name}_table": slower})

    ways = (
        replace(way, prefill=longer(way.prefill, "prefill"), decode=longer(way.decode, "decode"))
        for way in case.ways
    )
    return replace(case, ways=tuple(ways))
