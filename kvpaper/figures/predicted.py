"""Figures of what the formulas predict: chapters 00 to 40."""

import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvpaper.figures import style
from kvpaper.figures.style import DARK_GREY, GREY, INK, TIER_COLOURS, TIER_NAMES


def kv_bytes(rows: pd.DataFrame, own: str) -> Figure:
    """Cache of one sequence against context length; ``own`` names the model in ink.

    Models with the same line share its name.
    """
    figure, axes = style.panels(5.0)
    lines = rows.pivot(index="tokens", columns="model", values="value")
    names: dict[tuple[float, ...], list[str]] = {}
    for model in lines:
        names.setdefault(tuple(lines[model]), []).append(model)
    curves = sorted(names, key=lambda curve: curve[-1])
    last = rows.tokens.max()
    axes.set(xscale="log", yscale="log", xlabel="context [tokens]")
    axes.set_ylabel("KV cache of one sequence")
    for curve in curves:
        mine = own in names[curve]
        axes.plot(lines.index, curve, color=INK if mine else GREY, linewidth=2 if mine else 1)
    style.token_ticks(axes.xaxis, 32)
    style.ticks(axes.yaxis, style.size)
    axes.margins(x=0)
    heights = _apart(np.log10([curve[-1] for curve in curves]), axes, 11)
    for curve, height in zip(curves, heights, strict=True):
        mine = own in names[curve]
        axes.annotate(
            ", ".join(re.sub(r"-(Instruct|it|v0\.1)$", "", name) for name in names[curve]),
            (last, curve[-1]),
            (last * 2.6, 10**height),
            va="center",
            fontsize=8,
            color=INK if mine else DARK_GREY,
            fontweight="bold" if mine else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "relpos": (0, 0.5)},
        )
    return figure


def _apart(heights: np.ndarray, axes, points: float) -> np.ndarray:
    """Ascending log heights spread until labels of that many points do not overlap."""
    low, high = np.log10(axes.get_ylim())
    step = points * (high - low) / (axes.figure.get_size_inches()[1] * 72 * 0.85)
    placed = heights.astype(float).copy()
    for index in range(1, len(placed)):
        placed[index] = max(placed[index], placed[index - 1] + step)
    placed[-1] = min(placed[-1], high)
    for index in range(len(placed) - 2, -1, -1):
        placed[index] = min(placed[index], placed[index + 1] - step)
    return placed


def recovery_chart(rows: pd.DataFrame, published: pd.DataFrame) -> Figure:
    """Time to recover 1 GB by tier, the gap between slowest and fastest marked."""
    figure, axes = style.panels(2.9)
    times = rows[rows.quantity == "fetch_time_s"].sort_values("value", ascending=False)
    places = np.arange(len(times))
    axes.barh(places, times.value, color=[TIER_COLOURS[tier] for tier in times.tier], height=0.55)
    printed = dict(zip(published.tier, published.value, strict=True))
    for place, tier, value in zip(places, times.tier, times.value, strict=True):
        style.note(axes, style.time(value), (value, place), (9, 0), va="center")
        if tier in printed:
            axes.plot(printed[tier], place, "D", color="white", markeredgecolor=INK, markersize=6)
    axes.set_yticks(places, [TIER_NAMES[tier] for tier in times.tier])
    ratio = rows[rows.quantity == "fetch_time_ratio"].iloc[0]
    top = len(times) - 0.45
    ends = (times.value.min(), top), (times.value.max(), top)
    axes.annotate("", *ends, arrowprops={"arrowstyle": "<->", "color": INK})
    middle = np.sqrt(times.value.min() * times.value.max())
    style.note(axes, f"{ratio.value:,.0f}x", (middle, top), (0, 3), ha="center")
    axes.set(xscale="log", xlabel="time to recover 1 GB of KV cache", ylim=(-0.5, len(times)))
    axes.set_xlim(times.value.min() / 4, times.value.max() * 8)
    style.ticks(axes.xaxis, style.time)
    if printed:
        axes.plot([], [], "D", color="white", markeredgecolor=INK, label="published by the paper")
        style.legend_below(figure, ncols=1)
    return figure


def recovery_lengths(rows: pd.DataFrame, crossovers: pd.DataFrame) -> Figure:
    """Recovery time against prefix length: each tier, recomputing, and where they cross."""
    figure, axes = style.panels(3.8)
    _fetches(axes, rows)
    line = rows[rows.quantity == "recompute_time_s"]
    axes.plot(line.tokens, line.value, color=INK, linestyle="--", label="recompute")
    for _, row in crossovers.iterrows():
        if line.tokens.min() < row.value < line.tokens.max():
            at = row.value, np.interp(row.value, line.tokens, line.value)
            axes.plot(*at, "o", color=TIER_COLOURS[row.tier], markersize=5)
            told = f"{row.value:,.0f} tokens"
            style.note(axes, told, at, (6, -10), color=TIER_COLOURS[row.tier])
    axes.set(xscale="log", yscale="log", xlabel="prefix [tokens]")
    axes.set_ylabel("time to have its KV cache")
    style.token_ticks(axes.xaxis, 4)
    style.ticks(axes.yaxis, style.time)
    axes.legend(loc="upper left")
    return figure


def _fetches(axes, rows: pd.DataFrame) -> None:
    for tier, line in rows[rows.quantity == "fetch_time_s"].groupby("tier", sort=False):
        axes.plot(line.tokens, line.value, color=TIER_COLOURS[tier], label=TIER_NAMES[tier])


def slack(rows: pd.DataFrame, slo_s: float) -> Figure:
    """What the target leaves for a fetch, what recomputing takes, and the tiers below both."""
    figure, axes = style.panels(4.2)
    left = rows[rows.quantity == "ttft_slack_s"]
    for pool, name, dashes in (("one", "one pool", "--"), ("disaggregated", "disaggregated", "-")):
        line = left[left.pool == pool]
        axes.plot(line.tokens, line.value, color=INK, linestyle=dashes, label=f"slack, {name}")
    computed = rows[rows.quantity == "recompute_time_s"]
    axes.plot(computed.tokens, computed.value, color=INK, linestyle="-.", label="recompute")
    line = left[left.pool == "disaggregated"]
    usable = np.minimum(line.value.to_numpy().clip(0), computed.value.to_numpy())
    axes.fill_between(line.tokens, 0, usable, color="#999999", alpha=0.18, linewidth=0)
    _fetches(axes, rows)
    axes.axhline(slo_s, color=INK, linewidth=0.8, linestyle=":", label="target")
    axes.set(xlabel="prefix [tokens]", ylabel="time", ylim=(0, slo_s * 1.2))
    axes.margins(x=0)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    style.ticks(axes.xaxis, "{x:,.0f}")
    style.ticks(axes.yaxis, style.time)
    style.legend_below(figure)
    return figure


def break_even(rows: pd.DataFrame, working_set_bytes: float) -> Figure:
    """Break-even capacity against the tail exponent, both branches, with the band of prices."""
    if rows.empty or not working_set_bytes:
        return style.nothing("no tier has a price and a working set in this scenario")
    figure, axes = style.panels(3.8)
    low, high = working_set_bytes * 1e-5, working_set_bytes * 1e5
    sizes = rows[rows.quantity == "break_even_bytes"]
    for tier, part in sizes.groupby("tier", sort=False):
        table = part.pivot(index="beta", columns="band", values="value").clip(low / 10, high * 10)
        colour, at = TIER_COLOURS[tier], table.index
        axes.fill_between(at, table.low, table.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(at, table.middle, color=colour, label=TIER_NAMES[tier])
    label = "working set, no use beyond"
    axes.axhline(working_set_bytes, color=INK, linewidth=0.8, linestyle=":", label=label)
    axes.set(yscale="log", ylim=(low, high), ylabel="break-even capacity")
    axes.set_xlabel(r"tail exponent $\beta$")
    axes.margins(x=0)
    style.ticks(axes.yaxis, style.size)
    axes.legend(loc="lower left")
    return figure


def intervals(rows: pd.DataFrame) -> Figure:
    """Break-even interval by model, from the shortest to the longest prefix; panel by tier."""
    rows = rows[rows.quantity == "break_even_interval_s"]
    if rows.empty:
        return style.nothing("no tier has a rent in this scenario")
    tiers, models = rows.tier.unique(), rows.model.unique()
    height = 1.0 + 1.75 * len(tiers)
    figure, each = style.panels(height, nrows=len(tiers), sharex=True, squeeze=False)
    ends = f"{rows.tokens.min() / 1024:g}k to {rows.tokens.max() / 1024:g}k tokens"
    looks = [*zip(rows.element.unique(), ("#0072B2", "#B35900"), (-0.2, 0.2), strict=False)]
    for axes, tier in zip(each[:, 0], tiers, strict=True):
        for element, colour, lane in looks:
            for row, model in enumerate(models):
                at = (rows.tier == tier) & (rows.element == element) & (rows.model == model)
                values, label = rows[at].sort_values("tokens").value, f"{element} cache, {ends}"
                axes.plot(
                    values, [row + lane] * len(values), "|-", color=colour, linewidth=2,
                    markersize=8, label=None if row else label,
                )  # fmt: skip
        axes.set_yticks(range(len(models)), models)
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_title(TIER_NAMES[tier], loc="left")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_xscale("log")
    axes.set_xticks([60, 3600, 86400, 30 * 86400])
    axes.minorticks_off()
    style.ticks(axes.xaxis, style.time)
    axes.set_xlabel("break-even interval")
    style.legend_below(figure, ncols=1)
    return figure


def needed_rates(rows: pd.DataFrame, rates: dict[str, float]) -> Figure:
    """Slowest read rate at which a tier can be waited for, by model; ``rates`` are the tiers'."""
    needed = rows[rows.quantity == "needed_bytes_per_s"].sort_values("value", ascending=False)
    needed = needed[np.isfinite(needed.value)]
    if needed.empty:
        return style.nothing("the target leaves no slack for any model")
    figure, axes = style.panels(1.6 + 0.3 * len(needed))
    places = np.arange(len(needed))
    labels = [f"{row.model} ({row.gpus} GPU{'s' * (row.gpus > 1)})" for row in needed.itertuples()]
    axes.hlines(places, needed.value.min() / 3, needed.value, color=INK, linewidth=1.5)
    axes.plot(needed.value, places, "|", color=INK, markersize=12, markeredgewidth=2)
    for place, value in zip(places, needed.value, strict=True):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        style.note(axes, style.rate(value), (value, place), (6, 0), va="center", bbox=box)
    for tier, rate in rates.items():
        if needed.value.min() / 3 <= rate <= needed.value.max() * 30:
            axes.axvline(rate, color=TIER_COLOURS[tier], linestyle=":", linewidth=1.6)
            axes.plot([], [], ":", color=TIER_COLOURS[tier], label=TIER_NAMES[tier])
    axes.set_yticks(places, labels)
    axes.set(xscale="log", xlabel="read rate that a model needs", ylim=(-0.5, len(needed)))
    axes.set_xlim(needed.value.min() / 3, None)
    style.ticks(axes.xaxis, style.rate, 1, 3)
    style.legend_below(figure, ncols=3)
    return figure
