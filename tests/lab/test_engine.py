"""Command lines, requests and counters, against the fake engine."""

import itertools
import json
import re
import socket
import sys

import pytest

from kvpaper import cli
from kvpaper.errors import InputError
from kvpaper.lab import capture, engine, machine, records
from kvpaper.lab.canary import run_canary

DIGEST = "vllm/vllm-openai@sha256:" + "ab12" * 16


@pytest.fixture
def served(places, fake):
    """A fake engine behind a connector, and its run."""
    with capture.Run("canary", {}, **places) as run:
        yield engine.start(run, fake("healthy"), "lmcache")
        run.add("x_s", "s", [1.0])


def test_a_completion_has_its_times_and_tokens(served):
    first = served.complete(range(256), 4, logprobs=1)
    assert first.cached_tokens == 0
    assert len(first.token_s) == 4
    assert first.top_logprobs == ({"t": -0.5},) * 4
    # The fake engine sleeps 10 ms before each token.
    assert list(first.token_s) == sorted(first.token_s)
    assert first.ttft_s >= 0.01
    assert first.token_s[-1] >= 0.04
    assert first.token_s[-1] == pytest.approx(first.ttft_s + 3 * first.tpot_s)
    assert served.complete(range(256)).cached_tokens == 256
    served.reset_prefix_cache()
    assert served.complete(range(256)).cached_tokens == 255


def test_counters_and_configuration(served):
    name = "vllm:external_prefix_cache_hits_total"
    before = served.counters()[name]
    assert served.prove_active(256) == 255
    assert served.counters()[name] == before + 255
    assert served.configuration() == {"block_size": "128", "num_gpu_blocks": "24"}
    assert "vllm:external" in (served.run.path / "engine.metrics").read_text()


def test_an_unknown_path_ends_the_run(places, fake):
    with capture.Run("canary", {}, **places) as run:
        engine.start(run, fake("refuses")).post("/no/such/path")
    assert run.record["outcome"] == "failed"
    assert "/no/such/path answered 400" in run.record["cause"]["harness"]


def test_prompts_are_seeded_and_without_special_tokens(model):
    settings = engine.Settings(model)
    ids = settings.prompt(100_000, 3)
    assert ids == settings.prompt(100_000, 3)
    assert ids != settings.prompt(100_000, 4)
    assert min(ids) == 10
    assert max(ids) == 999


def test_a_port_in_use_is_not_free(monkeypatch):
    monkeypatch.setattr(engine, "_PORTS", range(28000, 28100))
    with socket.socket() as taken:
        taken.bind((engine.HOST, 28000))
        assert engine.free_port() != 28000


def test_the_command_line_says_what_the_settings_say():
    chosen = engine.Settings("m", cap_blocks=24, kv_cache_bytes=5, arguments=("--seed", "0"))
    command = engine.serve_command(chosen, 1234, {"kv_connector": "X"})
    options = dict(itertools.pairwise(command))
    assert options["serve"] == "m"
    assert options["--num-gpu-blocks-override"] == "24"
    assert options["--kv-cache-memory-bytes"] == "5"
    assert options["--port"] == "1234"
    assert json.loads(options["--kv-transfer-config"]) == {"kv_connector": "X"}
    assert command[-2:] == ["--seed", "0"]
    assert "--num-gpu-blocks-override" not in engine.serve_command(engine.Settings("m"), 1)


def test_the_size_of_the_connectors_memory_is_told_in_its_own_unit(tmp_path):
    command = engine.lmcache_command(1, 3 << 29, "auto", tmp_path)
    options = dict(itertools.pairwise(command))
    assert options["--l1-size-gb"] == "1.5"
    assert json.loads(options["--l2-adapter"]) == {
        "type": "fs",
        "base_path": str(tmp_path),
        "use_odirect": True,
    }


@pytest.mark.parametrize(
    "image", ["vllm/vllm-openai", "vllm/vllm-openai:latest", "x@sha256:abc", DIGEST + " --rm"]
)
def test_a_container_is_taken_by_its_digest_alone(image):
    with pytest.raises(InputError, match="by digest"):
        engine.Settings("m", image=image)


def test_a_container_sees_the_model_the_run_folder_and_the_variables(places):
    chosen = engine.Settings("m", image=DIGEST, environment={"MINE": "1"})
    run = capture.Run("canary", {}, image=DIGEST, **places)
    command = engine.interpreter(chosen, run)
    assert command[:2] == ["docker", "run"]
    assert command[-1] == DIGEST
    assert {"--env=MINE", "--env=KVPAPER_RUN", "--env=VLLM_LOGGING_CONFIG_PATH"} <= set(command)
    assert any(word.startswith(f"--volume={run.path.resolve()}:") for word in command)
    assert run.record["software"]["engine"] == {"image": DIGEST}


def test_canary_tells_the_levels_apart(places, fake, tmp_path):
    run = run_canary(fake("healthy"), "lmcache", [256, 384], 2, disk=tmp_path, **places)
    assert run.record["outcome"] == "completed"
    cached = {
        (row["prompt_tokens"], row["level"]): (row["warmups"], row["values"])
        for row in run.record["rows"]
        if row["quantity"] == "cached_tokens"
    }
    for tokens in (256, 384):
        assert cached[tokens, "recompute"] == ([0], [0, 0])
        assert cached[tokens, "engine"] == ([tokens], [tokens, tokens])
        assert cached[tokens, "connector"] == ([tokens - 1], [tokens - 1, tokens - 1])
        assert cached[tokens, "disk"] == ([tokens - 1], [tokens - 1, tokens - 1])


def test_canary_on_the_command_line(places, fake, fake_site, model, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(fake_site))
    argv = ["measure", "canary", "--model", model, "--python", sys.executable, "--repeats", "1"]
    argv += ["--records", str(places["folder"]), "--runs", str(places["runs"]), "--json"]
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [record] == records.records(places["folder"])
    assert "engine answers" in err
    monkeypatch.setenv("FAKE", "child_dies")
    assert cli.main(argv) == 1
    assert json.loads(capsys.readouterr().out)["cause"]["kind"] == "kv_cache_too_small"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--image", "vllm:latest", "--image: found vllm:latest, expected an image by digest"),
        ("--python", "no/such/python", "--python no/such/python: found FileNotFoundError"),
        ("--connector", "redis", "found 'redis'"),
        ("--model", "no/such/model", "no/such/model/config.json: found FileNotFoundError"),
        ("--lengths", "12,x", "expected a whole number above 0"),
        ("--lengths", "256,4096", "--lengths: found 4096, expected less than --max-tokens 4096"),
        ("--start-s", "nan", "found 'nan', expected a number above 0"),
        ("--request-s", "0", "found '0', expected a number above 0"),
        ("--memory-utilization", "inf", "found 'inf', expected a number above 0"),
    ],
)
def test_bad_input_is_one_line(places, model, capsys, option, value, said):
    argv = ["measure", "canary", "--model", model, "--python", sys.executable]
    argv += ["--records", str(places["folder"]), "--runs", str(places["runs"]), option, value]
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not places["folder"].exists()


def test_the_machine_is_described_and_its_owner_is_not(tmp_path):
    told = machine.describe(tmp_path)
    assert told["cores"] >= 1
    assert told["memory_bytes"] > 1 << 20
    assert re.match(r"Linux \d", told["kernel"])
    assert told["disk"]["size_bytes"] > 0
    assert told == machine.public(told)


def test_the_engines_packages_are_asked_of_its_interpreter():
    told = machine.software(sys.executable)
    assert told["engine"]["packages"]["pytest"] == pytest.__version__
    assert told["engine"]["python"] == told["python"]
