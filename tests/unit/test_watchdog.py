"""Which workers are taken to hang."""

from __future__ import annotations

import math

import pytest

from mgpu_magic.messages import Exited, Hello, Loading, Outcomes, Ready, Started, Stats
from mgpu_magic.watchdog import HANG_SECONDS, Patience, Watchdog

PATIENCE = Patience(device=40, signs=5, load=20, step=10)


def sign(steps: int = 0) -> Stats:
    """A sign of life after so many steps."""
    return Stats(1, 0, 0, 0, steps=steps)


def watched(stage: str) -> Watchdog:
    """A watchdog with one worker."""
    watchdog = Watchdog()
    watchdog.watch(0, PATIENCE, stage)
    return watchdog


def hung(watchdog: Watchdog, seconds: int, *, steps: int | None = 0, busy: int = 1) -> list[str]:
    """The reasons that come up in so many seconds of signs of life (None: of silence)."""
    reasons = []
    for _ in range(seconds):
        if steps is not None:
            watchdog.heard(0, sign(steps))
        reasons += [reason for _, reason in watchdog.tick(1, lambda _: busy)]
    return reasons


def test_a_worker_without_a_sign_of_life_hangs() -> None:
    """Whatever it is doing, also where nothing is asked of it; it is told once."""
    for stage in ("starting", "importing", "imported", "loading", "ready"):
        assert hung(watched(stage), 60, steps=None, busy=0) == [
            "it gave no sign of life for 5 s (--hang-timeout, 10 at least)"
        ]


def test_an_engine_that_finishes_no_step_hangs() -> None:
    """Signs of life from another thread do not help it."""
    assert hung(watched("ready"), 10) == []
    assert hung(watched("ready"), 60) == [
        "it finished no step of its engine for 10 s (--hang-timeout)"
    ]


def test_steps_and_outcomes_are_progress() -> None:
    """A worker that gets on is never ended, however long it takes."""
    watchdog = watched("ready")
    for step in range(20):
        assert hung(watchdog, 9, steps=step) == []
    for _ in range(20):
        watchdog.heard(0, Outcomes(1, ()))
        assert hung(watchdog, 9, steps=19) == []


def test_a_worker_without_requests_is_not_waited_for() -> None:
    """It may be idle for ever, and its time begins anew with the next request."""
    watchdog = watched("ready")
    assert hung(watchdog, 500, busy=0) == []
    assert hung(watchdog, 10) == []
    assert len(hung(watchdog, 1)) == 1


def test_a_load_without_news_hangs() -> None:
    """Each stage and each fraction of it is news."""
    assert hung(watched("importing"), 60) == [
        "it sent no news while importing for 20 s (--hang-timeout, times 10)"
    ]
    watchdog = watched("imported")
    watchdog.granted(0)
    for part in range(5):
        watchdog.heard(0, Loading("loading", part / 5))
        assert hung(watchdog, 20) == []
    assert hung(watchdog, 5) == [
        "it sent no news while loading for 20 s (--hang-timeout, times 10)"
    ]


def test_a_worker_that_waits_for_its_turn_does_not_hang() -> None:
    """It is the others' loads that it waits for."""
    watchdog = watched("importing")
    watchdog.heard(0, Loading("imported"))
    assert hung(watchdog, 500) == []


def test_a_device_that_does_not_become_free() -> None:
    """Another that never leaves it is found out, although nothing can be heard of this one."""
    assert hung(watched("waiting"), 40, steps=None) == []
    reasons = hung(watched("waiting"), 60, steps=None)
    assert reasons == ["its device was not free for 40 s (--hang-timeout, 60 at least)"]


def test_a_worker_is_watched_from_its_start_to_its_end() -> None:
    """Of one that is gone, or on its way out, nothing is expected."""
    watchdog = watched("ready")
    watchdog.heard(0, Exited(0, None))
    assert hung(watchdog, 60, steps=None) == []
    watchdog.watch(0, PATIENCE, "starting")
    watchdog.heard(0, Started(1))
    watchdog.heard(0, Hello(1, 1))
    watchdog.heard(0, Loading("imported"))
    watchdog.heard(0, Ready(1, 1.0))
    assert hung(watchdog, 10, busy=0) == []
    watchdog.heard(7, sign())  # of another job
    watchdog.granted(7)


@pytest.mark.parametrize("engine", ["vllm", "transformers", "echo"])
def test_the_usual_patience(engine: str) -> None:
    """Minutes for a step; a load may take as long as it likes, as long as it lives."""
    usual = Patience(device=HANG_SECONDS, signs=HANG_SECONDS, load=math.inf, step=HANG_SECONDS)
    assert Patience.of(engine, None) == usual  # type: ignore[arg-type]  # a Literal


def test_functions_of_the_user_are_left_alone() -> None:
    """How long they take is not ours to know, unless the user says it."""
    without_end = Patience(device=math.inf, signs=math.inf, load=math.inf, step=math.inf)
    assert Patience.of("python", None) == without_end
    assert Patience.of("python", 5) == Patience(device=60, signs=10, load=50, step=5)
    assert Patience.of("vllm", 600) == Patience(device=600, signs=600, load=6000, step=600)
