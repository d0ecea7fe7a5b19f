"""Figures of what the lab measured: chapter 80. A point is a median with its quartiles.

Each run has its own mark, so that the spread between runs is seen; that of a run that shared its
machine is pale.
"""

import itertools
import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kvpaper.figures.style import COLOURS, legend_below, nothing, panels, ticks, time, token_ticks

_MARKS = "os^Dv"
_PLAIN = ("copy", "get")
_LEVELS = {
    "recompute": "recomputed",
    "engine alone": "in the engine's cache",
    "engine": "the engine's, last block LMCache's",
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
            alpha=0.4 if run.load.iloc[0] == "shared" else 1,
            yerr=[run.value - run.low, run.high - run.value],
            fmt=_MARKS[number % len(_MARKS)],
            color=colour,
            markersize=3.5,
            linewidth=0.8,
            label=label if number == 0 else None,
        )


def _tokens_and_times(axes, of: str, label: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=f"{of} [tokens]", ylabel=label)
    token_ticks(axes.xaxis, 4)
    ticks(axes.yaxis, time, 1, 3)


def _panels(rows: pd.DataFrame, names: list[str], height: float):
    """A panel for each machine, and for each of what else is named; machines are never mixed."""
    groups = list(rows.groupby(names))
    figure, each = panels(1 + height * len(groups), nrows=len(groups), squeeze=False)
    for axes, (told, part) in zip(each[:, 0], groups, strict=True):
        axes.set_title(f"{': '.join(told[::-1])}\n{_runs(part)}", loc="left", fontsize=8)
        yield figure, axes, part
    legend_below(figure)


def _runs(part: pd.DataFrame) -> str:
    """How many runs a panel shows and how loaded the machine was, by connector if there is one."""
    kinds = part.groupby("connector") if "connector" in part else [("", part)]
    parts = []
    for connector, own in kinds:
        loads = own.groupby("load").run.nunique()
        count = ", ".join(f"{number} {load}" for load, number in loads.items())
        parts.append(f"{connector} {count}".strip())
    return textwrap.fill(f"runs: {'; '.join(parts)}", 62)  # characters of a panel's width


def tiers(times: pd.DataFrame, fits: pd.DataFrame, shape: str) -> Figure:
    """Fetch time by tier over prefix length; the line is the fit of the first run.

    The band is between the fits of all runs, where there are several.
    """
    if times.empty:
        return nothing("no record of the tiers")
    times = times[(times["shape"] == shape) & (times.quantity == "fetch_time_s")]
    fits = fits[fits["shape"] == shape].pivot_table(
        index=["machine", "tier", "way", "run"], columns="quantity", values="value"
    )
    slowest = times.groupby(["tier", "way"]).value.max().sort_values(ascending=False)
    colours = dict(zip(slowest.index, itertools.cycle(COLOURS), strict=False))
    for figure, axes, rows in _panels(times, ["machine"], 3.6):  # noqa: B007
        for (tier, way), part in rows.groupby(["tier", "way"]):
            colour = colours[tier, way]
            _points(axes, part, "tokens", colour, tier if way in _PLAIN else f"{tier}, {way}")
            at = (rows.machine.iloc[0], tier, way)
            if at not in fits.index.droplevel("run"):  # too few lengths for a fit
                continue
            own = fits.loc[at]
            tokens = np.geomspace(part.tokens.min(), part.tokens.max(), 60)
            size = tokens * float((part.bytes / part.tokens).iloc[0])
            lines = [
                one.fitted_latency_s + size / one.fitted_bytes_per_s for one in own.itertuples()
            ]
            low, high = np.min(lines, 0), np.max(lines, 0)
            axes.plot(tokens, lines[0], color=colour, linewidth=0.9)
            axes.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
        _tokens_and_times(axes, "prefix", "time to fetch")
    return figure


def levels(rows: pd.DataFrame) -> Figure:
    """Time to first token by where the prefix came from, over prompt length."""
    if rows.empty:
        return nothing("no record of the time to first token by level")
    rows = rows[rows.quantity == "ttft_s"]
    for figure, axes, part in _panels(rows, ["machine", "model"], 2.6):  # noqa: B007
        for level, colour in zip(_LEVELS, COLOURS, strict=False):
            at = part[part.level == level]
            _points(axes, at, "prompt_tokens", colour, _LEVELS[level])
        _tokens_and_times(axes, "prompt", "time to first token")
    return figure


def splits(rows: pd.DataFrame) -> Figure:
    """Time to first token on one engine and on two, by prompt length and connector."""
    if rows.empty:
        return nothing("no record of two engines")
    rows = rows[rows.quantity == "ttft_s"]
    kinds = sorted(set(zip(rows["split"], rows.connector, strict=True)))
    colours = dict(zip(kinds, itertools.cycle(COLOURS), strict=False))
    for figure, axes, part in _panels(rows, ["machine", "model"], 3.0):  # noqa: B007
        for (split, connector), at in part.groupby(["split", "connector"]):
            name = f"one of two, {connector}" if split == "one engine" else f"two, {connector}"
            if connector.startswith("none"):
                name = f"one engine on {connector.partition(', ')[2] or 'all cores'}"
            colour = colours[split, connector]
            _points(axes, at, "prompt_tokens", colour, name)
        _tokens_and_times(axes, "prompt", "time to first token")
    return figure
