"""Figures of what the lab measured: chapter 80. A point is a median with its quartiles."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kvpaper.figures.style import INK, as_time, as_tokens, nothing, panels

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
# Runs of the same thing, so that their spread is seen.
_MARKS = "os^Dv"
_LEVELS = {
    "recompute": "recomputed",
    "engine": "in the engine's cache",
    "connector": "in LMCache's DRAM",
    "disk": "on LMCache's disk",
}


def _points(axes, part: pd.DataFrame, x: str, colour: str, label: str) -> None:
    """Medians with quartiles, one mark for each run."""
    for number, (_, run) in enumerate(part.groupby("run")):
        run = run.sort_values(x)
        axes.errorbar(
            run[x],
            run.value,
            yerr=[run.value - run.low, run.high - run.value],
            fmt=_MARKS[number % len(_MARKS)],
            color=colour,
            markersize=3.5,
            linewidth=0.8,
            label=label if number == 0 else None,
        )


def _tokens_and_times(axes, label: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel="prefix [tokens]", ylabel=label)
    as_tokens(axes.xaxis, 4)
    as_time(axes.yaxis)


def tiers(times: pd.DataFrame, fits: pd.DataFrame, shape: str) -> Figure:
    """Fetch time by tier over prefix length; the line is the fit of the first run.

    The band is between the fits of all runs, where there are several.
    """
    if times.empty:
        return nothing("no record of the tiers")
    here = times[(times["shape"] == shape) & (times.quantity == "fetch_time_s")]
    figure, axes = panels(4.6)
    for (place, part), colour in zip(here.groupby(["tier", "way"]), _COLOURS, strict=False):
        tier, way = place
        name = tier if way in ("copy", "get") else f"{tier}, {way}"
        _points(axes, part, "tokens", colour, name)
        own = fits[(fits.tier == tier) & (fits.way == way) & (fits["shape"] == shape)]
        tokens = np.geomspace(part.tokens.min(), part.tokens.max(), 60)
        size = tokens * float((part.bytes / part.tokens).iloc[0])
        lines = [
            one["fitted_latency_s"] + size / one["fitted_bytes_per_s"]
            for _, one in own.pivot_table(
                index="run", columns="quantity", values="value"
            ).iterrows()
        ]
        if lines:
            axes.plot(tokens, lines[0], color=colour, linewidth=0.9)
            axes.fill_between(
                tokens, np.min(lines, 0), np.max(lines, 0), color=colour, alpha=0.2, linewidth=0
            )
    _tokens_and_times(axes, "time to fetch")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def levels(rows: pd.DataFrame) -> Figure:
    """Time to first token by where the prefix came from, over prompt length."""
    rows = rows[rows.quantity == "ttft_s"] if len(rows) else rows
    if rows.empty:
        return nothing("no record of the time to first token by level")
    models = list(dict.fromkeys(rows.model))
    figure, each = panels(1 + 2.4 * len(models), nrows=len(models), squeeze=False)
    for axes, model in zip(each[:, 0], models, strict=True):
        for level, colour in zip(_LEVELS, _COLOURS, strict=False):
            part = rows[(rows.model == model) & (rows.level == level)]
            _points(axes, part, "prompt_tokens", colour, _LEVELS[level])
        axes.set_title(model, loc="left")
        _tokens_and_times(axes, "time to first token")
    handles = {
        label: handle
        for axes in each[:, 0]
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2)
    return figure


def splits(rows: pd.DataFrame) -> Figure:
    """Time to first token on one engine and on two, by prompt length and connector."""
    rows = rows[rows.quantity == "ttft_s"] if len(rows) else rows
    if rows.empty:
        return nothing("no record of two engines")
    figure, axes = panels(3.8)
    pairs = rows.groupby(["split", "connector"])
    for ((split, connector), part), colour in zip(pairs, (INK, *_COLOURS), strict=False):
        by = f"two engines, {connector}" if split == "two engines" else f"one of them, {connector}"
        _points(axes, part, "prompt_tokens", colour, "one engine" if connector == "none" else by)
    _tokens_and_times(axes, "time to first token")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
