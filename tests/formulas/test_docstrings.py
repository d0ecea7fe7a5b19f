"""What holds for every formula: its docstring, its names, its units, arrays, and dimensions."""

import csv
import doctest
import importlib
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from formula import equations
from math_core import LatexToMathML

from kvpaper import units

EQUATIONS = equations()
with (Path(__file__).resolve().parents[2] / "data" / "nomenclature.csv").open() as _file:
    _ROWS = list(csv.DictReader(_file))
NAMES = {row["name"]: row for row in _ROWS}
ARGUMENTS = {name for equation in EQUATIONS.values() for name in equation.parameters}

# One value inside the domain of every formula that takes the argument, 10 % either way included.
SAMPLE = dict(
    layers=32, kv_heads=8, query_heads=32, head_dim=128, kv_lora_rank=512, qk_rope_head_dim=64,
    qk_nope_head_dim=128, v_head_dim=128, element_bytes=2.0, elements_per_token=2048.0,
    tokens=8192.0, window_tokens=4096.0, state_bytes=3e7, resume_points=1.5, block_tokens=512,
    tensor_parallel=3, kv_bytes=1e9, kv_bytes_per_token=131072.0, read_bytes_per_s=3e9,
    access_latency_s=0.01, fetch_time_s=0.3, new_tokens=6000.0, cached_tokens=2000.0,
    active_params=8e9, flops_per_s=580e12, attention_flops=1.7e13, recompute_time_s=0.24,
    fixed_kv_bytes=1e7, requests_per_s=2.0, mean_bytes=1e9, bytes_per_s=4e9, offered_load=0.5,
    transfer_bytes_per_s=50e9, transfer_latency_s=0.001, prefill_time_s=0.1,
    visible_transfer_time_s=0.02, queue_wait_s=0.05, queue_overlap=0.5, ttft_slo_s=0.5,
    ttft_slack_s=0.3, on_critical_path=False, mean_lead_time_s=0.5,
    lead_times_s=0.3, prefetch_probability=0.7, capacity_bytes=1e12,
    reference_capacity_bytes=2e12, reference_hit_rate=0.4, tail_exponent=0.5, catalogue_ratio=3.0,
    hit_rate=0.3, prompt_tokens_per_s=1e4, value_usd_per_token=3e-8, rent_usd_per_byte_s=1.5e-16,
    marginal_ratio=1.3, zipf_exponent=0.7, value_ratio=0.6, rent_ratio=0.1, recompute_usd=2e-4,
    loading_usd=1e-5, gap_s=700.0, timer_s=600.0, servers=8, earlier_uses=3, uses=4,
    price_usd_per_byte=1.4e-8, lifetime_s=9.5e7, usage_usd_per_byte_s=4e-16, occupancy=0.6,
    included_bytes=9e11, gpus=2, gpu_usd_per_s=1e-3, decode_floor_s=0.01, decode_step_s=0.03,
    kv_pool_bytes=6e10, power_w_per_gpu=600.0, energy_j=142.0, electricity_usd_per_joule=3.3e-8,
    released_share=0.8, admitted_share=0.4, none=20.0, disaggregated=15.0, tiered=16.0, both=10.0,
    output_tokens=500.0, decode_s_per_token=2e-4, tpot_slo_s=0.04,
    batch=24, total_params=30e9, expert_share=0.1, weight_element_bytes=2.0, weight_bytes=1.6e10,
    launch_time_s=0.002, wait_probability=0.5, mean_service_s=0.2, service_variation=1.3,
)  # fmt: skip
# The scales are powers of two, so that a right formula is off by rounding alone.
SCALES = {"byte": 8.0, "second": 4.0, "USD": 2.0, "joule": 16.0}


def function(name):
    return getattr(importlib.import_module(f"kvpaper.formulas.{EQUATIONS[name].module}"), name)


def last_axis_arguments(name):
    """Arguments that carry groups, or a sample, on their last axis."""
    lines = re.findall(r"^([\w, ]+) : array \[", inspect.getdoc(function(name)), re.M)
    return {argument for line in lines for argument in line.split(", ")}


def stands_in(symbol, latex):
    """Whether a symbol stands in an equation by itself, not as a part of a longer one."""
    return re.search(rf"(?<![A-Za-z\\]){re.escape(symbol)}(?![A-Za-z0-9_])", latex) is not None


@pytest.mark.parametrize(
    "module",
    sorted({"units", "formulas._domain"} | {f"formulas.{e.module}" for e in EQUATIONS.values()}),
)
def test_examples_run(module):
    failed, attempted = doctest.testmod(importlib.import_module(f"kvpaper.{module}"))
    assert attempted > 0
    assert failed == 0


@pytest.mark.parametrize("name", EQUATIONS)
def test_docstring_is_complete(name):
    equation = EQUATIONS[name]
    assert equation.parameters.keys() == inspect.signature(function(name)).parameters.keys()
    assert ">>> " in inspect.getdoc(function(name))
    assert equation.source
    assert equation.unit == NAMES[name]["unit"]
    for argument, unit in equation.parameters.items():
        assert unit == NAMES[argument]["unit"], argument


@pytest.mark.parametrize("name", EQUATIONS)
def test_equation_holds_its_result_and_every_argument(name):
    latex = EQUATIONS[name].latex
    for symbol in NAMES[name]["symbol"].split(", "):
        assert stands_in(symbol, latex), symbol
    for argument in EQUATIONS[name].parameters:
        assert stands_in(NAMES[argument]["symbol"], latex), argument


def test_a_symbol_is_not_found_inside_another():
    assert stands_in("n", r"\frac{n}{2}")
    assert not stands_in("n", r"n_{\text{new}} \min N")
    assert not stands_in("C", "C_0 + C2")


def test_every_latex_converts_to_mathml():
    converter = LatexToMathML()
    for latex in [e.latex for e in EQUATIONS.values()] + [row["symbol"] for row in _ROWS]:
        assert "<math" in converter.convert_with_local_state(latex, displaystyle=True)


def test_nomenclature_names_all_and_nothing_else():
    assert len(NAMES) == len(_ROWS), "a name stands twice"
    assert set(NAMES) == ARGUMENTS | set(EQUATIONS)
    assert all(row["meaning"] and row["symbol"] for row in _ROWS)


def test_one_symbol_has_one_meaning():
    for kind in (ARGUMENTS, set(EQUATIONS)):
        symbols = [NAMES[name]["symbol"] for name in kind]
        assert len(symbols) == len(set(symbols))
    by_symbol = {}
    for row in _ROWS:
        by_symbol.setdefault(row["symbol"], set()).add(row["unit"])
    assert all(len(found) == 1 for found in by_symbol.values())


def test_every_unit_is_one_that_units_reads():
    for row in _ROWS:
        units.dimension(row["unit"])


@pytest.mark.parametrize("name", EQUATIONS)
def test_dimensions_agree(name):
    """In other units of bytes, time, money and energy the result is the same quantity."""

    def scale(unit):
        return math.prod(SCALES.get(base, 1.0) ** power for base, power in units.dimension(unit))

    arguments = {argument: SAMPLE[argument] for argument in EQUATIONS[name].parameters}
    scaled = {
        argument: value
        if scale(NAMES[argument]["unit"]) == 1
        else value * scale(NAMES[argument]["unit"])
        for argument, value in arguments.items()
    }
    for argument in last_axis_arguments(name):
        arguments[argument] = np.array([arguments[argument]] * 2)
        scaled[argument] = np.array([scaled[argument]] * 2)
    expected = np.asarray(function(name)(**arguments)) * scale(EQUATIONS[name].unit)
    assert np.all(expected != 0) or name in ("on_critical_path", "empirical_prefetch_probability")
    np.testing.assert_allclose(function(name)(**scaled), expected, rtol=1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_arrays_give_what_their_elements_give(name):
    rng = np.random.default_rng(1)
    arrays = {}
    for argument in EQUATIONS[name].parameters:
        shape = (3, 4) if argument in last_axis_arguments(name) else 3
        factor = rng.uniform(0.9, 1.1, shape)
        arrays[argument] = (
            factor > 1 if isinstance(SAMPLE[argument], bool) else SAMPLE[argument] * factor
        )
    together = np.asarray(function(name)(**arrays))
    one_by_one = [function(name)(**{k: v[i] for k, v in arrays.items()}) for i in range(3)]
    assert not any(isinstance(part, np.ndarray) for part in np.atleast_1d(one_by_one[0]).tolist())
    np.testing.assert_allclose(together, np.array(one_by_one).T, rtol=1e-12)


@pytest.mark.parametrize("name", EQUATIONS)
def test_arguments_broadcast(name):
    first = next(a for a in EQUATIONS[name].parameters if a not in last_axis_arguments(name))
    arguments = {argument: SAMPLE[argument] for argument in EQUATIONS[name].parameters}
    for argument in last_axis_arguments(name):
        arguments[argument] = np.array([arguments[argument]] * 4)
    alone = np.asarray(function(name)(**arguments))
    arguments[first] = np.full((2, 3), arguments[first])
    np.testing.assert_allclose(
        np.asarray(function(name)(**arguments)),
        np.broadcast_to(alone[..., None, None], (*alone.shape, 2, 3)),
    )


@pytest.mark.parametrize("name", EQUATIONS)
def test_numbers_give_a_number(name):
    arguments = {argument: SAMPLE[argument] for argument in EQUATIONS[name].parameters}
    for argument in last_axis_arguments(name):
        arguments[argument] = np.array([arguments[argument]] * 4)
    result = function(name)(**arguments)
    for part in result if isinstance(result, tuple) else (result,):
        assert np.ndim(part) == 0
        assert not isinstance(part, np.ndarray)
