"""One list of dependencies, told three times, the same each time."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["paper"]]
FIXED = "jupyterlab papermill numpy scipy pandas matplotlib seaborn jupyter-book pytest nbval"


def test_conda_environment_says_what_pyproject_says():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    names = [entry for entry in conda if isinstance(entry, str)]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert f"python{PROJECT['requires-python']}" in names
    said = set(names + pip) - {f"python{PROJECT['requires-python']}", "pip", "-e ."}
    assert said == set(DECLARED)


def test_the_packages_fixed_for_the_paper_are_declared():
    names = {re.split(r"[<>=]", entry)[0] for entry in DECLARED}
    assert set(FIXED.split()) <= names


def test_the_lock_pins_every_dependency_with_hashes_and_names_no_host():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9._-]+)==", lock, re.M))
    assert {re.split(r"[<>=]", entry)[0] for entry in DECLARED} <= pinned
    entries = re.split(r"^(?=[a-z0-9._-]+==)", lock, flags=re.M)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in lock


def test_version_is_told_once():
    import kvpaper

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert kvpaper.__version__ == PROJECT["version"] == citation["version"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_ci_does_what_the_readme_says():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line.startswith("make ")]
    assert commands == ["make lint", "make paper", "make test"]
