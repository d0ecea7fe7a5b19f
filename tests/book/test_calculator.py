"""The page that computes: its formulas are the package's, point by point in a real browser."""

import dataclasses
import doctest
import functools
import importlib.util
import inspect
import json
import math
import random
import re
from pathlib import Path

import browser
import calculator
import numpy as np
import pytest
from calculator import ported, simulated, translate

from kvpaper import combined, data, evaluate, latency, models, results, scenario
from kvpaper.errors import InputError
from kvpaper.figures import style

needs_browser = pytest.mark.skipif(browser.PROGRAM is None, reason="no Chromium on this machine")
script, shipped = functools.cache(calculator.script), functools.cache(models.load)
FOLDER = Path(calculator.__file__).parent
BUILT = Path(__file__).resolve().parents[2] / "book/_build/paper/html/calculator.html"
SHOWN = """
const shown = (x) => {
  if (x instanceof $.Nd) return shown(x.shape.length ? $.iter(x) : x.data[0]);
  if (Array.isArray(x)) return x.map(shown);
  if (x !== null && typeof x === "object") {
    return Object.fromEntries(Object.entries(x).map(([key, part]) => [key, shown(part)]));
  }
  return typeof x === "number" && !Number.isFinite(x) ? String(x) : x;
};
const told = (calculate) => {
  try {
    return shown(calculate());
  } catch (error) {
    if (error instanceof $.ValueError) return { refused: error.message };
    throw error;
  }
};
"""


def shown(value):
    """A value of Python as JSON shows the same value of JavaScript."""
    if isinstance(value, np.ndarray | np.generic):
        return shown(value.tolist())
    if isinstance(value, list | tuple):
        return [shown(part) for part in value]
    if isinstance(value, dict):
        return {key: shown(part) for key, part in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def inputs(case):
    """A scenario as the page has it."""
    return shown(ported.inputs(case))


def told(calculate):
    """What a function gives, or the message with which it refuses."""
    try:
        with np.errstate(all="ignore"):
            return shown(calculate())
    except ValueError as error:
        return {"refused": str(error)}


def differences(here, there, path=""):
    """Where two such values differ by more than the last digits of a float."""
    if isinstance(here, dict) and isinstance(there, dict) and here.keys() == there.keys():
        return [d for key in here for d in differences(here[key], there[key], f"{path}.{key}")]
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        pairs = enumerate(zip(here, there, strict=True))
        return [d for place, pair in pairs for d in differences(*pair, f"{path}[{place}]")]
    if isinstance(here, int | float) and isinstance(there, int | float):
        return [] if math.isclose(here, there, rel_tol=1e-12) else [(path, here, there)]
    return [] if here == there else [(path, here, there)]


def computed(tab, script, calls):
    """What JavaScript calls give after a script; each is one expression."""
    thunks = ", ".join(f"() => {call}" for call in calls)
    answer = tab.evaluate(
        f"(() => {{{script}{SHOWN}return JSON.stringify([{thunks}].map(told))}})()"
    )
    return json.loads(answer)


def test_examples():
    assert doctest.testmod(translate).attempted > 0
    assert doctest.testmod(translate).failed == 0
    assert doctest.testmod(calculator).attempted > 0
    assert doctest.testmod(calculator).failed == 0


# The translator


def module(tmp_path, text):
    """A module of this text, as a file whose sources can be read."""
    path = tmp_path / "kvpaper_probe.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kvpaper_probe", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


MISFIT = "a call that does not fit ({})"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    match x:\n        case 1:\n            return 2", "a statement of kind Match"),
        ("    return {1, 2}", "an expression of kind Set"),
        ("    yield x", "an expression of kind Yield"),
        ("    import math", "a statement of kind Import"),
        ("    global y\n    y = x", "a statement of kind Global"),
        ("    assert x", "a statement of kind Assert"),
        ("    return np.linalg.norm(x)", "a call of np.linalg.norm"),
        ("    return np.median(x)", "a call of np.median"),
        ("    return np.sum(x, keepdims=True)", "sum with keepdims"),
        ("    return np.nothing", "np.nothing"),
        ("    return open(x)", "a call of open"),
        ("    return unknown + x", "the name unknown"),
        ("    return THINGS", "THINGS, a object"),
        ("    return x ^ 1", "an operator BitXor"),
        ("    return +x", "an operator UAdd"),
        ("    return x @ x", "an operator MatMult"),
        ("    return x[1:]", "an expression of kind Slice"),
        ("    x[0] = 1", "a target of kind Subscript"),
        ("    a = b = x", "a chain of assignments"),
        ("    x.size += 1", "a change in place"),
        ("    x.size = 1", "a target of kind Attribute"),
        ("    first, *rest = x", "a target of kind Starred"),
        ("    return other(1, 2, 3)", MISFIT.format("too many positional arguments")),
        ("    return other(1, c=1)", MISFIT.format("got an unexpected keyword argument 'c'")),
        ("    return other(1, a=1)", MISFIT.format("multiple values for argument 'a'")),
        ("    return other()", MISFIT.format("missing a required argument: 'a'")),
        ("    return other(1, **x)", "the argument **x"),
        ("    return x(a=1)", "an argument by keyword"),
        ("    with open(x):\n        pass", "a with statement"),
        ("    try:\n        pass\n    except KeyError:\n        pass", "an except of another kind"),
        ("    try:\n        pass\n    finally:\n        pass", "an else or a finally"),
        ("    for y in x:\n        pass\n    else:\n        pass", "an else of a loop"),
        ("    raise", "a raise of nothing new"),
        ("    def g(y=1):\n        return y", "a nested function with a decorator or a default"),
        ("    return f'{x:{x}}'", "a format that is computed"),
        ("    return lambda y: y", "an expression of kind Lambda"),
        ("    return 1j", "a complex"),
        ("    return (y := x)", "an expression of kind NamedExpr"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_its_line(tmp_path, body, found):
    head = "import numpy as np\nTHINGS = object()\ndef other(a, b=2):\n    return a\n\n"
    probe = module(tmp_path, f"{head}def f(x):\n    z = x\n{body}\n")
    with pytest.raises(InputError) as refusal:
        translate.Translation({}).add(probe.f)
    assert refusal.value.found == found
    line = int(re.fullmatch(r".*kvpaper_probe\.py:(\d+)", refusal.value.where)[1])
    assert 8 <= line < 8 + body.count("\n") + 1


def test_a_parameter_without_a_name_is_refused(tmp_path):
    probe = module(tmp_path, "def f(*given):\n    return given\n")
    with pytest.raises(InputError, match=r"py:1: found \*given"):
        translate.Translation({}).add(probe.f)


def test_a_function_that_reads_files_is_replaced_and_not_entered(tmp_path):
    probe = module(tmp_path, "def read(x):\n    return open(x)\ndef f(x):\n    return read(x)\n")
    translation = translate.Translation({probe.read: "$table"})
    translation.add(probe.f)
    assert "return $table(x$);" in translation.text()
    assert list(translation.functions.values()) == [probe.f]


def test_all_that_the_page_calls_is_translated_and_nothing_else_is_defined():
    translation = ported.translation()
    assert set(ported.ANSWERS) <= set(translation.functions.values())
    text = translation.text()
    defined = re.findall(r"^function (\S+?)\(", text, re.M)
    assert sorted(defined) == sorted(translation.functions)
    called = set(re.findall(r"(?<![\w$.])([a-z]\w*(?:\$\w+)+)\(", text))
    assert called <= set(defined)
    formulas = [name for name in translation.functions if name.startswith("formulas$")]
    assert len(formulas) > 20


SEMANTICS = """
import math
import numpy as np
from kvpaper.errors import InputError

LIMITS = {"low": 1, "high": math.inf}


def row(name, value, kind="plain", **more):
    return {"name": name, "value": value, "kind": kind, **more}


def keywords():
    at = {"tier": "a"}
    return [row("x", 1, tier="b"), row("x", 2, "other", **at, pool=None), row(value=3, name="y")]


def late_binding():
    made = []
    for place in range(3):

        def late(x):
            return x + place

        made.append(late)
    return [call(1) for call in made], late(1), made[0](7)


def scopes():
    x = [1, 2, 3]
    x = [x * y for x in x if x > 1 for y in range(x)]
    new, delete = {name: len(name) for name in ("one", "three")}, 4
    return x, new, delete, [(a, b) for a, b in zip("ab", (1, 2), strict=True)]


def comparisons():
    return [
        [low < 2 <= high, low is None, low is not None, low == high, (low, high) != (1, 2)]
        for low, high in ((1, 2), (2, 3), (1, 1))
    ]


def operands():
    return [
        None or 0 or "" or "last", 0 and 1, 2 and "two", not [], not {"a": 1}, [] or None,
        1 if "" else 2, "b" in "abc", 2 in (1, 2), "low" in LIMITS, None not in (1, None),
    ]


def arithmetic():
    return [
        7 // 2, -7 // 2, 2**10, 2**-1, 1 - 0.9, -(3), True + True, "ab" * 2,
        [1] + [2, 3], (1,) + (2,), "a" + "b", 0.0**0.5, int(-2.7), float("2.5"),
        1e300 * 1e10,
    ]


def containers():
    values = [3, 1, 2]
    values.append(4)
    first, (second, third) = values[0], (values[1], values[2])
    return [
        values, values[-1], first, second, third, "abc"[-1],
        [*values, *"xy"], {**LIMITS, "low": 2}, list(LIMITS), dict(zip("ab", (1, 2), strict=True)),
        LIMITS.get("none"), LIMITS.get("none", 3), list(LIMITS.items()), list(LIMITS.values()),
        list(enumerate("ab")), len(LIMITS), list(range(2, 5)),
    ]


def choices():
    times = {"a": 3.0, "b": 1.0, "c": 3.0}
    return [
        min(3, 1, 2), max([1, 5, 5.0]), max(times, key=times.get), min(times, key=times.get),
        max((), default=-1), max((x for x in (1, 2) if x > 5), default=0),
        all(x > 2 for x in (1, 3)),
        all(()), min(2, math.nan), min(math.nan, 2), list(map(float, (-1, 2))),
    ]


def loops():
    low, high, seen = 0, 10, []
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle < 7 else (low, middle)
        seen.append((low, high))
    for x in LIMITS:
        if x == "low":
            continue
        seen.append(x)
    total = 0
    total += 2
    total *= 3
    return seen, total, x


def texts():
    name, x = "tier", 1234567.891
    return [
        f"{name}: {x:.2f} {x:,.0f} {x:.3g} {x:g} {0.00001234:g} {12:g} {1e-7:.2g} {100:.2g}",
        f"{name!r}",
        f"{math.inf:g} {-math.inf:.1f} {math.nan:g} {None} {True} {0:g} {-0.5:g} {999999.5:g}",
        f"{2:.0f} {1e21:g} {123456:,.1f} {-1234:,.0f} {1e16:.3g}", "a.b.c".rpartition(".")[2],
        "abc".rpartition("."), ", ".join(["a", "b"]),
    ]


def refuses(x):
    try:
        if x < 0:
            raise ValueError(f"below zero: {x:g}")
        if x == 0:
            raise InputError("x", "0", "more")
    except InputError as error:
        raise InputError("outer", f"({error})", "less") from None
    except ValueError as error:
        return f"caught {error}"
    return x


def arrays():
    x, grid = np.array([0.5, 1.5, 2.5, -1.5]), np.array([[1, 2, 3], [4, 5, 6]])
    holds, axis = (x > 0) & ~(x >= 2), np.array([0.5, 1.5, 2.5])
    return [
        x + 1, 2 * x, x[holds], np.where(holds, x, np.nan), np.rint(x), np.unique(np.rint(x)),
        grid[1, 2], grid[-1], grid[0][1], grid + axis, grid[..., None] * np.array([1, 10]),
        np.sum(grid, axis=-1), np.sum(grid), grid.max(), grid.size,
        list(grid.shape), np.searchsorted(axis, [0.5, 0.6, 9]),
        np.searchsorted(np.array([1, 2, 2, 3]), 2, side="right"), np.geomspace(1, 1000, 4),
        np.clip(x, 0, [1, 2, 2, 3]), np.maximum(x, np.nan), np.minimum([1, 2], 1.5),
        np.all(x > -2), np.all(x > 2),
        np.asarray(3.0)[()], np.broadcast_arrays(x, 1)[1], [v for v in grid],
        np.asarray(3.0)[..., None], np.array([1, None], float),
        np.power(1, np.nan), np.power(0.0, 0), np.ceil(-0.5), np.exp(1), x == 1.5,
        len(grid), float(np.sum(x)), np.asarray(2).size, np.asarray(2).max(),
    ]
"""


@needs_browser
def test_translated_python_means_what_python_means(tab, tmp_path):
    probe = module(tmp_path, SEMANTICS)
    plain = [function for name, function in vars(probe).items() if inspect.isfunction(function)]
    calls = [(function, ()) for function in plain if not inspect.signature(function).parameters]
    calls += [(probe.refuses, (x,)) for x in (-1.5, 0, 2)]
    translation = translate.Translation({})
    named = [f"{translation.add(function)}({', '.join(map(str, x))})" for function, x in calls]
    script = (FOLDER / "runtime.js").read_text("utf-8") + translation.text()
    here = [told(lambda call=call: call[0](*call[1])) for call in calls]
    for (function, _), mine, theirs in zip(calls, here, computed(tab, script, named), strict=True):
        assert differences(json.loads(json.dumps(mine)), theirs) == [], function.__name__


@needs_browser
def test_what_has_no_meaning_in_python_has_none_in_the_browser(tab):
    runtime = (FOLDER / "runtime.js").read_text("utf-8")
    for call in ("$.mul(null, 3)", "$.add(1, undefined)", "$.item([1], 1)", "$.item({}, 'a')",
                 "$.attr({}, 'b')", "$.lt(null, 1)", "$.unpack([1], 2)", "$.truth(undefined)",
                 "$.named({a: 1}, ['a'])", "$.iter(3)", "$.and(1, 2)", "$.method(null, 'get')",
                 "$.builtins.min([])", "$.np.add([1, 2], [1, 2, 3])"):  # fmt: skip
        thrown = "try { return JSON.stringify(EXPRESSION) ?? 'nothing' } catch { return 'thrown' }"
        script = f"(() => {{{runtime}{thrown.replace('EXPRESSION', call)}}})()"
        assert tab.evaluate(script) == "thrown", call


# The package's functions


@needs_browser
def test_every_formula_at_its_edges(tab):
    translation = ported.translation()
    chosen = random.Random(7)
    edges = (0.0, 0.25, 0.5, 1.0, 2.5, 1000.0, 1e12, math.inf, -1.0, math.nan)
    inside = (0.1, 0.5, 0.9, 1.0, 30.0)
    functions, calls = [], []
    for name, function in translation.functions.items():
        if not name.startswith("formulas$") or name.startswith("formulas$_domain"):
            continue
        count = len(inspect.signature(function).parameters)
        for pool in (edges, inside):
            functions += [
                (function, [chosen.choice(pool) for _ in range(count)]) for _ in range(25)
            ]
        line = [np.array([chosen.choice(inside) for _ in range(4)]) for _ in range(count)]
        functions.append((function, line))
    assert len(functions) > 1000
    for function, given in functions:
        arguments = (
            f"$.asarray({translate.literal(x)})"
            if isinstance(x, np.ndarray)
            else translate.literal(x)
            for x in given
        )
        calls.append(f"{translation.add(function)}({', '.join(arguments)})")
    script = (FOLDER / "runtime.js").read_text("utf-8") + translation.text()
    there = computed(tab, script, calls)
    refused = 0
    for (function, given), theirs in zip(functions, there, strict=True):
        # Numbers of numpy, since plain ones would raise where an array gives infinity.
        mine = told(lambda f=function, x=given: f(*map(np.asarray, x)))
        refused += isinstance(mine, dict)
        assert differences(mine, theirs) == [], (function.__name__, given)
    assert refused > 50


def variants(count):
    """Scenarios far and wide around the shipped ones, their edges included."""
    chosen = random.Random(11)
    bases = [scenario.load(name) for name in data.names("scenarios")]
    every = [shipped(name) for name in data.names("models")]
    for _ in range(count):
        base = chosen.choice(bases)
        new = chosen.choice((1.0, 256.0, 4096.0))
        prefix = chosen.choice((1.0, 17.0, 256.0, 7744.0, 30000.0, 120000.0, 200000.0))
        workload = base.workload.model_copy(
            update={
                "prompt_tokens": prefix + new,
                "new_tokens": new,
                "ceiling": chosen.choice((0.0, 0.37, 1.0)),
                "tail_exponent": chosen.choice((0.05, 0.6, 0.99, 1.0)),
                "lead_time_s": chosen.choice((None, 1.0)),
                "working_set_bytes": chosen.choice((None, 1e12)),
                "requests_per_s": chosen.choice((0.0, 1.0, 20.0)),
            }
        )
        model = chosen.choice([base.model, *every])
        known = [
            each.name
            for each in latency.usual()
            if shipped(each.model).name == model.name and each.gpus == base.hardware.gpus
        ]
        table = chosen.choice([*known, known[0], None]) if known else None
        rate = chosen.choice((5e13, 5.8e14)) if table is None else None
        prefill = base.serving.prefill.model_copy(update={"table": table, "flops_per_s": rate})
        serving = base.serving.model_copy(
            update={
                "prefill": prefill,
                "element": chosen.choice(("bf16", "fp8", "fp4")),
                "window_cache": chosen.choice(("window", "full")),
                "first_token_from": chosen.choice(("decode", "prefill")),
                "queue_wait_s": chosen.choice((0.0, 0.1)),
            }
        )
        reading = {"reading": chosen.choice(evaluate.READINGS)}
        yield dataclasses.replace(
            base,
            model=model,
            workload=workload,
            serving=serving,
            slo=base.slo.model_copy(update={"ttft_s": chosen.choice((0.02, 0.3, 2.0, 30.0))}),
            prices=base.prices.model_copy(update=reading),
            low=base.low.model_copy(update=reading),
            high=base.high.model_copy(update=reading),
        )


def without_lines(message):
    """A refusal without file and line, which a browser does not know."""
    return re.sub(r"^\S+:\d+ ", "", message)


@needs_browser
def test_every_answer_equals_that_of_the_package_at_hundreds_of_points(tab):
    points = list(variants(200))
    given = ", ".join(translate.literal(ported.inputs(point)) for point in points)
    script = (
        ported.program([each.name for each in latency.usual()])
        + f"const points = [{given}].map((point) => ({{...point, where: (key) => key}}));"
    )
    calls, here = [], []
    for place, point in enumerate(points):
        for function in ported.ANSWERS:
            # The search for a crossing is slow in Python: every fifth point will do.
            if function is not evaluate.crossovers or place % 5 == 0:
                calls.append(f"formulas.{function.__name__}(points[{place}])")
                here.append(told(lambda f=function, p=point: f(p)))
    there = computed(tab, script, calls)
    rows, endless, refusals = 0, 0, []
    for call, mine, theirs in zip(calls, here, there, strict=True):
        if isinstance(mine, dict):
            mine = {"refused": without_lines(mine["refused"])}
            refusals.append(mine["refused"])
        else:
            rows += len(mine)
            endless += sum(row["value"] in ("Infinity", "NaN") for row in mine)
        assert differences(mine, theirs) == [], call
    for known in ("tail_exponent: ", "workload.prompt: found a prompt outside", "found a load of"):
        assert any(known in refusal for refusal in refusals), known
    assert rows > 10_000
    assert len(refusals) > 50
    assert endless > 50


@needs_browser
def test_curves_equal_those_of_the_package(tab):
    for name in ("paper", "h200-moe"):
        point = scenario.load(name)
        lengths = [256.0, 1000.0, 7744.0, 60000.0]
        script = ported.program(ported.tables(point)) + (
            f"const point = {{...{translate.literal(ported.inputs(point))}, where: (key) => key}};"
        )
        grids = {
            evaluate.slacks: lengths,
            evaluate.recoveries: lengths,
            evaluate.capacities: [0.1, 0.9],
        }
        calls = [f"formulas.{f.__name__}(point, {translate.literal(x)})" for f, x in grids.items()]
        here = [told(lambda f=f, x=x, p=point: f(p, x)) for f, x in grids.items()]
        assert differences(here, computed(tab, script, calls)) == []


# The page


@pytest.fixture
def page(tab, tmp_path):
    """A function that opens the page of a scenario at a setting."""

    def opened(name, setting=""):
        (tmp_path / "calculator.js").write_text(script(name), "utf-8")
        (tmp_path / "page.html").write_text(
            "<!doctype html><html lang=en><meta charset=utf-8><title>Page</title>"
            f"<style>{(FOLDER / 'calculator.css').read_text('utf-8')}</style>"
            '<div id=calculator class=calculator></div><script src="calculator.js"></script>'
        )
        tab.open(tmp_path / "page.html")
        tab.evaluate(f"location.hash = '{setting}'")
        tab.wait("!!document.querySelector('.calculator').scenario")
        tab.wait(f"location.hash === '{'#' * bool(setting)}{setting}'")
        settle(tab)
        return tab

    return opened


def settle(tab):
    """Have the page tell all it has to tell, and wait for what follows when the hand rests."""
    tab.evaluate(
        "document.querySelector('.status').textContent = '';"
        "document.querySelector('input[type=number]').dispatchEvent(new Event('blur'))"
    )
    tab.wait("document.querySelector('.status').textContent !== ''")


def current(tab):
    return json.loads(
        tab.evaluate("JSON.stringify(document.querySelector('.calculator').scenario)")
    )


def enter(tab, label, value):
    """Write a value into the field with this label."""
    tab.evaluate(
        f"""(() => {{
            const field = [...document.querySelectorAll('input[type=number]')]
                .find((field) => field.ariaLabel.startsWith('{label}'));
            field.value = '{value}';
            field.dispatchEvent(new Event('change'));
        }})()"""
    )


def choose(tab, name, value):
    tab.evaluate(
        f"""(() => {{
            const field = document.getElementById('calculator-{name}');
            field.value = '{value}';
            field.dispatchEvent(new Event('change'));
        }})()"""
    )


@needs_browser
@pytest.mark.parametrize("name", data.names("scenarios"))
def test_the_page_opens_at_the_scenario_of_its_book(page, name):
    assert differences(inputs(scenario.load(name)), current(page(name))) == []


def changed(base, **parts):
    """A scenario with fields of some parts changed."""
    copies = {part: getattr(base, part).model_copy(update=update) for part, update in parts.items()}
    return dataclasses.replace(base, **copies)


@needs_browser
def test_every_slider_sets_its_part_of_the_scenario(page):
    base = scenario.load("paper")
    tab = page("paper")
    for label, value in {
        "Prefix": 12000, "Target": 450, "Tokens seen": 50, "Tail": 0.3, "GPU": 2.5,
        "Host DRAM [": 5, "New tokens": 512, "Requests": 0.5, "Working": 2, "Wait": 0, "Lead": 3,
        "Prefill": 400, "NVMe read": 12, "Link": 25, "Written": 60, "Remote tier [": 0.02,
    }.items():  # fmt: skip
        enter(tab, label, value)
    prices = {
        "gpu_usd_per_s": 2.5 / 3600,
        "dram": 5e-9,
        "remote": 2e-11,
        "lifetime_s": 60 * 2629800,
    }
    nvme = base.hardware.tiers["nvme"].model_copy(update={"read_bytes_per_s": 12e9})
    prefill = base.serving.prefill.model_copy(update={"flops_per_s": 4e14})
    link = base.serving.transfer.model_copy(update={"rate_bytes_per_s": 25e9})
    expected = changed(
        base,
        workload={
            "prompt_tokens": 12512.0, "new_tokens": 512.0, "ceiling": 0.5, "tail_exponent": 0.3,
            "requests_per_s": 0.5, "working_set_bytes": 2e12, "lead_time_s": 3.0,
        },
        slo={"ttft_s": 0.45},
        serving={"queue_wait_s": 0.0, "prefill": prefill, "transfer": link},
        hardware={"tiers": {**base.hardware.tiers, "nvme": nvme}},
        prices=prices, low=prices, high=prices,
    )  # fmt: skip
    assert differences(inputs(expected), current(tab)) == []


@needs_browser
def test_another_model_brings_its_prefill_and_the_working_set_in_its_bytes(page):
    base, model = scenario.load("paper"), shipped("qwen3-235b-a22b")
    tab = page("paper")
    choose(tab, "model", "qwen3-235b-a22b")
    rated = dataclasses.replace(base, model=model)
    per_token = {
        which: results_value(evaluate.sizes(each), "kv_bytes_per_token")
        for which, each in (("base", base), ("other", rated))
    }
    held = base.workload.working_set_bytes * per_token["other"] / per_token["base"]
    rated = changed(rated, workload={"working_set_bytes": held})
    assert differences(inputs(rated), current(tab)) == []

    choose(tab, "hardware", "h200-moe")
    server = scenario.load("h200-moe")
    prefill = {"table": "qwen3-235b-fp8", "flops_per_s": None}
    tabulated = changed(
        dataclasses.replace(rated, hardware=server.hardware),
        serving={
            "transfer": server.serving.transfer,
            "prefill": base.serving.prefill.model_copy(update=prefill),
        },
    )
    assert differences(inputs(tabulated), current(tab)) == []
    choose(tab, "prefill", "rate")
    assert current(tab)["serving"]["prefill"]["table"] is None


def results_value(rows, quantity, **at):
    (value,) = (
        row["value"]
        for row in rows
        if row["quantity"] == quantity and all(row.get(name) == at[name] for name in at)
    )
    return value


@needs_browser
def test_the_words_follow_the_rows(page):
    for setting in ("", "ttft=20", "model=deepseek-v3&ttft=2000", "beta=0.99&nvme-price=0.01"):
        tab = page("paper", setting)
        given = current(tab)
        verdict = tab.evaluate("document.querySelector('.verdict').textContent")
        rows = rows_of(tab, "slacks")
        kept = [
            row["tier"]
            for row in rows
            if (row["quantity"], row.get("pool")) == ("on_critical_path", "disaggregated")
            and row["value"]
        ]
        lead = verdict.partition(", not for")[0]
        names = {
            tier: calculator.page("paper")["tiers"][tier][1] for tier in given["hardware"]["tiers"]
        }
        if len(kept) == len(names):
            assert verdict == "A request may wait for every tier."
        elif kept:
            assert [tier for tier, name in names.items() if name in lead] == kept
        else:
            assert " no t" in verdict
        assert verdict in tab.evaluate("document.querySelector('.status').textContent")
        fetched = results.by_tier(rows_of(tab, "recoveries"), "fetch_time_s")
        cells = tab.evaluate(
            "[...document.querySelectorAll('.numbers tbody tr:first-child td')]"
            ".map((cell) => cell.textContent)"
        )
        assert len(cells) == len(fetched)
        for text, seconds in zip(cells, fetched.values(), strict=True):
            number, unit = text.split("\N{NO-BREAK SPACE}")
            base = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
            assert math.isclose(float(number) * base, seconds, rel_tol=0.005)


def rows_of(tab, name, base="paper"):
    """Rows that the package gives for the setting of the page."""
    given = current(tab)
    base = scenario.load(base)
    parts = ("hardware", "serving", "workload", "slo", "prices", "low", "high")
    rebuilt = {part: with_fields(getattr(base, part), given[part]) for part in parts}
    known = [base.model, *map(shipped, data.names("models"))]
    (model, *_) = (each for each in known if each.name == given["model"]["name"])
    return getattr(evaluate, name)(dataclasses.replace(base, model=model, **rebuilt))


def with_fields(value, fields):
    """A value object with the fields that a page gives back as JSON."""
    if not isinstance(fields, dict):
        return fields
    if isinstance(value, dict):
        return {key: with_fields(value[key], fields[key]) for key in fields}
    update = {name: with_fields(getattr(value, name), new) for name, new in fields.items()}
    return value.model_copy(update=update)


BARE = """
model: ./config.json
hardware:
  name: Box
  tiers:
    hbm: {capacity: 80 GB, read: 3 TB/s}
    nvme: {capacity: 4 TB, read: 6 GB/s}
serving:
  block: 16 tokens
  prefill: {rate: 400 TFLOP/s, active_params: 1.0e9}
  transfer: {rate: 25 GB/s}
workload: {requests: 1 /s, prompt: 3000 tokens, output: 100 tokens, beta: 0.4}
slo: {ttft: 1 s, tpot: 50 ms}
prices:
  reading: rented
  gpu: {value: 2 USD/hour, source: ours, as_of: 2026-11}
"""


@needs_browser
def test_a_bare_scenario_of_a_fork_has_its_page(page, tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "bare.yaml").write_text(BARE)
    name = str(tmp_path / "bare.yaml")
    tab = page(name)
    assert differences(inputs(scenario.load(name)), current(tab)) == []
    told = tab.evaluate("[...document.querySelectorAll('.lines')].map((list) => list.innerText)")
    assert told[1] == "There is no working set to buy for."
    assert told[2] == "No tier has a rent."
    assert tab.evaluate("document.querySelector('#calculator-capacity').hidden") is True
    assert tab.evaluate("document.querySelectorAll('#calculator-point .dot').length") == 2
    # What the scenario leaves out can be put in.
    enter(tab, "NVMe [USD/GB/month]", 0.1)
    enter(tab, "Working set", 2)
    bought = results_value(rows_of(tab, "capacities", name), "worth_buying_bytes", band="middle")
    assert bought > 0
    tab.wait("document.querySelectorAll('.lines')[1].innerText.startsWith('NVMe')")
    tab.wait("!document.querySelector('#calculator-capacity').hidden")
    choose(tab, "model", "deepseek-v3")
    assert current(tab)["serving"]["prefill"]["active_params"] is None


@needs_browser
def test_the_keyboard_moves_a_slider_and_the_address_keeps_the_setting(page):
    tab = page("paper")
    before = current(tab)["slo"]["ttft_s"]
    tab.evaluate("document.getElementById('calculator-ttft').focus()")
    for kind in ("rawKeyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight",
                 windowsVirtualKeyCode=39)  # fmt: skip
    after = current(tab)["slo"]["ttft_s"]
    assert after > before
    tab.wait("location.hash.startsWith('#ttft=')")
    told = tab.evaluate("document.getElementById('calculator-ttft').getAttribute('aria-valuetext')")
    assert told == f"{after * 1e3:.0f} ms"
    tab.evaluate("window.before = true; location.reload()")
    kept = f"document.querySelector('.calculator')?.scenario?.slo.ttft_s === {after}"
    tab.wait(f"!window.before && {kept}")

    tab.evaluate("[...document.querySelectorAll('button')].at(-1).click()")
    assert differences(inputs(scenario.load("paper")), current(tab)) == []
    tab.wait("location.hash === ''")


@needs_browser
@pytest.mark.parametrize(
    "setting",
    [
        "prefix=minus",
        "ttft=-3",
        "ttft=",
        "model=unknown",
        "hardware=2",
        "nonsense=1",
        "prefill=other",
    ],
)
def test_a_setting_that_means_nothing_changes_nothing(page, setting):
    assert differences(inputs(scenario.load("paper")), current(page("paper", setting))) == []


@needs_browser
def test_what_the_package_refuses_the_page_refuses_in_its_words(page):
    tab = page("h200-moe", "prefix=200000")
    refusal = tab.evaluate("document.querySelector('.refusal').textContent")
    assert "outside table qwen3-235b-fp8" in refusal
    assert tab.evaluate("getComputedStyle(document.querySelector('.answers')).display") == "none"
    enter(tab, "Prefix", 20000)
    tab.wait("document.querySelector('.refusal').hidden")
    enter(tab, "Tail", 1)
    settle(tab)
    worth = tab.evaluate("document.querySelectorAll('.lines')[1].textContent")
    assert worth == "tail_exponent: found 1, expected a number inside (0, 1)"


OWN_LOG = {"trace": "mooncake_conversation", "ceiling": 0.3736}


def cell_rows(costs, **at):
    """Rows of a replay of four cells; no cost is one that cannot meet its target for a token."""
    for cell, usd in zip(simulated.CELLS, costs, strict=True):
        binding = {"binding": "ttft" if usd else "tpot"}
        yield results.row("feasible", float(bool(usd)), "simulated", cell=cell, **binding, **at)
        for band, factor in (("middle", 1), ("low", 0.95), ("high", 1.05)) if usd else ():
            name, value = "usd_per_million_output_tokens", usd * factor
            yield results.row(name, value, "simulated", cell=cell, band=band, **at)
            yield results.row(name, 2 * usd, "predicted", cell=cell, **at)


def test_the_grid_was_replayed_at_the_prices_that_the_page_tells():
    assert combined.BASE == simulated.BASE


@needs_browser
def test_four_cells_come_from_the_nearest_replay_or_not_at_all(page, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "folder", lambda name: tmp_path / name)
    section = "[...document.querySelectorAll('.calculator section')].at(-1)"
    script.cache_clear()
    assert page("paper").evaluate(f"{section}.hidden") is True

    grid = {"model": "DeepSeek-V3", "trace": "mooncake_synthetic", "tpot_slo_s": 0.04}
    grid |= {"ceiling": 0.64, "router": "prefix", "scope": "instance"}
    rows = {
        "paper": [
            *cell_rows((4.0, 3.0, 3.5, 2.0), ttft_slo_s=0.3),
            *cell_rows((40.0, 30.0, 35.0, 30.4), ttft_slo_s=3.0),
            *list(cell_rows((1.0, 1.0, 1.0, 1.0), ttft_slo_s=0.31))[:-1],
            *list(cell_rows((1.0, 1.0, 1.0, 1.0), ttft_slo_s=0.32))[:-8],
        ],
        "public": [
            *cell_rows((9.0, None, 8.0, None), ttft_slo_s=2.0, **grid),
            *cell_rows((5.0, 5.5, 6.0, 7.0), ttft_slo_s=2.0, **grid | OWN_LOG),
            *cell_rows((1.0, 1.0, 1.0, 1.0), ttft_slo_s=2.0, **grid | {"router": "random"}),
            *cell_rows((1.0, 1.0, 1.0, 1.0), ttft_slo_s=2.0, **grid | {"scope": "pooled"}),
            *cell_rows((1.0, 1.0, 1.0, 1.0), ttft_slo_s=2.0, varied="disk", at=1e9, **grid),
        ],
    }
    for name, written in rows.items():
        (tmp_path / name).mkdir()
        results.table(written).to_csv(tmp_path / name / "70_combined.csv", index=False)
    # Fleets of a sweep have cells too, and none is at its best.
    results.table(rows["paper"]).to_csv(tmp_path / "paper" / "60_fleet.csv", index=False)
    cases = simulated.cases(scenario.load("paper"))
    assert [case["at"]["ttft_slo_s"] for case in cases] == [0.3, 3.0, 0.31, 2.0, 2.0]
    both = {"middle": 2.0, "low": 1.9, "high": 2.1, "predicted": 4.0}
    assert cases[0]["cells"]["both"] == pytest.approx(both)
    assert cases[3]["cells"]["both"] == {"binding": "tpot"}
    assert [case["own"] for case in cases] == [True, True, True, False, False]
    assert cases[3]["prices"]["host DRAM"] == scenario.load("h200-moe").leaves["prices.dram"].text

    script.cache_clear()
    tab = page("paper")
    script.cache_clear()
    fleet = f"{section}.querySelector('.verdict').textContent"
    nearest = f"{section}.querySelector('.told').textContent.replaceAll('\\u00a0', ' ')"
    assert tab.evaluate(f"{section}.querySelector('.kind').textContent") == "simulated"
    assert tab.evaluate(fleet) == (
        "Split, tiers: 2\N{NO-BREAK SPACE}USD a million output tokens, "
        "33\N{NO-BREAK SPACE}% below split, HBM only."
    )
    told = tab.evaluate(nearest)
    assert "Of 5 replayed cases this is the nearest: Llama-3.1-8B, the log mooncake" in told
    assert "a target of 300 ms for the first token" in told
    assert "a GPU at 3.50 USD/hour" in told
    assert "Yours do not move it" not in told
    assert tab.evaluate("document.querySelectorAll('#calculator-cells .predicted').length") == 4
    enter(tab, "GPU", 2)
    enter(tab, "Tokens seen", 50)
    enter(tab, "Target", 1500)
    settle(tab)
    assert tab.evaluate(fleet).startswith("Split, HBM only: 30")
    assert tab.evaluate(fleet).endswith("Their bands overlap: take neither for the cheaper.")
    told = tab.evaluate(nearest)
    assert "a target of 3 s (yours 1.5 s)" in told
    assert "a ceiling of 37 % (yours 50 %)" in told
    assert "Yours do not move it" in told
    choose(tab, "model", "deepseek-v3")
    enter(tab, "Tokens seen", "")
    settle(tab)
    assert tab.evaluate(fleet).startswith("One pool, HBM only: 5")
    enter(tab, "Tokens seen", 60)
    settle(tab)
    assert tab.evaluate(fleet).startswith("One pool, tiers: 8")
    assert "Split, tiers cannot meet the TPOT target." in tab.evaluate(nearest)
    assert tab.evaluate("document.querySelectorAll('#calculator-cells .cross').length") == 2
    choose(tab, "model", "gpt-oss-20b")
    settle(tab)
    assert tab.evaluate(fleet) == "No fleet of this model was replayed."
    assert "Llama-3.1-8B or DeepSeek-V3" in tab.evaluate(nearest)
    assert tab.evaluate("document.getElementById('calculator-cells').hidden") is True


@needs_browser
def test_every_input_stands_with_its_source(page):
    tab = page("paper", "ttft=450")
    told = tab.evaluate(
        "[...document.querySelectorAll('.sources tbody tr')].map((row) =>"
        " [...row.children].map((cell) => cell.textContent))"
    )
    sources = {name: source for name, _, source in told}
    assert sources["Target for the first token"] == "yours; otherwise 300 ms"
    leaves = scenario.load("paper").leaves
    assert sources["GPU"] == f"{leaves['prices.gpu'].source}, {leaves['prices.gpu'].as_of}"
    assert sources["Model"] == leaves["model"].source
    assert all(sources.values())
    shown_sliders = tab.evaluate("document.querySelectorAll('.slider:not([hidden])').length")
    assert len(told) == shown_sliders + 6


def test_colours_of_the_tiers_are_those_of_the_figures():
    css = (FOLDER / "calculator.css").read_text("utf-8")
    assert dict(re.findall(r"\.tier-(\w+) \{\s+--tier: (#\w+);", css)) == style.TIER_COLOURS


@pytest.mark.skipif(not BUILT.exists(), reason="the book is not built (make paper)")
def test_the_script_is_on_its_page_and_on_no_other():
    pages = {
        path.name
        for path in BUILT.parent.glob("*.html")
        if "calculator.js" in path.read_text("utf-8")
    }
    assert pages == {"calculator.html"}
    assert "<noscript>" in BUILT.read_text("utf-8")


@needs_browser
@pytest.mark.skipif(not BUILT.exists(), reason="the book is not built (make paper)")
@pytest.mark.parametrize("setting", ["", "prefix=30000&ttft=2000&model=deepseek-v3", "ttft=20"])
def test_the_page_in_the_book_is_for_every_reader(tab, setting):
    tab.open(BUILT, 360)
    tab.evaluate(f"location.hash = '{setting}'")
    tab.evaluate(
        "document.querySelectorAll('.calculator details').forEach((part) => part.open = true)"
    )
    checks = Path(__file__).with_name("page_checks.js").read_text("utf-8")
    for width in (360, 1280):
        tab.resize(width)
        settle(tab)
        for scheme in ("dark", "light"):
            tab.emulate(scheme)
            found = tab.evaluate(checks)
            assert {check: faults for check, faults in found.items() if faults} == {}, (
                width,
                scheme,
            )
