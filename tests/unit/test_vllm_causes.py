"""What the log of vLLM's engine process says about its end."""

from __future__ import annotations

from mgpu_magic.engines.vllm_causes import root_cause

CACHE = "Available memory on node 0 (19.56/23.54 GiB) is less than requested (100.0 GiB)."
RELAYED = (
    f"RuntimeError: Worker failed with error '{CACHE}', please check the stack trace above for "
    "the root cause"
)


def test_the_error_of_the_process_below_is_the_cause() -> None:
    """With its type, where the process that passes it on has lost that."""
    log = f"""\
(Worker pid=7) ERROR 11-30 14:26:01 [multiproc_executor.py:9] Traceback (most recent call last):
(Worker pid=7) ERROR 11-30 14:26:01 [multiproc_executor.py:9] ValueError: {CACHE}
(EngineCore pid=6) ERROR 11-30 14:26:01 [core.py:1510] {RELAYED}
Process EngineCore:
Traceback (most recent call last):
{RELAYED}
(EngineCore pid=6) INFO 11-30 14:26:04 [multiproc_executor.py:479] [shutdown] Executor: waiting
"""
    assert root_cause(log) == f"ValueError: {CACHE}"
    alone = log.split("\n", 2)[2]
    assert root_cause(alone) == CACHE


def test_the_last_error_is_the_cause() -> None:
    """Errors that were got over stand before it, and the one that points at it says nothing."""
    log = """\
ImportError: libfoo.so: cannot open shared object file
Process EngineCore:
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
    cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert root_cause(log) == cause


def test_a_log_without_an_error_has_no_cause() -> None:
    """A process that was killed says nothing; neither does prose that only sounds like an error."""
    assert root_cause("") is None
    assert root_cause("INFO loading\nNo error: all is well\nWarning: ValueError is near") is None
