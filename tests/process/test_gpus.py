"""What a worker finds in its environment, on GPUs of a fake driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu

from process.living import run_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Machine = Callable[[int], dict[str, str]]

GIB = 1024**3
T4 = FakeGpu(uuid="GPU-aaaa")

VARIABLES = """
import json, mgpu_magic
args, seen = {"expand": True, "delay": 0.01}, set()
with mgpu_magic.Session() as session:
    while len(seen) < count:
        prompts = ["$CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"] * 40
        results = session.generate("m", prompts, engine="echo", engine_args=args, **options)
        seen |= {(answer.device, answer.text) for answer in results}
    cards = [(card.label, card.name, card.reading.used_bytes, card.reading.total_bytes)
             for card in session.status().devices]
print(json.dumps({"seen": sorted(seen), "cards": cards}))
"""


def variables(
    folder: Path, environ: dict[str, str], count: int = 2, **options: Any
) -> list[tuple[str, ...]]:
    """Device, `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` of the `count` workers of a job."""
    script = f"count, options = {count}, {options}\n" + VARIABLES
    seen = run_script(folder, script, **environ)["seen"]
    return [(device, *text.split()) for device, text in seen]


def test_each_gpu_has_a_worker_and_shows_its_memory(tmp_path: Path, gpus: Machine) -> None:
    """Two T4s: two workers, each sees its own card, and the panel shows the memory of both."""
    shown = run_script(tmp_path, "count, options = 2, {}\n" + VARIABLES, **gpus(2))
    assert shown == {
        "seen": [["cuda:0", "0 PCI_BUS_ID"], ["cuda:1", "1 PCI_BUS_ID"]],
        "cards": [["cuda:0", "Tesla T4", 0, 15 * GIB], ["cuda:1", "Tesla T4", 0, 15 * GIB]],
    }


@pytest.mark.parametrize(
    ("mask", "entries"),
    [
        ("2,3", ["2", "3"]),
        (" 3, 2", ["3", "2"]),
        ("GPU-aaaa,GPU-bbbb", ["GPU-aaaa", "GPU-bbbb"]),
    ],
)
def test_the_mask_of_the_kernel_is_narrowed(
    tmp_path: Path, gpus: Machine, mask: str, entries: list[str]
) -> None:
    """A worker gets one entry of the kernel's own `CUDA_VISIBLE_DEVICES`, as you wrote it."""
    first, second = entries
    assert variables(tmp_path, {**gpus(4), "CUDA_VISIBLE_DEVICES": mask}) == [
        ("cuda:0", first, "PCI_BUS_ID"),
        ("cuda:1", second, "PCI_BUS_ID"),
    ]


UNLIKE = """
import json
from fakes import FakeLauncher, obedient
from mgpu_magic import Session
from mgpu_magic.messages import Load, Ready, Submit
from process.jobs import job
from process.living import eventually

def silent(command):  # big, and never ends anything
    match command:
        case Load(): return [Ready(100, 0.0)]
        case Submit(): return []
    return obedient(command)

launcher = FakeLauncher(silent)

def shares():
    sent = [c.requests for handle in launcher.handles for c in handle.commands
            if isinstance(c, Submit)]
    return [len(requests) for requests in sent]

with Session(launcher=launcher) as session:
    run = session.submit(job(["a"] * 100, max_tokens=64))
    eventually(lambda: len(shares()) == 2)
    run.stop()
print(json.dumps(shares()))
"""


def test_unlike_gpus_begin_with_unlike_shares(tmp_path: Path, nvml: Path) -> None:
    """An A100 beside a T4 gets nearly all of the first prompts, by what the driver says."""
    a100 = FakeGpu(uuid="GPU-a100", memory_bus_bits=5120, memory_clock_megahertz=1215)
    for gpus, shares in (((a100, T4), [96, 4]), ((T4, T4), [50, 50])):
        fake_nvml.write_config(tmp_path / "machine", gpus)
        environ = fake_nvml.environment(nvml, tmp_path / "machine")
        assert run_script(tmp_path, UNLIKE, **environ) == shares


def test_an_order_that_the_user_set_stays(tmp_path: Path, gpus: Machine) -> None:
    """`CUDA_DEVICE_ORDER` is set only where you did not."""
    environ = {**gpus(1), "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert variables(tmp_path, environ, 1) == [("cuda:0", "0", "FASTEST_FIRST")]


def test_a_tensor_parallel_worker_sees_all_its_gpus(tmp_path: Path, gpus: Machine) -> None:
    """Four GPUs in pairs are two workers."""
    assert variables(tmp_path, gpus(4), tensor_parallel_size=2) == [
        ("cuda:0+1", "0,1", "PCI_BUS_ID"),
        ("cuda:2+3", "2,3", "PCI_BUS_ID"),
    ]


def test_chosen_devices_are_the_only_ones(tmp_path: Path, gpus: Machine) -> None:
    """`devices="1"` of a masked kernel is its second GPU."""
    environ = {**gpus(4), "CUDA_VISIBLE_DEVICES": "2,3"}
    assert variables(tmp_path, environ, 1, devices="1") == [("cuda:1", "3", "PCI_BUS_ID")]


def test_user_objects_arrive_after_the_mask(tmp_path: Path, gpus: Machine) -> None:
    """Importing the module of an object in a prompt cannot touch another worker's GPU."""
    (tmp_path / "witness.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "mask = os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')\n"
        "Path(__file__).with_name(f'seen-{os.getpid()}').write_text(mask)\n"
        "class Picture: pass\n"
    )
    script = """
import json, os, mgpu_magic, witness
from pathlib import Path
prompt = {"prompt": "x", "multi_modal_data": {"image": witness.Picture()}}
with mgpu_magic.Session() as session:
    while len(list(Path().glob("seen-*"))) < 3:  # the kernel's and two workers'
        args = {"delay": 0.01}
        results = session.generate("m", [prompt] * 40, engine="echo", engine_args=args)
print(json.dumps([results.texts, os.getpid()]))
"""
    texts, pid = run_script(tmp_path, script, **gpus(2))
    assert texts == ["x"] * 40
    seen = {path.name: path.read_text() for path in tmp_path.glob("seen-*")}
    assert seen.pop(f"seen-{pid}") == "unset"
    assert sorted(seen.values()) == ["0", "1"]


def test_the_environment_of_the_kernel_is_not_touched(tmp_path: Path, gpus: Machine) -> None:
    """After a job the kernel's variables are what they were."""
    script = """
import json, os, mgpu_magic
before = dict(os.environ)
with mgpu_magic.Session() as session:
    session.generate("m", ["a", "b"], engine="echo")
print(json.dumps(before == dict(os.environ)))
"""
    assert run_script(tmp_path, script, **gpus(2)) is True


def test_no_gpu_is_said_once(tmp_path: Path, gpus: Machine) -> None:
    """A mask that hides all GPUs means CPU devices, and one line says so."""
    script = """
import json, mgpu_magic
class Tell:
    def update(self, snapshot): ...
    def finish(self, snapshot):
        self.snapshot = snapshot
tell = Tell()
with mgpu_magic.Session() as session:
    session.generate("m", ["a"], engine="echo", observer=tell)
print(json.dumps([tell.snapshot.devices[0].label, tell.snapshot.job.notes]))
"""
    label, notes = run_script(tmp_path, script, **{**gpus(2), "CUDA_VISIBLE_DEVICES": ""})
    assert label == "cpu:0"
    (note,) = notes
    assert note.startswith("No NVIDIA GPU found (CUDA_VISIBLE_DEVICES is ''): running on ")
