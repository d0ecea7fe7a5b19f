"""What a model's KV cache takes, in bytes."""

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from kvpaper import units
from kvpaper.errors import InputError
from kvpaper.formulas import size as formula
from kvpaper.models.architecture import LayerGroup, Model

# Bytes of one cached element, block scales included: NVFP4 keeps an 8-bit scale for every 16
# elements (NVIDIA), MXFP4 one for every 32 (OCP Microscaling Formats 1.0).
ELEMENT_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
_SAME_ELEMENT = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e4m3fn": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def cache_bytes(
    groups: Iterable[LayerGroup], tokens: float, element: str, ranks: int = 1
) -> Fraction | float:
    """What groups of layers keep of a sequence on one rank, without any recurrent state [B].

    In Python's own numbers, since a float would round what passes 2**53.
    """
    groups = list(groups)
    return formula.kv_bytes(
        tokens,
        np.array([group.layers for group in groups], object),
        np.array([group.elements_per_rank(ranks) for group in groups], object),
        np.array([group.window_tokens or math.inf for group in groups], object),
        Fraction(ELEMENT_BYTES[element]),
        state_bytes=0,
    )


def state_bytes(model: Model) -> float:
    """Recurrent state of a sequence, fp32, and convolution state, bf16 [B]."""
    recurrent = model.recurrent_state_elements * ELEMENT_BYTES["fp32"]
    return recurrent + model.convolution_state_elements * ELEMENT_BYTES["bf16"]


def size(
    model: Model, tokens: int = 8192, dtype: str | None = None, tensor_parallel: int = 1
) -> dict[str, Any]:
    """What the cache of one sequence takes: the JSON object of ``kvpaper size``.

    Parameters
    ----------
    model : Model
    tokens : int [token]
    dtype : str, optional
        Type of a cached element; the configuration's own KV setting if None, else bf16.
    tensor_parallel : int [1]
        Ranks over which KV heads are split.

    Returns
    -------
    dict
        ``kv_bytes_per_token`` is the slope at long context, ``window_bytes`` what window layers
        hold at ``tokens``, ``kv_bytes`` both at ``tokens``; one logical copy, no state, no
        rounding to blocks. The recurrent part of a state is counted in fp32, the convolution part
        in bf16, and neither is split over ranks.

    Raises
    ------
    InputError
        If the type is unknown, ``tokens`` negative, or ``tensor_parallel`` below 1.
    """
    for name, value, least in (("tokens", tokens, 0), ("tensor_parallel", tensor_parallel, 1)):
        if type(value) is not int or value < least:
            raise InputError(name, repr(value), f"a whole number from {least} up")
    stated = str(dtype or model.kv_dtype or "bf16").lower()
    element = _SAME_ELEMENT.get(stated, stated)
    if element not in ELEMENT_BYTES:
        where = "dtype" if dtype else f"{model.source}: KV setting"
        raise InputError(where, repr(stated), f"one of {', '.join(ELEMENT_BYTES)}")

    def held(groups: Iterable[LayerGroup], at_tokens: int, ranks: int = 1) -> int | float:
        return _whole_if_so(cache_bytes(groups, at_tokens, element, ranks))

    growing = [group for group in model.groups if group.window_tokens is None]
    windows = [group for group in model.groups if group.window_tokens is not None]
    answer = {
        "model": model.name,
        "tokens": tokens,
        "dtype": element,
        "tp": tensor_parallel,
        "kv_bytes_per_token": held(growing, 1),
        "window_bytes": held(windows, tokens),
        "state_bytes_per_sequence": _whole_if_so(state_bytes(model)),
        "kv_bytes": held(model.groups, tokens),
        "kv_bytes_per_token_per_rank": held(growing, 1, tensor_parallel),
        "kv_bytes_per_rank": held(model.groups, tokens, tensor_parallel),
        "kv_bytes_per_token_all_full": held(model.kept("full"), 1),
        "groups": [_shown(group) for group in model.groups],
    }
    return {**answer, "warnings": [*model.warnings, *_cautions(model, answer)]}


def _whole_if_so(number: float | Fraction) -> int | float:
    return int(number) if number == int(number) else float(number)


def _shown(group: LayerGroup) -> dict[str, Any]:
    names = ("layers", "kind", "elements_per_token", "window_tokens")
    return {name: value for name in names if (value := getattr(group, name)) is not None}


def _cautions(model: Model, answer: dict[str, Any]) -> list[str]:
    """What a reader should know before multiplying the numbers."""
    cautions, ranks = [], answer["tp"]
    for heads in sorted({group.kv_heads for group in model.groups if group.kv_heads}):
        if heads % ranks and ranks % heads:
            cautions.append(f"{heads} KV heads and {ranks} ranks do not divide: engines refuse")
        elif heads < ranks:
            cautions.append(f"each of {heads} KV heads is kept by {ranks // heads} ranks")
    if ranks > 1 and any(group.kv_heads is None for group in model.groups):
        cautions.append("latents and index keys are kept whole by every rank")
    if any(group.window_tokens for group in model.groups):
        cautions.append(
            "an engine that turns its hybrid cache off for a connector keeps window layers in full:"
            f" {answer['kv_bytes_per_token_all_full']} B per token"
        )
    if answer["state_bytes_per_sequence"]:
        cautions.append("a stored prefix can be resumed only where its recurrent state was kept")
    if model.max_context_tokens and answer["tokens"] > model.max_context_tokens:
        cautions.append(f"more tokens than the model's context of {model.max_context_tokens}")
    return cautions


def render(answer: dict[str, Any]) -> str:
    """The answer of ``size`` as lines for a reader."""
    lines = [
        f"{answer['model']}: {answer['tokens']:,} tokens, {answer['dtype']}, TP {answer['tp']}",
        f"  per token           {answer['kv_bytes_per_token']:,} B",
        f"  per token and rank  {answer['kv_bytes_per_token_per_rank']:,} B",
        f"  windows             {_size(answer['window_bytes'])}",
        f"  state               {_size(answer['state_bytes_per_sequence'])}",
        f"  cache               {_size(answer['kv_bytes'])}",
    ]
    for group in answer["groups"]:
        window = f", window {group['window_tokens']} tokens" if "window_tokens" in group else ""
        elements = f"{group['elements_per_token']} elements per token{window}"
        lines.append(f"  {group['layers']} {group['kind']} layers of {elements}")
    return "\n".join(lines + [f"  note: {warning}" for warning in answer["warnings"]])


def _size(count: float) -> str:
    return f"{units.text(count, units.SIZES)} ({count:,} B)"
