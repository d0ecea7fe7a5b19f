"""The ``calculator`` directive: the formulas of the package in the reader's browser.

The page is one script, made when the book is built: ``runtime.js``, the package's functions as
``translate`` writes them, the data that these read, the inputs of the scenario, and ``draw.js``
and ``page.js``, which show all that. It asks no other host and works from a file.
"""

from pathlib import Path
from typing import Any, get_args

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

from calculator import simulated
from calculator.ported import inputs, program, tables
from calculator.translate import literal
from kvpaper import answers, data, latency, models, scenario, units
from kvpaper.errors import InputError
from kvpaper.scenario import Scenario, Serving, TierName

_LOGGER = logging.getLogger(__name__)
_HERE = Path(__file__).resolve().parent


def field_path(loaded: Scenario, leaf: str) -> list[str] | None:
    """Names of the fields behind a key of the file; None where this scenario has no such part.

    >>> field_path(scenario.load("paper"), "hardware.tiers.nvme.read")
    ['hardware', 'tiers', 'nvme', 'read_bytes_per_s']
    """
    part, path = loaded, []
    for key in leaf.split("."):
        fields = getattr(type(part), "model_fields", {})
        name = next((name for name, info in fields.items() if info.alias == key), key)
        if name not in part if isinstance(part, dict) else not hasattr(part, name):
            return None
        part = part[name] if isinstance(part, dict) else getattr(part, name)
        path.append(name)
    return path


def _title(tier: str) -> str:
    return answers.TIERS[tier].removeprefix("the ")


def controls(scenarios: list[Scenario]) -> list[dict[str, Any]]:
    """The sliders, each with the fields that it sets and what its unit is in base units."""
    found = []
    for written in yaml.safe_load((_HERE / "controls.yaml").read_text("utf-8")):
        tiers = get_args(TierName) if "TIER" in written["key"] else (None,)
        for tier in tiers:
            control = {
                name: value.replace("TIER", _title(tier) if name == "label" else tier)
                if tier and isinstance(value, str)
                else value
                for name, value in written.items()
            }
            paths = (field_path(loaded, control["leaf"]) for loaded in scenarios)
            path = next(filter(None, paths), None)
            if path:
                base = 1 / units.per(1.0, control["unit"])
                found.append({**control, "tier": tier, "path": path, "base": base})
    return found


def _leaves(loaded: Scenario, *keys: str) -> dict[str, dict[str, str]]:
    return {leaf["input"]: leaf for leaf in loaded.inputs(keys or loaded.leaves)}


def _presets(scenarios: list[Scenario]) -> list[dict[str, Any]]:
    """Every hardware with its link, once, with the sources of its values."""
    found = []
    for loaded in scenarios:
        hardware, transfer = loaded.hardware.model_dump(), loaded.serving.transfer.model_dump()
        if any((part["hardware"], part["transfer"]) == (hardware, transfer) for part in found):
            continue
        label = f"{hardware['gpus']} x {hardware['name']}"
        if any(part["label"] == label for part in found):
            label += f" ({loaded.name})"
        found.append(
            {
                "key": loaded.name,
                "label": label,
                "hardware": hardware,
                "transfer": transfer,
                "leaves": _leaves(loaded, "hardware", "serving.transfer"),
            }
        )
    return found


def _rate(scenarios: list[Scenario]) -> dict[str, Any]:
    """The first prefill rate that a scenario states, for models without a table."""
    for loaded in scenarios:
        if loaded.serving.prefill.flops_per_s is not None:
            leaf = _leaves(loaded, "serving.prefill.rate")
            return {"flops_per_s": loaded.serving.prefill.flops_per_s, "leaves": leaf}
    return {"flops_per_s": None, "leaves": {}}


def page(name: str) -> dict[str, Any]:
    """All that ``page.js`` shows, for the book of this scenario.

    Raises
    ------
    InputError
        If a scenario or a model cannot be read.
    """
    others = [other for other in data.names("scenarios") if other != name]
    scenarios = [scenario.load(each) for each in (name, *others)]
    built, shipped = scenarios[0], {key: models.load(key) for key in data.names("models")}
    own = next((key for key, model in shipped.items() if model.name == built.model.name), "own")
    titles = {own: built.model} | shipped
    return {
        "scenario": inputs(built),
        "leaves": _leaves(built),
        "model": own,
        "models": {key: model.name.rpartition("/")[2] for key, model in titles.items()},
        "presets": _presets(scenarios),
        "rate": _rate(scenarios),
        "tables": [
            {
                "name": name,
                "model": models.load(latency.instances()[name].model).name,
                "gpus": latency.prefill_table(name).gpus,
            }
            for name in tables(built)
        ],
        "controls": controls(scenarios),
        "elements": get_args(Serving.model_fields["element"].annotation),
        "tiers": {tier: [_title(tier), answers.TIERS[tier]] for tier in get_args(TierName)},
        "times": [[text, 1 / units.per(1.0, text)] for text in units.TIMES],
        "cases": simulated.cases(built),
        "rent_unit": 1 / units.per(1.0, "USD/GB/month"),
        "sizes": [[text, 1 / units.per(1.0, text)] for text in units.SIZES],
    }


def script(name: str) -> str:
    """The whole script of the page, for the book of this scenario.

    Raises
    ------
    InputError
        If a scenario or a model cannot be read, or a function cannot be translated.
    """
    parts = [
        program(tables(scenario.load(name))),
        *((_HERE / name).read_text("utf-8") for name in ("draw.js", "page.js")),
        f"show({literal(page(name))});",
    ]
    return "\n".join(["(() => {", '"use strict";', *parts, "})();", ""])


class calculator(nodes.General, nodes.Element):
    """The place of the page."""


def visit_calculator(translator: HTML5Translator, node: calculator) -> None:
    """The page, or where it is found: on paper nothing moves."""
    if translator.builder.name == "html":
        translator.body.append(
            '<div id="calculator" class="calculator"></div>\n<noscript><p>This page computes in '
            "the browser and needs JavaScript. The rest of the book does not: its chapters hold "
            "the same results for the inputs of its scenario.</p></noscript>\n"
        )
    else:
        translator.body.append("<p>On paper it stands still; open it in the book.</p>\n")
    raise nodes.SkipNode


class Calculator(SphinxDirective):
    """Put the page here, and its script and style beside the other static files."""

    def run(self) -> list[nodes.Node]:
        try:
            made = script(self.config.kvpaper_scenario)
        except InputError as error:
            _LOGGER.warning("calculator: %s", error, location=self.get_location())
            return []
        static = Path(self.env.app.outdir, "_static")
        static.mkdir(parents=True, exist_ok=True)
        (static / "calculator.js").write_text(made, encoding="utf-8")
        style = (_HERE / "calculator.css").read_text("utf-8")
        (static / "calculator.css").write_text(style, encoding="utf-8")
        return [calculator()]


def add_files(app: Sphinx, page: str, template: str, context: dict, doctree: Any) -> None:
    """Script and style on the page that has the node, and on no other."""
    if app.builder.name == "html" and doctree and next(doctree.findall(calculator), None):
        app.add_css_file("calculator.css")
        app.add_js_file("calculator.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(calculator, html=(visit_calculator, None))
    app.add_directive("calculator", Calculator)
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
