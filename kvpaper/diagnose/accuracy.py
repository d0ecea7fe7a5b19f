"""How often the diagnosis was right: on labelled logs, with an interval."""

import math
from collections.abc import Iterable, Mapping

_NORMAL_95 = 1.959964


def score(rows: Iterable[Mapping[str, str]]) -> dict[str, int | float]:
    """Counts and the share of right classes with its 95 % interval after Wilson (1927).

    ``rows`` have ``true_class``, ``predicted_class`` and ``confidence``. Reports whose log cannot
    tell (``true_class`` insufficient) are counted apart. ``confident_wrong`` counts wrong causes
    named with high confidence, over both.
    """
    rows = list(rows)
    clear = [row for row in rows if row["true_class"] != "insufficient"]
    silent = [row for row in rows if row["true_class"] == "insufficient"]
    right = sum(_right(row) for row in clear)
    low, high = wilson(right, len(clear))
    return {
        "clear": len(clear),
        "clear_right": right,
        "share": right / len(clear) if clear else math.nan,
        "share_low": low,
        "share_high": high,
        "insufficient": len(silent),
        "insufficient_right": sum(map(_right, silent)),
        "confident_wrong": sum(map(_confident_wrong, rows)),
    }


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson (1927)."""
    if trials == 0:
        return math.nan, math.nan
    share, z2 = successes / trials, _NORMAL_95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    spread = _NORMAL_95 * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    half = spread / (1 + z2 / trials)
    return centre - half, centre + half


def _right(row: Mapping[str, str]) -> bool:
    return row["true_class"] == row["predicted_class"]


def _confident_wrong(row: Mapping[str, str]) -> bool:
    named = row["predicted_class"] != "insufficient"
    return named and not _right(row) and row["confidence"] == "high"
