"""Models by their names, or from files."""

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvpaper import data
from kvpaper.errors import InputError, hint
from kvpaper.models.architecture import Model, from_config, quantized_kv


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
        if str(data.mapping(file).get("hf_id")).lower() == wanted:
            return _described(file)
    near = hint(wanted.rpartition("/")[2], shipped, 3)
    expected = f"the path of a config.json, or one of {', '.join(shipped)}{near}"
    raise InputError("model", repr(name_or_path), expected)


def _configured(path: Path) -> Model:
    config = _json(path)
    named, holder = str(config.get("_name_or_path")), path.resolve().parent.name
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", named):
        named = holder if holder and path.name == "config.json" else path.stem
    model = from_config(config, named, str(path))
    beside = path.with_name("hf_quant_config.json")
    if model.kv_dtype is None and beside.is_file():
        quantization = {"quantization_config": _json(beside).get("quantization")}
        return replace(model, kv_dtype=quantized_kv(quantization))
    return model


def _described(path: Path) -> Model:
    """The model of a description: its sources, its parameters, and its attention settings."""
    described = data.mapping(path)
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
        found = error.msg.lower().removesuffix(" at")
        raise InputError(f"{path}:{error.lineno}", found, "a JSON object") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(str(path), str(error), "a JSON object in UTF-8") from None
    if not isinstance(parsed, dict):
        raise InputError(str(path), f"a JSON {type(parsed).__name__}", "a JSON object")
    return parsed
