"""What the transformers engine decides of a device, a model and a sampling, before it loads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mgpu_magic.engines.transformers_sampling import Decoding
from mgpu_magic.engines.transformers_settings import Settings, chosen_dtype, limit
from mgpu_magic.sendable import plain
from mgpu_magic.spec import Device, WorkerSpec

CPU = Device(kind="cpu", index=0, name="CPU (1 core)", cores=(0,))
T4 = Device(kind="cuda", index=0, name="Tesla T4", mask="0", capability=(7, 5))
L4 = Device(kind="cuda", index=1, name="NVIDIA L4", mask="1", capability=(8, 9))


def spec(**engine_args: Any) -> WorkerSpec:
    """A classifying worker with these arguments."""
    return WorkerSpec(
        engine="transformers",
        model="some/model",
        task="classify",
        engine_args=engine_args,
        devices=(CPU,),
    )


@pytest.mark.parametrize(
    ("asked", "stored", "device", "dtype"),
    [
        (None, "bfloat16", CPU, "float32"),
        (None, "float16", CPU, "float32"),
        ("bfloat16", "float32", CPU, "bfloat16"),
        ("auto", "bfloat16", CPU, "auto"),
        (None, "bfloat16", L4, "auto"),
        ("torch.bfloat16", "float16", L4, "bfloat16"),
        ("half", "bfloat16", L4, "float16"),
        (None, "float32", T4, "auto"),
        ("float32", "bfloat16", T4, "float32"),
    ],
)
def test_a_dtype_for_the_device(asked: str | None, stored: str, device: Device, dtype: str) -> None:
    """Exact on a CPU, the model's own on a GPU, and what the user asks for."""
    assert chosen_dtype(asked, stored, device) == (dtype, None)


@pytest.mark.parametrize("asked", [None, "auto"])
def test_an_old_gpu_gets_half_for_bfloat16(asked: str | None) -> None:
    """A T4 has no bfloat16: float16 is taken, and that is said."""
    dtype, note = chosen_dtype(asked, "bfloat16", T4)
    assert dtype == "float16"
    assert note is not None
    assert "Tesla T4 (compute capability 7.5)" in note


def test_bfloat16_that_was_asked_for_is_not_changed_silently() -> None:
    """It is refused, with what to write instead."""
    with pytest.raises(ValueError, match=r"Tesla T4 .* does not have .* use dtype=\"float16\""):
        chosen_dtype("bfloat16", "bfloat16", T4)


@pytest.mark.parametrize(
    ("tokenizer", "positions", "most", "asked", "expected"),
    [
        (None, None, None, None, None),
        (512, None, None, None, 512),
        (512, 64, 64, None, 64),
        (32, 64, 64, None, 32),
        (32, 64, 64, 48, 48),
        (None, 131072, None, 8, 8),
    ],
)
def test_the_least_limit_counts(
    tokenizer: int | None, positions: int | None, most: int | None, asked: int | None, expected: int
) -> None:
    """The tokenizer's, the model's, or the user's own, which goes before the tokenizer's."""
    notes: list[str] = []
    found = limit(tokenizer=tokenizer, positions=positions, most=most, asked=asked, notes=notes)
    assert (found, notes) == (expected, [])


def test_more_than_the_model_reads() -> None:
    """Learned positions end where they end; others may be tried, and it is said."""
    notes: list[str] = []
    assert limit(tokenizer=None, positions=64, most=64, asked=512, notes=notes) == 64
    assert limit(tokenizer=512, positions=512, most=None, asked=1024, notes=notes) == 1024
    assert notes == [
        "max_model_len is 512, and the model has 64 positions: 64 it is",
        "max_model_len is 1024, more than the 512 tokens of its config",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_length": 3, "gpu": 1}, "no engine argument 'gpu', 'max_length'; known are dtype, "),
        ({"batch_size": 0}, "batch_size is 0; pass a whole number of 1 or more"),
        ({"max_model_len": 1.5}, "max_model_len is 1.5; pass a whole number"),
        ({"pooling": "mean"}, r"engine_args\['pooling'\] is for task embed, not classify"),
    ],
)
def test_wrong_engine_arguments(arguments: dict[str, Any], words: str) -> None:
    """The value, the rule and what is known, before a library is imported."""
    with pytest.raises((TypeError, ValueError), match=words):
        Settings.of(spec(**arguments))
    assert Settings.of(spec(batch_size=2)) == Settings(batch_size=2)
    assert Settings.of(spec()).trust_remote_code is False


def test_samplings_have_the_defaults_of_vllm() -> None:
    """A model's own recommendation counts where the user says nothing at all."""
    recommended = {"temperature": 0.6, "top_k": 20}
    assert Decoding.of({}, {}) == Decoding(max_tokens=16, temperature=1.0)
    assert Decoding.of({}, recommended) == Decoding(temperature=0.6, top_k=20)
    assert Decoding.of({"max_tokens": 3}, recommended) == Decoding(max_tokens=3)
    assert Decoding.of({"max_tokens": None}, {}).max_tokens is None
    assert Decoding.of({"stop": "a", "top_k": -1}, {}) == Decoding(stop=("a",), top_k=-1)
    assert Decoding.of({"temperature": 0}, {}).greedy


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_token": 5}, "no sampling field 'max_token'; known are n, max_tokens, "),
        ({"logprobs": 5}, "no sampling field 'logprobs'"),
        ({"temperature": -1}, "temperature is -1; pass a number 0 or more"),
        ({"top_p": 0}, "top_p is 0; pass a number above 0, at most 1"),
        ({"max_tokens": 0}, "max_tokens is 0; pass a whole number of 1 or more"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens is 3 and max_tokens 2"),
        ({"stop": ["", "a"]}, "stop holds ''"),
        ({"stop": 5}, "stop is 5; pass a list"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; pass a list"),
        ({"max_tokens": "x"}, "max_tokens is 'x'; pass a whole number of 1 or more"),
        ({"temperature": "hot"}, "temperature is 'hot'; pass a number 0 or more"),
    ],
)
def test_samplings_that_are_refused(fields: dict[str, Any], words: str) -> None:
    """By their names, as vLLM does."""
    with pytest.raises((TypeError, ValueError), match=words):
        Decoding.of(fields, {})


def test_a_number_of_torch_is_a_number() -> None:
    """A worker gets Python's own: it may have no torch, as the kernel may not."""
    copy = plain({"top_k": torch.tensor(7), "top_p": torch.tensor(0.5)}, "sampling")
    assert copy == {"top_k": 7, "top_p": 0.5}
    assert {type(value) for value in copy.values()} == {int, float}
