"""One reader per log format: a parsed row in, its requests out.

A reader is a function ``(row, options) -> list of Request``. It raises ``DamagedError`` for a row
that cannot be used. ``FORMATS`` says by which keys a format is recognised. Ids may be any
integers; :mod:`kvpaper.traces.load` numbers them anew.
"""

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from typing import NamedTuple

from kvpaper.errors import InputError
from kvpaper.traces.lines import DamagedError

MOST_TOKENS = 10**9
MOST_SECONDS = 1e11
_SECONDS_PER = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
OURS = (
    *(f"arrival_{unit}" for unit in _SECONDS_PER),
    "input_tokens",
    "output_tokens",
    "session",
    "blocks",
)


class Request(NamedTuple):
    """One request as a log tells it.

    ``parent`` is the chat that it continues; ``scope`` names the log's unit within which its ids
    hold, None if they hold everywhere.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    ids: array
    session: str | None = None
    parent: str | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say about a log that its content does not tell.

    Attributes
    ----------
    block_tokens : int or None
        Tokens of a block, where the format does not fix it.
    tokenizer : str
        ``"builtin"`` or the path of a ``tokenizer.json``.
    components : str
        RAGPulse: ``"component"`` (an item hits wherever it stands) or ``"prefix"``.
    columns : dict
        Generic tables: name of ours -> name in the file. Ours are ``arrival_s`` (or ``_ms``,
        ``_us``, ``_ns``), ``input_tokens``, ``output_tokens``, ``session`` and ``blocks``.
    """

    block_tokens: int | None = None
    tokenizer: str = "builtin"
    components: str = "component"
    columns: dict[str, str] = field(default_factory=dict)


def number(row: dict, key: str, most: float, default: float | None = None) -> float:
    """A finite number of 0 to ``most`` under ``key``; a number as text is one too."""
    value = row.get(key, default)
    if type(value) is int and 0 <= value <= most:
        return value
    if value is None:
        raise DamagedError(f"no {key}", f"a row with {key}")
    try:
        if isinstance(value, bool):
            raise TypeError
        result = float(value)
    except (TypeError, ValueError):
        raise DamagedError(f"{key} {value!r:.40}", "a number") from None
    if not 0 <= result <= most:
        raise DamagedError(f"{key} {value!r:.40}", f"a number from 0 to {most:g}")
    return result


def count(row: dict, key: str, default: int | None = None) -> int:
    """A whole number of tokens under ``key``."""
    value = row.get(key)
    if type(value) is int and 0 <= value <= MOST_TOKENS:
        return value
    result = number(row, key, MOST_TOKENS, default)
    if result != int(result):
        raise DamagedError(f"{key} {value!r:.40}", "a whole number of tokens")
    return int(result)


def integers(values: object) -> array:
    """Block ids as 64-bit integers; ids as text are ids, larger ones are folded by a hash."""
    if isinstance(values, str):
        values = values.strip(" []").replace(",", " ").replace(";", " ").split()
    if not isinstance(values, list):
        raise DamagedError(f"block ids {values!r:.40}", "a list of integers")
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return array("q", [_integer(value) for value in values])


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 16 if value[:2] in ("0x", "0X") else 10)
        except ValueError:
            raise DamagedError(f"block id {value!r:.40}", "an integer") from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise DamagedError(f"block id {value!r:.40}", "an integer of at most 64 bits")
    if -(2**63) <= value < 2**63:
        return value
    folded = hashlib.blake2b(str(value).encode(), digest_size=8).digest()
    return int.from_bytes(folded, "little", signed=True)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class Columns(NamedTuple):
    """Names that a log has for ours; ``scale`` turns its times into seconds, 0 if it has dates."""

    arrival: str
    scale: float
    input_tokens: str
    output_tokens: str | None = None
    blocks: str | None = None
    session: str | None = None


def by_columns(row: dict, columns: Columns) -> Request:
    """One request of a row with a value in each column."""
    arrival, scale, input_tokens, output_tokens, blocks, session = columns
    if scale:
        arrival_s = number(row, arrival, MOST_SECONDS / scale) * scale
    else:
        arrival_s = date_s(str(row.get(arrival)))
    return Request(
        arrival_s,
        count(row, input_tokens),
        count(row, output_tokens) if output_tokens else 0,
        integers(row[blocks]) if blocks else array("q"),
        _text(row.get(session)) if session else None,
    )


_LENGTHS = ("input_length", "output_length")
_MOONCAKE = Columns("timestamp", 1e-3, *_LENGTHS, "hash_ids", "session_id")
_BAILIAN = Columns("timestamp", 1.0, *_LENGTHS, "hash_ids", "chat_id")
_RAGPULSE = Columns("timestamp", 1.0, *_LENGTHS, None, "session_id")
_TURN = Columns("t", 1.0, "in", None, "hash_ids")
_AZURE = Columns("TIMESTAMP", 0.0, "ContextTokens", "GeneratedTokens")


def mooncake(row: dict, options: Options) -> list[Request]:
    """Mooncake: milliseconds, global ids of blocks of 512 tokens."""
    return [by_columns(row, _MOONCAKE)]


def azure(row: dict, options: Options) -> list[Request]:
    """Azure LLM inference: arrivals and lengths, no identity of prefixes."""
    return [by_columns(row, _AZURE)]


def bailian(row: dict, options: Options) -> list[Request]:
    """Bailian: seconds, global ids of blocks of 16 tokens, chats that continue a parent."""
    parent = row.get("parent_chat_id")
    known = None if parent in (None, -1, "-1", "") else str(parent)
    return [by_columns(row, _BAILIAN)._replace(session=_text(row["chat_id"]), parent=known)]


def kv_cache_tester(row: dict, options: Options) -> list[Request]:
    """kv-cache-tester: one object per session; its ids count within the session."""
    session = str(row.get("id", "?"))
    turns = row["requests"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise DamagedError("requests that are no list of objects", "a list of turns")
    scope = session if row.get("hash_id_scope", "local") == "local" else None
    return [
        by_columns(turn, _TURN)._replace(
            output_tokens=count(turn, "out", 0), session=session, scope=scope
        )
        for turn in turns
    ]


RAGPULSE_ORDER = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")


def ragpulse(row: dict, options: Options) -> list[Request]:
    """RAGPulse: seconds, the items of a prompt by component; an item is one unit."""
    items = row["hash_ids"]
    missing = [name for name in RAGPULSE_ORDER if not isinstance(items.get(name), list)]
    if missing:
        raise DamagedError(f"no list {missing[0]!r}", "ids of " + ", ".join(RAGPULSE_ORDER))
    ids = integers([item for name in RAGPULSE_ORDER for item in items[name]])
    return [by_columns(row, _RAGPULSE)._replace(ids=ids)]


def ragpulse_sizes(row: dict) -> tuple[int, int]:
    """Id and tokens of an item, from a component table of RAGPulse."""
    key = next(name for name in row if name.endswith("_id"))
    return integers([row[key]])[0], count(row, "token_length")


def named_columns(row: dict, options: Options) -> list[Request]:
    """Any table whose columns the user names."""
    names = options.columns
    arrival = next(name for name in names if name.startswith("arrival_"))
    scale = _SECONDS_PER[arrival.removeprefix("arrival_")]
    rest = map(names.get, ("input_tokens", "output_tokens", "blocks", "session"))
    return [by_columns(row, Columns(names[arrival], scale, *rest))]


def prompt_text(row: dict, options: Options) -> list[Request]:
    """Chat and completion logs with prompt text: tokenized, blocks hashed with their parent."""
    body = row.get("request") or row.get("body") or row
    if not isinstance(body, dict):
        raise DamagedError("a request that is no object", "an object with a prompt")
    prompt = body.get("messages") or body.get("prompt") or body.get("input")
    if isinstance(prompt, list):
        prompt = "".join(_message(part) for part in prompt)
    if not isinstance(prompt, str):
        raise DamagedError("no prompt", "text under input, prompt or messages")
    tokens = list(tokenizer(options.tokenizer)(prompt))
    size, parent, ids = options.block_tokens or 16, b"", array("q")
    for start in range(0, len(tokens), size):
        block = "\x1f".join(map(str, tokens[start : start + size]))
        parent = hashlib.blake2b(parent + block.encode(), digest_size=8).digest()
        ids.append(int.from_bytes(parent, "little", signed=True))
    usage = row.get("usage") or (row.get("response") or {}).get("usage") or {}
    output = count(usage or row, "completion_tokens" if usage else "output_length", 0)
    session = row.get("session_id", body.get("user"))
    return [Request(_moment(row), len(tokens), output, ids, _text(session))]


def _message(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise DamagedError(f"a message {part!r:.40}", "an object with role and content")
    content = part.get("content") or ""
    if isinstance(content, list):
        content = "".join(
            str(piece.get("text", "")) for piece in content if isinstance(piece, dict)
        )
    return f"<|{part.get('role', '')}|>{content}"


def _moment(row: dict) -> float:
    """Seconds: ``timestamp`` counts microseconds or is a date, ``created`` counts seconds."""
    value = row.get("timestamp", row.get("created"))
    if isinstance(value, str) and not re.fullmatch(r"[\d.eE+-]+", value):
        return date_s(value)
    if "timestamp" in row:
        return number(row, "timestamp", MOST_SECONDS * 1e6) * 1e-6
    if "created" in row:
        return number(row, "created", MOST_SECONDS)
    raise DamagedError("neither timestamp nor created", "the time of the request")


def date_s(text: str) -> float:
    """Seconds since 1970 of an ISO date; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DamagedError(f"time {text!r:.40}", "an ISO date or a number") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@cache
def tokenizer(name: str) -> Callable[[str], Iterable]:
    """Tokens of a text. The built-in one cuts words into pieces of four letters: no download."""
    if name == "builtin":
        return re.compile(r" ?[^\W\d_]{1,4}|\d{1,3}|\s+|[^\w\s]|_").findall
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("--tokenizer", "no library for it", "pip install tokenizers") from None
    try:
        loaded = Tokenizer.from_file(name)
    except Exception as error:  # the library raises bare Exception
        raise InputError("--tokenizer", f"{name} ({error})", "a tokenizer.json") from None
    return lambda text: loaded.encode(text, add_special_tokens=False).ids


class Format(NamedTuple):
    """A log format: how a row of it is recognised and read."""

    name: str
    recognised: Callable[[dict], bool]
    read: Callable[[dict, Options], list[Request]]
    block_tokens: int
    prefix: bool = True


def _by_component(row: dict) -> bool:
    return isinstance(row.get("hash_ids"), dict)


def _has(keys: tuple[str, ...], row: dict) -> bool:
    return all(key in row for key in keys)


def _has_prompt(row: dict) -> bool:
    return any(key in row for key in ("input", "prompt", "messages", "request", "body"))


# The first that recognises a row reads the file. Block tokens of 0: no identity of prefixes;
# 1: told by the rows. Functions of this module, since a format travels between processes.
FORMATS = (
    Format("RAGPulse", _by_component, ragpulse, 1, prefix=False),
    Format("Bailian", partial(_has, ("chat_id", "hash_ids")), bailian, 16),
    Format("Mooncake", partial(_has, ("timestamp", "input_length", "hash_ids")), mooncake, 512),
    Format("kv-cache-tester", partial(_has, ("requests", "block_size")), kv_cache_tester, 1),
    Format("Azure", partial(_has, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")), azure, 0),
    Format("prompt text", _has_prompt, prompt_text, 16),
)
GENERIC = Format("named columns", bool, named_columns, 16)


def recognised(rows: Iterable[dict], options: Options) -> Format | None:
    """The format of the first row that any format recognises; named columns come before all."""
    if options.columns:
        return GENERIC
    return next((known for row in rows for known in FORMATS if known.recognised(row)), None)
