"""The highest rate of requests at which a fleet meets its targets, by replay.

Rates lie on a grid, each the one before times ``STEP``, so that one replay serves every question
that comes by it. Between the last rate that meets the targets and the first that does not, the
percentiles are interpolated in their logarithms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kvpaper.errors import InputError
from kvpaper.scenario import Scenario, Slo
from kvpaper.serving.measures import Window, percentile
from kvpaper.serving.replay import Replay

STEP = 1.05
# Fewer requests than this have no percentile worth the name.
LEAST_REQUESTS = 300
LAST_STEP = 90


@dataclass(frozen=True, slots=True)
class Served:
    """What a replay says of its steady window, K tiers.

    Attributes
    ----------
    requests_per_s, output_tokens_per_s : float
        What arrived, and what was generated [1/s, token/s].
    ttft_s, tpot_s : float
        Percentiles [s]; an infinite one where too many requests were turned away.
    hit_shares : tuple of K + 1 floats
        Share of prompt tokens that GPU memory and each tier served.
    written_bytes_per_s : tuple of K floats
        Written to each tier [B/s].
    power_w : float or None
        Of GPUs while they work and of the tiers [W]; None where the scenario does not tell.
    """

    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: float
    tpot_s: float
    hit_shares: tuple[float, ...]
    written_bytes_per_s: tuple[float, ...]
    power_w: float | None = None

    @classmethod
    def of(cls, replayed: Replay, scenario: Scenario) -> "Served":
        """Percentiles and rates of a replay.

        Raises
        ------
        InputError
            If too few requests are left for a percentile.
        """
        window, percent = Window(replayed), scenario.slo.percentile
        requests = int(window.requests.sum())
        if requests < LEAST_REQUESTS:
            found = f"{requests} requests after the warm-up"
            raise InputError("trace", found, f"at least {LEAST_REQUESTS}")
        prompts = replayed.input_tokens[window.requests].sum()
        hits = replayed.hit_tokens[window.requests].sum(axis=0) / prompts
        return cls(
            requests_per_s=requests / window.seconds,
            output_tokens_per_s=window.output_tokens_per_s,
            ttft_s=percentile(window.ttft_s, percent),
            tpot_s=percentile(window.tpot_s, percent) if len(window.tpot_s) else 0.0,
            hit_shares=tuple(hits.tolist()),
            written_bytes_per_s=tuple(window.written_bytes_per_s.tolist()),
            power_w=window.power_w(scenario),
        )

    def excess(self, targets: Slo) -> float:
        """Logarithm of the worse of the two times over its target; not above 0 if both are met."""
        worse = max(self.ttft_s / targets.ttft_s, self.tpot_s / targets.tpot_s)
        return math.log(worse) if worse > 0 else -math.inf

    def binding(self, targets: Slo) -> str:
        """The target that is nearer to being missed, or is missed by more."""
        late, slow = self.ttft_s / targets.ttft_s, self.tpot_s / targets.tpot_s
        return "tpot" if slow > late else "ttft"


class Highest(NamedTuple):
    """The highest rate, or why there is none.

    Attributes
    ----------
    requests_per_s, output_tokens_per_s : float
        0 where not even the lowest rate meets the targets.
    written_bytes_per_s : tuple of K floats
    binding : str
        The target that the next rate misses: ``ttft`` or ``tpot``.
    step : int
        The last step of the grid that meets the targets, else the lowest.
    """

    requests_per_s: float
    output_tokens_per_s: float
    written_bytes_per_s: tuple[float, ...]
    binding: str
    step: int


def highest(
    at: Callable[[int], Served],
    targets: Slo,
    start: int = 0,
    lowest: int = -LAST_STEP,
    last: int = LAST_STEP,
) -> Highest:
    """The highest rate that meets the targets.

    Parameters
    ----------
    at : callable
        What is served at a step of the grid; asked for some steps more than once.
    targets : Slo
    start : int
        A guess.
    lowest, last : int
        Ends of the grid. Not to meet the targets at the lowest rate is an answer.

    Raises
    ------
    InputError
        If the targets are still met at the last step: a bound is no answer.
    """

    def meets(step: int) -> bool:
        return at(step).excess(targets) <= 0

    low = high = min(max(start, lowest), last)
    stride = 1
    if meets(low):
        while meets(high := min(low + stride, last)):
            if high == last:
                found = f"targets still met at {at(last).requests_per_s:.3g} requests/s"
                raise InputError("rate", f"{found}, the end of the search", "fewer GPUs")
            low, stride = high, 2 * stride
    else:
        while not meets(low := max(high - stride, lowest)):
            if low == lowest:
                return Highest(0.0, 0.0, (), at(lowest).binding(targets), lowest)
            high, stride = low, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return _between(at(low), at(high), targets, low)


def _between(met: Served, missed: Served, targets: Slo, step: int) -> Highest:
    below, above = met.excess(targets), missed.excess(targets)
    share = -below / (above - below) if math.isfinite(above - below) else 0.0

    def rate(low: float, high: float) -> float:
        return low * (high / low) ** share if low > 0 else low

    return Highest(
        rate(met.requests_per_s, missed.requests_per_s),
        rate(met.output_tokens_per_s, missed.output_tokens_per_s),
        tuple(map(rate, met.written_bytes_per_s, missed.written_bytes_per_s)),
        missed.binding(targets),
        step,
    )
