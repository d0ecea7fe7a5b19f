"""Print the book of one scenario into one file: ``python book/pdf.py SCENARIO``.

All pages are rendered as one, so that chapters, figures and equations keep the numbers that they
have in the book, and a headless Chromium prints it by the print rules of the style sheet.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import assemble

from kvpaper.errors import InputError

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
LIMIT_S = 300


def browser() -> str:
    """Path of the browser that prints.

    Raises
    ------
    InputError
        If there is none; it says what to install.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        expected = "one of them (apt install chromium, or brew install --cask chromium)"
        raise InputError("pdf", "neither Chromium nor Chrome", expected)
    return found


def build(scenario: str) -> Path:
    """Build the PDF of a scenario's book and return its path.

    Raises
    ------
    InputError
        If a notebook or the browser is missing.
    subprocess.CalledProcessError
        If jupyter-book or the browser fails; its output is in the error.
    subprocess.TimeoutExpired
        If the browser does not finish.
    """
    program = browser()
    page = assemble.render(scenario, "singlehtml") / "index.html"
    work = page.parents[2]
    printed = work / "printed.pdf"
    print_page(program, page, printed, work / "profile")
    target = work.parent / f"{scenario}.pdf"
    os.replace(printed, target)
    shutil.rmtree(work)
    return target


def print_page(program: str, page: Path, target: Path, profile: Path) -> None:
    """Print one page with its outline, in a profile of its own."""
    # The sandbox starts neither for root nor in most containers, and the page is our own.
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += [f"--user-data-dir={profile}", "--generate-pdf-document-outline"]
    command += ["--no-pdf-header-footer", f"--print-to-pdf={target}", page.as_uri()]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    if done.returncode or not target.is_file():
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)


def main(arguments: list[str]) -> int:
    return assemble.main(arguments, build, "pdf")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
