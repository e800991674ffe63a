"""What to run and where, as frozen values that are validated on construction.

```
JobSpec ──models──> ModelSpec          what the user asked for
Device ─┐
        ├──> WorkerSpec                one worker: a model on its device(s)
ModelSpec
```

A value of this module can be compared, copied and sent to a worker.
Imports `errors` and `sendable` alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mgpu_magic.errors import SpecError
from mgpu_magic.sendable import plain

EngineName = Literal["vllm", "transformers", "python", "echo"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
BATCHING: tuple[EngineName, ...] = ("transformers", "python")
"""The engines that make their batches as `batch_size` says, on one device each."""
Task = Literal["generate", "classify", "embed", "score"]
TASKS: tuple[Task, ...] = get_args(Task)
LauncherName = Literal["process", "thread"]
LAUNCHERS: tuple[LauncherName, ...] = get_args(LauncherName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device: a GPU (or MIG slice), or a set of CPU cores.

    Attributes:
        kind: `"cuda"` or `"cpu"`.
        index: Position among the devices this kernel may use; what the user types.
        name: Product name, such as `"Tesla T4"`, or `"CPU (1 core)"`.
        mask: Its entry for `CUDA_VISIBLE_DEVICES`; empty for a CPU device.
        uuid: NVML's UUID, where known.
        cores: Core numbers of a CPU device; empty for a GPU.
        total_bytes: Memory of the device in bytes, where known.
        capability: CUDA compute capability, such as `(7, 5)`, where known.
        memory_bandwidth: Bytes per second of a GPU's memory, where known.
    """

    kind: Literal["cuda", "cpu"]
    index: int
    name: str
    mask: str = ""
    uuid: str | None = None
    cores: tuple[int, ...] = ()
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    memory_bandwidth: float | None = field(default=None, compare=False)  # no part of who it is

    def __post_init__(self) -> None:
        if self.kind == "cuda" and not self.mask:
            raise SpecError(f"device {self.index}: a CUDA device needs its visible-devices entry")
        if self.kind == "cpu" and not self.cores:
            raise SpecError(f"device {self.index}: a CPU device needs at least one core")

    @property
    def label(self) -> str:
        """`"cuda:0"` or `"cpu:0"`: how messages and the panel call it."""
        return f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a request, by vLLM's names.

    Attributes:
        fields: `SamplingParams` fields, without the seed where `seed` is given.
        seed: Seed of the whole job: each prompt's own seed is derived from it and the prompt's
            index, so that results do not depend on how prompts were shared out.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None

    @classmethod
    def of(cls, fields: Mapping[str, object], where: str, *, shared: bool) -> Sampling:
        """Validate what the user passed.

        Args:
            fields: The user's dict.
            where: How the user would name it, such as `sampling[3]`.
            shared: Whether many prompts use it: then its seed becomes the job's seed. The seed
                of a dict that belongs to one prompt is kept as it is.

        Raises:
            SpecError: Not a dict, a name that is not text, or a value that is not data.
        """
        if not isinstance(fields, Mapping):
            raise SpecError(
                f"{where} is of type {type(fields).__name__}; pass a dict of SamplingParams "
                'fields, such as {"max_tokens": 64}'
            )
        copy = plain(fields, where)
        for name in copy:
            if not isinstance(name, str):
                raise SpecError(f"{where} has the key {name!r}; keys are SamplingParams fields")
        seed = copy.get("seed")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise SpecError(f'{where}["seed"] is {seed!r}; pass a whole number')
        if shared and seed is not None:
            del copy["seed"]
            return cls(copy, seed)
        return cls(copy)

    def for_index(self, index: int) -> dict[str, Any]:
        """The `SamplingParams` fields for the prompt at `index`."""
        if self.seed is None:
            return dict(self.fields)
        digest = hashlib.blake2b(f"{self.seed}:{index}".encode(), digest_size=4).digest()
        return {**self.fields, "seed": int.from_bytes(digest, "big")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model of a job.

    Attributes:
        name: Its name in an ensemble; the model itself otherwise.
        model: Hub id or local directory; a model that is built already, for a transformers
            engine in a thread.
        engine: Which engine runs it.
        task: What it is asked for.
        launcher: Whether its workers are processes or threads of the kernel.
        engine_args: Arguments of the engine by its own names (`max_model_len`, `dtype`, ...).
        devices: Indices of the devices it may use; None: placement chooses.
        replicas: How many copies; None: as many as its devices hold.
        tensor_parallel_size: Devices per copy.
        sampling: Its own sampling, as the user passed it; None: the job's.
        prompts: Its own prompts, as the user passed them; None: the job's.
        lora: Directory of its adapter, or one per prompt; None: no adapter.
    """

    name: str
    model: Any
    engine: EngineName = "vllm"
    task: Task = "generate"
    launcher: LauncherName = "process"
    engine_args: dict[str, Any] = field(default_factory=dict)
    devices: tuple[int, ...] | None = None
    replicas: int | None = None
    tensor_parallel_size: int = 1
    sampling: Any = None
    prompts: Any = None
    lora: Any = None

    def __post_init__(self) -> None:
        _one_of("engine", self.engine, ENGINES)
        _one_of("task", self.task, TASKS)
        _one_of("launcher", self.launcher, LAUNCHERS)
        self._check_kind()
        self._check_model()
        if not isinstance(self.engine_args, Mapping):
            raise SpecError(
                f"engine_args is of type {type(self.engine_args).__name__}; pass a dict of the "
                'engine\'s arguments, such as {"max_model_len": 4096}'
            )
        args = dict(self.engine_args)
        # A thread shares the kernel's memory: a tokenizer, say, may be an object.
        sent = {k: v for k, v in args.items() if self.launcher == "process" or k not in _LIVE}
        object.__setattr__(self, "engine_args", {**args, **plain(sent, "engine_args")})
        for name, fix in _REFUSED_ENGINE_ARGS.items():
            if name in self.engine_args:
                raise SpecError(f"engine_args[{name!r}] cannot be set: {fix}")
        if self.engine in BATCHING and "batch_size" in self.engine_args:
            _positive("batch_size", self.engine_args["batch_size"])
        self._check_devices()

    @property
    def built(self) -> bool:
        """Whether the model is an object of the kernel instead of a name."""
        return not isinstance(self.model, str)

    def _check_kind(self) -> None:
        if self.engine == "vllm" and self.launcher == "thread":
            raise SpecError(
                "vLLM cannot run in threads: it allows one engine per process. Leave --launcher "
                "out (each device then gets a process), or take --engine transformers"
            )
        if self.engine == "echo" and self.task != "generate":
            raise SpecError(f"the echo engine only generates; task is {self.task!r}")
        if self.lora is not None and self.engine not in ("vllm", "transformers"):
            raise SpecError(f"lora is an adapter of a model; engine {self.engine!r} loads none")
        if self.lora is not None and self.built:
            raise SpecError(
                "lora is loaded together with a model, and this one is built already; load the "
                "adapter where you build it: peft.PeftModel.from_pretrained(model, lora)"
            )
        if self.engine in BATCHING and self.tensor_parallel_size != 1:
            raise SpecError(
                f"tensor_parallel_size is vLLM's; engine {self.engine!r} has one device per copy"
            )

    def _check_model(self) -> None:
        if not self.built:
            if not self.model.strip():
                raise SpecError("model is empty; pass a hub id or a local directory")
            return
        kind = f"{type(self.model).__module__}.{type(self.model).__qualname__}"
        if self.launcher != "thread" or self.engine != "transformers":
            raise SpecError(
                f"model is of type {kind}; pass its hub id or directory as text: each worker "
                "loads its own copy. A transformers model that is built already can be used by "
                "a thread of the kernel: --engine transformers --launcher thread"
            )
        if not (callable(self.model) and hasattr(self.model, "config")):
            raise SpecError(f"model is of type {kind}; pass a hub id, or a transformers model")
        if (self.replicas or 1) > 1 or len(self.devices or (0,)) > 1:
            raise SpecError(
                f"model {self.name!r} is one object and can be on one device alone; pass its "
                "directory to have a copy on each"
            )
        object.__setattr__(self, "replicas", 1)

    def _check_devices(self) -> None:
        _positive("tensor_parallel_size", self.tensor_parallel_size)
        if self.replicas is not None:
            _positive("replicas", self.replicas)
        if self.devices is not None:
            if not self.devices:
                raise SpecError(f"model {self.name!r}: devices is empty; leave it out for all")
            if len(set(self.devices)) != len(self.devices):
                raise SpecError(
                    f"model {self.name!r}: devices {list(self.devices)} names one twice; "
                    "a device runs one worker"
                )


_LIVE = ("tokenizer", "quantization_config")  # engine arguments that may be objects in a thread
_REFUSED_ENGINE_ARGS = {
    "model": "name the model as `model`",
    "device": "choose devices with --devices, or per model with `devices`",
    "tensor_parallel_size": "use --tensor-parallel-size, or the model's `tensor_parallel_size`",
    "data_parallel_size": "each device runs a replica already; choose with --devices",
    "pipeline_parallel_size": "use --tensor-parallel-size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A whole job, as the user asked for it.

    Attributes:
        models: One model, or the models of an ensemble.
        prompts: What the user passed as prompts, for the models without their own.
        sampling: One dict of `SamplingParams` fields, a list of them (one per prompt), or None.
        chat: Wrap plain text as a user message and apply the model's chat template.
        devices: `"all"`, `"cpu"`, `"cpu:N"` or indices such as `"0,1"`; None: the session's.
        stagger: Seconds between loads; None decides by free host memory.
        hang_timeout: Seconds without progress after which a worker is taken to hang; None: what
            is usual for its engine.
        choices: The texts among which each prompt's continuation is to be weighed; else empty.
        ensemble: Whether results are asked for by model name.
        journal: File of the outcomes, to which they are added and from which known ones are taken.
    """

    models: tuple[ModelSpec, ...]
    prompts: Any = None
    sampling: Any = None
    chat: bool = False
    devices: str | None = None
    stagger: float | None = None
    hang_timeout: float | None = None
    choices: tuple[str, ...] = ()
    ensemble: bool = False
    journal: str | None = None

    def __post_init__(self) -> None:
        if self.journal is not None and not self.journal.strip():
            raise SpecError("journal is empty; name a file, such as answers.jsonl")
        if not self.models:
            raise SpecError("no model: name one, or set `models` to a non-empty dict")
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise SpecError(f"two models are named {name!r}; names must differ")
        if self.stagger is not None and not (
            _is_number(self.stagger) and 0 <= self.stagger < float("inf")
        ):
            raise SpecError(f"stagger is {self.stagger!r}; pass auto or seconds of 0 or more")
        if self.hang_timeout is not None and not (
            _is_number(self.hang_timeout) and self.hang_timeout >= 1
        ):
            raise SpecError(
                f"hang_timeout is {self.hang_timeout!r}; pass seconds of 1 or more, or inf to wait "
                "for ever"
            )
        if self.choices:
            self._check_choices()

    def _check_choices(self) -> None:
        for choice in self.choices:
            if not isinstance(choice, str) or not choice:
                raise SpecError(f"choices holds {choice!r}; each choice is a text")
            if any("\ud800" <= character <= "\udfff" for character in choice):
                raise SpecError(f"choices holds {choice!r} with a lone surrogate, which is no text")
            if self.choices.count(choice) > 1:
                raise SpecError(f"choices holds {choice!r} twice; choices differ")
        if len(self.choices) < 2:
            raise SpecError(f"choices is {list(self.choices)}; there is nothing to choose")
        for model in self.models:
            if self.sampling or model.sampling:
                raise SpecError("choices are weighed, not generated; leave the sampling out")
            if model.task != "generate" or model.engine not in ("vllm", "transformers"):
                raise SpecError(
                    f"choices are weighed by a generating model of vllm or transformers; "
                    f"{model.name!r} has task {model.task!r} and engine {model.engine!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker: what it loads and where. Equal specs can share a warm worker.

    Attributes:
        engine: Which engine runs.
        model: Hub id or local directory; in a thread, perhaps the model itself.
        task: What it is asked for.
        launcher: Whether it is a process or a thread of the kernel.
        engine_args: Arguments of the engine by its own names.
        devices: Its device, or the devices of one tensor-parallel group.
        host_share: Part of the host's memory that it may plan with, `0 < host_share <= 1`.
    """

    engine: EngineName
    model: Any
    engine_args: dict[str, Any]
    devices: tuple[Device, ...]
    task: Task = "generate"
    launcher: LauncherName = "process"
    host_share: float = field(default=1.0, compare=False)  # a matter of loading alone

    def __post_init__(self) -> None:
        if not self.devices:
            raise SpecError(f"worker for {self.model_label!r} has no device")
        if not 0 < self.host_share <= 1:
            raise SpecError(f"host_share is {self.host_share}; it lies between 0 and 1")

    @property
    def model_label(self) -> str:
        """The model as text; the type of one that is an object."""
        return self.model if isinstance(self.model, str) else type(self.model).__name__

    @property
    def label(self) -> str:
        """`"cuda:0"`, or `"cuda:0+1"` for a tensor-parallel group."""
        first, *rest = self.devices
        return "+".join([first.label, *(str(device.index) for device in rest)])

    @property
    def memory_bandwidth(self) -> float | None:
        """Bytes per second that its devices read together, the slowest setting the pace."""
        known = [device.memory_bandwidth for device in self.devices if device.memory_bandwidth]
        return len(known) * min(known) if len(known) == len(self.devices) else None


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SpecError(f"{name} {value!r} is unknown; choose one of {', '.join(known)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(f"{name} is {value!r}; pass a whole number of 1 or more")
