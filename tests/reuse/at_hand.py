"""Where the public traces lie: what ``make traces`` fetched, or a folder beside the checkout."""

from pathlib import Path

from kvpaper.traces import fetch

_BESIDE = Path(__file__).resolve().parents[2] / "../shared/traces"
TRACES = fetch.FOLDER if fetch.FOLDER.is_dir() else _BESIDE
