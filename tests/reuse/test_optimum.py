"""The hull against brute force, and the closed form where it is exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpaper.reuse import optimum
from kvpaper.reuse.curve import Curve

steps = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def curve_of(gains: list[float]) -> Curve:
    hits = np.concatenate([[0.0], np.cumsum(gains)])
    return Curve(hits / max(hits[-1], 1.0))


@settings(deadline=None)
@given(steps, st.floats(1e-4, 1))
def test_optimum_is_the_best_of_all_capacities(gains, price):
    curve = curve_of(gains)
    best = optimum.hull(curve).optimum_blocks(price)
    net = optimum.net_value(curve, np.arange(len(curve.hits)), price)
    assert net[best] == pytest.approx(net.max(), abs=1e-12)


@settings(deadline=None)
@given(steps)
def test_hull_is_concave_and_above_the_curve(gains):
    curve = curve_of(gains)
    upper = optimum.hull(curve)
    assert (np.diff(upper.slopes) <= 1e-12).all()
    at = np.arange(curve.saturation_blocks + 1)
    above = np.interp(at, upper.capacities_blocks, upper.hits)
    assert (above >= curve.hits[at] - 1e-12).all()


def test_an_s_shaped_curve_jumps():
    curve = curve_of([0.3] + [0.0] * 50 + [0.02] * 30)
    jumps = optimum.hull(curve).jumps()
    assert [(jump["from_blocks"], jump["to_blocks"]) for jump in jumps] == [(0, 1), (1, 81)]
    before, after = (
        int(optimum.hull(curve).optimum_blocks(jumps[1]["price_ratio"] * factor))
        for factor in (1.001, 0.999)
    )
    assert (before, after) == (1, 81)


def test_closed_form_is_right_where_the_curve_is_a_power_law():
    curve = Curve(0.6 * (np.arange(100_001) / 100_000) ** 0.5)
    scale = 0.6 / 100_000**0.5
    compared = optimum.compare(curve, optimum.hull(curve), 0.5, scale, (1000, 100_000))
    _, best, closed, loss = compared
    assert closed == pytest.approx(best, rel=0.01)
    assert loss.max() < 2e-3
    assert (loss >= -1e-12).all()


def test_no_price_has_its_optimum_inside_a_jump():
    curve = curve_of([0.3] + [0.0] * 50 + [0.02] * 30)
    assert optimum.compare(curve, optimum.hull(curve), 0.5, 0.1, (2, 80)) is None
    assert optimum.compare(curve, optimum.hull(curve), 1.2, 0.1, (1, 200)) is None


def test_where_nothing_is_gained_nothing_is_lost():
    curve = curve_of([0.01] * 60)
    at = np.arange(61)
    straight = optimum.Hull(at, curve.hits, np.full(60, 0.01))
    assert optimum.compare(curve, straight, 0.9, 0.1, (2, 80)) is None
