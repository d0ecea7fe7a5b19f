"""What is replayed: pools of instances, tiers of cache, routing and the link between the pools."""

import math
from dataclasses import dataclass, replace

from kvpaper.errors import InputError
from kvpaper.latency import DecodeTable, PrefillTable

ROUTERS = ("random", "round robin", "least loaded", "session", "prefix")
SCOPES = ("instance", "node", "pooled")
ADMISSIONS = ("every use", "second use")
FETCHES = ("always", "better", "two-ended")
FIRST_TOKENS = ("decode", "prefill")


def _one_of(where: str, found: str, options: tuple[str, ...]) -> None:
    if found not in options:
        raise InputError(where, repr(found), f"one of {', '.join(options)}")


def _at_least(where: str, found: float | None, least: float, unit: str) -> None:
    if found is not None and not found >= least:
        raise InputError(where, f"{found:g}", f"{least:g} {unit} or more")


@dataclass(frozen=True, slots=True)
class Pool:
    """Like instances of a model.

    Attributes
    ----------
    instances : int
    gpus : int
        GPUs of one instance.
    kv_tokens : int
        Tokens of cache that one instance holds in GPU memory [token].
    prefill_table : PrefillTable or None
        None is enough for a pool that only decodes.
    decode_table : DecodeTable or None
        None is enough for a pool that only prefills.
    chunk_tokens : int or None
        Tokens of a step that takes parts of prompts, several of them where they are short, and the
        running batch; None runs whole prompts and lets the batch wait (prefill priority).
    link_bytes_per_s : float
        Rate at which one instance sends or receives cache [B/s].
    """

    instances: int
    gpus: int
    kv_tokens: int
    prefill_table: PrefillTable | None = None
    decode_table: DecodeTable | None = None
    chunk_tokens: int | None = None
    link_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        _at_least("pool.instances", self.instances, 1, "instance")
        _at_least("pool.gpus", self.gpus, 1, "GPU")
        _at_least("pool.kv_tokens", self.kv_tokens, 1, "token")
        if not self.link_bytes_per_s > 0:
            raise InputError("pool.link_bytes_per_s", f"{self.link_bytes_per_s:g}", "above zero")
        _at_least("pool.chunk_tokens", self.chunk_tokens, 1, "token")


@dataclass(frozen=True, slots=True)
class Tier:
    """A tier below GPU memory: what each prefilling instance brings, and who shares it.

    A node or a pool shares the sum of its instances; one fetch or write is never faster than the
    rate of one instance.

    Attributes
    ----------
    name : str
    capacity_bytes : float
        Of each instance [B].
    read_bytes_per_s, write_bytes_per_s : float
        Of each instance [B/s]. Reads and writes share the device; an infinite write rate is a
        device whose writes cost its readers nothing.
    access_latency_s : float
        Before the first byte of a read [s].
    scope : str
        One of ``SCOPES``.
    admission : str
        One of ``ADMISSIONS``: written at its first computation, or only when it is used again.
    """

    name: str
    capacity_bytes: float
    read_bytes_per_s: float
    write_bytes_per_s: float = math.inf
    access_latency_s: float = 0.0
    scope: str = "instance"
    admission: str = "every use"

    def __post_init__(self) -> None:
        where = f"tier {self.name}"
        _one_of(f"{where}.scope", self.scope, SCOPES)
        _one_of(f"{where}.admission", self.admission, ADMISSIONS)
        _at_least(f"{where}.access_latency_s", self.access_latency_s, 0, "s")
        for name in ("capacity_bytes", "read_bytes_per_s", "write_bytes_per_s"):
            if not getattr(self, name) > 0:
                expected = "above zero; a tier that is not bought is left out"
                raise InputError(f"{where}.{name}", f"{getattr(self, name):g}", expected)

    def times(self, share: float) -> "Tier":
        """The tier with this share of its capacity and rates."""
        return replace(
            self,
            capacity_bytes=self.capacity_bytes * share,
            read_bytes_per_s=self.read_bytes_per_s * share,
            write_bytes_per_s=self.write_bytes_per_s * share,
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """One configuration to replay.

    Attributes
    ----------
    prefill : Pool
        The pool that prefills; with no decode pool it decodes too.
    decode : Pool or None
    kv_bytes_per_token : float
        Slope of the cache [B/token], one logical copy.
    boundary_bytes : float
        What must be kept beside it to resume at the end of a block: windows and states [B].
    tiers : tuple of Tier
        At most three, fastest first, below the GPU memory of the pool that prefills. Inclusive: a
        block is written to every tier that admits it.
    router, decode_router : str
        One of ``ROUTERS``; ``decode_router`` one of the first three.
    fetch : str
        ``always`` takes every hit; ``better`` stops at the tier from which recomputing is faster;
        ``two-ended`` may compute the front of a prefix while its back is fetched.
    prefetch_lead_s : float or None
        None: a fetch starts when an instance turns to the request. 0: on arrival. Above: that long
        before arrival, though not before the end of the previous turn [s].
    first_token_from : str
        The side that sends the first token.
    transfer_latency_s : float
        Of the link between the pools [s].
    transfer_layers : int
        Parts in which a cache is sent while the prefill runs; 1 sends it afterwards.
    answers : bool
        Whether the cache of an answer is kept for the next turn: in GPU memory where the same
        instance decodes, and in pooled tiers.
    queue_limit : int or None
        Requests waiting at an instance from which a further one is turned away.
    gpus_per_node : int
    """

    prefill: Pool
    decode: Pool | None
    kv_bytes_per_token: float
    boundary_bytes: float = 0.0
    tiers: tuple[Tier, ...] = ()
    router: str = "prefix"
    decode_router: str = "least loaded"
    fetch: str = "better"
    prefetch_lead_s: float | None = 0.0
    first_token_from: str = "decode"
    transfer_latency_s: float = 0.0
    transfer_layers: int = 1
    answers: bool = True
    queue_limit: int | None = None
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        _one_of("router", self.router, ROUTERS)
        _one_of("decode_router", self.decode_router, ROUTERS[:3])
        _one_of("fetch", self.fetch, FETCHES)
        _one_of("first_token_from", self.first_token_from, FIRST_TOKENS)
        _at_least("transfer_layers", self.transfer_layers, 1, "layer")
        _at_least("transfer_latency_s", self.transfer_latency_s, 0, "s")
        _at_least("gpus_per_node", self.gpus_per_node, 1, "GPU")
        _at_least("kv_bytes_per_token", self.kv_bytes_per_token, 0, "B")
        _at_least("boundary_bytes", self.boundary_bytes, 0, "B")
        _at_least("prefetch_lead_s", self.prefetch_lead_s, 0, "s, or None")
        _at_least("queue_limit", self.queue_limit, 1, "request, or None")
        if len(self.tiers) > 3:
            raise InputError("tiers", f"{len(self.tiers)} tiers", "three at most")
        tables = {"prefill": self.prefill.prefill_table, "decode": self.decoding.decode_table}
        for name, table in tables.items():
            if table is None:
                raise InputError(f"{name}_table", "no latencies", "a table")
        layerwise = self.decode is not None and self.transfer_layers > 1
        if layerwise and self.prefill.chunk_tokens is not None:
            raise InputError(
                "prefill.chunk_tokens", "a chunk", "none where layers are sent one by one"
            )

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (self.prefill,) if self.decode is None else (self.prefill, self.decode)

    @property
    def decoding(self) -> Pool:
        """The pool that decodes, which may be the one that prefills."""
        return self.pools[-1]

    @property
    def gpus(self) -> int:
        """GPUs of all instances."""
        return sum(pool.instances * pool.gpus for pool in self.pools)

    def block_bytes(self, block_tokens: int) -> float:
        """What a block takes in a tier [B]."""
        return block_tokens * self.kv_bytes_per_token + self.boundary_bytes

    def instances_sharing(self, tier: Tier) -> int:
        """Prefilling instances that share one unit of a tier."""
        if tier.scope == "instance":
            return 1
        if tier.scope == "node":
            return min(max(1, self.gpus_per_node // self.prefill.gpus), self.prefill.instances)
        return self.prefill.instances
