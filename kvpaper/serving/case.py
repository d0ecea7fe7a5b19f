"""What the cells choose from: ways to run a model and tiers on offer, at given GPUs and prices."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from kvpaper import latency
from kvpaper.scenario import Instances, Scenario
from kvpaper.serving import build, measures
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
        Targets, prices, and what of the model, its tiers and links is no choice.
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
        offers = tuple(_offer(base, tier, scenario) for tier in base.tiers)
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
        # Without a tier there is nothing to fetch, at the arrival or at the turn.
        lead_s = base.prefetch_lead_s if chosen.tiers else base.prefetch_lead_s or 0.0
        rules = (base.router, base.decode_router, base.fetch, lead_s, base.answers,
                 base.queue_limit, base.gpus_per_node)  # fmt: skip
        pools = (way.name, chosen.prefill_instances, chosen.chunk_tokens)
        if other is not None:
            link = way.prefill.link_bytes_per_s, base.transfer_latency_s, base.transfer_layers
            pools += (other.name, chosen.decode_instances, base.first_token_from, *link)
        return rules, pools, chosen.tiers

    def fleet(self, chosen: Configuration) -> Fleet:
        """The fleet of a configuration."""
        one, other = chosen.prefill.prefill, chosen.decode and chosen.decode.decode
        instances = one.instances * chosen.prefill_instances
        prefill = replace(one, instances=instances, chunk_tokens=chosen.chunk_tokens)
        decode = other and replace(other, instances=other.instances * chosen.decode_instances)
        tiers = tuple(tier.times(one.gpus) for tier in chosen.tiers)
        return replace(self.base, prefill=prefill, decode=decode, tiers=tiers)

    def usd_per_s(self, chosen: Configuration, written_bytes_per_s: tuple[float, ...]) -> float:
        """Cost of all GPUs, idle ones too, and of the tiers bought, by their wear [USD/s]."""
        gpus = chosen.prefill_instances * chosen.prefill.gpus
        stocks = {
            tier.name: (tier.capacity_bytes * gpus, written)
            for tier, written in zip(chosen.tiers, written_bytes_per_s, strict=True)
        }
        return measures.usd_per_s(self.scenario, self.gpus, stocks)


def _offer(base: Fleet, tier: Tier, scenario: Scenario) -> tuple[Tier, ...]:
    """What may be bought of a tier for each GPU: sizes, and what wears also on second use."""
    own = tier.times(1 / base.prefill.gpus)
    worn = scenario.hardware.tiers[tier.name].rated_writes_per_s is not None
    return tuple(
        replace(own, capacity_bytes=own.capacity_bytes * size, admission=admission)
        for size in SIZES
        for admission in (ADMISSIONS if worn else (tier.admission,))
    )


def _ways(scenario: Scenario, trace: BlockTrace) -> Iterator[Way]:
    """Every tabulated way to run the scenario's model, or the one that its rate describes.

    Left out are ways with too little memory for the longest request.
    """
    table, names = scenario.serving.prefill.table, [None]
    if table is not None:
        longest = int((trace.input_tokens + np.maximum(trace.output_tokens, 1)).max())
        names = [
            way.name
            for way in latency.ways(latency.instance(table).table, scenario.serving.element)
            if way.kv_tokens and way.decode_kv_tokens >= longest + trace.block_tokens
        ]
    for name in names:
        one = Instances(table=name)
        split = {"fleet.prefill": one, "fleet.decode": one, "fleet.chunk_tokens": None}
        built = build.fleet(scenario.changed(split), trace)
        gpus = built.prefill.gpus * built.prefill.instances
        yield Way(name or "scenario", gpus, built.prefill, built.decode)
