"""The log-probability of each of several texts after a prompt, on vLLM.

```
choices      A B C      A B D      E              (token ids)

forks        ()  ──> A, E      asked first: one forward pass over the prompt
             (A) ──> B         then the others, together: the prompt is in the prefix cache
             (A B) ──> C, D
```

A fork is asked as prompt + what was read, for one token, with the log-probabilities of exactly
the tokens that may follow. Choices of one token each are one request. `Plan` is pure.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mgpu_magic.engines.vllm_prompts import Ask, checked, rendered
from mgpu_magic.outcomes import Prediction

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from mgpu_magic.engines.vllm_prompts import Talk
    from mgpu_magic.messages import Request

MOST_TOKEN_IDS = 128  # of one request, in the versions that take token ids by themselves


@dataclass(frozen=True, slots=True)
class Fork:
    """A place where choices go on: what has been read of them, and what may follow."""

    prefix: tuple[int, ...]
    following: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask about choices, given as token ids.

    Attributes:
        choices: Token ids of each.
        forks: What to ask, the one with the empty prefix first.
    """

    choices: tuple[tuple[int, ...], ...]
    forks: tuple[Fork, ...]

    @classmethod
    def of(cls, choices: Sequence[Sequence[int]], width: int) -> Plan:
        """The plan that asks for at most `width` tokens at once.

        A choice that begins with another one shares its forks: the end of the shorter one is
        where the longer one goes on.

        Raises:
            ValueError: A choice has no tokens.
        """
        following: dict[tuple[int, ...], dict[int, None]] = {}
        for place, choice in enumerate(choices):
            if not choice:
                raise ValueError(f"choice {place} is no token for this model; leave it out")
            for end, token in enumerate(choice):
                following.setdefault(tuple(choice[:end]), {})[token] = None
        forks = [
            Fork(prefix, tuple(tokens)[start : start + width])
            for prefix, tokens in following.items()
            for start in range(0, len(tokens), width)
        ]
        return cls(tuple(map(tuple, choices)), tuple(forks))

    def sums(self, logprobs: Sequence[Mapping[int, float]]) -> list[float]:
        """The log-probability of each whole choice.

        Args:
            logprobs: For each fork, in order, the log-probability of what may follow there.
        """
        known: dict[tuple[int, ...], float] = {}
        for fork, found in zip(self.forks, logprobs, strict=True):
            known.update({(*fork.prefix, token): found[token] for token in fork.following})
        return [
            sum(known[choice[: end + 1]] for end in range(len(choice))) for choice in self.choices
        ]


class Choices:
    """The task of weighing choices. A request's sampling plays no part in it.

    Args:
        llm: vLLM's `LLM`.
        device: Label of the worker's device.
        on_cpu: Whether that is a CPU.
    """

    def __init__(self, llm: Any, device: str, *, on_cpu: bool) -> None:
        from vllm import SamplingParams

        self._llm = llm
        self._device = device
        self._config = llm.llm_engine.vllm_config.model_config
        # Older versions (0.20) give token ids only beside `logprobs`, whose number is limited,
        # and gather them by a kernel that a CPU does not have.
        self._ids_alone = hasattr(SamplingParams, "num_logprobs")
        self._whole = on_cpu and not self._ids_alone
        self._plans: dict[tuple[str, ...], Plan] = {}

    def talk(self, request: Request) -> Talk:
        """See `Task`. Asks twice: for the first tokens, then for all others together."""
        plan = self._plan(request.choices)
        prompt = rendered(self._llm, request.prompt)
        if "prompt_token_ids" not in prompt:
            raise ValueError("choices follow a prompt of tokens; this one is made of embeddings")
        ask = self._by_choice if self._whole else self._by_fork
        values = yield from ask(prompt, plan)
        return Prediction(
            index=request.index,
            task="choices",
            values=array("f", values),
            labels=request.choices,
            activation="softmax",
            prompt_tokens=len(prompt["prompt_token_ids"]),
            seconds=0.0,
            device=self._device,
        )

    def _by_fork(
        self, prompt: Any, plan: Plan
    ) -> Generator[Sequence[Ask], Sequence[Any], list[float]]:
        first, *others = [self._fork(prompt, fork) for fork in plan.forks]
        outputs = [*(yield [first])]
        if others:
            outputs += yield others
        return plan.sums([_logprobs(checked(output).outputs[0].logprobs[0]) for output in outputs])

    def _fork(self, prompt: Any, fork: Fork) -> Ask:
        from vllm import SamplingParams

        params = SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            logprobs=None if self._ids_alone else len(fork.following),
            logprob_token_ids=list(fork.following),
        )
        return Ask(_continued(prompt, fork.prefix), params)

    def _by_choice(
        self, prompt: Any, plan: Plan
    ) -> Generator[Sequence[Ask], Sequence[Any], list[float]]:
        """One request per choice: vLLM reads the prompt as often as there are choices."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
        outputs = yield [Ask(_continued(prompt, choice), params) for choice in plan.choices]
        return [
            sum(
                _logprobs(found)[token]
                for token, found in zip(
                    choice, checked(output).prompt_logprobs[-len(choice) :], strict=True
                )
            )
            for choice, output in zip(plan.choices, outputs, strict=True)
        ]

    def _plan(self, choices: tuple[str, ...]) -> Plan:
        if choices not in self._plans:
            if self._config.logprobs_mode.endswith("logits"):
                raise ValueError(
                    f"engine_args['logprobs_mode'] is {self._config.logprobs_mode!r}; choices "
                    "are weighed by log-probabilities: leave it out"
                )
            ids = [self._ids(choice) for choice in choices]
            self._plans[choices] = Plan.of(ids, self._width())
        return self._plans[choices]

    def _ids(self, choice: str) -> list[int]:
        return list(self._llm.get_tokenizer().encode(choice, add_special_tokens=False))

    def _width(self) -> int:
        if self._ids_alone:
            return MOST_TOKEN_IDS
        allowed = self._config.max_logprobs  # -1: any number
        return MOST_TOKEN_IDS if allowed < 0 else max(min(allowed, MOST_TOKEN_IDS), 1)


def _continued(prompt: Any, ids: Sequence[int]) -> Any:
    """The rendered prompt with tokens after it; its salt, images and so on stay."""
    return {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *ids]}


def _logprobs(candidates: Mapping[int, Any]) -> dict[int, float]:
    return {token: entry.logprob for token, entry in candidates.items()}
