"""The 2x2 without an engine: a stand-in with a prefix cache, a cap and a connector."""

import json
import sys

import pytest

from kvpaper import cli, measured
from kvpaper.lab import engine, factorial, records

# Of log-probabilities in float32: rounding gives 1e-6, one other token among 1,024 about 1e-3.
TOLERANCE = 1e-4


class Server:
    """An engine with a cache of a few prompts; its log-probabilities are those of the prompt."""

    def __init__(self, run, settings, connector):
        self.run, self.settings, self.connected = run, settings, connector != "none"
        self.own, self.behind, self.spoiled = [], {}, None
        self.room = (settings.cap_blocks or 1000) * 128 // factorial.TOKENS

    def complete(self, ids, tokens=1, logprobs=None):
        key, size = tuple(ids), len(ids)
        cached, right = 0, True
        if key in self.own:
            self.own.remove(key)
            cached = size - 128
        elif key in self.behind:
            cached, right = size - 1, self.spoiled is None or not self.spoiled.stat().st_size
        self.own = [*self.own, key][-self.room :]
        if self.connected:
            self.behind[key] = True
        value = -float(sum(ids) % 97) - 3 * (not right)
        return engine.Completion(0.0, (0.1,), cached, ({"t1": value, "t2": value - 1},))

    def reset_prefix_cache(self):
        self.own = []

    def counters(self):
        return {"vllm:prefix_cache_hits_total": 1.0}

    overflow = engine.Engine.overflow

    def stop(self):
        pass


@pytest.fixture
def stand_in(monkeypatch, model):
    def start(run, settings, connector="none", disk=None, **_):
        if settings.cap_blocks == factorial.CAPS["too small"]:
            raise factorial.Stopped("engine ended with exit code 1")
        server = Server(run, settings, connector)
        if disk:
            server.spoiled = disk / "chunk.data"
            server.spoiled.write_bytes(b"")
            monkeypatch.setattr(factorial, "spoil", lambda path: path.write_bytes(b"spoiled") and 7)
        return server

    monkeypatch.setattr(engine, "start", start)
    monkeypatch.setattr(engine, "EVICTION_S", 0)
    return engine.Settings(model, sys.executable, kv_cache_bytes=1 << 20)


def cached(record):
    return {
        row["stage"]: row["values"] for row in record["rows"] if row["quantity"] == "cached_tokens"
    }


def test_the_cells_tell_cap_and_connector_apart(stand_in, places):
    found = {
        (one["parameters"]["cap"], one["parameters"]["connector"]): one
        for one in factorial.run_cells(stand_in, **places)
    }
    assert len(found) == 7
    assert [cached(found["fits", "none"])[stage] for stage in ("repeat", "evicted", "reset")] == [
        [896, 896],
        [0, 0],
        [0, 0],
    ]
    assert cached(found["fits", "lmcache"])["evicted"] == [1023, 1023]
    assert cached(found["none", "none"])["evicted"] == [896, 896]
    for connector in factorial.CONNECTORS:
        assert found["too small", connector]["outcome"] == "failed"
    for path in places["folder"].iterdir():
        records.Record.model_validate(json.loads(path.read_text()))


def test_a_spoiled_cache_is_seen_and_a_whole_one_is_equal(stand_in, places):
    found = factorial.run_cells(stand_in, **places)
    rows = measured.agreement(found)
    worst = {(row["cell"], row["stage"]): row["value"] for row in rows}
    assert worst["none, spoiled", "disk"] < TOLERANCE
    assert worst["none, spoiled", "spoiled disk"] > TOLERANCE
    assert worst["fits, lmcache", "evicted"] < TOLERANCE
    assert worst["none, none", "one token differs"] > TOLERANCE


def test_a_control_to_which_nothing_came_back_controls_nothing(stand_in, places, monkeypatch):
    monkeypatch.setattr(Server, "connected", property(lambda _: False, lambda *_: None), False)
    (record,) = factorial.run_cells(stand_in, [("none", "spoiled")], **places)
    assert record["outcome"] == "failed"
    assert "nothing came from LMCache's disk" in record["cause"]["harness"]


def test_an_interrupted_call_goes_on_with_the_cells_that_are_left(stand_in, places, monkeypatch):
    real, asked = factorial._stages, []

    def interrupted(server):
        asked.append(server.run.record["parameters"]["cap"])
        if len(asked) == 3:
            raise KeyboardInterrupt
        real(server)

    chosen = [("none", "none"), ("none", "lmcache"), ("fits", "none"), ("fits", "lmcache")]
    monkeypatch.setattr(factorial, "_stages", interrupted)
    with pytest.raises(KeyboardInterrupt):
        factorial.run_cells(stand_in, chosen, **places)
    found = factorial.run_cells(stand_in, chosen, resume=True, **places)
    assert asked == ["none", "none", "fits", "fits", "fits"]
    assert [one["outcome"] for one in found] == ["completed"] * 4


def test_bits_are_flipped_in_place_and_back(tmp_path):
    path = tmp_path / "chunk"
    path.write_bytes(bytes(range(40)))
    assert factorial.spoil(path) == 20
    spoiled = path.read_bytes()
    assert spoiled[:20] == bytes(range(20))
    assert spoiled[20:24] == bytes([20, 21, 22, 23 ^ 0x80])
    factorial.spoil(path)
    assert path.read_bytes() == bytes(range(40))


def test_an_unknown_cell_is_one_line(model, capsys):
    assert cli.main(["measure", "factorial", "--model", model, "--cells", "none/both"]) == 2
    assert "expected one of none/none" in capsys.readouterr().err
