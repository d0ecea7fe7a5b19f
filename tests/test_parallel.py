"""One map, three places: the same results in the same order."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest

from kvpaper.errors import InputError
from kvpaper.parallel import map_tasks


def square(number: int) -> int:
    return number * number


def test_processes_keep_the_order_of_tasks():
    expected = [number * number for number in range(9)]
    assert list(map_tasks(square, range(9), processes=1)) == expected
    assert list(map_tasks(square, range(9), processes=2)) == expected


def test_no_tasks_give_no_results():
    assert list(map_tasks(square, [], processes=2)) == []


def test_few_tasks_are_taken_ahead_of_their_results():
    taken = []

    def tasks():
        for number in range(100):
            taken.append(number)
            yield number

    results = map_tasks(square, tasks(), processes=2)
    next(results)
    assert len(taken) < 10
    results.close()


def test_dask_that_is_not_there_is_bad_input(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="--dask: found no Dask"):
        list(map_tasks(square, [1], dask="tcp://127.0.0.1:1"))


def test_a_scheduler_that_does_not_answer_is_bad_input():
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="a scheduler that answers"):
        list(map_tasks(square, [1], dask="tcp://127.0.0.1:9"))


def test_dask_gives_the_same():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as here:
        results = list(map_tasks(abs, range(-9, 0), dask=here.scheduler_address))
    assert results == list(range(9, 0, -1))


def die_at(number: int, folder: str) -> int:
    """The square, unless the number's file says that the process dies under it."""
    path = Path(folder, str(number))
    if path.exists():
        if path.read_text() == "once":
            path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def test_a_process_that_is_killed_loses_nothing(tmp_path):
    (tmp_path / "3").write_text("once")
    found = list(map_tasks(die_at, range(12), processes=2, common=str(tmp_path)))
    assert found == [number * number for number in range(12)]


def test_a_task_that_kills_its_process_is_lost_alone(tmp_path):
    for number in (2, 3, 11):
        (tmp_path / str(number)).write_text("always")
    found = map_tasks(die_at, range(12), 2, common=str(tmp_path), lost=lambda task: -task)
    assert list(found) == [-n if n in (2, 3, 11) else n * n for n in range(12)]
    with pytest.raises(BrokenExecutor):
        list(map_tasks(die_at, range(4), 2, common=str(tmp_path)))


def wait_long(folder: str) -> None:
    Path(folder, "worker").write_text(str(os.getpid()))
    time.sleep(60)


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    code = "import sys, test_parallel as t; list(t.map_tasks(t.wait_long, sys.argv[1:], 2))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment)
    told = tmp_path / "worker"
    wait_until(lambda: told.exists() and told.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(int(told.read_text())))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(holds) -> None:
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail("waited for 30 s")
