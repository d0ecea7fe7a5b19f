"""A scenario: model, hardware, serving, workload, targets and prices, each leaf with its source.

A leaf of the YAML file is a number with its unit, ``64 GB/s``, or, where its source is told,
``{value: "64 GB/s", source: "...", as_of: 2026-05}``. A price must have both, and may have a band,
``low`` and ``high``. Inside, values are floats in base units and every name ends in its unit.
"""

import datetime
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic import ValidationError as PydanticError
from pydantic_core import PydanticCustomError

from kvpaper import data, models, units
from kvpaper.errors import InputError, hint

_DATE = re.compile(r"(19|20)\d\d(-(Q[1-4]|(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?))?\Z")
_LEAF_KEYS = {"value", "low", "high", "source", "as_of"}
_MAX_FILE_BYTES = 1_000_000
_MAX_NODES = 20_000
# Whether a value will do, and what is expected of it.
Condition = tuple[Callable[[float], bool], str]


def _refusal(found: str, expected: str, key: str = "") -> PydanticCustomError:
    context = {"found": found, "expected": expected, "key": key}
    return PydanticCustomError("refusal", "{found}{expected}{key}", context)


def _leaf_schema(example: str | list[str], plain: dict[str, Any] | None = None) -> WithJsonSchema:
    """Schema of a leaf in both of its forms; ``plain`` is that of the short one."""
    short = (plain or {"type": "string"}) | {"examples": [example]}
    long_form = {
        "type": "object",
        "properties": {
            "value": short,
            "low": short,
            "high": short,
            "source": {"type": "string"},
            "as_of": {"type": ["string", "integer"], "examples": ["2026-05", "2026-Q1"]},
        },
        "required": ["value"],
        "additionalProperties": False,
    }
    return WithJsonSchema({"anyOf": [short, long_form]})


def _beside(name: str, info: ValidationInfo) -> str:
    """The path of what lies beside the scenario's file, else the name as it is."""
    path = info.context / name
    return str(path) if name and os.path.exists(path) else name


def _quantity(
    unit: str, example: str, least: float = 0.0, most: float = 1e30, must: Condition | None = None
) -> Any:
    """Type of a leaf: a float in base units, of the dimension of ``unit``, in [least, most]."""
    expected = f"{'a value with its unit' if unit else 'a number'} such as {example!r}"

    def read(raw: Any) -> float:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise _refusal(repr(raw), expected)
        try:
            value = units.quantity(str(raw), unit)
        except ValueError as error:
            raise _refusal(f"{raw!r} ({error})", expected) from None
        if not least <= value <= most:
            raise _refusal(repr(raw), f"{expected}, from {least:g} to {most:g} in base units")
        if must and not must[0](value):
            raise _refusal(f"{value:g}", must[1])
        return value

    plain = None if unit else {"type": ["string", "number"]}
    return Annotated[float, BeforeValidator(read), _leaf_schema(example, plain)]


_POSITIVE = (lambda value: value > 0, "a value above zero")
_WHOLE = (lambda value: value == int(value) and value >= 1, "a whole number of tokens above zero")
_INSIDE = (lambda value: 0 < value < 1, "a number between 0 and 1, both excluded, such as '0.6'")
Bytes = _quantity("B", "1 TiB", must=_POSITIVE)
Rate = _quantity("B/s", "64 GB/s", must=_POSITIVE)
FlopRate = _quantity("FLOP/s", "580 TFLOP/s", must=_POSITIVE)
Seconds = _quantity("s", "300 ms")
Duration = _quantity("s", "300 ms", must=_POSITIVE)
Tokens = _quantity("token", "8000 tokens", most=1e12, must=_WHOLE)
PerSecond = _quantity("1/s", "2 /s")
Power = _quantity("W", "600 W")
PowerPerByte = _quantity("W/B", "0.08 W/GB")
Fraction = _quantity("", "0.6", most=1.0)
Params = _quantity("", "8.0e9", least=1.0, most=1e15)
Percentile = _quantity("", "90", least=1.0, most=99.99)
TailExponent = _quantity("", "0.6", least=-1e9, must=_INSIDE)
Text = Annotated[str, _leaf_schema("H200-NVL", {"type": "string"})]
Beside = AfterValidator(_beside)
Count = Annotated[int, Field(ge=1), _leaf_schema("1", {"type": "integer", "minimum": 1})]
Flag = Annotated[bool, _leaf_schema("true", {"type": "boolean"})]


def _several(item: Any, *example: str) -> Any:
    """Type of a list of values, each checked like a leaf; one alone may stand without brackets."""

    def read(raw: Any) -> Any:
        if raw == []:
            raise _refusal("an empty list", "one value or more, or the key left out")
        return raw if isinstance(raw, list) else [raw]

    schema = _leaf_schema([*example], {"type": "array", "minItems": 1})
    return Annotated[tuple[item, ...], BeforeValidator(read), schema] | None


def _choice(*options: str) -> Any:
    return Annotated[Literal[options], _leaf_schema(options[0], {"enum": list(options)})]


Router = _choice("prefix", "session", "least loaded", "round robin", "random")
TierName = Literal["hbm", "dram", "nvme", "remote"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, raw: Any) -> Any:
        known = [info.alias or name for name, info in cls.model_fields.items()]
        if not isinstance(raw, dict):
            raise _refusal(repr(raw), f"a mapping with keys out of {', '.join(known)}")
        for key in raw:
            if key not in known:
                expected = f"one of {', '.join(known)}{hint(str(key), known)}"
                raise _refusal("an unknown key", expected, key)
        return raw


class Tier(_Part):
    """One tier of the cache: how much it holds, how fast it reads, what it draws and endures.

    ``scope`` and ``admission`` are those of a replay: who shares what the instances bring, and
    whether a block is written at its first use or at its second.
    """

    capacity_bytes: Bytes = Field(alias="capacity")
    read_bytes_per_s: Rate = Field(alias="read")
    write_bytes_per_s: Rate | None = Field(None, alias="write")
    access_latency_s: Seconds = Field(0.0, alias="latency")
    power_w_per_byte: PowerPerByte = Field(0.0, alias="power")
    rated_writes_per_s: PerSecond | None = Field(None, alias="endurance")
    rated_life_s: Duration = Field(units.quantity("5 years", "s"), alias="rated_for")
    scope: _choice("instance", "node", "pooled") = "instance"
    admission: _choice("every use", "second use") = "every use"


class Hardware(_Part):
    """A server: its GPUs and the tiers that one of its instances can reach, fastest first."""

    name: Text
    gpus: Count = 1
    gpu_power_w: Power | None = Field(None, alias="gpu_power")
    tiers: dict[TierName, Tier] = Field(min_length=1)


class Transfer(_Part):
    """The link from a prefill to a decode instance; streamed layer by layer unless said."""

    rate_bytes_per_s: Rate = Field(alias="rate")
    latency_s: Seconds = Field(0.0, alias="latency")
    layerwise: Flag = True


class Prefill(_Part):
    """Speed of prefill: a tabulated curve by its name, or the FLOP rate that a GPU reaches.

    With a rate, ``active_params`` states what a configuration file alone does not tell.
    """

    table: Text | None = None
    flops_per_s: FlopRate | None = Field(None, alias="rate")
    active_params: Params | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> "Prefill":
        if (self.table is None) == (self.flops_per_s is None):
            found = "neither" if self.table is None else "both"
            raise _refusal(f"{found} of 'table' and 'rate'", "one of them")
        return self


class Serving(_Part):
    """How the model is served.

    ``window_cache: full`` is an engine that keeps every token in window layers too, as some do
    when a cache connector is used.
    """

    element: _choice("bf16", "fp16", "fp8", "int8", "fp4") = "bf16"
    block_tokens: Tokens = Field(alias="block")
    tensor_parallel: Count = 1
    prefill: Prefill
    first_token_from: _choice("decode", "prefill") = "decode"
    transfer: Transfer
    queue_wait_s: Seconds = Field(0.0, alias="queue_wait")
    window_cache: _choice("window", "full") = "window"


class Workload(_Part):
    """What is asked of it. A prompt is a reusable prefix and ``new`` tokens that no cache holds.

    ``ceiling`` is the share of prompt tokens that a cache of the ``working_set`` serves,
    ``admitted`` the share of the others that is written to a tier, ``lead_time`` the mean time
    from knowing of a request to needing its cache.
    """

    requests_per_s: PerSecond = Field(alias="requests")
    prompt_tokens: Tokens = Field(alias="prompt")
    new_tokens: Tokens = Field(256.0, alias="new")
    output_tokens: Tokens = Field(alias="output")
    trace: Annotated[Text, Beside] | None = None
    tail_exponent: TailExponent = Field(alias="beta")
    ceiling: Fraction = 1.0
    working_set_bytes: Bytes | None = Field(None, alias="working_set")
    admitted_share: Fraction = Field(1.0, alias="admitted")
    lead_time_s: Seconds | None = Field(None, alias="lead_time")

    @model_validator(mode="after")
    def _new_is_part_of_prompt(self) -> "Workload":
        if self.new_tokens >= self.prompt_tokens:
            found = f"prompt {self.prompt_tokens:g} tokens with {self.new_tokens:g} of them new"
            raise _refusal(found, "a prompt longer than its new tokens")
        return self


class Instances(_Part):
    """Instances of a pool, and their latencies: those of ``serving.prefill`` unless named."""

    # As many as a pool of a sweep may have.
    instances: Annotated[Count, Field(le=99_999)] = 1
    table: Text | None = None


class Fleet(_Part):
    """What a replay serves the trace with; without ``decode`` one pool does both.

    ``chunk``: tokens of a step that mixes prompt and batch; without it prompts go first. ``rate``:
    the load as a multiple of the trace's. ``fetch``: take every hit, the better of fetching and
    recomputing, or both ends at once. ``prefetch``: from when a fetch may run. ``queue_limit``:
    requests that may wait at an instance.
    """

    prefill: Instances = Instances()
    decode: Instances | None = None
    chunk_tokens: Tokens | None = Field(None, alias="chunk")
    rate: _quantity("", "1.0", must=_POSITIVE) = 1.0
    router: Router = "prefix"
    decode_router: _choice("least loaded", "round robin", "random") = "least loaded"
    fetch: _choice("better", "always", "two-ended") = "better"
    prefetch: _choice("arrival", "turn", "previous turn") = "arrival"
    answers: Flag = True
    queue_limit: Count | None = None
    gpus_per_node: Count = 8


def _instances(raw: Any) -> tuple[int, ...]:
    text = "" if isinstance(raw, bool) else str(raw)
    if not re.fullmatch(r"[1-9]\d{0,4}(:[1-9]\d{0,4})?", text):
        expected = "instances of one pool such as '4', or of prefill and decode such as '3:1'"
        raise _refusal(repr(raw), expected)
    return tuple(map(int, text.split(":")))


class Sweep(_Part):
    """Grid of a sweep: every combination. What is left out follows from fleet and load.

    ``pools``: instances of one pool, ``4``, or of prefill and decode, ``3:1``. ``dram``, ``nvme``:
    capacities in place of that of the tier, 0 where it is not bought. ``models``: a table of
    ``data/latency``, or a model by the rate of ``serving.prefill``.
    """

    pools: _several(Annotated[tuple[int, ...], BeforeValidator(_instances)], "4", "3:1") = None
    dram_bytes: _several(_quantity("B", "1 TiB"), "0 GB", "1 TiB") = Field(None, alias="dram")
    nvme_bytes: _several(_quantity("B", "30 TB"), "0 GB", "30 TB") = Field(None, alias="nvme")
    routers: _several(Router, "prefix", "session") = None
    models: _several(Annotated[str, Field(min_length=1), Beside], "gpt-oss-120b") = None


class Slo(_Part):
    """The targets, met by the given percentile of requests."""

    ttft_s: Duration = Field(alias="ttft")
    tpot_s: Duration = Field(alias="tpot")
    percentile: Percentile = 90.0


class Rent(_Part):
    """What a byte costs where it is rented and not bought."""

    dram: _quantity("USD/B/s", "3 USD/GB/month") | None = None
    nvme: _quantity("USD/B/s", "0.08 USD/GB/month") | None = None
    remote: _quantity("USD/B/s", "0.03 USD/GB/month") | None = None


class Prices(_Part):
    """Dated prices, and which of the three readings of rent holds.

    ``amortised``: bought and written off over ``lifetime``. ``rented``: paid by use. ``bundled``:
    comes with the GPU, so that one byte more costs nothing.
    """

    reading: _choice("amortised", "rented", "bundled") = "amortised"
    lifetime_s: Duration = Field(units.quantity("36 months", "s"), alias="lifetime")
    gpu_usd_per_s: _quantity("USD/s", "3.50 USD/hour") = Field(alias="gpu")
    dram: _quantity("USD/B", "13.8 USD/GB") | None = None
    nvme: _quantity("USD/B", "0.365 USD/GB") | None = None
    remote: _quantity("USD/B", "0.02 USD/GB") | None = None
    rent: Rent = Rent()
    energy_usd_per_j: _quantity("USD/J", "0.10 USD/kWh") = Field(0.0, alias="energy")

    @model_validator(mode="after")
    def _rent_is_known(self) -> "Prices":
        for tier in ("dram", "nvme", "remote"):
            bought, rented = getattr(self, tier), getattr(self.rent, tier)
            if self.reading == "rented" and bought is not None and rented is None:
                raise _refusal("reading 'rented' without its rent", f"a value at rent.{tier}")
        return self


class _File(_Part):
    """The whole file, as it is validated and as its JSON Schema is generated."""

    model: Annotated[Text, Beside]
    hardware: Hardware
    serving: Serving
    workload: Workload
    slo: Slo
    prices: Prices
    fleet: Fleet = Fleet()
    sweep: Sweep = Sweep()


@dataclass(frozen=True, slots=True)
class Leaf:
    """What stands in the file at one key: its text, its source and its date."""

    text: str
    source: str | None = None
    as_of: str | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A validated scenario; ``low`` and ``high`` are its prices with every band at that end."""

    name: str
    file: str
    model: models.Model
    hardware: Hardware
    serving: Serving
    workload: Workload
    slo: Slo
    prices: Prices
    fleet: Fleet
    sweep: Sweep
    low: Prices
    high: Prices
    leaves: dict[str, Leaf]
    lines: dict[str, int]

    def inputs(self, keys: Iterable[str]) -> list[dict[str, str]]:
        """Leaves at and below the keys: key, value as written, source and date."""
        return [
            {"input": name, "written": leaf.text, "source": leaf.source, "date": leaf.as_of}
            for name, leaf in self.leaves.items()
            if any(f"{name}.".startswith(f"{key}.") for key in keys)
        ]

    def where(self, key: str) -> str:
        """``FILE:LINE KEY`` for a message about the value at ``key``, or about its absence."""
        return _place(self.file, self.lines, key)

    def changed(self, values: Mapping[str, Any]) -> "Scenario":
        """The scenario with other values at dotted names, such as ``fleet.prefill.instances``.

        The names are those of the value objects; values are taken as they are.
        """
        changed = self
        for name, value in values.items():
            changed = _changed(changed, name.split("."), value)
        return changed


def _changed(part: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    if rest:
        inner = part[name] if isinstance(part, dict) else getattr(part, name)
        value = _changed(inner, rest, value)
    if isinstance(part, dict):
        return part | {name: value}
    if isinstance(part, Scenario):
        return replace(part, **{name: value})
    return part.model_copy(update={name: value})


def _place(file: Path | str, lines: Mapping[str, int], key: str) -> str:
    """Where a key stands, or the nearest part around it that is there."""
    nearest = key
    while nearest not in lines:
        nearest = nearest.rpartition(".")[0]
    return f"{file}:{lines[nearest]} {key}".rstrip()


def _compose(file: Path) -> yaml.Node:
    try:
        if file.exists() and not file.is_file():
            raise InputError(str(file), "no regular file", "a scenario in YAML")
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise InputError(str(file), "a file above 1 MB", "a scenario of a few kB")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise InputError(str(file), reason or "an unreadable file", "a scenario in YAML") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "characters that YAML does not allow"
        problem = problem.removeprefix("found ")
        raise InputError(f"{file}{line}", problem, "valid YAML") from None
    except RecursionError:
        raise InputError(str(file), "nesting without end", "a scenario") from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(str(file), "no mapping", "a scenario with its keys at the top")
    return node


class _Tree:
    """A YAML file as plain values for each of the three ends, with its leaves and their lines."""

    def __init__(self, file: Path) -> None:
        self.file, self.leaves, self.lines, self._nodes = file, {}, {}, 0
        root = _compose(file)
        self.ends = {end: self._plain(root, "", end) for end in ("value", "low", "high")}

    def _plain(self, node: yaml.Node, key: str, end: str) -> Any:
        self._nodes += 1
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        if self._nodes > _MAX_NODES:
            raise InputError(f"{self.file}:{line}", "aliases without end", "a scenario")
        if isinstance(node, yaml.ScalarNode):
            value = _scalar(node)
            if value is not None:
                self.leaves.setdefault(key, Leaf(node.value))
            return value
        if isinstance(node, yaml.SequenceNode):
            return self._long_leaf({"value": node}, key, line, end)
        children = {}
        for name, child in node.value:
            if name.value in children:
                raise InputError(
                    f"{self.file}:{name.start_mark.line + 1} {key}".rstrip(),
                    f"{name.value!r} twice",
                    "each key once",
                )
            children[name.value] = child
        if "value" in children:
            return self._long_leaf(children, key, line, end)
        path = f"{key}." if key else ""
        return {name: self._plain(child, f"{path}{name}", end) for name, child in children.items()}

    def _long_leaf(self, children: dict[str, yaml.Node], key: str, line: int, end: str) -> Any:
        where = f"{self.file}:{line} {key}"
        for name, child in children.items():
            if name not in _LEAF_KEYS:
                raise InputError(
                    where, f"key {name!r}", f"keys out of {', '.join(sorted(_LEAF_KEYS))}"
                )
            listed = name == "value" and isinstance(child, yaml.SequenceNode)
            if listed and not key.startswith("sweep."):
                raise InputError(where, "a list", "a value or a mapping")
            for one in child.value if listed else [child]:
                if not isinstance(one, yaml.ScalarNode):
                    raise InputError(where, f"no single value at {name!r}", "a text or a number")
        if not key.startswith("prices.") and children.keys() & {"low", "high"}:
            raise InputError(where, "a band", "'low' and 'high' on prices only")
        source, as_of = (
            children[name].value if name in children else None for name in ("source", "as_of")
        )
        if as_of is not None and not _is_date(as_of):
            raise InputError(
                f"{where}.as_of", repr(as_of), "a date such as 2026-05, 2026-05-17 or 2026-Q1"
            )
        if isinstance(children["value"], yaml.SequenceNode):
            values = children["value"].value
            text = ", ".join(one.value for one in values)
            self.leaves[key] = Leaf(text, source, as_of)
            return [_scalar(one) for one in values]
        ends = [children[name].value for name in ("low", "value", "high") if name in children]
        if [*map(_number, ends)] != sorted(map(_number, ends)):
            raise InputError(where, f"a band of {', '.join(ends)}", "low, value and high in order")
        self.leaves[key] = Leaf(children["value"].value, source, as_of)
        return _scalar(children.get(end, children["value"]))


def _is_date(text: str) -> bool:
    if not _DATE.match(text):
        return False
    try:
        datetime.date.fromisoformat(text if len(text) == 10 else "2000-01-01")
    except ValueError:
        return False
    return True


def _number(text: str) -> float:
    """The number that a text begins with, for the order of a band; its units are checked later."""
    found = re.match(r"[-+.\d,_eE]+", text)
    try:
        return float(found[0].replace(",", "").replace("_", "")) if found else 0.0
    except ValueError:
        return 0.0


def _scalar(node: yaml.ScalarNode) -> Any:
    """Null, truth value and whole number as YAML means them; all else stays the text it is."""
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return node.value.lower() in ("true", "yes", "on")
    if kind == "int" and node.value.lstrip("+-").isdigit() and len(node.value) < 19:
        return int(node.value)
    return node.value


def _input_error(error: PydanticError, tree: _Tree) -> InputError:
    """The first finding of pydantic as one line with file, line and key."""
    first = error.errors(include_url=False)[0]
    context = first.get("ctx", {})
    location = [str(part) for part in first["loc"] if part != "[key]"]
    if context.get("key"):
        location.append(context["key"])
    where = _place(tree.file, tree.lines, ".".join(location))
    if first["type"] == "refusal":
        return InputError(where, context["found"], context["expected"])
    if first["type"] == "missing":
        return InputError(where, "nothing", f"a value for {location[-1]!r}")
    if first["type"] == "literal_error":
        return InputError(where, repr(first["input"]), f"one of {context['expected']}")
    return InputError(
        where, repr(first["input"]), first["msg"].lower().removeprefix("input should be ")
    )


def _check_dates(tree: _Tree) -> None:
    """A price without a date and a source is no price."""
    for key, leaf in tree.leaves.items():
        if not key.startswith("prices.") or key in ("prices.reading", "prices.lifetime"):
            continue
        for name, found in (("source", leaf.source), ("as_of", leaf.as_of)):
            if not found:
                where = _place(tree.file, tree.lines, key)
                expected = "{value: ..., source: ..., as_of: 2026-05}"
                raise InputError(where, f"a price without {name!r}", expected)


def load(name_or_path: str) -> Scenario:
    """Read and check a scenario.

    Parameters
    ----------
    name_or_path : str
        The name of a file in ``data/scenarios`` or the path of a YAML file. A model or a trace
        given as a path is looked up from the folder of that file.

    Raises
    ------
    InputError
        On the first fault, in one line with file, line and key.
    """
    text = str(name_or_path)
    is_path = text.endswith((".yaml", ".yml")) or "/" in text
    file = Path(text) if is_path else data.named("scenarios", text)
    tree = _Tree(_shown(file))
    parts = {}
    for end, raw in tree.ends.items():
        try:
            parts[end] = _File.model_validate(raw, context=file.parent)
        except PydanticError as error:
            raise _input_error(error, tree) from None
    _check_dates(tree)
    middle = dict(parts["value"])
    try:
        model = models.load(middle.pop("model"))
    except InputError as error:
        raise error.at(_place(tree.file, tree.lines, "model")) from None
    return Scenario(
        name=file.stem,
        file=str(tree.file),
        model=model,
        low=parts["low"].prices,
        high=parts["high"].prices,
        leaves=tree.leaves,
        lines=tree.lines,
        **middle,
    )


def _shown(file: Path) -> Path:
    """The path as a person in the current folder would write it."""
    try:
        return file.resolve().relative_to(Path.cwd())
    except ValueError:
        return file


def schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, generated from the value objects."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvpaper scenario",
        **_File.model_json_schema(),
    }


class Reads:
    """A scenario of which only the declared keys can be read, so that nothing else is depended on.

    Parameters
    ----------
    part : object
        The scenario, or a part of it.
    keys : tuple of str
        Keys as in the file, such as ``"model"``, ``"hardware.tiers"`` or ``"serving.element"``.

    Raises
    ------
    AttributeError
        On a key that is not declared; the message names it.
    """

    def __init__(self, part: Any, keys: tuple[str, ...], prefix: str = "") -> None:
        self._part, self._keys, self._prefix = part, keys, prefix

    def whole(self, *keys: str) -> Any:
        """The scenario itself, for what replaces parts of it, if it declares all of these keys."""
        for key in keys:
            if key not in self._keys:
                raise AttributeError(f"{key!r} is not declared in reads: {', '.join(self._keys)}")
        return self._part

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        fields = getattr(type(self._part), "model_fields", {})
        key = f"{self._prefix}{fields[name].alias or name if name in fields else name}"
        if name in ("low", "high"):
            return Reads(value, self._keys, "prices.")
        if isinstance(self._part, Scenario) and name not in _File.model_fields:
            return value
        if any(f"{key}.".startswith(f"{declared}.") for declared in self._keys):
            return value
        if any(declared.startswith(f"{key}.") for declared in self._keys):
            return Reads(value, self._keys, f"{key}.")
        raise AttributeError(f"{key!r} is not declared in reads: {', '.join(self._keys)}")
