"""vLLM's sampling parameters mean through us what they mean in vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from process.living import workers

from engines.asking import warm_pair
from engines.capitals import QUESTIONS, question
from mgpu_magic import Completion, EngineError

if TYPE_CHECKING:
    from engines.asking import Ask
    from mgpu_magic import ResultSet, Session

STORY = "Once upon a time"


def only(results: ResultSet) -> Completion:
    """The answer to the only prompt."""
    (result,) = results
    assert isinstance(result, Completion)
    return result


def test_several_answers_with_their_probabilities(ask: Ask) -> None:
    """`n` gives so many texts; `logprobs` gives each token's candidates, the chosen one first."""
    result = only(ask([STORY], sampling={"n": 2, "logprobs": 2, "max_tokens": 5, "seed": 3}))
    assert len(result.texts) == 2
    assert result.texts[0] != result.texts[1]
    assert result.output_tokens == 10
    assert result.logprobs is not None
    assert [len(positions) for positions in result.logprobs] == [5, 5]
    for text, positions in zip(result.texts, result.logprobs, strict=True):
        chosen = ""
        for candidates in positions:
            assert 2 <= len(candidates) <= 3  # the chosen token is added if it is none of the best
            assert all(candidate.logprob <= 0 for candidate in candidates)
            assert {1, 2} <= {candidate.rank for candidate in candidates}
            chosen += candidates[0].token or ""
        assert chosen == text


def test_probabilities_of_the_prompt(ask: Ask) -> None:
    """`prompt_logprobs` has an entry per prompt token; nothing comes before the first."""
    result = only(ask([STORY], sampling={"prompt_logprobs": 1, "max_tokens": 1}))
    assert result.prompt_logprobs is not None
    first, *others = result.prompt_logprobs
    assert first == ()
    assert len(others) == result.prompt_tokens - 1
    assert [positions[0].token for positions in others] == [" upon", " a", " time"]
    assert all(candidate.logprob <= 0 for positions in others for candidate in positions)


def test_stop_ends_an_answer(ask: Ask) -> None:
    """The text ends before the stop word, and says that it did."""
    result = only(ask([question("Kenya")], sampling={"temperature": 0, "stop": [" is"]}))
    assert (result.text, result.finish_reason) == ("The capital of Kenya", "stop")


def test_cut_answers_are_counted(ask: Ask) -> None:
    """An answer that `max_tokens` cuts says so, and the job counts them."""
    results = ask(QUESTIONS, temperature=0, max_tokens=3)
    assert [result.finish_reason for result in results if isinstance(result, Completion)] == [
        "length"
    ] * len(QUESTIONS)
    assert results.stats.cut_by_length == len(QUESTIONS)
    assert results.stats.output_tokens == 3 * len(QUESTIONS)
    assert ask(QUESTIONS, temperature=0, max_tokens=30).stats.cut_by_length == 0


def test_each_prompt_may_have_its_own_sampling(ask: Ask) -> None:
    """One dict per prompt is applied to that prompt."""
    each = [{"temperature": 0, "max_tokens": count} for count in (1, 6, 3)]
    results = ask([STORY] * 3, sampling=each)
    counts = [result.output_tokens for result in results if isinstance(result, Completion)]
    assert counts == [1, 6, 3]


def test_structured_outputs(ask: Ask) -> None:
    """A dict makes vLLM's structured outputs: the answer is one of the choices."""
    choices = ["positive", "negative"]
    sampling = {"structured_outputs": {"choice": choices}, "temperature": 0}
    results = ask(["This film is great:", "This film is awful:"], sampling=sampling)
    assert all(text in choices for text in results.texts)


def test_a_seed_makes_a_job_repeatable(ask: Ask) -> None:
    """Equal prompts of a job differ, yet a second run gives the same, whoever answers."""
    first = ask([STORY] * 2, seed=7, temperature=1, max_tokens=16)
    second = ask([STORY] * 2, seed=7, temperature=1, max_tokens=16)
    other = ask([STORY] * 2, seed=8, temperature=1, max_tokens=16)
    assert first.texts == second.texts
    assert first.texts[0] != first.texts[1]
    assert set(first.texts).isdisjoint(other.texts)
    assert only(ask([STORY], seed=7, temperature=1, max_tokens=16)).text == first.texts[0]


def test_the_seed_of_a_prompt_counts_on_every_device(ask: Ask) -> None:
    """Two devices sample the same from the same prompt and the same seed of its own."""
    sampling = {"seed": 5, "temperature": 1, "max_tokens": 16}
    results = ask([STORY] * 2, sampling=[sampling] * 2)
    one, two = (result for result in results if isinstance(result, Completion))
    assert {one.device, two.device} == {"cpu:0", "cpu:1"}
    assert one.text == two.text


def test_without_a_seed_devices_differ(apart: Session, model: str) -> None:
    """From the first prompt on replicas sample each in its own way."""
    ask = warm_pair(apart, model, max_model_len=64, kv_cache_memory_bytes=2**28)
    results = ask([STORY] * 2, temperature=1, max_tokens=16)
    one, two = (result for result in results if isinstance(result, Completion))
    assert {one.device, two.device} == {"cpu:0", "cpu:1"}
    assert one.text != two.text


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"max_token": 5}, "Unexpected keyword argument 'max_token'"),
        ({"logprobs": 50}, "Requested sample logprobs of 50, which is greater than max allowed"),
        ({"temperature": -1}, "temperature must be non-negative, got -1"),
        ({"max_tokens": "x"}, "max_tokens is 'x', a str: '<' not supported between"),
        ({"logit_bias": {10**7: 1.0}}, "logit_bias contain out-of-vocab token ids"),
        ({"structured_outputs": {"choose": ["a"]}}, "'choose' of StructuredOutputsParams; did"),
    ],
)
def test_a_sampling_that_vllm_refuses_is_one_error(
    ask: Ask, sampling: dict[str, object], words: str
) -> None:
    """It fails all prompts alike, so it is said once, in vLLM's words; the model stays loaded."""
    before = workers()
    with pytest.raises(EngineError, match=words) as caught:
        ask(QUESTIONS, sampling=sampling)
    assert str(caught.value).count(words) == 1
    assert len(caught.value.results) == len(QUESTIONS)
    assert ask([question("Egypt")], temperature=0).texts == ["The capital of Egypt is Cairo."]
    assert workers() == before
