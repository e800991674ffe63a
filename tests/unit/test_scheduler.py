"""What the scheduler decides, event by event."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest

from mgpu_magic.errors import ProtocolError
from mgpu_magic.lifecycle import (
    TRANSITIONS,
    AbortAt,
    Action,
    GrantLoad,
    Planned,
    Record,
    Retire,
    StartWorker,
    SubmitTo,
    WorkerState,
)
from mgpu_magic.messages import (
    Event,
    Exited,
    Fatal,
    Hello,
    Hung,
    Loading,
    Outcomes,
    Ready,
    Request,
    Started,
    Stats,
    Stopped,
)
from mgpu_magic.outcomes import Completion, Failure, RemoteError
from mgpu_magic.roster import fair_share, longest_first
from mgpu_magic.scheduler import Scheduler
from mgpu_magic.spec import Sampling

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

JOB = 3
NEW, STARTING, LOADING, READY, DRAINING, STOPPED, LOST, FAILED = WorkerState
IMPORTED = Loading("imported")
CRASH = Exited(None, "SIGSEGV")
EVENTS: dict[type, Event] = {
    Started: Started(1),
    Hello: Hello(1, 1),
    Loading: Loading("loading"),
    Ready: Ready(2, 1.0),
    Outcomes: Outcomes(JOB, ()),
    Stats: Stats(0, 0, 0, 0),
    Fatal: Fatal(RemoteError("ValueError", "no such model")),
    Stopped: Stopped(),
    Exited: CRASH,
    Hung: Hung("it hung"),
}


def scheduler(
    *workers: Planned,
    stagger: float | None = None,
    parallel_loads: int = 8,
    first_alone: bool = True,
    remote: Collection[str] = (),
    restart_budget: int | None = None,
    **counts: int,
) -> Scheduler:
    """A job with so many requests per model; by default of model `m` on `cpu:0`."""
    return Scheduler(
        job=JOB,
        requests={model: requests(range(count)) for model, count in counts.items()},
        workers=workers or [on(0)],
        stagger=stagger,
        parallel_loads=parallel_loads,
        first_alone=first_alone,
        remote=remote,
        restart_budget=restart_budget,
    )


def on(
    worker: int,
    model: str = "m",
    device: int | None = None,
    wave: int = 0,
    state: WorkerState = NEW,
    capacity: int = 0,
    *,
    imported: bool = False,
) -> Planned:
    """A worker on the device of its number."""
    return Planned(
        worker=worker,
        model=model,
        devices=(f"cpu:{worker if device is None else device}",),
        wave=wave,
        state=state,
        capacity=capacity,
        imported=imported,
    )


def warm(worker: int, model: str = "m", device: int | None = None, capacity: int = 2) -> Planned:
    """A worker that the last job left ready."""
    return on(worker, model, device, state=READY, capacity=capacity)


def requests(indices: Iterable[int]) -> list[Request]:
    """Requests with these indices."""
    return [Request(index, f"prompt {index}", Sampling()) for index in indices]


def answers(*indices: int, job: int = JOB) -> Outcomes:
    """The worker's report that these are finished."""
    return Outcomes(job, tuple(answer(index) for index in indices))


def answer(index: int) -> Completion:
    """An answer."""
    return Completion(
        index=index,
        texts=(f"answer {index}",),
        finish_reasons=("stop",),
        prompt_tokens=1,
        output_tokens=1,
        seconds=1.0,
        device="cpu:0",
    )


def load(job: Scheduler, worker: int, capacity: int = 2) -> list[Action]:
    """Bring a started worker to ready; what follows from that."""
    assert GrantLoad(worker, 0.0) in job.handle(worker, IMPORTED)
    return job.handle(worker, Ready(capacity, 1.0))


def submitted(actions: list[Action]) -> dict[int, list[int]]:
    """Indices that are sent, by worker."""
    return {
        action.worker: [request.index for request in action.requests]
        for action in actions
        if isinstance(action, SubmitTo)
    }


def failures(actions: list[Action]) -> list[Failure]:
    """The failures among what is recorded."""
    recorded = [a.outcomes for a in actions if isinstance(a, Record)]
    return [outcome for of in recorded for outcome in of if isinstance(outcome, Failure)]


def in_state(state: WorkerState) -> Scheduler:
    """A job whose worker 0 is in this state."""
    if state is NEW:
        job = scheduler(on(1, "first", device=0), on(0, wave=1), first=1, m=1)
        job.begin()
    elif state in (DRAINING, STOPPED):
        job = scheduler(on(0), on(1, "next", device=0, wave=1), m=1, next=1)
        job.begin()
        load(job, 0)
        job.handle(0, answers(0))
        if state is STOPPED:
            job.handle(0, Stopped())
    else:
        job = scheduler(restart_budget=0, m=1)
        job.begin()
        if state is LOADING:
            job.handle(0, IMPORTED)
        elif state in (READY, LOST):
            load(job, 0)
        if state in (LOST, FAILED):
            job.handle(0, CRASH)
    assert job.state(0) is state
    return job


# --- the table -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", WorkerState)
@pytest.mark.parametrize("kind", EVENTS)
def test_each_event_does_what_the_table_says(state: WorkerState, kind: type) -> None:
    """An event leads to the state of the table, or is refused and changes nothing."""
    job = in_state(state)
    allowed = TRANSITIONS[state].get(kind)
    if allowed is None:
        with pytest.raises(ProtocolError, match=f"is {state.value}; {kind.__name__} is not"):
            job.handle(0, EVENTS[kind])
        assert job.state(0) is state
    else:
        job.handle(0, EVENTS[kind])
        assert job.state(0) is allowed


def test_the_table_knows_every_state_and_event() -> None:
    """No state and no event of the protocol is left out of the table."""
    assert set(TRANSITIONS) == set(WorkerState)
    triggers = {trigger for row in TRANSITIONS.values() for trigger in row}
    assert set(get_args(Event)) | {StartWorker, GrantLoad, Retire} >= triggers
    assert {*EVENTS, StartWorker, GrantLoad, Retire} == triggers


# --- sharing requests out --------------------------------------------------------------------


def test_one_worker_answers_everything_in_order() -> None:
    """A job begins, pulls as room appears, and is done when all is answered."""
    job = scheduler(m=3)
    assert job.begin() == [StartWorker(0)]
    assert job.handle(0, Started(1)) == job.handle(0, Hello(1, 1)) == []
    assert job.handle(0, Loading("importing")) == []
    assert job.handle(0, IMPORTED) == [GrantLoad(0, 0.0)]
    assert job.handle(0, Loading("loading")) == []
    assert submitted(job.handle(0, Ready(2, 1.0))) == {0: [0, 1]}
    assert (job.in_flight(0), job.pending("m"), job.done) == (2, 1, False)
    assert job.handle(0, Stats(2, 0, 0, 0)) == []
    actions = job.handle(0, answers(1))
    assert actions[0] == Record("m", (answer(1),))
    assert submitted(actions) == {0: [2]}
    job.handle(0, answers(0, 2))
    assert (job.in_flight(0), job.pending("m"), job.done) == (0, 0, True)


def test_the_second_worker_gets_as_full_a_batch_as_the_first() -> None:
    """Who is ready first takes its fair share, not all, and the late one finds as much."""
    job = scheduler(on(0), on(1), stagger=0.0, m=500)
    job.begin()
    assert len(submitted(load(job, 0, 320))[0]) == 250
    assert len(submitted(load(job, 1, 320))[1]) == 250


def test_what_may_be_long_goes_out_first() -> None:
    """Requests with a higher `max_tokens` come first; those alike, or without, in their order."""
    limits = [8, 120, None, 8, 120]
    requests = [
        Request(index, "x", Sampling({} if limit is None else {"max_tokens": limit}))
        for index, limit in enumerate(limits)
    ]
    assert [request.index for request in longest_first(requests)] == [2, 1, 4, 0, 3]
    assert longest_first(requests[:1] * 3) == requests[:1] * 3


def test_nothing_waits_in_front_of_an_engine_at_the_end() -> None:
    """Two devices of three slots answer twelve alike prompts in two rounds, not in three."""
    workers = [replace(warm(number, capacity=4), slots=3) for number in range(2)]
    job = scheduler(*workers, m=12)
    assert submitted(job.begin()) == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}
    assert submitted(job.handle(0, answers(0, 1, 2))) == {0: [8, 9]}
    assert submitted(job.handle(1, answers(4, 5, 6))) == {1: [10, 11]}


def test_long_answers_are_dealt_among_the_workers() -> None:
    """None gets a batch of all the longest; later ones are taken in their order."""
    requests = [Request(i, "x", Sampling({"max_tokens": 100 - i})) for i in range(12)]
    job = Scheduler(
        job=JOB,
        requests={"m": requests},
        workers=[warm(0, capacity=3), warm(1, capacity=3), on(2)],
        stagger=None,
        parallel_loads=3,
    )
    assert submitted(job.begin()) == {0: [0, 3, 6], 1: [1, 4, 7]}
    assert submitted(job.handle(0, answers(0, 3))) == {0: [2, 5]}
    assert submitted(load(job, 2, capacity=3)) == {2: [8, 9, 10]}


def refusal(*indices: int) -> Outcomes:
    """The worker's report that the engine refuses what these share with others."""
    error = RemoteError("ValueError", "max_tokens is 'x'")
    return Outcomes(JOB, tuple(Failure(index, error) for index in indices), alike=True)


def test_what_the_engine_refuses_of_all_is_tried_once() -> None:
    """The prompts that share it fail unseen; those at another worker are told there."""
    shared = Sampling({"max_tokens": "x"})
    sent = [Request(index, f"p {index}", shared) for index in range(10_000)]
    job = Scheduler(
        job=JOB, requests={"m": sent}, workers=[warm(0), warm(1)], stagger=None, parallel_loads=2
    )
    assert submitted(job.begin()) == {0: [0, 1], 1: [2, 3]}
    actions = job.handle(0, refusal(0, 1))
    assert submitted(actions) == {}
    assert [failure.index for failure in failures(actions)] == [0, 1, *range(4, 10_000)]
    assert {failure.error.message for failure in failures(actions)} == {"max_tokens is 'x'"}
    assert [failure.index for failure in failures(job.handle(1, refusal(2, 3)))] == [2, 3]
    assert job.done
    assert job.refused == {"m"}


def test_prompts_with_a_sampling_of_their_own_are_tried() -> None:
    """What is refused of one says nothing about those that have another."""
    wrong, right = Sampling({"max_tokens": "x"}), Sampling({"max_tokens": 4})
    sent = [Request(i, f"p {i}", right if i % 2 else wrong) for i in range(8)]
    job = Scheduler(
        job=JOB, requests={"m": sent}, workers=[warm(0)], stagger=None, parallel_loads=1
    )
    assert submitted(job.begin()) == {0: [0, 2]}
    actions = job.handle(0, refusal(0, 2))
    assert [failure.index for failure in failures(actions)] == [0, 2, 4, 6]
    assert submitted(actions) == {0: [1, 3]}


def test_a_limit_that_is_no_number_does_not_disturb_the_order() -> None:
    """It is the engine's to refuse; until then it counts as no limit."""
    limits: list[object] = [4, "x", 8, None]
    sent = [Request(i, "p", Sampling({"max_tokens": limit})) for i, limit in enumerate(limits)]
    assert [request.index for request in longest_first(sent)] == [1, 3, 2, 0]


def test_a_faster_worker_holds_more() -> None:
    """The share follows what workers have finished; one that joins late counts as average."""
    assert fair_share(80, 1.0, 2.0) == 40
    assert fair_share(80, 1.5, 2.0) == 60
    assert fair_share(1, 0.01, 8.0) == 1
    job = scheduler(warm(0, capacity=100), warm(1, capacity=100), on(2), m=81)
    assert {k: len(v) for k, v in submitted(job.begin()).items()} == {0: 27, 1: 27}
    for index in range(9):
        job.handle(0, answers(index))
    assert job.in_flight(0) == 45
    assert job.in_flight(1) == 27


def test_a_worker_that_joins_late_counts_as_average() -> None:
    """It finds its share of what the others have no room for."""
    job = scheduler(warm(0, capacity=27), warm(1, capacity=27), on(2), m=81)
    job.begin()
    for index in range(9):
        job.handle(0, answers(index))
    load(job, 2, capacity=100)
    assert job.in_flight(2) == math.ceil(72 * 5.5**2 / (10**2 + 1**2 + 5.5**2))


def test_outcomes_that_nobody_waits_for_are_dropped() -> None:
    """Answers of an earlier job, of another worker or given twice are counted, not recorded."""
    job = scheduler(warm(0), warm(1), m=8)
    job.begin()
    assert job.handle(0, answers(0, 1, job=JOB - 1)) == []
    assert job.handle(0, answers(2)) == []
    assert job.handle(0, answers(0, 0))[0] == Record("m", (answer(0),))
    assert job.dropped == 4


# --- loading ---------------------------------------------------------------------------------


def test_the_first_load_of_a_model_goes_alone() -> None:
    """By default the others of the model load once the first has filled the caches."""
    job = scheduler(on(0), on(1), on(2), on(3, "other"), m=9, other=9)
    assert job.begin() == [StartWorker(0), StartWorker(1), StartWorker(2), StartWorker(3)]
    assert job.handle(2, IMPORTED) == [GrantLoad(2, 0.0)]
    assert job.handle(0, IMPORTED) == job.handle(1, IMPORTED) == []
    assert job.handle(3, IMPORTED) == [GrantLoad(3, 0.0)]
    assert job.handle(2, Ready(2, 1.0))[:2] == [GrantLoad(0, 0.0), GrantLoad(1, 0.0)]


def test_no_more_workers_load_at_once_than_memory_allows() -> None:
    """A load waits for a free place, which one that ends or fails makes."""
    job = scheduler(warm(0), on(1), on(2), on(3), parallel_loads=1, m=99)
    job.begin()
    assert job.handle(1, IMPORTED) == [GrantLoad(1, 0.0)]
    assert job.handle(2, IMPORTED) == job.handle(3, IMPORTED) == []
    assert job.handle(1, Ready(2, 1.0))[0] == GrantLoad(2, 0.0)
    assert job.handle(2, CRASH)[0] == GrantLoad(3, 0.0)


def test_the_next_load_begins_when_the_weights_of_the_last_are_there() -> None:
    """What follows, warming up, needs no more of the host's memory."""
    job = scheduler(on(0), on(1), on(2, "other"), parallel_loads=1, first_alone=False, m=9, other=9)
    job.begin()
    assert job.handle(0, IMPORTED) == [GrantLoad(0, 0.0)]
    assert job.handle(1, IMPORTED) == job.handle(2, IMPORTED) == []
    assert job.handle(0, Loading("loading")) == []
    assert job.handle(0, Loading("warming up")) == [GrantLoad(1, 0.0)]
    assert job.handle(0, Ready(2, 1.0))[:1] != [GrantLoad(2, 0.0)]
    assert job.handle(1, Loading("warming up")) == [GrantLoad(2, 0.0)]


@pytest.mark.parametrize("stagger", [None, 0.0])
def test_a_model_is_downloaded_by_one_worker(stagger: float | None) -> None:
    """The others of the model load as soon as the files are there, not only once it is ready."""
    job = scheduler(on(0), on(1), first_alone=False, stagger=stagger, remote={"m"}, m=9)
    job.begin()
    assert job.handle(1, IMPORTED) == [GrantLoad(1, 0.0)]
    assert job.handle(0, IMPORTED) == []
    assert job.handle(1, Loading("downloading", 0.0)) == []
    assert job.handle(1, Loading("downloading", 0.9)) == []
    assert job.handle(1, Loading("loading")) == [GrantLoad(0, 0.0)]


def test_one_model_is_downloaded_at_a_time() -> None:
    """A second download waits for the first; what lies on this machine does not."""
    workers = on(0), on(1, "other"), on(2, "local"), on(3)
    job = scheduler(*workers, first_alone=False, remote={"m", "other"}, m=9, other=9, local=9)
    job.begin()
    assert job.handle(0, IMPORTED) == [GrantLoad(0, 0.0)]
    assert job.handle(1, IMPORTED) == job.handle(3, IMPORTED) == []
    assert job.handle(2, IMPORTED) == [GrantLoad(2, 0.0)]
    assert job.handle(0, Loading("loading")) == [GrantLoad(1, 0.0), GrantLoad(3, 0.0)]


def test_a_download_that_fails_lets_the_next_begin() -> None:
    """It is tried once, not by each worker of the model, and other models go on."""
    workers = on(0), on(1), on(2, "other")
    job = scheduler(*workers, first_alone=False, remote={"m", "other"}, m=2, other=9)
    job.begin()
    job.handle(0, IMPORTED)
    assert job.handle(1, IMPORTED) == job.handle(2, IMPORTED) == []
    actions = job.handle(0, CRASH)
    assert Retire(1) in actions
    assert GrantLoad(2, 0.0) in actions
    assert GrantLoad(1, 0.0) not in actions
    assert list(job.failed_models) == ["m"]


def test_a_model_that_is_loaded_needs_no_download() -> None:
    """Where one worker of it is warm the files are there."""
    job = scheduler(warm(0), on(1), on(2), first_alone=False, remote={"m"}, m=99)
    job.begin()
    assert job.handle(1, IMPORTED) == [GrantLoad(1, 0.0)]
    assert job.handle(2, IMPORTED) == [GrantLoad(2, 0.0)]


def test_a_fixed_stagger_spaces_the_loads() -> None:
    """With ten seconds the loads begin 0, 10 and 20 seconds after the first."""
    job = scheduler(on(0), on(1), on(2), stagger=10.0, m=9)
    job.begin()
    grants = [job.handle(worker, IMPORTED) for worker in (1, 0, 2)]
    assert grants == [[GrantLoad(1, 0.0)], [GrantLoad(0, 10.0)], [GrantLoad(2, 20.0)]]


def test_workers_of_an_interrupted_start_go_on_from_where_they_are() -> None:
    """A worker that waits for its load gets it, one that loads is waited for, none is restarted."""
    job = scheduler(on(0, state=STARTING, imported=True), on(1, state=LOADING), m=4)
    assert job.begin() == []
    assert job.handle(1, Ready(2, 1.0))[0] == GrantLoad(0, 0.0)


# --- waves -----------------------------------------------------------------------------------


def test_models_on_one_device_take_turns() -> None:
    """The next model starts when the one before is finished; the last one stays warm."""
    job = scheduler(on(0, "a"), on(1, "b", 0, wave=1), on(2, "c", 0, wave=2), a=1, b=1, c=1)
    assert job.begin() == [StartWorker(0)]
    load(job, 0)
    assert job.handle(0, answers(0)) == [Record("a", (answer(0),)), Retire(0), StartWorker(1)]
    assert job.handle(0, Stopped()) == job.handle(0, Exited(0, None)) == []
    load(job, 1)
    assert job.handle(1, answers(0)) == [Record("b", (answer(0),)), Retire(1), StartWorker(2)]
    load(job, 2)
    assert job.handle(2, answers(0)) == [Record("c", (answer(0),))]
    assert job.state(2) is READY
    assert job.done


def test_a_group_of_devices_waits_for_all_of_them() -> None:
    """A model on two devices starts when both are free."""
    pair = Planned(worker=2, model="c", devices=("cpu:0", "cpu:1"), wave=1)
    job = scheduler(warm(0, "a"), warm(1, "b"), pair, a=1, b=1, c=1)
    job.begin()
    assert job.handle(0, answers(0)) == [Record("a", (answer(0),))]
    assert job.handle(1, answers(0))[1:] == [Retire(0), Retire(1), StartWorker(2)]


def test_a_model_without_prompts_is_not_started() -> None:
    """Its device goes to the next model at once."""
    job = scheduler(on(0, "a"), on(1, "b", 0, wave=1), a=0, b=1)
    assert job.begin() == [StartWorker(1)]


def test_a_warm_model_is_used_before_it_makes_room() -> None:
    """The model that the last cell left on the device goes first, whatever its wave."""
    b = Planned(worker=1, model="b", devices=("cpu:0",), wave=1, state=READY, capacity=2)
    job = scheduler(on(0, "a"), b, a=1, b=1)
    assert submitted(job.begin()) == {1: [0]}
    assert job.handle(1, answers(0))[1:] == [Retire(1), StartWorker(0)]


def test_a_device_whose_worker_failed_does_not_wait_for_the_others() -> None:
    """The next model starts there while the first goes on elsewhere."""
    job = scheduler(warm(0, "a"), on(1, "a"), on(2, "b", 1, wave=1), a=9, b=1)
    job.begin()
    assert StartWorker(2) in job.handle(1, CRASH)


# --- failing to start ------------------------------------------------------------------------


def test_a_model_that_two_devices_cannot_load_fails_with_its_own_error() -> None:
    """Its other replicas end, its prompts fail with the cause, other models go on."""
    job = scheduler(on(0), on(1), on(3), on(2, "other"), m=2, other=1)
    job.begin()
    job.handle(0, IMPORTED)
    assert job.handle(0, EVENTS[Fatal]) == []
    assert job.handle(0, Exited(1, None, "the log")) == []
    job.handle(1, EVENTS[Fatal])
    actions = job.handle(1, Exited(1, None, "another log"))
    assert actions[0] == Retire(3)
    assert [f.index for f in failures(actions)] == [0, 1]
    assert {f.error.kind for f in failures(actions)} == {"ValueError"}
    assert "cpu:0: ValueError: no such model" in failures(actions)[0].error.message
    assert [f.attempts for f in failures(actions)] == [0, 0]
    assert job.failed_models["m"].exited.log_tail == "the log"
    assert job.failed_models["m"].error == RemoteError("ValueError", "no such model")
    assert not job.done
    load(job, 2)
    job.handle(2, answers(0))
    assert job.done


def test_one_device_that_cannot_load_is_not_the_models_fault() -> None:
    """Its memory may be taken, say: the others load all the same."""
    job = scheduler(on(0), on(1), m=2)
    job.begin()
    job.handle(1, IMPORTED)
    job.handle(0, IMPORTED)
    job.handle(1, Fatal(RemoteError("OutOfMemoryError", "2 GiB free")))
    assert job.handle(1, Exited(1, None)) == [GrantLoad(0, 0.0)]
    job.handle(0, Ready(2, 1.0))
    job.handle(0, answers(0, 1))
    assert job.done
    assert job.failed[1].reason == "cpu:1: OutOfMemoryError: 2 GiB free"


def test_two_devices_that_fail_differently_are_told_by_the_first() -> None:
    """When nobody is left the first cause is shown."""
    job = scheduler(on(0), on(1), m=1)
    job.begin()
    job.handle(0, Exited(None, "SIGKILL"))
    job.handle(1, EVENTS[Fatal])
    (failure,) = failures(job.handle(1, Exited(1, None)))
    assert failure.error.kind == "WorkerStartError"
    assert job.failed_models["m"].exited == Exited(None, "SIGKILL")
    assert job.done


def test_a_worker_that_dies_silently_while_loading_says_how() -> None:
    """Without an error of its own the signal is the cause."""
    job = scheduler(m=1)
    job.begin()
    (failure,) = failures(job.handle(0, Exited(None, "SIGKILL")))
    assert failure.error.kind == "WorkerStartError"
    assert "cpu:0: killed by SIGKILL (often: out of host memory)" in failure.error.message
    assert job.done


def test_the_job_goes_on_without_a_replica_that_cannot_load() -> None:
    """Once one replica is ready the failure of another costs no prompt, and its share is free."""
    job = scheduler(on(0), on(1), m=10)
    job.begin()
    assert len(submitted(load(job, 0, capacity=10))[0]) == 5
    assert submitted(job.handle(1, CRASH)) == {0: [5, 6, 7, 8, 9]}
    assert job.failed[1].reason == "cpu:1: killed by SIGSEGV"
    assert job.failed_models == {}


# --- lost workers ----------------------------------------------------------------------------


def test_requests_of_a_lost_worker_are_tried_again() -> None:
    """It is started again and a crash that does not repeat costs nothing."""
    job = scheduler(warm(0, capacity=4), m=4)
    assert submitted(job.begin()) == {0: [0, 1, 2, 3]}
    job.handle(0, answers(2))
    assert job.handle(0, CRASH) == [StartWorker(0)]
    assert (job.state(0), job.restarts, job.pending("m")) == (STARTING, 1, 3)
    assert submitted(load(job, 0, capacity=4)) == {0: [0, 1, 3]}
    job.handle(0, answers(0, 1, 3))
    assert job.done
    assert job.failed == {}


def test_a_lone_worker_finishes_the_healthy_prompts_first() -> None:
    """Before it risks its restarts on the suspects."""
    job = scheduler(warm(0, capacity=2), m=5)
    job.begin()
    job.handle(0, CRASH)
    assert submitted(load(job, 0)) == {0: [2, 3]}
    assert submitted(job.handle(0, answers(2))) == {0: [4]}
    assert submitted(job.handle(0, answers(3))) == {}
    assert submitted(job.handle(0, answers(4))) == {0: [0, 1]}


def test_a_poison_prompt_is_found_by_halving() -> None:
    """Of five suspects one kills: it alone fails, after the deaths that it took to find it."""
    job = scheduler(warm(0, capacity=9), m=5)
    sent = submitted(job.begin())
    found: list[Failure] = []
    runs = []
    while not job.done:
        (indices,) = sent.values()
        runs.append(indices)
        if 2 in indices:
            job.handle(0, Stats(1, 0, 0, 0))
            actions = job.handle(0, Exited(139, None))
            if not job.done:
                actions += load(job, 0, capacity=9)
        else:
            actions = job.handle(0, answers(*indices))
        found += failures(actions)
        sent = submitted(actions)
    assert runs == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1], [2, 3, 4], [2], [3, 4]]
    assert [f.index for f in found] == [2]
    assert found[0].attempts == 4
    assert found[0].error.kind == "WorkerLost"
    assert "cpu:0: exit code 139" in found[0].error.message


def test_a_prompt_is_not_blamed_for_what_killed_all_workers() -> None:
    """One that was given to a worker that was dead already is tried once more."""
    job = scheduler(warm(0), warm(1), m=1)
    job.begin()
    assert submitted(job.handle(0, CRASH)) == {1: [0]}
    assert failures(job.handle(1, CRASH)) == []
    assert submitted(load(job, 1)) == {1: [0]}
    (failure,) = failures(job.handle(1, CRASH))
    assert failure.error.kind == "WorkerLost"


def test_suspects_are_tried_at_one_worker_while_the_others_go_on() -> None:
    """Two lost workers: one takes healthy prompts, the other one group of suspects alone."""
    job = scheduler(warm(0), warm(1), warm(2), m=30)
    job.begin()
    job.handle(0, CRASH)
    job.handle(1, CRASH)
    assert submitted(load(job, 0)) == {0: [0, 1]}
    assert submitted(load(job, 1)) == {1: [6, 7]}
    assert submitted(job.handle(0, answers(0))) == {}
    assert submitted(job.handle(0, answers(1))) == {0: [2, 3]}


def test_a_group_of_suspects_respects_a_smaller_capacity() -> None:
    """Another replica may hold less than the one that died."""
    job = scheduler(warm(0, capacity=4), warm(1, capacity=1), m=8)
    assert submitted(job.begin()) == {0: [0, 1, 2, 3], 1: [4]}
    job.handle(0, CRASH)
    job.handle(1, CRASH)
    assert submitted(load(job, 1, capacity=1)) == {1: [5]}
    for index in (5, 6):
        job.handle(1, answers(index))
    assert submitted(job.handle(1, answers(7))) == {1: [0]}
    assert job.pending("m") == 4


def test_restarts_end_when_nothing_gets_finished_between_them() -> None:
    """A worker that dies again and again is given up; the prompts left say why."""
    job = scheduler(warm(0, capacity=8), restart_budget=2, m=8)
    job.begin()
    job.handle(0, CRASH)
    load(job, 0, capacity=8)
    job.handle(0, CRASH)
    load(job, 0, capacity=8)
    job.handle(0, answers(0))  # something is finished: the count begins again
    for _ in range(2):
        job.handle(0, CRASH)
        load(job, 0, capacity=8)
    actions = job.handle(0, CRASH)
    assert job.state(0) is LOST
    assert job.restarts == 4
    assert {f.error.kind for f in failures(actions)} == {"WorkerLost"}
    reason = "no worker is left for 'm'; cpu:0: killed by SIGSEGV"
    assert failures(actions)[-1].error.message == reason
    assert job.failed[0].exited == CRASH
    assert job.failed_models == {}
    assert job.done


def test_a_worker_that_dies_when_its_model_is_finished_is_left_alone() -> None:
    """Nobody needs it: no restart, and no failure to report."""
    job = scheduler(warm(0, "a"), warm(1, "b"), a=1, b=1)
    job.begin()
    job.handle(0, answers(0))
    assert job.handle(0, CRASH) == []
    assert (job.state(0), job.restarts, job.failed) == (LOST, 0, {})


def test_a_worker_that_hangs_is_replaced_and_the_cause_told() -> None:
    """It is started again like any other that was lost; what was in flight is tried again."""
    job = scheduler(warm(0), m=2)
    job.begin()
    assert job.handle(0, Hung("no step for 9 s")) == []
    assert job.handle(0, CRASH) == [StartWorker(0)]
    load(job, 0)
    job.handle(0, answers(0))
    job.handle(0, Stats(1, 0, 0, 0))
    job.handle(0, Hung("no step for 9 s"))
    (failure,) = failures(job.handle(0, CRASH))
    assert failure.error.message.endswith("cpu:0: WorkerHung: no step for 9 s")
    assert job.done


def test_a_load_that_hangs_is_tried_once_more() -> None:
    """A second time it has failed for good, and the job says why."""
    job = scheduler(on(0), m=1)
    job.begin()
    job.handle(0, Hung("no news for 9 s"))
    assert job.handle(0, CRASH) == [StartWorker(0)]
    job.handle(0, Hung("no news for 9 s"))
    (failure,) = failures(job.handle(0, CRASH))
    assert failure.error == RemoteError(
        "WorkerHung", "'m' could not be loaded on cpu:0: WorkerHung: no news for 9 s"
    )
    assert job.state(0) is FAILED


def test_what_cannot_be_killed_is_not_replaced() -> None:
    """A thread that hangs keeps its device; the others answer its prompts."""
    job = scheduler(warm(0), warm(1), m=4)
    job.begin()
    job.handle(0, Hung("no step for 9 s", killable=False))
    assert StartWorker(0) not in job.handle(0, Exited(None, None))
    job.handle(1, answers(2, 3))
    job.handle(1, answers(0, 1))
    assert job.done
    assert job.failed[0].reason == "cpu:0: WorkerHung: no step for 9 s"


# --- the user's interrupt --------------------------------------------------------------------


def test_an_interrupt_gives_up_what_is_not_finished() -> None:
    """In-flight requests are aborted, all left become failures, finished answers stay."""
    job = scheduler(warm(0), on(1, "next", 0, wave=1), m=4, next=1)
    job.begin()
    job.handle(0, answers(0))
    actions = job.cancel()
    assert actions[0] == AbortAt(0, (1, 2))
    assert Counter(type(action) for action in actions) == {AbortAt: 1, Record: 2}
    left = failures(actions)
    assert {(f.index, f.attempts) for f in left} == {(1, 1), (2, 1), (3, 0), (0, 0)}
    assert {f.error.kind for f in left} == {"Interrupted"}
    assert job.done
    assert job.state(0) is READY
    assert job.cancel() == []


def test_nothing_is_sent_after_an_interrupt() -> None:
    """Late answers are dropped, dead workers stay dead, the next wave does not start."""
    job = scheduler(warm(0), warm(1), on(2, "next", 0, wave=1), m=8, next=1)
    job.begin()
    job.cancel()
    assert job.handle(0, answers(0, 1)) == []
    assert job.dropped == 2
    assert job.handle(0, CRASH) == []
    assert (job.state(0), job.state(2)) == (LOST, NEW)


def finish_one(job: Scheduler, held: dict[int, list[int]], worker: int) -> None:
    """The worker answers the oldest request that it holds."""
    done = held[worker].pop(0)
    for other, more in submitted(job.handle(worker, answers(done))).items():
        held[other] += more


def test_the_next_job_knows_how_fast_the_workers_were() -> None:
    """A worker at a third of the speed is given a tenth at once; a short job tells nothing."""
    job = scheduler(warm(0, capacity=4), warm(1, capacity=4), m=100)
    held = submitted(job.begin())
    assert job.paces() == {}
    for worker in (0, 0, 0, 1) * 20:
        finish_one(job, held, worker)
    fast, slow = job.paces().values()
    assert fast / slow > 2
    again = scheduler(
        replace(warm(0, capacity=100), pace=1.5), replace(warm(1, capacity=100), pace=0.5), m=100
    )
    assert {k: len(v) for k, v in submitted(again.begin()).items()} == {0: 90, 1: 10}


def test_a_short_job_tells_no_pace() -> None:
    """In less than four rounds of full batches, who ends a round first looks faster than it is."""
    job = scheduler(warm(0, capacity=4), warm(1, capacity=4), m=100)
    held = submitted(job.begin())
    for _ in range(29):  # and one for each worker at the beginning
        finish_one(job, held, 0)
    assert job.paces() == {}
    finish_one(job, held, 0)
    assert len(job.paces()) == 2


LONG = Sampling({"max_tokens": 64})


def cards(*gigabytes: float | None, capacity: int = 100) -> list[Planned]:
    """Warm workers on devices of that memory bandwidth per second."""
    return [
        replace(warm(number, capacity=capacity), memory_bandwidth=size and size * 1e9)
        for number, size in enumerate(gigabytes)
    ]


def writing(
    workers: Collection[Planned], sampling: Sampling = LONG, *, first_alone: bool = True
) -> Scheduler:
    """A job of 100 requests with that sampling."""
    return Scheduler(
        job=JOB,
        requests={"m": [Request(index, "x", sampling) for index in range(100)]},
        workers=[*workers],
        stagger=None,
        parallel_loads=8,
        first_alone=first_alone,
    )


def shares(actions: list[Action]) -> list[int]:
    """How many requests each worker is sent."""
    return [len(indices) for indices in submitted(actions).values()]


@pytest.mark.parametrize(
    ("gigabytes", "expected"),
    [
        ((900, 300), [90, 10]),  # of a third of the speed: a tenth
        ((900, None), [50, 50]),
        ((None, None), [50, 50]),
        ((320, 300), [50, 50]),  # as unlike as two of one kind
    ],
)
def test_a_first_job_shares_by_memory_bandwidth(
    gigabytes: tuple[float | None, ...], expected: list[int]
) -> None:
    """A fast card beside a slow one begins with most, where the driver tells what both are."""
    assert shares(writing(cards(*gigabytes)).begin()) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 64}, [90, 10]),
        ({"max_tokens": None}, [90, 10]),
        ({"max_tokens": 63}, [50, 50]),
        ({"temperature": 0}, [50, 50]),  # and 16 tokens, by the engines' default
        ({}, [50, 50]),  # as of classifiers
    ],
)
def test_memory_bandwidth_tells_the_speed_of_writing(
    fields: dict[str, object], expected: list[int]
) -> None:
    """Where prompts are read rather than answers written, it says nothing."""
    assert shares(writing(cards(900, 300), Sampling(fields)).begin()) == expected


def loading(*gigabytes: float, first_alone: bool) -> Scheduler:
    """The same where both are to load; the first is about to."""
    new = [replace(card, state=NEW, capacity=0) for card in cards(*gigabytes)]
    job = writing(new, first_alone=first_alone)
    job.begin()
    return job


def test_unlike_workers_that_load_one_after_the_other() -> None:
    """A fast one first takes most; a slow one does not wait idle for a whole load of a fast one."""
    job = loading(900, 300, first_alone=True)
    assert shares(load(job, 0, 100)) == [90]
    assert shares(load(job, 1, 100)) == [10]
    job = loading(300, 900, first_alone=True)
    assert shares(load(job, 0, 100)) == [50]
    assert shares(load(job, 1, 100)) == [50]


def test_unlike_workers_that_load_at_the_same_time() -> None:
    """The slow one leaves to the fast one, which is soon there, what is its own."""
    job = loading(300, 900, first_alone=False)
    assert GrantLoad(1, 0.0) in job.handle(1, IMPORTED)
    assert shares(load(job, 0, 100)) == [10]
    assert shares(job.handle(1, Ready(100, 1.0))) == [90]


@pytest.mark.parametrize(
    "workers",
    [
        cards(900, 300, capacity=40),
        [
            replace(warm(0, capacity=40), pace=1.5),
            replace(warm(1, capacity=40), pace=0.5),
        ],
    ],
)
def test_what_is_known_counts_as_much_as_a_round(workers: list[Planned]) -> None:
    """A slow device that happens to end some answers early is not given the rest."""
    job = writing(workers)
    held = submitted(job.begin())
    assert [len(held[0]), len(held[1])] == [40, 10]
    # Of 96 that are left: (20 + 4)^2 / ((20 + 4)^2 + 60^2), of which it holds 6.
    assert len(submitted(job.handle(1, answers(*held[1][:4])))[1]) == 8


def test_what_a_job_has_shown_counts_more_than_memory_bandwidth() -> None:
    """A device that is held up by something else gets what it can do."""
    known = [replace(card, pace=1.0) for card in cards(900, 300)]
    assert shares(writing(known).begin()) == [50, 50]
    job = writing(cards(900, 300, capacity=4))
    held = submitted(job.begin())
    for worker in (0, 1, 1, 1) * 10:
        finish_one(job, held, worker)
    assert job.paces()[1] > job.paces()[0]


def test_each_model_has_devices_of_its_own_to_compare() -> None:
    """What is not known of another model's device does not matter."""
    job = Scheduler(
        job=JOB,
        requests={
            model: [Request(index, "x", LONG) for index in range(100)] for model in ("m", "other")
        },
        workers=[*cards(900, 300), warm(2, "other", capacity=100)],
        stagger=None,
        parallel_loads=8,
    )
    assert shares(job.begin()) == [90, 10, 100]


def test_deaths_say_nothing_about_a_pace() -> None:
    """A worker that poison has killed is not slow; the next job begins with nothing known."""
    job = scheduler(warm(0, capacity=4), warm(1, capacity=4), m=100)
    held = submitted(job.begin())
    job.handle(0, CRASH)
    held[0] = submitted(load(job, 0, 4))[0]
    for worker in (0, 1, 1, 1, 1) * 10:
        if held[worker]:
            finish_one(job, held, worker)
    assert (job.state(0), job.state(1)) == (READY, READY)
    assert not job.done
    assert job.paces() == {}


def test_a_job_on_one_device_says_nothing_about_another() -> None:
    """A device alone has no pace to compare, and one of unknown pace counts as the others' mean."""
    alone = scheduler(warm(0, capacity=4), m=40)
    held = submitted(alone.begin())
    while held[0]:
        finish_one(alone, held, 0)
    assert alone.done
    assert alone.paces() == {}
    both = scheduler(replace(warm(0, capacity=9), pace=1.0), warm(1, capacity=9), m=10)
    assert shares(both.begin()) == [5, 5]
    workers = [warm(number, capacity=100) for number in range(3)]
    workers[1:] = [replace(workers[1], pace=1.5), replace(workers[2], pace=0.5)]
    assert shares(scheduler(*workers, m=100).begin()) == [29, 65, 6]  # 1 to 9/4 to 1/4
