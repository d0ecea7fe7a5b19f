"""Figures of what the formulas predict: chapters 00 to 40."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvpaper.figures.style import (
    INK,
    POOL_NAMES,
    TIER_COLOURS,
    TIER_NAMES,
    as_bytes,
    as_time,
    as_tokens,
    panels,
    time,
)


def kv_bytes(rows: pd.DataFrame) -> Figure:
    """Cache of one sequence against context length; models with the same line share its name."""
    figure, axes = panels(5.0)
    lines = rows.pivot(index="tokens", columns="model", values="value")
    names: dict[tuple[float, ...], list[str]] = {}
    for model in lines:
        names.setdefault(tuple(lines[model]), []).append(model)
    last = rows.tokens.max()
    curves = sorted(names, key=lambda curve: curve[-1])
    axes.set(xscale="log", yscale="log", xlabel="context [tokens]")
    axes.set_ylabel("KV cache of one sequence")
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.75, len(curves)))
    for curve, shade in zip(curves, shades, strict=True):
        axes.plot(lines.index, curve, color=shade, linewidth=1.6)
    axes.xaxis.set_major_locator(LogLocator(4, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    as_tokens(axes.xaxis)
    as_bytes(axes.yaxis)
    axes.margins(x=0)
    heights = _apart(np.log10([curve[-1] for curve in curves]), axes, 11)
    for curve, shade, height in zip(curves, shades, heights, strict=True):
        axes.annotate(
            ", ".join(names[curve]),
            (last, curve[-1]),
            (last * 2.6, 10**height),
            va="center",
            fontsize=8,
            color=shade,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": shade, "linewidth": 0.6, "relpos": (0, 0.5)},
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
    figure, axes = panels(2.9)
    times = rows[rows.quantity == "fetch_time_s"].sort_values("value", ascending=False)
    places = np.arange(len(times))
    axes.barh(places, times.value, color=[TIER_COLOURS[tier] for tier in times.tier], height=0.55)
    printed = dict(zip(published.tier, published.value, strict=True))
    for place, tier, value in zip(places, times.tier, times.value, strict=True):
        axes.annotate(time(value), (value, place), (9, 0), textcoords="offset points", va="center")
        if tier in printed:
            axes.plot(printed[tier], place, "D", color="white", markeredgecolor=INK, markersize=6)
    axes.set_yticks(places, [TIER_NAMES[tier] for tier in times.tier])
    ratio = rows[rows.quantity == "fetch_time_ratio"].iloc[0]
    top = len(times) - 0.45
    axes.annotate(
        "",
        (times.value.min(), top),
        (times.value.max(), top),
        arrowprops={"arrowstyle": "<->", "color": INK},
    )
    middle = np.sqrt(times.value.min() * times.value.max())
    axes.annotate(
        f"{ratio.value:,.0f}x", (middle, top), (0, 3), textcoords="offset points", ha="center"
    )
    axes.set(xscale="log", xlabel="time to recover 1 GB of KV cache", ylim=(-0.5, len(times)))
    axes.set_xlim(times.value.min() / 4, times.value.max() * 8)
    as_time(axes.xaxis)
    if printed:
        axes.plot([], [], "D", color="white", markeredgecolor=INK, label="published by the paper")
        figure.legend(loc="outside lower center")
    return figure


def recovery_lengths(rows: pd.DataFrame, crossovers: pd.DataFrame) -> Figure:
    """Recovery time against prefix length: each tier, recomputing, and where they cross."""
    figure, axes = panels(3.8)
    for tier, line in rows[rows.quantity == "fetch_time_s"].groupby("tier", sort=False):
        axes.plot(line.tokens, line.value, color=TIER_COLOURS[tier], label=TIER_NAMES[tier])
    line = rows[rows.quantity == "recompute_time_s"]
    axes.plot(line.tokens, line.value, color=INK, linestyle="--", label="recompute")
    for _, row in crossovers.iterrows():
        if line.tokens.min() < row.value < line.tokens.max():
            time = np.interp(row.value, line.tokens, line.value)
            axes.plot(row.value, time, "o", color=TIER_COLOURS[row.tier], markersize=5)
            axes.annotate(
                f"{row.value:,.0f} tokens",
                (row.value, time),
                (6, -10),
                textcoords="offset points",
                color=TIER_COLOURS[row.tier],
            )
    axes.set(
        xscale="log", yscale="log", xlabel="prefix [tokens]", ylabel="time to have its KV cache"
    )
    axes.xaxis.set_major_locator(LogLocator(4, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    as_tokens(axes.xaxis)
    as_time(axes.yaxis)
    axes.legend(loc="upper left")
    return figure


def slack(rows: pd.DataFrame, slo_s: float) -> Figure:
    """What the target leaves for a fetch against prefix length, and the tiers below it."""
    figure, axes = panels(4.0)
    left = rows[rows.quantity == "ttft_slack_s"]
    for pool, style in (("one", "--"), ("disaggregated", "-")):
        line = left[left.pool == pool]
        axes.plot(
            line.tokens, line.value, color=INK, linestyle=style, label=f"slack, {POOL_NAMES[pool]}"
        )
    line = left[left.pool == "disaggregated"]
    axes.fill_between(
        line.tokens, 0, line.value.clip(lower=0), color="#999999", alpha=0.18, linewidth=0
    )
    fetches = rows[rows.quantity == "fetch_time_s"]
    for tier, line in fetches.groupby("tier", sort=False):
        axes.plot(line.tokens, line.value, color=TIER_COLOURS[tier], label=TIER_NAMES[tier])
    axes.axhline(slo_s, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        "TTFT target",
        (left.tokens.max(), slo_s),
        (0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.set(xlabel="prefix [tokens]", ylabel="time", ylim=(0, slo_s * 1.25))
    axes.margins(x=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    as_time(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def break_even(rows: pd.DataFrame, working_set_bytes: float) -> Figure:
    """Break-even capacity against the tail exponent, both branches, with the band of prices."""
    figure, axes = panels(3.8)
    low, high = working_set_bytes * 1e-5, working_set_bytes * 1e5
    sizes = rows[rows.quantity == "break_even_bytes"]
    for tier, part in sizes.groupby("tier", sort=False):
        table = part.pivot(index="beta", columns="band", values="value").clip(low / 10, high * 10)
        axes.fill_between(
            table.index, table.low, table.high, color=TIER_COLOURS[tier], alpha=0.2, linewidth=0
        )
        axes.plot(table.index, table.middle, color=TIER_COLOURS[tier], label=TIER_NAMES[tier])
    axes.axhline(working_set_bytes, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        "working set: no use beyond",
        (rows.beta.max(), working_set_bytes),
        (-2, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.set(
        yscale="log",
        ylim=(low, high),
        xlabel=r"tail exponent $\beta$",
        ylabel="break-even capacity",
    )
    axes.margins(x=0)
    as_bytes(axes.yaxis)
    axes.legend(loc="lower left")
    return figure


def intervals(rows: pd.DataFrame) -> Figure:
    """Break-even interval by model, from the shortest to the longest prefix; panel by tier."""
    rows = rows[rows.quantity == "break_even_interval_s"]
    tiers, models = list(dict.fromkeys(rows.tier)), list(dict.fromkeys(rows.model))
    figure, each = panels(1.0 + 1.75 * len(tiers), nrows=len(tiers), sharex=True, squeeze=False)
    elements = list(dict.fromkeys(rows.element))
    ends = f"{rows.tokens.min() / 1024:g}k to {rows.tokens.max() / 1024:g}k tokens"
    colours = dict(zip(elements, ("#0072B2", "#E69F00"), strict=False))
    for axes, tier in zip(each[:, 0], tiers, strict=True):
        for place, element in enumerate(elements):
            for row, model in enumerate(models):
                at = (rows.tier == tier) & (rows.element == element) & (rows.model == model)
                axes.plot(
                    rows[at].sort_values("tokens").value,
                    [row + 0.2 * (2 * place - 1)] * at.sum(),
                    "|-",
                    color=colours[element],
                    linewidth=2,
                    markersize=8,
                    label=f"{element} cache, {ends}" if row == 0 else None,
                )
        axes.set_yticks(range(len(models)), models)
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_title(TIER_NAMES[tier], loc="left")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_xscale("log")
    axes.set_xticks([60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400])
    axes.xaxis.set_minor_locator(NullLocator())
    as_time(axes.xaxis)
    axes.set_xlabel("break-even interval")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center")
    return figure


def one_disk(rows: pd.DataFrame, slack_s: float) -> Figure:
    """One prefix, one disk, several models: fetch (predicted) against prefill (tabulated)."""
    figure, axes = panels(3.0)
    models = list(dict.fromkeys(rows.model))
    places = dict(zip(models, range(len(models)), strict=True))
    for model, part in rows.groupby("model", sort=False):
        times = part.set_index("quantity").value
        axes.plot(
            times[["fetch_time_s", "prefill_time_s"]],
            [places[model]] * 2,
            color="#bbbbbb",
            zorder=1,
        )
        fits = times["fetch_time_s"] <= min(slack_s, times["prefill_time_s"])
        colour = TIER_COLOURS["nvme"] if fits else TIER_COLOURS["hbm"]
        axes.plot(
            times["fetch_time_s"],
            places[model],
            "|",
            color=colour,
            markersize=14,
            markeredgewidth=3,
        )
        axes.plot(times["prefill_time_s"], places[model], "x", color=INK, markersize=6)
    axes.axvline(slack_s, color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        "slack", (slack_s, len(models) - 0.5), (3, 2), textcoords="offset points", fontsize=9
    )
    axes.set_yticks(range(len(models)), models)
    axes.set(xscale="log", xlabel="time for the prefix", ylim=(-0.5, len(models)))
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5), numticks=12))
    as_time(axes.xaxis)
    axes.plot(
        [],
        [],
        "|",
        color=TIER_COLOURS["nvme"],
        markersize=10,
        markeredgewidth=3,
        label="fetch, on the critical path",
    )
    axes.plot(
        [],
        [],
        "|",
        color=TIER_COLOURS["hbm"],
        markersize=10,
        markeredgewidth=3,
        label="fetch, too slow",
    )
    axes.plot([], [], "x", color=INK, label="recompute (tabulated)")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
