"""The layers of the package, held over its imports."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kvpaper"
FILES = sorted(PACKAGE.rglob("*.py"))

# Room -> rooms of the package that it may import. Within a room anything goes, formulas excepted.
MAY_IMPORT = {
    "errors": set(),
    "units": {"errors"},
    "data": {"errors"},
    "formulas": {"errors"},
    "models": {"data", "errors", "formulas", "units"},
    "scenario": {"data", "errors", "models", "units"},
    "latency": {"data", "errors"},
    "results": {"data"},
    "evaluate": {"errors", "formulas", "latency", "models", "results", "scenario"},
    "published": {"data", "errors", "formulas", "models", "results", "scenario"},
    "parallel": {"errors"},
    "redact": set(),
    "traces": {"data", "errors", "parallel"},
    "reuse": {
        "data",
        "errors",
        "figures",
        "formulas",
        "models",
        "parallel",
        "results",
        "traces",
        "units",
    },
    "serving": {"errors", "evaluate", "latency", "parallel", "results", "reuse", "traces", "units"},
    "diagnose": {"data", "errors", "redact", "units"},
    "lab": {"data", "diagnose", "errors", "redact", "units"},
    "answers": {"scenario", "units"},
    "tables": {"answers", "results", "units"},
    "figures": {"data", "units"},
}
HEAVY = {"pandas", "scipy", "matplotlib", "seaborn", "numba", "pyarrow", "pydantic", "IPython"}
HEAVY_ALLOWED = {
    "lab": {"pydantic"},
    "scenario": {"pydantic"},
    "figures": {"matplotlib", "pandas", "seaborn"},
    "answers": {"pandas"},
    "tables": {"pandas"},
    "traces": {"numba"},
    "reuse": {"numba", "pandas"},
    "serving": {"numba"},
}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, top_only: bool) -> set[str]:
    """Dotted names that a file imports; with ``top_only`` those of the module level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports(path, top_only=False))
    return {part[1] for part in parts if part[0] == "kvpaper" and len(part) > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_below(path):
    here = room(path)
    if here in ("cli", "__init__", "__main__"):
        return
    assert rooms_imported(path) - {here} <= MAY_IMPORT[here]


def test_every_room_is_named_above_and_none_twice():
    rooms = {room(path) for path in FILES} - {"cli", "__init__", "__main__"}
    assert rooms == set(MAY_IMPORT)


def test_nothing_imports_the_command_line():
    assert [room(path) for path in FILES if "cli" in rooms_imported(path)] == ["__main__"]


def test_formulas_do_not_import_each_other_and_need_numpy_alone():
    for path in (PACKAGE / "formulas").glob("[a-z]*.py"):
        for name in imports(path, top_only=True):
            assert name.split(".")[0] in ("numpy", "kvpaper"), (path, name)
            if name.startswith("kvpaper"):
                assert name.split(".")[1:] == ["formulas", "_domain", "require"], (path, name)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_are_imported_where_they_are_used(path):
    top = {name.split(".")[0] for name in imports(path, top_only=True)}
    assert top & HEAVY <= HEAVY_ALLOWED.get(room(path), set())


@pytest.mark.parametrize(
    ("pattern", "rooms"),
    [
        (r"\b1024 ?\*\* ?\d|\b2 ?\*\* ?30\b", {"units"}),
        (r"perf_counter", {"lab", "serving"}),
        (r"\baxes\.\w+\(", {"figures"}),
        (r"\beval\(|\bexec\(|pickle|yaml\.load\(|yaml\.unsafe", set()),
    ],
)
def test_a_line_stands_in_its_room(pattern, rooms):
    strays = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if room(path) not in rooms and re.search(pattern, path.read_text(encoding="utf-8"))
    ]
    assert strays == []


def test_the_package_can_be_read_in_an_evening():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES)
    assert lines < 13000


def test_notebooks_are_thin():
    import json

    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert sum(len(source.splitlines()) for source in code) <= 45, path.name
        for source in code:
            kinds = {type(node) for node in ast.walk(ast.parse(source))}
            thick = {ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.Lambda}
            assert not kinds & thick, (path.name, source)
