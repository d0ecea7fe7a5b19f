import json
import os
import sys
from pathlib import Path

import pytest

from kvpaper.lab import capture, engine, processes

CONFIG = {
    "vocab_size": 1000,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture
def places(tmp_path):
    """Where runs and records of a test go."""
    return {"runs": tmp_path / "runs", "folder": tmp_path / "records"}


@pytest.fixture
def fake_site(tmp_path):
    """A folder for PYTHONPATH in which `vllm` and `lmcache` are the fake engine."""
    site = tmp_path / "site"
    for module in ("vllm/entrypoints/cli/main.py", "lmcache/v1/multiprocess/server.py"):
        path = site / module
        path.parent.mkdir(parents=True)
        code = f"import runpy\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
        path.write_text(code, encoding="utf-8")
    return site


@pytest.fixture
def model(tmp_path):
    """A model folder, as far as the lab looks into it."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(folder)


@pytest.fixture
def fake(fake_site, model, monkeypatch):
    """Settings of a fake engine that behaves in the way asked for."""
    monkeypatch.setattr(capture, "GRACE_S", 1.0)

    def settings(how, **more):
        environment = {"PYTHONPATH": str(fake_site), "FAKE": how, **more.pop("environment", {})}
        chosen = {"start_s": 20, "request_s": 20, **more}
        return engine.Settings(model, sys.executable, environment=environment, **chosen)

    return settings


@pytest.fixture(autouse=True)
def no_process_is_left(tmp_path):
    """After every test, nothing that a run started may live or be a zombie of this process."""
    yield
    states = [json.loads(path.read_text()) for path in tmp_path.glob("runs/canary-20*/run.json")]
    living = processes.everything().values()
    left = [
        one for one in living for state in states if processes.part_of(one.pid, state["marker"])
    ]
    assert left == []
    assert [one for one in living if one.parent == os.getpid() and one.state == "Z"] == []
