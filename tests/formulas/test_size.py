import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.formulas import size

with (Path(__file__).resolve().parents[2] / "data" / "published.csv").open() as _file:
    PUBLISHED = [
        row
        for row in csv.DictReader(_file)
        if row["quantity"] in ("kv_bytes_per_token", "prefix_tokens")
        and not row["arguments"].startswith("model=")
    ]
counts = st.integers(1, 200)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["quantity"])
def test_published_values(row):
    arguments = {k: float(v) for k, v in (pair.split("=") for pair in row["arguments"].split())}
    found = getattr(size, row["quantity"])(**arguments)
    assert found == pytest.approx(float(row["value"]), rel=float(row["rtol"]))


def test_published_values_are_there():
    assert {row["quantity"] for row in PUBLISHED} == {"kv_bytes_per_token", "prefix_tokens"}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 8, 128, 2), 131_072),  # Llama-3.1-8B, the paper's shape
        ((80, 8, 128, 2), 327_680),  # Llama-3.1-70B
        ((24, 2, 64, 2), 12_288),  # Qwen2.5-0.5B
        ((48, 4, 128, 2), 98_304),  # Qwen3-30B-A3B: 128 is not hidden size over heads, 64
        ((94, 4, 128, 1), 96_256),  # Qwen3-235B-A22B with an fp8 cache
    ],
)
def test_bytes_per_token_by_hand(shape, expected):
    assert size.kv_bytes_per_token(*shape) == expected


def test_latent_cache_of_deepseek_v3():
    assert size.mla_kv_bytes_per_token(61, 512, 64, 2) == 70_272


@given(counts, counts, counts, st.sampled_from([0.5, 1, 2]))
def test_bytes_per_token_is_linear_in_each_factor(layers, heads, dim, element):
    one = size.kv_bytes_per_token(layers, heads, dim, element)
    assert size.kv_bytes_per_token(2 * layers, 3 * heads, 5 * dim, 2 * element) == 60 * one


def test_cache_of_one_full_group_is_tokens_times_bytes_per_token():
    per_token = size.kv_bytes_per_token(32, 8, 128, 2)
    assert size.kv_bytes(8192, 32, 2 * 8 * 128, np.inf, 2) == 8192 * per_token


def test_window_layers_stop_growing():
    groups = np.array([10, 52]), 2 * 16 * 128, np.array([np.inf, 1024]), 2  # Gemma-3-27b
    inside = size.kv_bytes(np.array([0, 1, 1024]), *groups)
    assert inside.tolist() == [0, 507_904, 1024 * 507_904]
    assert size.kv_bytes(5001, *groups) - size.kv_bytes(5000, *groups) == 81_920


def test_state_does_not_depend_on_length():
    short, long = size.kv_bytes(np.array([10, 1000]), 12, 1024, np.inf, 2, state_bytes=5e7)
    assert short == 10 * 24_576 + 5e7
    assert long - short == 990 * 24_576


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 80))
def test_resume_points_keep_the_union_of_their_windows(spacing, points, window):
    """Evenly spaced points; each needs the last tokens before it, once even where they overlap."""
    tokens = spacing * points
    needed = set()
    for point in range(spacing, tokens + 1, spacing):
        needed |= set(range(max(0, point - window), point))
    kept = size.kv_bytes(tokens, 1, 1, window, 1, state_bytes=100, resume_points=points)
    assert kept == len(needed) + 100 * points


def test_an_engine_that_keeps_windows_in_full_has_an_infinite_window():
    assert size.kv_bytes(1, 36, 2 * 8 * 64, np.inf, 2) == 73_728  # gpt-oss-120b


def test_ranks_copy_heads_that_cannot_be_split():
    heads = size.heads_per_rank(4, np.array([1, 2, 4, 8]))
    assert heads.tolist() == [4, 2, 1, 1]
    per_rank = size.kv_bytes_per_token(94, heads, 128, 2)
    assert per_rank[2:].tolist() == [48_128, 48_128]  # Qwen3-235B-A22B at 4 and at 8 ranks


@given(st.integers(0, 10**6), st.integers(1, 4096))
def test_blocks_hold_the_tokens_and_waste_less_than_one(tokens, block):
    held = size.blocks(tokens, block) * block
    assert tokens <= held < tokens + block


@given(st.integers(0, 10**7), st.sampled_from([70_272, 98_304, 131_072]))
def test_prefix_tokens_undoes_bytes(tokens, per_token):
    assert size.prefix_tokens(tokens * per_token, per_token) == tokens
    assert size.prefix_tokens((tokens + 1) * per_token - 1, per_token) == tokens


def test_a_gigabyte_is_7629_tokens():
    assert size.prefix_tokens(1e9, 131_072) == 7629


def test_no_resume_point_is_refused():
    with pytest.raises(InputError, match=r"resume_points: found 0, expected at least one point"):
        size.kv_bytes(10, 1, 1, np.inf, 2, resume_points=np.array([2, 0]))
