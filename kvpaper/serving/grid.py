"""The grid of a sweep: which fleets it replays, and the scenario of each."""

import math
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from kvpaper import data, latency, models
from kvpaper.errors import InputError
from kvpaper.scenario import Instances, Prefill, Scenario
from kvpaper.serving import build, closed_form
from kvpaper.traces.block_trace import BlockTrace

# Pools of a grid that names none: totals over the instances that the load needs, shares that
# prefill, and no more instances than this to begin with.
_TOTALS, _SHARES, _MOST = (1, 1.5, 2, 3), (0.25, 0.5, 0.75), 32


class Point(NamedTuple):
    """One fleet of a grid; ``model`` is None for the scenario's own, ``pools`` as in a scenario."""

    pools: tuple[int, ...]
    dram_bytes: float
    nvme_bytes: float
    router: str
    model: str | None = None

    def told(self) -> dict[str, Any]:
        """The point in words and numbers, for JSON."""
        return self._asdict() | {"pools": ":".join(map(str, self.pools))}

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Point":
        """The point that was told."""
        return cls(**told | {"pools": tuple(map(int, told["pools"].split(":")))})


def grid(scenario: Scenario, trace: BlockTrace) -> list[Point]:
    """Every combination of what the scenario's section ``sweep`` lists.

    Without a list: pools around what the load needs, one and split; each priced tier not bought and
    bought as it is; the fleet's router and the least loaded one; the scenario's model. One
    instance needs no router, so its points have the first.

    Raises
    ------
    InputError
        If a tier is listed that has no rates or no price.
    """
    asked = scenario.sweep
    routers = asked.routers or (scenario.fleet.router, "least loaded")
    found = [
        Point(pools, dram, nvme, router, model)
        for model, pools, router, dram, nvme in product(
            asked.models or (None,),
            asked.pools or _pools(scenario, trace),
            routers,
            _stocks(scenario, "dram", asked.dram_bytes),
            _stocks(scenario, "nvme", asked.nvme_bytes),
        )
        if pools[0] > 1 or router == routers[0]
    ]
    return list(dict.fromkeys(found))


def _stocks(scenario: Scenario, name: str, listed: tuple[float, ...] | None) -> tuple[float, ...]:
    tier = scenario.hardware.tiers.get(name)
    useless = tier is None or name in build.unpriced(scenario)
    if listed is None:
        return (0.0,) if useless else (0.0, tier.capacity_bytes)
    if useless and any(listed):
        missing = f"prices.{name}" if tier else f"hardware.tiers.{name} with its rates"
        raise InputError(scenario.where(f"sweep.{name}"), f"no {missing}", "it, or 0 only")
    return listed


def _pools(scenario: Scenario, trace: BlockTrace) -> list[tuple[int, ...]]:
    """One pool and split ones of several totals, from the instances up that the load needs."""
    part = scenario.fleet
    own = part.prefill.instances + (part.decode.instances if part.decode else 0)
    least = max(own, min(_MOST, _needed(scenario, trace)))
    found = []
    for total in (math.ceil(times * least) for times in _TOTALS):
        found.append((total,))
        found += [(round(share * total), total - round(share * total)) for share in _SHARES]
    return [pools for pools in dict.fromkeys(found) if min(pools) > 0]


def _needed(scenario: Scenario, trace: BlockTrace) -> int:
    """Instances that prompts without a cache, and answers within their target, keep busy."""
    pool = build.fleet(_with_pools(scenario, (1,)), trace).prefill
    requests_per_s = trace.requests / max(trace.duration_s, 1e-9)
    answer = np.maximum(trace.output_tokens, 1)
    context = float((trace.input_tokens + answer / 2).mean())
    rate = closed_form.decode_rate(pool, context, scenario.slo.tpot_s)
    busy = pool.prefill_table.prefill_time(np.maximum(trace.input_tokens, 1)).mean()
    busy += answer.mean() / rate if rate else 0.0
    return math.ceil(requests_per_s * busy / pool.instances)


def at(scenario: Scenario, point: Point) -> Scenario:
    """The scenario with the point's model, pools, router and tiers.

    Raises
    ------
    InputError
        If the model is not known or has no latencies.
    """
    scenario = _with_pools(_with_model(scenario, point.model), point.pools)
    held = {"dram": point.dram_bytes, "nvme": point.nvme_bytes}
    tiers = {
        name: tier.model_copy(update={"capacity_bytes": held.get(name, tier.capacity_bytes)})
        for name, tier in scenario.hardware.tiers.items()
        if held.get(name, 1)
    }
    return scenario.changed({"hardware.tiers": tiers, "fleet.router": point.router})


def _with_pools(scenario: Scenario, pools: tuple[int, ...]) -> Scenario:
    one = scenario.changed({"fleet.prefill.instances": pools[0]})
    if len(pools) == 1:
        return one.changed({"fleet.decode": None})
    decode = scenario.fleet.decode or Instances()
    split = one.changed({"fleet.decode": decode, "fleet.chunk_tokens": None})
    return split.changed({"fleet.decode.instances": pools[1]})


def _with_model(scenario: Scenario, name: str | None) -> Scenario:
    """The scenario with another model; tables that its pools name are those of its own."""
    if name is None:
        return scenario
    changes = {"fleet.prefill": Instances(), "fleet.decode": None}
    if name.partition("/")[0] in data.names("latency", ".prefill.csv"):
        instance = latency.instance(name)
        changes["model"] = models.load(instance.model)
        changes["serving.element"] = instance.element
        changes["serving.prefill"] = Prefill(table=name)
    else:
        changes["model"] = models.load(name)
        if scenario.serving.prefill.flops_per_s is None:
            expected = "a table of data/latency, or a rate at serving.prefill"
            raise InputError(scenario.where("sweep.models"), f"{name}, without latencies", expected)
        changes["serving.prefill.active_params"] = None
    return scenario.changed(changes)
