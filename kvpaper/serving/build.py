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

READS = ("model", "hardware", "serving", "fleet", "prices")
_LEADS_S = {"turn": None, "arrival": 0.0, "previous turn": math.inf}
_CONTEXT_TOKENS = 131072
_BATCH = 512
# Weights of a model without a table, and the share of memory that a cache may fill.
_WEIGHT_BYTES, _FILLED = 2, 0.9


def fleet(scenario: Scenario) -> Fleet:
    """The fleet that a scenario describes.

    What ``hardware`` and ``serving.transfer`` state is that of an instance of ``hardware.gpus``
    GPUs; an instance of more has so much more of it. A tier without a price is not bought.

    Raises
    ------
    InputError
        If a table is of another model or element, or something is missing.
    """
    part, serving = scenario.fleet, scenario.serving
    prefill = _pool(scenario, "prefill", part.prefill, part.decode is None)
    if part.chunk_tokens is not None:
        prefill = replace(prefill, chunk_tokens=int(part.chunk_tokens))
    split = part.decode is not None
    share = prefill.gpus / scenario.hardware.gpus
    return Fleet(
        prefill=replace(prefill, decode=None) if split else prefill,
        decode=_pool(scenario, "decode", part.decode, False) if split else None,
        kv_bytes_per_token=evaluate.slope(scenario),
        boundary_bytes=_boundary_bytes(scenario),
        tiers=tuple(
            _tier(name, tier, share)
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


def reaching(fleet: Fleet, trace: BlockTrace) -> Fleet:
    """The fleet with its tables continued to the longest request, where they end before it."""
    prompt = float(trace.input_tokens.max(initial=1))
    whole = float((trace.input_tokens + trace.output_tokens).max(initial=1)) + 1
    table = fleet.prefill.prefill.extended(prompt, prompt)
    prefill = replace(fleet.prefill, prefill=table)
    if fleet.decode is None:
        return replace(fleet, prefill=_decoding_to(prefill, whole))
    return replace(fleet, prefill=prefill, decode=_decoding_to(fleet.decode, whole))


def _decoding_to(pool: Pool, context: float) -> Pool:
    return replace(pool, decode=pool.decode.extended(pool.decode.batch[-1], context))


def _boundary_bytes(scenario: Scenario) -> float:
    """What a long sequence keeps beside its slope: full windows and states [B]."""
    long = _CONTEXT_TOKENS
    return evaluate.kept_bytes(scenario, long) - long * evaluate.slope(scenario)


def _tier(name: str, part, share: float) -> Tier:
    written = part.write_bytes_per_s
    return Tier(
        name,
        capacity_bytes=part.capacity_bytes * share,
        read_bytes_per_s=part.read_bytes_per_s * share,
        write_bytes_per_s=math.inf if written is None else written * share,
        access_latency_s=part.access_latency_s,
        scope=part.scope,
        admission=part.admission,
    )


def _pool(scenario: Scenario, name: str, part: Instances, both: bool) -> Pool:
    """A pool with both tables; an instance of several ranks counts as so many."""
    table = part.table or scenario.serving.prefill.table
    rate = scenario.serving.transfer.rate_bytes_per_s / scenario.hardware.gpus
    if table is None:
        gpus = scenario.hardware.gpus
        times = _prefill_by_rate(scenario), _decode_by_roofline(scenario)
        return Pool(part.instances, gpus, _kv_tokens(scenario), *times, None, rate * gpus)
    instance = latency.instance(table)
    where = scenario.where(f"fleet.{name}.table")
    for found, expected in (
        (models.load(instance.model).name, scenario.model.name),
        (instance.element, scenario.serving.element),
    ):
        if found != expected:
            raise InputError(where, f"{table}, a table of {found}", f"one of {expected}")
    tokens = instance.decode_kv_tokens if name == "decode" else instance.kv_tokens
    gpus = instance.gpus // instance.ranks
    times = latency.prefill_table(table), latency.decode_table(table)
    return Pool(part.instances * instance.ranks, gpus, tokens, *times, None, rate * gpus)


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
    active = scenario.serving.prefill.active_params or scenario.model.active_params
    total = scenario.model.total_params or active
    if active is None:
        where = scenario.where("serving.prefill.active_params")
        raise InputError(where, "nothing", "the parameters that work on a token")
    return max(total, active), active


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
