import math

import pytest

from kvpaper import results


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results.data, "FOLDER", tmp_path)
    return tmp_path


def row(**more):
    return {"quantity": "fetch_time_s", "kind": "predicted", "value": 1 / 3} | more


def test_there_and_back(folder):
    path = results.write([row(tier="nvme"), row(bytes=1e9)], "mine", "20_recovery")
    assert path == folder / "results" / "mine" / "20_recovery.csv"
    back = results.read("mine", "20_recovery")
    assert list(back.columns) == ["quantity", "kind", "value", "tier", "bytes"]
    assert back.value[0] == pytest.approx(1 / 3, rel=1e-11)
    assert [path.name for path in path.parent.iterdir()] == ["20_recovery.csv"]


def test_same_rows_same_bytes(folder):
    first = results.write([row()], "a", "x").read_bytes()
    assert results.write([row()], "b", "x").read_bytes() == first


@pytest.mark.parametrize("wrong", [{"kind": "guessed"}, {"kind": None}])
def test_a_row_of_no_known_kind_is_refused(wrong):
    with pytest.raises(ValueError, match="no row of results"):
        results.table([row(**wrong)])


def test_json_has_no_nan_and_no_empty_coordinates():
    (out,) = results.jsonable([row(value=math.nan, tier=None)])
    assert out == {"quantity": "fetch_time_s", "kind": "predicted", "value": None}
