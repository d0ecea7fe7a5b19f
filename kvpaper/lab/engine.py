"""A real engine and the server of its KV connector: command lines, requests, counters.

Everything here goes through a `capture.Run`, so that a death or a hang ends the run and not the
harness.
"""

import http.client
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from kvpaper import units
from kvpaper.errors import InputError
from kvpaper.lab.capture import Run, Stopped
from kvpaper.lab.watch import Started

HOST = "127.0.0.1"
CONNECTORS = ("none", "lmcache", "lmcache-in-process")
EVICTION_S = 3.0  # LMCache makes room once a second; a fetch that finds none is recomputed
_DIGEST = re.compile(r"[\w./:-]+@sha256:[0-9a-f]{64}")
_PORTS = range(21000, 30000)  # below those that the system gives away by itself
_SAMPLE = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
HITS = "vllm:external_prefix_cache_hits_total"
COUNTERS = (
    HITS,
    "vllm:external_prefix_cache_queries_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:nixl_bytes_transferred_sum",
    "vllm:nixl_xfer_time_seconds_sum",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:num_preemptions_total",
)
_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "PYTHONHASHSEED": "0",  # cache keys agree between processes only so
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": HOST,
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for the reset of the prefix cache
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine is started; the defaults suit a processor with two cores.

    Attributes
    ----------
    model : str
        Folder of a model, see `weights.model`.
    python : str
        Interpreter of the engine's environment.
    image : str, optional
        A container image by digest, used instead of that environment.
    memory_utilization : float
        Share of memory that the engine may plan with; a processor's default of .92 kills it.
    cap_blocks : int, optional
        Upper limit of KV blocks (``--num-gpu-blocks-override``).
    kv_cache_bytes : int, optional
        Size of the KV cache, instead of what ``memory_utilization`` leaves for it.
    arguments : tuple of str
        Further arguments of ``vllm serve``.
    environment : mapping
        Further variables.
    start_s, request_s : float
        Deadlines of the start and of one request.

    Raises
    ------
    InputError
        If the image is not named by its digest.
    """

    model: str
    python: str = ".engine/bin/python"
    image: str | None = None
    dtype: str = "float32"
    max_tokens: int = 4096
    max_sequences: int = 8
    memory_utilization: float = 0.1
    cap_blocks: int | None = None
    kv_cache_bytes: int | None = None
    threads: int = 2
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 600
    request_s: float = 120

    def __post_init__(self) -> None:
        if self.image is not None and not _DIGEST.fullmatch(self.image):
            raise InputError("--image", self.image, "an image by digest, NAME@sha256:...")

    def variables(self) -> dict[str, str]:
        """Environment of engine and connector server."""
        return {**_ENVIRONMENT, "OMP_NUM_THREADS": str(self.threads), **self.environment}

    def prompt(self, tokens: int, seed: int) -> list[int]:
        """Random token ids, the same for the same seed; special tokens (below 10) left out."""
        return random.Random(seed).choices(range(10, vocabulary(self.model)), k=tokens)


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer; times are seconds after the request was sent.

    Attributes
    ----------
    sent_at_s : float
        Moment of sending on the clock of `time.perf_counter`.
    token_s : tuple of float
        Arrival of each output token.
    cached_tokens : int
        Prompt tokens that the engine did not compute, by any tier.
    top_logprobs : tuple of mapping
        At each position, likeliest tokens to log-probabilities, if they were asked for.
    """

    sent_at_s: float
    token_s: tuple[float, ...]
    cached_tokens: int
    top_logprobs: tuple[Mapping[str, float], ...] = ()

    @property
    def ttft_s(self) -> float:
        """Time to first token [s]."""
        return self.token_s[0]

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first [s]."""
        return (self.token_s[-1] - self.token_s[0]) / max(len(self.token_s) - 1, 1)


def free_port() -> int:
    """A port that nobody listens on."""
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise InputError("port", "none free", f"one of {_PORTS.start} to {_PORTS.stop}")


def vocabulary(model: str) -> int:
    """Number of token ids of a model folder.

    Raises
    ------
    InputError
        If it is no model folder.
    """
    path = Path(model) / "config.json"
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["vocab_size"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(str(path), type(error).__name__, "a model's configuration") from None


def kv_bytes_per_token(settings: Settings) -> int:
    """Cache of one token of a model with full attention [bytes], from its configuration."""
    config = json.loads((Path(settings.model) / "config.json").read_text(encoding="utf-8"))
    elements = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    return elements * (4 if settings.dtype == "float32" else 2)


def serve_command(settings: Settings, port: int, kv: Mapping[str, Any] | None = None) -> list[str]:
    """Command line of ``vllm serve``; ``kv`` is its KV transfer configuration."""
    command = ["-m", "vllm.entrypoints.cli.main", "serve", settings.model]
    command += ["--host", HOST, "--port", str(port), "--dtype", settings.dtype]
    command += ["--max-model-len", str(settings.max_tokens)]
    command += ["--max-num-seqs", str(settings.max_sequences)]
    command += ["--gpu-memory-utilization", str(settings.memory_utilization)]
    command += ["--enforce-eager", "--enable-prompt-tokens-details"]
    if settings.cap_blocks is not None:
        command += ["--num-gpu-blocks-override", str(settings.cap_blocks)]
    if settings.kv_cache_bytes is not None:
        command += ["--kv-cache-memory-bytes", str(settings.kv_cache_bytes)]
    if kv:
        command += ["--kv-transfer-config", json.dumps(kv)]
    return [*command, *settings.arguments]


def lmcache_command(port: int, l1_bytes: int, mode: str, disk: Path | None) -> list[str]:
    """Command line of the LMCache server; ``disk`` is the folder of its second tier."""
    gib = f"{units.per(l1_bytes, 'GiB'):g}"
    command = ["-m", "lmcache.v1.multiprocess.server", "--host", HOST, "--port", str(port)]
    command += ["--chunk-size", "256", "--hash-algorithm", "blake3"]
    command += ["--l1-size-gb", gib, "--eviction-policy", "LRU"]
    command += ["--max-workers", "1", "--disable-metrics", "--disable-observability"]
    command += ["--supported-transfer-mode", mode]
    if disk:
        # Past the page cache, which would be measured instead.
        adapter = {"type": "fs", "base_path": str(disk.resolve()), "use_odirect": True}
        command += ["--l2-adapter", json.dumps(adapter)]
    return command


def interpreter(settings: Settings, run: Run) -> list[str]:
    """What runs Python code in the engine's environment: an interpreter or a container."""
    if settings.image is None:
        return [settings.python]
    passed = {**settings.variables(), **run.variables()}
    shown = [str(run.path.resolve()), str(Path(settings.model).resolve()), passed["TMPDIR"]]
    command = ["docker", "run", "--rm", "--init", "--network=host", "--ipc=host"]
    command += [f"--volume={folder}:{folder}" for folder in shown]
    command += [f"--env={name}" for name in passed]
    return [*command, "--entrypoint=python3", settings.image]


def start_lmcache(
    run: Run,
    settings: Settings,
    l1_bytes: int = 1 << 30,
    mode: str = "auto",
    disk: Path | None = None,
) -> dict[str, Any]:
    """Start the LMCache server and return the engine's KV transfer configuration for it.

    Parameters
    ----------
    l1_bytes : int
        Size of its DRAM tier; one too small makes fetches fall back to recomputing.
    mode : str
        ``auto`` works on a processor; the server's own default, ``lmcache_driven``, hangs there.
    disk : Path, optional
        Folder of a disk tier below.
    """
    port = free_port()
    command = lmcache_command(port, l1_bytes, mode, disk)
    run.start("lmcache", [*interpreter(settings, run), *command], settings.variables())
    run.wait_until(lambda: _listens(port), settings.start_s, "the LMCache server to listen")
    extra = {"lmcache.mp.host": f"tcp://{HOST}", "lmcache.mp.port": port}
    kv = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
    return {**kv, "kv_connector_extra_config": extra}


def launch(
    run: Run, settings: Settings, kv: Mapping[str, Any] | None = None, name: str = "engine"
) -> "Engine":
    """Start ``vllm serve`` and do not wait for it, see `Engine.wait`."""
    port = free_port()
    command = [*interpreter(settings, run), *serve_command(settings, port, kv)]
    launched_s = time.perf_counter()
    started = run.start(name, command, settings.variables())
    return Engine(run, started, port, settings, launched_s)


def start(run: Run, settings: Settings, connector: str = "none", **lmcache: Any) -> "Engine":
    """Start the connector's server if it has one, then the engine; prove that both work together.

    Parameters
    ----------
    connector : str
        One of `CONNECTORS`.
    lmcache
        Arguments of `start_lmcache`.
    """
    kv = None
    if connector == "lmcache":
        kv = start_lmcache(run, settings, **lmcache)
    elif connector == "lmcache-in-process":
        kv = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    elif connector != "none":
        raise InputError("connector", repr(connector), f"one of {', '.join(CONNECTORS)}")
    server = launch(run, settings, kv)
    server.wait()
    if kv:
        run.add("proof_hit_tokens", "tokens", [server.prove_active()])
    return server


def _read_text(answer: http.client.HTTPResponse, _: float) -> tuple[int, str]:
    return answer.status, answer.read().decode("utf-8", "replace")


def _read_stream(answer: http.client.HTTPResponse, sent_at_s: float) -> Completion:
    if answer.status != 200:
        said = answer.read(300).decode("utf-8", "replace")
        raise Stopped(f"the engine answered {answer.status}: {said}")
    token_s: list[float] = []
    top_logprobs: list[Mapping[str, float]] = []
    usage: dict[str, Any] = {}
    for line in answer:
        now_s = time.perf_counter() - sent_at_s
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise Stopped(f"the engine answered: {json.dumps(event['error'])[:300]}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            token_s += [now_s] * len(choice.get("token_ids") or ())
            top_logprobs += (choice.get("logprobs") or {}).get("top_logprobs") or []
    if not token_s or not usage:
        raise Stopped("the engine's answer ended early")
    return Completion(sent_at_s, tuple(token_s), cached_tokens(usage), tuple(top_logprobs))


@dataclass(slots=True)
class Engine:
    """A running engine."""

    run: Run
    started: Started
    port: int
    settings: Settings
    launched_s: float = 0.0

    def wait(self) -> None:
        """Wait until it answers.

        Raises
        ------
        Stopped
            If it dies or does not answer in time.
        """
        name = self.started.name
        self.run.wait_until(self.healthy, self.settings.start_s, f"{name} to answer")
        taken_s = time.perf_counter() - self.launched_s
        self.run.add("start_s", "s", [taken_s], process=name)
        found = self.run.record["software"].setdefault("engine", {})
        found.setdefault("configuration", {})[name] = self.configuration()
        self.run.say(f"{name} answers after {taken_s:.0f} s")

    def healthy(self) -> bool:
        """Whether it answers that it is up."""
        with suppress(OSError, http.client.HTTPException):
            return self._ask("GET", "/health", None, 2)[0] == 200
        return False

    def complete(
        self,
        prompt: Sequence[int],
        tokens: int = 1,
        logprobs: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Send token ids, read the answer as it comes.

        Parameters
        ----------
        prompt : sequence of int
        tokens : int
            Output tokens, all of them made (the end token is ignored).
        logprobs : int, optional
            How many of the likeliest tokens to report at each position.
        extra : mapping, optional
            Further keys of the request.

        Raises
        ------
        Stopped
            If the engine dies, refuses, or does not answer in time.
        """
        body = {
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({} if logprobs is None else {"logprobs": logprobs}),
            **(extra or {}),
        }
        deadline_s = self.settings.request_s
        ask = partial(self._ask, "POST", "/v1/completions", body, deadline_s, _read_stream)
        return self.run.guarded(ask, deadline_s, f"an answer to {len(body['prompt'])} tokens")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Post JSON and return the JSON of the answer, empty if there is none."""
        deadline_s = self.settings.request_s

        def ask() -> dict[str, Any]:
            status, answer = self._ask("POST", path, body or {}, deadline_s)
            if status != 200:
                raise Stopped(f"{path} answered {status}: {answer[:300]}")
            return json.loads(answer) if answer.strip() else {}

        return self.run.guarded(ask, deadline_s, f"an answer of {path}")

    def reset_prefix_cache(self) -> None:
        """Forget the engine's own prefixes; those of a connector stay."""
        self.post("/reset_prefix_cache")

    def overflow(self, l1_bytes: int, seed: int) -> None:
        """Send other prompts until LMCache's DRAM of this size can hold nothing older."""
        tokens = self.settings.max_tokens - 1
        count = 3 * l1_bytes // (2 * kv_bytes_per_token(self.settings) * tokens) + 1
        for number in range(count):
            self.complete(self.settings.prompt(tokens, seed + number))
        time.sleep(EVICTION_S)
        self.run.say(f"{count} other prompts have gone through LMCache's DRAM")

    def counters(self) -> Counter[str]:
        """The `COUNTERS` that ``/metrics`` tells, by name, summed over their labels."""
        totals: Counter[str] = Counter()
        for name, _, value in self._samples():
            if name in COUNTERS:
                totals[name] += value
        return totals

    def configuration(self) -> dict[str, str]:
        """The cache configuration in effect, as ``/metrics`` tells it."""
        samples = self._samples()
        return next((labels for name, labels, _ in samples if "cache_config_info" in name), {})

    def prove_active(self, tokens: int = 1024, seed: int = 1) -> float:
        """Show by the counters that prefixes come back through the connector.

        Returns
        -------
        float
            Prompt tokens that came by the connector.

        Raises
        ------
        Stopped
            With cause ``degraded`` if none came: the server is up, the connector is not active.
        """
        ids = self.settings.prompt(tokens, seed)
        before = self.counters()[HITS]
        self.complete(ids)
        for _ in range(3):  # saving may go on after the answer
            time.sleep(0.5)
            self.reset_prefix_cache()
            self.complete(ids)
            hits = self.counters()[HITS] - before
            if hits > 0:
                return hits
        why = f"{HITS} did not grow: the server is up and its connector is not active"
        raise Stopped(why, degraded=True)

    def stop(self) -> None:
        """Stop it and all that it started."""
        self.run.stop(self.started)

    def _samples(self) -> list[tuple[str, dict[str, str], float]]:
        ask = partial(self._ask, "GET", "/metrics", None, 30)
        _, text = self.run.guarded(ask, 30, "an answer of /metrics")
        self.run.keep(f"{self.started.name}.metrics", text)
        found = (_SAMPLE.match(line) for line in text.splitlines())
        return [
            (one["name"], dict(_LABEL.findall(one["labels"] or "")), float(one["value"]))
            for one in found
            if one and not one["name"].endswith(("_bucket", "_created"))
        ]

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        read: Callable[[http.client.HTTPResponse, float], Any] = _read_text,
    ) -> Any:
        """What ``read`` makes of an answer and of the moment of asking, by `perf_counter`."""
        text = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        with closing(connection):
            connection.connect()
            sent_at_s = time.perf_counter()
            connection.request(method, path, text, {"Content-Type": "application/json"})
            with connection.getresponse() as answer:
                return read(answer, sent_at_s)


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """Prompt tokens that were not computed, as an answer's ``usage`` tells."""
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def add_logprobs(run: Run, top: Mapping[str, float], **at: Any) -> None:
    """Add a row of log-probabilities; their tokens, in the same order, are a coordinate."""
    tokens = sorted(top)
    run.add("logprob", "", [top[token] for token in tokens], tokens=" ".join(tokens), **at)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
