"""From a scenario to a fleet."""

import numpy as np
import pytest

from kvpaper import data, evaluate, latency, scenario
from kvpaper.errors import InputError
from kvpaper.serving import build
from kvpaper.traces.generated import conversations

MOE = (data.FOLDER / "scenarios" / "h200-moe.yaml").read_text(encoding="utf-8")


def edited(folder, section, old="", new=""):
    path = folder / "mine.yaml"
    path.write_text(MOE.replace(old, new) + section, encoding="utf-8")
    return scenario.load(str(path))


def test_a_scenario_without_a_fleet_is_one_instance():
    loaded = scenario.load("h200-moe")
    one = build.fleet(loaded)
    instance = latency.instance("qwen3-235b-fp8")
    assert one.decode is None
    assert one.prefill.instances == 1
    assert (one.prefill.gpus, one.prefill.kv_tokens) == (instance.gpus, instance.kv_tokens)
    assert one.kv_bytes_per_token == evaluate.slope(loaded)
    assert [tier.name for tier in one.tiers] == ["dram", "nvme"]  # no price for the remote one
    assert one.transfer_layers == loaded.model.layers


def test_pools_with_a_parallelism_each(tmp_path):
    """Ranks of attention data parallelism serve each for themselves, on their share of all."""
    loaded = edited(
        tmp_path,
        """
fleet:
  prefill: {instances: 2, table: qwen3-235b-fp8/tp2etp2}
  decode: {instances: 1, table: qwen3-235b-fp8/tp1dp8ep8}
  router: session
  prefetch: previous turn
""",
    )
    two = build.fleet(loaded)
    assert (two.prefill.instances, two.prefill.gpus) == (2, 2)
    assert (two.decode.instances, two.decode.gpus) == (8, 1)
    assert two.gpus == 12
    assert two.decode.kv_tokens == latency.instance("qwen3-235b-fp8/tp1dp8ep8").decode_kv_tokens
    assert (two.router, two.prefetch_lead_s) == ("session", np.inf)
    # The scenario states its tiers and its link for an instance of four GPUs.
    assert two.tiers[0].capacity_bytes == loaded.hardware.tiers["dram"].capacity_bytes / 2
    assert two.prefill.link_bytes_per_s == 100e9
    assert two.decode.link_bytes_per_s == 50e9


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("fleet: {prefill: {table: deepseek-v3}}", "fleet.prefill.table: found deepseek-v3"),
        ("fleet: {prefill: {table: qwen3-235b-fp8/tp9}}", "tp9"),
        ("fleet: {decode: {table: qwen3-235b-fp8/tp8ep8-fp8}}", "a table of fp8"),
        ("fleet: {router: fastest}", "fleet.router"),
        ("fleet: {prefill: {instances: 0}}", "fleet.prefill.instances"),
        ("fleet: {rate: 0}", "fleet.rate"),
    ],
)
def test_a_fleet_that_does_not_fit_is_refused(tmp_path, section, message):
    with pytest.raises(InputError) as error:
        build.fleet(edited(tmp_path, section))
    assert message in str(error.value)


def test_a_model_without_a_table_has_predicted_latencies():
    loaded = scenario.load("paper")
    one = build.fleet(loaded)
    prefill, decode = one.prefill.prefill_table, one.prefill.decode_table
    assert prefill.kind == decode.kind == "predicted"
    # Lines between its points stay close to the formula.
    for new, cached in ((777, 0), (3000, 5000), (50_000, 300), (100_000, 30_000)):
        exact = evaluate.prefill_time(loaded, new, cached)
        assert prefill.prefill_time(new, cached) == pytest.approx(exact, rel=0.01)
    # One sequence reads all weights, 8.03e9 in bf16, and its cache at 4.8 TB/s.
    expected = (2 * 8.03e9 + 8000 * 131072) / 4.8e12
    assert decode.step_time(1, 8000) == pytest.approx(expected, rel=0.01)
    assert one.prefill.kv_tokens == pytest.approx((0.9 * 141e9 - 2 * 8.03e9) / 131072, rel=0.01)


def test_tables_reach_the_longest_request_and_say_so():
    loaded, short = scenario.load("h200-moe"), conversations(20)
    one = build.fleet(loaded)
    assert build.fleet(loaded, short).prefill.prefill_table is one.prefill.prefill_table
    short.input_tokens[3] = 200_000
    longer = build.fleet(loaded, short)
    assert longer.prefill.prefill_table.kind == longer.prefill.decode_table.kind == "predicted"
    assert longer.prefill.prefill_table.new_tokens[-1] >= 200_000


def test_a_fleet_reads_what_it_declares():
    loaded = scenario.load("h200-moe")
    declared = scenario.Reads(loaded, ("model", "hardware", "serving", "fleet", "prices"))
    assert build.fleet(declared) == build.fleet(loaded)
