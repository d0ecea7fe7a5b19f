"""The decision as the contract's object: numbers with their unit, verdicts with their reason."""

from collections import Counter
from typing import Any

import numpy as np

from kvpaper import evaluate, results, units
from kvpaper.advise.decide import (
    CRITICAL_PATH,
    NOT,
    Band,
    Bought,
    Decision,
    Kind,
    band_of,
    cheapest,
    kind,
    saving,
)  # fmt: skip
from kvpaper.advise.flips import Flip, Input
from kvpaper.advise.report import usd
from kvpaper.answers import CELLS, TIERS, capital, counted, duration, listed, size
from kvpaper.formulas import recovery
from kvpaper.serving import cells

UNIT = "USD per million output tokens"
_UNKNOWN = dict.fromkeys(("value", "low", "high"))


def answer(decision: Decision, turned: list[Flip]) -> dict[str, Any]:
    """The contract's object with words beside the numbers; what nobody can tell is None."""
    bench, chosen = decision.bench, decision.chosen
    rule = _rule(decision)
    left, recomputed, *fetched = (row["value"] for row in rule)
    tiers = [
        _tier(name, bought, left, recomputed, time)
        for (name, bought), time in zip(decision.tiers.items(), fetched, strict=True)
    ]
    rows = cells.rows(bench, decision.cells)
    rows += [*rule, *_latencies(decision)]
    saved, told = _saving(decision)
    found = {
        "scenario": bench.case.scenario.name,
        "decision": {
            "split_pools": bool(chosen and chosen.configuration.decode),
            "tiers": tiers,
            "feasible": chosen is not None,
            "told": _told(decision),
        },
        "saving": saved,
        "flips": [_flip(one) for one in turned if one.at is not None],
        "basis": dict.fromkeys(results.KINDS[:4], 0) | Counter(row["kind"] for row in rows),
        "reasons": [told, *_reasons(decision), *(tier["reason"] for tier in tiers)],
        "unchanged": _unchanged(turned),
        "cells": {
            name: band_of(cell.usd_per_token) if cell.feasible else None
            for name, cell in decision.cells.items()
        },
        "rows": results.jsonable(rows),
    }
    return results.finite(found)


def _saves(band: Band) -> str:
    """What a tier saves or costs, with its band."""
    if np.isinf(band["value"]):
        return "is what meets the targets" if band["value"] > 0 else "misses the targets"
    if band["value"] < 0:
        more = {"value": -band["value"], "low": -band["high"], "high": -band["low"]}
        return f"costs {usd(more)} more"
    return f"saves {usd(band)}"


def told_kind(found: Kind | None) -> str:
    """A kind of decision in words."""
    if found is None:
        return "nothing that was tried meets the targets"
    split, tiers = found
    what = f"with {listed([TIERS[tier] for tier in tiers])}" if tiers else "without tiers"
    return f"{'split pools' if split else 'one pool'} {what}"


def _told(decision: Decision) -> str:
    """The decision in a sentence."""
    chosen, gpus = decision.chosen, counted(decision.bench.case.gpus, "GPU")
    if chosen is None:
        return f"Nothing to advise: however few the requests, {gpus} do not meet the targets."
    words = {CRITICAL_PATH: "to wait for", "prefetch": "to prefetch from"}
    buy = [
        f"{size(bought.bytes)} of {TIERS[name]} {words[bought.use]}"
        for name, bought in decision.tiers.items()
        if bought.use != NOT
    ]
    none = [TIERS[name] for name, bought in decision.tiers.items() if bought.use == NOT]
    pools = "Split prefill from decode" if chosen.configuration.decode else "Keep one pool"
    rest = f", and no {listed(none)}" if buy and none else ""
    return f"{pools} and buy {listed(buy) or 'no tier'}{rest}."


# Reasons


def _saving(decision: Decision) -> tuple[dict[str, Any], str]:
    """What is saved over one pool without tiers, or over the next best where that is infeasible."""
    chosen, none = decision.chosen, decision.cells["none"]
    missed = f"one pool without tiers misses the {none.binding.upper()} target at any rate"
    if chosen is None:
        return _UNKNOWN | {"unit": UNIT, "over": None}, f"{capital(missed)}."
    others = [one for one in decision.options if kind(one.configuration) != decision.kind]
    over = none if none.feasible else cheapest(others) if others else None
    if over is None:
        return _UNKNOWN | {"unit": UNIT, "over": None}, f"Nothing else meets the targets: {missed}."
    band, words = saving(chosen, over), told_kind(kind(over.configuration))
    share = band["value"] / band_of(over.usd_per_token)["value"]
    why = "" if over is none else f", the next best, since {missed}"
    told = f"That saves {usd(band)} {UNIT}, {share:.0%}, over {words}{why}."
    if over.configuration == chosen.configuration:
        told = "Neither a split nor a tier saves anything beyond noise."
    return band | {"unit": UNIT, "over": words}, told


def _reasons(decision: Decision) -> list[str]:
    chosen, best, case = decision.chosen, decision.best, decision.bench.case
    if chosen is None:
        return []
    told = []
    less = saving(best, chosen)
    if less["value"] > 0:
        other = kind(best.configuration)
        more = "More tiers" if other == decision.kind else capital(told_kind(other))
        told.append(
            f"{more} would save {usd(less)} {UNIT}: within noise, so the simpler is advised."
        )
    for name, cell in decision.cells.items():
        if not cell.feasible and name != "none":
            few = case.gpus < 2 * min(way.gpus for way in case.ways)
            why = "needs more GPUs" if few else f"misses the {cell.binding.upper()} target"
            told.append(f"{capital(CELLS[name])}: {why}.")
    rate, asked = chosen.requests_per_s.mean(), case.scenario.workload.requests_per_s
    gpus, cost = counted(case.gpus, "GPU"), usd(band_of(chosen.usd_per_token))
    told.append(
        f"So run, {gpus} serve {rate:.3g} requests/s at {cost} {UNIT}; the "
        f"{chosen.binding.upper()} target allows no more. The scenario asks for {asked:.3g}."
    )
    return told


def _rule(decision: Decision) -> list[results.Row]:
    """The formula's verdict on a usual prefix: slack, recomputing, a fetch from each tier.

    Fetches have the load of the replay beside them.
    """
    scenario, chosen = decision.bench.case.scenario, decision.chosen
    pool = evaluate.POOLS[bool(chosen and chosen.configuration.decode)]
    tokens = scenario.workload.prompt_tokens - scenario.workload.new_tokens
    held, loads = evaluate.kept_bytes(scenario, tokens), _loads(decision)
    rows = [
        row
        for row in evaluate.slacks(scenario) + evaluate.recoveries(scenario)
        if row["quantity"] in ("ttft_slack_s", "recompute_time_s") and row.get("pool", pool) == pool
    ]
    for name in decision.tiers:
        part, load = scenario.hardware.tiers[name], loads.get(name, 0.0)
        at = (held, part.read_bytes_per_s, part.access_latency_s)
        fetched = float(recovery.shared_fetch_time(*at, load)) if load < 1 else np.inf
        rows.append(results.row("shared_fetch_time_s", fetched, tier=name, tokens=tokens))
    return rows


def _loads(decision: Decision) -> dict[str, float]:
    """Load of each bought tier in the replay: what is fetched and written over its rates."""
    bench, chosen = decision.bench, decision.chosen
    if chosen is None:
        return {}
    fleet, served = bench.case.fleet(chosen.configuration), chosen.served
    instances, prompt = fleet.prefill.instances, bench.load.input_tokens.mean()
    loads = {}
    for place, tier in enumerate(fleet.tiers):
        fetched = served.hit_shares[1 + place] * prompt * fleet.kv_bytes_per_token
        own = served.requests_per_s / instances, served.written_bytes_per_s[place] / instances
        load = recovery.offered_load(own[0], fetched, tier.read_bytes_per_s)
        loads[tier.name] = float(load + own[1] / tier.write_bytes_per_s)
    return loads


def _tier(
    name: str, bought: Bought, left: float, recomputed: float, fetched: float
) -> dict[str, Any]:
    """The verdict on a tier; times as of ``_rule`` [s]."""
    late, slow = fetched > left, fetched >= recomputed
    time = duration(fetched) if np.isfinite(fetched) else "more than can be served"
    why = [
        f"a usual prefix takes {time}{' under its load' * (bought.use != NOT)}, "
        f"{'beyond' if late else 'within'} the slack of {duration(max(0.0, left))} and "
        f"{'no ' * slow}less than recomputing it ({duration(recomputed)})"
    ]
    if bought.saving and bought.use == NOT:
        why.append(f"the least of it {_saves(bought.saving)}")
    elif bought.saving:
        ahead = _saves(bought.saving_waiting)
        why.append(f"it {_saves(bought.saving)}; where no fetch runs ahead it {ahead}")
        why += ["all that the scenario offers is bought, and more may pay"] * bought.all
    return {
        "tier": name,
        "bytes": bought.bytes,
        "use": bought.use,
        "saving": bought.saving or _UNKNOWN,
        "saving_without_prefetch": bought.saving_waiting or _UNKNOWN,
        "rule": "late" if late else "recompute" if slow else "in time",
        "reason": f"{capital(TIERS[name])}, {bought.use}: {'; '.join(why)}.",
    }


def _latencies(decision: Decision) -> list[results.Row]:
    """A prefill and a decode step of every way to run the model: what the replay rests on."""
    tokens, rows = float(np.rint(decision.bench.load.input_tokens.mean())), []
    for way in decision.bench.case.ways:
        prefill, decode = way.prefill.prefill_table, way.decode.decode_table
        at = {"way": way.name}
        seconds = float(prefill.prefill_time(tokens)), float(decode.step_time(1, tokens))
        rows.append(results.row("prefill_time_s", seconds[0], prefill.kind, tokens=tokens, **at))
        rows.append(results.row("decode_step_time_s", seconds[1], decode.kind, tokens=tokens, **at))
    return rows


# What would change it


def _shown(moved: Input, value: float) -> str:
    if moved.unit in ("s", "GB/s"):
        return duration(value) if moved.unit == "s" else f"{size(value)}/s"
    return f"{units.per(value, moved.unit):.3g} {moved.unit}"


def _flip(found: Flip) -> dict[str, Any]:
    moved, to = found.input, told_kind(found.to)
    side, now = "above" if found.at > moved.value else "below", _shown(moved, moved.value)
    return {
        "input": moved.key,
        "at": units.per(found.at, moved.unit),
        "to": to,
        "unit": moved.unit,
        "from": units.per(moved.value, moved.unit),
        "told": f"{moved.key} {side} {_shown(moved, found.at)} (now {now}): {to}",
    }


def _unchanged(found: list[Flip]) -> list[dict[str, Any]]:
    """For each input the range over which no other decision was found cheaper beyond noise."""
    told = []
    for moved in dict.fromkeys(one.input for one in found):
        ends = [moved.value, *(one.last for one in found if one.input == moved)]
        low, high = min(ends), max(ends)
        values = {"from": units.per(low, moved.unit), "to": units.per(high, moved.unit)}
        text = f"{moved.key} from {_shown(moved, low)} to {_shown(moved, high)}"
        told.append({"input": moved.key, **values, "unit": moved.unit, "told": text})
    return told
