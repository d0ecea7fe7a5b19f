"""Processes of a run: found, watched and ended, whoever started them. Linux only.

A process is told from a later one with the same number by its start time, and ours from others by
a marker in their environment. The harness is the subreaper of its tree, so that orphans come back
to it, and its exit statuses with them.
"""

import ctypes
import fcntl
import os
import signal
import struct
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kvpaper.errors import InputError

MARKER = "KVPAPER_RUN"
_PR_SET_CHILD_SUBREAPER = 36
_PROC, _SHM = Path("/proc"), " /dev/shm/"
# ioctl of a pidfd (Linux 6.15): the exit code even of a process that its parent has reaped.
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as ``/proc`` shows it; ``started`` is in clock ticks after boot."""

    pid: int
    parent: int
    started: int
    name: str
    state: str
    rss_bytes: int
    status: int

    @property
    def identity(self) -> tuple[int, int]:
        """Number and start time: unique until the machine boots again."""
        return self.pid, self.started


def boot() -> str:
    """What tells this boot of the machine from every other."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process(pid: int) -> Process | None:
    """The process of this number, or None if there is none; zombies count."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Process(
        pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        name=head.partition("(")[2],
        state=fields[0],
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        status=int(fields[49]),
    )


def everything() -> dict[int, Process]:
    """All processes by number."""
    found = (process(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {one.pid: one for one in found if one is not None}


def read_bytes(pid: int) -> int:
    """What a process has read so far [bytes], from files whether cached or not, and from pipes."""
    for line in (_PROC / str(pid) / "io").read_text().splitlines():
        if line.startswith("rchar: "):
            return int(line.split()[1])
    return 0


def title(one: Process) -> str:
    """Name of a process; whole where it gave itself one and the kernel cut it to 15 letters."""
    try:
        words = (_PROC / str(one.pid) / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return one.name
    return words[0] if one.name and words[0].startswith(one.name) else one.name


def part_of(pid: int, run: str) -> str:
    """Which started command of a run a process belongs to by its environment; else empty."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    start = f"{MARKER}={run}:".encode()
    parts = (text for text in environment.split(b"\0") if text.startswith(start))
    return next(parts, b"").removeprefix(start).decode("utf-8", "replace")


def descendants(known: Iterable[tuple[int, int]], run: str) -> list[Process]:
    """The processes of a run, zombies included: those known, what they started, its orphans.

    Parameters
    ----------
    known : iterable of (int, int)
        Identities of processes that are the run's.
    run : str
        Its marker, looked for only in children of this process, which is where orphans go.
    """
    table, known = everything(), set(known)
    ours = {pid for pid, one in table.items() if one.identity in known}
    adopted = (one for one in table.values() if one.parent == os.getpid())
    ours |= {one.pid for one in adopted if one.pid not in ours and part_of(one.pid, run)}
    grown = ours
    while grown:
        grown = {pid for pid, one in table.items() if one.parent in ours} - ours
        ours |= grown
    return [table[pid] for pid in sorted(ours)]


def shared_memory(pids: Iterable[int]) -> set[Path]:
    """Files of shared memory that these processes have mapped; a killed process leaves them."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            text = (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
            found |= {line[line.index(_SHM) + 1 :] for line in text.splitlines() if _SHM in line}
    return {Path(path) for path in found if not path.endswith(" (deleted)")}


def remove_unused(shared: set[Path]) -> None:
    """Remove the files of shared memory that no process has mapped any more."""
    left = {path for path in shared if path.exists()}
    for path in left - shared_memory(everything()) if left else ():
        path.unlink(missing_ok=True)


def become_subreaper() -> None:
    """Let orphans of this process come back to it.

    Raises
    ------
    InputError
        On a system that has no such thing.
    """
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        raise InputError("platform", sys.platform, "Linux, on which every child can be followed")
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(pid: int) -> int | None:
    """Exit code of an ended child of this process, negative for a signal; the zombie is gone."""
    try:
        reaped, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if reaped else None


def exit_status(one: tuple[int, int], pidfd: int) -> int | None:
    """Exit code of an ended process, negative for a signal, as far as the system tells.

    A child of this process is reaped. Of any other, its parent may have read the status before us;
    then it is asked of the kernel by ``pidfd``, which only a new one answers.
    """
    pid, started = one
    code = reap(pid)
    if code is not None:
        return code
    seen = process(pid)
    if seen is not None and seen.started == started and seen.state == "Z":
        return os.waitstatus_to_exitcode(seen.status)
    answer = bytearray(struct.pack("=Q", _PIDFD_INFO_EXIT) + bytes(56))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, answer)
    except OSError:
        return None
    told = struct.unpack_from("=Q", answer)[0] & _PIDFD_INFO_EXIT
    return os.waitstatus_to_exitcode(struct.unpack_from("=i", answer, 60)[0]) if told else None


def send(one: tuple[int, int], number: int) -> bool:
    """Send a signal to exactly this process, never to a later one with its number."""
    try:
        pidfd = os.pidfd_open(one[0])
    except OSError:
        return False
    try:
        seen = process(one[0])
        if seen is None or seen.started != one[1] or seen.state == "Z":
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(pidfd)


def end_strays(run: str, known: Iterable[tuple[int, int]], deadline_s: float = 10) -> list[str]:
    """Kill what a run without a harness left behind: what bears its marker or is known by identity.

    Returns
    -------
    list of str
        Names of the processes that were ended.
    """
    known, ended, shared = set(known), {}, set()
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        ours = [
            one
            for one in everything().values()
            if one.state != "Z" and (one.identity in known or part_of(one.pid, run))
        ]
        if not ours:
            break
        shared |= shared_memory(one.pid for one in ours)
        ended |= {one.identity: one.name for one in ours if send(one.identity, signal.SIGKILL)}
        time.sleep(0.1)
        for one in ours:
            reap(one.pid)  # where orphans come to this process
    remove_unused(shared)
    return list(ended.values())
