"""The options of a job, by the names that the magic and the Python API share → `JobSpec`.

Pure; imports `spec` and `errors` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any

from mgpu_magic.errors import SpecError
from mgpu_magic.spec import JobSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that describes a job, as the user gave it; None: not given.

    Attributes:
        model: Hub id, local directory, or a dict of engine arguments holding `model`.
        models: Ensemble: `{name: model}`. A model given as a dict may also carry `devices`,
            `replicas`, `tensor_parallel_size`, `engine`, `sampling` and `prompts`.
        prompts: Texts, token ids, chats or vLLM prompt dicts, in any usual container.
        sampling: Dict of vLLM `SamplingParams` fields, or one dict per prompt.
        engine_args: Dict of engine arguments.
        max_tokens: `SamplingParams.max_tokens`.
        temperature: `SamplingParams.temperature`.
        seed: Seed of the job; each prompt's own is derived from it and its index.
        chat: Send plain text as a user message through the model's chat template.
        devices: `"all"`, `"cpu"`, `"cpu:N"` or indices such as `"0,1"`.
        engine: `"vllm"` or `"echo"`.
        tensor_parallel_size: Devices per copy of the model.
        max_model_len: Engine argument: tokens of prompt and answer together.
        gpu_memory_utilization: Engine argument: part of a GPU's memory to use, 0 to 1.
        stagger: `"auto"`, or seconds between the loads.
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
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    stagger: str | float | None = None

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
            ensemble=self.models is not None,
        )

    def _model(self, name: str, model: Any) -> ModelSpec:
        own = dict(model) if isinstance(model, Mapping) else {"model": model}
        if isinstance(own.get("model"), PathLike):
            own["model"] = fspath(own["model"])
        if "model" not in own:
            raise SpecError(
                f"model {name!r} is a dict without the key 'model'; "
                'pass {"model": hub id or directory, ...}'
            )
        spec: dict[str, Any] = {key: own.pop(key) for key in _MODEL_KEYS if key in own}
        named = _engine_args(own.pop("engine_args", None))
        own = {**_engine_args(self.engine_args), **own, **named}
        for key in ("max_model_len", "gpu_memory_utilization"):
            _fill(own, key, getattr(self, key), "engine_args")
        _fill(spec, "tensor_parallel_size", self.tensor_parallel_size, f"model {name!r}")
        if self.engine is not None:
            spec.setdefault("engine", self.engine)
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

    def _merged(self, own: Any, where: str) -> Any:
        """A model's own sampling over the job's; lists (one dict per prompt) are not merged."""
        job = self._sampling()
        if isinstance(own, Mapping):
            return {**job, **own} if isinstance(job, Mapping) else own
        if isinstance(own, Sequence) and not isinstance(own, str):
            return own
        raise SpecError(f"{where} is of type {type(own).__name__}; pass a dict, or one per prompt")


_MODEL_KEYS = (
    "model", "devices", "replicas", "tensor_parallel_size", "engine", "sampling", "prompts",
)  # fmt: skip


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
    text = str(model.get("model", "model") if isinstance(model, Mapping) else model)
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


def _stagger(value: Any) -> float | None:
    if value is None or value == "auto":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SpecError(f"stagger is {value!r}; pass auto or seconds") from None
