"""Scenario to predicted rows: the one seam between what a user writes and the formulas.

Every function takes a scenario and returns rows; a grid argument makes a curve of a point. A row
has ``quantity`` (its unit is the suffix), ``kind``, ``value`` and its coordinates.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kvpaper import latency, models
from kvpaper.errors import InputError
from kvpaper.formulas import capacity, cost, recovery, size, slack
from kvpaper.scenario import Scenario

Rows = list[dict[str, Any]]
GIGABYTE = 1e9
POOLS = ("one", "disaggregated")


def _row(
    quantity: str, value: float, kind: str = "predicted", **coordinates: Any
) -> dict[str, Any]:
    return {"quantity": quantity, "kind": kind, "value": float(value), **coordinates}


def _short(model: models.Model) -> str:
    """The model's name without its publisher."""
    return model.name.rpartition("/")[2]


def _kv_bytes(model: models.Model, tokens: float, element: str) -> float:
    """Cache of one sequence, without recurrent state [B]."""
    layers, elements, windows = (
        np.array([getattr(group, name) for group in model.groups], float)
        for name in ("layers", "elements_per_token", "window_tokens")
    )
    windows = np.where(np.isnan(windows), np.inf, windows)
    return float(size.kv_bytes(tokens, layers, elements, windows, _element_bytes(element)))


def _element_bytes(element: str) -> float:
    return float(models.ELEMENT_BYTES[element])


def _kv_bytes_per_token(model: models.Model, element: str) -> float:
    """Slope of the cache at long context [B/token]."""
    growing = (group for group in model.groups if group.window_tokens is None)
    elements = sum(group.layers * group.elements_per_token for group in growing)
    return elements * _element_bytes(element)


def cache_sizes(
    names: Iterable[str], tokens: Sequence[float], elements: Sequence[str] = ("bf16",)
) -> Rows:
    """KV bytes of one sequence, by model, context length and element type."""
    return [
        _row(
            "kv_bytes",
            _kv_bytes(model, count, element),
            model=_short(model),
            tokens=count,
            element=element,
        )
        for model in map(models.load, names)
        for element in elements
        for count in tokens
    ]


def sizes(scenario: Scenario) -> Rows:
    """What the scenario's model takes: the slope per token, and the tokens that 1 GB holds."""
    model, element = scenario.model, scenario.serving.element
    per_token = _kv_bytes_per_token(model, element)
    at = {"model": _short(model), "element": element}
    rows = [_row("kv_bytes_per_token", per_token, **at)]
    if per_token:
        held = size.prefix_tokens(GIGABYTE, per_token)
        rows.append(_row("prefix_tokens", held, bytes=GIGABYTE, **at))
    return rows


def _attention_flops(model: models.Model, new_tokens: float, cached_tokens: float) -> float:
    """Work of attention in one prefill pass over all groups of layers [FLOP].

    Latent attention is counted in the cheaper of its two forms.
    """
    work = 0.0
    for group in model.groups:
        at = (new_tokens, cached_tokens, group.layers, model.query_heads)
        if group.kind == "mla":
            latent, rope = model.kv_lora_rank, model.qk_rope_head_dim
            expanded = (latent, model.qk_head_dim - rope, rope, model.v_head_dim)
            work += min(
                recovery.mla_attention_flops(*at, *expanded),
                recovery.mla_absorbed_attention_flops(*at, latent, rope),
            )
        elif group.kind in ("full", "window"):
            # Scores take 2 d and weighted values 2 d_v a pair and head: the mean width is both.
            width = (model.qk_head_dim + model.v_head_dim) / 2
            window = math.inf if group.window_tokens is None else group.window_tokens
            work += recovery.attention_flops(*at, width, window)
    return float(work)


def _prefill_time(scenario: Scenario, new_tokens: float, cached_tokens: float) -> float:
    """Prefill time by the scenario's table or by the FLOP rate that it states [s]."""
    prefill, model = scenario.serving.prefill, scenario.model
    if prefill.table:
        table = latency.prefill_table(prefill.table)
        try:
            return float(table.prefill_time(new_tokens, cached_tokens))
        except ValueError as error:
            where = scenario.where("workload.prompt")
            raise InputError(where, str(error), "a prompt within the table") from None
    if None in (model.active_params, model.query_heads, model.qk_head_dim, model.v_head_dim):
        raise InputError(
            scenario.where("serving.prefill"),
            f"a rate for {model.name}, whose parameters or heads are not known",
            "a tabulated curve: {table: NAME}",
        )
    attention = _attention_flops(model, new_tokens, cached_tokens)
    work = recovery.prefill_flops(new_tokens, model.active_params, attention)
    return float(work / (prefill.flops_per_s * scenario.hardware.gpus))


def _prompt(scenario: Scenario) -> tuple[float, float]:
    """Prefix and new tokens of the scenario's prompt."""
    workload = scenario.workload
    return workload.prompt_tokens - workload.new_tokens, workload.new_tokens


def recoveries(scenario: Scenario, prefix_tokens: Sequence[float] | None = None) -> Rows:
    """How long a prefix takes to come back: by tier, and by recomputing it."""
    model, element = scenario.model, scenario.serving.element
    lengths = [_prompt(scenario)[0]] if prefix_tokens is None else prefix_tokens
    rows = []
    for tokens in lengths:
        held = _kv_bytes(model, tokens, element)
        recomputed = _prefill_time(scenario, tokens, 0)
        rows.append(_row("recompute_time_s", recomputed, tokens=tokens))
        for tier, part in scenario.hardware.tiers.items():
            fetched = recovery.fetch_time(held, part.read_bytes_per_s, part.access_latency_s)
            at = {"tier": tier, "bytes": held, "tokens": tokens}
            rows.append(_row("fetch_time_s", fetched, **at))
            rows.append(_row("recovery_time_s", recovery.recovery_time(fetched, recomputed), **at))
    return rows


def gigabyte_chart(scenario: Scenario) -> Rows:
    """The paper's recovery chart: 1 GB from each tier, and the slowest over the fastest."""
    rows = [
        _row(
            "fetch_time_s",
            recovery.fetch_time(GIGABYTE, part.read_bytes_per_s, part.access_latency_s),
            tier=tier,
            bytes=GIGABYTE,
        )
        for tier, part in scenario.hardware.tiers.items()
    ]
    times = {row["tier"]: row["value"] for row in rows}
    slow, fast = max(times, key=times.get), min(times, key=times.get)
    rows.append(_row("fetch_time_ratio", times[slow] / times[fast], tier=slow, over=fast))
    return rows


def crossovers(scenario: Scenario, most_tokens: float = 2**20) -> Rows:
    """Prefix length from which fetching beats recomputing, by tier; nan where it never does.

    Looked for among whole tokens up to ``most_tokens`` or the end of the tabulated curve.
    """
    table = scenario.serving.prefill.table
    if table:
        most_tokens = min(most_tokens, latency.prefill_table(table).new_tokens[-1])
    rows = []
    for tier, part in scenario.hardware.tiers.items():

        def lead(tokens: float, part=part) -> float:
            held = _kv_bytes(scenario.model, tokens, scenario.serving.element)
            fetched = recovery.fetch_time(held, part.read_bytes_per_s, part.access_latency_s)
            return _prefill_time(scenario, tokens, 0) - fetched

        rows.append(_row("crossover_tokens", _first_positive(lead, most_tokens), tier=tier))
    return rows


def _first_positive(function: Any, most: float) -> float:
    """Smallest whole number in [1, most] from which ``function`` stays above zero; nan if none."""
    grid = np.unique(np.rint(np.geomspace(1, most, 200)))
    above = [function(point) > 0 for point in grid]
    if not above[-1]:
        return math.nan
    last_below = max((index for index, value in enumerate(above) if not value), default=-1)
    if last_below < 0:
        return float(grid[0])
    low, high = grid[last_below], grid[last_below + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return float(high)


def loads(scenario: Scenario) -> Rows:
    """Load of each tier if it alone served every hit, and the mean fetch under that load.

    Raises
    ------
    InputError
        If a tier is asked for more than it can read: there is no steady state to speak of.
    """
    prefix, _ = _prompt(scenario)
    held = _kv_bytes(scenario.model, prefix, scenario.serving.element)
    hits_per_s = scenario.workload.requests_per_s * scenario.workload.ceiling
    rows = []
    for tier, part in scenario.hardware.tiers.items():
        load = recovery.offered_load(hits_per_s, held, part.read_bytes_per_s)
        if load >= 1:
            raise InputError(
                scenario.where(f"hardware.tiers.{tier}.read"),
                f"a load of {load:.2f} ({hits_per_s:g} fetches/s of {held:.3g} B)",
                "a load below 1: a faster tier, fewer requests or shorter prompts",
            )
        shared = recovery.shared_fetch_time(
            held, part.read_bytes_per_s, part.access_latency_s, load
        )
        rows.append(_row("offered_load", load, tier=tier))
        rows.append(_row("shared_fetch_time_s", shared, tier=tier, bytes=held, tokens=prefix))
    return rows


def slacks(scenario: Scenario, prefix_tokens: Sequence[float] | None = None) -> Rows:
    """What the target leaves for a fetch, with one pool and disaggregated, and which tiers fit."""
    prefix, new = _prompt(scenario)
    lengths = [prefix] if prefix_tokens is None else prefix_tokens
    return [row for tokens in lengths for row in _slacks_at(scenario, tokens, new)]


def _slacks_at(scenario: Scenario, prefix: float, new: float) -> Rows:
    model, serving = scenario.model, scenario.serving
    computed = _prefill_time(scenario, new, prefix)
    recomputed = _prefill_time(scenario, prefix, 0)
    held = _kv_bytes(model, prefix, serving.element)
    sent = _kv_bytes(model, prefix + new, serving.element)
    transfer = slack.visible_transfer_time(
        sent,
        serving.transfer.rate_bytes_per_s,
        serving.transfer.latency_s,
        model.layers if serving.transfer.layerwise else 1,
        computed,
    )
    rows = []
    for pool in POOLS:
        visible = (
            transfer if pool == "disaggregated" and serving.first_token_from == "decode" else 0.0
        )
        left = slack.ttft_slack(scenario.slo.ttft_s, serving.queue_wait_s, computed, visible)
        at = {"pool": pool, "tokens": prefix}
        rows.append(_row("visible_transfer_time_s", visible, **at))
        rows.append(_row("ttft_slack_s", left, **at))
        for tier, part in scenario.hardware.tiers.items():
            fetched = recovery.fetch_time(held, part.read_bytes_per_s, part.access_latency_s)
            first = slack.ttft(serving.queue_wait_s, fetched, computed, visible)
            fits = slack.on_critical_path(fetched, left, recomputed)
            most = slack.max_fetch_bytes(left, part.read_bytes_per_s, part.access_latency_s)
            rows.append(_row("ttft_s", first, tier=tier, **at))
            rows.append(_row("max_fetch_bytes", most, tier=tier, **at))
            rows.append(_row("within_slack", fetched <= left, tier=tier, **at))
            rows.append(_row("on_critical_path", fits, tier=tier, **at))
    return rows


def _rent(scenario: Scenario, prices: Any, tier: str) -> float | None:
    """Rent of a byte of a tier, energy included [USD/B/s]; None where it has no price."""
    energy = scenario.hardware.tiers[tier].power_w_per_byte * prices.energy_usd_per_j
    if tier == "hbm":
        return None
    if prices.reading == "bundled":
        return energy
    if prices.reading == "rented":
        rent = getattr(prices.rent, tier)
        return None if rent is None else rent + energy
    price = getattr(prices, tier)
    return None if price is None else cost.amortised_rent(price, prices.lifetime_s) + energy


def priced_tiers(scenario: Scenario) -> list[str]:
    """Tiers whose byte has a price in the scenario's reading of rent."""
    return [
        tier
        for tier in scenario.hardware.tiers
        if _rent(scenario, scenario.prices, tier) is not None
    ]


def costs(scenario: Scenario) -> Rows:
    """Rent of each tier, and what a hit is worth in money and energy."""
    prefix, _ = _prompt(scenario)
    gpus, prices = scenario.hardware.gpus, scenario.prices
    recomputed = _prefill_time(scenario, prefix, 0)
    value = cost.value_per_token(recomputed, prefix, gpus, prices.gpu_usd_per_s)
    rows = [_row("value_usd_per_token", value, tokens=prefix)]
    per_token = _kv_bytes_per_token(scenario.model, scenario.serving.element)
    if per_token:
        rows.append(_row("value_density_usd_per_byte", cost.value_density(value, per_token)))
    if scenario.hardware.gpu_power_w is not None:
        energy = cost.recompute_energy(recomputed, gpus, scenario.hardware.gpu_power_w)
        rows.append(_row("recompute_energy_j", energy, tokens=prefix))
        usd = cost.energy_cost(energy, prices.energy_usd_per_j)
        rows.append(_row("recompute_energy_usd", usd, tokens=prefix))
    rows.extend(
        _row(
            "rent_usd_per_byte_s", _rent(scenario, prices, tier), tier=tier, reading=prices.reading
        )
        for tier in priced_tiers(scenario)
    )
    return rows


def capacities(scenario: Scenario, tail_exponents: Sequence[float] | None = None) -> Rows:
    """Break-even capacity of each priced tier alone, with the band of its dated prices.

    The reference is the working set with the hit rate's ceiling; without a working set there is no
    row. The band takes GPU and byte prices at opposite ends.
    """
    workload, prices = scenario.workload, scenario.prices
    if workload.working_set_bytes is None:
        return []
    prefix, _ = _prompt(scenario)
    recomputed = _prefill_time(scenario, prefix, 0)
    exponents = [workload.tail_exponent] if tail_exponents is None else tail_exponents
    ends = {
        "middle": (prices.gpu_usd_per_s, prices),
        "low": (scenario.low.gpu_usd_per_s, scenario.high),
        "high": (scenario.high.gpu_usd_per_s, scenario.low),
    }
    rows = []
    for tier in priced_tiers(scenario):
        for beta in exponents:
            for band, (gpu_usd_per_s, byte_prices) in ends.items():
                value = cost.value_per_token(
                    recomputed, prefix, scenario.hardware.gpus, gpu_usd_per_s
                )
                rent = _rent(scenario, byte_prices, tier)
                ratio = capacity.marginal_ratio(
                    workload.requests_per_s * workload.prompt_tokens,
                    value,
                    workload.ceiling,
                    beta,
                    workload.working_set_bytes,
                    rent,
                )
                best = capacity.break_even_capacity(ratio, beta) * workload.working_set_bytes
                at = {"tier": tier, "beta": beta, "band": band}
                rows.append(_row("marginal_ratio", ratio, **at))
                rows.append(_row("break_even_bytes", best, **at))
                rows.append(_row("worth_buying_bytes", min(best, workload.working_set_bytes), **at))
    return rows


def intervals(scenario: Scenario) -> Rows:
    """Break-even interval of the scenario's prefix in each priced tier.

    ``loading`` is ``free`` where the GPU works on while a prefix loads, ``gpu waits`` where it
    stands still; the truth lies between.
    """
    prefix, _ = _prompt(scenario)
    gpus, prices = scenario.hardware.gpus, scenario.prices
    held = _kv_bytes(scenario.model, prefix, scenario.serving.element)
    recomputed = cost.recompute_cost(_prefill_time(scenario, prefix, 0), gpus, prices.gpu_usd_per_s)
    rows = []
    for tier in priced_tiers(scenario):
        part = scenario.hardware.tiers[tier]
        fetched = recovery.fetch_time(held, part.read_bytes_per_s, part.access_latency_s)
        loads = {"free": 0.0, "gpu waits": cost.recompute_cost(fetched, gpus, prices.gpu_usd_per_s)}
        for loading, usd in loads.items():
            interval = capacity.break_even_interval(
                recomputed, usd, _rent(scenario, prices, tier), held
            )
            rows.append(
                _row("break_even_interval_s", interval, tier=tier, tokens=prefix, loading=loading)
            )
    return rows


def blocks(scenario: Scenario) -> Rows:
    """The scenario in the units of a replay: blocks that a tier holds, and the price of one block.

    ``price_per_block`` is the rent of a block over the benefit of a hit rate of one, both for the
    same time: where the reuse curve rises by more than this per block, the block earns its rent.
    """
    workload = scenario.workload
    block_bytes = scenario.serving.block_tokens * _kv_bytes_per_token(
        scenario.model, scenario.serving.element
    )
    if not block_bytes:
        return []
    prefix, _ = _prompt(scenario)
    value = cost.value_per_token(
        _prefill_time(scenario, prefix, 0),
        prefix,
        scenario.hardware.gpus,
        scenario.prices.gpu_usd_per_s,
    )
    tokens_per_s = workload.requests_per_s * workload.prompt_tokens
    rows = [_row("block_bytes", block_bytes)]
    for tier, part in scenario.hardware.tiers.items():
        rows.append(_row("capacity_blocks", part.capacity_bytes / block_bytes, tier=tier))
    for tier in priced_tiers(scenario):
        rent = cost.cost_rate(_rent(scenario, scenario.prices, tier), block_bytes)
        benefit = cost.benefit_rate(tokens_per_s, value, 1.0)
        rows.append(_row("price_per_block", rent / benefit, tier=tier))
    return rows


def intervals_by_model(
    scenario: Scenario,
    prefix_tokens: Sequence[float] = (8192, 32768),
    elements: Sequence[str] = ("bf16", "fp8"),
) -> Rows:
    """Break-even interval of every model with tabulated prefill, loading left out.

    The prefill is tabulated; price and cache size are the scenario's, so the intervals are
    predictions.
    """
    rows = []
    for table, model in _tabulated():
        for tokens in prefix_tokens:
            prefill_s = table.prefill_time(tokens)
            usd = cost.recompute_cost(prefill_s, table.gpus, scenario.prices.gpu_usd_per_s)
            at = {"model": _short(model), "tokens": tokens}
            rows.append(_row("prefill_time_s", prefill_s, "tabulated", **at))
            for element in elements:
                held = _kv_bytes(model, tokens, element)
                for tier in priced_tiers(scenario):
                    rent = _rent(scenario, scenario.prices, tier)
                    interval = capacity.break_even_interval(usd, 0.0, rent, held)
                    rows.append(
                        _row("break_even_interval_s", interval, **at, element=element, tier=tier)
                    )
    return rows


def _tabulated() -> list[tuple[latency.PrefillTable, models.Model]]:
    """Every tabulated prefill curve with the model that it is of."""
    return [
        (latency.prefill_table(name), models.load(row["model"]))
        for name, row in latency.instances().items()
    ]


def disk(scenario: Scenario) -> str:
    """The tier with the lowest read rate."""
    tiers = scenario.hardware.tiers
    return min(tiers, key=lambda tier: tiers[tier].read_bytes_per_s)


def one_disk(scenario: Scenario) -> Rows:
    """The scenario's prefix from its slowest tier against tabulated prefill, model by model."""
    prefix, _ = _prompt(scenario)
    tier = disk(scenario)
    part = scenario.hardware.tiers[tier]
    rows = []
    for table, model in _tabulated():
        held = _kv_bytes(model, prefix, scenario.serving.element)
        fetched = recovery.fetch_time(held, part.read_bytes_per_s, part.access_latency_s)
        at = {"model": _short(model), "tokens": prefix}
        rows.append(_row("fetch_time_s", fetched, tier=tier, bytes=held, **at))
        rows.append(_row("prefill_time_s", table.prefill_time(prefix), "tabulated", **at))
    return rows


def disaggregated_slack(scenario: Scenario) -> float:
    """Slack of the scenario's prompt with split pools [s]."""
    left = (row for row in slacks(scenario) if row["quantity"] == "ttft_slack_s")
    return next(row["value"] for row in left if row["pool"] == "disaggregated")


def everything(scenario: Scenario) -> Rows:
    """All that the formulas predict at the scenario's own point."""
    return [
        *sizes(scenario),
        *gigabyte_chart(scenario),
        *recoveries(scenario),
        *crossovers(scenario),
        *loads(scenario),
        *slacks(scenario),
        *costs(scenario),
        *capacities(scenario),
        *intervals(scenario),
    ]


def render(rows: Rows) -> str:
    """Rows as text, one a line."""
    lines = []
    for row in rows:
        where = " ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in row.items()
            if name not in ("quantity", "kind", "value")
        )
        value = "none" if row["value"] is None else f"{row['value']:.6g}"
        lines.append(f"{row['quantity']:<28} {value:>14}  {row['kind']}  {where}")
    return "\n".join(lines)
