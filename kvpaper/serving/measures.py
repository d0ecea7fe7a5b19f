"""What is concluded from the raw rows of a replay: percentiles, goodput, money and energy.

All of it belongs to a steady window, the time after warm-up. Times are those of the requests that
arrive in it; tokens, money and energy those of what is finished in it, so that an overloaded fleet
does not count what it still owes.
A cache that holds more than the trace has shown yet is not warm at its end either:
``Window.hit_shares`` tells by parts of the window whether hits still rise.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvpaper import evaluate
from kvpaper.scenario import Scenario
from kvpaper.serving.replay import Replay

WARM_UP = 0.25
PERCENTILES = (50, 90, 99)
_RISE = 1.02


def percentile(values: np.ndarray, percent: float) -> float:
    """The least value that so many percent of the requests do not exceed; NaN of none.

    Infinite values count: a request that was turned away never had a first token.
    """
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else np.nan


class Window:
    """The part of a replay that counts: all but a first share of the time of arrivals.

    Parameters
    ----------
    replay : Replay
        R requests, K tiers.
    warm_up : float
        The share that does not count.

    Attributes
    ----------
    requests, finished : bool array, shape (R,)
        Those that arrive in it, and those whose answer ends in it.
    seconds : float
        From the end of warm-up to the last arrival [s].
    ttft_s : float64 array
        Times to the first token of those that arrive, infinite where one was turned away [s].
    tpot_s : float64 array
        Times per further token of those that arrive, of answers that have any [s].
    output_tokens_per_s : float
        Of what is finished [token/s].
    written_bytes_per_s : float64 array, shape (K,)
        Written to each tier on behalf of what is finished [B/s].
    """

    def __init__(self, replay: Replay, warm_up: float = WARM_UP) -> None:
        end_s = float(replay.arrival_s[-1])
        start_s = warm_up * end_s
        self.replay = replay
        self.requests = replay.arrival_s >= start_s
        self.finished = (replay.finish_s >= start_s) & (replay.finish_s <= end_s)
        self.seconds = max(end_s - start_s, 1e-9)
        self.ttft_s = np.where(replay.rejected, np.inf, replay.ttft_s)[self.requests]
        tpot_s = replay.tpot_s[self.requests]
        self.tpot_s = tpot_s[np.isfinite(tpot_s)]
        self.output_tokens_per_s = float(replay.output_tokens[self.finished].sum() / self.seconds)
        written_bytes = replay.written_bytes[self.finished].sum(axis=0)
        self.written_bytes_per_s = written_bytes / self.seconds

    def goodput_per_s(self, ttft_slo_s: float, tpot_slo_s: float) -> float:
        """Requests per second that meet both targets [1/s]."""
        slow = self.replay.tpot_s[self.requests] > tpot_slo_s
        return float(((self.ttft_s <= ttft_slo_s) & ~slow).sum()) / self.seconds

    def hit_shares(self, parts: int = 3) -> np.ndarray:
        """Share of prompt tokens that any level served, in equal parts of the window, in order."""
        served = np.flatnonzero(self.requests & ~self.replay.rejected)
        groups = [group for group in np.array_split(served, parts) if len(group)]
        hit, whole = self.replay.hit_tokens.sum(axis=1), self.replay.input_tokens
        return np.array([hit[group].sum() / max(1, whole[group].sum()) for group in groups])

    def stocks(self) -> dict[str, tuple[float, float]]:
        """What all instances bring of each tier, and what is written to it [B, B/s]."""
        fleet, written = self.replay.fleet, self.written_bytes_per_s.tolist()
        return {
            tier.name: (tier.capacity_bytes * fleet.prefill.instances, written[k])
            for k, tier in enumerate(fleet.tiers)
        }

    def power_w(self, scenario: Scenario) -> float | None:
        """Power of GPUs while they compute, and of what the tiers hold [W]; None if unknown."""
        per_gpu, replay = scenario.hardware.gpu_power_w, self.replay
        if per_gpu is None:
            return None
        gpus = replay.fleet.prefill.gpus, replay.fleet.decoding.gpus
        busy = replay.prefill_s * gpus[0] + replay.decode_s * gpus[1]
        tiers = scenario.hardware.tiers
        held = sum(size * tiers[name].power_w_per_byte for name, (size, _) in self.stocks().items())
        return float(busy[self.finished].sum() / self.seconds * per_gpu + held)


def usd_per_s(scenario: Scenario, gpus: int, stocks: Mapping[str, tuple[float, float]]) -> float:
    """Cost of GPUs, idle ones too, and of tiers by the scenario's prices and reading [USD/s].

    ``stocks`` are bytes held and bytes written per second by tier: a drive is written off no later
    than it is worn out. A tier without a price costs nothing; a scenario's fleet has none.
    """
    prices = scenario.prices
    found = gpus * prices.gpu_usd_per_s
    for tier, (held, written) in stocks.items():
        rent = evaluate.rent_of(scenario, prices, tier, writes_per_s=written / held)
        found += (rent or 0.0) * held
    return found


def measures(replay: Replay, scenario: Scenario) -> dict[str, Any]:
    """The numbers of one point of a sweep, unit as suffix; what nobody can tell is None."""
    window, slo = Window(replay), scenario.slo
    times = {"ttft_s": window.ttft_s, "tpot_s": window.tpot_s}
    points = sorted({*PERCENTILES, slo.percentile})
    used = {
        name: percentile(values, slo.percentile) / getattr(slo, name)
        for name, values in times.items()
    }
    tokens_per_s = window.output_tokens_per_s
    million_s = 1e6 / tokens_per_s if tokens_per_s else np.inf
    stocks, power = window.stocks(), window.power_w(scenario)
    cost = usd_per_s(scenario, replay.fleet.gpus, stocks)
    hits = replay.hit_tokens[window.requests].sum(axis=0).tolist()
    shares = window.hit_shares()
    return {
        "requests": len(replay.arrival_s),
        "window_s": window.seconds,
        "window_requests": int(window.requests.sum()),
        "rejected": int(replay.rejected.sum()),
        **{
            name: {f"p{point:g}": _known(percentile(values, point)) for point in points}
            for name, values in times.items()
        },
        "hit_tokens": {"dram": 0, "nvme": 0} | dict(zip(("hbm", *stocks), hits, strict=True)),
        "computed_tokens": int(replay.computed_tokens[window.requests].sum()),
        "hit_shares": shares.tolist(),
        "hits_still_rise": bool(len(shares) > 1 and shares[-1] > _RISE * shares[-2]),
        "goodput_per_s": window.goodput_per_s(slo.ttft_s, slo.tpot_s),
        "output_tokens_per_s": tokens_per_s,
        "usd_per_million_output_tokens": _known(cost * million_s),
        "joules_per_million_output_tokens": None if power is None else _known(power * million_s),
        "feasible": bool(used["ttft_s"] <= 1 and not used["tpot_s"] > 1),
        "binding": "tpot" if used["tpot_s"] > used["ttft_s"] else "ttft",
    }


def _known(value: float) -> float | None:
    """JSON knows no infinity."""
    return float(value) if np.isfinite(value) else None
