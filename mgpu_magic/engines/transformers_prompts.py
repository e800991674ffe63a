"""A request as rows of token ids: tokenised, checked and cut for itself alone.

Knows transformers' tokenizers by their calls; imports no foreign library.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from mgpu_magic.engines.prompting import refuse_surrogates
from mgpu_magic.messages import Chat, Pair, Pickled, Tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mgpu_magic.messages import Request
    from mgpu_magic.spec import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request as the model reads it.

    Attributes:
        index: Its place among the prompts.
        ids: Token ids; not empty.
        types: Which of two texts each token is of, where the tokenizer says; else empty.
        cut: Tokens that were left out.
        choices: What the request's choices are called.
        continuations: Token ids of each choice; none is empty.
        began: When it was taken, by the monotonic clock.
    """

    index: int
    ids: tuple[int, ...]
    types: tuple[int, ...] = ()
    cut: int = 0
    choices: tuple[str, ...] = ()
    continuations: tuple[tuple[int, ...], ...] = ()
    began: float = 0.0


class Reader:
    """Makes rows of requests.

    Args:
        tokenizer: The worker's own.
        limit: Tokens that the model reads at most; None: not known.
        vocabulary: Token ids are below this.
        task: What is asked of the model. A prompt that an answer is to follow is never cut.
    """

    def __init__(self, tokenizer: Any, limit: int | None, vocabulary: int, task: Task) -> None:
        self._tokenizer = tokenizer
        self._limit = limit
        self._vocabulary = vocabulary
        self._task = task
        self._generates = task == "generate"
        self._continuations: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}

    def row(self, request: Request) -> Row:
        """What the model reads for a request.

        Raises:
            ValueError: It is no text, is empty, has tokens that the model does not know, is too
                long to be followed by an answer, or the chat template refuses it.
        """
        ids, types, cut = self._read(request)
        if not ids:
            raise ValueError("the prompt is empty: no token is left of it; drop it or fill it")
        worst = max(ids)
        if worst >= self._vocabulary or min(ids) < 0:
            raise ValueError(
                f"token id {worst} is out of vocabulary: the model has {self._vocabulary} tokens"
            )
        continuations = self._choices(request.choices)
        if self._generates:
            self._refuse_long(len(ids), max(map(len, continuations), default=1), request.choices)
        return Row(
            index=request.index,
            ids=ids,
            types=types,
            cut=cut,
            choices=request.choices,
            continuations=continuations,
            began=time.monotonic(),
        )

    def _read(self, request: Request) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        prompt = request.prompt
        match prompt:
            case str():
                return self._encoded(prompt)
            case Pair() if self._task == "embed":
                raise ValueError(
                    "the prompt is a pair of texts, which the tasks classify and score read; "
                    "pass one text"
                )
            case Pair(first, second):
                return self._encoded(first, second)
            case Chat(messages):
                return self._encoded(self._rendered(messages), specials=False)
            case Tokens(ids):
                kept = ids if self._generates else ids[: self._limit]
                return kept, (), len(ids) - len(kept)
            case Pickled():
                raise TypeError(
                    "the prompt is a dict for vLLM; transformers takes text, token ids, chats and "
                    "pairs of texts"
                )
            case _:
                assert_never(prompt)

    def _encoded(
        self, text: str, second: str | None = None, *, specials: bool = True
    ) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Ids, token types and how many tokens were cut; of a pair the longer text is cut first."""
        refuse_surrogates(text)
        refuse_surrogates(second)
        said: dict[str, Any] = {"add_special_tokens": specials, "verbose": False}
        encoding = self._tokenizer(text, second, **said)
        whole = len(encoding["input_ids"])
        if self._limit is not None and whole > self._limit and not self._generates:
            cut = {"truncation": True, "max_length": self._limit}
            encoding = self._tokenizer(text, second, **said, **cut)
        ids = tuple(encoding["input_ids"])
        return ids, tuple(encoding.get("token_type_ids") or ()), whole - len(ids)

    def _rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        plain = [_of_text(message) for message in messages]
        for message in plain:
            refuse_surrogates(message.get("content"))
        if not getattr(self._tokenizer, "chat_template", None):
            raise ValueError(
                "the model's tokenizer has no chat template, so it cannot read a chat; pass text "
                "in the form that the model was trained on"
            )
        # A classifier that judges an answer must see its end as it was trained on.
        answer_follows = self._generates or messages[-1]["role"] != "assistant"
        text = self._tokenizer.apply_chat_template(
            plain, tokenize=False, add_generation_prompt=answer_follows
        )
        return str(text)

    def _choices(self, choices: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        if choices not in self._continuations:
            found = []
            for choice in choices:
                ids = tuple(self._tokenizer(choice, add_special_tokens=False)["input_ids"])
                if not ids:
                    raise ValueError(f"choice {choice!r} is no token for this model; leave it out")
                found.append(ids)
            self._continuations[choices] = tuple(found)
        return self._continuations[choices]

    def _refuse_long(self, prompt: int, answer: int, choices: tuple[str, ...]) -> None:
        if self._limit is None or prompt + answer <= self._limit:
            return
        longest = f"and its longest choice {answer}" if choices else "and an answer needs 1"
        raise ValueError(
            f"the prompt has {prompt} tokens {longest}; the model reads {self._limit}. Shorten "
            "the prompt, or raise max_model_len if it is what sets the limit"
        )


def _of_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is text: parts of text are joined, as vLLM does."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text")
        if not isinstance(text, str):
            raise TypeError(
                f"the chat has a part of type {part.get('type')!r}; transformers takes text "
                "alone here, images go with the engine vllm"
            )
        texts.append(text)
    return {**message, "content": "\n".join(texts)}
