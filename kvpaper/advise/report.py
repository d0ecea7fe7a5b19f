"""The answer for people: one list of blocks, written as plain text, Markdown or a page of HTML."""

import re
from html import escape
from pathlib import Path
from string import Template
from textwrap import fill
from typing import TYPE_CHECKING, Any

from kvpaper import data
from kvpaper.answers import CELLS, size

if TYPE_CHECKING:
    from kvpaper.scenario import Scenario

KINDS = {
    "predicted": "a formula gave it: slack, fetch times, the closed form of each cell",
    "simulated": "a replay of the log gave it: costs, rates, latencies, hits",
    "tabulated": "read from a planner's published tables: prefill and decode steps",
    "measured": "an instrument recorded it",
}
_CAPTIONS = {
    "cells": "Cost of each kind of fleet at its own best, with the band of the seeds (simulated), "
    "and its closed form (predicted).",
    "tiers": "What the target leaves for a fetch, and what a fetch takes without load, by length "
    "of the prefix (predicted). A tier in the shaded area may be waited for.",
}
_NEEDLESS = re.compile(r"\A.*?(?=<svg)|<metadata>.*?</metadata>| xmlns(:xlink)?=\"[^\"]*\"", re.S)
Block = tuple[str, Any]


def blocks(answer: dict[str, Any]) -> list[Block]:
    """What is told, in order: a tag of HTML and its content."""
    unit, stays = answer["saving"]["unit"], [one["told"] for one in answer["unchanged"]]
    cells = [[CELLS[name], usd(band)] for name, band in answer["cells"].items()]
    tiers = [[one["tier"], one["use"], size(one["bytes"])] for one in answer["decision"]["tiers"]]
    kinds = [[kind, str(answer["basis"][kind]), told] for kind, told in KINDS.items()]
    inputs = [[one[name] or "" for name in one] for one in answer["inputs"]]
    return [
        ("h1", f"What to buy for {answer['scenario']}"),
        ("p", answer["decision"]["told"]),
        ("ul", answer["reasons"]),
        ("h2", "What the four fleets cost"),
        ("figure", "cells"),
        ("table", (("fleet at its best", unit), cells)),
        ("h2", "What would change it"),
        (
            "ul",
            [one["told"] for one in answer["flips"]] or ["none of the inputs, each moved alone"],
        ),
        ("h2", "Over which ranges it was found to stay"),
        ("ul", stays),
        ("h2", "Tiers against slack"),
        ("table", (("tier", "use", "for the fleet"), tiers)),
        ("figure", "tiers"),
        ("h2", "What the numbers are"),
        ("table", (("kind", "numbers", "meaning"), kinds)),
        ("h2", "To keep in mind"),
        ("ul", answer["warnings"]),
        ("h2", "Inputs"),
        ("table", (("input", "value", "source", "date"), inputs)),
        ("h2", "Run it again"),
        ("pre", answer["command"]),
    ]


def usd(band: dict[str, float] | None) -> str:
    """A value with its band."""
    if band is None:
        return "misses the targets"
    return "{value:.3g} ({low:.3g} to {high:.3g})".format(**band)


def text(answer: dict[str, Any]) -> str:
    """The decision, its reasons, costs and flips, in some twenty lines."""
    told, ends = blocks(answer), "Over which ranges it was found to stay"
    lines: list[str] = []
    for tag, content in told[1 : told.index(("h2", ends))]:
        if tag == "ul":
            lines += [fill(one, 96, initial_indent="- ", subsequent_indent="  ") for one in content]
        elif tag == "table":
            widths = [max(map(len, column)) for column in zip(*content[1], strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in content[1]]
        elif tag in ("p", "h2"):
            lines.append(fill(content, 96) + ":" * (tag == "h2"))
    counts = [f"{count} {kind}" for kind, count in answer["basis"].items()]
    return "\n".join([*lines, f"It rests on numbers of these kinds: {', '.join(counts)}."])


def write(path: Path, answer: dict[str, Any], scenario: "Scenario") -> None:
    """Write the report whole, as .html or .md; figures of the latter come beside it first."""
    pictures = _pictures(answer, scenario)
    told = blocks(answer)
    if path.suffix == ".html":
        data.write_text(path, _page(answer["scenario"], told, pictures))
        return
    for name, picture in pictures.items():
        data.write_text(path.with_name(f"{path.stem}.{name}.svg"), picture)
    data.write_text(path, "\n\n".join(_markdown(path.stem, *block) for block in told) + "\n")


def _pictures(answer: dict[str, Any], scenario: "Scenario") -> dict[str, str]:
    import numpy as np

    from kvpaper import decision, evaluate, results
    from kvpaper.figures import combined, predicted
    from kvpaper.figures.style import as_svg

    at = {"model": answer["scenario"], "trace": answer["trace"]}
    cases = decision.cases(results.table(row | at for row in answer["rows"]))
    prefix = scenario.workload.prompt_tokens - scenario.workload.new_tokens
    lengths = np.linspace(256, max(512.0, 2.5 * prefix), 60)
    curves = results.joined(
        evaluate.slacks(scenario, lengths), evaluate.recoveries(scenario, lengths)
    )
    slack = predicted.slack(curves, scenario.slo.ttft_s)
    return {"cells": as_svg(combined.costs(cases)), "tiers": as_svg(slack)}


def _page(title: str, told: list[Block], pictures: dict[str, str]) -> str:
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    body = "\n".join(_element(*block, pictures) for block in told)
    return Template(page).substitute(title=escape(title), body=body)


def _element(tag: str, content: Any, pictures: dict[str, str]) -> str:
    if tag == "ul":
        content = "\n".join(f"<li>{escape(one)}</li>" for one in content)
    elif tag == "table":
        rows = [("th", content[0]), *(("td", row) for row in content[1])]
        head, *body = (
            f"<tr>{''.join(f'<{cell}>{escape(one)}</{cell}>' for one in row)}</tr>"
            for cell, row in rows
        )
        lines = "\n".join(body)
        table = f"<thead>{head}</thead>\n<tbody>\n{lines}\n</tbody>"
        return f'<div class="scroll" tabindex="0"><table>\n{table}\n</table></div>'
    elif tag == "figure":
        # Names in one picture must not meet those of another.
        drawn = _NEEDLESS.sub("", pictures[content])
        drawn = re.sub(r'( id="|href="#|url\(#)', rf"\1{content}-", drawn)
        caption = escape(_CAPTIONS[content])
        drawn = drawn.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)
        content = f"{drawn}\n<figcaption>{caption}</figcaption>"
    else:
        content = escape(content)
    return f"<{tag}>{content}</{tag}>"


def _markdown(stem: str, tag: str, content: Any) -> str:
    def plain(one: str) -> str:
        return re.sub(r"([\\`*_\[\]<>|#~$&])", r"\\\1", " ".join(one.splitlines()))

    if tag == "ul":
        return "\n".join(f"- {plain(one)}" for one in content)
    if tag == "table":
        rows = [content[0], ["---"] * len(content[0]), *content[1]]
        return "\n".join(f"| {' | '.join(map(plain, row))} |" for row in rows)
    if tag == "figure":
        return f"![](<{stem}.{content}.svg>)\n\n{plain(_CAPTIONS[content])}"
    if tag == "pre":
        return f"```\n{content}\n```"
    return {"h1": "# ", "h2": "## "}.get(tag, "") + plain(content)
