"""The layers of the package, held over its imports."""

import ast
import graphlib
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kvpaper"
FILES = sorted(PACKAGE.rglob("*.py"))

# Room -> rooms of the package that it imports, and its most lines of code: CONTRIBUTING.md.
_TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]*)\| ([\d,]+) \|$", _TEXT, re.M)
MAY_IMPORT = {name: set(re.findall(r"\w+", rooms)) for name, rooms, _ in _ROWS}
MOST_LINES = {name: int(lines.replace(",", "")) for name, _, lines in _ROWS}
HEAVY = {"pandas", "scipy", "matplotlib", "seaborn", "numba", "pyarrow", "pydantic", "IPython"}
HEAVY_ALLOWED = {
    "lab": {"pydantic"},
    "scenario": {"pydantic"},
    "figures": {"matplotlib", "pandas", "seaborn"},
    "answers": {"pandas"},
    "decision": {"pandas"},
    "tables": {"pandas"},
    "traces": {"numba"},
    "reuse": {"numba", "pandas"},
    "serving": {"numba"},
}


NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip


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


TOP = {"__init__", "__main__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_from_below(path):
    here = room(path)
    if here not in TOP:
        assert rooms_imported(path) - {here} <= MAY_IMPORT[here]


def test_every_room_is_in_the_table_and_every_arrow_is_used():
    used = {room(path): set() for path in FILES if room(path) not in TOP}
    for path in FILES:
        if room(path) in used:
            used[room(path)] |= rooms_imported(path) - {room(path)}
    assert used == MAY_IMPORT


def test_imports_go_down_the_drawing_and_make_no_circle():
    lines = [line.split("  ") for line in _TEXT.split("```\n")[1].splitlines()]
    level = {name: depth for depth, line in enumerate(lines) for name in line if name in MAY_IMPORT}
    assert level.keys() == MAY_IMPORT.keys()
    assert all(level[name] <= level[one] for name, rooms in MAY_IMPORT.items() for one in rooms)
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()  # raises where there is a circle


def test_nothing_imports_the_command_line():
    assert [room(path) for path in FILES if "cli" in rooms_imported(path)] == ["__main__"]


def test_formulas_do_not_import_each_other_and_need_numpy_alone():
    for path in (PACKAGE / "formulas").glob("[a-z]*.py"):
        for name in imports(path, top_only=True):
            assert name.split(".")[0] in ("numpy", "kvpaper"), (path, name)
            if name.startswith("kvpaper"):
                assert name.split(".")[1:3] == ["formulas", "_domain"], (path, name)


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


def code_lines(path: Path) -> int:
    """Lines with code: no docstring, no comment, no blank."""
    source, lines = path.read_text(encoding="utf-8"), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


@pytest.mark.parametrize("name", MOST_LINES)
def test_the_package_can_be_read_in_an_evening(name):
    assert sum(code_lines(path) for path in FILES if room(path) == name) <= MOST_LINES[name]


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
