"""What a real model answers, and which rows it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from process.living import workers

from engines.asking import devices
from engines.capitals import CAPITALS, QUESTIONS, question
from mgpu_magic import Completion, Failure, ResultSet, SpecError

if TYPE_CHECKING:
    from engines.asking import Ask
    from mgpu_magic import Session

PARIS = [{"role": "user", "content": "What is the capital of France?"}]
VOCABULARY = 49152  # of the small model


def answered(results: ResultSet) -> list[bool]:
    """Which rows have an answer."""
    return [isinstance(result, Completion) for result in results]


def test_answers_are_right_and_in_order(ask: Ask) -> None:
    """Two devices share the questions, and each answer stands in the row of its question."""
    results = ask(QUESTIONS, temperature=0, max_tokens=16)
    for text, (country, capital) in zip(results.texts, CAPITALS.items(), strict=True):
        assert text == f"The capital of {country} is {capital}."
    assert devices(results) == {"cpu:0", "cpu:1"}


def test_the_next_cell_finds_the_model_loaded(ask: Ask) -> None:
    """A second job with the same model runs in the same processes."""
    before = workers()
    assert len(before) == 2
    assert ask([question("Japan")], temperature=0).texts == ["The capital of Japan is Tokyo."]
    assert workers() == before


def test_a_bad_prompt_fails_alone(ask: Ask) -> None:
    """An empty and an over-long prompt are failures with vLLM's own words; the rest is answered."""
    results = ask(["ok", "", "x " * 4000, "fine"], max_tokens=4)
    assert answered(results) == [True, False, False, True]
    empty, long = results.failures
    assert (empty.index, long.index) == (1, 2)
    assert empty.error.kind == long.error.kind == "VLLMValidationError"
    assert "empty" in empty.error.message
    assert "maximum context length is 256 tokens" in long.error.message
    assert results.stats.failures == 2


def test_a_known_beginning_is_not_read_twice(ask: Ask) -> None:
    """Of a prompt that was asked before, whole blocks of 128 tokens come from the prefix cache."""
    text = "The quick brown fox jumps over the lazy dog. " * 20
    first, again = (ask([text], temperature=0, max_tokens=1)[0] for _ in range(2))
    assert isinstance(first, Completion)
    assert isinstance(again, Completion)
    assert first.cached_tokens == 0
    assert again.cached_tokens == 128
    assert again.texts == first.texts


def test_blank_and_zero_characters_are_text(ask: Ask) -> None:
    """Only a prompt without any character is refused."""
    assert answered(ask(["   ", "a\0b", "\n"], max_tokens=2)) == [True, True, True]


def test_a_lone_surrogate_is_named_with_its_position(ask: Ask) -> None:
    """Half a character, as scraped text has it, fails its row and says where it is."""
    chat = [{"role": "user", "content": "ab\ud800"}]
    for prompts, position in (["ok", "a\ud800b"], 1), ([PARIS, chat], 2):
        good, bad = ask(prompts, max_tokens=2)
        assert isinstance(good, Completion)
        assert isinstance(bad, Failure)
        assert f"a lone surrogate at position {position}" in bad.error.message


def test_token_ids_are_prompts(ask: Ask) -> None:
    """Token ids are taken as they are; one that the model does not know fails its row."""
    good, bad = ask([[504, 3575, 282], [504, VOCABULARY + 1]], max_tokens=2)
    assert isinstance(good, Completion)
    assert good.prompt_tokens == 3
    assert isinstance(bad, Failure)
    assert bad.error.kind == "VLLMValidationError"
    assert f"{VOCABULARY + 1} is out of vocabulary" in bad.error.message


def test_a_prompt_may_fill_the_context_but_for_one_token(ask: Ask) -> None:
    """255 of 256 tokens leave room for one, and the answer says that it was cut; 256 for none."""
    fits, full = ask([[504] * 255, [504] * 256], max_tokens=50)
    assert isinstance(fits, Completion)
    assert (fits.output_tokens, fits.finish_reason) == (1, "length")
    assert isinstance(full, Failure)


def test_a_prompt_dict_of_vllm(ask: Ask) -> None:
    """What vLLM allows beside the text goes through."""
    prompt = {"prompt": question("Italy"), "cache_salt": "mine"}
    assert ask([prompt], temperature=0).texts == ["The capital of Italy is Rome."]


def test_a_chat_goes_through_the_template(ask: Ask) -> None:
    """Chats and, with `chat`, plain texts are wrapped as the model was trained; in both alike."""
    (chat,) = ask(PARIS, temperature=0, max_tokens=16)
    (text,) = ask([PARIS[0]["content"]], temperature=0, max_tokens=16, chat=True)
    (plain,) = ask([PARIS[0]["content"]], temperature=0, max_tokens=16)
    assert isinstance(chat, Completion)
    assert isinstance(text, Completion)
    assert isinstance(plain, Completion)
    assert "Paris" in chat.text
    assert (text.text, text.prompt_tokens) == (chat.text, chat.prompt_tokens)
    assert chat.prompt_tokens > plain.prompt_tokens


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chat_that_cannot_be_rendered_fails_alone(ask: Ask, place: int) -> None:
    """A part that vLLM does not know, first, in the middle or last, costs no other conversation."""
    chats: list[list[dict[str, Any]]] = [PARIS, PARIS]
    chats.insert(place, [{"role": "user", "content": [{"type": "smell", "smell": "roses"}]}])
    results = ask(chats, temperature=0, max_tokens=16)
    assert [failure.index for failure in results.failures] == [place]
    assert ["Paris" in str(text) for text in results.texts] == [i != place for i in range(3)]


def test_text_beside_chats_is_refused(apart: Session, model: str) -> None:
    """It is said at once, with the row's index, and no worker is started for it."""
    before = workers()
    prompts: list[Any] = [PARIS, "What is the capital of Peru?"]
    with pytest.raises(SpecError, match="prompt 1 is text, prompt 0 is a chat"):
        apart.generate(model, prompts)
    assert workers() == before
