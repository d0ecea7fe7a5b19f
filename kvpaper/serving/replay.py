"""Replay of a block trace on a fleet: raw rows out, nothing concluded."""

from dataclasses import dataclass

import numba
import numpy as np

from kvpaper.errors import InputError
from kvpaper.reuse.fleet import sessions_of
from kvpaper.serving import engine, state
from kvpaper.serving.fleet import FETCHES, Fleet, Pool
from kvpaper.serving.heap import NODE, NONE
from kvpaper.serving.steps import steps_by_batch, with_axes
from kvpaper.traces.block_trace import BlockTrace, require_identity

# Each takes 8 B.
_MOST_LINKS = 10**9


@dataclass(frozen=True, slots=True)
class Replay:
    """What happened to each request; R requests, E instances, K tiers.

    Attributes
    ----------
    fleet : Fleet
    arrival_s, prefill_start_s, first_token_s, finish_s : float64 array, shape (R,)
        Moments since the trace began [s]; NaN for a request that was turned away.
    prefill_s, decode_s : float64 array, shape (R,)
        Time of an instance that the request took [s]; in a batch its share.
    input_tokens, output_tokens, computed_tokens : int64 array, shape (R,)
        Prompt, answer, and what of the prompt no cache served [token].
    hit_tokens : int64 array, shape (R, K + 1)
        What GPU memory and each tier served [token].
    fetched_bytes, written_bytes : float64 array, shape (R, K)
        Read from each tier and written to it on behalf of the request [B].
    transferred_bytes : float64 array, shape (R,)
        Sent between the pools [B].
    prefill_instance, decode_instance : int32 array, shape (R,)
        Numbers within the pool; -1 for none.
    rejected : bool array, shape (R,)
    prefill_busy_s, decode_busy_s : float64 array, shape (E,)
        Time that each instance worked at either [s], prefill pool first. Waiting is no work.
    """

    fleet: Fleet
    arrival_s: np.ndarray
    prefill_start_s: np.ndarray
    first_token_s: np.ndarray
    finish_s: np.ndarray
    prefill_s: np.ndarray
    decode_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    computed_tokens: np.ndarray
    hit_tokens: np.ndarray
    fetched_bytes: np.ndarray
    written_bytes: np.ndarray
    transferred_bytes: np.ndarray
    prefill_instance: np.ndarray
    decode_instance: np.ndarray
    rejected: np.ndarray
    prefill_busy_s: np.ndarray
    decode_busy_s: np.ndarray

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to the first token [s]."""
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> np.ndarray:
        """Mean time of each further token [s]; NaN for answers of one."""
        further = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        return (self.finish_s - self.first_token_s) / further


def replay(fleet: Fleet, trace: BlockTrace, seed: int = 0) -> Replay:
    """Serve every request of a trace; runs until the last one is done, however long the queue.

    Semantics. A lookup is atomic when a request starts: block j hits if blocks 0..j are there and
    computed; what is still being computed or written counts as missing. A started request holds
    room for its prompt and, where it decodes, its whole answer, so that nothing is preempted; GPU
    memory beyond that caches. A fetch never blocks an instance: the request waits beside the queue
    and keeps its place.

    Parameters
    ----------
    fleet : Fleet
    trace : BlockTrace
        With block ids, in order of arrival.
    seed : int
        Of random and session routing; all else is determined.

    Raises
    ------
    InputError
        If the trace has no requests, order or block identity, or a request fits no instance, tier
        or table.
    """
    _check(fleet, trace)
    world = _world(fleet, trace, seed)
    engine.run(world)
    return _outcome(fleet, trace, world)


def _check(fleet: Fleet, trace: BlockTrace) -> None:
    if not trace.requests:
        raise InputError("trace", "no requests", "at least one")
    require_identity(trace.block_tokens, "trace")
    if not trace.prefix or trace.unit_tokens is not None:
        raise InputError("trace", "components of prompts", "blocks of prefixes")
    if not (np.isfinite(trace.arrival_s).all() and (np.diff(trace.arrival_s) >= 0).all()):
        raise InputError("trace", "arrivals out of order", "arrivals that never decrease")
    stores = fleet.prefill.instances * (1 + len(fleet.tiers))
    if stores * trace.unique_blocks > _MOST_LINKS:
        found = f"{fleet.prefill.instances} with {trace.unique_blocks} blocks of the trace"
        raise InputError("instances", found, f"at most {_MOST_LINKS:,} blocks in all their caches")
    prompt, whole = int(trace.input_tokens.max()), int(_contexts(trace).max())
    block, table, decoding = trace.block_tokens, fleet.prefill.prefill_table, fleet.decoding
    tokens, blocks = "tokens", f"blocks of {block} tokens"
    for where, asked, most, unit in (
        ("prefill table", prompt, table.new_tokens[-1], tokens),
        ("prefill table", prompt, table.cached_tokens[-1], tokens),
        ("decode table", whole, decoding.decode_table.context[-1], tokens),
        ("kv_tokens", -(-prompt // block), fleet.prefill.kv_tokens // block, blocks),
        ("kv_tokens", -(-whole // block), decoding.kv_tokens // block, blocks),
        ("chunk_tokens", fleet.prefill.chunk_tokens or 0, table.new_tokens[-1], tokens),
    ):
        if asked > most:
            raise InputError(where, f"a request of {asked} {unit}", f"at most {most:g}")
    stored = fleet.block_bytes(block)
    for tier in fleet.tiers:
        if tier.capacity_bytes * fleet.instances_sharing(tier) < stored:
            expected = f"room for a block of {stored:g} B, or no tier"
            raise InputError(f"tier {tier.name}", f"{tier.capacity_bytes:g} B", expected)


def _contexts(trace: BlockTrace) -> np.ndarray:
    """Tokens in cache when the last one is computed, which is never written."""
    return trace.input_tokens + np.maximum(trace.output_tokens, 1) - 1


def _world(fleet: Fleet, trace: BlockTrace, seed: int) -> state.World:
    units, reach = _units(fleet, trace)
    # One row more tells which request last named a block.
    stores = fleet.prefill.instances + len(units) + 1
    links = np.zeros((stores, trace.unique_blocks + 1, 2), np.int32)
    links[:, -1] = trace.unique_blocks + 1
    links[-1] = NONE
    table, steps = fleet.prefill.prefill_table, fleet.decoding.decode_table
    by_batch = steps_by_batch(steps.batch, steps.context, steps.seconds)
    return state.World(
        rules=_rules(fleet, trace, len(by_batch) - 1),
        request=_requests(fleet, trace, seed),
        engine=_engines(fleet, trace, reach),
        unit=units,
        blocks=trace.blocks,
        links=links,
        node=np.empty(state.NODES * trace.requests, NODE),
        prefill=with_axes(table.new_tokens, table.cached_tokens, table.seconds),
        steps=by_batch,
    )


def _filled(records: np.ndarray, **values: np.ndarray | float) -> np.ndarray:
    """The records with values by field."""
    for name, value in values.items():
        records[name] = value
    return records


def _rules(fleet: Fleet, trace: BlockTrace, max_batch: int) -> np.ndarray:
    router = {"least loaded": state.LEAST_LOADED, "prefix": state.PREFIX}
    return _filled(
        np.zeros(1, state.RULES),
        block=trace.block_tokens,
        kv_bytes=fleet.kv_bytes_per_token,
        boundary_bytes=fleet.boundary_bytes,
        tiers=len(fleet.tiers),
        fetch=FETCHES.index(fleet.fetch),
        lead_s=-1.0 if fleet.prefetch_lead_s is None else fleet.prefetch_lead_s,
        first_from_decode=fleet.first_token_from == "decode",
        latency_s=fleet.transfer_latency_s,
        layers=fleet.transfer_layers,
        queue_limit=2**62 if fleet.queue_limit is None else fleet.queue_limit,
        router=router.get(fleet.router, state.PRESET),
        decode_router=router.get(fleet.decode_router, state.PRESET),
        prefilling=fleet.prefill.instances,
        max_batch=max_batch,
        timers=NONE,
        last=NONE,
        decode_last=NONE,
    )


def _units(fleet: Fleet, trace: BlockTrace) -> tuple[np.ndarray, np.ndarray]:
    """Units of all tiers, and the unit of each tier that a prefilling instance reaches."""
    instances = np.arange(fleet.prefill.instances)
    groups = [instances // fleet.instances_sharing(tier) for tier in fleet.tiers]
    first = np.cumsum([0, *(group[-1] + 1 for group in groups)])
    units = np.zeros(first[-1], state.UNIT)
    _filled(units, store=len(instances) + np.arange(len(units)), next_s=np.inf, jobs=NONE)
    reach = np.full((len(instances), 3), NONE, np.int32)
    for k, (tier, group) in enumerate(zip(fleet.tiers, groups, strict=True)):
        reach[:, k] = first[k] + group
        lanes = np.bincount(group)
        held = lanes * tier.capacity_bytes // fleet.block_bytes(trace.block_tokens)
        _filled(
            units[first[k] : first[k + 1]],
            tier=k,
            lanes=lanes,
            capacity=np.minimum(held, trace.unique_blocks + 1),
            read=tier.read_bytes_per_s,
            write=tier.write_bytes_per_s,
            latency=tier.access_latency_s,
            second_use=tier.admission == "second use",
        )
    return units, reach


def _engines(fleet: Fleet, trace: BlockTrace, reach: np.ndarray) -> np.ndarray:
    engines = np.zeros(sum(pool.instances for pool in fleet.pools), state.ENGINE)
    _filled(engines, next_s=np.inf, current=NONE, running=NONE, head=NONE, ready=NONE, unit=NONE)
    prefill, decode = np.split(engines, [len(reach)])
    for own, pool in ((decode, fleet.decoding), (prefill, fleet.prefill)):
        capacity = pool.kv_tokens // trace.block_tokens
        _filled(own, decodes=True, capacity=capacity, link_rate=pool.link_bytes_per_s)
    chunk = fleet.prefill.chunk_tokens or 0
    _filled(prefill, prefills=True, decodes=fleet.decode is None, chunk=chunk, unit=reach)
    for k, tier in enumerate(fleet.tiers):
        if tier.scope == "pooled":
            decode["unit"][:, k] = reach[0, k]
    return engines


def _requests(fleet: Fleet, trace: BlockTrace, seed: int) -> np.ndarray:
    block, counts = trace.block_tokens, trace.blocks_per_request
    need = -(-_contexts(trace) // block)
    held = need if fleet.decode is None else -(-trace.input_tokens // block)
    requests = _filled(
        np.zeros(trace.requests, state.REQUEST),
        arrival_s=trace.arrival_s,
        input=trace.input_tokens,
        output=np.maximum(trace.output_tokens, 1),
        first_block=trace.offsets[:-1],
        blocks=counts,
        need=need,
        room=np.maximum(held - counts, 0),
        next_turn=NONE,
        engine=NONE,
        target=NONE,
        prefill_start_s=np.nan,
        first_token_s=np.nan,
        finish_s=np.nan,
    )
    if fleet.answers:
        _answers(requests, trace.blocks, block, trace.unique_blocks)
    session = None
    if fleet.router == "session" or (fleet.prefetch_lead_s or 0) > 0:
        session = sessions_of(trace)
        # One after another in each session.
        order = np.argsort(session, kind="stable")
        same = session[order[1:]] == session[order[:-1]]
        requests["next_turn"][order[:-1][same]] = order[1:][same]
    random = np.random.default_rng(seed)
    requests["preset"] = _preset(fleet.router, fleet.prefill, requests, session, random)
    if fleet.decode is not None:
        of_decode = fleet.decode_router, fleet.decode
        requests["decode_preset"] = _preset(*of_decode, requests, session, random)
    return requests


def _preset(router: str, pool: Pool, requests, session, random) -> np.ndarray | int:
    """Instance of every request where the router does not look at the load."""
    if router == "random":
        return random.integers(0, pool.instances, len(requests))
    if router == "round robin":
        return np.arange(len(requests)) % pool.instances
    if router == "session":
        return random.integers(0, pool.instances, int(session.max()) + 1)[session]
    return 0


@numba.njit(cache=True)
def _answers(requests, blocks, block, unique):
    """Find each answer's blocks in the request that continues it.

    That is the next one to use the last full block of the prompt, if it is long enough to hold
    prompt and answer: its blocks there are those that prompt and answer fill.
    """
    following = np.full(unique, -1, np.int32)
    for r in range(len(requests) - 1, -1, -1):
        q = requests[r]
        full = min(q.input // block, q.blocks)
        if full > 0:
            last = blocks[q.first_block + full - 1]
            n = following[last]
            whole = q.input + q.output - 1
            if n >= 0 and requests[n].input >= whole and requests[n].blocks >= whole // block:
                first = requests[n].first_block
                if blocks[first + full - 1] == last:
                    q.first_answer = first + full
                    q.answers = whole // block - full
        for i in range(q.first_block, q.first_block + q.blocks):
            following[blocks[i]] = r


def _outcome(fleet: Fleet, trace: BlockTrace, world: state.World) -> Replay:
    done, tiers = world.request, len(fleet.tiers)
    served, hit_tokens = ~done["rejected"], done["hit"][:, : tiers + 1].copy()
    prefill_instance = np.where(served, done["engine"], NONE)
    if fleet.decode is None:
        decode_instance = np.where(done["output"] > 1, prefill_instance, NONE)
    else:
        decode_instance = np.maximum(done["target"] - fleet.prefill.instances, NONE)
    times = ("prefill_start_s", "first_token_s", "finish_s", "prefill_s", "decode_s")
    return Replay(
        fleet=fleet,
        arrival_s=trace.arrival_s,
        **{name: done[name].copy() for name in times},
        input_tokens=trace.input_tokens,
        output_tokens=done["output"].copy(),
        computed_tokens=np.where(served, trace.input_tokens - hit_tokens.sum(axis=1), 0),
        hit_tokens=hit_tokens,
        fetched_bytes=done["fetched"][:, :tiers].copy(),
        written_bytes=done["written"][:, :tiers].copy(),
        transferred_bytes=done["sent"].copy(),
        prefill_instance=prefill_instance.astype(np.int32),
        decode_instance=decode_instance.astype(np.int32),
        rejected=done["rejected"].copy(),
        prefill_busy_s=world.engine["prefill_busy_s"].copy(),
        decode_busy_s=world.engine["decode_busy_s"].copy(),
    )
