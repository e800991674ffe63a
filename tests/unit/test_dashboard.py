"""The panel, the text view, and what happens when a display does not work."""

from __future__ import annotations

import builtins
import io
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import IPython.display
import pytest

from mgpu_magic.dashboard import Panel, SafeView, Silent, TextView, open_view, render_html
from mgpu_magic.snapshot import DeviceView, JobView, Phase, Reading, Snapshot, WorkerView

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgpu_magic.snapshot import Observer

GIB = 2**30
EVIL = '<img src=x onerror="alert(1)">&\n'

WORKER = WorkerView(
    phase="running",
    phase_seconds=42.0,
    fraction=None,
    model="Qwen/Qwen2.5-7B-Instruct-AWQ",
    done=250,
    failed=0,
    model_done=750,
    total=1000,
    running=256,
    waiting=31,
    output_tokens=12_000,
    output_tokens_per_second=1234.0,
    prompts_per_second=5.0,
    kv_usage=0.4,
    load_seconds=31.0,
    message="",
)
DEVICE = DeviceView(
    label="cuda:0",
    name="NVIDIA H100 80GB HBM3",
    kind="cuda",
    reading=Reading(
        used_bytes=60 * GIB,
        total_bytes=80 * GIB,
        utilisation=0.97,
        temperature=71,
        power_watts=560.2,
    ),
    peak_bytes=61 * GIB,
    worker=WORKER,
)
JOB = JobView(
    state="running",
    done=750,
    failed=0,
    total=1000,
    elapsed_seconds=73.0,
    eta_seconds=24.0,
    output_tokens=36_000,
    output_tokens_per_second=2468.0,
    prompts_per_second=10.0,
    prompt_tokens=9000,
    restarts=0,
    notes=(),
)
SNAPSHOT = Snapshot(JOB, (DEVICE, replace(DEVICE, label="cuda:1")))


class Clock:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Page(HTMLParser):
    """The text, tags and progress bars of some HTML; fails where tags are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.titles: list[str] = []
        self.bars: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= values.keys()
        if "title" in values:
            self.titles.append(values["title"])
        if values.get("role") == "progressbar":
            self.bars.append((values["aria-label"], values["aria-valuenow"]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " if tag == "span" else "\n"

    def handle_data(self, data: str) -> None:
        self.text += data


def after(done: int, phase: Phase = "running") -> Snapshot:
    """The state of a job of one device after so many of 1000 prompts."""
    worker = replace(WORKER, phase=phase, done=done, model_done=done)
    return Snapshot(replace(JOB, done=done), (replace(DEVICE, worker=worker),))


# --- the panel's HTML ------------------------------------------------------------------------


def test_the_panel_shows_the_job_and_every_figure_of_a_device() -> None:
    """Name, phase with seconds, model, prompts, speed, queue, memory, load: all on the card."""
    page = Page(render_html(SNAPSHOT))
    for text in (
        "Running",
        "750 of 1,000 prompts (75 %)",
        "1 min 13 s · ETA 24 s · 2,468 tokens/s",
        "cuda:1",
        "H100 80GB HBM3",
        "running 42 s",
        "Qwen2.5-7B-Instruct-AWQ",
        "250 of 1,000",
        "1,234 tokens/s",
        "256 running · 31 waiting",
        "60.0 of 80.0 GiB",
        "97 % busy",
        "71 °C · 560 W",
    ):
        assert text in page.text.replace("\xa0", "")
    assert "Qwen/Qwen2.5-7B-Instruct-AWQ" in page.titles
    assert "NVIDIA H100 80GB HBM3" in page.titles


def test_bars_tell_a_screen_reader_how_far_it_is() -> None:
    """Job, prompts of the model and memory are progress bars with values."""
    page = Page(render_html(Snapshot(JOB, (DEVICE,))))
    assert page.bars == [
        ("prompts of the job", "75"),
        ("prompts of its model", "75"),
        ("memory", "75"),
    ]


def test_a_card_tells_its_own_share_from_that_of_the_others() -> None:
    """A card whose worker did a quarter of the prompts does not look like one that did all."""
    html = render_html(Snapshot(JOB, (DEVICE,)))
    assert re.findall(r"width:([\d.]+)%", html) == ["75.0", "25.0", "50.0", "75.0"]


def test_text_from_elsewhere_cannot_inject_html() -> None:
    """Names of models and devices, errors and notes are escaped."""
    worker = replace(WORKER, model=EVIL, phase="failed", message=EVIL)
    device = replace(DEVICE, name=EVIL, label=EVIL, worker=worker)
    page = Page(render_html(Snapshot(replace(JOB, notes=(EVIL,)), (device,))))
    assert page.tags == {"div", "span", "b"}
    assert page.attributes == {"style", "title", "role", "aria-label", "aria-valuenow"} | {
        "aria-hidden"
    }
    assert page.text.count('onerror="alert(1)"') == 5


def test_a_lone_surrogate_cannot_break_the_panel() -> None:
    """Text that has no UTF-8 form is shown without what is wrong in it."""
    device = replace(DEVICE, worker=replace(WORKER, model="a\ud800b", message="x\ud800"))
    assert "a b" in render_html(Snapshot(JOB, (device,))).encode().decode()


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    """A device without sensors has n/a and no memory bar."""
    page = Page(render_html(Snapshot(JOB, (replace(DEVICE, reading=Reading()),))))
    assert "memory n/a" in page.text
    assert "n/a busy" in page.text
    assert "memory" not in dict(page.bars)
    assert "°C" not in page.text


def test_a_load_shows_seconds_and_never_a_frozen_percentage() -> None:
    """Before the first answer there is no percentage, but the phase and how long it takes."""
    worker = replace(WORKER, phase="loading", phase_seconds=20.0, done=0, model_done=0)
    worker = replace(worker, running=0, waiting=0, output_tokens_per_second=0.0)
    worker = replace(worker, prompts_per_second=0.0)
    job = replace(JOB, done=0, eta_seconds=None, output_tokens=0, prompts_per_second=0.0)
    page = Page(render_html(Snapshot(job, (replace(DEVICE, worker=worker),))))
    assert "loading 20 s" in page.text
    assert "0 %" not in page.text
    assert "/s" not in page.text
    known = Snapshot(job, (replace(DEVICE, worker=replace(worker, fraction=0.4)),))
    assert "loading 20 s (40 %)" in Page(render_html(known)).text


def test_a_job_without_tokens_is_measured_in_prompts() -> None:
    """Classifiers and functions generate nothing; their card and the header say prompts/s."""
    none: Any = {"output_tokens": 0, "output_tokens_per_second": 0.0}
    worker = replace(WORKER, **none, prompts_per_second=56.0)
    job = replace(JOB, **none, prompts_per_second=112.0)
    page = Page(render_html(Snapshot(job, (replace(DEVICE, worker=worker),))))
    assert "56.0 prompts/s" in page.text
    assert "112 prompts/s" in page.text
    assert "tokens/s" not in page.text


def test_failures_and_losses_are_said_in_words() -> None:
    """Nothing is told by colour alone."""
    worker = replace(WORKER, phase="lost", failed=3, message="killed by SIGKILL")
    devices = (
        replace(DEVICE, worker=worker),
        replace(DEVICE, worker=None),
        replace(DEVICE, reading=Reading(lost=True)),
    )
    page = Page(render_html(Snapshot(replace(JOB, failed=3, restarts=2), devices)))
    for text in (
        "3 failed · 2 restarts",
        "lost 42 s",
        "killed by SIGKILL",
        "256 running · 31 waiting · 3 failed",
        "no worker",
        "the driver no longer answers",
    ):
        assert text in page.text


def test_a_long_error_is_cut_on_the_card_and_whole_in_its_tooltip() -> None:
    """One failed device does not push the others out of sight."""
    worker = replace(WORKER, phase="failed", message="e" * 300)
    page = Page(render_html(Snapshot(JOB, (replace(DEVICE, worker=worker),))))
    assert "e" * 300 in page.titles
    assert "e" * 117 + "..." in page.text
    assert "e" * 118 not in page.text


@pytest.mark.parametrize("state", ["done", "interrupted", "failed"])
def test_the_final_state_is_named(state: Any) -> None:
    """A reader of the saved notebook sees how it ended."""
    page = Page(render_html(Snapshot(replace(JOB, state=state, eta_seconds=None), (DEVICE,))))
    assert state.capitalize() in page.text


def test_devices_are_shown_before_there_is_a_job() -> None:
    """`dashboard` in a fresh session has cards and no header."""
    page = Page(render_html(Snapshot(replace(JOB, state="new"), (replace(DEVICE, worker=None),))))
    assert page.bars == [("memory", "75")]
    assert "prompts" not in page.text


def test_a_job_without_prompts_is_complete() -> None:
    """Nothing to do divides by nothing."""
    page = Page(render_html(Snapshot(replace(JOB, state="done", done=0, total=0), ())))
    assert page.bars == [("prompts of the job", "100")]


def test_a_busy_panel_of_eight_devices_stays_small() -> None:
    """Four updates a second of eight cards are less than 50 kB/s."""
    assert len(render_html(Snapshot(JOB, (DEVICE,) * 8)).encode()) < 12_000


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
    """The values that the widget is given from now on."""
    seen: list[str] = []
    panel.widget.observe(lambda change: seen.append(change["new"]), "value")
    return seen


def test_the_panel_is_one_core_widget_displayed_once(screen: Screen) -> None:
    """It needs no JavaScript of its own, so that it shows on Kaggle, Colab and VS Code."""
    panel = Panel(Clock())
    panel.update(SNAPSHOT)
    panel.finish(SNAPSHOT)
    [bundle] = screen.shown
    view = bundle["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == panel.widget.model_id
    assert panel.widget._model_module == "@jupyter-widgets/controls"
    assert panel.widget.value == render_html(SNAPSHOT)


def test_the_panel_changes_at_most_four_times_a_second(screen: Screen) -> None:
    """However fast prompts finish, the front end gets four messages a second, and the last."""
    clock = Clock()
    panel = Panel(clock)
    seen = values(panel)
    for tick in range(1000):
        clock.now = tick / 500
        panel.update(after(tick))
    panel.finish(after(1000))
    assert seen == [render_html(after(done)) for done in range(0, 1000, 125)] + [
        render_html(after(1000))
    ]


def test_a_panel_that_did_not_change_sends_nothing(screen: Screen) -> None:
    """An idle job costs no messages."""
    clock = Clock()
    panel = Panel(clock)
    seen = values(panel)
    for tick in range(5):
        clock.now = tick
        panel.update(SNAPSHOT)
    assert len(seen) == 1


def test_the_final_state_is_left_as_ordinary_output(screen: Screen) -> None:
    """A saved notebook shows the final figures without any widget, as HTML and as text."""
    panel = Panel(Clock())
    panel.update(after(1))
    panel.finish(after(1000))
    [(bundle, raw)] = screen.final
    assert raw
    assert bundle["text/html"] == render_html(after(1000))
    assert "1,000 of 1,000 prompts" in bundle["text/plain"]


def test_a_closed_panel_falls_back_to_text(
    screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    """A panel that lost its connection is not mistaken for one that stands still."""
    panel = Panel(Clock())
    view = SafeView(lambda: panel)
    view.update(SNAPSHOT)
    panel.widget.close()
    view.finish(SNAPSHOT)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == (
        "no panel (RuntimeError: its connection to the notebook is closed); "
        "progress is printed instead"
    )
    assert rest[-1].startswith("running  750 of 1,000 prompts")


# --- the text view ---------------------------------------------------------------------------


def test_without_a_terminal_a_line_is_printed_per_change_and_not_per_tick() -> None:
    """A log of a run with 1000 prompts has a line per phase and per tenth of the prompts."""
    stream = io.StringIO()
    view = TextView(stream, Clock())
    view.update(after(0, "loading"))
    for done in range(1001):
        view.update(after(done))
    view.finish(after(1000, "idle"))
    lines = stream.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [
        ["cuda:0", "loading"],
        ["cuda:0", "running"],
    ]
    assert [line.split()[1] for line in lines[2:-2]] == ["1"] + [
        f"{done:,}" for done in range(100, 1001, 100)
    ]
    assert lines[-2].startswith("cuda:0   idle")
    assert lines[-1].startswith("running  1,000 of 1,000 prompts")


def test_a_note_is_printed_once() -> None:
    """What the user should know is said when it comes up."""
    stream = io.StringIO()
    view = TextView(stream, Clock())
    for _ in range(3):
        view.update(Snapshot(replace(JOB, done=0, notes=("No NVIDIA GPU found.",)), ()))
    assert stream.getvalue() == "No NVIDIA GPU found.\n"


def test_on_a_terminal_the_view_is_redrawn_in_place() -> None:
    """The second drawing covers the first, at most four times a second."""
    clock, stream = Clock(), Terminal()
    view = TextView(stream, clock)
    view.update(SNAPSHOT)
    first = stream.getvalue()
    view.update(SNAPSHOT)
    assert stream.getvalue() == first
    clock.now = 0.25
    view.update(SNAPSHOT)
    view.finish(SNAPSHOT)
    assert first.startswith("\r\x1b[Jcuda:0")
    assert first.count("\n") == 3
    assert stream.getvalue() == first + 2 * ("\x1b[3A" + first)


def test_a_stream_that_knows_only_ascii_is_no_obstacle() -> None:
    """A model with an accent in its name does not end the view."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    TextView(stream, Clock()).finish(Snapshot(replace(JOB, notes=("modèle \ud800",)), ()))
    assert raw.getvalue().splitlines()[-1] == b"mod?le  "


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
