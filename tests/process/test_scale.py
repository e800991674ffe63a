"""Much of everything: prompts, text, results, devices."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from mgpu_magic.outcomes import Completion
from process.jobs import echo
from process.living import outcome, start_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mgpu_magic import Session

MEGABYTE = 10**6


def test_a_prompt_of_ten_megabytes(session: Session) -> None:
    """It is answered like the others, which do not wait for it."""
    long = "word " * (2 * MEGABYTE)
    results = echo(session, ["a", long, "b"])
    assert results.texts == ["a", long.strip(), "b"]
    assert len(repr(results)) < 10_000


def test_results_of_five_megabytes_with_logprobs(session: Session) -> None:
    """Each comes back whole, in prompt order."""
    prompts = [f"{i} " + "word " * 40_000 for i in range(3)]
    results = echo(session, prompts, sampling={"logprobs": 5})
    assert results.texts == [prompt.strip() for prompt in prompts]
    for index, answer in enumerate(results):
        assert isinstance(answer, Completion)
        assert answer.logprobs is not None
        (positions,) = answer.logprobs
        assert [len(candidates) for candidates in positions] == [5] * 40_001
        assert positions[0][0].token == str(index)
        assert len(pickle.dumps(answer)) > 5 * MEGABYTE


@pytest.mark.timeout(180)
def test_sixty_four_workers(tmp_path: Path, gpus: Callable[[int], dict[str, str]]) -> None:
    """Each GPU of a large machine has its worker, and none sees another's."""
    script = start_script(
        tmp_path,
        """
import json, time, mgpu_magic
from mgpu_magic.options import Options
how = {"engine": "echo", "engine_args": {"expand": True, "delay": 0.02}}
prompts = [f"{i} $CUDA_VISIBLE_DEVICES" for i in range(640)]
with mgpu_magic.Session() as session:
    run = session.submit(Options(model="m", prompts=["warm up"] * 100_000, **how).job())
    while [d.worker and d.worker.phase for d in run.snapshot.devices] != ["running"] * 64:
        time.sleep(0.2)
    run.stop()
    results = session.generate("m", prompts, **how)
answers = [text.split() for text in results.texts]
print(json.dumps([
    [int(number) for number, _ in answers] == list(range(640)),
    sorted({int(mask) for _, mask in answers}),
    all(item.device == f"cuda:{mask}" for item, (_, mask) in zip(results, answers)),
]))
""",
        **gpus(64),
    )
    assert outcome(script, seconds=150) == [True, list(range(64)), True]
