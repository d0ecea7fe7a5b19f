"""A sweep: its grid, its frontier, what it keeps, and what may die under it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvpaper import cli, data, scenario
from kvpaper.errors import InputError
from kvpaper.serving import command, simulate
from kvpaper.serving.grid import Point, at, grid
from kvpaper.serving.sweep import frontier, knee, sweep
from kvpaper.traces import generated

QUICK = (data.FOLDER / "scenarios" / "quick.yaml").read_text(encoding="utf-8")
MOE = (data.FOLDER / "scenarios" / "h200-moe.yaml").read_text(encoding="utf-8")
SMALL = "sweep: {pools: [1, 2, 1:1], dram: [0 GB, 64 GB], nvme: 0 GB, routers: prefix}\n"
LARGE = "sweep: {pools: [1, 2, 3, 1:1, 1:2, 2:1], routers: [prefix, random, session]}\n"
REQUESTS = generated.conversations(60)


def written(folder, section=SMALL, text=QUICK) -> str:
    path = folder / "mine.yaml"
    path.write_text(text + section, encoding="utf-8")
    return str(path)


def loaded(folder, section=SMALL, text=QUICK):
    return scenario.load(written(folder, section, text))


def run(capsys, *arguments):
    code = cli.main(["sweep", *map(str, arguments)])
    return code, *capsys.readouterr()


# The grid


def test_a_grid_is_every_combination(tmp_path):
    points = grid(loaded(tmp_path, LARGE), REQUESTS)
    assert len(points) == len(set(points))
    # Two capacities of two tiers; one instance that prefills has no choice of routers.
    assert len(points) == 4 * (3 * 1 + 3 * 3)
    assert {one.pools for one in points} == {(1,), (2,), (3,), (1, 1), (1, 2), (2, 1)}


def test_a_grid_that_names_nothing_surrounds_what_the_load_needs(tmp_path):
    own = {one.pools for one in grid(loaded(tmp_path, ""), REQUESTS)}
    assert own == {(1,), (2,), (1, 1), (3,), (1, 2), (2, 1)}
    four = loaded(tmp_path, "fleet: {prefill: {instances: 3}, decode: {instances: 1}}")
    assert min(sum(one.pools) for one in grid(four, REQUESTS)) == 4
    busy = loaded(tmp_path, "", QUICK.replace("580 TFLOP/s", "5 TFLOP/s"))
    # 6,000 tokens of a model of half a billion parameters at 5 TFLOP/s: more than a second each.
    fast = simulate.asked(REQUESTS, 100.0, 0)
    assert min(sum(one.pools) for one in grid(busy, fast)) > 3


def test_a_point_is_the_scenario_with_other_pools_tiers_router_and_model(tmp_path):
    own = loaded(tmp_path, "fleet: {chunk: 512 tokens}", MOE)
    two = at(own, Point((3, 1), 1e12, 0.0, "session", None))
    assert (two.fleet.prefill.instances, two.fleet.decode.instances) == (3, 1)
    assert (two.fleet.router, two.fleet.chunk_tokens) == ("session", None)
    assert two.hardware.tiers["dram"].capacity_bytes == 1e12
    assert "nvme" not in two.hardware.tiers
    one = at(own, Point((2,), 0.0, 30e12, "prefix", "deepseek-v3"))
    assert one.fleet.chunk_tokens == 512
    assert one.serving.prefill.table == "deepseek-v3"
    assert "DeepSeek-V3" in one.model.name
    assert set(one.hardware.tiers) == {"hbm", "nvme", "remote"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("sweep: {pools: []}", "sweep.pools: found an empty list"),
        ("sweep: {pools: [0:4]}", "sweep.pools.0: found '0:4', expected instances of one pool"),
        ("sweep: {pools: 0}", "sweep.pools.0: found 0"),
        ("sweep: {dram: [1 TiB, 4]}", "sweep.dram.1: found 4 (a number without a unit)"),
        ("sweep: {routers: fastest}", "sweep.routers.0: found 'fastest'"),
        ("sweep: {models: [[a]]}", "sweep.models: found no single value"),
        ("fleet: {router: [prefix]}", "fleet.router: found a list"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(capsys, tmp_path, section, message):
    code, out, err = run(capsys, written(tmp_path, section), "--keep", tmp_path)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_tier_without_rates_or_price_is_not_in_a_grid(tmp_path):
    text = "\n".join(line for line in QUICK.splitlines() if not line.startswith("  nvme: {value"))
    unpriced = loaded(tmp_path, "\n", text)
    assert {one.nvme_bytes for one in grid(unpriced, REQUESTS)} == {0.0}
    with pytest.raises(InputError, match=r"sweep\.nvme: found no prices\.nvme"):
        grid(loaded(tmp_path, "\nsweep: {nvme: 1 TB}", text), REQUESTS)


# Frontier and knee


def test_a_frontier_by_hand():
    assert frontier([1, 2, 3, 3, 2], [9, 5, 4, 6, 5]) == [0, 1, 2]
    assert frontier([1, 1, 1], [2, 1, 1]) == [1]
    assert frontier([1, 2, 3], [float("inf"), float("nan"), 4]) == [2]
    assert frontier([], []) == []


def test_a_knee_by_hand():
    assert knee([], []) is None
    assert knee([5], [7]) == 0
    assert knee([1, 2], [4, 3]) == 1
    # Most of the saving for twice the time, then a little more for fifty times.
    assert knee([1, 2, 100], [100, 10, 9]) == 1
    # In logarithms these lie on one line: the cheapest.
    assert knee([1, 10, 100], [100, 10, 1]) == 2
    # Whatever the units.
    assert knee([1e3, 2e3, 1e5], [1, 0.1, 0.09]) == 1


# The answer


def test_json_has_the_keys_of_the_contract_and_the_frontier_is_one(capsys, tmp_path):
    name = written(tmp_path)
    code, out, err = run(capsys, name, "--json", "--processes", 1, "--keep", tmp_path)
    answer = json.loads(out)
    assert code == 0
    assert {"points", "frontier", "knee", "failed"} <= answer.keys()
    assert "6 of 6 points" in err
    assert len(answer["points"]) == 6
    # A point is what simulate says of the same fleet.
    simulated = simulate.answer(*command.given(name, None, 0))
    own = next(one for one in answer["points"] if one["point"]["pools"] == "1")
    assert own.keys() - {"point"} == simulated.keys()
    for one in answer["points"]:
        assert {"hbm", "dram", "nvme"} <= one["hit_tokens"].keys()
    cost = [one["usd_per_million_output_tokens"] for one in answer["points"]]
    late = [one["ttft_s"]["p90"] for one in answer["points"]]
    beaten = [
        any(late[j] <= late[i] and cost[j] <= cost[i] and j != i for j in range(6))
        for i in range(6)
    ]
    assert [i for i in range(6) if not beaten[i]] == sorted(answer["frontier"])
    assert answer["knee"] in answer["frontier"]


def test_the_same_seed_gives_the_same_bytes_however_it_runs(capsys, tmp_path):
    name = written(tmp_path)
    texts = [
        run(capsys, name, "--json", "--seed", 3, "--processes", n, "--keep", tmp_path / str(n))[1]
        for n in (1, 2)
    ]
    texts.append(run(capsys, name, "--json", "--seed", 3, "--keep", tmp_path / "1")[1])
    assert texts[0] == texts[1] == texts[2]


def test_words_go_to_people(capsys, tmp_path):
    code, out, _ = run(capsys, written(tmp_path), "--processes", 1, "--keep", tmp_path)
    assert code == 0
    assert "6 points, simulated; 6 meet the targets, 0 failed" in out
    assert "TTFT p90" in out
    assert "<- knee" in out
    slow = QUICK.replace("ttft: {value: 300 ms", "ttft: {value: 1 ms")
    _, out, _ = run(capsys, written(tmp_path, SMALL, slow), "--processes", 1, "--keep", tmp_path)
    assert "none meets the targets; the nearest:" in out


def test_without_a_point_that_meets_the_targets_there_is_no_frontier(tmp_path):
    slow = QUICK.replace("ttft: {value: 300 ms", "ttft: {value: 1 ms")
    answer = sweep(loaded(tmp_path, SMALL, slow), REQUESTS, processes=1)
    assert len(answer["points"]) == 6
    assert (answer["frontier"], answer["knee"]) == ([], None)


def test_points_that_fail_are_recorded_with_their_reason(tmp_path):
    section = """
sweep:
  pools: 1
  dram: [0 GB, 1 MB]
  nvme: 0 GB
  models: [qwen3-235b-fp8, llama-3.1-8b, nowhere]
"""
    answer = sweep(loaded(tmp_path, section, MOE), REQUESTS, processes=1)
    assert [one["point"]["dram_bytes"] for one in answer["points"]] == [0.0]
    reasons = {
        (one["point"]["model"], one["point"]["dram_bytes"]): one["reason"]
        for one in answer["failed"]
    }
    assert len(reasons) == 5
    assert "room for a block" in reasons["qwen3-235b-fp8", 1e6]
    assert "llama-3.1-8b, without latencies" in reasons["llama-3.1-8b", 0.0]
    assert "nowhere" in reasons["nowhere", 0.0]
    assert answer["by_model"].keys() == {"Qwen/Qwen3-235B-A22B"}


def test_a_cache_smaller_than_a_request_is_a_reason_and_nothing_left_is_told(capsys, tmp_path):
    text = QUICK.replace("capacity: {value: 141 GB", "capacity: {value: 1.2 GB")
    name = written(tmp_path, SMALL, text)
    code, out, err = run(capsys, name, "--json", "--processes", 1, "--keep", tmp_path)
    answer = json.loads(out)
    assert code == 2
    assert (answer["points"], answer["frontier"], answer["knee"]) == ([], [], None)
    assert all("kv_tokens: found a request of" in one["reason"] for one in answer["failed"])
    assert err.count("failed: ") == 1
    assert "failed: pools 1, dram_bytes 0.0, nvme_bytes 0.0, router prefix and 5 more: " in err


def test_overload_and_requests_out_of_order_are_answered(tmp_path):
    crowd = simulate.asked(REQUESTS, 30.0, 0)
    slow = QUICK.replace("580 TFLOP/s", "1 TFLOP/s")
    alone = "sweep: {pools: 1, dram: 0 GB, nvme: 0 GB}"
    answer = sweep(loaded(tmp_path, alone, slow), crowd, processes=1)
    (one,) = answer["points"]
    assert not one["feasible"]
    # The queue grows for as long as the trace lasts.
    assert one["ttft_s"]["p50"] > 600
    log = tmp_path / "log.jsonl"
    rows = [{"timestamp": 1000 * (i ^ 1), "input_length": 512, "output_length": 2, "hash_ids": [i]}
            for i in range(20)]  # fmt: skip
    log.write_text("\n".join(map(json.dumps, rows)))
    found = simulate.read(str(log), "--trace")
    assert sweep(loaded(tmp_path), found, processes=1)["points"][0]["requests"] == 20


def test_an_empty_trace_is_refused(capsys, tmp_path):
    log = tmp_path / "empty.jsonl"
    log.write_text("\n")
    code, out, err = run(capsys, written(tmp_path), "--trace", log, "--keep", tmp_path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    with pytest.raises(InputError, match="no requests"):
        sweep(loaded(tmp_path), REQUESTS.select([]), processes=1)


def test_arrivals_without_blocks_are_refused(capsys, tmp_path):
    log = tmp_path / "azure.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51,10,5\n")
    code, out, err = run(capsys, written(tmp_path), "--trace", log, "--keep", tmp_path)
    assert (code, out) == (2, "")
    assert "arrivals and lengths only" in err
    assert err.count("\n") == 1


# What is kept


def kept(folder) -> dict[str, str]:
    """Text of every kept point by the name of its file."""
    files = Path(folder).glob("*/[!.]*.json")
    return {path.name: path.read_text("utf-8") for path in files}


def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    case, told = loaded(tmp_path), []
    whole = sweep(case, REQUESTS, folder=tmp_path, processes=1)
    before = kept(tmp_path)
    files = sorted(tmp_path.glob("*/*.json"))
    assert len(before) == len(files) == 6
    for file in files[2:5]:
        file.unlink()
    files[5].write_text(before[files[5].name][:50], encoding="utf-8")  # damaged
    again = sweep(
        case, REQUESTS, folder=tmp_path, processes=1, tell=lambda *count: told.append(count)
    )
    assert told == [(done, 6) for done in (3, 4, 5, 6)]
    assert json.dumps(again) == json.dumps(whole)
    assert kept(tmp_path) == before
    # Another grid pays for its new points alone; other prices for all.
    told.clear()
    larger = loaded(tmp_path, SMALL.replace("[1, 2, 1:1]", "[1, 2, 1:1, 3]"))
    sweep(larger, REQUESTS, folder=tmp_path, processes=1, tell=lambda *count: told.append(count))
    assert told == [(7, 8), (8, 8)]
    told.clear()
    dearer = loaded(tmp_path, SMALL, QUICK.replace("gpu: {value: 3.50", "gpu: {value: 3.60"))
    sweep(dearer, REQUESTS, folder=tmp_path, processes=1, tell=lambda *count: told.append(count))
    assert len(told) == 6


def test_a_folder_that_cannot_be_written_is_named(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, written(tmp_path), "--keep", tmp_path / "file")
    assert code == 2
    assert "a folder to keep points in" in err


def started(folder, keep) -> subprocess.Popen:
    options = ["--json", "--processes", "2", "--keep", str(keep)]
    code = "import sys; from kvpaper import cli; sys.exit(cli.main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", written(folder, LARGE), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(holds) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("waited for a minute")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    case = command.given(written(folder, LARGE), None, 0)
    return sweep(*case, processes=1)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_sweep_that_is_stopped_goes_on(tmp_path, undisturbed, sent, code):
    first = started(tmp_path, tmp_path)
    wait_for(lambda: len(kept(tmp_path)) >= 3)
    first.send_signal(sent)
    _, err = first.communicate(timeout=60)
    assert first.returncode == code
    assert "Traceback" not in err
    before = kept(tmp_path)
    assert len(before) < len(undisturbed["points"])
    out, err = started(tmp_path, tmp_path).communicate(timeout=120)
    assert json.loads(out) == undisturbed
    assert before.items() <= kept(tmp_path).items()
    assert len(kept(tmp_path)) == len(undisturbed["points"])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds workers in /proc")
def test_a_worker_that_is_killed_costs_nothing(tmp_path, undisturbed):
    first = started(tmp_path, tmp_path)
    wait_for(lambda: len(kept(tmp_path)) >= 3)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    workers = [
        int(child)
        for child in children
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    os.kill(workers[0], signal.SIGKILL)
    out, _ = first.communicate(timeout=120)
    assert first.returncode == 0
    assert json.loads(out) == undisturbed


def test_on_dask_it_is_the_same(tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as here:
        far = sweep(loaded(tmp_path), REQUESTS, dask=here.scheduler_address)
    assert far == sweep(loaded(tmp_path), REQUESTS, processes=1)


def test_a_cluster_without_workers_is_refused(tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as here,
        pytest.raises(InputError, match="without workers"),
    ):
        sweep(loaded(tmp_path), REQUESTS, dask=here.scheduler_address)
