"""How fast a count grows, and how a figure went over a run."""

from __future__ import annotations

import itertools

import pytest

from mgpu_magic.rates import History, Window


def test_a_history_keeps_what_it_is_given_until_it_is_full() -> None:
    """A short run is shown point by point."""
    history = History(mean=True, points=4)
    assert not history.points
    for value in (3.0, 1.0, 2.0):
        history.add(value)
    assert list(history.points) == [3.0, 1.0, 2.0]


def test_a_full_history_makes_one_point_of_two() -> None:
    """Of speeds the mean, of memory the most; what is not yet a whole point is shown too."""
    mean, most = History(mean=True, points=4), History(mean=False, points=4)
    for value in (3.0, 1.0, 2.0, 8.0, 5.0):
        mean.add(value)
        most.add(value)
    assert mean.points == (2.0, 5.0, 5.0)
    assert most.points == (3.0, 8.0, 5.0)
    mean.add(7.0)
    most.add(7.0)
    assert mean.points == (2.0, 5.0, 6.0)
    assert most.points == (3.0, 8.0, 7.0)


@pytest.mark.parametrize("count", [40, 79, 80, 1000, 100_000])
def test_a_history_covers_the_whole_run_evenly_in_forty_points(count: int) -> None:
    """After an hour or a day the curve begins at the beginning, and none of it is stretched."""
    history = History(mean=True)
    for value in range(count):
        history.add(float(value))
    points = history.points
    assert 20 <= len(points) <= 40
    *steps, last = [after - before for before, after in itertools.pairwise(points)]
    assert len(set(steps)) == 1
    assert 0 < last <= steps[0]
    assert points[0] < steps[0]
    assert points[-1] >= count - 1 - steps[0]


def test_a_steady_pace_is_doubted_by_the_root_of_its_events() -> None:
    """400 answers tell the pace to a twentieth, 4 to a half."""
    for each, doubt in ((1, 10**-0.5), (40, 0.05)):
        window = Window(30.0)
        for second in range(11):
            window.add(float(second), each * second)
        assert window.doubt() == pytest.approx(doubt)


def test_a_pace_that_changes_is_doubted_by_as_much() -> None:
    """Three times as fast in the second half: it may be a half more or less."""
    window = Window(30.0)
    counts = [*range(0, 501, 100), *range(800, 2001, 300)]
    for second, count in enumerate(counts):
        window.add(float(second), count)
    assert window.doubt() == pytest.approx(0.5)


def test_a_pace_without_evidence_is_doubted_altogether() -> None:
    """Nothing, one look, no growth, or growth between two looks alone."""
    for counts in ((), (5,), (5, 5, 5), (5, 9)):
        window = Window(30.0)
        for second, count in enumerate(counts):
            window.add(float(second), count)
        assert window.doubt() == 1.0
