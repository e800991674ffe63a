"""How a job went on each device, as a picture."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

import pytest
from answers import answer
from matplotlib import image
from matplotlib.patches import Rectangle
from shown import GIB

from mgpu_magic.ensemble import Ensemble
from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.results import ResultSet
from mgpu_magic.snapshot import DeviceHistory
from mgpu_magic.stats import RunStats, WorkerStats

if TYPE_CHECKING:
    from collections.abc import Sequence

LABELS = ["cuda:0", "cuda:1"]
HISTORY = DeviceHistory(
    device="cuda:0",
    seconds=(0.0, 1.0, 2.0, 3.0, 4.0),
    used_bytes=(GIB, 2 * GIB, None, 4 * GIB, None),
    utilisation=(0.0, None, 0.5, 1.0, 0.75),
    tokens_per_second=(0.0, 0.0, 10.0, 20.0, 30.0),
    prompts_per_second=(0.0, 0.0, 1.0, 2.0, 3.0),
    loading=((0.0, 1.5),),
)


def stats(*workers: Sequence[DeviceHistory]) -> RunStats:
    """Those of a job of so many workers, each with its devices."""
    made = [WorkerStats(device="cuda:0", model="m", history=tuple(one)) for one in workers]
    return ResultSet([answer(0)], ["a"], seconds=4.0, workers=made).stats


def drawn(line: Any) -> list[tuple[float, float | None]]:
    """The points of a line."""
    pairs = zip(line.get_xdata(), line.get_ydata(), strict=True)
    return [(float(x), None if isnan(y) else float(y)) for x, y in pairs]


# --- the picture -----------------------------------------------------------------------------


def test_the_picture_has_three_axes_with_a_line_per_device() -> None:
    """GiB, percent and tokens/s against the job's seconds; unknown readings are gaps."""
    figure = stats([HISTORY], [replace(HISTORY, device="cuda:1")]).plot()
    memory, busy, speed = figure.axes
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["memory [GiB]", "busy [%]", "tokens/s"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [2, 2, 2]
    assert drawn(memory.get_lines()[0]) == [(0, 1), (1, 2), (2, None), (3, 4), (4, None)]
    assert drawn(busy.get_lines()[1]) == [(0, 0), (1, None), (2, 50), (3, 100), (4, 75)]
    assert drawn(speed.get_lines()[0])[2:] == [(2, 10), (3, 20), (4, 30)]
    assert memory.get_xlim() == busy.get_xlim() == speed.get_xlim() == (0, 4)
    assert [axes.get_ylim()[0] for axes in figure.axes] == [0, 0, 0]
    assert speed.get_xlabel() == "seconds since the job began"
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*LABELS, "loading"]


def test_a_reading_between_two_gaps_can_be_seen() -> None:
    """A line needs two points; one alone is drawn as a dot."""
    line = stats([HISTORY]).plot().axes[0].get_lines()[0]
    assert line.get_marker() == "."
    assert line.get_markevery() == [3]


def test_a_time_without_readings_is_a_gap() -> None:
    """While a driver hung nothing was read, and no line pretends that something was."""
    seconds = (0.0, 1.0, 2.0, 30.0, 31.0)
    line = stats([replace(HISTORY, seconds=seconds)]).plot().axes[2].get_lines()[0]
    assert drawn(line) == [(0, 0), (1, 0), (2, 10), (16, None), (30, 20), (31, 30)]


def test_loading_is_shaded() -> None:
    """On each axis, and twice as dark at most where both devices load."""
    one = stats([HISTORY]).plot()
    for axes in one.axes:
        [span] = axes.patches
        assert isinstance(span, Rectangle)
        assert (span.get_x(), span.get_x() + span.get_width()) == (0.0, 1.5)
    both = stats([HISTORY], [replace(HISTORY, device="cuda:1", loading=((1.0, 2.0),))]).plot()
    assert len(both.axes[0].patches) == 2
    shade, half = one.axes[0].patches[0].get_alpha(), both.axes[0].patches[0].get_alpha()
    assert shade
    assert half
    assert 1 - (1 - half) ** 2 == pytest.approx(shade)
    warm = stats([replace(HISTORY, loading=())]).plot()
    assert not warm.axes[0].patches
    assert [text.get_text() for text in warm.legends[0].get_texts()] == ["cuda:0"]


def test_without_tokens_the_speed_is_that_of_prompts() -> None:
    """Of a classifier, or of functions."""
    figure = stats([replace(HISTORY, tokens_per_second=(0.0,) * 5)]).plot()
    assert figure.axes[2].get_ylabel() == "prompts/s"
    assert drawn(figure.axes[2].get_lines()[0])[-1] == (4, 3)


def test_what_no_device_says_is_not_available() -> None:
    """Words, not a line at 0."""
    figure = stats([replace(HISTORY, utilisation=(None,) * 5)]).plot()
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["n/a"]
    assert figure.axes[1].texts


def test_eight_devices_have_eight_lines_that_differ() -> None:
    """In colour or dashes, and they stand in the order of the devices."""
    labels = [f"cuda:{index}" for index in range(11)]
    figure = stats(*([replace(HISTORY, device=label)] for label in reversed(labels))).plot()
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == labels
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 11


def test_an_ensemble_draws_each_device_once() -> None:
    """Two models that ran on one device after the other share its line."""
    results = {
        name: ResultSet(
            [answer(0)], ["a"], workers=[WorkerStats(device="d", model=name, history=(history,))]
        )
        for name, history in {"a": HISTORY, "b": HISTORY, "c": replace(HISTORY, device="d")}.items()
    }
    figure = Ensemble(results).stats.plot()
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["d", "cuda:0"]


def test_a_single_reading_and_a_job_without_seconds_are_drawn() -> None:
    """Whatever was measured can be drawn, without a warning."""
    point = DeviceHistory(
        device="cpu:0",
        seconds=(0.0,),
        used_bytes=(GIB,),
        utilisation=(None,),
        tokens_per_second=(None,),
        prompts_per_second=(0.0,),
    )
    assert stats([point]).plot()._repr_png_()[0].startswith(b"\x89PNG")


@pytest.mark.parametrize("history", [[], [DeviceHistory(device="cuda:0")]])
def test_where_nothing_was_measured_there_is_no_picture(history: list[DeviceHistory]) -> None:
    """The error says when there is one."""
    with pytest.raises(ValueError, match="no history to draw: devices are read twice a second"):
        stats(history).plot()
    with pytest.raises(ValueError, match="no history to draw"):
        ResultSet([Failure(0, RemoteError("NotFinished", ""))], ["a"]).stats.plot()


# --- how it is shown -------------------------------------------------------------------------


def test_the_picture_is_readable_on_light_and_dark_pages() -> None:
    """Its background is the page's; all ink has a contrast of 3 with black and with white."""
    png, size = stats([HISTORY]).plot()._repr_png_()
    assert size == {"width": 900, "height": 600}
    assert len(png) < 150_000
    pixels = image.imread(io.BytesIO(png))
    assert pixels.shape == (900, 1350, 4)
    assert (pixels[..., 3] == 0).mean() > 0.5
    ink = pixels[pixels[..., 3] == 1][:, :3]
    assert len(ink) > 1000
    linear = ((ink + 0.055) / 1.055) ** 2.4
    light = linear @ [0.2126, 0.7152, 0.0722]
    assert ((light + 0.05) / 0.05).min() >= 3
    assert (1.05 / (light + 0.05)).min() >= 3


DRAW = """
import pickle, sys
stats = pickle.load(sys.stdin.buffer)
figures = [stats.plot() for _ in range(25)]
assert {len(figure.axes) for figure in figures} == {3}
assert "matplotlib.pyplot" not in sys.modules
assert len(pickle.loads(pickle.dumps(figures[0])).axes) == 3
"""
LACK = """
import pickle, sys
sys.modules["matplotlib"] = None  # importing it fails
stats = pickle.load(sys.stdin.buffer)
try:
    stats.plot()
except ImportError as error:
    assert "this needs matplotlib: pip install matplotlib" in str(error)
else:
    raise SystemExit("no error")
"""


@pytest.mark.parametrize("script", [DRAW, LACK])
def test_drawing_leaves_nothing_behind_and_asks_for_what_it_needs(script: str) -> None:
    """No global figure, so no warning about many; without matplotlib the error says what to do."""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        input=pickle.dumps(stats([HISTORY])),
        check=True,
        timeout=60,
    )
