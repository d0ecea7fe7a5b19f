"""What is concluded from the raw rows of a replay: percentiles, goodput, money and energy.

All of it belongs to a steady window, the time after warm-up. Times are those of the requests that
arrive in it; tokens, money and energy those of what is finished in it, so that an overloaded fleet
does not count what it still owes.
A cache that holds more than the trace has shown yet is not warm at its end either:
``hit_shares`` tells by thirds of the window whether hits still rise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvpaper import evaluate
from kvpaper.scenario import Prices, Scenario
from kvpaper.serving.fleet import Fleet
from kvpaper.serving.replay import Replay

WARM_UP = 0.25
PERCENTILES = (50, 90, 99)
_RISE = 1.02


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a replay that counts.

    Attributes
    ----------
    requests, finished : bool array, shape (R,)
        Those that arrive in it, and those whose answer ends in it.
    seconds : float
        From the end of warm-up to the last arrival [s].
    """

    requests: np.ndarray
    finished: np.ndarray
    seconds: float


def steady(replay: Replay, warm_up: float = WARM_UP) -> Window:
    """All but a first share of the time of arrivals."""
    end_s = float(replay.arrival_s[-1])
    start_s = warm_up * end_s
    finished = (replay.finish_s >= start_s) & (replay.finish_s <= end_s)
    return Window(replay.arrival_s >= start_s, finished, max(end_s - start_s, 1e-9))


def percentile(values: np.ndarray, percent: float) -> float:
    """The least value that so many percent of the requests do not exceed; NaN of none.

    Infinite values count: a request that was turned away never had a first token.
    """
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else np.nan


def ttft_s(replay: Replay, window: Window) -> np.ndarray:
    """Times to the first token in the window, infinite where a request was turned away [s]."""
    return np.where(replay.rejected, np.inf, replay.ttft_s)[window.requests]


def tpot_s(replay: Replay, window: Window) -> np.ndarray:
    """Times per further token in the window, of answers that have any [s]."""
    found = replay.tpot_s[window.requests]
    return found[np.isfinite(found)]


def goodput_per_s(replay: Replay, window: Window, ttft_slo_s: float, tpot_slo_s: float) -> float:
    """Requests per second that meet both targets [1/s]."""
    slow = np.nan_to_num(replay.tpot_s, nan=0.0) > tpot_slo_s
    good = (replay.ttft_s <= ttft_slo_s) & ~slow & ~replay.rejected & window.requests
    return float(good.sum()) / window.seconds


def hit_shares(replay: Replay, window: Window, parts: int = 3) -> np.ndarray:
    """Share of prompt tokens that any level served, in equal parts of the window, in order."""
    served = np.flatnonzero(window.requests & ~replay.rejected)
    groups = [group for group in np.array_split(served, parts) if len(group)]
    hit, whole = replay.hit_tokens.sum(axis=1), replay.input_tokens
    return np.array([hit[group].sum() / max(1, whole[group].sum()) for group in groups])


def capacity_bytes(fleet: Fleet) -> dict[str, float]:
    """What all instances bring of each tier [B]."""
    return {tier.name: tier.capacity_bytes * fleet.prefill.instances for tier in fleet.tiers}


def rent_usd_per_s(
    replay: Replay,
    scenario: Scenario,
    window: Window,
    prices: Prices | None = None,
    reading: str | None = None,
) -> dict[str, float]:
    """Rent of all GPUs and of each tier by the scenario's reading [USD/s].

    A drive is written off no later than it is worn out by what the window wrote to it. A tier
    without a price costs nothing; a scenario's fleet has none.
    """
    prices = prices or scenario.prices
    rents = {"gpu": replay.fleet.gpus * prices.gpu_usd_per_s}
    for k, (tier, size) in enumerate(capacity_bytes(replay.fleet).items()):
        written = replay.written_bytes[window.finished, k].sum() / window.seconds / size
        rent = evaluate.rent_of(scenario, prices, tier, reading, float(written))
        rents[tier] = (rent or 0.0) * size
    return rents


def power_w(replay: Replay, scenario: Scenario, window: Window) -> float | None:
    """Power of GPUs while they compute, and of what the tiers hold [W]; None if unknown."""
    per_gpu, fleet = scenario.hardware.gpu_power_w, replay.fleet
    if per_gpu is None:
        return None
    decoding = fleet.decode or fleet.prefill
    busy = replay.prefill_s * fleet.prefill.gpus + replay.decode_s * decoding.gpus
    tiers = scenario.hardware.tiers
    held = sum(size * tiers[name].power_w_per_byte for name, size in capacity_bytes(fleet).items())
    return float(busy[window.finished].sum() / window.seconds * per_gpu + held)


def measures(
    replay: Replay, scenario: Scenario, prices: Prices | None = None, warm_up: float = WARM_UP
) -> dict[str, Any]:
    """The numbers of one point of a sweep, unit as suffix; what nobody can tell is None."""
    window, slo = steady(replay, warm_up), scenario.slo
    times = {"ttft_s": ttft_s(replay, window), "tpot_s": tpot_s(replay, window)}
    points = sorted({*PERCENTILES, slo.percentile})
    reached = {name: percentile(values, slo.percentile) for name, values in times.items()}
    used = {name: reached[name] / getattr(slo, name) for name in times}
    tokens_per_s = replay.output_tokens[window.finished].sum() / window.seconds
    million_s = 1e6 / tokens_per_s if tokens_per_s else np.inf
    rents = rent_usd_per_s(replay, scenario, window, prices)
    power = power_w(replay, scenario, window)
    names = ("hbm", *(tier.name for tier in replay.fleet.tiers))
    hits = replay.hit_tokens[window.requests].sum(axis=0).tolist()
    shares = hit_shares(replay, window)
    return {
        "requests": len(replay.arrival_s),
        "window_s": window.seconds,
        "window_requests": int(window.requests.sum()),
        "rejected": int(replay.rejected.sum()),
        **{
            name: {f"p{point:g}": _known(percentile(values, point)) for point in points}
            for name, values in times.items()
        },
        "hit_tokens": {"dram": 0, "nvme": 0} | dict(zip(names, hits, strict=True)),
        "computed_tokens": int(replay.computed_tokens[window.requests].sum()),
        "hit_shares": shares.tolist(),
        "hits_still_rise": bool(len(shares) > 1 and shares[-1] > _RISE * shares[-2]),
        "goodput_per_s": goodput_per_s(replay, window, slo.ttft_s, slo.tpot_s),
        "output_tokens_per_s": float(tokens_per_s),
        "usd_per_million_output_tokens": _known(sum(rents.values()) * million_s),
        "joules_per_million_output_tokens": None if power is None else _known(power * million_s),
        "feasible": bool(used["ttft_s"] <= 1 and not used["tpot_s"] > 1),
        "binding": "tpot" if used["tpot_s"] > used["ttft_s"] else "ttft",
    }


def _known(value: float) -> float | None:
    """JSON knows no infinity."""
    return float(value) if np.isfinite(value) else None
