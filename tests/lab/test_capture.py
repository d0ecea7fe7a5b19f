"""The harness against an engine that dies in every way."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import fake_engine
import pytest
from lab_runs import HARNESS, record_of, text_of

from kvpaper.errors import InputError
from kvpaper.lab import capture, ending, engine, machine, processes, records


def run(places, settings, use=lambda server: None, connector="none", **lmcache):
    """One run of an engine: start, use, stop; the finished run."""
    with capture.Run("canary", {"a": 1}, **places) as one:
        server = engine.start(one, settings, connector, **lmcache)
        use(server)
        one.add("ttft_s", "s", [server.complete(range(256)).ttft_s])
        server.stop()
    return one


def test_healthy(places, fake):
    done = run(places, fake("healthy"))
    record = record_of(done)
    assert record["outcome"] == "completed"
    assert record["cause"] is None
    assert [row["quantity"] for row in record["rows"]] == ["start_s", "ttft_s"]
    assert "proc=MainProcess INFO vllm.fake" in text_of(done, "engine.log")
    assert "shutdown complete" in text_of(done, "engine.log")
    assert [one["exit_code"] for one in record["processes"]] == [0]
    assert record["memory"]["peak_rss_bytes"] > 1e6


@pytest.mark.parametrize(
    ("how", "process"),
    [("child_dies", "EngineCore"), ("grandchild_dies", "VllmWorker-0")],
)
def test_the_cause_is_that_of_the_process_that_said_it(places, fake, how, process):
    done = run(places, fake(how))
    record = record_of(done)
    assert record["outcome"] == "failed"
    cause = record["cause"]
    assert (cause["cause"], cause["kind"]) == ("kv_cache", "kv_cache_too_small")
    assert cause["evidence"][0]["process"] == process
    assert fake_engine.SMALL[:60] in cause["evidence"][0]["text"]
    assert fake_engine.OUTER in text_of(done, "engine.log")
    codes = [one["exit_code"] for one in record["processes"]]
    assert codes == [1] * len(codes)


@pytest.mark.parametrize(
    ("how", "connector"),
    [("killed", "none"), ("killed_grandchild", "none"), ("killed_connector", "lmcache")],
)
def test_a_killed_process_ends_the_run_even_if_the_others_wait(places, fake, how, connector):
    def wait(server):
        server.run.wait_until(lambda: False, 20, "ever")

    record = record_of(run(places, fake(how), wait, connector))
    assert record["outcome"] == "failed"  # and not at the deadline
    assert (record["cause"]["cause"], record["cause"]["kind"]) == ("host_kill", "host_killed")
    killed = [one for one in record["processes"] if not one["asked"] and one["signal"]]
    assert [one["signal"] for one in killed] == ["SIGKILL"]
    assert (killed[0]["log"] == "lmcache.log") == (connector == "lmcache")


def test_a_hang_at_the_start_ends_at_the_deadline_and_tells_where_it_hung(places, fake):
    done = run(places, fake("hang_at_start", start_s=4))
    record = record_of(done)
    assert record["outcome"] == "timed out"
    assert "waited 4 s for engine to answer" in record["cause"]["harness"]
    assert "in hang_at_start" in text_of(done, "engine.log")  # by faulthandler


def test_a_hang_in_a_request_ends_at_the_deadline(places, fake):
    record = record_of(run(places, fake("hang_in_request", request_s=1)))
    assert record["outcome"] == "timed out"
    assert (record["cause"]["cause"], record["cause"]["kind"]) == ("insufficient", "hang")


@pytest.mark.parametrize("how", ["die_in_request", "die_in_stream"])
def test_a_death_in_a_request_is_a_death_and_no_deadline(places, fake, how):
    record = record_of(run(places, fake(how)))
    assert record["cause"]["harness"] == "engine ended with exit code -11"
    assert record["outcome"] == "failed"
    assert record["processes"][0]["signal"] == "SIGSEGV"


def test_an_answer_that_makes_no_sense_ends_the_run_and_not_the_program(places, fake):
    record = record_of(run(places, fake("nonsense")))
    assert record["outcome"] == "failed"
    assert "an answer to 256 tokens: JSONDecodeError" in record["cause"]["harness"]


def test_a_refusal_is_told(places, fake):
    record = record_of(run(places, fake("refuses")))
    assert record["outcome"] == "failed"
    assert "answered 400" in record["cause"]["harness"]


@pytest.mark.parametrize("how", ["deaf", "leaves_a_session"])
def test_what_does_not_want_to_end_is_ended(places, fake, how):
    shared = Path(f"/dev/shm/kvpaper-test-{os.getpid()}")
    with capture.Run("canary", {}, **places) as one:
        server = engine.start(one, fake(how, environment={"FAKE_SHARED": str(shared)}))
        assert shared.exists() == (how == "deaf")
        temporary = Path(one.variables()["TMPDIR"])
        assert temporary.is_dir()
        one.stop(server.started, 1)
        one.add("x_s", "s", [1.0])
    record = record_of(one)
    assert record["outcome"] == "completed"
    assert not shared.exists()
    assert not temporary.exists()
    assert "SIGKILL" in [each["signal"] for each in record["processes"]]


def test_a_flood_fills_neither_disk_nor_memory(places, fake):
    size, before = 1 << 30, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = run(places, fake("flood", start_s=120, environment={"FAKE_BYTES": str(size)}))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    log = next(log for log in record_of(done)["logs"] if log["name"] == "engine.log")
    assert log["bytes"] < 24 << 20
    assert grown < 100 << 20
    text = text_of(done, "engine.log")
    assert text.startswith("the first line\n")
    assert text.endswith("the last line\n")
    mark = f"[kvpaper: {log['left_out_bytes']} bytes left out of this log]\n"
    assert mark in text
    written = size + len("the first line\nthe last line\n")
    assert log["bytes"] - len(mark) + log["left_out_bytes"] == written


def test_no_secret_reaches_the_disk(places, fake, monkeypatch):
    monkeypatch.setenv("MY_PASSWORD", "correct horse battery")
    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    done = run(places, fake("secrets", environment={"API_KEY": fake_engine.TOKEN[::-1]}))
    texts = {path.name: path.read_text() for path in done.path.iterdir() if path.is_file()}
    everything = "\n".join([*texts.values(), done.record_path.read_text()])
    pieces = [fake_engine.TOKEN[3:12], fake_engine.TOKEN[::-1], "correct horse", "hunter2"]
    assert [piece for piece in pieces if piece in everything] == []
    assert texts["engine.log"].count("[redacted hub token]") == 4
    assert "using [redacted hub token]" in texts["engine.log"]
    assert "split [redacted hub token]" in texts["engine.log"]
    assert "no end [redacted hub token]" in texts["engine.log"]


def test_no_secret_reaches_a_record_by_its_parameters_or_its_end(places):
    asked = {"environment": {"HF_TOKEN": "hunter2hunter2"}, "arguments": ["--api-key", "hunter23"]}
    with capture.Run("canary", {"engine": asked}, **places) as one:
        one.start("engine", ["sleep", "60"], {"DB_PASS": "correct horse"})
        raise capture.Stopped(f"it answered 400: {fake_engine.TOKEN}, correct horse")
    assert "it answered 400: [redacted hub token]" in record_of(one)["cause"]["harness"]
    texts = [path.read_text() for path in [*one.path.iterdir(), one.record_path]]
    pieces = ["hunter2", "correct horse", fake_engine.TOKEN[3:12]]
    assert [piece for piece in pieces if piece in "\n".join(texts)] == []


def test_a_run_goes_on_where_nobody_reads_what_it_tells(tmp_path, places):
    reader, writer = os.pipe()
    os.close(reader)
    code = "import lab_runs, pathlib, sys; lab_runs.main(pathlib.Path(sys.argv[1]), False)"
    harness = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=HARNESS.parent,
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
    )
    os.close(writer)
    assert harness.stdout.readline() == "ready\n"
    harness.stdout.close()
    harness.send_signal(signal.SIGHUP)
    harness.wait(20)
    (record,) = records.records(places["folder"])
    assert record["outcome"] == "interrupted"


def test_the_connector_that_is_not_active_is_no_success(places, fake):
    use = engine.Engine.prove_active
    active = run(places, fake("healthy"), use, "lmcache")
    degraded = record_of(run(places, fake("degraded"), use, "lmcache"))
    assert record_of(active)["outcome"] == "completed"
    assert degraded["outcome"] == "failed"
    assert degraded["cause"]["cause"] == "degraded"
    assert "external_prefix_cache_hits" in degraded["cause"]["evidence"][0]["text"]


def test_the_server_in_the_wrong_mode_gives_the_cause_of_the_hang(places, fake):
    settings = fake("hang_at_start", start_s=3)
    record = record_of(run(places, settings, connector="lmcache", mode="lmcache_driven"))
    assert record["outcome"] == "timed out"
    cause = record["cause"]
    assert (cause["cause"], cause["kind"]) == ("connector", "connector_transfer_mode")
    assert cause["evidence"][0]["file"] == "lmcache.log"
    assert "No handler registered" in cause["evidence"][0]["text"]


def test_a_program_that_is_not_there(places):
    with capture.Run("canary", {}, **places) as one:
        one.start("engine", ["no/such/program"])
    assert record_of(one)["outcome"] == "failed"
    assert "did not start" in one.record["cause"]["harness"]


def test_a_fault_of_the_instrument_leaves_a_record_and_is_raised(places):
    with pytest.raises(ZeroDivisionError), capture.Run("canary", {}, **places) as one:
        one.add("x_s", "s", [1 / 0])
    assert record_of(one)["outcome"] == "failed"


def test_a_run_without_values_is_no_success(places):
    with capture.Run("canary", {}, **places) as one:
        pass
    assert record_of(one)["outcome"] == "failed"
    assert one.record["cause"]["harness"] == "no value was taken"


@pytest.mark.parametrize(("unit", "values"), [("ms", [1.0]), ("s", []), ("s", [math.nan])])
def test_a_faulty_row_is_refused_where_it_is_added_and_the_others_are_kept(places, unit, values):
    one = capture.Run("canary", {}, **places)
    with pytest.raises(InputError), one:
        _ = one.add("a_s", "s", [1.0]), one.add("b_s", unit, values)
    assert [row["quantity"] for row in record_of(one)["rows"]] == ["a_s"]
    assert one.record["outcome"] == "failed"


@pytest.mark.parametrize("state", ["{}", "{", '{"marker": "m", "boot": "b", "temporary": "/no"}'])
def test_a_run_folder_that_cannot_be_read_stops_no_later_run(places, state):
    left = places["runs"] / "canary-1"
    left.mkdir(parents=True)
    (left / "run.lock").touch()
    (left / "run.json").write_text(state)
    assert ending.end_orphans(**places) == []
    assert not (left / "run.lock").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_a_signal_leaves_a_record_and_no_process(tmp_path, places, number, code):
    harness = _harness(tmp_path)
    harness.send_signal(number)
    assert harness.wait(20) == code
    (record,) = records.records(places["folder"])
    assert record["outcome"] == "interrupted"
    assert record["cause"]["kind"] == "interrupted"
    assert record["rows"][0]["values"] == [0.5]
    assert all(one["exit_code"] is not None for one in record["processes"])


def test_after_a_kill_of_the_harness_the_next_start_cleans_up(tmp_path, places):
    harness = _harness(tmp_path)
    bystander = subprocess.Popen(["sleep", "60"], env={**os.environ, processes.MARKER: "other:x"})
    (state,) = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/run.json")]
    harness.kill()
    harness.wait()
    left = [one for one in processes.everything() if processes.part_of(one, state["marker"])]
    assert len(list(tmp_path.glob(".kvpaper-*/cache"))) == 1
    assert len(left) == 2  # the engine and what it left in a session of its own
    with capture.Run("canary", {}, **places) as one:
        one.add("x_s", "s", [1.0])
    assert not any(processes.part_of(pid, state["marker"]) for pid in processes.everything())
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    outcomes = {record["run"]: record["outcome"] for record in records.records(places["folder"])}
    assert sorted(outcomes.values()) == ["completed", "interrupted"]
    recovered = next(r for r in records.records(places["folder"]) if r["run"] != one.path.name)
    assert recovered["rows"][0]["values"] == [0.5]
    assert "engine.log" in [log["name"] for log in recovered["logs"]]
    assert list(tmp_path.glob(".kvpaper-*")) == []
    assert "ended 2 processes" in recovered["cause"]["harness"]
    assert ending.end_orphans(**places) == []


def test_a_run_that_goes_on_is_left_alone(places):
    with capture.Run("canary", {}, **places) as first:
        started = first.start("engine", ["sleep", "60"])
        with capture.Run("canary", {"b": 2}, **places) as second:
            second.add("x_s", "s", [1.0])
        assert started.exit_code is None
        first.add("x_s", "s", [1.0])
    assert record_of(first)["outcome"] == record_of(second)["outcome"] == "completed"


def _harness(tmp_path):
    """A harness in a process of its own, with an engine that answers."""
    out = subprocess.Popen(
        [sys.executable, str(HARNESS), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert out.stdout.readline() == "ready\n"
    out.stdout.close()
    return out


def test_a_log_that_cannot_be_written_fails_the_run_and_not_the_record(tmp_path):
    """The kernel refuses to let files of this process grow beyond 64 KiB."""
    harness = subprocess.run(
        [sys.executable, str(HARNESS), str(tmp_path), "limited"], capture_output=True, text=True
    )
    assert harness.returncode == 0, harness.stderr
    (record,) = records.records(tmp_path / "records")
    assert record["outcome"] == "failed"
    assert "engine.log cannot be written" in record["cause"]["harness"]
    log = next(log for log in record["logs"] if log["name"] == "engine.log")
    assert (log["bytes"], log["error"]) == (1 << 16, "File too large")
    assert log["left_out_bytes"] > 0


@pytest.fixture
def small_disk(tmp_path):
    """A disk of half a MiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_still_takes_the_record(small_disk, fake):
    settings = fake("flood", environment={"FAKE_BYTES": str(4 << 20)})
    done = run({"runs": small_disk / "runs", "folder": small_disk / "records"}, settings)
    assert done.record_path.is_relative_to(small_disk / "records")
    record = record_of(done)
    assert record["outcome"] == "failed"
    log = next(log for log in record["logs"] if log["name"] == "engine.log")
    assert log["error"] == "No space left on device"


def test_a_record_that_cannot_go_where_it_should_goes_elsewhere(tmp_path):
    (tmp_path / "file").write_text("")
    with capture.Run("canary", {}, runs=tmp_path / "runs", folder=tmp_path / "file") as one:
        one.add("x_s", "s", [1.0])
    assert one.record_path.parent == one.path
    assert record_of(one)["outcome"] == "completed"


def test_nothing_in_a_record_names_the_machine_or_its_owner(places, fake, monkeypatch):
    monkeypatch.setattr(machine.socket, "gethostname", lambda: "hostname-of-mine")
    with capture.Run(
        "canary", {"at": f"{os.getcwd()}/models", "host": "hostname-of-mine"}, **places
    ) as one:
        one.start("engine", [sys.executable, "-c", "print('10.1.2.3 at hostname-of-mine')"])
        raise capture.Stopped("lost 10.1.2.3 at hostname-of-mine")
    text = one.record_path.read_text()
    assert [word for word in ("hostname-of-mine", "10.1.2.3", os.getcwd()) if word in text] == []
    assert record_of(one)["parameters"] == {"at": "models", "host": "[host]"}
