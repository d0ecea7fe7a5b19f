"""What the cells choose from: ways to run a model and tiers on offer, at given GPUs and prices."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from kvpaper import evaluate, latency
from kvpaper.errors import InputError
from kvpaper.scenario import Instances, Prices, Scenario
from kvpaper.serving import build
from kvpaper.serving.fleet import ADMISSIONS, Fleet, Pool, Tier
from kvpaper.traces.block_trace import BlockTrace

# Shares of a tier's capacity to choose from; none is always a choice.
SIZES = (0.25, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to run a model: its GPUs, and one instance of it as a pool that prefills or decodes.

    An instance of several ranks is a pool of so many.
    """

    name: str
    gpus: int
    prefill: Pool
    decode: Pool


class Configuration(NamedTuple):
    """What a cell may choose; ``decode`` is None with one pool, ``tiers`` are those of a GPU."""

    prefill: Way
    prefill_instances: int
    decode: Way | None = None
    decode_instances: int = 0
    chunk_tokens: int | None = None
    tiers: tuple[Tier, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """What the four cells share.

    Attributes
    ----------
    scenario : Scenario
        Prices, and what of the model, its tiers and links is no choice.
    base : Fleet
        The scenario's fleet, whose pools and tiers are replaced.
    ways : tuple of Way
        The usual first.
    gpus : int
        GPUs that every cell pays for.
    offers : tuple of tuples of Tier
        For each tier that has a price, what may be bought of it for each GPU.
    """

    scenario: Scenario
    base: Fleet
    ways: tuple[Way, ...]
    gpus: int
    offers: tuple[tuple[Tier, ...], ...]

    @classmethod
    def of(cls, scenario: Scenario, trace: BlockTrace) -> "Case":
        """The case of a scenario: as many GPUs as its fleet has, and every tabulated way.

        Tables are continued to the longest request of the trace.

        Raises
        ------
        InputError
            As :func:`kvpaper.serving.build.fleet`.
        """
        base = build.fleet(scenario)
        priced = evaluate.priced_tiers(scenario)
        offers = tuple(_offer(base, tier, scenario) for tier in base.tiers if tier.name in priced)
        return cls(scenario, base, tuple(_ways(scenario, trace)), base.gpus, offers)

    def offering(self, names: tuple[str, ...] | None = None, **changes) -> "Case":
        """The case with only these tiers on offer, or with values of all tiers replaced."""
        offers = tuple(
            tuple(replace(tier, **changes) for tier in offer)
            for offer in self.offers
            if names is None or offer[0].name in names
        )
        return replace(self, offers=offers)

    def stocks(self) -> list[tuple[Tier, ...]]:
        """Every choice of tiers, none first."""
        choices = product(*((None, *offer) for offer in self.offers))
        return [tuple(tier for tier in chosen if tier is not None) for chosen in choices]

    def key(self, chosen: Configuration) -> tuple:
        """What tells two replays of a trace apart, in numbers and words; for cases of one model."""
        base, way, other = self.base, chosen.prefill, chosen.decode
        rules = (base.router, base.decode_router, base.fetch, base.prefetch_lead_s, base.answers,
                 base.queue_limit, base.gpus_per_node)  # fmt: skip
        pools = (way.name, chosen.prefill_instances, chosen.chunk_tokens)
        if other is not None:
            link = way.prefill.link_bytes_per_s, base.transfer_latency_s, base.transfer_layers
            pools += (other.name, chosen.decode_instances, base.first_token_from, *link)
        return rules, pools, chosen.tiers

    def fleet(self, chosen: Configuration) -> Fleet:
        """The fleet of a configuration."""
        one, other = chosen.prefill.prefill, chosen.decode and chosen.decode.decode
        prefill = replace(
            one,
            instances=one.instances * chosen.prefill_instances,
            decode=None if other else one.decode,
            chunk_tokens=chosen.chunk_tokens,
        )
        decode = other and replace(other, instances=other.instances * chosen.decode_instances)
        tiers = tuple(
            replace(
                tier,
                capacity_bytes=tier.capacity_bytes * one.gpus,
                read_bytes_per_s=tier.read_bytes_per_s * one.gpus,
                write_bytes_per_s=tier.write_bytes_per_s * one.gpus,
            )
            for tier in chosen.tiers
        )
        return replace(self.base, prefill=prefill, decode=decode, tiers=tiers)

    def usd_per_s(
        self,
        chosen: Configuration,
        written_bytes_per_s: tuple[float, ...],
        prices: Prices | None = None,
    ) -> float:
        """Cost of all GPUs, idle ones too, and of the tiers bought, by their wear [USD/s]."""
        prices, gpus = (
            prices or self.scenario.prices,
            chosen.prefill_instances * chosen.prefill.gpus,
        )
        usd_per_s = self.gpus * prices.gpu_usd_per_s
        for tier, written in zip(chosen.tiers, written_bytes_per_s, strict=True):
            held = tier.capacity_bytes * gpus
            rent = evaluate.rent_of(self.scenario, prices, tier.name, None, written / held)
            usd_per_s += (rent or 0.0) * held
        return usd_per_s


def _offer(base: Fleet, tier: Tier, scenario: Scenario) -> tuple[Tier, ...]:
    """What may be bought of a tier for each GPU: sizes, and what wears also on second use."""
    share = 1 / base.prefill.gpus
    worn = scenario.hardware.tiers[tier.name].rated_writes_per_s is not None
    return tuple(
        replace(
            tier,
            capacity_bytes=tier.capacity_bytes * share * size,
            read_bytes_per_s=tier.read_bytes_per_s * share,
            write_bytes_per_s=tier.write_bytes_per_s * share,
            admission=admission,
        )
        for size in SIZES
        for admission in (ADMISSIONS if worn else (tier.admission,))
    )


def _ways(scenario: Scenario, trace: BlockTrace) -> Iterator[Way]:
    """Every tabulated way to run the scenario's model, or the one that its rate describes."""
    table = scenario.serving.prefill.table
    names = [None]
    if table is not None:
        family = latency.instance(table).table
        names = [one.name for one in latency.ways(family, scenario.serving.element)]
    longest = int((trace.input_tokens + np.maximum(trace.output_tokens, 1)).max())
    for name in names:
        instance = None if name is None else latency.instance(name)
        if instance is not None and instance.decode_kv_tokens < longest + trace.block_tokens:
            continue
        one, two = Instances(table=name), {"prefill": Instances(table=name)}
        split = scenario.fleet.model_copy(update=two | {"decode": one, "chunk_tokens": None})
        try:
            built = build.reaching(build.fleet(replace(scenario, fleet=split)), trace)
        except InputError:
            if instance is not None and not instance.kv_tokens:
                continue  # nothing left of its memory where it prefills
            raise
        prefill = replace(built.prefill, decode=built.decode.decode)
        gpus = built.prefill.gpus * built.prefill.instances
        yield Way(name or "scenario", gpus, prefill, built.decode)
