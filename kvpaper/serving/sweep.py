"""A grid of fleets, each replayed and priced: the points, their frontier, and its knee.

Every finished point is kept in a file of JSON lines under the checksum of all that it follows from,
so that a sweep goes on where it was stopped, and a larger grid pays only for its new points.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError
from kvpaper.parallel import map_tasks
from kvpaper.scenario import Scenario
from kvpaper.serving import command
from kvpaper.serving.grid import Point, at, grid
from kvpaper.traces.block_trace import BlockTrace, require_identity

FOLDER = data.FOLDER.parent / ".cache" / "sweep"


def _replayed(point: Point, common: tuple) -> dict[str, Any]:
    """The answer of a point, or the reason why it has none."""
    scenario, *rest = common
    try:
        return command.answer(at(scenario, point), *rest)
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
    found: dict[Point, dict[str, Any]] = {}
    with _Kept(folder and folder / checksum(*common) / "points.jsonl") as kept:
        found |= {point: kept.found[key] for point in points if (key := _key(point)) in kept.found}
        left = [point for point in points if point not in found]
        answers = map_tasks(_replayed, left, processes, dask, common, _killed)
        for point, answer in zip(left, answers, strict=True):
            kept.add(point, answer)
            found[point] = answer
            tell(len(found), len(points))
    return _answer(scenario, {point: found[point] for point in points})


def _key(point: Point) -> str:
    return json.dumps(point.told())


class _Kept:
    """Answers of points in a file of JSON lines; a line that a stop has cut is written over."""

    def __init__(self, path: Path | None) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._file = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise InputError(str(path), error.strerror, "a file to keep points in") from None
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(self._file.tell() - len(line))
                break
            with suppress(ValueError, KeyError, TypeError):
                one = json.loads(line)
                self.found[json.dumps(one["point"])] = one["answer"]

    def add(self, point: Point, answer: dict[str, Any]) -> None:
        """Keep an answer; what failed is tried again another time."""
        if self._file and "reason" not in answer:
            line = json.dumps({"point": point.told(), "answer": answer}, allow_nan=False)
            self._file.write(line.encode() + b"\n")
            self._file.flush()

    def __enter__(self) -> "_Kept":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._file:
            self._file.close()


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
    found, least = [], math.inf
    for index in sorted(range(len(usd)), key=lambda one: (latency_s[one], usd[one])):
        if usd[index] < least:
            found.append(index)
            least = usd[index]
    return found


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
    points: list[dict[str, Any]], percentile: float, model: str | None = None, late: bool = False
) -> dict[str, Any]:
    """Frontier and knee of points, as :func:`sweep` gives them, that meet the targets.

    ``model`` leaves only those of one model; with ``late`` those that miss the targets count too.
    """
    usd, latency_s = [], []
    for one in points:
        of_model = model in (None, one["cell"]["model"])
        cost = one["usd_per_million_output_tokens"]
        first_s = one["ttft_s"][f"p{percentile:g}"]
        counts = of_model and (late or one["feasible"]) and None not in (cost, first_s)
        usd.append(cost if counts else math.inf)
        latency_s.append(first_s if counts else math.inf)
    on = frontier(latency_s, usd)
    bend = knee([latency_s[one] for one in on], [usd[one] for one in on])
    return {"frontier": on, "knee": None if bend is None else on[bend]}


def _answer(scenario: Scenario, found: dict[Point, dict[str, Any]]) -> dict[str, Any]:
    """The answer of the contract; each model also has a frontier of its own."""
    points = [
        {"point": point.told(), **answer}
        for point, answer in found.items()
        if "reason" not in answer
    ]
    failed = [
        {"point": point.told(), "reason": answer["reason"]}
        for point, answer in found.items()
        if "reason" in answer
    ]
    slo = scenario.slo
    warned = Counter(text for one in points for text in one["warnings"])
    return {
        "points": points,
        **best(points, slo.percentile),
        "failed": failed,
        "by_model": {
            name: best(points, slo.percentile, name)
            for name in dict.fromkeys(one["cell"]["model"] for one in points)
        },
        "targets": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "percentile": slo.percentile},
        "warnings": [f"{count} of {len(points)} points: {text}" for text, count in warned.items()],
    }
