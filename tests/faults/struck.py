"""A worker that is struck in the middle of a job: what becomes of the job and of the next one.

```
caught(phase) ──> the job stands in that phase ── strike(pid) ──> result ──> judged ──> next job
```
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from process.jobs import job, phases
from process.living import eventually, workers

from faults.footprint import paths
from faults.strikes import LAST_WORDS, be_impatient
from mgpu_magic import ResultSet, Session
from mgpu_magic.devices import discover
from mgpu_magic.errors import ReportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mgpu_magic import JobSpec, Run

Phase: TypeAlias = Literal["importing", "loading", "running", "tail", "idle"]
PHASES: tuple[Phase, ...] = ("importing", "loading", "running", "tail", "idle")

BOUND_SECONDS = 40.0
HANG_SECONDS = 3.0
LOG_LIMIT_BYTES = 80_000_000
VICTIM = 1  # index of the device whose worker is struck; in the tail, whichever still works
NEXT = ["the next", "job is", "answered as", "if nothing", "had happened"]


class Missed(Exception):  # noqa: N818  # not an error of the product: the machine was too slow
    """The job was past the phase before anything was done to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens to a worker.

    Attributes:
        strike: Does it to the process of that id.
        everyone: It happens to all workers at once.
        hangs: The worker lives on, and only a time limit can tell.
        reason: What the job says of it where it goes on: all of these words.
        explained: What the job's error says of it where no worker could load.
        late: It shows only after a while, so that the job has to take longer.
        devices: Where it happens: on the fake GPUs, there is no other way to take a victim than
            everyone.
        flood: It prints without end first, and its last words still explain it.
    """

    strike: Callable[[int], None]
    everyone: bool = False
    hangs: bool = False
    reason: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    late: bool = False
    devices: str = "cpu:2"
    flood: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job that stays in its phase for long enough.

    Attributes:
        prompts: What is asked.
        engine_args: How slow the engine is.
        warm: Whether both devices are ready when it begins.
    """

    prompts: Sequence[str]
    engine_args: dict[str, Any] = field(default_factory=dict)
    warm: bool = False


SHORT = [f"p {i}" for i in range(40)]
SCENES: dict[Phase, Scene] = {
    "importing": Scene(prompts=SHORT, engine_args={"import_delay": 1.2, "delay": 0.01}),
    "loading": Scene(prompts=SHORT, engine_args={"load_delay": 1.2, "delay": 0.01}),
    "running": Scene(prompts=SHORT, engine_args={"delay": 0.05}, warm=True),
    "tail": Scene(
        prompts=[*SHORT[:20], "x" * 240],
        engine_args={"delay_per_character": 0.01, "capacity": 2},
        warm=True,
    ),
    "idle": Scene(prompts=SHORT, engine_args={"delay": 0.01}, warm=True),
}
SLOW_SCENES: dict[Phase, Scene] = {  # which are not over before it shows
    **SCENES,
    "importing": Scene(prompts=SHORT, engine_args={"import_delay": 1.2, "delay": 0.15}),
    "loading": Scene(prompts=SHORT, engine_args={"load_delay": 1.2, "delay": 0.15}),
    "running": Scene(prompts=SHORT, engine_args={"delay": 0.15}, warm=True),
}


def struck(fault: Fault, phase: Phase) -> str:
    """Strike in that phase, check all that is promised, and say in short how it went."""
    be_impatient()
    scene = (SLOW_SCENES if fault.hangs or fault.late else SCENES)[phase]
    with Session(fault.devices) as session:
        if scene.warm:
            warm_up(session, scene)
        if phase == "idle":
            strike(fault, phase)
            run = session.submit(asked(scene.prompts, scene, watched=fault.hangs))
        else:
            run = session.submit(asked(scene.prompts, scene, watched=fault.hangs))
            caught(run, phase, scene)
            strike(fault, phase, run)
        assert run.wait(BOUND_SECONDS), f"it hangs: {run}"
        told = judged(run, fault, phase, scene)
        if fault.flood:
            assert eventually(lambda: disk_bytes() < LOG_LIMIT_BYTES), f"{disk_bytes()} bytes"
            text = "\n".join([str(run.error), *session.logs().values()])
            contains(text, [LAST_WORDS])
        following = session.submit(asked(NEXT, scene, watched=fault.hangs))
        assert following.wait(BOUND_SECONDS), f"the next job hangs: {following}"
        assert answers(following).texts == NEXT
    return told


def disk_bytes() -> int:
    """What the temporary files take."""
    total = 0
    for path in paths(tempfile.gettempdir()):
        with suppress(FileNotFoundError):  # it was just removed
            total += 512 * os.stat(path).st_blocks
    return total


def asked(prompts: Sequence[str], scene: Scene, *, watched: bool = False) -> JobSpec:
    """The job of the scene; `watched`, with a time limit for workers that hang."""
    limit = HANG_SECONDS if watched else None
    return job(prompts, engine_args=scene.engine_args, hang_timeout=limit)


def warm_up(session: Session, scene: Scene) -> None:
    """Have both devices ready, and free of work."""
    run = session.submit(job(["warm"] * 1000, engine_args=scene.engine_args))
    assert eventually(lambda: phases(run) == ["running", "running"], BOUND_SECONDS)
    run.stop()


def caught(run: Run, phase: Phase, scene: Scene) -> None:
    """Wait until the job is in that phase.

    Raises:
        Missed: It was already past it.
    """
    total = len(scene.prompts)

    def there() -> bool:
        job = run.snapshot.job
        match phase:
            case "importing" | "loading":
                return phases(run) == [phase, phase]
            case "running":
                return 4 <= job.done < total // 2 and phases(run) == ["running", "running"]
            case "tail":
                # A worker counts as running for a second after its last prompt.
                return job.done == total - 1 and phases(run).count("running") == 1
            case "idle":
                return run.done

    def past() -> bool:
        return run.done and phase != "idle"

    assert eventually(lambda: there() or past(), BOUND_SECONDS), f"never {phase}: {phases(run)}"
    if past():
        raise Missed(f"over before it was caught {phase}")


def strike(fault: Fault, phase: Phase, run: Run | None = None) -> None:
    """Do it to the victim, or to all workers."""
    victims = workers() if fault.everyone else {worker_on(_victim(phase, run))}
    assert len(victims) == (2 if fault.everyone else 1)
    for pid in victims:
        fault.strike(pid)
    if phase == "idle" and not fault.hangs:
        assert eventually(lambda: not victims & workers()), f"{victims} live on"


def _victim(phase: Phase, run: Run | None) -> int:
    """The device whose worker it is; in the tail, that which still works."""
    if phase != "tail" or run is None:
        return VICTIM
    if "running" not in (now := phases(run)):
        raise Missed("over before it was struck")
    return now.index("running")


def worker_on(device: int) -> int:
    """The process id of the worker on a CPU device."""
    cores = set(discover(os.environ, "cpu:2").devices[device].cores)
    (pid,) = (pid for pid in workers() if os.sched_getaffinity(pid) == cores)
    return pid


def answers(run: Run) -> ResultSet:
    """The results of a run, those within its error too."""
    results = run.error.results if isinstance(run.error, ReportedError) else run.result()
    assert isinstance(results, ResultSet)
    return results


def judged(run: Run, fault: Fault, phase: Phase, scene: Scene) -> str:
    """Check what became of the job that was struck."""
    results = answers(run)
    text = "\n".join(run.snapshot.job.notes)
    restarts = run.snapshot.job.restarts
    assert len(results) == len(scene.prompts)
    if phase in ("importing", "loading") and fault.everyone and not fault.hangs:
        assert isinstance(run.error, ReportedError), f"no error, but {text}"
        assert results.texts == [None] * len(results)
        contains(str(run.error), (*fault.reason, *fault.explained))
        return f"{type(run.error).__name__} {len(results)}"
    assert results.texts == scene.prompts, [(f.index, f.error) for f in results.failures][:3]
    if phase in ("running", "tail") and not restarts:
        raise Missed(f"over before it was struck {phase}")
    if phase == "idle" and not fault.hangs:
        assert restarts <= 1 + fault.everyone  # whether the job began before the session knew
    elif phase in ("importing", "loading") and fault.late:
        contains(text, fault.reason)
        assert restarts <= 1  # it may have been ready by then
    elif phase in ("importing", "loading") and not fault.hangs:
        if restarts:  # which a failed load never gets
            raise Missed(f"over before it was struck {phase}")
        contains(text, ("the job went on without cpu:1", *fault.reason))
    else:
        contains(text, fault.reason)
        assert restarts == (2 if fault.everyone else 1), restarts
    return f"{len(results)}/{len(scene.prompts)} ↻{restarts}"


def contains(text: str, words: Sequence[str]) -> None:
    """Fail unless all of these words are in the text."""
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"
