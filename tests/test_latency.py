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


def test_unknown_table_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'deepseek-v3'"):
        latency.prefill_table("deepseek-v33")
