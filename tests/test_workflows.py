"""What runs elsewhere: workflows, dev container, and the commands that the documents name."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

from kvpaper import cli

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "ARTIFACT.md"]
DOCUMENTS += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "book").glob("*.md"))]


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_every_version_that_is_promised_is_tested():
    versions = WORKFLOWS["tests"]["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert f"for Python {versions[0]} to {versions[-1]}" in (ROOT / "CONTRIBUTING.md").read_text()
    assert [int(version.split(".")[1]) for version in versions] == list(
        range(int(versions[0][2:]), int(versions[-1][2:]) + 1)
    )


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_of_a_workflow_exist(name):
    commands = [step["run"] for step in steps(WORKFLOWS[name]) if "run" in step]
    assert commands
    for command in commands:
        program, *words = command.split()
        assert program in ("make", "git", "cp", "tar", "gh", "grep"), command
        if program == "make":
            assert set(words) <= TARGETS, command
        # What an event carries may not become part of a command.
        assert "${{" not in command


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_no_more_than_it_must(name):
    workflow = WORKFLOWS[name]
    events = workflow[True]  # YAML reads "on" as a truth value
    assert "pull_request_target" not in events
    written = {scope for scope, right in workflow["permissions"].items() if right == "write"}
    assert written == {"tests": set(), "book": {"pages", "id-token"}, "release": {"contents"}}[name]
    assert all(job["timeout-minutes"] <= 45 for job in workflow["jobs"].values())
    uses = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in uses), uses


def test_workflows_do_what_ci_does():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    runs = [step.get("run") for step in steps(WORKFLOWS["tests"])]
    for line in script.splitlines():
        if line.startswith(("make ", "git ")):
            assert line in runs


def test_the_dev_container_is_made_from_the_lock():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    assert container["postCreateCommand"] == "make env"
    assert "env" in TARGETS


def test_badges_are_true():
    spec = importlib.util.spec_from_file_location("badges", ROOT / ".github" / "badges.py")
    badges = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(badges)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in badges.FOLDER.glob("*.svg")}
    assert drawn == badges.badges(), "python .github/badges.py"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"badges/(\w+\.svg)", readme)) == set(drawn)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_that_a_document_names_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", text, re.S | re.M))
    code += "\n".join(re.findall(r"`([^`\n]+)`", text))
    assert set(re.findall(r"^make ([a-z]+)", code, re.M)) <= TARGETS
    parser = cli._parser()
    known = next(a for a in parser._actions if a.dest == "command").choices
    called = set(re.findall(r"^(?:\$ |\.venv/bin/)?kvpaper ([a-z]+)", code, re.M))
    assert called <= set(known)
    for script in re.findall(r"^(?:\.venv/bin/)?python ((?:\w+/)+\w+\.py)", code, re.M):
        assert (ROOT / script).is_file()
    for path in re.findall(r"-m pytest ([\w/.]+)", code):
        assert (ROOT / path).exists()
