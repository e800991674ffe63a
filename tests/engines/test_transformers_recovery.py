"""What becomes of the others when a batch fails, is aborted, or does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from engines import tiny_models
from engines.tiny_models import WORDS
from mgpu_magic import Completion, Failure, Prediction, ResultSet, Session
from mgpu_magic.engines import create
from mgpu_magic.messages import Request
from mgpu_magic.spec import Device, Sampling, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mgpu_magic.engines import Engine

TEXTS = [" ".join(WORDS[place : 2 * place + 1]) for place in range(8)]
POISON = "why"
SAMPLING = {"temperature": 0, "ignore_eos": True}
LENGTHS = [3, 9, 1, 5, 12, 2, 7, 4]
EACH = [{**SAMPLING, "max_tokens": length} for length in LENGTHS]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama that generates."""
    return tiny_models.llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama that classifies."""
    return tiny_models.llama_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture
def session() -> Iterator[Session]:
    """A session on one CPU device."""
    with Session("cpu:1") as session:
        yield session


def refusing(model: Any, refuse: Callable[[Any], Exception | None]) -> Any:
    """The model, which raises what `refuse` says of a batch's token ids."""

    def check(_model: Any, _args: Any, inputs: dict[str, Any]) -> None:
        if error := refuse(inputs["input_ids"]):
            raise error

    model.register_forward_pre_hook(check, with_kwargs=True)
    return model


def above(rows: int) -> Callable[[Any], Exception | None]:
    """Out of memory with more rows than these."""

    def refuse(ids: Any) -> Exception | None:
        return torch.OutOfMemoryError("CUDA out of memory") if len(ids) > rows else None

    return refuse


def poisoned(ids: Any) -> Exception | None:
    """An error for whole batches that hold one certain word."""
    word = len(tiny_models.SPECIALS) + WORDS.index(POISON)
    return ValueError("poison") if (ids == word).any() else None


def asked(session: Session, model: Any, prompts: object, **options: Any) -> ResultSet:
    """The outcomes of a thread."""
    results = session.generate(
        model, prompts, engine="transformers", launcher="thread", batch_size=4, **options
    )
    assert isinstance(results, ResultSet)
    return results


def values(results: ResultSet) -> list[Any]:
    """The numbers of each prompt; none has failed."""
    rows = [row for row in results if isinstance(row, Prediction)]
    assert len(rows) == len(results)
    return [pytest.approx(list(row.values), abs=1e-5) for row in rows]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_batch_that_does_not_fit_is_halved(session: Session, classifier: str, rows: int) -> None:
    """The user sees the same logits as with more memory."""
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    results = asked(session, refusing(model, above(rows)), TEXTS, task="classify")
    assert values(results) == tiny_models.logits(classifier, TEXTS)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_answers_that_do_not_fit_go_on_fewer_at_a_time(
    session: Session, llama: str, rows: int
) -> None:
    """Half-written answers are continued, not lost: the texts are those of a larger memory."""
    expected = asked(session, llama, TEXTS, sampling=EACH)
    model = refusing(AutoModelForCausalLM.from_pretrained(llama), above(rows))
    results = asked(session, model, TEXTS, sampling=EACH)
    assert results.texts == expected.texts
    tokens = [row.output_tokens for row in results if isinstance(row, Completion)]
    assert tokens == LENGTHS


def test_a_row_that_fails_takes_no_other_with_it(session: Session, classifier: str) -> None:
    """Batches with an error are tried row by row."""
    texts = [*TEXTS[:5], f"good {POISON}", *TEXTS[5:]]
    model = refusing(AutoModelForSequenceClassification.from_pretrained(classifier), poisoned)
    results = asked(session, model, texts, task="classify")
    (failed,) = results.failures
    assert (failed.index, failed.error.kind, failed.error.message) == (5, "ValueError", "poison")
    assert sum(isinstance(row, Prediction) for row in results) == len(TEXTS)


def test_an_answer_that_fails_takes_no_other_with_it(session: Session, llama: str) -> None:
    """The others are written to their ends, and several at a time again afterwards."""
    texts = [*TEXTS[:5], f"good {POISON}", *TEXTS[5:]]
    each = [*EACH[:5], EACH[0], *EACH[5:]]
    expected = asked(session, llama, texts, sampling=each).texts
    model = refusing(AutoModelForCausalLM.from_pretrained(llama), poisoned)
    results = asked(session, model, texts, sampling=each)
    failed = {row.index: row.error.message for row in results if isinstance(row, Failure)}
    written = [POISON in str(text).split() for text in expected]  # such a one is poison by itself
    assert set(failed) <= {5} | {place for place, poison in enumerate(written) if poison}
    assert failed[5] == "poison"
    kept = [text for place, text in enumerate(results.texts) if place not in failed]
    assert kept == [text for place, text in enumerate(expected) if place not in failed]


@pytest.mark.parametrize("task", ["classify", "embed", "generate"])
def test_what_is_no_number_is_no_answer(session: Session, tmp_path: Path, task: str) -> None:
    """Half precision overflows in some models: such a row fails and says so; the others stand."""
    family: Any = AutoModelForCausalLM if task == "generate" else AutoModelForSequenceClassification
    model = family.from_pretrained(tiny_models.llama(tmp_path, tied=False), num_labels=2)
    model = model.model if task == "embed" else model
    word = len(tiny_models.SPECIALS) + WORDS.index(POISON)
    model.get_input_embeddings().weight.data[word] = float("inf")
    texts = ["good film", f"good {POISON}", "bad"]
    options: dict[str, Any] = {"max_tokens": 1} if task == "generate" else {}
    rows = asked(session, model, texts, task=task, **options)
    (failed,) = rows.failures
    assert (failed.index, failed.error.kind) == (1, "ArithmeticError")
    assert 'Use dtype="float32"' in failed.error.message


def test_a_broken_device_ends_the_worker(session: Session, classifier: str) -> None:
    """After a kernel's assertion nothing can be computed: it is replaced, the culprits found."""
    model = AutoModelForSequenceClassification.from_pretrained(classifier)
    broken = torch.AcceleratorError("CUDA error: device-side assert triggered")

    def refuse(ids: Any) -> Exception | None:
        return broken if ids.shape[1] > 5 else None

    rows = asked(session, refusing(model, refuse), TEXTS, task="classify")
    assert [row.index for row in rows.failures] == [5, 6, 7]  # those of more than five words
    assert {row.error.kind for row in rows.failures} == {"WorkerLost"}
    assert "AcceleratorError: CUDA error: device-side assert" in rows.failures[0].error.message


def engine(model: str) -> Engine:
    """A loaded engine of our own, on one core."""
    spec = WorkerSpec(
        engine="transformers",
        model=model,
        engine_args={"batch_size": 2},
        devices=(Device(kind="cpu", index=0, name="CPU", cores=(0,)),),
        launcher="thread",
    )
    made = create(spec)
    made.prepare()
    made.load(lambda _stage, _fraction: None)
    return made


def test_aborted_answers_leave_no_trace(llama: str) -> None:
    """Running ones, waiting ones and unknown ones are forgotten; the rest ends as it would."""
    alone, crowded = engine(llama), engine(llama)
    alone.add(Request(0, TEXTS[1], Sampling({**SAMPLING, "max_tokens": 9})))
    crowded.add(Request(0, TEXTS[1], Sampling({**SAMPLING, "max_tokens": 9})))
    for index in range(1, 5):
        crowded.add(Request(index, TEXTS[7], Sampling({**SAMPLING, "max_tokens": 9, "n": 2})))
    assert crowded.step() == []
    stats = crowded.stats()
    assert (stats.running, stats.waiting, stats.output_tokens) == (2, 3, 4)
    crowded.abort([1, 2, 3, 4, 77])
    assert crowded.stats().waiting == 0
    texts = []
    for each in (alone, crowded):
        while each.busy:
            texts += [row.text for row in each.step() if isinstance(row, Completion)]
        assert each.stats().prompt_tokens == len(TEXTS[1].split())
        each.close()
    assert texts[0] == texts[1]
    assert len(texts) == 2


def test_a_closed_engine_holds_nothing(llama: str) -> None:
    """The weights of a freed model are gone from the kernel's memory."""
    import gc

    def weights() -> int:
        gc.collect()
        return sum(type(held) is torch.nn.Parameter for held in gc.get_objects())

    before = weights()
    made = engine(llama)
    made.add(Request(0, TEXTS[1], Sampling(SAMPLING)))
    made.step()
    assert weights() > before
    made.close()
    assert weights() == before


def test_models_of_one_state_per_row(session: Session) -> None:
    """A Mamba has no cache that rows could share: one at a time, and as transformers has it."""
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    model = MambaForCausalLM(
        MambaConfig(vocab_size=tiny_models.SIZE, hidden_size=32, num_hidden_layers=2)
    ).eval()
    words = tiny_models.tokenizer(framed=False)
    expected = []
    for text in TEXTS[1:4]:
        ids = words(text, return_tensors="pt")["input_ids"]
        made = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
        expected.append(" " + words.decode(made[0][ids.shape[1] :], skip_special_tokens=True))
    options = {"engine_args": {"tokenizer": words}, "sampling": {**SAMPLING, "max_tokens": 6}}
    assert asked(session, model, TEXTS[1:4], **options).texts == expected
    (row,) = asked(
        session, model, ["good"], choices=["bad", "very good"], engine_args={"tokenizer": words}
    )
    assert isinstance(row, Prediction)
    assert all(value < 0 for value in row.values)
