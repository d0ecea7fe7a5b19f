"""Readers on good logs, on odd ones, and on every damage that came to mind."""

import gzip
import json
import os
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpaper.errors import InputError
from kvpaper.traces import lines as lines_module
from kvpaper.traces import parse
from kvpaper.traces.block_trace import read_parquet, require_identity, write_parquet
from kvpaper.traces.load import Log, read_trace
from kvpaper.traces.readers import Options

GOOD = {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}


def mooncake(*changes: dict, drop: str = "") -> str:
    rows = [{k: v for k, v in (GOOD | change).items() if k != drop} for change in changes]
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(tmp_path, content: str | bytes, name: str = "log.jsonl"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(*what, **how):
    """A log that was read to its end, and its trace."""
    log = Log(*what, **how)
    return log, log.trace()


def test_mooncake_in_order_dense_and_in_seconds(tmp_path):
    path = written(tmp_path, mooncake({"timestamp": 4000}, {"hash_ids": [7, 8]}, {}))
    log, trace = read([path])
    assert log.format.name == "Mooncake"
    assert trace.block_tokens == 512
    assert trace.arrival_s.tolist() == [0, 0, 3]
    assert trace.blocks.tolist() == [0, 1, 0, 2, 0, 2]
    assert trace.reference_tokens.tolist() == [512, 88] * 3
    assert log.skipped_lines == 0
    assert "1 requests out of order" in log.warnings[0]


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_compressed_files_read_like_plain_ones(tmp_path, pack):
    content = mooncake({}, {"hash_ids": [7, 3]}).encode()
    if pack == "gzip":
        packed = gzip.compress(content)
    else:
        packed = pa.compress(content, "zstd", asbytes=True)
    trace = read_trace([written(tmp_path, packed, "log.bin")])
    assert trace.blocks.tolist() == [0, 1, 0, 2]


def test_parts_of_a_file_give_the_whole(tmp_path, monkeypatch):
    content = mooncake(*({"timestamp": i, "hash_ids": [i, i + 1]} for i in range(200)))
    path = written(tmp_path, content.replace("[50, 51]", "[50, x]"))
    whole = read_trace([path], processes=1)
    monkeypatch.setattr(parse, "PART_BYTES", 333)
    log, trace = read([path], processes=1)
    assert (trace.blocks == whole.blocks).all()
    assert (trace.arrival_s == whole.arrival_s).all()
    assert [damage.line for damage in log.damages] == [51]


def test_processes_and_dask_give_the_same_trace(tmp_path):
    for number in range(4):
        content = mooncake(*({"timestamp": number, "hash_ids": [i, number]} for i in range(50)))
        written(tmp_path, content, f"{number}.jsonl")
    alone = read_trace([tmp_path], processes=1)
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        _, shared = read([tmp_path], dask=cluster.scheduler_address)
    assert (shared.blocks == alone.blocks).all()
    assert (shared.arrival_s == alone.arrival_s).all()


def test_bailian_follows_chats(tmp_path):
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "hash_ids": [1, 2]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 2.5, "hash_ids": [1, 2, 3]},
        {"chat_id": 3, "parent_chat_id": -1, "timestamp": 3.5, "hash_ids": [1]},
    ]
    more = {"input_length": 40, "output_length": 4, "type": "text", "turn": 1}
    path = written(tmp_path, "\n".join(json.dumps(row | more) for row in rows))
    trace = read_trace([path])
    assert (trace.block_tokens, trace.session.tolist()) == (16, [0, 0, 1])
    assert trace.arrival_s.tolist() == [0, 2, 3]


def session(identifier: str, scope: str = "local") -> dict:
    turn = {"type": "n", "model": "m", "out": 3}
    return {
        "id": identifier,
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": scope,
        "requests": [
            turn | {"t": 0.0, "in": 100, "hash_ids": [1, 2]},
            turn | {"t": 5.0, "in": 180, "hash_ids": [1, 2, 3]},
        ],
    }


def test_sessions_with_local_ids_share_nothing(tmp_path):
    written(tmp_path, json.dumps(session("a"), indent=1), "a.json")
    written(tmp_path, json.dumps(session("b")), "b.json")
    trace = read_trace([tmp_path])
    assert (trace.requests, trace.references, trace.unique_blocks) == (4, 10, 6)
    assert trace.block_tokens == 64
    assert sorted(trace.session.tolist()) == [0, 0, 1, 1]
    written(tmp_path, json.dumps(session("b")), "c.json")
    log, again = read([tmp_path])
    assert again.unique_blocks == 9
    assert "repeat an id" in log.warnings[0]


def test_ragpulse_by_component_and_as_prefix(tmp_path):
    items = {"sys_prompt": [1], "passages_ids": [5, 6], "history": [], "web_search": []}
    base = {"timestamp": "3", "input_length": 60, "output_length": 1, "session_id": "s"}
    rows = [
        base | {"hash_ids": items | {"user_input": [9]}},
        base | {"hash_ids": items | {"passages_ids": [6, 5], "user_input": [9]}},
    ]
    written(tmp_path, "\n".join(map(json.dumps, rows)), "0_trace.jsonl")
    sizes = {1: ("sys_prompt_id", 10), 5: ("passage_id", 20), 6: ("passage_id", 25)}
    table = [json.dumps({key: item, "token_length": n}) for item, (key, n) in sizes.items()]
    written(tmp_path, "\n".join(table), "1.jsonl")
    log, trace = read([tmp_path])
    assert trace.blocks.tolist() == [0, 1, 2, 3, 0, 2, 1, 3]
    assert trace.reference_tokens[:3].tolist() == [10, 20, 25]
    assert "1 items without a known length" in log.warnings[0]
    prefix = read_trace([tmp_path], Options(components="prefix"))
    assert prefix.blocks.tolist() == [0, 1, 2, 3, 0, 4, 5, 6]
    assert prefix.reference_tokens.tolist()[4:7] == [10, 25, 20]


def test_prompt_text_is_hashed_with_its_parent(tmp_path):
    word = "word "
    rows = [
        {"timestamp": 1_000_000, "input": word * 40, "output_length": 3},
        {"timestamp": 3_000_000, "input": word * 40 + "more"},
        {"timestamp": 4_000_000, "input": "other " + word * 40},
    ]
    trace = read_trace([written(tmp_path, "\n".join(map(json.dumps, rows)))])
    first, second, third = (
        trace.blocks[trace.offsets[i] : trace.offsets[i + 1]].tolist() for i in range(3)
    )
    assert trace.arrival_s.tolist() == [0, 2, 3]
    assert first[:2] == second[:2]
    assert not set(third) & set(first)
    assert trace.input_tokens[0] == 41  # forty words and the blank at the end
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": word * 40}]}]}
    rows = [{"created": 5, **chat}, {"created": 6, "request": chat}]
    chats = read_trace([written(tmp_path, "\n".join(map(json.dumps, rows)))])
    assert chats.unique_blocks == chats.references // 2


@pytest.mark.parametrize(
    "row",
    [
        {"created": 5, "messages": 7},
        {"created": 5, "messages": ["x", 3]},
        {"created": 5, "prompt": "x", "usage": [1]},
        {"created": 5, "prompt": "x", "response": "y"},
        {"created": 5, "request": "x"},
        {"created": "soon", "prompt": "x"},
        {"prompt": "x"},
        {"timestamp": {}, "input": "x"},
    ],
)
def test_damaged_prompts_are_damage(tmp_path, row):
    good = {"created": 5, "prompt": "x"}
    path = written(tmp_path, "\n".join(map(json.dumps, [good, row])))
    log, trace = read([path])
    assert (trace.requests, log.skipped_lines) == (1, 1)


def test_times_in_another_unit_are_asked_about(tmp_path):
    rows = [{"prompt": "the same", "timestamp": 1_760_000_000 + i} for i in range(20)]
    log, _ = read([written(tmp_path, "\n".join(map(json.dumps, rows)))])
    assert "20 requests in 1.9e-05 s" in log.warnings[0]
    del rows[0]["timestamp"]
    path = written(tmp_path, "\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="neither timestamp nor created"):
        read([path], strict=True)


def test_azure_knows_arrivals_only_and_says_so(tmp_path):
    path = written(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.9799600,3180,8\n",
    )
    trace = read_trace([path], Options(block_tokens=16))
    assert trace.input_tokens.tolist() == [4808, 3180]
    assert trace.arrival_s.tolist() == pytest.approx([0, 1])
    with pytest.raises(InputError, match="arrivals and lengths only"):
        require_identity(trace.block_tokens, str(path))


@pytest.mark.parametrize("container", ["csv", "jsonl", "parquet"])
def test_named_columns(tmp_path, container):
    columns = {"when": [5, 8], "length": [30, 31], "ids": ["4 5", "4 6"]}
    path = tmp_path / f"log.{container}"
    if container == "parquet":
        pq.write_table(pa.table(columns), path)
    elif container == "csv":
        path.write_text("when,length,ids\n5,30,4 5\n8,31,4 6\n")
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join(map(json.dumps, rows)))
    named = {"arrival_ms": "when", "input_tokens": "length", "blocks": "ids"}
    trace = read_trace([path], Options(columns=named))
    assert trace.arrival_s.tolist() == pytest.approx([0, 0.003])
    assert trace.blocks.tolist() == [0, 1, 0, 2]


def test_parquet_keeps_everything(tmp_path):
    path = written(tmp_path, mooncake({}, {"hash_ids": [1, 2]}, {"session_id": "a"}))
    trace = read_trace([path])
    write_parquet(trace, tmp_path / "t.parquet")
    again = read_trace([tmp_path / "t.parquet"])
    for name in ("arrival_s", "input_tokens", "output_tokens", "session", "offsets", "blocks"):
        assert (getattr(again, name) == getattr(trace, name)).all()
    assert again.block_tokens == 512
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError):
        read_parquet(tmp_path / "other.parquet")


def test_a_damaged_parquet_file_is_one_line(tmp_path):
    rows = {"timestamp": [1] * 999, "input_length": [5] * 999, "hash_ids": [[1]] * 999}
    pq.write_table(pa.table(rows), tmp_path / "t.parquet")
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[4:60] = b"\xff" * 56
    with pytest.raises(InputError, match="a damaged Parquet file") as caught:
        read_trace([written(tmp_path, bytes(content), "t.parquet")])
    assert "\n" not in str(caught.value)


TAMPERED = {
    "negative block": {"blocks": pa.array([[0, -1]], pa.large_list(pa.int32()))},
    "block out of range": {"blocks": pa.array([[0, 9]], pa.large_list(pa.int32()))},
    "blocks in no order": {"blocks": pa.array([[1, 0]], pa.large_list(pa.int32()))},
    "blocks of fractions": {"blocks": pa.array([[0.5]])},
    "blocks missing": {"blocks": pa.array([[0, None]], pa.large_list(pa.int32()))},
    "blocks that are no list": {"blocks": pa.array([0])},
    "negative length": {"input_tokens": pa.array([-1])},
    "arrival of text": {"arrival_s": pa.array(["a"])},
    "arrival missing": {"arrival_s": pa.array([None], pa.float64())},
}


def tampered(path, changes):
    table = pq.read_table(path)
    for name, column in changes.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, path)


@pytest.mark.parametrize("changes", TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_block_trace_is_refused_before_it_is_indexed_by(tmp_path, changes):
    trace = read_trace([written(tmp_path, mooncake({}))])
    write_parquet(trace, tmp_path / "t.parquet")
    tampered(tmp_path / "t.parquet", changes)
    with pytest.raises(InputError, match=r"t\.parquet: found "):
        read_trace([tmp_path / "t.parquet"])


@pytest.mark.parametrize(
    "metadata", [{b"block_tokens": b"x"}, {b"unit_tokens": b"123"}, {b"unit_tokens": bytes(4)}]
)
def test_a_tampered_header_is_refused(tmp_path, metadata):
    trace = read_trace([written(tmp_path, mooncake({}))])
    write_parquet(trace, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | metadata), tmp_path / "x")
    with pytest.raises(InputError, match="x: found "):
        read_trace([tmp_path / "x"])


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path):
    trace = read_trace([written(tmp_path, mooncake({}))])
    for path in (tmp_path / "none" / "t.parquet", tmp_path):
        with pytest.raises(InputError, match="a file to write"):
            write_parquet(trace, path)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_selection_numbers_its_blocks_anew(tmp_path):
    rows = [{"timestamp": i, "hash_ids": [i, 50, i]} for i in range(5)]
    trace = read_trace([written(tmp_path, mooncake(*rows))])
    assert trace.select(np.array([2, 3])).blocks.tolist() == [0, 1, 0, 2, 1, 2]


ODD_BUT_GOOD = {
    "numbers as text": mooncake({"timestamp": "7", "input_length": "600"}),
    "ids as text": mooncake({"hash_ids": ["7", "0x9", "010"]}),
    "blank lines": "\n  \n" + mooncake({}) + "\n",
    "huge ids": mooncake({"hash_ids": [2**63 + 5, -(2**40)]}),
    "an empty request": mooncake({"input_length": 0, "hash_ids": []}, {}),
    "no last newline": mooncake({}).rstrip("\n"),
    "Windows": "\ufeff" + mooncake({}, {}).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("content", ODD_BUT_GOOD.values(), ids=ODD_BUT_GOOD)
def test_odd_is_not_damaged(tmp_path, content):
    log, trace = read([written(tmp_path, content)], strict=True)
    assert log.skipped_lines == 0
    assert trace.requests >= 1


DAMAGED = {
    "truncated": mooncake({})[:40] + "\n",
    "no JSON": "hello\n",
    "a number": "17\n",
    "another format": json.dumps(session("a")) + "\n",
    "negative time": mooncake({"timestamp": -5}),
    "infinite time": mooncake({}).replace("1000", "1e999"),
    "negative length": mooncake({"input_length": -1}),
    "missing length": mooncake({}, drop="input_length"),
    "missing ids": mooncake({}, drop="hash_ids"),
    "ids that are words": mooncake({"hash_ids": ["a"]}),
    "ids that are fractions": mooncake({"hash_ids": [1.5]}),
    "ids that are no list": mooncake({"hash_ids": 5}),
    "ids that are null": mooncake({"hash_ids": None}),
    "a length of text": mooncake({"input_length": "long"}),
    "a length of a fraction": mooncake({"input_length": 1.5}),
    "a length beyond reason": mooncake({"input_length": 10**30}),
    "a length that is true": mooncake({"input_length": True}),
    "not UTF-8": b'{"timestamp": 1, "x": "\xff\xfe"}\n',
    "zero bytes inside": b"\x00\x00\x00\n",
    "deep nesting": "[" * 5000 + "\n",
    "a value nested deeply": mooncake({}).replace("600", "[" * 1000 + "]" * 1000),
    "ids in an object of another kind": mooncake({"hash_ids": {"sys_prompt": 3}}),
}


@pytest.mark.parametrize("bad", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_counted_with_its_line_and_strict_fails(tmp_path, bad):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    path = written(tmp_path, mooncake({}).encode() + b"\n" + bad + mooncake({}).encode())
    log, trace = read([path])
    assert (trace.requests, log.skipped_lines) == (2, 1)
    assert (log.damages[0].path, log.damages[0].line) == (str(path), 3)
    with pytest.raises(InputError, match=r"log\.jsonl:3: found .*, expected "):
        read([path], strict=True)


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"hello world\n", b"\x89PNG\r\n\x1a\n", b"{}", b"[1, 2]", b"PAR1junk"]
)
def test_files_that_are_no_trace_are_refused(tmp_path, content):
    with pytest.raises(InputError) as caught:
        read_trace([written(tmp_path, content)])
    assert "\n" not in str(caught.value)


BROKEN_FROM_THE_START = {
    "gzip": b"\x1f\x8bno gzip at all",
    "zstd": bytes(pa.compress(mooncake({}).encode(), "zstd", asbytes=True))[:-9],
}


@pytest.mark.parametrize("content", BROKEN_FROM_THE_START.values(), ids=BROKEN_FROM_THE_START)
def test_a_stream_without_one_whole_line_says_that_it_breaks_off(tmp_path, content):
    with pytest.raises(InputError, match="found a stream that breaks off"):
        read_trace([written(tmp_path, content)])


def test_what_is_no_plain_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: found no plain file"):
        read_trace([tmp_path / "pipe"])
    with pytest.raises(InputError, match="no such file"):
        read_trace(["x" * 5000])
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "self.jsonl").symlink_to("self.jsonl")
    written(tmp_path, mooncake({}))
    assert read([tmp_path], strict=True)[1].requests == 1


def test_a_document_with_a_byte_order_mark_is_read(tmp_path):
    content = "\ufeff" + json.dumps(session("a"), indent=1)
    assert read_trace([written(tmp_path, content)]).requests == 2


STARTS = [
    mooncake({}, {}).encode(),
    json.dumps(session("a")).encode(),
    json.dumps(session("a"), indent=1).encode(),
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n",
    json.dumps({"created": 5, "messages": [{"role": "user", "content": "x"}]}).encode(),
    gzip.compress(mooncake({}, {}).encode()),
    bytes(pa.compress(mooncake({}, {}).encode(), "zstd", asbytes=True)),
    b"",
]


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    start=st.sampled_from(STARTS),
    changes=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=6)), max_size=4),
    end=st.binary(max_size=40),
)
def test_whatever_the_bytes_it_is_a_trace_or_one_clear_line(tmp_path, start, changes, end):
    content = bytearray(start + end)
    for place, put in changes:
        content[place : place + len(put)] = put
    path = written(tmp_path, bytes(content))
    try:
        trace = read_trace([path])
    except InputError as error:
        message = str(error)
    else:
        message = ""
        assert trace.requests == len(trace.offsets) - 1 > 0
        assert trace.offsets[-1] == trace.references
        assert (np.diff(trace.arrival_s) >= 0).all()
    assert "\n" not in message


def test_only_damage_is_an_error_with_its_line(tmp_path):
    path = written(tmp_path, mooncake({"timestamp": -1}, {"timestamp": -1}))
    with pytest.raises(InputError, match=r"log\.jsonl:1: found timestamp -1"):
        read_trace([path])


def test_folders(tmp_path):
    with pytest.raises(InputError, match="an empty folder"):
        read_trace([tmp_path])
    written(tmp_path, mooncake({}), "a.jsonl")
    written(tmp_path, "A word on the data.\n", "README.md")
    log, trace = read([tmp_path])
    assert trace.requests == 1
    assert "README.md" in log.warnings[0]
    with pytest.raises(InputError, match=r"README\.md"):
        read([tmp_path], strict=True)
    with pytest.raises(InputError, match="no such file"):
        read_trace([tmp_path / "none"])


def test_two_formats_are_no_trace(tmp_path):
    written(tmp_path, mooncake({}), "a.jsonl")
    written(tmp_path, json.dumps(session("a")), "b.jsonl")
    with pytest.raises(InputError, match="one format in one trace"):
        read_trace([tmp_path])


def test_truncated_gzip_keeps_what_can_be_read(tmp_path):
    packed = gzip.compress(mooncake(*({"hash_ids": [i]} for i in range(5000))).encode())
    log, trace = read([written(tmp_path, packed[: len(packed) // 2], "log.gz")])
    assert trace.requests > 100
    assert "breaks off" in log.damages[-1].found


def test_an_endless_line_takes_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "LONGEST_LINE_BYTES", 2**16)
    path = tmp_path / "log.jsonl"
    with open(path, "wb") as file:
        file.write(mooncake({}).encode())
        file.seek(2**28, 1)  # a sparse file: a quarter of a GiB of zeros without a newline
        file.write(b"\n" + mooncake({}).encode())
    tracemalloc.start()
    log, trace = read([path], processes=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (trace.requests, log.damages[0].line) == (2, 2)
    assert peak < 2**25
