"""Rows to sentences: what a chapter answers, in words that follow from its rows.

No sentence is fixed to one scenario: numbers and verdicts come from the rows alone.
"""

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pandas as pd

from kvpaper import units

if TYPE_CHECKING:
    from kvpaper.scenario import Scenario

CELLS = {
    "none": "one pool without tiers",
    "disaggregated": "split pools without tiers",
    "tiered": "one pool with tiers",
    "both": "split pools with tiers",
}
TIERS = {"hbm": "HBM", "dram": "host DRAM", "nvme": "NVMe", "remote": "the remote tier"}
_SPACE = "\N{NO-BREAK SPACE}"
_WORTH = "worth_buying_bytes"
_LEAST_BYTES = 1e6


def duration(seconds: float) -> str:
    """Seconds in a unit that fits, for prose."""
    if seconds > 1e10:
        return f"more than 300{_SPACE}years"
    text = units.text(seconds, units.TIMES).replace("us", "µs") if seconds else "0 s"
    return text.replace(" ", _SPACE)


def size(count: float) -> str:
    """Bytes in a unit that fits, for prose."""
    if count < 1:
        return f"less than 1{_SPACE}B" if count else f"0{_SPACE}B"
    return units.text(count, units.SIZES).replace(" ", _SPACE)


def listed(parts: list[str]) -> str:
    """Names with commas and an "and"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _at(rows: pd.DataFrame, quantity: str, **at: object) -> pd.DataFrame:
    """The rows of a quantity at these coordinates."""
    found = rows[rows.quantity == quantity]
    for name, value in at.items():
        found = found[found[name] == value]
    return found


def _one(rows: pd.DataFrame, quantity: str, **at: object) -> float:
    """The value of the one row there; two or none are a fault of ours."""
    return _at(rows, quantity, **at).value.item()


def _by_tier(rows: pd.DataFrame, quantity: str, **at: object) -> pd.Series:
    return _at(rows, quantity, **at).set_index("tier").value


def all_of(scenario: "Scenario", rows: pd.DataFrame) -> list[str]:
    """What the formulas answer at a scenario's own point, chapter by chapter."""
    prefix = scenario.workload.prompt_tokens - scenario.workload.new_tokens
    held = {name: tier.capacity_bytes for name, tier in scenario.hardware.tiers.items()}
    chart = rows[(rows.quantity == "fetch_time_ratio") | (rows.bytes == 1e9)]
    capacities = rows[rows.band.notna()] if "band" in rows else rows.iloc[:0]
    intervals = rows[rows.quantity == "break_even_interval_s"]
    return [
        kv_bytes(rows),
        recovery(chart, rows),
        slack(rows, prefix, scenario.slo.ttft_s),
        break_even(capacities, intervals, rows, held),
    ]


def kv_bytes(rows: pd.DataFrame) -> str:
    """What the scenario's model takes, and where it stands among the models compared."""
    own = rows[rows.quantity.isin(["kv_bytes_per_token", "prefix_tokens"])]
    model = own.model.iloc[0]
    per_token = _one(own, "kv_bytes_per_token")
    told = (
        f"One token of {model} adds {per_token:,.0f} bytes to the cache; 1 GB holds "
        f"{_one(own, 'prefix_tokens'):,.0f} tokens."
        if per_token
        else f"The cache of {model} does not grow with the context."
    )
    sizes = rows[rows.quantity == "kv_bytes"]
    if sizes.empty:
        return told
    longest = sizes[sizes.tokens == sizes.tokens.max()].sort_values("value")
    least, most = longest.iloc[0], longest.iloc[-1]
    return (
        f"{told} Over {longest.tokens.iloc[0]:,.0f} tokens the models compared here take between "
        f"{size(least.value)} ({least.model}) and {size(most.value)} ({most.model}), "
        f"a factor of {most.value / least.value:,.0f}."
    )


def recovery(chart: pd.DataFrame, crossovers: pd.DataFrame) -> str:
    """The gap between tiers, and which of them ever beats recomputing."""
    ratio = chart[chart.quantity == "fetch_time_ratio"].iloc[0]
    times = _by_tier(chart, "fetch_time_s")
    told = f"1 GB of cache comes back in {duration(times[ratio.over])} from {TIERS[ratio.over]}"
    if len(times) > 1:
        slowest = f"{duration(times[ratio.tier])} from {TIERS[ratio.tier]}"
        told += f" and in {slowest}, a factor of {ratio.value:,.0f}."
    else:
        told += ", the only tier."
    always, late, never = [], [], []
    for tier, start in _by_tier(crossovers, "crossover_tokens").items():
        if math.isnan(start):
            never.append(TIERS[tier])
        elif start > 256:
            late.append(f"from {TIERS[tier]} only beyond {start:,.0f} tokens")
        else:
            always.append(TIERS[tier])
    for tiers, verdict in (
        (always, "Fetching beats recomputing for any prefix worth caching from {}."),
        (late, "Fetching beats recomputing {}."),
        (never, "At no length looked at does fetching from {} beat recomputing."),
    ):
        told += f" {verdict.format(listed(tiers))}" if tiers else ""
    return told


def slack(rows: pd.DataFrame, tokens: float, target_s: float) -> str:
    """The slack of both pools at one prefix length, and the tiers that may be waited for."""
    here, split = rows[rows.tokens == tokens], {"pool": "disaggregated"}
    left, cold_s = _one(here, "ttft_slack_s", **split), _one(here, "cold_ttft_s", **split)
    meets = "within" if cold_s <= target_s else "beyond"
    sentences = [
        f"With a prefix of {counted(tokens, 'token')} the target leaves "
        f"{_signed(_one(here, 'ttft_slack_s', pool='one'))} for a fetch in one pool and "
        f"{_signed(left)} when prefill and decode are split. Without any cache the first token "
        f"comes after {duration(cold_s)}, {meets} the target."
    ]
    together = _by_tier(here, "on_critical_path", pool="one")
    waited, within, both = (
        _by_tier(here, quantity, **split)
        for quantity in ("on_critical_path", "within_slack", "two_ended_within_slack")
    )
    for tier in waited.index[waited == 0]:
        if together[tier]:
            verdict = f"The split takes {TIERS[tier]} off the critical path"
        elif within[tier]:
            verdict = f"{capital(TIERS[tier])} would be in time, but recomputing is faster"
        elif left <= 0:
            continue
        else:
            verdict = f"{capital(TIERS[tier])} alone is too slow"
        rescue = "; fetching the back while computing the front is in time" if both[tier] else ""
        sentences.append(f"{verdict}{rescue}.")
    stay = [TIERS[tier] for tier in waited.index[waited > 0]]
    verb = "stays" if len(stay) == 1 else "stay"
    last = f"On the critical path {verb} {listed(stay)}." if stay else _NONE_STAYS
    return " ".join([*sentences, last])


_NONE_STAYS = "No tier stays on the critical path."


def _signed(seconds: float) -> str:
    return duration(seconds) if seconds > 0 else f"nothing ({duration(-seconds)} too little)"


def capital(text: str) -> str:
    """The text with its first letter as at the start of a sentence."""
    return text[0].upper() + text[1:]


def break_even(
    rows: pd.DataFrame, intervals: pd.DataFrame, costs: pd.DataFrame, held: dict[str, float]
) -> str:
    """What each tier is worth alone, its wear, and the interval that needs no exponent.

    ``held`` is the capacity of each tier in the scenario [B].
    """
    paragraphs = [
        _worth(part, tier, held[tier]) + _wear(costs[costs.tier == tier], tier, held[tier])
        for tier, part in (rows.groupby("tier", sort=False) if len(rows) else ())
    ]
    spans = []
    for tier, part in intervals.groupby("tier", sort=False) if len(intervals) else ():
        times = part.set_index("loading").value
        spans.append(
            f"{duration(times['gpu waits'])} (the GPU waits while it loads) to "
            f"{duration(times['free'])} (loading is free) in {TIERS[tier]}"
        )
    if spans:
        paragraphs.append(
            f"A prefix that comes back for certain is worth keeping for {listed(spans)}."
        )
    return "\n\n".join(paragraphs)


def _worth(rows: pd.DataFrame, tier: str, held: float) -> str:
    """What one tier alone is worth."""
    (use,) = set(rows.use)
    ratio, worth = (_one(rows, name, band="middle") for name in ("marginal_ratio", _WORTH))
    low, high = (_one(rows, _WORTH, band=band) for band in ("low", "high"))
    name = TIERS[tier] if use == "critical path" else f"{TIERS[tier]}, as a source of prefetches,"
    if ratio == 0:
        off = f"{capital(TIERS[tier])} is off the critical path"
        return f"{off} and no prefetch is in time: buy none."
    if math.isinf(ratio):
        return f"A byte of {name} has no rent: use what there is, {size(held)}."
    if worth < _LEAST_BYTES:
        return (
            f"Alone, {name} has a marginal ratio of {ratio:.2g} at the working set: next to "
            f"nothing is worth buying ({size(high)} at best)."
        )
    branch = (
        "the whole working set earns its rent"
        if ratio >= 1
        else "the last bytes of the working set do not earn their rent"
    )
    more = f", more than the {size(held)} of this scenario" if worth > held else ""
    return (
        f"Alone, {name} has a marginal ratio of {ratio:.2g} at the working set, so {branch}: "
        f"{size(worth)} would be worth buying{_band(low, high)}{more}."
    )


def _wear(costs: pd.DataFrame, tier: str, held: float) -> str:
    """How often a tier is written over, if it wears at all."""
    of = costs.set_index("quantity").value
    if "drive_writes_per_day" not in of:
        return ""
    written, rated = of["drive_writes_per_day"], of["rated_writes_per_day"]
    over = f" {size(held)} of {TIERS[tier]} are written over {written:.2g} times a day"
    if written <= rated:
        return f"{over}, within their rating."
    life = duration(of["life_s"])
    return f"{over} against a rating of {rated:.2g}; their rent is counted over {life}."


def _band(low: float, high: float) -> str:
    if size(low) == size(high):
        return " at every price in the band"
    return f" ({size(low)} to {size(high)} over the band of prices)"


def overview(rows: pd.DataFrame, tier: str, read_bytes_per_s: float) -> str:
    """For which of the compared models a tier of this rate can be waited for."""
    needed = rows[rows.quantity == "needed_bytes_per_s"].sort_values("value")
    fits = needed[needed.value <= read_bytes_per_s]
    misses = needed[needed.value > read_bytes_per_s]
    tokens = needed.tokens.iloc[0]
    told = (
        f"To be worth waiting for, a prefix of {tokens:,.0f} tokens must come at "
        f"{size(needed.value.iloc[0])}/s for {needed.model.iloc[0]} and at "
        f"{size(needed.value.iloc[-1])}/s for {needed.model.iloc[-1]}."
        if math.isfinite(needed.value.iloc[-1])
        else "The target leaves no slack for some of the models compared."
    )
    rate = f"{capital(TIERS[tier])} at {size(read_bytes_per_s)}/s is"
    if fits.empty or misses.empty:
        verdict = "too slow" if fits.empty else "fast enough"
        return f"{told} {rate} {verdict} for every model compared."
    return (
        f"{told} {rate} fast enough for {listed(list(fits.model))} and too slow for "
        f"{listed(list(misses.model))}. The verdict follows from the cache per token, the cost of "
        "prefill and what an instance can read."
    )


def measured(records: list[dict], wanted: list[dict], rows: pd.DataFrame | None = None) -> str:
    """How many records there are and, machine by machine, what they say; or what is missing.

    ``rows`` are those of `kvpaper.measured`. Every figure says of how many runs it is, their
    spread, and whether others kept the machine busy meanwhile.
    """
    if not records:
        return (
            f"Nothing yet. No number in this book was measured here; {len(wanted)} measurements "
            "are specified in the chapter on measurements and none has a record."
        )
    completed = sum(record.get("outcome") == "completed" for record in records)
    lead = f"{counted(len(records), 'record')}, of which {completed} completed."
    if rows is None or rows.empty:
        return lead
    # Records of one instrument alone leave out what the others tell.
    rows = rows.reindex(columns=rows.columns.union(_LAB))
    paragraphs = [" ".join([lead, *_verdict(rows)])]
    for machine in rows.machine.value_counts().index:  # the one with most to say first
        part = rows[rows.machine == machine]
        said = chain.from_iterable(
            tell(part) for tell in (_factorial, _equal, _fitted, _levels, _two_engines, _held)
        )
        paragraphs += [f"On {machine}:", "\n".join(f"- {one}" for one in said)]
    return "\n\n".join(paragraphs)


_LAB = ["cap", "cause", "cell", "compared", "connector", "formula", "level", "load"]
_LAB += ["message", "model", "process", "prompt_tokens", "run", "shape", "split", "stage"]
_LAB += ["tier", "tokens", "way"]
LOADS = {"quiet": "machine quiet", "shared": "machine shared", "unknown": "load unknown"}
_CELLS = {"fits, none": "the cap alone", "fits, lmcache": "cap and LMCache"}
_LEVELS = {
    "recompute": "recomputed",
    "engine alone": "in the engine's cache",
    "engine": "in the engine's cache, the last block in LMCache's",
    "connector": "in LMCache's DRAM",
    "disk": "on LMCache's disk",
}


def _runs(rows: pd.DataFrame) -> str:
    """How many runs, and how busy others kept the machine."""
    loads = rows.drop_duplicates(["instrument", "run"]).load.value_counts()
    count = counted(int(loads.sum()), "run")
    if len(loads) == 1:
        return f"{count}, {LOADS[loads.index[0]]}"
    return f"{count}: {', '.join(f'{number} {load}' for load, number in loads.items())}"


def _over_runs(rows: pd.DataFrame, text: Callable[[float], str]) -> str:
    """The median run, and in brackets the lowest and the highest."""
    each = rows.groupby("run").value.median()
    low, high = text(each.min()), text(each.max())
    return text(each.median()) + (f" ({low} to {high})" if low != high else "")


def _verdict(rows: pd.DataFrame) -> Iterator[str]:
    """Whether cap and connector conflict, and what a cap that is too small dies of."""
    cached, deaths = rows[rows.quantity == "cached_tokens"], rows[rows.quantity == "deaths"]
    lived = cached[cached.cell == "fits, lmcache"].drop_duplicates(["machine", "run"])
    if starts := len(lived) + int((deaths.cell == "fits, lmcache").sum()):
        verdict = "is not borne out" if len(lived) == starts else "is not refuted"
        yield (
            f"The paper's hypothesis, that the cap conflicts with the connector, {verdict}: "
            f"{len(lived)} of {counted(starts, 'start')} with both lived and served."
        )
    if len(small := deaths[deaths.cap == "too small"]):
        yield (
            f"A cap that is too small died at start {counted(len(small), 'time')}, "
            f"{(small.connector == 'none').sum()} without the connector, "
            f"{small.message.str.contains('core proc').sum()} with the paper's message, "
            f"{small.message.str.endswith('{}').sum()} with its empty list of processes; the "
            f"cause, {listed(sorted(set(small.cause)))}, was written by "
            f"{listed(sorted(set(small.process)))}."
        )


def _factorial(rows: pd.DataFrame) -> Iterator[str]:
    """What cap and connector leave in the cache."""
    evicted = _at(rows, "cached_tokens", stage="evicted")
    for model, part in evicted.groupby("model"):
        told = [
            f"{name} still had {_over_runs(own, '{:,.0f}'.format)} "
            f"({counted(own.run.nunique(), 'run')})"
            for cell, name in _CELLS.items()
            if len(own := part[part.cell == cell])
        ]
        if told:
            tokens = f"{part.tokens.max():,.0f} tokens of {model}"
            yield f"Of {tokens} that other prompts had pushed out, {listed(told)}."


def _equal(rows: pd.DataFrame) -> Iterator[str]:
    """Whether the same prompt gives the same answer, and whether the comparison would notice."""
    told, rows = [], rows[rows.quantity == "logprob_difference"]
    for compared, part in sorted(rows.groupby("compared"), key=lambda one: one[0] != "same prompt"):
        least, most = part.value.min(), part.value.max()
        seen = "other tokens came" if math.isinf(least) else f"{least:.1g} at least"
        seen = f"{most:.1g} at most" if compared == "same prompt" else seen
        count = len(part.drop_duplicates(["instrument", "run"]))
        told.append(f"{compared}, {seen} ({counted(count, 'run')})")
    if told:
        yield f"Log-probabilities differ: {'; '.join(told)}."


def _fitted(rows: pd.DataFrame) -> Iterator[str]:
    """The rate of each tier, over runs."""
    here = rows[(rows.quantity == "fitted_bytes_per_s") & (rows["shape"] == "canary")]
    parts = [
        (tier if way in ("copy", "get") else f"{tier} ({way})")
        + f" {_over_runs(part, lambda rate: f'{size(rate)}/s')}"
        for (tier, way), part in here.groupby(["tier", "way"])
    ]
    if parts:
        yield f"Prefixes come back ({_runs(here)}): {'; '.join(parts)}."


def _levels(rows: pd.DataFrame) -> Iterator[str]:
    """Time to first token of the longest prompt, by where its prefix was."""
    here = rows[(rows.quantity == "ttft_s") & rows.level.notna()]
    for model, part in here.groupby("model"):
        tokens = part.prompt_tokens.max()
        longest = part[part.prompt_tokens == tokens]
        told = [
            f"{name} {_over_runs(own, duration)}"
            for level, name in _LEVELS.items()
            if len(own := longest[longest.level == level])
        ]
        what = f"First token of a prompt of {tokens:,.0f} tokens, {model}"
        yield f"{what} ({_runs(longest)}): {'; '.join(told)}."


def _two_engines(rows: pd.DataFrame) -> Iterator[str]:
    """What a split costs one request: its first token, and the transfer in it."""
    here = rows[rows.split.notna() & rows.quantity.isin(["ttft_s", "transfer_time_s"])]
    for (connector, model), part in here.groupby(["connector", "model"]):
        tokens = part[part["split"] == "transfer"].prompt_tokens.max()
        at = part[part.prompt_tokens == tokens]
        if len(at):
            two, moving, one = (
                _over_runs(at[at["split"] == name], duration)
                for name in ("two engines", "transfer", "one engine")
            )
            yield (
                f"Two engines joined by {connector} ({_runs(at)}): a prompt of {tokens:,.0f} "
                f"tokens, {model}, has its first token after {two}, {moving} of it for the "
                f"transfer; one of the engines alone takes {one}."
            )


def _held(rows: pd.DataFrame) -> Iterator[str]:
    """How far formulas set by one run are from another run, shared machines apart."""
    ratios = rows[rows.quantity == "ratio"]
    for shared, part in ratios.groupby(ratios.load == "shared"):
        told = []
        for formula, own in part.groupby("formula"):
            low, middle, high = own.value.quantile([0.1, 0.5, 0.9])
            told.append(f"`{formula}` {middle:.2f} ({low:.2f} to {high:.2f})")
        where = "on a shared machine, " if shared else ""
        yield (
            f"Measured over predicted, set by another run, {where}median and 10 to 90 %: "
            f"{'; '.join(told)}."
        )


def counted(count: int, noun: str) -> str:
    """A number and its noun, plural where it is due."""
    return f"{count:,.0f} {noun}{'s' * (count != 1)}"


def incident(facts: dict, verdict: dict, reports: pd.DataFrame) -> str:
    """What is known of the failed starts, and what the same message stands for elsewhere."""
    starts = facts["starts"]
    told = (
        "the log that was kept cannot tell"
        if verdict["cause"] == "insufficient"
        else f"the log that was kept shows {verdict['cause']} ({verdict['confidence']} confidence)"
    )
    total = int(reports.value.sum())
    shown = reports[(reports["class"] != "insufficient") & (reports.process != "not_in_log")]
    outside = int(shown[shown.process == "api_server"].value.sum())
    return (
        f"On {facts['date']} the engine was started {len(starts)} times on {facts['gpu']} and "
        f"{facts['samples']} samples were taken; of the cause, {told}. Of "
        f"{counted(total, 'public report')} read for this chapter, {int(shown.value.sum())} hold "
        f"the line that proves the cause; there are {shown['class'].nunique()} classes of it, and "
        f"in {outside} of these reports the line stood in the process that prints the outer "
        "message."
    )


def reuse(own: pd.DataFrame, public: pd.DataFrame, marks: pd.DataFrame) -> str:
    """What the named trace says of the closed form and of the tiers, and what public traces say."""
    sentences = [
        f"The trace of this scenario is {str(own.trace.iloc[0]).replace('_', ' ')}: "
        f"{_one(own, 'requests'):,.0f} requests over {duration(_one(own, 'duration_s'))}, of whose "
        f"blocks {_one(own, 'ceiling', rate='block'):.0%} were seen before.",
        _closed_form(own),
    ]
    hull = own[own.quantity == "hull_hit_rate"]
    for tier in _by_tier(marks, "price_per_block", band="middle").index:
        (held, hits), (low, _), (high, _) = (
            _optimum(hull, _one(marks, "price_per_block", band=band, tier=tier))
            for band in ("middle", "low", "high")
        )
        held, low, high = (count * _one(marks, "block_bytes") for count in (held, low, high))
        sentences.append(
            f"At its prices {size(held)} of {TIERS[tier]} are worth buying{_band(low, high)}, for "
            f"a block hit rate of {hits:.0%}."
            if held
            else f"At its prices no {TIERS[tier]} is worth buying ({size(high)} at best)."
        )
    judged = public[public.quantity == "closed_form_loss"].drop_duplicates("trace")
    refused = judged[judged.verdict == "refused"].trace.str.replace("_", " ")
    if len(refused):
        sentences.append(
            f"Of {counted(len(judged), 'public trace')} the closed form is refused on "
            f"{listed([*refused])}."
        )
    return " ".join(sentences)


def _optimum(hull: pd.DataFrame, price: float) -> tuple[float, float]:
    """Capacity in blocks with the largest net value on the hull, and its block hit rate."""
    if math.isinf(price):
        return 0.0, 0.0
    net = hull.value - price * hull.capacity_blocks
    best = hull.loc[net.idxmax()]
    return (float(best.capacity_blocks), float(best.value)) if net.max() > 0 else (0.0, 0.0)


def _closed_form(rows: pd.DataFrame) -> str:
    judged = rows[rows.quantity == "closed_form_loss"].iloc[0]
    loss = "" if math.isnan(judged.value) else f"; it loses up to {judged.value:.0%} of the value"
    fit = ""
    if (rows.quantity == "beta").any():
        fit = (
            f" with an exponent of {_one(rows, 'beta'):.2f} ({_one(rows, 'beta_low'):.2f} to "
            f"{_one(rows, 'beta_high'):.2f}, R\u00b2 {_one(rows, 'beta_r2'):.2f})"
        )
    return {
        "accepted": f"The closed form may be used on it{fit}{loss}.",
        "range": f"The closed form may be used over a range only{fit}{loss}.",
        "refused": f"The closed form is refused on it, even{fit or ' at its best'}{loss}.",
    }[judged.verdict]
