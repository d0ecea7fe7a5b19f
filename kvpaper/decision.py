"""Rows of the four cells to the paper's answer, and to what is worth buying when.

A case is one model, trace, routing, scope of tiers and pair of targets, with the four cells each
at its own best. Every number and every verdict comes from the cases; no sentence is fixed.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from kvpaper import units
from kvpaper.answers import CELLS, TIERS, counted, duration, listed, size

SPLIT, TIERED = ("disaggregated", "both"), ("tiered", "both")
AT = ("model", "trace", "ceiling", "router", "scope", "ttft_slo_s", "tpot_slo_s", "varied", "at")
# Quantity of a row -> how the columns of a case begin.
_NAMES = {
    "feasible": "feasible",
    "usd_per_million_output_tokens": "usd",
    "requests_per_s": "rate",
    "prefill_gpus": "prefill",
    "decode_gpus": "decode",
    "bytes_per_gpu": "bytes",
    "log_saving": "saved",
    "log_interaction": "interaction",
    "log_saving_share": "share",
}
_WHO = ("cell", "lever", "tier", "band", "way", "chunk_tokens", "admission", "over", "binding")
_BANDS = ("", "_low", "_high")
_NUMBERS = [
    "ceiling", "ttft_slo_s", "tpot_slo_s", "at",
    *(f"{name}{band}" for name in ("saved", "interaction") for band in _BANDS),
    *(f"share_{lever}{band}" for lever in ("disaggregation", "tiers") for band in _BANDS),
    *(f"usd_{cell}{band}" for cell in CELLS for band in _BANDS),
    *(f"{name}_{cell}" for name in ("usd_predicted", "rate", "rate_predicted") for cell in CELLS),
    *(f"bytes_{cell}_{tier}" for cell in CELLS for tier in ("dram", "nvme")),
]  # fmt: skip
_WORDS = ["cheapest", "over", *(f"binding_{cell}" for cell in CELLS)]
# Closer than this to the replay, the closed form is said to give the size.
NEAR = 0.1


def cases(rows: pd.DataFrame) -> pd.DataFrame:
    """One line a case: coordinates, cells side by side, closed form, and what they say together.

    Parameters
    ----------
    rows : pandas.DataFrame
        Rows of ``kvpaper.serving.cells.rows`` at coordinates out of ``AT``, and
        ``cold_prefill_s`` by model and trace.

    Returns
    -------
    pandas.DataFrame
        Costs in USD per million output tokens, ``usd_none`` with ``usd_none_low`` and
        ``usd_none_high``, by the closed form ``usd_predicted_none``; logarithms as in the rows.
        ``cheapest`` is missing where no cell meets the targets, ``over`` where one alone does.
        ``predicted_interaction`` is that of the closed form's costs, ``total`` what both levers
        save together.
    """
    rows = rows.reindex(columns=[*dict.fromkeys([*rows.columns, *AT, *_WHO])]).astype(object)
    cold: dict[tuple, float] = {}
    found: dict[tuple, dict] = {}
    for row in rows.where(rows.notna(), None).to_dict("records"):
        name = _NAMES.get(row["quantity"])
        if row["quantity"] == "cold_prefill_s":
            cold[row["model"], row["trace"]] = row["value"]
        elif name is not None:
            at = {key: row[key] for key in AT} | {"varied": row["varied"] or ""}
            _add(found.setdefault(tuple(at.values()), at), name, row)
    table = pd.DataFrame(list(found.values()))
    table = table.reindex(columns=[*dict.fromkeys([*AT, *table, *_NUMBERS, *_WORDS])])
    pairs = zip(table.model, table.trace, strict=True)
    table["cold_s"] = [cold.get(pair, math.nan) for pair in pairs]
    table[_NUMBERS] = table[_NUMBERS].apply(pd.to_numeric, errors="coerce")
    for band in _BANDS:
        table[f"total{band}"] = table[f"share_disaggregation{band}"] + table[f"share_tiers{band}"]
    predicted = np.log(table[[f"usd_predicted_{cell}" for cell in CELLS]].to_numpy(float))
    predicted[~np.isfinite(predicted)] = math.nan
    table["predicted_interaction"] = predicted @ [1, -1, -1, 1]
    return table


def _add(case: dict, name: str, row: Mapping) -> None:
    """Put the value of a row, and what stands beside it, into its case."""
    cell = row["cell"]
    if name == "saved":
        case |= {"cheapest": cell, "over": row["over"]}
        cell = None
    kind = "predicted" if row["kind"] == "predicted" else None
    band = None if row["band"] == "middle" else row["band"]
    parts = (name, kind, cell, row["lever"], row["tier"], band)
    case["_".join(part for part in parts if part)] = row["value"]
    for beside in ("binding", "way", "chunk_tokens", "admission"):
        if row[beside] is not None:
            of = {"way": name, "admission": row["tier"]}.get(beside)
            case["_".join(part for part in (beside, of, cell) if part)] = row[beside]


def main(cases: pd.DataFrame) -> pd.DataFrame:
    """The grid itself, without the cases in which one input was varied."""
    return cases[cases.varied == ""]


def base(cases: pd.DataFrame) -> pd.DataFrame:
    """The cases of the grid, one a model, around which inputs were varied."""
    grid, varied = main(cases), cases[cases.varied != ""]
    for name in ("trace", "ceiling", "router", "scope", "ttft_slo_s", "tpot_slo_s"):
        common = (varied if len(varied) else grid)[name].mode()
        if len(common):
            grid = grid[grid[name] == common.iloc[0]]
    return grid


# Words for a case


def _share(log: float) -> str:
    """A log saving as a share of the cost."""
    return f"{1 - math.exp(-log):.0%}"


def _change(log: float) -> str:
    """A log saving as a change of the cost, with its sign."""
    change = f"{math.expm1(-log):+.0%}".replace("-", "\N{MINUS SIGN}")
    return change if change[1:] != "0%" else "0%"


def _trace(name: object) -> str:
    return str(name).replace("_", " ")


def _log(name: object) -> str:
    return "a generated log" if name == "generated" else f"the log {_trace(name)}"


def _targets(case) -> str:
    return f"{duration(case.ttft_slo_s)} to the first token and {duration(case.tpot_slo_s)} a token"


def _bought(case, cell: str) -> list[tuple[str, float]]:
    """Tiers that a cell buys and the bytes for each GPU that prefills."""
    held = [(tier, getattr(case, f"bytes_{cell}_{tier}")) for tier in ("dram", "nvme")]
    return [(tier, count) for tier, count in held if count > 0]


def _stock(case, cell: str) -> str:
    bought = [f"{size(count)} of {TIERS[tier]}" for tier, count in _bought(case, cell)]
    return listed(bought) or "no tier"


def _missed(case) -> str:
    """Which target cannot be met."""
    names = {"ttft": "the first token comes too late", "tpot": "the tokens come too slowly"}
    bindings = dict.fromkeys(getattr(case, f"binding_{cell}") for cell in CELLS)
    return " or ".join(names[one] for one in bindings if one in names) or "the targets are missed"


def _lead(case) -> str:
    """How far the cheapest cell is ahead of the next."""
    if pd.isna(case.over):
        return "no other kind of fleet meets the targets"
    if case.saved_low <= 0:
        return f"{CELLS[case.over]} costs the same within the noise of the replay"
    ends = f"{_share(case.saved_low)} to {_share(case.saved_high)}"
    return f"that is {_share(case.saved)} ({ends}) less than {CELLS[case.over]}"


def _own(case) -> str:
    """What the four cells say of a scenario."""
    where = f"{case.model} on {_log(case.trace)}"
    if pd.isna(case.cheapest):
        return f"For {where}, no fleet that was tried meets {_targets(case)}: {_missed(case)}."
    usd, low, high = (getattr(case, f"usd_{case.cheapest}{band}") for band in _BANDS)
    return (
        f"For {where}, with {_targets(case)}, the cheapest of the four fleets has "
        f"{CELLS[case.cheapest]} and costs {usd:.3g}\N{NO-BREAK SPACE}USD per million output "
        f"tokens ({low:.3g} to {high:.3g}); {_lead(case)}."
    )


# The answer


def combined(own: pd.DataFrame, public: pd.DataFrame) -> str:
    """Whether the cost drops, by which lever, and what the closed form knows of it.

    Parameters
    ----------
    own, public : pandas.DataFrame
        Cases of the scenario and of the published grid, from ``cases``.
    """
    grid, paragraphs = main(public), [_own(main(own).iloc[0])]
    if len(grid):
        at, disk = base(public), _disk(public[public.varied == "disk"])
        paragraphs += [f"{headline(at)} {_counts(grid)}", _drops(at)]
        paragraphs += [finer(public), _interaction(grid)]
        paragraphs += [_closed_form(grid), disk]
    return "\n\n".join(part for part in paragraphs if part)


def headline(at: pd.DataFrame) -> str:
    """Split pools with tiers against one pool without, over the models at one point."""
    less, more = at.total[at.total_low > 0], at.total[at.total_high < 0]
    said = []
    for word, part in (("less", 1 - np.exp(-less)), ("more", np.expm1(-more))):
        ends = dict.fromkeys(f"{end:.0%}" for end in (part.min(), part.max()))
        said += [f"{' to '.join(ends)} {word} for {len(part)}"] * (len(part) > 0)
    case, count = at.iloc[0], counted(len(at), "model")
    where = f"On {_log(case.trace)}, with {_targets(case)}, split pools with tiers cost"
    if not said:
        return f"{where} the same within noise as one pool without tiers, for all of {count}."
    others = "".join(f", and {one}" for one in said[1:])
    return f"{where} {said[0]} of {count} than one pool without tiers{others}."


def _drops(at: pd.DataFrame) -> str:
    """The same for each model, with its band and the parts of the levers."""
    said = []
    for case in at.itertuples():
        if pd.isna(case.cheapest):
            told = "no fleet meets the targets"
        elif pd.isna(case.interaction):
            met = [words for cell, words in CELLS.items() if pd.notna(getattr(case, f"usd_{cell}"))]
            told = f"only {listed(met)} can meet the targets"
        else:
            logs = case.total, case.total_high, case.total_low
            total, low, high, split, tiers = map(
                _change, (*logs, case.share_disaggregation, case.share_tiers)
            )
            told = f"{total} ({low} to {high}; the split {split}, tiers {tiers})"
        said.append(f"{case.model} {told}")
    case = at.iloc[0]
    return (
        f"With {case.router} routing and tiers {_scope(case.scope)}, model by model, and what is "
        f"due to each lever by Shapley: {'; '.join(said)}."
    )


def finer(cases: pd.DataFrame) -> str:
    """What a fleet of more instances changes, which can be split more finely."""
    sized = cases[(cases.varied == "gpus") & cases.usd_both.notna() & cases.usd_none.notna()]
    said, split, moved = [], np.zeros(2, int), False
    for model, part in sized.groupby("model", sort=False):
        ends = [part.loc[part["at"].agg(end)] for end in ("idxmin", "idxmax")]
        if ends[0]["at"] == ends[1]["at"]:
            continue
        few, many = (_change(math.log(one.usd_none / one.usd_both)) for one in ends)
        said.append(f"{model} {many} on {ends[1]['at']:.0f} GPUs, {few} on {ends[0]['at']:.0f}")
        splits = [one.cheapest in SPLIT for one in ends]
        split += splits
        moved |= splits[0] != splits[1]
    if not said:
        return ""
    return (
        "Pools come in whole instances, so a larger fleet can be split more finely, and that alone "
        f"moves {'the' if moved else 'no'} verdict. Split pools with tiers against one pool "
        f"without: {'; '.join(said)}. Split pools are the cheapest for {split[1]} of "
        f"{counted(len(said), 'model')} on the larger fleets, for {split[0]} on the smaller ones."
    )


def _scope(scope: str) -> str:
    return "pooled" if scope == "pooled" else f"of each {scope}"


def _counts(grid: pd.DataFrame) -> str:
    """What is cheapest over the grid, by how much, how surely, and by which lever."""
    known = grid[grid.cheapest.notna()]
    if known.empty:
        return f"No fleet meets the targets in any of {counted(len(grid), 'case')}."
    wins = [f"{CELLS[cell]} in {count}" for cell, count in known.cheapest.value_counts().items()]
    none = f"; in {len(grid) - len(known)} no fleet meets the targets" * (len(known) < len(grid))
    alone = int(known.over.isna().sum())
    told = (
        f"Over {counted(len(grid), 'case')} of the grid the cheapest is {listed(wins)}{none}. In "
        f"{int((known.saved_low > 0).sum())} it is ahead of the next beyond the noise of the seeds"
        f"{f' and in {alone} it is the only one' if alone else ''}."
    )
    full = grid[grid.interaction.notna()]
    if full.empty:
        return told
    least = full[[f"usd_{cell}" for cell in CELLS]].min(axis=1) / full.usd_none
    low, middle, high = (1 - least).quantile([0.1, 0.5, 0.9])
    split = int((full.share_disaggregation_low > full.share_tiers_high).sum())
    tiers = int((full.share_tiers_low > full.share_disaggregation_high).sum())
    return (
        f"{told} Where all four can meet the targets, in {len(full)}, the cheapest costs "
        f"{middle:.0%} less than one pool without tiers in the median ({low:.0%} to {high:.0%} for "
        f"10 to 90%); the split saves more than the tiers in {split}, the tiers more than the "
        f"split in {tiers} (shares by Shapley, beyond noise)."
    )


def _interaction(grid: pd.DataFrame) -> str:
    """Whether the levers help each other, compete, or simply multiply."""
    full = grid[grid.interaction.notna()]
    if full.empty:
        return "In no case can all four fleets meet the targets, so that none has an interaction."
    signs = {
        "help each other": int((full.interaction_high < 0).sum()),
        "compete": int((full.interaction_low > 0).sum()),
    }
    signs["multiply"] = len(full) - sum(signs.values())
    word = max(signs, key=signs.get)
    rule = f"As a rule the two levers {word}" if 2 * signs[word] > len(full) else "There is no rule"
    return (
        f"{rule}: of {counted(len(full), 'case')} the levers help each other "
        f"in {signs['help each other']} and compete in {signs['compete']}, and in "
        f"{signs['multiply']} the sign of their interaction is within the noise, so that each "
        "saves the same share with or without the other."
    )


def ratios(cases: pd.DataFrame) -> pd.DataFrame:
    """Predicted over simulated cost and rate, a row for each case and feasible cell."""
    parts = []
    for cell in CELLS:
        part = cases[["model", "trace", "ttft_slo_s", "tpot_slo_s"]].assign(cell=cell)
        for name in ("usd", "rate"):
            part[name] = cases[f"{name}_predicted_{cell}"] / cases[f"{name}_{cell}"]
        parts.append(part[cases[f"usd_{cell}"].notna()])
    return pd.concat(parts, ignore_index=True)


def _closed_form(grid: pd.DataFrame) -> str:
    """Where the closed form gives the size, and whether it knows the sign."""
    found = ratios(grid)
    if found.empty:
        return ""
    near = (found.usd - 1).abs() <= NEAR
    parts = [
        f"{int(near[of].sum())} of {int(of.sum())} for {CELLS[cell]}"
        for cell in CELLS
        if (of := found.cell == cell).any()
    ]
    low, middle, high = found.usd.replace(math.inf, math.nan).quantile([0.1, 0.5, 0.9])
    missed = int(np.isinf(found.usd).sum())
    clear = grid[(grid.interaction_low > 0) | (grid.interaction_high < 0)]
    signs = np.sign(clear.interaction[clear.predicted_interaction.notna()])
    agree = int((signs == np.sign(clear.predicted_interaction[signs.index])).sum())
    common = int(max((signs > 0).sum(), (signs < 0).sum()))
    # Two standard errors of a count at most.
    skill = agree - common > math.sqrt(len(signs))
    sized = near.mean() >= 0.5
    kareto = {
        (True, True): "is not borne out here",
        (True, False): "is borne out for the interaction, and not for the costs themselves",
        (False, True): "is borne out for the costs, and not for the sign of the interaction",
        (False, False): "is borne out",
    }[bool(sized), bool(skill)]
    return (
        f"The closed form is within {NEAR:.0%} of the replay's cost in {int(near.sum())} of "
        f"{len(found)} fleets ({', '.join(parts)}); predicted over simulated is {middle:.2f} in "
        f"the median ({low:.2f} to {high:.2f} for 10 to 90%), and for {missed} that meet the "
        f"targets it expects none to be met. Of {len(signs)} interactions beyond noise it has the "
        f"sign of {agree}; always to say the commoner sign has {common}, so that what it knows of "
        f"the sign is {'beyond' if skill else 'within'} chance. That such objectives are "
        f"non-analytic, as Kareto observes, {kareto}."
    )


def _disk(varied: pd.DataFrame) -> str:
    """What a slow disk costs split pools, and whether it is still bought, model by model."""
    said, verdicts = [], {"holds": [], "does not hold": [], "does not matter": []}
    for model, part in varied[varied.usd_both.notna()].groupby("model", sort=False):
        part = part.sort_values("at")
        slow, fast = part.iloc[0], part.iloc[-1]
        noise = slow.usd_both_low <= fast.usd_both_high
        bought = part["at"][part.bytes_both_nvme > 0]
        whole = len(bought) == len(part)
        change = (
            "no change beyond noise" if noise else _change(math.log(fast.usd_both / slow.usd_both))
        )
        when = "at every rate" if whole else f"from {size(bought.min())}/s on"
        when = f"bought {when}" if len(bought) else "bought at no rate"
        said.append(f"{model} {change}, {when}")
        verdict = "does not hold" if whole else "holds" if len(bought) else "does not matter"
        verdicts[verdict].append(model)
    if not said:
        return ""
    slow, fast = (size(rate) for rate in (varied["at"].min(), varied["at"].max()))
    paper = [f"{verdict} for {listed(models)}" for verdict, models in verdicts.items() if models]
    return (
        f"Split pools with NVMe as their only tier, at {slow}/s a GPU against {fast}/s: "
        f"{'; '.join(said)}. That its rate disqualifies the disk {listed(paper)}."
    )


# When to buy what


def when_to_buy(own: pd.DataFrame, public: pd.DataFrame, rows: pd.DataFrame) -> str:
    """When to buy DRAM, when flash, when to split, when to do neither, and how sure that is.

    Parameters
    ----------
    own, public : pandas.DataFrame
        Cases of the scenario and of the published grid, from ``cases``.
    rows : pandas.DataFrame
        Rows of the published grid, for what turns the verdict and for break-even intervals.
    """
    grid, paragraphs = main(public), [f"For this scenario: {_advice(main(own).iloc[0])}"]
    known = grid[grid.cheapest.notna()]
    if known.empty:
        return "\n\n".join([*paragraphs, _counts(grid)])
    bought = [dict(_bought(one, one.cheapest)) for one in known.itertuples()]
    flags = {
        "Buy host DRAM": np.array(["dram" in tiers for tiers in bought]),
        "Buy flash": np.array(["nvme" in tiers for tiers in bought]),
        "Split the pools": known.cheapest.isin(SPLIT).to_numpy(),
        "Do neither": (known.cheapest == "none").to_numpy(),
    }
    paragraphs += [f"{action}: {_when(known, flag)}" for action, flag in flags.items()]
    paragraphs += [_sure(known), _turns(rows), _intervals(rows)]
    return "\n\n".join(part for part in paragraphs if part)


def _advice(case) -> str:
    """The decision for one case."""
    if pd.isna(case.cheapest):
        return f"no fleet that was tried meets {_targets(case)}; {_missed(case)}."
    split = "split the pools" if case.cheapest in SPLIT else "keep one pool"
    each = " for each GPU that prefills" * bool(_bought(case, case.cheapest))
    return f"{split} and buy {_stock(case, case.cheapest)}{each}; {_lead(case)}."


_HOW_OFTEN = (
    (1, "always"), (0.9, "nearly always"), (0.6, "mostly"), (0.4, "about as often as not"),
    (0.1, "at times"), (1e-9, "seldom"), (0, "never"),
)  # fmt: skip


def _when(known: pd.DataFrame, flag: np.ndarray) -> str:
    """In how many cases, for which models, and what else moves it most."""
    word = next(word for least, word in _HOW_OFTEN if flag.mean() >= least)
    count = f"{int(flag.sum())} of {counted(len(known), 'case')}"
    told = f"{word}. The cheapest fleet does so in {count}."
    if not 0 < flag.sum() < len(flag):
        return told
    cold = known.ttft_slo_s / known.cold_s
    middle = cold.median()
    tight = np.where(cold < middle, "below", "not below")
    inputs = {
        "model": ("the model", known.model),
        "trace": ("the trace", known.trace.map(_trace)),
        "cold": (f"a TTFT target below {middle:.2g} times a cold prefill", tight),
        "router": ("the routing", known.router),
        "scope": ("the tiers", known["scope"].map(_scope)),
    }
    shares = {
        name: pd.Series(flag).groupby(np.asarray(values), sort=False).agg(["sum", "count", "mean"])
        for name, (_, values) in inputs.items()
        if name != "cold" or cold.notna().all()
    }
    spread = {name: part["mean"].max() - part["mean"].min() for name, part in shares.items()}
    ranked = [name for name in sorted(spread, key=spread.get, reverse=True) if spread[name] > 0.1]
    said = [
        f"{inputs[name][0]} ("
        + ", ".join(f"{at} {_often(*part)}" for at, *part in shares[name].itertuples())
        + ")"
        for name in ranked[:2]
    ]
    return f"{told} It depends most on {', then on '.join(said)}." if said else told


def _often(count: float, of: float, share: float) -> str:
    return {0.0: "never", 1.0: "always"}.get(share, f"{int(count)} of {int(of)}")


def _sure(known: pd.DataFrame) -> str:
    """How often the bands of the best fleets with and without a lever do not touch."""
    parts = []
    for lever, having in (("to split the pools", SPLIT), ("to buy tiers", TIERED)):
        lacking = [cell for cell in CELLS if cell not in having]
        low, high = (
            [known[[f"usd_{cell}_{end}" for cell in kind]].min(axis=1).fillna(math.inf)
             for kind in (having, lacking)]
            for end in ("low", "high")
        )  # fmt: skip
        yes, no = int((high[0] < low[1]).sum()), int((high[1] < low[0]).sum())
        parts.append(f"whether {lever} in {yes + no} ({yes} yes, {no} no)")
    return (
        f"How sure that is: of {counted(len(known), 'case')} the bands of the seeds decide "
        f"{listed(parts)}. Where they do not, both choices cost the same as far as can be told, "
        "and the simpler one is the better one."
    )


_INPUTS = {
    "ttft": ("{} to the first token", duration),
    "tpot": ("{} a token", duration),
    "nic": ("a network of {}/s a GPU", size),
    "disk": ("NVMe at {}/s a GPU", size),
    "dram price": ("DRAM at {} USD/GB", "USD/GB"),
    "nvme price": ("NVMe at {} USD/GB", "USD/GB"),
    "gpu price": ("a GPU at {} USD/hour", "USD/hour"),
    "gpus": ("{} GPUs", "{:.0f}".format),
}


def amount(name: str, value: float) -> str:
    """A varied input with its value, in words."""
    words, unit = _INPUTS[name]
    shown = unit(value) if callable(unit) else f"{units.per(value, unit):.3g}"
    return words.format(shown)


def turns(rows: pd.DataFrame) -> pd.DataFrame:
    """Values of single inputs beyond which another kind of fleet is the cheapest."""
    flips = rows[rows.quantity == "flips_at"]
    return pd.DataFrame(
        {"model": one.model, "beyond": amount(one.input, one.value), "cheapest": CELLS[one.to]}
        | {"in place of": CELLS[one.over]}
        for one in flips.itertuples()
    )


def _turns(rows: pd.DataFrame) -> str:
    flips = turns(rows)
    if len(flips):
        said = [
            f"for {model}, " + listed([f"to {to} beyond {at}" for _, at, to, _ in part.to_numpy()])
            for model, part in flips.groupby("model", sort=False)
        ]
        return f"What turns the verdict, one input at a time as it rises: {'; '.join(said)}."
    varied = "varied" in rows and (rows.varied.fillna("") != "").any()
    return "No input that was varied alone turns the verdict." if varied else ""


def _intervals(rows: pd.DataFrame) -> str:
    """Shortest and longest break-even interval of each tier, by model."""
    spans, said = rows[rows.quantity == "break_even_interval_s"].sort_values("value"), []
    for tier, part in spans.groupby("tier", sort=False) if len(spans) else ():
        ends = [f"{duration(one.value)} ({one.model})" for one in part.iloc[[0, -1]].itertuples()]
        said.append(f"{' to '.join(dict.fromkeys(ends))} in {TIERS[tier]}")
    told = f"A prefix that comes back for certain pays for its place within {listed(said)}."
    return told if said else ""


# Tables


def fleets(cases: pd.DataFrame, ways: Mapping[str, str]) -> pd.DataFrame:
    """The cells of some cases, each with its best configuration in words.

    ``ways`` names the parallelism of a tabulated way to run a model.
    """
    found = []
    for case in cases.itertuples():
        for cell, words in CELLS.items():
            usd, low, high = (getattr(case, f"usd_{cell}{band}") for band in _BANDS)
            told = "infeasible", _missed(case)
            if pd.notna(usd):
                told = f"{usd:.3g} ({low:.3g} to {high:.3g})", _configuration(case, cell, ways)
            found.append((case.model, words, *told))
    return pd.DataFrame(found, columns=["model", "fleet", "usd_per_million", "best"])


def _configuration(case, cell: str, ways: Mapping[str, str]) -> str:
    def of(name: str) -> Any:
        return getattr(case, f"{name}_{cell}", None)

    def pool(name: str) -> str:
        way = ways.get(of(f"way_{name}"))
        return counted(int(of(name)), "GPU") + (f" as {way}" if way else "")

    if cell in SPLIT:
        made = f"{pool('prefill')} prefill, {pool('decode')} decode"
    else:
        chunk = of("chunk_tokens")
        whole = pd.isna(chunk)
        made = f"{pool('prefill')}, {'prompts whole' if whole else f'chunks of {chunk:,.0f}'}"
    bought = _bought(case, cell)
    rules = [
        f"{TIERS[tier]} written on second use"
        for tier, _ in bought
        if of(f"admission_{tier}") == "second use"
    ]
    return "; ".join([made, f"{_stock(case, cell)}{' a GPU' * bool(bought)}", *rules])


def contrasts(cases: pd.DataFrame) -> list[dict]:
    """Interaction and split of the saving of some cases, rows with ``low`` and ``high``."""
    quantities = {
        "interaction": "log_interaction",
        "share_disaggregation": "log_saving_of_the_split",
        "share_tiers": "log_saving_of_tiers",
    }
    found = []
    for case in cases[cases.interaction.notna()].to_dict("records"):
        at = {"model": case["model"], "trace": case["trace"], "routing": case["router"]}
        at |= {"tiers": case["scope"], "ttft_target_s": case["ttft_slo_s"]}
        for name, quantity in quantities.items():
            value, low, high = (round(case[f"{name}{band}"], 3) + 0.0 for band in _BANDS)
            found.append({**at, "quantity": quantity, "value": value, "low": low, "high": high})
    return found
