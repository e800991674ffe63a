"""An engine that answers each prompt with itself, for trying the machinery without a model.

Its switches are its `engine_args`: see `EchoSettings`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, assert_never

from mgpu_magic.engines import Loaded
from mgpu_magic.messages import Chat, Pair, Pickled, Stats, Tokens
from mgpu_magic.outcomes import Completion, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mgpu_magic.messages import Prompt, Request
    from mgpu_magic.outcomes import Logprobs, Outcome
    from mgpu_magic.spec import Sampling, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoSettings:
    """Switches of the echo engine.

    Attributes:
        delay: Seconds per prompt.
        delay_per_character: Seconds per character of a prompt, on top.
        import_delay: Seconds that importing takes.
        load_delay: Seconds that loading takes.
        capacity: Requests held at the same time.
        expand: Replace `$NAME` in a prompt by the worker's environment variable.
        fail_on: A prompt that holds this text fails.
        die_on: A prompt that holds this text kills the worker with SIGKILL.
        hang_on: A prompt that holds this text is never answered, nor any after it.
        fail_to_load: Loading raises an error with this text.
        fork_child: Start a process that would outlive a worker that is only killed itself.
        print_bytes: Bytes written to the log while loading.
    """

    delay: float = 0.0
    delay_per_character: float = 0.0
    import_delay: float = 0.0
    load_delay: float = 0.0
    capacity: int = 8
    expand: bool = False
    fail_on: str = ""
    die_on: str = ""
    hang_on: str = ""
    fail_to_load: str = ""
    fork_child: bool = False
    print_bytes: int = 0


class EchoEngine:
    """Answers prompts one after the other; a token is a word.

    Of the sampling it knows `max_tokens`, `n` and `logprobs` (of made-up candidates).
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._settings = EchoSettings()
        self._queue: OrderedDict[int, tuple[str, dict[str, Any]]] = OrderedDict()
        self._prompt_tokens = 0
        self._output_tokens = 0

    def prepare(self) -> None:
        """See `Engine`."""
        known = {field.name for field in fields(EchoSettings)}
        for name in self._spec.engine_args.keys() - known:
            raise TypeError(f"echo has no engine argument {name!r}; it knows {sorted(known)}")
        self._settings = EchoSettings(**self._spec.engine_args)
        time.sleep(self._settings.import_delay)

    def check(self, sampling: Sampling) -> None:
        """See `Engine`."""
        for name in ("max_tokens", "n"):
            value = sampling.fields.get(name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is {value!r}; pass a whole number of 1 or more")

    def load(self, report: Callable[[str, float | None], None]) -> Loaded:
        """See `Engine`."""
        report("loading", 0.0)
        settings = self._settings
        if settings.print_bytes:
            line = "echo " * 15 + "\n"
            sys.stdout.write(line * (settings.print_bytes // len(line)))
            sys.stdout.flush()
        if settings.fork_child:
            subprocess.Popen(["sleep", "600"])  # noqa: S607  # any `sleep` will do
        time.sleep(settings.load_delay)
        if settings.fail_to_load:
            raise RuntimeError(settings.fail_to_load)
        report("loading", 1.0)
        return Loaded(capacity=settings.capacity, slots=1)

    def add(self, request: Request) -> None:
        """See `Engine`."""
        text = _text(request.prompt)
        if self._settings.fail_on and self._settings.fail_on in text:
            raise ValueError(f"the prompt holds {self._settings.fail_on!r}")
        self.check(request.sampling)
        self._queue[request.index] = (text, request.sampling.for_index(request.index))

    def step(self) -> list[Outcome]:
        """See `Engine`."""
        settings = self._settings
        index, (text, sampling) = next(iter(self._queue.items()))
        if settings.die_on and settings.die_on in text:
            os.kill(os.getpid(), 9)
        while settings.hang_on and settings.hang_on in text:
            time.sleep(60)
        seconds = settings.delay + settings.delay_per_character * len(text)
        if seconds:
            time.sleep(seconds)
        self._queue.pop(index)
        words = (os.path.expandvars(text) if settings.expand else text).split()
        answer = words[: sampling.get("max_tokens") or len(words)]
        self._prompt_tokens += len(words)
        self._output_tokens += len(answer)
        n, candidates = sampling.get("n", 1), sampling.get("logprobs")
        completion = Completion(
            index=index,
            texts=(" ".join(answer),) * n,
            finish_reasons=("stop" if len(answer) == len(words) else "length",) * n,
            prompt_tokens=len(words),
            output_tokens=len(answer),
            seconds=seconds,
            device=self._spec.label,
            logprobs=candidates and (_logprobs(answer, candidates),) * n,
        )
        return [completion]

    def abort(self, indices: Iterable[int]) -> None:
        """See `Engine`."""
        for index in indices:
            self._queue.pop(index, None)

    @property
    def busy(self) -> bool:
        """See `Engine`."""
        return bool(self._queue)

    def stats(self) -> Stats:
        """See `Engine`."""
        waiting = len(self._queue)
        return Stats(min(waiting, 1), max(waiting - 1, 0), self._prompt_tokens, self._output_tokens)

    def close(self) -> None:
        """See `Engine`."""


def _logprobs(words: list[str], candidates: int) -> Logprobs:
    return tuple(
        tuple(
            TokenLogprob(rank, f"{word}{rank or ''}", -rank / 2, rank + 1)
            for rank in range(candidates)
        )
        for word in words
    )


def _text(prompt: Prompt) -> str:
    match prompt:
        case str():
            return prompt
        case Tokens(ids):
            return " ".join(map(str, ids))
        case Chat(messages):
            return str(messages[-1]["content"])
        case Pair(first, second):
            return f"{first} {second}"
        case Pickled(data):
            return str(pickle.loads(data)["prompt"])  # noqa: S301  # from the kernel alone
        case _:
            assert_never(prompt)
