"""A fleet from a scenario: with tabulated latencies where they are named, else by the roofline."""

import math
from dataclasses import replace

import numpy as np

from kvpaper import evaluate, latency, models
from kvpaper.errors import InputError
from kvpaper.formulas import decode as decoding
from kvpaper.latency import DecodeTable, PrefillTable
from kvpaper.scenario import Instances, Scenario
from kvpaper.serving.fleet import Fleet, Pool, Tier
from kvpaper.traces.block_trace import BlockTrace

_LEADS_S = {"turn": None, "arrival": 0.0, "previous turn": math.inf}
_CONTEXT_TOKENS = 131072
_BATCH = 512
# Weights of a model without a table, and the share of memory that a cache may fill.
_WEIGHT_BYTES, _FILLED = 2, 0.9


def fleet(scenario: Scenario, trace: BlockTrace | None = None) -> Fleet:
    """The fleet that a scenario describes.

    What ``hardware`` and ``serving.transfer`` state is that of an instance of ``hardware.gpus``
    GPUs; an instance of more has so much more of it. A tier without a price is not bought. Where
    the longest request of ``trace`` is beyond the tables, they are continued to it.

    Raises
    ------
    InputError
        If a table is of another model or element, or something is missing.
    """
    part, serving = scenario.fleet, scenario.serving
    prefill = _pool(scenario, "prefill", part.prefill, trace)
    if part.chunk_tokens is not None:
        prefill = replace(prefill, chunk_tokens=int(part.chunk_tokens))
    share = prefill.gpus / scenario.hardware.gpus
    slope, long = evaluate.slope(scenario), _CONTEXT_TOKENS
    return Fleet(
        prefill=prefill,
        decode=part.decode and _pool(scenario, "decode", part.decode, trace),
        kv_bytes_per_token=slope,
        # What a long sequence keeps beside its slope: full windows and states.
        boundary_bytes=evaluate.kept_bytes(scenario, long) - long * slope,
        tiers=tuple(
            _tier(name, tier).times(share)
            for name, tier in scenario.hardware.tiers.items()
            if name not in ("hbm", *unpriced(scenario))
        ),
        router=part.router,
        decode_router=part.decode_router,
        fetch=part.fetch,
        prefetch_lead_s=_LEADS_S[part.prefetch],
        first_token_from=serving.first_token_from,
        transfer_latency_s=serving.transfer.latency_s,
        transfer_layers=scenario.model.layers if serving.transfer.layerwise else 1,
        answers=part.answers,
        queue_limit=part.queue_limit,
        gpus_per_node=part.gpus_per_node,
    )


def unpriced(scenario: Scenario) -> list[str]:
    """Tiers below GPU memory whose byte has no price in the scenario's reading of rent."""
    return [
        name
        for name in scenario.hardware.tiers
        if name != "hbm"
        and evaluate.rent_of(scenario, scenario.prices, name, writes_per_s=0.0) is None
    ]


def _tier(name: str, part) -> Tier:
    written = part.write_bytes_per_s
    return Tier(
        name,
        part.capacity_bytes,
        part.read_bytes_per_s,
        math.inf if written is None else written,
        part.access_latency_s,
        part.scope,
        part.admission,
    )


def _pool(scenario: Scenario, name: str, part: Instances, trace: BlockTrace | None) -> Pool:
    """A pool with both tables; an instance of several ranks counts as so many."""
    table = part.table or scenario.serving.prefill.table
    if table is None:
        prefill, decode = _prefill_by_rate(scenario), _decode_by_roofline(scenario)
        gpus, ranks, tokens = scenario.hardware.gpus, 1, _kv_tokens(scenario)
    else:
        where = scenario.where(f"fleet.{name}.table" if part.table else "serving.prefill.table")
        try:
            instance = latency.instance(table)
        except InputError as error:
            raise error.at(where) from None
        for found, expected in (
            (models.load(instance.model).name, scenario.model.name),
            (instance.element, scenario.serving.element),
        ):
            if found != expected:
                raise InputError(where, f"{table}, a table of {found}", f"one of {expected}")
        prefill, decode = latency.prefill_table(table), latency.decode_table(table)
        gpus, ranks = instance.gpus // instance.ranks, instance.ranks
        tokens = instance.decode_kv_tokens if name == "decode" else instance.kv_tokens
    if trace is not None:
        prompt = float(trace.input_tokens.max(initial=1))
        whole = float((trace.input_tokens + trace.output_tokens).max(initial=1)) + 1
        prefill = prefill.extended(prompt, prompt)
        decode = decode.extended(decode.batch[-1], whole)
    rate = scenario.serving.transfer.rate_bytes_per_s / scenario.hardware.gpus
    return Pool(part.instances * ranks, gpus, tokens, prefill, decode, None, rate * gpus)


# What stands in where nothing is tabulated


def _prefill_by_rate(scenario: Scenario) -> PrefillTable:
    """Prefill by the scenario's FLOP rate, close enough in new tokens for lines between them."""
    new = np.unique(np.rint(np.geomspace(1, _CONTEXT_TOKENS, 69)))
    cached = np.append(0, np.geomspace(256, _CONTEXT_TOKENS, 10))
    seconds = [[evaluate.prefill_time(scenario, n, c) for c in cached] for n in new]
    return PrefillTable("rate", new, cached, np.array(seconds), scenario.hardware.gpus, "predicted")


def _decode_by_roofline(scenario: Scenario) -> DecodeTable:
    """Decode by the roofline: weights in bf16, the GPU memory's rate, the scenario's FLOP rate."""
    model, prefill, hardware = scenario.model, scenario.serving.prefill, scenario.hardware
    total, active = _params(scenario)
    batch = np.unique(np.rint(np.geomspace(1, _BATCH, 37)))
    context = np.append(1, np.geomspace(256, _CONTEXT_TOKENS, 10))
    experts = (model.experts_per_token or 1) / (model.experts or 1)
    held = np.array([evaluate.kept_bytes(scenario, tokens) for tokens in context])
    seconds = decoding.decode_step_time(
        batch[:, None],
        held,
        decoding.weight_bytes(batch, total, active, experts, _WEIGHT_BYTES)[:, None],
        active,
        _gpu_memory(scenario).read_bytes_per_s,
        prefill.flops_per_s * hardware.gpus,
    )
    return DecodeTable("roofline", batch, context, seconds, hardware.gpus, "predicted")


def _params(scenario: Scenario) -> tuple[float, float]:
    """All parameters, and those that work on a token."""
    active = scenario.serving.prefill.active_params or scenario.model.active_params
    return max(scenario.model.total_params or active, active), active


def _gpu_memory(scenario: Scenario):
    if "hbm" not in scenario.hardware.tiers:
        raise InputError(scenario.where("hardware.tiers.hbm"), "nothing", "the GPU's memory")
    return scenario.hardware.tiers["hbm"]


def _kv_tokens(scenario: Scenario) -> int:
    """Tokens that fit beside the weights."""
    free = _FILLED * _gpu_memory(scenario).capacity_bytes - _WEIGHT_BYTES * _params(scenario)[0]
    if free <= 0:
        where = scenario.where("hardware.tiers.hbm.capacity")
        raise InputError(where, "less than the weights", "room for weights and cache")
    return max(1, int(free / max(evaluate.slope(scenario), 1)))
