"""Reference configurations with their expected sizes, where they are at hand."""

import csv
from pathlib import Path

import pytest

from kvpaper import models
from kvpaper.errors import InputError

FOLDER = Path(__file__).resolve().parents[2] / "../shared/cases/model_configs"
CASES = []
if (FOLDER / "expected.csv").exists():
    with (FOLDER / "expected.csv").open(encoding="utf-8") as _file:
        CASES = list(csv.DictReader(_file))
pytestmark = pytest.mark.skipif(not CASES, reason="the reference configurations are not at hand")


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["status"] == "ok"], ids=lambda case: case["model"]
)
def test_sizes(case):
    model = models.load(str(FOLDER / case["file"]))
    answer = models.size(model, 8192, "bf16", 8)
    assert answer["kv_bytes_per_token"] == int(case["grow_bytes_per_token"])
    assert answer["kv_bytes_per_token_per_rank"] == int(case["tp8_grow_bytes_per_token_rank"])
    assert answer["state_bytes_per_sequence"] == int(case["state_bytes_fp32rec_bf16conv"])
    for tokens in (1_000, 8_192, 131_072):
        found = models.size(model, tokens, "bf16")["kv_bytes"]
        assert found == int(case[f"kv_bytes_{tokens}"])
    windows = models.size(model, 10**9, "bf16")["window_bytes"]
    assert windows == int(case["window_const_bytes"])
    index = sum(g.layers * g.elements_per_token for g in model.groups if g.kind == "index")
    assert 2 * index == int(case["indexer_bytes_per_token"])
    refused_by_engines = case["tp8_note"].startswith("uneven")
    assert refused_by_engines == any("do not divide" in text for text in answer["warnings"])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["status"] == "refuse"], ids=lambda case: case["model"]
)
def test_refusals(case):
    with pytest.raises(InputError, match=case["file"]):
        models.load(str(FOLDER / case["file"]))
