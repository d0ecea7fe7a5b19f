"""What the planner itself answers: one pool or two, at several targets. Writes ``verdict.csv``.

pip install aiconfigurator==0.12.0
python data/latency/verdict.py [FOLDER]
"""

import logging
import sys
import warnings
from importlib.metadata import version
from itertools import product
from pathlib import Path

import derive

PACKAGE, VERSION = "aiconfigurator", "0.12.0"
GPUS, INPUT_TOKENS, OUTPUT_TOKENS, TTFT_MS = 16, 8000, 500, 2000
TPOT_MS = (25, 40, 80, 150)
# The planner gives a model in fp8 an fp8 cache unless told otherwise.
FP8_CACHE = ("qwen3-235b-fp8", "deepseek-v3")
HEADER = (
    *("model", "element", "gpus", "input_tokens", "output_tokens", "ttft_slo_ms", "tpot_slo_ms"),
    *("pools", "tokens_per_s_per_gpu", "ttft_ms", "tpot_ms"),
    *("prefill", "prefill_instances", "prefill_batch"),
    *("decode", "decode_instances", "decode_batch"),
)


def experiments(source, element, tpot_ms):
    """The planner's own search over one pool and over two."""
    where = {"model_path": source, "system_name": derive.SYSTEM, "backend_name": derive.BACKEND}
    how = {
        "backend_version": derive.BACKEND_VERSION,
        "kvcache_quant_mode": derive.ELEMENTS[element],
    }
    load = {"isl": INPUT_TOKENS, "osl": OUTPUT_TOKENS, "ttft": float(TTFT_MS), "tpot": tpot_ms}
    one = {"serving_mode": "agg", "total_gpus": GPUS, **where, **how, **load}
    two = {"serving_mode": "disagg", "total_gpus": GPUS, **load}
    for role in ("prefill", "decode"):
        two |= {f"{role}_{key}": value for key, value in (where | how).items()}
    return {"one": one, "two": two}


def column(row, prefix=""):
    """The name of an instance's column in the tables of this folder."""
    names = {"tp": "tp", "dp": "dp", "etp": "moe_tp", "ep": "moe_ep"}
    sizes = {way: int(row[f"{prefix}{name}"]) for way, name in names.items()}
    return "".join(f"{way}{size}" for way, size in sizes.items() if way == "tp" or size > 1)


def row(pools, best):
    """The planner's best configuration in our words."""
    result = [pools, float(best["tokens/s/gpu_cluster"]), float(best["ttft"]), float(best["tpot"])]
    if pools == "one":
        held = (column(best), GPUS // int(best["num_total_gpus"]), int(best["bs"]))
        return [*result, *held, *held]
    replicas = GPUS // int(best["num_total_gpus"])
    for role in ("(p)", "(d)"):
        result += [
            column(best, role),
            replicas * int(best[f"{role}workers"]),
            int(best[f"{role}bs"]),
        ]
    return result


def main(folder):
    from aiconfigurator.cli import cli_exp

    logging.disable(logging.CRITICAL)
    rows = []
    for table, element, tpot_ms in product(derive.TABLES, derive.ELEMENTS, TPOT_MS):
        if element == "fp8" and table not in FP8_CACHE:
            continue
        asked = experiments(derive.TABLES[table][1], element, float(tpot_ms))
        found = cli_exp(config=asked, top_n=1).best_configs
        load = (table, element, GPUS, INPUT_TOKENS, OUTPUT_TOKENS, TTFT_MS, tpot_ms)
        rows += [(*load, *row(pools, found[pools].iloc[0])) for pools in asked]
        print(*rows[-2:], sep="\n", file=sys.stderr)
    derive.write(folder / "verdict.csv", HEADER, rows)
    derive.checksums(folder)


if __name__ == "__main__":
    if version(PACKAGE) != VERSION:
        sys.exit(f"{PACKAGE}: found {version(PACKAGE)}, expected {VERSION}")
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
