"""One row of data/published.csv, one test."""

import pytest

from kvpaper import published

ROWS = published.figures()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['quantity']} {row['arguments']}")
def test_published_figure_is_reproduced(row):
    try:
        here = published.reproduced(row)
    except published.Missing as reason:
        pytest.skip(str(reason))
    assert here == pytest.approx(float(row["value"]), rel=float(row["rtol"]))


def test_rows_have_a_source_and_a_tolerance_and_stand_once():
    assert all(row["source"] and float(row["rtol"]) >= 0 for row in ROWS)
    assert len({(row["quantity"], row["arguments"]) for row in ROWS}) == len(ROWS)


def test_a_wrong_figure_would_be_seen(monkeypatch):
    wrong = [row | {"value": str(float(row["value"]) * 1.5)} for row in ROWS]
    monkeypatch.setattr(published, "figures", lambda: wrong)
    statuses = {row["status"] for row in published.compared() if row["reproduced"] is not None}
    assert statuses == {"differs"}
