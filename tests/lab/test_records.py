"""Records: valid or refused, added and never changed; and all that are committed."""

import copy
import json
import math
import os

import pytest

from kvpaper import cli
from kvpaper.errors import InputError
from kvpaper.lab import records

LOG = {"name": "a.log", "bytes": 1, "left_out_bytes": 0, "sha256": "0" * 64, "error": ""}
LINE = {"file": "a.log", "line": 1, "process": "EngineCore", "text": "ValueError"}


@pytest.fixture
def record():
    parameters = {"tokens": [128, 256], "model": "tiny"}
    return {
        "schema_version": 1,
        "instrument": "tiers",
        "started_at": "2026-05-01T10:00:00.123456Z",
        "duration_s": 1.5,
        "parameters": parameters,
        "parameters_sha256": records.parameters_sha256(parameters),
        "machine": {"processor": "made up"},
        "software": {"kvpaper": "0.1.0"},
        "command": ["kvpaper", "measure", "tiers"],
        "commands": {},
        "run": "tiers-1",
        "rows": [records.row("fetch_s", "s", [0.1, 0.2], [0.3], tier="dram", bytes=128)],
        "logs": [],
        "processes": [],
        "memory": {},
        "outcome": "completed",
        "cause": None,
    }


def changed(record, path, value):
    """The record with one place of it changed; a value of None takes the place out."""
    record = copy.deepcopy(record)
    inside = record
    for part in path[:-1]:
        inside = inside[part]
    if value is None:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return record


def test_a_record_is_read_as_it_was_written(record, tmp_path):
    path = records.write(record, tmp_path)
    start = record["parameters_sha256"][:8]
    assert path.name == f"tiers-20260501T100000123456Z-{start}.json"
    assert records.records(tmp_path) == [record]
    assert records.check(tmp_path) == (1, [])
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_is_never_written_over(record, tmp_path):
    path = records.write(record, tmp_path)
    before = path.read_bytes()
    other = changed(record, ("rows", 0, "values"), [9.0])
    with pytest.raises(FileExistsError):
        records.write(other, tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


FAULTS = {
    "parameters changed": (("parameters", "model"), "other"),
    "no outcome": (("outcome",), None),
    "an outcome of another word": (("outcome",), "done"),
    "a failure without cause": (("outcome",), "failed"),
    "completed without rows": (("rows",), []),
    "no values": (("rows", 0, "values"), []),
    "no warm-ups": (("rows", 0, "warmups"), None),
    "another kind": (("rows", 0, "kind"), "predicted"),
    "an unknown unit": (("rows", 0, "unit"), "furlong"),
    "a unit that is no base unit": (("rows", 0, "unit"), "ms"),
    "text as value": (("rows", 0, "values"), ["0.1"]),
    "a truth as value": (("rows", 0, "values"), [True]),
    "no number": (("rows", 0, "values"), [math.nan]),
    "no number as coordinate": (("rows", 0, "bytes"), math.inf),
    "a list as coordinate": (("rows", 0, "bytes"), [1]),
    "a local time": (("started_at",), "2026-05-01 10:00"),
    "an unknown key": (("median",), 0.15),
    "another version": (("schema_version",), 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_record_is_refused_and_found(record, tmp_path, fault):
    faulty = changed(record, *FAULTS[fault])
    with pytest.raises(InputError):
        records.write(faulty, tmp_path)
    assert list(tmp_path.iterdir()) == []
    name = records.path_of({**record, **faulty}, tmp_path)
    name.write_text(json.dumps(faulty), encoding="utf-8")
    _, problems = records.check(tmp_path)
    assert problems != []


def test_a_record_of_an_engine_names_its_version_and_its_log(record, tmp_path):
    record["commands"] = {"engine": ["vllm", "serve"]}
    record["software"]["engine"] = {"packages": {"vllm": "0.32.0"}}
    record["logs"] = [LOG]
    records.write(record, tmp_path)
    assert records.check(tmp_path) == (1, [])
    for path in (("logs", 0), ("software", "engine")):
        folder = tmp_path / path[0]
        records.write(changed(record, path, None), folder)
        count, problems = records.check(folder)
        assert (count, len(problems)) == (1, 1)


def test_a_failure_tells_its_cause(record, tmp_path):
    cause = {"cause": "kv_cache", "kind": "x", "confidence": "high", "evidence": [LINE]}
    failed = record | {"outcome": "failed", "cause": cause, "rows": []}
    records.write(failed, tmp_path)
    assert records.check(tmp_path) == (1, [])


def test_a_renamed_file_and_broken_json_are_found(record, tmp_path):
    records.write(record, tmp_path).rename(tmp_path / "tiers-mine.json")
    (tmp_path / "other.json").write_text("{")
    count, problems = records.check(tmp_path)
    assert count == 2
    assert [problem.partition(":")[0].split("/")[-1] for problem in problems] == [
        "other.json",
        "tiers-mine.json",
    ]


def test_whatever_lies_in_the_folder_is_told_in_a_line(record, tmp_path):
    record["commands"] = {"engine": ["vllm", "serve"]}
    record["logs"] = [LOG]
    for engine in (None, [], {"packages": None}):
        told = record | {"software": {"engine": engine}}
        path = records.path_of(record, tmp_path)
        path.write_text(json.dumps(told))
        assert records.check(tmp_path) == (
            1,
            [f"{path.name}: software.engine: no version of the engine"],
        )
    path.write_text(json.dumps(record | {"parameters": {"x": math.inf}}))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "gone.json").symlink_to("nowhere")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    count, problems = records.check(tmp_path)
    assert count == len(problems) == 5
    assert "Infinity is no number" in problems[-1]


def test_parameters_have_one_checksum_in_any_order():
    first, second = {"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}
    assert records.parameters_sha256(first) == records.parameters_sha256(second)
    assert records.parameters_sha256(first) != records.parameters_sha256({"a": 1, "b": [2, 1]})


def test_the_published_schema_is_the_generated_one():
    published = json.loads((records.FOLDER / records.SCHEMA_FILE).read_text(encoding="utf-8"))
    assert published == records.schema()


def test_every_committed_record_is_valid_by_our_check_and_by_the_published_schema(record):
    count, problems = records.check()
    assert problems == []
    assert count == len(records.records())
    jsonschema = pytest.importorskip("jsonschema")
    published = json.loads((records.FOLDER / records.SCHEMA_FILE).read_text(encoding="utf-8"))
    for one in [record, *records.records()]:
        jsonschema.validate(one, published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record | {"outcome": "done"}, published)


def test_check_on_the_command_line(record, tmp_path, capsys):
    path = records.write(record, tmp_path)
    assert cli.main(["measure", "check", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 records, 0 problems\n"
    path.write_text(path.read_text().replace("128", "129", 1))
    assert cli.main(["measure", "check", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert err == f"{path.name}: parameters_sha256: not that of the parameters\n"
    assert out == "1 records, 1 problems\n"
    assert cli.main(["measure", "check", str(tmp_path / "no")]) == 2
