"""The panel as widgets, and what happens when a display does not work."""

from __future__ import annotations

import builtins
import io
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import IPython.display
import ipywidgets
import pytest
from shown import DEVICE, JOB, SNAPSHOT, WORKER, Clock, after

from mgpu_magic.dashboard import Panel, SafeView, Silent, TextView, open_view, render_html
from mgpu_magic.snapshot import DeviceView, FailureView, Phase, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgpu_magic.snapshot import Observer

# --- the widget ------------------------------------------------------------------------------


class Screen:
    """Takes the place of `IPython.display.display`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[Any] = []
        self.final: list[tuple[dict[str, str], bool]] = []
        monkeypatch.setattr(IPython.display, "display", self.display)

    def display(self, shown: Any, *, raw: bool, display_id: bool) -> Screen:
        assert raw
        assert display_id
        self.shown.append(shown)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        self.final.append((bundle, raw))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """What was displayed."""
    return Screen(monkeypatch)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython says that it is a kernel."""
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))


def values(panel: Panel) -> list[str]:
    """The values that its widgets are given from now on."""
    seen: list[str] = []
    for part in (panel.main, panel.bodies):
        part.observe(lambda change: seen.append(change["new"]), "value")
    return seen


def logging(log: str) -> Snapshot:
    """A worker that printed something, while nothing else changes."""
    return Snapshot(JOB, (replace(DEVICE, worker=replace(WORKER, log=log)),))


def test_the_panel_is_six_core_models_displayed_once(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no JavaScript of its own, so that it shows on Kaggle, Colab and VS Code."""
    made: list[Any] = []
    monkeypatch.setattr(ipywidgets.Widget, "_widget_construction_callback", made.append)
    panel = Panel(Clock())
    panel.update(SNAPSHOT)
    panel.update(SNAPSHOT)
    [bundle] = screen.shown
    view = bundle["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == panel.widget.model_id
    assert len(made) == 6
    assert {model._model_module for model in made} == {
        "@jupyter-widgets/base",
        "@jupyter-widgets/controls",
    }
    assert panel.main.value == render_html(SNAPSHOT)


def test_the_panel_changes_at_most_four_times_a_second(screen: Screen) -> None:
    """However fast prompts finish and logs grow, four messages a second, and the last state."""
    clock = Clock()
    panel = Panel(clock)
    seen = values(panel)
    for tick in range(1000):
        clock.now = tick / 500
        [device] = after(tick).devices
        chatty = replace(device, worker=replace(WORKER, done=tick, log=str(tick)))
        panel.update(replace(after(tick), devices=(chatty,)))
    panel.finish(after(1000))
    assert len(seen) == 2 * 4 + 1
    assert sum("mgpu-logs" in html for html in seen) == 1
    assert seen[-1] == render_html(after(1000))


def test_the_panel_takes_less_than_a_fiftieth_of_a_core(screen: Screen) -> None:
    """Ten seconds of a busy job on two devices, shown as often as can be, cost under 0.2 s."""
    clock = Clock()
    panel = Panel(clock)
    began = time.process_time()
    for tick in range(1000):
        clock.now = tick / 100
        panel.update(after(tick))
    assert time.process_time() - began < 0.2


def test_a_log_changes_every_two_seconds_and_only_if_it_is_new(screen: Screen) -> None:
    """Who reads a log has the time to, and a silent worker costs nothing."""
    clock = Clock()
    panel = Panel(clock)
    seen = values(panel)
    for tick in range(40):
        clock.now = tick / 4
        panel.update(logging(f"line {min(tick, 20)}"))
    logs = [html for html in seen if "mgpu-logs" in html]
    assert [re.findall(r"line \d+", html) for html in logs] == [
        ["line 1"],
        ["line 9"],
        ["line 17"],
        ["line 20"],
    ]


def test_an_open_fold_stays_open(screen: Screen) -> None:
    """What is unfolded stands in a widget whose value never changes while the job runs."""
    clock = Clock()
    panel = Panel(clock)
    heads = panel.widget.children[1]
    changes: list[Any] = []
    heads.observe(changes.append)
    for tick in range(40):
        clock.now = tick / 4
        panel.update(logging(str(tick)))
    assert heads.value.count("<details") == 2
    assert changes == []


def test_a_panel_that_did_not_change_sends_nothing(screen: Screen) -> None:
    """An idle job costs no messages."""
    clock = Clock()
    panel = Panel(clock)
    seen = values(panel)
    for tick in range(9):
        clock.now = tick
        panel.update(SNAPSHOT)
    assert len(seen) == 2


def test_the_final_state_is_left_as_ordinary_output(screen: Screen) -> None:
    """A saved notebook shows the final figures without any widget, as HTML and as text."""
    panel = Panel(Clock())
    panel.update(after(1))
    panel.finish(after(1000))
    [(bundle, raw)] = screen.final
    assert raw
    assert bundle["text/html"] == render_html(after(1000))
    assert "1,000 of 1,000 prompts" in bundle["text/plain"]


def test_the_final_state_of_eight_devices_is_under_20_kb(screen: Screen) -> None:
    """With curves, failures and logs a notebook that is saved does not grow by much."""
    curve = tuple(1000.123 + 17.77 * point % 40 for point in range(40))
    failures = tuple(
        FailureView(model="m", index=i, error="ValueError: no" * 9, prompt="Once upon a time " * 4)
        for i in range(20)
    )

    def device(index: int, phase: Phase) -> DeviceView:
        lost = f"CUDA out of memory on {index}: " + "tried to allocate " * 15
        message = lost if phase == "failed" else ""
        worker = replace(WORKER, phase=phase, failed=3, log="log " * 1000, message=message)
        curves: Any = {"memory_history": curve, "speed_history": curve}
        return replace(DEVICE, label=f"cuda:{index}", worker=worker, **curves)

    notes = tuple(f"m could not be loaded: {'a long story ' * 20}{i}" for i in range(8))
    for phase in ("idle", "running", "failed"):
        job = replace(JOB, state="interrupted", failed=200, failures=failures, notes=notes)
        panel = Panel(Clock())
        panel.finish(Snapshot(job, tuple(device(index, phase) for index in range(8))))
        bundle, _ = screen.final[-1]
        assert sum(len(part.encode()) for part in bundle.values()) < 20_000
        assert "200 failed prompts" in bundle["text/html"]
        assert "<b>#4</b> ValueError" in bundle["text/html"]
        assert re.search(r"and 1\d\d more</small>", bundle["text/html"])
        assert "Log of cuda:0" in bundle["text/html"]


def test_a_closed_panel_falls_back_to_text(
    screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    """A panel that lost its connection is not mistaken for one that stands still."""
    panel = Panel(Clock())
    view = SafeView(lambda: panel)
    view.update(SNAPSHOT)
    panel.main.close()
    view.finish(SNAPSHOT)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        "no panel (RuntimeError: its connection to the notebook is closed); "
        "progress is printed instead"
    )
    assert rest[-1].startswith("running  750 of 1,000 prompts")


# --- when a display does not work ------------------------------------------------------------


def failing(error: BaseException) -> Callable[[], Observer]:
    """Makes a view that raises on every update."""

    class Broken(Silent):
        def update(self, snapshot: Snapshot) -> None:
            raise error

    return Broken


def test_a_display_that_raises_is_replaced_once_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run goes on with text, and says once why."""
    view = SafeView(failing(ValueError("front end\nis gone")))
    for done in range(3):
        view.update(after(done))
    view.finish(after(3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "no panel (ValueError: front end is gone); progress is printed instead"
    assert sum("no panel" in line for line in lines) == 1
    assert lines[-1].startswith("running  3 of 1,000 prompts")


def test_a_run_survives_a_notebook_without_ipywidgets(
    notebook: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken or missing ipywidgets costs the panel and not the answers."""
    real = builtins.__import__

    def blocked(name: str, *args: Any, **options: Any) -> Any:
        if name == "ipywidgets":
            raise ImportError("ipywidgets is broken")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", blocked)
    view = open_view()
    view.finish(SNAPSHOT)
    assert capsys.readouterr().out.startswith("no panel (ImportError: ipywidgets is broken)")


def test_a_run_survives_a_stdout_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even text can be written, nothing is shown and nothing raised."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    for make in (TextView, failing(ValueError("no"))):
        view = SafeView(make)
        view.update(SNAPSHOT)
        view.finish(SNAPSHOT)


def test_an_interrupt_while_drawing_is_not_swallowed() -> None:
    """The stop button works at any time."""
    with pytest.raises(KeyboardInterrupt):
        SafeView(failing(KeyboardInterrupt())).update(SNAPSHOT)


def test_a_plain_script_prints_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Outside a notebook there is no panel to miss, so nothing is said about one."""
    view = open_view()
    view.finish(SNAPSHOT)
    assert capsys.readouterr().out.startswith("cuda:0   running 42 s")


@pytest.mark.usefixtures("screen")
def test_a_panel_that_is_over_names_no_part_that_is_gone() -> None:
    """A front end that loads the kernel's widgets anew, after a reload, finds all of a box."""
    panel = Panel(stop=lambda: None)
    panel.finish(SNAPSHOT)
    assert panel.widget.children == (panel.main,)
    assert panel.main.comm is not None
    assert panel.bodies.comm is None
