"""What the transformers engine computes is what transformers computes, one prompt at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engines import tiny_models
from engines.tiny_models import LABELS, WORDS
from mgpu_magic import EngineError, Failure, Prediction, ResultSet, Session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = [" ".join(WORDS[place:] * (place + 1)) for place in range(len(WORDS))][:13]
TEXTS = TEXTS[::2] + TEXTS[1::2] + ["good", "bad", "?"]  # of unlike lengths, in no order
LONG = "very " * 200 + "good"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session on two CPU devices."""
    with Session("cpu:2") as session:
        yield session


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT classifier of 64 positions, whose tokenizer knows no limit."""
    return tiny_models.bert(tmp_path_factory.mktemp("bert"))


def asked(session: Session, model: Any, prompts: object, **options: Any) -> ResultSet:
    """The outcomes; in a thread, unless the options say otherwise."""
    chosen = {"engine": "transformers", "launcher": "thread", "task": "classify", **options}
    results = session.generate(model, prompts, **chosen)
    assert isinstance(results, ResultSet)
    return results


def values(results: ResultSet) -> list[list[float]]:
    """The numbers of each prompt; none has failed."""
    assert results.failures == ()
    return [list(row.values) for row in results if isinstance(row, Prediction)]


def close(expected: list[list[float]]) -> Any:
    """Equal to 1e-5."""
    return [pytest.approx(row, abs=1e-5) for row in expected]


@pytest.mark.parametrize("family", ["bert", "roberta", "llama_classifier", "bart"])
def test_logits_equal_those_of_transformers(session: Session, tmp_path: Path, family: str) -> None:
    """However they are batched, sorted and padded, and whether in a thread or in a process."""
    model = getattr(tiny_models, family)(tmp_path)
    limit = 128 if family == "llama_classifier" else 64
    expected = tiny_models.logits(model, TEXTS, limit=limit)
    assert values(asked(session, model, TEXTS, batch_size=1)) == close(expected)
    assert values(asked(session, model, TEXTS)) == close(expected)
    if family in ("bert", "llama_classifier"):
        for size in (1, 8):
            found = asked(session, model, TEXTS, launcher="process", batch_size=size)
            assert values(found) == close(expected)


def test_a_prediction_says_what_it_is(session: Session, bert: str) -> None:
    """Labels by their names in order, tokens, the device, and the time it took."""
    (row,) = asked(session, bert, ["the film was good"])
    assert isinstance(row, Prediction)
    assert (row.task, row.labels, row.activation) == ("classify", tuple(LABELS), "softmax")
    assert (row.prompt_tokens, row.cut_tokens) == (6, 0)
    assert row.device in ("cpu:0", "cpu:1")
    assert 0 < row.seconds < 60
    assert sum(row.probabilities) == pytest.approx(1)


@pytest.mark.parametrize(
    ("head", "activation"),
    [
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "problem_type": "regression"}, "none"),
        ({"num_labels": 1}, "sigmoid"),
    ],
)
def test_what_makes_probabilities_of_logits(
    session: Session, tmp_path: Path, head: dict[str, Any], activation: str
) -> None:
    """Several labels may hold at once, a regression has no probabilities: as the model says."""
    (row,) = asked(session, tiny_models.bert(tmp_path, **head), ["good"])
    assert isinstance(row, Prediction)
    assert (len(row.values), row.activation) == (head["num_labels"], activation)


def test_a_missing_pad_token_is_repaired(session: Session, tmp_path: Path) -> None:
    """A Llama whose config and tokenizer know none scores batches as it scores single prompts."""
    model = tiny_models.llama_classifier(tmp_path, pad=False)
    expected = tiny_models.logits(model, TEXTS, limit=128)
    assert values(asked(session, model, TEXTS, batch_size=2)) == close(expected)
    assert values(asked(session, model, TEXTS, batch_size=1)) == close(expected)


def test_a_long_text_is_cut_to_what_the_model_reads(session: Session, bert: str) -> None:
    """64 positions, 203 tokens, and a tokenizer without a limit: cut, counted, right."""
    results = asked(session, bert, ["good", LONG])
    assert values(results) == close(tiny_models.logits(bert, ["good", LONG], limit=64))
    short, long = results
    assert isinstance(short, Prediction)
    assert isinstance(long, Prediction)
    assert (short.prompt_tokens, short.cut_tokens) == (3, 0)
    assert (long.prompt_tokens, long.cut_tokens) == (64, 139)


def test_positions_that_are_counted_from_elsewhere(session: Session, tmp_path: Path) -> None:
    """RoBERTa's 65 positions read 64 tokens; the 65th would be an index error."""
    model = tiny_models.roberta(tmp_path)
    (row,) = asked(session, model, [LONG])
    assert isinstance(row, Prediction)
    assert row.prompt_tokens == 64
    assert list(row.values) == pytest.approx(tiny_models.logits(model, [LONG], limit=64)[0], 1e-5)


def test_a_bad_prompt_fails_alone(session: Session, tmp_path: Path) -> None:
    """Nothing to read, half a character, a token id that no model has: each in its own row."""
    model = tiny_models.llama_classifier(tmp_path)
    rows = asked(session, model, ["good", "", "b\ud800", "bad"])
    errors = {row.index: row.error for row in rows if isinstance(row, Failure)}
    assert list(errors) == [1, 2]
    assert "the prompt is empty" in errors[1].message
    assert "contains a lone surrogate at position 1" in errors[2].message
    assert isinstance(rows[3], Prediction)
    _, bad = asked(session, model, [[5, 6], [5, 10**6]])
    assert isinstance(bad, Failure)
    assert "token id 1000000 is out of vocabulary" in bad.error.message


def test_an_empty_text_is_legal_where_it_has_a_frame(session: Session, bert: str) -> None:
    """BERT reads a start and an end token."""
    assert values(asked(session, bert, ["a", ""])) == close(tiny_models.logits(bert, ["a", ""]))


@pytest.mark.parametrize("batch_size", [1, 2])
def test_pairs(session: Session, bert: str, batch_size: int) -> None:
    """A pair is a pair, as a list, a tuple or a dict, alone or with others."""
    first, second = "the film was good", "I liked it"
    pairs = [[first, second], (first, second), {"text": first, "text_pair": second}, ("a", "b")]
    expected = tiny_models.logits(bert, [(first, second)] * 3 + [("a", "b")])
    results = asked(session, bert, pairs, batch_size=batch_size)
    assert values(results) == close(expected)
    assert expected[0] != pytest.approx(tiny_models.logits(bert, [f"{first} {second}"])[0], 1e-3)


def test_scores_of_pairs(session: Session, tmp_path: Path) -> None:
    """A cross-encoder's one logit, through the activation that its config names."""
    pairs = [("the film was good", "I liked it"), ("bad", "why")]
    plain = tiny_models.bert(tmp_path / "plain", num_labels=1)
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    as_is = tiny_models.bert(tmp_path / "as_is", num_labels=1, sentence_transformers=identity)
    raw = [row[0] for row in tiny_models.logits(plain, list(pairs))]
    results = asked(session, plain, pairs, task="score")
    assert values(results) == close([[1 / (1 + 2.718281828459045**-x)] for x in raw])
    assert {row.task for row in results if isinstance(row, Prediction)} == {"score"}
    assert values(asked(session, as_is, pairs, task="score")) == close([[x] for x in raw])


def test_a_model_of_several_labels_gives_no_score(session: Session, bert: str) -> None:
    """It is said when it is loaded, with the number and the task that fits."""
    with pytest.raises(EngineError, match=r"config.num_labels is 3; use task classify"):
        asked(session, bert, [("a", "b")], task="score")


def test_a_sampling_has_no_meaning_here(session: Session, bert: str) -> None:
    """A classifier samples nothing; it is said once."""
    with pytest.raises(EngineError, match="task classify takes no sampling, and there is 'max_t"):
        asked(session, bert, ["good", "bad"], max_tokens=4)
