"""One map, three places: the same results in the same order."""

import sys

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
