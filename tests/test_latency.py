import hashlib
import runpy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpaper import data, latency, models
from kvpaper.errors import InputError
from kvpaper.formulas.decode import decode_step_time, weight_bytes

FOLDER = data.FOLDER / "latency"
USUAL = [instance.name for instance in latency.usual()]
INSTANCES = latency.instances()


def columns(table, part):
    """Rows of a table's file, as text, keyed by its header."""
    return data.table(f"latency/{table}.{part}.csv")


DERIVE = runpy.run_path(str(FOLDER / "derive.py"))


def test_files_are_those_that_were_derived():
    sums = dict(
        reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text("utf-8").splitlines()
    )
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.csv")
    }
    assert sum(path.stat().st_size for path in FOLDER.glob("*.csv")) < 600_000


def test_the_instances_are_those_of_the_script_that_derives_them():
    declared = {each[0]: each[3:] for each in DERIVE["instances"]()}
    assert declared == {each.name: (each.parallelism, each.element) for each in INSTANCES.values()}
    for name, (parallelism, _) in declared.items():
        ranks = DERIVE["ranks"](parallelism)
        assert INSTANCES[name].gpus == ranks["tp"] * ranks["dp"]
        assert INSTANCES[name].ranks == ranks["dp"]
        assert ranks["etp"] * ranks["ep"] in (1, INSTANCES[name].gpus)
        assert INSTANCES[name].kv_tokens < INSTANCES[name].decode_kv_tokens


@pytest.mark.parametrize("table", USUAL)
@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_points_of_the_file_come_back(table, part):
    rows = columns(table, part)[::7]
    first, second, *names = rows[0]
    at = [np.array([float(row[axis]) for row in rows]) for axis in (first, second)]
    assert len(names) == sum(instance.table == table for instance in INSTANCES.values())
    for name in names:
        usual = name == INSTANCES[table].parallelism
        instance = table if usual else f"{table}/{name}"
        if part == "prefill":
            there = latency.prefill_table(instance).prefill_time(*at)
        else:
            there = latency.decode_table(instance).step_time(*at)
        assert there == pytest.approx([float(row[name]) / 1e3 for row in rows], rel=1e-12)


@given(st.floats(1, 131072), st.floats(0, 131072))
def test_between_points_stays_within_the_neighbours(new, cached):
    table = latency.prefill_table("qwen3-30b-a3b")
    value = table.prefill_time(new, cached)
    row = np.clip(np.searchsorted(table.new_tokens, new), 1, len(table.new_tokens) - 1)
    column = np.clip(np.searchsorted(table.cached_tokens, cached), 1, len(table.cached_tokens) - 1)
    corners = table.seconds[row - 1 : row + 1, column - 1 : column + 1]
    assert corners.min() * (1 - 1e-12) <= value <= corners.max() * (1 + 1e-12)


def test_a_middle_by_hand():
    table = latency.DecodeTable(
        "by hand", np.array([1.0, 3.0]), np.array([0.0, 4.0]), np.array([[1.0, 2.0], [5.0, 9.0]]), 1
    )
    assert table.step_time(2, 1) == pytest.approx(0.75 * (1 + 5) / 2 + 0.25 * (2 + 9) / 2)
    assert table.step_time([1, 3], [0, 4]) == pytest.approx([1, 9])


def test_arrays_in_arrays_out():
    table = latency.prefill_table("deepseek-v3")
    both = table.prefill_time(np.array([100.0, 5000.0]), 2000.0)
    assert both == pytest.approx(
        [table.prefill_time(100.0, 2000.0), table.prefill_time(5000.0, 2000.0)]
    )


@pytest.mark.parametrize(("new", "cached"), [(200_000, 0), (1, 200_000), (0, 0), (float("nan"), 0)])
def test_what_was_not_tabulated_is_refused(new, cached):
    with pytest.raises(ValueError, match="expected"):
        latency.prefill_table("deepseek-v3").prefill_time(new, cached)


@pytest.mark.parametrize(("batch", "context"), [(1025, 256), (0.5, 256), (1, 200_000), (1, 0)])
def test_a_step_that_was_not_tabulated_is_refused(batch, context):
    with pytest.raises(ValueError, match="expected"):
        latency.decode_table("deepseek-v3").step_time(batch, context)


def test_a_continued_prefill_says_so_and_follows_the_work_of_attention():
    new, cached = np.array([1.0, 2.0, 4.0]), np.array([0.0, 8.0])
    seconds = 1 + 2 * new[:, None] + new[:, None] ** 2 + 3 * new[:, None] * cached
    table = latency.PrefillTable("by hand", new, cached, seconds, 1)
    further = table.extended(64, 32)
    assert (table.kind, further.kind) == ("tabulated", "predicted")
    assert further.prefill_time(64, 32) == pytest.approx(1 + 2 * 64 + 64**2 + 3 * 64 * 32)
    assert further.prefill_time(3, 5) == table.prefill_time(3, 5)
    assert table.extended(3, 5) is table


def test_a_continued_decode_step_says_so_and_goes_on_as_a_line():
    batch, context = np.array([1.0, 2.0]), np.array([0.0, 100.0])
    seconds = 1 + batch[:, None] * (2 + context / 10)
    table = latency.DecodeTable("by hand", batch, context, seconds, 1)
    further = table.extended(50, 3000)
    assert further.kind == "predicted"
    assert further.step_time(33, 2345) == pytest.approx(1 + 33 * (2 + 234.5))
    with pytest.raises(ValueError, match="batch: found 51"):
        further.step_time(51, 100)


@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_every_table_is_continued_upwards_and_to_the_very_end(name):
    end = 300_007.0
    prefill = latency.prefill_table(name).extended(end, end)
    decode = latency.decode_table(name).extended(3001, end)
    assert np.all(np.diff(prefill.seconds[-5:], axis=0) > 0)
    assert np.all(np.diff(prefill.seconds[-8:, -5:], axis=1) > 0)
    assert prefill.prefill_time(end, end) == prefill.seconds[-1, -1]
    assert decode.step_time(3001, end) == decode.seconds[-1, -1]


@pytest.mark.parametrize("name", USUAL)
def test_a_table_cut_in_half_is_continued_close_to_what_was_cut_off(name):
    table = latency.prefill_table(name)
    rows, across = table.new_tokens <= 65536, table.cached_tokens <= 65536
    half = latency.PrefillTable(
        name, table.new_tokens[rows], table.cached_tokens[across], table.seconds[rows][:, across], 1
    )
    for new, cached in ((131072, 0), (131072, 65536), (8192, 131072)):
        there = half.extended(131072, 131072).prefill_time(new, cached)
        assert there == pytest.approx(table.prefill_time(new, cached), rel=0.07)


@pytest.mark.parametrize("name", sorted(INSTANCES))
def test_more_work_takes_longer_but_where_the_source_says_less(name):
    """The source joins measured pieces; README.md says where its times fall."""
    prefill, decode = latency.prefill_table(name), latency.decode_table(name)
    for axis, most in (("new_tokens", 0.1), ("cached_tokens", 0.2)):
        steps = np.diff(prefill.seconds, axis=axis == "cached_tokens")
        assert np.mean(steps < 0) < most, axis
    for axis, most in (("batch", 0.12), ("context", 0.05)):
        steps = np.diff(decode.seconds, axis=axis == "context")
        assert np.mean(steps < 0) < most, axis
    doubled = 2.0 ** np.arange(9, 18)
    assert np.all(np.diff(prefill.prefill_time(doubled)) > 0)
    assert np.all(np.diff(prefill.prefill_time(4096, doubled)) > 0)
    assert np.all(np.diff(decode.step_time(2.0 ** np.arange(4, 11), 8192)) > 0)
    assert np.all(np.diff(decode.step_time(64, doubled)) > 0)


@pytest.mark.parametrize("table", USUAL)
def test_a_cache_of_half_the_bytes_holds_twice_the_tokens(table):
    full, half = latency.ways(table), latency.ways(table, "fp8")
    assert [each.parallelism for each in full] == [each.parallelism for each in half]
    assert full[0].name == table
    for wide, narrow in zip(full, half, strict=True):
        assert narrow.kv_tokens == pytest.approx(2 * wide.kv_tokens, rel=1e-4)
        assert narrow.kv_bytes_per_token_per_gpu == wide.kv_bytes_per_token_per_gpu / 2


@pytest.mark.parametrize("name", [name for name in USUAL if name != "gpt-oss-120b"])
def test_the_source_counts_the_cache_as_this_repository_does(name):
    """All but gpt-oss-120b, whose window layers it counts as full per token (README.md)."""
    instance = latency.instance(name)
    ranks = DERIVE["ranks"](instance.parallelism)
    size = models.size(models.load(instance.model), tensor_parallel=ranks["tp"])
    assert instance.kv_bytes_per_token_per_gpu == size["kv_bytes_per_token_per_rank"]


def mixed_step_time(prefill, decode, new_tokens, cached_tokens, batch, context):
    """Time of a step that prefills and decodes at once [s], as the replay composes it.

    All tokens go through the weights together; the attention of the decoding sequences, by which
    a decode step grows with its context, comes on top.
    """
    attention = decode.step_time(batch, context) - decode.step_time(batch, decode.context[0])
    return prefill.prefill_time(np.add(new_tokens, batch), cached_tokens) + attention


def test_a_mixed_step_by_hand():
    prefill = latency.PrefillTable(
        "by hand",
        np.array([1.0, 101.0]),
        np.array([0.0, 1.0]),
        np.array([[1.0, 1.0], [11.0, 11.0]]),
        1,
    )
    decode = latency.DecodeTable(
        "by hand", np.array([1.0, 9.0]), np.array([1.0, 3.0]), np.array([[1.0, 2.0], [3.0, 8.0]]), 1
    )
    # 60 + 1 tokens take 7, and the decoding sequence's attention half of 2 - 1.
    assert mixed_step_time(prefill, decode, 60, 0, 1, 2) == pytest.approx(7.5)


def test_mixed_steps_are_close_to_those_of_the_source():
    """Latent attention apart: there the source leaves the decoding sequences' attention out."""
    rows = [row for row in data.table("latency/mixed.csv") if "deepseek" not in row["instance"]]
    assert len(rows) > 100
    for row in rows:
        new, cached, batch, context = (
            float(row[name]) for name in ("new_tokens", "cached_tokens", "batch", "context")
        )
        prefill = latency.prefill_table(row["instance"])
        decode = latency.decode_table(row["instance"])
        here = mixed_step_time(prefill, decode, new, cached, batch, context)
        assert here == pytest.approx(float(row["ms"]) / 1e3, rel=0.05 if new < 2048 else 0.03)


# Bytes of a weight and peak rate [FLOP/s] of the products of each table; a weight in mxfp4 takes
# a little more than half a byte.
PEAK = {"qwen3-235b-fp8": (1, 1978e12), "deepseek-v3": (1, 1978e12), "gpt-oss-120b": (0.5, 989e12)}


@pytest.mark.parametrize("instance", latency.usual(), ids=USUAL)
def test_theory_no_step_is_shorter_than_its_roofline(instance):
    table, model = latency.decode_table(instance.name), models.load(instance.model)
    weight_element_bytes, flops_per_s = PEAK.get(instance.name, (2, 989e12))
    batch = table.batch[:, None]
    held = [float(models.cache_bytes(model.groups, tokens, "bf16")) for tokens in table.context]
    share = (model.experts_per_token or 1) / (model.experts or 1)
    params = model.total_params, model.active_params
    read = weight_bytes(batch, *params, share, weight_element_bytes)
    rates = 4.8e12 * instance.gpus, flops_per_s * instance.gpus
    step = decode_step_time(batch, np.array(held), read, model.active_params, *rates)
    fits = batch * table.context <= instance.decode_kv_tokens
    reached = (step / table.seconds)[fits]
    assert reached.max() <= 1
    assert reached.max() > 0.4, "a bound that is never near says nothing"


def named(row, pool):
    """The instance of a pool of the planner's answer."""
    suffix = "" if row["element"] == "bf16" else f"-{row['element']}"
    usual = row[pool] == latency.instance(row["model"]).parallelism and not suffix
    return latency.instance(row["model"] if usual else f"{row['model']}/{row[pool]}{suffix}")


def one_pool(row, step_tokens=8000, sent=499):
    """The planner's arithmetic for one pool, as README.md tells it: tokens/s/GPU, TTFT, TPOT."""
    instance, batch = named(row, "decode"), int(row["decode_batch"])
    prefill, decode = latency.prefill_table(instance.name), latency.decode_table(instance.name)
    alone = tpot = decode.step_time(batch, 8251)
    mixed = prefill.prefill_time(step_tokens)
    if batch > 1:
        mixed = mixed_step_time(prefill, decode, step_tokens, 0, batch - 1, 8250)
        tpot = (batch * mixed + (500 - batch) * alone) / 500
    dispatch = 0.0008 * models.load(instance.model).layers
    ttft = (mixed + dispatch) * min(1 + np.log2(batch) / 8, 2)
    running = int(row["decode_instances"]) * instance.ranks * batch
    return running * sent / (ttft + sent * tpot) / 16, ttft, tpot


def two_pools(row, factors=(1.1, 1.08, 0.9, 0.92), sent=499):
    """The same for two pools; its factors raise prefill and step, and lower either rate."""
    slower_prefill, slower_step, prefill_share, decode_share = factors
    prefill, decode = named(row, "prefill"), named(row, "decode")
    computed = slower_prefill * latency.prefill_table(prefill.name).prefill_time(8000)
    batch = int(row["decode_batch"])
    tpot = slower_step * latency.decode_table(decode.name).step_time(batch, 8250)
    prefilled = prefill_share * int(row["prefill_instances"]) * prefill.ranks / computed
    decoded = decode_share * int(row["decode_instances"]) * decode.ranks * batch / (sent * tpot)
    return min(prefilled, decoded) * 500 / 16, 1.8 * computed, tpot


def test_the_planners_own_answers_follow_from_the_tables():
    """Every one of its best configurations, recomputed from the tables and its arithmetic."""
    rows = data.table("latency/verdict.csv")
    assert len(rows) == 56
    for row in rows:
        assert row["prefill_batch"] == "1" or row["pools"] == "one"
        here = one_pool(row) if row["pools"] == "one" else two_pools(row)
        said = [float(row[key]) for key in ("tokens_per_s_per_gpu", "ttft_ms", "tpot_ms")]
        assert here == pytest.approx([said[0], said[1] / 1e3, said[2] / 1e3], rel=0.01), row


@pytest.mark.parametrize(
    ("model", "element", "gain"), [("qwen3-235b-fp8", "fp8", 1.93), ("gpt-oss-120b", "bf16", 0.97)]
)
def test_the_planner_splits_one_model_and_not_the_other_by_its_factors(model, element, gain):
    one, two = (
        row
        for row in data.table("latency/verdict.csv")
        if (row["model"], row["element"], row["tpot_slo_ms"]) == (model, element, "40")
    )
    said = [float(row["tokens_per_s_per_gpu"]) for row in (one, two)]
    assert said[1] / said[0] == pytest.approx(gain, abs=0.005)
    assert two_pools(two, factors=(1, 1, 1, 1))[0] / one_pool(one)[0] > 1.15


def test_unknown_table_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'deepseek-v3'"):
        latency.prefill_table("deepseek-v33")


def test_unknown_parallelism_names_those_there_are():
    with pytest.raises(InputError, match=r"one of llama-3\.1-70b, llama-3\.1-70b/tp2, "):
        latency.decode_table("llama-3.1-70b/tp3")
