"""The command against its contract, on a small log and on a public trace."""

import argparse
import json

import pytest
from at_hand import TRACES

from kvpaper.errors import InputError
from kvpaper.reuse import command, policies
from kvpaper.reuse.chapter import reuse_rows
from kvpaper.traces.load import read_trace

CONTRACT = {
    "requests", "block_references", "unique_blocks", "block_tokens", "ceiling", "curve", "tail",
    "verdict", "skipped_lines", "warnings",
}  # fmt: skip


def answer(capsys, *words: str) -> dict:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([*map(str, words), "--json"])) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    base = {"input_length": 1024, "output_length": 1}
    rows = [base | {"timestamp": i, "hash_ids": [i % 3, 100 + i % 40]} for i in range(300)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n{broken\n")
    return path


def test_contract_on_conversation(capsys):
    path = TRACES / "mooncake_conversation.jsonl"
    if not path.exists():
        pytest.skip("trace not fetched")
    found = answer(capsys, path, "--capacities", "1000,10000")
    assert found.keys() >= CONTRACT
    assert (found["requests"], found["block_references"]) == (12031, 288500)
    assert (found["unique_blocks"], found["block_tokens"]) == (182790, 512)
    assert {rate: round(value, 4) for rate, value in found["ceiling"].items()} == {
        "block": 0.3664, "token": 0.3736, "full_block": 0.3819,
        "request_mean_block": 0.3843, "request_mean_token": 0.4094,
    }  # fmt: skip
    points = [
        (point["capacity_blocks"], round(point["block"], 4), round(point["token"], 4))
        for point in found["curve"]
    ]
    assert points[0] == (1000, 0.0445, 0.0454)
    assert points[1][:2] == (10000, 0.2116)
    assert found["tail"]["range_blocks"] == [20, 31329]
    assert found["tail"]["preferred"] == "head+lognormal"
    assert found["verdict"]["closed_form"] == "refused"
    assert found["skipped_lines"] == 0


def test_small_log_with_damage_sample_text_and_figure(log, capsys, tmp_path):
    figure = tmp_path / "curve.png"
    found = answer(capsys, log, "--break-even", "50", "--figure", figure)
    assert found.keys() >= CONTRACT
    assert found["skipped_lines"] == 1
    assert "log.jsonl:301" in found["warnings"][0]
    assert found["curve"][-1]["block"] == pytest.approx(found["ceiling"]["block"])
    assert figure.stat().st_size > 1000
    assert {row["policy"] for row in found["timers"]} >= {"no cache", "foresight"}
    stack = answer(capsys, log, "--tiers", "hbm=5,dram=100", "--capacities", "5")
    assert stack["tiers"]["hbm"] == stack["curve"][0]["block"]
    assert sum(stack["tiers"].values()) == pytest.approx(found["ceiling"]["block"])
    sampled = answer(capsys, log, "--sample", "1", "--capacities", "1,43")
    assert sampled.keys() >= CONTRACT
    assert sampled["curve"][1]["block"] == pytest.approx(found["ceiling"]["block"])
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([str(log)]))
    printed = capsys.readouterr()
    assert "closed form: refused" in printed.out
    assert "1 damaged lines skipped" in printed.err


def test_saved_trace_gives_the_same_answer(log, capsys, tmp_path):
    saved = tmp_path / "t.parquet"
    first = answer(capsys, log, "--save", saved)
    again = answer(capsys, saved)
    assert again["curve"] == first["curve"]
    assert again["ceiling"] == first["ceiling"]


@pytest.mark.parametrize(
    "words",
    [
        ["--capacities", "many"],
        ["--capacities", "1.5"],
        ["--capacities", "-1"],
        ["--capacities", "1GB"],
        ["--capacities", ","],
        ["--tiers", "hbm"],
        ["--tiers", "hbm=1,hbm=2"],
        ["--sample", "0"],
        ["--sample", "1e-20"],
        ["--sample", "2"],
        ["--sample", "0.5", "--policy", "fifo"],
        ["--policy", "magic"],
        ["--columns", "blocks"],
        ["--columns", "blocks=x"],
        ["--block-tokens", "0"],
        ["--block-tokens", "9" * 20],
        ["--processes", "0"],
        ["--break-even", "0"],
        ["--break-even", "nan"],
        ["--figure", "none/curve.svg"],
        ["--figure", "curve.words"],
        ["--save", "none/t.parquet"],
        ["--tokenizer", "none.json", "--strict"],
        ["--strict"],
    ],
)
def test_bad_input_is_one_line(words, log):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(InputError) as caught:
        command.run(parser.parse_args([str(log), *words]))
    assert "\n" not in str(caught.value)


def test_a_sample_tells_of_what_was_not_read(log, capsys):
    (log.parent / "README.md").write_text("A word on the data.\n")
    warnings = "\n".join(answer(capsys, log.parent, "--sample", "0.5")["warnings"])
    assert "README.md" in warnings
    assert "1 damaged lines skipped, the first " in warnings


def test_a_sample_of_nothing_but_damage_names_the_damage(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n')
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(InputError, match=r"log.jsonl:1: found timestamp -1"):
        command.run(parser.parse_args([str(path), "--sample", "0.5"]))


def test_a_log_without_any_block_has_no_hits(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text('{"timestamp": 1, "input_length": 0, "output_length": 1, "hash_ids": []}\n')
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    figure = tmp_path / "curve.png"
    words = [str(path), "--break-even", "5", "--tiers", "hbm=1", "--figure", str(figure)]
    assert command.run(parser.parse_args(words)) == 0
    assert "1 requests, 0 references to 0 blocks" in capsys.readouterr().out


def test_bytes_of_components_follow_their_size(tmp_path, capsys):
    items = {name: [] for name in ("sys_prompt", "history", "web_search", "user_input")}
    row = {"timestamp": 1, "input_length": 60, "output_length": 1}
    row["hash_ids"] = items | {"passages_ids": [5, 6]}
    (tmp_path / "0.jsonl").write_text(json.dumps(row))
    sizes = [{"passage_id": 5, "token_length": 20}, {"passage_id": 6, "token_length": 40}]
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, sizes)))
    model = ("--model", "llama-3.1-8b", "--dtype", "bf16")
    found = answer(capsys, tmp_path, *model, "--capacities", "2")
    assert found["mean_block_tokens"] == 30
    assert found["curve"][0]["capacity_bytes"] == 2 * 30 * 131_072
    with pytest.raises(InputError, match="--model: found components of unknown size"):
        answer(capsys, tmp_path, *model, "--sample", "1")


def test_arrivals_only_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,48,10\n")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for words in ([], ["--sample", "0.5"]):
        with pytest.raises(InputError, match="arrivals and lengths only"):
            command.run(parser.parse_args([str(path), *words]))


def test_other_policies_where_the_library_is_there(log):
    pytest.importorskip("libcachesim")
    trace = read_trace([log])
    rows = policies.policy_rates(trace, ["lru", "belady"], [10, 20])
    lru, best = rows[:2], rows[2:]
    for mine, theirs in zip(lru, best, strict=True):
        assert theirs["reference"] >= mine["reference"]


def test_records_know_their_next_use(log):
    trace = read_trace([log])
    made = policies.records(trace)
    assert made["block"][:2].tolist() == [1, 0]
    for i in (0, 1, 50, 599):
        later = [j for j in range(i + 1, len(made)) if made["block"][j] == made["block"][i]]
        assert made["next_use"][i] == (later[0] + 1 if later else -1)


def test_rows_carry_their_input_and_known_kinds(log):
    rows = reuse_rows(read_trace([log]), "mine", "abc", (50.0,))
    assert {row["trace_sha256"] for row in rows} == {"abc"}
    assert {row["kind"] for row in rows} == {"simulated", "predicted"}
    wanted = {"hit_rate", "ceiling", "hull_hit_rate", "reuse_share", "pooled_gain", "regret"}
    assert wanted <= {row["quantity"] for row in rows}
