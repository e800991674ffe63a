"""What a notebook and a terminal show of results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from answers import (
    INTERRUPTED,
    Cells,
    answer,
    many,
    predicted,
    returned,
    two_of_three,
)

from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.results import ResultSet
from mgpu_magic.tables import clipped


def test_a_notebook_shows_a_short_table() -> None:
    """200 rows show as a headline, the first five and the last two, in a few kilobytes."""
    prompts = [f"prompt {i}: " + "word " * 100 for i in range(200)]
    outcomes = [answer(i, f"answer {i}: " + "word " * 100) for i in range(200)]
    html = ResultSet(outcomes, prompts)._repr_html_()
    rows = Cells(html).rows
    assert len(html) < 6000
    assert "200 prompts, 200 answered" in html
    assert rows[0] == ["#", "prompt", "answer", "device", "tokens"]
    assert [row[0] for row in rows[1:]] == ["0", "1", "2", "3", "4", "…", "198", "199"]
    assert rows[1][1].startswith("prompt 0: word")
    assert (len(rows[1][1]), len(rows[1][2])) == (80, 160)
    assert rows[1][1][-1] == rows[1][2][-1] == "…"
    assert rows[1][3:] == ["cuda:0", "4"]


def test_seven_rows_are_shown_whole() -> None:
    """Nothing is left out where all fits."""
    assert [row[0] for row in Cells(many(7)._repr_html_()).rows] == ["#", *"0123456"]


def test_a_terminal_shows_the_same() -> None:
    """The plain text has the headline, aligned columns, and failures in words."""
    lines = repr(two_of_three()).splitlines()
    assert lines[0] == "3 prompts, 2 answered, 1 failed, 1 cut by length"
    assert [line.split()[0] for line in lines[1:]] == ["#", "0", "1", "2"]
    assert lines[1].index("answer") == lines[2].index("A")
    assert "failed: VLLMValidationError: the prompt is too long" in lines[3]


def test_no_results_are_one_line() -> None:
    """Without prompts there is a headline and no table."""
    assert repr(ResultSet([], [])) == "0 prompts, 0 answered"
    assert Cells(ResultSet([], [])._repr_html_()).tags == {"div"}


def test_an_interrupted_row_is_not_called_failed() -> None:
    """A prompt that had no turn is `not finished`."""
    shown = repr(ResultSet([Failure(0, INTERRUPTED)], ["a"]))
    assert "1 prompt, 0 answered, 1 not finished" in shown
    assert "not finished: Interrupted: stopped by the user" in shown


def test_what_each_kind_of_prompt_looks_like() -> None:
    """Text as it is, a chat by its last message, token ids as numbers, a dict by its text."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    parts = [{"role": "user", "content": [{"type": "text"}]}]
    prompts = ["a\n b", chat, [5, 6], {"prompt": "c"}, parts, None]
    shown = [row[1] for row in Cells(ResultSet(map(answer, range(6)), prompts)._repr_html_()).rows]
    assert shown[1:5] == ["a b", "user: Hello", "[5, 6]", "c"]
    assert "'role': 'user'" in shown[5]
    assert shown[6] == "None"


def test_pairs_are_shown_as_two_texts() -> None:
    """A question and its passage are told apart, in whichever form they were passed."""
    pairs = [("q", "p"), ["q", "p"], {"text": "q", "text_pair": "p"}]
    shown = Cells(ResultSet(map(answer, range(3)), pairs)._repr_html_()).rows
    assert [row[1] for row in shown[1:]] == ["q | p"] * 3


@pytest.mark.parametrize(
    ("results", "cell"),
    [
        (predicted("classify", [[0.0, 4.0]], ["no", "yes"]), "yes 0.98"),
        (predicted("classify", [[3.14159]], ["LABEL_0"], "none"), "LABEL_0 3.14"),
        (
            predicted("classify", [[0.0, 0.0, 9.0, 9.0]], "abcd", "sigmoid"),
            "c 1.00, d 1.00, a 0.50, …",
        ),
        (predicted("classify", [[0.0, 9.0]], "ab", "sigmoid"), "b 1.00, a 0.50"),
        (predicted("classify", [[0.5, 1.0]]), "2 numbers: 0.5, 1"),
        (predicted("choices", [[-1.0, -5.0]], ["Paris", "Rome"]), "Paris 0.98"),
        (predicted("embed", [[0.0123, -0.5, 2.0, 1.0]]), "4 numbers: 0.0123, -0.5, 2, …"),
        (predicted("embed", [[0.5]]), "1 number: 0.5"),
        (predicted("score", [[0.8734]]), "0.873"),
        (returned({"a": 1}), "{'a': 1}"),
        (returned("x"), "'x'"),
    ],
)
def test_what_each_kind_of_answer_looks_like(results: ResultSet, cell: str) -> None:
    """A label with its probability, the first numbers, a score, a value; and no tokens."""
    assert Cells(results._repr_html_()).rows == [
        ["#", "prompt", "answer", "device"],
        ["0", "a", cell, "cpu:1"],
    ]


class Stubborn:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Gone(Stubborn):
    """A value that cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("no number",))


class deque:  # noqa: N801  # a name that `reprlib` believes to know
    """A value that is not what its name says."""


def test_a_value_that_cannot_be_shown_does_not_cost_the_table() -> None:
    """Its type is shown, or why it cannot be read; a huge one is clipped."""
    results = returned(Stubborn(), Gone(), deque(), "x" * 10**6, np.zeros(10**6))
    cells = [row[2] for row in Cells(results._repr_html_()).rows[1:]]
    assert "Stubborn" in cells[0]
    assert cells[1].startswith("(cannot be read here: ValueError: invalid literal")
    assert cells[2] == "(deque)"
    assert max(map(len, cells)) == 160
    assert cells[3].startswith("'xxx")
    assert cells[4].startswith("array([0., 0.")
    prompts = ResultSet([answer(0)], [Stubborn()])
    assert "Stubborn" in repr(prompts)


def test_several_texts_are_announced() -> None:
    """Of several texts the first is shown, and that there are more; without text, nothing."""
    results = ResultSet([answer(0, "x", "y"), answer(1, "")], ["a", "b"])
    assert [row[2] for row in Cells(results._repr_html_()).rows] == ["answer", "(1 of 2) x", ""]


def test_hostile_text_is_only_text() -> None:
    """Markup is escaped; control characters and lone surrogates are shown in words."""
    hostile = "<script>alert(1)</script> & \x1b[31m \ud800 \x00"
    error = RemoteError("<b>", "<img src=x>")
    results = ResultSet([answer(0, hostile, device="<i>"), Failure(1, error)], [hostile] * 2)
    page = Cells(results._repr_html_())
    assert page.tags == {"div", "table", "tr", "th", "td"}
    visible = r"<script>alert(1)</script> & \x1b[31m \ud800 \x00"
    assert page.rows[1] == ["0", visible, visible, "<i>", "4"]
    assert page.rows[2][2] == "failed: <b>: <img src=x>"
    for shown in (results._repr_html_(), repr(results)):
        assert shown.encode("utf-8")
        assert not re.search(r"[\x00\x1b]", shown)


def test_a_display_brings_no_colours() -> None:
    """A dark page stays readable: no colour of our own beside the theme's variables."""
    styles = " ".join(re.findall(r'style="([^"]*)"', two_of_three()._repr_html_()))
    assert "var(--jp-border-color2,currentColor)" in styles
    assert not re.search(r"#[0-9a-f]{3}|rgb|background|(?<![-\w])color:", styles)


def test_clipping() -> None:
    """A clipped text says so, a text that fits stays whole, and a long one costs nothing."""
    assert clipped("abcde", 5) == "abcde"
    assert clipped("abcdef", 5) == "abcd…"
    assert clipped("a" + " " * 100 + "b", 5) == "a…"
    assert clipped("x" * 10_000_000, 5) == "xxxx…"
    assert clipped("सलाम 👩‍💻", 20) == "सलाम 👩‍💻"
