"""Records of measurements in ``data/measured``: one JSON file each, added and never changed.

A record tells what was measured with which instrument, parameters, machine and software, keeps the
raw values with the warm-ups apart, and how it ended. Its JSON Schema comes from the value objects.
"""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvpaper import data, units
from kvpaper.errors import InputError

FOLDER = data.FOLDER / "measured"
SCHEMA_VERSION = 1
SCHEMA_FILE = "schema.json"

Number = int | float
Text = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class _Open(_Part):
    model_config = ConfigDict(extra="allow")  # the rest is inherited


class Row(_Open):
    """Raw values of one quantity at one point; further keys are its coordinates."""

    quantity: str = Field(min_length=1, description="name with its unit as suffix")
    unit: str = Field(description="a base unit, such as s, bytes or tokens; empty for a number")
    kind: Literal["measured"]
    warmups: list[Number] = Field(description="values that do not count, in the order taken")
    values: list[Number] = Field(min_length=1, description="in the order taken")


class Line(_Open):
    """A line of a log, and the process that wrote it."""

    file: str
    line: int
    process: str
    text: str


class Cause(_Open):
    """Why a run did not complete, as ``kvpaper diagnose`` tells it."""

    cause: str
    kind: str
    confidence: str
    evidence: list[Line]


class Log(_Part):
    """A log of the run folder, which is not part of the record."""

    name: str
    bytes: int
    left_out_bytes: int = Field(description="read and not kept, as the log is bounded")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    error: str = Field(description="why not all of it could be written; else empty")


class Ended(_Part):
    """A process of the run and how it ended; null where the system did not tell."""

    name: str
    log: str = Field(description="of which started command it was a part")
    exit_code: int | None
    signal: str | None
    asked: bool = Field(description="whether it had been asked to stop")
    peak_rss_bytes: int


class Record(_Part):
    """One measurement, or one attempt at it."""

    schema_version: Literal[1]
    instrument: str = Field(pattern="^[a-z][a-z_]*$")
    started_at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
    duration_s: float | None
    parameters: Text
    parameters_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    machine: Text
    software: Text
    command: list[str] = Field(description="as given to the shell")
    commands: dict[str, list[str]] = Field(description="what was started, by name")
    run: str = Field(description="name of the run folder")
    rows: list[Row]
    logs: list[Log]
    processes: list[Ended]
    memory: dict[str, int] = Field(description="peak of the tree in bytes, and events counted")
    outcome: Literal["completed", "failed", "timed out", "interrupted"]
    cause: Cause | None


def schema() -> Text:
    """JSON Schema of a record, generated from the value objects."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvpaper record of a measurement",
        **Record.model_json_schema(),
    }


def row(
    quantity: str, unit: str, values: Iterable[Number], warmups: Iterable[Number] = (), **at: Any
) -> Text:
    """A row of a record.

    Parameters
    ----------
    quantity : str
        Name with its unit as suffix, such as ``ttft_s``.
    unit : str
        Base unit: ``s``, ``bytes``, ``bytes/s``, ``tokens``; ``""`` for a number without one.
    values, warmups : iterable of numbers
        Raw values in the order taken.
    at
        Coordinates: what tells this row from others, such as ``tier="dram"``.

    Raises
    ------
    InputError
        If there is no value, or one that is no number, or the unit is no base unit.
    """
    taken = {"warmups": list(warmups), "values": list(values)}
    made = {"quantity": quantity, "unit": unit, "kind": "measured", **at, **taken}
    for problem in _row_problems(made):
        raise InputError(quantity, problem, "a row of a record")
    return made


def unit(quantity: str) -> str:
    """Base unit of a quantity, from the suffix of its name; empty for a number without one."""
    last = quantity.rpartition("_")[2]
    return last if last in ("s", "bytes", "tokens") else ""


def parameters_sha256(parameters: Mapping[str, Any]) -> str:
    """Checksum of the parameters, whatever the order of their names."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write(record: Text, folder: Path = FOLDER) -> Path:
    """Add a record: whole or not at all, and never over another.

    Raises
    ------
    InputError
        If it is no valid record.
    FileExistsError
        If this record is there already.
    OSError
        If the folder cannot take it.
    """
    problems = list(_problems(record))
    if problems:
        raise InputError("record", problems[0], "a valid record")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", encoding="utf-8") as file:
        file.write(_text(record))
        file.flush()
        os.fsync(file.fileno())
        os.chmod(file.name, 0o644)
        os.link(file.name, path_of(record, folder))  # fails where a file of this name is
    return path_of(record, folder)


def path_of(record: Text, folder: Path = FOLDER) -> Path:
    """Where a record belongs: instrument, start and the beginning of the parameters' checksum."""
    started = re.sub(r"[-:.]", "", record["started_at"])
    return folder / f"{record['instrument']}-{started}-{record['parameters_sha256'][:8]}.json"


def _text(record: Text) -> str:
    """One line for each key and each row, so that a diff can be read."""
    parts = []
    for name, value in record.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inside = ",\n  ".join(map(json.dumps, value))
            text = f"[\n  {inside}\n ]"
        parts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def records(folder: Path = FOLDER) -> list[Text]:
    """Every record, in the order of the file names.

    Raises
    ------
    InputError
        If a file is no JSON object.
    """
    return [_read(path) for path in _files(folder)]


def wanted() -> list[dict[str, str]]:
    """What is to be measured: the instrument, the formula that it tests, how it is reported."""
    return data.table("measured/wanted.csv")


def check(folder: Path = FOLDER) -> tuple[int, list[str]]:
    """How many records a folder has, and what is wrong with them, one line each."""
    found = []
    for path in _files(folder):
        try:
            found += [f"{path.name}: {problem}" for problem in _problems(_read(path), path)]
        except InputError as error:
            found.append(str(error))
    return len(_files(folder)), found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.name != SCHEMA_FILE)


def _read(path: Path) -> Text:
    if not path.is_file():  # a pipe would be waited for
        raise InputError(str(path), "no file", "a record")
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(str(path), f"broken JSON ({error})", "a record") from None
    except OSError as error:
        raise InputError(str(path), str(error.strerror), "a record") from None
    if not isinstance(record, dict):
        raise InputError(str(path), type(record).__name__, "a record, one JSON object")
    return record


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _problems(record: Text, path: Path | None = None) -> Iterable[str]:
    """What is wrong with a record; of one that is kept in a file more is asked."""
    if faults := list(_faults(Record, record)):
        yield from faults
        return
    if record["parameters_sha256"] != parameters_sha256(record["parameters"]):
        yield "parameters_sha256: not that of the parameters"
    if record["outcome"] == "completed" and not record["rows"]:
        yield "rows: a completed record without values"
    if record["outcome"] != "completed" and not record["cause"]:
        yield f"cause: none, and the outcome is {record['outcome']}"
    for number, one in enumerate(record["rows"]):
        yield from (f"rows.{number}: {problem}" for problem in _row_problems(one))
    if path and path != path_of(record, path.parent):
        yield f"file name: not {path_of(record).name}"
    if path and record["commands"]:
        engine = record["software"].get("engine")
        told = engine if isinstance(engine, dict) else {}
        if "vllm" not in (told.get("packages") or ()) and "image" not in told:
            yield "software.engine: no version of the engine"
        if not record["logs"]:
            yield "logs: no log of what was started"


def _faults(kind: type[BaseModel], value: Text) -> Iterable[str]:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        yield f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _row_problems(one: Text) -> Iterable[str]:
    yield from _faults(Row, one)
    try:
        if units.per(1.0, one["unit"]) != 1.0:
            yield f"unit: {one['unit']!r} is no base unit"
    except ValueError as error:
        yield f"unit: {error}"
    for name, value in one.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name}: {value} is no number"
        if name not in ("warmups", "values") and isinstance(value, dict | list):
            yield f"{name}: a coordinate is text or one number"
