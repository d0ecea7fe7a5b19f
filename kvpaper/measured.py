"""Records to rows: what the lab measured, fitted, and held against the formulas.

Pure: it takes records and writes nothing. Every row names its machine and its run. Records of
different machines are never pooled, and what a formula predicts of one run is set by another.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvpaper import formulas

Record = Mapping[str, Any]
Row = dict[str, Any]
# Of log-probabilities in float32: rounding gives 1e-6, one other token among 1,024 about 1e-3.
TOLERANCE = 1e-4


def machine(record: Record) -> str:
    """What a number of this record was taken on: GPUs if any, processor, cores, memory."""
    told = record["machine"]
    own = f"{told['processor']}, {told['cores']} cores, {told['memory_bytes'] / 2**30:.0f} GiB"
    return ", ".join([*(gpu["name"] for gpu in told.get("gpus", ())), own])


def runs(records: Iterable[Record], instrument: str) -> Iterator[tuple[Record, Row]]:
    """Completed records of an instrument with their coordinates: machine, and number of the run."""
    count: Counter[tuple[str, str]] = Counter()
    for record in sorted(records, key=lambda record: record["started_at"]):
        if record["instrument"] == instrument and record["outcome"] == "completed":
            at = machine(record)
            what = at, record["parameters_sha256"]
            count[what] += 1
            yield record, {"machine": at, "run": count[what]}


def fit_fetch_time(moved_bytes: Sequence[float], times_s: Sequence[float]) -> dict[str, float]:
    """Fixed overhead and rate of ``latency + bytes / rate``, with 95 % intervals.

    Least squares of relative residuals, since timings scatter in proportion to what they are.
    Student's t of the residuals: noise and what is no straight line both widen the interval.

    Parameters
    ----------
    moved_bytes : sequence of float [B]
        At least three different ones.
    times_s : sequence of float [s]
        The time of each, such as a median.

    Returns
    -------
    dict
        ``latency_s`` and ``bytes_per_s``, each also with ``_low`` and ``_high`` (the high end of a
        rate may be infinite), and ``residual``, the root mean square of relative residuals.
    """
    from scipy import stats

    size, time = np.asarray(moved_bytes, float), np.asarray(times_s, float)
    design = np.column_stack([np.ones_like(size), size]) / time[:, None]
    answer, *_ = np.linalg.lstsq(design, np.ones_like(time), rcond=None)
    residuals = design @ answer - 1
    freedom = len(size) - 2
    variance = residuals @ residuals / freedom * np.linalg.inv(design.T @ design)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(np.diag(variance))
    low, high = answer - half, answer + half
    return {
        "latency_s": answer[0],
        "latency_s_low": low[0],
        "latency_s_high": high[0],
        "bytes_per_s": 1 / answer[1],
        "bytes_per_s_low": 1 / high[1],
        "bytes_per_s_high": 1 / low[1] if low[1] > 0 else np.inf,
        "residual": float(np.sqrt(np.mean(residuals**2))),
    }


def tiers(records: Iterable[Record]) -> list[Row]:
    """Fetch and store times by tier and length: medians with quartiles."""
    return [
        {**_spread(row), **at, **_coordinates(row)}
        for record, at in runs(records, "tiers")
        for row in record["rows"]
    ]


def fits(records: Iterable[Record]) -> list[Row]:
    """Fixed overhead and rate of each tier, of each run."""
    rows = []
    for key, part in _grouped(tiers(records), _TIER):
        if len(part) < 4 or key["quantity"] != "fetch_time_s":
            continue
        fit = fit_fetch_time([row["bytes"] for row in part], [row["value"] for row in part])
        at = {name: key[name] for name in _TIER if name != "quantity"}
        for name in ("latency_s", "bytes_per_s"):
            ends = {"low": fit[f"{name}_low"], "high": fit[f"{name}_high"]}
            rows.append(_row(f"fitted_{name}", fit[name], **ends, **at))
        rows.append(_row("fit_residual", fit["residual"], **at))
    return rows


def fetch_ratios(records: Iterable[Record]) -> list[Row]:
    """Fetch times of one run over what `formulas.fetch_time` gives with the fit of another."""
    records = list(records)
    fitted: dict[Any, dict[int, Row]] = {}
    for key, part in _grouped(fits(records), _PLACE):
        by_run = {row["run"]: {} for row in part}
        for row in part:
            by_run[row["run"]][row["quantity"]] = row["value"]
        fitted[tuple(key.values())] = by_run
    rows = []
    for row in tiers(records):
        others = fitted.get(tuple(row[name] for name in _PLACE), {})
        found = [fit for run, fit in others.items() if run != row["run"]]
        if row["quantity"] != "fetch_time_s" or not found:
            continue
        predicted = formulas.fetch_time(
            row["bytes"], found[0]["fitted_bytes_per_s"], found[0]["fitted_latency_s"]
        )
        at = {name: row[name] for name in (*_PLACE, "run", "tokens", "bytes")}
        rows.append(_ratio("fetch_time", row["value"], predicted, **at))
    return rows


def levels(records: Iterable[Record]) -> list[Row]:
    """Time to first token and cached tokens by where the prefix came from, with quartiles."""
    return [
        {**_spread(row), **at, **_coordinates(row), "model": _model(record)}
        for record, at in runs(records, "canary")
        for row in record["rows"]
        if row["quantity"] in ("ttft_s", "cached_tokens") and "level" in row
    ]


def cells(records: Iterable[Record]) -> list[Row]:
    """Cached tokens by cell of the 2x2 and stage; of a cell that died, what said so."""
    rows = []
    for record in _factorial(records):
        at = _cell(record)
        rows += [
            _row("cached_tokens", min(row["values"]), stage=row["stage"], **at)
            for row in record["rows"]
            if row["quantity"] == "cached_tokens"
        ]
        if record["outcome"] != "completed":
            line = record["cause"]["evidence"][0]
            why = {"cause": record["cause"]["kind"], "process": line["process"]}
            rows.append(_row("cached_tokens", np.nan, stage="start", **why, **at))
    return rows


def agreement(records: Iterable[Record]) -> list[Row]:
    """Largest difference of a log-probability from the reference, by cell and stage.

    The reference is the first answer of the cell without cap and connector, of the same model on
    the same machine.
    """
    records = list(_factorial(records))
    plain = (record for record in records if _cell(record)["cell"] == "none, none")
    reference = {(machine(one), _model(one)): _logprobs(one)["first"] for one in plain}
    return [
        _row("logprob_difference", _difference(told, reference[of]), stage=stage, **_cell(record))
        for record in records
        if (of := (machine(record), _model(record))) in reference
        for stage, told in _logprobs(record).items()
    ]


def splits(records: Iterable[Record]) -> list[Row]:
    """Time to first token on one engine and on two, by prompt length."""
    return [
        {**_spread(row), **at, **_coordinates(row), "connector": record["parameters"]["connector"]}
        for record, at in runs(records, "disagg")
        for row in record["rows"]
        if row.get("part") == "proof" and row["quantity"] in ("ttft_s", "prefill_s")
    ]


_PLACE = ("machine", "tier", "way", "shape", "to")
_TIER = ("quantity", *_PLACE, "run")


def _row(quantity: str, value: float, **at: Any) -> Row:
    return {"quantity": quantity, "kind": "measured", "value": float(value), **at}


def _ratio(formula: str, measured: float, predicted: float, **at: Any) -> Row:
    return _row("measured_over_predicted", measured / predicted, formula=formula, **at)


def _spread(row: Mapping[str, Any]) -> Row:
    low, middle, high = np.quantile(row["values"], (0.25, 0.5, 0.75))
    return _row(row["quantity"], middle, low=low, high=high)


def _coordinates(row: Mapping[str, Any]) -> Row:
    own = ("quantity", "unit", "kind", "warmups", "values")
    return {name: value for name, value in row.items() if name not in own}


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> Iterator[tuple[Row, list[Row]]]:
    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in names)

    for values, part in itertools.groupby(sorted(rows, key=key), key):
        yield dict(zip(names, values, strict=True)), list(part)


def _model(record: Record) -> str:
    """Name of the shape that was served: the folder is called after it."""
    return record["parameters"]["engine"]["model"].rpartition("/")[2].rpartition("-")[0]


def _factorial(records: Iterable[Record]) -> list[Record]:
    """The newest record of each cell, of each machine and model."""
    newest = {}
    for record in sorted(records, key=lambda record: record["started_at"]):
        if record["instrument"] == "factorial" and record["outcome"] in ("completed", "failed"):
            newest[tuple(_cell(record).values())] = record
    return list(newest.values())


def _cell(record: Record) -> Row:
    asked = record["parameters"]
    cap, connector = asked["cap"], asked["connector"]
    at = {"machine": machine(record), "model": _model(record)}
    return {**at, "cap": cap, "connector": connector, "cell": f"{cap}, {connector}"}


def _logprobs(record: Record) -> dict[str, list[dict[str, float]]]:
    """Log-probabilities by stage, one mapping of tokens for each prompt."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in record["rows"]:
        if row["quantity"] == "logprob":
            told = dict(zip(row["tokens"].split(), row["values"], strict=True))
            found.setdefault(row.get("stage", row.get("engine")), []).append(told)
    return found


def _difference(told: Sequence[Mapping], reference: Sequence[Mapping]) -> float:
    """Largest over prompts and tokens; infinite where less than half of the tokens are the same."""
    worst = 0.0
    for one, other in zip(told, reference, strict=True):
        both = one.keys() & other.keys()
        if 2 * len(both) < len(other):
            return np.inf
        worst = max(worst, *(abs(one[token] - other[token]) for token in both))
    return worst
