"""``kvpaper simulate``: the contract, and one line for what is wrong."""

import json

import pytest

from kvpaper import cli
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
        (["quick", "--seed", "-1"], "--seed"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_arrivals_without_blocks_are_refused(capsys, tmp_path):
    log = tmp_path / "azure.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51,10,5\n")
    code, _, err = run(capsys, "quick", "--trace", log)
    assert code == 2
    assert "arrivals and lengths only" in err
