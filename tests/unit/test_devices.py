"""GPUs: which exist, which a selection names, and what their sensors say."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from fake_nvml import DRIVER_NOT_LOADED, GIB, GPU_IS_LOST, NOT_SUPPORTED, VERSION_MISMATCH, FakeGpu
from nvml_kernel import Kernel, running

from mgpu_magic import host
from mgpu_magic.devices import Discovery
from mgpu_magic.errors import SpecError
from mgpu_magic.snapshot import Reading
from mgpu_magic.spec import Device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024**2

T4A = FakeGpu(uuid="GPU-aaaa-1")
T4B = FakeGpu(uuid="GPU-bbbb-2")
T4C = FakeGpu(uuid="GPU-cccc-3")
T4D = FakeGpu(uuid="GPU-cccd-4")
L4 = FakeGpu(uuid="GPU-llll-5", name="NVIDIA L4", capability=(8, 9), total_bytes=24 * GIB)
SLICE = FakeGpu(uuid="MIG-cccc", name="NVIDIA A100 MIG 1g.5gb", total_bytes=5 * GIB)
SLICE2 = FakeGpu(uuid="MIG-dddd", name="NVIDIA A100 MIG 1g.5gb", total_bytes=5 * GIB)
A100 = FakeGpu(uuid="GPU-a100-6", name="NVIDIA A100", slices=(SLICE, SLICE2))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One process for all tests: the library reads its configuration anew at every call."""
    directory = tmp_path_factory.mktemp("nvml")
    fake_nvml.build(directory)
    with running(directory) as started:
        yield started


def masks(found: Discovery) -> list[str]:
    """The entries for `CUDA_VISIBLE_DEVICES` of the devices found."""
    return [device.mask for device in found.devices]


def kinds(found: Discovery) -> set[str]:
    """What kinds of devices were found."""
    return {device.kind for device in found.devices}


# --- GPUs and the mask -----------------------------------------------------------------------


def test_all_gpus_are_found_with_what_placement_needs(kernel: Kernel) -> None:
    """Without a mask every GPU is a device, described by what its driver says of it."""
    kernel.machine(T4A, L4)
    assert kernel.discover() == Discovery(
        (
            Device(
                kind="cuda",
                index=0,
                name="Tesla T4",
                mask="0",
                uuid="GPU-aaaa-1",
                total_bytes=15 * GIB,
                capability=(7, 5),
            ),
            Device(
                kind="cuda",
                index=1,
                name="NVIDIA L4",
                mask="1",
                uuid="GPU-llll-5",
                total_bytes=24 * GIB,
                capability=(8, 9),
            ),
        )
    )


def test_a_masked_kernel_counts_its_own_gpus_once(kernel: Kernel) -> None:
    """With `2,3` visible, devices 0 and 1 are cards 2 and 3: started there, and read there."""
    kernel.machine(T4A, T4B, FakeGpu(uuid="GPU-2", used_bytes=2), FakeGpu(uuid="GPU-3"))
    found = kernel.discover(CUDA_VISIBLE_DEVICES="2,3")
    assert [device.label for device in found.devices] == ["cuda:0", "cuda:1"]
    assert masks(found) == ["2", "3"]
    assert masks(kernel.discover("1", CUDA_VISIBLE_DEVICES="2,3")) == ["3"]
    kernel.open_monitor(found)
    used = {label: reading.used_bytes for label, reading in kernel.read().items()}
    assert used == {"cuda:0": 2, "cuda:1": 0}


@pytest.mark.parametrize(
    ("mask", "entries", "uuids"),
    [
        ("1", ["1"], ["GPU-bbbb-2"]),
        ("01", ["01"], ["GPU-bbbb-2"]),
        ("2,0", ["2", "0"], ["GPU-cccc-3", "GPU-aaaa-1"]),
        (" 0, 1 ", ["0", "1"], ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("0,-1,1", ["0"], ["GPU-aaaa-1"]),
        ("0,,1", ["0"], ["GPU-aaaa-1"]),
        ("GPU-bbbb-2,GPU-aaaa-1", ["GPU-bbbb-2", "GPU-aaaa-1"], ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("GPU-bb,2", ["GPU-bb", "2"], ["GPU-bbbb-2", "GPU-cccc-3"]),
        ("MIG-dddd", ["MIG-dddd"], ["MIG-dddd"]),
        ("MIG-cccc,MIG-dddd", ["MIG-cccc", "MIG-dddd"], ["MIG-cccc", "MIG-dddd"]),
    ],
)
def test_each_way_to_write_a_mask_is_honoured(
    kernel: Kernel, mask: str, entries: list[str], uuids: list[str]
) -> None:
    """A worker gets the very entry that you wrote, and the panel the card that it stands for."""
    kernel.machine(T4A, T4B, T4C, T4D, A100)
    found = kernel.discover(CUDA_VISIBLE_DEVICES=mask)
    assert masks(found) == entries
    assert [device.uuid for device in found.devices] == uuids
    assert found.notes == ()


@pytest.mark.parametrize(
    ("mask", "entries", "entry"),
    [("0,9,1", ["0"], "9"), ("1,GPU-ccc,0", ["1"], "GPU-ccc"), ("0,x", ["0"], "x")],
)
def test_a_mask_ends_where_cuda_stops_reading_it(
    kernel: Kernel, mask: str, entries: list[str], entry: str
) -> None:
    """An entry that names no card, or several, hides what follows, and you are told which."""
    kernel.machine(T4A, T4B, T4C, T4D)
    found = kernel.discover(CUDA_VISIBLE_DEVICES=mask)
    assert masks(found) == entries
    assert found.notes == (
        f"CUDA_VISIBLE_DEVICES is {mask!r}: {entry!r} names no GPU here, so CUDA ignores all from "
        "it on.",
    )


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ("", "is ''"),
        ("-1", "is '-1'"),
        ("[0, 1]", "is '[0, 1]': '[0' names no GPU here, so CUDA ignores all from it on"),
        ("²", "is '²': '²' names no GPU here, so CUDA ignores all from it on"),
        ("0,0", "is '0,0': CUDA shows no GPU where one is named twice"),
        ("0,GPU-a", "is '0,GPU-a': CUDA shows no GPU where one is named twice"),
    ],
)
def test_a_mask_that_hides_every_gpu_means_the_cpu(kernel: Kernel, mask: str, reason: str) -> None:
    """A mask is never widened: you are on the CPU and told why, or refused if you named a GPU."""
    kernel.machine(T4A, T4B)
    found = kernel.discover(CUDA_VISIBLE_DEVICES=mask)
    assert kinds(found) == {"cpu"}
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"No NVIDIA GPU found (CUDA_VISIBLE_DEVICES {reason}): ")
    with pytest.raises(SpecError) as error:
        kernel.discover("0", CUDA_VISIBLE_DEVICES=mask)
    assert str(error.value) == (
        f"asked for device 0, but no NVIDIA GPU was found (CUDA_VISIBLE_DEVICES {reason}); "
        "pass cpu:2 to run on two CPU devices"
    )


def test_a_card_in_slices_is_used_by_its_slices(kernel: Kernel) -> None:
    """A MIG card is as many devices as it has slices, each with its own memory."""
    used = FakeGpu(uuid="MIG-eeee", total_bytes=5 * GIB, used_bytes=GIB)
    card = FakeGpu(uuid="GPU-a100-6", capability=(8, 0), slices=(SLICE, used))
    kernel.machine(T4A, card)
    found = kernel.discover()
    assert masks(found) == ["0", "MIG-cccc", "MIG-eeee"]
    assert found.devices[1].total_bytes == 5 * GIB
    kernel.open_monitor(found)
    assert kernel.read()["cuda:2"].used_bytes == GIB


def test_a_slice_that_hides_its_capability_has_that_of_its_card(kernel: Kernel) -> None:
    """What a driver says about a MIG card holds for its slices too."""
    quiet = FakeGpu(uuid="MIG-cccc", errors={"capability": NOT_SUPPORTED})
    kernel.machine(FakeGpu(uuid="GPU-a100-6", capability=(8, 0), slices=(quiet,)))
    assert [device.capability for device in kernel.discover().devices] == [(8, 0)]


@pytest.mark.parametrize(
    ("bits", "megahertz", "published"),
    [  # as their makers publish it, in GB/s, beside what their drivers say
        (256, 5001, 320),  # Tesla T4
        (192, 6251, 300),  # L4
        (384, 9751, 936),  # GeForce RTX 3090
        (4096, 877, 900),  # V100
        (5120, 1215, 1555),  # A100 40 GB
        (5120, 2619, 3350),  # H100 SXM
    ],
)
def test_memory_bandwidth(kernel: Kernel, bits: int, megahertz: int, published: int) -> None:
    """Known from the width of the bus and the clock, without running anything."""
    known = FakeGpu(uuid="GPU-aaaa", memory_bus_bits=bits, memory_clock_megahertz=megahertz)
    kernel.machine(known)
    (device,) = kernel.discover().devices
    assert device.memory_bandwidth == pytest.approx(published * 1e9, rel=0.005)


@pytest.mark.parametrize(
    "gpu",
    [
        FakeGpu(uuid="GPU-aaaa", errors={"bus": NOT_SUPPORTED}),
        FakeGpu(uuid="GPU-aaaa", errors={"memory_clock": NOT_SUPPORTED}),
        FakeGpu(uuid="GPU-aaaa", memory_bus_bits=0),
        FakeGpu(uuid="GPU-aaaa", memory_clock_megahertz=0),
        FakeGpu(uuid="GPU-a100", slices=(SLICE,)),
    ],
)
def test_memory_bandwidth_that_is_not_known(kernel: Kernel, gpu: FakeGpu) -> None:
    """Of a card whose driver does not say it, and of a slice, which has but a part of it."""
    kernel.machine(gpu)
    (device,) = kernel.discover().devices
    assert device.memory_bandwidth is None


def test_another_device_order_is_pointed_out_where_it_matters(kernel: Kernel) -> None:
    """`FASTEST_FIRST` on unequal cards warns that the figures may be another card's."""
    fastest = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    kernel.machine(T4A, L4)
    assert kernel.discover().notes == ()
    assert kernel.discover(CUDA_DEVICE_ORDER="PCI_BUS_ID").notes == ()
    assert kernel.discover(CUDA_VISIBLE_DEVICES="GPU-aaaa-1", **fastest).notes == ()
    (note,) = kernel.discover(CUDA_VISIBLE_DEVICES="0", **fastest).notes
    assert note.startswith("CUDA_DEVICE_ORDER=FASTEST_FIRST and the GPUs differ: ")
    kernel.machine(T4A, T4B)
    assert kernel.discover(**fastest).notes == ()


# --- selections ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "labels"),
    [
        ("all", ["cuda:0", "cuda:1", "cuda:2"]),
        ("2,0", ["cuda:2", "cuda:0"]),
        (" 1 ", ["cuda:1"]),
        ("cuda:0, cuda:1", ["cuda:0", "cuda:1"]),
    ],
)
def test_a_selection_keeps_your_order(kernel: Kernel, selection: str, labels: list[str]) -> None:
    """You get the devices that you name, by position or label, in the order you name them."""
    kernel.machine(T4A, T4B, T4C)
    assert [device.label for device in kernel.discover(selection).devices] == labels


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("2", "asked for device 2, 2 devices are visible (0, 1)"),
        ("1,-1", "asked for device -1, 2 devices are visible (0, 1)"),
        ("0,0", "devices '0,0' names device 0 twice; a device runs one worker"),
        ("0,cuda:0", "devices '0,cuda:0' names device 0 twice; a device runs one worker"),
        *(
            (
                text,
                f"devices {text!r} is not understood; pass all, cpu, cpu:N, or positions of GPUs "
                "such as 0,1",
            )
            for text in ["", "gpu", "0,", "0 1", "cpu:two", "cpu:0,cpu:1", "cpu:-1", "all:2"]
        ),
    ],
)
def test_an_impossible_selection_is_refused(kernel: Kernel, selection: str, message: str) -> None:
    """A selection that cannot be served says what you may pass, before anything is started."""
    kernel.machine(T4A, T4B)
    with pytest.raises(SpecError) as error:
        kernel.discover(selection)
    assert str(error.value) == message


def test_two_devices_where_one_is_visible_are_refused(kernel: Kernel) -> None:
    """A notebook written for two GPUs says so on a machine with one."""
    kernel.machine(T4A, T4B)
    with pytest.raises(SpecError) as error:
        kernel.discover("0,1", CUDA_VISIBLE_DEVICES="1")
    assert str(error.value) == "asked for device 1, 1 device is visible (0)"


# --- GPUs in trouble -------------------------------------------------------------------------


def test_a_lost_gpu_hides_no_other(kernel: Kernel) -> None:
    """A GPU that fell off the bus is named and left out; the others keep their numbers."""
    lost = FakeGpu(uuid="GPU-bbbb-2", errors={"handle": GPU_IS_LOST})
    kernel.machine(T4A, lost, T4C)
    found = kernel.discover()
    assert [(device.index, device.mask) for device in found.devices] == [(0, "0"), (2, "2")]
    assert found.notes == ("GPU 1 is left out: GPU is lost.",)
    with pytest.raises(SpecError) as error:
        kernel.discover("1")
    assert str(error.value) == (
        "asked for device 1, 2 devices are visible (0, 2); GPU 1 is left out: GPU is lost"
    )
    by_uuid = kernel.discover(CUDA_VISIBLE_DEVICES="GPU-bbbb-2,GPU-cccc-3")
    assert masks(by_uuid) == ["GPU-cccc-3"]
    assert by_uuid.notes == found.notes


def test_a_machine_whose_only_gpu_is_lost_runs_on_the_cpu(kernel: Kernel) -> None:
    """You are told that the GPU is lost, not that there is none."""
    kernel.machine(FakeGpu(uuid="GPU-aaaa-1", errors={"memory": GPU_IS_LOST}))
    found = kernel.discover()
    assert kinds(found) == {"cpu"}
    assert found.notes[0].startswith("No NVIDIA GPU found (GPU 0 is left out: GPU is lost): ")


def test_a_gpu_that_is_lost_in_the_middle_is_shown_as_lost(kernel: Kernel) -> None:
    """The panel goes on with the other GPUs, and marks the one that is gone."""
    kernel.machine(T4A, T4B)
    kernel.open_monitor(kernel.discover())
    assert [reading.lost for reading in kernel.read().values()] == [False, False]
    kernel.machine(T4A, FakeGpu(uuid="GPU-bbbb-2", errors={"handle": GPU_IS_LOST}))
    readings = kernel.read()
    assert readings["cuda:0"].total_bytes == 15 * GIB
    assert readings["cuda:1"] == Reading(lost=True)


# --- GPU readings ----------------------------------------------------------------------------


def test_a_reading_carries_every_sensor(kernel: Kernel) -> None:
    """Bytes, degrees and watts are as the driver says, without what it keeps for itself."""
    kernel.machine(
        FakeGpu(
            uuid="GPU-aaaa-1",
            used_bytes=5 * GIB,
            reserved_bytes=300 * MIB,
            utilisation=87,
            temperature=61,
            power_milliwatts=68_500,
            power_limit_milliwatts=70_000,
        )
    )
    kernel.open_monitor(kernel.discover())
    reading = kernel.read()["cuda:0"]
    assert reading == Reading(
        used_bytes=5 * GIB,
        total_bytes=15 * GIB,
        utilisation=0.87,
        temperature=61,
        power_watts=68.5,
        power_limit_watts=70.0,
    )


@pytest.mark.parametrize(
    ("function", "unknown"),
    [
        ("memory", {"used_bytes", "total_bytes"}),
        ("utilisation", {"utilisation"}),
        ("temperature", {"temperature"}),
        ("power", {"power_watts"}),
        ("power_limit", {"power_limit_watts"}),
    ],
)
def test_a_sensor_that_is_missing_is_not_shown_as_zero(
    kernel: Kernel, function: str, unknown: set[str]
) -> None:
    """Where a card lacks a sensor only that field is unknown, and the card still runs."""
    kernel.machine(FakeGpu(uuid="GPU-aaaa-1", errors={function: NOT_SUPPORTED}))
    kernel.open_monitor(kernel.discover())
    reading = kernel.read()["cuda:0"]
    fields = Reading.__dataclass_fields__.keys() - {"lost", "own_bytes"}
    assert {name for name in fields if getattr(reading, name) is None} == unknown
    assert not reading.lost


def test_a_gpu_without_memory_of_its_own_has_no_total(kernel: Kernel) -> None:
    """A unified-memory GPU is a device whose memory is unknown, refused or told as zero."""
    for gpu in (
        FakeGpu(uuid="GPU-gb10", name="NVIDIA GB10", errors={"memory": NOT_SUPPORTED}),
        FakeGpu(uuid="GPU-gb10", name="NVIDIA GB10", total_bytes=0),
    ):
        kernel.machine(gpu)
        found = kernel.discover()
        assert [(device.name, device.total_bytes) for device in found.devices] == [
            ("NVIDIA GB10", None)
        ]
        kernel.open_monitor(found)
        assert kernel.read()["cuda:0"].used_bytes is None


def test_a_gpu_that_hides_its_identity_is_still_used(kernel: Kernel) -> None:
    """Without name, UUID and capability a GPU is known by its number, and read by it."""
    hidden = dict.fromkeys(["name", "uuid", "capability"], NOT_SUPPORTED)
    kernel.machine(T4A, FakeGpu(uuid="GPU-bbbb-2", used_bytes=7, errors=hidden))
    found = kernel.discover("1")
    assert found.devices == (
        Device(kind="cuda", index=1, name="GPU 1", mask="1", total_bytes=15 * GIB),
    )
    kernel.open_monitor(found)
    assert kernel.read()["cuda:1"].used_bytes == 7


def test_process_ids_of_another_namespace_do_not_matter(kernel: Kernel) -> None:
    """In a container, where NVML knows no process of ours, the card's memory is still shown."""
    kernel.machine(FakeGpu(uuid="GPU-aaaa-1", used_bytes=3 * GIB))
    kernel.open_monitor(kernel.discover())
    assert kernel.read({"cuda:0": [999_999]})["cuda:0"].used_bytes == 3 * GIB


def test_what_is_our_own_is_told_where_the_driver_sees_it(kernel: Kernel) -> None:
    """The memory of our processes and those that they started; unknown is unknown, not nothing."""
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            ours: dict[int, int | None] = {os.getpid(): 3 * GIB, child.pid: GIB, 999_999: 5 * GIB}
            cases: list[tuple[dict[int, int | None], int | None]] = [
                (ours, GIB),
                ({child.pid: None}, None),
                ({}, None),
                ({999_999: 1}, None),
            ]
            for processes, own in cases:
                gpu = FakeGpu(uuid="GPU-aaaa-1", used_bytes=9 * GIB, processes=processes)
                kernel.machine(gpu)
                kernel.open_monitor(kernel.discover())
                reading = kernel.read({"cuda:0": [child.pid]})["cuda:0"]
                assert (reading.own_bytes, reading.used_bytes) == (own, 9 * GIB)
        finally:
            child.kill()


def test_an_older_driver_and_binding_serve_too(tmp_path: Path) -> None:
    """Without the newer memory call, and with names as bytes, nothing is missing."""
    fake_nvml.build(tmp_path, v2=False)
    with running(tmp_path) as kernel:
        kernel.machine(FakeGpu(uuid="GPU-a", used_bytes=GIB, reserved_bytes=300 * MIB))
        kernel.give_names_as_bytes()
        found = kernel.discover()
        assert found.devices[0].name == "Tesla T4"
        assert found.devices[0].total_bytes == 15 * GIB
        kernel.open_monitor(found)
        assert kernel.read()["cuda:0"].used_bytes == GIB + 300 * MIB


# --- no NVML ---------------------------------------------------------------------------------


def test_a_machine_without_the_library_runs_on_the_cpu(tmp_path: Path) -> None:
    """Without a driver you get CPU devices and one quiet line."""
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    with running(tmp_path) as kernel:
        kernel.use_cores({min(os.sched_getaffinity(0))})
        found = kernel.discover()
        assert [device.label for device in found.devices] == ["cpu:0"]
        assert found.notes == (
            "No NVIDIA GPU found (NVML Shared Library Not Found): running on 1 CPU device.",
        )
        assert kernel.discover(CUDA_VISIBLE_DEVICES="0,1") == found


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch"),
        (77, "fake error 77"),
    ],
)
def test_a_driver_that_does_not_start_runs_on_the_cpu(
    kernel: Kernel, code: int, reason: str
) -> None:
    """Whatever keeps NVML from starting is said in that one line, and nothing is raised."""
    kernel.machine(T4A, init_error=code)
    found = kernel.discover()
    assert kinds(found) == {"cpu"}
    count = host.usual_count(len(os.sched_getaffinity(0)))
    assert found.notes == (
        f"No NVIDIA GPU found ({reason}): running on {host.counted(count, 'CPU device')}.",
    )


def test_a_driver_without_gpus_runs_on_the_cpu(kernel: Kernel) -> None:
    """A driver that is there and has no card is no error either."""
    kernel.machine()
    found = kernel.discover()
    assert kinds(found) == {"cpu"}
    assert found.notes[0].startswith("No NVIDIA GPU found (the driver reports none): ")


def test_the_gpus_are_used_where_only_their_readings_are_missing(
    kernel: Kernel, tmp_path: Path
) -> None:
    """After a driver update CUDA goes on: so does your job, without figures, as one line says."""
    for address, model, uuid in [
        ("0000:00:1f.0", "NVIDIA L4", "GPU-????????"),
        ("0000:00:1e.0", "Tesla T4", "GPU-aaaa-1"),
    ]:
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t 24\nGPU UUID: \t {uuid}\n"
            f"Bus Location: \t {address}\n"
        )
    kernel.use_driver_folder(tmp_path)
    kernel.machine(T4A, L4, init_error=VERSION_MISMATCH)
    try:
        found = kernel.discover()
        masked = kernel.discover(CUDA_VISIBLE_DEVICES="1")
    finally:
        kernel.use_driver_folder(tmp_path / "none")
    assert found == Discovery(
        (
            Device(kind="cuda", index=0, name="Tesla T4", mask="0", uuid="GPU-aaaa-1"),
            Device(kind="cuda", index=1, name="NVIDIA L4", mask="1"),
        ),
        ("GPU readings unavailable: RM has detected an NVML/RM version mismatch.",),
    )
    assert [device.name for device in masked.devices] == ["NVIDIA L4"]


def test_nvml_is_started_once(kernel: Kernel) -> None:
    """A monitor whose NVML does not start shows nothing, and does not try at every update."""
    kernel.machine(T4A)
    found = kernel.discover()
    kernel.machine(T4A, init_error=DRIVER_NOT_LOADED)
    kernel.open_monitor(found)
    assert kernel.read() == {"cuda:0": Reading()}
    kernel.machine(T4A)
    assert kernel.read() == {"cuda:0": Reading()}
