"""The tiers' instrument on small sizes; LMCache and a GPU have their own environments."""

import json
import subprocess
from pathlib import Path

import pytest

from kvpaper import cli
from kvpaper.errors import InputError
from kvpaper.lab import drive, records, tiers

ENGINE = Path(__file__).resolve().parents[2] / ".engine/bin/python"


def test_every_length_is_fetched_and_nothing_stays_on_the_disk(tmp_path, places):
    disk = tmp_path / "disk"
    disk.mkdir()
    run = tiers.run_tiers(["canary"], most_tokens=512, disk=disk, **places)
    record = json.loads(run.record_path.read_text())
    records.Record.model_validate(record)
    assert record["outcome"] == "completed"
    copies = [row for row in record["rows"] if row["way"] == "copy"]
    assert [row["tokens"] for row in copies] == [128, 256, 512]
    assert [row["bytes"] for row in copies] == [12_288 * tokens for tokens in (128, 256, 512)]
    ways = {(row["tier"], row["way"]) for row in record["rows"]}
    assert {("host DRAM", "copy"), ("disk", "page cache")} <= ways
    assert all(len(row["warmups"]) == 1 and len(row["values"]) >= 3 for row in record["rows"])
    assert list(disk.iterdir()) == []


def test_a_tier_that_gives_back_other_bytes_ends_the_run(tmp_path, places, monkeypatch):
    real = drive.read_into

    def spoil(file, view, offset):
        real(file, view, offset)
        view[0] ^= 1

    monkeypatch.setattr(drive, "read_into", spoil)
    run = tiers.run_tiers(["canary"], most_tokens=128, disk=tmp_path, **places)
    assert run.record["outcome"] == "failed"
    assert "other bytes" in run.record["cause"]["harness"]


def test_each_time_is_taken_at_another_place():
    seen = []
    times = drive.timed(seen.append, places=4)
    assert seen[:6] == [0, 1, 2, 3, 0, 1]
    assert len(times["warmups"]) == 1
    assert len(times["values"]) == len(seen) - 1 == 15


@pytest.mark.skipif(not ENGINE.exists(), reason="needs the engine's environment")
def test_device_rows_on_a_processor(tmp_path):
    shape = {"name": "canary", "token_bytes": 12_288, "tokens": [128, 4096]}
    request = {"folder": str(tmp_path), "direct": False, "device": "cpu", "shapes": [shape]}
    (tmp_path / "asked").write_text(json.dumps(request))
    command = [ENGINE, drive.__file__, "device", tmp_path / "asked", tmp_path / "rows"]
    subprocess.run(command, check=True, cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [row["tier"] for row in rows] == 2 * ["HBM", "host DRAM", "host DRAM", "disk"]
    assert all(len(row["values"]) >= 3 for row in rows)
    assert {path.name for path in tmp_path.iterdir()} == {"asked", "rows"}


@pytest.mark.skipif(not ENGINE.exists(), reason="needs the engine's environment")
def test_lmcache_gives_back_what_it_was_given(tmp_path):
    shape = {"name": "canary", "layers": 24, "kv_heads": 2, "head_dim": 64, "token_bytes": 12_288}
    request = {"folder": str(tmp_path), "shapes": [shape | {"tokens": [128, 256, 512]}]}
    (tmp_path / "asked").write_text(json.dumps(request))
    command = [ENGINE, drive.__file__, "lmcache", tmp_path / "asked", tmp_path / "rows"]
    subprocess.run(command, check=True, cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    ways = ["get", "page cache", "page cache dropped"]
    assert [(row["way"], row["tokens"]) for row in rows] == [
        (w, n) for w in ways for n in (256, 512)
    ]
    assert not list(tmp_path.rglob("*.pt"))


def test_a_driver_that_fails_ends_the_run_with_its_rows_so_far(tmp_path, places):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        '[ "$1" = -c ] && echo \'{"python": "3", "packages": {}}\' && exit 0\n'
        'echo "no such device" >&2; exit 3\n'
    )
    python.chmod(0o755)
    run = tiers.run_tiers(["canary"], 128, tmp_path, gpu=str(python), **places)
    assert run.record["outcome"] == "failed"
    assert "exit code 3" in run.record["cause"]["harness"]
    assert len(run.record["rows"]) >= 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"shapes": ["canaries"]}, "expected one of canary, paper"),
        ({"most_tokens": 64}, "expected at least 128"),
    ],
)
def test_bad_input_is_one_line(places, asked, said):
    with pytest.raises(InputError, match=said):
        tiers.run_tiers(**asked, **places)


def test_too_little_room_is_said_before_anything_is_written(tmp_path, places, monkeypatch):
    monkeypatch.setattr(tiers.shutil, "disk_usage", lambda _: type("Free", (), {"free": 10}))
    with pytest.raises(InputError, match="10 B free"):
        tiers.run_tiers(["canary"], disk=tmp_path, **places)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_the_record(tmp_path, capsys):
    words = ["measure", "tiers", "--shapes", "canary", "--most-tokens", "128", "--json"]
    words += ["--disk", str(tmp_path), "--records", str(tmp_path / "r")]
    assert cli.main([*words, "--runs", str(tmp_path / "runs")]) == 0
    assert json.loads(capsys.readouterr().out)["instrument"] == "tiers"
