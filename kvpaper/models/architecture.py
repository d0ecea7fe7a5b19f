"""From a Hugging Face configuration to the layers that keep a KV cache.

Architectures are data. ``types.yaml`` says how attention settings are spelled, what a layer's
word stands for and what a sparse file leaves to its class; this module only follows it. A setting
that looks as if it shaped the cache and is not understood is refused by name, since a wrong number
is worse than none.
"""

import fnmatch
import functools
import json
import operator
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from kvpaper import data
from kvpaper.errors import InputError
from kvpaper.formulas.size import heads_per_rank

_LARGEST_COUNT = 2**31
_MOST_LAYERS = 4096
_OPERATIONS = {"*": operator.mul, "/": operator.truediv, "//": lambda a, b: Fraction(a // b)}
_UNSET = ("none", "auto")
_UNKNOWN = "only settings whose effect on the cache is known here"


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same cache.

    ``kind`` is ``full``, ``mla``, ``window`` or ``index``; ``elements_per_token`` counts one layer
    of one logical copy; ``window_tokens`` is None where every token is kept; ``kv_heads`` is None
    where each tensor-parallel rank keeps all of it, as with latents and index keys.
    """

    layers: int
    kind: str
    elements_per_token: int
    window_tokens: int | None = None
    kv_heads: int | None = None

    def elements_per_rank(self, tensor_parallel: int) -> int:
        """Elements that one layer keeps of one token on each tensor-parallel rank."""
        if self.kv_heads is None:
            return self.elements_per_token
        heads = int(heads_per_rank(self.kv_heads, tensor_parallel))
        return self.elements_per_token // self.kv_heads * heads


@dataclass(frozen=True, slots=True)
class Model:
    """What a model caches, and what other formulas need to know of it.

    State elements are those of one sequence over all layers. ``qk_head_dim`` and ``v_head_dim``
    are the widths over which one query head scores and sums; ``kv_lora_rank`` and
    ``qk_rope_head_dim`` are those of a latent cache. ``kv_dtype`` is the configuration's own KV
    setting. What is not stated is None.
    """

    name: str
    layers: int
    groups: tuple[LayerGroup, ...]
    recurrent_state_elements: int = 0
    convolution_state_elements: int = 0
    query_heads: int | None = None
    qk_head_dim: int | None = None
    v_head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    max_context_tokens: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    kv_dtype: str | None = None
    total_params: float | None = None
    active_params: float | None = None
    source: str = ""
    warnings: tuple[str, ...] = ()

    def kept(self, windows: str = "window") -> list[LayerGroup]:
        """The groups as an engine keeps them; with ``full`` windows too keep every token."""
        full = windows == "full"
        return [replace(group, window_tokens=None) if full else group for group in self.groups]


def from_config(config: dict[str, Any], name: str, where: str) -> Model:
    """The model that a Hugging Face configuration describes.

    Parameters
    ----------
    config : dict
        The parsed ``config.json``; its language part may be nested.
    name, where : str
        The model's name, and where the configuration stands, for messages.

    Raises
    ------
    InputError
        If the cache cannot be told from the configuration; it names the setting at fault.
    """
    part, model_type, path = _language_part(config, where)
    settings = _Settings(part, model_type, path)
    layout = _layout(settings)
    groups, recurrent, convolution = _caches(settings, layout)
    settings.refuse_unread()
    heads = settings.count("num_attention_heads") if groups else None
    qk_head_dim, v_head_dim = _query_widths(settings) if groups else (None, None)
    return Model(
        name=name,
        layers=len(layout),
        groups=groups,
        recurrent_state_elements=recurrent,
        convolution_state_elements=convolution,
        query_heads=heads,
        qk_head_dim=qk_head_dim,
        v_head_dim=v_head_dim,
        kv_lora_rank=settings.count("kv_lora_rank", 0, least=0) or None,
        qk_rope_head_dim=settings.count("qk_rope_head_dim", 0, least=0),
        kv_dtype=quantized_kv(config) or quantized_kv(part),
        source=where,
        warnings=tuple(settings.warnings),
        **{name: settings.fact(keys) for name, keys in settings.table["facts"].items()},
    )


def quantized_kv(config: dict[str, Any]) -> str | None:
    """The element type that a configuration's quantization gives the cache, None if it does not.

    A setting that names no type, or several, is given back as it stands.
    """
    table = _table()["kv_quantization"]
    implied = table["implied"]
    stated = {key: what for key, what in config.items() if re.search(table["own_key"], key)}
    for path in table["objects"]:
        place: Any = config
        for name in path.split("."):
            place = place.get(name) if isinstance(place, dict) else None
        keys = place.keys() - {*table["settled"]} if isinstance(place, dict) else ()
        stated |= {key: place[key] for key in keys if re.search(table["key_of_object"], key)}
    on = {key: what for key, what in stated.items() if what and str(what).lower() not in _UNSET}
    found: set[str] = set()
    for key, what in on.items():
        found |= _elements(what) if key not in implied or isinstance(what, dict) else set()
    found = found - {*_UNSET} or {implied[key] for key in on.keys() & implied.keys()}
    return _brief(on) if on and len(found) != 1 else next(iter(found), None)


def _elements(setting: Any) -> set[str]:
    """The types of elements that a quantization setting names, however deep."""
    if isinstance(setting, str):
        return {setting.lower()}
    if isinstance(setting, list):
        return set().union(*map(_elements, setting))
    if not isinstance(setting, dict):
        return set()
    if "num_bits" in setting:
        kind = "fp" if setting.get("type") == "float" else setting.get("type")
        return {f"{kind}{setting['num_bits']}"}
    if isinstance(setting.get("dtype"), str):
        return {setting["dtype"].lower()}
    return set().union(*(_elements(one) for one in setting.values() if not isinstance(one, str)))


@functools.cache
def _table() -> dict[str, Any]:
    return data.mapping(Path(__file__).with_name("types.yaml"))


def _language_part(config: Any, where: str) -> tuple[dict[str, Any], str | None, str]:
    """The nested settings of the language model, its type, and where they stand."""
    path, default = f"{where}: ", None
    while True:
        if not isinstance(config, dict) or not config:
            raise InputError(path.rstrip(": "), "no settings", "the settings of a language model")
        model_type = config.get("model_type") or default
        if not isinstance(model_type, str | None):
            raise InputError(f"{path}model_type", _brief(model_type), "the name of a type")
        for refused in _table()["refused"]:
            stated = config.get(refused["field"])
            if model_type in refused["types"] or (refused.get("always") and stated is True):
                found = repr(model_type) if stated is None else _brief(stated)
                raise InputError(f"{path}{refused['field']}", found, refused["expected"])
        entry = _entry(model_type) or {}
        default = entry.get("text")
        nested = [key for key in _table()["language_parts"] if isinstance(config.get(key), dict)]
        if not nested:
            layers = _table()["spellings"]["num_hidden_layers"]
            if "text" in entry and not config.keys() & set(layers):
                raise InputError(f"{path}text_config", "nothing", "the language model's settings")
            return config, model_type, path
        config, path = config[nested[0]], f"{path}{nested[0]}."


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _entry(model_type: str | None) -> dict[str, Any] | None:
    """What the table says of a type, over what it says of the type that this one is like."""
    types = _table()["types"]
    if model_type not in types:
        return {"shape": [None] * 4} if model_type in _table()["multi_head"] else None
    own = types[model_type]
    base = _entry(own.get("like") or own.get("text")) or {}
    return {**base, **own, "set": {**base.get("set", {}), **own.get("set", {})}}


class _Settings:
    """A file's settings over those of its class; it remembers which keys were read."""

    def __init__(self, part: dict[str, Any], model_type: str | None, where: str) -> None:
        self.table, self.model_type, self.where = _table(), model_type, where
        entry = _entry(model_type)
        self.known, self.entry = entry is not None, entry or {}
        self.defaults: dict[str, Any] = {"sliding_window": self.entry.get("window")}
        places = {"shape": self.table["shape"], "mla": ["kv_lora_rank", "qk_rope_head_dim"]}
        for key, names in places.items():
            self.defaults |= zip(names, self.entry.get(key, ()), strict=False)
        self.defaults |= self.entry.get("set", {})
        self.file: dict[str, Any] = {}
        for key, value in part.items():
            if key in self.table["nested"] and isinstance(value, dict):
                self.file |= {f"{key}.{inner}": what for inner, what in value.items()}
            else:
                self.file[key] = value
        self.ignored = self.entry.get("ignore", ())
        self.warnings: list[str] = []
        # A model with code of its own may read what its namesake in the library ignores.
        self.of_library = bool(self.entry.get("shape", [None])[0]) and "auto_map" not in part
        for key, shown_by in self.table["class_settings"].items() if self.of_library else ():
            if not {key, shown_by} & self.defaults.keys() and self.file.get(key):
                self.warnings.append(f"{key} is ignored: {model_type} does not read it")
                del self.file[key]
        self.by_layer: dict[int | None, dict[str, Any]] = {}
        self.forced: dict[str, Any] = {}
        self.read = {"model_type", *self.ignored}
        self.stated_layout = False
        self.layers: int | None = None
        if not self.known:
            named = repr(model_type) if model_type else "no model_type"
            self.warnings.append(f"{named} is no type known here: read by its settings alone")
        for rule in (*self.table["when"], *self.entry.get("when", ())):
            if {key: self.stated(key) for key in rule["if"]} == rule["if"]:
                if "refuse" in rule:
                    self.refuse(rule["refuse"], _UNKNOWN)
                self.forced |= rule.get("set", {})
                self.entry |= {key: rule[key] for key in rule.keys() - {"if", "set"}}
        self.read -= set(self.table["limits"].values()) - {*self.ignored}

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise the error of one setting, under the key that the file gives it."""
        keys = self.table["spellings"].get(name, [name])
        given = sorted(self.file.keys() & set(keys), key=keys.index)
        key = next((key for key in given if self.file[key] is not None), [*given, keys[0]][0])
        found = "nothing"
        if key in self.file:
            found = _brief(self.file[key])
        elif self.defaults.get(key) is not None:
            found = f"the class's {self.defaults[key]}"
        raise InputError(f"{self.where}{key}", found, expected)

    def stated(self, key: str) -> Any:
        """The value under exactly this key, else the class's."""
        self.read.add(key)
        if key in self.forced:
            return self.forced[key]
        return self.file.get(key, self.defaults.get(key))

    def value(self, name: str, layer: int | None = None, kind: str = "full") -> Any:
        """The value of a setting for one layer, however it is spelled; None if there is none."""
        keys = self.table["spellings"].get(name, [name])
        for key in keys:
            if key in self.by_layer.get(layer, ()):
                return self.by_layer[layer][key]
        own = self.entry.get("of_kind", self.table["of_kind"]).get(kind, {}).get(name)
        if own and own not in self.forced:
            if self.file.get(own) is not None:
                return self.stated(own)
            if own in self.defaults and not {own, "per_layer_config"} & self.file.keys():
                return self._of_class(self.defaults[own], layer)
        self.read.update(keys)
        if name in self.forced:
            return self._of_class(self.forced[name], layer)
        given = {key: self.file[key] for key in keys if key in self.file}
        if name not in self.table["spellings"]:
            given = {key: value for key, value in given.items() if value != "auto"}
        read = {key: value for key, value in given.items() if key not in self.ignored}
        found = {key: value for key, value in read.items() if value is not None}
        if len({json.dumps(value) for value in found.values()}) > 1:
            self.refuse(next(iter(found)), f"the same value under {' and '.join(found)}")
        if read:
            return next(iter(found.values()), None)
        return self._of_class(self.defaults.get(name), layer)

    def _of_class(self, value: Any, layer: int | None) -> Any:
        return self.number(value, layer) if isinstance(value, str) else value

    def number(
        self,
        expression: str | int | list[str],
        layer: int | None = None,
        kind: str = "full",
        local: Mapping[str, Any] | None = None,
    ) -> Fraction | None:
        """A sum of products of settings and whole numbers, such as ``2 * hidden_size / heads``.

        Names in ``local`` stand for expressions of their own; of several expressions the first
        whose settings are all there counts. None if a setting is missing.
        """
        if isinstance(expression, list):
            numbers = (self.number(one, layer, kind, local) for one in expression)
            return next((number for number in numbers if number is not None), None)
        local = local or {}
        total, product, operation = Fraction(0), Fraction(1), "*"
        for token in str(expression).split():
            if token in ("+", "-"):
                total, product, operation = total + product, Fraction(f"{token}1"), "*"
                continue
            if token in _OPERATIONS:
                operation = token
                continue
            if token.isdigit():
                factor = Fraction(token)
            elif token in local:
                others = {name: value for name, value in local.items() if name != token}
                factor = self.number(local[token], layer, kind, others)
            elif token == "head_dim":
                factor = _head_dim(self, layer, kind)
            else:
                factor = self.scalar(token, layer, kind)
            if factor is None:
                return None
            if not factor and operation != "*":
                self.refuse(token, "a number above zero")
            product = _OPERATIONS[operation](product, factor)
        return total + product

    def scalar(self, name: str, layer: int | None = None, kind: str = "full") -> Fraction | None:
        """A setting that is a number from zero up, or a list with such a number for each layer."""
        value = self.value(name, layer, kind)
        if isinstance(value, list):
            if len(value) != self.layers:
                self.refuse(name, "one number, or one for each layer")
            value = value[layer or 0]
        if value is None:
            return None
        real = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
        if not real or not 0 <= value <= _LARGEST_COUNT:
            self.refuse(name, f"a number from 0 to {_LARGEST_COUNT}")
        return Fraction(value)

    def count(
        self, name: str, layer: int | None = None, kind: str = "full", least: int = 1
    ) -> int | None:
        """A setting that is a whole number, None if there is none."""
        number = self.scalar(name, layer, kind)
        if number is not None and (number < least or number.denominator != 1):
            self.refuse(name, f"a whole number from {least} to {_LARGEST_COUNT}")
        return None if number is None else int(number)

    def fact(self, keys: list[str]) -> int | None:
        """A whole number that the cache does not depend on; None rather than a refusal."""
        stated = map(self.stated, keys)
        return next((value for value in stated if type(value) is int and value > 0), None)

    def refuse_unread(self) -> None:
        """Refuse the first key that looks as if it shaped the cache and that nothing read."""
        table, read = self.table, {*self.read, *self.forced}
        must_be_read = {*table["limits"].values(), "index_head_dim"}
        for name, keys in table["spellings"].items():
            read |= set(keys) if name not in must_be_read else set()
        if self.known or self.stated_layout:
            read |= {key for keys in table["of_kind"].values() for key in keys.values()}
            forms = str([form["spelled"] for form in table["states"].values()])
            read |= set(re.findall(r"[\w.]+", forms))
        inert = table["inert"] + (table["superseded"] if self.stated_layout else [])
        telling = [table["telling"], *([] if self.known else [table["telling_of_unknown"]])]
        telling = re.compile("|".join(telling))
        overrides = {key: value for one in self.by_layer.values() for key, value in one.items()}
        for key, value in (self.file | overrides).items():
            if key in read or not value or value in table["settled"].get(key, ()):
                continue
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in inert):
                continue
            if key in table["class_settings"] and self.of_library and key in self.file:
                self.warnings.append(f"{key} is ignored: {self.model_type} does not read it")
            elif telling.search(key.rpartition(".")[2]):
                raise InputError(f"{self.where}{key}", _brief(value), _UNKNOWN)


def _layout(settings: _Settings) -> list[tuple[int, str]]:
    """Number and word of each layer that is run, in order."""
    words = _words(settings)
    settings.layers = len(words)
    overrides = settings.stated("per_layer_config") or {}
    if not isinstance(overrides, dict):
        settings.refuse("per_layer_config", "an object that gives settings by layer")
    for key, value in overrides.items():
        if not (key.isdecimal() and int(key) < len(words) and isinstance(value, dict)):
            settings.refuse("per_layer_config", f"settings for layers 0 to {len(words) - 1}")
        settings.by_layer[int(key)] = settings.by_layer.get(int(key), {}) | value
    layout = list(enumerate(words))
    passes = settings.entry.get("passes")
    if not passes:
        return layout
    first, count, times = (settings.number(passes[key]) for key in ("first", "count", "times"))
    if times is None:
        settings.refuse(passes["times"], "how often the layers are run")
    if None in (first, count) or not 0 <= first <= first + count <= len(words):
        settings.refuse(passes["first"], "a range of layers")
    first, until = int(first), int(first + count)
    if count * times > _MOST_LAYERS:
        settings.refuse(passes["times"], f"at most {_MOST_LAYERS} layers to run")
    return layout[:first] + layout[first:until] * int(times) + layout[until:]


def _words(settings: _Settings) -> list[str]:
    """A word for each layer, from whatever states the layout, else from the class's rule."""
    table, entry = settings.table, settings.entry
    count = settings.count("num_hidden_layers")
    if count is not None and count > _MOST_LAYERS:
        settings.refuse("num_hidden_layers", f"at most {_MOST_LAYERS} layers")
    for key, meaning in (entry.get("one_per_layer", {}) | table["one_per_layer"]).items():
        words = _translated(settings, key, meaning)
        if words:
            if count is not None and len(words) == count + _predicted(settings):
                words = words[:count]
            if len(words) > _MOST_LAYERS or count not in (None, len(words)):
                settings.refuse(key, f"{count} entries, one for each layer")
            return words
    if settings.stated("block_configs"):
        return _blocks(settings, settings.stated("block_configs"), count)
    if count is None:
        settings.refuse("num_hidden_layers", "the number of layers")
    for key, meaning in table["repeated"].items():
        if isinstance(settings.stated(key), str | list):
            words = _translated(settings, key, meaning)
            if words:
                return [words[layer % len(words)] for layer in range(count)]
    for key, meaning in entry.get("numbered", table["numbered"]).items():
        if settings.stated(key):
            return _numbered(settings, key, meaning, count)
    for key, meaning in entry.get("every_nth", table["every_nth"]).items():
        if settings.stated(key):
            settings.stated_layout = key in settings.file
            return _ruled(settings, {"every": key, **meaning}, count)
        if settings.defaults.get(key) and key not in settings.forced:
            settings.refuse(key, "a whole number of layers, or a list of layer types")
    if "window" in entry:
        settings.read.update(table["spellings"]["sliding_window"])
    return _ruled(settings, entry.get("layers", ["full"]), count)


def _translated(settings: _Settings, key: str, meaning: dict[Any, str]) -> list[str]:
    """The words of a list or of a string of letters; none if the key says nothing."""
    items = settings.stated(key)
    if items is None or items in ("", []):
        return []
    if not isinstance(items, list | str):
        settings.refuse(key, "a list with an entry for each layer")
    vocabulary = settings.table["words"] | settings.entry.get("words", {})
    words = []
    for position, item in enumerate(items):
        word = meaning.get(item, item) if isinstance(item, int | str) else None
        if word not in vocabulary:
            where = f"{settings.where}{key}[{position}]"
            expected = f"one of {', '.join(sorted({*map(str, meaning), *vocabulary}))}"
            raise InputError(where, _brief(item), expected)
        words.append(word)
    settings.stated_layout = True
    return words


def _predicted(settings: _Settings) -> int:
    """Extra layers that predict further tokens; some files list them after the others."""
    keys = settings.table["predicted_layers"]
    return max(settings.count(key, least=0) or 0 for key in keys)


def _numbered(settings: _Settings, key: str, rule: dict[str, Any], count: int) -> list[str]:
    """Layers of which a list gives the numbers, and perhaps another those it leaves out."""
    numbers, first = settings.stated(key), rule.get("first", 0)
    allowed = range(first, first + count)
    listed = isinstance(numbers, list) and all(type(one) is int for one in numbers)
    if not listed or not set(numbers) <= set(allowed):
        settings.refuse(key, f"numbers of layers from {first} to {allowed[-1]}")
    others = settings.stated(rule["complement"]) if "complement" in rule else None
    if others is not None and others != [layer for layer in allowed if layer not in numbers]:
        settings.refuse(rule["complement"], f"in order, the layers that {key} leaves out")
    settings.stated_layout = True
    return [rule["listed" if layer in numbers else "others"] for layer in allowed]


def _ruled(settings: _Settings, rule: Any, count: int) -> list[str]:
    """The layers of a rule: words that repeat, or a word for every n-th layer."""
    if isinstance(rule, str):
        settings.refuse(rule, "a word for each layer")
    if isinstance(rule, list):
        rule = {"cycle": rule}
    if "every" in rule:
        period = settings.count(rule["every"])
        if period is None:
            settings.refuse(rule["every"], "a whole number of layers")
        first = settings.number(rule.get("first", period - 1))
        if first is None or first >= period:
            settings.refuse(str(rule["first"]), f"a whole number below {rule['every']}")
        nth, others = rule.get("nth", "full"), rule["others"]
        words = [nth if layer % period == first else others for layer in range(count)]
        whole = count // period * period if "remainder" in rule else count
        return words[:whole] + [rule.get("remainder", others)] * (count - whole)
    words = [rule["cycle"][layer % len(rule["cycle"])] for layer in range(count)]
    if rule.get("from_end"):
        words.reverse()
    until = settings.count(rule["until"], least=0) if "until" in rule else None
    if until is not None:
        words[until:] = [rule["then"]] * len(words[until:])
    start = rule.get("start", [])[:count]
    words[: len(start)] = start
    return [*words[:-1], rule.get("last", words[-1])]


def _blocks(settings: _Settings, blocks: Any, count: int | None) -> list[str]:
    """Layers of a searched architecture, where each block states its own attention."""
    if not isinstance(blocks, list) or count not in (None, len(blocks)):
        settings.refuse("block_configs", f"a list with a block for each of {count} layers")
    words, known = [], set(settings.table["block_settings"])
    settings.layers, settings.stated_layout = len(blocks), True
    for layer, block in enumerate(blocks):
        where = f"{settings.where}block_configs[{layer}].attention"
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise InputError(where, _brief(attention), "the block's attention settings")
        own = {key: value for key, value in attention.items() if value not in (None, False)}
        for key in own.keys() - known:
            raise InputError(f"{where}.{key}", _brief(own[key]), _UNKNOWN)
        if own.pop("no_op", None) or own.pop("replace_with_linear", None):
            words.append("nothing")
            continue
        group = own.pop("n_heads_in_group", None)
        heads = settings.count("num_attention_heads", layer)
        if group is not None:
            if type(group) is not int or group < 1 or not heads or heads % group:
                where = f"{where}.n_heads_in_group"
                raise InputError(where, _brief(group), f"a divisor of {heads}")
            own["num_key_value_heads"] = heads // group
        if "window_length" in own:
            own["sliding_window"] = own.pop("window_length")
        settings.by_layer[layer] = own
        words.append("window" if "sliding_window" in own else "full")
    return words


def _caches(
    settings: _Settings, layout: list[tuple[int, str]]
) -> tuple[tuple[LayerGroup, ...], int, int]:
    """Groups of like layers, and the elements of all recurrent and convolution states."""
    words = settings.table["words"] | settings.entry.get("words", {})
    copies = settings.entry.get("caches_per_layer", 1)
    borrowing, indexing = _borrowing(settings), _indexing(settings)
    kept: Counter[tuple[Any, ...]] = Counter()
    recurrent = convolution = 0
    for layer, word in layout:
        parts = words[word].split(" + ")
        for part in parts:
            if part == "state":
                elements = _state(settings, layer, parts[0])
                recurrent, convolution = recurrent + elements[0], convolution + elements[1]
            elif part == "index" and indexing[layer]:
                width = settings.count("index_head_dim", layer)
                if width is None:
                    settings.refuse("index_head_dim", "the width of an index key")
                kept["index", width, None, None] += copies
            elif part not in ("index", "nothing") and layer not in borrowing:
                kept[_attention(settings, layer, part)] += copies
    if borrowing:
        settings.warnings.append(f"{len(borrowing)} layers reuse another layer's cache")
    if _predicted(settings):
        settings.warnings.append(f"{_predicted(settings)} prediction layers (MTP) are not counted")
    return tuple(LayerGroup(count, *group) for group, count in kept.items()), recurrent, convolution


def _attention(settings: _Settings, layer: int, kind: str) -> tuple[Any, ...]:
    """Kind, elements per token, window and KV heads of one layer's attention."""
    limit = settings.table["limits"].get(kind)
    window = settings.count(limit, layer, kind, least=0) if limit else None
    if limit and not window and settings.stated_layout:
        settings.refuse(limit, "the window of the layers that are said to have one")
    latent = settings.count("kv_lora_rank", layer, kind, least=0)
    if latent:
        rotary = settings.count("qk_rope_head_dim", layer, kind, least=0)
        if rotary is None:
            settings.refuse("qk_rope_head_dim", "the width of the key beside the latent")
        return "window" if window else "mla", latent + rotary, window or None, None
    heads = settings.count("num_attention_heads", layer, kind)
    kv_heads = settings.count("num_key_value_heads", layer, kind)
    stated = any(key in settings.file for key in settings.table["spellings"]["num_key_value_heads"])
    if kv_heads is None and (settings.known or stated):
        kv_heads = heads
    if kv_heads is None or (heads and heads % kv_heads):
        expected = f"the number of KV heads, a divisor of {heads or 'the query heads'}"
        settings.refuse("num_key_value_heads", expected)
    key_width = _head_dim(settings, layer, kind)
    if key_width is None:
        settings.refuse("head_dim", "the width of a head, or hidden_size and heads")
    value_width = settings.count("v_head_dim", layer, kind, least=0) or key_width
    elements = kv_heads * (key_width + value_width)
    return "window" if window else "full", elements, window or None, kv_heads


def _head_dim(settings: _Settings, layer: int | None, kind: str) -> int | None:
    """The width of a key head; what a file leaves out is hidden size over query heads."""
    stated = settings.count("head_dim", layer, kind)
    hidden, heads = settings.count("hidden_size"), settings.count("num_attention_heads", layer)
    if stated or hidden is None or heads is None:
        return stated
    if hidden % heads:
        settings.refuse("head_dim", f"a width: {heads} heads do not divide {hidden}")
    return hidden // heads


def _query_widths(settings: _Settings) -> tuple[int | None, int | None]:
    """The widths over which a query head scores and sums."""
    v_head_dim = settings.count("v_head_dim", 0, least=0) or None
    if not settings.count("kv_lora_rank", 0, least=0):
        head_dim = _head_dim(settings, 0, "full")
        return head_dim, v_head_dim or head_dim
    qk_head_dim = settings.number("qk_nope_head_dim + qk_rope_head_dim", 0)
    return int(qk_head_dim) if qk_head_dim is not None else None, v_head_dim


def _state(settings: _Settings, layer: int, kind: str) -> tuple[int, int]:
    """Recurrent and convolution elements of one layer's state."""
    states, named = settings.table["states"], settings.entry.get("state")
    for form in [states[named]] if named else states.values():
        if form.get("only_named") and not named:
            continue
        for spelled in form["spelled"]:
            local = {"reach": "kernel - 1", **spelled}
            parts = ["recurrent", "convolution"]
            sums = [" + ".join(form[part]) or "0" for part in parts]
            numbers = [settings.number(one, layer, kind, local) for one in [*sums, *spelled]]
            if None in numbers:
                continue
            for number, text in zip(numbers, sums, strict=False):
                if number < 0 or number.denominator != 1:
                    key = re.search(r"[a-z][\w.]+", str(list(spelled.values()) or text))
                    settings.refuse(key.group(), "sizes that give a state of whole elements")
            return int(numbers[0]), int(numbers[1])
    settings.refuse("layer_types", "the sizes of the recurrent states in settings known here")


def _borrowing(settings: _Settings) -> set[int]:
    """Layers that read another layer's keys and values."""
    layers = settings.layers
    shared = settings.count("num_kv_shared_layers", least=0) or 0
    if shared and shared >= layers:
        settings.refuse("num_kv_shared_layers", f"fewer than {layers} layers")
    factor = settings.count("cla_share_factor") or 1
    sources = settings.stated("kv_source_layers") or list(range(layers))
    if not isinstance(sources, list) or len(sources) != layers:
        settings.refuse("kv_source_layers", f"a source for each of {layers} layers")
    return {
        layer
        for layer in range(layers)
        if layer >= layers - shared or layer % factor or sources[layer] != layer
    }


def _indexing(settings: _Settings) -> list[bool]:
    """Whether each layer keeps index keys of its own, where it has any."""
    keeps = {"full": True, "F": True, "shared": False, "S": False}
    for key in ("indexer_types", "index_topk_pattern"):
        types = settings.stated(key)
        if types:
            listed = isinstance(types, list | str) and len(types) == settings.layers
            if not listed or any(not isinstance(one, str) or one not in keeps for one in types):
                settings.refuse(key, f"full or shared for each of {settings.layers} layers")
            return [keeps[one] for one in types]
    period = settings.count("index_topk_freq", least=0) or 1
    offset = settings.count("index_skip_topk_offset", least=0) or 0
    return [max(layer - offset + 1, 0) % period == 0 for layer in range(settings.layers)]
