"""A start-up log as lines with the process that wrote them, read once, in bounded memory."""

import codecs
import gzip
import itertools
import json
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

from kvpaper.errors import InputError

BLOCK_BYTES = 1 << 20
LONGEST_CHARS = 1 << 16  # a longer line is read in pieces of this size
HISTORY_LINES = 300  # what a traceback may reach back
AHEAD_LINES = 4  # what a hard-wrapped message may reach ahead
_NARROWEST, _WIDEST = 40, 250  # columns of a terminal
_LONGEST_WHOLE = 1000  # characters of a line put together again

# Only lines that contain one of these are looked at; every signature's example passes. The texts
# are cut so that they begin with few and rare letters, as those are what the search skips by.
GATE = re.compile(
    r"E(?:rror|RROR|rrno|xit Code)|f(?:ailed|atal|ound|ork|reeze_supp|orgotten)|F(?:ailed|ATAL)"
    r"|xception|xit(?: ?code|ed with| status)|W(?:ARN|aiting for|atchdog)|ssert"
    r"|K(?:illed|eyboardInt)|killed|N(?:o such|o space|o available|VIDIA driver|CCL err)"
    r"|P(?:ermission|arent process)"
    r"|A(?:n attempt|pplication startup|vg prompt|vailable routes|ccess to model)"
    r"|S(?:ystem will|egmentation f|tarting vLLM|hutting down|IG[KBI])|U(?:vicorn running|CX)"
    r"|\(profile, cr|L(?:LM engine|LM (?:API )?server|IBC)|-(?:default args|kill)"
    r"|O(?:verriding num|OM|utOfRes)|C(?:reating v|annot |UDA capab|UDA err|uda fail|aught sig)"
    r"|\[shutdown\] (?:API|EngineCore: tr)|Received SIG|GiB\) on|=(?:137|9/K)|There appear"
    r"|already dead|Illegal inst|Bus err|Value err|HIP err|ja: err|Min(?:imum|\.) cap|Try increas"
)

_ANSI = re.compile(
    r"(?:\x1b|ESC|\^\[)\[[0-9;?]*[A-Za-z]|#033\[[0-9;]*m|\[\d{1,2}(?:;\d{1,3}){0,4}m|#015|\r"
)
_STRAIGHT = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\xa0": " ", "\x00": None})

_TAG = re.compile(r"\s?\((?P<process>[A-Za-z][^()]{0,60}?),? pid=\d+[^()]{0,60}\)(?= |$)")
_LOGGER = re.compile(
    r"\s?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s(?:[\d-]{5,10}[ T][\d:.,]{8,15} )?"
    r"\[?(?P<origin>[\w./<>-]{1,120}:\d+)\] ?"
)
_ORIGIN = re.compile(r"\s?\[(?P<origin>\w{1,40}\.py:\d+)\] ")
_RECORD = re.compile(
    r"\s?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[\d.,]* pid=\d+ proc=(?P<process>\S+) (?P<level>[A-Z]+) "
    r"(?P<origin>\S+:\d+) "
)
_LMCACHE = re.compile(r"\s?\[\d{4}-[^\]]{8,30}\] (?P<library>LMCache) (?P<level>[A-Z]+): ?")
# Wrappers that say nothing of the process: time stamps, container and unit names, ranks.
_WRAPPER = re.compile(
    r"\s?(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,:+Z-]*\]?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|[\w.@/-]{1,60}\[\d+\]:|std(?:out|err) [FP]\b"
    r"|\[(?:pod/|rank|default|Stage|resource)[^\]]{0,80}\]:?"
    r"|\[[a-z][\w-]{0,40}\]:|\[(?:Error|Info|Warn|Warning|Debug)\]|\(Process\)"
    r"|[\w.@/-]{1,60} {0,20}\||[│|>]|(?:INFO|ERROR|WARNING)(?= \d{4}-))(?= |$)"
)
_PREFIXES = (_RECORD, _TAG, _LOGGER, _LMCACHE, _ORIGIN, _WRAPPER)
_DIGITS = b"0123456789"
_HEAD = re.compile(
    r"\((?:APIServer|ApiServer|EngineCore|Worker|VllmWorker|RayWorker)[^()]{0,50} pid=[^()]{1,60}\)"
    r"|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \["
)
EXCEPTION = re.compile(
    r"^(?:\s|\w+: )?\s*(?P<type>(?:[A-Za-z_]\w*\.){0,8}_?[A-Z]\w*(?:Error|Exception|Failed|Exit"
    r"|Interrupt|Timeout|OutOfResources|NotFound)\w*|(?:[a-z_]\w*\.){1,8}[A-Z]\w*[a-z]\w*(?=: ))"
    r"(?:\([^()]{0,80}\))?(?::|$)"
)
_NEW_RECORD = re.compile(r"Traceback|Process |(?:\[rank\d+\]:)?\[[DIWEF]\d{3,4} ")
_FRAME = re.compile(r'File "[^"]{1,300}", line')
_CARETS = re.compile(r"^[\s~^]*$")
_ORIGINS = (("core.py", "EngineCore"), ("engine.py", "engine"), ("api_server.py", "APIServer"))
_FRAME_PROCESSES = re.compile(
    r"(?P<APIServer>/entrypoints/|in (?:launch_core_engines|wait_for_engine_startup)\b)"
    r"|(?P<Worker>multiproc_executor\.py.{0,40} in (?:worker_main|worker_busy_loop)\b)"
    r"|(?P<EngineCore>in run_engine_core\b)"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its prefixes: what was said, by whom, how loudly, from which source."""

    number: int
    process: str
    level: str
    origin: str
    body: str


@dataclass(frozen=True, slots=True)
class Event:
    """A line that matters, with what stands around it.

    ``key`` is the line without its numbers, ``joined`` its body with wrapped continuations,
    ``frames`` the traceback above it, ``source_line`` the code the innermost frame quotes.
    """

    line: Line
    key: bytes
    joined: tuple[str, ...]
    frames: str
    source_line: str
    source_number: int
    exception: str


def clean(text: str) -> str:
    """A line without colours, carriage returns, NULs and typographic quotes."""
    if "\x1b" in text or "[0" in text or "\r" in text or "#0" in text:
        text = _ANSI.sub("", text)
    return text if text.isascii() and "\x00" not in text else text.translate(_STRAIGHT)


def parse(number: int, text: str) -> Line:
    """Take the prefixes off one cleaned line, however many are stacked and in whatever order."""
    structured = text.startswith("{") and text.rstrip().endswith("}") and _json_line(number, text)
    return structured or Line(number, *_split_prefixes(text))


@lru_cache(maxsize=2048)
def _split_prefixes(text: str) -> tuple[str, str, str, str]:
    process = level = origin = ""
    position, searching = 0, True
    while position < len(text):
        match = next((m for p in _PREFIXES if (m := p.match(text, position))), None)
        if match is None and searching:
            searching = False  # one unknown wrapper may stand before a known prefix
            match = _TAG.search(text, position, 160) or _LOGGER.search(text, position, 160)
        if match is None or match.end() == position:
            break
        found = match.groupdict()
        process = found.get("process") or process or found.get("library", "")
        level = found.get("level") or level
        origin = found.get("origin") or origin
        position = match.end()
    body = text[position:]
    if position and body.startswith(" ") and not body.startswith("  "):
        body = body[1:]
    return _process_name(process, origin), level, origin, body


def _json_line(number: int, text: str) -> Line | None:
    """A line of docker's json-file driver, of a cloud's log or of the engine's JSON formatter."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for key in ("message", "log", "msg", "textPayload", "MESSAGE"):
        if isinstance(record.get(key), str):
            inner = parse(number, clean(record[key].strip("\n")))
            process = inner.process or str(record.get("processName", ""))
            level = inner.level or str(record.get("levelname", ""))
            return Line(number, _process_name(process, ""), level, inner.origin, inner.body)
    return None


def _process_name(process: str, origin: str) -> str:
    if process == "MainProcess":
        return "APIServer"
    if not process and origin:
        name = origin.rsplit("/", 1)[-1]
        return next((role for file, role in _ORIGINS if name.startswith(file)), "")
    return process


@contextmanager
def open_log(path: str) -> Iterator[BinaryIO]:
    """Open a log, plain or gzip, for a ``with`` block; ``-`` is standard input, left open."""
    try:
        stream = sys.stdin.buffer if path == "-" else open(path, "rb")  # noqa: SIM115
        compressed = stream.peek(2)[:2] == b"\x1f\x8b"
    except (OSError, AttributeError) as error:  # closed standard input is None
        reason = getattr(error, "strerror", None) or "nothing to read"
        raise InputError(path or "LOG", reason, "a readable log file") from None
    with nullcontext() if path == "-" else stream:
        yield gzip.GzipFile(fileobj=stream) if compressed else stream


def numbered_blocks(stream: BinaryIO, name: str) -> Iterator[list[tuple[int, str]]]:
    """The log's lines with their numbers, in lists of about a megabyte.

    A line beyond `LONGEST_CHARS` comes in pieces under one number. UTF-16 is recognised by its
    byte order mark or its NULs; bytes that are no text are replaced.
    """
    decoder, rest, number = None, "", 1
    while True:
        try:
            chunk = stream.read(BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(name, f"unreadable data ({error})", "a readable log file") from None
        if decoder is None:
            decoder = codecs.getincrementaldecoder(_encoding(chunk))(errors="replace")
        text = rest + decoder.decode(chunk, final=not chunk)
        lines = text.split("\n")
        rest = lines.pop() if chunk else ""
        block = list(enumerate(lines, number))
        number += len(lines)
        if max(map(len, lines), default=0) > LONGEST_CHARS:
            block = [(at, piece) for at, line in block for piece in _pieces(line)]
        if len(rest) > LONGEST_CHARS:
            *pieces, rest = _pieces(rest)
            block += [(number, piece) for piece in pieces]
        yield block
        if not chunk:
            return


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:4096]
    if len(sample) > 8 and sample.count(b"\x00") > len(sample) // 3:
        return "utf-16-le" if sample[1::2].count(0) >= sample[::2].count(0) else "utf-16-be"
    return "utf-8-sig"


def _pieces(line: str) -> list[str]:
    return [line[i : i + LONGEST_CHARS] for i in range(0, len(line) or 1, LONGEST_CHARS)]


def unwrapped(blocks: Iterator[list[tuple[int, str]]]) -> Iterator[list[tuple[int, str]]]:
    """The lines, those that a terminal had cut whole again under their first number."""
    width = None
    for block in blocks:
        width = _terminal_width(block) if width is None else width
        whole: list[tuple[int, str]] = []
        cut = False
        for number, text in block if width else ():
            if cut and not _HEAD.match(text):
                whole[-1] = (whole[-1][0], whole[-1][1] + text)
            else:
                whole.append((number, text))
            cut = _fills(text, width) and len(whole[-1][1]) + width <= _LONGEST_WHOLE
        yield whole if width else block


def _terminal_width(block: list[tuple[int, str]]) -> int:
    """The width at which a terminal cut the lines, or 0.

    The longest lines then differ from each other, and what follows them has no prefix.
    """
    width = max((len(text.rstrip("\r")) for _, text in block), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return 0
    pairs = [(a, b) for (_, a), (_, b) in itertools.pairwise(block) if _fills(a, width)]
    opened = sum(bool(line.process or line.level) for line in (parse(0, b) for _, b in pairs))
    return width if len({a for a, _ in pairs}) >= 3 and opened <= len(pairs) / 5 else 0


def _fills(text: str, width: int) -> bool:
    """Whether a line is as wide as the terminal, and no row of a table or progress bar."""
    text = text.rstrip("\r")
    return len(text) == width and text[-1] not in "|+-=─│╯]"


def events(blocks: Iterator[list[tuple[int, str]]], skip: set[bytes]) -> Iterator[Event]:
    """The lines that pass the gate, with their surroundings, in file order.

    ``skip`` holds the keys of lines that tell nothing more; whoever takes the events adds to it.
    """
    window: list[tuple[int, str]] = []
    start = 0
    for block in itertools.chain(unwrapped(blocks), [None]):
        window += block or []
        end = len(window) if block is None else max(start, len(window) - AHEAD_LINES)
        for index in range(start, end):
            if GATE.search(window[index][1]):
                yield from _events_of(window, index, skip)
        drop = max(0, end - HISTORY_LINES)
        del window[:drop]
        start = end - drop


def _events_of(window: list[tuple[int, str]], index: int, skip: set[bytes]) -> Iterator[Event]:
    number, raw = window[index]
    several = len(raw) > 200 and (raw.count(" pid=") > 1 or raw.count("ERROR ") > 1)
    parts = _split_at_heads(clean(raw)) if several else [raw]
    for part in parts:
        key = _key(part)
        if key in skip or (len(parts) > 1 and not GATE.search(part)):
            continue
        line = parse(number, clean(part))
        match = EXCEPTION.match(line.body)
        exception = match["type"] if match and "Warning" not in match["type"] else ""
        told_ahead = exception or "NCCL WARN" in line.body or "Value error," in line.body
        if told_ahead and len(parts) == 1:
            yield _with_surroundings(window, index, line, exception, key)
        else:
            yield Event(line, key, (), "", "", 0, exception)


def _split_at_heads(text: str) -> list[str]:
    """A line that lost its newlines, cut before every prefix that does not stack on another."""
    cuts, last_end = [0], 0
    for match in _HEAD.finditer(text):
        if match.start() > last_end + 1:
            cuts.append(match.start())
        last_end = match.end()
    return [text[a:b] for a, b in itertools.pairwise([*cuts, len(text)])]


def _key(part: str) -> bytes:
    """A line without the numbers that change from one print to the next; exit codes stay."""
    tells = "xit" in part or "roc(s)" in part or "blocks=0" in part or "code=" in part
    text = part.encode("utf-8", "surrogatepass")
    return text if tells or len(part) > _LONGEST_WHOLE else text.translate(None, _DIGITS)


def _with_surroundings(
    window: list[tuple[int, str]], index: int, line: Line, exception: str, key: bytes
) -> Event:
    joined, text, spaced = [], line.body, line.body
    for number, raw in window[index + 1 : index + AHEAD_LINES]:
        following = parse(number, clean(raw))
        if (
            (following.process and following.process != line.process)
            or following.level not in ("", line.level)
            or (following.level and not line.level)
            or _NEW_RECORD.match(following.body)
            or EXCEPTION.match(following.body)
            or not following.body.strip()
        ):
            break
        text += following.body.strip()
        spaced += " " + following.body.strip()
        joined += [text, spaced]
    frames, source_line, source_number, process = _look_back(window, index, line)
    if process and not line.process:
        line = Line(line.number, process, line.level, line.origin, line.body)
    return Event(line, key, tuple(joined), frames, source_line, source_number, exception)


def _look_back(window: list[tuple[int, str]], index: int, line: Line) -> tuple[str, str, int, str]:
    """Frames, quoted code line with its number, and process of the traceback above a line."""
    frames: list[str] = []
    source_line, source_number, process = "", 0, line.process
    ended = False
    for position in range(index - 1, max(-1, index - HISTORY_LINES), -1):
        number, raw = window[position]
        speaker, level, body, part = _traceback_part(raw[:600])
        if line.process and speaker and speaker != line.process:
            continue  # another process spoke in between
        if ended:
            # What stands over the traceback's head names its process.
            if process:
                break
            if body.startswith("Process ") and body.endswith(":"):
                process = body[8:-1]
            elif level in ("ERROR", "CRITICAL"):
                process = speaker
            break
        if part == "head":
            ended = True
            process = process or speaker
        elif part == "frame":
            frames.append(body)
        elif part == "carets":
            continue
        elif level and not line.level:
            # An unprefixed traceback ended above; this record may have opened it.
            if frames or source_line:
                process = process or speaker
            break
        elif part == "exception":
            if frames:
                break
        elif not frames and not source_line:
            source_line, source_number = body, number
    text = "\n".join(reversed(frames))
    if not process and (found := _FRAME_PROCESSES.search(text)):
        process = found.lastgroup
    return text, source_line, source_number, process


@lru_cache(maxsize=8192)
def _traceback_part(raw: str) -> tuple[str, str, str, str]:
    """Process, level and text of a line, and what part of a traceback it is."""
    line = parse(0, clean(raw))
    if "Traceback (most recent call last)" in line.body:
        part = "head"
    elif _FRAME.search(line.body):
        part = "frame"
    elif _CARETS.match(line.body):
        part = "carets"
    else:
        part = "exception" if EXCEPTION.match(line.body) else "code"
    return line.process, line.level, line.body.strip(), part
