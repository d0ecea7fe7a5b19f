"""Models for the lab: a published shape, random weights at a normal scale, no download.

Weights within 1e-3 of zero, as an engine's dummy loader makes them, give every prompt the same
text, even from a wrong cache. At the scale of an initialised model (standard deviation .02) the
log-probabilities depend on every token of the context, so that a damaged cache is seen in them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvpaper import data
from kvpaper.errors import InputError

CACHE = data.FOLDER.parent / ".cache" / "lab"
STANDARD_DEVIATION = 0.02
_SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")
_CHUNK = 1 << 22
# Configurations as an engine reads them.
SHAPES: dict[str, dict[str, Any]] = {
    name: json.loads(data.named("lab", name, ".json").read_text(encoding="utf-8"))
    for name in data.names("lab", ".json")
}


def model(shape: str, seed: int = 0, cache: Path = CACHE) -> Path:
    """Folder of a model with this shape: configuration, tokenizer, weights; made once and kept.

    Parameters
    ----------
    shape : str
        A name in `SHAPES`.
    seed : int
        Of the weights; another seed is another model of the same shape.

    Raises
    ------
    InputError
        If the shape is unknown, or the disk has too little room for the weights.
    """
    config = _config(shape)
    text = json.dumps([config, seed, STANDARD_DEVIATION], sort_keys=True)
    folder = cache / f"{shape}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    tensors = dict(_tensors(config))
    needed = 2 * sum(int(np.prod(size)) for size in tensors.values())
    free = shutil.disk_usage(cache).free
    if free < 2 * needed:
        raise InputError(str(cache), f"{free:.3g} B free", f"{2 * needed:.3g} B for {shape}")
    making = cache / f".{folder.name}.{os.getpid()}"
    making.mkdir()
    try:
        (making / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        _write_tokenizer(making, config["vocab_size"])
        _write_weights(making / "model.safetensors", tensors, seed)
        making.rename(folder)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def params(shape: str, every_expert: bool = False) -> float:
    """Parameters that one token of a prefill goes through, or those of all experts.

    The embedding is looked up, and the head is for the last token alone.
    """
    config = _config(shape)
    share = config.get("num_experts_per_tok", 1) / config.get("num_experts", 1)
    share = 1.0 if every_expert else share
    return sum(
        int(np.prod(size)) * (share if ".experts." in name else 1)
        for name, size in _tensors(config)
        if not name.startswith(("model.embed_tokens", "lm_head"))
    )


def _config(shape: str) -> dict[str, Any]:
    if shape not in SHAPES:
        raise InputError("shape", repr(shape), f"one of {', '.join(SHAPES)}")
    return SHAPES[shape]


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and sizes of a model's tensors, as the engine's loader looks them up."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, hidden)
    yield "model.norm.weight", (hidden,)
    widths = {"q": config["num_attention_heads"] * config["head_dim"]}
    widths |= dict.fromkeys("kv", config["num_key_value_heads"] * config["head_dim"])
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        for name, width in widths.items():
            yield f"{at}.self_attn.{name}_proj.weight", (width, hidden)
            yield f"{at}.self_attn.{name}_proj.bias", (width,)
        yield f"{at}.self_attn.o_proj.weight", (hidden, widths["q"])
        if "num_experts" in config:
            yield f"{at}.mlp.gate.weight", (config["num_experts"], hidden)
            yield f"{at}.mlp.shared_expert_gate.weight", (1, hidden)
            parts = {"mlp.shared_expert": config["shared_expert_intermediate_size"]}
            experts = (f"mlp.experts.{expert}" for expert in range(config["num_experts"]))
            parts |= dict.fromkeys(experts, config["moe_intermediate_size"])
        else:
            parts = {"mlp": config["intermediate_size"]}
        for name, width in parts.items():
            yield f"{at}.{name}.gate_proj.weight", (width, hidden)
            yield f"{at}.{name}.up_proj.weight", (width, hidden)
            yield f"{at}.{name}.down_proj.weight", (hidden, width)


def _write_weights(path: Path, tensors: dict[str, tuple[int, ...]], seed: int) -> None:
    """A safetensors file in bf16, a chunk at a time: length of the header, header, data."""
    header, end = {}, 0
    for name, size in tensors.items():
        start, end = end, end + 2 * int(np.prod(size))
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [start, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    random = np.random.Generator(np.random.Philox(seed))
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for name, size in tensors.items():
            left = int(np.prod(size))
            while left:
                count = min(left, _CHUNK)
                file.write(_values(name, count, random))
                left -= count


def _values(name: str, count: int, random: np.random.Generator) -> bytes:
    """Ones for a norm, else normal values, as bf16: the upper half of a float's bits."""
    if name.endswith("norm.weight"):
        values = np.ones(count, np.float32)
    else:
        values = random.standard_normal(count, np.float32) * np.float32(STANDARD_DEVIATION)
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """One word for each token, so that any token ids can be sent and read back."""
    words = [*_SPECIAL, *(f"t{place}" for place in range(len(_SPECIAL), vocabulary))]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [
        {"id": place, "content": word, "special": True, **plain}
        for place, word in enumerate(_SPECIAL)
    ]
    places = {word: place for place, word in enumerate(words)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": places, "unk_token": _SPECIAL[0]},
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder")),
    }
    names = ("unk_token", "bos_token", "eos_token", "pad_token")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32768}
    settings |= dict(zip(names, _SPECIAL, strict=True))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
