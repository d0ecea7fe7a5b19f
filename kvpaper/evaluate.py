"""Scenario to predicted rows: the one seam between what a user writes and the formulas.

Every function takes a scenario and returns rows; a grid argument makes a curve of a point. A row
has ``quantity`` (its unit is the suffix), ``kind``, ``value`` and its coordinates.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from kvpaper import latency, models, results
from kvpaper.errors import InputError
from kvpaper.formulas import capacity, cost, recovery, size, slack
from kvpaper.scenario import Prices, Scenario, Tier

Rows = list[dict[str, Any]]
GIGABYTE = 1e9
POOLS = ("one", "disaggregated")
READINGS = ("amortised", "rented", "bundled")


def _rows(at: dict[str, Any], kind: str = "predicted", **values: float) -> Rows:
    """Rows of several quantities at the same coordinates."""
    return [results.row(name, float(value), kind, **at) for name, value in values.items()]


def _short(model: models.Model) -> str:
    """The model's name without its publisher."""
    return model.name.rpartition("/")[2]


# Size


def _kv_bytes(model: models.Model, tokens: float, element: str, windows: str = "window") -> float:
    """Cache of one sequence that can be resumed at its end, recurrent state included [B].

    With ``windows`` full, window layers keep every token.
    """
    held = models.cache_bytes(model.kept(windows), tokens, element)
    return float(held + models.state_bytes(model))


def kept_bytes(scenario: Scenario, tokens: float) -> float:
    """Cache of a prefix of the scenario's model [B]."""
    serving = scenario.serving
    return _kv_bytes(scenario.model, tokens, serving.element, serving.window_cache)


def slope(scenario: Scenario) -> float:
    """Slope of the cache of the scenario's model at long context [B/token]."""
    serving = scenario.serving
    kept = scenario.model.kept(serving.window_cache)
    growing = (group for group in kept if group.window_tokens is None)
    return float(models.cache_bytes(growing, 1, serving.element))


def cache_sizes(
    names: Iterable[str], tokens: Sequence[float], elements: Sequence[str] = ("bf16",)
) -> Rows:
    """KV bytes of one sequence, recurrent state included, by model, length and element type."""
    return [
        row
        for model in map(models.load, names)
        for element in elements
        for count in np.rint(tokens)
        for row in _rows(
            {"model": _short(model), "tokens": count, "element": element},
            kv_bytes=_kv_bytes(model, count, element),
        )
    ]


def sizes(scenario: Scenario) -> Rows:
    """What the scenario's model takes: the slope per token, and the tokens that 1 GB holds."""
    at = {"model": _short(scenario.model), "element": scenario.serving.element}
    per_token = slope(scenario)
    rows = _rows(at, kv_bytes_per_token=per_token)
    if per_token:
        held = size.prefix_tokens(GIGABYTE, per_token)
        rows += _rows({"bytes": GIGABYTE, **at}, prefix_tokens=held)
    return rows


# Recovery


def _fetch_time(part: Tier, held: float) -> float:
    return float(recovery.fetch_time(held, part.read_bytes_per_s, part.access_latency_s))


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


def _table(scenario: Scenario) -> latency.PrefillTable | None:
    """The scenario's tabulated prefill, which must be of its model on its GPUs."""
    name = scenario.serving.prefill.table
    if name is None:
        return None
    where = scenario.where("serving.prefill.table")
    if name not in latency.instances():
        known = ", ".join(instance.name for instance in latency.usual())
        raise InputError(where, repr(name), f"one of {known}, or another name in latency/kv.csv")
    table, model = latency.prefill_table(name), _tabulated_model(name)
    if (model, table.gpus) != (scenario.model.name, scenario.hardware.gpus):
        raise InputError(
            where,
            f"a table of {model} on {table.gpus} GPUs",
            f"one of {scenario.model.name} on {scenario.hardware.gpus}",
        )
    return table


@lru_cache  # asked for at every point of a curve, and a model is a file
def _tabulated_model(name: str) -> str:
    return models.load(latency.instances()[name].model).name


def prefill_time(scenario: Scenario, new_tokens: float, cached_tokens: float) -> float:
    """Prefill time by the scenario's table or by the FLOP rate that it states [s]."""
    prefill, model, table = scenario.serving.prefill, scenario.model, _table(scenario)
    if table is not None:
        try:
            return float(table.prefill_time(new_tokens, cached_tokens))
        except ValueError as error:
            raise InputError(
                scenario.where("workload.prompt"),
                f"a prompt outside table {prefill.table} ({error})",
                "a shorter one, or serving.prefill.rate",
            ) from None
    params = prefill.active_params or model.active_params
    if params is None:
        raise InputError(
            scenario.where("serving.prefill.rate"),
            f"a rate for {model.name}, whose active parameters are not known",
            "serving.prefill.active_params beside it, such as 8.0e9",
        )
    if model.groups and None in (model.query_heads, model.qk_head_dim, model.v_head_dim):
        raise InputError(
            scenario.where("serving.prefill.rate"),
            f"a rate for {model.name}, whose query heads its configuration does not tell",
            "a tabulated curve: {table: NAME}",
        )
    attention = _attention_flops(model, new_tokens, cached_tokens)
    work = recovery.prefill_flops(new_tokens, params, attention)
    return float(work / (prefill.flops_per_s * scenario.hardware.gpus))


def _prompt(scenario: Scenario) -> tuple[float, float]:
    """Prefix and new tokens of the scenario's prompt."""
    workload = scenario.workload
    return workload.prompt_tokens - workload.new_tokens, workload.new_tokens


def gigabyte_chart(scenario: Scenario) -> Rows:
    """The paper's recovery chart: 1 GB from each tier, and the slowest over the fastest."""
    times = {tier: _fetch_time(part, GIGABYTE) for tier, part in scenario.hardware.tiers.items()}
    slow, fast = max(times, key=times.get), min(times, key=times.get)
    rows = []
    for tier, time in times.items():
        rows += _rows({"tier": tier, "bytes": GIGABYTE}, fetch_time_s=time)
    return rows + _rows({"tier": slow, "over": fast}, fetch_time_ratio=times[slow] / times[fast])


def recoveries(scenario: Scenario, prefix_tokens: Sequence[float] | None = None) -> Rows:
    """How long a prefix takes to come back: by tier, by recomputing it, and from both ends."""
    lengths = [_prompt(scenario)[0]] if prefix_tokens is None else prefix_tokens
    rows = []
    for tokens in lengths:
        held, recomputed = kept_bytes(scenario, tokens), prefill_time(scenario, tokens, 0)
        rows += _rows({"tokens": tokens}, recompute_time_s=recomputed)
        for tier, part in scenario.hardware.tiers.items():
            fetched = _fetch_time(part, held)
            rows += _rows(
                {"tier": tier, "bytes": held, "tokens": tokens},
                fetch_time_s=fetched,
                recovery_time_s=recovery.recovery_time(fetched, recomputed),
                two_ended_time_s=_two_ended(scenario, tokens, part),
            )
    return rows


def _two_ended(scenario: Scenario, tokens: float, part: Tier) -> float:
    """Recovery that computes from the front while it fetches from the back [s].

    The meeting point is found by bisection, since a tabulated curve has no closed form; for a
    rate and full attention it is that of ``two_ended_recovery_time``.
    """
    held = kept_bytes(scenario, tokens)

    def computed(front: float) -> float:
        return prefill_time(scenario, front, 0) if front >= 1 else 0.0

    def fetched(front: float) -> float:
        return _fetch_time(part, held * (1 - front / tokens))

    low, high = 0.0, tokens
    if computed(high) <= fetched(high):
        return computed(high)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if computed(middle) < fetched(middle) else (low, middle)
    return fetched(low)


def crossovers(scenario: Scenario) -> Rows:
    """Prefix length from which fetching beats recomputing, by tier; nan where it never does.

    Looked for among whole tokens up to a million or the end of the tabulated curve.
    """
    table = _table(scenario)
    most_tokens = 2**20 if table is None else min(2**20, table.new_tokens[-1])
    rows = []
    for tier, part in scenario.hardware.tiers.items():
        rows += _rows({"tier": tier}, crossover_tokens=_crossover(scenario, part, most_tokens))
    return rows


def _crossover(scenario: Scenario, part: Tier, most_tokens: float) -> float:
    """Smallest whole number of tokens up to the most from which fetching stays faster."""

    def fetching_wins(tokens: float) -> bool:
        fetched = _fetch_time(part, kept_bytes(scenario, tokens))
        return fetched < prefill_time(scenario, tokens, 0)

    grid = np.unique(np.rint(np.geomspace(1, most_tokens, 200)))
    wins = [fetching_wins(tokens) for tokens in grid]
    if not wins[-1]:
        return math.nan
    last_lost = max((place for place, won in enumerate(wins) if not won), default=-1)
    low, high = grid[last_lost] if last_lost >= 0 else 0, grid[last_lost + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fetching_wins(middle) else (middle, high)
    return float(high)


def loads(scenario: Scenario) -> Rows:
    """Load of each tier if it alone served every hit, and the mean fetch under that load.

    Hits are read; of the misses the admitted share is written, where the tier states a write rate.

    Raises
    ------
    InputError
        If a tier is asked for more than it can do: there is no steady state to speak of.
    """
    workload = scenario.workload
    prefix, _ = _prompt(scenario)
    held = kept_bytes(scenario, prefix)
    hits_per_s = workload.requests_per_s * workload.ceiling
    writes_per_s = (workload.requests_per_s - hits_per_s) * workload.admitted_share
    rows = []
    for tier, part in scenario.hardware.tiers.items():
        load = recovery.offered_load(hits_per_s, held, part.read_bytes_per_s)
        if part.write_bytes_per_s is not None:
            load += recovery.offered_load(writes_per_s, held, part.write_bytes_per_s)
        if load >= 1:
            raise InputError(
                scenario.where(f"hardware.tiers.{tier}.read"),
                f"a load of {load:.2f} if this tier alone serves {hits_per_s:.3g} hits/s and "
                f"stores {writes_per_s:.3g} misses/s of {held:.3g} B",
                "a load below 1: a faster tier, fewer requests, shorter prompts or less admitted",
            )
        rate, latency_s = part.read_bytes_per_s, part.access_latency_s
        shared = recovery.shared_fetch_time(held, rate, latency_s, load)
        rows += _rows({"tier": tier}, offered_load=load)
        rows += _rows({"tier": tier, "bytes": held, "tokens": prefix}, shared_fetch_time_s=shared)
    return rows


# Slack


def _visible_transfer(
    scenario: Scenario, model: models.Model, sent: float, prefill_s: float
) -> float:
    transfer = scenario.serving.transfer
    if scenario.serving.first_token_from == "prefill":
        return 0.0
    return float(
        slack.visible_transfer_time(
            sent,
            transfer.rate_bytes_per_s,
            transfer.latency_s,
            model.layers if transfer.layerwise else 1,
            prefill_s,
        )
    )


def slacks(scenario: Scenario, prefix_tokens: Sequence[float] | None = None) -> Rows:
    """What the target leaves for a fetch, with one pool and disaggregated, and which tiers fit."""
    prefix, new = _prompt(scenario)
    lengths = [prefix] if prefix_tokens is None else prefix_tokens
    return [row for tokens in lengths for row in _slacks_at(scenario, tokens, new)]


def _slacks_at(scenario: Scenario, prefix: float, new: float) -> Rows:
    wait_s = scenario.serving.queue_wait_s
    computed = prefill_time(scenario, new, prefix)
    recomputed, cold = prefill_time(scenario, prefix, 0), prefill_time(scenario, prefix + new, 0)
    held, sent = kept_bytes(scenario, prefix), kept_bytes(scenario, prefix + new)
    rows = []
    for pool in POOLS:
        split = pool == "disaggregated"
        visible, visible_cold = (
            _visible_transfer(scenario, scenario.model, sent, time) if split else 0.0
            for time in (computed, cold)
        )
        left = slack.ttft_slack(scenario.slo.ttft_s, wait_s, computed, visible)
        at = {"pool": pool, "tokens": prefix}
        rows += _rows(
            at,
            visible_transfer_time_s=visible,
            ttft_slack_s=left,
            cold_ttft_s=slack.ttft(wait_s, 0.0, cold, visible_cold),
        )
        for tier, part in scenario.hardware.tiers.items():
            fetched, rate = _fetch_time(part, held), part.read_bytes_per_s
            rows += _rows(
                {"tier": tier, **at},
                ttft_s=slack.ttft(wait_s, fetched, computed, visible),
                max_fetch_bytes=slack.max_fetch_bytes(left, rate, part.access_latency_s),
                within_slack=fetched <= left,
                on_critical_path=slack.on_critical_path(fetched, left, recomputed),
                two_ended_within_slack=_two_ended(scenario, prefix, part) <= left,
            )
    return rows


def needed_rates(scenario: Scenario) -> Rows:
    """Slowest read rate at which a tier can be waited for, model by model.

    For the scenario's prefix and target with split pools: the cache of the prefix over the
    shorter of the model's own slack and its own prefill. The scenario's model by its own prefill,
    the others by tabulated ones on the GPUs of their tables, where these reach that far; infinite
    where there is no slack.
    """
    prefix, new = _prompt(scenario)
    table = _table(scenario)
    own = (scenario.model, scenario.hardware.gpus, lambda *at: prefill_time(scenario, *at))
    cases = [own] + [
        (model, table.gpus, table.prefill_time)
        for table, model in _tabulated()
        if model.name != scenario.model.name
    ]
    rows = []
    for model, gpus, timed in cases:
        tabulated = model.name != scenario.model.name or table is not None
        held, sent = (
            _kv_bytes(model, tokens, scenario.serving.element, scenario.serving.window_cache)
            for tokens in (prefix, prefix + new)
        )
        try:
            computed, recomputed = float(timed(new, prefix)), float(timed(prefix, 0))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            continue  # a prefix beyond this table
        visible = _visible_transfer(scenario, model, sent, computed)
        left = slack.ttft_slack(
            scenario.slo.ttft_s, scenario.serving.queue_wait_s, computed, visible
        )
        within = min(float(left), recomputed)
        at = {"model": _short(model), "gpus": gpus, "tokens": prefix}
        kind = "tabulated" if tabulated else "predicted"
        rows += _rows(at, kind, recompute_time_s=recomputed)
        needed = held / within if within > 0 else math.inf
        rows += _rows(at, ttft_slack_s=left, needed_bytes_per_s=needed)
    return rows


def _tabulated() -> list[tuple[latency.PrefillTable, models.Model]]:
    """The usual tabulated prefill curve of every model that has one, with the model."""
    return [
        (latency.prefill_table(instance.name), models.load(instance.model))
        for instance in latency.usual()
    ]


# Capacity and cost


def _writes_per_s(scenario: Scenario, part: Tier) -> float:
    """Times per second that a tier is written over: the admitted misses over its capacity."""
    workload = scenario.workload
    return float(
        cost.drive_writes_per_s(
            workload.requests_per_s * workload.prompt_tokens,
            (1 - workload.ceiling) * workload.admitted_share,
            slope(scenario),
            part.capacity_bytes,
        )
    )


def _life(prices: Prices, part: Tier, written: float) -> float:
    """Time over which a bought tier is written off: its lifetime, or its wear if less [s]."""
    if part.rated_writes_per_s is None or not written:
        return prices.lifetime_s
    return min(prices.lifetime_s, part.rated_life_s * part.rated_writes_per_s / written)


def rent_of(
    scenario: Scenario,
    prices: Prices,
    tier: str,
    reading: str | None = None,
    writes_per_s: float | None = None,
) -> float | None:
    """Rent of a byte of a tier [USD/B/s]; None where it has no price.

    ``writes_per_s`` is how often the tier is written over, by the workload's means unless given.

    A bought byte and one that comes with the GPU draw power at the scenario's expense; a rented
    one has it in its rent.
    """
    part = scenario.hardware.tiers[tier]
    energy = part.power_w_per_byte * prices.energy_usd_per_j
    reading = reading or prices.reading
    if tier == "hbm":
        return None
    if reading == "bundled":
        return energy
    if reading == "rented":
        return getattr(prices.rent, tier)
    price = getattr(prices, tier)
    if price is None:
        return None
    written = _writes_per_s(scenario, part) if writes_per_s is None else writes_per_s
    return float(cost.amortised_rent(price, _life(prices, part, written))) + energy


def priced_tiers(scenario: Scenario) -> list[str]:
    """Tiers whose byte has a price in the scenario's reading of rent."""
    return [
        tier
        for tier in scenario.hardware.tiers
        if rent_of(scenario, scenario.prices, tier) is not None
    ]


def _hit_value(scenario: Scenario, gpu_usd_per_s: float) -> float:
    """Value of a hit that is there in time [USD/token]."""
    prefix, _ = _prompt(scenario)
    recomputed = prefill_time(scenario, prefix, 0)
    return float(cost.value_per_token(recomputed, prefix, scenario.hardware.gpus, gpu_usd_per_s))


def _use(scenario: Scenario, tier: str) -> tuple[str, float]:
    """How a tier is used with split pools, and the share of a hit's value that it gives then.

    On the critical path a hit has its full value. Off it, that of a prefetch that comes in time;
    without a lead time none.
    """
    verdicts = results.by_tier(slacks(scenario), "on_critical_path", pool="disaggregated")
    fits = bool(verdicts[tier])
    in_time = 0.0
    if scenario.workload.lead_time_s:
        held = kept_bytes(scenario, _prompt(scenario)[0])
        fetched = _fetch_time(scenario.hardware.tiers[tier], held)
        in_time = float(slack.prefetch_probability(fetched, scenario.workload.lead_time_s))
    share = float(capacity.tier_value(1.0, fits, in_time))
    return ("critical path" if fits else "prefetch"), share


def costs(scenario: Scenario) -> Rows:
    """What a hit is worth in money and energy; rent, wear and use of each priced tier."""
    prefix, _ = _prompt(scenario)
    gpus, prices = scenario.hardware.gpus, scenario.prices
    value = _hit_value(scenario, prices.gpu_usd_per_s)
    rows = _rows({"tokens": prefix}, value_usd_per_token=value)
    if slope(scenario):
        rows += _rows({}, value_density_usd_per_byte=cost.value_density(value, slope(scenario)))
    if scenario.hardware.gpu_power_w is not None:
        recomputed = prefill_time(scenario, prefix, 0)
        energy = cost.recompute_energy(recomputed, gpus, scenario.hardware.gpu_power_w)
        usd = cost.energy_cost(energy, prices.energy_usd_per_j)
        rows += _rows({"tokens": prefix}, recompute_energy_j=energy, recompute_energy_usd=usd)
    for tier in priced_tiers(scenario):
        part, (use, share) = scenario.hardware.tiers[tier], _use(scenario, tier)
        at, rent = {"tier": tier}, rent_of(scenario, prices, tier)
        rows += _rows({**at, "reading": prices.reading}, rent_usd_per_byte_s=rent)
        rows += _rows({**at, "use": use}, share_of_value=share)
        if part.rated_writes_per_s is not None:
            rows += _rows(
                at,
                drive_writes_per_day=_writes_per_s(scenario, part) * 86400,
                rated_writes_per_day=part.rated_writes_per_s * 86400,
                life_s=_life(prices, part, _writes_per_s(scenario, part)),
            )
    return rows


def _ratio(scenario: Scenario, value: float, rent: float, beta: float) -> float:
    """Marginal ratio at the working set; infinite where a byte has no rent."""
    workload = scenario.workload
    tokens_per_s = workload.requests_per_s * workload.prompt_tokens
    if value * tokens_per_s * workload.ceiling == 0:
        return 0.0
    at_reference = (workload.ceiling, beta, workload.working_set_bytes)
    return float(capacity.marginal_ratio(tokens_per_s, value, *at_reference, rent))


def _bands(scenario: Scenario) -> dict[str, tuple[Prices, Prices]]:
    """Prices of the GPU and of bytes by how much they let one buy: opposite ends of their bands."""
    return {
        "middle": (scenario.prices, scenario.prices),
        "low": (scenario.low, scenario.high),
        "high": (scenario.high, scenario.low),
    }


def capacities(scenario: Scenario, tail_exponents: Sequence[float] | None = None) -> Rows:
    """Break-even capacity of each priced tier alone, with the band of its dated prices.

    The reference is the working set with the hit rate's ceiling; without a working set there is no
    row. A hit counts by the tier's use: in full on the critical path, as a prefetch off it. The
    band takes GPU and byte prices at opposite ends.
    """
    workload = scenario.workload
    if workload.working_set_bytes is None:
        return []
    exponents = [workload.tail_exponent] if tail_exponents is None else tail_exponents
    ends = _bands(scenario)
    values = {band: _hit_value(scenario, gpu.gpu_usd_per_s) for band, (gpu, _) in ends.items()}
    rows = []
    for tier in priced_tiers(scenario):
        use, share = _use(scenario, tier)
        for beta in exponents:
            for band, (_, byte_prices) in ends.items():
                rent = rent_of(scenario, byte_prices, tier)
                ratio = _ratio(scenario, share * values[band], rent, beta)
                share_of_set = capacity.break_even_capacity(ratio, beta)
                rows += _rows(
                    {"tier": tier, "use": use, "beta": beta, "band": band},
                    marginal_ratio=ratio,
                    break_even_bytes=share_of_set * workload.working_set_bytes,
                    worth_buying_bytes=min(share_of_set, 1.0) * workload.working_set_bytes,
                )
    return rows


def readings(scenario: Scenario) -> Rows:
    """Rent and marginal ratio of each tier in the three readings of rent, at today's prices."""
    beta, workload = scenario.workload.tail_exponent, scenario.workload
    value = _hit_value(scenario, scenario.prices.gpu_usd_per_s)
    rows = []
    for tier in scenario.hardware.tiers:
        for reading in READINGS:
            rent = rent_of(scenario, scenario.prices, tier, reading)
            if rent is None:
                continue
            at = {"tier": tier, "reading": reading}
            rows += _rows(at, reading_rent_usd_per_byte_s=rent)
            if workload.working_set_bytes is not None:
                ratio = _ratio(scenario, _use(scenario, tier)[1] * value, rent, beta)
                rows += _rows(at, reading_marginal_ratio=ratio)
    return rows


def intervals(scenario: Scenario) -> Rows:
    """Break-even interval of the scenario's prefix in each priced tier.

    ``loading`` is ``free`` where the GPU works on while a prefix loads, ``gpu waits`` where it
    stands still; the truth lies between.
    """
    prefix, _ = _prompt(scenario)
    gpus, prices = scenario.hardware.gpus, scenario.prices
    held = kept_bytes(scenario, prefix)
    recomputed_s = prefill_time(scenario, prefix, 0)
    recomputed = cost.recompute_cost(recomputed_s, gpus, prices.gpu_usd_per_s)
    rows = []
    for tier in priced_tiers(scenario):
        rent = rent_of(scenario, prices, tier)
        if rent == 0:
            continue
        fetched = _fetch_time(scenario.hardware.tiers[tier], held)
        waits = cost.recompute_cost(fetched, gpus, prices.gpu_usd_per_s)
        for loading, usd in (("free", 0.0), ("gpu waits", waits)):
            interval = capacity.break_even_interval(recomputed, usd, rent, held)
            at = {"tier": tier, "tokens": prefix, "loading": loading}
            rows += _rows(at, break_even_interval_s=interval)
    return rows


def blocks(scenario: Scenario) -> Rows:
    """The scenario in the units of a replay: blocks that a tier holds, and the price of one block.

    ``price_per_block`` is the rent of a block over the benefit of a hit rate of one, both for the
    same time and by the tier's use: where the reuse curve rises by more than this per block, the
    block earns its rent. Infinite where a hit from the tier is worth nothing.
    """
    workload = scenario.workload
    block_bytes = scenario.serving.block_tokens * slope(scenario)
    if not block_bytes:
        return []
    tokens_per_s = workload.requests_per_s * workload.prompt_tokens
    rows = _rows({}, block_bytes=block_bytes)
    for tier, part in scenario.hardware.tiers.items():
        rows += _rows({"tier": tier}, capacity_blocks=part.capacity_bytes / block_bytes)
    for tier in priced_tiers(scenario):
        for band, (gpu, byte_prices) in _bands(scenario).items():
            value = _use(scenario, tier)[1] * _hit_value(scenario, gpu.gpu_usd_per_s)
            rent = cost.cost_rate(rent_of(scenario, byte_prices, tier), block_bytes)
            benefit = cost.benefit_rate(tokens_per_s, value, 1.0)
            price = rent / benefit if benefit else math.inf
            rows += _rows({"tier": tier, "band": band}, price_per_block=price)
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
    rents = {tier: rent_of(scenario, scenario.prices, tier) for tier in priced_tiers(scenario)}
    for table, model in _tabulated():
        for tokens in prefix_tokens:
            prefill_s = table.prefill_time(tokens)
            usd = cost.recompute_cost(prefill_s, table.gpus, scenario.prices.gpu_usd_per_s)
            at = {"model": _short(model), "tokens": tokens}
            rows += _rows(at, "tabulated", prefill_time_s=prefill_s)
            for element in elements:
                held = _kv_bytes(model, tokens, element, scenario.serving.window_cache)
                for tier, rent in rents.items():
                    if rent:
                        interval = capacity.break_even_interval(usd, 0.0, rent, held)
                        at_tier = {**at, "element": element, "tier": tier}
                        rows += _rows(at_tier, break_even_interval_s=interval)
    return rows


def everything(scenario: Scenario) -> Rows:
    """All that the formulas predict at the scenario's own point."""
    parts = (
        sizes, gigabyte_chart, recoveries, crossovers, loads, slacks, costs, readings, capacities,
        intervals,
    )  # fmt: skip
    return [row for part in parts for row in part(scenario)]
