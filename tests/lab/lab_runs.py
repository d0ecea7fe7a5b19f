"""A harness to be interrupted: run as a program it starts a fake engine and waits. And helpers."""

import json
import os
import resource
import sys
from pathlib import Path

HARNESS = Path(__file__)


def record_of(run):
    """The record that a run wrote, which must be valid."""
    from kvpaper.lab import records

    record = json.loads(run.record_path.read_text(encoding="utf-8"))
    records.Record.model_validate(record)
    return record


def text_of(run, name):
    return (run.path / name).read_text(encoding="utf-8")


def main(folder, limited):
    from kvpaper.lab import capture

    if limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    fake = str(Path(__file__).with_name("fake_engine.py"))
    how = "flood" if limited else "leaves_a_session"
    with capture.Run("canary", {}, runs=folder / "runs", folder=folder / "records") as run:
        run.add("x_s", "s", [0.5])
        (run.scratch(folder) / "cache").write_bytes(bytes(9))
        started = run.start(
            "engine",
            [sys.executable, fake, "--port", "0"],
            {"FAKE": how, "FAKE_BYTES": str(1 << 20)},
        )
        log = run.path / "engine.log"
        if not limited:
            run.wait_until(lambda: "Starting" in log.read_text(), 20, "the engine")
            # Seen by then: what the engine left in a session of its own.
            run.wait_until(lambda: len(_seen(run)) == 2, 20, "its daemon")
            print("ready", flush=True)
        run.wait_until(lambda: started.exit_code is not None, 20, "the end")
        run.check()


def _seen(run):
    from kvpaper.lab import processes

    marker = run.variables()[processes.MARKER].partition(":")[0]
    return [pid for pid in processes.everything() if processes.part_of(pid, marker)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["limited"])
    sys.exit(os.EX_OK)
