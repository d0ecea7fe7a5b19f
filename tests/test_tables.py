import doctest
import math
import re

import pytest

from kvpaper import tables


def html(*arguments, **options):
    return tables.readable(*arguments, **options).data


def test_examples():
    assert doctest.testmod(tables) == (0, 1)


def row(**more):
    return {"quantity": "fetch_time_s", "kind": "predicted", "value": 1 / 3} | more


@pytest.mark.parametrize(
    ("quantity", "value", "words", "shown"),
    [
        ("fetch_time_s", 0.000208, "fetch time", "208 µs"),
        ("max_fetch_bytes", 1.3e12, "max fetch bytes", "1.3 TB"),
        ("rent_usd_per_byte_s", 1e-9 / 2629800, "rent", "1 USD/GB/month"),
        ("recompute_energy_j", 1440.0, "recompute energy", "1.44 kJ"),
        ("on_critical_path", 1.0, "on critical path", "yes"),
        ("within_slack", 0.0, "within slack", "no"),
        ("kv_bytes_per_token", 131072.0, "KV bytes per token", "131,072 B"),
        ("state_bytes_per_sequence", 7.73e7, "state bytes per sequence", "77.3 MB"),
        ("value_usd_per_token", 3.022e-8, "value per token", "0.0302 USD per million tokens"),
        ("recompute_energy_usd", 3.727e-6, "recompute energy cost", "3.727 × 10⁻⁶ USD"),
        ("offered_load", 0.25284, "offered load", "0.2528"),
        ("marginal_ratio", float("inf"), "marginal ratio", "∞"),
    ],
)
def test_a_quantity_has_words_and_a_unit_that_fits(quantity, value, words, shown):
    text = html([row(quantity=quantity, value=value)])
    assert f">{words}<" in text
    assert f">{shown}<" in text


def test_empty_columns_and_cells_are_left_out():
    text = html([row(tier="nvme", pool=None), row(tier=None, pool=None)])
    assert "pool" not in text
    assert "None" not in text
    assert "nan" not in text


def test_values_become_columns():
    rows = [row(tier=tier, quantity=name) for tier in ("hbm", "dram") for name in ("ttft_s", "a_s")]
    text = html(rows, columns="quantity")
    assert text.count("<tr>") == 3
    assert text.index(">HBM<") < text.index(">host DRAM<")


def test_a_kind_that_all_share_is_said_once():
    text = html([row(), row(value=1.0)])
    assert "<caption>All values are predicted.</caption>" in text
    assert text.count("predicted") == 1
    mixed = html([row(), row(kind="measured")])
    assert "caption" not in mixed
    assert mixed.count(">measured<") == 1
    causes = html([{"cause": "no memory", "kind": "gpu_memory"}])
    assert ">gpu_memory<" in causes


def test_written_units_are_printed_with_their_sign():
    assert ">10 µs<" in html([{"input": "latency", "written": "10 us"}])
    assert ">bus us<" in html([{"input": "bus us"}])


def test_each_cell_names_its_column():
    text = html([{"tier": "nvme", "note": 'a "slow" one', "on_critical_path": 0.0}])
    assert re.findall(r'data-label="([^"]+)"', text) == ["tier", "note", "on critical path"]


def test_only_tables_of_words_stack():
    assert "stacking" in html([{"input": "model", "source": "the paper"}])
    numbers = {"small": 1.5, "large": 2.5}
    assert "stacking" not in html([{"model": "a"} | numbers])
    assert "stacking" in html([{"model": "2 instances for prefill and 1 for decode"} | numbers])


def test_folded():
    text = tables.folded(tables.readable([{"a": 1}]), "Inputs <all>").data
    table = html([{"a": 1}])
    assert text == f"<details><summary>Inputs &lt;all&gt;</summary>{table}</details>"


def test_columns_are_picked_in_order_and_text_is_escaped():
    text = html([{"a": "<b>", "c": 2, "d": True}], ["d", "a"])
    assert "&lt;b&gt;" in text
    assert text.index(">yes<") < text.index("&lt;b&gt;")
    assert ">2<" not in text


def test_no_rows_say_so():
    for columns in (None, ["a"], "quantity"):
        assert "Nothing to list" in html([], columns)


def test_machines_are_told_in_captions_and_have_tables_of_their_own():
    at = {"kind": "measured", "quantity": "ttft_s", "value": 1.0}
    text = html([{**at, "machine": name} for name in ("one & only", "other", "one & only")])
    captions = re.findall("<caption>(.+?)</caption>", text)
    assert captions == [
        "All values are measured on one &amp; only.",
        "All values are measured on other.",
    ]
    assert text.count("<tr>") == 2 + 3


def test_what_is_the_same_in_every_row_stands_in_the_caption():
    at = {"kind": "measured", "machine": "m", "quantity": "fit_residual", "low": None, "high": None}
    rows = [{**at, "value": 0.12345, "model": "canary", "tier": tier} for tier in ("a", "b")]
    text = tables.banded(rows).data
    assert "<caption>All values are measured on m; model: canary.</caption>" in text
    first = re.findall(r'data-label="([^"]+)">([^<]+)<', text)[:2]
    assert first == [("tier", "a"), ("fit residual", "0.123")]


def test_a_band_stands_behind_its_value_and_only_where_there_is_one():
    at = {"kind": "measured", "machine": "m", "quantity": "ttft_s", "tier": "x"}
    rows = [{**at, "value": 1.0, "low": 0.5, "high": 2.0, "level": "a"}]
    rows.append({**at, "value": 3.0, "low": None, "high": None, "level": "b"})
    text = tables.banded(rows, "level").data
    assert re.findall(r'data-label="(?:a|b)">([^<]+)<', text) == ["1 s (500 ms to 2 s)", "3 s"]
    assert "Nothing to list" in tables.banded([]).data
    for low, high, shown in ((1.0, 3.0, "2 (1 to 3) s"), (1.0, math.inf, "2 s (1 s to ∞)")):
        told = tables.banded([{**at, "value": 2.0, "low": low, "high": high}]).data
        assert f">{shown}<" in told
