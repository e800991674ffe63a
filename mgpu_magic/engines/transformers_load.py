"""Loads a model and its tokenizer for one worker, which may be one of several threads.

```
WorkerSpec ─ Settings.of ─> load ──┬─ LOADING (one at a time in this process)
                                   │    config, dtype, weights, adapter, tokenizer
                                   └─ LoadedModel: on its device, nothing left on "meta"
```
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mgpu_magic.engines.cuda import device_name
from mgpu_magic.engines.transformers_settings import chosen_dtype, limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mgpu_magic.engines.transformers_settings import Settings
    from mgpu_magic.spec import Device, WorkerSpec

LOADING = threading.Lock()
"""Held around every `from_pretrained`: it patches global state while it runs, and two at once
give weights that were never read, without an error."""

_CLASSES = {
    "generate": "AutoModelForCausalLM",
    "classify": "AutoModelForSequenceClassification",
    "score": "AutoModelForSequenceClassification",
    "embed": "AutoModel",
}
_NO_LIMIT = 10**9  # tokenizers say 1e30 where they know none


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that can be called.

    Attributes:
        model: In evaluation mode, on `device`.
        tokenizer: The worker's own.
        device: A `torch.device`.
        label: Label of the worker's device, such as `"cuda:0"`.
        limit: Tokens that it reads at most; None: not known.
        vocabulary: Token ids are below this.
        pad_id: What fills the rows of a batch up.
        accepts: Names of the arguments that its `forward` takes.
        notes: What was decided for the user.
        undo: Puts a model that the user built back to where it was.
    """

    model: Any
    tokenizer: Any
    device: Any
    label: str
    limit: int | None
    vocabulary: int
    pad_id: int
    accepts: frozenset[str]
    notes: tuple[str, ...]
    undo: Callable[[], None] = field(default=lambda: None)

    def put_right(self) -> None:
        """Have it in evaluation mode and in its place: its owner may have used it meanwhile."""
        if self.model.training:
            self.model.eval()
        if next(self.model.parameters()).device != self.device:
            self.model.to(self.device)


def load(spec: WorkerSpec, settings: Settings) -> LoadedModel:
    """Load what the worker needs; others that load in this process wait meanwhile.

    Raises:
        ImportError: The adapter needs peft.
        OSError, ValueError: The model cannot be loaded, or not for this task.
        RuntimeError: Weights were not loaded.
    """
    import torch

    device = torch.device(device_name(spec))
    notes: list[str] = []
    with LOADING, _without_bars():
        if isinstance(spec.model, str):
            model, undo = _from_files(spec, settings, device, notes), lambda: None
        else:
            model, undo = _from_object(spec.model, device, notes)
        tokenizer = _tokenizer(spec, settings, model)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    heads = spec.task in ("classify", "score") and settings.batch_size > 1
    built = not isinstance(spec.model, str)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        device=device,
        label=spec.label,
        limit=_limit(spec, model, tokenizer, settings, notes),
        vocabulary=vocabulary,
        pad_id=_pad(model, tokenizer, vocabulary, notes, needed=heads, built=built),
        accepts=frozenset(inspect.signature(_inner(model).forward).parameters),
        notes=tuple(notes),
        undo=undo,
    )


def _from_files(spec: WorkerSpec, settings: Settings, device: Any, notes: list[str]) -> Any:
    import transformers

    if (Path(spec.model) / "adapter_config.json").is_file() and not (
        Path(spec.model) / "config.json"
    ).is_file():
        raise ValueError(
            f"{spec.model} is an adapter, not a model; pass its base model as `model` and this "
            "directory as `lora`"
        )
    source = {
        "revision": settings.revision,
        "trust_remote_code": settings.trust_remote_code,
        "subfolder": settings.subfolder,
    }
    config = transformers.AutoConfig.from_pretrained(spec.model, **_given(source))
    adapter = _adapter_weights(settings.lora)
    if spec.task != "generate":
        _take_label_count(config, adapter)
    options = {
        **source,
        "dtype": _dtype(config, settings, spec.devices[0], device, notes),
        "attn_implementation": settings.attn_implementation,
        "quantization_config": settings.quantization_config,
        "device_map": _device_map(device),
    }
    cls = getattr(transformers, _CLASSES[spec.task])
    model, keys = cls.from_pretrained(
        spec.model, config=config, output_loading_info=True, **_given(options)
    )
    missing = set(keys["missing_keys"]) - adapter.keys()
    if spec.task == "embed":  # the vector is pooled from the last layer, not by this head
        missing = {key for key in missing if "pooler" not in key.split(".")}
    if missing and not settings.allow_new_weights:
        raise ValueError(_complaint(spec, missing))
    _refuse_meta(model)
    if settings.lora is not None:
        import peft

        model = peft.PeftModel.from_pretrained(model, settings.lora, torch_device=str(device))
        _refuse_meta(model)
    if next(model.parameters()).device != device:
        model.to(device)
    return model.eval()


def _from_object(model: Any, device: Any, notes: list[str]) -> tuple[Any, Callable[[], None]]:
    """The user's own model, used as it is, but for its place and mode."""
    _refuse_meta(model)
    before, training = next(model.parameters()).device, model.training
    if before != device:
        model.to(device)
        notes.append(f"your {type(model).__name__} was moved from {before} to {device}")
    if training:
        model.eval()
        notes.append(f"your {type(model).__name__} was set to evaluation mode")

    def undo() -> None:
        if before != device:
            model.to(before)
        model.train(training)

    return model, undo


def _tokenizer(spec: WorkerSpec, settings: Settings, model: Any) -> Any:
    """A tokenizer of our own: those of Rust keep the last call's limits in themselves."""
    from transformers import AutoTokenizer

    wanted = settings.tokenizer
    if wanted is not None and not isinstance(wanted, str):
        return copy.deepcopy(wanted)
    if wanted is not None:
        return AutoTokenizer.from_pretrained(wanted, trust_remote_code=settings.trust_remote_code)
    if isinstance(spec.model, str):
        options = {"revision": settings.revision, "subfolder": settings.subfolder}
        return AutoTokenizer.from_pretrained(
            spec.model, trust_remote_code=settings.trust_remote_code, **_given(options)
        )
    name = getattr(model.config, "name_or_path", "")
    if not name:
        raise ValueError(
            f"the tokenizer of your {type(model).__name__} is not known; pass it as "
            'engine_args={"tokenizer": tokenizer}'
        )
    return AutoTokenizer.from_pretrained(name)


def read_json(model: str, name: str, settings: Settings) -> Any:
    """A small file beside the model's weights; None where it has none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(model, name, revision=settings.revision)
    except OSError:  # there is no such file, or the hub cannot be asked
        return None
    return path and json.loads(Path(path).read_text(encoding="utf-8"))


def _adapter_weights(lora: str | None) -> dict[str, Any]:
    """Names, as the base model has them, and weights of an adapter."""
    if lora is None:
        return {}
    try:
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise ImportError(f"the adapter {lora} needs peft ({error}); pip install peft") from error
    weights = load_peft_weights(lora, device="cpu")
    return {key.removeprefix("base_model.model."): value for key, value in weights.items()}


def _take_label_count(config: Any, adapter: dict[str, Any]) -> None:
    """An adapter that was trained with a head tells how many labels that has; no config does."""
    heads = [
        weight.shape[0]
        for key, weight in adapter.items()
        if key.split(".")[0] in ("score", "classifier") and key.endswith(".weight")
        if weight.ndim == 2 and ".lora_" not in key
    ]
    if heads and heads[-1] != config.num_labels:
        config.num_labels = heads[-1]


def _dtype(config: Any, settings: Settings, device: Device, place: Any, notes: list[str]) -> str:
    import torch

    stored = getattr(config.get_text_config(), "dtype", None) or getattr(config, "dtype", None)
    if device.kind == "cuda" and device.capability is None:
        device = replace(device, capability=torch.cuda.get_device_capability(place))
    asked = settings.dtype
    quantized = settings.quantization_config or getattr(config, "quantization_config", None)
    if asked is None and quantized and device.kind == "cpu":
        asked = "auto"
    name, note = chosen_dtype(asked, str(stored).removeprefix("torch."), device)
    known = getattr(torch, name, None)
    if name != "auto" and not (isinstance(known, torch.dtype) and known.is_floating_point):
        raise ValueError(
            f'dtype is {name!r}; pass "float16", "bfloat16", "float32" or "auto", or leave it out'
        )
    if note is not None:
        notes.append(note)
    return name


def _device_map(device: Any) -> dict[str, str] | None:
    """Weights go straight to a GPU where accelerate is there; else through the host's memory."""
    from importlib.util import find_spec

    if device.type == "cpu" or find_spec("accelerate") is None:
        return None
    return {"": str(device)}


def _limit(
    spec: WorkerSpec, model: Any, tokenizer: Any, settings: Settings, notes: list[str]
) -> int | None:
    import torch

    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < 1:  # XLNet says -1 for any number
        positions = None
    said = [tokenizer.model_max_length]
    if spec.task == "embed" and isinstance(spec.model, str):
        own = read_json(spec.model, "sentence_bert_config.json", settings) or {}
        said.append(own.get("max_seq_length") or _NO_LIMIT)
    tables = [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in ("position_embeddings", "embed_positions", "wpe")
        and isinstance(module, torch.nn.Embedding)
    ]
    most = None
    for table in tables:
        rows = table.num_embeddings
        if table.padding_idx is not None:  # RoBERTa and its kin count from the one after
            rows -= table.padding_idx + 1
            notes.append(
                f"this model counts positions from {table.padding_idx + 1}: it reads "
                f"{rows} tokens of its {table.num_embeddings} positions"
            )
        most = min(most or rows, rows, positions or rows)
    return limit(
        tokenizer=min(said) if min(said) < _NO_LIMIT else None,
        positions=positions,
        most=most,
        asked=settings.max_model_len,
        notes=notes,
    )


def _pad(
    model: Any, tokenizer: Any, vocabulary: int, notes: list[str], *, needed: bool, built: bool
) -> int:
    """The id that fills rows up, set where the model's head must know it.

    A head that reads the last token looks for `config.pad_token_id`, which may be None even
    where the tokenizer has a pad token.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is not None and 0 <= config.pad_token_id < vocabulary:
        return int(config.pad_token_id)
    pad = tokenizer.pad_token_id
    if pad is None or pad >= vocabulary:
        eos = tokenizer.eos_token_id
        if eos is None or eos >= vocabulary:
            if not needed:
                return 0  # masked, and nothing looks at it
            raise ValueError(
                "the tokenizer has neither a pad token nor an end-of-text token, and a batch must "
                "be filled up: set tokenizer.pad_token and pass "
                'engine_args={"tokenizer": tokenizer}, or use batch_size=1'
            )
        pad = eos
        notes.extend(["no pad token: the end-of-text token is used for it"] * needed)
    if needed:
        for each in {id(model.config): model.config, id(config): config}.values():
            each.pad_token_id = pad
        whose = f"your {type(model).__name__}'s config.pad_token_id" if built else "pad_token_id"
        notes.append(f"{whose} was None and is {pad} now, as the tokenizer says")
    return int(pad)


def _refuse_meta(model: Any) -> None:
    """Weights on the meta device have no values: what they compute is garbage, or an error."""
    for kind in (model.named_parameters(), model.named_buffers()):
        for name, tensor in kind:
            if tensor.is_meta:
                raise RuntimeError(
                    f"{name} was not loaded (it is on the meta device). That happens where two "
                    "threads load at the same time: does the notebook load a model itself "
                    "meanwhile? Then restart the kernel and load one after the other; or offloaded "
                    "weights, which this engine does not run"
                )


def _complaint(spec: WorkerSpec, missing: Iterable[str]) -> str:
    names = sorted(missing)
    more = f" and {len(names) - 4} more" * (len(names) > 4)
    return (
        f"the files of {spec.model} have no {', '.join(names[:4])}{more}: for task {spec.task} "
        "these weights would be drawn by chance. Pass a model that was trained for it, or "
        'engine_args={"allow_new_weights": True} if chance is what you want'
    )


def _inner(model: Any) -> Any:
    """The model inside of a PEFT wrapper."""
    unwrap = getattr(model, "get_base_model", None)
    return unwrap() if callable(unwrap) else model


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != ""}


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """No progress bars while we load; the user's own setting comes back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    if shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
