"""Which input changes the decision, and from which value on.

Each input is moved alone, to the ends of its range. Where another kind of decision is cheaper at an
end beyond noise, the value from which on it is lies between, and halving brackets it. Prices need
no replay: what was costed on every seed is priced anew. For other inputs the best of each kind
races again; what loses there costs one replay.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kvpaper.advise.decide import Decision, Kind, cheaper, cheapest, kind
from kvpaper.serving import arrivals
from kvpaper.serving.case import Case, Configuration
from kvpaper.serving.cells import CELLS, SEEDS, Bench, Cell, Race, best_cells, costed, raced

SPAN = 4.0
# A bracket is 19 % wide where it takes replays, 1 % where it does not.
_HALVINGS, _HALVINGS_OF_PRICES = 3, 8
# Of a processor, for all inputs.
_LIMIT_S = 300.0


class Input(NamedTuple):
    """An input that is moved.

    Attributes
    ----------
    key, unit : str
        In the scenario's file, and a unit of its kind.
    path : tuple of str
        In the scenario itself.
    value : float
    """

    key: str
    unit: str
    path: tuple[str, ...]
    value: float


class Flip(NamedTuple):
    """What was found between the value of an input and one end of its range.

    Attributes
    ----------
    input : Input
    last : float
        The last value found, before another decision is cheaper beyond noise, at which none is.
    at : float or None
        The nearest value found at which one is; None if none is at the end either.
    to : Kind or None
        That other decision; None where nothing tried meets the targets.
    """

    input: Input
    last: float
    at: float | None = None
    to: Kind | None = None


def inputs(bench: Bench) -> list[Input]:
    """What is moved: targets, prices, rates of tiers and of the link, reuse."""
    scenario, tiers = bench.case.scenario, [offer[0].name for offer in bench.case.offers]
    paths = {
        "slo.ttft": ("s", "slo", "ttft_s"),
        "slo.tpot": ("s", "slo", "tpot_s"),
        "prices.gpu": ("USD/hour", "prices", "gpu_usd_per_s"),
    }
    for tier in tiers:
        if scenario.prices.reading == "rented":
            paths[f"prices.rent.{tier}"] = "USD/GB/month", "prices", "rent", tier
        elif scenario.prices.reading == "amortised":
            paths[f"prices.{tier}"] = "USD/GB", "prices", tier
    for tier in tiers:
        rate = "GB/s", "hardware", "tiers", tier, "read_bytes_per_s"
        paths[f"hardware.tiers.{tier}.read"] = rate
    paths["serving.transfer.rate"] = "GB/s", "serving", "transfer", "rate_bytes_per_s"
    found = [Input(key, at[0], at[1:], _at(scenario, at[1:])) for key, at in paths.items()]
    found.append(Input("workload.ceiling", "%", ("workload", "ceiling"), bench.load.curve.ceiling))
    return [one for one in found if one.value]


def flips(decision: Decision, moved: list[Input], told: Callable[[str], None]) -> Iterator[Flip]:
    """What each input changes, at each end; an input that time does not allow is left out."""
    started_s = time.process_time()
    for one in moved:
        told(one.key)
        for end in _ends(decision, one):
            if time.process_time() - started_s < _LIMIT_S:
                yield _flip(decision, one, end)


def _ends(decision: Decision, moved: Input) -> list[float]:
    """Ends of the range that can change something: a slower part that is not used cannot."""
    low, high = moved.value / SPAN, moved.value * SPAN
    if moved.path[0] == "workload":
        return [0.0]
    if moved.path[0] in ("slo", "prices") or decision.kind is None:
        return [low, high]
    split, tiers = decision.kind
    used = split if moved.path[0] == "serving" else moved.path[2] in tiers
    return [low if used else high]


def _flip(decision: Decision, moved: Input, end: float) -> Flip:
    last, at, to = moved.value, end, _decided(decision, moved.path, end)
    if to == decision.kind:
        return Flip(moved, end)
    for _ in range(_HALVINGS_OF_PRICES if moved.path[0] == "prices" else _HALVINGS):
        middle = (last * at) ** 0.5 if end else (last + at) / 2
        there = _decided(decision, moved.path, middle)
        if there == decision.kind:
            last = middle
        else:
            at, to = middle, there
    return Flip(moved, last, at, to)


def _at(part: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        part = part[name] if isinstance(part, dict) else getattr(part, name)
    return part


def _decided(decision: Decision, path: tuple[str, ...], value: float) -> Kind | None:
    """The decision where an input has another value: another one only beyond noise."""
    bench, case = decision.bench, decision.bench.case
    if path[0] == "workload":
        lost = arrivals.strangers(bench.trace, 1 - value / bench.load.curve.ceiling)
        return _raced(decision, Bench(case, lost))
    changed = {".".join(path): value}
    if path[0] == "prices":
        return _repriced(decision, bench.changed(changed))
    if path[0] == "slo":
        return _raced(decision, bench.changed(changed))
    return _raced(decision, bench.on(Case.of(case.scenario.changed(changed), bench.trace)))


def repriced(bench: Bench, cell: Cell) -> Cell:
    """The cell at the prices of a bench, from the replays that it rests on."""
    runs = [
        bench.highest(cell.configuration, seed, step)
        for seed, step in zip(SEEDS, cell.steps, strict=True)
    ]
    return replace(cell, usd_per_token=np.array([usd for _, usd in runs]))


def _repriced(decision: Decision, bench: Bench) -> Kind | None:
    if decision.chosen is None:
        return None
    cells = [repriced(bench, cell) for cell in decision.options]
    best = cheapest(cells)
    own = cheapest(cell for cell in cells if kind(cell.configuration) == decision.kind)
    return kind(best.configuration) if cheaper(best, own) else decision.kind


def _raced(decision: Decision, bench: Bench) -> Kind | None:
    """The best of each kind race; where the decision's own loses, it may choose anew."""
    if decision.chosen is None:
        feasible = [cell for cell in best_cells(bench).values() if cell.feasible]
        return kind(cheapest(feasible).configuration) if feasible else None
    base, best = decision.kind, {}
    for cell in sorted(decision.options, key=lambda cell: float(cell.usd_per_token.mean())):
        best.setdefault(kind(cell.configuration), cell)
    race = Race(bench)
    for cell in best.values():
        race.run(_adapted(cell.configuration, bench.case), float(cell.requests_per_s.mean()))
    if race.best and kind(race.best) == base:
        return base
    split, tiers = base
    alike = next(name for name, levers in CELLS.items() if levers == (split, bool(tiers)))
    one = _adapted(best[base].configuration, bench.case)
    own = raced(bench.on(bench.case.offering(tiers)), alike, [one])
    if race.best is None:
        return own.best and base
    if own.best is None:
        return kind(race.best)
    one = own.best if kind(own.best) == base else one
    first, second = (
        costed(bench, alike, chosen, at.step) for chosen, at in ((race.best, race), (one, own))
    )
    return kind(race.best) if cheaper(first, second) else base


def _adapted(chosen: Configuration, case: Case) -> Configuration:
    """The configuration with what the case says of its ways and tiers."""
    ways = {way.name: way for way in case.ways}
    parts = {offer[0].name: offer[0] for offer in case.offers}
    return chosen._replace(
        prefill=ways[chosen.prefill.name],
        decode=chosen.decode and ways[chosen.decode.name],
        tiers=tuple(
            replace(parts[one.name], capacity_bytes=one.capacity_bytes, admission=one.admission)
            for one in chosen.tiers
        ),
    )
