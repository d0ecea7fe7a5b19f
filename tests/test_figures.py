import re

import made_up_grid
import numpy as np
import pytest

from kvpaper import decision, evaluate, figures, published, results, scenario
from kvpaper.figures import combined, predicted, reports, style


@pytest.fixture(scope="module")
def paper():
    return scenario.load("paper")


def drawn(paper):
    """Every figure of the formulas and of the reports, by name."""
    table = results.table
    chart, lengths = evaluate.gigabyte_chart(paper), np.geomspace(256, 65536, 9)
    reported = [{"class": "kv_cache", "process": "worker"}, {"class": "shm", "process": "worker"}]
    return {
        "kv_bytes": predicted.kv_bytes(
            table(evaluate.cache_sizes(["gpt-oss-120b", "deepseek-v3", "kimi-k2"], [64, 1024])),
            "gpt-oss-120b",
        ),
        "chart": predicted.recovery_chart(table(chart), published.fetch_times(table(chart))),
        "lengths": predicted.recovery_lengths(
            table(evaluate.recoveries(paper, lengths)), table(evaluate.crossovers(paper))
        ),
        "slack": predicted.slack(
            results.joined(evaluate.slacks(paper, lengths), evaluate.recoveries(paper, lengths)),
            0.3,
        ),
        "break_even": predicted.break_even(
            table(evaluate.capacities(paper, [0.2, 0.5, 0.8])), paper.workload.working_set_bytes
        ),
        "intervals": predicted.intervals(table(evaluate.intervals_by_model(paper))),
        "needed_rates": predicted.needed_rates(
            table(evaluate.needed_rates(paper)), {"nvme": 3e9, "dram": 64e9}
        ),
        "taxonomy": reports.taxonomy(table(results.counted(reported, ["class", "process"]))),
        **four_cells(decision.cases(made_up_grid.table())),
    }


def four_cells(cases):
    """Every figure of the chapter on the four cells."""
    grid = decision.main(cases)
    return {
        "regimes": combined.regimes(cases),
        "costs": combined.costs(decision.base(cases)),
        "divergence": combined.divergence(decision.ratios(grid), decision.NEAR, grid),
        "inputs": combined.sensitivities(cases, "Qwen3-235B-A22B"),
        "disk": combined.disk(cases),
    }


def texts(figure):
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text"))]


def test_the_same_rows_give_the_same_bytes(paper, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "FOLDER", tmp_path)
    for name, figure in drawn(paper).items():
        figures.save(figure, "first", name)
    for name, figure in drawn(paper).items():
        figures.save(figure, "second", name)
        for suffix in ("svg", "png"):
            one, two = (
                (tmp_path / run / f"{name}.{suffix}").read_bytes() for run in ("first", "second")
            )
            assert one == two, (name, suffix)
    assert not list(tmp_path.rglob(".*"))
    svg = (tmp_path / "first" / "chart.svg").read_text("utf-8")
    assert not re.search(r"\d{4}-\d\d-\d\dT|dc:date", svg)


def test_the_gap_and_the_printed_values_are_marked(paper):
    said = texts(drawn(paper)["chart"])
    assert "1,600x" in said
    assert {"208 µs", "333 ms", "published by the paper"} <= set(said)


def test_models_with_the_same_line_share_a_name(paper):
    assert "DeepSeek-V3, Kimi-K2" in texts(drawn(paper)["kv_bytes"])


def test_printed_values_are_marked_only_where_the_rates_are_those_of_the_paper():
    moe = results.table(evaluate.gigabyte_chart(scenario.load("h200-moe")))
    assert published.fetch_times(moe).empty
    assert "published by the paper" not in texts(
        predicted.recovery_chart(moe, published.fetch_times(moe))
    )


def test_tiers_are_marked_and_models_named_with_their_gpus(paper):
    said = texts(drawn(paper)["needed_rates"])
    assert {"DeepSeek-V3 (8 GPUs)", "Llama-3.1-8B (1 GPU)", "NVMe"} <= set(said)


def test_text_is_large_enough_for_a_phone(paper):
    """At 360 px a figure of 4.4 inches shrinks to 3.4, and 8 points to 6."""
    for name, figure in drawn(paper).items():
        figure.canvas.draw()
        assert figure.get_figwidth() <= 4.4, name
        sizes = [
            text.get_fontsize()
            for text in figure.findobj(lambda part: hasattr(part, "get_fontsize"))
            if text.get_text() and "mathdefault" not in text.get_text()
        ]
        assert min(sizes) >= 8, name


def test_bands_and_branches(paper):
    figure = drawn(paper)["break_even"]
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert np.all(np.diff(lines["NVMe"]) > 0)
    assert lines["host DRAM"][-1] < lines["host DRAM"][0]


def test_the_map_tells_what_is_sure_what_is_not_and_what_is_infeasible():
    cases = decision.cases(made_up_grid.table())
    grid = decision.main(cases)
    panels = combined.regimes(cases).axes
    assert len(panels) == 4
    hollow = full = 0
    for marks in (mark for axes in panels for mark in axes.collections):
        white = len(marks.get_facecolors()) and np.allclose(marks.get_facecolors()[0, :3], 1)
        hollow, full = (
            hollow + white * len(marks.get_offsets()),
            full + (not white) * len(marks.get_offsets()),
        )
    sure = (grid.saved_low > 0) | (grid.cheapest.notna() & grid.over.isna())
    assert (full, hollow) == (sure.sum(), (grid.cheapest.notna() & ~sure).sum())
    crosses = sum(
        len(line.get_xdata()) for axes in panels for line in axes.lines if line.get_marker() == "x"
    )
    assert crosses == grid.cheapest.isna().sum()


def test_figures_of_the_four_cells_say_when_there_is_nothing_to_draw():
    cases = decision.cases(made_up_grid.table(made_up_grid.case(made_up_grid.costs(1, 1, 1))))
    for figure in four_cells(cases[:0]).values():
        assert any("Nothing to draw" in text for text in texts(figure))
    missed = made_up_grid.case(dict.fromkeys(made_up_grid.CELLS, np.inf), model="A", trace="t")
    assert "misses the targets" in texts(combined.costs(decision.cases(made_up_grid.table(missed))))
