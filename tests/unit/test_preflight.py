"""What is refused or warned of before a model is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic.checkpoint import Checkpoint, Quantization, Trouble
from mgpu_magic.fit import loaded_dtype, need, replaced_dtype
from mgpu_magic.preflight import (
    Build,
    Finding,
    Occupant,
    Plan,
    Seen,
    World,
    findings,
    refusal,
    sentence,
    substitutions,
    table,
)
from mgpu_magic.snapshot import Reading
from mgpu_magic.spec import Device, WorkerSpec

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


def gpu(name: str, capability: tuple[int, int], gib: float, index: int = 0) -> Device:
    """A GPU of that generation and memory."""
    return Device(
        kind="cuda",
        index=index,
        name=name,
        mask=str(index),
        capability=capability,
        total_bytes=int(gib * GIB),
    )


P100 = gpu("Tesla P100-PCIE-16GB", (6, 0), 16)
V100 = gpu("Tesla V100-SXM2-16GB", (7, 0), 16)
T4 = gpu("Tesla T4", (7, 5), 15)
SECOND_T4 = gpu("Tesla T4", (7, 5), 15, 1)
A100 = gpu("NVIDIA A100", (8, 0), 40)
L4 = gpu("NVIDIA L4", (8, 9), 22.5)
H200 = gpu("NVIDIA H200", (9, 0), 139)
CORES = Device(kind="cpu", index=0, name="CPU (1 core)", cores=(0,))
MORE_CORES = Device(kind="cpu", index=1, name="CPU (1 core)", cores=(1,))


def llama(gib: float = 15.0, **changes: Any) -> Checkpoint:
    """Llama 3.1 8B, or a model like it of that size."""
    size = int(gib * GIB)
    figures: dict[str, Any] = {
        "tensors": {"BF16": size}, "stored_bytes": size, "parameters": size // 2,
        "dtype": "bfloat16", "layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128,
        "cached": True, "max_positions": 131072, "model_type": "llama", **changes,
    }  # fmt: skip
    return Checkpoint(**figures)


def packed(method: str, scheme: str = "", gib: float = 5.0, **changes: Any) -> Checkpoint:
    """A quantised model."""
    how = Quantization(method=method, bits=None if scheme else 4, scheme=scheme)
    weights = {"tensors": {"I32": int(gib * GIB)}, "dtype": "float16"}
    return llama(gib, quantization=how, **{**weights, **changes})


def plan(checkpoint: Checkpoint, *devices: Device, engine: str = "vllm", **args: Any) -> Plan:
    """A worker that is to load it there."""
    spec = WorkerSpec(
        engine=engine,  # type: ignore[arg-type]  # a name is a name
        model="m",
        engine_args=args,
        devices=devices or (T4,),
    )
    return Plan(model="llama", spec=spec, checkpoint=checkpoint)


def found(*plans: Plan, **world: Any) -> tuple[Finding, ...]:
    """Findings on a machine of these plans' devices."""
    devices = [device for one in plans for device in one.spec.devices]
    return findings(plans, World(**{"devices": devices, **world}))


def said(*plans: Plan, **world: Any) -> list[str]:
    """The same as lines, each with its severity."""
    return [f"{finding.severity} {sentence(finding)}" for finding in found(*plans, **world)]


# --- the card --------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize("asked", ["bfloat16", "bf16", "torch.bfloat16"])
@pytest.mark.parametrize("device", [V100, T4])
def test_a_card_without_bfloat16_refuses_it(engine: str, asked: str, device: Device) -> None:
    """What you asked for is not changed silently; the hint is vLLM's."""
    (line,) = said(plan(llama(1), device, engine=engine, dtype=asked, max_model_len=100))
    version = "7.0" if device is V100 else "7.5"
    assert line == (
        f'refuse llama: {device.label}: dtype is "bfloat16"; {device.name} ({version}) does not '
        'have it (8.0 does). Use dtype="half", or leave dtype out.'
    )


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


# --- the memory of the card ------------------------------------------------------------------


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
    assert need(spec, packed("awq")).certain


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


def reading(total: float, used: float = 0.0, own: float | None = None) -> Reading:
    """Memory in GiB."""
    return Reading(
        used_bytes=int(used * GIB),
        total_bytes=int(total * GIB),
        own_bytes=None if own is None else int(own * GIB),
    )


OTHER = Occupant(pid=4711, name="python3", used_bytes=12 * GIB)


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


# --- the host --------------------------------------------------------------------------------


def test_host_memory_of_cpu_workers() -> None:
    """Each has the whole model: together they take more than there is."""
    one, two = plan(llama(10), CORES), plan(llama(10), MORE_CORES)
    assert said(one, free_bytes=20 * GIB, total_bytes=24 * GIB) == []
    assert said(one, two, free_bytes=20 * GIB, total_bytes=24 * GIB) == [
        "warn llama: 2 workers would take 20.0 GiB of weights with 4.0 GiB of KV cache; 20.0 GiB "
        "of host memory are free. Use --devices cpu:1."
    ]
    assert said(one, free_bytes=5 * GIB, total_bytes=8 * GIB) == [
        "refuse llama: the weights take 10.0 GiB; the host has 8.0 GiB. Use a smaller model, or a "
        "quantised one."
    ]


def test_weights_that_do_not_fit_the_host_of_a_gpu() -> None:
    """On their way to the device they pass through the host."""
    one = plan(llama(15), H200)
    assert said(one, free_bytes=16 * GIB) == []
    assert said(one, free_bytes=12 * GIB) == [
        "warn llama: the weights' files have 15.0 GiB; 12.0 GiB of host memory are free. Loading "
        "may be slow, or be ended by the system: free some memory."
    ]


@pytest.mark.parametrize(
    ("built", "driver", "line"),
    [
        ((12, 8), (12, 8), None),
        ((12, 8), (13, 0), None),
        ((12, 8), None, None),
        (None, (12, 4), None),
        (
            (12, 8),
            (12, 4),
            "note llama: torch 2 is built for CUDA 12.8; the driver runs CUDA 12.4. That works as "
            "a rule: both are of one major version.",
        ),
        (
            (13, 0),
            (12, 8),
            "refuse llama: torch 2 is built for CUDA 13.0; the driver runs CUDA 12.8. Update the "
            "driver, or install a build for CUDA 12.",
        ),
    ],
)
def test_the_driver_and_the_build(
    built: tuple[int, int] | None, driver: tuple[int, int] | None, line: str | None
) -> None:
    """Only an older major version is refused."""
    one, build = plan(llama(1), L4, max_model_len=100), Build(name="torch 2", cuda=built)
    assert said(one, build=build, driver_cuda=driver) == [line] * (line is not None)


# --- files and the hub -----------------------------------------------------------------------


def test_a_model_that_is_not_here_and_may_not_be_asked_for(tmp_path: Path) -> None:
    """At once, and not after the workers have imported their engines."""
    one = plan(Checkpoint(looked_in=tmp_path / "models--m"), T4)
    assert said(one) == []
    assert said(one, offline="HF_HUB_OFFLINE=1") == [
        f"refuse llama: 'm' is no directory here, and is not in {tmp_path}/models--m; "
        "HF_HUB_OFFLINE=1 forbids the hub. Pass the directory that holds config.json, or unset "
        "the variable."
    ]


def test_a_part_of_a_model(tmp_path: Path) -> None:
    """In a directory it is refused; in the hub's cache the rest is downloaded, unless offline."""
    gone = {"missing": ("b.safetensors", "c.safetensors"), "total_bytes": 30 * GIB, "tensors": {}}
    here = plan(llama(10, place=tmp_path, looked_in=tmp_path, **gone), H200)
    assert said(here) == [
        f"refuse llama: {tmp_path} lacks b.safetensors and 1 more; its index names them. Copy the "
        "rest there."
    ]
    cached = plan(llama(10, place=tmp_path / "s", looked_in=tmp_path, **gone), H200)
    assert said(cached, disk_bytes=21 * GIB) == []
    assert said(cached, disk_bytes=19 * GIB) == [
        f"warn llama: 20.0 GiB are to be downloaded; 19.0 GiB are free in {tmp_path}. Set HF_HOME "
        "to a folder of a larger disk."
    ]
    (line,) = said(cached, offline="TRANSFORMERS_OFFLINE=1")
    assert line.startswith(f"refuse llama: {tmp_path}/s lacks b.safetensors and 1 more; ")


@pytest.mark.parametrize(("certain", "severity"), [(True, "refuse"), (False, "warn")])
def test_spoiled_files(certain: bool, severity: str) -> None:
    """Refused where no engine could read them."""
    trouble = Trouble(what="a.safetensors is cut", fix="download the model again", certain=certain)
    one = plan(llama(1, troubles=(trouble,), place="here"), L4, max_model_len=100)
    assert said(one) == [f"{severity} llama: a.safetensors is cut. Download the model again."]


# --- how it is said --------------------------------------------------------------------------


def test_alike_on_several_devices_is_said_once() -> None:
    """Both T4 in one line."""
    plans = [plan(llama(1), device, dtype="bfloat16") for device in (T4, SECOND_T4)]
    (finding,) = [one for one in found(*plans) if one.severity == "refuse"]
    assert finding.devices == ("cuda:0", "cuda:1")


def test_several_refusals_are_one_table() -> None:
    """Aligned, with a column for the models where there are several."""
    one, other = plan(llama(40), T4, dtype="bfloat16"), plan(llama(1), P100)
    headline, header, *rows = refusal(found(one)).splitlines()
    assert headline == "llama cannot be loaded:"
    at = header.index("fix")
    assert header.split() == ["device", "finding", "fix"]
    assert [row[at - 2 : at + 4] for row in rows] == ["  Use ", "  Use "]
    assert [row.split("  ")[0] for row in rows] == ["cuda:0", "cuda:0"]
    headline, header, *rows = refusal(found(one, replace(other, model="small"))).splitlines()
    assert headline == "llama, small cannot be loaded:"
    assert header.split() == ["model", "device", "finding", "fix"]
    assert [row.split()[0] for row in rows] == ["llama", "llama", "small"]
    assert refusal(()) == ""


def test_a_table_is_safe_in_a_page() -> None:
    """Names are text."""
    one = replace(plan(packed("mxfp4"), T4), model="<b>m</b>")
    other = plan(packed("mxfp4"), T4)
    html = table([*found(one), *found(other)]).html()
    assert "<b>" not in html
    assert "&lt;b&gt;m" in html
