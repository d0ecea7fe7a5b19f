"""What a measurement was taken on: the machine and the software, without what names its owner."""

import getpass
import json
import math
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import kvpaper
from kvpaper.errors import InputError
from kvpaper.redact import redact_command, redact_environment

_OWN = ("numpy", "scipy", "pandas", "torch", "triton", "transformers", "safetensors", "tokenizers")
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_PACKAGES = """
import importlib.metadata, json, platform
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""


def describe(folder: Path) -> dict[str, Any]:
    """The machine: processor, cores, memory, GPUs, kernel, limits; and the disk below ``folder``.

    Sizes are in bytes. Nothing here names a host, a user, an address or a path.
    """
    return {
        "processor": _colon_lines("/proc/cpuinfo").get("model name", platform.processor()),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes("MemTotal"),
        "kernel": f"{platform.system()} {platform.release()}",
        "limits": _limits(),
        "gpus": _gpus(),
        "disk": disk(folder),
    }


def memory_bytes(name: str) -> int:
    """An entry of ``/proc/meminfo``, such as ``MemAvailable``."""
    return int(_colon_lines("/proc/meminfo")[name].split()[0]) << 10


def disk(folder: Path) -> dict[str, Any]:
    """File system and device below a folder."""
    folder = folder.resolve()
    number = os.stat(folder).st_dev
    found: dict[str, Any] = {"size_bytes": shutil.disk_usage(folder).total}
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == f"{os.major(number)}:{os.minor(number)}":
            found["file_system"], device, *_ = right.split()
            found["device"] = Path(device).name if device.startswith("/dev/") else device
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    # A partition's queue is that of the device above it.
    for place in (block, block.parent):
        if (place / "queue").is_dir():
            found["rotational"] = _read(place / "queue/rotational").strip() == "1"
            found["model"] = _read(place / "device/model").strip() or None
            break
    return found


def software(python: str | None = None, image: str | None = None) -> dict[str, Any]:
    """Versions: of this package and what it runs on, and of the engine's environment if any.

    Parameters
    ----------
    python : str, optional
        Interpreter of the engine's environment; it is asked for its packages.
    image : str, optional
        Container image by digest, instead of an interpreter.

    Raises
    ------
    InputError
        If the interpreter does not answer.
    """
    own = {}
    for name in _OWN:
        with suppress(metadata.PackageNotFoundError):
            own[name] = metadata.version(name)
    found: dict[str, Any] = {"kvpaper": kvpaper.__version__, "packages": own}
    found["python"] = platform.python_version()
    if image:
        found["engine"] = {"image": image}
    elif python:
        found["engine"] = _engine(python)
    return found


def public(value: Any, known: Iterable[str] = ()) -> Any:
    """A value of JSON without secrets, host name, user, home, addresses, path of the checkout.

    ``known`` are values that are secret whatever they look like.
    """
    if isinstance(value, dict):
        # A version such as 4.13.0.92 is no address.
        shown = {name: public(one, known) for name, one in value.items() if name != "packages"}
        shown |= redact_environment({n: one for n, one in shown.items() if isinstance(one, str)})
        return {public(name): shown.get(name, inside) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        words = value and all(isinstance(one, str) for one in value)
        return [public(one, known) for one in (redact_command(value, known) if words else value)]
    if not isinstance(value, str):
        return value
    (value,) = redact_command([value], known)
    for pattern, shown in _private():
        value = re.sub(pattern, shown, value)
    return _ADDRESS.sub("[address]", value)


def _private() -> list[tuple[str, str]]:
    """Patterns of what names the owner, and what is shown instead."""
    here, home, host, user = map(
        re.escape, (str(Path.cwd()), str(Path.home()), socket.gethostname(), _user())
    )
    words = [(here, "."), (home, "~"), (host, "[host]"), (user, "[user]")]
    kept = [word for word in words if word[0] not in ("", "/", "root", "localhost")]
    return [(f"{here}/", "")] + [(rf"(?<![\w-]){word}(?![\w-])", shown) for word, shown in kept]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return ""


def _engine(python: str) -> dict[str, Any]:
    try:
        answer = subprocess.run(
            [python, "-c", _PACKAGES], capture_output=True, text=True, timeout=120, check=True
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        wanted = "an interpreter with vLLM (make engine-env)"
        raise InputError(f"--python {python}", type(error).__name__, wanted) from None
    return found | {"packages": dict(sorted(found["packages"].items()))}


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _colon_lines(path: str) -> dict[str, str]:
    """``name : value`` lines, the first of each name."""
    lines = (line.partition(":") for line in reversed(_read(path).splitlines()))
    return {name.strip(): value.strip() for name, _, value in lines}


def cgroup() -> Path | None:
    """Folder of this process's memory cgroup, of either version."""
    root = Path("/sys/fs/cgroup")
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            inside = root / "memory" / path.lstrip("/")
            return inside if inside.is_dir() else root / "memory"
        if not controllers and (root / path.lstrip("/") / "memory.current").is_file():
            return root / path.lstrip("/")
    return None


def _limits() -> dict[str, Any]:
    here, found = cgroup(), {}
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(here / name).strip() if here else ""
        # Version 1 says "no limit" by a number near the largest there is.
        if text.isdigit() and int(text) < 1 << 60:
            found["memory_bytes"] = int(text)
    quota = _read(here / "cpu.max").split() if here else []
    if len(quota) == 2 and quota[0].isdigit():
        found["cores"] = int(quota[0]) / int(quota[1])
    return found


def memory_events() -> dict[str, int]:
    """Counters of memory pressure: those of the cgroup, and the machine's ``oom_kill``."""
    found = {}
    here = cgroup()
    for name in ("memory.events", "memory.oom_control") if here else ():
        for line in _read(here / name).splitlines():
            event, _, count = line.partition(" ")
            found[f"cgroup_{event}"] = int(count)
    for line in _read("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            found["machine_oom_kill"] = int(line.split()[1])
    return found


def other_cpu_s() -> float:
    """Processor time of the machine that this process and its reaped children did not use [s].

    Two readings tell how busy others kept the machine between them; NaN where the system is silent.
    """
    line = _read("/proc/stat").partition("\n")[0].split()
    if line[:1] != ["cpu"]:
        return math.nan
    user, nice, system, _, _, irq, softirq, steal = map(int, line[1:9])
    busy_s = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return busy_s - sum(one.ru_utime + one.ru_stime for one in own)


def _gpus() -> list[dict[str, Any]]:
    if not shutil.which("nvidia-smi"):
        return []
    fields = "name,memory.total,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(", ") for line in answer.stdout.splitlines() if line)
    return [
        {"name": name, "memory_bytes": int(mebibytes) << 20, "driver": driver}
        for name, mebibytes, driver in rows
    ]
