"""Rows of the chapter: those of the public traces, and those of the trace that a scenario names."""

from pathlib import Path

import pandas

from kvpaper import results
from kvpaper.errors import InputError
from kvpaper.reuse.rows import reuse_rows
from kvpaper.traces import fetch, generated
from kvpaper.traces.load import read_trace

PUBLIC = "public"
STEM = "50_reuse"


def public() -> pandas.DataFrame:
    """Derived curves of the public traces, as committed with the checksums of their inputs."""
    return results.read(PUBLIC, STEM)


def of_scenario(trace: str | None, where: str = "workload.trace") -> pandas.DataFrame:
    """Rows of the named trace: a public one, a file or folder of logs, or a generated one.

    Raises
    ------
    InputError
        If the name is neither a public trace nor a path.
    """
    if trace is None:
        rows = reuse_rows(generated.conversations(), generated.NAME, "")
        return results.table(rows)
    known = public()
    if trace in set(known.trace):
        return known[known.trace == trace].dropna(axis=1, how="all").reset_index(drop=True)
    if not Path(trace).exists():
        raise InputError(where, repr(trace), f"a path or one of {', '.join(fetch.TRACES)}")
    path = Path(trace)
    digest = fetch.sha256(path) if path.is_file() else ""
    return results.table(reuse_rows(read_trace([path]).trace, path.stem, digest))
