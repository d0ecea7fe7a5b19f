import gzip
import io
import json

import pytest
from logs import CORE_FAILED, FREE_MEMORY, NO_BLOCKS, OUTER, START, UP

from kvpaper.diagnose import diagnose, main, render
from kvpaper.errors import InputError

CONTRACT = {
    "cause", "kind", "confidence", "evidence", "ruled_out", "next_steps", "related", "attempts",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "code"), [(NO_BLOCKS, 0), (OUTER, 3), (UP, 4), (START + FREE_MEMORY, 0), ("", 3)]
)
def test_exit_codes_and_the_contracts_keys(text, code, tmp_path, capsys):
    path = tmp_path / "a.log"
    path.write_text(text)
    assert main([str(path)], as_json=True) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() >= CONTRACT
    for line in answer["evidence"]:
        assert line.keys() >= {"file", "line", "process", "text"}
    for line in answer["ruled_out"]:
        assert line.keys() >= {"line", "why"}


def test_a_folder_is_read_whole_and_an_empty_one_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match="no log inside"):
        diagnose([tmp_path])
    (tmp_path / "run" / "engine.log").write_text(START + OUTER)
    (tmp_path / "run" / "worker.txt").write_text(FREE_MEMORY)
    (tmp_path / "run" / "notes.md").write_text(NO_BLOCKS)
    answer = diagnose([tmp_path])
    assert answer["cause"] == "gpu_memory"
    assert answer["evidence"][0]["file"].endswith("worker.txt")


@pytest.mark.parametrize("name", ["missing.log", "no/such/folder"])
def test_a_missing_file_is_one_line(name, tmp_path):
    with pytest.raises(InputError) as error:
        diagnose([tmp_path / name])
    assert "\n" not in str(error.value)


def test_standard_input(monkeypatch, capsys):
    data = (CORE_FAILED + NO_BLOCKS).encode()

    stream = type("Stream", (), {"buffer": io.BufferedReader(io.BytesIO(data))})
    monkeypatch.setattr("sys.stdin", stream)
    assert main(["-"]) == 0
    assert "standard input:3 [EngineCore_DP0]" in capsys.readouterr().out


def test_compressed_standard_input(monkeypatch, capsys):
    stream = io.BytesIO(gzip.compress((CORE_FAILED + NO_BLOCKS).encode()))
    monkeypatch.setattr("sys.stdin", type("Stream", (), {"buffer": io.BufferedReader(stream)}))
    assert main(["-"]) == 0
    assert "kv_cache" in capsys.readouterr().out


def test_no_standard_input_and_no_name_are_bad_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    for name in ("-", ""):
        with pytest.raises(InputError):
            diagnose([name])


def test_a_file_named_twice_is_read_once(tmp_path):
    (tmp_path / "a.log").write_text(CORE_FAILED + NO_BLOCKS)
    answer = diagnose([tmp_path / "a.log", tmp_path, tmp_path / "../" / tmp_path.name / "a.log"])
    assert len(answer["evidence"]) == 1


def test_secrets_in_numbers_facts_and_names_are_redacted(tmp_path):
    token = "hf_" + "a1B2" * 8
    path = tmp_path / f"run-{token}.log"
    path.write_text(
        f"non-default args: {{'kv_connector': '{token}'}}, Error\n"
        f"host:7:7 [0] init.cc:416 NCCL WARN Cuda failure, token {token}\n" + OUTER
    )
    answer = diagnose([path])
    assert answer["cause"] == "nccl"
    assert any("NCCL says" in step for step in answer["next_steps"])
    assert token not in json.dumps(answer) + render(answer)


def test_secrets_in_evidence_are_redacted(tmp_path):
    path = tmp_path / "a.log"
    token = "hf_" + "a1B2" * 8
    path.write_text(f"ValueError: No available memory for the cache blocks, token {token}\n")
    answer = diagnose([path])
    assert token not in json.dumps(answer)
    assert "[redacted" in answer["evidence"][0]["text"]


def test_the_text_names_cause_line_process_and_steps(tmp_path):
    path = tmp_path / "a.log"
    path.write_text((START + CORE_FAILED + NO_BLOCKS + OUTER) * 2)
    text = render(diagnose([path]))
    assert text.startswith("kv_cache (kv_cache_no_memory), confidence high")
    assert f"{path}:14 [EngineCore_DP0]" in text
    assert "Ruled out:" in text
    assert "  1. " in text
    assert "2 starts in the log" in text


def test_one_engines_failure_is_not_hidden_by_another_engines_health(tmp_path):
    (tmp_path / "a.log").write_text(START + UP)
    (tmp_path / "b.log").write_text(START + CORE_FAILED + NO_BLOCKS)
    assert diagnose([tmp_path])["cause"] == "kv_cache"
