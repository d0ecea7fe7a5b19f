"""Figures of how far the replay is off: chapter 60."""

import pandas as pd
from matplotlib.figure import Figure

from kvpaper.figures.style import COLOURS, GREY, legend_below, nothing, panels, ticks, time

# Kind of a row: its mark. Of two kinds of arrivals, the second.
_MARKS = {"measured": "o", "tabulated": "x", "simulated": "o", "predicted": "|"}
_OTHER = "^"


def _marked(axes, rows: pd.DataFrame, place: float, colour: str, name: str) -> None:
    for one in rows.itertuples():
        told, mark = one.kind, _MARKS[one.kind]
        look = {"color": colour, "linestyle": "none", "markersize": 5}
        if told == "simulated":
            look["fillstyle"] = "none"
            told = getattr(one, "arrivals", told)
            mark = _OTHER if told == "Poisson" else mark
        axes.plot(one.value, place, mark, label=f"{name}, {told}", **look)


def _finished(figure: Figure, axes, names: list[str]) -> Figure:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    legend_below(figure)
    return figure


def engines(rows: pd.DataFrame) -> Figure:
    """Time to first token of each open loop: measured, by the replay and by the closed form."""
    rows = rows[rows.quantity == "ttft_s"].dropna(axis=1, how="all")
    if rows.empty:
        return nothing("no record of an open loop")
    figure, axes = panels(1.6 + 0.5 * len(rows.groupby(_LOOP)))
    names = []
    for place, (at, loop) in enumerate(rows.groupby(_LOOP, sort=False)):
        names.append(f"{at[1]}, {at[3]}\n{at[4]:g} requests/s, run {at[2]:g}")
        for (percentile, part), colour in zip(loop.groupby("percentile"), COLOURS, strict=False):
            name = "median" if percentile == 50 else f"{percentile:g}th percentile"
            _marked(axes, part, place + (percentile - 70) / 150, colour, name)
    axes.set(xscale="log", xlabel="time to first token")
    ticks(axes.xaxis, time, 1, 2, 5)
    return _finished(figure, axes, names)


_LOOP = ["machine", "connector", "run", "pattern", "rate_per_s", "seed"]


def planner(rows: pd.DataFrame) -> Figure:
    """Two pools over one by model: by the planner and by replay, with its factors and without."""
    rows = rows[(rows.quantity == "two_over_one") & (rows.kind != "predicted")]
    cases = rows.groupby(["model", "element"], sort=False)
    figure, axes = panels(1.8 + 0.4 * len(cases))
    for place, (_, case) in enumerate(cases):
        for (factors, part), colour in zip(case.groupby("factors"), COLOURS, strict=False):
            name = "no factors" if factors == "none" else "factors"
            _marked(axes, part, place + (0.15 if factors == "none" else -0.15), colour, name)
    axes.axvline(1, color=GREY, linewidth=0.8, zorder=0)
    axes.set(xlabel="throughput per GPU, two pools over one")
    return _finished(figure, axes, [f"{model}, {element}" for model, element in cases.groups])
