"""``kvpaper simulate``: the contract, and one line for what is wrong."""

import json

import pytest

from kvpaper import cli, data
from kvpaper.traces import fetch


def run(capsys, *arguments):
    code = cli.main(["simulate", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_json_has_the_keys_of_the_contract(capsys):
    code, out, err = run(capsys, "quick", "--json")
    answer = json.loads(out)
    assert code == 0
    assert {"p50", "p90", "p99"} <= answer["ttft_s"].keys() & answer["tpot_s"].keys()
    assert {"hbm", "dram", "nvme"} <= answer["hit_tokens"].keys()
    assert answer["requests"] > 0
    assert isinstance(answer["feasible"], bool)
    assert answer["binding"] in ("ttft", "tpot")
    assert answer["usd_per_million_output_tokens"] > 0
    assert answer["joules_per_million_output_tokens"] > 0
    assert answer["cell"]["latencies"] == "predicted"
    assert all(f"warning: {text}" in err for text in answer["warnings"])


def test_a_rerun_gives_the_same_bytes_and_words_go_to_people(capsys):
    first, again = (run(capsys, "quick", "--seed", 3, "--json")[1] for _ in range(2))
    assert first == again
    code, out, _ = run(capsys, "quick")
    assert code == 0
    assert "TTFT" in out
    assert "USD per million output tokens" in out


def test_a_log_of_ones_own(capsys, tmp_path):
    log = tmp_path / "mine.jsonl"
    rows = [
        {
            "timestamp": 1000 * i,
            "input_length": 1024,
            "output_length": 9,
            "hash_ids": [i // 2, i + 50],
        }
        for i in range(40)
    ]
    log.write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = run(capsys, "h200-moe", "--trace", log, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["requests"] == 40
    assert answer["cell"]["latencies"] == "tabulated"
    assert answer["hit_tokens"]["hbm"] == 15 * 512


def test_a_public_trace_that_is_not_at_hand_has_a_stand_in(capsys, monkeypatch):
    monkeypatch.setattr(fetch, "fetched", lambda name: None)
    code, out, err = run(capsys, "paper", "--json")
    assert code == 0
    assert json.loads(out)["cell"]["trace"] == "generated instead of mooncake_conversation"
    assert "warning: no mooncake_conversation (make traces): a generated trace instead" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "scenario"),
        (["quick", "--trace", "nowhere.jsonl"], "--trace: found 'nowhere.jsonl'"),
        (["quick", "--trace", ""], "--trace: found ''"),
        (["quick", "--seed", "-1"], "--seed"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


LOG = """{"timestamp": 2000, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": -5, "output_length": 5, "hash_ids": [1]}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "capacity: {value: 141 GB",
            "capacity: {value: 1.15 GB",
            "hbm.capacity (kv_tokens)",
        ),
        ("capacity: {value: 1 TiB", "capacity: {value: 1 B", "hardware.tiers.dram.capacity (tier"),
        ("beta:", "trace: ''\n  beta:", "trace: found ''"),
        ("slo:", "fleet: {rate: 1e9}\nslo:", "fleet.rate (rate): found 1e+09 times 1,254"),
        ("slo:", "fleet: {rate: 1e-9}\nslo:", "fleet.rate (rate): found 1e-09 of"),
        ("slo:", "fleet: {prefill: {instances: 90000}}\nslo:", "fleet.prefill.instances (inst"),
        ("slo:", "fleet: {prefill: {instances: 100000}}\nslo:", "fleet.prefill.instances: found"),
        ("slo:", "fleet: {chunk: 9e9 tokens}\nslo:", "fleet.chunk (chunk_tokens)"),
        ("slo:", "fleet: {prefill: {table: x}}\nslo:", "fleet.prefill.table (latency): found 'x'"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(capsys, tmp_path, old, new, message):
    text = (data.FOLDER / "scenarios" / "quick.yaml").read_text("utf-8")
    assert old in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("  trace: null\n", "").replace(old, new, 1), encoding="utf-8")
    code, out, err = run(capsys, file)
    assert (code, out) == (2, "")
    assert err.startswith(f"{file}:")
    assert message in err
    assert err.count("\n") == 1


def test_what_was_odd_in_a_log_is_told(capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(LOG)
    code, _, err = run(capsys, "quick", "--trace", log, "--json")
    assert code == 0
    assert "warning: log.jsonl: 1 damaged lines skipped, the first " in err
    assert "warning: log.jsonl: 1 requests out of order of arrival; sorted" in err


def test_arrivals_without_blocks_are_refused(capsys, tmp_path):
    log = tmp_path / "azure.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51,10,5\n")
    code, _, err = run(capsys, "quick", "--trace", log)
    assert code == 2
    assert "arrivals and lengths only" in err
