"""Rows of replayed fleets to sentences: what the chapter on fleets answers, from its rows alone."""

from typing import TYPE_CHECKING, Any

from kvpaper.answers import CELLS, TIERS, counted, duration, listed, size

if TYPE_CHECKING:
    import pandas as pd

    from kvpaper.scenario import Slo

_COST = "usd_per_million_output_tokens"
_AT = ["pools", "dram_bytes", "nvme_bytes", "router", "model", "gpus", "cell"]


def fleet(rows: "pd.DataFrame", slo: "Slo") -> str:
    """Which fleets meet the targets and at what cost, what each lever does, how warm caches get.

    Parameters
    ----------
    rows : pandas.DataFrame
        From :func:`kvpaper.serving.chapter.of_scenario`.
    slo : Slo
    """
    paragraphs = [_opening(rows, slo), _frontier(points(rows), slo)]
    if "share" in rows:
        paragraphs += [_levers(rows, slo), _warmth(rows)]
    return "\n\n".join(paragraphs)


def points(rows: "pd.DataFrame") -> "pd.DataFrame":
    """One line a point of the grid: where it is, how it stands, latency and cost."""
    if "standing" not in rows:
        return rows.iloc[:0]
    own, at = rows[rows.standing.notna()], [name for name in [*_AT, "standing"] if name in rows]
    wide = own.pivot(index=at, columns="quantity", values="value").reset_index()
    found = wide.reindex(columns=[*at, "ttft_s", "tpot_s", _COST, "feasible"])
    return found.sort_values([_COST, "ttft_s"], ignore_index=True)


def _opening(rows: "pd.DataFrame", slo: "Slo") -> str:
    requests = rows[rows.quantity == "requests"].iloc[0]
    span, cold = (
        rows[rows.quantity == name].value.iloc[0] for name in ("duration_s", "cold_prefill_s")
    )
    opening = f"The trace is {_named(requests.trace)}"
    if "instead_of" in rows:
        opening = (
            f"The scenario names the trace {_named(requests.instead_of)}, which is not at hand "
            "(`make traces` fetches it); a generated one stands in"
        )
    beyond = ", which is beyond the target" if cold > slo.ttft_s else ""
    return (
        f"{opening}: {requests.value:,.0f} requests over {duration(span)}. Without a cache and "
        f"with nothing else to do, an instance computes {slo.percentile:g}% of its prompts within "
        f"{duration(cold)}{beyond}."
    )


def _named(trace: str) -> str:
    return trace.rpartition("/")[2].replace("_", " ")


def _frontier(found: "pd.DataFrame", slo: "Slo") -> str:
    if found.empty:
        return "No fleet of the grid could be replayed."
    promise = (
        f"{slo.percentile:g}% of requests within {duration(slo.ttft_s)} to the first token and "
        f"{duration(slo.tpot_s)} for each further one"
    )
    meets, whose = found[found.feasible == 1], ""
    told = f"{len(meets)} of {counted(len(found), 'fleet')} serve {promise}."
    if meets.empty:
        worst = (found.ttft_s / slo.ttft_s).combine(found.tpot_s / slo.tpot_s, max)
        near = found.loc[worst.idxmin()]
        whose = " of those that miss the targets"
        told = (
            f"None of {counted(len(found), 'fleet')} serves {promise}. The nearest, "
            f"{_fleet(near)}, takes {duration(near.ttft_s)} and {duration(near.tpot_s)}."
        )
    on = _worth_having(found)
    if on.empty:
        return told
    fastest, cheapest, knee = on.iloc[-1], on.iloc[0], on[on.standing == "knee"].iloc[0]
    if len(on) == 1:
        return f"{told} The cheapest{whose} is also the fastest: {_told(knee)}."
    times = fastest[_COST] / cheapest[_COST]
    told += f" The cheapest{whose} is {_told(cheapest)}."
    told += f" The fastest is {_told(fastest)}, {times:.2g} times the cost."
    for end, name in ((cheapest, "cheapest"), (fastest, "fastest")):
        if knee.name == end.name:
            return f"{told} The knee of the frontier is the {name}."
    return f"{told} At the knee of the frontier stands {_told(knee)}."


def _told(one: Any) -> str:
    cost = f"{one[_COST]:.3g} USD per million output tokens"
    return f"{one.fleet}, with {duration(one.ttft_s)} to the first token at {cost}"


def _fleet(one: Any) -> str:
    """A point in words; what it has of a tier is that of an instance."""
    prefill, _, decode = str(one.pools).partition(":")
    if decode:
        pools = f"{counted(int(prefill), 'instance')} for prefill and {decode} for decode"
    else:
        pools = "one instance" if prefill == "1" else f"one pool of {prefill} instances"
    held = {"dram": one.dram_bytes, "nvme": one.nvme_bytes}
    bought = [f"{size(count)} of {TIERS[tier]}" for tier, count in held.items() if count]
    return f"{pools} with {listed(bought) or 'no tiers'}{' each' * bool(bought)}"


def _levers(rows: "pd.DataFrame", slo: "Slo") -> str:
    """The four kinds of fleet on the same GPUs."""
    at = rows[(rows.quantity == "ttft_s") & (rows.share == slo.percentile / 100)]
    times = [f"{duration(one.value)} with {CELLS[one.cell]}" for one in at.itertuples()]
    gpus = counted(int(at.gpus.iloc[0]), "GPU")
    served = hits(rows).groupby("fleet").value.sum().sort_values()
    ends = [f"{share:.0%} ({cell})" for cell, share in served.items()]
    return (
        f"On the same {gpus}, each kind of fleet with the split and the tiers of the grid that "
        f"bring the first token soonest, {slo.percentile:g}% of first tokens come within "
        f"{listed(times)}. Caches serve {ends[0]} to {ends[-1]} of all prompt tokens."
    )


def _warmth(rows: "pd.DataFrame") -> str:
    """Whether hits still rise at the end of the trace."""
    hits = rows[(rows.quantity == "hit_share") & rows.at_s.notna()]
    told = []
    for cell, part in hits.groupby("cell", sort=False):
        third = len(part) // 3
        before, after = part.value.iloc[third:-third].mean(), part.value.iloc[-third:].mean()
        if after - before > 0.01:
            told.append(f"{CELLS[cell]} from {before:.0%} to {after:.0%}")
    if not told:
        return "In the last third of the trace hits rise no more: the caches are warm."
    return (
        f"From the middle to the last third of the trace hits still rise: {'; '.join(told)}. The "
        "caches are not warm at its end, so what they save is more than is shown here."
    )


def worth_having(found: "pd.DataFrame") -> "pd.DataFrame":
    """The frontier in words, the cheapest first; cost in USD per million output tokens."""
    if found.empty:
        return found
    on = _worth_having(found)
    knees = on.fleet + [" (knee)" * (standing == "knee") for standing in on.standing]
    told = on.assign(fleet=knees, usd=on[_COST])
    return told[["fleet", "gpus", "usd", "ttft_s", "tpot_s"]]


def _worth_having(found: "pd.DataFrame") -> "pd.DataFrame":
    """The frontier, each of its fleets in the words that tell it from the others."""
    on = found[found.standing != "beaten"]
    words = [
        _fleet(one)
        + f", {one.router} routing" * (on.router.nunique() > 1)
        + f", for {one.model}" * (on.model.nunique() > 1)
        for one in on.itertuples()
    ]
    return on.assign(fleet=words)


def hits(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Share of prompt tokens by kind of fleet and by what served it."""
    if "tier" not in rows:
        return rows.iloc[:0]
    found = rows[rows.tier.notna()]
    return found.assign(fleet=found.cell.map(CELLS))[["fleet", "tier", "value"]]
