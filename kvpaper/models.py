"""Models by name or file, and what their KV cache takes."""

import difflib
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kvpaper import data
from kvpaper.architecture import LayerGroup, Model, from_config, quantized_kv
from kvpaper.errors import InputError
from kvpaper.formulas import size as formula

__all__ = ["ELEMENT_BYTES", "LayerGroup", "Model", "from_config", "load", "render", "size"]

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
    "fp8_e5m2": "fp8",
}


def load(name_or_path: str) -> Model:
    """A shipped model by its name or Hugging Face id, or the model of a config file or its folder.

    Raises
    ------
    InputError
        If there is no such model or file, or the file's cache cannot be told.
    """
    shipped = {path.stem: path for path in sorted((data.FOLDER / "models").glob("*.yaml"))}
    wanted, path = name_or_path.lower(), Path(name_or_path)
    if wanted in shipped:
        return _described(shipped[wanted])
    try:
        path = path / "config.json" if path.is_dir() else path
        if path.is_file():
            return _described(path) if path.suffix in (".yaml", ".yml") else _configured(path)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("model", repr(name_or_path), "a name or a path") from None
    if path.suffix in (".json", ".yaml", ".yml") or wanted.startswith((".", "/", "~")):
        raise InputError(str(path), "no such file", "a config.json or a folder that holds one")
    for file in shipped.values() if "/" in wanted else ():
        if str(_mapping(file).get("hf_id")).lower() == wanted:
            return _described(file)
    near = difflib.get_close_matches(wanted.rpartition("/")[2], shipped, 3, 0.4)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    expected = f"the path of a config.json, or one of {', '.join(shipped)}{hint}"
    raise InputError("model", repr(name_or_path), expected)


def _configured(path: Path) -> Model:
    config = _json(path)
    model = from_config(config, str(config.get("_name_or_path") or path), str(path))
    beside = path.with_name("hf_quant_config.json")
    if model.kv_dtype is None and beside.is_file():
        quantization = {"quantization_config": _json(beside).get("quantization")}
        return replace(model, kv_dtype=quantized_kv(quantization))
    return model


def _described(path: Path) -> Model:
    """The model of a description: its sources, its parameters, and its attention settings."""
    described = _mapping(path)
    params = described.get("params")
    if not isinstance(params, dict):
        raise InputError(f"{path}: params", repr(params), "the parameters, total and active")
    for key in ("total", "active"):
        if not isinstance(params.get(key), int | float) or not 0 < params[key] < math.inf:
            raise InputError(f"{path}: params.{key}", repr(params.get(key)), "a number above zero")
    model = from_config(
        described.get("config"), str(described.get("hf_id") or path.stem), f"{path}: config"
    )
    return replace(
        model,
        source=str(described.get("source") or path),
        total_params=float(params["total"]),
        active_params=float(params["active"]),
    )


def _json(path: Path) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = [key for key, times in Counter(key for key, _ in items).items() if times > 1]
        if repeated:
            raise InputError(f"{path}: {repeated[0]}", "the key twice", "each key once")
        return dict(items)

    try:
        parsed = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=pairs)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}", error.msg.lower(), "a JSON object") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(str(path), str(error), "a JSON object in UTF-8") from None
    if not isinstance(parsed, dict):
        raise InputError(str(path), f"a JSON {type(parsed).__name__}", "a JSON object")
    return parsed


def _mapping(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parsed = yaml.load(path.read_text("utf-8"), loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(where, str(error).splitlines()[0], "YAML in UTF-8") from None
    if not isinstance(parsed, dict):
        raise InputError(str(path), f"a YAML {type(parsed).__name__}", "a mapping")
    return parsed


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

    def held(groups: list[LayerGroup], at_tokens: int, ranks: int = 1) -> int | float:
        kept = formula.kv_bytes(
            at_tokens,
            np.array([group.layers for group in groups]),
            np.array([group.elements_per_rank(ranks) for group in groups]),
            np.array([group.window_tokens or math.inf for group in groups]),
            ELEMENT_BYTES[element],
        )
        return _whole_if_so(kept)

    growing = [group for group in model.groups if group.window_tokens is None]
    windows = [group for group in model.groups if group.window_tokens is not None]
    all_full = [replace(group, window_tokens=None) for group in model.groups]
    state_bytes = model.recurrent_state_elements * ELEMENT_BYTES["fp32"]
    state_bytes += model.convolution_state_elements * ELEMENT_BYTES["bf16"]
    answer = {
        "model": model.name,
        "tokens": tokens,
        "dtype": element,
        "tp": tensor_parallel,
        "kv_bytes_per_token": held(growing, 1),
        "window_bytes": held(windows, tokens),
        "state_bytes_per_sequence": _whole_if_so(state_bytes),
        "kv_bytes": held([*model.groups], tokens),
        "kv_bytes_per_token_per_rank": held(growing, 1, tensor_parallel),
        "kv_bytes_per_rank": held([*model.groups], tokens, tensor_parallel),
        "kv_bytes_per_token_all_full": held(all_full, 1),
        "groups": [_shown(group) for group in model.groups],
    }
    return {**answer, "warnings": [*model.warnings, *_cautions(model, answer)]}


def _whole_if_so(number: float) -> int | float:
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
        f"{answer['model']}: {answer['tokens']} tokens, {answer['dtype']}, TP {answer['tp']}",
        f"  per token           {answer['kv_bytes_per_token']} B",
        f"  per token and rank  {answer['kv_bytes_per_token_per_rank']} B",
        f"  windows             {answer['window_bytes']} B",
        f"  state               {answer['state_bytes_per_sequence']} B",
        f"  cache               {answer['kv_bytes']} B",
    ]
    for group in answer["groups"]:
        window = f", window {group['window_tokens']} tokens" if "window_tokens" in group else ""
        elements = f"{group['elements_per_token']} elements per token{window}"
        lines.append(f"  {group['layers']} {group['kind']} layers of {elements}")
    return "\n".join(lines + [f"  note: {warning}" for warning in answer["warnings"]])
