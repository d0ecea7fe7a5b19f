"""The capacity worth buying, from the empirical curve, and what the closed form loses beside it.

A price ratio ``q`` is the rent of one block over the benefit of a hit rate of one, both for the
same time: ``q = rent * block_bytes / (prompt_tokens_per_s * value_per_hit_token)``. The net value
is then ``H(C) - q C``, in units of that benefit.
"""

from dataclasses import dataclass

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
        below, above = self.capacities_blocks[:-1], self.capacities_blocks[1:]
        wide = np.flatnonzero(above > 2 * below)
        return [
            {
                "price_ratio": float(self.slopes[i]),
                "from_blocks": int(below[i]),
                "to_blocks": int(above[i]),
            }
            for i in wide
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Empirical optimum against the closed form over prices, arrays of shape (P,).

    ``loss`` is the share of the best net value that the closed form's capacity forgoes; above 1 it
    loses money where the optimum earns some.
    """

    price_ratio: np.ndarray
    optimum_blocks: np.ndarray
    closed_form_blocks: np.ndarray
    loss: np.ndarray


def compare(
    curve: Curve, upper: Hull, beta: float, scale: float, range_blocks: tuple[float, float]
) -> Comparison | None:
    """Price a curve and its power law at every price whose optimum is in a range of capacities.

    None if no price has its optimum there, as where the optimum leaps over the range.
    """
    inside = (upper.capacities_blocks >= range_blocks[0]) & (
        upper.capacities_blocks <= range_blocks[1]
    )
    vertices = np.flatnonzero(inside[1:-1]) + 1
    if not len(vertices):
        return None
    # A vertex is the optimum for prices between the slopes on its two sides.
    dearest, cheapest = upper.slopes[vertices[0] - 1], upper.slopes[vertices[-1]]
    price_ratio = np.geomspace(dearest, cheapest, _PRICES + 2)[1:-1]
    best = upper.optimum_blocks(price_ratio)
    closed = break_even_capacity(scale * beta / price_ratio, beta, float(curve.saturation_blocks))
    gain = net_value(curve, best, price_ratio)
    loss = 1 - net_value(curve, closed, price_ratio) / gain
    return Comparison(price_ratio, best, closed, loss)
