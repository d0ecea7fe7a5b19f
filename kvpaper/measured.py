"""Records to rows: what the lab measured, fitted, and held against the formulas.

Pure: it takes records and writes nothing. Every row names its machine and its run. Records of
different machines are never pooled, and what a formula predicts of one run is set by another.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvpaper import units
from kvpaper.formulas import decode, recovery, size, slack
from kvpaper.lab import weights

Record = Mapping[str, Any]
Row = dict[str, Any]
# A machine is quiet while others use less than this share of its cores.
QUIET_SHARE = 0.1
LOADS = ("quiet", "unknown", "shared")
_MOVED = "vllm:nixl_bytes_transferred_sum"
_HITS = "vllm:external_prefix_cache_hits_total"
_RUN = ("machine", "instrument", "run", "busy_cores_of_others", "load")
_TIER = ("machine", "tier", "way", "shape", "to")
_FITTED = ("latency_s", "bytes_per_s")
_COMPARED = {"one token differs": "one token differs", "spoiled disk": "spoiled cache"}


def machine(record: Record) -> str:
    """What a number of this record was taken on: GPUs if any, processor, cores, memory, kernel.

    Rented machines often hide which processor they have; another kernel is then another host.
    """
    told = record["machine"]
    memory = units.per(told["memory_bytes"], "GiB")
    own = f"{told['processor']}, {told['cores']} cores, {memory:.0f} GiB, {told['kernel']}"
    return ", ".join([*(gpu["name"] for gpu in told.get("gpus", ())), own])


def runs(
    records: Iterable[Record], instrument: str, outcome: str = "completed"
) -> Iterator[tuple[Record, Row]]:
    """Records of an instrument, the oldest first, each with the coordinates of all its rows.

    Those are machine, instrument, number of the run, the cores that others kept busy meanwhile, and
    that in a word: ``quiet``, ``shared``, or ``unknown`` where a record does not tell.
    """
    count: Counter[str] = Counter()
    for record in sorted(records, key=lambda record: record["started_at"]):
        if record["instrument"] == instrument and record["outcome"] == outcome:
            at = {"machine": machine(record), "instrument": instrument}
            count[at["machine"]] += 1
            yield record, {**at, "run": count[at["machine"]], **_load(record)}


def _load(record: Record) -> Row:
    busy, load = record["machine"].get("busy_cores_of_others"), "unknown"
    if busy is not None:
        load = "quiet" if busy < QUIET_SHARE * record["machine"]["cores"] else "shared"
    return {"busy_cores_of_others": busy, "load": load}


def over_runs(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """One row for each combination of coordinates: the median of all runs, lowest and highest.

    ``runs`` tells how many there are of which load. There is no band where all are the same.
    """
    found = []
    for key, part in _grouped(rows, ("quantity", *names)):
        values = [row["value"] for row in part]
        loads = Counter(load for _, load in {(row["run"], row["load"]) for row in part})
        told = ", ".join(f"{loads[load]} {load}" for load in LOADS if load in loads)
        low, high = (min(values), max(values)) if min(values) < max(values) else (None, None)
        found.append(_row(value=np.median(values), low=low, high=high, **key, runs=told))
    return found


def overview(records: Iterable[Record]) -> list[Row]:
    """Every record: what it is of, how it ended, how long it took, how busy others were."""
    rows = []
    for record in sorted(records, key=lambda record: record["started_at"]):
        asked = record["parameters"]
        of = [_model(record)] if "engine" in asked else []
        of += [f"{name} {asked[name]}" for name in ("cap", "connector") if name in asked]
        rows.append(
            {
                "kind": "measured",
                "machine": machine(record),
                "started": record["started_at"][:16].replace("T", " "),
                "instrument": record["instrument"],
                "of": ", ".join(of),
                "outcome": record["outcome"],
                "duration_s": record["duration_s"],
                **_load(record),
            }
        )
    return rows


def two_by_two(records: Iterable[Record]) -> list[Row]:
    """Cached tokens of the 2x2 over runs, by stage."""
    asked = ("repeat", "evicted", "reset")
    found = (row for row in cells(records) if row["stage"] in asked)
    return over_runs(found, ("machine", "model", "cap", "connector", "stage"))


def summary(ratio_rows: Iterable[Row]) -> list[Row]:
    """Median and 10 to 90 % of the ratios of each formula, by what it was tested on and load."""
    rows = []
    for key, part in _grouped(ratio_rows, ("machine", "formula", "on", "load")):
        ends = np.quantile([row["value"] for row in part], (0.1, 0.5, 0.9))
        low, middle, high = ends.round(2)
        rows.append(_row("ratio", middle, low=low, high=high, **key, points=len(part)))
    return rows


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
    parts = (tiers, fits, levels, cells, deaths, agreement, splits, transfers, moved, loops, ratios)
    return [row for part in parts for row in part(records)]


def tiers(records: Iterable[Record]) -> list[Row]:
    """Fetch and store times by tier and length: medians with quartiles."""
    return _points(records, "tiers", "fetch_time_s", "store_time_s")


def fits(records: Iterable[Record]) -> list[Row]:
    """Fixed overhead and rate of each tier, of each run, and what the line leaves over."""
    rows = []
    fetched = (row for row in tiers(records) if row["quantity"] == "fetch_time_s")
    for at, part in _grouped(fetched, (*_TIER, "instrument", "run", "load")):
        if len(part) < 4:
            continue
        fit = _fit(part)
        for name in _FITTED:
            ends = {"low": fit[f"{name}_low"], "high": fit[f"{name}_high"]}
            rows.append(_row(f"fitted_{name}", fit[name], **ends, **at))
        rows.append(_row("fit_residual", fit["residual"], **at))
    return rows


def levels(records: Iterable[Record]) -> list[Row]:
    """Time to first token and cached tokens by where the prefix came from, with quartiles.

    With a connector the level ``engine`` has its last block from there, without it is called
    ``engine alone``.
    """
    rows = _points(records, "canary", "ttft_s", "cached_tokens")
    for row in rows:
        if row["level"] == "engine" and row["connector"] == "none":
            row["level"] = "engine alone"
    return rows


def cells(records: Iterable[Record]) -> list[Row]:
    """Cached tokens by cell of the 2x2 and stage: the fewest of any prompt."""
    return [
        _row("cached_tokens", min(row["values"]), stage=row["stage"], **at, **_cell(record))
        for record, at in runs(records, "factorial")
        for row in record["rows"]
        if row["quantity"] == "cached_tokens"
    ]


def deaths(records: Iterable[Record]) -> list[Row]:
    """Starts of the 2x2 that died: message, cause, and the line and the process that told it."""
    rows = []
    for record, at in runs(records, "factorial", "failed"):
        cause = record["cause"]
        line = cause["evidence"][0]
        outer = [one["text"] for one in cause.get("ruled_out", ()) if "outer" in one["why"]]
        told = {"message": "".join(outer[:1]), "cause": cause["kind"], "process": line["process"]}
        told["line"] = line["text"].partition(". ")[0]  # its advice left out
        rows.append(_row("deaths", 1, **told, **at, **_cell(record)))
    return rows


def agreement(records: Iterable[Record]) -> list[Row]:
    """Largest difference of a log-probability from the reference, by cell and stage.

    The reference is the first answer of the newest cell without cap and connector, of the same
    model on the same machine; of two engines, that of the one that did the prefill.
    """
    records = list(records)
    rows = []
    for record, at in runs(records, "disagg"):
        if told := _logprobs(record):
            where = {"model": _model(record), "stage": "decode engine", "compared": "same prompt"}
            where["cell"] = f"two engines, {record['parameters']['connector']}"
            differs = _difference(told["decode"], told["prefill"])
            rows.append(_row("logprob_difference", differs, **where, **at))
    found = [(one, {**at, **_cell(one)}) for one, at in runs(records, "factorial")]
    reference = {
        (at["machine"], at["model"]): _logprobs(record)["first"]
        for record, at in found
        if at["cell"] == "none, none"
    }
    return rows + [
        _row(
            "logprob_difference",
            _difference(told, reference[of]),
            stage=stage,
            compared=_COMPARED.get(stage, "same prompt"),
            **at,
        )
        for record, at in found
        if (of := (at["machine"], at["model"])) in reference
        for stage, told in _logprobs(record).items()
    ]


def splits(records: Iterable[Record]) -> list[Row]:
    """Time to first token on one engine and on two, by prompt length."""
    return _points(records, "disagg", "ttft_s", part="proof")


def transfers(records: Iterable[Record]) -> list[Row]:
    """Time between the end of the prefill and the first token, less one decode step.

    That is what moving the cache from one engine to the other took, the engines' handling included.
    Lengths of which nothing came are left out: LMCache moves whole chunks.
    """
    rows = []
    for record, at in runs(records, "disagg"):
        served = _served(record)
        came = [row.get("prompt_tokens") for row in record["rows"] if row.get("name") == _HITS]
        values_s = {
            (row["quantity"], row["prompt_tokens"]): np.asarray(row["values"])
            for row in record["rows"]
            if row.get("part") == "proof" and row.get("split") == "two engines"
        }
        steps = _points([record], "disagg", "tpot_s", part="calibration", batch=1)
        for tokens in [of for quantity, of in values_s if quantity == "prefill_s" and of in came]:
            step_s = np.median([row["value"] for row in steps])
            times_s = values_s["ttft_s", tokens] - values_s["prefill_s", tokens] - step_s
            of = {"split": "transfer", "prompt_tokens": tokens}
            if "token_bytes" in served:
                of["bytes"] = tokens * served["token_bytes"]
            rows.append({**_spread("transfer_time_s", times_s), **at, **served, **of})
    return rows


def moved(records: Iterable[Record]) -> list[Row]:
    """Tokens that the decode engine had from the other one, as a share of those of the prompts."""
    return [
        _row(
            "moved_share",
            row["values"][0] / (row["requests"] * row["prompt_tokens"]),
            split="moved share",
            prompt_tokens=row["prompt_tokens"],
            **at,
            **_served(record),
        )
        for record, at in runs(records, "disagg")
        for row in record["rows"]
        if row.get("part") == "proof" and row.get("name") == _HITS and row["engine"] == "decode"
    ]


def loops(records: Iterable[Record]) -> list[Row]:
    """What the requests of an open loop saw: first token, token after token, cached share."""
    rows = []
    for record, at in runs(records, "disagg"):
        for (pattern, rate_per_s, seed), told in played(record).items():
            name = f"{pattern}, {len(told['ttft_s'])} requests at {rate_per_s:g}/s, seed {seed}"
            of = {**at, **_served(record), "loop": name}
            tpot_s = (told["latency_s"] - told["ttft_s"]) / (told["output_tokens"] - 1)
            cached = told.get("prefill_cached_tokens", told["cached_tokens"])
            share = cached.sum() / told["prompt_tokens"].sum()
            rows += [
                _row("ttft_s", np.median(told["ttft_s"]), shown="TTFT, median", **of),
                _row("ttft_s", np.quantile(told["ttft_s"], 0.9), shown="TTFT, 90 %", **of),
                _row("tpot_s", np.quantile(tpot_s, 0.9), shown="TPOT, 90 %", **of),
                _row("cached_share", share, shown="cached share", **of),
            ]
    return rows


def played(record: Record) -> dict[tuple[str, float, int], dict[str, np.ndarray]]:
    """Open loops of a record by pattern, rate and seed: values of each request by quantity."""
    found: dict[tuple[str, float, int], dict[str, np.ndarray]] = {}
    for row in record["rows"]:
        if row.get("part") == "comparison" and row["quantity"] != "counter":
            told = found.setdefault((row["pattern"], row["rate_per_s"], row["seed"]), {})
            told[row["quantity"]] = np.asarray(row["values"])
    return found


def ratios(records: Iterable[Record]) -> list[Row]:
    """What was measured in one run over what a formula predicts with what another run gave."""
    records = list(records)
    parts = (_fetch_ratios, _first_token_ratios, _recompute_ratios)
    parts += (_transfer_ratios, _decode_ratios, _size_ratios)
    return [row for part in parts for row in part(records)]


def _fetch_ratios(records: list[Record]) -> Iterator[Row]:
    """Of every tier: its times, by the fit of another run."""
    fetched = [row for row in tiers(records) if row["quantity"] == "fetch_time_s"]
    for row, others in _with_other_runs(fetched, _TIER):
        if len(others) > 3:
            fit = _fit(others)
            predicted = recovery.fetch_time(row["bytes"], fit["bytes_per_s"], fit["latency_s"])
            on = f"{row['tier']}, {row['way']}"
            yield _ratio("fetch_time", on, row, predicted, tokens=row["tokens"])


def _first_token_ratios(records: list[Record]) -> Iterator[Row]:
    """Of a hit in LMCache's DRAM: a hit in the engine, and the fetch by the fits of the tier.

    Only where both hits leave as much to compute: an engine caches whole blocks, LMCache chunks.
    """
    fitted: dict[str, Row] = {}
    for row in over_runs(fits(records), ("machine", "tier", "shape")):
        if row["tier"] == "LMCache DRAM" and row["shape"] == "canary":
            fitted.setdefault(row["machine"], {})[row["quantity"]] = row["value"]
    hits = (row for row in levels(records) if row["machine"] in fitted and "token_bytes" in row)
    hits = (row for row in hits if row["level"] in ("engine", "connector"))
    for at, part in _grouped(hits, ("machine", "run", "model", "prompt_tokens")):
        told = {(row["level"], row["quantity"]): row for row in part}
        engine, behind = (told[level, "ttft_s"] for level in ("engine", "connector"))
        same, cached = (told[level, "cached_tokens"]["value"] for level in ("engine", "connector"))
        if cached == same:
            latency_s, rate = (fitted[at["machine"]][f"fitted_{of}"] for of in _FITTED)
            fetch_s = recovery.fetch_time(cached * engine["token_bytes"], rate, latency_s)
            predicted = slack.ttft(0.0, fetch_s, engine["value"], 0.0)
            on = f"{at['model']}, hit in LMCache's DRAM"
            yield _ratio("ttft", on, behind, predicted, tokens=at["prompt_tokens"])


def _recompute_ratios(records: list[Record]) -> Iterator[Row]:
    """Of a prefill: all lengths by the compute rate that another run reached at its longest."""
    cold = [
        row | {"prefix_tokens": row.get("prefix_tokens", 0)}
        for row in [
            *_points(records, "canary", "ttft_s", level="recompute"),
            *_points(records, "disagg", "ttft_s", part="calibration"),
        ]
        if row["model"] in weights.SHAPES and "split" not in row
    ]
    for row, others in _with_other_runs(cold, ("machine", "instrument", "model", "connector")):
        longest = max(others, key=lambda other: other["prompt_tokens"] - other["prefix_tokens"])
        predicted = _prefill_flops(row) / (_prefill_flops(longest) / longest["value"])
        on = f"{row['model']}, {'half' if row['prefix_tokens'] else 'nothing'} cached"
        yield _ratio("recompute_time", on, row, predicted, tokens=row["prompt_tokens"])


def _prefill_flops(row: Row) -> float:
    config = weights.SHAPES[row["model"]]
    return recovery.recompute_time(
        row["prompt_tokens"] - row["prefix_tokens"],
        row["prefix_tokens"],
        active_params=weights.params(row["model"]),
        layers=config["num_hidden_layers"],
        query_heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        flops_per_s=1.0,
    )


def _transfer_ratios(records: list[Record]) -> Iterator[Row]:
    """Of a transfer between engines: its times, by latency and rate of another run."""
    moved = [row for row in transfers(records) if "bytes" in row]
    for row, others in _with_other_runs(moved, ("machine", "model", "connector")):
        if len(others) > 3:
            fit = _fit(others)
            # These engines send when the prefill has ended: one layer stands for that.
            predicted = slack.visible_transfer_time(
                row["bytes"], fit["bytes_per_s"], fit["latency_s"], layers=1, prefill_time_s=0.0
            )
            tokens = row["prompt_tokens"]
            yield _ratio("visible_transfer_time", row["connector"], row, predicted, tokens=tokens)


def _decode_ratios(records: list[Record]) -> Iterator[Row]:
    """Of a decode step: all batches by the rate at which another run read for a batch of one."""
    steps = _points(records, "disagg", "tpot_s", part="calibration")
    steps = [row for row in steps if row["model"] in weights.SHAPES]
    for row, others in _with_other_runs(steps, ("machine", "model", "connector", "context_tokens")):
        alone = [other for other in others if other["batch"] == 1]
        if alone and row["batch"] > 1:
            read_bytes_per_s = _step_time(alone[0], 1.0) / alone[0]["value"]
            on = f"{row['model']}, batch of {row['batch']}"
            at = {"tokens": row["context_tokens"]}
            yield _ratio("decode_step_time", on, row, _step_time(row, read_bytes_per_s), **at)


def _step_time(row: Row, read_bytes_per_s: float) -> float:
    config = weights.SHAPES[row["model"]]
    share = config.get("num_experts_per_tok", 1) / config.get("num_experts", 1)
    active, total = (weights.params(row["model"], of_all) for of_all in (False, True))
    held = decode.weight_bytes(row["batch"], total, active, share, row["element_bytes"])
    kv_bytes = row["context_tokens"] * row["token_bytes"]
    return decode.decode_step_time(row["batch"], kv_bytes, held, active, read_bytes_per_s, np.inf)


def _size_ratios(records: list[Record]) -> Iterator[Row]:
    """Of the bytes that came from the other engine or from a disk: those of the prompts sent."""
    came = _points(records, "canary", "read_bytes", level="disk")
    came += _points(records, "disagg", "counter", part="proof", name=_MOVED)
    for row in came:
        if "token_bytes" in row:
            on = row["connector"] if row["instrument"] == "disagg" else "LMCache's disk"
            tokens = row["prompt_tokens"]
            predicted = tokens * row.get("requests", 1) * row["token_bytes"]
            yield _ratio("kv_bytes_per_token", on, row, predicted, tokens=tokens)


def _ratio(formula: str, on: str, row: Row, predicted: float, **at: Any) -> Row:
    at |= {name: row[name] for name in _RUN}
    return _row("ratio", row["value"] / predicted, formula=formula, on=on, **at)


def _row(quantity: str, value: float, **at: Any) -> Row:
    return {"quantity": quantity, "kind": "measured", "value": float(value), **at}


def _spread(quantity: str, values: Sequence[float]) -> Row:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return _row(quantity, middle, low=low, high=high)


def _points(
    records: Iterable[Record], instrument: str, *quantities: str, **where: Any
) -> list[Row]:
    """Medians with quartiles of what an instrument recorded, with all that is known of each."""
    own = ("quantity", "unit", "kind", "warmups", "values")
    return [
        _spread(row["quantity"], row["values"])
        | at
        | {name: value for name, value in row.items() if name not in own}
        | _served(record)
        for record, at in runs(records, instrument)
        for row in record["rows"]
        if row["quantity"] in quantities and where.items() <= row.items()
    ]


def _fit(rows: Sequence[Row]) -> dict[str, float]:
    return fit_fetch_time([row["bytes"] for row in rows], [row["value"] for row in rows])


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> Iterator[tuple[Row, list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    for values, part in groups.items():
        yield dict(zip(names, values, strict=True)), part


def _with_other_runs(rows: Iterable[Row], names: Sequence[str]) -> Iterator[tuple[Row, list[Row]]]:
    """Each row of a group with the rows of each other run; its load is the worse of both."""
    for _, part in _grouped(rows, names):
        by_run = [found for _, found in _grouped(part, ("run",))]
        for own, others in itertools.permutations(by_run, 2):
            load = max(own[0]["load"], others[0]["load"], key=LOADS.index)
            yield from (({**row, "load": load}, others) for row in own)


def _served(record: Record) -> Row:
    """Connector and model of a record, if any; of a shape of the lab what a token's cache takes.

    One engine that has not all cores is told apart by its connector.
    """
    if "engine" not in record["parameters"]:
        return {}
    at = {"connector": record["parameters"]["connector"], "model": _model(record)}
    threads = record["parameters"]["engine"].get("threads", math.inf)
    if at["connector"] == "none" and threads < record["machine"]["cores"]:
        at["connector"] = f"none, {threads} of the cores"
    if config := weights.SHAPES.get(at["model"]):
        element_bytes = 4 if record["parameters"]["engine"]["dtype"] == "float32" else 2
        per_token = size.kv_bytes_per_token(
            config["num_hidden_layers"],
            config["num_key_value_heads"],
            config["head_dim"],
            element_bytes,
        )
        at |= {"element_bytes": element_bytes, "token_bytes": int(per_token)}
    return at


def _model(record: Record) -> str:
    """Name of the shape that was served, by which its folder is called, else of the folder."""
    folder = record["parameters"]["engine"]["model"].rpartition("/")[2]
    shape = folder.rpartition("-")[0]
    return shape if shape in weights.SHAPES else folder


def _cell(record: Record) -> Row:
    asked = record["parameters"]
    cap, connector = asked["cap"], asked["connector"]
    at = {"model": _model(record), "cap": cap, "connector": connector}
    return {**at, "cell": f"{cap}, {connector}", "tokens": asked["tokens"]}


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
