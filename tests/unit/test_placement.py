"""Which model goes where, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic.errors import PlacementError
from mgpu_magic.placement import Placed, place
from mgpu_magic.spec import Device, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


def gpus(count: int) -> list[Device]:
    """So many CUDA devices."""
    return [
        Device(kind="cuda", index=index, name="Tesla T4", mask=str(index)) for index in range(count)
    ]


def cpus(count: int) -> list[Device]:
    """So many CPU devices."""
    return [
        Device(kind="cpu", index=index, name="CPU (1 core)", cores=(index,))
        for index in range(count)
    ]


def model(name: str, **fields: Any) -> ModelSpec:
    """A model of this name."""
    return ModelSpec(name=name, model=f"hub/{name}", engine="echo", **fields)


def where(placed: Sequence[Placed]) -> list[tuple[str, str, int]]:
    """Model, devices and wave of each worker."""
    return [(one.model, one.spec.label, one.wave) for one in placed]


# --- one model -------------------------------------------------------------------------------


def test_one_model_gets_a_replica_on_every_device() -> None:
    """Each replica has the model's arguments and its share of the host."""
    placed = place([model("a", engine_args={"dtype": "half"})], gpus(4), {})
    assert where(placed) == [("a", f"cuda:{index}", 0) for index in range(4)]
    assert {one.spec.host_share for one in placed} == {0.25}
    assert all(one.spec.model == "hub/a" for one in placed)
    assert all(one.spec.engine_args == {"dtype": "half"} for one in placed)


@pytest.mark.parametrize(
    ("devices", "labels"),
    [(2, ["cuda:0+1"]), (4, ["cuda:0+1", "cuda:2+3"]), (3, ["cuda:0+1"])],
)
def test_tensor_parallel_size_groups_neighbouring_devices(devices: int, labels: list[str]) -> None:
    """As many groups as fit; a device is unused only if it cannot make a group."""
    placed = place([model("a", tensor_parallel_size=2)], gpus(devices), {})
    assert [one.spec.label for one in placed] == labels
    assert sum(one.spec.host_share for one in placed) == 1


def test_devices_and_replicas_of_a_model_are_honoured() -> None:
    """A model stays on the devices that it names, in no more copies than it asks for."""
    assert where(place([model("a", devices=(2, 0))], gpus(3), {})) == [
        ("a", "cuda:2", 0),
        ("a", "cuda:0", 0),
    ]
    assert where(place([model("a", replicas=1)], gpus(3), {})) == [("a", "cuda:0", 0)]


# --- side by side ----------------------------------------------------------------------------


def test_two_models_on_two_devices_go_in_cell_order() -> None:
    """The first model gets the first device, whatever the sizes."""
    assert where(place([model("a"), model("b")], cpus(2), {"a": 1, "b": 9})) == [
        ("a", "cpu:0", 0),
        ("b", "cpu:1", 0),
    ]


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ({}, {"a": 3, "b": 2}),
        ({"a": 10, "b": 41}, {"a": 1, "b": 4}),
        ({"a": None, "b": 30}, {"a": 3, "b": 2}),
        ({"a": 30, "b": 20}, {"a": 3, "b": 2}),
    ],
)
def test_spare_devices_go_to_the_bigger_models(
    sizes: dict[str, int | None], counts: dict[str, int]
) -> None:
    """Every device is used; where sizes are unknown the first of the cell comes first."""
    placed = place([model("a"), model("b")], gpus(5), sizes)
    assert {name: [p.model for p in placed].count(name) for name in counts} == counts
    assert len({one.spec.label for one in placed}) == 5
    assert {one.wave for one in placed} == {0}


def test_the_others_take_what_an_explicit_model_leaves() -> None:
    """A model that names its devices is placed first, wherever it stands in the cell."""
    assert where(place([model("a"), model("b", devices=(0,))], gpus(3), {})) == [
        ("a", "cuda:1", 0),
        ("a", "cuda:2", 0),
        ("b", "cuda:0", 0),
    ]


def test_a_fixed_number_of_replicas_gets_no_spare_device() -> None:
    """The spare devices go to the model that did not say how many."""
    placed = place([model("a", replicas=1), model("b")], gpus(4), {"a": 99, "b": 1})
    assert [one.model for one in placed] == ["a", "b", "b", "b"]


def test_a_group_and_a_single_device_fit_side_by_side() -> None:
    """A model on two devices and one on the third run together."""
    placed = place([model("a", tensor_parallel_size=2), model("b")], gpus(3), {})
    assert where(placed) == [("a", "cuda:0+1", 0), ("b", "cuda:2", 0)]
    assert [one.spec.host_share for one in placed] == [2 / 3, 1 / 3]


# --- waves -----------------------------------------------------------------------------------


def test_more_models_than_devices_run_in_waves_bigger_first() -> None:
    """The longest first, each on the device that is free soonest, the last on all of them."""
    models = [model("small"), model("big"), model("middle")]
    placed = place(models, cpus(2), {"small": 1, "middle": 2, "big": 4})
    assert where(placed) == [
        ("small", "cpu:0", 1),
        ("small", "cpu:1", 1),
        ("big", "cpu:0", 0),
        ("middle", "cpu:1", 0),
    ]
    assert {one.spec.host_share for one in placed} == {0.5}


def test_whole_rounds_of_models_have_a_device_each() -> None:
    """Four models on two devices need no second copy of any."""
    sizes: dict[str, int | None] = {"a": 4, "b": 3, "c": 2, "d": 1}
    placed = place([model(name) for name in sizes], cpus(2), sizes)
    assert sorted(one.model for one in placed) == ["a", "b", "c", "d"]
    five = place([model(name) for name in [*sizes, "e"]], cpus(2), {**sizes, "e": 1})
    assert [one.model for one in five].count("e") == 2


def test_a_last_model_that_said_how_many_has_so_many() -> None:
    """One copy is one copy, wherever it comes in the queue."""
    models = [model("a"), model("b"), model("c", replicas=1)]
    placed = place(models, cpus(2), {"a": 3, "b": 3, "c": 1})
    assert [one.model for one in placed] == ["a", "b", "c"]


def test_an_unknown_size_counts_as_the_mean() -> None:
    """It neither goes first as the biggest nor last as the smallest."""
    models = [model("a"), model("b"), model("c")]
    placed = place(models, cpus(1), {"a": 1, "b": None, "c": 9})
    assert [(one.model, one.wave) for one in placed] == [("a", 2), ("b", 1), ("c", 0)]


def test_models_that_name_the_same_device_take_turns() -> None:
    """They are chained there, the bigger first, and the rest of the devices stays free."""
    models = [model("a", devices=(1,)), model("b", devices=(1,)), model("c")]
    assert where(place(models, cpus(2), {"a": 1, "b": 2})) == [
        ("a", "cpu:1", 1),
        ("b", "cpu:1", 0),
        ("c", "cpu:0", 0),
    ]


def test_a_crowd_shares_the_device_of_an_explicit_model() -> None:
    """Where what it leaves is too little, the others also queue on its device."""
    models = [model("a", devices=(0,)), model("b"), model("c")]
    assert where(place(models, cpus(2), {"a": 1, "b": 5, "c": 4})) == [
        ("a", "cpu:0", 1),
        ("b", "cpu:1", 0),
        ("c", "cpu:0", 0),
    ]


def test_models_that_may_share_devices_avoid_each_other() -> None:
    """Two single copies that may go to either of two devices take one each."""
    models = [model("a", devices=(0, 1), replicas=1), model("b", devices=(0, 1), replicas=1)]
    assert where(place(models, cpus(2), {})) == [("a", "cpu:0", 0), ("b", "cpu:1", 0)]


def test_a_group_waits_until_all_its_devices_are_free() -> None:
    """Its wave comes after the last one of each of its devices."""
    models = [model("pair", tensor_parallel_size=2), model("a"), model("b")]
    placed = place(models, gpus(2), {"pair": 1, "a": 3, "b": 3})
    assert where(placed) == [("pair", "cuda:0+1", 1), ("a", "cuda:0", 0), ("b", "cuda:1", 0)]


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "devices", "message"),
    [
        ({"devices": (2,)}, gpus(2), r"asks for device 2; 2 devices are visible \(0, 1\)"),
        ({"devices": (1,)}, cpus(1), r"asks for device 1; 1 device is visible \(0\)"),
        ({}, [], r"needs 1 device; no device is visible"),
        ({"replicas": 3}, gpus(2), r"needs 3 devices \(replicas=3\); 2 devices are visible"),
        ({"replicas": 2, "devices": (1,)}, gpus(2), r"needs 2 devices .*; its devices are 1"),
        ({"tensor_parallel_size": 4}, gpus(2), r"needs 4 devices \(tensor_parallel_size=4\)"),
        (
            {"tensor_parallel_size": 2, "replicas": 2},
            gpus(3),
            r"needs 4 devices \(replicas=2 with tensor_parallel_size=2\); 3 devices are visible",
        ),
        ({"tensor_parallel_size": 2}, cpus(2), r"tensor_parallel_size=2, which needs CUDA"),
    ],
)
def test_what_does_not_fit_is_refused(
    fields: dict[str, Any], devices: list[Device], message: str
) -> None:
    """The error names the model, what it needs, what is there, and what to do."""
    with pytest.raises(PlacementError, match=message) as refused:
        place([model("a", **fields)], devices, {})
    assert "model 'a'" in str(refused.value)
