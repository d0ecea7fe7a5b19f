"""The built book in a real browser, read from files: nothing is fetched, nothing overflows."""

import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import websocket

HTML = Path(__file__).resolve().parents[2] / "book" / "_build" / "paper" / "html"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PAGES = sorted(path.name for path in HTML.glob("*.html"))
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --remote-debugging-port=0 "
    "--remote-allow-origins=*"
)
pytestmark = [
    pytest.mark.skipif(not PAGES, reason="the book is not built (make paper)"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]


class Tab:
    """One tab of a browser, driven by its debugging protocol."""

    def __init__(self, address):
        self.socket = websocket.create_connection(address, timeout=30)
        self.numbers = itertools.count(1)
        self.events = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv())).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + 20
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.05)
        return value

    def open(self, page, width=1280):
        """Open a page of the book and return what happened while it loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events.clear()
        address = (HTML / page).as_uri()
        self.call("Page.navigate", url=address)
        self.wait(f"location.href.startsWith('{address}') && document.readyState == 'complete'")
        return list(self.events)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    profile = tmp_path_factory.mktemp("profile")
    command = [BROWSER, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = next(filter(None, (re.search(r"ws://[^:]+:(\d+)/", ln) for ln in browser.stderr)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/json") as answer:
            (target,) = (item for item in json.load(answer) if item["type"] == "page")
        tab = Tab(target["webSocketDebuggerUrl"])
        yield tab
        tab.socket.close()
    finally:
        browser.terminate()
        browser.wait()
        browser.stderr.close()


@pytest.mark.parametrize("page", PAGES)
def test_page(tab, page):
    events = tab.open(page, width=360)
    requests = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert len(requests) > 1
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []

    complaints = [
        event["params"]
        for event in events
        if event["method"] == "Runtime.exceptionThrown"
        or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
        or (event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] == "error")
    ]
    assert complaints == []

    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    too_wide = """[...document.querySelectorAll('.bd-article > section, .bd-article p')]
        .filter(element => !element.closest('table, .equation-box'))
        .filter(element => element.getBoundingClientRect().right > 360)
        .map(element => element.textContent.slice(0, 60))"""
    assert tab.evaluate(too_wide) == []
    cut = """[...document.querySelectorAll('.equation-box, :has(> table.stacking)')]
        .filter(box => box.scrollWidth > box.clientWidth + 1)
        .map(box => box.textContent.slice(0, 60))"""
    assert tab.evaluate(cut) == []
    silent = "[...document.images].filter(image => !image.alt.trim()).map(image => image.src)"
    assert tab.evaluate(silent) == []
    broken = "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
    assert tab.evaluate(broken) == []


def test_search_finds_a_term(tab):
    tab.open("index.html")
    tab.wait("!!document.querySelector('form.bd-search input[name=q]')")
    tab.evaluate(
        """(() => {
            const form = document.querySelector('form.bd-search');
            form.querySelector('input[name=q]').value = 'prefetch';
            form.requestSubmit();
        })()"""
    )
    tab.wait(
        "[...document.querySelectorAll('#search-results li a')]"
        ".some(link => link.href.includes('glossary.html'))"
    )


def test_equations_are_drawn_in_the_font_of_the_book(tab):
    tab.open("nomenclature.html")
    tab.call("DOM.enable")
    tab.call("CSS.enable")
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    nodes = tab.call("DOM.querySelectorAll", nodeId=root, selector="td math")["nodeIds"]
    assert len(nodes) > 20
    fonts = {
        (font["familyName"], font["isCustomFont"])
        for node in nodes[:40]
        for font in tab.call("CSS.getPlatformFontsForNode", nodeId=node)["fonts"]
    }
    assert fonts == {("Latin Modern Math", True)}
