"""Is the curve a power law? Its exponent with an interval, its rivals, and a verdict in words."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from kvpaper.reuse.curve import Curve
from kvpaper.reuse.distances import Distances
from kvpaper.reuse.optimum import Hull, compare, hull
from kvpaper.traces.block_trace import BlockTrace

LEAST_BLOCKS = 20
CAPACITIES = 400
POINTS = 40
TIME_BLOCKS = 20
RESAMPLES = 200
BAND = (0.02, 0.9)

ACCEPTED_R2 = 0.98
ACCEPTED_LOSS = 0.05
ACCEPTED_DECADES = 1.0


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """``H = scale * C**beta`` by least squares in log-log.

    ``thirds`` are the slopes of the three thirds of the range: the local elasticity.
    """

    beta: float
    scale: float
    r2: float
    range_blocks: tuple[int, int]
    thirds: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Tail:
    """What the tail of a reuse curve looks like.

    Attributes
    ----------
    law : PowerLaw
    beta_low, beta_high : float
        95 % interval from a bootstrap over twenty blocks of time.
    rivals : dict
        Corrected Akaike criterion of each rival form, lower is better.
    points : tuple of array
        The logarithms of capacity and hit rate that were fitted.
    """

    law: PowerLaw
    beta_low: float
    beta_high: float
    rivals: dict[str, float]
    points: tuple[np.ndarray, np.ndarray]

    @property
    def preferred(self) -> str:
        return min(self.rivals, key=self.rivals.get)

    def summary(self) -> dict:
        """What the command tells of the fit."""
        interval = {"beta_low": self.beta_low, "beta_high": self.beta_high}
        law = {name: getattr(self.law, name) for name in ("beta", "r2", "range_blocks")}
        rivals = {"preferred": self.preferred, "rivals_aicc": self.rivals}
        return law | interval | {"elasticity": self.law.thirds} | rivals


def even_points(
    capacities: np.ndarray, hits: np.ndarray, ceiling: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Logarithms of capacity and hit rate at points even in log C, where the band allows."""
    kept = (hits > BAND[0] * ceiling) & (hits < BAND[1] * ceiling)
    if kept.sum() < 3:
        return None
    log_capacity, log_hits = np.log(capacities[kept]), np.log(hits[kept])
    even = np.linspace(log_capacity[0], log_capacity[-1], POINTS)
    return even, np.interp(even, log_capacity, log_hits)


def fitted(x: np.ndarray, y: np.ndarray) -> PowerLaw:
    """Least squares of the logarithms ``x`` of capacity and ``y`` of hit rate."""
    beta, intercept = np.polyfit(x, y, 1)
    spread = ((y - y.mean()) ** 2).sum()
    r2 = 1 - ((y - intercept - beta * x) ** 2).sum() / spread if spread else 0.0
    parts = zip(np.array_split(x, 3), np.array_split(y, 3), strict=True)
    thirds = tuple(float(np.polyfit(*part, 1)[0]) for part in parts)
    ends = int(np.exp(x[0]) + 1e-6), int(np.exp(x[-1]) + 1e-6)
    return PowerLaw(float(beta), float(np.exp(intercept)), float(r2), ends, thirds)


def fit_tail(trace: BlockTrace, distances: Distances, curve: Curve) -> Tail | None:
    """Fit the block curve of a trace; None where it has no tail to fit."""
    largest = curve.saturation_blocks
    if largest <= LEAST_BLOCKS:
        return None
    capacities = np.geomspace(LEAST_BLOCKS, largest, CAPACITIES)
    points = even_points(capacities, _between(curve, capacities), curve.ceiling)
    if points is None:
        return None
    # Hits of each block of time below each capacity.
    edges = np.linspace(0, trace.requests, TIME_BLOCKS + 1).round().astype(int)
    starts = trace.offsets[edges]
    expanded, at = distances.expanded(), np.append(capacities, distances.cold)
    parts = [np.sort(expanded[start:stop]) for start, stop in pairwise(starts)]
    below = np.stack([np.searchsorted(part, at) for part in parts])
    references = np.diff(starts)
    random = np.random.default_rng(0)
    betas = []
    for _ in range(RESAMPLES):
        drawn = random.integers(0, TIME_BLOCKS, TIME_BLOCKS)
        hits = below[drawn].sum(axis=0) / max(references[drawn].sum(), 1)
        again = even_points(capacities, hits[:-1], hits[-1])
        if again is not None:
            betas.append(np.polyfit(*again, 1)[0])
    low, high = np.quantile(betas, [0.025, 0.975]) if betas else (np.nan, np.nan)
    return Tail(fitted(*points), float(low), float(high), curve_rivals(*points), points)


def _between(curve: Curve, capacities: np.ndarray) -> np.ndarray:
    """The curve at capacities that are no whole numbers, linear in between."""
    return np.interp(capacities, np.arange(len(curve.hits)), curve.hits)


def elasticity(curve: Curve, capacities: np.ndarray) -> np.ndarray:
    """Local elasticity ``d ln H / d ln C`` over a factor of two; NaN without hits."""
    side = np.sqrt(2.0)
    low, high = (np.maximum(np.asarray(capacities) * f, 1.0) for f in (1 / side, side))
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.log(_between(curve, high)) - np.log(_between(curve, low))
        return np.where(np.isfinite(rise), rise / (np.log(high) - np.log(low)), np.nan)


def curve_rivals(log_capacity: np.ndarray, log_hits: np.ndarray) -> dict[str, float]:
    """Corrected Akaike criterion of curve shapes, fitted to the same points in log-log.

    ``head + rest * F(C)``: a head that any cache holds, and a distribution of distances F. The
    power law itself is among them.
    """
    from scipy.optimize import least_squares
    from scipy.special import ndtr

    first, last = np.log(0.5 * np.exp(log_hits[0])), log_hits[-1]
    middle = float(np.median(log_capacity))
    centred = log_capacity - middle

    def weibull(scaled: np.ndarray) -> np.ndarray:
        return -np.expm1(-np.exp(scaled))

    def headed(share: Callable) -> Callable:
        """Logarithm of a head and a share that grows about a place and at a pace."""

        def shape(p: np.ndarray) -> np.ndarray:
            pace = np.exp(p[3]) if len(p) > 3 else 1.0
            grown = np.maximum(share((log_capacity - p[2]) * pace), 1e-300)
            return np.logaddexp(p[0], p[1] + np.log(grown))

        return shape

    start = [first, last, middle]
    shapes = {
        "power": (lambda p: p[0] + p[1] * log_capacity, [first, 0.5]),
        "head+power": (lambda p: np.logaddexp(p[0], p[1] + p[2] * centred), [first, last, 0.7]),
        "head+exponential": (headed(weibull), start),
        "head+lognormal": (headed(ndtr), [*start, 0.0]),
        "head+weibull": (headed(weibull), [*start, 0.0]),
    }
    scores = {}
    count = len(log_hits)
    for name, (shape, guess) in shapes.items():
        fit = least_squares(lambda p, shape=shape: shape(p) - log_hits, guess, max_nfev=2000)
        free = len(guess) + 1
        error = max(2 * fit.cost / count, 1e-300)
        correction = 2 * free * (free + 1) / (count - free - 1)
        scores[name] = float(count * np.log(error) + 2 * free + correction)
    return scores


@dataclass(frozen=True, slots=True)
class Verdict:
    """May the closed form be used on this curve?

    Attributes
    ----------
    closed_form : str
        ``"accepted"``, ``"range"`` (only over ``range_blocks``) or ``"refused"``.
    reason : str
    range_blocks : pair of int, or None
    loss, loss_high : float
        Median and largest share of the net value that the closed form forgoes, over all prices
        whose optimum lies well inside the range fitted; NaN where there is no such price.
    """

    closed_form: str
    reason: str
    range_blocks: tuple[int, int] | None
    loss: float
    loss_high: float


def verdict(curve: Curve, tail: Tail | None) -> Verdict:
    """Judge the power law by its fit and by the money that it loses."""
    if tail is None:
        reason = "too little of the curve rises to fit a tail"
        return Verdict("refused", reason, None, np.nan, np.nan)
    upper = hull(curve)
    law = tail.law
    loss, loss_high = _losses(curve, upper, law)
    fit = f"beta {law.beta:.3f}, R2 {law.r2:.3f} from {law.range_blocks[0]:,} to "
    fit += f"{law.range_blocks[1]:,} blocks"
    if law.r2 >= ACCEPTED_R2 and loss_high <= ACCEPTED_LOSS:
        lost = f"the closed form loses at most {loss_high:.1%} of the net value"
        return Verdict("accepted", f"{fit}; {lost}", law.range_blocks, loss, loss_high)
    slopes = ", ".join(f"{slope:.2f}" for slope in law.thirds)
    failed = f"{fit}, but slopes of {slopes} by thirds"
    if np.isfinite(loss):
        failed += f", and the closed form loses {loss:.0%} (up to {loss_high:.0%}) of the net value"
    x, y = tail.points
    step = x[1] - x[0]
    least = int(np.ceil(ACCEPTED_DECADES * np.log(10) / step)) + 1
    spans = [(i, j) for i, j in combinations(range(len(x) + 1), 2) if j - i >= max(least, 6)]
    for i, j in sorted(spans, key=lambda span: span[0] - span[1]):
        part = fitted(x[i:j], y[i:j])
        if part.r2 < ACCEPTED_R2:
            continue
        _, part_high = _losses(curve, upper, part)
        if part_high <= ACCEPTED_LOSS:
            low, high = part.range_blocks
            reason = f"{failed}; from {low:,} to {high:,} blocks beta is {part.beta:.3f} "
            reason += f"and at most {part_high:.1%} is lost"
            return Verdict("range", reason, part.range_blocks, loss, loss_high)
    return Verdict("refused", failed, None, loss, loss_high)


def _losses(curve: Curve, upper: Hull, law: PowerLaw) -> tuple[float, float]:
    """Median and largest loss of the closed form; NaN without a price to judge by."""
    compared = compare(curve, upper, law.beta, law.scale, law.range_blocks)
    if compared is None:
        return np.nan, np.nan
    *_, loss = compared
    return float(np.median(loss)), float(loss.max())
