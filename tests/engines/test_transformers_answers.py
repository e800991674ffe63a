"""Generated texts and the probabilities of choices, on transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from engines.capitals import CAPITALS, QUESTIONS, question
from engines.weighing import load, weighed
from mgpu_magic import Completion, EngineError, Failure, Prediction, ResultSet, Session

if TYPE_CHECKING:
    from collections.abc import Iterator

CITIES = ["Paris", "London", "Berlin", "Madrid"]
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


@pytest.fixture(scope="module")
def reference(model: str) -> tuple[Any, Any]:
    """The model and its tokenizer, without any engine."""
    return load(model)


def asked(session: Session, model: str, prompts: object, **options: Any) -> ResultSet:
    """The outcomes; in a thread, unless the options say otherwise."""
    chosen = {"engine": "transformers", "launcher": "thread", **options}
    results = session.generate(model, prompts, **chosen)
    assert isinstance(results, ResultSet)
    return results


def completions(results: ResultSet) -> list[Completion]:
    """All of them; none has failed."""
    assert results.failures == ()
    return [row for row in results if isinstance(row, Completion)]


# --- choices -----------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_choices(session: Session, model: str, launcher: str) -> None:
    """The log-probability of each whole choice: Paris over 0.9, whatever its first letters are."""
    results = asked(session, model, [question("France")], choices=CITIES, launcher=launcher)
    (row,) = results
    assert isinstance(row, Prediction)
    assert list(row.values) == pytest.approx([-2.34, -8.92, -10.44, -7.45], abs=0.01)
    assert (row.task, row.labels, row.label) == ("choices", tuple(CITIES), "Paris")
    assert row.probabilities[0] > 0.9
    assert sum(row.probabilities) == pytest.approx(1)
    assert row.prompt_tokens == 16


def test_choices_are_exact(session: Session, model: str, reference: tuple[Any, Any]) -> None:
    """Prompts and choices of unlike lengths, in one batch or alone, equal the plain computation."""
    prompts = [question("Japan"), STORY, "The capital of the country that is called Peru is"]
    choices = ["Tokyo", " there was a king who had", " Lima", ",", "\n"]
    expected = [weighed(*reference, prompt, choices) for prompt in prompts]
    for batch_size in (1, 8):
        results = asked(session, model, prompts, choices=choices, batch_size=batch_size)
        rows = [list(row.values) for row in results if isinstance(row, Prediction)]
        assert rows == [pytest.approx(row, abs=1e-3) for row in expected]


def test_choices_of_one_token(session: Session, model: str, reference: tuple[Any, Any]) -> None:
    """They need one pass over the prompt, and are exact too."""
    choices = [" A", " B", " C"]
    prompts = ["Answer:", "The first letter is the letter"]
    results = asked(session, model, prompts, choices=choices)
    rows = [list(row.values) for row in results if isinstance(row, Prediction)]
    expected = [weighed(*reference, prompt, choices) for prompt in prompts]
    assert rows == [pytest.approx(row, abs=1e-3) for row in expected]


def test_a_prompt_without_room_for_its_choices(session: Session, model: str) -> None:
    """It fails alone and is never cut: the choices follow the end of a prompt."""
    long, short = asked(
        session, model, ["word " * 30, "word"], choices=CITIES, engine_args={"max_model_len": 32}
    )
    assert isinstance(long, Failure)
    assert "the prompt has 31 tokens and its longest choice" in long.error.message
    assert isinstance(short, Prediction)


# --- generation --------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_answers_to_chats(session: Session, model: str, launcher: str) -> None:
    """Text as a user's message, through the model's chat template, to the end of the answer."""
    prompts = [f"What is the capital of {country}?" for country in ("France", "Peru")]
    results = asked(session, model, prompts, chat=True, temperature=0, launcher=launcher)
    paris, lima = completions(results)
    assert paris.text == "The capital of France is Paris."
    assert lima.text == "The capital of Peru is Lima."
    assert (paris.finish_reason, paris.output_tokens) == ("stop", 8)


def test_greedy_answers_are_those_of_transformers(
    session: Session, model: str, reference: tuple[Any, Any]
) -> None:
    """More prompts than places, of unlike lengths: rows come and go, and none disturbs another."""
    loaded, tokenizer = reference
    prompts = [*QUESTIONS, STORY, "1, 2, 3, 4,", "Water is", STORY + ", in a land far away,"]
    expected = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = loaded.generate(**inputs, max_new_tokens=12, do_sample=False)[0]
        new = ids[inputs["input_ids"].shape[1] :]
        expected.append(tokenizer.decode(new, skip_special_tokens=True))
    sampling = {"temperature": 0, "max_tokens": 12}
    results = asked(session, model, prompts, sampling=sampling, batch_size=3)
    assert results.texts == expected
    assert {row.finish_reason for row in completions(results)} == {"stop", "length"}


def test_lengths_and_stops(session: Session, model: str) -> None:
    """`max_tokens`, `stop`, `min_tokens` and `ignore_eos` of each prompt for itself, as in vLLM."""
    samplings: list[dict[str, Any]] = [
        {"max_tokens": 3},
        {"stop": [" is"]},
        {"stop_token_ids": [278]},
        {"max_tokens": 12, "min_tokens": 12},
        {"max_tokens": 12, "ignore_eos": True},
        {"n": 2},
    ]
    rows = completions(
        asked(
            session,
            model,
            [question("Kenya")] * len(samplings),
            sampling=[{"temperature": 0, **sampling} for sampling in samplings],
        )
    )
    whole = "The capital of Kenya is Nairobi."
    assert [(row.finish_reason, row.output_tokens) for row in rows[:5]] == [
        ("length", 3),
        ("stop", 5),
        ("length", 16) if rows[2].finish_reason == "length" else ("stop", rows[2].output_tokens),
        ("length", 12),
        ("length", 12),
    ]
    assert (rows[0].text, rows[1].text) == ("The capital of", "The capital of Kenya")
    assert all(row.text.startswith(whole) for row in rows[3:5])
    assert rows[5].texts == (whole, whole)


def test_a_seed_makes_a_job_repeatable(session: Session, model: str) -> None:
    """Equal prompts of a job differ, yet a second run gives the same, whoever answers."""
    sampling = {"temperature": 1, "top_p": 0.95, "top_k": 50, "min_p": 0.01, "max_tokens": 12}
    first = asked(session, model, [STORY] * 3, sampling={**sampling, "seed": 7})
    second = asked(session, model, [STORY] * 3, sampling={**sampling, "seed": 7}, batch_size=1)
    other = asked(session, model, [STORY] * 3, sampling={**sampling, "seed": 8})
    assert first.texts == second.texts
    assert len(set(first.texts)) == 3
    assert set(first.texts).isdisjoint(other.texts)
    one, two = asked(session, model, [STORY] * 2, sampling=sampling).texts
    assert one != two


def test_samples_follow_the_probabilities(session: Session, model: str) -> None:
    """The likeliest two first tokens are drawn as often as the model finds them likely."""
    sampling = {"n": 300, "max_tokens": 1, "top_k": 2, "seed": 1}
    (row,) = completions(asked(session, model, ["The sky is"], sampling=sampling, batch_size=64))
    loaded, tokenizer = load(model)
    with torch.inference_mode():
        logits = loaded(**tokenizer("The sky is", return_tensors="pt")).logits[0, -1]
    best, places = logits.topk(2)
    likely = float(best.softmax(-1)[0])
    drawn = row.texts.count(tokenizer.decode(places[0]))
    assert set(row.texts) == {tokenizer.decode(place) for place in places}
    assert drawn / 300 == pytest.approx(likely, abs=0.09)


def test_a_prompt_that_leaves_no_room(session: Session, model: str) -> None:
    """It fails alone; one with room for a single token gets that, and says so."""
    prompts = [[19] * 16, [19] * 15, [19] * 14]
    rows = asked(session, model, prompts, temperature=0, engine_args={"max_model_len": 16})
    assert isinstance(rows[0], Failure)
    assert "the prompt has 16 tokens and an answer needs 1; the model reads 16" in (
        rows[0].error.message
    )
    kept = [row for row in rows[1:] if isinstance(row, Completion)]
    assert [(row.output_tokens, row.finish_reason) for row in kept] == [
        (1, "length"),
        (2, "length"),
    ]


def test_a_chat_that_the_template_refuses(session: Session, model: str) -> None:
    """A part that is no text is named; the other chats are answered."""
    picture = [{"role": "user", "content": [{"type": "image", "url": "x"}]}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    bad, good = asked(session, model, [picture, parts], temperature=0, max_tokens=2)
    assert isinstance(bad, Failure)
    assert "a part of type 'image'" in bad.error.message
    assert isinstance(good, Completion)


def test_a_sampling_that_is_not_known_is_one_error(session: Session, model: str) -> None:
    """It fails all prompts alike, so it is said once, with what is known."""
    with pytest.raises(EngineError, match="no sampling field 'logprobs'; known are n, max_tokens"):
        asked(session, model, QUESTIONS, sampling={"logprobs": 3})
    with pytest.raises(EngineError, match="stop_token_ids holds 99999; the model has the tokens"):
        asked(session, model, QUESTIONS, sampling={"stop_token_ids": [99999]})
    answers = asked(session, model, QUESTIONS, temperature=0).texts
    assert [
        str(CAPITALS[country]) in str(text) for country, text in zip(CAPITALS, answers, strict=True)
    ] == [True] * 8
