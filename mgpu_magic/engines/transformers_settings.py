"""What a transformers worker is told, and what follows from it for a device and a model.

Pure; imports `budgets` alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mgpu_magic.budgets import BFLOAT16_CAPABILITY, DTYPES

if TYPE_CHECKING:
    from mgpu_magic.spec import Device, WorkerSpec

POOLINGS = ("mean", "cls", "last")
_OF_WEIGHTS = (
    "dtype", "allow_new_weights", "revision", "trust_remote_code", "attn_implementation",
    "quantization_config", "subfolder",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Engine arguments of the transformers engine.

    Attributes:
        dtype: Such as `"float16"`, or `"auto"` for the model's own; None: what the device likes.
        tokenizer: Directory or hub id of another tokenizer; in a thread, perhaps an object.
        max_model_len: Tokens of a prompt (and its answer); None: what the model can read.
        batch_size: Prompts per batch.
        pooling: For the task embed: `"mean"`, `"cls"` or `"last"`.
        normalize: For the task embed: whether vectors have the length 1.
        allow_new_weights: Whether weights that the model's files lack may be drawn by chance.
        lora: Directory of a PEFT adapter.
        revision: Of the model on the hub.
        trust_remote_code: Whether code of the model's directory may run.
        attn_implementation: Such as `"sdpa"` or `"eager"`.
        quantization_config: As transformers takes it.
        subfolder: Of the model's directory.
    """

    dtype: str | None = None
    tokenizer: Any = None
    max_model_len: int | None = None
    batch_size: int = 8
    pooling: str | None = None
    normalize: bool | None = None
    allow_new_weights: bool = False
    lora: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    attn_implementation: str | None = None
    quantization_config: Any = None
    subfolder: str = ""

    @classmethod
    def of(cls, spec: WorkerSpec) -> Settings:
        """The worker's settings.

        Raises:
            TypeError: There is no such argument, or it has no meaning here.
            ValueError: A value is out of its range.
        """
        known = [entry.name for entry in fields(cls)]
        if unknown := spec.engine_args.keys() - set(known):
            raise TypeError(
                f"transformers has no engine argument {', '.join(map(repr, sorted(unknown)))}; "
                f"known are {', '.join(known)}"
            )
        if len(spec.devices) > 1:
            raise ValueError(
                f"{spec.label}: transformers uses one device per copy of the model; leave "
                "tensor_parallel_size out, or take the engine vllm"
            )
        settings = cls(**spec.engine_args)
        if not isinstance(spec.model, str):
            for name in _OF_WEIGHTS:
                if name in spec.engine_args:
                    raise TypeError(
                        f"engine_args[{name!r}] is about loading a model, and the model is built "
                        "already; set it where you build it"
                    )
        if spec.task != "embed":
            for name in ("pooling", "normalize"):
                if name in spec.engine_args:
                    raise TypeError(f"engine_args[{name!r}] is for task embed, not {spec.task}")
        return settings

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_model_len"):
            value = getattr(self, name)
            if value is None and name == "max_model_len":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; pass a whole number of 1 or more")
        if self.pooling not in (None, *POOLINGS):
            raise ValueError(f"pooling is {self.pooling!r}; choose one of {', '.join(POOLINGS)}")


def chosen_dtype(asked: str | None, stored: str | None, device: Device) -> tuple[str, str | None]:
    """The dtype to load with, and what to tell the user about it.

    Args:
        asked: What the user asked for.
        stored: What the model's config says, such as `"bfloat16"`.
        device: Where it is to run.

    Raises:
        ValueError: The device cannot do what was asked for.
    """
    capability = device.capability if device.kind == "cuda" else None
    old = capability is not None and capability < BFLOAT16_CAPABILITY
    chip = f"{device.name} (compute capability {'.'.join(map(str, device.capability or ()))})"
    if asked is not None:
        asked = asked.removeprefix("torch.")
        asked = DTYPES.get(asked, asked)
        if asked == "bfloat16" and old:
            raise ValueError(
                f'dtype is "bfloat16", which {chip} does not have (it needs 8.0); '
                'use dtype="float16", or leave dtype out'
            )
        if asked != "auto":
            return asked, None
    elif device.kind == "cpu":
        return "float32", None
    if stored == "bfloat16" and old:
        return "float16", f"float16 instead of the model's bfloat16, which {chip} does not have"
    return "auto", None


def limit(
    *,
    tokenizer: int | None,
    positions: int | None,
    most: int | None,
    asked: int | None,
    notes: list[str],
) -> int | None:
    """Tokens that the model reads at most; None where nothing says.

    Args:
        tokenizer: What the tokenizer says.
        positions: What the config says.
        most: Positions that the model has learned vectors for; more would be an error.
        asked: What the user asked for; goes before what tokenizer and config say.
        notes: What the user should know is added here.
    """
    known = [value for value in (most, positions) if value is not None]
    if asked is None:
        said = [*known] if tokenizer is None else [*known, tokenizer]
        return min(said, default=None)
    if most is not None and asked > most:
        notes.append(f"max_model_len is {asked}, and the model has {most} positions: {most} it is")
        return most
    if known and asked > min(known):
        notes.append(f"max_model_len is {asked}, more than the {min(known)} tokens of its config")
    return asked
