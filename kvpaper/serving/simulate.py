"""What the fleet of a scenario does with a trace: an answer of ``simulate`` or a sweep's point."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError
from kvpaper.scenario import Scenario
from kvpaper.serving import arrivals, build
from kvpaper.serving.fleet import Fleet
from kvpaper.serving.measures import measures
from kvpaper.serving.replay import replay
from kvpaper.traces import fetch, generated
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.load import Log


def warn(text: str) -> None:
    """Tell it on standard error."""
    print(f"warning: {text}", file=sys.stderr)


def read(trace: str | None, where: str, tell: Callable[[str], None] = warn) -> BlockTrace:
    """A trace by the name of a public one or by its path; a generated one for None.

    What was odd or damaged in it is told.
    """
    if trace is None:
        return generated.conversations()
    path = fetch.fetched(trace) if trace in fetch.TRACES else trace
    if path is None:
        raise InputError(where, f"{trace}, which is not at hand", "it fetched: make traces")
    if not trace or not Path(path).exists():
        raise InputError(where, repr(trace), f"a path or one of {', '.join(fetch.TRACES)}")
    log = Log([path])
    found = log.trace()
    for warning in log.warnings:
        tell(f"{Path(path).name}: {warning}")
    return found


def asked(requests: BlockTrace, rate: float, seed: int) -> BlockTrace:
    """A trace as it is replayed: coarse timestamps spread, at a multiple of its rate."""
    requests = arrivals.spread(requests, seed)
    return requests if rate == 1 else arrivals.scaled(requests, rate, seed)


def answer(
    scenario: Scenario, requests: BlockTrace, source: str | None, seed: int
) -> dict[str, Any]:
    """What a replay of these requests on the scenario's fleet says."""
    fleet = build.fleet(scenario, requests)
    measured = measures(replay(fleet, requests, seed), scenario)
    found = {"cell": _cell(fleet, source, scenario, seed), **measured}
    return found | {"warnings": _warnings(found, scenario)}


def _cell(fleet: Fleet, trace: str | None, scenario: Scenario, seed: int) -> dict[str, Any]:
    """What was replayed, in words and numbers that tell one configuration from another."""
    kinds = {fleet.prefill.prefill_table.kind, fleet.decoding.decode_table.kind}
    return {
        "model": scenario.model.name,
        "trace": trace or "generated",
        "rate": scenario.fleet.rate,
        "seed": seed,
        "pools": {
            name: {"instances": pool.instances, "gpus": pool.gpus, "kv_tokens": pool.kv_tokens}
            for name, pool in (("prefill", fleet.prefill), ("decode", fleet.decode))
            if pool is not None
        },
        "chunk_tokens": fleet.prefill.chunk_tokens,
        "gpus": fleet.gpus,
        "tiers": {tier.name: tier.capacity_bytes for tier in fleet.tiers},
        "scopes": {tier.name: tier.scope for tier in fleet.tiers},
        "router": fleet.router,
        "fetch": fleet.fetch,
        "first_token_from": fleet.first_token_from,
        "latencies": "tabulated" if kinds == {"tabulated"} else "predicted",
    }


def _warnings(answer: dict[str, Any], scenario: Scenario) -> list[str]:

    found = []
    if answer["hits_still_rise"]:
        found.append("hits still rise at the end: the caches are not warm, costs are upper bounds")
    if answer["cell"]["latencies"] == "predicted":
        found.append("latencies are predicted, not tabulated, for this model or these lengths")
    left_out = ", ".join(build.unpriced(scenario))
    if left_out:
        found.append(f"no price for {left_out}: left out; with a price of 0 it would be used")
    return found
