import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper import units


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1 GB", "B", 1e9),
        ("1 GiB", "B", 2**30),
        ("400 Gbit/s", "B/s", 50e9),
        ("3.50 USD/hour", "USD/s", 3.5 / 3600),
        ("13.8 USD/GB", "USD/B", 13.8e-9),
        ("3 USD/GB/month", "USD/B/s", 3e-9 / (365.25 / 12 * 86400)),
        ("0.1 USD/kWh", "USD/J", 0.1 / 3.6e6),
        ("600 W", "J/s", 600),
        ("2 /s", "1/s", 2),
        ("2 requests/s", "1/s", 2),
        ("1 /day", "1/s", 1 / 86400),
        ("8_000 tokens", "token", 8000),
        ("8,000 tokens", "token", 8000),
        ("50 %", "", 0.5),
        ("0.6", "", 0.6),
        ("1e3 FLOP/s", "FLOP/s", 1e3),
    ],
)
def test_reads_by_hand(text, unit, value):
    assert units.quantity(text, unit) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "unit", "told"),
    [
        ("300", "s", "a number without a unit"),
        ("300 ms", "B", "a unit of another kind, 'ms'"),
        ("300 msec", "s", "unknown unit 'msec'"),
        ("3 gb/s", "B/s", "did you mean"),
        ("", "s", "no number"),
        ("fast", "s", "no number"),
        ("nan s", "s", "no number"),
        ("1 GB/s/s", "B/s", "another kind"),
        ("__import__('os')", "s", "no number"),
    ],
)
def test_refuses(text, unit, told):
    with pytest.raises(ValueError, match=r"number|unit") as error:
        units.quantity(text, unit)
    assert told in str(error.value)


@given(
    st.floats(1e-12, 1e12), st.sampled_from(["GB/s", "GiB", "USD/GB/month", "ms", "kWh", "tokens"])
)
def test_there_and_back(value, unit):
    assert units.quantity(f"{value!r} {unit}", unit) == pytest.approx(
        value * units.quantity(f"1 {unit}", unit), rel=1e-12
    )
    assert units.per(units.quantity(f"{value!r} {unit}", unit), unit) == pytest.approx(
        value, rel=1e-12
    )


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        value = units.quantity(text, "s")
    except ValueError:
        return
    assert not math.isnan(value)


def test_power_and_energy_meet():
    assert units.dimension("kWh") == units.dimension("J")
    assert units.quantity("1 kWh", "J") == units.quantity("3.6 MJ", "J")


def test_text_picks_the_largest_fitting_unit():
    assert units.text(0.333, ("us", "ms", "s")) == "333 ms"
    assert units.text(1.6e12, ("B", "kB", "MB", "GB", "TB")) == "1.6 TB"
    assert units.text(0.0, ("us", "ms")) == "0 us"
