"""The typed messages between the kernel and a worker, and their codec.

```
kernel                                  worker
  Start(protocol, spec)      ──────>
                             <──────    Hello, Loading("importing")
  Load()                     ──────>
                             <──────    Loading("loading"), Ready
  Submit(job, requests)      ──────>
                             <──────    Outcomes(job, outcomes) ..., Stats each second of its life
  Abort(job, indices)        ──────>
  Drain()                    ──────>
                             <──────    Stopped
```

`Started` and `Exited` are made by the launcher, which alone knows of processes, and `Hung` by the
session, which alone knows how long it has waited.
`job` numbers the jobs of a warm worker, so that an outcome of an aborted job can never be taken
for one of the next. Shared by both sides; imports `spec`, `outcomes` and `errors` alone.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from mgpu_magic.errors import ProtocolError
from mgpu_magic.outcomes import Outcome, RemoteError  # noqa: TC001  # `get_args` needs the classes
from mgpu_magic.spec import Sampling, WorkerSpec  # noqa: TC001  # `get_args` needs the classes

PROTOCOL = 2


# --- prompts and requests -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt of token ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation: dicts with `role` and `content`; the worker applies the chat template."""

    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Pickled:
    """A prompt that holds user objects (images, say), as cloudpickle bytes: unpickled late.

    For vLLM a prompt dict; for the user's own function any object.
    """

    data: bytes


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that are read together: a question and a passage, a premise and a hypothesis."""

    first: str
    second: str


Prompt: TypeAlias = str | Tokens | Chat | Pair | Pickled


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt of a job.

    Attributes:
        index: Its place among the prompts.
        prompt: What the engine reads.
        sampling: Shared between the requests that have the same.
        choices: The texts whose log-probabilities are asked for, after the prompt; else empty.
        lora: Directory of the adapter to answer with; None: the model alone.
    """

    index: int
    prompt: Prompt
    sampling: Sampling
    choices: tuple[str, ...] = ()
    lora: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent in a third of the time that a dataclass with slots takes by itself."""
        return Request, (self.index, self.prompt, self.sampling, self.choices, self.lora)

    @property
    def terms(self) -> tuple[object, ...]:
        """What it shares with others, and they with it alone as long as both are alive."""
        return type(self.prompt), id(self.sampling), self.choices, self.lora


# --- commands to the worker ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """First, once: what the worker is. It may import its engine now."""

    protocol: int
    spec: WorkerSpec


@dataclass(frozen=True, slots=True)
class Load:
    """It may load its model now.

    Attributes:
        sampling: What all prompts of the job have, so that a wrong one is refused before the
            model is loaded; None where they differ, or have none.
    """

    sampling: Sampling | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """Requests to answer, after `Ready`."""

    job: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget these requests, after `Ready`; no outcome follows for them."""

    job: int
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what is in flight, then exit with code 0."""


Command: TypeAlias = Start | Load | Submit | Abort | Drain


# --- events from the worker ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The process is up, nothing is loaded.

    Attributes:
        protocol: `PROTOCOL` of the worker's copy of this package.
        pid: Its process id.
    """

    protocol: int
    pid: int


@dataclass(frozen=True, slots=True)
class Loading:
    """What it is doing before it is ready.

    Attributes:
        stage: `"importing"`, `"imported"` (waiting for `Load`), `"downloading"`, `"loading"`
            (its files are on this machine), `"warming up"`.
        fraction: Part of the stage that is done, 0 to 1, where known.
    """

    stage: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """Requests may come.

    Attributes:
        capacity: Requests it can make use of at the same time.
        load_seconds: From `Load` to now.
        max_model_len: Tokens that prompt and answer may have together, where known.
        has_chat_template: Whether the model's tokenizer has one.
        notes: What the engine decided for the user, to be said once.
        slots: Requests it works on at the same time, if not all that it holds: the others wait
            in front of the engine, so that it need not wait for them.
    """

    capacity: int
    load_seconds: float
    max_model_len: int | None = None
    has_chat_template: bool = False
    notes: tuple[str, ...] = ()
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What finished since the last such message.

    Attributes:
        job: Number of the job.
        outcomes: One per prompt.
        alike: They are failures that are not the prompts' own: the engine refuses what they share
            with others (sampling, adapter, the chat template), which need not be tried.
    """

    job: int
    outcomes: tuple[Outcome, ...]
    alike: bool = False


@dataclass(frozen=True, slots=True)
class Stats:
    """Sent each second by a thread of its own, from the start: the sign of life.

    Attributes:
        running: Requests that the engine works on.
        waiting: Requests that it holds back.
        prompt_tokens: Prompt tokens of finished requests since `Ready`.
        output_tokens: Tokens generated since `Ready`, unfinished answers included where known.
        kv_usage: Part of the KV cache in use, 0 to 1, where known.
        steps: Steps that the engine has finished: while they go up, it does not hang.
    """

    running: int
    waiting: int
    prompt_tokens: int
    output_tokens: int
    kv_usage: float | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Fatal:
    """It cannot go on, and exits.

    Attributes:
        error: Why.
        of_sampling: It has loaded nothing, since the sampling of the job is wrong.
    """

    error: RemoteError
    of_sampling: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """Goodbye, after `Drain`."""


# --- events made by the launcher -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The process exists."""

    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The process and its whole group are gone.

    Attributes:
        code: Exit code, or None where a signal ended it.
        signal: Signal name, such as `"SIGKILL"`, or None.
        log_tail: Last lines of its log.
    """

    code: int | None
    signal: str | None
    log_tail: str = ""

    @property
    def reason(self) -> str:
        """`"killed by SIGKILL (often: out of host memory)"` or `"exit code 1"`."""
        if self.signal is None:
            return f"exit code {self.code}"
        hint = " (often: out of host memory)" if self.signal == "SIGKILL" else ""
        return f"killed by {self.signal}{hint}"


# --- events made by the session --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hung:
    """It is alive and does nothing any more: it is given up.

    Attributes:
        reason: What it failed to do for how long.
        killable: Whether its end can be forced; a thread's cannot, and its device stays taken.
    """

    reason: str
    killable: bool = True


WorkerEvent: TypeAlias = Hello | Loading | Ready | Outcomes | Stats | Fatal | Stopped
Event: TypeAlias = WorkerEvent | Started | Exited | Hung

_COMMANDS = get_args(Command)
_EVENTS = get_args(WorkerEvent)


def encode(message: Command | WorkerEvent) -> bytes:
    """Bytes for the pipe."""
    return pickle.dumps(message, protocol=5)


def decode_command(data: bytes) -> Command:
    """The command in `data`.

    Raises:
        ProtocolError: It is none.
    """
    return _decode(data, _COMMANDS)  # type: ignore[no-any-return]  # checked against the union


def decode_event(data: bytes) -> WorkerEvent:
    """The worker's event in `data`.

    Raises:
        ProtocolError: It is none.
    """
    return _decode(data, _EVENTS)  # type: ignore[no-any-return]  # checked against the union


def _decode(data: bytes, kinds: tuple[type, ...]) -> Any:
    try:
        message = pickle.loads(data)  # noqa: S301  # only from the pipe that we inherit
    except Exception as error:  # unpickling runs foreign code
        raise ProtocolError(f"a message cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(message, kinds):
        raise ProtocolError(
            f"got a {type(message).__name__}; expected one of "
            + ", ".join(kind.__name__ for kind in kinds)
        )
    return message
