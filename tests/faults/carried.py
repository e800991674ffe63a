"""One job of the soak carried out, and whether every prompt has its one right outcome."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engines.capitals import CAPITALS
from process.jobs import phases
from process.living import workers

from faults import real, strikes
from faults.plans import HANG_SECONDS, POISON, REFUSED, STOPPING, answer, text_of
from faults.strikes import Signalled, Told
from mgpu_magic import Completion, Ensemble, Failure, JobInterrupted, ResultSet, Returned
from mgpu_magic.errors import ReportedError
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from faults.plans import Plan
    from mgpu_magic import JobSpec, Session

BOUND_SECONDS = 120.0
STRIKES: dict[str, Callable[[int], None]] = {
    "SIGKILL": Signalled(signal.SIGKILL),
    "SIGKILL all": Signalled(signal.SIGKILL),
    "SIGSEGV": Signalled(signal.SIGSEGV),
    "SIGSTOP": Signalled(signal.SIGSTOP),
    "exit": Told(strikes.EXIT),
    "loop": Told(strikes.LOOP),
    "GIL": Told(strikes.HOLD_THE_GIL),
    "flood": Told(strikes.FLOOD),
    "lifeline": Told(strikes.CUT_LIFELINE),
}
_SETTLED = {"running", "idle"}


class Timer:
    """Does something to the session or its workers at a time of the job.

    Args:
        plan: Says what and when.
        session: Runs the job.
        spared: Process ids that are none of its workers.

    Attributes:
        early: Whether it hit a worker that could not answer yet.
    """

    def __init__(self, plan: Plan, session: Session, spared: Collection[int]) -> None:
        self._plan = plan
        self._session = session
        self._spared = set(spared)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._act, name="soak-timer", daemon=True)
        self.early = False
        if plan.event is not None:
            self._thread.start()

    def disarm(self) -> None:
        """Wait until nothing can happen any more."""
        self._over.set()
        if self._plan.event is not None:
            self._thread.join()

    def _act(self) -> None:
        if self._over.wait(self._plan.at_seconds):
            return
        match self._plan.event:
            case None:
                pass
            case "stop":
                self._session.stop()
            case "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            case "interrupt twice":
                os.kill(os.getpid(), signal.SIGINT)
                if not self._over.wait(0.05):
                    os.kill(os.getpid(), signal.SIGINT)
            case event:
                self._strike(event)

    def _strike(self, event: str) -> None:
        found = sorted(workers() - self._spared)
        victims = found if event == "SIGKILL all" else found[self._plan.victim :][:1]
        cards = self._session.status().devices
        self.early = any(card.worker and card.worker.phase not in _SETTLED for card in cards)
        for pid in victims:
            with suppress(ProcessLookupError):
                STRIKES[event](pid)


def twice(state: object, batch: list[int]) -> list[int]:
    """The function of the soak; it has an error of its own."""
    if -7777 in batch:
        raise ArithmeticError("an unlucky number")
    return [2 * number for number in batch]


def job(plan: Plan, journal: str | None) -> JobSpec:
    """What the plan asks for."""
    if plan.kind == "vLLM":
        return real.job(list(plan.prompts))
    options: dict[str, Any] = {
        "prompts": list(plan.prompts),
        "launcher": plan.launcher,
        "journal": journal,
        "hang_timeout": HANG_SECONDS,
    }
    if plan.kind == "function":
        return Options(predict=twice, batch_size=16, **options).job()
    if plan.kind == "echo":
        options["model"] = "m"
    else:
        names = "ab" if plan.kind == "ensemble" else "abc"
        options["models"] = {name: f"model {name}" for name in names}
    return Options(
        engine="echo", engine_args=plan.engine_args, max_tokens=plan.max_tokens, **options
    ).job()


def carry_out(plan: Plan, session: Session, spared: Collection[int] = ()) -> list[str]:
    """Run the job of a plan, with a journal twice; returns what is wrong with its outcomes."""
    if not plan.journal:
        return _once(plan, session, spared)
    with tempfile.TemporaryDirectory(dir=os.environ[strikes.ORDERS]) as folder:
        journal = f"{folder}/answers.jsonl"
        undisturbed = replace(plan, event=None)
        return _once(plan, session, spared, journal) or _once(undisturbed, session, spared, journal)


def _once(
    plan: Plan, session: Session, spared: Collection[int], journal: str | None = None
) -> list[str]:
    timer = Timer(plan, session, spared)
    error: BaseException | None = None
    results: Any = None
    try:
        try:
            results = _results(plan, session, journal)
        finally:
            timer.disarm()
    except (ReportedError, JobInterrupted) as raised:
        error, results = raised, raised.results
    except KeyboardInterrupt:  # before its begin, or after its end
        if plan.event not in STOPPING:
            raise
        return []
    sets = results.values() if isinstance(results, Ensemble) else [results]
    if plan.event not in STOPPING and isinstance(error, JobInterrupted):
        return ["interrupted by nobody"]
    return [wrong for one in sets for wrong in _wrong(plan, one, early=timer.early)][:5]


def _results(plan: Plan, session: Session, journal: str | None) -> Any:
    if plan.event in ("interrupt", "interrupt twice"):
        return session.run(job(plan, journal))
    run = session.submit(job(plan, journal))
    if not run.wait(BOUND_SECONDS):
        raise TimeoutError(f"it hangs: {run}, {phases(run)}, {run.snapshot.job.notes}")
    return run.result()


def _wrong(plan: Plan, results: ResultSet, *, early: bool) -> Iterator[str]:
    if len(results) != len(plan.prompts):
        yield f"{len(results)} outcomes for {len(plan.prompts)} prompts"
    for index, (prompt, outcome) in enumerate(zip(plan.prompts, results, strict=True)):
        match outcome:
            case _ if outcome.index != index:
                yield f"prompt {index} has the outcome of {outcome.index}"
            case Failure(error=error):
                if error.kind not in _may_fail(plan, prompt, early=early):
                    yield f"prompt {index}, {prompt!r}: {error.kind}: {error.message}"
            case Completion(text=text) if plan.kind == "vLLM":
                if CAPITALS[prompt] not in text:
                    yield f"prompt {index}, {prompt!r} has the answer {text!r}"
            case Completion(text=text):
                if text != answer(prompt, plan.max_tokens) or _must_fail(prompt):
                    yield f"prompt {index}, {prompt!r} has the answer {text!r}"
            case Returned(value=value):
                if value != 2 * prompt:
                    yield f"prompt {index}, {prompt!r} has the value {value!r}"
            case _:
                yield f"prompt {index} has {outcome!r}"


def _must_fail(prompt: Any) -> bool:
    return POISON in text_of(prompt) or REFUSED in text_of(prompt)


def _may_fail(plan: Plan, prompt: Any, *, early: bool) -> set[str]:
    kinds = {"Interrupted"} if plan.event in STOPPING else set()
    if early:  # the only copy of its model, or all of them
        kinds |= {"WorkerStartError", "WorkerHung"}
    if prompt == -7777:
        return kinds | {"ArithmeticError"}
    if isinstance(prompt, int):
        return kinds
    if POISON in text_of(prompt):
        return kinds | {"WorkerLost"}
    return kinds | {"ValueError"} if REFUSED in text_of(prompt) else kinds
