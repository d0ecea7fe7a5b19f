import csv
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper import data, latency
from kvpaper.errors import InputError

FOLDER = data.FOLDER / "latency"
TABLES = sorted(latency.instances())


def test_files_are_those_that_were_derived():
    sums = dict(
        reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text("utf-8").splitlines()
    )
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.csv")
    }


@pytest.mark.parametrize("name", TABLES)
def test_decode_points_of_the_file_come_back(name):
    table = latency.decode_table(name)
    with (FOLDER / f"{name}.decode.csv").open(newline="") as file:
        for row in list(csv.DictReader(file))[::5]:
            there = table.step_time(float(row["batch"]), float(row["context"]))
            assert there == pytest.approx(float(row["tpot_ms"]) / 1e3, rel=1e-12)


@pytest.mark.parametrize("name", TABLES)
def test_points_of_the_file_come_back(name):
    table = latency.prefill_table(name)
    with (FOLDER / f"{name}.prefill.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[::7]:
        there = table.prefill_time(float(row["new_tokens"]), float(row["cached_tokens"]))
        assert there == pytest.approx(float(row["ms"]) / 1e3, rel=1e-12)


@given(st.floats(1, 131072), st.floats(0, 131072))
def test_between_points_stays_within_the_neighbours(new, cached):
    table = latency.prefill_table("qwen3-30b-a3b")
    value = table.prefill_time(new, cached)
    row = np.clip(np.searchsorted(table.new_tokens, new), 1, len(table.new_tokens) - 1)
    column = np.clip(np.searchsorted(table.cached_tokens, cached), 1, len(table.cached_tokens) - 1)
    corners = table.seconds[row - 1 : row + 1, column - 1 : column + 1]
    assert corners.min() * (1 - 1e-12) <= value <= corners.max() * (1 + 1e-12)


def test_arrays_in_arrays_out():
    table = latency.prefill_table("deepseek-v3")
    both = table.prefill_time(np.array([100.0, 5000.0]), 2000.0)
    assert both == pytest.approx(
        [table.prefill_time(100.0, 2000.0), table.prefill_time(5000.0, 2000.0)]
    )


@pytest.mark.parametrize(("new", "cached"), [(200_000, 0), (1, 200_000), (0, 0), (float("nan"), 0)])
def test_what_was_not_tabulated_is_refused(new, cached):
    with pytest.raises(ValueError, match="expected"):
        latency.prefill_table("deepseek-v3").prefill_time(new, cached)


@pytest.mark.parametrize(("batch", "context"), [(1024, 256), (0.5, 256), (1, 200_000), (1, 10)])
def test_a_step_that_was_not_tabulated_is_refused(batch, context):
    with pytest.raises(ValueError, match="expected"):
        latency.decode_table("deepseek-v3").step_time(batch, context)


def test_a_continued_prefill_says_so_and_follows_the_work_of_attention():
    new, cached = np.array([1.0, 2.0, 4.0]), np.array([0.0, 8.0])
    seconds = 1 + 2 * new[:, None] + new[:, None] ** 2 + 3 * new[:, None] * cached
    table = latency.PrefillTable("by hand", new, cached, seconds, 1)
    further = table.extended(64, 32)
    assert (table.kind, further.kind) == ("tabulated", "predicted")
    assert further.prefill_time(64, 32) == pytest.approx(1 + 2 * 64 + 64**2 + 3 * 64 * 32)
    assert further.prefill_time(3, 5) == table.prefill_time(3, 5)
    assert table.extended(3, 5) is table


def test_a_continued_decode_step_says_so_and_goes_on_as_a_line():
    batch, context = np.array([1.0, 2.0]), np.array([0.0, 100.0])
    seconds = 1 + batch[:, None] * (2 + context / 10)
    table = latency.DecodeTable("by hand", batch, context, seconds, 1)
    further = table.extended(50, 3000)
    assert further.kind == "predicted"
    assert further.step_time(33, 2345) == pytest.approx(1 + 33 * (2 + 234.5))
    with pytest.raises(ValueError, match="batch: found 51"):
        further.step_time(51, 100)


def test_unknown_table_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'deepseek-v3'"):
        latency.prefill_table("deepseek-v33")
