"""What a prompt is for vLLM, and how the tasks talk with the engine.

```
             talk(request)                         add_request, step
 task  ──────── [Ask, Ask] ───────> VllmEngine ──────────────────────> vLLM
       <── output of each, in order ─┘
       ──────── [Ask] ────────────> ...                 as often as it needs
       ──────── Answer ───────────>
```

A task (generation, the choices, a pooling task) says what vLLM is to be asked for one prompt and
makes the answer of its outputs; the engine alone adds, steps and aborts. Imports no vLLM: what
renders prompts are methods of its `LLM`.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, assert_never

from mgpu_magic.engines.prompting import refuse_surrogates
from mgpu_magic.engines.vllm_fields import check_prompt
from mgpu_magic.errors import EngineError
from mgpu_magic.messages import Chat, Pair, Pickled, Tokens
from mgpu_magic.outcomes import Answer

if TYPE_CHECKING:
    from mgpu_magic.messages import Prompt, Request


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to vLLM: a rendered prompt, and its `SamplingParams` or `PoolingParams`."""

    prompt: Any
    params: Any


Talk: TypeAlias = Generator[Sequence[Ask], Sequence[Any], Answer]
"""Yields what to ask together, is sent vLLM's finished outputs in that order, returns the answer
(its `seconds` are the engine's to fill in). An error raised in it is the prompt's own."""


class Task(Protocol):
    """Answers prompts by asking vLLM."""

    def talk(self, request: Request) -> Talk:
        """The talk about one prompt; nothing is asked before its first step."""


def checked(output: Any) -> Any:
    """A finished output of vLLM.

    Raises:
        EngineError: vLLM gave the request up.
    """
    reasons = [getattr(part, "finish_reason", None) for part in _parts(output)]
    error = getattr(output, "error", None)  # of a pooling request, in newer versions
    if "error" in reasons or error is not None:
        raise EngineError(f"vLLM gave this request up: {error or 'an internal error'}")
    return output


def rendered(llm: Any, prompt: Prompt) -> Any:
    """What `LLM.generate`, `LLM.chat` and `LLM.encode` would hand to the engine.

    Raw prompts are deprecated there, and what renders them (Mistral's tokenizers and images
    included, unlike the tokenizer's own methods) has no public form that does not generate.
    """
    check_text(prompt)
    match prompt:
        case str():
            (made,) = llm._preprocess_cmpl([prompt])
        case Tokens(ids):
            (made,) = llm._preprocess_cmpl([{"prompt_token_ids": list(ids)}])
        case Chat(messages):
            (made,) = llm._preprocess_chat([list(messages)])
        case Pickled(data):
            fields = pickle.loads(data)  # noqa: S301  # only from the pipe that we inherit
            check_prompt(fields)
            (made,) = llm._preprocess_cmpl([fields])
        case Pair():
            raise ValueError(
                "the prompt is a pair of texts, which vLLM reads for the tasks classify and "
                "score alone; pass one text"
            )
        case _:
            assert_never(prompt)
    return made


def check_text(prompt: Prompt) -> None:
    """Refuse half a character, as scraped text has it, in any text of the prompt.

    Raises:
        ValueError: One holds it; says where.
    """
    for text in _texts(prompt):
        refuse_surrogates(text)


def _texts(prompt: Prompt) -> Sequence[object]:
    match prompt:
        case str():
            return [prompt]
        case Pair(first, second):
            return [first, second]
        case Chat(messages):
            return [message.get("content") for message in messages]
        case Tokens() | Pickled():
            return []
        case _:
            assert_never(prompt)


def _parts(output: Any) -> Sequence[Any]:
    parts = output.outputs
    return parts if isinstance(parts, list) else [parts]
