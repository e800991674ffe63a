"""What is refused or warned of before a model is loaded: the host, the files, the words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from plans import (
    CORES,
    GIB,
    H200,
    L4,
    MORE_CORES,
    P100,
    SECOND_T4,
    T4,
    found,
    llama,
    packed,
    plan,
    said,
)

from mgpu_magic.checkpoint import Checkpoint
from mgpu_magic.findings import (
    Build,
    refusal,
    table,
)
from mgpu_magic.headers import Trouble

if TYPE_CHECKING:
    from pathlib import Path


def test_host_memory_of_cpu_workers() -> None:
    """Each has the whole model: together they take more than there is."""
    one, two = plan(llama(10), CORES), plan(llama(10), MORE_CORES)
    assert said(one, free_bytes=20 * GIB, total_bytes=24 * GIB) == []
    assert said(one, two, free_bytes=20 * GIB, total_bytes=24 * GIB) == [
        "warn llama: 2 workers would take 20.0 GiB of weights with 4.0 GiB of KV cache; 20.0 GiB "
        "of host memory are free. Use --devices cpu:1."
    ]
    assert said(one, free_bytes=5 * GIB, total_bytes=8 * GIB) == [
        "refuse llama: the weights take 10.0 GiB; the host has 8.0 GiB. Use a smaller model, or a "
        "quantised one."
    ]


def test_weights_that_do_not_fit_the_host_of_a_gpu() -> None:
    """On their way to the device they pass through the host."""
    one = plan(llama(15), H200)
    assert said(one, free_bytes=16 * GIB) == []
    assert said(one, free_bytes=12 * GIB) == [
        "warn llama: the weights' files have 15.0 GiB; 12.0 GiB of host memory are free. Loading "
        "may be slow, or be ended by the system: free some memory."
    ]


@pytest.mark.parametrize(
    ("built", "driver", "line"),
    [
        ((12, 8), (12, 8), None),
        ((12, 8), (13, 0), None),
        ((12, 8), None, None),
        (None, (12, 4), None),
        (
            (12, 8),
            (12, 4),
            "note llama: torch 2 is built for CUDA 12.8; the driver runs CUDA 12.4. That works as "
            "a rule: both are of one major version.",
        ),
        (
            (13, 0),
            (12, 8),
            "refuse llama: torch 2 is built for CUDA 13.0; the driver runs CUDA 12.8. Update the "
            "driver, or install a build for CUDA 12.",
        ),
    ],
)
def test_the_driver_and_the_build(
    built: tuple[int, int] | None, driver: tuple[int, int] | None, line: str | None
) -> None:
    """Only an older major version is refused."""
    one, build = plan(llama(1), L4, max_model_len=100), Build(name="torch 2", cuda=built)
    assert said(one, build=build, driver_cuda=driver) == [line] * (line is not None)


# --- files and the hub -----------------------------------------------------------------------


def test_a_model_that_is_not_here_and_may_not_be_asked_for(tmp_path: Path) -> None:
    """At once, and not after the workers have imported their engines."""
    one = plan(Checkpoint(looked_in=tmp_path / "models--m"), T4)
    assert said(one) == []
    assert said(one, offline="HF_HUB_OFFLINE=1") == [
        f"refuse llama: 'm' is no directory here, and is not in {tmp_path}/models--m; "
        "HF_HUB_OFFLINE=1 forbids the hub. Pass the directory that holds config.json, or unset "
        "the variable."
    ]


def test_a_part_of_a_model(tmp_path: Path) -> None:
    """In a directory it is refused; in the hub's cache the rest is downloaded, unless offline."""
    gone = {"missing": ("b.safetensors", "c.safetensors"), "total_bytes": 30 * GIB, "tensors": {}}
    here = plan(llama(10, place=tmp_path, looked_in=tmp_path, **gone), H200)
    assert said(here) == [
        f"refuse llama: {tmp_path} lacks b.safetensors and 1 more; its index names them. Copy the "
        "rest there."
    ]
    cached = plan(llama(10, place=tmp_path / "s", looked_in=tmp_path, **gone), H200)
    assert said(cached, disk_bytes=21 * GIB) == []
    assert said(cached, disk_bytes=19 * GIB) == [
        f"warn llama: 20.0 GiB are to be downloaded; 19.0 GiB are free in {tmp_path}. Set HF_HOME "
        "to a folder of a larger disk."
    ]
    (line,) = said(cached, offline="TRANSFORMERS_OFFLINE=1")
    assert line.startswith(f"refuse llama: {tmp_path}/s lacks b.safetensors and 1 more; ")


@pytest.mark.parametrize(("certain", "severity"), [(True, "refuse"), (False, "warn")])
def test_spoiled_files(certain: bool, severity: str) -> None:
    """Refused where no engine could read them."""
    trouble = Trouble(what="a.safetensors is cut", fix="download the model again", certain=certain)
    one = plan(llama(1, troubles=(trouble,), place="here"), L4, max_model_len=100)
    assert said(one) == [f"{severity} llama: a.safetensors is cut. Download the model again."]


# --- how it is said --------------------------------------------------------------------------


def test_alike_on_several_devices_is_said_once() -> None:
    """Both T4 in one line."""
    plans = [plan(llama(1), device, dtype="bfloat16") for device in (T4, SECOND_T4)]
    (finding,) = [one for one in found(*plans) if one.severity == "refuse"]
    assert finding.devices == ("cuda:0", "cuda:1")


def test_several_refusals_are_one_table() -> None:
    """Aligned, with a column for the models where there are several."""
    one, other = plan(llama(40), T4, dtype="bfloat16"), plan(llama(1), P100)
    headline, header, *rows = refusal(found(one)).splitlines()
    assert headline == "llama cannot be loaded:"
    at = header.index("fix")
    assert header.split() == ["device", "finding", "fix"]
    assert [row[at - 2 : at + 4] for row in rows] == ["  Use ", "  Use "]
    assert [row.split("  ")[0] for row in rows] == ["cuda:0", "cuda:0"]
    headline, header, *rows = refusal(found(one, replace(other, model="small"))).splitlines()
    assert headline == "llama, small cannot be loaded:"
    assert header.split() == ["model", "device", "finding", "fix"]
    assert [row.split()[0] for row in rows] == ["llama", "llama", "small"]
    assert refusal(()) == ""


def test_a_table_is_safe_in_a_page() -> None:
    """Names are text."""
    one = replace(plan(packed("mxfp4"), T4), model="<b>m</b>")
    other = plan(packed("mxfp4"), T4)
    html = table([*found(one), *found(other)]).html()
    assert "<b>" not in html
    assert "&lt;b&gt;m" in html
