"""One map over tasks: in this process, on local processes, or on a Dask cluster."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from kvpaper.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

# What a worker process got at its start.
_common: tuple = ()


def map_tasks(
    function: Callable[..., Result],
    tasks: Iterable[Task],
    processes: int | None = None,
    dask: str | None = None,
    common: Any = None,
    lost: Callable[[Task], Result] | None = None,
) -> Iterator[Result]:
    """Apply ``function`` to every task and yield the results in the order of the tasks.

    Few results wait at a time, so that memory is bounded by the size of a result and not by the
    number of tasks.

    Parameters
    ----------
    function : callable
        A function at module level, since it travels to other processes.
    tasks : iterable
        Picklable tasks.
    processes : int, optional
        Local processes; one runs in this process. Default: the cores this process may use.
    dask : str, optional
        Address of a Dask scheduler, as in ``tcp://host:port``; then ``processes`` is not used.
    common : object, optional
        What all tasks need: sent once to a process, and the second argument of ``function``.
    lost : callable, optional
        The result of a task that killed the process it ran in. When a process dies, each task that
        was under way runs once more, alone; a task that dies alone too is lost. Without this an
        error is raised then.

    Raises
    ------
    InputError
        If Dask is asked for and cannot be imported or reached, or has no workers.
    """
    given = () if common is None else (common,)
    processes = processes or _cores()
    if dask is not None:
        yield from _on_dask(function, iter(tasks), dask, given, lost)
    elif processes == 1:
        yield from (function(task, *given) for task in tasks)
    else:
        yield from _on_processes(function, iter(tasks), processes, given, lost)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _on_processes(
    function: Callable, tasks: Iterator, processes: int, given: tuple, lost: Callable | None
) -> Iterator:
    pool, waiting = _workers(processes, given), deque()
    try:
        while True:
            try:
                for task in islice(tasks, 2 * processes - len(waiting)):
                    waiting.append([task, None])  # kept if the pool is found broken
                    waiting[-1][1] = pool.submit(_call, function, task)
                if not waiting:
                    return
                result = waiting[0][1].result()
            except BrokenExecutor:
                yield from _one_by_one(function, [task for task, _ in waiting], given, lost)
                pool, waiting = _workers(processes, given), deque()
            else:
                waiting.popleft()
                yield result
    finally:
        pool.shutdown(cancel_futures=True)


def _one_by_one(
    function: Callable, tasks: Iterable, given: tuple, lost: Callable | None
) -> Iterator:
    """Results of tasks that run alone, so that it shows which of them kills its process."""
    pool = _workers(1, given)
    for task in tasks:
        try:
            result = pool.submit(_call, function, task).result()
        except BrokenExecutor:
            if lost is None:
                raise
            pool, result = _workers(1, given), lost(task)
        yield result
    pool.shutdown()


def _workers(processes: int, given: tuple) -> ProcessPoolExecutor:
    import multiprocessing

    # Threads of numeric libraries do not survive a fork.
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, given)


def _begin(*given: Any) -> None:
    """Prepare a worker: Ctrl-C is for its parent to answer, and without a parent it ends."""
    import multiprocessing
    import signal
    import threading

    global _common
    _common = given
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _call(function: Callable, task: Any) -> Any:
    return function(task, *_common)


def _on_dask(
    function: Callable, tasks: Iterator, address: str, given: tuple, lost: Callable | None
) -> Iterator:
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError("--dask", "no Dask", "pip install 'kvpaper[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError("--dask", f"{address} ({error})", "a scheduler that answers") from None
    with client:
        threads, waiting = sum(client.nthreads().values()), deque()
        if not threads:
            raise InputError("--dask", f"{address} without workers", "one worker or more")
        # A task and not scattered data: it is made again where a worker that held it died.
        given = tuple(client.submit(_itself, one, pure=False) for one in given)
        while True:
            for task in islice(tasks, 2 * threads - len(waiting)):
                waiting.append((task, client.submit(function, task, *given, pure=False)))
            if not waiting:
                return
            task, future = waiting.popleft()
            try:
                result = future.result()
            except KilledWorker:
                if lost is None:
                    raise
                result = lost(task)
            yield result


def _itself(value: Any) -> Any:
    return value
