"""Replay of a block trace on a fleet: raw rows out, nothing concluded."""

from dataclasses import dataclass

import numba
import numpy as np

from kvpaper.errors import InputError
from kvpaper.reuse.fleet import inferred_sessions
from kvpaper.serving import engine, state
from kvpaper.serving.fleet import FETCHES, Fleet, Pool
from kvpaper.serving.heap import NODE, NONE
from kvpaper.serving.steps import steps_by_batch, with_axes
from kvpaper.traces.block_trace import BlockTrace, require_identity


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

    @property
    def end_to_end_s(self) -> np.ndarray:
        return self.finish_s - self.arrival_s


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
    prompt, whole = int(trace.input_tokens.max()), int(_contexts(trace).max())
    decoding = fleet.decode or fleet.prefill
    _reach("prefill table", prompt, fleet.prefill.prefill.new_tokens[-1])
    _reach("prefill table", prompt, fleet.prefill.prefill.cached_tokens[-1])
    _reach("decode table", whole, decoding.decode.context[-1])
    _reach(
        "kv_tokens", _blocks(prompt, trace), fleet.prefill.kv_tokens // trace.block_tokens, trace
    )
    _reach("kv_tokens", _blocks(whole, trace), decoding.kv_tokens // trace.block_tokens, trace)
    if fleet.prefill.chunk_tokens:
        most = fleet.prefill.prefill.new_tokens[-1]
        _reach("chunk_tokens", fleet.prefill.chunk_tokens, most)
    for tier in fleet.tiers:
        if tier.capacity_bytes * fleet.instances_sharing(tier) < _stored_bytes(fleet, trace):
            raise InputError(
                f"tier {tier.name}",
                f"{tier.capacity_bytes:g} B",
                f"room for a block of {_stored_bytes(fleet, trace):g} B, or no tier",
            )


def _contexts(trace: BlockTrace) -> np.ndarray:
    """Tokens in cache when the last one is computed, which is never written."""
    return trace.input_tokens + np.maximum(trace.output_tokens, 1) - 1


def _blocks(tokens: int, trace: BlockTrace) -> int:
    return -(-tokens // trace.block_tokens)


def _reach(where: str, tokens: int, most: float, trace: BlockTrace | None = None) -> None:
    if tokens > most:
        unit = f"blocks of {trace.block_tokens} tokens" if trace else "tokens"
        raise InputError(where, f"a request of {tokens} {unit}", f"at most {most:g}")


def _stored_bytes(fleet: Fleet, trace: BlockTrace) -> float:
    """What a block takes in a tier [B]."""
    return trace.block_tokens * fleet.kv_bytes_per_token + fleet.boundary_bytes


def _world(fleet: Fleet, trace: BlockTrace, seed: int) -> state.World:
    units, reach = _units(fleet, trace)
    prefilling, decode = fleet.prefill, fleet.decode or fleet.prefill
    engines = _engines(fleet, trace, reach)
    # One row more tells which request last named a block.
    stores = prefilling.instances + len(units) + 1
    links = np.zeros((stores, trace.unique_blocks + 1, 2), np.int32)
    links[:, -1] = trace.unique_blocks + 1
    links[-1] = NONE
    table, steps = prefilling.prefill, decode.decode
    by_batch = steps_by_batch(steps.batch, steps.context, steps.seconds)
    return state.World(
        rules=_rules(fleet, trace, len(by_batch) - 1),
        request=_requests(fleet, trace, seed),
        engine=engines,
        unit=units,
        blocks=trace.blocks,
        links=links,
        node=np.empty(state.NODES * trace.requests, NODE),
        prefill=with_axes(table.new_tokens, table.cached_tokens, table.seconds),
        steps=by_batch,
    )


def _rules(fleet: Fleet, trace: BlockTrace, max_batch: int) -> np.ndarray:
    router = {"least loaded": state.LEAST_LOADED, "prefix": state.PREFIX}
    lead_s = fleet.prefetch_lead_s
    rules = np.zeros(1, state.RULES)
    for name, value in {
        "block": trace.block_tokens,
        "kv_bytes": fleet.kv_bytes_per_token,
        "boundary_bytes": fleet.boundary_bytes,
        "tiers": len(fleet.tiers),
        "fetch": FETCHES.index(fleet.fetch),
        "lead_s": -1.0 if lead_s is None else lead_s,
        "first_from_decode": fleet.first_token_from == "decode",
        "latency_s": fleet.transfer_latency_s,
        "layers": fleet.transfer_layers,
        "queue_limit": 2**62 if fleet.queue_limit is None else fleet.queue_limit,
        "router": router.get(fleet.router, state.PRESET),
        "decode_router": router.get(fleet.decode_router, state.PRESET),
        "prefilling": fleet.prefill.instances,
        "max_batch": max_batch,
        "timers": NONE,
        "last": NONE,
        "decode_last": NONE,
    }.items():
        rules[name] = value
    return rules


def _units(fleet: Fleet, trace: BlockTrace) -> tuple[np.ndarray, np.ndarray]:
    """Units of all tiers, and the unit of each tier that a prefilling instance reaches."""
    instances = fleet.prefill.instances
    reach = np.full((instances, 3), NONE, np.int32)
    rows = []
    for k, tier in enumerate(fleet.tiers):
        sharing = fleet.instances_sharing(tier)
        reach[:, k] = len(rows) + np.arange(instances) // sharing
        for first in range(0, instances, sharing):
            lanes = min(sharing, instances - first)
            held = lanes * tier.capacity_bytes // _stored_bytes(fleet, trace)
            rows.append((k, tier, lanes, int(min(held, trace.unique_blocks + 1))))
    units = np.zeros(len(rows), state.UNIT)
    for u, (k, tier, lanes, capacity) in enumerate(rows):
        units[u]["tier"], units[u]["store"] = k, instances + u
        units[u]["capacity"], units[u]["lanes"] = capacity, lanes
        units[u]["read"], units[u]["write"] = tier.read_bytes_per_s, tier.write_bytes_per_s
        units[u]["latency"] = tier.access_latency_s
        units[u]["second_use"] = tier.admission == "second use"
    units["next_s"], units["jobs"] = np.inf, NONE
    return units, reach


def _engines(fleet: Fleet, trace: BlockTrace, reach: np.ndarray) -> np.ndarray:
    engines = np.zeros(sum(pool.instances for pool in fleet.pools), state.ENGINE)
    for name in ("current", "running", "head", "ready", "unit"):
        engines[name] = NONE
    engines["next_s"] = np.inf
    prefill, decode = engines[: len(reach)], engines[len(reach) :]
    _pool(prefill, fleet.prefill, trace)
    prefill["prefills"], prefill["decodes"] = True, fleet.decode is None
    prefill["chunk"] = fleet.prefill.chunk_tokens or 0
    prefill["unit"] = reach
    if fleet.decode is not None:
        _pool(decode, fleet.decode, trace)
        decode["decodes"] = True
        for k, tier in enumerate(fleet.tiers):
            if tier.scope == "pooled":
                decode["unit"][:, k] = reach[0, k]
    return engines


def _pool(engines: np.ndarray, pool: Pool, trace: BlockTrace) -> None:
    engines["capacity"] = pool.kv_tokens // trace.block_tokens
    engines["link_rate"] = pool.link_bytes_per_s


def _requests(fleet: Fleet, trace: BlockTrace, seed: int) -> np.ndarray:
    requests = np.zeros(trace.requests, state.REQUEST)
    counts = trace.blocks_per_request
    requests["arrival_s"], requests["input"] = trace.arrival_s, trace.input_tokens
    requests["output"] = np.maximum(trace.output_tokens, 1)
    requests["first_block"], requests["blocks"] = trace.offsets[:-1], counts
    requests["need"] = -(-_contexts(trace) // trace.block_tokens)
    held = (
        requests["need"] if fleet.decode is None else -(-trace.input_tokens // trace.block_tokens)
    )
    requests["room"] = np.maximum(held - counts, 0)
    if fleet.answers:
        _answers(requests, trace.blocks, trace.block_tokens, trace.unique_blocks)
    requests["next_turn"] = requests["engine"] = requests["target"] = NONE
    for name in ("prefill_start_s", "first_token_s", "finish_s"):
        requests[name] = np.nan
    random = np.random.default_rng(seed)
    session = None
    if fleet.router == "session" or (fleet.prefetch_lead_s or 0) > 0:
        named = bool((trace.session >= 0).all())
        session = trace.session if named else inferred_sessions(trace)
        _next_turns(session, int(session.max()) + 1, requests["next_turn"])
    for name, router, pool in (
        ("preset", fleet.router, fleet.prefill),
        ("decode_preset", fleet.decode_router, fleet.decode),
    ):
        n = pool.instances if pool else 1
        if router == "random":
            requests[name] = random.integers(0, n, trace.requests)
        elif router == "round robin":
            requests[name] = np.arange(trace.requests) % n
        elif router == "session":
            requests[name] = random.integers(0, n, int(session.max()) + 1)[session]
    return requests


@numba.njit(cache=True)
def _next_turns(session, sessions, next_turn):
    following = np.full(sessions, -1, np.int32)
    for r in range(len(session) - 1, -1, -1):
        next_turn[r] = following[session[r]]
        following[session[r]] = r


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
    hit_tokens = done["hit"][:, : tiers + 1].copy()
    computed = np.where(done["rejected"], 0, trace.input_tokens - hit_tokens.sum(axis=1))
    first = fleet.prefill.instances
    target = np.where(done["target"] < 0, NONE, done["target"] - first).astype(np.int32)
    if fleet.decode is None:
        target = np.where(done["rejected"] | (done["output"] <= 1), NONE, done["engine"])
    return Replay(
        fleet=fleet,
        arrival_s=trace.arrival_s,
        prefill_start_s=done["prefill_start_s"].copy(),
        first_token_s=done["first_token_s"].copy(),
        finish_s=done["finish_s"].copy(),
        prefill_s=done["prefill_s"].copy(),
        decode_s=done["decode_s"].copy(),
        input_tokens=trace.input_tokens,
        output_tokens=done["output"].copy(),
        computed_tokens=computed,
        hit_tokens=hit_tokens,
        fetched_bytes=done["fetched"][:, :tiers].copy(),
        written_bytes=done["written"][:, :tiers].copy(),
        transferred_bytes=done["sent"].copy(),
        prefill_instance=np.where(done["rejected"], NONE, done["engine"]).astype(np.int32),
        decode_instance=target,
        rejected=done["rejected"].copy(),
        prefill_busy_s=world.engine["prefill_busy_s"].copy(),
        decode_busy_s=world.engine["decode_busy_s"].copy(),
    )
