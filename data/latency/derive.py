"""Derive the tables of this folder from a planner's database.

    pip install aiconfigurator-core==0.12.0
    python data/latency/derive.py [FOLDER]

Without a folder the files beside this script are written anew, and nothing changes.
"""

import csv
import hashlib
import logging
import re
import statistics
import sys
from importlib.metadata import version
from itertools import pairwise, product
from pathlib import Path

PACKAGE, VERSION = "aiconfigurator-core", "0.12.0"
SYSTEM, BACKEND, BACKEND_VERSION = "h200_sxm", "vllm", "0.24.0"
MEMORY_SHARE = 0.9
# The largest step has its room in memory: of an instance that prefills, of one that only decodes.
STEP_TOKENS, DECODE_STEP_TOKENS = 8192, 1024

NEW_TOKENS = (
    *(1, 2, 4, 8, 16, 32, 48, 49, 64, 96, 128, 192, 256, 257, 384, 512, 513, 768, 1024, 2048),
    *(3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304, 131072),
)
CACHED_TOKENS = (
    *(0, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 98304),
    131072,
)
BATCH = (
    *(1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 49, 56, 64, 80, 96, 112, 128, 160, 192),
    *(193, 224, 256, 257, 320, 384, 448, 512, 768, 1024),
)
CONTEXT = (1, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

ELEMENTS = {"bf16": "bfloat16", "fp8": "fp8"}
ONE_TO_EIGHT = (
    "tp1 tp1dp2etp2 tp2etp2 tp1dp4etp4 tp2dp2etp4 tp4etp4 tp1dp8etp8 tp2dp4etp8 tp4dp2etp8 tp8etp8"
)
# Table: model of data/models, model of the source, parallelisms, the usual one first.
TABLES = {
    "qwen3-30b-a3b": ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", ONE_TO_EIGHT),
    "qwen3-235b-fp8": (
        "qwen3-235b-a22b",
        "Qwen/Qwen3-235B-A22B-FP8",
        "tp4ep4 tp1dp2etp2 tp2etp2 tp1dp4etp4 tp2dp2etp4 tp4etp4"
        " tp1dp4ep4 tp1dp8ep8 tp2dp4ep8 tp4dp2ep8 tp8ep8",
    ),
    "deepseek-v3": (
        "deepseek-v3",
        "deepseek-ai/DeepSeek-V3",
        "tp8ep8 tp1dp8ep8 tp1dp8etp8 tp2dp4etp8 tp4dp2etp8 tp8etp8",
    ),
    "gpt-oss-120b": ("gpt-oss-120b", "openai/gpt-oss-120b", f"{ONE_TO_EIGHT} tp2ep2"),
    "llama-3.1-70b": ("llama-3.1-70b", "meta-llama/Meta-Llama-3.1-70B", "tp4 tp2 tp8"),
}
MIXED = (*TABLES, "qwen3-235b-fp8/tp2etp2-fp8", "gpt-oss-120b/tp1dp2etp2")


def ranks(parallelism):
    """Ranks by the four ways of sharing a model, such as ``tp1dp8ep8``."""
    given = {way: int(count) for way, count in re.findall(r"([a-z]+)(\d+)", parallelism)}
    return {way: given.get(way, 1) for way in ("tp", "dp", "etp", "ep")}


def instances():
    """Every instance: its name, table, column, parallelism and cache element."""
    for table, (_, _, parallelisms) in TABLES.items():
        for element in ELEMENTS:
            for parallelism in parallelisms.split():
                column = parallelism if element == "bf16" else f"{parallelism}-{element}"
                usual = column == parallelisms.split()[0]
                yield (table if usual else f"{table}/{column}"), table, column, parallelism, element


def options(parallelism, element):
    """The source's arguments for an instance."""
    ways = ranks(parallelism)
    return {
        "tp_size": ways["tp"],
        "attention_dp_size": ways["dp"],
        "moe_tp_size": ways["etp"],
        "moe_ep_size": ways["ep"],
        "kvcache_quant_mode": ELEMENTS[element],
        "backend_version": BACKEND_VERSION,
    }


def capacity(estimate_kv_cache, source, step_tokens, given):
    """What the source says of the cache that fits, nothing where the weights leave no room."""
    try:
        return estimate_kv_cache(
            source,
            SYSTEM,
            BACKEND,
            max_num_tokens=step_tokens,
            max_batch_size=256,
            memory_fraction_kind="of_total",
            memory_fraction_value=MEMORY_SHARE,
            **given,
        )
    except ValueError as error:
        if not str(error).startswith("no KV budget"):
            raise
        return {"total_kv_size_tokens": 0, "total_kv_size_bytes": 0}


def midpoint_errors(rows, columns, times, function):
    """By how much the mean of the four corners of a cell misses the source at its middle."""
    errors = []
    for (i, (low, high)), (j, (left, right)) in product(
        enumerate(pairwise(rows)), enumerate(pairwise(columns))
    ):
        row, column = (low + high) // 2, (left + right) // 2
        down, across = (row - low) / (high - low), (column - left) / (right - left)
        upper = times[i][j] * (1 - across) + times[i][j + 1] * across
        lower = times[i + 1][j] * (1 - across) + times[i + 1][j + 1] * across
        errors.append(abs((upper * (1 - down) + lower * down) / function(row, column) - 1))
    return errors


def write(path, header, rows):
    """A CSV file, times to the microsecond."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(round(cell, 3) if isinstance(cell, float) else cell for cell in row)


def checksums(folder):
    """Write ``SHA256SUMS`` over the CSV files of a folder."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("*.csv"))
    ]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main(folder):
    from aiconfigurator_core.sdk import EngineHandle, estimate_kv_cache

    logging.disable(logging.CRITICAL)
    capacities, mixed, columns = [], [], {table: {} for table in TABLES}
    for name, table, column, parallelism, element in instances():
        model, source, _ = TABLES[table]
        given, ways = options(parallelism, element), ranks(parallelism)
        held, decoding = (
            capacity(estimate_kv_cache, source, tokens, given)
            for tokens in (STEP_TOKENS, DECODE_STEP_TOKENS)
        )
        how = (name, model, source, parallelism, element, ways["tp"] * ways["dp"], ways["dp"])
        per_token = int(decoding["kv_size_per_token_bytes"])
        tokens = (part["total_kv_size_tokens"] for part in (held, decoding))
        capacities.append((*how, per_token, *tokens, int(held["total_kv_size_bytes"])))
        engine = EngineHandle.compile(source, SYSTEM, BACKEND, **given)

        def prefill(new, cached, engine=engine):
            return engine.predict_prefill_latency(1, new + cached, cached)

        def decode(batch, context, engine=engine):
            return engine.predict_decode_latency(batch, context)

        grids = []
        for axes, function in (((NEW_TOKENS, CACHED_TOKENS), prefill), ((BATCH, CONTEXT), decode)):
            times = [[function(row, at) for at in axes[1]] for row in axes[0]]
            errors = midpoint_errors(*axes, times, function)
            grids.append(times)
            middle, most = statistics.median(errors), statistics.quantiles(errors, n=100)[98]
            print(
                f"{name} {function.__name__}: midpoints off by {middle:.2%}, 99 % below {most:.1%}",
                file=sys.stderr,
            )
        columns[table][column] = grids
        if name in MIXED:
            for new, cached, batch in product((512, 2048, 8192), (0, 8192), (8, 64, 256)):
                length = new + cached
                step = engine.mixed_step_latency(length, batch, length, 512, cached)
                mixed.append((name, new, cached, batch, length + 256, step))
    for table, kinds in columns.items():
        for part, (what, first, second, outer, inner) in enumerate(
            (
                ("prefill", "new_tokens", "cached_tokens", NEW_TOKENS, CACHED_TOKENS),
                ("decode", "batch", "context", BATCH, CONTEXT),
            )
        ):
            rows = (
                (row, at, *(grids[part][i][j] for grids in kinds.values()))
                for i, row in enumerate(outer)
                for j, at in enumerate(inner)
            )
            write(folder / f"{table}.{what}.csv", (first, second, *kinds), rows)
    header = (
        *("name", "model", "hf", "parallelism", "element", "gpus", "ranks"),
        *("kv_bytes_per_token_per_gpu", "kv_tokens", "decode_kv_tokens", "kv_bytes_per_gpu"),
    )
    write(folder / "kv.csv", header, capacities)
    header = ("instance", "new_tokens", "cached_tokens", "batch", "context", "ms")
    write(folder / "mixed.csv", header, mixed)
    checksums(folder)


if __name__ == "__main__":
    if version(PACKAGE) != VERSION:
        sys.exit(f"{PACKAGE}: found {version(PACKAGE)}, expected {VERSION}")
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
