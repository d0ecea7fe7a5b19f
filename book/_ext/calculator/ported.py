"""What the page computes with: functions of the package in JavaScript, and what they read."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from calculator.translate import Translation, literal
from kvpaper import data, evaluate, latency, models
from kvpaper.scenario import Scenario

HERE = Path(__file__).resolve().parent
ANSWERS = (
    evaluate.sizes,
    evaluate.recoveries,
    evaluate.crossovers,
    evaluate.loads,
    evaluate.slacks,
    evaluate.costs,
    evaluate.capacities,
    evaluate.intervals,
)
_READERS = {
    latency.prefill_table: "$tables",
    latency.instances: "$instances",
    models.load: "$models",
}
_VALUES = (models.Model, models.LayerGroup, latency.Instance, latency.PrefillTable)


def translation() -> Translation:
    """Every function that the page calls.

    Raises
    ------
    InputError
        If one cannot be translated; it names file and line.
    """
    translated = Translation(_READERS, _VALUES)
    for function in ANSWERS:
        translated.add(function)
    return translated


def tables(scenario: Scenario) -> list[str]:
    """Instances whose prefill the page knows: the usual ones, and that of the scenario."""
    named = scenario.serving.prefill.table
    usual = [instance.name for instance in latency.usual()]
    return list(dict.fromkeys([named, *usual] if named else usual))


def program(instances: list[str]) -> str:
    """The script without the page: ``formulas`` holds the functions, by their names."""
    translated = translation()
    public = ", ".join(f"{function.__name__}: {translated.add(function)}" for function in ANSWERS)
    prefills = ", ".join(
        f"{literal(name)}: {_fields(latency.prefill_table(name))}" for name in instances
    )
    shipped = {name: dataclasses.asdict(models.load(name)) for name in data.names("models")}
    rows = {name: dataclasses.asdict(latency.instances()[name]) for name in instances}
    return "\n".join(
        [
            (HERE / "runtime.js").read_text("utf-8"),
            translated.text(),
            f"const $tables = ((all) => (name) => all[name])({{{prefills}}});",
            f"const $instances = ((all) => () => all)({literal(rows)});",
            f"const $models = ((all) => (name) => all[name])({literal(shipped)});",
            f"const formulas = {{{public}}};",
        ]
    )


def inputs(scenario: Scenario) -> dict[str, Any]:
    """A scenario as its functions read it, without lines and sources."""
    fields = {field.name for field in dataclasses.fields(scenario)} - {"file", "leaves", "lines"}
    parts = {name: getattr(scenario, name) for name in sorted(fields)}
    parts["model"] = dataclasses.asdict(scenario.model)
    return {
        name: part.model_dump() if hasattr(part, "model_dump") else part
        for name, part in parts.items()
    }


def _fields(table: latency.PrefillTable) -> str:
    fields = {
        name: f"$.asarray({literal(value)})" if isinstance(value, np.ndarray) else literal(value)
        for name, value in dataclasses.asdict(table).items()
    }
    return f"{{{', '.join(f'{name}: {text}' for name, text in fields.items())}}}"
