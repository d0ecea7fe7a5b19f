"""How long to keep a block after its last use, and what a drive writes meanwhile.

All costs are in block recomputes: recomputing a block costs 1, keeping it for the break-even
interval costs 1 too. One timer holds for all blocks, since then a block is never dropped before
the blocks that follow it.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvpaper.formulas.capacity import timer_cost
from kvpaper.reuse.curve import Curve, hit_curve
from kvpaper.reuse.distances import reuse_intervals
from kvpaper.reuse.optimum import hull
from kvpaper.traces.block_trace import BlockTrace

_TIMERS = 1000
_BINS = 20


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between uses of a block, equal ones together.

    Attributes
    ----------
    gap_s, gaps : array
        Each distinct gap [s] and how often it occurs.
    remaining_s, remaining : array
        Each distinct time from a block's last use to the end of the trace [s], and how often.
    first_fills : int
        References that find no earlier use.
    """

    gap_s: np.ndarray
    gaps: np.ndarray
    remaining_s: np.ndarray
    remaining: np.ndarray
    first_fills: int

    @property
    def uses(self) -> int:
        return int(self.gaps.sum()) + self.first_fills


def gaps_of(trace: BlockTrace) -> Gaps:
    """Gaps of a trace. Two uses within one request look back to the same use."""
    intervals_s = reuse_intervals(trace)
    last_s = np.zeros(trace.unique_blocks)
    np.maximum.at(last_s, trace.blocks, trace.arrival_s[trace.request_of_reference])
    remaining_s = trace.arrival_s[-1] - last_s if trace.requests else last_s
    known = np.isfinite(intervals_s)
    between = np.unique(intervals_s[known], return_counts=True)
    remaining = np.unique(remaining_s, return_counts=True)
    return Gaps(*between, *remaining, int((~known).sum()))


def timer_total(gaps: Gaps, timer_s: float, break_even_s: float) -> float:
    """Cost of one timer over the whole trace, first fills included [block recompute].

    Rent ends with the trace.
    """
    rent = 1.0 / break_even_s
    between = (timer_cost(gaps.gap_s, timer_s, 1.0, 0.0, rent, 1.0) * gaps.gaps).sum()
    after = (np.minimum(timer_s, gaps.remaining_s) * rent * gaps.remaining).sum()
    return float(gaps.first_fills + between + after)


def foresight_total(gaps: Gaps, break_even_s: float) -> float:
    """Cost of keeping exactly those blocks whose next use comes within the interval."""
    kept = np.minimum(1.0, gaps.gap_s / break_even_s)
    return float(gaps.first_fills + (kept * gaps.gaps).sum())


def best_timer(gaps: Gaps, break_even_s: float) -> float:
    """The timer with the least cost on this trace, known afterwards [s]; 0 is no cache.

    Every gap is tried, or a thousand of them chosen by how often they occur.
    """
    timers_s = gaps.gap_s
    if len(timers_s) > _TIMERS:
        share = np.cumsum(gaps.gaps) / gaps.gaps.sum()
        picks = np.searchsorted(share, np.linspace(0, 1, _TIMERS)).clip(max=len(share) - 1)
        timers_s = timers_s[np.unique(picks)]
    timers_s = np.append(0.0, timers_s)
    costs = [timer_total(gaps, timer_s, break_even_s) for timer_s in timers_s]
    return float(timers_s[np.argmin(costs)])


def hazard_timer(gaps: Gaps, break_even_s: float) -> float:
    """Stop keeping where the hazard of a next use falls below the rent over the value [s].

    The hazard is uses over block-seconds at risk, in twenty bins of equally many uses. Zero if it
    never exceeds ``1 / break_even_s``.
    """
    if not len(gaps.gap_s):
        return 0.0
    share = np.cumsum(gaps.gaps) / gaps.gaps.sum()
    edges = gaps.gap_s[np.searchsorted(share, np.linspace(0, 1, _BINS + 1)[1:] - 1e-12)]
    edges = np.concatenate([[0.0], np.unique(edges[edges > 0])])
    ages = np.concatenate([gaps.gap_s, gaps.remaining_s])
    weights = np.concatenate([gaps.gaps, gaps.remaining])
    at_risk_s = np.diff([(np.minimum(ages, edge) * weights).sum() for edge in edges])
    reached = np.searchsorted(gaps.gap_s, edges, "right")
    uses = np.diff(np.concatenate([[0], np.cumsum(gaps.gaps)])[reached])
    worth = uses >= at_risk_s / break_even_s
    first = int(np.argmax(worth)) if worth.any() else 0
    return float(edges[first + int(np.argmin(np.append(worth[first:], False)))])


def policy_table(trace: BlockTrace, curve: Curve, break_even_s: float) -> list[dict]:
    """Cost of every way to keep blocks, beside no cache and perfect foresight.

    Each row has ``policy``, its ``setting`` (seconds, or blocks for the fixed capacity) and its
    cost in ``block_recomputes``.
    """
    gaps = gaps_of(trace)
    rent = trace.duration_s / break_even_s  # of one block over the trace
    fixed = int(hull(curve).optimum_blocks(rent / max(gaps.uses, 1)))
    at_fixed = gaps.uses * (1 - float(curve.at(fixed))) + rent * fixed
    timers_s = {
        "break-even timer": break_even_s,
        "best single timer": best_timer(gaps, break_even_s),
        "hazard rule": hazard_timer(gaps, break_even_s),
    }
    rows = [
        ("no cache", None, float(gaps.uses)),
        *((name, at, timer_total(gaps, at, break_even_s)) for name, at in timers_s.items()),
        ("best fixed capacity", fixed, at_fixed),
        ("foresight", None, foresight_total(gaps, break_even_s)),
    ]
    return [dict(zip(("policy", "setting", "block_recomputes"), row, strict=True)) for row in rows]


def horizon_warning(trace: BlockTrace, break_even_s: float) -> str | None:
    """Why this trace cannot support a break-even interval, or None if it can."""
    if trace.duration_s >= break_even_s:
        return None
    return (
        f"the trace lasts {trace.duration_s:,.0f} s, less than the break-even interval of "
        f"{break_even_s:,.0f} s: it cannot show the reuse that would pay"
    )


def write_shares(trace: BlockTrace, curve: Curve, capacity_blocks: int) -> dict[str, float]:
    """Written and hit shares of all references, with and without admission on second use.

    With admission a block enters at its second use; that it was seen once is remembered without
    limit. Hits are then those of a cache that never sees first uses.
    """
    again = np.isfinite(reuse_intervals(trace))
    offsets = np.concatenate([[0], np.cumsum(again)])[trace.offsets]
    repeated = replace(trace, offsets=offsets, blocks=trace.blocks[again], unit_tokens=None)
    admitted = hit_curve(repeated)
    share = repeated.references / max(trace.references, 1)
    hits = float(admitted.at(capacity_blocks)) * share
    plain = float(curve.at(capacity_blocks))
    return {
        "hits": plain,
        "written": 1 - plain,
        "hits_second_use": hits,
        "written_second_use": share - hits,
    }
