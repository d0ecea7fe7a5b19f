"""Fetching from a publisher that is a folder here: what is not the file meant never lands."""

import hashlib
from pathlib import Path

import pytest

from kvpaper.errors import InputError
from kvpaper.traces import fetch

CONTENT = b'{"timestamp": 1}\n'


@pytest.fixture
def publisher(tmp_path: Path) -> Path:
    path = tmp_path / "published.jsonl"
    path.write_bytes(CONTENT)
    return path


def source(publisher: Path, checksum: str) -> fetch.PublicFile:
    return fetch.PublicFile(publisher.as_uri(), "sub/trace.jsonl", checksum)


def test_fetches_checks_and_does_not_fetch_again(publisher, tmp_path, monkeypatch):
    file = source(publisher, hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(fetch.TRACES, "mine", (file,))
    assert fetch.fetched("mine", tmp_path / "cache") is None
    path = fetch.fetch_file(file, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    publisher.unlink()
    assert fetch.fetch_file(file, tmp_path / "cache") == path
    assert fetch.fetched("mine", tmp_path / "cache") == path
    path.write_bytes(b"changed")
    assert fetch.fetched("mine", tmp_path / "cache") is None


def test_a_wrong_checksum_leaves_nothing(publisher, tmp_path):
    with pytest.raises(InputError, match="found sha256 "):
        fetch.fetch_file(source(publisher, "0" * 64), tmp_path / "cache")
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


def test_no_answer_is_one_line_and_exit_code_2(publisher, tmp_path, monkeypatch, capsys):
    file = source(publisher, "0" * 64)
    publisher.unlink()
    monkeypatch.setattr(fetch, "TRACES", {"mine": (file,)})
    assert fetch.main(["--folder", str(tmp_path / "cache")]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "no answer" in message


def test_every_public_file_has_a_whole_commit_and_checksum():
    files = [file for files in fetch.TRACES.values() for file in files]
    assert len({file.path for file in files}) == len(files) == 8
    for file in files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert any(len(part) == 40 for part in file.url.split("/"))


def test_checksums_are_those_of_the_traces_at_hand():
    at_hand = [n for n, files in fetch.TRACES.items() if (fetch.FOLDER / files[0].path).exists()]
    if not at_hand:
        pytest.skip("traces not fetched")
    for name in at_hand:
        assert fetch.fetched(name) is not None
