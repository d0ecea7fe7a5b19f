"""Models by name, and configuration files good and bad."""

import json

import pytest

from kvpaper import data, models
from kvpaper.errors import InputError

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}

# Bytes per token at long context, bf16.
SHIPPED = {
    "llama-3.1-8b": 131072,
    "llama-3.1-70b": 327680,
    "qwen2.5-0.5b-instruct": 12288,
    "qwen3-30b-a3b": 98304,
    "qwen3-235b-a22b": 192512,
    "qwen3-next-80b-a3b": 24576,
    "mixtral-8x7b": 131072,
    "mixtral-8x22b": 229376,
    "deepseek-v3": 70272,
    "kimi-k2": 70272,
    "gpt-oss-20b": 24576,
    "gpt-oss-120b": 36864,
    "glm-4.5": 376832,
    "glm-4.5-air": 188416,
    "minimax-m2": 253952,
    "gemma-3-27b": 81920,
}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model(name):
    model = models.load(name)
    answer = models.size(model, 8192, "bf16")
    assert answer["kv_bytes_per_token"] == SHIPPED[name]
    assert models.load(model.name) == models.load(name.upper()) == model
    assert model.source.endswith("on Hugging Face")
    assert 0 < model.active_params <= model.total_params
    known_here = [warning for warning in model.warnings if "prediction layers" not in warning]
    assert known_here == []


def test_every_shipped_model_is_tested():
    assert {path.stem for path in (data.FOLDER / "models").glob("*.yaml")} == set(SHIPPED)


def test_published_figures_of_a_hybrid_cache():
    answer = models.size(models.load("gpt-oss-120b"), 8192, "bf16", 8)
    assert answer["kv_bytes_per_token_all_full"] == 73728
    assert answer["window_bytes"] == 18 * 2 * 8 * 64 * 2 * 128
    assert answer["kv_bytes_per_token_per_rank"] == 36864 // 8
    assert "73728 B" in answer["warnings"][0]
    gemma = models.size(models.load("gemma-3-27b"), 1024, "bf16")
    assert gemma["kv_bytes"] == 507904 * 1024
    qwen = models.load("qwen3-235b-a22b")
    ranks = [models.size(qwen, 1, "bf16", n)["kv_bytes_per_token_per_rank"] for n in (4, 8)]
    assert ranks == [48128, 48128]


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match=r"did you mean .*llama-3\.1-8b"):
        models.load("llama-3.1")
    with pytest.raises(InputError, match=r"did you mean .*qwen3-30b-a3b"):
        models.load("Qwen/Qwen3-30B-A3B-Base")


@pytest.mark.parametrize("name", ["none/config.json", "./here", "/no/such/folder", "x.yaml"])
def test_a_missing_path_is_said_to_be_missing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        models.load(name)


def test_a_file_and_its_folder(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG), encoding="utf-8")
    assert models.load(str(file)) == models.load(str(tmp_path))
    assert models.size(models.load(str(file)), dtype="bf16")["kv_bytes_per_token"] == 128


@pytest.mark.parametrize(
    ("stated", "file", "name"),
    [
        ("acme/tiny-1", "config.json", "acme/tiny-1"),
        ("/home/someone/run-3", "config.json", "holder"),
        ("./out", "config.json", "holder"),
        (None, "config.json", "holder"),
        (None, "tiny.json", "tiny"),
    ],
)
def test_a_file_is_named_by_its_id_its_folder_or_its_stem(stated, file, name, tmp_path):
    holder = tmp_path / "holder"
    holder.mkdir()
    (holder / file).write_text(json.dumps(CONFIG | {"_name_or_path": stated}), encoding="utf-8")
    assert models.load(str(holder / file)).name == name


def test_a_quantization_file_beside_the_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    answer = models.size(models.load(str(tmp_path)))
    assert (answer["dtype"], answer["kv_bytes_per_token"]) == ("fp8", 64)


@pytest.mark.parametrize(
    ("content", "where", "found"),
    [
        (b"", ":1", "expecting value"),
        (b'{"model_type": "llama",\n "num_hidden', ":2", "unterminated"),
        (b"not json", ":1", "expecting value"),
        (b"[1, 2]", "", "a JSON list"),
        (b"{}", "", "no settings"),
        (b'{"head_dim": 1, "head_dim": 2}', ": head_dim", "the key twice"),
        (b'{"text_config": {"a": 1, "a": 1}}', ": a", "the key twice"),
        (b"\xff\xfe{}", "", "can't decode"),
        (b"[" * 200_000, "", ""),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "", ""),
        (b'{"model_type": "llama", "num_hidden_layers": NaN}', ": num_hidden_layers", "NaN"),
        (b'{"model_type": "llama", "num_hidden_layers": 1e99}', ": num_hidden_layers", "1e+99"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_bad_file_is_refused_where_it_is_bad(content, where, found, tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        models.load(str(file))
    assert refusal.value.where == f"{file}{where}"
    assert found in refusal.value.found
    assert "\n" not in str(refusal.value)


def test_infinity_in_a_setting_of_no_matter_is_read(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "time_step_limit": [0.0, float("inf")]}))
    assert models.load(str(file)).layers == 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("config: {}\nparams: {total: 1, active: 1}", "config"),
        ("config: {model_type: llama}", "params"),
        ("config: {model_type: llama}\nparams: {total: many, active: 1}", "params.total"),
        ("config: {model_type: llama}\nparams: {total: 1}", "params.active"),
        ("- 1", ""),
        ("a: [", ":2"),
    ],
)
def test_a_bad_description_is_refused(text, where, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=str(file)) as refusal:
        models.load(str(file))
    assert where in refusal.value.where
