"""What the user passed as prompts, as numbered requests.

```
list, Series, array, column, generator ──> rows ──> Prompt each ──┐
dict of sampling fields, or one per prompt ──────> Sampling each ──┴──> Request each
```

What can never be a prompt is refused here, by index, before anything is started. What only the
model can judge (too long, empty, a lone surrogate, an unknown token id) travels on and fails
alone, in its own row.
Pure. Columns of other libraries are read by what they can do (`tolist`, `to_pylist`, `to_list`),
so that none of those libraries is imported. Imports `errors`, `sendable`,
`spec` and `messages` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import IOBase
from itertools import cycle, repeat
from numbers import Integral
from os import PathLike, fspath
from reprlib import repr as short
from typing import Any

from mgpu_magic.errors import SpecError
from mgpu_magic.messages import Chat, Pair, Pickled, Prompt, Request, Tokens
from mgpu_magic.sendable import plain
from mgpu_magic.spec import Sampling, Task

_A_PROMPT = (
    'a prompt is text, a list of token ids, a chat (a list of dicts with "role" and "content") '
    "or a vLLM prompt dict"
)
_EMPTY = Tokens(())


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prompts of one model, ready to be sent.

    Attributes:
        requests: Those to be answered, in the order of their `index`: one per prompt, without
            those that a journal answers.
        originals: What the user passed for each: the same objects where they came in a list, a
            tuple or a generator.
        shared: The sampling that all of them have, where it says anything.
    """

    requests: tuple[Request, ...]
    originals: tuple[object, ...]
    shared: Sampling | None = None


def to_requests(
    prompts: object,
    *,
    sampling: object = None,
    chat: bool = False,
    task: Task = "generate",
    objects: bool = False,
    choices: tuple[str, ...] = (),
    lora: object = None,
) -> Prepared:
    """Number and check what the user passed.

    Args:
        prompts: List, tuple, Series, Index, array, Arrow, Polars or `datasets` column, generator
            (consumed once) of: text, token ids, a chat, a vLLM prompt dict. A bare text or one
            chat is one prompt.
        sampling: A dict of `SamplingParams` fields for all prompts, one such dict per prompt, or
            None for the engine's defaults.
        chat: Make each text the user message of a chat; chats stay as they are.
        task: What is asked of the model: all but `"generate"` take pairs of texts too, as
            `(text, text)`, `[text, text]` or `{"text": text, "text_pair": text}`; `"score"`
            takes nothing else.
        objects: A prompt is whatever the user's own function takes; `chat` means nothing then.
        choices: The texts to weigh after each prompt.
        lora: Directory of the adapter for all prompts, or one (or None) per prompt.

    Raises:
        SpecError: Not prompts at all, a row that is no prompt (the message names its index and
            type), text beside chats without `chat`, or a wrong `sampling`.
    """
    rows = _objects(prompts) if objects else _rows(prompts)
    if objects:
        made = [row if type(row) is str else _object(row, i) for i, row in enumerate(rows)]
        chat = False
    elif task == "generate":
        made = [row if type(row) is str else _prompt(row, i) for i, row in enumerate(rows)]
    else:
        made = [row if type(row) is str else _text_or_pair(row, i) for i, row in enumerate(rows)]
    if task == "score" and not objects:
        _refuse_singles(made)
    if chat:
        made = [_as_chat(prompt, index) for index, prompt in enumerate(made)]
    else:
        _refuse_mixture(made)
    count = len(made)
    samplings = _samplings(sampling, count)
    requests = tuple(
        map(
            Request,
            range(count),
            made,
            cycle(samplings),
            repeat(choices),
            _adapters(lora, count),
        )
    )
    shared = samplings[0] if len(set(map(id, samplings))) == 1 and samplings[0].fields else None
    return Prepared(requests, rows, shared)


def _rows(prompts: object) -> tuple[Any, ...]:
    if isinstance(prompts, str):
        return (prompts,)
    fix = _fix_for(prompts)
    if fix:
        raise SpecError(f"prompts is of type {type(prompts).__name__}; {fix}")
    listed = _listed(prompts)
    if not isinstance(listed, Iterable) or isinstance(listed, str):
        return _rows(listed)  # an array without a dimension holds one value
    rows = tuple(listed)
    if rows and isinstance(rows[0], Mapping) and "role" in rows[0]:
        return (listed if isinstance(listed, list | tuple) else rows,)  # one chat, one prompt
    return rows


def _objects(prompts: object) -> tuple[Any, ...]:
    """The items of whatever the user's function takes a batch of, each as it is."""
    if isinstance(prompts, str):
        return (prompts,)
    fix = "" if isinstance(prompts, list | tuple) else _fix_for(prompts)
    if fix:
        raise SpecError(f"prompts is of type {type(prompts).__name__}; {fix}")
    arrow = getattr(prompts, "to_pylist", None)  # whose own items are wrapped
    listed: Any = arrow() if callable(arrow) else prompts
    return tuple(listed)


def _fix_for(prompts: object) -> str:
    kind = type(prompts)  # asking a lazy frame itself for its columns would compute them
    if hasattr(kind, "columns") or hasattr(kind, "column_names"):
        return 'pass one column, such as df["text"]'
    match prompts:
        case Mapping() if "role" in prompts:
            return "one message of a chat; put it in a list: [message]"
        case Mapping() if _PROMPT_KEYS & prompts.keys():
            return "put the prompt in a list: [prompt]"
        case Mapping():
            return 'pass one of its values, such as data["text"]'
        case set() | frozenset():
            return "a set has no order, so answers cannot be matched to it; pass sorted(prompts)"
        case bytes() | bytearray() | memoryview():
            return "decode it first: bytes(prompts).decode()"
        case IOBase():
            return "read it first: prompts.read() is one prompt, [*prompts] one per line"
        case _ if not isinstance(prompts, Iterable) and _listed(prompts) is prompts:
            return f"pass a list: {_A_PROMPT}"
    return ""


def _listed(value: object) -> Any:
    """Python's own list of an array or column; anything else as it is."""
    if not isinstance(value, list | tuple):
        for method in ("tolist", "to_pylist", "to_list"):
            convert = getattr(value, method, None)
            if callable(convert):
                return convert()
    return value


def _prompt(row: object, index: int) -> Prompt:
    match row:
        case str():
            return str.__str__(row)  # a subclass may not exist in the worker
        case Mapping():
            return _from_dict(row, index)
        case list() | tuple():
            if row and isinstance(row[0], Mapping):
                return _chat(row, index)
            return _tokens(row, index)
    listed = _listed(row)
    if isinstance(listed, str | list):
        return _prompt(listed, index)
    raise SpecError(f"prompt {index} is {_described(row)}: {_A_PROMPT}; {_fix_for_row(row)}")


def _text_or_pair(row: object, index: int) -> Prompt:
    match row:
        case [str(first), str(second)] | {"text": str(first), "text_pair": str(second)}:
            return Pair(str.__str__(first), str.__str__(second))
        case {"text": str(text), **others} if not others:
            return str.__str__(text)
        case Mapping() if "text" in row or "text_pair" in row:
            raise SpecError(
                f"prompt {index} is {_described(row)}: a pair is "
                '{"text": text, "text_pair": text} or (text, text)'
            )
    return _prompt(row, index)


def _object(row: object, index: int) -> Prompt:
    import cloudpickle

    try:
        return Pickled(cloudpickle.dumps(row))
    except Exception as error:  # pickling runs the code of the user's objects
        raise SpecError(
            f"prompt {index} is {_described(row)} and cannot be sent to a worker: "
            f"{type(error).__name__}: {error}"
        ) from error


def _refuse_singles(made: Iterable[Prompt]) -> None:
    for index, prompt in enumerate(made):
        if not isinstance(prompt, Pair):
            raise SpecError(
                f"prompt {index} is {_KINDS[type(prompt)]}; the task score is about pairs of "
                'texts, each as (text, text) or {"text": text, "text_pair": text}'
            )


def _adapters(lora: object, count: int) -> Iterable[str | None]:
    if lora is None or isinstance(lora, str | PathLike):
        return repeat(None if lora is None else fspath(lora))
    each = _listed(lora)
    if not isinstance(each, list | tuple) or len(each) != count:
        raise SpecError(
            f"lora is {short(lora)}; pass the directory of one adapter, or one (or None) for "
            f"each of the {count} prompts"
        )
    for index, path in enumerate(each):
        if path is not None and not isinstance(path, str | PathLike):
            raise SpecError(f"lora[{index}] is {_described(path)}; pass a directory, or None")
    return [None if path is None else fspath(path) for path in each]


def _fix_for_row(row: object) -> str:
    if not isinstance(row, bool) and isinstance(row, Integral):
        return "the token ids of one prompt are a list of their own: [[5, 6, 7, 8]]"
    if isinstance(row, bytes):
        return "decode it first"
    return "drop or fill missing values before, and write numbers as text with str()"


def _described(value: object) -> str:
    return f"{type(value).__name__} ({short(value)})"


def _tokens(row: Iterable[Any], index: int) -> Tokens:
    ids = tuple(row)
    if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0:
        return Tokens(ids)
    for place, item in enumerate(ids):
        if isinstance(item, bool) or not isinstance(item, Integral) or int(item) < 0:
            raise SpecError(
                f"prompt {index}, item {place} is {_described(item)}: a list is either token ids, "
                'whole numbers of 0 or more, or a chat, dicts with "role" and "content"'
            )
    return Tokens(tuple(map(int, ids)))


def _chat(row: Iterable[object], index: int) -> Chat:
    return Chat(tuple(_message(item, index, place) for place, item in enumerate(row)))


def _message(message: object, index: int, place: int) -> dict[str, Any]:
    where = f"prompt {index}, message {place}"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise SpecError(
            f"{where} is {_described(message)}: a message is a dict, "
            'such as {"role": "user", "content": "Hello"}'
        )
    content = message.get("content")
    if isinstance(content, str | list | tuple) or (content is None and message.get("tool_calls")):
        return plain(message, where)  # type: ignore[no-any-return]  # of a Mapping it is a dict
    raise SpecError(
        f'{where} has the content {_described(content)}: "content" is text or a list of parts; '
        'only a message with "tool_calls" may be without'
    )


_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "prompt_embeds", "encoder_prompt"})


def _from_dict(row: Mapping[Any, Any], index: int) -> Prompt:
    fields = dict(row)
    if not _PROMPT_KEYS & fields.keys():
        raise SpecError(
            f"prompt {index} is a dict with the keys {short(list(fields))}: a vLLM prompt dict "
            f"has one of {', '.join(sorted(_PROMPT_KEYS))}; a chat is a list of such dicts as "
            '{"role": "user", "content": "Hello"}'
        )
    if "prompt" in fields:
        text = fields["prompt"]
        if not isinstance(text, str):
            raise SpecError(f'prompt {index} has the "prompt" {_described(text)}; pass text')
        fields["prompt"] = str.__str__(text)
    if "prompt_token_ids" in fields:
        ids = _listed(fields["prompt_token_ids"])
        if not isinstance(ids, list | tuple):
            raise SpecError(
                f'prompt {index} has the "prompt_token_ids" {_described(ids)}; pass a list'
            )
        fields["prompt_token_ids"] = list(_tokens(ids, index).ids)
    match fields:
        case {"prompt": str(text)} if len(fields) == 1:
            return text
        case {"prompt_token_ids": ids} if len(fields) == 1:
            return Tokens(tuple(ids))
    return _pickled(fields, index)


def _pickled(fields: dict[Any, Any], index: int) -> Pickled:
    import cloudpickle

    try:
        return Pickled(cloudpickle.dumps(fields))
    except Exception as error:  # pickling runs the code of the user's objects
        held = ", ".join(f"{key}: {type(value).__name__}" for key, value in fields.items())
        raise SpecError(
            f"prompt {index} is a dict ({held}) that cannot be sent to another process; pass "
            f"data, such as images or arrays: {type(error).__name__}: {error}"
        ) from error


def _as_chat(prompt: Prompt, index: int) -> Prompt:
    match prompt:
        case Chat():
            return prompt
        case str():
            return Chat(({"role": "user", "content": prompt},))
    if prompt == _EMPTY:
        return prompt
    raise SpecError(
        f"prompt {index} is {_KINDS[type(prompt)]}, and chat asks for the chat template, which "
        "takes text; leave chat out, or pass text or chats"
    )


_KINDS = {
    str: "text",
    Tokens: "token ids",
    Chat: "a chat",
    Pair: "a pair of texts",
    Pickled: "a prompt dict",
}


def _refuse_mixture(made: list[Prompt]) -> None:
    """An empty row is neither: the engine refuses it, in its row."""
    if Chat not in set(map(type, made)):
        return
    kinds = [(index, type(prompt)) for index, prompt in enumerate(made) if prompt != _EMPTY]
    first, first_kind = kinds[0]
    for index, kind in kinds:
        if (kind is Chat) is not (first_kind is Chat):
            raise SpecError(
                f"prompt {index} is {_KINDS[kind]}, prompt {first} is {_KINDS[first_kind]}: a "
                "job has either chats or plain prompts; make text a chat with --chat (chat=True) "
                'or as [{"role": "user", "content": text}]'
            )


def _samplings(sampling: object, count: int) -> list[Sampling]:
    """One for all, or one per prompt."""
    if sampling is None:
        return [Sampling()]
    if isinstance(sampling, Mapping | str) or not isinstance(sampling, Iterable):
        fields: Any = sampling  # `Sampling.of` refuses what is no dict
        return [Sampling.of(fields, "sampling", shared=True)]
    each = tuple(_listed(sampling))
    if len(each) != count:
        raise SpecError(
            f"sampling has {len(each)} entries and there are {count} prompts; pass one dict for "
            "all of them, or one per prompt"
        )
    made: dict[int, Sampling] = {}  # by identity: `[{...}] * n` is checked and sent once
    for index, fields in enumerate(each):
        if id(fields) not in made:
            made[id(fields)] = Sampling.of(fields, f"sampling[{index}]", shared=False)
    return [made[id(fields)] for fields in each]
