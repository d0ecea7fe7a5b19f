"""Logs as engines print them, written here with made-up numbers, for the tests of diagnose."""

OUTER = """(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/site/vllm/entrypoints/cli/serve.py", line 60, in cmd
(APIServer pid=1)     uvloop.run(run_server(args))
(APIServer pid=1)   File "/site/vllm/v1/engine/utils.py", line 785, in wait_for_engine_startup
(APIServer pid=1)     raise RuntimeError("Engine core initialization failed. "
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. \
Failed core proc(s): {}
"""

START = (
    "(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:1805] vLLM API server version 0.11.0\n"
)

UP = "(APIServer pid=1) INFO:     Application startup complete.\n"

STOP = (
    "(APIServer pid=1) INFO 01-01 00:00:09 [launcher.py:254] [shutdown] API server: shutdown "
    "triggered\n"
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:09 [core.py:700] torch.OutOfMemoryError: CUDA out of "
    "memory. Tried to allocate 1.00 GiB.\n"
    "[rank0]:[W101 00:00:09.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() "
    "was not called before program exit, which can leak resources.\n"
)

CORE_FAILED = (
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] EngineCore failed to start.\n"
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] Traceback (most recent call last):\n"
)

NO_BLOCKS = (
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] ValueError: No available memory for "
    "the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
)

FREE_MEMORY = (
    "(Worker_TP1 pid=9) ERROR 01-01 00:00:04 [multiproc_executor.py:597] ValueError: Free memory "
    "on device (30.0/80.0 GiB) on startup is less than desired GPU memory utilization (0.9, 72.0 "
    "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
)

WORKER_OUTER = (
    "(EngineCore_DP0 pid=7) ERROR 01-01 00:00:05 [core.py:708] Exception: WorkerProc "
    "initialization failed due to an exception in a background process. See stack trace for root "
    "cause.\n"
)
