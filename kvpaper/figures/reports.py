"""Figures of public reports: chapter 90."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kvpaper.figures.style import COLOURS, INK, legend_below, panels


def taxonomy(rows: pd.DataFrame) -> Figure:
    """Public reports by cause, stacked by the process that wrote the deciding line."""
    counts = rows.pivot_table(index="class", columns="process", values="value", aggfunc="sum")
    counts = counts.fillna(0).loc[counts.sum(axis=1).sort_values().index]
    processes = counts.sum().sort_values(ascending=False).index
    figure, axes = panels(1.4 + 0.24 * len(counts))
    left = np.zeros(len(counts))
    names = counts.index.str.replace("_", " ")
    for process, colour in zip(processes, (*COLOURS, INK), strict=False):
        label = process.replace("_", " ")
        axes.barh(names, counts[process], left=left, color=colour, height=0.7, label=label)
        left += counts[process].to_numpy()
    axes.set(xlabel="public reports")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(y=0.01)
    legend_below(figure, ncols=3)
    return figure
