"""Where a model lies and how big it is, known before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.prompts import to_requests
from mgpu_magic.spec import Device, ModelSpec, WorkerSpec
from mgpu_magic.weights import remote, resolve, scheme, weights_bytes, with_adapters

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic.spec import EngineName


def write(path: Path, size: int) -> Path:
    """A file of so many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in `models/tiny` of the current directory, which is also the home."""
    write(tmp_path / "models/tiny/model.safetensors", 10)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("model", ["models/tiny", "./models/tiny", "~/models/tiny", "models/tiny/"])
def test_a_directory_is_sent_as_an_absolute_path(folder: Path, model: str) -> None:
    """A worker finds the same directory, wherever it runs."""
    assert resolve(model) == str(folder / "models/tiny")


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B-Instruct-AWQ", "gpt2", "models/big"])
def test_a_hub_id_stays_as_it_is(folder: Path, model: str) -> None:
    """What is no directory here is left to the engine."""
    assert folder.exists()
    assert resolve(model) == model


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("/nowhere/models/tiny", "/"),
        ("./models/big", "models"),
        ("../nowhere/big", ".."),
        ("~/models/big/1", "{folder}/models"),
    ],
)
def test_a_path_to_nothing_is_refused(folder: Path, model: str, known: str) -> None:
    """It names the part of the path that exists; an engine would take it for a bad hub id."""
    with pytest.raises(SpecError) as refused:
        resolve(model)
    assert str(refused.value) == (
        f"model {model!r}: there is no such directory ({known.format(folder=folder)} exists); "
        "pass the directory that holds config.json, or a hub id"
    )


def test_the_size_of_a_directory(tmp_path: Path) -> None:
    """All shards count, in folders below too; what is no weight does not."""
    write(tmp_path / "model-1.safetensors", 10)
    write(tmp_path / "unet/model-2.safetensors", 20)
    write(tmp_path / "tokenizer.json", 1000)
    assert weights_bytes(str(tmp_path), {}) == 30


def test_one_format_counts(tmp_path: Path) -> None:
    """A directory with the same weights in two formats is not twice as big."""
    write(tmp_path / "pytorch_model.bin", 40)
    assert weights_bytes(str(tmp_path), {}) == 40
    write(tmp_path / "model.safetensors", 30)
    assert weights_bytes(str(tmp_path), {}) == 30


def test_the_size_of_a_file(tmp_path: Path) -> None:
    """A model may be one file."""
    assert weights_bytes(str(write(tmp_path / "model.gguf", 7)), {}) == 7


@pytest.mark.parametrize(
    ("variables", "cache"),
    [
        ({"HF_HUB_CACHE": "{0}/hub", "HF_HOME": "/elsewhere"}, "hub"),
        ({"HF_HOME": "{0}/hf"}, "hf/hub"),
        ({"XDG_CACHE_HOME": "{0}/xdg"}, "xdg/huggingface/hub"),
        ({}, ".cache/huggingface/hub"),
    ],
)
def test_the_size_of_a_downloaded_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], cache: str
) -> None:
    """It is read from the hub's cache, where a file that two revisions share counts once."""
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / cache / "models--org--tiny"
    blob = write(model / "blobs/abc", 12)
    for revision in ("one", "two"):
        link = model / "snapshots" / revision / "model.safetensors"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    environ = {name: value.format(tmp_path) for name, value in variables.items()}
    assert weights_bytes("org/tiny", environ) == 12
    assert weights_bytes("org/other", environ) is None


def test_the_scheme_of_the_weights(tmp_path: Path) -> None:
    """It is read from the model's own files, and what the user asked for goes before it."""
    assert scheme("owner/name", {}) == ""
    assert scheme("owner/name", {"dtype": "half", "seed": 1}) == "dtype half"
    config = tmp_path / "config.json"
    config.write_text('{"quantization_config": {"quant_method": "awq", "bits": 4}}')
    assert scheme(str(tmp_path), {}) == "quantization awq"
    asked = {"dtype": "half", "quantization": "gptq"}
    assert scheme(str(tmp_path), asked) == "quantization gptq, dtype half"
    for broken in ("{", "[]", '{"quantization_config": null}'):
        config.write_text(broken)
        assert scheme(str(tmp_path), {}) == ""


def test_a_model_without_weights_has_no_size(tmp_path: Path) -> None:
    """Unknown is None, not 0: it counts as a model of mean size."""
    write(tmp_path / "config.json", 5)
    assert weights_bytes(str(tmp_path), {}) is None
    write(tmp_path / "model.safetensors", 0)
    assert weights_bytes(str(tmp_path), {}) is None


# --- adapters --------------------------------------------------------------------------------


def adapter(path: Path, **config: object) -> Path:
    """A directory with the configuration of an adapter."""
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def fitted(lora: object, *, count: int = 1, engine: Any = "vllm", **args: Any) -> ModelSpec:
    """The model as it is loaded for prompts with these adapters."""
    model = ModelSpec(name="m", model="m", engine=engine, engine_args=args, lora=lora)
    return with_adapters(model, to_requests(["text"] * count, lora=lora))[0]


def test_a_job_without_adapters_stays_as_it_is() -> None:
    """No model pays for adapters that nobody asked for."""
    model = ModelSpec(name="m", model="m", engine_args={"seed": 1})
    prepared = to_requests(["a", "b"], lora=[None, None])
    assert with_adapters(model, prepared) == (model, prepared)


@pytest.mark.parametrize(
    ("ranks", "allowed"),
    [([8], 16), ([16], 16), ([17], 32), ([8, 64, 16], 64), ([320], 320), ([1], 16)],
)
def test_vllm_is_loaded_for_the_largest_rank(
    tmp_path: Path, ranks: list[int], allowed: int
) -> None:
    """The rank is one that vLLM knows, and no memory is spent for more adapters than there are."""
    paths = [adapter(tmp_path / str(place), r=rank) for place, rank in enumerate(ranks)]
    assert fitted(paths, count=len(paths)).engine_args == {
        "enable_lora": True,
        "max_lora_rank": allowed,
        "max_loras": len(ranks),
    }


def test_a_rank_of_single_layers_counts(tmp_path: Path) -> None:
    """An adapter may have a larger rank in some layers."""
    path = adapter(tmp_path / "one", r=8, rank_pattern={"q_proj": 128, "v_proj": 4})
    assert fitted(path).engine_args["max_lora_rank"] == 128


def test_many_adapters_share_the_places_on_a_device(tmp_path: Path) -> None:
    """Each costs memory, so a few are there at once and the others wait."""
    paths = [adapter(tmp_path / str(place), r=8) for place in range(9)]
    assert fitted(paths, count=9).engine_args["max_loras"] == 4


def test_the_users_own_arguments_of_adapters_stay(tmp_path: Path) -> None:
    """What the user says of adapters is not replaced, and the rest is added."""
    path = adapter(tmp_path / "one", r=8)
    own = {"max_loras": 7, "max_lora_rank": 64, "seed": 3}
    assert fitted(path, **own).engine_args == {"enable_lora": True, **own}


@pytest.mark.parametrize(
    ("rank", "args", "limit"),
    [
        (64, {"max_lora_rank": 16}, r'the limit is 16 \(engine_args\["max_lora_rank"\]\)$'),
        (600, {}, r'the limit is 512 \(engine_args\["max_lora_rank"\], the largest that vLLM has'),
    ],
)
def test_a_rank_that_does_not_fit_is_refused(
    tmp_path: Path, rank: int, args: dict[str, int], limit: str
) -> None:
    """It is said before anything is loaded, with the rank, the limit and where it is set."""
    path = adapter(tmp_path / "wide", r=rank)
    with pytest.raises(SpecError, match=f"model 'm': the adapter {path} has rank {rank}, {limit}"):
        fitted(path, **args)


def test_adapters_are_sent_as_absolute_paths(folder: Path) -> None:
    """A worker finds the same directory, for each prompt its own or none."""
    adapter(folder / "adapters/one", r=8)
    model = ModelSpec(name="m", model="m")
    lora = ["adapters/one", None, "~/adapters/one", "org/adapter"]
    _, prepared = with_adapters(model, to_requests(["text"] * 4, lora=lora))
    path = str(folder / "adapters/one")
    assert [request.lora for request in prepared.requests] == [path, None, path, "org/adapter"]


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"r": "many"}', '{"r": null}', '{"r": 8, "rank_pattern": 3}']
)
def test_a_configuration_that_says_no_rank_is_refused(tmp_path: Path, text: str) -> None:
    """It names the file that is wrong."""
    (tmp_path / "adapter_config.json").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=f"{tmp_path}/adapter_config.json cannot be read"):
        fitted(tmp_path)


def test_an_adapter_that_is_not_there_is_refused(folder: Path) -> None:
    """The message is about the adapter, not the model."""
    assert folder.exists()
    with pytest.raises(SpecError) as refused:
        fitted("./adapters/two")
    assert str(refused.value) == (
        "lora './adapters/two': there is no such directory (. exists); "
        "pass the directory that holds adapter_config.json, or a hub id"
    )


def test_transformers_has_one_adapter_per_model(tmp_path: Path) -> None:
    """It is an argument of the engine there; two, or one for some prompts, are refused."""
    one, two = adapter(tmp_path / "one", r=8), adapter(tmp_path / "two", r=8)
    assert fitted(one, engine="transformers").engine_args == {"lora": str(one)}
    for mixed in [one, two], [one, None]:
        with pytest.raises(SpecError, match="transformers loads one adapter per model"):
            fitted(mixed, count=2, engine="transformers")


@pytest.mark.parametrize(
    ("engine", "model", "engine_args", "expected"),
    [
        ("vllm", "owner/name", {}, True),
        ("transformers", "owner/name", {}, True),
        ("transformers", "{folder}", {"lora": "owner/name"}, True),
        ("vllm", "{folder}", {"tokenizer": "owner/name"}, True),
        ("vllm", "{folder}", {}, False),
        ("echo", "owner/name", {}, False),
    ],
)
def test_what_may_have_to_be_downloaded(
    tmp_path: Path, engine: EngineName, model: str, engine_args: dict[str, str], expected: bool
) -> None:
    """A model, adapter or tokenizer by its hub id, for an engine that reads files."""
    device = Device(kind="cpu", index=0, name="CPU", cores=(0,))
    worker = WorkerSpec(
        engine=engine,
        model=model.format(folder=tmp_path),
        engine_args=engine_args,
        devices=(device,),
    )
    assert remote(worker) is expected
