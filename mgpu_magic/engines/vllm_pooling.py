"""The tasks of vLLM's pooling models: `embed`, `classify` and `score`.

```
embed      text ──> vector
classify   text or pair ──> a logit per label
score      pair ──> one reading of both ──> score              a cross-encoder
           pair ──> a vector of each ──> their cosine          an embedding model
```
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Literal

from mgpu_magic.engines.labels import activation
from mgpu_magic.engines.vllm_prompts import Ask, check_text, checked, rendered
from mgpu_magic.messages import Pair, Tokens
from mgpu_magic.outcomes import Prediction

if TYPE_CHECKING:
    from mgpu_magic.engines.vllm_prompts import Talk, Task
    from mgpu_magic.messages import Request


def pooling(llm: Any, task: Literal["embed", "classify", "score"], device: str) -> Task:
    """The task for a loaded model.

    Args:
        llm: vLLM's `LLM`.
        task: What is asked of the model.
        device: Label of the worker's device.

    Raises:
        ValueError: The model cannot do that.
    """
    able = llm.llm_engine.get_supported_tasks()
    labels = getattr(_config(llm), "num_labels", None)
    if task == "embed" and "embed" in able:
        return Embedding(llm, device)
    if task == "classify" and "classify" in able:
        return Classification(llm, device)
    if task == "score" and "classify" in able and labels == 1:
        return CrossEncoder(llm, device)
    if task == "score" and "embed" in able:
        return Similarity(llm, device)
    head = f", and its classification head has {labels} labels" * ("classify" in able)
    raise ValueError(
        f"the task is {task!r}; vLLM knows this model for {', '.join(able) or 'nothing'}{head}. "
        "classify needs a model with a classification head, score one whose head has one label "
        "or an embedding model"
    )


class Embedding:
    """`embed`: the vector of a prompt, pooled and normalised as the model's files say."""

    def __init__(self, llm: Any, device: str) -> None:
        self._llm = llm
        self._device = device

    def talk(self, request: Request) -> Talk:
        """See `Task`."""
        params = _params("embed", request)
        (output,) = yield [Ask(rendered(self._llm, request.prompt), params)]
        return Prediction(
            index=request.index,
            task="embed",
            values=_values(output),
            prompt_tokens=len(output.prompt_token_ids),
            seconds=0.0,
            device=self._device,
        )


class Classification:
    """`classify`: the logits of a prompt, before any activation."""

    def __init__(self, llm: Any, device: str) -> None:
        self._llm = llm
        self._device = device
        config = _config(llm)
        self._labels = _labels(config)
        self._activation = activation(getattr(config, "problem_type", None), len(self._labels))

    def talk(self, request: Request) -> Talk:
        """See `Task`. A pair is what the tokenizer makes of two texts."""
        params = _params("classify", request, use_activation=False)
        prompt: Any
        if isinstance(request.prompt, Pair):
            check_text(request.prompt)
            encoded = self._llm.get_tokenizer()(
                text=request.prompt.first,
                text_pair=request.prompt.second,
                **_encoding(self._llm),
            )
            prompt = _typed(self._llm, encoded["input_ids"], encoded, params)
        else:
            prompt = rendered(self._llm, request.prompt)
        (output,) = yield [Ask(prompt, params)]
        return Prediction(
            index=request.index,
            task="classify",
            values=_values(output),
            labels=self._labels,
            activation=self._activation,
            prompt_tokens=len(output.prompt_token_ids),
            seconds=0.0,
            device=self._device,
        )


class CrossEncoder:
    """`score` of a model that reads both texts at once; the activation is the model's own."""

    def __init__(self, llm: Any, device: str) -> None:
        self._llm = llm
        self._device = device

    def talk(self, request: Request) -> Talk:
        """See `Task`."""
        pair = _pair(request)
        params = _params("classify", request)
        # vLLM's own rendering of a pair: some models have a template or no separator between.
        _, made = self._llm.pooling_io_processors["cross-encoder"].get_score_prompt(
            data_1=pair.first, data_2=pair.second, encode_kwargs=_encoding(self._llm)
        )
        prompt = _typed(self._llm, made["prompt_token_ids"], made, params)
        (output,) = yield [Ask(prompt, params)]
        return _score(request, _values(output), len(output.prompt_token_ids), self._device)


class Similarity:
    """`score` of an embedding model: the cosine between the vectors of both texts."""

    def __init__(self, llm: Any, device: str) -> None:
        self._llm = llm
        self._device = device

    def talk(self, request: Request) -> Talk:
        """See `Task`."""
        pair = _pair(request)
        params = _params("embed", request)
        outputs = yield [
            Ask(rendered(self._llm, text), params) for text in (pair.first, pair.second)
        ]
        one, two = (checked(output).outputs.data.double() for output in outputs)
        cosine = float(one @ two / (one.norm() * two.norm()))
        tokens = sum(len(output.prompt_token_ids) for output in outputs)
        return _score(request, array("f", [cosine]), tokens, self._device)


def _score(request: Request, values: array[float], tokens: int, device: str) -> Prediction:
    return Prediction(
        index=request.index,
        task="score",
        values=values,
        prompt_tokens=tokens,
        seconds=0.0,
        device=device,
    )


def _pair(request: Request) -> Pair:
    if not isinstance(request.prompt, Pair):
        raise TypeError(f"score is about pairs; the prompt is a {type(request.prompt).__name__}")
    check_text(request.prompt)
    return request.prompt


def _params(task: str, request: Request, **ours: Any) -> Any:
    """`PoolingParams`; the user's `sampling` is of its fields here (`dimensions`, say)."""
    from vllm import PoolingParams

    return PoolingParams(task=task, **request.sampling.fields, **ours)


def _typed(llm: Any, ids: list[int], encoded: Any, params: Any) -> Any:
    """The rendered prompt; where a model tells two texts apart by their type, `params` say it."""
    types = encoded.get("token_type_ids") or ()
    if 1 in types:
        params.extra_kwargs = {"compressed_token_type_ids": types.index(1)}
    return rendered(llm, Tokens(tuple(ids)))


def _encoding(llm: Any) -> dict[str, Any]:
    """How vLLM calls the tokenizer: what is too long is cut after the limit, and refused then."""
    return dict(llm.renderer.default_cmpl_tok_params.get_encode_kwargs())


def _values(output: Any) -> array[float]:
    return array("f", checked(output).outputs.data.reshape(-1).tolist())


def _config(llm: Any) -> Any:
    return llm.llm_engine.vllm_config.model_config.hf_config


def _labels(config: Any) -> tuple[str, ...]:
    names = {int(number): str(name) for number, name in config.id2label.items()}
    return tuple(names[number] for number in sorted(names))
