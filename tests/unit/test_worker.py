"""The worker's side of the protocol, over a channel in memory."""

from __future__ import annotations

import os
import socket
from collections import deque
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from mgpu_magic import engines, worker
from mgpu_magic.engines.echo import EchoEngine
from mgpu_magic.errors import ProtocolError
from mgpu_magic.messages import (
    PROTOCOL,
    Abort,
    Chat,
    Command,
    Drain,
    Fatal,
    Hello,
    Load,
    Loading,
    Outcomes,
    Ready,
    Request,
    Start,
    Stats,
    Stopped,
    Submit,
    WorkerEvent,
    decode_event,
    encode,
)
from mgpu_magic.outcomes import Completion, Failure, RemoteError
from mgpu_magic.spec import Device, Sampling, WorkerSpec
from mgpu_magic.worker import PipeChannel, serve

if TYPE_CHECKING:
    from mgpu_magic.outcomes import Outcome

GPU = Device(kind="cuda", index=0, name="Tesla T4", mask="0")
CPU = Device(kind="cpu", index=0, name="CPU (2 cores)", cores=(3, 5))


class Script:
    """A channel whose commands are there from the start.

    Args:
        commands: What the kernel sends; None: nothing more until the engine has done a step.

    Attributes:
        events: What the worker says.
        pinned: The cores that it keeps to.
    """

    def __init__(self, *commands: Command | None) -> None:
        self._commands = deque(commands)
        self.events: list[WorkerEvent] = []
        self.pinned: set[int] = set()

    def poll(self, seconds: float | None) -> bool:
        while self._commands and self._commands[0] is None:
            self._commands.popleft()
            if seconds is not None:
                return False
        return bool(self._commands) or seconds is None

    def receive(self) -> Command:
        command = self._commands.popleft() if self._commands else None
        if command is None:
            raise EOFError
        return command

    def send(self, event: WorkerEvent) -> None:
        self.events.append(event)

    @property
    def outcomes(self) -> list[tuple[int, Outcome]]:
        """Job and outcome, in the order in which they were sent."""
        return [
            (event.job, outcome)
            for event in self.events
            if isinstance(event, Outcomes)
            for outcome in event.outcomes
        ]

    @property
    def answered(self) -> list[tuple[int, int]]:
        """Job and index of the outcomes."""
        return [(job, outcome.index) for job, outcome in self.outcomes]


def start(**args: Any) -> Start:
    """The first command, for an echo engine with these switches."""
    return Start(PROTOCOL, WorkerSpec(engine="echo", model="m", engine_args=args, devices=(GPU,)))


def submit(job: int, *prompts: str, first: int = 0) -> Submit:
    """Requests of a job, numbered from `first`."""
    requests = (Request(i, text, Sampling()) for i, text in enumerate(prompts, first))
    return Submit(job, tuple(requests))


def served(*commands: Command | None, **args: Any) -> Script:
    """A channel after a worker has served it, from `Start` and `Load` to `Drain`."""
    channel = Script(start(**args), Load(), *commands)
    serve(channel, channel.pinned.update)
    return channel


def failed(*commands: Command | None, kind: type[BaseException] = ProtocolError) -> RemoteError:
    """What a worker says that these commands end with an error of that kind."""
    channel = Script(*commands)
    with pytest.raises(kind):
        serve(channel, channel.pinned.update)
    fatal = channel.events[-1]
    assert isinstance(fatal, Fatal)
    assert fatal.error.kind == kind.__name__
    return fatal.error


def test_a_worker_from_hello_to_goodbye() -> None:
    """Each stage is told in order, and each answer as soon as it is known."""
    channel = served(submit(1, "a b", "c"), Drain())
    *begin, ready, sign, first, second, goodbye = channel.events
    assert isinstance(sign, Stats)  # it lived when it got them
    assert begin == [
        Hello(PROTOCOL, os.getpid()),
        Loading("importing"),
        Loading("imported"),
        Loading("loading", 0.0),
        Loading("loading", 1.0),
    ]
    assert isinstance(ready, Ready)
    assert (ready.capacity, ready.max_model_len, ready.has_chat_template) == (8, None, False)
    assert first == Outcomes(
        1,
        (
            Completion(
                index=0,
                texts=("a b",),
                finish_reasons=("stop",),
                prompt_tokens=2,
                output_tokens=2,
                seconds=0.0,
                device="cuda:0",
            ),
        ),
    )
    assert isinstance(second, Outcomes)
    assert goodbye == Stopped()


def test_the_time_to_load_is_measured() -> None:
    """It begins with the word to load, not with the process."""
    channel = served(Drain(), import_delay=0.5, load_delay=0.02)
    (ready,) = (event for event in channel.events if isinstance(event, Ready))
    assert 0.02 <= ready.load_seconds < 0.5


def test_a_worker_may_leave_before_it_loads() -> None:
    """It is not made to load a model that nobody needs any more."""
    channel = Script(start(fail_to_load="never tried"), Drain())
    serve(channel, channel.pinned.update)
    assert channel.events[-2:] == [Loading("imported"), Stopped()]


def test_draining_finishes_what_is_in_flight() -> None:
    """Everything that was submitted is answered before the goodbye."""
    channel = served(submit(1, "a"), submit(1, "b", "c", first=1), Drain())
    assert channel.answered == [(1, 0), (1, 1), (1, 2)]
    assert channel.events[-1] == Stopped()


def test_requests_may_come_while_others_run() -> None:
    """New ones join between two steps."""
    channel = served(submit(1, "a", "b"), None, submit(1, "c", first=2), None, None, None, Drain())
    assert channel.answered == [(1, 0), (1, 1), (1, 2)]


def test_aborted_requests_are_forgotten() -> None:
    """No outcome follows for them; one that nobody knows is ignored."""
    channel = served(submit(1, "a", "b", "c"), None, Abort(1, (0, 1, 99)), Drain())
    assert channel.answered == [(1, 0), (1, 2)]


def test_outcomes_name_their_job() -> None:
    """After an aborted job the next has outcomes of its own alone, with the same indices."""
    channel = served(
        submit(1, "old", "old"), None, Abort(1, (1,)), submit(2, "new", "new"), Drain()
    )
    texts = [
        (job, outcome.text) for job, outcome in channel.outcomes if isinstance(outcome, Completion)
    ]
    assert texts == [(1, "old"), (2, "new"), (2, "new")]


def test_a_refused_request_fails_alone() -> None:
    """Its failure names the job and the engine's words, without a traceback."""
    channel = served(submit(3, "good", "bad", "good"), Drain(), fail_on="bad")
    failure = Failure(1, RemoteError("ValueError", "the prompt holds 'bad'"))
    assert channel.outcomes[0] == (3, failure)
    assert channel.answered == [(3, 1), (3, 0), (3, 2)]


class Strict(EchoEngine):
    """Takes no answer longer than ten tokens, and no chat."""

    tried: ClassVar[list[str]] = []

    def add(self, request: Request) -> None:
        self.tried.append(str(request.prompt))
        if isinstance(request.prompt, Chat):
            raise TypeError("no chat template")
        if request.prompt == "":
            raise ValueError("the prompt is empty")
        if request.sampling.fields.get("max_tokens", 0) > 10:
            raise ValueError("max_tokens is at most 10")
        super().add(request)


def test_what_prompts_share_is_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is asked about a shared sampling once; a bad prompt is told apart from it."""
    monkeypatch.setattr(engines, "create", Strict)
    Strict.tried.clear()
    wrong, right = Sampling({"max_tokens": 11}), Sampling({"max_tokens": 1})
    texts = [
        ("a b", wrong),
        ("", wrong),
        ("c", wrong),
        ("", right),
        ("d e", right),
        ("", Sampling()),
    ]
    sent = tuple(Request(i, text, sampling) for i, (text, sampling) in enumerate(texts))
    channel = served(Submit(1, sent), Drain())
    alike = [event for event in channel.events if isinstance(event, Outcomes) and event.alike]
    assert [[outcome.index for outcome in event.outcomes] for event in alike] == [[0, 1, 2]]
    assert {o.index: o.error.message for _, o in channel.outcomes if isinstance(o, Failure)} == {
        **dict.fromkeys(range(3), "max_tokens is at most 10"),
        3: "the prompt is empty",
        5: "the prompt is empty",
    }
    assert [o.index for _, o in channel.outcomes if isinstance(o, Completion)] == [4]
    assert Strict.tried[:3] == ["a b", "a", "a b"]
    assert "c" not in Strict.tried


def test_an_empty_prompt_in_front_is_no_fault_of_the_sampling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is a wrong sampling any longer hidden by it."""
    monkeypatch.setattr(engines, "create", Strict)
    wrong = Sampling({"max_tokens": 11})
    channel = served(Submit(1, (Request(0, "", wrong), Request(1, "a", wrong))), Drain())
    said = [event for event in channel.events if isinstance(event, Outcomes)]
    assert [(event.alike, [o.index for o in event.outcomes]) for event in said] == [
        (False, [0]),
        (True, [1]),
    ]


def test_a_model_that_takes_no_chats_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that is missing is missing for every chat."""
    monkeypatch.setattr(engines, "create", Strict)
    chat = Chat(({"role": "user", "content": "Hello"},))
    sent = tuple(Request(i, chat, Sampling()) for i in range(3))
    (said,) = [
        event for event in served(Submit(1, sent), Drain()).events if isinstance(event, Outcomes)
    ]
    assert said.alike
    assert [outcome.index for outcome in said.outcomes] == [0, 1, 2]


def test_a_wrong_sampling_is_told_before_loading() -> None:
    """The kernel learns that it is the sampling, and the model is not loaded."""
    channel = Script(start(load_delay=60), Load(Sampling({"n": 0})))
    with pytest.raises(worker.SamplingRefused):
        serve(channel, channel.pinned.update)
    assert channel.events[-1] == Fatal(
        RemoteError(
            "ValueError",
            "the sampling {'n': 0} is refused: ValueError: n is 0; "
            "pass a whole number of 1 or more",
        ),
        of_sampling=True,
    )
    assert Loading("loading", 0.0) not in channel.events


def test_a_sign_of_life_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from a thread of its own, so also in the middle of a long step."""
    monkeypatch.setattr(worker, "STATS_SECONDS", 0.02)
    channel = served(submit(1, "a", "b", "c"), Drain(), delay=0.2)
    stats = [event for event in channel.events if isinstance(event, Stats)]
    assert Stats(running=1, waiting=2, prompt_tokens=0, output_tokens=0, steps=0) in stats
    assert Stats(running=1, waiting=0, prompt_tokens=2, output_tokens=2, steps=2) in stats
    assert len(stats) >= 5
    assert channel.events[-1] == Stopped()


def test_a_sign_of_life_before_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that imports and loads for long is alive all the while."""
    monkeypatch.setattr(worker, "STATS_SECONDS", 0.02)
    channel = served(Drain(), import_delay=0.1, load_delay=0.1)
    kinds = [type(event) for event in channel.events]
    imported, ready = channel.events.index(Loading("imported")), kinds.index(Ready)
    assert Stats in kinds[:imported]
    assert Stats in kinds[imported:ready]


def test_figures_that_cannot_be_had_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails to give its figures still answers, and shows that it lives."""

    class Silent(EchoEngine):
        def stats(self) -> Stats:
            raise RuntimeError("no metrics")

    monkeypatch.setattr(worker, "STATS_SECONDS", 0.01)
    monkeypatch.setattr(engines, "create", Silent)
    channel = served(submit(1, "a"), Drain(), delay=0.05)
    assert channel.answered == [(1, 0)]
    stats = [event for event in channel.events if isinstance(event, Stats)]
    assert stats.count(Stats(0, 0, 0, 0, steps=0)) > 1


# --- what ends it ----------------------------------------------------------------------------


def test_a_failed_load_is_told_as_text() -> None:
    """The original error, with a traceback that begins where the engine was called."""
    error = failed(start(fail_to_load="no weights"), Load(), kind=RuntimeError)
    assert error.message == "no weights"
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.endswith("RuntimeError: no weights\n")
    assert "engines/echo.py" in error.traceback
    assert worker.__file__ not in error.traceback


def test_a_misspelt_argument_is_told_before_loading() -> None:
    """The worker does not wait for the word to load."""
    error = failed(start(delai=1), kind=TypeError)
    assert error.message.startswith("echo has no engine argument 'delai'; it knows ['capacity'")


def test_an_engine_that_is_gone_is_no_fault_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the worker, so that the prompts are tried elsewhere; it fails none of them."""

    class Gone(EchoEngine):
        def add(self, request: Request) -> None:
            raise engines.EngineGone("its process died")

    monkeypatch.setattr(engines, "create", Gone)
    error = failed(start(), Load(), submit(1, "a", "b"), kind=engines.EngineGone)
    assert error.message == "its process died"


def test_a_dead_engine_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a step concerns all requests, so it is no failure of one of them."""

    class Dead(EchoEngine):
        def step(self) -> list[Outcome]:
            raise MemoryError("CUDA out of memory")

    monkeypatch.setattr(engines, "create", Dead)
    error = failed(start(), Load(), submit(1, "a"), kind=MemoryError)
    assert error.message == "CUDA out of memory"


def test_an_exit_of_the_library_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.exit()` in foreign code is not a silent death."""

    class Leaving(EchoEngine):
        def prepare(self) -> None:
            raise SystemExit(3)

    monkeypatch.setattr(engines, "create", Leaving)
    assert failed(start(), kind=SystemExit).message == "3"


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ((Load(),), "the first command is Load; expected Start"),
        (
            (Start(PROTOCOL + 1, start().spec),),
            f"the kernel speaks protocol {PROTOCOL + 1}, the worker {PROTOCOL}; "
            "restart the kernel: mgpu_magic was updated while it ran",
        ),
        ((start(), submit(1, "a")), "got Submit; expected Load"),
        ((start(), start()), "got Start; expected Load"),
        ((start(), Load(), Load()), "got Load while ready"),
        ((start(), Load(), submit(1, "a"), start()), "got Start while ready"),
    ],
)
def test_a_command_out_of_turn_ends_the_worker(commands: tuple[Command, ...], message: str) -> None:
    """It says what came and what was expected."""
    assert failed(*commands).message == message


def test_a_worker_keeps_to_the_cores_of_its_device() -> None:
    """A worker of a GPU may use any core, one of a CPU device only its own."""
    assert served(Drain()).pinned == set()
    spec = WorkerSpec(engine="echo", model="m", engine_args={}, devices=(CPU,))
    channel = Script(Start(PROTOCOL, spec), Load(), Drain())
    serve(channel, channel.pinned.update)
    assert channel.pinned == {3, 5}


def test_a_kernel_that_hangs_up_is_told_nothing() -> None:
    """There is nobody left to tell."""
    channel = Script(start(), Load(), submit(1, "a"))
    with pytest.raises(EOFError):
        serve(channel, channel.pinned.update)
    assert channel.answered == [(1, 0)]
    assert not [event for event in channel.events if isinstance(event, Fatal)]


# --- the pieces ------------------------------------------------------------------------------


def test_an_error_without_words_is_told_by_its_form() -> None:
    """An empty message would leave the user with nothing."""
    error = RemoteError.of(KeyError(), with_traceback=False)
    assert error == RemoteError("KeyError", "KeyError()")


def test_messages_pass_through_a_socket() -> None:
    """What one end sends the other receives, lone surrogates included."""
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as kernel:
        channel = PipeChannel(theirs.detach())
        assert not channel.poll(0)
        command = submit(1, "a\ud800b")
        kernel.send_bytes(encode(command))
        assert channel.poll(1)
        assert channel.receive() == command
        channel.send(Stopped())
        assert decode_event(kernel.recv_bytes()) == Stopped()
        kernel.send_bytes(b"noise")
        with pytest.raises(ProtocolError, match="a message cannot be read"):
            channel.receive()
    with pytest.raises(EOFError):
        channel.receive()


def test_the_line_is_not_passed_on() -> None:
    """A process that an engine starts does not hold the line open."""
    ours, theirs = socket.socketpair()
    descriptor = theirs.detach()
    os.set_inheritable(descriptor, True)
    with ours:
        channel = PipeChannel(descriptor)
        assert not os.get_inheritable(descriptor)
        del channel
