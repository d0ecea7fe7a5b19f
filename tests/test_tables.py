import pytest

from kvpaper import tables


def html(*arguments, **options):
    return tables.readable(*arguments, **options).data


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
        ("kv_bytes_per_token", 131072.0, "kv bytes per token", "131,072"),
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
    assert text.index("hbm") < text.index("dram")


def test_columns_are_picked_in_order_and_text_is_escaped():
    text = html([{"a": "<b>", "c": 2, "d": True}], ["d", "a"])
    assert "&lt;b&gt;" in text
    assert text.index(">yes<") < text.index("&lt;b&gt;")
    assert ">2<" not in text
