"""Models of the lab: read back by a second reader of the same format."""

import json

import numpy as np
import pytest

from kvpaper import models
from kvpaper.errors import InputError
from kvpaper.lab import weights


def read_safetensors(path):
    """Tensors of a file as float32, by the published layout of the format."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    found = {}
    for name, told in header.items():
        start, end = told["data_offsets"]
        assert told["dtype"] == "BF16"
        halves = np.frombuffer(data[start:end], "<u2").astype(np.uint32)
        found[name] = (halves << 16).view(np.float32).reshape(told["shape"])
    assert sum(2 * tensor.size for tensor in found.values()) == len(data)
    return found


@pytest.fixture
def tiny(monkeypatch):
    config = weights.SHAPES["small-moe"] | {"num_hidden_layers": 2, "num_experts": 3}
    monkeypatch.setitem(weights.SHAPES, "tiny", config)
    return config


def test_weights_are_normal_with_the_deviation_asked_for_and_norms_are_one(tiny, tmp_path):
    folder = weights.model("tiny", cache=tmp_path)
    tensors = read_safetensors(folder / "model.safetensors")
    values = tensors["model.embed_tokens.weight"].ravel()
    # The standard error of a standard deviation is sigma / sqrt(2 n); bf16 cuts off .2 % at most
    # .4 % of a value, which is .2 % on the mean.
    sigma = weights.STANDARD_DEVIATION
    error = sigma / np.sqrt(2 * values.size)
    assert abs(values.std() - sigma) < 4 * error + 0.004 * sigma
    assert abs(values.mean()) < 4 * sigma / np.sqrt(values.size)
    assert (tensors["model.norm.weight"] == 1).all()
    assert (tensors["model.layers.1.post_attention_layernorm.weight"] == 1).all()


def test_the_tensors_are_those_of_the_shape(tiny, tmp_path):
    tensors = read_safetensors(weights.model("tiny", cache=tmp_path) / "model.safetensors")
    at = "model.layers.1"
    assert tensors[f"{at}.self_attn.k_proj.weight"].shape == (128, 512)
    assert tensors[f"{at}.mlp.experts.2.down_proj.weight"].shape == (512, 256)
    assert tensors[f"{at}.mlp.gate.weight"].shape == (3, 512)
    assert f"{at}.mlp.experts.3.up_proj.weight" not in tensors


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tiny, tmp_path):
    first = weights.model("tiny", cache=tmp_path / "a") / "model.safetensors"
    second = weights.model("tiny", cache=tmp_path / "b") / "model.safetensors"
    other = weights.model("tiny", seed=1, cache=tmp_path / "a") / "model.safetensors"
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_a_model_is_made_once_and_nothing_unfinished_stays(tiny, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(weights, "_write_weights", fail)
        with pytest.raises(OSError, match="disk"):
            weights.model("tiny", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []
    folder = weights.model("tiny", cache=tmp_path)
    monkeypatch.setattr(weights, "_write_weights", fail)
    assert weights.model("tiny", cache=tmp_path) == folder


def test_the_tokenizer_has_a_word_for_every_token(tiny, tmp_path):
    folder = weights.model("tiny", cache=tmp_path)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == list(range(tiny["vocab_size"]))


def test_the_canary_has_the_cache_per_token_that_the_tiers_move(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(weights.SHAPES["canary"]))
    answer = models.size(models.load(str(path)), 1, "bf16", 1)
    assert answer["kv_bytes_per_token"] == 12_288


def test_an_unknown_shape_and_a_full_disk_are_one_line(tiny, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="expected one of canary"):
        weights.model("canaries", cache=tmp_path)
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: type("Free", (), {"free": 10}))
    with pytest.raises(InputError, match="10 B free"):
        weights.model("tiny", cache=tmp_path)
