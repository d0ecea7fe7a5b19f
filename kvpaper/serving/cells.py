"""Four cells, {one pool, disaggregated} x {GPU memory only, tiers}, each at its own best.

All have the same GPUs and the same targets. Pools have whole instances; GPUs that do not divide
stand idle and are paid for. The closed form says in which order configurations are worth
replaying; the replay decides, on one superposition of the trace. The configuration that wins is
replayed on other ones, which give its cost and the band.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np

from kvpaper import results
from kvpaper.formulas import cost
from kvpaper.serving import arrivals, closed_form, search
from kvpaper.serving.case import Case, Configuration, Way
from kvpaper.serving.replay import replay
from kvpaper.serving.search import STEP, Highest, Served
from kvpaper.traces.block_trace import BlockTrace

# Name of a cell: whether pools are split, whether tiers may be bought.
CELLS = {
    "none": (False, False),
    "disaggregated": (True, False),
    "tiered": (False, True),
    "both": (True, True),
}
LEVERS = ("disaggregation", "tiers")
CHUNKS = (8192, 2048, None)
SEARCH_SEED, SEEDS = 0, (1, 2, 3, 4)
# Structures and stocks of tiers that are replayed, best predicted first.
_STRUCTURES, _STOCKS = 4, 4
# What the closed form puts this far above its best is not replayed.
_MARGIN = 1.2


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell at its best; S seeds.

    Attributes
    ----------
    name : str
        A key of ``CELLS``.
    configuration : Configuration or None
        None where no configuration meets the targets.
    usd_per_token, requests_per_s : float64 array, shape (S,)
        Cost of an output token at the highest rate [USD], infinite where a seed misses the
        targets at any rate; that rate [1/s].
    served : Served or None
        The last rate of the grid that meets the targets, first seed.
    binding : str
        The target that stops the rate, or that the cell cannot meet.
    predicted_requests_per_s : float
        What the closed form expects of the same configuration.
    steps : tuple of int
        The last step of the grid that meets the targets, for each seed.
    """

    name: str
    configuration: Configuration | None
    usd_per_token: np.ndarray
    requests_per_s: np.ndarray
    served: Served | None
    binding: str
    predicted_requests_per_s: float
    steps: tuple[int, ...] = ()

    @property
    def feasible(self) -> bool:
        return bool(np.isfinite(self.usd_per_token).all())


class Bench:
    """Replays of a case on superpositions of a trace, each made once however many ask for it.

    So are rates by the closed form.

    Parameters
    ----------
    case : Case
    trace : BlockTrace
    superposed : callable, optional
        The trace at a step of the grid of rates, by a seed; instead of copies of its sessions.
    """

    def __init__(
        self,
        case: Case,
        trace: BlockTrace,
        superposed: Callable[[int, int], BlockTrace] | None = None,
    ) -> None:
        self.case, self.trace = case, trace
        self.load = closed_form.Load.of(trace)
        self._served: dict[tuple, Served] = {}
        self._rates: dict[tuple, float] = {}
        enough = 2 * search.LEAST_REQUESTS / trace.requests
        self.lowest = int(np.ceil(np.log(enough) / np.log(STEP)))

        def copied(step: int, seed: int) -> BlockTrace:
            return arrivals.scaled(arrivals.spread(trace, seed), STEP**step, seed)

        self._superposed = lru_cache(maxsize=48)(superposed or copied)

    def on(self, case: Case) -> "Bench":
        """The same trace and replays for another case of the model."""
        bench = copy(self)
        bench.case = case
        return bench

    def changed(self, values: Mapping[str, Any]) -> "Bench":
        """The same replays at other targets or prices, by their names in the scenario."""
        return self.on(replace(self.case, scenario=self.case.scenario.changed(values)))

    def served(self, chosen: Configuration, seed: int, step: int) -> Served:
        """What a configuration serves at a step of the grid."""
        key = (self.case.key(chosen), step, seed)
        if key not in self._served:
            replayed = replay(self.case.fleet(chosen), self._superposed(step, seed), seed)
            self._served[key] = Served.of(replayed, self.case.scenario)
        return self._served[key]

    def highest(self, chosen: Configuration, seed: int, start: int) -> tuple[Highest, float]:
        """Highest rate of a configuration, and its cost of an output token there [USD]."""
        targets = self.case.scenario.slo
        at = partial(self.served, chosen, seed)
        found = search.highest(at, targets, start, self.lowest)
        if not found.output_tokens_per_s:
            return found, np.inf
        usd_per_s = self.case.usd_per_s(chosen, found.written_bytes_per_s)
        return found, usd_per_s / found.output_tokens_per_s

    def predicted(self, chosen: Configuration) -> tuple[float, float]:
        """Highest rate by the closed form [1/s], 0 if none, and cost of a request there [USD]."""
        slo = self.case.scenario.slo
        targets = slo.ttft_s, slo.tpot_s, slo.percentile
        # The closed form does not know chunks.
        fleet, key = self.case.fleet(chosen), self.case.key(chosen._replace(chunk_tokens=None))
        if (key, targets) not in self._rates:
            self._rates[key, targets] = closed_form.highest_rate(fleet, self.load, *targets)
        rate = self._rates[key, targets]
        if not rate:
            return 0.0, np.inf
        written = closed_form.written_bytes_per_s(fleet, self.load, rate)
        return rate, self.case.usd_per_s(chosen, written) / rate

    def step_of(self, requests_per_s: float) -> int:
        """Last step of the grid whose rate is not above this one."""
        if requests_per_s <= 0:
            return self.lowest
        steps = np.log(requests_per_s / self.load.requests_per_s) / np.log(STEP)
        return max(self.lowest, int(np.floor(steps)))


class Race:
    """The cheapest of the configurations that have run so far, on the seed of the search."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.best: Configuration | None = None
        self.usd_per_token, self.step, self.binding = np.inf, bench.lowest, "ttft"
        self._ran: set[tuple] = set()

    def run(self, chosen: Configuration, predicted_requests_per_s: float) -> None:
        """Let one more run, which must first meet the targets at the rate that beats the best."""
        bench, start = self.bench, self.bench.step_of(predicted_requests_per_s)
        key = bench.case.key(chosen)
        if key in self._ran:
            return
        self._ran.add(key)
        if self.best is not None:
            idle = bench.case.usd_per_s(chosen, (0.0,) * len(chosen.tiers))
            start = bench.step_of(idle / self.usd_per_token / bench.load.output_tokens) - 1
            if start < bench.lowest:
                return
            if bench.served(chosen, SEARCH_SEED, start).excess(bench.case.scenario.slo) > 0:
                return
        found, usd = bench.highest(chosen, SEARCH_SEED, start)
        if usd < self.usd_per_token:
            self.best, self.usd_per_token, self.step = chosen, usd, found.step
        if self.best in (None, chosen):
            self.binding = found.binding


def _structures(bench: Bench, split: bool) -> list[Configuration]:
    """Instances and splits worth a prediction, without tiers.

    A way to prefill is left out if another one is faster and does more for each GPU; a way to
    decode, if another one needs no more GPUs and decodes more for each within the target.
    """
    load, gpus = bench.load, bench.case.gpus
    ways = [way for way in bench.case.ways if way.gpus <= gpus]
    if not split:
        return [Configuration(way, gpus // way.gpus) for way in ways]
    prompt, context = load.input_tokens.mean(), closed_form.context_tokens(load)
    prefills, decodes = [], []
    for way in ways:
        prompt_s = float(way.prefill.prefill_table.prefill_time(prompt))
        prefills.append((prompt_s, prompt_s * way.prefill.gpus))
        rate = closed_form.decode_rate(way.decode, context, bench.case.scenario.slo.tpot_s)
        decodes.append((way.gpus, -rate / way.decode.gpus))
    found = []
    for one, other in product(_undominated(ways, prefills), _undominated(ways, decodes)):
        for count in range(1, (gpus - other.gpus) // one.gpus + 1):
            rest = gpus - count * one.gpus
            if rest % other.gpus < one.gpus:  # else one more would fit beside
                found.append(Configuration(one, count, other, rest // other.gpus))
    return found


def _undominated(ways: list[Way], costs: list[tuple[float, float]]) -> list[Way]:
    """Ways of which no other is better in one of two costs and as good in the other."""
    return [
        way
        for way, own in zip(ways, costs, strict=True)
        if not any(a <= own[0] and b <= own[1] and (a, b) != own for a, b in costs)
    ]


def _ordered(
    bench: Bench, configurations: Iterable[Configuration], most: int
) -> list[tuple[Configuration, float]]:
    """The best predicted configurations with their rates, cheapest first.

    Those that are predicted to fail come in the order of their speed with a long cold prompt.
    """
    rated = [(one, *bench.predicted(one)) for one in configurations]
    long = np.quantile(bench.load.input_tokens, bench.case.scenario.slo.percentile / 100)
    rated.sort(key=lambda one: (one[2], one[0].prefill.prefill.prefill_table.prefill_time(long)))
    return [(one, rate) for one, rate, usd in rated[:most] if usd <= _MARGIN * rated[0][2]]


def raced(bench: Bench, cell: str, first: Iterable[Configuration]) -> Race:
    """The cheapest configuration of a cell.

    First structures, each with the tiers that suit it best by the closed form; then the winner
    with other tiers; then its neighbours.
    """
    split, tiers = CELLS[cell]
    race = Race(bench)
    stocks = bench.case.stocks() if tiers else [()]
    for chosen in first:
        race.run(chosen, bench.predicted(chosen)[0])
    structures = [one._replace(tiers=stocks[-1]) for one in _structures(bench, split)]
    for chosen, _ in _ordered(bench, structures, _STRUCTURES):
        stocked = [chosen._replace(tiers=stock) for stock in stocks]
        best, rate = _ordered(bench, stocked, 1)[0]
        for chunk in (None,) if split else CHUNKS:
            race.run(best._replace(chunk_tokens=chunk), rate)
    if race.best is None:
        return race
    stocked = [race.best._replace(tiers=stock) for stock in stocks]
    for chosen, rate in _ordered(bench, stocked, _STOCKS):
        race.run(chosen, rate)
    for chosen in neighbours(race.best, bench.case.gpus):
        race.run(chosen, bench.predicted(chosen)[0])
    return race


def neighbours(chosen: Configuration, gpus: int) -> Iterator[Configuration]:
    """One prefill instance more or less, the rest decoding; with one pool other chunks."""
    if chosen.decode is None:
        yield from (chosen._replace(chunk_tokens=chunk) for chunk in CHUNKS)
    else:
        for count in (chosen.prefill_instances - 1, chosen.prefill_instances + 1):
            rest = (gpus - count * chosen.prefill.gpus) // chosen.decode.gpus
            if count >= 1 and rest >= 1:
                yield chosen._replace(prefill_instances=count, decode_instances=rest)


def best_cell(bench: Bench, name: str, first: Iterable[Configuration] = ()) -> Cell:
    """One cell at its own best; the configurations of ``first`` run first."""
    race = raced(bench, name, first)
    if race.best is None:
        nothing = np.full(len(SEEDS), np.inf)
        return Cell(name, None, nothing, np.zeros(len(SEEDS)), None, race.binding, 0.0)
    return costed(bench, name, race.best, race.step)


def costed(bench: Bench, name: str, chosen: Configuration, start: int) -> Cell:
    """A configuration as a cell: its cost and rate on every seed; ``start`` is a guess."""
    runs = [bench.highest(chosen, seed, start) for seed in SEEDS]
    found = runs[0][0]
    return Cell(
        name=name,
        configuration=chosen,
        usd_per_token=np.array([usd for _, usd in runs]),
        requests_per_s=np.array([found.requests_per_s for found, _ in runs]),
        served=bench.served(chosen, SEEDS[0], found.step),
        binding=found.binding,
        predicted_requests_per_s=bench.predicted(chosen)[0],
        steps=tuple(found.step for found, _ in runs),
    )


def best_cells(bench: Bench, first: Mapping[str, Cell] | None = None) -> dict[str, Cell]:
    """The four cells by name, each at its own best.

    Parameters
    ----------
    bench : Bench
        At the targets and the prices of its case's scenario.
    first : dict, optional
        Cells of near targets, whose configurations run first.

    Raises
    ------
    InputError
        If a search ends on its upper bound.
    """
    found: dict[str, Cell] = {}
    for name, (split, tiers) in CELLS.items():
        near = [(first or {}).get(name)]
        if tiers:  # to buy none is a choice
            near.append(found["disaggregated" if split else "none"])
        tried = [cell.configuration for cell in near if cell and cell.configuration]
        found[name] = best_cell(bench, name, tried)
    return found


# Cells to rows


def rows(bench: Bench, cells: Mapping[str, Cell]) -> list[results.Row]:
    """What the cells cost and how, the closed form of the same, and what the cells say together."""
    found = []
    for cell in cells.values():
        found += _cell_rows(bench, cell)
    return found + _contrasts(cells)


def _rows(kind: str, at: Mapping[str, Any], **values: float) -> list[results.Row]:
    """Rows of several quantities at the same coordinates."""
    return [results.row(name, value, kind, **at) for name, value in values.items()]


def _cell_rows(bench: Bench, cell: Cell) -> list[results.Row]:
    at, chosen, served = {"cell": cell.name}, cell.configuration, cell.served
    found = _rows("simulated", {"binding": cell.binding, **at}, feasible=float(cell.feasible))
    if not cell.feasible:
        return found
    fleet, slo = bench.case.fleet(chosen), bench.case.scenario.slo
    found += _banded("usd_per_million_output_tokens", 1e6 * cell.usd_per_token, **at)
    rate = cell.requests_per_s.mean()
    times = {"ttft_s": served.ttft_s, "tpot_s": served.tpot_s}
    found += _rows("simulated", at, requests_per_s=rate, **times)
    if served.power_w is not None:
        joules = served.power_w * (1e6 / served.output_tokens_per_s)
        found += _rows("simulated", at, joules_per_million_output_tokens=joules)
    levels = ("hbm", *(tier.name for tier in chosen.tiers))
    for level, share in zip(levels, served.hit_shares, strict=True):
        found += _rows("simulated", {"tier": level, **at}, hit_share=share)
    made = {"chunk_tokens": chosen.chunk_tokens, **at}
    way, other = chosen.prefill, chosen.decode
    gpus = way.gpus * chosen.prefill_instances
    found += _rows("simulated", {"way": way.name, **made}, prefill_gpus=gpus)
    if other is not None:
        gpus = other.gpus * chosen.decode_instances
        found += _rows("simulated", {"way": other.name, **made}, decode_gpus=gpus)
    for tier in chosen.tiers:
        bought = {"tier": tier.name, "admission": tier.admission, **at}
        found += _rows("simulated", bought, bytes_per_gpu=tier.capacity_bytes)
    rate, usd = bench.predicted(chosen)
    expected = closed_form.predicted(
        fleet, bench.load, served.requests_per_s, slo.tpot_s, slo.percentile
    )
    found += _rows(
        "predicted",
        at,
        usd_per_million_output_tokens=1e6 * usd / bench.load.output_tokens,
        requests_per_s=rate,
        ttft_s=expected.ttft_s,
        tpot_s=expected.tpot_s,
    )
    return found + _rows("predicted", {"tier": "all", **at}, hit_share=expected.hit_shares.sum())


def _banded(quantity: str, values: np.ndarray, **at: Any) -> list[results.Row]:
    """Rows of a mean over seeds and of the ends of its band."""
    middle, half = float(values.mean()), half_width(values)
    ends = {"middle": middle, "low": middle - half, "high": middle + half}
    return [results.row(quantity, end, "simulated", band=band, **at) for band, end in ends.items()]


def half_width(values: np.ndarray) -> float:
    """Half of the 90 % interval of a mean of few values, by Student's t."""
    from scipy.special import stdtrit

    count = len(values)
    return float(stdtrit(count - 1, 0.95) * values.std(ddof=1) / count**0.5)


def _contrasts(cells: Mapping[str, Cell]) -> list[results.Row]:
    """Cheapest cell, what it saves over the runner-up, interaction and split of the saving.

    Seeds are paired: the four cells of a seed serve the same requests.
    """
    ranked = sorted(
        (cell for cell in cells.values() if cell.feasible),
        key=lambda cell: float(np.log(cell.usd_per_token).mean()),
    )
    if not ranked:
        return []
    best = ranked[0]
    over = next((cell for cell in ranked if cell.configuration != best.configuration), None)
    saved = np.log(over.usd_per_token / best.usd_per_token) if over else np.full(len(SEEDS), np.nan)
    found = _banded("log_saving", saved, cell=best.name, over=over and over.name)
    if len(ranked) < len(CELLS):
        return found
    costs = [cells[name].usd_per_token for name in CELLS]
    found += _banded("log_interaction", cost.log_interaction(*costs))
    money = cost.money_interaction(*(1e6 * one.mean() for one in costs))
    found += _rows("simulated", {}, money_interaction_usd_per_million_output_tokens=money)
    for lever, part in zip(LEVERS, cost.shapley_split(*costs), strict=True):
        found += _banded("log_saving_share", part, lever=lever)
    return found
