import json

import numpy as np
import pytest
from at_hand import TRACES
from direct_replay import replay

from kvpaper import answers, evaluate, results, scenario
from kvpaper.errors import InputError
from kvpaper.reuse import chapter, curve
from kvpaper.reuse.distances import stack_distances
from kvpaper.traces import fetch, generated


def test_committed_rows_are_those_of_the_published_files():
    rows = chapter.public()
    assert set(rows.trace) == set(fetch.TRACES)
    for name, part in rows.groupby("trace"):
        assert set(part.trace_sha256) == {fetch.TRACES[name][0].sha256}
    assert set(rows.kind) == {"simulated", "predicted"}


def test_committed_rows_are_made_anew_from_the_published_files():
    if None in (fetch.fetched(name, TRACES) for name in fetch.TRACES):
        pytest.skip("traces not fetched")
    committed = chapter.public()
    break_even_s = tuple(committed.break_even_s.dropna().unique())
    made = results.table(chapter.public_rows(TRACES, break_even_s))
    assert (made.quantity == committed.quantity).all()
    assert made.value.to_numpy() == pytest.approx(committed.value.to_numpy(), rel=1e-8, nan_ok=True)


@pytest.mark.parametrize(
    ("trace", "rates"),
    [
        ("mooncake_conversation", {1_000: 0.0445, 10_000: 0.2116, 30_000: 0.3257}),
        ("mooncake_synthetic", {1_000: 0.0841, 10_000: 0.4239, 30_000: 0.6242}),
    ],
)
def test_committed_curves_pass_through_the_known_points(trace, rates):
    rows = chapter.public()
    line = rows[(rows.trace == trace) & (rows.quantity == "hit_rate") & (rows.rate == "block")]
    for capacity, expected in rates.items():
        found = np.interp(np.log(capacity), np.log(line.capacity_blocks), line.value)
        assert found == pytest.approx(expected, abs=0.004)


def test_a_scenario_without_a_trace_gets_a_generated_one_that_says_so():
    rows = chapter.of_scenario(None)
    assert set(rows.trace) == {"generated"}
    assert results.table(rows.to_dict("records")).kind.isin(["simulated", "predicted"]).all()


def test_generated_trace_is_the_same_every_time_and_obeys_a_replay():
    one, two = generated.conversations(60, 3), generated.conversations(60, 3)
    assert np.array_equal(one.blocks, two.blocks)
    hits = curve.hit_curve(one, stack_distances(one))
    for capacity in (1, 20, 300):
        assert replay(one, capacity).sum() / one.references == pytest.approx(hits.at(capacity))


def test_a_log_by_path_is_read(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [
        {
            "timestamp": 1000 * i,
            "input_length": 1024,
            "output_length": 5,
            "hash_ids": [0, 1 + i % 2],
        }
        for i in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    rows = chapter.of_scenario(str(path))
    assert set(rows.trace) == {"mine"}
    ceiling = rows[(rows.quantity == "ceiling") & (rows.rate == "block")].value.iloc[0]
    assert ceiling == pytest.approx((80 - 3) / 80)


def test_an_unknown_trace_is_refused_by_its_key():
    with pytest.raises(InputError, match=r"workload.trace: found 'mooncaek', expected a path or"):
        chapter.of_scenario("mooncaek")


def test_answer_follows_from_the_rows():
    public, case = chapter.public(), scenario.load("paper")
    marks = results.table(evaluate.blocks(case))
    conversation = public[public.trace == "mooncake_conversation"].reset_index(drop=True)
    components = public[public.trace == "ragpulse"].reset_index(drop=True)
    assert "is refused on it, even with an exponent of 0.29" in answers.reuse(
        conversation, public, marks
    )
    said = answers.reuse(components, public, marks)
    assert "The closed form may be used on it with an exponent of 0.18" in said
    dear = marks.assign(value=marks.value.where(marks.quantity != "price_per_block", 1e9))
    assert "no NVMe is worth buying" in answers.reuse(components, public, dear)


def test_price_of_a_block_by_hand():
    case = scenario.load("paper")
    blocks = evaluate.blocks(case)
    rows = {
        (row["quantity"], row.get("tier")): row["value"]
        for row in blocks
        if row.get("band", "middle") == "middle"
    }
    costs = {(row["quantity"], row.get("tier")): row["value"] for row in evaluate.costs(case)}
    assert rows["block_bytes", None] == 512 * 131_072
    rent = costs["rent_usd_per_byte_s", "nvme"] * 512 * 131_072
    benefit = 2 * 8000 * costs["value_usd_per_token", None] * costs["share_of_value", "nvme"]
    assert rows["price_per_block", "nvme"] == pytest.approx(rent / benefit)
    bands = {
        row["band"]: row["value"] for row in blocks if row.get("tier") == "dram" and "band" in row
    }
    assert bands["high"] < bands["middle"] < bands["low"]
