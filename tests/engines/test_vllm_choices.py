"""The probability of each of several texts after a prompt, on vLLM."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from process.living import eventually, workers

from engines.capitals import CAPITALS, QUESTIONS, question
from engines.weighing import load, weighed
from mgpu_magic import Failure, JobInterrupted, Prediction, ResultSet, Session
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engines.asking import Ask
    from mgpu_magic.outcomes import Outcome

ENGINE_ARGS = {"dtype": "float32", "max_model_len": 128, "kv_cache_memory_bytes": 2**29}
CITIES = ["Paris", "London", "Berlin", "Madrid"]
PARIS = question("France")


@pytest.fixture(scope="module")
def reference(model: str) -> tuple[Any, Any]:
    """The model and its tokenizer, without any engine."""
    return load(model)


@pytest.fixture(scope="module")
def exact() -> Iterator[Session]:
    """A session whose one worker computes in float32."""
    with Session("cpu:1") as session:
        yield session


@pytest.fixture(scope="module")
def weigh(exact: Session, model: str) -> Ask:
    """Has choices weighed."""

    def ask(prompts: object, **options: Any) -> ResultSet:
        results = exact.generate(model, prompts, engine_args=ENGINE_ARGS, **options)
        assert isinstance(results, ResultSet)
        return results

    return ask


def predictions(rows: Sequence[Outcome]) -> list[Prediction]:
    """All of them; none has failed."""
    found = [row for row in rows if isinstance(row, Prediction)]
    assert found == list(rows)
    return found


def test_the_capital_of_france(weigh: Ask) -> None:
    """The whole choices count, and Paris is nearly sure; a constrained answer says London."""
    (found,) = predictions(weigh([PARIS], choices=CITIES))
    assert (found.task, found.labels, found.label) == ("choices", tuple(CITIES), "Paris")
    assert list(found.values) == pytest.approx([-2.34, -8.92, -10.44, -7.45], abs=0.01)
    assert sum(found.probabilities) == pytest.approx(1)
    assert found.probabilities[0] > 0.9
    assert found.prompt_tokens == 16
    assert found.device == "cpu:0"
    constrained = weigh(
        [PARIS], temperature=0, sampling={"structured_outputs": {"choice": ["London", "Paris"]}}
    )
    assert constrained.texts == ["London"]


def test_both_engines_agree(weigh: Ask, model: str) -> None:
    """A prompt's choices have the same log-probabilities on vLLM and on transformers, to 1e-3."""
    choices = [*CAPITALS.values(), "The capital", "A"]
    by_vllm = weigh(QUESTIONS, choices=choices).logprobs
    with Session("cpu:1") as other:
        results = other.generate(
            model,
            QUESTIONS,
            choices=choices,
            engine="transformers",
            launcher="thread",
            engine_args={"dtype": "float32"},
        )
    assert isinstance(results, ResultSet)
    assert abs(by_vllm - results.logprobs).max() < 1e-3
    assert by_vllm.shape == (len(QUESTIONS), len(choices))


CHOICES = [
    ["A", "B", "C", "D"],
    ["The", "The capital", "The capital of France", "The capital of France is Paris.", "Paris"],
    [*CAPITALS.values(), "Buenos Aires", "a rather long and unlikely answer, with 2 numbers: 17"],
]


@pytest.mark.parametrize("choices", CHOICES)
def test_values_are_those_of_the_model(
    weigh: Ask, reference: tuple[Any, Any], choices: list[str]
) -> None:
    """One token or many, one the beginning of another or not: as computed without an engine."""
    prompts = [PARIS, question("Japan"), "The best of all cities is "]
    for prompt, found in zip(prompts, predictions(weigh(prompts, choices=choices)), strict=True):
        assert list(found.values) == pytest.approx(weighed(*reference, prompt, choices), abs=1e-3)


def test_more_choices_than_one_request_may_ask_for(weigh: Ask, reference: tuple[Any, Any]) -> None:
    """Two hundred numbers are weighed like four cities."""
    choices = [f"Number {number}" for number in range(200)] + [chr(65 + n) for n in range(26)]
    (found,) = predictions(weigh([PARIS], choices=choices))
    picked = [0, 7, 10, 99, 150, 199, 200, 225]
    expected = weighed(*reference, PARIS, [choices[place] for place in picked])
    assert [found.values[place] for place in picked] == pytest.approx(expected, abs=1e-3)


def test_every_form_of_prompt_has_choices(weigh: Ask, reference: tuple[Any, Any]) -> None:
    """Token ids and prompt dicts weigh as their text does, a chat as what the template makes."""
    _, tokenizer = reference
    ids = tokenizer(PARIS)["input_ids"]
    plain: list[Any] = [PARIS, ids, {"prompt": PARIS, "cache_salt": "mine"}]
    text, tokens, salted = predictions(weigh(plain, choices=CITIES))
    assert list(tokens.values) == pytest.approx(list(text.values), abs=1e-4)
    assert list(salted.values) == pytest.approx(list(text.values), abs=1e-4)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    made = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    (found,) = predictions(weigh([chat], choices=CITIES))
    assert list(found.values) == pytest.approx(weighed(*reference, made, CITIES), abs=1e-3)


def test_a_prompt_that_does_not_fit_with_a_choice_fails_alone(weigh: Ask) -> None:
    """Prompt and choice may fill the context together (128 tokens); beyond it the row fails once.

    The longest of these choices has two tokens.
    """
    rows = weigh([PARIS, "", [504] * 126, [504] * 127, "x " * 400, PARIS], choices=CITIES)
    assert [isinstance(row, Prediction) for row in rows] == [True, False, True, False, False, True]
    for failure in rows.failures:
        assert failure.error.kind == "VLLMValidationError"
    assert "maximum model length of 128" in rows.failures[1].error.message
    (again,) = predictions(weigh([PARIS], choices=CITIES))
    assert again.label == "Paris"


def test_stopping_leaves_nothing_behind(weigh: Ask, exact: Session, model: str) -> None:
    """After a stop in the middle the next job has its own values, and at once."""
    weigh([PARIS], choices=CITIES)
    before = workers()
    prompts = [f"{number}: {text}" for number in range(200) for text in QUESTIONS]
    job = Options(model=model, prompts=prompts, choices=CHOICES[2], engine_args=ENGINE_ARGS).job()
    run = exact.submit(job)
    assert eventually(lambda: run.snapshot.job.done > 3, seconds=60)
    run.stop()
    with pytest.raises(JobInterrupted) as caught:
        run.result(10)
    done = predictions([row for row in caught.value.results if not isinstance(row, Failure)])
    assert 3 < len(done) < len(prompts)
    assert {row.labels for row in done} == {tuple(CHOICES[2])}
    began = time.monotonic()
    good, bad = weigh([PARIS, ""], choices=CITIES)
    assert time.monotonic() - began < 10
    assert isinstance(good, Prediction)
    assert isinstance(bad, Failure)
    assert list(good.values) == pytest.approx([-2.34, -8.92, -10.44, -7.45], abs=0.01)
    assert workers() == before
