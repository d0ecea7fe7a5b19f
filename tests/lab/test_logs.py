"""The bounded log: what it keeps, what it hides, wherever the chunks are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper.lab.logs import LONGEST_BYTES, BoundedLog

TOKEN = "hf_" + "aB3" * 11
KEY = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 40
KEY += "-----END PRIVATE KEY-----\n"


def written(folder, chunks, **sizes):
    path = folder / "x.log"
    path.unlink(missing_ok=True)
    log = BoundedLog(path, ["my own secret"], **sizes)
    for chunk in chunks:
        log.feed(chunk)
    return log.close(), path.read_bytes()


def cut(text, places):
    edges = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    places=st.lists(st.integers(0, 300), max_size=10),
)
def test_lines_come_out_as_they_went_in(tmp_path_factory, lines, places):
    text = b"".join(line + b"\n" for line in lines)
    summary, kept = written(tmp_path_factory.mktemp("log"), cut(text, places))
    assert kept == text.decode("utf-8", "replace").encode()
    assert summary["left_out_bytes"] == 0
    assert summary["bytes"] == len(kept)


@given(places=st.lists(st.integers(0, 2000), max_size=8), head_bytes=st.integers(1, 1500))
def test_no_secret_wherever_chunks_and_sizes_cut(tmp_path_factory, places, head_bytes):
    text = f"a\ntoken {TOKEN}\n{KEY}b my own secret\n" * 2 + f"end {TOKEN}"
    chunks = cut(text.encode(), places)
    folder = tmp_path_factory.mktemp("log")
    for tail_bytes in (50, 300, 3000):
        summary, kept = written(folder, chunks, head_bytes=head_bytes, tail_bytes=tail_bytes)
        assert b"aB3aB3" not in kept
        assert b"MIIE" not in kept
        assert b"my own secret" not in kept
        assert b"end [redacted hub token]\n" in kept
        assert summary["bytes"] == len(kept)


def test_head_and_tail_are_kept_and_what_is_between_is_counted(tmp_path):
    lines = [b"%06d\n" % number for number in range(10_000)]
    summary, kept = written(tmp_path, lines, head_bytes=700, tail_bytes=70)
    mark = b"[kvpaper: %d bytes left out of this log]\n" % (7 * (10_000 - 100 - 10))
    assert kept == b"".join([*lines[:100], mark, *lines[-10:]])
    assert summary["left_out_bytes"] == 7 * (10_000 - 110)


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_line_without_end_is_cut_and_counted(tmp_path, pieces):
    size = 3 * LONGEST_BYTES
    text = b"x" * size + b"\nnext\n"
    step = -(-len(text) // pieces)
    chunks = [text[start : start + step] for start in range(0, len(text), step)]
    summary, kept = written(tmp_path, chunks)
    first, second, rest = kept.split(b"\n", 2)
    assert first.endswith(b" [kvpaper: the rest of this line left out]")
    assert second == b"next"
    assert first.count(b"x") + summary["left_out_bytes"] == size
    assert rest == b"[kvpaper: %d bytes left out of this log]\n" % summary["left_out_bytes"]


def test_a_secret_where_an_endless_line_is_cut(tmp_path):
    for before in range(LONGEST_BYTES - 80, LONGEST_BYTES + 10, 7):
        text = b"x" * before + b" " + TOKEN.encode() + b" " + b"x" * LONGEST_BYTES
        _, kept = written(tmp_path, [text])
        assert b"hf_aB3" not in kept


def test_records_stand_between_the_lines_of_a_stream(tmp_path):
    log = BoundedLog(tmp_path / "x.log")
    log.feed(b"begin")
    log.record(b"a record\nof two lines")
    log.feed(b" end\n")
    log.close()
    assert (tmp_path / "x.log").read_text() == "a record\nof two lines\nbegin end\n"
