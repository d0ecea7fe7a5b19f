"""The built book in a real browser, read from files: for every reader, and nothing fetched."""

from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "book" / "_build" / "paper" / "html"
CHECKS = Path(__file__).with_name("page_checks.js").read_text("utf-8")
PAGES = sorted(path.name for path in HTML.glob("*.html"))
pytestmark = [
    pytest.mark.skipif(not PAGES, reason="the book is not built (make paper)"),
    pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium on this machine"),
]
FAULTY = """<!doctype html><html><title>Faulty</title>
<meta name=viewport content="width=device-width"><body><main style="width: 400px">
<h3 id=a>A heading without those above it</h3>
<p id=a style="color: #999; background: #fff">grey on white</p>
<p style="white-space: nowrap">a line that does not fit a narrow page, whatever is done to it</p>
<div style="overflow: auto; width: 90px"><pre style="width: 300px">not reached</pre></div>
<div style="width: 90px; overflow: hidden" class="equation-box"><pre>a long equation</pre></div>
<a href="#a"></a>
<figure style="background: #000"><img src="missing.svg" width=9 height=9></figure>
</main></body></html>"""


def complaints(events):
    """What the page's scripts threw, and what the browser logged as an error."""
    return [
        event["params"]
        for event in events
        if event["method"] == "Runtime.exceptionThrown"
        or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")
        or (event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] == "error")
    ]


@pytest.mark.parametrize("page", PAGES)
def test_page(tab, page):
    events = tab.open(HTML / page, 360)
    for width in (360, 1280):
        tab.resize(width)
        for scheme in ("dark", "light"):
            tab.emulate(scheme)
            found = tab.evaluate(CHECKS)
            assert {check: list_ for check, list_ in found.items() if list_} == {}, (width, scheme)
    events += tab.events
    assert complaints(events) == []
    requests = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert len(requests) > 1
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_every_check_of_a_page_can_fail(tab, tmp_path):
    (tmp_path / "faulty.html").write_text(FAULTY)
    events = tab.open(tmp_path / "faulty.html", 360)
    assert complaints(events) != []
    assert [check for check, found in tab.evaluate(CHECKS).items() if not found] == []


def ring(tab):
    """Every stop of the keyboard on a page, in order: what it is, and whether it shows.

    A stop shows if it lies in the window and has an outline or a shadow.
    """
    stop = """(() => {
        const element = document.activeElement, style = getComputedStyle(element);
        const box = element.getBoundingClientRect();
        const ring = parseFloat(style.outlineWidth) > 0 && style.outlineStyle != 'none';
        const inside = box.bottom > 0 && box.right > 0 && box.top < innerHeight;
        return {
            what: element.className || element.hash || element.tagName,
            shows: inside && (ring || style.boxShadow != 'none'),
            page: element == document.body || element == document.documentElement,
        };
    })()"""
    for _ in range(200):
        tab.press("Tab")
        found = tab.evaluate(stop)
        if found["page"]:
            return
        yield found
    pytest.fail("the keyboard is caught on the page")


@pytest.mark.parametrize("width", [360, 1280])
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(tab, width):
    tab.open(HTML / "20_recovery.html", width)
    stops = list(ring(tab))
    assert [stop["what"] for stop in stops if not stop["shows"]] == []
    assert stops[0]["what"] == "#main-content"
    reached = " ".join(stop["what"] for stop in stops)
    controls = ["primary-toggle", "theme-switch-button", "search-button", "SUMMARY", "right-next"]
    controls += ["secondary-toggle"] if width < 600 else ["nav-link"]
    assert [control for control in controls if control not in reached] == []


def test_the_skip_link_leads_to_the_text(tab):
    tab.open(HTML / "20_recovery.html")
    tab.press("Tab")
    tab.press("Enter")
    tab.wait("location.hash == '#main-content'")
    tab.press("Tab")
    assert tab.evaluate("!!document.activeElement.closest('main')")


def test_the_contents_open_and_close_by_keyboard_on_a_phone(tab):
    tab.open(HTML / "20_recovery.html", 360)
    assert not tab.evaluate("!!document.querySelector('dialog[open]')")
    tab.evaluate("document.querySelector('.primary-toggle').focus()")
    tab.press("Enter")
    tab.wait("[...document.querySelectorAll('dialog[open] a.reference')].length > 5")
    tab.press("Escape")
    tab.wait("!document.querySelector('dialog[open]')")


def test_search_finds_a_term(tab):
    tab.open(HTML / "index.html")
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
    tab.open(HTML / "nomenclature.html")
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
