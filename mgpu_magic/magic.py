"""The IPython surface: `%%multigpu` runs a job, `%multigpu` asks about the workers.

```
 %%multigpu options            cell body (runs in the notebook's namespace)
        │                            │ names that it binds
        └───────> Options <──────────┘
                     │ .job()
                  Session.run(job, view) ──> results: the cell's value, or -o NAME
```

A thin layer: whatever it does, `mgpu_magic.Session` does in a script.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from functools import partial
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from traitlets import Bool, Float, Int, Unicode

from mgpu_magic.body import run_body, silenced
from mgpu_magic.completion import Known, completions, hinted, meant
from mgpu_magic.dashboard import (
    Panel,
    TextView,
    in_notebook,
    open_background_view,
    open_view,
    render_html,
)
from mgpu_magic.devices import discover
from mgpu_magic.errors import JobInterrupted, PlacementError, SpecError
from mgpu_magic.following import follow, watch
from mgpu_magic.options import Options
from mgpu_magic.presses import Presses
from mgpu_magic.sensors import WAIT_SECONDS
from mgpu_magic.snapshot import render_text
from mgpu_magic.spec import ENGINES, LAUNCHERS, TASKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mgpu_magic.check import Check
    from mgpu_magic.ensemble import Results
    from mgpu_magic.run import Run
    from mgpu_magic.session import Session
    from mgpu_magic.snapshot import Snapshot
    from mgpu_magic.spec import JobSpec

TAB_SECONDS = 1.0  # for a driver to answer, while one waits for a word to be completed
BODY_NAMES = (
    "model", "models", "prompts", "sampling", "engine_args", "choices", "lora", "load", "predict",
    "choice", "json_schema",
)  # fmt: skip
"""The names by which a cell's body describes its job."""

_PLAIN_OPTIONS = (
    "seed", "tensor_parallel_size", "max_model_len", "gpu_memory_utilization", "batch_size",
    "regex", "hang_timeout", "journal",
)  # fmt: skip

LINE_HELP = """\
%multigpu status          the devices, and what is loaded on them
%multigpu devices         every device that this kernel may use
%multigpu check MODEL     where a model fits, before it is loaded (with options of the cell)
%multigpu logs [WORKER]   the ends of the workers' logs
%multigpu last            results of the last run, finished or not
%multigpu stop            stop the running job; what it has answered is kept
%multigpu dashboard       the devices, live, until `%multigpu dashboard off`
%multigpu free [MODEL]    end the workers (of one model) and release their memory
%multigpu restart         kill every worker, also in the middle of a run
%multigpu help            this
%%multigpu?               how to run a cell"""


@magics_class
class MultiGPU(Magics):
    """The magics; its traits are the defaults that `%config MultiGPU.NAME = VALUE` sets."""

    devices = Unicode("all", help="Default of --devices.").tag(config=True)
    engine = Unicode("vllm", help="Default of --engine.").tag(config=True)
    launcher = Unicode("process", help="Default of --launcher.").tag(config=True)
    task = Unicode("generate", help="Default of --task.").tag(config=True)
    stagger = Unicode("auto", help="Default of --stagger.").tag(config=True)
    panel = Bool(True, help="Whether to show the panel.").tag(config=True)
    chat = Bool(False, help="Whether --chat is on.").tag(config=True)
    max_tokens = Int(None, allow_none=True, help="Default of --max-tokens.").tag(config=True)
    temperature = Float(None, allow_none=True, help="Default of --temperature.").tag(config=True)

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        self._session: Session | None = None
        self._end_dashboard: Callable[[], None] = lambda: None

    @property
    def session(self) -> Session:
        """The session of this notebook, made when first needed."""
        if self._session is None:
            from mgpu_magic.session import Session  # most of the package, not needed by %load_ext

            self._session = Session()
        return self._session

    def close(self) -> None:
        """End the workers."""
        self._end_dashboard()
        if self._session is not None:
            self._session.close()
            self._session = None

    @no_var_expand
    @magic_arguments("%multigpu")
    @argument("model", nargs="?", metavar="MODEL", help="Hub id or directory of the model.")
    @argument(
        "-o", "--out", metavar="NAME", help="Variable for the results; else the cell's value."
    )
    @argument("--prompts", metavar="NAME", help="Notebook variable that holds the prompts.")
    @argument("--model", dest="model_name", metavar="NAME", help="Variable that holds the model.")
    @argument("--models", metavar="NAME", help="Variable that holds the models of an ensemble.")
    @argument("--sampling", metavar="NAME", help="Variable that holds SamplingParams fields.")
    @argument("--engine-args", metavar="NAME", help="Variable that holds the engine's arguments.")
    @argument("--choices", metavar="NAME", help="Variable that holds the texts to weigh.")
    @argument("--lora", metavar="NAME", help="Variable that holds the adapter's directory.")
    @argument("--load", metavar="NAME", help="Function load(device) -> state.")
    @argument("--predict", metavar="NAME", help="Function predict(state, batch) -> list.")
    @argument("--json-schema", metavar="NAME", help="Variable: answers follow this JSON schema.")
    @argument("--regex", help="Answers follow this regular expression.")
    @argument("--choice", metavar="NAME", help="Variable: answers are one of these texts.")
    @argument("--max-tokens", type=int, help="Tokens that an answer may have.")
    @argument("--temperature", type=float, help="0 is greedy.")
    @argument("--seed", type=int, help="Makes sampling repeatable, however prompts are shared out.")
    @argument("--chat", action="store_true", help="Send texts as user messages (chat template).")
    @argument("--devices", metavar="all|0,1|cpu|cpu:N", help="Which devices; default: all.")
    @argument("--engine", choices=ENGINES, help="What runs the model; default: vllm.")
    @argument("--launcher", choices=LAUNCHERS, help="Where workers run; default: process.")
    @argument("--task", choices=TASKS, help="What is asked of the model; default: generate.")
    @argument("--batch-size", type=int, help="Prompts per batch (transformers, python); 8.")
    @argument("--tensor-parallel-size", type=int, metavar="K", help="Devices per copy.")
    @argument("--max-model-len", type=int, help="Tokens of prompt and answer together.")
    @argument("--gpu-memory-utilization", type=float, help="Part of each GPU's memory; 0.92.")
    @argument("--stagger", metavar="auto|SECONDS", help="Time between the loads of the workers.")
    @argument(
        "--hang-timeout", type=float, metavar="SECONDS",
        help="Replace a worker whose engine finishes no step for so long, or whose load has no "
        "news for ten times that; default: 300, a load and functions of yours never.",
    )  # fmt: skip
    @argument("--journal", metavar="FILE", help="Keep each outcome; take those that it holds.")
    @argument("--background", action="store_true", help="Return at once; the panel goes on.")
    @argument("--no-panel", action="store_true", help="Show no progress.")
    @cell_magic("multigpu")
    def cell(self, line: str, cell: str) -> Results | Run | None:
        """Run a model on every device and return its answers in prompt order.

        The body is ordinary Python; the names that it binds describe the job:

        model        hub id, local directory, or dict of engine arguments holding "model"
        models       ensemble: {name: model}; every model answers every prompt
        prompts      list (or Series, array, column, generator) of texts, chats, token ids
        sampling     dict of vLLM SamplingParams fields, or one dict per prompt
        engine_args  dict of engine arguments: max_model_len, quantization, dtype, ...
        choices      texts; asks for the probability of each as the continuation of a prompt
        lora         directory of a LoRA adapter, or one (or None) per prompt
        json_schema  answers follow this schema
        choice       answers are one of these texts
        load         load(device) -> state, called once per device
        predict      predict(state, batch) -> list; runs instead of a model

        The models stay loaded for the next cell; `%multigpu free` releases them.
        """
        __tracebackhide__ = True  # an error in the body points at the body
        given = self._given(line)
        name = given["out"]
        if name is not None and (not name.isidentifier() or iskeyword(name)):
            raise UsageError(f"-o {name}: a variable cannot be named so")
        try:
            bound = run_body(self.shell, cell, BODY_NAMES)
            job = self._options(given, bound).job()
            shown = self.panel and not given["no_panel"]
            results: Results | Run
            if given["background"]:
                results = self._begin(job, name, shown=shown)
            else:
                results = self.session.run(job, open_view(self.session.stop) if shown else None)
        except (SpecError, PlacementError) as error:
            raise UsageError(error.args[0]) from None
        if name:
            if not given["background"]:
                self.shell.user_ns[name] = results
            return None
        return None if silenced(cell) else results

    @line_magic("multigpu")
    def line(self, line: str) -> Any:
        """Ask about the workers, or end them; `%multigpu help` lists the words."""
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if rest and word not in ("check", "logs", "free", "dashboard"):
            raise UsageError(f"%multigpu {word} takes nothing more; there is {rest!r}")
        try:
            match word:
                case "" | "help":
                    return Report(LINE_HELP)
                case "status":
                    snapshot = self.session.status()
                    return Report(render_text(snapshot, 120), render_html(snapshot))
                case "devices":
                    return Report(_device_list())
                case "check":
                    return self._check(rest)
                case "logs":
                    if rest and not rest.isdecimal():
                        raise UsageError(f"%multigpu logs {rest}: give the number of a worker")
                    logs = self.session.logs(int(rest) if rest else None)
                    texts = (f"--- {name}\n{text}" for name, text in logs.items())
                    return Report("\n".join(texts) or "No worker has been started yet.")
                case "last":
                    last = self.session.last
                    return Report("Nothing has been run yet.") if last is None else last
                case "stop":
                    return Report(_stopped(self.session))
                case "dashboard":
                    return self._dashboard(rest)
                case "free":
                    return Report(f"Workers ended: {self.session.free(rest or None)}")
                case "restart":
                    return Report(f"Workers killed: {self.session.restart()}")
                case _:
                    raise UsageError(f"%multigpu {word} is unknown{meant(word)}\n{LINE_HELP}")
        except (SpecError, PlacementError) as error:
            raise UsageError(str(error)) from None

    def _check(self, line: str) -> Check:
        """Look at a model as the cell of these options would load it."""
        given = self._given(line)
        if not (given["model"] or given["model_name"] or given["models"]):
            raise UsageError(f"%multigpu check {line}: name a model")
        given["prompts"] = None
        return self.session.check_job(self._options(given, {"prompts": ()}).job())

    def _given(self, line: str) -> dict[str, Any]:
        """The values of the options, by the names of their variables."""
        try:
            given: dict[str, Any] = vars(parse_argstring(self.cell, line))
        except UsageError as error:
            options = self.cell.parser._option_string_actions  # argparse has no public list of them
            raise UsageError(hinted(str(error), options)) from None
        except ValueError as error:  # of shlex
            raise UsageError(f"%%multigpu {line}: {error}") from None
        return given

    def _begin(self, job: JobSpec, name: str | None, *, shown: bool) -> Run:
        """Start a job that goes on after the cell; its results replace it in the variable."""
        run = self.session.submit(job)
        try:
            with Presses():
                if shown:
                    view = open_background_view(run.stop)
                    view.update(run.snapshot)  # from here, so that it stands under this cell
                    follow(run, view)
                if name:
                    self.shell.user_ns[name] = run
                    run.then(partial(self._deliver, name))
        except KeyboardInterrupt:
            run.stop()
            raise
        return run

    def _deliver(self, name: str, run: Run) -> None:
        """What was stopped has results too; an error stays in the run, whose result() raises it."""
        if self.shell.user_ns.get(name) is not run:  # bound anew meanwhile
            return
        if isinstance(run.error, JobInterrupted):
            self.shell.user_ns[name] = run.error.results
        elif run.error is None:
            self.shell.user_ns[name] = run.result()

    def _dashboard(self, word: str) -> None:
        """Show the devices under this cell, instead of under the last that did."""
        if word not in ("", "off"):
            raise UsageError(f"%multigpu dashboard {word}: say off, or nothing")
        self._end_dashboard()
        if word == "off":
            return
        session = self.session
        if not in_notebook():  # a terminal has no other place for it than here
            with contextlib.suppress(KeyboardInterrupt):
                view = TextView()
                while True:
                    view.update(session.devices())
                    time.sleep(0.5)
            return
        over = threading.Event()
        try:
            panel = Panel(stop=over.set, button="Close", counted=True)
        except Exception as error:  # noqa: BLE001  # widgets are foreign code
            what = f"no panel ({type(error).__name__}: {error})"
            raise UsageError(f"{what}; %multigpu status shows the devices once") from None
        self._end_dashboard = over.set

        def look() -> Snapshot | None:
            if panel.closed:  # nobody sees it any more
                over.set()
            try:
                return session.devices()
            except SpecError:  # the session was closed meanwhile
                return None

        panel.update(session.devices())
        watch(look, panel, over)

    def _options(self, given: dict[str, Any], bound: dict[str, Any]) -> Options:
        """What the magic's line and the cell's body say, together."""
        values: dict[str, Any] = {"model": given["model"]}
        options = {name: "--" + name.replace("_", "-") for name in BODY_NAMES}
        for name, option in options.items():
            expression = given["model_name" if name == "model" else name]
            if name in bound:
                for other in (expression and f"{option} {expression}", values.get(name)):
                    if other:
                        raise SpecError(
                            f"{name} is given twice: by the cell's body and by {other!r} in the "
                            "magic's line; keep one of them"
                        )
                values[name] = bound[name]
            elif expression is not None:
                values[name] = self._look_up(expression, option)
        models = values.get("models")
        runs_functions = given["engine"] == "python" or values.get("predict") is not None
        if not (runs_functions or any(_names(model, "predict") for model in _listed(models))):
            values.pop("load", None)  # a helper of the cell that happens to be called so
        named = [name for name in ("model", "models", "predict") if values.get(name) is not None]
        wanted = ["predict"] if given["engine"] == "python" else ["model", "models"]
        required = [] if named else wanted
        if not (models and all(_names(model, "prompts") for model in _listed(models))):
            required.append("prompts")
        for name in required:
            if values.get(name) is None and name in self.shell.user_ns and name not in bound:
                raise SpecError(
                    f"the cell does not set {name}; the notebook has one from an earlier cell: "
                    f"add {options[name]} {name} to use it"
                )
        for name in _PLAIN_OPTIONS:
            values[name] = given[name]
        for name in ("devices", "stagger"):
            values[name] = given[name] or getattr(self, name)
        default = None if values.get("predict") is not None else self.engine
        values["engine"] = given["engine"] or default
        for name in ("launcher", "task"):
            values[name] = given[name] or getattr(self, name)
        values["chat"] = given["chat"] or self.chat
        generates = values["task"] == "generate" and not values.get("choices")
        sampling = values.get("sampling")
        rows = sampling if isinstance(sampling, list | tuple) else [sampling]
        for name in ("max_tokens", "temperature"):
            set_by_cell = any(isinstance(row, Mapping) and name in row for row in rows)
            default = None if set_by_cell or not generates else getattr(self, name)
            values[name] = default if given[name] is None else given[name]
        return Options.of(**values)

    def complete(self, _: Any, event: Any) -> list[str]:
        """What the Tab key offers; called by IPython with the shell and what is typed."""
        space = [name for name in self.shell.user_ns if not name.startswith("_")]
        values: dict[str, list[str] | None] = {}
        for action in self.cell.parser._actions:  # argparse has no public list of them
            offered = list(action.choices or (space if action.metavar == "NAME" else ()))
            for option in action.option_strings:
                values[option] = None if action.nargs == 0 else offered
        if "--devices" in event.text_until_cursor:  # else the driver need not be asked
            devices = discover(os.environ, "all", patience=TAB_SECONDS).devices
            indices = [str(device.index) for device in devices]
            values["--devices"] = ["all", "cpu", "cpu:2", *indices]
        loaded = [] if self._session is None else self._session.models
        return completions(event.text_until_cursor, Known(options=values, models=loaded))

    def _look_up(self, expression: str, option: str) -> Any:
        try:
            return self.shell.ev(expression)
        except Exception as error:  # noqa: BLE001  # the user's expression
            raise SpecError(
                f"{option} {expression}: {type(error).__name__}: {error}; "
                "name a variable of the notebook"
            ) from None


class Report:
    """Text that a notebook shows as it is, or as HTML where that is given."""

    def __init__(self, text: str, html: str | None = None) -> None:
        self._text = text
        self._html = html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str | None:
        return self._html


def _stopped(session: Session) -> str:
    if not session.stop():
        return "Nothing is running."
    job = session.status().job
    return (
        f"Stopped with {job.done - job.failed:,} of {job.total:,} prompts answered; they are in "
        "`%multigpu last`."
    )


def _listed(models: object) -> list[object]:
    return list(models.values()) if isinstance(models, Mapping) else []


def _names(model: object, key: str) -> bool:
    return isinstance(model, Mapping) and key in model


def _device_list() -> str:
    discovery = discover(os.environ, "all", patience=WAIT_SECONDS)
    lines = []
    for device in discovery.devices:
        line = f"{device.label}  {device.name}"
        if device.total_bytes is not None:
            line += f", {device.total_bytes / 2**30:.1f} GiB"
        if device.capability is not None:
            line += ", compute capability {}.{}".format(*device.capability)
        lines.append(line)
    return "\n".join((*lines, *discovery.notes))


def load(shell: Any) -> None:
    """Register the magics."""
    magics = MultiGPU(shell)
    shell.register_magics(magics)
    shell.configurables.append(magics)
    for name in ("%multigpu", "%%multigpu"):
        shell.set_hook("complete_command", magics.complete, str_key=name)


def unload(shell: Any) -> None:
    """Take the magics out and end their workers."""
    for magics in [one for one in shell.configurables if isinstance(one, MultiGPU)]:
        magics.close()
        shell.configurables.remove(magics)
    for kind in ("cell", "line"):
        shell.magics_manager.magics[kind].pop("multigpu", None)
