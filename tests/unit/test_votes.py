"""The label that most models gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from answers import classified, generated, logits, predicted, returned

from mgpu_magic.ensemble import Ensemble

if TYPE_CHECKING:
    from mgpu_magic.results import ResultSet


def ballots(**models: list[list[float] | None]) -> Ensemble:
    """Classifiers by the probabilities of `no` and `yes` that they give each prompt."""
    return Ensemble(
        {name: classified(*(row and logits(*row) for row in rows)) for name, rows in models.items()}
    )


def test_most_votes_win() -> None:
    """However sure the others are."""
    results = ballots(a=[[0.4, 0.6]], b=[[0.4, 0.6]], c=[[0.99, 0.01]])
    assert results.vote() == ["yes"]
    assert results.vote(weights={"a": 1, "b": 1, "c": 2.5}) == ["no"]
    assert results.vote(weights={"a": 0, "b": 0, "c": 1}) == ["no"]


def test_a_failed_model_does_not_vote() -> None:
    """The others decide; where none has an answer there is no label."""
    results = ballots(a=[None, None, [0.3, 0.7]], b=[[0.9, 0.1], None, None])
    assert results.vote() == ["no", None, "yes"]
    assert Ensemble({"broken": classified(None, None, None), **results}).vote() == results.vote()


def test_a_tie_goes_to_the_higher_mean_probability() -> None:
    """Of two models that disagree the surer one is right, whichever comes first."""
    results = ballots(a=[[0.4, 0.6], [0.1, 0.9]], b=[[0.9, 0.1], [0.6, 0.4]])
    assert results.vote() == ["no", "yes"]
    equal = {"a": 0.1 + 0.2, "b": 0.3}
    assert results.vote(weights=equal) == ["no", "yes"]


def test_a_tie_of_equals_goes_to_the_first_model() -> None:
    """With nothing else to tell by, the order of the cell decides."""
    assert ballots(a=[[0.25, 0.75]], b=[[0.75, 0.25]]).vote() == ["yes"]
    assert ballots(b=[[0.75, 0.25]], a=[[0.25, 0.75]]).vote() == ["no"]
    assert Ensemble({"a": generated("x"), "b": generated("y")}).vote() == ["x"]


def test_generating_models_vote_with_their_text() -> None:
    """Without the space around it, beside classifiers and choices too."""
    results = Ensemble(
        {
            "one": generated(" yes\n", "", None),
            "two": generated("yes", "no", "no "),
            "three": classified(logits(0.9, 0.1), logits(0.9, 0.1), None),
        }
    )
    assert results.vote() == ["yes", "no", "no"]
    assert Ensemble({"one": results["one"]}).vote() == ["yes", "", None]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (classified([1.0, 2.0], activation="sigmoid"), "'two' has labels of which several may"),
        (predicted("embed", [[1.0]]), r"'two' \(task embed\) has no labels to vote with"),
        (returned("x"), r"'two' \(task python\) has no labels to vote with"),
    ],
)
def test_a_model_without_labels_cannot_vote(other: ResultSet, message: str) -> None:
    """It is named, with what to ask for instead."""
    with pytest.raises(ValueError, match=rf"model {message}.*\.mean\("):
        Ensemble({"one": generated("x"), "two": other}).vote()
