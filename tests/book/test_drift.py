"""A number that moved is told with from, to and its reason; a silent move fails."""

import doctest
import shutil

import drift
import pytest

from kvpaper import results

TABLE = """quantity,kind,value,tier,status,reproduced
fetch_time_s,predicted,0.5,nvme,,
fetch_time_s,predicted,0.25,dram,,
load,predicted,0.1,nvme,,
printed,published,130000,,agrees,131072
"""
CHANGELOG = """# Changelog

## Unreleased

- `20_recovery fetch_time_s tier=nvme`: the rate of the drive was read as GiB/s.

## 0.1.0

- `20_recovery`: what is below the release does not count.
"""


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """A table that is released, and its present copy to change."""
    monkeypatch.setattr(drift, "RELEASED", tmp_path / "released")
    monkeypatch.setattr(drift, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(results, "folder", lambda scenario: tmp_path / scenario)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "paper").mkdir()
    table = tmp_path / "paper/20_recovery.csv"
    table.write_text(TABLE)
    assert drift.main(["--keep", "0.1.0"]) == 0
    return table


def test_examples():
    outcome = doctest.testmod(drift)
    assert outcome.failed == 0
    assert outcome.attempted > 0


def test_nothing_moved(paper, capsys):
    paper.write_text(TABLE.replace("0.25", "0.25000000000001"))
    assert drift.main([]) == 0
    assert capsys.readouterr().out == (
        "0 of 5 numbers moved since 0.1.0, 0 of them without a changelog line; 0 are new\n"
    )


def test_a_move_with_its_line(paper, capsys):
    paper.write_text(TABLE.replace("0.5,nvme", "0.6,nvme") + "load,predicted,0.2,hbm,,\n")
    assert drift.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "20_recovery fetch_time_s kind=predicted tier=nvme: 0.5 -> 0.6 (+20 %); CHANGELOG.md:5: "
        "`20_recovery fetch_time_s tier=nvme`: the rate of the drive was read as GiB/s.",
        "1 of 5 numbers moved since 0.1.0, 0 of them without a changelog line; 1 are new",
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("0.25,dram", "0.3,dram", "tier=dram: 0.25 -> 0.3 (+20 %); no changelog line"),
        ("load,predicted,0.1,nvme,,\n", "", "tier=nvme: 0.1 -> gone; no changelog line"),
        ("131072", "131000", "131072 -> 131000 (-0.0549 %); no changelog line"),
    ],
)
def test_a_silent_move_fails(paper, capsys, old, new, told):
    paper.write_text(TABLE.replace(old, new))
    assert drift.main([]) == 1
    assert told in capsys.readouterr().out


def test_without_a_release_one_line_says_so(paper, capsys):
    shutil.rmtree(drift.RELEASED / "0.1.0")
    assert drift.main([]) == 2
    assert capsys.readouterr().err.startswith("data/released: found 0 folders, expected one")


def test_the_release_that_is_kept_is_one_of_the_changelog():
    version = drift.released().name
    assert f"\n## {version} " in drift.CHANGELOG.read_text("utf-8")
    assert len(drift.numbers(drift.released())) > 1000
