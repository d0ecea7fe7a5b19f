"""One thread that reads what a process tree writes and follows every process in it to its end."""

import os
import re
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvpaper.lab import processes
from kvpaper.lab.logs import BoundedLog

_SAMPLE_S = 0.5
_TOGETHER_S = 5.0  # a death this soon after another follows from it
_CRASHES = {"SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGSYS", "SIGTRAP"}
_PRIORITY = re.compile(rb"^<\d+>")
Identity = tuple[int, int]


@dataclass(slots=True)
class Started:
    """A command that was started. Its log is named after it."""

    name: str
    process: subprocess.Popen
    log: BoundedLog
    exit_code: int | None = None
    stopping: bool = False


@dataclass(slots=True)
class Seen:
    """A process of the tree: of which command, what it took, how it ended."""

    pid: int
    name: str
    part: str
    pidfd: int
    peak_rss_bytes: int = 0
    ended_s: float | None = None
    exit_code: int | None = None
    asked: bool = False

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended it, if one did."""
        if self.exit_code is None or self.exit_code >= 0:
            return None
        names = {number.value: number.name for number in signal.Signals}
        return names.get(-self.exit_code, f"signal {-self.exit_code}")

    def summary(self) -> dict[str, Any]:
        """As a record tells it."""
        return {
            "name": self.name,
            "log": f"{self.part}.log",
            "exit_code": self.exit_code,
            "signal": self.signal,
            "asked": self.asked,
            "peak_rss_bytes": self.peak_rss_bytes,
        }


class Watch:
    """Reads the streams and log records of started commands, and follows their processes.

    Parameters
    ----------
    run : str
        Marker in the environment of every process of the run.
    met : callable
        Called with ``pid``, ``started`` and ``name`` of each new process.
    """

    def __init__(self, run: str, met: Callable[[Mapping[str, Any]], None]) -> None:
        self.run, self._met = run, met
        self.parts: dict[str, Started] = {}
        self.seen: dict[Identity, Seen] = {}
        self.peak_rss_bytes = 0
        # The first process that a signal ended though nobody had asked.
        self.crash: Seen | None = None
        self.fault: Exception | None = None
        self._selector = selectors.DefaultSelector()
        self._finishing, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="capture", daemon=True)

    def add(self, started: Started, stream: int, channel: socket.socket) -> None:
        """Follow a command: its pipe for both standard streams, its channel for log records."""
        with self._lock:
            self.parts[started.name] = started
            for source, take in ((stream, self._read), (channel, self._receive)):
                act = partial(take, source, started.log)
                self._selector.register(source, selectors.EVENT_READ, act)
            self._meet(processes.process(started.process.pid), started.name)
        self.sample()
        if not self._thread.is_alive():
            self._thread.start()

    def finish(self) -> None:
        """Read what is still in the pipes, then end."""
        self._finishing.set()
        if self._thread.is_alive():
            self._thread.join(60)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._selector.close()

    def alive(self, part: str | None = None) -> list[Identity]:
        """The processes of one command, or of all, that have not ended."""
        with self._lock:
            living = [(key, one) for key, one in self.seen.items() if one.ended_s is None]
        return [key for key, one in living if part in (None, one.part)]

    def sample(self) -> None:
        """Look at the tree: who is new, and what memory each one has."""
        with self._lock:
            tree = processes.descendants(self.seen, self.run)
            for one in tree:
                if one.identity not in self.seen:
                    above = (seen.part for (pid, _), seen in self.seen.items() if pid == one.parent)
                    self._meet(one, processes.part_of(one.pid, self.run) or next(above, ""))
                if seen := self.seen.get(one.identity):
                    name = processes.title(one)
                    if not seen.name.startswith(name):  # its end has the short name alone
                        seen.name = name
                    seen.peak_rss_bytes = max(seen.peak_rss_bytes, one.rss_bytes)
                    if seen.ended_s is not None and one.parent == os.getpid():
                        processes.reap(one.pid)  # it died before its parent did
            self.peak_rss_bytes = max(self.peak_rss_bytes, sum(one.rss_bytes for one in tree))

    def _follow(self) -> None:
        next_sample, finishing, ready = 0.0, False, []
        try:
            while ready or not finishing:
                finishing = self._finishing.is_set()
                ready = self._selector.select(0 if finishing else 0.1)
                for key, _ in ready:
                    key.data()
                if time.monotonic() >= next_sample:
                    self.sample()
                    next_sample = time.monotonic() + _SAMPLE_S
        except Exception as fault:
            self.fault = fault

    def _read(self, stream: int, log: BoundedLog) -> None:
        chunk = os.read(stream, 1 << 20)
        if chunk:
            log.feed(chunk)
        else:
            self._selector.unregister(stream)
            os.close(stream)

    def _receive(self, channel: socket.socket, log: BoundedLog) -> None:
        log.record(_PRIORITY.sub(b"", channel.recv(1 << 20).rstrip(b"\0\n")))

    def _meet(self, one: processes.Process, part: str) -> None:
        try:
            pidfd = os.pidfd_open(one.pid)
        except OSError:  # gone in between
            return
        self.seen[one.identity] = Seen(one.pid, one.name, part, pidfd)
        self._met({"pid": one.pid, "started": one.started, "name": one.name})
        self._selector.register(pidfd, selectors.EVENT_READ, partial(self._gone, one.identity))

    def _gone(self, identity: Identity) -> None:
        with self._lock:
            one = self.seen[identity]
            now_s = time.monotonic()
            first = not any(
                other.exit_code and not other.asked and now_s - other.ended_s < _TOGETHER_S
                for other in self.seen.values()
            )
            one.exit_code, one.ended_s = processes.exit_status(identity, one.pidfd), now_s
            self._selector.unregister(one.pidfd)
            os.close(one.pidfd)
            started = self.parts.get(one.part)
            one.asked = started is not None and started.stopping
            if started and started.process.pid == identity[0]:
                started.exit_code = 255 if one.exit_code is None else one.exit_code
                started.process.returncode = started.exit_code
        if first and not one.asked and one.signal in _CRASHES:
            self.crash = one
