"""Badges of the README, from what the repository holds: ``python .github/badges.py``."""

import csv
import tomllib
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

import yaml

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github" / "badges"
LETTER = 6.1  # pixels, of an 11 pixel sans-serif


def badge(label: str, text: str) -> str:
    """Two words on a ribbon, as SVG."""
    left, right = (round(LETTER * len(part) + 14) for part in (label, text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{escape(label)}: {escape(text)}</title>"
        f'<rect width="{left + right}" height="20" rx="3" fill="#1d3f72"/>'
        f'<path d="M3 0h{left - 3}v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="7" y="14" textLength="{left - 14}">{escape(label)}</text>'
        f'<text x="{left + 7}" y="14" textLength="{right - 14}">{escape(text)}</text></g></svg>\n'
    )


def badges() -> dict[str, str]:
    """Every badge by the name of its file."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text("utf-8"))
    versions = workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    with (ROOT / "data/results/paper/published.csv").open(encoding="utf-8", newline="") as file:
        status = Counter(row["status"].partition(":")[0] for row in csv.DictReader(file))
    told = [f"{status['agrees']} of {status.total()} agree"]
    told += [f"{status['differs']} differ"] if status["differs"] else []
    return {
        "python.svg": badge("Python", f"{versions[0]} to {versions[-1]}"),
        "licence.svg": badge("licence", f"{project['license']}, text CC BY 4.0"),
        "published.svg": badge("published values", ", ".join(told)),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in badges().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
