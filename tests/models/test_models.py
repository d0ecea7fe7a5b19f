"""Configurations by hand: one small file for each way in which attention is spelled."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper import models
from kvpaper.errors import InputError

# Four layers, eight query heads of width 16, two KV heads: 64 elements a layer and token.
SHAPE = {
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
LAYER = 2 * 2 * 16
LLAMA = {"model_type": "llama", **SHAPE}
NEW = {"model_type": "new", **SHAPE}
LATENT = {"kv_lora_rank": 24, "qk_rope_head_dim": 8}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
MAMBA2_STATE = 4 * (4 * 8 * 16) + 2 * (4 * 8 + 2 * 16) * 3
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
DELTA_STATE = 4 * (4 * 8 * 16) + 2 * (2 * 2 * 8 + 4 * 16) * 3


def read(config):
    return models.from_config(config, "tiny", "tiny.json")


def groups(config):
    """Layers, elements and window of each group, in the order of the layers."""
    return [
        (group.layers, group.elements_per_token, group.window_tokens)
        for group in read(config).groups
    ]


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("change", "elements"),
    [
        ({}, LAYER),
        ({"num_key_value_heads": 8}, 2 * 8 * 16),
        ({"num_key_value_heads": 1}, 2 * 1 * 16),
        ({"num_key_value_heads": None}, 2 * 8 * 16),
        ({"head_dim": 32}, 2 * 2 * 32),
        ({"head_dim": None}, LAYER),
        ({"v_head_dim": 8, "model_type": "new"}, 2 * (16 + 8)),
        ({"kv_lora_rank": None, "qk_rope_head_dim": 0, "v_head_dim": 0}, LAYER),
    ],
)
def test_shape_of_a_layer(change, elements):
    assert groups(LLAMA | change) == [(4, elements, None)]


def test_latent_attention_has_no_heads_and_no_factor_two():
    (group,) = read({"model_type": "deepseek_v3", **SHAPE, **LATENT, "head_dim": 999}).groups
    assert (group.kind, group.elements_per_token, group.kv_heads) == ("mla", 24 + 8, None)


@pytest.mark.parametrize(
    ("model_type", "names", "elements"),
    [
        ("gpt2", {"n_layer": 4, "n_embd": 128, "n_head": 8}, 2 * 128),
        ("bloom", {"n_layer": 4, "n_embed": 128, "num_attention_heads": 8}, 2 * 128),
        ("xglm", {"num_layers": 4, "d_model": 128, "attention_heads": 8}, 2 * 128),
        (
            "chatglm",
            {
                "num_layers": 4,
                "hidden_size": 128,
                "num_attention_heads": 8,
                "kv_channels": 16,
                "multi_query_attention": True,
                "multi_query_group_num": 2,
            },
            LAYER,
        ),
        (
            "dbrx",
            {"n_layers": 4, "d_model": 128, "n_heads": 8, "attn_config": {"kv_n_heads": 2}},
            LAYER,
        ),
        (
            "mpt",
            {
                "n_layers": 4,
                "d_model": 128,
                "n_heads": 8,
                "attn_config": {"attn_type": "multiquery_attention", "attn_pdrop": 0.1},
            },
            2 * 16,
        ),
    ],
)
def test_other_names_of_the_same_settings(model_type, names, elements):
    assert groups({"model_type": model_type, **names}) == [(4, elements, None)]


@pytest.mark.parametrize(
    ("switches", "kv_heads"),
    [
        ({"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 2}, 2),
        ({"new_decoder_architecture": False, "multi_query": True, "num_kv_heads": 8}, 1),
        ({"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 2}, 8),
        ({}, 1),
    ],
)
def test_a_key_that_the_architecture_ignores(switches, kv_heads):
    falcon = without(SHAPE, "num_key_value_heads")
    assert groups({"model_type": "falcon", **falcon, **switches}) == [(4, 2 * kv_heads * 16, None)]


FULL, WINDOW = (LAYER, None), (LAYER, 32)


def layout(*kinds):
    """Groups that these layers make, in order of first appearance."""
    return [(kinds.count(kind), *kind) for kind in dict.fromkeys(kinds)]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "mistral"}, [WINDOW] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [FULL] * 4),
        ({"model_type": "gemma2"}, [WINDOW, FULL] * 2),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, [WINDOW, FULL] * 2),
        (
            {"model_type": "exaone4", "sliding_window_pattern": "LLG"},
            [WINDOW, WINDOW, FULL, WINDOW],
        ),
        ({"model_type": "exaone4", "sliding_window": None}, [FULL] * 4),
        ({"model_type": "cohere2"}, [WINDOW] * 3 + [FULL]),
        ({"model_type": "qwen2", "use_sliding_window": False}, [FULL] * 4),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
            [FULL] + [WINDOW] * 3,
        ),
        (
            {
                "model_type": "new",
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "sliding_window_pattern": 4,
            },
            [FULL, WINDOW] * 2,
        ),
        ({"model_type": "new", "hybrid_layer_pattern": [0, 1, 1, 0]}, [FULL, WINDOW, WINDOW, FULL]),
        ({"model_type": "new", "sliding_window_layout": [1, 0, 0, 0]}, [WINDOW] + [FULL] * 3),
        (
            {"model_type": "gpt_neo", "attention_layers": ["global", "local", "local", "local"]},
            [FULL] + [WINDOW] * 3,
        ),
        (
            {
                "model_type": "llama4_text",
                "no_rope_layers": [1, 1, 0, 1],
                "attention_chunk_size": 32,
            },
            [WINDOW, WINDOW, FULL, WINDOW],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 32}, [WINDOW] * 3 + [FULL]),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, [FULL] * 4),
        ({"model_type": "mellum"}, [FULL] * 4),
    ],
    ids=str,
)
def test_where_windows_stand(config, kinds):
    config = {"head_dim": 16, "sliding_window": 32} | SHAPE | config
    if config["model_type"] == "llama4_text":
        del config["sliding_window"]
    assert groups(config) == layout(*kinds)


def test_window_layers_with_heads_of_their_own():
    config = {
        "model_type": "new",
        **SHAPE,
        "hybrid_layer_pattern": [0, 1, 1, 1],
        "sliding_window": 32,
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 8,
        "swa_v_head_dim": 4,
    }
    assert groups(config) == [(1, 2 * (24 + 16), None), (3, 4 * (8 + 4), 32)]


def test_full_layers_with_heads_of_their_own():
    config = {
        "model_type": "gemma4_text",
        **SHAPE,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 32,
    }
    assert groups(config) == [(3, LAYER, 32), (1, 2 * 1 * 32, None)]
    by_layer = {"0": {"head_dim": 8}, "03": {"num_key_value_heads": 4}}
    assert groups(LLAMA | {"per_layer_config": by_layer}) == [
        (1, 2 * 2 * 8, None),
        (2, LAYER, None),
        (1, 2 * 4 * 16, None),
    ]


def test_lists_with_a_number_for_each_layer():
    config = LLAMA | {"num_key_value_heads": [1, 2, 2, 8]}
    assert groups(config) == [(1, 32, None), (2, LAYER, None), (1, 256, None)]


def test_searched_blocks():
    attention = {"n_heads_in_group": 4, "no_op": False, "window_length": None}
    blocks = [
        {"attention": attention},
        {"attention": {"n_heads_in_group": None, "no_op": True}},
        {"attention": {"n_heads_in_group": 8, "window_length": 32}},
        {"attention": {"replace_with_linear": True}},
    ]
    config = {"model_type": "nemotron-nas", **SHAPE, "block_configs": blocks}
    assert groups(config) == [(1, LAYER, None), (1, 32, 32)]
    strange = [{"attention": {"sparsify": "yes"}}, *blocks[1:]]
    with pytest.raises(InputError, match=r"block_configs\[0\]\.attention\.sparsify"):
        read(config | {"block_configs": strange})


@pytest.mark.parametrize(
    ("config", "full", "state_bytes"),
    [
        ({"model_type": "qwen3_next", "full_attention_interval": 2, **DELTA}, 2, 2 * DELTA_STATE),
        ({"model_type": "bamba", "attn_layer_indices": [1], **MAMBA2}, 1, 3 * MAMBA2_STATE),
        ({"model_type": "bamba", "attn_layer_indices": None, **MAMBA2}, 0, 4 * MAMBA2_STATE),
        ({"model_type": "falcon_h1", **MAMBA2}, 4, 4 * MAMBA2_STATE),
        (
            {
                "model_type": "granitemoehybrid",
                "layer_types": ["mamba"] * 3 + ["attention"],
                **MAMBA2,
            },
            1,
            3 * MAMBA2_STATE,
        ),
        (
            {
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M-*E",
                "mamba_num_heads": 4,
                "mamba_head_dim": 8,
                "ssm_state_size": 16,
                "n_groups": 1,
                "conv_kernel": 4,
            },
            1,
            MAMBA2_STATE,
        ),
        (
            {
                "model_type": "jamba",
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "mamba_expand": 2,
                "mamba_d_state": 16,
                "mamba_d_conv": 4,
            },
            2,
            2 * (4 * 256 * 16 + 2 * 256 * 3),
        ),
        ({"model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 1]}, 1, 3 * 4 * 8 * 16 * 16),
        (
            {"model_type": "lfm2", "full_attn_idxs": [2], "conv_L_cache": 3, "conv_bias": False},
            1,
            3 * 2 * 128 * 2,
        ),
        (
            {
                "model_type": "new",
                "layer_types": ["linear_attention", "full_attention"] * 2,
                **DELTA,
            },
            2,
            2 * DELTA_STATE,
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_layers_that_keep_a_state(config, full, state_bytes):
    answer = models.size(read({"head_dim": 16} | SHAPE | config), 100, "bf16")
    assert answer["kv_bytes"] == 100 * full * LAYER * 2
    assert answer["state_bytes_per_sequence"] == state_bytes


def test_layers_numbered_from_one():
    config = {
        "model_type": "kimi_linear",
        **SHAPE,
        **LATENT,
        "linear_attn_config": {
            "full_attn_layers": [4],
            "kda_layers": [1, 2, 3],
            "num_heads": 2,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
    }
    model = read(config)
    assert [(group.layers, group.kind) for group in model.groups] == [(1, "mla")]
    assert model.recurrent_state_elements == 3 * 2 * 8 * 8
    assert model.convolution_state_elements == 3 * (3 * 2 * 8) * 3
    config["linear_attn_config"]["kda_layers"] = [1, 2]
    with pytest.raises(InputError, match=r"linear_attn_config\.kda_layers"):
        read(config)


def test_recurrent_blocks_repeat():
    config = {
        "model_type": "recurrent_gemma",
        **SHAPE,
        "block_types": ["recurrent", "attention"],
        "attention_window_size": 32,
        "lru_width": 64,
        "conv1d_width": 4,
    }
    assert groups(config) == [(2, LAYER, 32)]
    assert read(config).recurrent_state_elements == 2 * 64


def test_layers_that_keep_nothing_of_their_own():
    shared = {"model_type": "gemma3n_text", "num_kv_shared_layers": 2, "sliding_window": 32}
    assert groups({**SHAPE, "head_dim": 16, **shared}) == [(2, LAYER, 32)]
    crossed = {"model_type": "mllama_text_model", "cross_attention_layers": [1, 3]}
    assert groups(SHAPE | crossed) == [(2, LAYER, None)]
    across = {"model_type": "hunyuan", "use_cla": True, "cla_share_factor": 2}
    assert groups(SHAPE | across) == [(2, LAYER, None)]
    assert groups(SHAPE | across | {"use_cla": False}) == [(4, LAYER, None)]


def test_layers_that_are_run_again_keep_a_cache_for_each_pass():
    config = {"model_type": "ouro", **SHAPE, "use_sliding_window": False, "max_window_layers": 4}
    assert groups(config | {"total_ut_steps": 4}) == [(16, LAYER, None)]
    published = {
        "model_type": "ouro",
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "total_ut_steps": 4,
    }
    assert at(published, 8192)["kv_bytes_per_token"] == 786432


@pytest.mark.parametrize(
    ("config", "kinds", "ignored"),
    [
        (LLAMA | LATENT, [FULL] * 4, ["kv_lora_rank", "qk_rope_head_dim"]),
        (LLAMA | {"sliding_window": 32}, [FULL] * 4, ["sliding_window"]),
        (
            LLAMA | {"sliding_window": 32, "sliding_window_pattern": 2},
            [FULL] * 4,
            ["sliding_window_pattern", "sliding_window"],
        ),
        (
            LLAMA | {"model_type": "mistral", "sliding_window": 32, "sliding_window_pattern": 2},
            [WINDOW] * 4,
            ["sliding_window_pattern"],
        ),
        (LLAMA | {"v_head_dim": 8}, [FULL] * 4, ["v_head_dim"]),
        (LLAMA | {"num_kv_shared_layers": 2}, [FULL] * 4, ["num_kv_shared_layers"]),
        (
            LLAMA | {"model_type": "phi3", **LATENT},
            [FULL] * 4,
            ["kv_lora_rank", "qk_rope_head_dim"],
        ),
    ],
)
def test_settings_that_a_class_does_not_read_are_ignored_with_a_warning(config, kinds, ignored):
    assert groups(config) == layout(*kinds)
    said = f"is ignored: {config['model_type']} does not read it"
    assert read(config).warnings == tuple(f"{key} {said}" for key in ignored)


def test_a_list_of_layer_types_stands_without_a_pattern():
    types = ["full_attention", "sliding_attention"] * 2
    config = {"model_type": "gemma3_text", **SHAPE, "head_dim": 16, "sliding_window": 32}
    config |= {"sliding_window_pattern": None, "layer_types": types}
    assert groups(config) == layout(FULL, WINDOW, FULL, WINDOW)


TELLING = [
    "head_size",
    "k_head_dim",
    "value_dim",
    "qk_head_dim",
    "d_k",
    "rolling_buffer_len",
    "gdn_layers",
    "lightning_layers",
    "k_eq_v",
    "yoco",
    "num_self_decoder_layers",
    "num_memory_tokens",
    "num_sink_tokens",
    "total_ut_steps",
    "num_loops",
    "num_repeats",
    "recurrent_depth",
    "layer_sharing",
    "reuse_layers",
    "num_hidden_groups",
    "compress_ratios",
    "cross_layer",
    "kv_sharing",
    "mb_per_layer",
    "moba_block_size",
    "expand_k",
    "mixer_types",
    "block_counts",
    "q_rank",
]


@pytest.mark.parametrize(
    "key",
    TELLING,
)
def test_an_unknown_type_with_a_telling_setting_is_refused(key):
    with pytest.raises(InputError, match=rf"tiny\.json: {key}: found 2"):
        read(NEW | {key: 2})
    assert groups(NEW | {key: None}) == groups(LLAMA)


def test_settings_of_no_matter_do_not_refuse_an_unknown_type():
    config = {
        "tie_word_embeddings": True,
        "shared_expert_intermediate_size": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 8,
        "image_token_id": 7,
        "vision_head_dim": 64,
        "rotary_dim": 8,
        "time_step_limit": 1.0,
        "share_embeddings": True,
    }
    assert groups(NEW | config) == groups(LLAMA)


def test_two_attentions_in_a_layer():
    config = {"model_type": "longcat_flash", "num_layers": 4, **LATENT, "num_attention_heads": 8}
    assert groups(config) == [(8, 32, None)]


@pytest.mark.parametrize(
    ("indexing", "layers"),
    [
        ({}, 4),
        ({"indexer_types": ["full", "shared", "shared", "full"]}, 2),
        ({"index_topk_pattern": "FSSS"}, 1),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 2}, 3),
    ],
)
def test_index_keys_of_sparse_attention(indexing, layers):
    config = {"model_type": "glm_moe_dsa", **SHAPE, **LATENT, "index_head_dim": 8, **indexing}
    assert groups(config) == [(4, 32, None), (layers, 8, None)]
    sparse = {"sparse_attention_freq": [0, 1, 1, 1], "sparse_index_dim": 8}
    config = {
        "model_type": "minimax_m3",
        **SHAPE,
        "head_dim": 16,
        "sparse_attention_config": sparse,
    }
    assert groups(config) == [(4, LAYER, None), (3, 8, None)]


def test_nested_language_part():
    wrapped = {"model_type": "llava", "text_config": LLAMA, "vision_config": {"num_heads": 99}}
    assert groups(wrapped) == groups(LLAMA)
    thinker = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": LLAMA}}
    assert groups(thinker) == groups(LLAMA)
    assert groups({"model_type": "internvl_chat", "llm_config": LLAMA}) == groups(LLAMA)
    untyped = {"model_type": "qwen3_vl", "text_config": {**SHAPE, "head_dim": 16}}
    assert groups(untyped) == groups(LLAMA)


def test_what_a_sparse_file_leaves_to_its_class():
    (group,) = read({"model_type": "llama"}).groups
    assert (group.layers, group.elements_per_token) == (32, 2 * 32 * 128)
    assert groups({"model_type": "gemma3_text", "num_hidden_layers": 6}) == [
        (5, 2 * 4 * 256, 4096),
        (1, 2 * 4 * 256, None),
    ]


def test_an_unknown_type_is_read_by_its_settings_with_a_warning():
    model = read({"model_type": "brand_new", **SHAPE})
    assert [group.elements_per_token for group in model.groups] == [LAYER]
    assert "'brand_new'" in model.warnings[0]
    assert read(LLAMA).warnings == ()


def test_prediction_layers_are_not_counted_but_named():
    model = read(LLAMA | {"num_nextn_predict_layers": 1})
    assert model.layers == 4
    assert "1 prediction layers" in model.warnings[0]
    listed = {"layer_types": ["full_attention"] * 5, "num_nextn_predict_layers": 1}
    assert groups(LLAMA | listed) == [(4, LAYER, None)]


REFUSALS = {
    "no settings": {},
    "num_hidden_layers": without(LLAMA, "num_hidden_layers") | {"model_type": "new"},
    "num_hidden_layers :": without(LLAMA, "num_hidden_layers") | {"model_type": "baichuan"},
    "num_key_value_heads": without(LLAMA, "num_key_value_heads") | {"model_type": "new"},
    "head_dim": without(LLAMA, "hidden_size") | {"model_type": "new"},
    "head_dim: ": LLAMA | {"hidden_size": 130},
    "layer_types": LLAMA | {"layer_types": ["full_attention"] * 3},
    "layer_types[2]": LLAMA | {"layer_types": ["full_attention"] * 2 + ["wavelet", "moe"]},
    "hybrid_override_pattern[1]": LLAMA | {"hybrid_override_pattern": "MX*-"},
    "sliding_window": NEW | {"sliding_window": 32},
    "sliding_window_pattern": {"model_type": "gemma3_text", "sliding_window_pattern": None},
    "sliding_window_pattern: ": {"model_type": "gemma3_text", "sliding_window_pattern": 0},
    "full_attention_interval": {"model_type": "qwen3_next", "full_attention_interval": None},
    "global_attn_every_n_layers": {"model_type": "afmoe", "global_attn_every_n_layers": None},
    "total_ut_steps": {"model_type": "ouro", **SHAPE},
    "num_kv_shared_layers:": LLAMA | {"auto_map": {}, "num_kv_shared_layers": 4},
    "sliding_window: ": LLAMA | {"layer_types": ["sliding_attention"] * 4},
    "attention_type": {"model_type": "new", **SHAPE, "attention_type": "quantum"},
    "kv_compression": LLAMA | {"kv_compression": 4},
    "local_window": LLAMA | {"local_window": 64},
    "mamba_n_heads": {"model_type": "new", **SHAPE, **MAMBA2},
    "index_head_dim": LLAMA | {"index_head_dim": 64},
    "linear_attn_config.full_attn_layers": LLAMA
    | {"linear_attn_config": {"full_attn_layers": [9]}},
    "attn_layer_indices": {"model_type": "bamba", **SHAPE, "attn_layer_indices": [4]},
    "attn_layer_period": {"model_type": "jamba", **SHAPE, "attn_layer_period": 0.5},
    "num_kv_shared_layers": {"model_type": "gemma3n_text", **SHAPE} | {"num_kv_shared_layers": 4},
    "kv_lora_rank": NEW | {"kv_lora_rank": 24.5, "qk_rope_head_dim": 8},
    "qk_rope_head_dim": NEW | {"kv_lora_rank": 24},
    "num_hidden_layers: ": LLAMA | {"num_hidden_layers": 10**12},
    "num_attention_heads": LLAMA | {"num_attention_heads": -8},
    "num_attention_heads: ": LLAMA | {"num_attention_heads": math.nan},
    "num_key_value_heads: ": LLAMA | {"num_key_value_heads": "2"},
    "num_key_value_heads:": LLAMA | {"num_key_value_heads": True},
    "num_key_value_heads :": LLAMA | {"num_key_value_heads": 3},
    "n_kv_heads": LLAMA | {"num_key_value_heads": None, "n_kv_heads": [1, 2]},
    "n_head": LLAMA | {"n_head": 4},
    "text_config": {"model_type": "llava"},
    "text_config.head_dim": {"model_type": "llava", "text_config": LLAMA | {"head_dim": 0}},
    "model_type": LLAMA | {"model_type": ["llama"]},
    "is_encoder_decoder": LLAMA | {"is_encoder_decoder": True},
    "is_encoder_decoder: ": {"model_type": "t5"},
    "mem_len": {"model_type": "xlnet", "mem_len": 512},
    "compress_ratios": {"model_type": "deepseek_v4", **SHAPE, "compress_ratios": [0, 4, 128, 4]},
    "per_layer_config": LLAMA | {"per_layer_config": {"7": {}}},
    "use_dsa": {"model_type": "dots3_note_text", "use_dsa": False},
}


@pytest.mark.parametrize("key", REFUSALS)
def test_a_refusal_names_the_setting(key):
    with pytest.raises(InputError) as refusal:
        read(REFUSALS[key])
    named = f"{refusal.value.where}: {refusal.value.found}"
    assert key.rstrip(": ") in named
    assert "\n" not in str(refusal.value)


def test_a_key_that_switches_nothing_on_is_no_matter():
    off = {"sliding_window": None, "attention_type": None, "kv_compression": 0, "mamba_layers": []}
    assert groups(LLAMA | off) == groups(LLAMA)


def at(config, tokens, **options):
    return models.size(read(config), tokens, **{"dtype": "bf16", **options})


WINDOWED = {"model_type": "gemma2", **SHAPE, "head_dim": 16, "sliding_window": 32}


@pytest.mark.parametrize(("tokens", "held"), [(0, 0), (31, 31), (32, 32), (33, 32), (10**9, 32)])
def test_a_window_stops_growing(tokens, held):
    answer = at(WINDOWED, tokens)
    assert answer["window_bytes"] == 2 * LAYER * 2 * held
    assert answer["kv_bytes"] == 2 * LAYER * 2 * (tokens + held)
    assert answer["kv_bytes_per_token"] == 2 * LAYER * 2
    assert answer["kv_bytes_per_token_all_full"] == 4 * LAYER * 2


@given(st.integers(1, 40), st.integers(0, 10**6), st.sampled_from(sorted(models.ELEMENT_BYTES)))
def test_bytes_scale_with_layers_and_with_the_element(layers, tokens, dtype):
    once = at(LLAMA | {"num_hidden_layers": layers}, tokens, dtype=dtype)
    twice = at(LLAMA | {"num_hidden_layers": 2 * layers}, tokens, dtype=dtype)
    assert twice["kv_bytes"] == 2 * once["kv_bytes"]
    elements = tokens * layers * LAYER
    assert once["kv_bytes"] == elements * models.ELEMENT_BYTES[dtype]


@pytest.mark.parametrize(
    ("dtype", "per_token"),
    [("fp32", 1024), ("float16", 512), ("FP8", 256), ("int8", 256), ("fp4", 128), ("nvfp4", 144)],
)
def test_element_types(dtype, per_token):
    answer = at(LLAMA, 8192, dtype=dtype)
    assert answer["kv_bytes_per_token"] == per_token
    assert isinstance(answer["kv_bytes_per_token"], int)


@pytest.mark.parametrize(
    ("dtype", "eighths"), [("bf16", 16), ("fp8", 8), ("fp4", 4), ("mxfp4", 4.25)]
)
def test_totals_are_exact_beyond_what_a_float_holds(dtype, eighths):
    tokens = 2**53 + 1
    answer = at(LLAMA, tokens, dtype=dtype)
    assert answer["kv_bytes"] == tokens * (4 * LAYER // 32) * int(4 * eighths)
    assert f"{answer['kv_bytes']:,} B" in models.render(answer)


@pytest.mark.parametrize(
    ("setting", "dtype"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8"),
        ({"kv_cache_scheme": [{"num_bits": 8, "type": "float"}]}, "fp8"),
        ({"kv_cache_scheme": {"k": {"num_bits": 8, "type": "int"}}}, "int8"),
        ({"kv_cache_scheme": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": "NONE"}, "bf16"),
        ({"kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}}, "fp8"),
        ({"quant_method": "quark", "kv_cache_quant_config": {"*v_proj": {"bias": None}}}, "fp8"),
        ({"export": {"kv_cache_group": ["*k_proj", "*v_proj"]}}, "fp8"),
        ({"export": {"kv_cache_group": []}, "kv_cache_post_rope": True}, "bf16"),
        ({"kv_cache_quant_algo": None, "quant_algo": "NVFP4"}, "bf16"),
        ({"kv_cache_scheme": None}, "bf16"),
    ],
)
def test_the_configs_own_cache_type_is_the_default(setting, dtype):
    config = LLAMA | {"quantization_config": setting}
    assert models.size(read(config))["dtype"] == dtype
    assert models.size(read(config), dtype="fp32")["dtype"] == "fp32"


def test_a_cache_type_that_is_not_known_is_refused_where_it_counts():
    model = read(LLAMA | {"quantization_config": {"kv_cache_quant_algo": "FP2"}})
    with pytest.raises(InputError, match=r"tiny\.json: KV setting: found 'fp2'"):
        models.size(model)
    assert models.size(model, dtype="bf16")["kv_bytes_per_token"] == 4 * LAYER * 2


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"quantization_config": {"kv_cache_codebook": {"size": 3}}}, "kv_cache_codebook"),
        ({"quantization_config": {"kv_quant": "int2"}}, "int2"),
        ({"quantization_config": {"kv_cache_scheme": ["fp8", "int8"]}}, "kv_cache_scheme"),
        ({"kv_cache_dtype": "turbo3"}, "turbo3"),
    ],
)
def test_an_unclear_cache_type_is_never_taken_for_bf16(settings, found):
    with pytest.raises(InputError, match=found):
        models.size(read(LLAMA | settings))


def test_a_cache_type_may_stand_outside_the_quantization():
    assert models.size(read(LLAMA | {"kv_cache_dtype": "fp8_e4m3"}))["dtype"] == "fp8"
    assert models.size(read(LLAMA | {"kv_cache_dtype": "auto"}))["dtype"] == "bf16"


@pytest.mark.parametrize(
    ("ranks", "heads", "caution"),
    [(1, 2, ""), (2, 1, ""), (4, 1, "each of 2 KV heads is kept by 2 ranks"), (3, 1, "not divide")],
)
def test_ranks_share_the_heads(ranks, heads, caution):
    answer = at(LLAMA, 8192, tensor_parallel=ranks)
    assert answer["kv_bytes_per_token_per_rank"] == 4 * 2 * heads * 16 * 2
    assert caution in " ".join(answer["warnings"])
    assert bool(answer["warnings"]) == bool(caution)


def test_latents_and_states_are_not_split():
    latent = {"model_type": "deepseek_v3", **SHAPE, **LATENT}
    assert at(latent, 1, tensor_parallel=8)["kv_bytes_per_token_per_rank"] == 4 * 32 * 2
    hybrid = {"model_type": "falcon_h1", **SHAPE, **MAMBA2}
    split, whole = at(hybrid, 1, tensor_parallel=2), at(hybrid, 1)
    assert split["state_bytes_per_sequence"] == whole["state_bytes_per_sequence"] > 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tokens", {"tokens": -1}),
        ("tokens", {"tokens": 1.5}),
        ("tensor_parallel", {"tensor_parallel": 0}),
        ("dtype", {"dtype": "bf17"}),
    ],
)
def test_size_refuses(name, options):
    with pytest.raises(InputError, match=f"^{name}: found"):
        models.size(read(LLAMA), **options)


def test_widths_for_the_cost_of_attention():
    model = read({"model_type": "deepseek_v3", **SHAPE, **LATENT, "qk_nope_head_dim": 16})
    assert (model.query_heads, model.qk_head_dim, model.v_head_dim) == (8, 24, None)
    model = read(NEW | {"v_head_dim": 8, "max_position_embeddings": 64})
    assert (model.query_heads, model.qk_head_dim, model.v_head_dim) == (8, 16, 8)
    assert model.max_context_tokens == 64
    assert "context of 64" in models.size(model, 65)["warnings"][-1]


def test_render_tells_what_the_answer_tells():
    text = models.render(at(WINDOWED, 100, tensor_parallel=2))
    for part in ("100 tokens", "256 B", "2 window layers", "window 32 tokens", "note: "):
        assert part in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
setting_names = sorted(
    {
        *SHAPE,
        *LATENT,
        *MAMBA2,
        *DELTA,
        "layer_types",
        "hybrid_override_pattern",
        "block_types",
        "block_configs",
        "attn_layer_indices",
        "attn_layer_period",
        "full_attention_interval",
        "sliding_window",
        "sliding_window_pattern",
        "per_layer_config",
        "indexer_types",
        "num_kv_shared_layers",
        "kv_source_layers",
        "linear_attn_config",
        "text_config",
        "quantization_config",
        "head_dim",
    }
)
types = st.sampled_from(["llama", "gemma3", "jamba", "nemotron_h", "bamba", "dory", "new"])


@given(
    types, st.dictionaries(st.sampled_from(setting_names), json_values, max_size=5), st.booleans()
)
def test_nothing_but_an_answer_or_a_refusal(model_type, settings, whole):
    config = {**(SHAPE if whole else {}), **settings, "model_type": model_type}
    where = "tiny.json"
    try:
        models.size(read(config), 1000, "bf16", 2)
    except InputError as refusal:
        where = refusal.where
    assert where.startswith("tiny.json")
