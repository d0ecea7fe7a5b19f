"""A grid of fleets, each replayed and priced: the points, their frontier, and its knee.

Every finished point is kept in a file of its own, below the checksum of all that it follows from,
so that a sweep goes on where it was stopped, and a larger grid pays only for its new points.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError
from kvpaper.parallel import map_tasks
from kvpaper.scenario import Scenario
from kvpaper.serving import simulate
from kvpaper.serving.grid import Point, at, grid
from kvpaper.traces.block_trace import BlockTrace, require_identity

FOLDER = data.FOLDER.parent / ".cache" / "sweep"


def _replayed(point: Point, common: tuple) -> dict[str, Any]:
    """The answer of a point, or the reason why it has none."""
    scenario, *rest = common
    try:
        return simulate.answer(at(scenario, point), *rest)
    except InputError as error:
        return {"reason": str(error)}
    except Exception as error:  # one point's fault of ours must not cost the others
        return {"reason": f"{type(error).__name__}: {error}"}


def _killed(point: Point) -> dict[str, Any]:
    return {"reason": "its process was killed, also when it ran alone; out of memory?"}


def sweep(
    scenario: Scenario,
    requests: BlockTrace,
    source: str | None = None,
    seed: int = 0,
    folder: Path | None = None,
    processes: int | None = None,
    dask: str | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Replay the grid of a scenario, and say which points are worth having.

    Parameters
    ----------
    scenario : Scenario
    requests : BlockTrace
        As they arrive, at the fleet's rate.
    source : str, optional
        Name of the trace.
    seed : int
    folder : Path, optional
        Where points are kept, under the checksum of the sweep; None keeps nothing.
    processes, dask
        As in :func:`kvpaper.parallel.map_tasks`.
    tell : callable
        Called with the points done and their total, after each.

    Raises
    ------
    InputError
        If there is nothing to replay, or points cannot be kept.
    """
    if not requests.requests:
        raise InputError(source or "trace", "no requests", "at least one")
    require_identity(requests.block_tokens, source or "trace")
    points = grid(scenario, requests)
    common = (scenario, requests, source, seed)
    files = _files(points, folder and folder / checksum(*common))
    found: dict[Point, dict[str, Any]] = {}
    for point, file in files.items():
        with suppress(OSError, ValueError):  # not there yet, or damaged
            found[point] = json.loads(file.read_text(encoding="utf-8"))
    left = [point for point in points if point not in found]
    answers = map_tasks(_replayed, left, processes, dask, common, _killed)
    for point, answer in zip(left, answers, strict=True):
        found[point] = answer
        if folder and "reason" not in answer:  # what failed is tried again another time
            with data.replacing(files[point]) as temporary:
                temporary.write_text(json.dumps(answer, allow_nan=False), encoding="utf-8")
        tell(len(found), len(points))
    return _answer(scenario, {point: found[point] for point in points})


def _files(points: Sequence[Point], folder: Path | None) -> dict[Point, Path]:
    """Where each point is kept."""
    if folder is None:
        return {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(folder), error.strerror, "a folder to keep points in") from None
    told = {point: json.dumps(point.told()).encode() for point in points}
    return {
        point: folder / f"{hashlib.sha256(text).hexdigest()[:16]}.json"
        for point, text in told.items()
    }


def checksum(scenario: Scenario, requests: BlockTrace, source: str | None, seed: int) -> str:
    """Of all that an answer follows from: scenario, requests, seed, data and code.

    The grid is left out, so that another one finds the points that both have.
    """
    content = replace(scenario, name="", file="", sweep=None, leaves={}, lines={})
    told = hashlib.sha256(repr((content, source, seed)).encode())
    for column in (getattr(requests, field.name) for field in fields(requests)):
        told.update(column.tobytes() if isinstance(column, np.ndarray) else repr(column).encode())
    files = [*Path(__file__).parents[1].rglob("*.py"), *data.FOLDER.glob("latency/*.csv")]
    files += [*data.FOLDER.glob("models/*.yaml"), *map(Path, scenario.sweep.models or ())]
    for path in filter(Path.is_file, sorted(files)):
        told.update(path.read_bytes())
    return told.hexdigest()[:16]


# What is worth having


def frontier(latency_s: Sequence[float], usd: Sequence[float]) -> list[int]:
    """Points that no other beats in one of two numbers without losing in the other, fastest first.

    Of equal points the first; a point with an infinite or unknown cost is on no frontier.

    >>> frontier([3, 1, 2, 2], [1, 4, 2, 3])
    [1, 2, 0]
    """
    order = np.lexsort((usd, latency_s))
    cost = np.take(usd, order)
    least_before = np.fmin.accumulate(np.append(math.inf, cost))[:-1]
    return order[cost < least_before].tolist()


def knee(latency_s: Sequence[float], usd: Sequence[float]) -> int | None:
    """Where on a frontier, fastest first, the next saving begins to cost much time; None of none.

    Both axes are logarithmic and scaled so that the ends of the frontier are (0, 1) and (1, 0);
    the knee has the least sum of the two, so it lies farthest below the line between the ends. Of
    equal ones it is the cheapest, so of two points the cheaper.

    >>> knee([1, 2, 100], [100, 10, 9])
    1
    """
    if not len(usd):
        return None
    total = np.zeros(len(usd))
    for values in (latency_s, usd):
        logs = np.log(np.maximum(values, np.finfo(float).tiny))
        total += (logs - logs.min()) / (np.ptp(logs) or 1)
    return int(np.flatnonzero(total <= total.min())[-1])


def best(
    points: list[dict[str, Any]], percentile: float, counts: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Frontier and knee of the points that count, as :func:`sweep` gives them.

    A point without a cost or a time to the first token is on no frontier.
    """
    usd, latency_s = [], []
    for one in points:
        cost, first_s = one["usd_per_million_output_tokens"], one["ttft_s"][f"p{percentile:g}"]
        known = counts(one) and None not in (cost, first_s)
        usd.append(cost if known else math.inf)
        latency_s.append(first_s if known else math.inf)
    on = frontier(latency_s, usd)
    bend = knee([latency_s[one] for one in on], [usd[one] for one in on])
    return {"frontier": on, "knee": None if bend is None else on[bend]}


def _answer(scenario: Scenario, found: dict[Point, dict[str, Any]]) -> dict[str, Any]:
    """The answer of the contract; each model also has a frontier of its own."""
    told = [{"point": point.told(), **answer} for point, answer in found.items()]
    points = [one for one in told if "reason" not in one]
    slo = scenario.slo
    warned = Counter(text for one in points for text in one["warnings"])
    models = dict.fromkeys(one["cell"]["model"] for one in points)

    def meets(one: dict[str, Any], model: str | None = None) -> bool:
        return one["feasible"] and model in (None, one["cell"]["model"])

    return {
        "points": points,
        **best(points, slo.percentile, meets),
        "failed": [one for one in told if "reason" in one],
        "by_model": {
            name: best(points, slo.percentile, partial(meets, model=name)) for name in models
        },
        "targets": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "percentile": slo.percentile},
        "warnings": [f"{count} of {len(points)} points: {text}" for text, count in warned.items()],
    }
