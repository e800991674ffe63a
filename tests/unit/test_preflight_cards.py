"""What a card's generation cannot do is said before a model is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from plans import (
    A100,
    CORES,
    H200,
    L4,
    P100,
    SECOND_T4,
    T4,
    V100,
    llama,
    packed,
    plan,
    said,
)

from mgpu_magic.findings import (
    Build,
)
from mgpu_magic.fit import replaced_dtype
from mgpu_magic.preflight import substitutions

if TYPE_CHECKING:
    from mgpu_magic.spec import Device


@pytest.mark.parametrize("asked", ["bfloat16", "bf16", "torch.bfloat16"])
@pytest.mark.parametrize("device", [V100, T4])
def test_a_card_without_bfloat16_refuses_it(asked: str, device: Device) -> None:
    """What you asked for is not changed silently; the hint is vLLM's."""
    (line,) = said(plan(llama(1), device, dtype=asked, max_model_len=100))
    version = "7.0" if device is V100 else "7.5"
    assert line == (
        f'refuse llama: {device.label}: dtype is "bfloat16"; {device.name} ({version}) does not '
        'have it (8.0 does). Use dtype="half", or leave dtype out.'
    )


def test_torch_makes_do_without_bfloat16() -> None:
    """Slowly, which is worth a word and no refusal."""
    assert said(plan(llama(1), T4, engine="transformers", dtype="bfloat16")) == [
        'note llama: cuda:0: dtype is "bfloat16"; Tesla T4 (7.5) does not have it (8.0 does): it '
        'will be slow. Use dtype="half", or leave dtype out.'
    ]


def test_another_kernel_than_the_models_own_is_left_to_vllm() -> None:
    """`quantization="moe_wna16"` may run where AWQ's own kernel does not."""
    assert said(plan(packed("awq"), V100, quantization="moe_wna16", max_model_len=100)) == []
    assert len(said(plan(packed("awq"), V100, quantization="awq", max_model_len=100))) == 1


@pytest.mark.parametrize("device", [A100, L4, H200, CORES])
def test_others_have_bfloat16(device: Device) -> None:
    """Nothing is said, and nothing put in its place."""
    one = plan(llama(1), device, dtype="bfloat16", max_model_len=100)
    assert said(one) == []
    assert replaced_dtype(plan(llama(1), device).spec, llama(1)) is None


@pytest.mark.parametrize(
    ("device", "args", "family", "dtype"),
    [
        (T4, {}, "llama", "float16"),
        (T4, {"dtype": "auto"}, "llama", "float16"),
        (T4, {"dtype": "float32"}, "llama", None),
        (T4, {}, "gemma3_text", "float32"),  # float16 overflows in it
        (replace(T4, capability=None), {}, "llama", None),
    ],
)
def test_what_stands_in_for_bfloat16(
    device: Device, args: dict[str, Any], family: str, dtype: str | None
) -> None:
    """Float16 on a T4, as vLLM itself would choose; your own choice stays."""
    model = llama(model_type=family)
    assert replaced_dtype(plan(model, device, **args).spec, model) == dtype


def test_what_stands_in_is_said_once() -> None:
    """One line for all devices."""
    before = [plan(llama(), T4), plan(llama(), SECOND_T4), plan(llama(), L4)]
    after = [
        replace(one, spec=replace(one.spec, engine_args={"dtype": "float16"})) for one in before[:2]
    ]
    assert substitutions(zip(before, [*after, before[2]], strict=True)) == (
        "llama: cuda:0, cuda:1: float16 instead of the model's bfloat16, which Tesla T4 (7.5) does "
        "not have.",
    )


def test_a_card_that_vllm_does_not_support() -> None:
    """A P100 is refused by name, with what to choose; that is all that is said of it."""
    assert said(plan(packed("fp8"), P100, dtype="bfloat16")) == [
        "refuse llama: cuda:0: the device is a Tesla P100-PCIE-16GB (6.0); vLLM needs compute "
        "capability 7.0. Choose T4 x2 or L4 x4 on Kaggle, or --engine transformers."
    ]


def test_a_torch_without_code_for_an_old_card() -> None:
    """`torch.cuda.is_available()` is true there, and the first operation fails."""
    one = plan(llama(1), P100, engine="transformers")
    assert said(one, build=Build(name="torch 2.9.0+cu126", cuda=(12, 6))) == []
    assert said(one, build=Build(name="torch 2.11.0+cu128", cuda=(12, 8))) == [
        "warn llama: cuda:0: the device is a Tesla P100-PCIE-16GB (6.0); torch 2.11.0+cu128 may "
        "have no code for it. Install a build for CUDA 12.6, or choose another GPU."
    ]


@pytest.mark.parametrize(
    ("method", "scheme", "fine", "refused"),
    [
        ("awq", "", [T4, L4, H200], [V100]),
        ("gptq", "", [V100, T4], []),
        ("fp8", "", [T4, A100, H200], [V100]),
        ("mxfp4", "", [A100, H200], [T4, V100]),
        ("compressed-tensors", "W8A8-int", [T4], [V100]),
        ("compressed-tensors", "W4A8-fp", [H200], [L4, T4]),
        ("compressed-tensors", "", [V100, T4], []),  # not known: left to vLLM
        ("brand-new", "", [V100], []),
    ],
)
def test_quantisation_needs_a_generation(
    method: str, scheme: str, fine: list[Device], refused: list[Device]
) -> None:
    """Only what is known to be refused by vLLM is refused before loading."""
    model = packed(method, scheme)
    for device in fine:
        assert said(plan(model, device, max_model_len=100)) == []
    for device in refused:
        (line,) = said(plan(model, device, max_model_len=100))
        assert line.startswith(f"refuse llama: cuda:0: the weights are {model.quantization}; ")
        assert device.name in line


def test_a_generation_that_is_not_known_is_no_reason() -> None:
    """Without NVML a device tells nothing."""
    unknown = replace(P100, capability=None, total_bytes=None)
    assert said(plan(packed("mxfp4"), unknown, dtype="bfloat16")) == []
