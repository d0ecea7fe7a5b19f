"""Figures of replayed fleets: chapter 60, each from the rows of `kvpaper.serving.chapter`."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from kvpaper.figures import style
from kvpaper.figures.combined import CELLS
from kvpaper.figures.style import DARK_GREY, INK

_COST = "usd_per_million_output_tokens"
# Times to the first token are shown up to so many times the target, or the soonest.
_HIGHEST = 20
_STEPS_S = (1, 10, 60, 300, 600, 1200, 3600, 3 * 3600, 6 * 3600)


def _cells(rows: pd.DataFrame):
    """Rows, name, colour and mark of each kind of fleet."""
    for cell, look in CELLS.items():
        part = rows[rows.cell == cell]
        if len(part):
            yield part, *look


def pareto(points: pd.DataFrame, target_s: float) -> Figure:
    """Time to the first token against cost of `kvpaper.replayed.points`, with their frontier.

    Pale marks miss a target, those in the uppermost row are beyond the scale; the knee is ringed.
    """
    if points.empty:
        return style.nothing("no point of the grid could be replayed")
    figure, axes = style.panels(4.2)
    # A fleet that is overloaded waits for as long as the trace lasts.
    top = _HIGHEST * max(target_s, points.ttft_s.min())
    points = points.assign(ttft_s=points.ttft_s.clip(upper=top))
    for part, name, colour, mark in _cells(points):
        axes.plot([], [], mark, color=colour, fillstyle="none", label=name)
        for feasible, alpha in ((1, 1.0), (0, 0.35)):
            own = part[part.feasible == feasible]
            axes.plot(own[_COST], own.ttft_s, mark, color=colour, fillstyle="none", markersize=4,
                      alpha=alpha)  # fmt: skip
    on = points[points.standing != "beaten"]
    axes.plot(on[_COST], on.ttft_s, color=INK, linewidth=0.8, drawstyle="steps-post")
    knee = on[on.standing == "knee"].iloc[0]
    axes.plot(knee[_COST], knee.ttft_s, "o", color=INK, fillstyle="none", markersize=11)
    style.note(axes, "knee", (knee[_COST], knee.ttft_s), (8, 8))
    axes.axhline(target_s, color=DARK_GREY, linestyle=":", label="target")
    axes.set(xscale="log", yscale="log", xlabel="USD per million output tokens",
             ylabel="time to first token", ylim=(None, 1.4 * top))  # fmt: skip
    style.ticks(axes.xaxis, "{x:,.3g}", 1, 1.5, 2, 3, 5, 7)
    style.ticks(axes.yaxis, style.time, 1, 2, 5)
    style.legend_below(figure, handletextpad=0.3)
    return figure


def first_tokens(rows: pd.DataFrame, target_s: float) -> Figure:
    """Distribution of the time to the first token of each kind of fleet."""
    times = rows[(rows.quantity == "ttft_s") & rows.share.notna()] if "share" in rows else []
    if not len(times):
        return style.nothing("the grid has no GPUs with all four kinds of fleet")
    figure, axes = style.panels(3.8)
    for part, name, colour, mark in _cells(times):
        axes.plot(part.value, part.share, f"{mark}-", color=colour, fillstyle="none", markersize=4,
                  markevery=5, linewidth=0.8, label=name)  # fmt: skip
    axes.axvline(target_s, color=DARK_GREY, linestyle=":", label="target")
    axes.set(xscale="log", xlabel="time to first token", ylabel="share of requests", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    style.ticks(axes.xaxis, style.time)
    style.legend_below(figure, handletextpad=0.3)
    return figure


def warmth(rows: pd.DataFrame) -> Figure:
    """Share of prompt tokens that were served from a cache, over the time of the trace."""
    hits = rows[(rows.quantity == "hit_share") & rows.at_s.notna()] if "at_s" in rows else []
    if not len(hits):
        return style.nothing("the grid has no GPUs with all four kinds of fleet")
    figure, axes = style.panels(3.4)
    for part, name, colour, mark in _cells(hits):
        axes.plot(part.at_s, part.value, f"{mark}-", color=colour, fillstyle="none", markersize=4,
                  linewidth=0.6, label=name)  # fmt: skip
    axes.set(xlabel="time since the caches were empty", ylabel="prompt tokens that hit",
             xlim=(0, None), ylim=(0, None))  # fmt: skip
    axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
    style.ticks(axes.xaxis, style.time)
    step_s = min((step for step in _STEPS_S if 4 * step > hits.at_s.max()), default=86400)
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    style.legend_below(figure, handletextpad=0.3)
    return figure
