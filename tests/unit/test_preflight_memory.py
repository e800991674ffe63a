"""Memory that will not do is said before a model is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from plans import (
    CORES,
    GIB,
    H200,
    L4,
    OTHER,
    SECOND_T4,
    T4,
    found,
    llama,
    packed,
    plan,
    reading,
    said,
)

from mgpu_magic.findings import (
    Occupant,
    Seen,
    sentence,
)
from mgpu_magic.fit import loaded_dtype, need

if TYPE_CHECKING:
    from mgpu_magic.spec import Device


def test_a_model_that_fits_is_passed_in_silence() -> None:
    """15 GiB of weights and a sequence of full length (16 GiB): an H200 has room."""
    assert said(plan(llama(), H200), seen={"cuda:0": Seen(reading=reading(139))}) == []


def test_weights_that_are_larger_than_the_card() -> None:
    """Refused, with the tensor-parallel size that would do."""
    assert said(plan(llama(), T4), devices=[T4, SECOND_T4]) == [
        "refuse llama: cuda:0: the weights take 15.0 GiB; vLLM may use 13.8 of 15.0 GiB "
        "(--gpu-memory-utilization 0.92). Use --tensor-parallel-size 2, or a quantised model "
        "(AWQ, GPTQ)."
    ]
    assert said(plan(llama(40), T4, engine="transformers")) == [
        "refuse llama: cuda:0: the weights take 40.0 GiB; Tesla T4 has 15.0 GiB. Use a smaller "
        "model, or a quantised model (AWQ, GPTQ)."
    ]


def test_weights_are_shared_by_a_group() -> None:
    """Two T4 hold 15 GiB together; a sequence of full length is what does not fit then."""
    (line,) = said(plan(llama(), T4, SECOND_T4))
    assert line == (
        "warn llama: cuda:0, cuda:1: a sequence of 131,072 tokens needs 8.0 GiB of KV cache; "
        "beside the weights there are about 5.3. Use --max-model-len 86784, or less."
    )


@pytest.mark.parametrize(
    "args",
    [
        {"quantization": "bitsandbytes"},
        {"cpu_offload_gb": 8},
        {"load_format": "dummy"},
        {"hf_overrides": {"num_hidden_layers": 2}},
    ],
)
def test_weights_that_are_changed_while_loading_are_not_certain(args: dict[str, Any]) -> None:
    """Then it is a warning: only what is certain is refused."""
    (line,) = said(plan(llama(40), T4, **args))
    assert line.startswith("warn llama: cuda:0: the weights take 40.0 GiB; ")


def test_a_quantised_model_may_be_named_so() -> None:
    """`quantization="awq"` on an AWQ model changes nothing."""
    spec = plan(packed("awq"), quantization="awq").spec
    assert need(spec, packed("awq")).least_bytes == 5 * GIB


@pytest.mark.parametrize(
    "args",
    [
        {"offload_group_size": 4},
        {"quantization": "fp8"},
        {"quantization_config": {"load_in_4bit": True}},
        {"brand_new_option": "on"},
        {"load_format": "runai_streamer"},
    ],
)
def test_what_may_change_the_weights_leaves_nothing_certain(args: dict[str, Any]) -> None:
    """Only arguments that are known to leave the weights alone do not count."""
    assert need(plan(llama(), **args).spec, llama()).least_bytes is None
    known: dict[str, Any] = {
        "seed": 1,
        "max_num_seqs": 4,
        "cpu_offload_gb": 0,
        "load_format": "auto",
    }
    assert need(plan(llama(), **known).spec, llama()).least_bytes == 15 * GIB


def test_what_is_done_already_is_not_advised() -> None:
    """No quantised model for who quantises it while it is loaded."""
    (line,) = said(plan(llama(40), T4, quantization="bitsandbytes"))
    assert line.endswith("Use a smaller model.")


def test_tensors_that_may_be_left_out_are_no_reason_to_refuse() -> None:
    """A tower for pictures that text has no use for: it may fit, so it is a warning."""
    model = llama(20, doubtful={"BF16": 8 * GIB})
    assert need(plan(model).spec, model).least_bytes == 12 * GIB
    (line,) = said(plan(model, T4))
    assert line.startswith("warn llama: cuda:0: the weights take 20.0 GiB; ")
    (line,) = said(plan(llama(20, doubtful={"BF16": GIB}), T4))
    assert line.startswith("refuse llama: cuda:0: the weights take 20.0 GiB; ")


def test_what_embeds_may_go_over_its_share() -> None:
    """Without a cache vLLM needs no room beside the weights."""
    one = plan(llama(14.5), T4)
    (line,) = said(replace(one, spec=replace(one.spec, task="embed")))
    assert line.startswith("warn llama: cuda:0: the weights take 14.5 GiB; vLLM may use 13.8")


def test_weights_that_leave_no_room_for_anything_else() -> None:
    """14.9 of 15.0 GiB is no fit: CUDA and activations take about a GiB."""
    assert said(plan(llama(13.9), T4, engine="transformers")) == []
    assert said(plan(llama(14.9), T4, engine="transformers")) == [
        "warn llama: cuda:0: the weights take 14.9 GiB; 15.0 of 15.0 GiB are for them and for "
        "about 1.0 of activations and CUDA. Use a smaller model, or a quantised model (AWQ, GPTQ)."
    ]
    seen = {"cuda:0": Seen(reading=reading(15, 5))}
    assert len(said(plan(llama(9.5), T4, engine="transformers"), seen=seen)) == 1
    assert len(said(plan(llama(13.5, cached=False), T4))) == 1


@pytest.mark.parametrize("odd", ["4G", -1, True, 10**400, None, [4]])
def test_odd_sizes_of_a_cache_crash_nothing(odd: object) -> None:
    """They are the engine's to refuse."""
    for device in (CORES, T4, L4):
        said(plan(llama(1), device, kv_cache_memory_bytes=odd, max_model_len=odd), free_bytes=GIB)


@pytest.mark.parametrize(
    ("stored", "engine", "device", "asked", "dtype", "gib"),
    [
        ("F32", "vllm", T4, None, "float16", 1.0),
        ("F32", "vllm", CORES, None, "bfloat16", 1.0),
        ("F32", "transformers", T4, None, "float32", 2.0),
        ("F32", "transformers", T4, "float16", "float16", 1.0),
        ("BF16", "vllm", CORES, None, "bfloat16", 2.0),
        ("BF16", "transformers", CORES, None, "float32", 4.0),
        ("BF16", "transformers", CORES, "auto", "bfloat16", 2.0),
        ("BF16", "vllm", T4, "float", "float32", 4.0),
        ("F8_E4M3", "vllm", L4, None, "bfloat16", 2.0),
    ],
)
def test_weights_are_counted_as_they_will_be_loaded(
    stored: str, engine: str, device: Device, asked: str | None, dtype: str, gib: float
) -> None:
    """Engines convert numbers while they load; the memory is what they become."""
    kind = {"F32": "float32"}.get(stored, "bfloat16")
    model = llama(2, tensors={stored: 2 * GIB}, dtype=kind)
    args = {} if asked is None else {"dtype": asked}
    spec = plan(model, device, engine=engine, **args).spec
    assert loaded_dtype(spec, model) == dtype
    assert need(spec, model).weights_bytes == gib * GIB


@pytest.mark.parametrize(
    ("args", "token_bytes"),
    [
        ({}, 131_072),
        ({"kv_cache_dtype": "fp8"}, 65_536),
        ({"dtype": "float32"}, 262_144),
        ({"kv_cache_dtype": "turbo"}, None),
    ],
)
def test_a_cache_has_a_number_type_of_its_own(
    args: dict[str, Any], token_bytes: int | None
) -> None:
    """Half for fp8; what is not known is not guessed."""
    assert need(plan(llama(), L4, **args).spec, llama()).token_bytes == token_bytes


def test_a_size_that_is_only_estimated_warns() -> None:
    """Pickled weights tell no more than the size of their file."""
    model = llama(40, tensors={}, parameters=None)
    (line,) = said(plan(model, T4))
    assert line.startswith("warn llama: cuda:0: the weights take 40.0 GiB; ")


def test_a_long_context_is_a_warning_with_a_number() -> None:
    """7 billion weights in 4 bits and 32,768 tokens on a T4: fine; 131,072 tokens: not."""
    model = packed("awq")
    assert said(plan(model, T4, max_model_len=32768)) == []
    assert said(plan(model, T4)) == [
        "warn llama: cuda:0: a sequence of 131,072 tokens needs 16.0 GiB of KV cache; beside the "
        "weights there are about 7.8. Use --max-model-len 63744, or less."
    ]
    assert said(plan(model, T4, max_model_len=-1)) == []  # vLLM fits it
    assert said(plan(model, T4, kv_cache_memory_bytes=GIB)) == []


def test_no_length_fits() -> None:
    """Where the weights leave nothing, another device is the answer."""
    (line,) = said(plan(llama(13.5), T4), devices=[T4, SECOND_T4])
    assert line.endswith(
        "beside the weights there are about 0.0. Use --tensor-parallel-size 2, or a quantised "
        "model (AWQ, GPTQ)."
    )


def test_a_device_that_another_process_fills() -> None:
    """Refused with who it is: vLLM would say that there is no memory for its cache."""
    seen = {"cuda:0": Seen(reading=reading(15, 12.1), others=(OTHER,))}
    (finding,) = found(plan(packed("awq"), T4, max_model_len=100), seen=seen)
    assert sentence(finding) == (
        "llama: cuda:0: the weights take 5.0 GiB; 2.9 of 15.0 GiB are free, used by pid 4711 "
        "(python3) with 12.0 GiB. Free the device, or choose others with --devices."
    )
    assert (finding.severity, finding.passing) == ("refuse", True)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((), ", and the driver does not say who uses the rest"),
        ((Occupant(pid=7),), ", used by pid 7"),
        (
            (Occupant(pid=7, name="this kernel", used_bytes=GIB), OTHER),
            ", used by pid 4711 (python3) with 12.0 GiB, pid 7 (this kernel) with 1.0 GiB",
        ),
    ],
)
def test_who_uses_a_device(others: tuple[Occupant, ...], words: str) -> None:
    """As much as the driver tells; in containers that is little."""
    seen = {"cuda:0": Seen(reading=reading(15, 12.1), others=others)}
    (line,) = said(plan(packed("awq"), T4, max_model_len=100), seen=seen)
    assert f"2.9 of 15.0 GiB are free{words}. Free" in line


def test_a_share_that_is_not_free() -> None:
    """The engine would not start; the part of the memory that would do is named."""
    seen = {"cuda:0": Seen(reading=reading(22.5, 9), others=(OTHER,))}
    assert said(plan(packed("awq"), L4, max_model_len=1000), seen=seen) == [
        "warn llama: cuda:0: 13.5 of 22.5 GiB are free, used by pid 4711 (python3) with 12.0 GiB; "
        "vLLM asks for 20.7 (--gpu-memory-utilization 0.92) and will not start. "
        "Use --gpu-memory-utilization 0.57, or free the device."
    ]
    lower = plan(packed("awq"), L4, max_model_len=1000, gpu_memory_utilization=0.57)
    assert said(lower, seen=seen) == []
    assert said(plan(packed("awq"), L4, engine="transformers"), seen=seen) == []


def test_what_our_own_workers_hold_is_given_back() -> None:
    """They are ended before a load; where nobody can tell what is theirs, nothing is said."""
    one = plan(packed("awq"), T4, max_model_len=100)
    ours = Seen(reading=reading(15, 13, own=13), busy=True)
    unknown = Seen(reading=reading(15, 13), busy=True)
    part = Seen(reading=reading(15, 13, own=1), busy=True, others=(OTHER,))
    assert said(one, seen={"cuda:0": ours}) == []
    assert said(one, seen={"cuda:0": unknown}) == []
    (line,) = said(one, seen={"cuda:0": part})
    assert "3.0 of 15.0 GiB are free" in line
