"""How often blocks are used: a discrete power law by maximum likelihood, its fit, its rivals."""

from dataclasses import dataclass

import numpy as np

from kvpaper.traces.block_trace import BlockTrace

_CUTOFFS = 12
_LEAST_TAIL = 50


@dataclass(frozen=True, slots=True)
class Popularity:
    """Fit of ``P(uses = k) ~ k**-exponent`` for ``k >= least_uses``.

    Attributes
    ----------
    exponent, standard_error : float
    least_uses : int
        Where the tail begins: the cut-off with the least Kolmogorov-Smirnov distance.
    tail_blocks : int
    distance : float
        Kolmogorov-Smirnov distance of the fit.
    p_value : float
        Share of bootstrap samples of the fit that lie further from their own fit; below 0.1 the
        power law is implausible.
    rivals : dict
        Log-likelihood ratio of the power law over each rival, divided by its standard error:
        below -2 the rival is clearly better, above 2 the power law is.
    """

    exponent: float
    standard_error: float
    least_uses: int
    tail_blocks: int
    distance: float
    p_value: float
    rivals: dict[str, float]


def fit_popularity(trace: BlockTrace, resamples: int = 50) -> Popularity | None:
    """Fit the number of uses per block by the method of Clauset, Shalizi and Newman.

    None where fewer than fifty blocks are used twice or more.
    Source: SIAM Review 51 (2009), sections 3 to 5, doi:10.1137/070710111.
    """
    uses = np.bincount(trace.blocks)
    if (uses >= 2).sum() < _LEAST_TAIL:
        return None
    values, counts = np.unique(uses, return_counts=True)
    exponent, least, distance = _best_cutoff(values, counts)
    tail = values >= least
    size, body = int(counts[tail].sum()), int(counts[~tail].sum())
    random = np.random.default_rng(0)
    further = 0
    for _ in range(resamples):
        from_tail = random.binomial(size + body, size / (size + body))
        drawn = _draw(random, exponent, least, from_tail)
        if body:
            shares = counts[~tail] / body
            rest = random.multinomial(size + body - from_tail, shares)
            drawn = np.concatenate([drawn, np.repeat(values[~tail], rest)])
        further += _best_cutoff(*np.unique(drawn, return_counts=True))[2] >= distance
    error = float((exponent - 1) / np.sqrt(size))
    rivals = _rivals(values[tail], counts[tail], exponent, least)
    return Popularity(exponent, error, least, size, distance, further / resamples, rivals)


def _best_cutoff(values: np.ndarray, counts: np.ndarray) -> tuple[float, int, float]:
    """Exponent, cut-off and distance of the cut-off whose fit is closest."""
    left = np.cumsum(counts[::-1])[::-1]
    usable = values[left >= min(_LEAST_TAIL, left[0])]
    picks = usable[np.unique(np.linspace(0, len(usable) - 1, _CUTOFFS).astype(int))]
    fits = [(*_fit(values[values >= k], counts[values >= k], int(k)), int(k)) for k in picks]
    exponent, distance, least = min(fits, key=lambda fit: fit[1])
    return exponent, least, distance


def _fit(values: np.ndarray, counts: np.ndarray, least: int) -> tuple[float, float]:
    from scipy.optimize import minimize_scalar
    from scipy.special import zeta

    size, logs = counts.sum(), (counts * np.log(values)).sum()
    found = minimize_scalar(
        lambda a: a * logs + size * np.log(zeta(a, least)), bounds=(1.01, 8), method="bounded"
    )
    exponent = float(found.x)
    model = 1 - zeta(exponent, values + 1) / zeta(exponent, least)
    return exponent, float(np.abs(np.cumsum(counts) / size - model).max())


def _draw(random: np.random.Generator, exponent: float, least: int, size: int) -> np.ndarray:
    """Whole numbers of the power law, exact: a table for the common ones, bisection beyond."""
    from scipy.special import zeta

    table = np.arange(least, least + 10_000)
    above = zeta(exponent, table + 1) / zeta(exponent, least)
    uniform = random.random(size)
    place = np.searchsorted(-above, -uniform)
    far = place == len(table)
    drawn = table[np.minimum(place, len(table) - 1)].astype(np.int64)
    # Beyond the table the continuous law differs by less than one part in 10,000.
    drawn[far] = (table[-1] * (uniform[far] / above[-1]) ** (-1 / (exponent - 1))).clip(max=2**62)
    return drawn


def _rivals(
    values: np.ndarray, counts: np.ndarray, exponent: float, least: int
) -> dict[str, float]:
    """Vuong's ratio of the power law over distributions rounded to whole numbers."""
    from scipy import stats
    from scipy.optimize import minimize
    from scipy.special import zeta

    power = -exponent * np.log(values) - np.log(zeta(exponent, least))
    scale = np.log((counts * values).sum() / counts.sum())
    middle = (counts * np.log(values)).sum() / counts.sum()
    families = {
        "exponential": (lambda p: stats.expon(scale=np.exp(p[0])), [scale]),
        "lognormal": (lambda p: stats.lognorm(np.exp(p[1]), scale=np.exp(p[0])), [middle, 0.0]),
        "weibull": (lambda p: stats.weibull_min(np.exp(p[1]), scale=np.exp(p[0])), [scale, -0.5]),
    }
    ratios = {}
    for name, (family, start) in families.items():

        def log_likelihood(p: np.ndarray, family=family) -> np.ndarray:
            law = family(p)
            with np.errstate(all="ignore"):
                mass = law.sf(values - 0.5) - law.sf(values + 0.5)
                each = np.log(mass) - law.logsf(least - 0.5)
            return np.where(np.isfinite(each), each, -1e6)

        found = minimize(lambda p: -(counts * log_likelihood(p)).sum(), start, method="Nelder-Mead")
        difference = power - log_likelihood(found.x)
        total, size = (counts * difference).sum(), counts.sum()
        spread = np.sqrt(size * np.cov(difference, fweights=counts, ddof=0))
        ratios[name] = float(total / spread) if spread else 0.0
    return ratios
