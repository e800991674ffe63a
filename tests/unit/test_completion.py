"""What the Tab key offers."""

from __future__ import annotations

import pytest

from mgpu_magic.completion import Known, completions

KNOWN = Known(
    options={
        "--engine": ["vllm", "echo"],
        "--chat": None,
        "--max-tokens": [],
        "--out": ["answers"],
    },
    models=["Qwen/Qwen2.5-7B", "org/m"],
)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%multigpu st", ["status", "stop"]),
        ("%multigpu free ", ["Qwen/Qwen2.5-7B", "org/m"]),
        ("%multigpu free o", ["org/m"]),
        ("%multigpu check o", ["org/m"]),
        ("%multigpu check org/m --engine e", ["echo"]),
        ("%multigpu dashboard ", ["off"]),
        ("%multigpu logs ", []),
        ("%%multigpu --e", ["--engine"]),
        ("%%multigpu --engine ", ["vllm", "echo"]),
        ("%%multigpu --engine e", ["echo"]),
        ("%%multigpu --chat --", ["--engine", "--max-tokens", "--out"]),
        ("%%multigpu --max-tokens ", []),
        ("%%multigpu Q", ["Qwen/Qwen2.5-7B"]),
        ("%%multigpu org/m --engine echo --out ", ["answers"]),
        ("%%multigpu org/m o", []),
        ("%%multigpu --engine=e", ["echo"]),
        ("%%multigpu --max-tokens=", []),
        ("%matplotlib ", []),
    ],
)
def test_what_is_offered(line: str, offered: list[str]) -> None:
    """Words, options that are not there yet, and the values of the option before."""
    assert completions(line, KNOWN) == offered


def test_all_there_is_at_the_beginning() -> None:
    """Loaded models first, then the options."""
    assert completions("%%multigpu ", KNOWN) == [*KNOWN.models, *KNOWN.options]
    assert completions("%multigpu ", KNOWN)[0] == "status"
