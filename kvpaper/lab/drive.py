"""Tiers that only the engine's environment can drive: LMCache's backends, and a GPU.

This file is run there as a script, ``python drive.py lmcache|device REQUEST.json ANSWER.jsonl``.
There is no kvpaper in that environment, so it imports nothing of it. A request has ``folder``,
``direct`` and ``shapes``: for each shape its name, ``token_bytes`` and ``tokens``, ascending.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

PIECE_BYTES = 16 << 20
CHUNK_TOKENS = 256
_LEAST, _MOST, _BUDGET_S = 3, 15, 0.4
Act = Callable[[int], Any]


def timed(act: Act, places: int, prepare: Act | None = None, **at: Any) -> dict[str, Any]:
    """The row of a fetch: its times [s], each at the next of its places, the first as a warm-up.

    Moving on keeps the caches of the processor from holding what is moved. Three times at least,
    then until .4 s are spent or there are fifteen. What prepares a place does not count.
    """
    taken: list[float] = []
    while len(taken) <= _LEAST or (len(taken) <= _MOST and sum(taken[1:]) < _BUDGET_S):
        place = len(taken) % places
        if prepare:
            prepare(place)
        before = time.perf_counter()
        act(place)
        taken.append(time.perf_counter() - before)
    return {"quantity": "fetch_time_s", **at, "warmups": taken[:1], "values": taken[1:]}


def read_into(file: int, view: memoryview, offset: int) -> None:
    """Fill a view from a file; one call of the system reads 2 GB at most."""
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done : done + (1 << 30)]], offset + done)
        if not count:
            raise OSError(0, "the file ended early")
        done += count


def forget(path: str | Path) -> None:
    """Have a file on its device and out of the page cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


class Device:
    """A device, the memory that is copied to it, and a file that is read to it."""

    def __init__(self, kind: str, count: int, path: Path, direct: bool) -> None:
        import torch

        real = kind != "cpu"  # on a processor only the logic is exercised
        self.settle = torch.cuda.synchronize if real else lambda: None
        self.target, self.held = (
            torch.ones(count, dtype=torch.uint8, device=kind) for _ in range(2)
        )
        self.pageable = torch.ones(count, dtype=torch.uint8)
        self.pinned = self.pageable.pin_memory() if real else self.pageable
        room = PIECE_BYTES + mmap.PAGESIZE
        self.pieces = [torch.empty(room, dtype=torch.uint8, pin_memory=real) for _ in range(2)]
        path.write_bytes(self.pageable.numpy().data)
        forget(path)
        self.file = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))

    def copy(self, source: Any, place: int, count: int) -> None:
        """Copy a part of a source, and wait until it is there."""
        part = slice(place * count, (place + 1) * count)
        self.target[part].copy_(source[part], non_blocking=True)
        self.settle()

    def load(self, place: int, count: int) -> None:
        """Read a part of the file to the device, and wait until it is there.

        Through two page-aligned buffers in turn, so that reading and copying overlap.
        """
        import torch

        copied: list[Any] = [None, None]
        for number, start in enumerate(range(place * count, (place + 1) * count, PIECE_BYTES)):
            turn = number % 2
            if copied[turn] is not None:
                copied[turn].synchronize()
            size = min(PIECE_BYTES, (place + 1) * count - start)
            skip = -self.pieces[turn].data_ptr() % mmap.PAGESIZE
            piece = self.pieces[turn][skip : skip + size]
            read_into(self.file, memoryview(piece.numpy()), start)
            self.target[start : start + size].copy_(piece, non_blocking=True)
            if self.target.is_cuda:
                copied[turn] = torch.cuda.Event()
                copied[turn].record()
        self.settle()


def device_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Device copy, host to device from pinned and from pageable memory, disk to device."""
    kind = request.get("device", "cuda")
    for shape in request["shapes"]:
        most = shape["token_bytes"] * shape["tokens"][-1]
        path = Path(request["folder"]) / "device.bin"
        device = Device(kind, most, path, request["direct"])
        sources = (
            ("HBM", "copy", device.held),
            ("host DRAM", "pinned", device.pinned),
            ("host DRAM", "pageable", device.pageable),
        )
        for tokens in shape["tokens"]:
            count = tokens * shape["token_bytes"]
            at = {"shape": shape["name"], "tokens": tokens, "bytes": count, "to": kind}
            for tier, way, source in sources:
                copy = partial(device.copy, source, count=count)
                yield timed(copy, most // count, tier=tier, way=way, **at)
            load = partial(device.load, count=count)
            yield timed(load, most // count, tier="disk", way="direct", **at)
        os.close(device.file)
        path.unlink()


class Backends:
    """LMCache's DRAM and disk backends for the chunks of one shape, without an engine."""

    def __init__(self, shape: dict[str, Any], folder: Path) -> None:
        import asyncio
        import threading

        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        self.folder, self.kind = folder, torch.bfloat16
        layers, heads, width = shape["layers"], shape["kv_heads"], shape["head_dim"]
        self.most = max(shape["tokens"][-1] // CHUNK_TOKENS, 1)
        room = (self.most + 64) * CHUNK_TOKENS * shape["token_bytes"] / (1 << 30)
        settings = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK_TOKENS,
            local_cpu=True,
            max_local_cpu_size=room,
            local_disk=f"file://{folder}",
            max_local_disk_size=2 * room,
            lmcache_instance_id="kvpaper",
        )
        about = LMCacheMetadata(
            model_name=shape["name"],
            kv_dtype=self.kind,
            kv_shape=(layers, 2, CHUNK_TOKENS, heads, width),
            role="worker",
            **dict.fromkeys(("world_size", "local_world_size"), 1),
            **dict.fromkeys(("worker_id", "local_worker_id"), 0),
        )
        self.dram = LocalCPUBackend(settings, about, dst_device="cpu")
        self.disk = LocalDiskBackend(settings, loop, self.dram, dst_device="cpu", metadata=about)
        self.size = torch.Size([2, layers, CHUNK_TOKENS, heads * width])
        self.source = torch.randn(self.size).to(self.kind)
        self.target = torch.zeros((self.most, *self.size), dtype=self.kind)
        chunks = range(self.most)
        self.keys = [CacheEngineKey(shape["name"], 1, 0, chunk, self.kind) for chunk in chunks]

    def store(self) -> None:
        """Put the chunks in DRAM and on disk, and wait until they are there."""
        from lmcache.v1.memory_management import MemoryFormat

        for key in self.keys:
            held = self.dram.allocate(self.size, self.kind, MemoryFormat.KV_2LTD)
            held.tensor.copy_(self.source)
            self.dram.submit_put_task(key, held)
            self.disk.submit_put_task(key, held)
            held.ref_count_down()
        for key in self.keys:
            while not self.disk.contains(key) or self.disk.exists_in_put_tasks(key):
                time.sleep(0.0002)

    def get(self, backend: Any, chunks: int, place: int) -> None:
        """Copy that many chunks out of a backend, those at a place."""
        for number in range(place * chunks, (place + 1) * chunks):
            held = backend.get_blocking(self.keys[number])
            self.target[number].copy_(held.tensor)
            held.ref_count_down()

    def drop(self, chunks: int, place: int) -> None:
        """Have that many chunks on disk and out of the page cache, those at a place."""
        for key in self.keys[place * chunks : (place + 1) * chunks]:
            forget(self.folder / f"{key.to_string().replace('/', '-')}.pt")

    def remove(self) -> None:
        """Forget the chunks in both backends."""
        for key in self.keys:
            self.disk.remove(key)
            self.dram.remove(key)


def lmcache_rows(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fetches of whole prefixes, chunk by chunk by one thread, from LMCache's own backends.

    Raises
    ------
    ValueError
        If a backend gives back other values than it was given.
    """
    import torch

    torch.set_num_threads(1)  # else the wait for the second thread is what is timed
    for shape in request["shapes"]:
        yield from _backend_rows(shape, Path(request["folder"]) / "lmcache")


def _backend_rows(shape: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    both = Backends(shape, folder)
    both.store()
    both.get(both.disk, both.most, 0)  # so that all of it is in the page cache
    for tier, way, backend, dropped in (
        ("LMCache DRAM", "get", both.dram, False),
        ("LMCache disk", "page cache", both.disk, False),
        ("LMCache disk", "page cache dropped", both.disk, True),
    ):
        for tokens in shape["tokens"]:
            if chunks := tokens // CHUNK_TOKENS:
                at = {"tier": tier, "way": way, "shape": shape["name"], "tokens": tokens}
                at |= {"to": "cpu", "bytes": tokens * shape["token_bytes"]}
                get = partial(both.get, backend, chunks)
                drop = partial(both.drop, chunks) if dropped else None
                yield timed(get, both.most // chunks, drop, **at)
    if not (both.target == both.source).all():
        raise ValueError("LMCache gave back other values than it was given")
    both.remove()


def main() -> None:
    """Answer a request, a line for each point as soon as it is taken."""
    drivers = {"lmcache": lmcache_rows, "device": device_rows}
    what, asked, answer = sys.argv[1:]
    request = json.loads(Path(asked).read_text(encoding="utf-8"))
    with Path(answer).open("w", encoding="utf-8") as file:
        for row in drivers[what](request):
            file.write(json.dumps(row) + "\n")
            file.flush()
    sys.stdout.flush()
    os._exit(0)  # LMCache's threads would keep the process


if __name__ == "__main__":
    main()
