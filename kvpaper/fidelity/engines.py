"""The replay held against two real engines of the lab.

A replay is set by requests that came one at a time and batches that ran alone: those of another run
of the same machine and engines where there is one, else those of the same run. No open loop sets
anything; each is replayed as it was sent.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kvpaper import measured
from kvpaper.errors import InputError
from kvpaper.latency import DecodeTable, PrefillTable
from kvpaper.results import Row, row
from kvpaper.serving import closed_form
from kvpaper.serving.fleet import Fleet, Pool, Tier
from kvpaper.serving.replay import replay
from kvpaper.traces.block_trace import BlockTrace
from kvpaper.traces.dense import dense_ids

Record = Mapping[str, Any]
# Of each request of an open loop, by quantity.
Sent = dict[str, np.ndarray]
PERCENTILES = (50, 90)
# Most tokens of a step: what vLLM takes by default where it serves on a processor.
STEP_TOKENS = 2048
# LMCache's memory in the lab: more than a loop ever sends.
_BEHIND_BYTES = 1e9
_LEAST = 4
_PARTS = ("proof", "calibration")


def rows(records: Iterable[Record]) -> list[Row]:
    """Every open loop of every record: measured, simulated, predicted, and measured over both.

    Raises
    ------
    InputError
        If a run that could set the replay has no calibration.
    """
    runs = list(measured.runs(records, "disagg"))
    found = []
    for record, at in runs:
        others = [one for one, _ in runs if one is not record and _engines(one) == _engines(record)]
        setter = others[-1] if others else record
        told = {name: at[name] for name in ("machine", "run", "load")}
        told["connector"] = record["parameters"]["connector"]
        told["set_by"] = "another run" if others else "single requests of the run"
        for loop, sent in loops(record):
            found += _loop_rows(record, setter, sent, {**told, **loop})
    return found


def _engines(record: Record) -> tuple:
    """What two runs must share for one to set the other's replay."""
    asked = record["parameters"]
    return measured.machine(record), asked["connector"], asked["engine"]


def loops(record: Record) -> Iterator[tuple[dict[str, Any], Sent]]:
    """The open loops of a record, each by its coordinates: values in order of sending."""
    for (pattern, rate_per_s, seed), values in measured.played(record).items():
        order = np.argsort(values["sent_s"], kind="stable")
        sent = {name: of_requests[order] for name, of_requests in values.items()}
        yield {"pattern": pattern, "rate_per_s": rate_per_s, "seed": seed}, sent


def trace(sent: Sent, block_tokens: int, answers: bool) -> BlockTrace:
    """What was sent, as it was sent: a prompt begins with its group's blocks, the rest is its own.

    ``answers`` adds the blocks that an answer fills. Nobody uses them again, but an engine lets
    them age like any other. A block that is not full does not age: it is the next to be taken.
    """
    prompt, output = sent["prompt_tokens"], sent["output_tokens"]
    counts = (prompt + (output - 1) * answers) // block_tokens
    offsets = np.concatenate([[0], np.cumsum(counts)])
    request = np.repeat(np.arange(len(prompt)), counts)
    place = np.arange(offsets[-1]) - offsets[request]
    shared = place < (sent["shared_tokens"] // block_tokens)[request]
    owner = np.where(shared, sent["group"][request], -1 - request)
    return BlockTrace(
        arrival_s=sent["sent_s"] - sent["sent_s"][0],
        input_tokens=prompt.astype(np.int64),
        output_tokens=output.astype(np.int64),
        session=np.full(len(prompt), -1, np.int32),
        offsets=offsets.astype(np.int64),
        blocks=dense_ids(owner * np.int64(place.max() + 1) + place)[0],
        block_tokens=block_tokens,
    )


def fleet(record: Record, setter: Record, most_tokens: float) -> Fleet:
    """The engines of a record with latencies from the single requests of another.

    Parameters
    ----------
    most_tokens : float
        Longest context, prompt and answer [token].

    Raises
    ------
    InputError
        If ``setter`` has no calibration.
    """
    block_tokens, blocks = _blocks(record)
    held = (blocks - 1) * block_tokens  # one block is kept empty
    tables = _prefill(setter, max(most_tokens, STEP_TOKENS)), _decode(setter, most_tokens)
    if record["parameters"]["connector"] == "none":
        return Fleet(Pool(1, 1, held, *tables, STEP_TOKENS), None, 1.0, answers=False)
    moved = measured.transfers([setter])
    if len(moved) < _LEAST:
        found = f"transfers of {len(moved)} lengths"
        raise InputError(f"record of {setter['started_at']}", found, f"{_LEAST} or more")
    size, times = ([one[name] for one in moved] for name in ("bytes", "value"))
    link = measured.fit_fetch_time(size, times)
    # The decode engine computes the last token of the prompt again: a step before the first token.
    step_s = float(tables[1].step_time(1, np.mean([one["prompt_tokens"] for one in moved])))
    rate = link["bytes_per_s"]
    behind = Tier("dram", _BEHIND_BYTES, rate, access_latency_s=link["latency_s"], scope="pooled")
    return Fleet(
        Pool(1, 1, held, tables[0], None, STEP_TOKENS, rate),
        Pool(1, 1, held, None, tables[1], None, rate),
        kv_bytes_per_token=moved[0]["token_bytes"],
        tiers=(behind,) if record["parameters"]["connector"] == "lmcache" else (),
        transfer_latency_s=link["latency_s"] + step_s,
        fetch="always",
        answers=False,
    )


def _blocks(record: Record) -> tuple[int, int]:
    """Tokens of a block, and blocks of an engine."""
    told = next(iter(record["software"]["engine"]["configuration"].values()))
    return int(told["block_size"]), int(told["num_gpu_blocks"])


def _single(record: Record, *quantities: str) -> Iterator[Row]:
    """What came one request or one batch at a time."""
    if not any(one.get("part") == "calibration" for one in record["rows"]):
        raise InputError(f"record of {record['started_at']}", "no calibration", "rows of that part")
    for one in record["rows"]:
        if one.get("part") in _PARTS and one["quantity"] in quantities:
            yield one


def _prefill(setter: Record, most_tokens: float) -> PrefillTable:
    """A floor, a time per token and a time per pair of tokens, fitted to single requests.

    Least absolute relative deviations, so that a request which the machine held up has no weight.
    With two engines the times are those of the engine that prefills.
    """
    names = "prefill_s", "prefill_cached_tokens"
    if setter["parameters"]["connector"] == "none":
        names = "ttft_s", "cached_tokens"
    points: dict[tuple, dict[str, list]] = {}
    for one in _single(setter, *names):
        at = one["part"], one["prompt_tokens"], one.get("prefix_tokens", 0)
        points.setdefault(at, {})[one["quantity"]] = one["values"]
    prompt, taken_s, cached = np.array(
        [
            (at[1], *pair)
            for at, of in points.items()
            for pair in zip(*map(of.get, names), strict=True)
        ]
    ).T
    per_second = _terms(prompt - cached, cached) / taken_s[:, None]
    costs = _least_deviations(per_second)
    new = np.unique(np.rint(np.geomspace(1, most_tokens, 40)))
    behind = np.array([0.0, most_tokens])
    return PrefillTable("lab", new, behind, _terms(new[:, None], behind) @ costs, 1, "measured")


def _least_deviations(terms: np.ndarray) -> np.ndarray:
    """Weights of 0 or more that bring every row nearest to 1 in sum of absolute differences."""
    from scipy.optimize import linprog

    rows, weights = terms.shape
    each = np.eye(rows)
    cost = np.concatenate([np.zeros(weights), np.ones(2 * rows)])
    return linprog(cost, A_eq=np.hstack([terms, each, -each]), b_eq=np.ones(rows)).x[:weights]


def _terms(new, cached) -> np.ndarray:
    return np.stack(np.broadcast_arrays(1.0, new + 0 * cached, new * cached + new**2 / 2), axis=-1)


def _decode(setter: Record, most_tokens: float) -> DecodeTable:
    """Steps by batch, a line over the context for each."""
    steps: dict[int, list[tuple[float, float]]] = {}
    for one in _single(setter, "tpot_s"):
        point = one["context_tokens"], float(np.median(one["values"]))
        steps.setdefault(one["batch"], []).append(point)
    contexts = np.array([1.0, max(most_tokens, 2.0)])
    lines = [np.polynomial.Polynomial.fit(*zip(*of, strict=True), 1) for of in steps.values()]
    seconds = np.array([line(contexts) for line in lines])
    return DecodeTable("lab", np.array([*steps], float), contexts, seconds, 1, "measured")


def _loop_rows(record: Record, setter: Record, sent: Sent, at: Row) -> Iterator[Row]:
    split = record["parameters"]["connector"] != "none"
    engines = fleet(record, setter, float((sent["prompt_tokens"] + sent["output_tokens"]).max()))
    requests = trace(sent, _blocks(record)[0], answers=not split)
    replayed = replay(engines, requests)
    decoded_s = sent["latency_s"] - sent["ttft_s"]
    times = {
        "measured": _percentiles(sent["ttft_s"], decoded_s / (sent["output_tokens"] - 1)),
        "simulated": _percentiles(replayed.ttft_s, replayed.tpot_s),
        "predicted": _closed_form(engines, requests),
    }
    for kind, values in times.items():
        for (name, percentile), value in values.items():
            here = {**at, "percentile": percentile}
            yield row(name, value, kind, **here)
            if kind != "measured":
                ratio = times["measured"][name, percentile] / value
                yield row(name.replace("_s", "_ratio"), ratio, "measured", over=kind, **here)
    cached = sent["prefill_cached_tokens" if split else "cached_tokens"]
    hits = replayed.hit_tokens.sum(axis=1)
    counts = [
        ("requests", "measured", len(cached)),
        ("requests_that_differ", "measured", (cached != hits).sum()),
        ("cached_tokens", "measured", cached.sum()),
        ("cached_tokens", "simulated", hits.sum()),
        ("cached_tokens_difference", "measured", np.abs(cached - hits).sum()),
        ("longest_delay_of_sending_s", "measured", (sent["sent_s"] - sent["arrival_s"]).max()),
    ]
    yield from (row(name, float(value), kind, **at) for name, kind, value in counts)


def _percentiles(ttft_s: np.ndarray, tpot_s: np.ndarray) -> dict[tuple[str, int], float]:
    return {
        (name, percentile): float(np.percentile(values, percentile))
        for name, values in (("ttft_s", ttft_s), ("tpot_s", tpot_s))
        for percentile in PERCENTILES
    }


def _closed_form(engines: Fleet, requests: BlockTrace) -> dict[tuple[str, int], float]:
    """What the closed form expects of a loop; of the time per token it knows the mean alone."""
    load, found = closed_form.Load.of(requests), {}
    slowest_s = float(engines.decoding.decode_table.seconds.max())
    for percentile in PERCENTILES:
        at = load, load.requests_per_s, slowest_s, percentile
        expected = closed_form.predicted(engines, *at)
        found["ttft_s", percentile] = expected.ttft_s
    return found | {("tpot_s", 50): expected.tpot_s}
