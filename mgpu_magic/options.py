"""The options of a job, by the names that the magic and the Python API share → `JobSpec`.

Pure; imports `spec`, `sendable`, `functions` and `errors` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from mgpu_magic.errors import SpecError
from mgpu_magic.functions import to_function
from mgpu_magic.spec import BATCHING, JobSpec, ModelSpec

if TYPE_CHECKING:
    from mgpu_magic.sendable import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that describes a job, as the user gave it; None: not given.

    Attributes:
        model: Hub id, local directory, or a dict of engine arguments holding `model`.
        models: Ensemble: `{name: model}`. A model given as a dict may also carry `devices`,
            `replicas`, `tensor_parallel_size`, `engine`, `launcher`, `task`, `sampling`,
            `prompts`, `lora`, `load` and `predict`.
        prompts: Texts, token ids, chats, pairs of texts or vLLM prompt dicts, in any usual
            container; anything that can be pickled for the python engine.
        sampling: Dict of vLLM `SamplingParams` fields, or one dict per prompt.
        engine_args: Dict of engine arguments.
        max_tokens: `SamplingParams.max_tokens`.
        temperature: `SamplingParams.temperature`.
        seed: Seed of the job; each prompt's own is derived from it and its index.
        chat: Send plain text as a user message through the model's chat template.
        devices: `"all"`, `"cpu"`, `"cpu:N"` or indices such as `"0,1"`.
        engine: `"vllm"`, `"transformers"`, `"python"` or `"echo"`; without one, `"python"` where
            there is a `predict`, else `"vllm"`.
        launcher: `"process"`, or `"thread"` for workers within the kernel.
        task: `"generate"`, `"classify"`, `"embed"` or `"score"`.
        choices: Texts; asks for the probability of each as the continuation of a prompt.
        lora: Directory of a LoRA adapter, or one (or None) per prompt.
        load: For the python engine: `load(device) -> state`.
        predict: For the python engine: `predict(state, batch) -> list`.
        batch_size: Prompts per batch; for engines that do not batch by themselves.
        json_schema: Constraint of each answer: a JSON schema, as a dict or as text.
        regex: Constraint of each answer: a regular expression.
        choice: Constraint of each answer: a list of the allowed ones.
        tensor_parallel_size: Devices per copy of the model.
        max_model_len: Engine argument: tokens of prompt and answer together.
        gpu_memory_utilization: Engine argument: part of a GPU's memory to use, 0 to 1.
        stagger: `"auto"`, or seconds between the loads.
        hang_timeout: Seconds without a finished step of the engine (ten times that without news
            of its load) after which a worker is killed and replaced; infinity: never. Without it,
            300 s without a step or a sign of life, and never for the python engine.
        journal: File to which each outcome is added as it comes; a job that is run again takes
            from it what it answered already.
    """

    model: str | PathLike[str] | Mapping[str, Any] | None = None
    models: Mapping[str, Any] | None = None
    prompts: Any = None
    sampling: Any = None
    engine_args: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    chat: bool = False
    devices: str | None = None
    engine: str | None = None
    launcher: str | None = None
    task: str | None = None
    choices: Iterable[str] | None = None
    lora: Any = None
    load: Callable[..., Any] | None = None
    predict: Callable[..., Any] | None = None
    batch_size: int | None = None
    json_schema: Any = None
    regex: str | None = None
    choice: Iterable[str] | None = None
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    stagger: str | float | None = None
    hang_timeout: float | None = None
    journal: str | PathLike[str] | None = None

    @classmethod
    def of(cls, **options: Any) -> Options:
        """The options by name.

        Raises:
            SpecError: There is no option of that name.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]}?" if close else "."
                raise SpecError(
                    f"there is no option {name!r}{hint} Arguments of the engine go into "
                    "engine_args, those of vLLM's SamplingParams into sampling."
                )
        return cls(**options)

    def job(self) -> JobSpec:
        """The job that these options describe.

        Raises:
            SpecError: A required one is missing, two contradict, or a value is out of its range.
        """
        if self.model is not None and self.models is not None:
            raise SpecError("both model and models are given; one model, or an ensemble")
        if self.models is not None:
            if not isinstance(self.models, Mapping):
                raise SpecError(
                    f"models is of type {type(self.models).__name__}; pass a dict {{name: model}}"
                )
            for name in self.models:
                if not isinstance(name, str):
                    raise SpecError(f"models has the name {name!r}; names are text")
            named = dict(self.models)
        elif self.model is not None:
            named = {_short_name(self.model): self.model}
        elif self.predict is not None:
            named = {_function_name(self.predict): {}}
        else:
            raise SpecError('no model: set `model = "..."` or `models = {name: model, ...}`')
        models = tuple(self._model(name, model) for name, model in named.items())
        if self.prompts is None and any(model.prompts is None for model in models):
            raise SpecError("no prompts: set `prompts = [...]`")
        return JobSpec(
            models=models,
            prompts=self.prompts,
            sampling=self._sampling(),
            chat=self.chat,
            devices=device_text(self.devices),
            stagger=_stagger(self.stagger),
            hang_timeout=_seconds("hang_timeout", self.hang_timeout, "seconds, or inf"),
            choices=_choices(self.choices),
            ensemble=self.models is not None,
            journal=_journal(self.journal),
        )

    def _model(self, name: str, model: Any) -> ModelSpec:
        own = dict(model) if isinstance(model, Mapping) else {"model": model}
        if isinstance(own.get("model"), PathLike):
            own["model"] = fspath(own["model"])
        spec: dict[str, Any] = {key: own.pop(key) for key in _MODEL_KEYS if key in own}
        if own.get("predict") is not None:
            spec.setdefault("engine", "python")
        functions = {key: own.pop(key, getattr(self, key)) for key in ("load", "predict")}
        for key in ("engine", "launcher", "task", "lora"):
            if (value := getattr(self, key)) is not None:
                spec.setdefault(key, value)
        if functions["predict"] is not None:
            spec.setdefault("engine", "python")
        if spec.get("engine") == "python":
            spec.setdefault("model", _function_name(functions["predict"]))
        if "model" not in spec:
            raise SpecError(
                f"model {name!r} is a dict without the key 'model'; "
                'pass {"model": hub id or directory, ...}'
            )
        named = _engine_args(own.pop("engine_args", None))
        own = {**_engine_args(self.engine_args), **own, **named}
        for key in ("max_model_len", "gpu_memory_utilization", "batch_size"):
            _fill(own, key, getattr(self, key), "engine_args")
        if self.batch_size is not None and spec.get("engine", "vllm") not in BATCHING:
            raise SpecError(
                "batch_size is for the engines transformers and python; vLLM batches by itself, "
                'up to engine_args["max_num_seqs"]'
            )
        own.update(_functions(spec, functions, told=self.journal is not None))
        _fill(spec, "tensor_parallel_size", self.tensor_parallel_size, f"model {name!r}")
        if "devices" in spec:
            spec["devices"] = _indices(name, spec["devices"])
        if (sampling := spec.get("sampling")) is not None:
            spec["sampling"] = self._merged(sampling, f"models[{name!r}]['sampling']")
        return ModelSpec(name=name, engine_args=own, **spec)

    def _sampling(self) -> Any:
        given = {
            key: getattr(self, key)
            for key in ("max_tokens", "temperature", "seed")
            if getattr(self, key) is not None
        }
        if constraint := self._constraint():
            given["structured_outputs"] = constraint
        if not given:
            return self.sampling
        if self.sampling is None:
            return given
        if isinstance(self.sampling, Mapping):
            return _filled(self.sampling, given, "sampling")
        if "seed" in given:
            raise SpecError(
                "seed is given together with one sampling dict per prompt; "
                "put a seed into each dict instead"
            )
        if isinstance(self.sampling, str) or not isinstance(self.sampling, Iterable):
            return self.sampling  # refused with the prompts
        return [
            _filled(row, given, f"sampling[{index}]") if isinstance(row, Mapping) else row
            for index, row in enumerate(self.sampling)
        ]

    def _constraint(self) -> dict[str, Any]:
        """The constraint of the answers, by vLLM's own names."""
        by_name = {
            "json": self.json_schema,
            "regex": self.regex,
            "choice": None if self.choice is None else list(self.choice),
        }
        given = {name: value for name, value in by_name.items() if value is not None}
        if len(given) > 1:
            raise SpecError(f"an answer follows one constraint; given are {', '.join(given)}")
        return given

    def _merged(self, own: Any, where: str) -> Any:
        """A model's own sampling over the job's; lists (one dict per prompt) are not merged."""
        job = self._sampling()
        if isinstance(own, Mapping):
            return {**job, **own} if isinstance(job, Mapping) else own
        if isinstance(own, Sequence) and not isinstance(own, str):
            return own
        raise SpecError(f"{where} is of type {type(own).__name__}; pass a dict, or one per prompt")


_MODEL_KEYS = (
    "model", "devices", "replicas", "tensor_parallel_size", "engine", "launcher", "task",
    "sampling", "prompts", "lora",
)  # fmt: skip


def _functions(
    spec: Mapping[str, Any], functions: Mapping[str, Any], *, told: bool
) -> dict[str, Function]:
    """The functions that the python engine calls, as they travel to its workers."""
    engine = spec.get("engine", "vllm")
    if engine != "python":
        for name, function in functions.items():
            if function is not None:
                raise SpecError(
                    f"{name} is a function for the python engine, and the engine is {engine!r}; "
                    "leave one of the two out"
                )
        return {}
    if functions["predict"] is None:
        raise SpecError("the python engine calls predict(state, batch); define it in the cell")
    return {
        name: to_function(function, name, live=spec.get("launcher") == "thread", told=told)
        for name, function in functions.items()
        if function is not None
    }


def _function_name(function: Any) -> str:
    return str(getattr(function, "__name__", "predict"))


def _choices(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SpecError(f'choices is {value!r}; pass a list of texts, such as ["A", "B"]')
    choices = tuple(value)
    if not choices:
        raise SpecError("choices is empty; pass two texts or more, or leave it out")
    return choices


def _fill(target: dict[str, Any], key: str, value: object, where: str) -> None:
    """Set `target[key]` from an option of the same name; given in both places is an error."""
    if value is None:
        return
    if key in target:
        option = "--" + key.replace("_", "-")
        raise SpecError(f"{key} is given twice: by {option} and in {where}; keep one of them")
    target[key] = value


def _engine_args(value: Any) -> dict[str, Any]:
    if value is None or isinstance(value, Mapping):
        return dict(value or {})
    raise SpecError(
        f"engine_args is of type {type(value).__name__}; pass a dict of the engine's arguments, "
        'such as {"max_model_len": 4096}'
    )


def _filled(own: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A copy of `own` with the options that were given."""
    copy = dict(own)
    for key, value in given.items():
        _fill(copy, key, value, where)
    return copy


def _short_name(model: Any) -> str:
    """What a single model is called: its id, or a directory's last part."""
    named = model.get("model", "model") if isinstance(model, Mapping) else model
    if not isinstance(named, str | PathLike):
        return type(named).__name__
    text = str(named)
    return text.rstrip("/").rpartition("/")[2] if text[:1] in "/.~" else text


def device_text(devices: Any) -> str | None:
    """A choice of devices as text, however it was written."""
    match devices:
        case None | str():
            return devices
        case int() if not isinstance(devices, bool):
            return str(devices)
        case list() | tuple():
            return ",".join(map(str, devices))
    raise SpecError(f'devices is {devices!r}; pass "all", "cpu:2" or indices such as "0,1"')


def _indices(name: str, devices: Any) -> tuple[int, ...]:
    values = devices.split(",") if isinstance(devices, str) else devices
    values = values if isinstance(values, (list, tuple)) else [values]
    try:
        return tuple(int(value) for value in values)
    except (TypeError, ValueError):
        raise SpecError(
            f"model {name!r}: devices is {devices!r}; pass device indices such as [0, 1]"
        ) from None


def _journal(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | PathLike) or not isinstance(fspath(value), str):
        raise SpecError(f"journal is {value!r}; pass the name of a file, such as answers.jsonl")
    return fspath(value)


def _stagger(value: Any) -> float | None:
    return None if value == "auto" else _seconds("stagger", value, "auto or seconds")


def _seconds(name: str, value: Any, rule: str) -> float | None:
    if value is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool):
            return float(value)
    raise SpecError(f"{name} is {value!r}; pass {rule}")
