"""Run one notebook for one scenario, or note what every notebook reads.

    python notebooks/execute.py SCENARIO STEM
    python notebooks/execute.py --inputs SCENARIO
    python notebooks/execute.py --check-stripped
    python notebooks/execute.py --keep-outputs

A notebook declares what it depends on in one literal assignment, ``reads = (...)``: keys of the
scenario, and paths that begin with ``data/``. ``--inputs`` writes their present values, one file
a notebook, and touches a file only where it changed; make does the rest.
"""

import argparse
import ast
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from kvpaper import data, evaluate
from kvpaper.errors import InputError
from kvpaper.scenario import Scenario, load
from kvpaper.traces import fetch

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("[0-9]*.ipynb"))


def source_cells(path: Path) -> list[dict]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(str(path), type(error).__name__, "a notebook") from None


def literals(cell: dict) -> dict[str, object]:
    """Names that a cell assigns a literal to."""
    tree = ast.parse("".join(cell["source"]))
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def parameters(path: Path) -> dict[str, object]:
    """Defaults of the notebook's ``parameters`` cell."""
    for cell in source_cells(path):
        if "parameters" in cell["metadata"].get("tags", ()):
            return literals(cell)
    raise InputError(str(path), "no cell tagged 'parameters'", "one")


def reads(path: Path) -> tuple[str, ...]:
    """What the notebook declares to depend on."""
    for cell in source_cells(path):
        if cell["cell_type"] == "code" and "".join(cell["source"]).startswith("reads = "):
            return literals(cell)["reads"]
    raise InputError(str(path), "no cell that begins with 'reads = '", "one")


def digests(path: Path) -> dict[str, object]:
    """Checksum of a file, or of every file of a folder; none of what does not exist."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {os.path.relpath(file, ROOT): fetch.sha256(file) for file in files if file.is_file()}


def inputs(scenario: Scenario, keys: tuple[str, ...]) -> dict[str, object]:
    """Present values of the declared keys and checksums of the declared files."""
    found: dict[str, object] = {}
    for key in keys:
        if key.startswith("data/"):
            found |= digests(data.FOLDER / key.removeprefix("data/"))
        else:
            found |= {leaf["input"]: leaf for leaf in scenario.inputs([key])}
        if key == "workload.trace" and scenario.workload.trace:
            found |= digests(Path(scenario.workload.trace))
        if key == "model":
            found["model description"] = hashlib.sha256(repr(scenario.model).encode()).hexdigest()
        if key.startswith("prices"):
            found |= {f"{key} {end}": repr(getattr(scenario, end)) for end in ("low", "high")}
    return found


def write_inputs(name: str) -> None:
    scenario = load(name)
    # What cannot be answered is refused before a kernel starts.
    evaluate.everything(scenario)
    trace = scenario.workload.trace
    if trace is not None and trace not in fetch.TRACES and not Path(trace).exists():
        expected = f"a path or one of {', '.join(fetch.TRACES)}"
        raise InputError(scenario.where("workload.trace"), repr(trace), expected)
    folder = ROOT / "build" / name / "inputs"
    for path in notebooks():
        text = json.dumps(inputs(scenario, reads(path)), indent=1, sort_keys=True)
        target = folder / f"{path.stem}.json"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            data.write_text(target, text)
    # Files that only this scenario names, for make.
    named = [path for path in (scenario.model.source, trace) if path and Path(path).is_file()]
    rule = (
        f"build/{name}/inputs.done: {' '.join(path.replace(' ', chr(92) + ' ') for path in named)}"
    )
    data.write_text(folder.parent / "inputs.d", rule + "\n" if named else "")


def run(name: str, stem: str) -> int:
    path = FOLDER / f"{stem}.ipynb"
    if not path.is_file():
        raise InputError("notebook", repr(stem), f"one of {', '.join(p.stem for p in notebooks())}")

    # jsonschema would load a grammar of international addresses, a second for each notebook.
    sys.modules.setdefault("rfc3987_syntax", None)
    import nbformat
    import papermill

    folder = ROOT / "build" / name
    done, failed = folder / "notebooks" / path.name, folder / "failed" / path.name
    work = folder / "notebooks" / f".{stem}.ipynb"
    work.parent.mkdir(parents=True, exist_ok=True)
    failed.unlink(missing_ok=True)
    start = time.monotonic()
    try:
        papermill.execute_notebook(
            path,
            work,
            {"scenario": name},
            progress_bar=False,
            cwd=FOLDER,
            extra_arguments=["--log-level=CRITICAL"],  # of the kernel, which warns of its socket
        )
        executed = without_times(nbformat.read(work, 4))
    except papermill.PapermillExecutionError as error:
        failed.parent.mkdir(parents=True, exist_ok=True)
        os.replace(work, failed)
        print(
            f"{path.name}: cell {error.exec_count} failed with {error.ename}: {error.evalue}; "
            f"see {failed.relative_to(ROOT)}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        work.unlink(missing_ok=True)
    data.write_text(done, nbformat.writes(executed) + "\n")
    print(f"{stem}: {time.monotonic() - start:.1f} s", flush=True)
    return 0


def without_times(notebook):
    """The executed copy without clock and host, so that a rerun gives the same bytes."""
    notebook.metadata.pop("papermill", None)
    for position, cell in enumerate(notebook.cells):
        cell.id = f"cell-{position}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
    return notebook


def is_checked(cell: dict) -> bool:
    """Whether nbval compares the outputs of this cell, so that they are committed."""
    return "nbval-check-output" in cell["metadata"].get("tags", ())


def check_stripped() -> int:
    faults = [
        f"{path}: cell {number} has outputs"
        for path in notebooks()
        for number, cell in enumerate(source_cells(path))
        if (cell.get("outputs") or cell.get("execution_count")) and not is_checked(cell)
    ]
    print("\n".join(faults), end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


def keep_outputs() -> int:
    """Run every notebook that has checked cells with its defaults, and keep those outputs."""
    for path in notebooks():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not any(map(is_checked, notebook["cells"])):
            continue
        name = str(parameters(path)["scenario"])
        if code := run(name, path.stem):
            return code
        executed = ROOT / "build" / name / "notebooks" / path.name
        # papermill adds a cell of injected parameters; outputs are matched by source.
        outputs = {"".join(cell["source"]): cell.get("outputs") for cell in source_cells(executed)}
        for cell in filter(is_checked, notebook["cells"]):
            cell["outputs"] = outputs["".join(cell["source"])]
            cell["execution_count"] = 1  # nbval wants a cell with outputs to have run
            for output in cell["outputs"]:
                output["execution_count"] = 1
        data.write_text(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", metavar="SCENARIO")
    parser.add_argument("--check-stripped", action="store_true")
    parser.add_argument("--keep-outputs", action="store_true")
    parser.add_argument("scenario", nargs="?")
    parser.add_argument("stem", nargs="?")
    arguments = parser.parse_args()
    try:
        if arguments.check_stripped:
            return check_stripped()
        if arguments.keep_outputs:
            return keep_outputs()
        if arguments.inputs:
            write_inputs(arguments.inputs)
            return 0
        if not arguments.stem:
            parser.error("a scenario and a notebook are needed")
        return run(arguments.scenario, arguments.stem)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
