import gzip
import io

import pytest

from kvpaper.diagnose.reader import clean, events, numbered_blocks, parse, unwrapped
from kvpaper.errors import InputError

LOGGER = "ERROR 01-01 00:00:00 [core.py:718] "

PREFIXED = {
    "up to 0.7": ("ERROR 01-01 00:00:00 engine.py:400] ", "engine"),
    "0.8": ("ERROR 01-01 00:00:00 [core.py:396] ", "EngineCore"),
    "0.8 worker": ("(VllmWorker rank=3 pid=9) ERROR 01-01 00:00:00 [x.py:1] ", "VllmWorker rank=3"),
    "0.10": ("(EngineCore_0 pid=9) " + LOGGER, "EngineCore_0"),
    "0.10 worker": ("(VllmWorker TP1 pid=9) " + LOGGER, "VllmWorker TP1"),
    "0.11": ("(EngineCore_DP0 pid=9) " + LOGGER, "EngineCore_DP0"),
    "0.11 unlogged": ("(EngineCore_DP0 pid=9) ", "EngineCore_DP0"),
    "expert parallel": ("(Worker_TP0_EP0 pid=9) " + LOGGER, "Worker_TP0_EP0"),
    "0.32": ("(EngineCore pid=9) " + LOGGER, "EngineCore"),
    "long origin": ("(EngineCore pid=9) ERROR 01-01 00:00:00 [v1/engine/core.py:8] ", "EngineCore"),
    "no date": ("ERROR [core.py:1330] ", "EngineCore"),
    "logging config": (
        "2026-01-01 00:00:00,123.123 pid=9 proc=VllmWorker-0 ERROR vllm.v1.x:9 ",
        "VllmWorker-0",
    ),
    "main process": ("2026-01-01 00:00:00,1.1 pid=9 proc=MainProcess ERROR vllm.x:9 ", "APIServer"),
    "ray": (
        "(RayWorkerWrapper pid=9, ip=10.0.0.1) ERROR 01-01 00:00:00 w.py:1] ",
        "RayWorkerWrapper",
    ),
    "colours": ("\x1b[1;36m(EngineCore_DP0 pid=9)\x1b[0;0m " + LOGGER, "EngineCore_DP0"),
    "escaped colours": ("#033[1;36m(Worker_TP2 pid=9)#033[0;0m " + LOGGER, "Worker_TP2"),
    "compose": ("vllm-1  | (EngineCore pid=9) " + LOGGER, "EngineCore"),
    "kubectl": ("[pod/vllm-0/vllm] 2026-01-01T00:00:00.1Z (Worker pid=9) " + LOGGER, "Worker"),
    "container runtime": ("2026-01-01T00:00:00.1Z stderr F (EngineCore pid=9) ", "EngineCore"),
    "systemd": ("Jan  1 00:00:00 host vllm[8]: (EngineCore pid=9) " + LOGGER, "EngineCore"),
    "wrapper": ("2026-01-01 00:00:00 [Error] (Process) (EngineCore pid=9) " + LOGGER, "EngineCore"),
    "cloud": ("INFO 2026-01-01T00:00:00.1Z [resource.labels: v] (EngineCore pid=9) ", "EngineCore"),
    "quoted": ("> (EngineCore pid=9) " + LOGGER, "EngineCore"),
    "three deep": (
        "(job, pid=1) (EngineCore_0 pid=2) (RayWorkerWrapper pid=3) ",
        "RayWorkerWrapper",
    ),
    "unknown wrapper": ("supervisor: vllm says (EngineCore pid=9) " + LOGGER, "EngineCore"),
}


@pytest.mark.parametrize("name", PREFIXED)
def test_prefixes_of_every_version_and_wrapper_are_taken_off(name):
    prefix, process = PREFIXED[name]
    line = parse(5, clean(prefix + "ValueError: No available memory"))
    assert (line.process, line.body) == (process, "ValueError: No available memory")
    assert line.number == 5


def test_lines_of_the_json_formatters_are_opened():
    docker = r'{"log":"(EngineCore pid=9) ValueError: x\n","stream":"stderr"}'
    assert (parse(1, docker).process, parse(1, docker).body) == ("EngineCore", "ValueError: x")
    engine = '{"levelname": "ERROR", "processName": "EngineCore", "message": "ValueError: x"}'
    assert parse(1, engine).process == "EngineCore"
    assert parse(1, "{not json}").body == "{not json}"


def read(data):
    return [line for block in numbered_blocks(io.BytesIO(data), "x") for line in block]


def test_encodings_and_ends():
    assert read(b"") == [(1, "")]
    assert read(b"a\nb") == [(1, "a"), (2, "b")]
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"):
        assert read("ValueError: x\nsecond".encode(encoding))[1] == (2, "second")
    assert "\ufffd" in read(b"\xff\xfe\xfd"[1:])[0][1]


def test_a_long_line_comes_in_pieces_under_one_number():
    lines = read(b"first\n" + b"x" * 3_000_000 + b"\nlast")
    assert {number for number, _ in lines[1:-1]} == {2}
    assert sum(len(text) for _, text in lines[1:-1]) == 3_000_000
    assert lines[-1] == (3, "last")


def test_a_damaged_gzip_is_the_inputs_fault(tmp_path):
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(b"ValueError: x\n" * 1000)[:40])
    from kvpaper.diagnose import diagnose

    with pytest.raises(InputError, match=r"x\.log\.gz: found unreadable data"):
        diagnose([path])


def gated(text):
    return list(events(iter([list(enumerate(text.split("\n"), 1))]), set()))


def test_frames_and_the_quoted_line_come_from_the_same_process():
    event = gated(
        "(Worker_TP0 pid=8) Traceback (most recent call last):\n"
        '(Worker_TP0 pid=8)   File "/site/lmcache/a.py", line 1, in f\n'
        '(Worker_TP1 pid=9)   File "/site/other/b.py", line 2, in g\n'
        "(Worker_TP0 pid=8)     call(pin_memory=True)\n"
        "(Worker_TP1 pid=9)     call_other()\n"
        "(Worker_TP0 pid=8)          ^^^^^^\n"
        "(Worker_TP0 pid=8) RuntimeError: CUDA error: invalid argument"
    )[-1]
    assert event.frames == 'File "/site/lmcache/a.py", line 1, in f'
    assert (event.source_line, event.source_number) == ("call(pin_memory=True)", 4)
    assert event.line.process == "Worker_TP0"


@pytest.mark.parametrize(
    ("above", "process"),
    [
        ("Process EngineCore_DP0:\nTraceback (most recent call last):\n", "EngineCore_DP0"),
        (
            "2026-01-01 00:00:00,1.1 pid=9 proc=VllmWorker-0 ERROR vllm.x:9 WorkerProc failed to "
            "start.\nTraceback (most recent call last):\n",
            "VllmWorker-0",
        ),
        (
            'Traceback (most recent call last):\n  File "/s/vllm/entrypoints/cli/main.py", line 1, '
            "in main\n",
            "APIServer",
        ),
        (
            'Traceback (most recent call last):\n  File "/s/core.py", line 1, in run_engine_core\n',
            "EngineCore",
        ),
        ("", ""),
    ],
)
def test_the_process_of_an_unprefixed_exception(above, process):
    text = above + '  File "/s/vllm/x.py", line 2, in f\n    raise ValueError(\nValueError: x'
    assert gated(text)[-1].line.process == process


def test_hard_wraps_are_joined_with_and_without_a_space():
    event = gated("ValueError: needs 4.26 GiB KV cach\ne is needed, larger than\nwhat is there")[0]
    assert event.joined[0] == "ValueError: needs 4.26 GiB KV cache is needed, larger than"
    assert event.joined[3].endswith("larger than what is there")


WHOLE = [
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:00 [core.py:718] ValueError: " + "needs more " * 12,
    *(f"(Worker_TP{n} pid={n}) INFO 01-01 00:00:00 [x.py:1] " + f"{n} words " * 13 for n in "123"),
    "end",
]


def rows(lines):
    return [list(enumerate(lines, 1))]


@pytest.mark.parametrize("width", [60, 80, 101])
@pytest.mark.parametrize("end", ["", "\r"])
def test_lines_that_a_terminal_cut_are_whole_again_under_their_first_number(width, end):
    pieces = [line[i : i + width] + end for line in WHOLE for i in range(0, len(line), width)]
    lines = [line for block in unwrapped(rows(pieces)) for line in block]
    assert [text.replace("\r", "") for _, text in lines] == WHOLE
    assert lines[1][0] == 1 + -(-len(WHOLE[0]) // width)


@pytest.mark.parametrize(
    "lines",
    [
        [f"| {n} some row of a table that is as wide as all others |" for n in range(9)],
        [f"(EngineCore pid={n}) INFO 01-01 00:00:00 [x.py:1] as wide as others" for n in range(9)],
        ["=" * 80] * 9,
        ["short", "lines", "of ten"] * 9,
        [f"{n}" + "a line far wider than a terminal ever is " * 8 for n in range(9)],
    ],
)
def test_lines_that_are_merely_as_long_as_others_stay(lines):
    assert list(unwrapped(rows(lines))) == rows(lines)


def test_lost_newlines_are_cut_at_prefixes_but_not_inside_stacked_ones():
    text = (
        "(EngineCore_DP0 pid=7) (RayWorkerWrapper pid=9) ERROR 01-01 00:00:00 [w.py:1] first Error "
        + "x" * 120
        + "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:00 [core.py:1] ValueError: second"
    )
    assert [event.line.process for event in gated(text)] == ["RayWorkerWrapper", "EngineCore_DP0"]
