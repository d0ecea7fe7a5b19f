"""The runner: what a notebook depends on is told exactly."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from kvpaper import scenario
from kvpaper.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)

NOTEBOOKS = execute.notebooks()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_declares_parameters_and_reads(path):
    assert execute.parameters(path) == {"scenario": "quick"}
    assert all(isinstance(key, str) for key in execute.reads(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_declares_exists(path):
    loaded = scenario.load("paper")
    for key in execute.reads(path):
        assert execute.inputs(loaded, (key,)), key


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("value: 300 ms", "value: 400 ms", {"00", "30", "40", "50", "60", "70"}),
        ("gpu: {value: 3.50", "gpu: {value: 3.60", {"40", "50", "60", "70"}),
        ("value: bf16", "value: fp8", {"00", "10", "20", "30", "40", "50", "60", "70"}),
        ("tpot: {value: 40 ms", "tpot: {value: 50 ms", {"60", "70"}),
        ("beta: {value: 0.6", "beta: {value: 0.5", {"40", "70"}),
        ("requests: {value: 2 /s", "requests: {value: 1 /s", {"20", "40", "50", "70"}),
        ("# The published example.", "# The example.", set()),
    ],
)
def test_a_changed_value_changes_only_the_inputs_that_name_it(tmp_path, old, new, names):
    text = Path(scenario.data.FOLDER, "scenarios", "paper.yaml").read_text("utf-8")
    before = scenario.load("paper")
    path = tmp_path / "paper.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    after = scenario.load(str(path))
    changed = {
        path.stem[:2]
        for path in NOTEBOOKS
        if execute.inputs(before, execute.reads(path)) != execute.inputs(after, execute.reads(path))
    }
    assert changed == names


def test_a_changed_trace_changes_the_inputs_of_the_chapter_that_replays_it(tmp_path):
    text = Path(scenario.data.FOLDER, "scenarios", "paper.yaml").read_text("utf-8")
    path, log = tmp_path / "mine.yaml", tmp_path / "log.jsonl"
    path.write_text(text.replace("value: mooncake_conversation", "value: log.jsonl"), "utf-8")
    log.write_text("{}\n", "utf-8")
    before = execute.inputs(scenario.load(str(path)), ("workload.trace",))
    log.write_text("{}\n{}\n", "utf-8")
    assert execute.inputs(scenario.load(str(path)), ("workload.trace",)) != before


def test_a_truncated_notebook_is_named(tmp_path):
    path = tmp_path / "10_cut.ipynb"
    shutil.copy(NOTEBOOKS[0], path)
    path.write_text(path.read_text("utf-8")[:200], encoding="utf-8")
    with pytest.raises(InputError, match=r"10_cut\.ipynb: found JSONDecodeError"):
        execute.parameters(path)


def test_notebooks_are_committed_without_outputs():
    assert execute.check_stripped() == 0
