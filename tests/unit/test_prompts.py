"""What counts as prompts, and what is refused before anything is started."""

from __future__ import annotations

import io
import pickle
import threading
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.messages import Chat, Pair, Pickled, Submit, Tokens, decode_command, encode
from mgpu_magic.prompts import to_requests
from mgpu_magic.spec import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mgpu_magic.messages import Prompt
    from mgpu_magic.spec import Task

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hello"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}


def prompts_of(prompts: object, **options: Any) -> list[Prompt]:
    """The prompts that the requests carry."""
    return [request.prompt for request in to_requests(prompts, **options).requests]


class Label(str, Enum):  # noqa: UP042  # the older kind, whose str() is not its value
    """A text by name."""

    RED = "red"


class Column:
    """A column as `datasets` has it: neither a list nor convertible, but iterable."""

    column_name = "text"

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b"])


class PolarsLike:
    """A column that offers only `to_list`."""

    def __init__(self, values: list[object]) -> None:
        self._values = values

    def to_list(self) -> list[object]:
        return self._values


@pytest.mark.parametrize(
    "prompts",
    [
        ["a", "b"],
        ("a", "b"),
        (text for text in "ab"),
        iter(["a", "b"]),
        {"first": "a", "second": "b"}.values(),
        pd.Series(["a", "b"], index=[7, 3]),
        pd.Series(["a", "b"], dtype="string"),
        pd.Index(["a", "b"]),
        np.array(["a", "b"]),
        np.array(["a", "b"], dtype=object),
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        PolarsLike(["a", "b"]),
        Column(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_column_of_text(prompts: object) -> None:
    """Whatever holds the texts, each is one prompt, in order, as plain str."""
    prepared = to_requests(prompts)
    assert [(r.index, r.prompt, type(r.prompt)) for r in prepared.requests] == [
        (0, "a", str),
        (1, "b", str),
    ]
    assert prepared.originals == ("a", "b")


@pytest.mark.parametrize("text", ["hello", np.str_("hello"), Label.RED, np.array("hello")])
def test_a_bare_text_is_one_prompt(text: object) -> None:
    """`prompts = "hello"` is one prompt, not five letters."""
    (request,) = to_requests(text).requests
    assert request.prompt == ("red" if text is Label.RED else "hello")
    assert type(request.prompt) is str


def test_a_text_of_a_subclass_is_sent_as_str() -> None:
    """The worker need not know the class: an enum member arrives as its value."""
    made = prompts_of([Label.RED, np.str_("a")])
    assert made == ["red", "a"]
    assert [type(text) for text in made] == [str, str]


@pytest.mark.parametrize("prompts", [[], (), iter([]), pd.Series([], dtype=object), np.array([])])
def test_no_prompts(prompts: object) -> None:
    """An empty selection is an empty job, not an error."""
    prepared = to_requests(prompts)
    assert prepared.requests == ()
    assert prepared.originals == ()


def test_the_originals_are_the_users_own_objects() -> None:
    """Nothing that the user passed is copied for the results."""
    row = [5, 6]
    text = "".join(["long", " text"])
    prepared = to_requests([text, row])
    assert prepared.originals[0] is text
    assert prepared.originals[1] is row


def test_a_generator_is_consumed_once() -> None:
    """A generator is read to its end, once, and its values are kept as the originals."""
    texts = (str(i) for i in range(3))
    prepared = to_requests(texts)
    assert list(texts) == []
    assert prepared.originals == ("0", "1", "2")


@pytest.mark.parametrize(
    "prompts",
    [
        [[5, 6], [7]],
        [(5, 6), (7,)],
        [np.array([5, 6]), np.array([7])],
        [[np.int64(5), np.int32(6)], [7]],
        pa.array([[5, 6], [7]]),
        [{"prompt_token_ids": np.array([5, 6])}, {"prompt_token_ids": [7]}],
    ],
)
def test_token_ids(prompts: object) -> None:
    """Rows of whole numbers are token ids, NumPy's own among them."""
    made = prompts_of(prompts)
    assert made == [Tokens((5, 6)), Tokens((7,))]
    assert all(type(i) is int for row in made if isinstance(row, Tokens) for i in row.ids)


def test_a_matrix_is_a_row_of_token_ids_per_prompt() -> None:
    """A two-dimensional integer array has a prompt per row."""
    assert prompts_of(np.array([[5, 6], [7, 8]])) == [Tokens((5, 6)), Tokens((7, 8))]


@pytest.mark.parametrize(
    "prompts", [[5, 6, 7, 8], (5, 6), np.array([5, 6]), pd.Series([5, 6]), [np.int64(5)]]
)
def test_a_flat_list_of_numbers_is_ambiguous(prompts: object) -> None:
    """`[5, 6, 7, 8]` is refused with the way to write one prompt of token ids."""
    with pytest.raises(SpecError, match=r"^prompt 0 is int\w* \(.*5.*\): .*\[\[5, 6, 7, 8\]\]"):
        to_requests(prompts)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (["a", None], "prompt 1 is NoneType (None): "),
        (["a", float("nan"), "b"], "prompt 1 is float (nan): "),
        (pd.Series(["a", None]), "prompt 1 is float (nan): "),
        (pd.Series(["a", None], dtype="string"), "prompt 1 is NAType (<NA>): "),
        (pa.array(["a", None]), "prompt 1 is NoneType (None): "),
        (["a", 2], "prompt 1 is int (2): "),
        (["a", True], "prompt 1 is bool (True): "),
        (["a", 0.5], "prompt 1 is float (0.5): "),
        (["a", b"b"], "prompt 1 is bytes (b'b'): "),
        (["a", {"b"}], "prompt 1 is set ({'b'}): "),
    ],
)
def test_a_row_that_is_no_prompt_is_named(prompts: object, said: str) -> None:
    """A missing value or a number never becomes the text "nan": its index and type are named."""
    with pytest.raises(SpecError) as caught:
        to_requests(prompts)
    assert str(caught.value).startswith(said)


def test_what_helps_with_a_missing_value() -> None:
    """The message says what to do, not only what is wrong."""
    with pytest.raises(SpecError, match="drop or fill missing values"):
        to_requests(["a", None])
    with pytest.raises(SpecError, match="decode it"):
        to_requests([b"a"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1, 2.5], "prompt 1, item 1 is float (2.5)"),
        ([1, True], "prompt 1, item 1 is bool (True)"),
        ([1, -2], "prompt 1, item 1 is int (-2)"),
        (["a", "b"], "prompt 1, item 0 is str ('a')"),
        (("a", "b"), "prompt 1, item 0 is str ('a')"),
        (np.array([0.5]), "prompt 1, item 0 is float (0.5)"),
        ([[1], [2]], "prompt 1, item 0 is list ([1])"),
        ([1, USER], "prompt 1, item 1 is dict"),
    ],
)
def test_wrong_token_ids_are_named(row: object, said: str) -> None:
    """A list that is neither token ids nor a chat is refused, naming prompt and item."""
    with pytest.raises(SpecError) as caught:
        to_requests([[1], row])
    assert str(caught.value).startswith(said)


def test_one_chat_is_one_prompt() -> None:
    """One conversation is not split into its messages."""
    prepared = to_requests([SYSTEM, USER])
    assert [r.prompt for r in prepared.requests] == [Chat((SYSTEM, USER))]
    assert prepared.originals == ([SYSTEM, USER],)


@pytest.mark.parametrize("chats", [[[SYSTEM, USER]] * 3, iter([[SYSTEM, USER]] * 3)])
def test_several_chats(chats: object) -> None:
    """Three conversations are three prompts."""
    assert prompts_of(chats) == [Chat((SYSTEM, USER))] * 3


def test_chats_of_a_parquet_file() -> None:
    """A column of conversations read by pandas holds arrays of dicts; each is one chat."""
    rows = np.empty(2, dtype=object)
    rows[:] = [np.array([SYSTEM, USER], dtype=object), np.array([USER], dtype=object)]
    assert prompts_of(pd.Series(rows)) == [Chat((SYSTEM, USER)), Chat((USER,))]


def test_a_chat_is_copied() -> None:
    """Changing the user's dict afterwards does not change the request."""
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    (chat,) = prompts_of([[message]])
    message["content"] = "changed"
    assert chat == Chat(({"role": "user", "content": [{"type": "text", "text": "a"}]},))


def test_a_tool_call_needs_no_content() -> None:
    """An assistant's message with tool calls may be without content."""
    assert prompts_of([[USER, CALL]]) == [Chat((USER, CALL))]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "a"}, "prompt 1, message 1 is dict"),
        ({"role": None, "content": "a"}, "prompt 1, message 1 is dict"),
        ("a", "prompt 1, message 1 is str ('a')"),
        ({"role": "user"}, "prompt 1, message 1 has the content NoneType (None)"),
        ({"role": "user", "content": float("nan")}, "prompt 1, message 1 has the content float"),
        (
            {"role": "user", "content": [{"type": "image", "image": threading.Lock()}]},
            "prompt 1, message 1['content'][0]['image'] is of type _thread.lock",
        ),
    ],
)
def test_a_wrong_message_is_named(message: object, said: str) -> None:
    """A chat that cannot be right is refused, naming prompt and message."""
    with pytest.raises(SpecError) as caught:
        to_requests([[USER], [USER, message]])
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (["a", [USER]], "prompt 1 is a chat, prompt 0 is text"),
        ([[USER], [USER], "a"], "prompt 2 is text, prompt 0 is a chat"),
        ([[USER], [5, 6]], "prompt 1 is token ids, prompt 0 is a chat"),
        ([[], [USER], "a"], "prompt 2 is text, prompt 1 is a chat"),
    ],
)
def test_text_beside_chats_is_refused(prompts: object, said: str) -> None:
    """A mix of text and chats would be read in two ways; the odd one is named."""
    with pytest.raises(SpecError) as caught:
        to_requests(prompts)
    assert str(caught.value).startswith(said)


def test_text_beside_token_ids() -> None:
    """Both are plain prompts, and may be mixed."""
    assert prompts_of(["a", [5]]) == ["a", Tokens((5,))]


def test_chat_makes_text_a_user_message() -> None:
    """With `chat`, text becomes a conversation, and conversations stay as they are."""
    made = prompts_of(["Hello", {"prompt": "Hello"}, [SYSTEM, USER]], chat=True)
    assert made == [Chat((USER,)), Chat((USER,)), Chat((SYSTEM, USER))]


@pytest.mark.parametrize(
    ("row", "kind"), [([5, 6], "token ids"), ({"prompt_embeds": 1}, "a prompt dict")]
)
def test_chat_refuses_what_has_no_template(row: object, kind: str) -> None:
    """A chat template takes text: token ids with `chat` are refused, naming the index."""
    with pytest.raises(SpecError, match=f"^prompt 1 is {kind}, and chat asks for"):
        to_requests(["a", row], chat=True)


@pytest.mark.parametrize("chat", [True, False])
def test_an_empty_row_is_left_to_the_engine(chat: bool) -> None:
    """An empty prompt fails alone, in its row, whatever the others are."""
    assert prompts_of([[USER], []], chat=chat) == [Chat((USER,)), Tokens(())]
    assert prompts_of(["", "   "]) == ["", "   "]


def test_a_lone_surrogate_reaches_the_worker() -> None:
    """Scraped text that is no valid Unicode travels; it can fail in its row alone."""
    prepared = to_requests(["ok", "a\ud800b", "a\0b"])
    submit = Submit(1, prepared.requests)
    assert decode_command(encode(submit)) == submit


def test_vllm_prompt_dicts() -> None:
    """A dict of text or ids alone is plain; one with objects is pickled and arrives whole."""
    image = np.arange(3)
    rows = [
        {"prompt": np.str_("a")},
        {"prompt_token_ids": (1, 2)},
        {"prompt": "a", "multi_modal_data": {"image": image}},
        {"prompt": "a", "prompt_token_ids": np.array([1, 2])},
    ]
    text, tokens, with_image, both = prompts_of(rows)
    assert text == "a"
    assert type(text) is str
    assert tokens == Tokens((1, 2))
    assert isinstance(with_image, Pickled)
    assert isinstance(both, Pickled)
    assert pickle.loads(with_image.data)["multi_modal_data"]["image"].tolist() == [0, 1, 2]
    assert pickle.loads(both.data) == {"prompt": "a", "prompt_token_ids": [1, 2]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "a"}, "prompt 1 is a dict with the keys ['text']"),
        (USER, "prompt 1 is a dict with the keys ['role', 'content']"),
        ({}, "prompt 1 is a dict with the keys []"),
        ({"prompt": None}, 'prompt 1 has the "prompt" NoneType (None)'),
        ({"prompt_token_ids": 5}, 'prompt 1 has the "prompt_token_ids" int (5)'),
        ({"prompt_token_ids": [5, None]}, "prompt 1, item 1 is NoneType (None)"),
    ],
)
def test_a_wrong_prompt_dict_is_named(row: object, said: str) -> None:
    """A dict that vLLM would not read is refused, naming the prompt."""
    with pytest.raises(SpecError) as caught:
        to_requests(["a", row])
    assert str(caught.value).startswith(said)


def test_an_object_that_cannot_be_sent_is_named() -> None:
    """A lock in a prompt dict is refused in the kernel, naming prompt, key and type."""
    row = {"prompt": "a", "multi_modal_data": threading.Lock()}
    with pytest.raises(SpecError, match=r"^prompt 1 is a dict \(.*multi_modal_data: lock\)"):
        to_requests(["a", row])


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        (pd.DataFrame({"text": ["a"]}), 'of type DataFrame; pass one column, such as df["text"]'),
        (pa.table({"text": ["a"]}), "of type Table; pass one column"),
        ({"text": ["a"]}, 'of type dict; pass one of its values, such as data["text"]'),
        ({"prompt": "a"}, "of type dict; put the prompt in a list"),
        (USER, "of type dict; one message of a chat; put it in a list"),
        ({"a", "b"}, "of type set; a set has no order"),
        (b"ab", "of type bytes; decode it"),
        (io.StringIO("a\nb"), "of type StringIO; read it first"),
        (Path("prompts.txt"), "; pass a list"),
        (None, "of type NoneType; pass a list"),
        (5, "of type int; pass a list"),
        (np.array(5), "of type int; pass a list"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_holds_no_prompts_is_refused_with_the_fix(prompts: object, said: str) -> None:
    """A frame, dict, set, file or number in place of the prompts is refused with what to pass."""
    with pytest.raises(SpecError) as caught:
        to_requests(prompts)
    assert str(caught.value).startswith("prompts is of type ")
    assert said in str(caught.value)


def test_an_error_in_the_users_generator_is_theirs() -> None:
    """What the user's own generator raises comes through as it is."""

    def broken() -> Iterator[str]:
        yield "a"
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        to_requests(broken())


PAIR = Pair("a", "b")


@pytest.mark.parametrize("task", ["classify", "embed", "score"])
@pytest.mark.parametrize(
    "prompts",
    [
        [("a", "b")] * 4,
        [["a", "b"]] * 4,
        [{"text": "a", "text_pair": "b"}] * 4,
        np.array([["a", "b"]] * 4),
        pd.Series([("a", "b")] * 4),
    ],
)
def test_pairs_of_texts(prompts: object, task: Task) -> None:
    """However a pair is written, it is one prompt."""
    assert prompts_of(prompts, task=task) == [PAIR] * 4


def test_texts_and_pairs_for_a_classifier() -> None:
    """A classifier takes both, and a text may come as a dict; token ids stay token ids."""
    prompts = ["a", {"text": "a"}, ("a", "b"), [5, 6]]
    assert prompts_of(prompts, task="classify") == ["a", "a", PAIR, Tokens((5, 6))]


@pytest.mark.parametrize(
    ("prompts", "task", "said"),
    [
        (["a"], "score", "prompt 0 is text; the task score is about pairs of texts"),
        ([("a", "b"), [5]], "score", "prompt 1 is token ids; the task score"),
        ([{"text": "a", "pair": "b"}], "classify", "prompt 0 is dict ({'pair': 'b', 'text': 'a'})"),
        ([{"text": "a", "text_pair": 1}], "embed", "prompt 0 is dict"),
        ([("a", None)], "classify", "prompt 0, item 0 is str ('a')"),
        ([("a", "b")], "generate", "prompt 0, item 0 is str ('a')"),
        ([float("nan")], "classify", "prompt 0 is float (nan)"),
    ],
)
def test_a_wrong_pair_is_named(prompts: object, task: Task, said: str) -> None:
    """By its index, with what a pair is."""
    with pytest.raises(SpecError) as caught:
        to_requests(prompts, task=task)
    assert str(caught.value).startswith(said)


def test_a_function_takes_any_object() -> None:
    """Text travels as it is, anything else pickled."""
    prompts = prompts_of(["a", None, {"x": np.ones(2)}], objects=True)
    assert prompts[0] == "a"
    assert [type(prompt) for prompt in prompts[1:]] == [Pickled, Pickled]
    assert isinstance(prompts[1], Pickled)
    assert pickle.loads(prompts[1].data) is None


def test_an_object_for_a_function_that_cannot_be_sent_is_named() -> None:
    """The message names the prompt."""
    with pytest.raises(SpecError, match=r"^prompt 1 is lock \(.*\) and cannot be sent to a worker"):
        to_requests([1, threading.Lock()], objects=True)


def test_choices_go_with_each_prompt() -> None:
    """In the order in which they were given."""
    requests = to_requests(["a", "b"], choices=("Y", "N")).requests
    assert [request.choices for request in requests] == [("Y", "N")] * 2


def test_adapters_for_all_or_for_each() -> None:
    """A path is for all prompts; a list has one or None for each."""

    def adapters(lora: object) -> list[str | None]:
        return [request.lora for request in to_requests(["a", "b"], lora=lora).requests]

    assert adapters(None) == [None, None]
    assert adapters("one") == ["one", "one"]
    assert adapters(Path("one")) == ["one", "one"]
    assert adapters([None, Path("two")]) == [None, "two"]


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        (["one"], "lora is ['one']; pass the directory of one adapter, or one (or None) for each"),
        (3, "lora is 3; pass the directory"),
        (["one", 3], "lora[1] is int (3); pass a directory, or None"),
    ],
)
def test_wrong_adapters_are_named(lora: object, said: str) -> None:
    """With the number of prompts, or the index."""
    with pytest.raises(SpecError) as caught:
        to_requests(["a", "b"], lora=lora)
    assert str(caught.value).startswith(said)


def test_one_sampling_for_all() -> None:
    """One dict is checked once and shared; its seed becomes the job's."""
    first, second = to_requests(["a", "b"], sampling={"max_tokens": 4, "seed": 7}).requests
    assert first.sampling == Sampling({"max_tokens": 4}, 7)
    assert first.sampling is second.sampling


def test_no_sampling() -> None:
    """Without sampling the engine's defaults hold."""
    assert to_requests(["a"]).requests[0].sampling == Sampling({}, None)


@pytest.mark.parametrize("kind", [list, tuple, iter, pd.Series])
def test_one_sampling_per_prompt(kind: Any) -> None:
    """A dict per prompt goes with its prompt, and keeps its own seed."""
    fields = [{"seed": 1}, {"max_tokens": 2}]
    made = to_requests(["a", "b"], sampling=kind(fields)).requests
    assert [r.sampling for r in made] == [Sampling({"seed": 1}), Sampling({"max_tokens": 2})]


def test_the_same_sampling_dict_is_shared() -> None:
    """`[fields] * n` is sent once, not n times."""
    first, second = to_requests(["a", "b"], sampling=[{"max_tokens": 2}] * 2).requests
    assert first.sampling is second.sampling


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ([{}], "sampling has 1 entries and there are 2 prompts"),
        ([{}, {"stop": len}], "sampling[1]['stop'] is of type builtins.builtin_function"),
        ([{}, None], "sampling[1] is of type NoneType"),
        ({"stop": len}, "sampling['stop'] is of type"),
        ("max_tokens", "sampling is of type str"),
        (5, "sampling is of type int"),
    ],
)
def test_wrong_sampling_is_named(sampling: object, said: str) -> None:
    """A wrong `sampling` is refused, naming the entry."""
    with pytest.raises(SpecError) as caught:
        to_requests(["a", "b"], sampling=sampling)
    assert str(caught.value).startswith(said)


def test_many_texts_are_quick() -> None:
    """A hundred thousand texts are ready in well under a second."""
    texts = [f"prompt {i}" for i in range(100_000)]
    started = time.process_time()
    assert len(to_requests(texts).requests) == 100_000
    assert time.process_time() - started < 1
