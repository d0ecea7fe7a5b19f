"""Rows of four cells as a sweep writes them, with numbers made up for tests: no result.

Costs follow from a few factors, so that a test can bend one and know what must be said.
"""

from itertools import product
from math import exp, inf, log

from kvpaper import results

CELLS = ("none", "disaggregated", "tiered", "both")
# Model -> cost of one pool without tiers, factor of the split, factor of tiers, cold prefill [s].
MODELS = {
    "Qwen3-30B-A3B": (2.2, 0.98, 0.9, 0.4),
    "Qwen3-235B-A22B": (21.5, 0.71, 0.9, 0.9),
    "DeepSeek-V3": (42.6, 0.8, 0.82, 1.3),
    "gpt-oss-120b": (1.8, 0.84, 0.91, 0.5),
    "Llama-3.1-70B": (17.2, 1.04, 0.88, 2.6),
}
TRACES = {"mooncake_conversation": 0.37, "mooncake_synthetic": 0.64}
BASE = {"trace": "mooncake_conversation", "ceiling": 0.37, "router": "prefix", "scope": "instance",
        "ttft_slo_s": 2.0, "tpot_slo_s": 0.04}  # fmt: skip
NVME, DRAM = 3.75e12, 256e9


def costs(none, split, tiers, interaction=0.0):
    """Cost of each cell from the factors of the levers and their log interaction."""
    both = none * split * tiers * exp(interaction)
    return dict(zip(CELLS, (none, none * split, none * tiers, both), strict=True))


def case(usd, noise=0.01, off=0.8, nvme=True, **at):
    """Rows of one case: ``usd`` by cell, infinite where it misses the targets."""
    rows = []
    for cell, value in usd.items():
        feasible = value < inf
        rows.append(
            results.row("feasible", float(feasible), "simulated", binding="ttft", cell=cell)
        )
        if not feasible:
            continue
        rows += banded("usd_per_million_output_tokens", value, noise * value, cell=cell)
        split, tiers = cell in ("disaggregated", "both"), cell in ("tiered", "both")
        made = {"way": "model/tp8ep8", "cell": cell, "chunk_tokens": None if split else 2048}
        values = {"requests_per_s": 100 / value, "ttft_s": 1.9, "tpot_s": 0.039}
        rows += [results.row(name, one, "simulated", cell=cell) for name, one in values.items()]
        rows.append(results.row("hit_share", 0.2, "simulated", cell=cell, tier="hbm"))
        rows.append(results.row("prefill_gpus", 8.0 if split else 16.0, "simulated", **made))
        if split:
            rows.append(results.row("decode_gpus", 8.0, "simulated", **made))
        if tiers:
            bought = {"dram": (DRAM, "every use")}
            if nvme:
                bought["nvme"] = (NVME, "second use")
            rows += [
                results.row("bytes_per_gpu", held, "simulated", cell=cell, tier=tier, admission=how)
                for tier, (held, how) in bought.items()
            ]
        rows.append(results.row("usd_per_million_output_tokens", off * value, cell=cell))
        rows.append(results.row("requests_per_s", 100 / value / off, cell=cell))
    return [one | at for one in rows + together(usd, noise)]


def together(usd, noise):
    """What the cells say together, as the sweep writes it."""
    ranked = sorted((value, cell) for cell, value in usd.items() if value < inf)
    if not ranked:
        return []
    best, over = ranked[0], (ranked[1] if len(ranked) > 1 else None)
    saved = log(over[0] / best[0]) if over else float("nan")
    rows = banded("log_saving", saved, 1.5 * noise, cell=best[1], over=over and over[1])
    if len(ranked) < len(usd):
        return rows
    none, split, tiers, both = (log(usd[cell]) for cell in CELLS)
    rows += banded("log_interaction", both - split - tiers + none, 2 * noise)
    rows.append(results.row("money_interaction_usd_per_million_output_tokens", 0.1, "simulated"))
    shares = {"disaggregation": none - split + tiers - both, "tiers": none - tiers + split - both}
    for lever, share in shares.items():
        rows += banded("log_saving_share", share / 2, noise, lever=lever)
    return rows


def banded(quantity, value, half, **at):
    ends = {"middle": value, "low": value - half, "high": value + half}
    return [results.row(quantity, end, "simulated", band=band, **at) for band, end in ends.items()]


def grid():
    """A whole sweep: the main grid, inputs varied around its base, flips, intervals."""
    rows = []
    for (model, (none, split, tiers, cold)), (trace, ceiling) in product(
        MODELS.items(), TRACES.items()
    ):
        of = {"model": model, "trace": trace}
        rows.append(results.row("cold_prefill_s", cold * (1 + ceiling), "tabulated", **of))
        for router, scope, ttft_s in product(
            ("prefix", "random"), ("instance", "pooled"), (0.5, 1.0, 2.0, 4.0)
        ):
            gain = tiers - 0.1 * (router == "random") - 0.3 * (ceiling > 0.5)
            usd = costs(none, split, gain, 0.03 if router == "prefix" else -0.05)
            usd = {cell: value if ttft_s >= cold else inf for cell, value in usd.items()}
            if ttft_s < 1.5 * cold:
                usd["none"] = inf
            at = {"model": model, "trace": trace, "ceiling": ceiling, "router": router,
                  "scope": scope, "ttft_slo_s": ttft_s, "tpot_slo_s": 0.04}  # fmt: skip
            rows += case(usd, nvme=ceiling > 0.5, off=0.7 + 0.1 * ttft_s, varied="", **at)
    return rows + varied() + [
        flip("tpot", 0.12, "both", "tiered"),
        flip("dram price", 3e-8, "both", "disaggregated"),
        *(results.row("break_even_interval_s", 1200.0 * (place + 1), model=model, tier="dram")
          for place, model in enumerate(MODELS)),
    ]  # fmt: skip


def flip(name, value, over, to):
    at = {"model": "Qwen3-235B-A22B", "input": name, "to": to, "over": over}
    return results.row("flips_at", value, "simulated", low=value / 2, high=value * 2, **at)


def varied():
    rows = []
    for model in ("Qwen3-235B-A22B", "DeepSeek-V3", "Llama-3.1-70B"):
        none, split, tiers, _ = MODELS[model]
        at = BASE | {"model": model}
        for tpot_s in (0.025, 0.04, 0.08, 0.15):
            usd = costs(none, split + 1.5 * (tpot_s - 0.04), tiers)
            rows += case(usd, varied="tpot", at=tpot_s, **at | {"tpot_slo_s": tpot_s})
        for rate in (5e8, 1.5e9, 3e9, 7e9):
            slow = 0.0 if model == "DeepSeek-V3" else 0.25 * (1 - rate / 7e9)
            usd = costs(none, split, tiers + slow)
            rows += case(usd, varied="disk", at=rate, nvme=slow < 0.2, **at)
        for name, prices in {
            "nic": (1.25e9, 12.5e9, 50e9),
            "dram price": (3e-9, 13.8e-9, 39e-9),
            "nvme price": (1e-10, 3.65e-10),
            "gpus": (16.0, 32.0),
            "gpu price": (1.85 / 3600, 3.5 / 3600, 7 / 3600),
        }.items():
            for place, price in enumerate(prices):
                rows += case(costs(none, split, tiers + 0.02 * place), varied=name, at=price, **at)
        rows += case(costs(none, split, tiers - 0.1), varied="router", **at | {"router": "random"})
    return rows


def table(rows=None):
    """The rows as they come back from a file."""
    import io

    import pandas

    frame = results.table(grid() if rows is None else rows)
    return pandas.read_csv(io.StringIO(frame.to_csv(index=False)))
