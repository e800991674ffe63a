"""Random jobs for the soak, as values: the same seed and number give the same job.

Pure; what a prompt must be answered with is known from the plan alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from engines.capitals import CAPITALS

Kind: TypeAlias = Literal["echo", "ensemble", "waves", "function", "vLLM"]
Event: TypeAlias = Literal[
    "SIGKILL", "SIGSEGV", "exit", "SIGSTOP", "loop", "GIL", "flood", "lifeline", "SIGKILL all",
    "stop", "interrupt", "interrupt twice",
]  # fmt: skip
After: TypeAlias = Literal["", "free", "restart", "look"]

EVENTS: tuple[Event, ...] = get_args(Event)
HANGING: frozenset[Event] = frozenset({"SIGSTOP", "loop", "GIL"})
STOPPING: frozenset[Event] = frozenset({"stop", "interrupt", "interrupt twice"})
HANG_SECONDS = 5.0
REAL_EVERY = 12  # jobs, of which one is for the real model
REFUSED, POISON = "refuse-me", "poison-me"
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "délta",
    "日本語",
    "🙂",
    "<b>bold</b>",
    "\\n",
    "%s",
    "{brace}",
    "end.",
]

# Few, so that a job often finds its model loaded.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"capacity": 8},
    {"capacity": 64, "delay": 0.001},
    {"capacity": 3, "delay": 0.01, "load_delay": 0.3},
    {"capacity": 16, "delay": 0.002, "import_delay": 0.2},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One job of the soak.

    Attributes:
        number: Its place in the soak.
        kind: What it runs.
        launcher: Where its workers are.
        prompts: What is asked.
        engine_args: Of the echo engine.
        max_tokens: Limit of all answers, if any.
        event: What happens, if anything.
        at_seconds: When, after its begin.
        victim: Which worker, among those that live then.
        journal: Whether there is one, and the job is run again with it.
        after: What is done to the session afterwards.
    """

    number: int
    kind: Kind
    launcher: Literal["process", "thread"]
    prompts: tuple[Any, ...]
    engine_args: dict[str, Any]
    max_tokens: int | None
    event: Event | None
    at_seconds: float
    victim: int
    journal: bool = False
    after: After = ""

    def __str__(self) -> str:
        limit = f", max_tokens={self.max_tokens}" if self.max_tokens else ""
        event = f", {self.event} at {self.at_seconds:.2f} s" if self.event else ""
        journal = ", a journal" if self.journal else ""
        after = f", then {self.after}" if self.after else ""
        return (
            f"job {self.number}: {self.kind} in {self.launcher}, {len(self.prompts)} prompts, "
            f"{self.engine_args}{limit}{journal}{event}{after}"
        )


def plan(seed: int, number: int, *, real: bool = False) -> Plan:
    """The job of that number; `real`, from a soak that has a real model."""
    rng = random.Random(f"{seed}:{number}")
    if real and number % REAL_EVERY == 0:
        return _real(rng, number)
    kind: Kind = rng.choices(("echo", "ensemble", "waves", "function"), (60, 12, 6, 22))[0]
    settings = dict(rng.choice(SETTINGS))
    count = round(10 ** rng.uniform(0, 3.7))
    per_prompt = settings.get("delay", 0.0002)
    count = min(count, round(3 / per_prompt))
    event = rng.choice(EVENTS) if rng.random() < 0.45 else None
    launcher: Literal["process", "thread"] = "thread" if rng.random() < 0.15 else "process"
    if launcher == "thread" and event not in STOPPING:
        event = None  # nobody can kill one
    if kind == "function":
        prompts = tuple(_number(rng) for _ in range(count))
        settings = {}
    else:
        # Both at once cannot be told apart: whose death was it?
        deadly = event is None and launcher == "process" and rng.random() < 0.1
        prompts = tuple(_prompts(rng, count, deadly=deadly))
        settings |= {"fail_on": REFUSED, "die_on": POISON}
    return Plan(
        number=number,
        kind=kind,
        launcher=launcher,
        prompts=prompts,
        engine_args=settings,
        max_tokens=rng.choice((None, None, 1, 3)) if kind != "function" else None,
        event=event,
        at_seconds=rng.uniform(0, 0.6 + count * per_prompt / 2),
        victim=rng.randrange(2),
        journal=rng.random() < 0.2,
        after=rng.choices(("", "free", "restart", "look"), (75, 8, 4, 13))[0],
    )


def _real(rng: random.Random, number: int) -> Plan:
    events: tuple[Event | None, ...] = (None, "stop", "interrupt", "SIGKILL")
    return Plan(
        number=number,
        kind="vLLM",
        launcher="process",
        prompts=tuple(rng.choices(list(CAPITALS), k=rng.randint(1, 24))),
        engine_args={},
        max_tokens=16,
        event=rng.choices(events, (60, 15, 15, 10))[0],
        at_seconds=rng.uniform(0, 2),
        victim=0,
    )


def _number(rng: random.Random) -> int:
    return rng.randrange(-1000, 1000) if rng.random() > 0.01 else -7777


def _prompts(rng: random.Random, count: int, *, deadly: bool) -> list[Any]:
    prompts = [_prompt(rng, index) for index in range(count)]
    if deadly:
        for index in rng.sample(range(count), k=min(count, rng.randint(1, 2))):
            prompts[index] = f"{index} {POISON}"
    if rng.random() < 0.1:  # a job has either chats or none
        return [
            [{"role": "system", "content": "x"}, {"role": "user", "content": text_of(prompt)}]
            for prompt in prompts
        ]
    return prompts


def _prompt(rng: random.Random, index: int) -> Any:
    words = [str(index), *rng.choices(WORDS, k=rng.randint(0, 6))]
    text = " ".join(words)
    match rng.randrange(20):
        case 0:
            return [index, *rng.choices(range(9), k=3)]
        case 1:
            return {"prompt": text}
        case 2:
            return f"{text} {REFUSED}"
        case _:
            return text


def answer(prompt: Any, max_tokens: int | None) -> str:
    """What the echo engine makes of a prompt."""
    words = text_of(prompt).split()
    return " ".join(words[: max_tokens or len(words)])


def text_of(prompt: Any) -> str:
    """What the echo engine reads of a prompt."""
    match prompt:
        case str():
            return prompt
        case {"prompt": str(text)}:
            return text
        case [{}, *_]:
            return str(prompt[-1]["content"])
        case _:
            return " ".join(map(str, prompt))
