"""Figures of reuse: chapter 50, each from its rows."""

import pandas as pd
from matplotlib.figure import Figure

from kvpaper.figures.style import INK, mark_tiers, open_circles, panels, ticks, time

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
# Other than those of the tiers, which stand beside them.
_TRACE_COLOURS = (INK, "#E69F00", "#56B4E9", "#882255", "#999999")
_ROUTINGS = ("random", "round robin", "least loaded", "session", "prefix")


def _each_trace(rows: pd.DataFrame):
    """Name, rows and colour of each trace."""
    names = zip(rows.trace.unique(), _TRACE_COLOURS, strict=False)
    return [(name.replace("_", " "), rows[rows.trace == name], colour) for name, colour in names]


def curve(rows: pd.DataFrame, tiers: dict[str, float] | None = None) -> Figure:
    """Block hit rate against capacity with its upper hull; ``tiers`` are marked, in blocks."""
    figure, axes = panels()
    for name, part, colour in _each_trace(rows):
        hits = part[(part.quantity == "hit_rate") & (part.rate == "block")]
        upper = part[(part.quantity == "hull_hit_rate") & (part.capacity_blocks > 0)]
        open_circles(axes, hits.capacity_blocks, hits.value, colour, name)
        axes.plot(upper.capacity_blocks, upper.value, color=colour, linewidth=0.8)
    mark_tiers(axes, tiers)
    axes.set(xscale="log", xlabel="capacity [blocks]", ylabel="block hit rate", ylim=(0, None))
    axes.legend(loc="upper left")
    return figure


def elasticity(rows: pd.DataFrame) -> Figure:
    """Local elasticity of the block hit rate; a power law would be a level line, the fitted one."""
    figure, axes = panels()
    for name, part, colour in _each_trace(rows):
        line = part[part.quantity == "elasticity"]
        open_circles(axes, line.capacity_blocks, line.value, colour, name)
        values = part[part.quantity.str.startswith("beta")].set_index("quantity").value
        if "beta" in values:
            span = values[["beta_range_low_blocks", "beta_range_high_blocks"]]
            axes.plot(span, [values["beta"]] * 2, color=colour, linewidth=1.2)
    axes.set(xscale="log", xlabel="capacity [blocks]", ylabel="d ln H / d ln C", ylim=(0, None))
    axes.legend(loc="upper right")
    return figure


def intervals(rows: pd.DataFrame, break_even_s: dict[str, float] | None = None) -> Figure:
    """Share of references that come within an interval of the last use of their block."""
    figure, axes = panels()
    for name, part, colour in _each_trace(rows):
        line = part[part.quantity == "reuse_share"]
        axes.plot(line.interval_s, line.value, color=colour, label=name)
    mark_tiers(axes, break_even_s, "break-even, {}")
    axes.set(xscale="log", xlabel="reuse interval", ylabel="share of references", ylim=(0, None))
    axes.set_xticks([1e-3, 1, 60, 3600, 86400])
    axes.minorticks_off()
    ticks(axes.xaxis, time)
    axes.legend(loc="upper left")
    return figure


def optimum(rows: pd.DataFrame, prices: dict[str, float] | None = None) -> Figure:
    """Optimum over the price of a block: the empirical one with its jumps, and the closed form.

    ``prices`` marks those of a scenario's tiers.
    """
    figure, axes = panels()
    for name, part, colour in _each_trace(rows):
        found = part[part.quantity == "optimum_blocks"]
        best = found[found.kind == "simulated"].sort_values("price_ratio")
        open_circles(axes, best.price_ratio, best.value, colour, name)
        closed = found[found.kind == "predicted"].sort_values("price_ratio")
        axes.plot(closed.price_ratio, closed.value, color=colour, linewidth=1.2)
    axes.plot([], [], color=INK, linewidth=1.2, label="closed form")
    paid = {tier: price for tier, price in (prices or {}).items() if 0 < price < float("inf")}
    mark_tiers(axes, paid)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="price of a block over the benefit of a hit rate of one",
        ylabel="optimum [blocks]",
    )
    axes.legend(loc="upper right")
    return figure


def pooling(rows: pd.DataFrame, trace: str, servers: int) -> Figure:
    """Hit rate of one pooled cache over that of split ones, by routing; and the closed form."""
    figure, axes = panels()
    found = rows[(rows.quantity == "pooled_gain") & (rows.trace == trace)]
    found = found[found.servers == servers]
    closed = found[found.kind == "predicted"]
    axes.plot(closed.capacity_blocks, closed.value, color=INK, label="closed form, local beta")
    for routing, colour in zip(_ROUTINGS, _COLOURS, strict=True):
        line = found[found.routing == routing]
        axes.plot(
            line.capacity_blocks, line.value, "o-", color=colour, fillstyle="none",
            markersize=3, linewidth=0.6, label=routing,
        )  # fmt: skip
    axes.axhline(1, color=INK, linewidth=0.5)
    axes.set(
        xscale="log", xlabel="capacity of the fleet [blocks]", ylabel=f"pooled over {servers} split"
    )
    axes.legend(loc="upper left")
    return figure
