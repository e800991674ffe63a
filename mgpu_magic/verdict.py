"""What a job is said to have come to: the error to raise with its results, if any.

Pure but for the model's configuration, which names its scheme. Imports `errors`, `ensemble`,
`results` and `weights` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mgpu_magic.errors import (
    EngineError,
    JobInterrupted,
    ReportedError,
    WorkerLost,
    WorkerStartError,
)
from mgpu_magic.results import ResultSet
from mgpu_magic.weights import scheme

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mgpu_magic.ensemble import Results
    from mgpu_magic.lifecycle import Death
    from mgpu_magic.outcomes import Failure
    from mgpu_magic.spec import WorkerSpec


def result_sets(results: Results) -> list[ResultSet]:
    """The result sets of one model, or of an ensemble."""
    return [results] if isinstance(results, ResultSet) else list(results.values())


def interrupted(results: Results) -> JobInterrupted:
    """What a job raises that was stopped with these results."""
    sets = result_sets(results)
    prompts, failures = sum(map(len, sets)), sum(len(one.failures) for one in sets)
    return JobInterrupted(
        f"stopped with {prompts - failures} of {prompts} prompts answered; they are in the "
        "`results` of this exception, and in a notebook in `%multigpu last`.",
        results=results,
    )


def load_error(
    model: str, death: Death, spec: WorkerSpec, advice: str, results: Results
) -> ReportedError:
    """What a job raises whose model could not be loaded.

    Args:
        model: Its name.
        death: How the first of its workers ended.
        spec: What that was to load.
        advice: What helps, where it is known; else empty.
        results: The rows.
    """
    if death.of_sampling and death.error is not None:
        text = f"{model}: {death.error.message} (nothing was loaded)"
        return EngineError(text, kind=death.error.kind, results=results)
    reason = death.reason.removeprefix(death.device)
    where = f"{model} could not be loaded on {_place(spec, death)}{reason}"
    message = "\n".join(filter(None, (where, advice)))
    tail = death.exited.log_tail
    if death.error is None:
        return WorkerStartError(message, log_tail=tail, results=results)
    return EngineError(
        message,
        kind=death.error.kind,
        traceback=death.error.traceback,
        log_tail=tail,
        results=results,
    )


def common_error(
    failures: list[Failure], deaths: Iterable[Death], results: Results, *, of_prompts: bool
) -> ReportedError | None:
    """Where all prompts failed alike the cause is not in them: one error, not n.

    Args:
        failures: Of all prompts.
        deaths: Of the workers that are gone for good.
        results: The rows.
        of_prompts: Whether the prompts may be to blame all the same: they are all equal.
    """
    errors = {(failure.error.kind, failure.error.message) for failure in failures}
    for death in deaths:
        if {kind for kind, _ in errors} == {"WorkerLost"}:
            text = f"all {len(failures)} prompts failed, no worker is left; {death.reason}"
            return WorkerLost(text, log_tail=death.exited.log_tail, results=results)
    if len(errors) > 1 or of_prompts:
        return None
    ((kind, message),) = errors
    text = f"all {len(failures)} prompts failed alike: {kind}: {message}"
    trace = failures[0].error.traceback
    return EngineError(text, kind=kind, traceback=trace, results=results)


def _place(spec: WorkerSpec, death: Death) -> str:
    """What the worker was given: its GPU, what that can do, and the scheme of the model."""
    gpu = spec.devices[0]
    if gpu.kind != "cuda":
        return death.device
    words = [gpu.name]
    if gpu.capability is not None:
        words.append("compute capability {}.{}".format(*gpu.capability))
    if not isinstance(spec.model, str) or (kind := scheme(spec.model, spec.engine_args)) == "":
        return f"{death.device} ({', '.join(words)})"
    return f"{death.device} ({', '.join(words)}; {kind})"
