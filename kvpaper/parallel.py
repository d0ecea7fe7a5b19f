"""One map over tasks: in this process, on local processes, or on a Dask cluster."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from kvpaper.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

_END = object()
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
        yield from _on_dask(function, tasks, dask, given, lost)
    elif processes == 1:
        yield from (function(task, *given) for task in tasks)
    else:
        workers = _Workers(function, processes, given, lost)
        try:
            yield from _in_order(tasks, workers.submit, workers.room, workers.died, BrokenExecutor)
        finally:
            workers.pool.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_order(
    tasks: Iterable,
    submit: Callable,
    room: Callable[[int], int],
    died: Callable,
    death: type[Exception],
) -> Iterator:
    """Results of futures in order of submission; ``room`` says how many more may be under way."""
    tasks, waiting = iter(tasks), deque()
    while True:
        waiting.extend((task, submit(task)) for task in islice(tasks, room(len(waiting))))
        if not waiting:
            return
        task, future = waiting.popleft()
        try:
            result = future.result()
        except death as error:
            result = died(task, error)
        yield result


class _Workers:
    """Local processes; after a death one alone, until what was under way is done."""

    def __init__(
        self, function: Callable, processes: int, given: tuple, lost: Callable | None
    ) -> None:
        self.function, self.processes, self.given, self.lost = function, processes, given, lost
        self.start(processes)

    def start(self, processes: int) -> None:
        import multiprocessing

        # Threads of numeric libraries do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.alone = processes == 1
        self.pool = ProcessPoolExecutor(processes, context, _begin, self.given)

    def room(self, waiting: int) -> int:
        if self.alone and not waiting:
            self.pool.shutdown()
            self.start(self.processes)
        return 0 if self.alone else 2 * self.processes - waiting

    def submit(self, task: Any) -> Future:
        try:
            return self.pool.submit(_call, self.function, task)
        except BrokenExecutor as error:  # it broke since the last result
            future: Future = Future()
            future.set_exception(error)
            return future

    def died(self, task: Any, _: Exception) -> Any:
        """The task's result when it runs once more, alone; or that of a lost task."""
        if not self.alone:
            self.start(1)
        try:
            return self.submit(task).result()
        except BrokenExecutor as error:
            self.start(1)
            return _gone(self.lost, task, error)


def _gone(lost: Callable | None, task: Any, error: Exception) -> Any:
    if lost is None:
        raise error
    return lost(task)


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
    function: Callable, tasks: Iterable, address: str, given: tuple, lost: Callable | None
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
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError("--dask", f"{address} without workers", "one worker or more")
        # A task and not scattered data: it is made again where a worker that held it died.
        given = tuple(client.submit(_itself, one, pure=False) for one in given)
        yield from _in_order(
            tasks,
            lambda task: client.submit(function, task, *given, pure=False),
            lambda waiting: 2 * threads - waiting,
            partial(_gone, lost),
            KilledWorker,
        )


def _itself(value: Any) -> Any:
    return value
