"""Presses of the stop button are counted within a block, and raised at its end."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mgpu_magic import presses
from mgpu_magic.presses import Presses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press() -> None:
    """What Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def within(block: Presses, act: Callable[[], object]) -> None:
    """Do something in a block."""
    with block:
        act()


def press_and_raise(error: BaseException) -> None:
    """A block that fails after a press."""
    press()
    raise error


def test_the_block_comes_to_its_end_and_then_one_error_is_raised() -> None:
    """However often the button was pressed; each press was acted on at once."""
    acts: list[object] = []

    def act() -> None:
        press()
        press()
        acts.append("the end")

    with pytest.raises(KeyboardInterrupt):
        within(Presses(acts.append), act)
    assert acts == [1, 2, "the end"]


def test_without_a_press_nothing_is_raised() -> None:
    """Neither by the block, nor by the one after it."""
    with Presses() as counted:
        pass
    assert (counted.count, counted.overdue) == (0, False)


def test_the_error_says_what_a_press_came_to() -> None:
    """Where the block failed meanwhile its error is the cause."""

    class Told(KeyboardInterrupt):
        pass

    with pytest.raises(Told) as told:
        within(Presses(error=Told), partial(press_and_raise, ValueError()))
    assert isinstance(told.value.__cause__, ValueError)


def test_an_interrupt_of_the_block_is_raised_as_it_is() -> None:
    """It says more than a plain one; and who exits, exits."""
    for error in (KeyboardInterrupt("mine"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            within(Presses(), partial(press_and_raise, error))
        assert raised.value is error


@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_of_the_user_decides(raises: bool) -> None:
    """What it does not answer with a KeyboardInterrupt is no press."""
    seen = []

    def handler(number: int, _: object) -> None:
        seen.append(number)
        if raises:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    error = None
    try:
        with Presses() as counted:
            press()
    except KeyboardInterrupt as caught:
        error = caught
    assert seen == [signal.SIGINT]
    assert counted.count == raises
    assert (error is not None) == raises
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is handler


def test_an_ignored_signal_stays_ignored() -> None:
    """As where a shell has started the program in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Presses() as counted:
        press()
    assert counted.count == 0
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


def test_a_block_within_a_block_leaves_the_presses_to_it() -> None:
    """One press is one error."""
    inner, outer = Presses(), Presses()
    with pytest.raises(KeyboardInterrupt):
        within(outer, partial(within, inner, press))
    assert (inner.count, outer.count) == (0, 1)


def test_other_threads_count_nothing() -> None:
    """Signals are the main thread's, whose handler stays."""
    handlers = []

    def enter() -> None:
        with Presses():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


def hang_in_foreign_code(block: Presses) -> None:
    """A display that never comes back."""
    with block.breaking(0.01):
        press()  # it draws: this does no harm
        time.sleep(0.02)
        press()
        pytest.fail("the press did not break it")


def hang(block: Presses) -> None:
    """A block that does not come to its end."""
    press()
    time.sleep(0.02)
    assert block.overdue
    press()
    pytest.fail("the press did not break it")


@pytest.mark.parametrize("hanging", [hang, hang_in_foreign_code])
def test_what_hangs_is_broken(
    monkeypatch: pytest.MonkeyPatch, hanging: Callable[[Presses], None]
) -> None:
    """Nothing can keep the stop button from ending a cell."""
    monkeypatch.setattr(presses, "STOP_SECONDS", 0.01)
    block = Presses()
    with pytest.raises(KeyboardInterrupt):
        within(block, partial(hanging, block))
    assert block.count == 2


class Pressing:
    """Is interrupted when it is released."""

    def __del__(self) -> None:
        press()


def suppressed() -> None:
    """Foreign code that catches everything."""
    with suppress(BaseException):
        press()


@pytest.mark.parametrize("drop", [Pressing, suppressed])
def test_an_interrupt_that_python_drops_is_raised_later(drop: Callable[[], object]) -> None:
    """As one that falls into a finalizer or into a bare `except` of foreign code."""

    def break_() -> None:
        with block.breaking(0):
            drop()

    block = Presses()
    with pytest.raises(KeyboardInterrupt):
        within(block, break_)
