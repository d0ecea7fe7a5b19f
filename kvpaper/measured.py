"""Records to rows: what the lab measured, fitted, and held against the formulas.

Pure: it takes records and writes nothing. Every row names its machine and its run. Records of
different machines are never pooled, and what a formula predicts of one run is set by another.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvpaper import units
from kvpaper.formulas import recovery, size, slack
from kvpaper.lab import weights

Record = Mapping[str, Any]
Row = dict[str, Any]
# Of log-probabilities in float32: rounding gives 1e-6, one other token among 1,024 about 1e-3.
TOLERANCE = 1e-4


def machine(record: Record) -> str:
    """What a number of this record was taken on: GPUs if any, processor, cores, memory."""
    told = record["machine"]
    memory = units.per(told["memory_bytes"], "GiB")
    own = f"{told['processor']}, {told['cores']} cores, {memory:.0f} GiB"
    return ", ".join([*(gpu["name"] for gpu in told.get("gpus", ())), own])


def runs(records: Iterable[Record], instrument: str) -> Iterator[tuple[Record, Row]]:
    """Completed records of an instrument with their coordinates: machine, and number of the run."""
    count: Counter[str] = Counter()
    for record in sorted(records, key=lambda record: record["started_at"]):
        if record["instrument"] == instrument and record["outcome"] == "completed":
            at = machine(record)
            count[at] += 1
            yield record, {"machine": at, "run": count[at]}


def fit_fetch_time(moved_bytes: Sequence[float], times_s: Sequence[float]) -> dict[str, float]:
    """Fixed overhead and rate of ``latency + bytes / rate``, with 95 % intervals.

    Least squares of relative residuals, since timings scatter in proportion to what they are.
    Student's t of the residuals: noise and what is no straight line both widen the interval. A
    latency below zero is none: then the line goes through the origin.

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

    moved, time = np.asarray(moved_bytes, float), np.asarray(times_s, float)
    design = np.column_stack([np.ones_like(moved), moved]) / time[:, None]
    answer, *_ = np.linalg.lstsq(design, np.ones_like(time), rcond=None)
    if answer[0] < 0:
        answer = np.array([0.0, np.sum(design[:, 1]) / np.sum(design[:, 1] ** 2)])
    residuals = design @ answer - 1
    freedom = len(moved) - 2
    variance = residuals @ residuals / freedom * np.linalg.inv(design.T @ design)
    half = stats.t.ppf(0.975, freedom) * np.sqrt(np.diag(variance))
    low, high = answer - half, answer + half
    return {
        "latency_s": answer[0],
        "latency_s_low": max(low[0], 0.0),
        "latency_s_high": high[0],
        "bytes_per_s": 1 / answer[1],
        "bytes_per_s_low": 1 / high[1],
        "bytes_per_s_high": 1 / low[1] if low[1] > 0 else np.inf,
        "residual": float(np.sqrt(np.mean(residuals**2))),
    }


def everything(records: Iterable[Record]) -> list[Row]:
    """All rows that the records give."""
    records = list(records)
    parts = (tiers, fits, levels, cells, agreement, splits, transfers, ratios)
    return [row for part in parts for row in part(records)]


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


def ratios(records: Iterable[Record]) -> list[Row]:
    """What was measured in one run over what a formula predicts with what another run gave."""
    records = list(records)
    return [
        *_fetch_ratios(records),
        *_first_token_ratios(records),
        *_recompute_ratios(records),
        *_transfer_ratios(records),
        *_size_ratios(records),
    ]


def summary(ratio_rows: Iterable[Row]) -> list[Row]:
    """Median and range of the ratios of each formula, by what it was tested on."""
    names = ("formula", "on", "machine")
    rows = []
    for key, part in _grouped(ratio_rows, names):
        values = [row["value"] for row in part]
        ends = {"low": min(values), "high": max(values)}
        rows.append(_row("ratio", np.median(values), points=len(values), **ends, **key))
    return rows


def levels(records: Iterable[Record]) -> list[Row]:
    """Time to first token and cached tokens by where the prefix came from, with quartiles."""
    return [
        {**_spread(row), **at, **_coordinates(row), **_told(record)}
        for record, at in runs(records, "canary")
        for row in record["rows"]
        if row["quantity"] in ("ttft_s", "cached_tokens") and "level" in row
    ]


def cells(records: Iterable[Record]) -> list[Row]:
    """Cached tokens by cell of the 2x2 and stage; of a cell that died, what said so."""
    rows = []
    for record in _factorial(records):
        at = {**_cell(record), "tokens": record["parameters"]["tokens"]}
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
    the same machine; of two engines, that of the one that did the prefill.
    """
    records = list(records)
    rows = []
    for record, at in runs(records, "disagg"):
        told = _logprobs(record)
        if told:
            where = {"machine": at["machine"], "model": _model(record), "stage": "decode engine"}
            where["cell"] = f"two engines, {record['parameters']['connector']}"
            differs = _difference(told["decode"], told["prefill"])
            rows.append(_row("logprob_difference", differs, **where))
    chosen = _factorial(records)
    plain = (record for record in chosen if _cell(record)["cell"] == "none, none")
    reference = {(machine(one), _model(one)): _logprobs(one)["first"] for one in plain}
    return rows + [
        _row("logprob_difference", _difference(told, reference[of]), stage=stage, **_cell(record))
        for record in chosen
        if (of := (machine(record), _model(record))) in reference
        for stage, told in _logprobs(record).items()
    ]


def splits(records: Iterable[Record]) -> list[Row]:
    """Time to first token on one engine and on two, by prompt length."""
    return [
        {**_spread(row), **at, **_coordinates(row), **_told(record)}
        for record, at in runs(records, "disagg")
        for row in record["rows"]
        if row.get("part") == "proof" and row["quantity"] in ("ttft_s", "prefill_s")
    ]


def transfers(records: Iterable[Record]) -> list[Row]:
    """Time between the end of the prefill and the first token, less one decode step.

    That is what moving the cache from one engine to the other took, the engines' handling included.
    Lengths of which nothing came are left out: LMCache moves whole chunks.
    """
    rows = []
    for record, at in runs(records, "disagg"):
        found = {}
        came = {row.get("prompt_tokens") for row in record["rows"] if row.get("name") in _CAME}
        for row in record["rows"]:
            if row.get("part") == "proof" and row.get("split") == "two engines":
                found[row["quantity"], row["prompt_tokens"]] = np.asarray(row["values"])
        step_s = _step_s(record)
        for quantity, tokens in found:
            if quantity == "prefill_s" and step_s and tokens in came:
                times = found["ttft_s", tokens] - found["prefill_s", tokens] - step_s
                of = {"prompt_tokens": tokens, "bytes": tokens * _token_bytes(record)}
                spread = _spread({"quantity": "transfer_time_s", "values": times})
                rows.append({**spread, **at, **_told(record), **of})
    return rows


def _step_s(record: Record) -> float | None:
    """Median time of one decode step of one sequence."""
    steps = [
        value
        for row in record["rows"]
        if row["quantity"] == "tpot_s" and row.get("batch") == 1
        for value in row["values"]
    ]
    return float(np.median(steps)) if steps else None


def _fetch_ratios(records: list[Record]) -> list[Row]:
    """Of every tier: its times, by the fit of another run."""
    fitted = {}
    for row in fits(records):
        where = *(row[name] for name in _PLACE), row["run"]
        fitted.setdefault(where, {})[row["quantity"]] = row["value"]
    rows = []
    for row in tiers(records):
        place = tuple(row[name] for name in _PLACE)
        other = next((fitted[w] for w in fitted if w[:-1] == place and w[-1] != row["run"]), None)
        if row["quantity"] == "fetch_time_s" and other:
            predicted = recovery.fetch_time(
                row["bytes"], other["fitted_bytes_per_s"], other["fitted_latency_s"]
            )
            at = {"on": f"{row['tier']}, {row['way']}", "bytes": row["bytes"], "run": row["run"]}
            at["machine"] = row["machine"]
            rows.append(_row("ratio", row["value"] / predicted, formula="fetch_time", **at))
    return rows


def _first_token_ratios(records: list[Record]) -> list[Row]:
    """Of a hit in LMCache's DRAM: a hit in the engine, and the fetch by the fit of the tier.

    Only where both hits leave as much to compute: an engine caches whole blocks, LMCache chunks.
    """
    fitted = {
        (row["machine"], row["quantity"]): row["value"]
        for row in fits(records)
        if row["tier"] == "LMCache DRAM" and row["shape"] == "canary"
    }
    rows = []
    for key, part in _grouped(levels(records), ("machine", "run", "model", "prompt_tokens")):
        told = {(row["level"], row["quantity"]): row for row in part}
        engine, behind = (told.get((name, "ttft_s")) for name in ("engine", "connector"))
        at = {"machine": key["machine"], "run": key["run"], "tokens": key["prompt_tokens"]}
        cached, same = (
            told.get((name, "cached_tokens"), {}).get("value") for name in ("connector", "engine")
        )
        if engine and behind and cached == same and (key["machine"], "fitted_latency_s") in fitted:
            fetch_s = recovery.fetch_time(
                cached * engine["token_bytes"],
                fitted[key["machine"], "fitted_bytes_per_s"],
                fitted[key["machine"], "fitted_latency_s"],
            )
            predicted = slack.ttft(0.0, fetch_s, engine["value"], 0.0)
            on = f"{key['model']}, hit in LMCache's DRAM"
            rows.append(_row("ratio", behind["value"] / predicted, formula="ttft", on=on, **at))
    return rows


def _recompute_ratios(records: list[Record]) -> list[Row]:
    """Of a prefill: all lengths by the compute rate that another run reached at its longest."""
    cold = [row for row in levels(records) if row["level"] == "recompute"]
    cold = [row for row in cold if row["quantity"] == "ttft_s"]
    rows = []
    for key, part in _grouped(cold, ("machine", "model")):
        for row in part:
            others = [other for other in part if other["run"] != row["run"]]
            if not others:
                continue
            longest = max(others, key=lambda other: other["prompt_tokens"])
            flops_per_s = _prefill_flops(longest) / longest["value"]
            predicted = _prefill_flops(row) / flops_per_s
            at = {"tokens": row["prompt_tokens"], "run": row["run"], "machine": key["machine"]}
            on = f"{key['model']}, one rate for all lengths"
            rows.append(
                _row("ratio", row["value"] / predicted, formula="recompute_time", on=on, **at)
            )
    return rows


def _prefill_flops(row: Row) -> float:
    return recovery.recompute_time(
        row["prompt_tokens"],
        0,
        active_params=row["active_params"],
        layers=row["layers"],
        query_heads=row["query_heads"],
        head_dim=row["head_dim"],
        flops_per_s=1.0,
    )


def _transfer_ratios(records: list[Record]) -> list[Row]:
    """Of a transfer between engines: its times, by latency and rate of another run."""
    moved = transfers(records)
    rows = []
    for key, part in _grouped(moved, ("machine", "connector")):
        for row in part:
            others = [other for other in part if other["run"] != row["run"]]
            others = [other for other in others if other["run"] == others[0]["run"]]
            if len(others) < 4:
                continue
            fit = fit_fetch_time(
                [other["bytes"] for other in others], [other["value"] for other in others]
            )
            # These engines send when the prefill has ended: one layer stands for that.
            predicted = slack.visible_transfer_time(
                row["bytes"], fit["bytes_per_s"], fit["latency_s"], layers=1, prefill_time_s=0.0
            )
            at = {"tokens": row["prompt_tokens"], "run": row["run"], "machine": key["machine"]}
            formula = {"formula": "visible_transfer_time", "on": key["connector"]}
            rows.append(_row("ratio", row["value"] / predicted, **formula, **at))
    return rows


def _size_ratios(records: list[Record]) -> list[Row]:
    """Of the bytes that came from the other engine or from a disk: those of the prompts sent."""
    rows = []
    for record, at in runs(records, "canary"):
        for row in record["rows"]:
            if row["quantity"] == "read_bytes" and row["level"] == "disk":
                predicted = size.kv_bytes_per_token(**_heads(record)) * row["prompt_tokens"]
                of = {"tokens": row["prompt_tokens"], "on": "LMCache's disk", **at}
                value = np.median(row["values"]) / predicted
                rows.append(_row("ratio", value, formula="kv_bytes_per_token", **of))
    for record, at in runs(records, "disagg"):
        for row in record["rows"]:
            if row.get("name") == _MOVED and row.get("part") == "proof":
                sent = row["requests"] * row["prompt_tokens"]
                predicted = size.kv_bytes_per_token(**_heads(record)) * sent
                at_length = {"tokens": row["prompt_tokens"], **at}
                formula = {"formula": "kv_bytes_per_token", "on": record["parameters"]["connector"]}
                rows.append(_row("ratio", row["values"][0] / predicted, **formula, **at_length))
    return rows


_MOVED = "vllm:nixl_bytes_transferred_sum"
_CAME = (_MOVED, "vllm:external_prefix_cache_hits_total")
_PLACE = ("machine", "tier", "way", "shape", "to")
_TIER = ("quantity", *_PLACE, "run")


def _row(quantity: str, value: float, **at: Any) -> Row:
    return {"quantity": quantity, "kind": "measured", "value": float(value), **at}


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


def _told(record: Record) -> Row:
    """Connector and model of a record, and what a formula needs to know of the model."""
    model = _model(record)
    at = {"connector": record["parameters"]["connector"], "model": model}
    config = weights.SHAPES.get(model)
    if config is None:
        return at
    at["token_bytes"] = _token_bytes(record)
    at["active_params"] = weights.active_params(model)
    names = {"num_hidden_layers": "layers", "num_attention_heads": "query_heads"}
    return (
        at | {name: config[key] for key, name in names.items()} | {"head_dim": config["head_dim"]}
    )


def _token_bytes(record: Record) -> int:
    return int(size.kv_bytes_per_token(**_heads(record)))


def _heads(record: Record) -> dict[str, float]:
    config = weights.SHAPES[_model(record)]
    return {
        "layers": config["num_hidden_layers"],
        "kv_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "element_bytes": 4 if record["parameters"]["engine"]["dtype"] == "float32" else 2,
    }


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
