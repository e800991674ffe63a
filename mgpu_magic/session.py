"""A session: the warm workers, and the one loop that joins all the parts.

```
 run(job) ── submit ──> inbox ──> loop thread ── scheduler.handle(event) ──> actions
                          ▲           │   │                                     │
 workers ── emit ─────────┤           │   └── fleet.start / send / retire <─────┤
 monitor thread ──────────┘           └────── collector.add, progress.recorded <┘
 run(job) <── result, snapshot ───────┘
```

All state belongs to the loop thread; others hand it functions to call. It never draws or prints:
whoever waits for a run shows its snapshots, so a run does not depend on a display that works, and
an interrupt of the waiting thread never finds the state half changed.
"""

from __future__ import annotations

import asyncio
import atexit
import heapq
import itertools
import logging
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mgpu_magic.devices import Discovery, discover, free_host_bytes, monitor_for
from mgpu_magic.errors import MultiGPUError, SpecError, WorkerError
from mgpu_magic.execution import Execution, Seat
from mgpu_magic.fleet import Fleet
from mgpu_magic.launchers.process import ProcessLauncher, log_tail
from mgpu_magic.options import Options
from mgpu_magic.placement import place
from mgpu_magic.progress import Progress
from mgpu_magic.prompts import to_requests
from mgpu_magic.weights import resolve, weights_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType

    from mgpu_magic.devices import DeviceMonitor
    from mgpu_magic.execution import Results
    from mgpu_magic.launchers import Launcher
    from mgpu_magic.messages import Event
    from mgpu_magic.placement import Placed
    from mgpu_magic.prompts import Prepared
    from mgpu_magic.snapshot import Observer, Snapshot
    from mgpu_magic.spec import JobSpec

T = TypeVar("T")

REFRESH_SECONDS = 0.25
READING_SECONDS = 0.5
STOP_SECONDS = 5.0
GONE_SECONDS = 20.0
LOG_BYTES = 16384

log = logging.getLogger("mgpu_magic")


class Run:
    """A job that was submitted; `await` it, or ask for its `result()`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._future: Future[Results] = Future()
        self._final: Snapshot | None = None

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._future.done()

    @property
    def snapshot(self) -> Snapshot:
        """How far it is; after its end, the final state."""
        return self._final or self._session.status()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, `seconds` at most; returns whether it is over."""
        try:
            self._future.exception(seconds)
        except TimeoutError:
            return False
        return True

    def result(self, seconds: float | None = None) -> Results:
        """Wait for the results.

        Raises:
            TimeoutError: It is not over after `seconds`.
            MultiGPUError: The job failed as a whole.
            JobInterrupted: It was stopped; the exception has the results until then.
        """
        return self._future.result(seconds)

    def stop(self) -> None:
        """Give up what is not finished. The workers stay loaded."""
        self._session._stop(self)

    def __await__(self) -> Generator[Any, None, Results]:
        return asyncio.wrap_future(self._future).__await__()


class Session:
    """Warm workers, and jobs that run on them one after the other.

    Args:
        devices: Where jobs run that do not say so themselves: `"all"`, `"cpu"`, `"cpu:N"` or
            indices such as `"0,1"`.
        launcher: Starts the workers; by default, as processes.

    Use it in a `with` block, or `close()` it: workers hold device memory until then.
    """

    def __init__(self, devices: str = "all", *, launcher: Launcher | None = None) -> None:
        self._devices = devices
        self._logs = Path(tempfile.mkdtemp(prefix="mgpu_magic-"))
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._fleet = Fleet(launcher or ProcessLauncher(self._logs), self._emit, self._later)
        self._names: dict[int, str] = {}
        self._discovery: Discovery | None = None
        self._monitor: DeviceMonitor | None = None
        self._progress = Progress((), time.monotonic)
        self._current: tuple[Execution, Run] | None = None
        self._last: Results | None = None
        self._busy = threading.Event()
        self._closed = False
        self._owner = os.getpid()
        threading.Thread(target=self._loop, name="mgpu-session", daemon=True).start()
        threading.Thread(target=self._watch, name="mgpu-monitor", daemon=True).start()
        atexit.register(self.close)

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
        run = Run(self)
        begin = self._prepare(job, run)
        try:
            self._call(begin)
            while not run.done:
                if observer is not None:
                    observer.update(run.snapshot)
                run.wait(REFRESH_SECONDS)
        except KeyboardInterrupt:
            self._interrupt(run)
        if observer is not None:
            observer.finish(run.snapshot)
        return run.result()

    def submit(self, job: JobSpec) -> Run:
        """Begin a job and return at once."""
        run = Run(self)
        self._call(self._prepare(job, run))
        return run

    def status(self) -> Snapshot:
        """The devices and what runs on them, read now."""
        if self._discovery is None:
            self._call(partial(self._show, discover(os.environ, self._devices)))
        if not self._busy.is_set():
            self._read_devices()
        return self._call(lambda: self._progress.snapshot())

    def describe_devices(self) -> str:
        """A line for each device that this process may use."""
        discovery = discover(os.environ, "all")
        lines = [
            f"{device.label}  {device.name}"
            + (f", {device.total_bytes / 2**30:.1f} GiB" if device.total_bytes else "")
            + (
                f", compute capability {device.capability[0]}.{device.capability[1]}"
                if device.capability
                else ""
            )
            for device in discovery.devices
        ]
        return "\n".join((*lines, *discovery.notes))

    @property
    def last(self) -> Results | None:
        """Results of the last job, or of the running one until now; None before the first."""
        return self._call(
            lambda: self._last if self._current is None else self._current[0].results()
        )

    def logs(self, worker: int | None = None) -> dict[str, str]:
        """The ends of the workers' logs, by worker (number, device and model).

        Raises:
            SpecError: There was no such worker.
        """
        names = self._call(lambda: dict(self._names))
        if worker is not None and worker not in names:
            raise SpecError(f"there is no worker {worker}; there are {sorted(names) or 'none yet'}")
        wanted = names if worker is None else [worker]
        return {
            names[number]: log_tail(self._logs / f"worker-{number}.log", LOG_BYTES)
            for number in wanted
        }

    def free(self, model: str | None = None) -> int:
        """End the workers, or those of one model; returns how many, once they are gone.

        Raises:
            SpecError: A job is running.
        """
        return self._call(partial(self._dismiss, model))()

    def restart(self) -> int:
        """Stop the running job and kill every worker; returns how many, once they are gone."""
        return self._call(self._kill_all)()

    def close(self) -> None:
        """Stop the running job and end all workers. May be called again."""
        if self._closed or os.getpid() != self._owner:  # a process forked from the kernel
            return
        self._call(self._halt)
        self.free()
        self._closed = True
        atexit.unregister(self.close)
        self._busy.set()
        self._inbox.put(None)
        shutil.rmtree(self._logs, ignore_errors=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- a job, prepared by whoever asks and run by the loop -----------------------------------

    def _prepare(self, job: JobSpec, run: Run) -> Callable[[], None]:
        """Check all that can be checked without a worker; returns what begins the job."""
        if self._closed:
            raise SpecError("this session is closed; make a new one")
        prepared: dict[str, Prepared] = {}
        for model in job.models:
            prompts = job.prompts if model.prompts is None else model.prompts
            if isinstance(prompts, Iterator):  # to be read once, by several models perhaps
                prompts = list(prompts)
                job = replace(job, prompts=prompts) if model.prompts is None else job
            sampling = job.sampling if model.sampling is None else model.sampling
            prepared[model.name] = to_requests(prompts, sampling=sampling, chat=job.chat)
        discovery = discover(os.environ, job.devices or self._devices)
        models = [
            model if model.engine == "echo" else replace(model, model=resolve(model.model))
            for model in job.models
            if prepared[model.name].requests
        ]
        sizes = {model.name: weights_bytes(model.model, os.environ) for model in models}
        placed = place(models, discovery.devices, sizes) if models else ()
        largest = max((size for size in sizes.values() if size), default=0)
        loads = max(1, free_host_bytes() // largest) if largest else len(placed)
        return partial(self._begin, job, run, prepared, discovery, placed, max(loads, 1))

    def _begin(
        self,
        job: JobSpec,
        run: Run,
        prepared: Mapping[str, Prepared],
        discovery: Discovery,
        placed: Sequence[Placed],
        parallel_loads: int,
    ) -> None:
        if self._current is not None:
            raise SpecError("a job is running in this session; stop it first (%multigpu restart)")
        self._show(discovery)
        execution = Execution(
            number=next(self._count),
            job=job,
            prepared=prepared,
            seats=self._seats(placed),
            fleet=self._fleet,
            progress=self._progress,
            later=self._later,
            parallel_loads=parallel_loads,
        )
        self._current = execution, run
        self._busy.set()
        execution.begin()
        for note in discovery.notes:
            self._progress.note(note)
        self._settle()

    def _seats(self, placed: Sequence[Placed]) -> list[Seat]:
        seats: list[Seat] = []
        for place_ in placed:
            warm = self._fleet.warm(place_.spec, besides={seat.number for seat in seats})
            number = next(self._count) if warm is None else warm.number
            self._names[number] = f"{number}: {place_.spec.label} {place_.model}"
            seats.append(Seat(number, place_, warm))
        return seats

    def _settle(self) -> None:
        """Where the job is over, hand out what it came to."""
        if self._current is None or not self._current[0].done:
            return
        execution, run = self._current
        self._current = None
        self._busy.clear()
        self._last, error = execution.finish()
        run._final = self._progress.snapshot()
        if error is None:
            run._future.set_result(self._last)
        else:
            run._future.set_exception(error)

    def _halt(self) -> None:
        if self._current is not None:
            self._current[0].stop()
            self._settle()

    def _stop(self, run: Run) -> None:
        self._call(lambda: self._halt() if self._current and self._current[1] is run else None)

    def _interrupt(self, run: Run) -> None:
        """End the run after a KeyboardInterrupt; a second one ends its workers too."""
        try:
            self._stop(run)
            run.wait(STOP_SECONDS)
        except KeyboardInterrupt:
            self.restart()

    # --- workers and devices -------------------------------------------------------------------

    def _dismiss(self, model: str | None) -> Callable[[], int]:
        if self._current is not None:
            raise SpecError("a job is running; interrupt it first, or use %multigpu restart")
        numbers = [
            worker.number
            for worker in self._fleet
            if model in (None, worker.spec.model, self._names[worker.number].split()[-1])
        ]
        for number in numbers:
            self._fleet.retire(number)
        return partial(self._await_gone, numbers)

    def _kill_all(self) -> Callable[[], int]:
        self._halt()
        numbers = [worker.number for worker in self._fleet]
        for number in numbers:
            self._fleet.kill(number)
        return partial(self._await_gone, numbers)

    def _await_gone(self, numbers: Sequence[int]) -> int:
        deadline = time.monotonic() + GONE_SECONDS
        while self._call(lambda: [n for n in numbers if self._fleet.get(n)]):
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"workers {list(numbers)} do not end; their processes may hang in the driver "
                    "(`nvidia-smi` shows them)"
                )
            time.sleep(0.02)
        return len(numbers)

    def _show(self, discovery: Discovery) -> None:
        """Show these devices from now on."""
        if self._discovery is None or self._discovery.devices != discovery.devices:
            if self._monitor is not None:
                self._monitor.close()
            self._monitor = monitor_for(discovery.devices)
            self._progress = Progress(discovery.devices, time.monotonic)
            for worker in self._fleet:
                if set(worker.spec.devices) <= set(discovery.devices):
                    labels = [device.label for device in worker.spec.devices]
                    self._progress.assign(worker.number, worker.spec.model, labels)
                    if worker.ready is not None:
                        self._progress.apply(worker.number, worker.ready)
        self._discovery = discovery

    def _watch(self) -> None:
        """Thread: read the devices while a job runs. A driver that hangs stalls only this."""
        while self._busy.wait() and not self._closed:
            self._read_devices()
            time.sleep(READING_SECONDS)

    def _read_devices(self) -> None:
        monitor, pids = self._call(lambda: (self._monitor, self._pids()))
        if monitor is not None:
            readings = monitor.read(pids)
            self._inbox.put(lambda: self._progress.read(readings))

    def _pids(self) -> dict[str, list[int]]:
        pids: dict[str, list[int]] = {}
        for worker in self._fleet:
            for device in worker.spec.devices:
                if worker.handle is not None:
                    pids.setdefault(device.label, []).append(worker.handle.pid)
        return pids

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self) -> None:
        """Thread: call what comes in, and what is due."""
        while True:
            wait = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            try:
                act = self._inbox.get(timeout=wait)
            except queue.Empty:
                act = heapq.heappop(self._timers)[2]
            if act is None:
                return
            try:
                act()
            except Exception as error:  # whoever waits must not wait for ever
                log.exception("the session's loop failed")
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._current is not None:
            _, run = self._current
            self._current = None
            self._busy.clear()
            run._final = self._progress.snapshot()
            run._future.set_exception(error)

    def _call(self, act: Callable[[], T]) -> T:
        """Have the loop call `act`; returns or raises what it does."""
        answer: Future[T] = Future()

        def answered() -> None:
            try:
                answer.set_result(act())
            except MultiGPUError as error:
                answer.set_exception(error)
            except Exception as error:
                answer.set_exception(error)
                raise

        self._inbox.put(answered)
        return answer.result()

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        """From the loop thread: have it call `act` after that time."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), act))

    def _emit(self, worker: int, event: Event) -> None:
        self._inbox.put(partial(self._on_event, worker, event))

    def _on_event(self, worker: int, event: Event) -> None:
        self._progress.apply(worker, event)
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
