"""The example of the tutorial: the log is the one that the command prints, the scenario fits it."""

import pytest

from kvpaper import data, models, scenario
from kvpaper.reuse import curve
from kvpaper.reuse.distances import stack_distances
from kvpaper.traces import generated
from kvpaper.traces.load import read_trace

EXAMPLES = data.FOLDER / "examples"
LOG = EXAMPLES / "requests.jsonl"


def test_the_log_is_the_one_that_is_generated():
    made = generated.log(generated.conversations(240, 3, 600.0))
    assert LOG.read_text(encoding="utf-8").splitlines() == list(made)


def test_the_scenario_says_of_the_log_what_the_replay_says():
    mine = scenario.load(str(EXAMPLES / "mine.yaml"))
    assert mine.workload.trace == str(LOG)
    trace = read_trace([LOG])
    ceiling = curve.ceilings(trace, stack_distances(trace))["token"]
    per_token = models.size(mine.model)["kv_bytes_per_token"]
    told = mine.workload
    assert told.requests_per_s == pytest.approx(trace.requests / trace.duration_s, rel=0.1)
    assert told.prompt_tokens == pytest.approx(trace.input_tokens.mean(), rel=1e-3)
    assert told.output_tokens == trace.output_tokens.mean()
    assert told.ceiling == pytest.approx(ceiling, rel=1e-3)
    assert told.working_set_bytes == pytest.approx(trace.unique_blocks * 512 * per_token, rel=0.01)


def test_the_tutorial_shows_lines_of_the_scenario():
    tutorial = (data.FOLDER.parent / "book/tutorial.md").read_text(encoding="utf-8")
    shown = tutorial.partition("```yaml\n")[2].partition("```")[0]
    whole = (EXAMPLES / "mine.yaml").read_text(encoding="utf-8")
    lines = [line.strip() for line in shown.splitlines() if "{" in line]
    assert len(lines) > 8
    assert [line for line in lines if line not in whole] == []
