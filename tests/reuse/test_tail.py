"""Power laws are found where they are, and refused where they are not."""

import numpy as np
import pytest
from at_hand import TRACES
from strategies import block_trace

from kvpaper.reuse import popularity, tail
from kvpaper.reuse.curve import Curve, hit_curve
from kvpaper.reuse.distances import stack_distances
from kvpaper.traces.load import read_trace


def fitted(name: str):
    if not (TRACES / name).exists():
        pytest.skip("trace not fetched")
    trace = read_trace([TRACES / name])
    distances = stack_distances(trace)
    curve = hit_curve(trace, distances)
    found = tail.fit_tail(trace, distances, curve)
    return found, tail.verdict(curve, found)


def test_ragpulse_by_component_is_a_power_law():
    found, verdict = fitted("ragpulse")
    assert round(found.law.beta, 3) == 0.177
    assert round(found.law.r2, 3) == 0.998
    assert found.beta_low < found.law.beta < found.beta_high
    assert verdict.closed_form == "accepted"
    assert verdict.loss_high < 0.033


def test_conversation_is_none():
    found, verdict = fitted("mooncake_conversation.jsonl")
    assert round(found.law.beta, 3) == 0.287
    assert round(found.law.r2, 2) == 0.73
    assert found.law.range_blocks == (20, 31329)
    assert [round(slope, 2) for slope in found.law.thirds] == [0.0, 0.15, 0.68]
    assert found.preferred == "head+lognormal"
    assert verdict.closed_form == "refused"
    assert 0.19 < verdict.loss < 0.7


def test_synthetic_slopes():
    found, verdict = fitted("mooncake_synthetic.jsonl")
    assert [round(slope, 2) for slope in found.law.thirds] == [1.05, 0.74, 0.53]
    assert verdict.closed_form != "accepted"


CAPACITIES = np.arange(40_001)


@pytest.mark.parametrize("beta", [0.2, 0.5, 0.8])
def test_a_power_law_made_by_hand_is_recovered_and_accepted(beta):
    curve = Curve(0.6 * (CAPACITIES / CAPACITIES[-1]) ** beta)
    points = np.geomspace(20, 40_000, tail.CAPACITIES)
    law = tail.fitted(*tail.even_points(points, curve.at(np.floor(points)), curve.ceiling))
    assert law.beta == pytest.approx(beta, abs=0.01)
    assert law.scale * 40_000**law.beta == pytest.approx(0.6, rel=0.02)
    rivals = {"power": 0.0}
    found = tail.Tail(law, beta, beta, rivals, tail.even_points(points, curve.at(points), 0.6))
    assert tail.verdict(curve, found).closed_form == "accepted"
    assert tail.elasticity(curve, np.array([100, 1000])) == pytest.approx([beta] * 2, abs=0.02)


def test_a_power_law_with_a_broken_end_is_accepted_over_its_range_only():
    steep = 1 + 9 * np.maximum(0, CAPACITIES - 4000) / 36_000
    curve = Curve(0.09 * np.minimum(1, CAPACITIES / 4000) ** 0.4 * steep)
    points = np.geomspace(20, 40_000, tail.CAPACITIES)
    hits = curve.at(np.floor(points))
    even = tail.even_points(points, hits, curve.ceiling)
    found = tail.Tail(tail.fitted(*even), 0, 1, {"power": 0.0}, even)
    verdict = tail.verdict(curve, found)
    assert verdict.closed_form == "range"
    assert verdict.range_blocks[1] < 10_000


@pytest.mark.parametrize(
    ("form", "share"),
    [
        ("head+exponential", lambda c: -np.expm1(-c / 3000)),
        ("head+lognormal", lambda c: 0.5 * (1 + np.tanh((np.log(c) - 8) * 0.8))),
        ("power", lambda c: (c / 40_000) ** 0.5),
    ],
)
def test_the_form_that_made_a_curve_is_preferred(form, share):
    log_capacity = np.linspace(np.log(20), np.log(30_000), 40)
    head = 0.0 if form == "power" else 0.05
    scatter = 1e-3 * np.random.default_rng(0).standard_normal(40)
    log_hits = np.log(head + 0.5 * share(np.exp(log_capacity))) + scatter
    rivals = tail.curve_rivals(log_capacity, log_hits)
    assert min(rivals, key=rivals.get).removeprefix("head+") == form.removeprefix("head+")


def test_too_little_reuse_has_no_tail():
    trace = block_trace([[i] for i in range(100)])
    distances = stack_distances(trace)
    curve = hit_curve(trace, distances)
    assert tail.fit_tail(trace, distances, curve) is None
    assert tail.verdict(curve, None).closed_form == "refused"


def uses_of(counts: np.ndarray):
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    return block_trace([[block] for block in order.tolist()])


def test_zipf_popularity_is_recovered_and_plausible():
    counts = np.random.default_rng(2).zipf(2.5, 5000).clip(max=3000)
    found = popularity.fit_popularity(uses_of(counts), resamples=40)
    assert abs(found.exponent - 2.5) < 3 * found.standard_error + 0.02
    assert found.p_value > 0.1


def test_geometric_popularity_is_no_power_law():
    counts = np.random.default_rng(3).geometric(0.1, 5000)
    found = popularity.fit_popularity(uses_of(counts), resamples=40)
    assert found.p_value < 0.1 or found.rivals["exponential"] < -2


def test_unused_popularity_is_not_fitted():
    assert popularity.fit_popularity(uses_of(np.ones(100, int))) is None
