"""Settings that no prompt can have are one error, told before anything is loaded where possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import EngineError, ResultSet
from process.jobs import echo, ensemble, job

if TYPE_CHECKING:
    from mgpu_magic import Session
    from mgpu_magic.spec import LauncherName

WRONG = {"max_tokens": "x"}
WORDS = "max_tokens is 'x'; pass a whole number of 1 or more"


@pytest.mark.parametrize("launcher", ["process", "thread"])
@pytest.mark.parametrize("count", [1, 10_000])
def test_a_wrong_sampling_is_told_before_loading(
    session: Session, launcher: LauncherName, count: int
) -> None:
    """No worker loads for it (which would take a minute), however many prompts there are."""
    prompts = [f"p {i}" for i in range(count)]
    run = session.submit(
        job(prompts, sampling=WRONG, launcher=launcher, engine_args={"load_delay": 60})
    )
    with pytest.raises(EngineError) as refused:
        run.result(10)
    assert str(refused.value) == (
        f"m: the sampling {WRONG} is refused: ValueError: {WORDS} (nothing was loaded)"
    )
    assert refused.value.kind == "ValueError"
    assert len(refused.value.results) == count
    assert {failure.error.kind for failure in refused.value.results} == {"ValueError"}
    assert run.snapshot.job.restarts == 0
    assert echo(session, ["fine"], launcher=launcher, max_tokens=1).texts == ["fine"]


@pytest.mark.parametrize("launcher", ["process", "thread"])
@pytest.mark.parametrize("count", [1, 10_000])
def test_a_wrong_sampling_of_a_loaded_model_is_tried_once(
    session: Session, launcher: LauncherName, count: int
) -> None:
    """It is said once, each prompt has its row, and the model stays loaded."""
    slow: dict[str, Any] = {"launcher": launcher, "engine_args": {"delay": 0.01}}
    assert echo(session, ["a", "b"], **slow).texts == ["a", "b"]
    before = session.models
    run = session.submit(job([f"p {i}" for i in range(count)], sampling=WRONG, **slow))
    with pytest.raises(EngineError) as refused:
        run.result(10)
    assert str(refused.value) == f"all {count} prompts failed alike: ValueError: {WORDS}"
    assert [failure.index for failure in refused.value.results] == list(range(count))
    assert session.models == before
    assert echo(session, ["a", "b"], **slow).texts == ["a", "b"]


@pytest.mark.parametrize("wrong", [0, 10, 19])
def test_a_sampling_of_one_prompt_fails_in_its_row(session: Session, wrong: int) -> None:
    """The first, a middle one, the last: the other prompts are answered."""
    prompts = [f"p {i}" for i in range(20)]
    sampling: list[dict[str, Any]] = [{"max_tokens": 2} for _ in prompts]
    sampling[wrong] = WRONG
    results = echo(session, prompts, sampling=sampling)
    assert [failure.index for failure in results.failures] == [wrong]
    assert results.failures[0].error.message == WORDS
    assert results.texts == [None if i == wrong else p for i, p in enumerate(prompts)]


def test_prompts_that_are_bad_themselves_are_all_tried(session: Session) -> None:
    """Hundreds of prompts in front that fail alike say nothing about the one behind them."""
    prompts = [f"bad {i}" for i in range(300)] + ["good"]
    results = echo(session, prompts, max_tokens=2, engine_args={"fail_on": "bad"})
    assert results.texts == [None] * 300 + ["good"]


def test_a_model_of_an_ensemble_refuses_for_itself(session: Session) -> None:
    """The others answer, and a note says what it refused."""
    models = {"good": {"model": "m1", "sampling": {"max_tokens": 2}}, "odd": "m2"}
    models["odd"] = {"model": "m2", "sampling": WRONG}
    results = ensemble(session, models, ["a", "b"])
    assert isinstance(results["odd"], ResultSet)
    assert results["good"].texts == ["a", "b"]
    assert [failure.error.kind for failure in results["odd"].failures] == ["ValueError"] * 2
