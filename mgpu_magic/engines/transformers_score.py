"""Forward passes, and what is made of them: logits, vectors and the scores of pairs.

```
rows ── padded ──> input_ids, attention_mask ── model ──┬─> logits       classify, score
                                                        └─> last layer   embed: pooled
ids, mask, KV cache ── decode ──> logits after the new tokens            (transformers_generate)
```
"""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from mgpu_magic.engines.labels import activation
from mgpu_magic.engines.transformers_load import read_json
from mgpu_magic.outcomes import Prediction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mgpu_magic.engines.transformers_load import LoadedModel
    from mgpu_magic.engines.transformers_prompts import Row
    from mgpu_magic.engines.transformers_settings import Settings
    from mgpu_magic.outcomes import Activation

Pooling: TypeAlias = Literal["mean", "cls", "last"]


class Scorer(Protocol):
    """Makes a prediction of each row of a batch, in order. Has notes for the user."""

    notes: tuple[str, ...]

    def __call__(self, rows: Sequence[Row]) -> list[Prediction]:
        """One prediction per row."""


class Classifier:
    """A logit per label."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        config = loaded.model.config
        names = config.id2label
        self._labels = tuple(str(names[place]) for place in sorted(names))
        self._activation = activation(config.problem_type, len(self._labels))
        self.notes: tuple[str, ...] = ()

    def __call__(self, rows: Sequence[Row]) -> list[Prediction]:
        """See `Scorer`."""
        logits = refused_nan(forward(self._loaded, rows).logits.float())
        if logits.ndim != 2 or logits.shape[1] != len(self._labels):
            raise ValueError(
                f"the model gives logits of the shape {tuple(logits.shape[1:])} per prompt and its "
                f"config names {len(self._labels)} labels; a classifier has one logit per label"
            )
        return [
            prediction(
                self._loaded,
                row,
                "classify",
                values,
                labels=self._labels,
                activation=self._activation,
            )
            for row, values in zip(rows, logits.tolist(), strict=True)
        ]


class PairScorer:
    """The score of a cross-encoder: its one logit, through the activation that it was made for.

    Raises:
        ValueError: The model has several labels, or an activation that is not known here.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        config = loaded.model.config
        if config.num_labels != 1:
            raise ValueError(
                f"task score needs a model with one label, and config.num_labels is "
                f"{config.num_labels}; use task classify"
            )
        self._sigmoid = _pair_activation(config) == "Sigmoid"
        self.notes: tuple[str, ...] = ()

    def __call__(self, rows: Sequence[Row]) -> list[Prediction]:
        """See `Scorer`."""
        logits = refused_nan(forward(self._loaded, rows).logits.float()).reshape(len(rows), 1)
        scores = logits.sigmoid() if self._sigmoid else logits
        return [
            prediction(self._loaded, row, "score", values)
            for row, values in zip(rows, scores.tolist(), strict=True)
        ]


class Embedder:
    """One vector per text, pooled from the last layer."""

    def __init__(self, loaded: LoadedModel, pooling: Pooling, *, normalize: bool) -> None:
        self._loaded = loaded
        self._pooling = pooling
        self._normalize = normalize
        self.notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, loaded: LoadedModel, settings: Settings, model: object) -> Embedder:
        """The embedder that settings, or else the model's sentence-transformers files, describe.

        Raises:
            ValueError: Those files ask for something else than is known here.
        """
        found = None
        if isinstance(model, str) and settings.pooling is None:
            found = _sentence_transformer(model, settings)
        pooling: Any = settings.pooling or (found[0] if found else "mean")
        normalize = settings.normalize
        if normalize is None:
            normalize = bool(found and found[1])
        made = cls(loaded, pooling, normalize=normalize)
        if settings.pooling is None and found is None:
            made.notes = (
                f"vectors are the mean over the tokens, {'' if normalize else 'not '}normalised: "
                'the model says nothing of it; choose with engine_args "pooling" and "normalize"',
            )
        return made

    def __call__(self, rows: Sequence[Row]) -> list[Prediction]:
        """See `Scorer`."""
        import torch

        states = forward(self._loaded, rows, headed=False).last_hidden_state.float()
        lengths = torch.tensor([len(row.ids) for row in rows], device=states.device)
        match self._pooling:
            case "cls":
                vectors = states[:, 0]
            case "last":
                vectors = states[torch.arange(len(rows), device=states.device), lengths - 1]
            case "mean":
                places = torch.arange(states.shape[1], device=states.device)
                outside = (places >= lengths[:, None])[:, :, None]
                vectors = states.masked_fill(outside, 0).sum(1) / lengths[:, None]
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return [
            prediction(self._loaded, row, "embed", values)
            for row, values in zip(rows, refused_nan(vectors).tolist(), strict=True)
        ]


def forward(loaded: LoadedModel, rows: Sequence[Row], *, headed: bool = True) -> Any:
    """The model's output for a batch of rows, right-padded (left, where a head reads the end).

    Args:
        loaded: The model.
        rows: A batch.
        headed: Whether a classification head is on top.
    """
    import torch

    # XLNet's head takes the last position, whatever is there.
    left = headed and getattr(loaded.model.config, "summary_type", None) == "last"
    ids, mask = padded([row.ids for row in rows], loaded.pad_id, loaded.device, left=left)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in loaded.accepts and any(row.types for row in rows):
        types = [row.types or (0,) * len(row.ids) for row in rows]
        fill = loaded.tokenizer.pad_token_type_id
        inputs["token_type_ids"], _ = padded(types, fill, loaded.device, left=left)
    if "use_cache" in loaded.accepts:
        inputs["use_cache"] = False
    with torch.inference_mode():
        return loaded.model(**inputs)


def padded(
    rows: Sequence[Sequence[int]], fill: int, device: Any, *, left: bool = False
) -> tuple[Any, Any]:
    """Ids and mask (1 where a row has a token), rows by the length of the longest."""
    import torch

    width = max(map(len, rows))
    gaps = [width - len(row) for row in rows]
    if left:
        ids = [[fill] * gap + list(row) for row, gap in zip(rows, gaps, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in gaps]
    else:
        ids = [list(row) + [fill] * gap for row, gap in zip(rows, gaps, strict=True)]
        mask = [[1] * (width - gap) + [0] * gap for gap in gaps]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


# --- decoding ---------------------------------------------------------------------------------


def is_stateful(loaded: LoadedModel) -> bool:
    """Whether the model keeps more than keys and values, which rows cannot join or leave."""
    return bool(getattr(loaded.model, "_is_stateful", False))


def empty_cache(loaded: LoadedModel) -> Any:
    """A KV cache; one whose rows can be repeated, joined and dropped, where the model allows."""
    from transformers import DynamicCache

    if is_stateful(loaded):
        return DynamicCache(config=loaded.model.config)
    return DynamicCache()  # without the config: every layer keeps all positions, windowed or not


def repeated(cache: Any, times: int) -> Any:
    """A cache with each row so many times in a row; the given one stays as it is."""
    made = type(cache)()
    for place, layer in enumerate(cache.layers):
        keys, values = (part.repeat_interleave(times, 0) for part in (layer.keys, layer.values))
        made.update(keys, values, place)
    return made


def joined(one: Any, one_mask: Any, two: Any, two_mask: Any) -> tuple[Any, Any]:
    """Two caches and their masks as one: the rows of `two` after those of `one`."""
    import torch

    width = max(one_mask.shape[1], two_mask.shape[1])

    def stacked(first: Any, second: Any) -> Any:
        parts = []
        for part in (first, second):
            gap = width - part.shape[-2]
            parts.append(torch.nn.functional.pad(part, (0, 0, gap, 0)))
        return torch.cat(parts)

    for mine, other in zip(one.layers, two.layers, strict=True):
        mine.keys = stacked(mine.keys, other.keys)
        mine.values = stacked(mine.values, other.values)
    mask = stacked(one_mask[:, :, None], two_mask[:, :, None])[:, :, 0]
    return one, mask


def decode(loaded: LoadedModel, ids: Any, mask: Any, cache: Any, *, only_last: bool = True) -> Any:
    """Logits after the new tokens `ids`, which extend `cache`.

    Args:
        loaded: A causal model.
        ids: Rows by new tokens.
        mask: Rows by all tokens, those in the cache included; 0 where a row is padded.
        cache: Is extended; None: nothing is kept.
        only_last: Whether the logits after the last token are enough: rows by vocabulary, instead
            of rows by new tokens by vocabulary.
    """
    inputs = {"input_ids": ids, "use_cache": cache is not None}
    if not is_stateful(loaded):  # rows of those are alone, and Mamba multiplies by the whole mask
        inputs["attention_mask"] = mask
    if cache is not None:
        inputs[_cache_argument(loaded)] = cache
    if "position_ids" in loaded.accepts:
        positions = mask.cumsum(-1) - 1
        inputs["position_ids"] = positions.clamp_min(0)[:, -ids.shape[1] :]
    if only_last and "logits_to_keep" in loaded.accepts:
        inputs["logits_to_keep"] = 1
    logits = loaded.model(**inputs).logits
    return logits[:, -1] if only_last else logits


def _cache_argument(loaded: LoadedModel) -> str:
    for name in ("past_key_values", "cache_params"):
        if name in loaded.accepts:
            return name
    raise ValueError(
        f"{type(loaded.model).__name__} takes no cache of what it has read, and without one each "
        "token would cost a whole pass; use the engine vllm"
    )


def refused_nan(numbers: Any) -> Any:
    """The numbers that a model gave.

    Raises:
        ArithmeticError: Some are none. (Drawing a token from such would break a GPU's context.)
    """
    if bool(numbers.isnan().any()):
        raise ArithmeticError(
            "the model computes NaN, which is no number, for this prompt: float16 is too small for "
            'some models. Use dtype="float32", or "bfloat16" on a GPU that has it'
        )
    return numbers


# --- errors -----------------------------------------------------------------------------------


def lacks_memory(error: Exception) -> bool:
    """Whether a smaller batch may do."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def is_fatal(error: Exception) -> bool:
    """Whether the device can do nothing more: after an assertion of a kernel, say."""
    import torch

    broken = getattr(torch, "AcceleratorError", None)
    return broken is not None and isinstance(error, broken) and not lacks_memory(error)


# --- what models say of themselves ------------------------------------------------------------


def _pair_activation(config: Any) -> str:
    """`"Sigmoid"` or `"Identity"`, as the cross-encoder's config says."""
    own = getattr(config, "sentence_transformers", None) or {}
    named = own.get("activation_fn") or getattr(
        config, "sbert_ce_default_activation_function", None
    )
    name = str(named or "Sigmoid").rpartition(".")[2]
    if name not in ("Sigmoid", "Identity"):
        raise ValueError(
            f"the model's config asks for the activation {named}; known are Sigmoid and Identity. "
            "Use task classify, whose logits are before any activation"
        )
    return name


_POOLING_MODES: dict[str, Pooling] = {
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}


def _sentence_transformer(model: str, settings: Settings) -> tuple[Pooling, bool] | None:
    """Pooling and normalisation by the model's sentence-transformers files, where it has them."""
    modules = read_json(model, "modules.json", settings)
    if not isinstance(modules, list):
        return None
    kinds = {str(module["type"]).rpartition(".")[2]: module for module in modules}
    if unknown := kinds.keys() - {"Transformer", "Pooling", "Normalize"}:
        raise _unlike(f"the module {', '.join(sorted(unknown))}")
    if "Pooling" not in kinds:
        return None
    config = read_json(model, f"{kinds['Pooling']['path']}/config.json", settings) or {}
    modes = _modes(config)
    if len(modes) != 1 or modes[0] not in _POOLING_MODES:
        raise _unlike(f"pooling by {' and '.join(modes) or 'nothing'}")
    return _POOLING_MODES[modes[0]], "Normalize" in kinds


def _modes(config: dict[str, Any]) -> list[str]:
    named = config.get("pooling_mode")  # newer files name the modes, older have a switch for each
    if named is not None:
        return [named] if isinstance(named, str) else list(named)
    return [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]


def _unlike(what: str) -> ValueError:
    return ValueError(
        f"the model's sentence-transformers files ask for {what}, which is not known here; choose "
        'with engine_args "pooling" ("mean", "cls" or "last") and "normalize", or use '
        "sentence-transformers with --engine python"
    )


def prediction(
    loaded: LoadedModel,
    row: Row,
    task: Literal["classify", "embed", "score", "choices"],
    values: Iterable[float],
    *,
    labels: tuple[str, ...] = (),
    activation: Activation = "none",
) -> Prediction:
    """What a row's values become."""
    return Prediction(
        index=row.index,
        task=task,
        values=array("f", values),
        labels=labels,
        activation=activation,
        prompt_tokens=len(row.ids),
        cut_tokens=row.cut,
        seconds=time.monotonic() - row.began,
        device=loaded.label,
    )
