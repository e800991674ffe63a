"""What one device or one model cannot do costs the others nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from model_files import LLAMA_8B, made
from plans import GIB, L4, OTHER, P100, T4, gpu, reading

from mgpu_magic.errors import PlacementError
from mgpu_magic.findings import Seen, World
from mgpu_magic.preparation import named_devices
from mgpu_magic.siting import Sited, fit_devices, site
from mgpu_magic.spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

    from mgpu_magic.spec import Device

FOUR = [replace(L4, index=index, mask=str(index)) for index in range(4)]
FULL = Seen(reading=reading(22.5, 20), others=(OTHER,))


def model(folder: Path, name: str = "llama", gib: float = 10, **options: Any) -> ModelSpec:
    """A model of that size for vLLM."""
    place = made(folder / name, LLAMA_8B, int(gib * GIB))
    args = {"max_model_len": 100}
    return ModelSpec(name=name, model=place, engine_args=args, **options)


def sited(
    *models: ModelSpec, devices: list[Device], full: tuple[int, ...] = (), **how: Any
) -> Sited:
    """Where they go on a machine of which some devices are full."""
    seen = {f"cuda:{index}": FULL for index in full}
    return site(models, devices, {}, World(devices=devices, seen=seen), **how)


def places(found: Sited) -> list[tuple[str, str, int]]:
    """Model, device and turn of each worker."""
    return [(one.model, one.spec.label, one.wave) for one in found.placed]


def test_a_device_that_is_full_is_left_out(tmp_path: Path) -> None:
    """The job goes on where there is room, and says where not."""
    found = sited(model(tmp_path), devices=FOUR[:2], full=(1,))
    assert places(found) == [("llama", "cuda:0", 0)]
    assert found.passing
    assert found.decided == (
        "llama: goes on without cuda:1: the weights take 10.0 GiB; 2.5 of 22.5 GiB are free, used "
        "by pid 4711 (python3) with 12.0 GiB. Free the device, or choose others with --devices.",
    )


def test_a_device_that_is_too_small_or_too_old_is_left_out(tmp_path: Path) -> None:
    """A T4 and a P100 beside an L4."""
    devices = [replace(T4, index=0), replace(L4, index=1, mask="1"), replace(P100, index=2)]
    found = sited(model(tmp_path, gib=15), devices=devices)
    assert places(found) == [("llama", "cuda:1", 0)]
    assert not found.passing
    too_small, old = found.decided
    assert too_small.startswith("llama: goes on without cuda:0: the weights take 15.0 GiB")
    assert old.startswith("llama: goes on without cuda:2: the device is a Tesla P100")


@pytest.mark.parametrize("how", ["model", "cell"])
def test_a_device_that_you_name_is_meant(tmp_path: Path, how: str) -> None:
    """It is refused where it is full, not passed over."""
    mine = model(tmp_path, devices=(0, 1) if how == "model" else None)
    with pytest.raises(PlacementError, match=r"llama: cuda:1: the weights take 10.0 GiB; 2.5 of"):
        sited(mine, devices=FOUR[:2], full=(1,), named=how == "cell")


def test_no_device_is_left(tmp_path: Path) -> None:
    """Then it is refused as before."""
    with pytest.raises(PlacementError, match=r"^llama: cuda:0, cuda:1: the weights take 10.0 GiB"):
        sited(model(tmp_path), devices=FOUR[:2], full=(0, 1))


def test_a_group_is_made_of_what_is_left(tmp_path: Path) -> None:
    """Two of four devices are full, one of each pair: the other two make one group."""
    pair = model(tmp_path, gib=30, tensor_parallel_size=2)
    assert places(sited(pair, devices=FOUR, full=(0, 3))) == [("llama", "cuda:1+2", 0)]
    both = model(tmp_path, gib=30, tensor_parallel_size=2, replicas=2)
    assert places(sited(both, devices=FOUR, full=(0,))) == [("llama", "cuda:1+2", 0)]
    assert fit_devices(pair, FOUR, World(devices=FOUR))[0] == FOUR


def test_models_share_what_is_fit_for_each(tmp_path: Path) -> None:
    """A large one goes where it fits, a small one to the device that is too small for it."""
    devices = [gpu("Tesla T4", (7, 5), 15), replace(L4, index=1, mask="1")]
    large, small = model(tmp_path, "large", 18), model(tmp_path, "small", 1)
    assert places(sited(large, small, devices=devices)) == [
        ("large", "cuda:1", 0),
        ("small", "cuda:0", 0),
    ]
    found = sited(model(tmp_path, "a"), model(tmp_path, "b"), devices=FOUR[:2], full=(1,))
    assert sorted(place[1:] for place in places(found)) == [("cuda:0", 0), ("cuda:0", 1)]


def test_a_model_that_cannot_be_loaded_leaves_the_others(tmp_path: Path) -> None:
    """Too large, or a file that is cut: the rest of the ensemble runs on all devices."""
    cut = model(tmp_path, "cut")
    with (tmp_path / "cut/model.safetensors").open("r+b") as file:
        file.truncate(1000)
    found = sited(model(tmp_path, "huge", 60), model(tmp_path, "good"), cut, devices=FOUR[:2])
    assert places(found) == [("good", "cuda:0", 0), ("good", "cuda:1", 0)]
    assert list(found.refused) == ["huge", "cut"]
    assert found.refused["huge"].startswith("huge: cuda:0, cuda:1: the weights take 60.0 GiB")
    assert found.decided[0] == f"Not loaded: {found.refused['huge']}"
    with pytest.raises(PlacementError, match="huge, cut cannot be loaded:"):
        sited(model(tmp_path, "huge", 60), cut, devices=FOUR[:2])


def test_what_lives_is_not_looked_at(tmp_path: Path) -> None:
    """A worker that holds its model stays, however full its device is."""
    first = sited(model(tmp_path), devices=FOUR[:2])
    warm = [one.spec for one in first.placed]
    again = sited(model(tmp_path), devices=FOUR[:2], full=(0, 1), warm=warm)
    assert (again.placed, again.decided) == (first.placed, ())


@pytest.mark.parametrize(
    ("devices", "named"), [("all", False), ("cpu:2", False), ("0", True), ("cuda:0, cuda:1", True)]
)
def test_which_choice_of_devices_names_them(devices: str, named: bool) -> None:
    """All of them is no name of any."""
    assert named_devices(devices) is named
