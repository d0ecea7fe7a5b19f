"""Stands in for `vllm serve` and for LMCache's server: healthy, or dying in the way asked for.

The way is in the environment variable FAKE. It needs the standard library alone, as it runs in the
place of an engine's environment, and it writes as the engine does: through the logging
configuration that the harness gave, and on both standard streams.
"""

import json
import logging
import logging.config
import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

HOW = os.environ.get("FAKE", "healthy")
TOKEN = "hf_" + "aB3" * 11
SMALL = (
    "ValueError: To serve at least one request with the model's max seq len (4096), (0.03 GiB KV"
)
SMALL += " cache is needed, which is larger than the available KV cache memory (0.02 GiB)."
OUTER = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
NO_HANDLER = "[2026-01-01 00:00:00,000] LMCache ERROR: No handler registered for operation "
NO_HANDLER += "register_kv_cache_engine_driven_context (mq.py:800:lmcache.v1.multiprocess.mq)"
log = logging.getLogger("vllm.fake")


def configure(name):
    multiprocessing.current_process().name = name
    with open(os.environ["VLLM_LOGGING_CONFIG_PATH"], encoding="utf-8") as file:
        logging.config.dictConfig(json.load(file))


def child(name, work):
    """Fork a process of this name that does the work and ends."""
    pid = os.fork()
    if pid == 0:
        configure(name)
        code = work()
        sys.stdout.flush()
        os._exit(code or 0)
    return pid


def fail(name):
    log.error("%s failed to start.\nTraceback (most recent call last):\n%s", name, SMALL)
    print(f"({name} pid={os.getpid()}) {SMALL}", file=sys.stderr)
    return 1


def outer_death(pid):
    os.waitpid(pid, 0)
    print(f"(APIServer pid={os.getpid()}) {OUTER}", file=sys.stderr)
    sys.exit(1)


def child_dies():
    outer_death(child("EngineCore", lambda: fail("EngineCore")))


def grandchild_dies():
    def core():
        os.waitpid(child("VllmWorker-0", lambda: fail("VllmWorker-0")), 0)
        return 1

    outer_death(child("EngineCore", core))


def killed_grandchild():
    """A worker is killed and nobody notices: the others wait for ever."""

    def worker():
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    child("EngineCore", lambda: (child("VllmWorker-0", worker), time.sleep(600)))
    serve()


def killed():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def hang_at_start():
    time.sleep(600)


def flood():
    size, line = int(os.environ["FAKE_BYTES"]), b"x" * 63 + b"\n"
    print("the first line", flush=True)
    for _ in range(size >> 20):
        os.write(2, line * (1 << 14))
    print("the last line", flush=True)
    sys.exit(1)


def secrets():
    log.info("token %s", TOKEN)
    print(f"using {TOKEN}", flush=True)
    os.write(1, f"split {TOKEN[:9]}".encode())
    time.sleep(0.3)
    os.write(1, f"{TOKEN[9:]}\n".encode())
    os.write(1, b"y" * 70_000 + b" " + TOKEN.encode() + b" " + b"z" * 70_000 + b"\n")
    print("password is", os.environ.get("MY_PASSWORD", ""), flush=True)
    os.write(2, f"no end {TOKEN}".encode())
    os.kill(os.getpid(), signal.SIGABRT)


def deaf():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(os.environ["FAKE_SHARED"], "wb+") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            serve()


def leaves_a_session():
    """A daemon as daemons are made: twice forked, in a session of its own, its parent gone."""

    def daemon():
        os.setsid()
        child("daemon", lambda: time.sleep(600))

    os.waitpid(child("middle", daemon), 0)
    serve()


def serve():
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler)
    signal_to_stop = threading.Thread(target=server.serve_forever, daemon=True)
    signal_to_stop.start()
    log.info("Starting vLLM server on http://127.0.0.1:%s", option("--port"))
    try:
        signal_to_stop.join()
    except KeyboardInterrupt:
        print("(APIServer pid=1) INFO:     Application shutdown complete.", flush=True)


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    """Health, streamed completions with a prefix cache and a connector's, counters, reset."""

    protocol_version = "HTTP/1.1"
    local: ClassVar[set] = set()
    behind: ClassVar[set] = set()
    hits: ClassVar[dict] = {"prefix_cache": 0, "external_prefix_cache": 0}
    connected = "--kv-transfer-config" in sys.argv and HOW != "degraded"

    def log_message(self, *_):
        pass

    def answer(self, text="", status=200):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/metrics":
            lines = [f'vllm:{name}_hits_total{{engine="0"}} {n}' for name, n in self.hits.items()]
            lines.append('vllm:cache_config_info{block_size="128",num_gpu_blocks="24"} 1.0')
            self.answer("# HELP\n" + "\n".join(lines) + "\n")
        else:
            self.answer(status=200 if self.path == "/health" else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        if self.path == "/reset_prefix_cache":
            self.local.clear()
            self.answer()
        elif HOW == "hang_in_request":
            time.sleep(600)
        elif HOW == "die_in_request":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif HOW == "refuses":
            self.answer('{"error": "too long"}', 400)
        else:
            self.complete(body)

    def complete(self, body):
        key, size = tuple(body["prompt"]), len(body["prompt"])
        cached = 0
        if key in self.local:
            cached = size // 128 * 128
            self.hits["prefix_cache"] += cached
        elif self.connected and key in self.behind:
            cached = size - 1
            self.hits["external_prefix_cache"] += cached
        self.local.add(key)
        self.behind.add(key)
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(body["max_tokens"]):
            time.sleep(0.01)
            told = {"token_ids": [number], "text": "t"}
            if body.get("logprobs") is not None:
                told["logprobs"] = {"token_logprobs": [-0.5], "top_logprobs": [{"t": -0.5}]}
            self.event({"choices": [told]})
            if HOW == "die_in_stream":
                os.kill(os.getpid(), signal.SIGSEGV)
                time.sleep(600)
            if HOW == "nonsense":
                self.wfile.write(b"data: {nonsense\n\n")
        details = {"cached_tokens": cached}
        self.event(
            {"choices": [], "usage": {"prompt_tokens": size, "prompt_tokens_details": details}}
        )
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, value):
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())
        self.wfile.flush()


def lmcache_server():
    """The other program: it listens, and in the wrong mode it says so, there and nowhere else."""
    import socket

    with socket.create_server(("127.0.0.1", int(option("--port")))):
        if option("--supported-transfer-mode") != "auto":
            time.sleep(1)
            print(NO_HANDLER, flush=True)
        if HOW == "killed_connector":
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


WAYS = {
    "child_dies": child_dies,
    "grandchild_dies": grandchild_dies,
    "killed": killed,
    "killed_grandchild": killed_grandchild,
    "hang_at_start": hang_at_start,
    "flood": flood,
    "secrets": secrets,
    "deaf": deaf,
    "leaves_a_session": leaves_a_session,
}

if __name__ == "__main__":
    configure("MainProcess")
    if "--supported-transfer-mode" in sys.argv:
        lmcache_server()
    else:
        WAYS.get(HOW, serve)()
