"""``kvpaper simulate``: a scenario and a trace in, the answer of the contract out."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kvpaper.errors import InputError

# Functions import what they need, so that --help stays fast.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command; nothing heavy is imported for them."""
    parser.add_argument("scenario", metavar="SCENARIO", help="a name in data/scenarios or a file")
    parser.add_argument("--trace", metavar="T", help="a log, instead of the scenario's trace")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Replay, answer, print; messages go to standard error."""
    answer = simulate(arguments.scenario, arguments.trace, arguments.seed)
    for warning in answer["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(json.dumps(answer, indent=1, allow_nan=False) if arguments.json else render(answer))
    return 0


def simulate(name: str, trace: str | None = None, seed: int = 0) -> dict[str, Any]:
    """The answer for one scenario.

    Raises
    ------
    InputError
        If scenario, trace or fleet is at fault.
    """
    from kvpaper import scenario as scenarios
    from kvpaper.serving import arrivals, build
    from kvpaper.serving.measures import measures
    from kvpaper.serving.replay import replay

    if not 0 <= seed < 2**63:
        raise InputError("--seed", str(seed), "a whole number from 0 on")
    scenario = scenarios.load(name)
    source = trace or scenario.workload.trace
    requests = arrivals.spread(read(source, "--trace" if trace else "workload.trace"), seed)
    if scenario.fleet.rate != 1:
        requests = arrivals.scaled(requests, scenario.fleet.rate, seed)
    fleet = build.reaching(build.fleet(scenario), requests)
    measured = measures(replay(fleet, requests, seed), scenario)
    answer = {"cell": cell(fleet, source, scenario.fleet.rate, seed), **measured}
    return answer | {"warnings": _warnings(answer, scenario)}


def read(trace: str | None, where: str):
    """A trace by the name of a public one or by its path; a generated one for None."""
    from kvpaper.traces import fetch, generated
    from kvpaper.traces.load import read_trace

    if trace is None:
        return generated.conversations()
    if trace in fetch.TRACES:
        path = fetch.fetched(trace)
        if path is None:
            raise InputError(where, f"{trace}, which is not at hand", "it fetched: make traces")
        return read_trace([path]).trace
    if not Path(trace).exists():
        raise InputError(where, repr(trace), f"a path or one of {', '.join(fetch.TRACES)}")
    return read_trace([trace]).trace


def cell(fleet, trace: str | None, rate: float, seed: int) -> dict[str, Any]:
    """What was replayed, in words and numbers that tell one configuration from another."""
    tables = [fleet.prefill.prefill, (fleet.decode or fleet.prefill).decode]
    kinds = {table.kind for table in tables}
    return {
        "trace": trace or "generated",
        "rate": rate,
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


def _warnings(answer: dict[str, Any], scenario) -> list[str]:
    from kvpaper import evaluate

    found = []
    if answer["hits_still_rise"]:
        found.append("hits still rise at the end: the caches are not warm, costs are upper bounds")
    if answer["cell"]["latencies"] == "predicted":
        found.append("latencies are predicted, not tabulated, for this model or these lengths")
    free = [name for name in answer["cell"]["tiers"] if name not in evaluate.priced_tiers(scenario)]
    if free:
        found.append(f"no price for {', '.join(free)}: counted as free")
    return found


def render(answer: dict[str, Any]) -> str:
    """The answer for a person."""

    def of(name: str) -> str:
        points = answer[name].items()
        return ", ".join(f"{point} {_shown(value, 1e3)} ms" for point, value in points)

    tokens = answer["computed_tokens"] + sum(answer["hit_tokens"].values())
    hits = ", ".join(
        f"{name} {count / max(1, tokens):.1%}" for name, count in answer["hit_tokens"].items()
    )
    verdict = "meets the targets" if answer["feasible"] else "misses the targets"
    usd = _shown(answer["usd_per_million_output_tokens"])
    return "\n".join(
        [
            f"{answer['requests']} requests on {answer['cell']['gpus']} GPUs, simulated: {verdict}",
            f"TTFT     {of('ttft_s')}",
            f"TPOT     {of('tpot_s')}",
            f"hits     {hits} of prompt tokens",
            f"cost     {usd} USD per million output tokens",
            f"energy   {_shown(answer['joules_per_million_output_tokens'], 1e-6)} MJ per million",
            f"binding  {answer['binding'].upper()}",
        ]
    )


def _shown(value: float | None, scale: float = 1.0) -> str:
    return "unknown" if value is None else f"{value * scale:.4g}"
