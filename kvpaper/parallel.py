"""One map over tasks: in this process, on local processes, or on a Dask cluster."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from kvpaper.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_tasks(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    processes: int | None = None,
    dask: str | None = None,
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

    Raises
    ------
    InputError
        If Dask is asked for and cannot be imported or reached.
    """
    if dask is not None:
        yield from _on_dask(function, tasks, dask)
        return
    processes = processes or _cores()
    if processes == 1:
        yield from map(function, tasks)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Threads of numeric libraries do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from _in_order(lambda task: pool.submit(function, task), tasks, 2 * processes)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _on_dask(
    function: Callable[[Task], Result], tasks: Iterable[Task], address: str
) -> Iterator[Result]:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask", "no Dask", "pip install 'kvpaper[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError("--dask", f"{address} ({error})", "a scheduler that answers") from None
    with client:
        window = 2 * max(1, sum(client.nthreads().values()))
        yield from _in_order(lambda task: client.submit(function, task, pure=False), tasks, window)


def _in_order(submit: Callable, tasks: Iterable[Task], window: int) -> Iterator:
    """Results of futures in order of submission, at most ``window`` of them under way."""
    tasks = iter(tasks)
    waiting = deque(submit(task) for task in islice(tasks, window))
    while waiting:
        result = waiting.popleft().result()
        waiting.extend(submit(task) for task in islice(tasks, 1))
        yield result
