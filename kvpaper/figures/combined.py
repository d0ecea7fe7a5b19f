"""Figures of the four cells: chapter 70, each from the cases of `kvpaper.decision`.

A cell has its colour and its shape in all of them. Open marks are simulated, lines predicted; in
the map of regimes a full mark is a lead beyond noise.
"""

import re
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from kvpaper import units
from kvpaper.figures import style
from kvpaper.figures.style import DARK_GREY, GREY, INK

# Colour-blind safe and of different lightness; the shape says the same without colour.
CELLS = {
    "none": ("one pool, no tiers", "#777777", "o"),
    "disaggregated": ("split, no tiers", "#E69F00", "s"),
    "tiered": ("one pool, tiers", "#56B4E9", "^"),
    "both": ("split, tiers", "#0072B2", "P"),
}
_MODELS = (("#D55E00", "o"), ("#0072B2", "s"), ("#009E73", "^"), ("#CC79A7", "P"), (INK, "v"))
_SAVINGS = (0.02, 0.1, 0.3)
_INPUTS = {
    "tpot": ("target for a token", style.time),
    "nic": ("network of a GPU", style.rate),
    "disk": ("NVMe of a GPU", style.rate),
    "dram price": ("DRAM [USD/GB]", "USD/GB"),
    "nvme price": ("NVMe [USD/GB]", "USD/GB"),
    "gpu price": ("GPU [USD/hour]", "USD/hour"),
    "gpus": ("GPUs of the fleet", ""),
}


def _size(saved):
    """Area of a mark by the log saving over the runner-up; a cell without one counts as largest."""
    return 14 + 260 * np.clip(1 - np.exp(-np.nan_to_num(saved, nan=1.0)), 0, 0.4)


def _cells(axes, **look):
    return [
        axes.plot([], [], mark, color=colour, label=name, linestyle="none", **look)[0]
        for name, colour, mark in CELLS.values()
    ]


def regimes(cases: pd.DataFrame) -> Figure:
    """The cheapest cell over target and reuse; panels by routing and scope of the tiers.

    Models of one reuse ceiling lie beside each other, in the order of the rows.
    """
    cases = cases[(cases.varied == "") & cases.cold_s.notna()]
    if cases.empty:
        return style.nothing("no case")
    routers, scopes = cases["router"].unique(), cases["scope"].unique()
    figure, each = style.panels(
        1.5 + 2.1 * len(routers), nrows=len(routers), ncols=len(scopes), squeeze=False,
        sharex=True, sharey=True,
    )  # fmt: skip
    lanes = {model: place for place, model in enumerate(cases.model.unique())}
    ceilings = np.sort(cases.ceiling.unique())
    step = _lane(ceilings, len(lanes))
    for (row, router), (column, scope) in product(enumerate(routers), enumerate(scopes)):
        axes = each[row, column]
        part = cases[(cases.router == router) & (cases["scope"] == scope)]
        if part.empty:
            axes.set_axis_off()
            told = "\n".join(["models, from above:", *reversed(lanes)])
            axes.text(0, 0, told, fontsize=8, color=DARK_GREY, transform=axes.transAxes)
            each[row - 1, column].tick_params(labelbottom=True)
            continue
        x = part.ttft_slo_s / part.cold_s
        y = part.ceiling + step * (part.model.map(lanes) - (len(lanes) - 1) / 2)
        misses = part.cheapest.isna()
        axes.plot(x[misses], y[misses], "x", color=GREY, markersize=4, markeredgewidth=1)
        sure = (part.saved_low > 0) | part.over.isna()
        for cell, (_, colour, mark) in CELLS.items():
            for clear in (True, False):
                at = (part.cheapest == cell) & (sure == clear)
                axes.scatter(
                    x[at], y[at], _size(part.saved[at]), marker=mark, edgecolors=colour,
                    facecolors=colour if clear else "white", linewidths=1.1, alpha=0.9,
                )  # fmt: skip
        axes.set_title(f"{router}, {_scope(scope)}", loc="left", fontsize=9)
        axes.set(xscale="log")
        axes.set_yticks(ceilings, [f"{ceiling:.0%}" for ceiling in ceilings])
        axes.minorticks_off()
        style.ticks(axes.xaxis, "{x:g}", 1, 2, 5)
    for axes in each[-1]:
        axes.set_xlabel("TTFT target / cold prefill", fontsize=9)
    for axes in each[:, 0]:
        axes.set_ylabel("reuse ceiling")
    marks = _cells(axes, markersize=6)
    marks += axes.plot([], [], "o", color=INK, fillstyle="none", label="within noise")
    marks += axes.plot([], [], "x", color=GREY, linestyle="none", label="none meets the targets")
    marks += [
        axes.scatter([], [], _size(-np.log(1 - saved)), color=DARK_GREY, label=f"saves {saved:.0%}")
        for saved in _SAVINGS
    ]
    style.legend_below(figure, marks, handletextpad=0.3, columnspacing=1)
    return figure


def _lane(ceilings: np.ndarray, lanes: int) -> float:
    """Distance of models that share a ceiling, so that ceilings stay apart."""
    gaps = np.diff(ceilings)
    return 0.65 * (gaps.min() if len(gaps) else 0.1) / lanes


def _scope(scope: str) -> str:
    return "pooled tiers" if scope == "pooled" else f"tiers by {scope}"


def costs(cases: pd.DataFrame) -> Figure:
    """Cost of the four cells with their bands, a panel for each model; ticks are the closed form.

    Every panel has an axis of its own: what is compared are cells, not models.
    """
    if cases.empty:
        return style.nothing("no case")
    figure, each = style.panels(0.9 + 0.95 * len(cases), nrows=len(cases), squeeze=False)
    for axes, case in zip(each[:, 0], cases.to_dict("records"), strict=True):
        for y, (cell, (_, colour, mark)) in enumerate(CELLS.items()):
            if np.isnan(case[f"usd_{cell}"]):
                told = {"va": "center", "fontsize": 8, "color": DARK_GREY}
                axes.text(
                    0.02, y, "misses the targets", transform=axes.get_yaxis_transform(), **told
                )
                continue
            ends = [case[f"usd_{cell}_{end}"] for end in ("low", "high")]
            axes.plot(ends, [y, y], color=colour, linewidth=1.2)
            axes.plot(case[f"usd_{cell}"], y, mark, color=colour, fillstyle="none", markersize=5)
            axes.plot(case[f"usd_predicted_{cell}"], y, "|", color=INK, markersize=9)
        axes.set_yticks(range(len(CELLS)), [name for name, *_ in CELLS.values()], fontsize=8)
        axes.set_ylim(len(CELLS) - 0.5, -0.5)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_title(case["model"], loc="left", fontsize=9)
    axes.set_xlabel("USD per million output tokens")
    marks = axes.plot([], [], "o-", color=INK, fillstyle="none", label="simulated, with band")
    marks += axes.plot([], [], "|", color=INK, markersize=9, label="closed form")
    style.legend_below(figure, marks, handletextpad=0.3)
    return figure


def divergence(ratios: pd.DataFrame, near: float, cases: pd.DataFrame) -> Figure:
    """Predicted over simulated cost and rate by model and cell, and the two interactions."""
    if ratios.empty:
        return style.nothing("no fleet meets its targets")
    models = list(ratios.model.unique())
    figure, each = style.panels(6.6, nrows=3, height_ratios=[1, 1, 1.3])
    for axes, name, told in zip(each[:2], ("usd", "rate"), ("cost", "rate"), strict=True):
        axes.axhspan(1 - near, 1 + near, color=GREY, alpha=0.35, linewidth=0)
        axes.axhline(1, color=INK, linewidth=0.8)
        for lane, (cell, (_, colour, mark)) in enumerate(CELLS.items()):
            part = ratios[ratios.cell == cell]
            x = part.model.map(models.index) + 0.2 * (lane - 1.5)
            axes.plot(x, part[name], mark, color=colour, fillstyle="none", markersize=4, alpha=0.7)
        axes.set(yscale="log", ylabel=f"predicted {told}\nover simulated")
        axes.minorticks_off()
        style.ticks(axes.yaxis, "{x:g}")
        axes.yaxis.set_major_locator(LogLocator(2))
        labels = [re.sub(r"-(?=\d\d|V)", "-\n", model) for model in models]
        axes.set_xticks(range(len(models)), [""] * len(models) if axes is each[0] else labels)
        axes.tick_params(axis="x", labelsize=8)
    full = cases[cases.interaction.notna() & cases.predicted_interaction.notna()]
    axes = each[2]
    clear = (full.interaction_low > 0) | (full.interaction_high < 0)
    for at, fill in ((~clear, "white"), (clear, INK)):
        axes.plot(
            full.interaction[at], full.predicted_interaction[at], "o", color=INK,
            markerfacecolor=fill, markersize=4, alpha=0.7,
            label="beyond noise" if fill == INK else "within noise",
        )  # fmt: skip
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="log interaction, simulated", ylabel="log interaction,\npredicted")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.legend(loc="best")
    style.legend_below(figure, _cells(axes, fillstyle="none", markersize=6), handletextpad=0.3)
    return figure


def sensitivities(cases: pd.DataFrame, model: str) -> Figure:
    """Cost of the cells over that of one pool without tiers, a panel for each varied input."""
    cases = cases[(cases.model == model) & cases.usd_none.notna()]
    names = [name for name in _INPUTS if (cases.varied == name).sum() > 1]
    if not names:
        return style.nothing("no input was varied")
    rows = (len(names) + 1) // 2
    figure, each = style.panels(1.0 + 1.65 * rows, nrows=rows, ncols=2, sharey=True, squeeze=False)
    for axes, name in zip(each.flat, names, strict=False):
        part = cases[cases.varied == name].sort_values("at")
        label, shown = _INPUTS[name]
        x = part["at"] if callable(shown) else units.per(part["at"], shown)
        for cell, (_, colour, mark) in [*CELLS.items()][1:]:
            simulated = part[f"usd_{cell}"] / part.usd_none
            predicted = part[f"usd_predicted_{cell}"] / part.usd_predicted_none
            axes.plot(x, predicted, color=colour, linewidth=1)
            axes.plot(x, simulated, mark, color=colour, fillstyle="none", markersize=5)
        axes.axhline(1, color=INK, linewidth=0.6)
        axes.set(xscale="log", xlabel=label)
        axes.set_xticks([min(x), max(x)])
        axes.minorticks_off()
        style.ticks(axes.xaxis, shown if callable(shown) else "{x:.3g}")
    for axes in each.flat[len(names) :]:
        axes.set_axis_off()
    figure.supylabel("cost over one pool without tiers", fontsize=10)
    marks = _cells(axes, fillstyle="none", markersize=6)[1:]
    marks += axes.plot([], [], color=INK, linewidth=1, label="closed form")
    style.legend_below(figure, marks, handletextpad=0.3)
    return figure


def disk(cases: pd.DataFrame) -> Figure:
    """What tiers save split pools, over the disk's rate, by model."""
    cases = cases[(cases.varied == "disk") & cases.usd_disaggregated.notna()]
    if cases.empty:
        return style.nothing("no disk was varied")
    figure, axes = style.panels(3.4)
    for (model, part), (colour, mark) in zip(
        cases.groupby("model", sort=False), _MODELS, strict=False
    ):
        part = part.sort_values("at")
        predicted = part.usd_predicted_both / part.usd_predicted_disaggregated
        axes.plot(part["at"], predicted, color=colour, linewidth=1)
        simulated = part.usd_both / part.usd_disaggregated
        axes.plot(part["at"], simulated, mark, color=colour, fillstyle="none", label=model)
    axes.axhline(1, color=INK, linewidth=0.6)
    axes.set(
        xscale="log", xlabel="read rate of the NVMe of a GPU", ylabel="split: tiers over no tiers"
    )
    axes.set_xticks(sorted(set(cases["at"])))
    axes.minorticks_off()
    style.ticks(axes.xaxis, style.rate)
    style.legend_below(figure)
    return figure
