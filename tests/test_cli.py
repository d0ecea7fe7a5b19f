import json
import subprocess
import sys

import pytest

from kvpaper import cli, data

PAPER = data.FOLDER / "scenarios" / "paper.yaml"


def run(capsys, *argv):
    """Exit code, standard output, standard error of one command."""
    try:
        code = cli.main(list(argv))
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_size_prints_one_object_and_nothing_else(capsys):
    code, out, err = run(capsys, "size", "llama-3.1-8b", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["kv_bytes_per_token"] == 131_072
    assert answer["kv_bytes"] == 131_072 * 8192
    assert answer["tokens"] == 8192
    assert answer["dtype"] == "bf16"
    assert answer["tp"] == 1
    assert answer["groups"][0]["layers"] == 32


def test_size_takes_tokens_dtype_and_ranks(capsys):
    _, out, _ = run(
        capsys,
        "size",
        "qwen3-235b-a22b",
        "--tokens",
        "1000",
        "--dtype",
        "fp8",
        "--tp",
        "8",
        "--json",
    )
    answer = json.loads(out)
    assert answer["kv_bytes"] == 1000 * 192_512 / 2
    assert answer["kv_bytes_per_token_per_rank"] == 48_128 / 2


def test_evaluate_prints_rows(capsys):
    code, out, err = run(capsys, "evaluate", "paper", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["scenario"] == "paper"
    fetch = [
        row
        for row in answer["rows"]
        if row["quantity"] == "fetch_time_s" and row.get("tier") == "nvme" and row["bytes"] == 1e9
    ]
    assert len(fetch) == 1
    assert fetch[0]["kind"] == "predicted"
    assert fetch[0]["value"] == pytest.approx(1 / 3)


def test_text_output_for_people(capsys):
    assert "131,072 B" in run(capsys, "size", "llama-3.1-8b")[1]
    assert "a factor of 1,600" in run(capsys, "evaluate", "paper")[1]


@pytest.mark.parametrize(
    "argv",
    [
        ("size", "llama-3.1-9b"),
        ("size", "no/such/config.json"),
        ("size", "llama-3.1-8b", "--dtype", "fp7"),
        ("size", "llama-3.1-8b", "--tp", "0"),
        ("size", "llama-3.1-8b", "--tokens", "-1"),
        ("size", "llama-3.1-8b", "--tokens", "many"),
        ("evaluate", "papper"),
        ("evaluate", "no/such/file.yaml"),
        ("evaluate",),
        ("sise", "llama-3.1-8b"),
    ],
)
def test_bad_input_ends_with_2_and_one_line_that_says_what(capsys, argv):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert "expected" in err


def test_scenario_faults_name_file_line_and_key(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    text = PAPER.read_text("utf-8").replace("requests: {value: 2 /s", "requests: {value: 50 /s")
    path.write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "evaluate", str(path), "--json")
    assert (code, out) == (2, "")
    assert "mine.yaml:" in err
    assert "hardware.tiers.nvme.read: found a load" in err


def test_help_loads_nothing_heavy():
    heavy = "numpy pandas pydantic yaml matplotlib scipy numba pyarrow"
    code = (
        "import sys, kvpaper.cli\n"
        "try: kvpaper.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted(set('{heavy}'.split()) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "evaluate" in done.stdout


def test_a_closed_pipe_is_no_failure():
    code = "import sys, kvpaper.cli; sys.exit(kvpaper.cli.main(['evaluate', 'paper', '--json']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    _, err = process.communicate()
    assert b"Traceback" not in err
