"""The import table of the package, what importing it costs, and its public names."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import mgpu_magic

PACKAGE = "mgpu_magic"
SOURCE = Path(mgpu_magic.__file__).parent

# The parts (modules, and packages with all their modules), lowest first. A part may import what
# stands in the lines before its own. Kernel and worker share DATA.
DATA = (
    {"budgets", "errors", "process_group", "redaction"},
    {"outcomes"},
    {"sendable"},
    {"spec"},
    {"messages"},
)
KERNEL = (
    *DATA,
    {"own_modules"},
    {"content"},
    {
        "arrays",
        "body",
        "clicks",
        "completion",
        "fingerprints",
        "frames",
        "functions",
        "identity",
        "journal_file",
        "headers",
        "lifecycle",
        "placement",
        "presses",
        "prompts",
        "rates",
        "scratch",
        "records",
        "snapshot",
        "tables",
    },
    {"matching"},
    {"advice", "columns", "markup", "options", "roster", "tracked", "views", "watchdog"},
    {"pictures", "scheduler"},
    {"stats"},
    {"cards", "cells", "folds", "host", "launchers", "loop", "progress", "weights"},
    {"formats", "nvml", "results"},
    {"checkpoint"},
    {"devices", "findings", "fit", "journal"},
    {"preflight", "survey"},
    {"averages", "fleet", "siting"},
    {"preparation"},
    {"check", "ensemble"},
    {"verdict"},
    {"execution"},
    {"run", "sensors"},
    {"endings", "following", "instruments"},
    {"session"},
    {"dashboard"},
    {"magic"},
    {"__init__"},
)
WORKER = (*DATA, {"engines", "outbox"}, {"worker"})

VLLM = {
    "engines/vllm.py",
    "engines/vllm_choices.py",
    "engines/vllm_pooling.py",
    "engines/vllm_fields.py",
}
TRANSFORMERS = {
    "engines/transformers.py",
    "engines/transformers_generate.py",
    "engines/transformers_load.py",
    "engines/transformers_score.py",
}

# Which files may import a foreign library, wherever in the file.
FOREIGN = {
    "vllm": VLLM,
    "torch": VLLM | TRANSFORMERS | {"engines/cuda.py"},
    "transformers": VLLM | TRANSFORMERS,
    "peft": TRANSFORMERS,
    "huggingface_hub": {"check.py", "engines/downloads.py"},
    "tqdm": {"engines/downloads.py"},
    "pynvml": {"nvml.py"},
    "IPython": {"body.py", "clicks.py", "dashboard.py", "magic.py"},
    "ipywidgets": {"clicks.py", "dashboard.py", "magic.py"},
    "matplotlib": {"pictures.py"},
    "ray": set(),
}

HEAVY = ["matplotlib", "numpy", "pandas", "ray", "torch", "transformers", "vllm"]

PUBLIC = {
    "Completion",
    "Ensemble",
    "Failure",
    "JobSpec",
    "ModelSpec",
    "Prediction",
    "ResultSet",
    "Returned",
    "Run",
    "Session",
    "generate",
    "EngineError",
    "JobInterrupted",
    "MultiGPUError",
    "PlacementError",
    "ProtocolError",
    "RequestError",
    "SpecError",
    "WorkerError",
    "WorkerLost",
    "WorkerStartError",
}


@cache
def imports(file: str) -> tuple[str, ...]:
    """Dotted names of all that a file imports, in functions and for type checking too."""
    found: list[str] = []
    for node in ast.walk(ast.parse((SOURCE / file).read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names]
            case ast.ImportFrom(module=module, level=0, names=names):
                found += [f"{module}.{name.name}" for name in names]
            case ast.ImportFrom():
                pytest.fail(f"{file}, line {node.lineno}: write the import with its full name")
    return tuple(found)


def part(file: str) -> str:
    """The part that a file belongs to: `engines` for `engines/vllm.py`."""
    return file.partition("/")[0].removesuffix(".py")


def below(own: str, file: str) -> set[str]:
    """The parts that a file of a part may import."""
    if file == "launchers/thread.py":  # the kernel's own thread is the worker
        return below("launchers", "") | {"worker"}
    for ladder in (WORKER, KERNEL):
        for height, rung in enumerate(ladder):
            if own in rung:
                return set().union(*ladder[:height])
    pytest.fail(f"{own} is new: give it its place in KERNEL or WORKER")


FILES = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES)
def test_a_module_imports_only_what_lies_below_it(file: str) -> None:
    """You can read, test and replace a layer without knowing those above it."""
    own = part(file)
    names = [f"{name}.__init__".split(".") for name in imports(file)]
    imported = {name[1] for name in names if name[0] == PACKAGE}
    assert imported - {own} <= below(own, file)


@pytest.mark.parametrize("library", FOREIGN)
def test_a_foreign_library_is_known_to_few_modules(library: str) -> None:
    """A new release of a library can break only the module that is there to know it."""
    users = {file for file in FILES if library in {name.split(".")[0] for name in imports(file)}}
    assert users <= FOREIGN[library]


LOAD = f"""
import json, sys
import {PACKAGE}
for name in {PACKAGE}.__all__:
    getattr({PACKAGE}, name)
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "{PACKAGE}")
json.dump(
    {{
        "magics": [kind for kind in ("line", "cell") if shell.find_magic("multigpu", kind)],
        "heavy": [name for name in {HEAVY} if name in sys.modules],
    }},
    sys.stdout,
)
"""


def test_loading_the_extension_is_light(tmp_path: Path) -> None:
    """After `%load_ext` both magics are there, and no library has touched CUDA or taken seconds."""
    child = subprocess.run(
        [sys.executable, "-c", LOAD],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {"magics": ["line", "cell"], "heavy": []}


SCRIPT = """
import sys
for name in ("IPython", "ipywidgets", "pynvml", "vllm", "torch", "transformers", "pandas",
             "matplotlib"):
    sys.modules[name] = None  # importing it fails
import mgpu_magic
with mgpu_magic.Session("cpu:1") as session:
    for launcher in ("process", "thread"):
        print(session.generate("m", ["a b"], engine="echo", launcher=launcher).texts)
"""


def test_a_script_needs_no_notebook_and_no_engine(tmp_path: Path) -> None:
    """Jobs run without IPython, and without every library that only some engine or view uses."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    child = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout) == (0, "['a b']\n['a b']\n"), child.stderr


def test_public_names() -> None:
    """What the documentation names can be imported from the package; nothing else is promised."""
    assert set(mgpu_magic.__all__) == PUBLIC
    missing = [name for name in mgpu_magic.__all__ if not hasattr(mgpu_magic, name)]
    assert missing == []
