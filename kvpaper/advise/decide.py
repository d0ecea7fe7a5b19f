"""The decision: the cheapest cell that meets the targets, and no more than noise allows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from kvpaper.errors import InputError
from kvpaper.scenario import Scenario
from kvpaper.serving import arrivals
from kvpaper.serving.case import Case, Configuration
from kvpaper.serving.cells import Bench, Cell, best_cells, costed, half_width
from kvpaper.serving.fleet import Tier
from kvpaper.traces.block_trace import BlockTrace, require_identity

# Value, low and high [USD per million output tokens].
Band = dict[str, float]
CRITICAL_PATH, PREFETCH, NOT = "critical path", "prefetch", "do not buy"
# Of a log; of a replay at the rate of the closed form, which it does not reach, if not twice
# those of the log.
_LEAST_REQUESTS, _MOST_REQUESTS = 100, 20_000
# Fewer instances hardly split.
_INSTANCES = 4
_LEAST_SHARE = 1 / 8


@dataclass(frozen=True, slots=True)
class Bought:
    """One priced tier: what is bought of it, and what that saves.

    Attributes
    ----------
    use : str
        ``critical path`` if it pays where no fetch runs ahead; ``prefetch`` or ``do not buy``.
    bytes : float
        For the whole fleet [B].
    all : bool
        Whether that is all that the scenario offers.
    saving : Band or None
        What it saves; of a tier that is not bought, what the least of it would save.
    saving_waiting : Band or None
        What it saves where a fetch starts only when an instance turns to its request.
    """

    use: str
    bytes: float = 0.0
    all: bool = False
    saving: Band | None = None
    saving_waiting: Band | None = None


@dataclass(slots=True)
class Decision:
    """What was decided, and all that was costed on every seed for it.

    Attributes
    ----------
    bench : Bench
    cells : dict
        The four cells by name.
    options : list of Cell
        All feasible configurations, the cells first.
    best, chosen : Cell or None
        The cheapest, and the simplest that is not dearer beyond noise; None if none is feasible.
    tiers : dict
        Priced tiers by name.
    """

    bench: Bench
    cells: dict[str, Cell]
    options: list[Cell]
    best: Cell | None = None
    chosen: Cell | None = None
    tiers: dict[str, Bought] = field(default_factory=dict)

    @property
    def kind(self) -> "Kind | None":
        """What was decided; None if nothing is feasible."""
        return self.chosen and kind(self.chosen.configuration)

    def cost(self, chosen: Configuration, near: Cell) -> Cell:
        """A configuration on every seed, near the rate of a cell."""
        cell = costed(self.bench, near.name, chosen, near.steps[0])
        if cell.feasible:
            self.options.append(cell)
        return cell


Kind = tuple[bool, tuple[str, ...]]


def kind(chosen: Configuration) -> Kind:
    """What a decision is about: whether pools are split, and which tiers are bought."""
    return chosen.decode is not None, tuple(tier.name for tier in chosen.tiers)


def sized(scenario: Scenario) -> Scenario:
    """The scenario, with a fleet that can be split where it states none."""
    if {"fleet.prefill.instances", "fleet.decode.instances"} & scenario.leaves.keys():
        return scenario
    return scenario.changed({"fleet.prefill.instances": _INSTANCES})


def bench_of(scenario: Scenario, trace: BlockTrace) -> Bench:
    """A bench whose replays are near what the fleet can serve, and short enough to make many.

    Raises
    ------
    InputError
        If the log is too small for a percentile, or its blocks have no ids.
    """
    require_identity(trace.block_tokens, "trace")
    if trace.requests < _LEAST_REQUESTS or not trace.duration_s:
        found = f"{trace.requests} requests in {trace.duration_s:g} s"
        raise InputError("trace", found, f"at least {_LEAST_REQUESTS} over some time")
    bench = Bench(Case.of(scenario, trace), trace)
    case, rate = bench.case, 0.0
    for way in case.ways:
        if way.gpus <= case.gpus:
            whole = Configuration(way, case.gpus // way.gpus)
            rate = max(rate, bench.predicted(whole)[0])
    times = rate / bench.load.requests_per_s
    seconds = max(_MOST_REQUESTS, 2 * trace.requests) / max(rate, 1e-9)
    if times <= 8 and seconds >= trace.duration_s:
        return bench
    more = arrivals.scaled(trace, max(1.0, times / 4))
    away_s = np.abs(more.arrival_s - more.duration_s / 2)
    part = more.select(np.flatnonzero(away_s <= seconds / 2))
    return Bench(case, replace(part, arrival_s=part.arrival_s - part.arrival_s[0]))


def band_of(usd_per_token: np.ndarray) -> Band:
    """Mean over seeds, and the ends of its band."""
    middle, half = float(usd_per_token.mean()), half_width(usd_per_token)
    return {"value": 1e6 * middle, "low": 1e6 * (middle - half), "high": 1e6 * (middle + half)}


def saving(cell: Cell, over: Cell) -> Band:
    """What a cell saves over another, seed by seed; infinite if only it can.

    Seeds are paired: both serve the same requests.
    """
    if cell.feasible and over.feasible:
        return band_of(over.usd_per_token - cell.usd_per_token)
    end = np.inf if cell.feasible else -np.inf
    return dict.fromkeys(("value", "low", "high"), end)


def cheaper(cell: Cell, than: Cell) -> bool:
    """Whether it is cheaper beyond noise."""
    return saving(cell, than)["low"] > 0


def cheapest(cells: Iterable[Cell]) -> Cell:
    return min(cells, key=lambda cell: float(cell.usd_per_token.mean()))


def decide(bench: Bench, told: Callable[[str], None] = lambda _: None) -> Decision:
    """The four cells, the simplest of what noise does not tell apart, and the use of each tier."""
    told("the four cells")
    cells = best_cells(bench)
    decision = Decision(bench, cells, [cell for cell in cells.values() if cell.feasible])
    told("how much of each tier, and whether it may be waited for")
    if decision.options:
        decision.best = cheapest(decision.options)
        decision.chosen = _simplest(decision)
    decision.tiers = {offer[0].name: _bought(decision, offer) for offer in bench.case.offers}
    return decision


def _simplest(decision: Decision) -> Cell:
    """A simpler cell, then fewer tiers, then half of them, while the best is not cheaper."""
    best, case = decision.best, decision.bench.case

    def levers(cell: Cell) -> tuple[int, float]:
        split, tiers = kind(cell.configuration)
        return split + bool(tiers), float(cell.usd_per_token.mean())

    chosen = min((one for one in decision.options if not cheaper(best, one)), key=levers)
    for tier in reversed(chosen.configuration.tiers):
        fewer = decision.cost(_without(chosen.configuration, tier.name), chosen)
        if not cheaper(best, fewer):
            chosen = fewer
    most = {offer[-1].name: offer[-1].capacity_bytes for offer in case.offers}
    for tier in chosen.configuration.tiers:
        while tier.capacity_bytes > _LEAST_SHARE * most[tier.name]:
            tier = replace(tier, capacity_bytes=tier.capacity_bytes / 2)
            less = decision.cost(_with(chosen.configuration, tier, case), chosen)
            if cheaper(best, less):
                break
            chosen = less
    return chosen


def _bought(decision: Decision, offer: tuple[Tier, ...]) -> Bought:
    """Whether a tier is bought and what that saves, also where no fetch runs ahead."""
    bench, chosen, name = decision.bench, decision.chosen, offer[0].name
    if chosen is None:
        return Bought(NOT)
    own = chosen.configuration
    held = [one.capacity_bytes for one in own.tiers if one.name == name]
    if not held:
        more = [decision.cost(_with(own, one, bench.case), chosen) for one in offer[:2]]
        return Bought(NOT, saving=saving(cheapest(more), chosen))
    fewer = decision.cost(_without(own, name), chosen)
    alike = kind(fewer.configuration)
    rivals = [one for one in decision.options if kind(one.configuration) == alike]
    rival = cheapest([fewer, *rivals])
    base = replace(bench.case.base, prefetch_lead_s=None)
    there = replace(decision, bench=bench.on(replace(bench.case, base=base)), options=[])
    saved = saving(*(there.cost(one.configuration, one) for one in (chosen, rival)))
    return Bought(
        use=CRITICAL_PATH if saved["low"] > 0 else PREFETCH,
        bytes=held[0] * own.prefill.gpus * own.prefill_instances,
        all=held[0] == offer[-1].capacity_bytes,
        saving=saving(chosen, rival),
        saving_waiting=saved,
    )


def _without(chosen: Configuration, name: str) -> Configuration:
    return chosen._replace(tiers=tuple(tier for tier in chosen.tiers if tier.name != name))


def _with(chosen: Configuration, tier: Tier, case: Case) -> Configuration:
    """The configuration with a tier in its place, fastest first."""
    held = {one.name: one for one in (*chosen.tiers, tier)}
    order = [offer[0].name for offer in case.offers]
    return chosen._replace(tiers=tuple(held[name] for name in order if name in held))
