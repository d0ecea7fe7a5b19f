"""How often the diagnosis was right: on labelled logs, with an interval."""

import math
from collections.abc import Iterable, Mapping


def score(rows: Iterable[Mapping[str, str]]) -> dict[str, int | float]:
    """Counts and the share of right classes with its 95 % interval after Wilson (1927).

    ``rows`` have ``true_class``, ``predicted_class`` and ``confidence``. Reports whose log cannot
    tell (``true_class`` insufficient) are counted apart. ``confident_wrong`` counts wrong causes
    named with high confidence, over both.
    """
    from scipy.stats import binomtest

    rows = list(rows)
    clear = [row for row in rows if row["true_class"] != "insufficient"]
    silent = [row for row in rows if row["true_class"] == "insufficient"]
    right = sum(map(_right, clear))
    share = low = high = math.nan
    if clear:
        share = right / len(clear)
        low, high = binomtest(right, len(clear)).proportion_ci(method="wilson")
    return {
        "clear": len(clear),
        "clear_right": right,
        "share": share,
        "share_low": float(low),
        "share_high": float(high),
        "insufficient": len(silent),
        "insufficient_right": sum(map(_right, silent)),
        "confident_wrong": sum(map(_confident_wrong, rows)),
    }


def _right(row: Mapping[str, str]) -> bool:
    return row["true_class"] == row["predicted_class"]


def _confident_wrong(row: Mapping[str, str]) -> bool:
    named = row["predicted_class"] != "insufficient"
    return named and not _right(row) and row["confidence"] == "high"
