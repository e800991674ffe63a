"""Batches waste little padding, and a row that cannot be answered takes no other with it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from mgpu_magic.engines.batching import alike, answered

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_rows_of_like_length_share_a_batch() -> None:
    """The oldest is among them, the others are those that are nearest to it."""
    lengths = {0: 50, 1: 3, 2: 48, 3: 200, 4: 4, 5: 52, 6: 90}
    assert alike(lengths, 3) == [2, 0, 5]
    del lengths[0], lengths[2], lengths[5]
    assert alike(lengths, 2) == [1, 4]
    assert alike({7: 90, **lengths}, 2) == [7, 6]


def test_a_batch_is_never_larger_than_what_is_there() -> None:
    """What is held, up to the size of a batch."""
    assert alike({}, 8) == []
    assert alike({5: 2}, 8) == [5]
    assert alike({5: 2, 3: 1}, 2) == [3, 5]
    assert alike({5: 2, 3: 1}, 1) == [5]


@pytest.mark.parametrize("seed", range(3))
def test_sorting_saves_most_of_the_padding(seed: int) -> None:
    """Of mixed lengths through a window of eight batches, nearly all computed tokens are real."""
    chance = random.Random(seed)
    lengths = [int(chance.expovariate(1 / 40)) + 3 for _ in range(800)]
    padded = [max(lengths[start : start + 8]) * 8 for start in range(0, 800, 8)]
    waiting, computed = dict(enumerate(lengths)), 0
    held: dict[int, int] = {}
    while waiting or held:
        while waiting and len(held) < 64:
            index = next(iter(waiting))
            held[index] = waiting.pop(index)
        batch = alike(held, 8)
        assert next(iter(held)) in batch
        computed += len(batch) * max(held.pop(index) for index in batch)
    assert computed < 1.3 * sum(lengths)
    assert sum(padded) > 2 * sum(lengths)


class Machine:
    """Doubles numbers; runs out of memory above `room` rows, and refuses `bad` numbers."""

    def __init__(self, *, room: int = 100, bad: Sequence[int] = (), broken: bool = False) -> None:
        self.room = room
        self.bad = bad
        self.broken = broken
        self.batches: list[list[int]] = []

    def run(self, rows: Sequence[int]) -> list[int]:
        self.batches.append(list(rows))
        if self.broken:
            raise SystemError("the device is gone")
        if len(rows) > self.room:
            raise MemoryError("no room")
        for row in rows:
            if row in self.bad:
                raise ValueError(f"{row} is bad")
        return [2 * row for row in rows]

    def answer(self, rows: Sequence[int]) -> list[int | str]:
        results = answered(
            rows,
            self.run,
            lacks_memory=lambda error: isinstance(error, MemoryError),
            is_fatal=lambda error: isinstance(error, SystemError),
        )
        return [str(result) if isinstance(result, Exception) else result for result in results]


def test_a_batch_that_fits_is_run_once() -> None:
    """Nothing is tried twice where nothing fails."""
    machine = Machine()
    assert machine.answer([3, 1, 2]) == [6, 2, 4]
    assert machine.batches == [[3, 1, 2]]


def test_a_batch_without_room_is_halved() -> None:
    """Out of memory costs halves until they fit; the answers keep their order."""
    machine = Machine(room=2)
    assert machine.answer([1, 2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert [len(batch) for batch in machine.batches] == [5, 3, 2, 1, 2]


def test_a_row_that_never_fits_fails_alone() -> None:
    """When not even one row fits, each says so itself."""
    assert Machine(room=0).answer([1, 2]) == ["no room", "no room"]


def test_a_bad_row_fails_alone() -> None:
    """Rows beside a bad one are answered, each tried by itself."""
    machine = Machine(bad=[2, 4])
    assert machine.answer([1, 2, 3, 4]) == [2, "2 is bad", 6, "4 is bad"]
    assert machine.batches == [[1, 2, 3, 4], [1], [2], [3], [4]]


def test_a_broken_device_is_not_a_matter_of_rows() -> None:
    """What breaks the device is raised at once, so that the worker can be replaced."""
    machine = Machine(broken=True)
    with pytest.raises(SystemError, match="the device is gone"):
        machine.answer([1, 2])
    assert machine.batches == [[1, 2]]
