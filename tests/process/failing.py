"""Machines whose GPUs fail by chance, from a seed, and jobs that run on them meanwhile.

A script of its own calls `trials`, since the loader looks for NVML when a process starts. Each GPU
has a value other than 0 for every sensor, so whatever is shown is that value, or unknown.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fake_nvml
from fake_nvml import GPU_IS_LOST, NOT_SUPPORTED, VERSION_MISMATCH, FakeGpu

import mgpu_magic
from mgpu_magic import devices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mgpu_magic.snapshot import Snapshot

HANG = 30_000  # milliseconds: longer than any job here takes
DRIVER_SECONDS = 0.4  # of patience at the start, to be quick
SOON_SECONDS = 15.0  # a job, on a machine that is busy with other things
# What is asked to find a GPU.
KNOWN = {"name", "uuid", "capability", "bus", "memory_clock", "memory", "mig"}
SENSORS = {
    "memory": ("used_bytes", "total_bytes"),
    "utilisation": ("utilisation",),
    "temperature": ("temperature",),
    "power": ("power_watts",),
    "power_limit": ("power_limit_watts",),
}
TRUTH = {
    "used_bytes": 3 * fake_nvml.GIB,
    "total_bytes": 15 * fake_nvml.GIB,
    "utilisation": 0.4,
    "temperature": 61,
    "power_watts": 30.0,
    "power_limit_watts": 70.0,
}
PROMPTS = [f"p {i}" for i in range(30)]


@dataclass(frozen=True)
class Machine:
    """What NVML answers for a while."""

    gpus: tuple[FakeGpu, ...]
    init_error: int = 0
    init_delay: int = 0

    def begin(self) -> None:
        """Answer so from now on."""
        path = Path(os.environ["FAKE_NVML_CONFIG"])
        fake_nvml.write_config(path, self.gpus, self.init_error, self.init_delay)

    @property
    def found(self) -> list[str]:
        """The devices of a job that begins now; empty: those of the CPU."""
        hangs = any(gpu.delays.keys() & {*KNOWN, "handle"} for gpu in self.gpus)
        if self.init_error or self.init_delay or hangs:
            return []
        lost = [
            {name for name, code in gpu.errors.items() if code == GPU_IS_LOST} for gpu in self.gpus
        ]
        return [f"cuda:{i}" for i, names in enumerate(lost) if not names & {*KNOWN, "handle"}]


def gpu(letter: str, chance: random.Random) -> FakeGpu:
    """A GPU with some trouble, or none."""
    errors, delays = {}, {}
    trouble = chance.choice(["none", "none", "fields", "fields", "lost", "hang"])
    fields = [*SENSORS, *sorted(KNOWN - SENSORS.keys())]
    if trouble == "fields":
        errors = {
            name: chance.choice([NOT_SUPPORTED, 999, fake_nvml.NO_PERMISSION])
            for name in chance.sample(fields, chance.randint(1, 5))
        }
    elif trouble == "lost":
        errors = {chance.choice(["handle", *fields]): GPU_IS_LOST}
    elif trouble == "hang":
        delays = {chance.choice(fields): HANG}
    return FakeGpu(
        uuid=f"GPU-{letter * 4}",
        used_bytes=3 * fake_nvml.GIB,
        utilisation=40,
        temperature=61,
        power_milliwatts=30_000,
        errors=errors,
        delays=delays,
    )


def healthy(delays: dict[str, int] | None = None, **of_driver: int) -> Machine:
    """Two GPUs without trouble, but for what is said."""
    return Machine(
        tuple(
            FakeGpu(uuid=f"GPU-{letter * 4}", used_bytes=3 * fake_nvml.GIB, delays=delays or {})
            for letter in "ab"
        ),
        **of_driver,
    )


def machine(chance: random.Random) -> Machine:
    """Two or three GPUs, and a driver that now and then is not well itself."""
    gpus = tuple(gpu(letter, chance) for letter in "abc"[: chance.randint(2, 3)])
    match chance.randrange(8):
        case 0:
            return Machine(gpus, init_error=chance.choice([VERSION_MISMATCH, 9, 999]))
        case 1:
            return Machine(gpus, init_delay=HANG)
    return Machine(gpus)


class Witness:
    """Keeps what the panel would show, and changes the machine in the middle."""

    def __init__(self, then: Machine) -> None:
        self.shown: list[dict[str, dict[str, Any]]] = []
        self.changed_at: int | None = None
        self._then = then

    def update(self, snapshot: Snapshot) -> None:
        self.shown.append({card.label: asdict(card.reading) for card in snapshot.devices})
        if self.changed_at is None and snapshot.job.done:
            self._then.begin()
            self.changed_at = len(self.shown)

    finish = update


def trial(seed: int) -> Iterator[str]:
    """Run a job while the machine fails; yields what is wrong."""
    chance = random.Random(seed)
    first, then = machine(chance), machine(chance)
    first.begin()
    witness = Witness(then)
    began = time.monotonic()
    with mgpu_magic.Session() as session:
        results = session.generate(
            "m", PROMPTS, engine="echo", engine_args={"delay": 0.01}, observer=witness
        )
    seconds = time.monotonic() - began
    assert isinstance(results, mgpu_magic.ResultSet)
    if results.texts != PROMPTS:
        yield f"answers are missing: {results.failures}"
    if seconds > SOON_SECONDS:
        yield f"took {seconds:.1f} s"
    if witness.changed_at is None:
        yield "the machine never changed"
    labels = [*witness.shown[0]]
    if (labels if labels[0].startswith("cuda") else []) != first.found:
        yield f"found {labels}, expected {first.found}"
    for shown in witness.shown:
        yield from untrue(shown, first.gpus, then.gpus)


def untrue(
    shown: dict[str, dict[str, Any]], first: Sequence[FakeGpu], then: Sequence[FakeGpu]
) -> Iterator[str]:
    """What is shown of the GPUs and is neither their value nor unknown."""
    for label, reading in shown.items():
        if not label.startswith("cuda"):
            continue
        place = int(label[5:])
        for name, truth in TRUTH.items():
            if reading[name] not in (None, truth):
                yield f"{label} has {name} {reading[name]}, not {truth}"
            if reading["lost"] and reading[name] is not None:
                yield f"{label} is lost and has {name} {reading[name]}"
        for function, names in SENSORS.items():
            never = function in first[place].errors and (
                place >= len(then) or function in then[place].errors
            )
            for name in names:
                if never and reading[name] is not None:
                    yield f"{label} has {name} {reading[name]}, which nothing told"


def trials(seeds: Sequence[int]) -> str:
    """What is wrong, by seed, as JSON."""
    devices.DRIVER_SECONDS = devices.LONE_DRIVER_SECONDS = DRIVER_SECONDS
    return json.dumps({seed: wrong for seed in seeds if (wrong := [*trial(seed)])})
