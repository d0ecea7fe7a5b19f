"""Figures of public reports: chapter 90."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from kvpaper.figures.style import INK, panels


def taxonomy(rows: pd.DataFrame) -> Figure:
    """Public reports by cause, stacked by the process that wrote the deciding line."""
    counts = rows.pivot_table(index="class", columns="process", values="value", aggfunc="sum")
    counts = counts.fillna(0).loc[counts.sum(axis=1).sort_values().index]
    processes = counts.sum().sort_values(ascending=False).index
    figure, axes = panels(1.4 + 0.24 * len(counts))
    left = np.zeros(len(counts))
    palette = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", INK)
    for process, colour in zip(processes, palette, strict=False):
        width = counts[process].to_numpy()
        names = [name.replace("_", " ") for name in counts.index]
        axes.barh(
            names, width, left=left, color=colour, height=0.7, label=process.replace("_", " ")
        )
        left += width
    axes.set(xlabel="public reports")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.margins(y=0.01)
    figure.legend(loc="outside lower center", ncols=3)
    return figure
