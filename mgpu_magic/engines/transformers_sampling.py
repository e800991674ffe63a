"""How an answer is chosen, by the names and defaults of vLLM's `SamplingParams`. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

GREEDY_BELOW = 1e-5  # vLLM's; a smaller temperature divides to infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The sampling of one request.

    Attributes:
        n: Answers.
        max_tokens: Tokens of an answer at most; None: as many as the model can read.
        min_tokens: Tokens before an answer may end by itself.
        temperature: 0 takes the likeliest token each time.
        top_p: Sum of the probabilities of the tokens that are considered.
        top_k: Number of tokens that are considered; 0 or -1: all.
        min_p: Least probability of a token, as part of the likeliest one's.
        repetition_penalty: Above 1, tokens of the prompt and the answer become less likely.
        stop: Texts that end an answer, and are left out of it.
        stop_token_ids: Tokens that end an answer.
        ignore_eos: Whether an answer goes on after its end-of-text token.
        seed: Makes the answer repeatable.
    """

    n: int = 1
    max_tokens: int | None = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Decoding:
        """The sampling of a request.

        Args:
            given: `SamplingParams` fields.
            defaults: The model's own; they count where the user gives nothing at all, as in vLLM.

        Raises:
            TypeError: A field is not known here.
            ValueError: A value is out of its range.
        """
        known = [field.name for field in fields(cls)]
        if unknown := given.keys() - set(known):
            raise TypeError(
                f"transformers has no sampling field {', '.join(map(repr, sorted(unknown)))}; "
                f"known are {', '.join(known)}. The engine vllm has more"
            )
        chosen = {name: value for name, value in (given or defaults).items() if value is not None}
        if "max_tokens" in given and given["max_tokens"] is None:
            chosen["max_tokens"] = None
        stop = chosen.get("stop", ())
        chosen["stop"] = (stop,) if isinstance(stop, str) else _several("stop", stop)
        chosen["stop_token_ids"] = _several("stop_token_ids", chosen.get("stop_token_ids", ()))
        return cls(**chosen)

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0)
        _number("top_p", self.top_p, 0, 1, open_below=True)
        _number("min_p", self.min_p, 0, 1)
        _number("repetition_penalty", self.repetition_penalty, 0, open_below=True)
        _whole("n", self.n, 1)
        _whole("top_k", self.top_k, -1)
        _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
            if self.min_tokens > self.max_tokens:
                raise ValueError(
                    f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; "
                    "the first is at most the second"
                )
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop holds {text!r}; pass texts that are not empty")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return self.temperature < GREEDY_BELOW


def _several(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(f"{name} is {value!r}; pass a list")
    return tuple(value)


def _number(
    name: str, value: Any, low: float, high: float = float("inf"), *, open_below: bool = False
) -> None:
    right = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not right or (open_below and value == low):
        below = f"above {low}" if open_below else f"{low} or more"
        above = "" if high == float("inf") else f", at most {high}"
        raise ValueError(f"{name} is {value!r}; pass a number {below}{above}")


def _whole(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} is {value!r}; pass a whole number of {low} or more")
