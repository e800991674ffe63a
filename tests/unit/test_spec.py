"""What can be asked for, and what is refused the moment it is written down."""

from __future__ import annotations

import pickle
import threading
from dataclasses import FrozenInstanceError, replace
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.sendable import plain
from mgpu_magic.spec import Device, JobSpec, ModelSpec, Sampling, WorkerSpec

GPU = Device(kind="cuda", index=0, name="Tesla T4", mask="2")
CORE = Device(kind="cpu", index=1, name="CPU (1 core)", cores=(1,))


class Level(IntEnum):
    """A number by name."""

    HIGH = 3


class Name(str, Enum):  # noqa: UP042  # the older kind, whose str() is not its value
    """A text by name."""

    RED = "red"


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: str


class Raw(bytes):
    """Bytes of another class."""


class Halves(list[float]):
    """A list of another class."""


# --- plain data ------------------------------------------------------------------------------


def test_plain_copies() -> None:
    """The copy is equal, and does not change with the user's own."""
    value = {"stop": ["a", ("b", None)], "ids": {1, 2}, "raw": b"x", 3: frozenset({True})}
    copy = plain(value, "sampling")
    assert copy == value
    assert copy["stop"] is not value["stop"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (Level.HIGH, 3),
        (Name.RED, "red"),
        (Pair(1, "a"), (1, "a")),
        (Halves([0.5]), [0.5]),
        (Raw(b"a"), b"a"),
        ({np.str_("a"): 1}, {"a": 1}),
    ],
)
def test_plain_leaves_no_foreign_class(value: object, expected: object) -> None:
    """What a worker gets is made of Python's own types: it may not know the user's classes."""
    copy = plain(value, "x")
    assert copy == expected
    assert type(copy) is type(expected)
    assert b"test_spec" not in pickle.dumps(copy)
    assert b"numpy" not in pickle.dumps(copy)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"stop": len}, "sampling['stop'] is of type builtins.builtin_function_or_method"),
        ({"stop": ["a", lambda: 1]}, "sampling['stop'][1] is of type builtins.function"),
        (threading.Lock(), "sampling is of type _thread.lock"),
        ({"bias": np.array([1.0])}, "sampling['bias'] is of type numpy.ndarray"),
        ({(1, 2): 3}, "sampling has the key (1, 2) of type tuple"),
    ],
)
def test_what_is_not_data_is_named(value: object, said: str) -> None:
    """A function, lock or array is refused by the name that the user gave it."""
    with pytest.raises(SpecError) as caught:
        plain(value, "sampling")
    assert str(caught.value).startswith(said)


# --- devices and workers ---------------------------------------------------------------------


def test_labels() -> None:
    """Devices and workers are called by kind and index; a group by all its indices."""
    second = replace(GPU, index=1, mask="3")
    assert (GPU.label, CORE.label) == ("cuda:0", "cpu:1")
    assert worker(devices=(GPU,)).label == "cuda:0"
    assert worker(devices=(GPU, second)).label == "cuda:0+1"


def test_memory_bandwidth_of_a_worker() -> None:
    """A tensor-parallel group waits for its slowest device in each layer."""
    fast, slow = replace(GPU, memory_bandwidth=9e11), replace(GPU, memory_bandwidth=3e11)
    assert worker(devices=(fast,)).memory_bandwidth == 9e11
    assert worker(devices=(fast, slow)).memory_bandwidth == 6e11
    assert worker(devices=(fast, GPU)).memory_bandwidth is None
    assert worker(devices=(fast,)) == worker(devices=(GPU,))  # warm all the same


def worker(**changes: Any) -> WorkerSpec:
    """An echo worker on one core."""
    fields = {"engine": "echo", "model": "m", "engine_args": {}, "devices": (CORE,)}
    return WorkerSpec(**{**fields, **changes})


def test_equal_workers_can_share_a_process() -> None:
    """The same model with the same arguments on the same device is the same worker."""
    assert worker(engine_args={"seed": 1}) == worker(engine_args={"seed": 1})
    assert worker(engine_args={"seed": 1}) != worker(engine_args={"seed": 2})
    assert worker() != worker(devices=(GPU,))


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_a_share_of_the_host_is_a_part(share: float) -> None:
    """A worker plans with some of the host's memory, never with none or more than all."""
    with pytest.raises(SpecError, match=r"host_share is .*between 0 and 1"):
        worker(host_share=share)
    assert worker(host_share=1).host_share == 1


def test_a_worker_has_a_device() -> None:
    """A worker without a device is refused."""
    with pytest.raises(SpecError, match="worker for 'm' has no device"):
        worker(devices=())


def test_a_device_can_be_reached() -> None:
    """A GPU without its visible-devices entry, or a CPU device without a core, is refused."""
    with pytest.raises(SpecError, match="device 0: a CUDA device needs"):
        Device(kind="cuda", index=0, name="Tesla T4")
    with pytest.raises(SpecError, match="device 1: a CPU device needs"):
        Device(kind="cpu", index=1, name="CPU")


# --- sampling --------------------------------------------------------------------------------


def test_a_jobs_seed_gives_each_prompt_its_own() -> None:
    """With one seed for the job prompts differ from each other, and a rerun does not differ."""
    sampling = Sampling.of({"seed": 7, "max_tokens": 4}, "sampling", shared=True)
    assert sampling == Sampling({"max_tokens": 4}, 7)
    seeds = [sampling.for_index(index)["seed"] for index in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert seeds[3] == Sampling.of({"seed": np.int64(7)}, "s", shared=True).for_index(3)["seed"]
    assert seeds[3] != Sampling({}, 8).for_index(3)["seed"]
    assert sampling.for_index(3)["max_tokens"] == 4


def test_a_prompts_own_seed_is_kept() -> None:
    """The seed in the dict of one prompt goes to the engine as it is."""
    sampling = Sampling.of({"seed": 7}, "sampling[3]", shared=False)
    assert sampling.for_index(3) == {"seed": 7}


def test_no_seed_stays_none() -> None:
    """Without a seed none is made up; each call gives a dict of its own."""
    sampling = Sampling.of({"seed": None, "n": 2}, "sampling", shared=True)
    assert sampling.for_index(0) == {"seed": None, "n": 2}
    sampling.for_index(0)["n"] = 3
    assert sampling.for_index(0)["n"] == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("max_tokens", "sampling is of type str; pass a dict"),
        ({3: 4}, "sampling has the key 3; keys are SamplingParams fields"),
        ({"seed": "7"}, "sampling[\"seed\"] is '7'; pass a whole number"),
        ({"seed": True}, 'sampling["seed"] is True; pass a whole number'),
        ({"seed": 0.5}, 'sampling["seed"] is 0.5; pass a whole number'),
        ({"logits_processors": [len]}, "sampling['logits_processors'][0] is of type"),
    ],
)
def test_wrong_sampling_is_named(fields: Any, said: str) -> None:
    """Wrong sampling is refused by the name of the field."""
    with pytest.raises(SpecError) as caught:
        Sampling.of(fields, "sampling", shared=True)
    assert str(caught.value).startswith(said)


# --- models and jobs -------------------------------------------------------------------------


def test_a_built_model_is_refused() -> None:
    """A model built in the notebook cannot be sent; the message says what to pass."""
    built: Any = threading.Thread()
    with pytest.raises(SpecError, match=r"model is of type threading\.Thread; pass its hub id"):
        ModelSpec(name="m", model=built)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "  "}, "model is empty"),
        (
            {"engine": "tgi"},
            "engine 'tgi' is unknown; choose one of vllm, transformers, python, echo",
        ),
        ({"task": "rank"}, "task 'rank' is unknown; choose one of generate, classify, embed, sc"),
        ({"launcher": "ray"}, "launcher 'ray' is unknown; choose one of process, thread"),
        ({"launcher": "thread"}, "vLLM cannot run in threads: it allows one engine per process"),
        ({"engine": "echo", "task": "embed"}, "the echo engine only generates; task is 'embed'"),
        ({"engine": "echo", "lora": "a"}, "lora is an adapter of a model; engine 'echo' loads"),
        ({"engine": "transformers", "engine_args": {"batch_size": 0}}, "batch_size is 0; pass a w"),
        ({"engine": "python", "tensor_parallel_size": 2}, "tensor_parallel_size is vLLM's; engine"),
        ({"engine_args": {"model": "x"}}, "engine_args['model'] cannot be set: name the model"),
        ({"engine_args": {"device": "cuda:1"}}, "engine_args['device'] cannot be set: choose"),
        ({"engine_args": {"tensor_parallel_size": 2}}, "engine_args['tensor_parallel_size']"),
        ({"engine_args": {"hook": len}}, "engine_args['hook'] is of type"),
        ({"engine_args": ["dtype"]}, "engine_args is of type list; pass a dict"),
        ({"engine_args": None}, "engine_args is of type NoneType; pass a dict"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; pass a whole number"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True; pass a whole number"),
        ({"replicas": 1.5}, "replicas is 1.5; pass a whole number"),
        ({"devices": ()}, "model 'm': devices is empty"),
        ({"devices": (0, 0)}, "model 'm': devices [0, 0] names one twice"),
    ],
)
def test_a_wrong_model_is_named(changes: dict[str, Any], said: str) -> None:
    """Each wrong setting of a model is refused with the value and the rule."""
    with pytest.raises(SpecError) as caught:
        ModelSpec(**{"name": "m", "model": "m", **changes})
    assert str(caught.value).startswith(said)


class Built:
    """What a transformers model looks like from outside."""

    config = object()

    def __call__(self) -> None: ...


def test_a_built_model_can_be_used_in_a_thread() -> None:
    """It is one object, on one device; its tokenizer may be an object too."""
    built, tokenizer = Built(), object()
    args = {"tokenizer": tokenizer, "batch_size": 4}
    spec = ModelSpec(
        name="m", model=built, engine="transformers", launcher="thread", engine_args=args
    )
    assert (spec.built, spec.replicas, spec.model) == (True, 1, built)
    assert spec.engine_args["tokenizer"] is tokenizer


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"launcher": "process"}, "model is of type tests.unit.test_spec.Built; pass its hub id"),
        ({"engine": "echo"}, "model is of type tests.unit.test_spec.Built; pass its hub id"),
        ({"model": object()}, "model is of type builtins.object; pass a hub id, or a transformers"),
        ({"replicas": 2}, "model 'm' is one object and can be on one device alone"),
        ({"devices": (0, 1)}, "model 'm' is one object and can be on one device alone"),
        ({"engine_args": {"dtype": object()}}, "engine_args['dtype'] is of type builtins.object"),
        ({"lora": "adapter"}, "lora is loaded together with a model, and this one is built"),
    ],
)
def test_where_a_built_model_cannot_be(changes: dict[str, Any], said: str) -> None:
    """The message says how it can."""
    fields = {"name": "m", "model": Built(), "engine": "transformers", "launcher": "thread"}
    with pytest.raises(SpecError) as caught:
        ModelSpec(**{**fields, **changes})
    assert str(caught.value).startswith(said)


def test_a_worker_of_a_built_model_has_a_name() -> None:
    """The panel and the log call it by its type."""
    args: dict[str, Any] = {"engine": "transformers", "engine_args": {}, "devices": (CORE,)}
    assert WorkerSpec(model=Built(), **args).model_label == "Built"
    assert WorkerSpec(model="org/m", **args).model_label == "org/m"


@pytest.mark.parametrize(
    ("choices", "changes", "said"),
    [
        (("A",), {}, "choices is ['A']; there is nothing to choose"),
        (("A", ""), {}, "choices holds ''; each choice is a text"),
        (("A", 1), {}, "choices holds 1; each choice is a text"),
        (("A", "B\ud800"), {}, "choices holds 'B\\ud800' with a lone surrogate"),
        (("A", "B", "A"), {}, "choices holds 'A' twice"),
        (("A", "B"), {"sampling": {"max_tokens": 1}}, "choices are weighed, not generated; leave"),
        (("A", "B"), {"task": "embed"}, "choices are weighed by a generating model of vllm or tr"),
        (("A", "B"), {"engine": "echo"}, "choices are weighed by a generating model of vllm or tr"),
    ],
)
def test_wrong_choices_are_named(
    choices: tuple[Any, ...], changes: dict[str, Any], said: str
) -> None:
    """They are two texts or more, for a model that can weigh them."""
    model = ModelSpec(name="m", model="m", **changes)
    with pytest.raises(SpecError) as caught:
        JobSpec(models=(model,), choices=choices)
    assert str(caught.value).startswith(said)


def test_engine_args_are_copied() -> None:
    """Changing the user's dict afterwards does not change the model."""
    arguments = {"max_model_len": 256}
    model = ModelSpec(name="m", model="m", engine_args=arguments, devices=(1, 0), replicas=2)
    arguments["max_model_len"] = 1
    assert model.engine_args == {"max_model_len": 256}


def test_a_job_has_models_with_names_of_their_own() -> None:
    """No model, or two of one name, is refused."""
    model = ModelSpec(name="m", model="x")
    with pytest.raises(SpecError, match="no model: name one"):
        JobSpec(models=())
    with pytest.raises(SpecError, match="two models are named 'm'"):
        JobSpec(models=(model, replace(model, model="y")))
    assert len(JobSpec(models=(model, replace(model, name="n"))).models) == 2


@pytest.mark.parametrize("stagger", [-1, float("nan"), float("inf")])
def test_a_stagger_is_some_seconds(stagger: float) -> None:
    """A delay that is negative or never ends is refused."""
    model = ModelSpec(name="m", model="x")
    with pytest.raises(SpecError, match=r"stagger is .*; pass auto or seconds"):
        JobSpec(models=(model,), stagger=stagger)
    assert JobSpec(models=(model,), stagger=0).stagger == 0


def test_specs_cannot_be_changed() -> None:
    """A spec is a value: what was validated stays what it was."""
    name = "index"
    with pytest.raises(FrozenInstanceError):
        setattr(GPU, name, 5)


@pytest.mark.parametrize("value", [GPU, worker(), Sampling({"n": 2}, 7)])
def test_specs_travel(value: object) -> None:
    """A spec arrives in another process as it was."""
    assert pickle.loads(pickle.dumps(value)) == value
