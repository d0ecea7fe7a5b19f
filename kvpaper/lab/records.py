"""Records of measurements in ``data/measured``: one JSON file each, added and never changed."""

import json
from pathlib import Path
from typing import Any

from kvpaper import data
from kvpaper.errors import InputError

FOLDER = data.FOLDER / "measured"


def records(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Every record, in the order of the file names.

    Raises
    ------
    InputError
        If a file is no JSON object.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(str(path), f"broken JSON ({error})", "a record") from None
        if not isinstance(record, dict):
            raise InputError(str(path), type(record).__name__, "a record, one JSON object")
        found.append(record)
    return found


def wanted() -> list[dict[str, str]]:
    """What is to be measured: the instrument, the formula that it tests, how it is reported."""
    return data.table("measured/wanted.csv")
