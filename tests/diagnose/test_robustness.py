"""Whatever the bytes, an answer in time linear in their number and in little memory."""

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import CORE_FAILED, FREE_MEMORY, NO_BLOCKS, OUTER, START, STOP, UP

from kvpaper.diagnose import diagnose, render
from kvpaper.diagnose.reader import EXCEPTION, GATE, clean, parse
from kvpaper.diagnose.signatures import table
from kvpaper.errors import InputError

CLASSES = {*table().classes, "insufficient", "healthy", "degraded"}
SEEDS = [
    START + FREE_MEMORY + CORE_FAILED + NO_BLOCKS + OUTER,
    START + UP + STOP,
    *(s.example + "\n" for s in table().signatures),
]


def check(answer):
    assert answer["cause"] in CLASSES
    assert answer["confidence"] in ("high", "medium", "low")
    assert isinstance(render(answer), str)


@given(data=st.binary(max_size=3000))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_answered(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "x.log"
    path.write_bytes(data)
    try:
        check(diagnose([path]))
    except InputError:
        assert data.startswith(b"\x1f\x8b")  # a damaged gzip file is unreadable


@given(
    parts=st.lists(st.sampled_from(SEEDS), min_size=1, max_size=6),
    cuts=st.lists(st.tuples(st.integers(0, 4000), st.text(max_size=12)), max_size=8),
)
@settings(max_examples=80, deadline=None)
def test_any_mixture_of_log_lines_with_cuts_and_insertions_is_answered(
    parts, cuts, tmp_path_factory
):
    text = "".join(parts)
    for position, inserted in cuts:
        text = text[:position] + inserted + text[position + 3 :]
    path = tmp_path_factory.mktemp("fuzz") / "x.log"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    check(diagnose([path]))


def test_a_fuzzer_of_bytes_and_lines_finds_no_traceback(tmp_path):
    """Deterministic mutations: flips, repeats, deletions, lost newlines, wraps, interleaving."""
    rng = random.Random(20260727)
    path = tmp_path / "x.log"
    for _ in range(150):
        lines = "".join(rng.choices(SEEDS, k=rng.randint(1, 5))).split("\n")
        match rng.randrange(5):
            case 0:
                rng.shuffle(lines)
            case 1:
                lines = ["".join(lines)]
            case 2:
                lines = [piece for x in lines for piece in (x[:70], x[70:])]
            case 3:
                lines = ["web-1  | > " + x for x in lines]
            case 4:
                lines = lines * rng.randint(1, 20)
        data = bytearray("\n".join(lines).encode())
        for _ in range(rng.randint(0, 30)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        check(diagnose([path]))


def seconds(run, *arguments):
    """The least of three runs, as other work on the machine only adds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run(*arguments)
        times.append(time.process_time() - start)
    return min(times)


ADVERSARIAL = [
    "(", "a.", "Aa", "A" * 7 + " ", "1", "[1;", "(EngineCore pid=1) ", "KeyError: '", "x pid=",
    "Tried to allocate 1.0 GiB", "max seq len (1), (1 GiB KV cach", " is not divisible by ", "tcp://a",
    "ERROR 01-01 00:00:00 [", "Error: ", "NCCL WARN ", "'Linear", "assert % ", "\x1b[", "|",
    "2026-01-01 ", "12 ", "1.", "/lmcache", "Killed ",
]  # fmt: skip


@pytest.mark.parametrize("atom", ADVERSARIAL)
def test_every_expression_grows_linearly_on_repeated_text(atom):
    """Doubling the text at most about doubles the time; a quadratic one quadruples it."""
    patterns = [GATE.search, EXCEPTION.match, clean, lambda text: parse(1, text)]
    for signature in table().signatures:
        found = (signature.pattern, signature.numbers, signature.frames, signature.source_line)
        patterns += [pattern.search for pattern in found if pattern]
    patterns += [pattern.search for _, pattern in table().facts]
    patterns += [pattern.search for pattern, _ in table().modules]
    short, long = (atom * (size // len(atom)) for size in (8_000, 64_000))
    for run in patterns:
        # Eight times the text: 8 if linear, 64 if quadratic; beneath 2 ms nothing is measured.
        assert seconds(run, long) < max(0.002, 24 * seconds(run, short)), run


def test_memory_stays_small_on_a_long_log(tmp_path):
    path = tmp_path / "x.log"
    chatter = "(EngineCore pid=7) INFO 01-01 00:00:00 [x.py:1] step {} took 0.1 s, no Error\n"
    with path.open("w") as file:
        for number in range(60_000):
            file.write(chatter.format(number))
        file.write(CORE_FAILED + NO_BLOCKS)
    tracemalloc.start()
    answer = diagnose([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer["cause"] == "kv_cache"
    assert answer["evidence"][0]["line"] == 60_003
    assert path.stat().st_size > 4e6
    assert peak < 12e6
