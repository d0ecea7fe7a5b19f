import pytest
from logs import CORE_FAILED, FREE_MEMORY, NO_BLOCKS, OUTER, START, STOP, UP, WORKER_OUTER


def test_the_childs_line_is_the_evidence_and_the_outer_message_is_ruled_out(diagnosed):
    answer = diagnosed(START + CORE_FAILED + NO_BLOCKS + OUTER)
    assert (answer["cause"], answer["kind"]) == ("kv_cache", "kv_cache_no_memory")
    assert answer["confidence"] == "high"
    assert answer["evidence"][0]["line"] == 4
    assert answer["evidence"][0]["process"] == "EngineCore_DP0"
    assert 10 in [line["line"] for line in answer["ruled_out"]]
    assert answer["attempts"] == 1
    assert answer["version"] == "0.11.0"


def test_the_worker_that_failed_first_is_named_not_the_core_that_waited_for_it(diagnosed):
    answer = diagnosed(START + FREE_MEMORY + CORE_FAILED + WORKER_OUTER + OUTER)
    assert answer["cause"] == "gpu_memory"
    assert answer["evidence"][0]["process"] == "Worker_TP1"
    assert any("0.37" in step and "42.00 GiB" in step for step in answer["next_steps"])


def test_the_earliest_of_equally_strong_messages_wins_and_the_rival_lowers_confidence(diagnosed):
    answer = diagnosed(FREE_MEMORY + CORE_FAILED + NO_BLOCKS)
    assert (answer["cause"], answer["confidence"]) == ("gpu_memory", "medium")
    assert "kv_cache" in answer["confidence_why"]
    assert diagnosed(CORE_FAILED + NO_BLOCKS + FREE_MEMORY)["cause"] == "kv_cache"


def test_a_message_that_proves_more_wins_over_an_earlier_hint(diagnosed):
    hint = "AttributeError: 'FooConfig' object has no attribute 'bar'\n"
    assert diagnosed(hint + NO_BLOCKS)["cause"] == "kv_cache"
    assert diagnosed(hint)["cause"] == "version_abi"


@pytest.mark.parametrize("version", ["0.6.3", "0.8.5", "0.11.0", "0.32.0"])
def test_only_outer_lines_are_insufficient_and_say_how_to_capture_on_that_version(
    version, diagnosed
):
    answer = diagnosed(START.replace("0.11.0", version) + OUTER)
    assert (answer["cause"], answer["kind"]) == ("insufficient", "outer_only")
    steps = " ".join(answer["next_steps"])
    prefix = {"0.6.3": "engine.py:NNN]", "0.8.5": "[core.py:NNN]", "0.11.0": "EngineCore_DP0"}
    assert prefix.get(version, "(EngineCore pid=N)") in steps
    assert ("--disable-frontend-multiprocessing" in steps) == (version == "0.6.3")
    assert ("VLLM_LOGGING_CONFIG_PATH" in steps) == (version != "0.6.3")


def test_without_a_version_all_prefixes_are_named(diagnosed):
    steps = " ".join(diagnosed(OUTER)["next_steps"])
    assert "EngineCore_DP0" in steps
    assert "VllmWorkerProcess" in steps


def test_frames_without_their_exception_are_insufficient(diagnosed):
    answer = diagnosed(
        CORE_FAILED
        + '(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708]   File "/s/lmcache/a.py", '
        "line 1, in f\n"
    )
    assert (answer["cause"], answer["kind"]) == ("insufficient", "frames_only")


def test_healthy_and_stopped_on_request_whatever_the_last_lines_print(diagnosed):
    answer = diagnosed(START + UP + STOP)
    assert (answer["cause"], answer["kind"]) == ("healthy", "stopped_on_request")
    whys = [line["why"] for line in answer["ruled_out"]]
    assert any(why.startswith("printed after the stop") for why in whys)
    assert diagnosed(START + UP)["kind"] == "running"


def test_an_exception_that_the_server_survived_is_ruled_out(diagnosed):
    answer = diagnosed(START + NO_BLOCKS + UP)
    assert answer["cause"] == "healthy"
    assert any("came up after it" in line["why"] for line in answer["ruled_out"])


def test_a_crash_after_the_server_was_up_is_a_crash(diagnosed):
    core = "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:09 [core.py:710] "
    fatal = core + "EngineCore encountered a fatal error.\n"
    memory = core + "torch.OutOfMemoryError: CUDA out of memory.\n"
    assert diagnosed(START + UP + fatal + memory)["cause"] == "gpu_memory"


def test_a_port_taken_after_startup_complete_ends_the_server(diagnosed):
    bind = (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): in use\n"
    )
    answer = diagnosed(UP + bind)
    assert answer["cause"] == "port_timeout"
    assert any(":8000" in step for step in answer["next_steps"])


def test_a_degraded_connector_is_degraded_only_if_the_server_is_up(diagnosed):
    lapse = (
        "[2026-01-01 00:00:00,1] LMCache ERROR: LMCacheEngine marked as init failed (x.py:1:x)\n"
    )
    assert diagnosed(START + lapse + UP)["cause"] == "degraded"
    assert diagnosed(START + lapse + OUTER)["cause"] == "connector"


def test_the_last_of_several_attempts_that_tells_something_is_taken(diagnosed):
    first = START + FREE_MEMORY + OUTER
    second = START + CORE_FAILED + NO_BLOCKS + OUTER
    answer = diagnosed(first + second)
    assert (answer["cause"], answer["attempts"]) == ("kv_cache", 2)
    assert diagnosed(second + first)["cause"] == "gpu_memory"
    assert diagnosed(first + START + OUTER)["cause"] == "gpu_memory"
    assert diagnosed(first + START + UP)["cause"] == "healthy"


def test_the_engines_own_profiling_line_is_no_cap_and_a_real_cap_is(diagnosed):
    line = (
        "(EngineCore pid=7) INFO 01-01 00:00:00 [kv_cache_utils.py:829] Overriding "
        "num_gpu_blocks={} with num_gpu_blocks_override={}\n"
    )
    short = (
        "(EngineCore pid=7) ERROR 01-01 00:00:00 [core.py:1510] ValueError: To serve at least one "
        "request with the model's max seq len (2048), (0.01 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.0 GiB). Based on the available memory, the "
        "estimated maximum model length is 384. Try increasing `gpu_memory_utilization`.\n"
    )
    profiled = diagnosed(line.format(0, 512) + short)
    assert not any("cap" in step for step in profiled["next_steps"])
    assert profiled["ruled_out"][0]["line"] == 1
    capped = diagnosed(line.format(2517, 4) + short)
    assert [e["line"] for e in capped["evidence"]] == [2, 1]
    # 384 tokens in 3 usable blocks are 128 a block; 2048 tokens need 16 and one empty block.
    assert any("at least 17 blocks" in step for step in capped["next_steps"])


def test_a_bare_assertion_is_shown_with_the_code_line_above_it(diagnosed):
    answer = diagnosed(
        "web  | Traceback (most recent call last):\n"
        'web  |   File "/s/vllm/model_executor/layers/linear.py", line 9, in weight_loader\n'
        "web  |     assert param_data.shape == loaded_weight.shape\n"
        "web  | AssertionError\n"
    )
    assert answer["cause"] == "checkpoint_model"
    assert answer["evidence"][0]["line"] == 3


def test_an_exception_no_signature_knows_is_classed_by_its_module_with_low_confidence(diagnosed):
    frames = (
        'Traceback (most recent call last):\n  File "/s/lmcache/v1/x.py", line 9, in f\n    g()\n'
    )
    answer = diagnosed(frames + "RuntimeError: something new\n")
    assert (answer["cause"], answer["confidence"]) == ("connector", "low")
    assert answer["kind"] == "connector_exception"
    other = diagnosed(frames.replace("lmcache", "mystery") + "RuntimeError: something new\n")
    assert (other["cause"], other["kind"]) == ("insufficient", "unknown_exception")
    assert other["evidence"][0]["line"] == 4


def test_the_cause_may_be_in_another_file(diagnosed):
    waiting = (
        START + "(EngineCore pid=7) INFO 01-01 00:00:00 [shm_broadcast.py:871] No available shared "
        "memory broadcast block found in 60 seconds.\n"
        "(EngineCore pid=7) INFO 01-01 00:00:00 [factory.py:62] Creating v1 connector with name: "
        "LMCacheMPConnector and engine_id: 1\n"
    )
    alone = diagnosed(waiting)
    assert (alone["cause"], alone["kind"]) == ("insufficient", "hang")
    assert "LMCacheMPConnector" in alone["next_steps"][0]
    server = (
        "[2026-01-01 00:00:00,1] LMCache ERROR: No handler registered for operation x (mq.py:1:x)\n"
    )
    both = diagnosed(waiting, server)
    assert both["cause"] == "connector"
    assert both["evidence"][0]["file"].endswith("1.log")


def test_a_cause_on_another_node(diagnosed):
    assert diagnosed(START + OUTER, FREE_MEMORY)["cause"] == "gpu_memory"


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("CRITICAL 01-01 00:00:09 launcher.py:99] MQLLMEngine is already dead, terminating server "
         "process", "insufficient"),
        ("CRITICAL 01-01 00:00:09 [core_client.py:269] Got fatal signal from worker processes, "
         "shutting down.", "insufficient"),
        ("Segmentation fault (core dumped)", "insufficient"),
        ("Killed", "host_kill"),
        ("vllm-1 exited with code 137", "host_kill"),
    ],
)  # fmt: skip
def test_a_server_that_died_after_it_was_up_is_not_healthy(last, cause, diagnosed):
    refused = (
        "(APIServer pid=1) ERROR 01-01 00:00:08 [serving_chat.py:200] ValueError: This model's "
        "maximum context length is 4096 tokens.\n"
    )
    assert diagnosed(START + UP + refused)["cause"] == "healthy"
    answer = diagnosed(START + UP + refused + last + "\n")
    assert answer["cause"] == cause
    assert not any("context length" in line["text"] for line in answer["evidence"])
    assert diagnosed(START + UP + STOP + last + "\n")["cause"] == "healthy"


GONE = (
    "(Worker pid=9) ERROR 01-01 00:00:04 [multiproc_executor.py:597] "
    "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely "
    "closed. Did the remote server shutdown or crash?\n"
)


def test_a_lost_peer_is_no_cause_and_the_peers_own_log_names_it(diagnosed):
    alone = diagnosed(START + GONE + OUTER)
    assert (alone["cause"], alone["kind"]) == ("insufficient", "outer_only")
    assert "other nodes" in alone["next_steps"][0]
    assert "Failed to recv" in alone["evidence"][-1]["text"]
    assert diagnosed(START + GONE + OUTER, FREE_MEMORY)["cause"] == "gpu_memory"


def test_a_lost_remote_store_degrades_and_is_no_cause_in_a_log_that_is_cut(diagnosed):
    lost = (
        "[2026-01-01 00:00:00,1] LMCache WARNING: Failed to initialize/re-establish remote "
        "connection: [Errno 111] Connection refused (remote_backend.py:98:x)\n"
    )
    answer = diagnosed(START + lost + UP)
    assert (answer["cause"], answer["kind"]) == ("degraded", "connector_remote_lost")
    assert diagnosed(START + lost)["cause"] == "insufficient"


def test_the_record_after_an_exception_is_no_part_of_it(diagnosed):
    answer = diagnosed("RuntimeError: something new\n" + STOP.split("\n")[-2] + "\n" + OUTER)
    assert (answer["cause"], answer["kind"]) == ("insufficient", "unknown_exception")


def test_nothing_of_an_engine(diagnosed):
    for text in ("", "hello\n", b"\x00\x01\x02" * 1000):
        answer = diagnosed(text)
        assert (answer["cause"], answer["kind"]) == ("insufficient", "no_engine_lines")


def test_heads_and_parallel_size(diagnosed):
    answer = diagnosed(
        "  Value error, Total number of attention heads (64) must be divisible by tensor parallel "
        "size (3). [type=value_error]\n"
    )
    assert answer["cause"] == "tp_config"
    assert "1, 2, 4, 8, 16, 32, 64" in answer["next_steps"][0]


@pytest.mark.parametrize(
    "line",
    [
        "[dump_input.py:72] Dumping input data for V1 LLM engine (v0.11.0) with config: "
        "tensor_parallel_size=4, quantization=fp8, kv_transfer_config=None",
        "[fa_utils.py:57] Cannot use FA version 2 is not supported due to FA2 is only supported on "
        "devices with compute capability >= 8",
        "[base_worker.py:1260] NIXL transfer failure: timeout",
    ],
)
def test_errors_that_stop_nothing_name_no_cause(diagnosed, line):
    prefix = "(EngineCore pid=7) ERROR 01-01 00:00:00 "
    answer = diagnosed(START + f"{prefix}{line}\n{prefix}[core.py:9] EngineCore failed to start.\n")
    assert answer["cause"] == "insufficient"


def test_sentence_logged_as_an_error_counts_if_it_proves_the_cause(diagnosed):
    line = "ERROR 01-01 00:00:00 [engine.py:598] Unsupported connector type: LMCacheConnectorV1\n"
    assert diagnosed(START + line)["kind"] == "connector_config"
