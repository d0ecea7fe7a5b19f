"""The harness: starts commands, captures everything, and leaves a run folder and a record.

Use it as a context. How its block ends decides the outcome of the record::

    with Run("canary", {"model": "tiny"}, python=".engine/bin/python") as run:
        engine = run.start("engine", command, {"OMP_NUM_THREADS": "2"})
        run.wait_until(lambda: healthy(port), 300, "the engine to answer")
        run.add("ttft_s", "s", [0.21, 0.20], warmups=[0.9], prompt_tokens=1024)
    print(run.record["outcome"], run.record_path)

`Stopped` ends the block and not the program: the record tells why, and the next run can begin.
Whatever else ends the block (Ctrl-C, SIGTERM, a fault) leaves a record too and goes on upwards.
"""

import fcntl
import json
import math
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

from kvpaper.lab import ending, machine, processes, records
from kvpaper.lab.ending import LOCK, RESERVE, STATE
from kvpaper.lab.logs import BoundedLog
from kvpaper.lab.watch import Started, Watch
from kvpaper.redact import redact, redact_command, redact_environment, secret_values

RUNS = Path("runs")
_RESERVE_BYTES = 1 << 18
GRACE_S = 5.0  # between a child's death and ours, so that its parent can tell its own story
_ORPHANS_S = 1.5  # for what outlives the command that was started
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FORMAT = "%(asctime)s pid=%(process)d proc=%(processName)s %(levelname)s %(name)s:%(lineno)d "
_FORMAT += "%(message)s"
_PAUSE = partial(time.sleep, 0.1)
Answer = TypeVar("Answer")


class Stopped(Exception):
    """A run that cannot go on.

    Parameters
    ----------
    why : str
        One line that the record keeps.
    outcome : str
        ``failed`` or ``timed out``.
    degraded : bool
        Whether the cause is that a connector is not active; by default the logs are asked.
    """

    def __init__(self, why: str, outcome: str = "failed", degraded: bool = False) -> None:
        self.why, self.outcome, self.degraded = why, outcome, degraded
        super().__init__(why)


class Run:
    """One run of an instrument: its folder, its processes, its rows, its record.

    Parameters
    ----------
    instrument : str
        Such as ``canary``.
    parameters : mapping
        All that the run depends on, as plain JSON.
    python, image : str, optional
        The engine's interpreter or its container image by digest, for the versions.
    disk : Path
        Folder whose disk the record describes.
    runs, folder : Path
        Where run folders and records go.

    Attributes
    ----------
    path : Path
        The run folder.
    record, record_path : dict and Path
        Once the block has ended.
    """

    def __init__(
        self,
        instrument: str,
        parameters: Mapping[str, Any],
        *,
        python: str | None = None,
        image: str | None = None,
        disk: Path = Path(),
        runs: Path = RUNS,
        folder: Path = records.FOLDER,
    ) -> None:
        parameters = machine.public(json.loads(json.dumps(parameters, allow_nan=False)))
        checksum = records.parameters_sha256(parameters)
        now = datetime.now(UTC)
        program = Path(sys.argv[0]).name.replace("__main__.py", "kvpaper")
        self.path = runs / f"{instrument}-{now:%Y%m%dT%H%M%S%f}-{checksum[:8]}"
        self.folder, self._marker = folder, secrets.token_hex(16)
        # Short, since sockets lie in it.
        self._temporary = f"{tempfile.gettempdir()}/kvpaper-{self._marker[:12]}"
        self._scratch: list[str] = []
        self._secrets = {*secret_values(os.environ)}
        self.record: dict[str, Any] = {
            "schema_version": records.SCHEMA_VERSION,
            "instrument": instrument,
            "started_at": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}",
            "duration_s": None,
            "parameters": parameters,
            "parameters_sha256": checksum,
            "machine": machine.describe(disk),
            "software": machine.software(python, image),
            "command": redact_command([program, *sys.argv[1:]], self._secrets),
            "commands": {},
            "run": self.path.name,
            "rows": [],
            "logs": [],
            "processes": [],
            "memory": {},
            "outcome": "interrupted",
            "cause": None,
        }
        self.record_path: Path | None = None

    def __enter__(self) -> "Run":
        ending.end_orphans(self.path.parent, self.folder)
        self.path.mkdir(parents=True)
        self._begin, self._events = time.monotonic(), machine.memory_events()
        self._other_cpu_s = machine.other_cpu_s()
        # Held until this process is gone, however it goes: by that a later run tells what is left.
        self._lock = (self.path / LOCK).open("x", encoding="utf-8")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._write_state()
        os.mkdir(self._temporary, 0o700)
        with suppress(OSError):  # room for the record, should the disk run full
            (self.path / RESERVE).write_bytes(bytes(_RESERVE_BYTES))
        self._log = BoundedLog(self.path / "harness.log", self._secrets)
        self._shared: set[Path] = set()
        self._watch = Watch(self._marker, lambda one: self._append("processes.jsonl", one))
        self._handlers, self._deferring, self._signalled = {}, False, 0
        if threading.current_thread() is threading.main_thread():
            self._handlers = {n: signal.signal(n, self._interrupt) for n in _SIGNALS}
            if self._handlers[signal.SIGHUP] is signal.SIG_IGN:  # nohup
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Started:
        """Start a command in a session of its own, both streams and its log records captured.

        Parameters
        ----------
        name : str
            Of its log, ``NAME.log``.
        command : sequence of str
        environment : mapping, optional
            Added to that of this process.

        Raises
        ------
        Stopped
            If the command cannot be started.
        """
        processes.become_subreaper()
        with self._deferred():
            return self._start(name, command, environment or {})

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Started:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.bind(f"\0kvpaper-{self._marker}-{name}")
        logging = json.dumps(_logging(channel.getsockname()), indent=1)
        (self.path / f"{name}.logging.json").write_text(logging, encoding="utf-8")
        whole = {**os.environ, **self.variables(name), **environment}
        self._secrets |= {*secret_values(environment)}
        shown = json.dumps(redact_environment(whole), indent=1)
        self.keep(f"{name}.environment.json", f"{shown}\n")
        self.record["commands"][name] = redact_command(command, self._secrets)
        self._write_state()
        log = BoundedLog(self.path / f"{name}.log", self._secrets)
        stream, end = os.pipe()
        with suppress(OSError):  # a flood is read twice as fast
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
        try:
            # One pipe for both streams keeps their order.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                env=whole,
                start_new_session=True,
            )
        except OSError as error:
            os.close(stream)
            channel.close()
            log.close()
            raise Stopped(f"{name} did not start: {error.strerror}: {command[0]}") from None
        finally:
            os.close(end)
        with suppress(OSError, ValueError):  # a core file would hold what the log must not
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        started = Started(name, process, log)
        self._watch.add(started, stream, channel)
        self.say(f"{name} started")
        return started

    def scratch(self, parent: Path) -> Path:
        """A new folder below another, removed when the run has ended, at the latest by the next."""
        self._scratch.append(os.path.abspath(tempfile.mkdtemp(prefix=".kvpaper-", dir=parent)))
        self._write_state()
        return Path(self._scratch[-1])

    @property
    def started(self) -> dict[str, Started]:
        """The commands started so far, by name."""
        return self._watch.parts

    def variables(self, name: str = "") -> dict[str, str]:
        """What the harness puts into the environment of a command."""
        return {
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "TMPDIR": self._temporary,
            "SPT_NOENV": "1",  # a process that renames itself must not wipe its marker
            "VLLM_LOGGING_CONFIG_PATH": str((self.path / f"{name}.logging.json").resolve()),
            processes.MARKER: f"{self._marker}:{name}",
        }

    def check(self) -> None:
        """See whether what was started still runs.

        Raises
        ------
        Stopped
            If a command ended, or a signal ended a process of its tree.
        """
        if self._watch.fault:
            raise self._watch.fault
        for log in (self._log, *(part.log for part in self._watch.parts.values())):
            if log.error:
                raise Stopped(f"{log.path.name} cannot be written: {log.error}")
        for part in self._watch.parts.values():
            if part.exit_code is not None and not part.stopping:
                raise Stopped(f"{part.name} ended with exit code {part.exit_code}")
        one = self._watch.crash
        if one and time.monotonic() - one.ended_s > GRACE_S:
            raise Stopped(f"{one.name} (pid {one.pid}) of {one.part} was ended by {one.signal}")

    def wait_until(
        self,
        ready: Callable[[], Any],
        deadline_s: float,
        what: str,
        pause: Callable[[], Any] = _PAUSE,
    ) -> None:
        """Ask until it is so.

        Raises
        ------
        Stopped
            When the deadline is over, or by `check`.
        """
        end = time.monotonic() + deadline_s
        while not ready():
            self.check()
            if time.monotonic() > end:
                raise Stopped(f"waited {deadline_s:g} s for {what}", "timed out")
            pause()

    def guarded(self, ask: Callable[[], Answer], deadline_s: float, what: str) -> Answer:
        """Call a function that may block, such as a request, in a thread, and wait for its answer.

        Raises
        ------
        Stopped
            When the deadline is over, by `check`, or when what was asked fails or makes no sense.
        """
        coming: Future[Answer] = Future()

        def call() -> None:
            try:
                coming.set_result(ask())
            except BaseException as error:
                coming.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        self.wait_until(coming.done, deadline_s, what, lambda: wait([coming], 0.2))
        error = coming.exception()
        if isinstance(error, TimeoutError):
            raise Stopped(f"waited {deadline_s:g} s for {what}", "timed out")
        if isinstance(error, OSError | ValueError | HTTPException | Stopped):
            settled = time.monotonic() + GRACE_S + 1
            # A death is a better reason.
            self.wait_until(lambda: time.monotonic() > settled, GRACE_S + 2, what)
            if not isinstance(error, Stopped):
                raise Stopped(f"{what}: {type(error).__name__}: {error}")
        return coming.result()

    def add(self, *told: Any, **coordinates: Any) -> None:
        """Add a row to the record, with the arguments of `records.row`; it survives all."""
        row = records.row(*told, **coordinates)
        self.record["rows"].append(row)
        self._append("rows.jsonl", row)

    def add_each(
        self, taken: Sequence[Mapping[str, float]], warmups: int = 1, **coordinates: Any
    ) -> None:
        """Add a row for each quantity of what was taken again and again, the first as warm-ups."""
        for name in taken[0]:
            values = [one[name] for one in taken]
            self.add(name, records.unit(name), values[warmups:], values[:warmups], **coordinates)

    def keep(self, name: str, text: str) -> None:
        """Keep a text in the run folder, redacted, if there is room."""
        with suppress(OSError):
            (self.path / name).write_text(redact(text, self._secrets), encoding="utf-8")

    def say(self, text: str) -> None:
        """Tell progress: to standard error and to the log of the harness."""
        text = redact(text, self._secrets)  # those of every command, also of later ones
        ending.tell(f"{self.record['instrument']}: {text}")
        self._note("INFO", text)

    def stop(self, started: Started, deadline_s: float = 40) -> None:
        """Ask a command to stop, then end what is left of its tree; return when all is gone."""
        with self._deferred():
            self._end(started.name, deadline_s)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
        try:
            self._finish(error)
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler or signal.SIG_DFL)
            self._lock.close()
        return isinstance(error, Stopped)

    def _finish(self, error: BaseException | None) -> None:
        outcome, why = _outcome(error)
        by = ""
        if one := self._watch.crash:
            by = one.signal
            self._note("ERROR", f"ended by {by}, exit code {one.exit_code}", one.pid, one.name)
        if outcome == "timed out":
            self._dump_stacks()
        patience_s = 40 if outcome == "completed" else 5
        self._end(None, patience_s)
        self._watch.finish()
        processes.remove_unused(self._shared)
        for folder in (self._temporary, *self._scratch):
            shutil.rmtree(folder, ignore_errors=True)
        if why:
            self.say(f"{outcome}: {why}")
        duration_s = time.monotonic() - self._begin
        busy = (machine.other_cpu_s() - self._other_cpu_s) / duration_s
        if math.isfinite(busy):
            self.record["machine"]["busy_cores_of_others"] = round(max(busy, 0.0), 3)
        now = machine.memory_events()
        events = {name: now[name] - before for name, before in self._events.items() if name in now}
        if events.get("machine_oom_kill") or events.get("cgroup_oom_kill"):
            self._note("ERROR", "oom_kill event while the run went on")
        logs = [self._log, *(part.log for part in self._watch.parts.values())]
        self.record |= {
            "duration_s": duration_s,
            "logs": [log.close() for log in logs],
            "processes": [one.summary() for one in self._watch.seen.values()],
            "memory": {"peak_rss_bytes": self._watch.peak_rss_bytes, **events},
            "outcome": outcome,
        }
        faults = [f"{log['name']}: {log['error']}" for log in self.record["logs"] if log["error"]]
        faults += [] if self.record["rows"] else ["no value was taken"]
        if outcome == "completed" and faults:
            outcome, why = "failed", faults[0]
            self.record["outcome"] = outcome
        if outcome != "completed":
            degraded = isinstance(error, Stopped) and error.degraded
            self.record["cause"] = ending.cause(self.path, outcome, why, degraded, by)
        self.record = machine.public(self.record)
        for name in ("cause", "processes", "software"):  # not what the checksum is of
            self.record[name] = machine.public(self.record[name], self._secrets)
        self.record_path = ending.write(self.record, self.path, self.folder)
        ending.tell(f"{self.record['instrument']}: {outcome}; record {self.record_path}")

    def _dump_stacks(self) -> None:
        """Let every Python process tell by faulthandler where its threads wait, and die of it."""
        for one in self._watch.parts.values():
            one.stopping = True
        self._shared |= processes.shared_memory(pid for pid, _ in self._watch.alive())
        for identity in self._watch.alive():
            processes.send(identity, signal.SIGABRT)
        self._gone(None, 3)

    def _end(self, part: str | None, deadline_s: float) -> None:
        """Ask the started processes to stop, twice, then kill what is left of their trees."""
        chosen = [one for name, one in self._watch.parts.items() if part in (None, name)]
        if not chosen:
            return
        self._watch.sample()  # what is dead already can be told apart while its parent lives
        self._shared |= processes.shared_memory(pid for pid, _ in self._watch.alive(part))
        for one in chosen:
            one.stopping = True
        for number in (signal.SIGINT, signal.SIGTERM):
            running = {one.process.pid for one in chosen if one.exit_code is None}
            for identity in self._watch.alive(part):
                if identity[0] in running:
                    processes.send(identity, number)
            if (running or number == signal.SIGINT) and self._gone(part, deadline_s / 2):
                return
        for _ in range(20):
            for identity in self._watch.alive(part):
                processes.send(identity, signal.SIGKILL)
            self._watch.sample()
            if self._gone(part, 0.5):
                return
        processes.end_strays(self._marker, self._watch.alive(part), 1)
        self._note("ERROR", "a process cannot be killed")

    def _gone(self, part: str | None, deadline_s: float) -> bool:
        """Wait until nothing of the tree lives; not long once what was started has ended."""
        end, shortened = time.monotonic() + deadline_s, False
        while time.monotonic() < end:
            if not self._watch.alive(part):
                self._watch.sample()
                if not self._watch.alive(part):
                    return True
            chosen = (one for name, one in self._watch.parts.items() if part in (None, name))
            if not shortened and all(one.exit_code is not None for one in chosen):
                end, shortened = min(end, time.monotonic() + _ORPHANS_S), True
            time.sleep(0.05)
        return False

    def _note(self, level: str, text: str, pid: int | None = None, name: str = "harness") -> None:
        stamp = f"{datetime.now():%Y-%m-%d %H:%M:%S,%f}"[:-3]
        who = f"pid={pid or os.getpid()} proc={name.replace(' ', '_')}"
        line = f"{stamp} {who} {level} kvpaper.lab:0 {text}"
        self._log.record(line.encode("utf-8", "replace"))

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        with suppress(OSError), (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _write_state(self) -> None:
        state = {"marker": self._marker, "boot": processes.boot(), "record": self.record}
        state |= {"temporary": self._temporary, "scratch": self._scratch}
        temporary = self.path / f"{STATE}.tmp"
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(self.path / STATE)

    @contextmanager
    def _deferred(self) -> Iterator[None]:
        """Signals wait until the block ends, so that no process is lost sight of."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._signalled:
            self._interrupt(self._signalled, None)

    def _interrupt(self, number: int, _: Any) -> None:
        self._signalled = number
        if not self._deferring:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _logging(address: bytes) -> dict[str, Any]:
    """Logging of a child: each record as one datagram of text to the harness."""
    handler = {"class": "logging.handlers.SysLogHandler", "address": address.decode()}
    handler |= {"socktype": int(socket.SOCK_DGRAM), "formatter": "line"}
    ours = {"handlers": ["harness"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": _FORMAT}},
        "handlers": {"harness": handler},
        "loggers": {"vllm": ours, "lmcache": ours},
        "root": {"handlers": ["harness"], "level": "WARNING"},
    }


def _outcome(error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return "completed", ""
    if isinstance(error, Stopped):
        return error.outcome, error.why
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        return "interrupted", "a signal asked to stop"
    return "failed", f"{type(error).__name__}: {error}"
