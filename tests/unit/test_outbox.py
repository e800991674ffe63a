"""Outcomes of short steps travel together, and none is held back for long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mgpu_magic.outbox import HOLD_SECONDS, Outbox
from mgpu_magic.outcomes import Failure, RemoteError

if TYPE_CHECKING:
    from mgpu_magic.messages import Outcomes

ERROR = RemoteError("ValueError", "no")


def failures(*indices: int) -> list[Failure]:
    """An outcome for each."""
    return [Failure(index, ERROR) for index in indices]


def told(sent: list[Outcomes]) -> list[tuple[int, list[int]]]:
    """Job and indices of each message."""
    return [(message.job, [one.index for one in message.outcomes]) for message in sent]


def dies_with_answers(outbox: Outbox) -> None:
    """Two outcomes, one of them held, then an error."""
    with outbox:
        outbox.put(1, failures(0))
        outbox.put(1, failures(1))
        raise RuntimeError("the engine died")


def test_an_outcome_after_a_pause_is_sent_at_once() -> None:
    """An engine that takes longer than a message costs is told step by step."""
    sent: list[Outcomes] = []
    with Outbox(sent.append) as outbox:
        for index in range(3):
            outbox.put(1, failures(index))
            assert told(sent)[-1] == (1, [index])
            time.sleep(2 * HOLD_SECONDS)
    assert len(sent) == 3


def test_outcomes_that_come_quickly_share_a_message() -> None:
    """Ten thousand of them, in order, each once, in few messages."""
    sent: list[Outcomes] = []
    began = time.monotonic()
    with Outbox(sent.append) as outbox:
        for index in range(10_000):
            outbox.put(1, failures(index))
    most = 2 + 2 * (time.monotonic() - began) / HOLD_SECONDS
    assert [index for _, indices in told(sent) for index in indices] == list(range(10_000))
    assert len(sent) < most


def test_what_is_held_goes_though_nothing_follows() -> None:
    """The next step may be a long one: the answer before it does not wait for its end."""
    sent: list[Outcomes] = []
    with Outbox(sent.append) as outbox:
        outbox.put(1, failures(0))
        outbox.put(1, failures(1, 2))
        deadline = time.monotonic() + 5
        while len(sent) < 2 and time.monotonic() < deadline:
            time.sleep(HOLD_SECONDS)
        assert told(sent) == [(1, [0]), (1, [1, 2])]


def test_nothing_is_held_back_at_the_end() -> None:
    """Whatever ends the block: an engine's death must not take finished answers with it."""
    sent: list[Outcomes] = []
    with pytest.raises(RuntimeError, match="died"):
        dies_with_answers(Outbox(sent.append))
    assert told(sent) == [(1, [0]), (1, [1])]


def test_two_jobs_never_share_a_message() -> None:
    """Outcomes are known by the number of their job and their index alone."""
    sent: list[Outcomes] = []
    with Outbox(sent.append) as outbox:
        outbox.put(1, failures(0))
        outbox.put(1, failures(1))
        outbox.put(2, failures(0))
        outbox.put(2, [])
    assert told(sent) == [(1, [0]), (1, [1]), (2, [0])]
