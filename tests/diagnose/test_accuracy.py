import math
import sys
from pathlib import Path

import pytest

from kvpaper import data
from kvpaper.diagnose import diagnose
from kvpaper.diagnose.accuracy import score
from kvpaper.diagnose.signatures import table

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from diagnose_cases import case_rows

CASES = Path(__file__).resolve().parents[2] / "../shared/cases"
with_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the handed cases are not here")
ROUNDS = ("1", "2")
PROCESSES = {"api_server", "engine_core", "worker", "native_stderr", "other_process"}
NOT_TOLD = {"unprefixed", "not_in_log"}
HANG = "lmcache_mode_mismatch_hang"


def heldout(number):
    return [row for row in data.table("incident/heldout.csv") if row["round"] == number]


def row(true, predicted, confidence="medium"):
    return {"true_class": true, "predicted_class": predicted, "confidence": confidence}


def test_interval_is_wilson_s():
    counts = score([row("nccl", "nccl")] * 35 + [row("nccl", "shm")] * 3)
    assert counts["share"] == pytest.approx(0.921, abs=1e-3)
    assert counts["share_low"] == pytest.approx(0.792, abs=1e-3)
    assert counts["share_high"] == pytest.approx(0.973, abs=1e-3)
    assert math.isnan(score([])["share_low"])


def test_score_counts_silent_logs_apart():
    counts = score(
        [
            row("nccl", "nccl"),
            row("nccl", "shm", "high"),
            row("nccl", "insufficient", "high"),
            row("insufficient", "insufficient"),
            row("insufficient", "shm", "high"),
        ]
    )
    assert counts["clear"] == 3
    assert counts["clear_right"] == 1
    assert counts["insufficient"] == 2
    assert counts["insufficient_right"] == 1
    assert counts["confident_wrong"] == 2


@pytest.mark.parametrize("number", ROUNDS)
def test_held_out_rounds_name_no_wrong_cause_confidently(number):
    counts = score(heldout(number))
    assert counts["clear"] >= 25
    assert counts["insufficient"] >= 9
    assert counts["insufficient_right"] == counts["insufficient"]
    assert counts["confident_wrong"] == 0


def test_held_out_reports_were_not_handed():
    reports = [row["report"] for number in ROUNDS for row in heldout(number)]
    handed = {row["report"] for row in data.table("incident/handed.csv")}
    assert len(set(reports)) == len(reports)
    assert not handed & set(reports)


def test_each_round_had_one_version_of_the_signatures():
    versions = [{row["signatures_sha256"] for row in heldout(number)} for number in ROUNDS]
    assert [len(version) for version in versions] == [1, 1]
    assert versions[0] != versions[1]


def test_taxonomy_knows_every_report_and_class():
    rows = {row["report"]: row for row in data.table("incident/taxonomy.csv")}
    assert {row["process"] for row in rows.values()} <= PROCESSES | NOT_TOLD
    assert {row["class"] for row in rows.values()} <= {*table().classes, "insufficient"}
    for number in ROUNDS:
        for held in heldout(number):
            known = rows[held["report"]]
            if held["true_class"] == "insufficient":
                assert known["process"] == "not_in_log"
            else:
                assert known["class"] == held["true_class"]


def test_incident_has_a_source_for_every_key():
    facts = data.mapping("incident/incident.yaml")
    assert set(facts["sources"]) == set(facts) - {"sources", "publications"}


def test_same_message_has_unrelated_causes():
    rows = {row["report"]: row for row in data.table("incident/taxonomy.csv")}
    named = data.mapping("incident/incident.yaml")["same_message"]
    assert len({entry["class"] for entry in named}) == len(named) >= 4
    for entry in named:
        assert rows[entry["report"]]["class"] == entry["class"]
        assert rows[entry["report"]]["same_message"] == "yes"


def test_the_kept_line_of_the_incident_cannot_tell():
    answer = diagnose([data.FOLDER / "incident" / "outer.log"])
    assert answer["cause"] == "insufficient"
    assert answer["kind"] == "outer_only"
    assert any("2>&1" in step for step in answer["next_steps"])


@with_cases
def test_handed_cases_are_as_recorded_and_right():
    rows = case_rows(CASES / "startup_logs")
    assert rows == data.table("incident/handed.csv")
    clear = [row for row in rows if row["ambiguous"] == "no"]
    counts = score(clear)
    assert counts["clear_right"] == counts["clear"] == 29
    assert counts["insufficient_right"] == counts["insufficient"]
    assert {row["evidence_shown"] for row in clear if row["true_class"] != "insufficient"} == {
        "yes"
    }


@with_cases
@pytest.mark.parametrize(
    ("names", "cause", "line", "process"),
    [
        (["worker_memory_utilization.log"], "gpu_memory", 96, "VllmWorker-0"),
        (["block_override_too_small.log"], "kv_cache", 67, "EngineCore"),
        (["degraded_lmcache_in_process.log"], "degraded", 67, "LMCache"),
        (["healthy_plain.log"], "healthy", 48, "APIServer"),
        (["healthy_lmcache_mp.log"], "healthy", 94, "APIServer"),
        ([f"{HANG}.engine.log"], "insufficient", 62, "EngineCore"),
        ([f"{HANG}.engine.log", f"{HANG}.lmcache_server.log"], "connector", 20, "LMCache"),
    ],
)
def test_full_logs(names, cause, line, process):
    answer = diagnose([CASES / "full_logs" / name for name in names])
    assert answer["cause"] == cause
    assert (answer["evidence"][0]["line"], answer["evidence"][0]["process"]) == (line, process)
