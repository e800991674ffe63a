"""Which requests are the same to a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.fingerprints import fingerprint
from mgpu_magic.identity import KEY_CHARS, WITHOUT_EFFECT, request_keys
from mgpu_magic.options import Options
from mgpu_magic.prompts import to_requests

if TYPE_CHECKING:
    from pathlib import Path


def keys(prompts: object = ("a",), **options: Any) -> list[bytes]:
    """The keys of a job's prompts."""
    job = Options(**{"model": "org/m", "prompts": prompts, "journal": "j", **options}).job()
    (model,) = job.models
    read = to_requests(
        job.prompts,
        sampling=job.sampling,
        chat=job.chat,
        task=model.task,
        objects=model.engine == "python",
        choices=job.choices,
        lora=model.lora,
    )
    found = request_keys(model, read.requests, read.originals, fingerprint)
    assert len(found) == KEY_CHARS * len(read.requests)
    return [found[at : at + KEY_CHARS] for at in range(0, len(found), KEY_CHARS)]


def key(prompt: object = "a", **options: Any) -> bytes:
    """The key of one prompt."""
    (one,) = keys([prompt], **options)
    return one


def test_a_key_is_that_of_the_prompt_wherever_it_stands() -> None:
    """Equal prompts have equal keys, and no others do."""
    a, b, again = keys(["a", "b", "a"])
    assert a == again
    assert a != b
    assert keys(["b", "a"]) == [b, a]


@pytest.mark.parametrize(
    "options",
    [
        {"devices": "cpu:2"},
        {"stagger": 3},
        {"tensor_parallel_size": 2},
        {"gpu_memory_utilization": 0.5},
        {"engine_args": {"max_num_seqs": 4, "enforce_eager": True}},
        {"sampling": {}},
        {"models": {"name": "org/m"}, "model": None},
        {"models": {"name": {"model": "org/m", "devices": [1], "replicas": 1}}, "model": None},
        {"journal": "another"},
        {"engine_args": {"hf_token": "hf_x", "async_scheduling": True, "load_format": "auto"}},
        {"engine_args": {"load_format": "safetensors", "trust_remote_code": False}},
        {"engine": "vllm", "engine_args": {"tokenizer_mode": "auto"}},
    ],
)
def test_what_has_no_effect_on_an_answer_does_not_count(options: dict[str, Any]) -> None:
    """Where it runs, on how many, in how much memory, and what things are called."""
    assert key(**options) == key()


@pytest.mark.parametrize(
    "options",
    [
        {"model": "org/n"},
        {"engine": "transformers"},
        {"engine": "echo"},
        {"task": "classify"},
        {"chat": True},
        {"max_tokens": 4},
        {"temperature": 0.5},
        {"seed": 1},
        {"sampling": {"stop": ["a"]}},
        {"sampling": [{"seed": 1}]},
        {"choices": ["x", "y"]},
        {"lora": "org/adapter"},
        {"max_model_len": 100},
        {"engine_args": {"revision": "abc"}},
        {"engine_args": {"dtype": "half"}},
        {"engine_args": {"quantization": "awq"}},
        {"engine_args": {"trust_remote_code": True}},
        {"engine_args": {"load_format": "dummy"}},
        {"engine_args": {"load_format": "bitsandbytes"}},
        {"engine_args": {"an_argument_of_a_later_release": 1}},
        {"regex": "[ab]"},
        {"json_schema": {"type": "object"}},
    ],
)
def test_what_has_an_effect_counts(options: dict[str, Any]) -> None:
    """Each of them makes another request of the same prompt."""
    assert key(**options) != key()


def test_numbers_can_be_written_in_two_ways() -> None:
    """Zero is zero; the order of the fields says nothing either."""
    assert key(sampling={"temperature": 0.0, "n": 1}) == key(sampling={"n": 1, "temperature": 0})
    assert key(temperature=0) != key(temperature=0.1)


def test_the_order_within_a_schema_counts() -> None:
    """An answer follows the order of its properties."""
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    turned = dict(reversed(properties.items()))
    one, other = {"properties": properties}, {"properties": turned}
    assert key(json_schema=one) == key(json_schema=dict(one))
    assert key(json_schema=one) != key(json_schema=other)


@pytest.mark.parametrize("engine", WITHOUT_EFFECT)
def test_arguments_without_effect_by_engine(engine: str) -> None:
    """Each engine has its own."""
    options: dict[str, Any] = {"engine": engine}
    if engine == "python":
        options |= {"predict": len}
    for name in WITHOUT_EFFECT[engine] - {"tensor_parallel_size"}:
        assert key(engine_args={name: 1}, **options) == key(**options)


PROMPTS: list[Any] = [
    "a",
    "b",
    "[1, 2]",
    "\ud800",
    [1, 2],
    [12],
    [],
    [2**70],
    [{"role": "user", "content": "a"}],
    [{"role": "system", "content": "a"}],
    [{"role": "user", "content": [{"type": "image", "data": b"1"}]}],
    [{"role": "user", "content": [{"type": "image", "data": b"2"}]}],
    {"prompt": "a", "multi_modal_data": {"image": np.zeros(3)}},
    {"prompt": "a", "multi_modal_data": {"image": np.ones(3)}},
]


def test_no_two_prompts_share_a_key() -> None:
    """Whatever kind they are."""
    found = {key(prompt) for prompt in PROMPTS}
    assert len(found) == len(PROMPTS)
    assert key(("a", "bc"), task="score") != key(("ab", "c"), task="score")


def test_a_prompt_is_the_same_in_each_of_its_forms() -> None:
    """A text in a dict, token ids in an array."""
    assert key({"prompt": "a"}) == key("a")
    assert key(np.array([1, 2])) == key([1, 2])
    assert key("a", chat=True) == key([{"role": "user", "content": "a"}])


def test_each_prompt_has_its_own_settings() -> None:
    """One with other sampling or another adapter is another request."""
    same = {"max_tokens": 1}
    a, b, c = keys(["x"] * 3, sampling=[same, {"max_tokens": 2}, same])
    assert a == c != b
    first, second, third = keys(["x"] * 3, lora=["org/one", None, "org/one"])
    assert first == third != second


def test_a_model_is_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory elsewhere with the same files, and those of an adapter and a tokenizer."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name[:1], encoding="utf-8")
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    assert key(model=two) == key(model=three)
    assert key(model=one) != key(model=two)
    assert key(lora=two) == key(lora=three) != key(lora=one)

    def tokenized(path: str) -> bytes:
        return key(engine_args={"tokenizer": path})

    assert tokenized(two) == tokenized(three) != tokenized(one)
    assert tokenized("org/no-such-tokenizer") != tokenized(one)
    monkeypatch.chdir(tmp_path)
    assert tokenized("one") == tokenized(one)
    assert tokenized("none") != tokenized("one")
    assert tokenized("") != tokenized(".")


def test_objects_of_a_function(tmp_path: Path) -> None:
    """A prompt of any kind is its content; batches and names do not count, code does."""

    def predict(state: object, batch: list[Any]) -> list[Any]:
        return batch

    def other(state: object, batch: list[Any]) -> list[Any]:
        return batch[::-1]

    def renamed(state: object, batch: list[Any]) -> list[Any]:
        return batch

    given: dict[str, Any] = {"model": None, "predict": predict}
    assert key(tmp_path, **given) == key(tmp_path, **given)
    assert key(tmp_path, **given) != key(tmp_path / "a", **given)
    assert key((1, "a"), **given, batch_size=3) == key((1, "a"), **given, launcher="thread")
    assert key("a", **given) == key("a", model=None, predict=renamed)
    assert key("a", **given) != key("a", model=None, predict=other)
    assert key("a", **given) != key("a", **given, load=len)


class Configuration:
    """As transformers has for quantisation, for a thread."""

    def __init__(self, bits: int) -> None:
        self.bits = bits

    def to_dict(self) -> dict[str, int]:
        return {"bits": self.bits}


def test_a_configuration_is_what_it_says_of_itself() -> None:
    """An object among the arguments of a thread."""

    def quantized(bits: int) -> bytes:
        args = {"quantization_config": Configuration(bits)}
        return key(engine="transformers", launcher="thread", engine_args=args)

    assert quantized(4) == quantized(4) != quantized(8)


class Built:
    """A model in memory."""

    config: Any = None

    def __call__(self) -> None: ...


def test_a_model_in_memory_has_no_identity() -> None:
    """It is refused, with what to do instead."""
    models = {"mine": Built()}
    with pytest.raises(SpecError, match=r"journal: model 'mine' is an object of this kernel, .*"):
        key(model=None, models=models, engine="transformers", launcher="thread")
