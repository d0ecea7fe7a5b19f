"""One style for all figures. What a mark means is the kind of its row.

Lines and bars are predicted, open circles simulated, crosses tabulated, filled points measured,
diamonds published. Colours are the colour-blind safe set of Okabe and Ito.
"""

import io
from collections.abc import Callable
from pathlib import Path

import matplotlib
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from kvpaper import data, units

matplotlib.use("agg")

_SVG = {"metadata": {"Date": None, "Creator": None}}
FOLDER = data.FOLDER.parent / "figures"
TIER_NAMES = {"hbm": "HBM", "dram": "host DRAM", "nvme": "NVMe", "remote": "remote (RDMA)"}
TIER_COLOURS = {"hbm": "#D55E00", "dram": "#0072B2", "nvme": "#009E73", "remote": "#CC79A7"}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
INK, DARK_GREY, GREY = "#222222", "#555555", "#aaaaaa"


def panels(height: float = 3.6, **grid):
    """A figure that fits a phone: 4.4 inches wide at 10 points."""
    sns.set_theme(
        context="paper",
        style="ticks",
        rc=matplotlib.rcParamsDefault
        | {
            "font.size": 10,
            "axes.labelsize": 10,
            "axes.titlesize": 10,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": INK,
            "svg.hashsalt": "kvpaper",
            "figure.constrained_layout.use": True,
        },
    )
    figure = Figure(figsize=(4.4, height), layout="constrained")
    return figure, figure.subplots(**grid)


def nothing(why: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure, axes = panels(1.2)
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"Nothing to draw: {why}.", ha="center", va="center", wrap=True)
    return figure


def note(axes, text: str, at: tuple, offset: tuple[float, float], **style) -> None:
    """A text so many points beside a place of the axes."""
    axes.annotate(text, at, offset, textcoords="offset points", **style)


def open_circles(axes, x, y, colour: str, label: str) -> None:
    """The mark of simulated rows."""
    axes.plot(x, y, "o", color=colour, fillstyle="none", markersize=2.5, label=label)


def mark_tiers(axes, places: dict[str, float] | None, label: str = "{}") -> None:
    """A dotted line at the place of each tier."""
    for tier, place in (places or {}).items():
        name = label.format(TIER_NAMES[tier])
        axes.axvline(place, color=TIER_COLOURS[tier], linestyle=":", label=name)


def legend_below(figure: Figure, handles=None, ncols: int = 2, **options) -> None:
    """A legend under all panels: of these marks, or of every mark with a label, each label once."""
    if handles is None:
        shown = (mark for axes in figure.axes for mark in axes.get_legend_handles_labels()[0])
        handles = {mark.get_label(): mark for mark in shown}.values()
    figure.legend(handles=[*handles], loc="outside lower center", ncols=ncols, **options)


def time(seconds: float) -> str:
    return units.text(seconds, units.TIMES[1:]).replace("us", "µs") if seconds else "0"


def size(size_bytes: float) -> str:
    return units.text(size_bytes, units.SIZES)


def rate(bytes_per_s: float) -> str:
    return f"{size(bytes_per_s)}/s"


def ticks(axis, text: str | Callable[[float], str], *steps: float) -> None:
    """Major ticks labelled by a format or a function; at these steps in each decade, if given."""
    if steps:
        axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(text if isinstance(text, str) else lambda value, _: text(value))
    axis.set_minor_formatter(NullFormatter())


def token_ticks(axis, base: int) -> None:
    """Ticks at powers of ``base``, thousands of 1,024 as k."""
    ticks(axis, lambda value: f"{value / 1024:g}k" if value >= 1024 else f"{value:g}")
    axis.set_major_locator(LogLocator(base, numticks=12))
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, scenario: str, name: str) -> Path:
    """Write ``figures/<scenario>/<name>`` as svg and png, the same bytes on every run."""
    folder = FOLDER / scenario
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, options in (("svg", _SVG), ("png", {"metadata": {"Software": None}, "dpi": 200})):
        with data.replacing(folder / f"{name}.{suffix}") as temporary:
            figure.savefig(temporary, **options)
    return folder / f"{name}.svg"


def as_svg(figure: Figure) -> str:
    """The figure as text, the same on every run."""
    text = io.StringIO()
    figure.savefig(text, format="svg", **_SVG)
    return text.getvalue()


def save_to(figure: Figure, path: Path | str) -> None:
    """Write a figure where a user asks for it; the suffix chooses the format, png if none."""
    path = Path(path)
    with data.replacing(path) as temporary:
        figure.savefig(temporary, dpi=200, format=None if path.suffix else "png")
