"""The capacity worth buying, from the empirical curve, and what the closed form loses beside it.

A price ratio ``q`` is the rent of one block over the benefit of a hit rate of one, both for the
same time: ``q = rent * block_bytes / (prompt_tokens_per_s * value_per_hit_token)``. The net value
is then ``H(C) - q C``, in units of that benefit.
"""

from dataclasses import dataclass
from itertools import pairwise

import numba
import numpy as np

from kvpaper.formulas.capacity import break_even_capacity
from kvpaper.reuse.curve import Curve

_PRICES = 61


@numba.njit(cache=True)
def _hull(hits, vertices):
    """Upper hull of the points (C, hits[C]); every vertex is a point of the curve."""
    count = 0
    for capacity in range(len(hits)):
        while count >= 2:
            left, top = vertices[count - 2], vertices[count - 1]
            rise = (hits[top] - hits[left]) * (capacity - top)
            if rise > (hits[capacity] - hits[top]) * (top - left):
                break
            count -= 1
        vertices[count] = capacity
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Hull:
    """Upper concave hull of a curve.

    Attributes
    ----------
    capacities_blocks : int64 array, shape (K,)
        Its vertices, from 0 to the saturation of the curve.
    hits : float64 array, shape (K,)
    slopes : float64 array, shape (K - 1,)
        Gain of hit rate by one block on each segment, falling.
    """

    capacities_blocks: np.ndarray
    hits: np.ndarray
    slopes: np.ndarray

    def optimum_blocks(self, price_ratio: np.ndarray | float) -> np.ndarray:
        """Capacity of the largest net value at each price ratio; the least one if several are."""
        segment = np.searchsorted(-self.slopes, -np.asarray(price_ratio, float), "left")
        return self.capacities_blocks[segment]

    def jumps(self) -> list[dict[str, float]]:
        """Prices at which the optimum leaps from one vertex to one more than twice as large.

        The leap from 0 is one of them: it is the price above which nothing is worth buying.
        """
        steps = pairwise(self.capacities_blocks.tolist())
        return [
            {"price_ratio": price, "from_blocks": below, "to_blocks": above}
            for price, (below, above) in zip(self.slopes.tolist(), steps, strict=True)
            if above > 2 * below
        ]


def hull(curve: Curve) -> Hull:
    """Upper concave hull of ``curve``."""
    hits = curve.hits[: curve.saturation_blocks + 1]
    vertices = np.empty(len(hits), np.int64)
    vertices = vertices[: _hull(hits, vertices)].copy()
    heights = hits[vertices]
    return Hull(vertices, heights, np.diff(heights) / np.diff(vertices))


def net_value(curve: Curve, capacity_blocks: np.ndarray, price_ratio: np.ndarray) -> np.ndarray:
    """``H(C) - q C`` on the empirical curve."""
    return curve.at(np.floor(capacity_blocks)) - price_ratio * np.asarray(capacity_blocks)


def compare(
    curve: Curve, upper: Hull, beta: float, scale: float, range_blocks: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Price a curve and its power law at every price whose optimum is well inside the law's range.

    That is from twice its lower end to half its upper one. None if no price has its optimum there,
    as where the optimum leaps over the range or is worth nothing, or if the closed form has none
    for this ``beta``.

    Returns
    -------
    price_ratio, optimum_blocks, closed_form_blocks, loss : float or int arrays, shape (P,)
        ``loss`` is the share of the best net value that the closed form's capacity forgoes; above
        1 it loses money where the optimum earns some.
    """
    low, high = range_blocks
    capacities = upper.capacities_blocks[1:-1]
    vertices = np.flatnonzero((capacities >= 2 * low) & (capacities <= high / 2)) + 1
    if not (0 < beta < 1 and len(vertices)):
        return None
    # A vertex is the optimum for prices between the slopes on its two sides.
    dearest, cheapest = upper.slopes[vertices[0] - 1], upper.slopes[vertices[-1]]
    price_ratio = np.geomspace(dearest, cheapest, _PRICES + 2)[1:-1]
    # Where one slope leads from nothing through the range, rounding may put a price above it.
    price_ratio = price_ratio[price_ratio < upper.slopes[0]]
    if not len(price_ratio):
        return None
    best = upper.optimum_blocks(price_ratio)
    closed = break_even_capacity(scale * beta / price_ratio, beta, float(curve.saturation_blocks))
    gain = net_value(curve, best, price_ratio)
    loss = 1 - net_value(curve, closed, price_ratio) / gain
    return price_ratio, best, closed, loss
