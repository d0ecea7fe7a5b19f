"""A headless Chromium, driven over its debugging protocol."""

import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import websocket

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --remote-debugging-port=0 "
    "--remote-allow-origins=*"
)


class Tab:
    """One tab of a browser."""

    def __init__(self, address: str) -> None:
        self.socket = websocket.create_connection(address, timeout=30)
        self.numbers = itertools.count(1)
        self.events: list[dict] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters):
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv())).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def evaluate(self, expression: str):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str):
        """Wait until an expression is true in the page, which may be on its way to another."""
        deadline = time.monotonic() + 20
        while True:
            try:
                if value := self.evaluate(expression):
                    return value
            except AssertionError as error:
                if "navigated" not in str(error):
                    raise
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)

    def emulate(self, scheme: str = "light", medium: str = "screen") -> None:
        # Colours that fade in would be read half way.
        choices = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in choices.items()]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, page: Path, width: int = 1280) -> list[dict]:
        """Open a page and return what happened while it loaded."""
        self.resize(width)
        self.events.clear()
        address = page.as_uri()
        self.call("Page.navigate", url=address)
        self.wait(f"location.href.startsWith('{address}') && document.readyState == 'complete'")
        opened = list(self.events)
        self.events.clear()
        return opened

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind, more in (("keyDown", text), ("keyUp", {})):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **more,
            )


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """A tab of a browser that ends with the block."""
    command = [PROGRAM, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = next(filter(None, (re.search(r"ws://[^:]+:(\d+)/", ln) for ln in browser.stderr)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/json") as answer:
            (target,) = (item for item in json.load(answer) if item["type"] == "page")
        opened = Tab(target["webSocketDebuggerUrl"])
        yield opened
        opened.socket.close()
    finally:
        browser.terminate()
        browser.wait()
        browser.stderr.close()
