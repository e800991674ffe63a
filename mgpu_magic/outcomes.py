"""What becomes of a prompt: one outcome each, whatever the engine and the task.

```
task        outcome       holds
generate    Completion    texts
classify    Prediction    a logit per label
embed       Prediction    the vector
score       Prediction    the score of a pair
choices     Prediction    the log-probability of each choice
(python)    Returned      whatever the function returned
any         Failure       the error, as text
```

Shared by kernel and worker; imports `redaction` alone.
"""

from __future__ import annotations

import math
import os
import pickle
import traceback
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import attrgetter
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mgpu_magic.redaction import redacted

if TYPE_CHECKING:
    from array import array

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

Activation: TypeAlias = Literal["softmax", "sigmoid", "none"]


_SHORT = Repr()
_SHORT.maxstring = 500


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception of a worker as text: vLLM's own cannot be pickled.

    Attributes:
        kind: Type name, such as `"VLLMValidationError"`.
        message: What it said.
        traceback: The whole traceback; empty for an error that concerns one request.
    """

    kind: str
    message: str
    traceback: str = ""

    def __repr__(self) -> str:
        """Short enough for a cell: the middle of a long message and the traceback are left out."""
        return f"RemoteError(kind={self.kind!r}, message={_SHORT.repr(self.message)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Masked once more by who receives it: the kernel may know secrets that came later."""
        return _received, (self.kind, self.message, self.traceback)

    @classmethod
    def of(cls, error: BaseException, *, with_traceback: bool = True) -> RemoteError:
        """`error` as text that any process can read and anyone may see: without secrets.

        The traceback begins where the package calls others: its own frames explain nothing.
        """
        trace = last = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            last, trace = trace, trace.tb_next
        lines = traceback.format_exception(type(error), error, trace or last)
        text = "".join(lines) if with_traceback else ""
        message = str(error) or repr(error)
        return cls(type(error).__name__, redacted(message), redacted(text))


def _received(kind: str, message: str, text: str) -> RemoteError:
    return RemoteError(kind, redacted(message), redacted(text))


class TokenLogprob(NamedTuple):
    """Log-probability (natural logarithm) of one token at one position.

    A tuple, because there are thousands in an answer: it crosses the pipe three times as fast.
    """

    token_id: int
    token: str | None
    logprob: float
    rank: int | None


Logprobs: TypeAlias = tuple[tuple[TokenLogprob, ...], ...]
"""Per position, the candidates as vLLM orders them (the chosen token is among them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to one prompt.

    Attributes:
        index: Its place among the prompts.
        texts: The generated texts, `n` of them.
        finish_reasons: Why each text ended: `"stop"`, `"length"`, ...
        prompt_tokens: Tokens of the prompt.
        output_tokens: Tokens generated, over all texts.
        seconds: From the engine's taking it to its end.
        device: Label of the device that answered, such as `"cuda:0"`.
        logprobs: Per text, where `SamplingParams.logprobs` asked for them; else None.
        prompt_logprobs: Per prompt position (the first is empty), where asked for; else None.
        token_ids: Per text, where `detokenize=False` leaves no text; else None.
        cached_tokens: Tokens of the prompt that the engine had from another prompt with the same
            beginning (vLLM's prefix cache); None: not known.
    """

    index: int
    texts: tuple[str, ...]
    finish_reasons: tuple[str | None, ...]
    prompt_tokens: int
    output_tokens: int
    seconds: float
    device: str
    logprobs: tuple[Logprobs, ...] | None = None
    prompt_logprobs: Logprobs | None = None
    token_ids: tuple[tuple[int, ...], ...] | None = None
    cached_tokens: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses the pipe in half the time that a dataclass with slots takes by itself."""
        return _completion, _VALUES(self)

    @property
    def text(self) -> str:
        """The first text."""
        return self.texts[0]

    @property
    def finish_reason(self) -> str | None:
        """Why the first text ended."""
        return self.finish_reasons[0]


_VALUES = attrgetter(*(field.name for field in fields(Completion)))


def _completion(
    index: int,
    texts: tuple[str, ...],
    finish_reasons: tuple[str | None, ...],
    prompt_tokens: int,
    output_tokens: int,
    seconds: float,
    device: str,
    logprobs: tuple[Logprobs, ...] | None,
    prompt_logprobs: Logprobs | None,
    token_ids: tuple[tuple[int, ...], ...] | None,
    cached_tokens: int | None,
) -> Completion:
    return Completion(
        index=index,
        texts=texts,
        finish_reasons=_common(finish_reasons),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seconds=seconds,
        device=device,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        token_ids=token_ids,
        cached_tokens=cached_tokens,
    )


@lru_cache(maxsize=64)
def _common(reasons: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """One tuple for all that are equal: a million answers end in the same few ways."""
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The numbers that a model gives one prompt.

    Attributes:
        index: Its place among the prompts.
        task: `"classify"`, `"embed"`, `"score"` or `"choices"`.
        values: float32: the logits, the embedding, the score alone, or the log-probability of
            each choice (of the whole choice, summed over its tokens).
        labels: What the values are called: the labels, or the choices; else empty.
        activation: What makes probabilities of the values.
        prompt_tokens: Tokens that the model read.
        cut_tokens: Tokens that did not fit and were left out at the end.
        seconds: From the engine's taking it to its end.
        device: Label of the device, such as `"cuda:0"`.
    """

    index: int
    task: Literal["classify", "embed", "score", "choices"]
    values: array[float]
    labels: tuple[str, ...] = ()
    activation: Activation = "none"
    prompt_tokens: int = 0
    cut_tokens: int = 0
    seconds: float
    device: str

    @property
    def label(self) -> str | None:
        """The likeliest label or choice; None without labels, or where several may hold at once."""
        if not self.labels or (self.activation == "sigmoid" and len(self.labels) > 1):
            return None
        return self.labels[max(range(len(self.labels)), key=self.values.__getitem__)]

    @property
    def probabilities(self) -> tuple[float, ...]:
        """One per label, each 0 to 1; empty where the values are none of labels.

        For choices, the probability of each among the choices: they add up to 1.
        """
        match self.activation:
            case "softmax":
                top = max(self.values)
                weights = [math.exp(value - top) for value in self.values]
                total = sum(weights)
                return tuple(weight / total for weight in weights)
            case "sigmoid":
                return tuple((1 + math.tanh(value / 2)) / 2 for value in self.values)
            case "none":
                return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What the user's function returned for one prompt.

    Attributes:
        index: Its place among the prompts.
        data: The value, pickled: its class may be the notebook's own.
        seconds: From the engine's taking the prompt to the end of its batch.
        device: Label of the device, such as `"cuda:0"`.
    """

    index: int
    data: bytes
    seconds: float
    device: str

    @property
    def value(self) -> Any:
        """A new copy of the value."""
        return pickle.loads(self.data)  # noqa: S301  # made by the user's own function


@dataclass(frozen=True, slots=True)
class Failure:
    """A prompt without an answer.

    Attributes:
        index: Its place among the prompts.
        error: The original error, as text.
        attempts: How often it was tried.
    """

    index: int
    error: RemoteError
    attempts: int = 1


Answer: TypeAlias = Completion | Prediction | Returned
Outcome: TypeAlias = Answer | Failure
