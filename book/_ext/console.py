"""The ``console`` directive: commands of kvpaper with what they print, run while the book is built.

Each line of its content is one command, ``kvpaper ...``, run in the folder of the repository, so
that a page shows what a reader will see. A command that fails is a warning.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

_LOGGER = logging.getLogger(__name__)
LIMIT_S = 600


def printed(command: str, folder: Path) -> str:
    """What a command prints.

    >>> printed("kvpaper --help", Path()).split()[:2]
    ['usage:', 'kvpaper']

    Raises
    ------
    ValueError
        If it is no command of kvpaper, or fails.
    """
    program, *arguments = shlex.split(command)
    if program != "kvpaper":
        raise ValueError(f"found {program}, expected kvpaper")
    done = subprocess.run(
        [sys.executable, "-m", "kvpaper", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        raise ValueError(f"exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout.rstrip()


class Console(SphinxDirective):
    """Commands and what they print."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        root = Path(self.config.kvpaper_data).resolve().parent
        shown = []
        for command in self.content:
            try:
                output = printed(command, root)
            except (ValueError, subprocess.TimeoutExpired) as error:
                _LOGGER.warning("%s: %s", command, error, location=self.get_location())
                output = ""
            shown.append(f"$ {command}\n{output}".rstrip())
        text = "\n\n".join(shown)
        return [nodes.literal_block(text, text, language="console")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("console", Console)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
