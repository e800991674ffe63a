"""The line between kernel and worker carries each message whole, and nothing else."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from mgpu_magic.errors import ProtocolError
from mgpu_magic.messages import (
    PROTOCOL,
    Abort,
    Chat,
    Command,
    Drain,
    Exited,
    Fatal,
    Hello,
    Load,
    Loading,
    Outcomes,
    Pickled,
    Ready,
    Request,
    Start,
    Started,
    Stats,
    Stopped,
    Submit,
    Tokens,
    decode_command,
    decode_event,
    encode,
)
from mgpu_magic.outcomes import Completion, Failure, RemoteError, TokenLogprob
from mgpu_magic.spec import Device, Sampling, WorkerSpec

if TYPE_CHECKING:
    from mgpu_magic.messages import WorkerEvent

SHARED = Sampling({"max_tokens": 4}, 7)
ERROR = RemoteError("TypeError", "no \ud800 please", "Traceback ...")
LOGPROBS = ((TokenLogprob(5, "a", -0.5, 1), TokenLogprob(6, None, -2.5, None)), ())
SPEC = WorkerSpec(
    engine="vllm",
    model="m",
    engine_args={"max_model_len": 256},
    devices=(Device(kind="cpu", index=0, name="CPU", cores=(0,)),),
)
COMPLETION = Completion(
    index=0,
    texts=("x", "y"),
    finish_reasons=("stop", "length"),
    prompt_tokens=3,
    output_tokens=2,
    seconds=0.5,
    device="cpu:0",
    logprobs=(LOGPROBS, LOGPROBS),
    prompt_logprobs=LOGPROBS,
    token_ids=((5,), (6,)),
)
COMMANDS: list[Command] = [
    Start(PROTOCOL, SPEC),
    Load(),
    Submit(
        1,
        (
            Request(0, "a\ud800b\0", SHARED),
            Request(1, Tokens((5, 6)), SHARED),
            Request(2, Chat(({"role": "user", "content": "a"},)), SHARED),
            Request(3, Pickled(b"\x80"), Sampling()),
        ),
    ),
    Abort(1, (0, 2)),
    Drain(),
]
EVENTS: list[WorkerEvent] = [
    Hello(PROTOCOL, 42),
    Loading("importing", 0.5),
    Ready(20, 1.5, 256, has_chat_template=True),
    Outcomes(1, (COMPLETION, Failure(1, ERROR, attempts=2))),
    Stats(1, 2, 3, 4, 0.5),
    Fatal(ERROR),
    Stopped(),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda value: type(value).__name__)
def test_a_command_arrives_as_it_was(command: Command) -> None:
    """Every command, with every kind of prompt, arrives equal to what was sent."""
    assert decode_command(encode(command)) == command


@pytest.mark.parametrize("event", EVENTS, ids=lambda value: type(value).__name__)
def test_an_event_arrives_as_it_was(event: WorkerEvent) -> None:
    """Every event of a worker arrives equal to what was sent."""
    assert decode_event(encode(event)) == event


def test_shared_sampling_is_sent_once() -> None:
    """A thousand requests with the same sampling do not carry it a thousand times."""
    submit = Submit(1, tuple(Request(i, "a", SHARED) for i in range(1000)))
    arrived = decode_command(encode(submit))
    assert isinstance(arrived, Submit)
    assert len({id(request.sampling) for request in arrived.requests}) == 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda value: type(value).__name__)
def test_a_command_is_no_event(command: Command) -> None:
    """A message of the wrong direction is refused, and named."""
    with pytest.raises(ProtocolError, match=f"got a {type(command).__name__}; expected one of"):
        decode_event(encode(command))


@pytest.mark.parametrize("event", EVENTS, ids=lambda value: type(value).__name__)
def test_an_event_is_no_command(event: WorkerEvent) -> None:
    """A worker never obeys an event."""
    with pytest.raises(ProtocolError, match=r"expected one of Start, Load, Submit, Abort, Drain"):
        decode_command(encode(event))


@pytest.mark.parametrize("message", [Started(1), Exited(0, None), "text", None, (1, 2)])
def test_only_a_launcher_says_that_a_process_is_gone(message: object) -> None:
    """What no worker may say is not believed when one says it."""
    with pytest.raises(ProtocolError, match=f"got a {type(message).__name__}"):
        decode_event(pickle.dumps(message))


@pytest.mark.parametrize("data", [b"", b"junk", encode(COMMANDS[2])[:-5], b"cno_such\nname\n."])
def test_broken_bytes_are_a_protocol_error(data: bytes) -> None:
    """A torn or foreign message is one clear error, whatever unpickling makes of it."""
    with pytest.raises(ProtocolError, match="a message cannot be read: "):
        decode_command(data)


def test_the_first_of_several_texts() -> None:
    """`text` and `finish_reason` are those of the first text."""
    assert (COMPLETION.text, COMPLETION.finish_reason) == ("x", "stop")


@pytest.mark.parametrize(
    ("exited", "reason"),
    [
        (Exited(1, None), "exit code 1"),
        (Exited(None, "SIGKILL"), "killed by SIGKILL (often: out of host memory)"),
        (Exited(None, "SIGSEGV"), "killed by SIGSEGV"),
    ],
)
def test_why_a_process_ended(exited: Exited, reason: str) -> None:
    """An exit is told as a code or a signal name; SIGKILL with its usual cause."""
    assert exited.reason == reason
