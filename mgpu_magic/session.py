"""A session: the warm workers, and the one loop that joins all the parts.

```
 run(job) ── submit ──> inbox ──> loop thread ── scheduler.handle(event) ──> actions
                          ▲           │   │                                     │
 workers ── emit ─────────┤           │   └── fleet.start / send / retire <─────┤
 monitor thread ──────────┘           └────── collector.add, progress.recorded <┘
 run(job) <── result, snapshot ───────┘
```

All state belongs to the loop thread; others hand it functions to call. It never draws or prints:
whoever waits for a run shows its snapshots, so a run does not depend on a display that works. An
interrupt never finds the state half changed: a press is handed to the loop like all else, and the
thread that waits raises for it when it is done.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mgpu_magic.check import check
from mgpu_magic.endings import Endings
from mgpu_magic.errors import JobInterrupted, SpecError, WorkerError
from mgpu_magic.execution import Execution, Seat
from mgpu_magic.fleet import Fleet
from mgpu_magic.following import see_through
from mgpu_magic.instruments import Instruments, log_bytes
from mgpu_magic.launchers.process import ProcessLauncher, log_tail
from mgpu_magic.launchers.thread import ThreadLauncher
from mgpu_magic.loop import Loop
from mgpu_magic.messages import Exited, Stopped
from mgpu_magic.options import Options, device_text
from mgpu_magic.preparation import Preparation, prepare
from mgpu_magic.presses import Presses
from mgpu_magic.run import Run
from mgpu_magic.scratch import Scratch, shorten, sweep
from mgpu_magic.verdict import interrupted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from mgpu_magic.check import Check
    from mgpu_magic.ensemble import Results
    from mgpu_magic.launchers import Launcher
    from mgpu_magic.messages import Event
    from mgpu_magic.placement import Placed
    from mgpu_magic.snapshot import Observer, Snapshot
    from mgpu_magic.spec import JobSpec


GONE_SECONDS = 30.0  # a drain, a kill and the end of the group, on a slow machine
GONE_POLL_SECONDS = 0.02
LOG_BYTES = 16384


class Session:
    """Warm workers, and jobs that run on them one after the other.

    Args:
        devices: Where jobs run that do not say so themselves: `"all"`, `"cpu"`, `"cpu:N"` or
            indices such as `"0,1"`.
        launcher: Starts the workers that are not threads; by default, as processes.

    Use it in a `with` block, or `close()` it: workers hold device memory until then.
    """

    def __init__(self, devices: Any = "all", *, launcher: Launcher | None = None) -> None:
        self._devices = device_text(devices) or "all"
        self._closed = True
        try:
            with Presses():
                self._open(launcher)
        except KeyboardInterrupt:
            self.close()
            raise

    def _open(self, launcher: Launcher | None) -> None:
        self._scratch = Scratch()
        self._logs = self._scratch.path
        self._loop = Loop("mgpu-session", self._fail)
        self._loop.post(sweep)
        self._worker_numbers = itertools.count()
        self._job_numbers = itertools.count(1)
        self._fleet = Fleet(
            {
                "process": launcher or ProcessLauncher(self._logs),
                "thread": ThreadLauncher(self._logs),
            },
            self._emit,
            self._loop.later,
        )
        self._names: dict[int, tuple[str, str]] = {}  # of all workers ever: device, model
        self._instruments = Instruments(self._fleet, self._loop, lambda: self._current is not None)
        self._current: tuple[Execution, Run] | None = None
        self._endings = Endings(self._loop)
        self._last: Results | None = None
        self._owner = os.getpid()
        self._closed = False
        atexit.register(self._close_at_exit)

    # --- for everyone ------------------------------------------------------------------------

    def generate(
        self,
        model: Any = None,
        prompts: Any = None,
        *,
        observer: Observer | None = None,
        **options: Any,
    ) -> Results:
        """Answer prompts.

        Args:
            model: Hub id, local directory, or a dict of engine arguments holding `model`.
            prompts: Texts, token ids, chats or vLLM prompt dicts, in any usual container.
            observer: Shown the progress; see `mgpu_magic.snapshot.Observer`.
            options: The other attributes of `mgpu_magic.options.Options`.

        Returns:
            A `ResultSet` aligned with the prompts; with `models`, an `Ensemble` of them by name.

        Raises:
            SpecError: An option or a prompt is wrong; nothing was started.
            PlacementError: The models do not fit the devices.
            EngineError: No model could be loaded, or all prompts failed alike.
            WorkerError: The workers died.
            JobInterrupted: The user stopped it; carries the results until then.
        """
        return self.run(Options.of(model=model, prompts=prompts, **options).job(), observer)

    def run(self, job: JobSpec, observer: Observer | None = None) -> Results:
        """Carry a job out and wait for it; see `generate`."""
        run = Run(self._stop, self._look)
        prepared = self._prepared(job)
        with Presses(partial(self._on_press, run), partial(self._interrupted, run)) as presses:
            try:
                try:
                    self._loop.call(partial(self._begin, prepared, run))
                finally:
                    prepared.abandon()
                    del prepared  # its requests go as they are answered
                self._see_through(run, observer, presses)
            except KeyboardInterrupt:  # the display hung
                self._see_through(run, None, presses)
            finally:
                if not run.done:  # nothing may go on unseen
                    self._loop.post(partial(self._give_up, run))
            return run.result(0)

    def check(self, model: Any = None, **options: Any) -> Check:
        """What is known of a model before it is loaded: its figures, and where it fits.

        Args:
            model: Hub id, local directory, or a dict of engine arguments holding `model`.
            options: The other attributes of `mgpu_magic.options.Options`.

        Raises:
            SpecError: An option is wrong, or there is no such directory.
            PlacementError: There are too few devices.
        """
        return self.check_job(Options.of(**{"prompts": (), **options}, model=model).job())

    def check_job(self, job: JobSpec) -> Check:
        """The same for the models of a job."""
        return check(job, self._devices, self._loop.call(self._instruments.living))

    def submit(self, job: JobSpec) -> Run:
        """Begin a job and return at once."""
        run = Run(self._stop, self._look)
        prepared = self._prepared(job)
        try:
            with Presses():
                try:
                    self._loop.call(partial(self._begin, prepared, run))
                finally:
                    prepared.abandon()
            return run
        except KeyboardInterrupt:
            self._loop.post(partial(self._give_up, run))
            raise

    def stop(self) -> bool:
        """Give up what the running job has not finished; returns whether there was one."""
        run = self._loop.call(lambda: None if self._current is None else self._current[1])
        if run is not None:
            self._stop(run)
        return run is not None

    def status(self) -> Snapshot:
        """The devices and what runs on them, read now."""
        return self._instruments.status(self._devices)

    def devices(self) -> Snapshot:
        """The same without the job that is over."""
        snapshot = self.status()
        if snapshot.job.state == "running":
            return snapshot
        return replace(snapshot, job=replace(snapshot.job, state="new"))

    @property
    def last(self) -> Results | None:
        """Results of the last job, or of the running one until now; None before the first."""
        return self._loop.call(
            lambda: self._last if self._current is None else self._current[0].results()
        )

    @property
    def models(self) -> list[str]:
        """The models that are loaded, as they were named."""
        return self._loop.call(lambda: sorted({worker.spec.model_label for worker in self._fleet}))

    def logs(self, worker: int | None = None) -> dict[str, str]:
        """The ends of the logs of all workers until now, or of one, by worker.

        Raises:
            SpecError: There was no such worker.
        """
        names = self._loop.call(lambda: dict(self._names))
        if worker is not None and worker not in names:
            raise SpecError(f"there is no worker {worker}; there are {sorted(names) or 'none yet'}")
        return {
            f"worker {number} ({device}, {model})": log_tail(
                self._logs / f"worker-{number}.log", LOG_BYTES
            )
            for number, (device, model) in names.items()
            if worker in (None, number)
        }

    def free(self, model: str | None = None) -> int:
        """End the workers, or those of one model; returns how many, once they are gone.

        Raises:
            SpecError: A job is running.
        """
        return self._await_gone(self._loop.call(partial(self._dismiss, model)))

    def restart(self) -> int:
        """Stop the running job and kill every worker; returns how many, once they are gone."""
        return self._await_gone(self._loop.call(self._kill_all))

    def close(self) -> None:
        """Stop the running job and end all workers. May be called again."""
        if self._closed or os.getpid() != self._owner:  # a process forked from the kernel
            return
        with Presses(lambda count: self._loop.post(self._kill_all)) as presses:
            try:
                self._loop.call(self._halt)
                self._await_gone(self._loop.call(partial(self._dismiss, None)), presses)
            finally:
                self._closed = True
                atexit.unregister(self._close_at_exit)
                self._endings.close()
                self._instruments.close()
                self._loop.close()
                self._scratch.close()

    def _close_at_exit(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # that is what we are doing
            self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepared(self, job: JobSpec) -> Preparation:
        prepared = None
        try:
            with Presses() as presses, presses.breaking(0):  # prompts can be code of the user's
                living = self._loop.call(self._instruments.living)
                prepared = prepare(job, self._devices, self._instruments.known, living)
        except KeyboardInterrupt:
            if prepared is not None:
                prepared.abandon()
            raise
        return prepared

    # --- a job, run by the loop --------------------------------------------------------------

    def _begin(self, prepared: Preparation, run: Run) -> None:
        if self._current is not None:
            raise SpecError("a job is running in this session; stop it first (%multigpu stop)")
        self._instruments.show(prepared.discovery)
        progress = self._instruments.progress
        execution = Execution(
            number=next(self._job_numbers),
            job=prepared.job,
            prepared=prepared.prompts,
            seats=self._seats(prepared.placed),
            fleet=self._fleet,
            progress=progress,
            later=self._loop.later,
            parallel_loads=prepared.parallel_loads,
            sizes=prepared.sizes,
            journal=prepared.journal,
            failures=prepared.failures,
        )
        if prepared.journal is not None:
            prepared.journal.begin(lambda text: self._loop.post(lambda: progress.note(text)))
        self._current = execution, run
        self._instruments.follow()
        execution.begin()
        for note in (*prepared.discovery.notes, *prepared.notes):
            progress.note(note)
        self._settle()

    def _seats(self, placed: Sequence[Placed]) -> list[Seat]:
        seats: list[Seat] = []
        for place_ in placed:
            warm = self._fleet.warm(place_.spec, besides={seat.number for seat in seats})
            number = next(self._worker_numbers) if warm is None else warm.number
            self._names[number] = place_.spec.label, place_.model
            seats.append(Seat(number, place_, warm))
        return seats

    def _settle(self) -> None:
        """Where the job is over, hand out what it came to."""
        if self._current is None or not self._current[0].done:
            return
        execution, run = self._current
        self._current = None
        self._instruments.show_logs()
        self._last, error = execution.finish()
        self._hand_out(execution, run, self._last if error is None else error)

    def _hand_out(self, execution: Execution, run: Run, outcome: Results | BaseException) -> None:
        final = self._instruments.progress.snapshot()
        self._endings.hand_out(execution.number, execution.journal, run, outcome, final)

    def _halt(self) -> None:
        if self._current is not None:
            self._current[0].stop()
            self._settle()

    def _look(self) -> Snapshot:
        return self._instruments.look()

    def _stop(self, run: Run) -> None:
        self._loop.call(partial(self._give_up, run))

    def _give_up(self, run: Run) -> None:
        if self._current is not None and self._current[1] is run:
            self._halt()

    # --- a press, while a job is waited for ----------------------------------------------------

    def _on_press(self, run: Run, count: int) -> None:
        """Have the run end; from the second press on, its workers too."""
        self._loop.post(partial(self._give_up, run))
        if count > 1:
            self._loop.post(lambda: self._current is None and self._kill_all())

    def _see_through(self, run: Run, observer: Observer | None, presses: Presses) -> None:
        """Show a run to its end, and after a second press wait for that of the workers too."""
        if presses.count:  # before the job began, it may be
            self._on_press(run, presses.count)
        see_through(run, observer, presses)
        while presses.count > 1 and not presses.overdue and self._loop.call(self._any_leaving):
            time.sleep(GONE_POLL_SECONDS)

    def _any_leaving(self) -> bool:
        return any(worker.leaving for worker in self._fleet)

    def _interrupted(self, run: Run) -> KeyboardInterrupt:
        """What a press comes to, also one of the last moment."""
        if isinstance(run.error, JobInterrupted):
            return run.error
        results = run.result() if run.done and run.error is None else None
        results = getattr(run.error, "results", results)
        return KeyboardInterrupt() if results is None else interrupted(results)

    # --- workers and devices -------------------------------------------------------------------

    def _dismiss(self, model: str | None) -> list[int]:
        if self._current is not None:
            raise SpecError("a job is running; stop it first (%multigpu stop)")
        known = {w.number: (w.spec.model_label, self._names[w.number][1]) for w in self._fleet}
        numbers = [number for number, names in known.items() if model is None or model in names]
        if model is not None and not numbers:
            loaded = sorted({name for _, name in known.values()})
            raise SpecError(f"no worker holds {model!r}; loaded: {', '.join(loaded) or 'nothing'}")
        for number in numbers:
            self._fleet.retire(number)
        return numbers

    def _kill_all(self) -> list[int]:
        self._halt()
        numbers = [worker.number for worker in self._fleet]
        for number in numbers:
            self._fleet.kill(number)
        return numbers

    def _await_gone(self, numbers: Sequence[int], presses: Presses | None = None) -> int:
        for _ in range(round(GONE_SECONDS / GONE_POLL_SECONDS)):  # no clock: we may be suspended
            alive = self._loop.call(lambda: [n for n in numbers if self._fleet.get(n)])
            if not alive or (presses is not None and presses.overdue):
                return len(numbers)
            time.sleep(GONE_POLL_SECONDS)
        threads = self._loop.call(
            lambda: [w.spec.model_label for w in self._fleet if w.spec.launcher == "thread"]
        )
        why = "their processes may hang in the driver (`nvidia-smi` shows them)"
        if threads:
            why = f"threads cannot be killed ({', '.join(threads)}): restart the kernel"
        raise WorkerError(f"workers {alive} do not end; {why}")

    # --- called by the loop ------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """End the job; its workers go too, since nobody knows what they still work on."""
        if self._current is not None:
            execution, run = self._current
            self._current = None
            for worker in self._fleet:
                self._fleet.kill(worker.number)
            self._hand_out(execution, run, error)

    def _emit(self, worker: int, event: Event) -> None:
        self._loop.post(partial(self._on_event, worker, event))

    def _on_event(self, worker: int, event: Event) -> None:
        living, progress = self._fleet.get(worker), self._instruments.progress
        if living is not None and living.leaving and isinstance(event, Exited):
            progress.apply(worker, Stopped())  # we ended it: no loss, however it went
        if isinstance(event, Exited) and living is not None and living.handle is not None:
            shorten(living.handle.log, log_bytes(living))
        progress.apply(worker, event)
        self._fleet.apply(worker, event)
        if self._current is not None:
            self._current[0].handle(worker, event)
            self._settle()


def generate(model: Any = None, prompts: Any = None, **options: Any) -> Results:
    """Answer prompts with workers that live for this call alone; see `Session.generate`.

    For several calls, keep the models loaded in a `Session`.
    """
    with Session() as session:
        return session.generate(model, prompts, **options)
