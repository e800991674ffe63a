"""Answers come back in the order of the prompts, whoever gave them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import Completion
from process.jobs import echo, ensemble, warm_up
from process.living import run_script, workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mgpu_magic import Session
    from mgpu_magic.outcomes import Outcome


def answered_by(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How many prompts each device answered."""
    return Counter(outcome.device for outcome in outcomes if isinstance(outcome, Completion))


@pytest.mark.parametrize("prompts", [[f"prompt {i}" for i in range(7)], ["same"] * 7])
def test_two_devices_answer_in_order(session: Session, prompts: list[str]) -> None:
    """Both devices answer some of the prompts, and you cannot tell from the order which."""
    warm_up(session, delay=0.05)
    results = echo(session, prompts, engine_args={"delay": 0.05})
    assert results.texts == prompts
    assert [outcome.index for outcome in results] == list(range(7))
    assert set(answered_by(results)) == {"cpu:0", "cpu:1"}
    assert results.stats.prompts == sum(worker.prompts for worker in results.stats.workers) == 7


@pytest.mark.parametrize("same", [False, True])
def test_four_devices_answer_in_order(
    tmp_path: Path, gpus: Callable[[int], dict[str, str]], same: bool
) -> None:
    """The same holds for four devices and few prompts."""
    script = f"""
import json, mgpu_magic
args = {{"delay": 0.03}}

def ask(prompts):
    results = session.generate("m", prompts, engine="echo", engine_args=args)
    return results.texts, sorted({{answer.device for answer in results}})

with mgpu_magic.Session() as session:
    while len(ask(["warm"] * 40)[1]) < 4:
        pass
    prompts = ["p" if {same} else f"p {{i}}" for i in range(7)]
    texts, devices = ask(prompts)
print(json.dumps([texts == prompts, devices]))
"""
    assert run_script(tmp_path, script, **gpus(4)) == [True, [f"cuda:{i}" for i in range(4)]]


def test_a_device_that_is_busy_for_long_gets_less(session: Session) -> None:
    """One long prompt keeps one device; the other does the rest meanwhile."""
    args = {"delay_per_character": 0.01, "capacity": 2}
    warm_up(session, **args)
    prompts = ["x" * 80, *"abcdefghijklmnopqrst"]
    results = echo(session, prompts, engine_args=args)
    assert results.texts == prompts
    slow = results[0]
    assert isinstance(slow, Completion)
    assert slow.seconds == pytest.approx(0.8)
    assert answered_by(results)[slow.device] <= 4


def test_two_models_run_on_two_devices(session: Session) -> None:
    """Models take the devices in the order of the cell, and each answers every prompt."""
    prompts = ["one", "two", "three"]
    results = ensemble(session, {"b": "model-1", "a": "model-2"}, prompts)
    assert list(results) == ["b", "a"]
    assert results["b"].texts == results["a"].texts == prompts
    assert answered_by(results["b"]) == {"cpu:0": 3}
    assert answered_by(results["a"]) == {"cpu:1": 3}


def test_more_models_than_devices_take_turns(session: Session) -> None:
    """Three models on two devices all answer, each its own prompts where it has such."""
    models = {
        "a": "model-1",
        "b": {"model": "model-2", "prompts": ["own"]},
        "c": {"model": "model-3", "sampling": {"max_tokens": 1}},
    }
    for _ in range(2):  # the second time some are warm, and some have to make room
        results = ensemble(session, models, ["x y", "z"])
        texts = {name: of_model.texts for name, of_model in results.items()}
        assert texts == {"a": ["x y", "z"], "b": ["own"], "c": ["x", "z"]}
        assert len(workers()) == 2


def test_no_prompts_start_no_worker(session: Session) -> None:
    """An empty list is answered with an empty result at once."""
    results = echo(session, [], engine_args={"fail_to_load": "never tried"})
    assert list(results) == []
    assert workers() == set()


def test_a_model_without_prompts_is_not_loaded(session: Session) -> None:
    """In an ensemble too nothing is loaded for nothing."""
    models = {"a": "m", "b": {"model": "m2", "prompts": [], "fail_to_load": "never tried"}}
    results = ensemble(session, models, ["x"])
    assert results["a"].texts == ["x"]
    assert results["b"].texts == []


@pytest.mark.parametrize(
    "prompt",
    ["hello", [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]],
)
def test_one_prompt_is_one_result(session: Session, prompt: object) -> None:
    """A bare text or one chat is one prompt, never split over devices."""
    assert echo(session, prompt).texts == ["hello"]


def test_each_prompt_has_its_sampling(session: Session) -> None:
    """One sampling dict per prompt stays with its prompt."""
    sampling = [{"max_tokens": count + 1, "n": count + 1} for count in range(4)]
    results = echo(session, ["a b c d"] * 4, sampling=sampling)
    assert [outcome.texts for outcome in results if isinstance(outcome, Completion)] == [
        ("a",),
        ("a b",) * 2,
        ("a b c",) * 3,
        ("a b c d",) * 4,
    ]
    assert results.stats.cut_by_length == 3


def test_a_prompt_that_is_refused_fails_alone(session: Session) -> None:
    """Its row says what was wrong, in the engine's own words."""
    results = echo(session, ["a", "bad", "c"], engine_args={"fail_on": "bad"})
    assert results.texts == ["a", None, "c"]
    (failure,) = results.failures
    assert (failure.index, failure.attempts) == (1, 1)
    assert failure.error.kind == "ValueError"
    assert failure.error.message == "the prompt holds 'bad'"


def test_broken_text_survives_the_trip(session: Session) -> None:
    """Lone surrogates and NULs come back as they were, and can be shown."""
    prompts = ["ok", "a\ud800b", "a\0b", ""]
    results = echo(session, prompts)
    assert results.texts == prompts
    assert len(repr(results).encode().splitlines()) == len(results) + 2
    assert "ok" in results._repr_html_().encode().decode()
    assert results.to_pandas()["text"].tolist() == prompts


def test_the_last_job_can_be_looked_up(session: Session) -> None:
    """`last` is what the last job came to, failures included."""
    session.generate("m", ["a"], engine="echo")
    results = echo(session, ["a", "bad"], engine_args={"fail_on": "bad"})
    assert session.last is results
