"""The user's own functions, run by processes and by threads."""

from __future__ import annotations

import linecache
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mgpu_magic import EngineError, Failure, ResultSet, Returned, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mgpu_magic import Session
    from mgpu_magic.outcomes import RemoteError
    from mgpu_magic.spec import LauncherName

pytestmark = pytest.mark.parametrize("launcher", ["process", "thread"])


def ran(session: Session, prompts: object, **options: Any) -> ResultSet:
    """The results of one function."""
    results = session.generate(prompts=prompts, **options)
    assert isinstance(results, ResultSet)
    return results


def values(results: ResultSet) -> list[Any]:
    """What the function returned, the error's words where it failed."""
    return [item.value if isinstance(item, Returned) else _error(item).message for item in results]


def _error(item: object) -> RemoteError:
    assert isinstance(item, Failure)
    return item.error


def notebook(source: str, **names: Any) -> dict[str, Any]:
    """What a cell of a notebook binds: its functions are of no module that could be imported."""
    space = {"__name__": "__main__", **names}
    file = f"<a cell {abs(hash(source))}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), space)
    return space


def test_results_are_in_prompt_order(session: Session, launcher: LauncherName) -> None:
    """Any object may be a prompt and a result; functions of the notebook are found."""
    cell = notebook(
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def double(x): return 2 * x\n"
        "def load(device): return {'device': device}\n"
        "def predict(state, batch):\n"
        "    return [(state['device'], len(batch), double(point.x)) for point in batch]\n"
    )
    prompts = [cell["Point"](x) for x in range(7)]
    options = {"load": cell["load"], "predict": cell["predict"], "batch_size": 1}
    results = ran(session, prompts, launcher=launcher, **options)
    assert values(results) == [("cpu", 1, 2 * x) for x in range(7)]
    assert results.prompts[3] is prompts[3]


def test_where_it_runs(session: Session, launcher: LauncherName) -> None:
    """A thread is in the kernel, a process is not; both keep to the cores of their device."""
    cell = notebook(
        "import os, threading, time\n"
        "def predict(state, batch):\n"
        "    time.sleep(0.4)\n"
        "    who = os.getpid(), threading.current_thread().name\n"
        "    return [(*who, tuple(os.sched_getaffinity(0)))] * len(batch)\n"
    )
    results = ran(session, [*"abcdef"], predict=cell["predict"], batch_size=1, launcher=launcher)
    places = {item.device: item.value for item in results if isinstance(item, Returned)}
    assert sorted(places) == ["cpu:0", "cpu:1"]
    assert places["cpu:0"][2] != places["cpu:1"][2]
    assert {len(cores) for _, _, cores in places.values()} == {1}
    here = {pid == os.getpid() for pid, _, _ in places.values()}
    assert here == {launcher == "thread"}
    assert len(os.sched_getaffinity(0)) > 1


def test_a_bad_prompt_fails_alone(session: Session, launcher: LauncherName) -> None:
    """The others of its batch are answered; its error points at the line of the cell."""
    cell = notebook(
        "def predict(state, batch):\n"
        "    return [1 / x for x in batch]\n"
    )  # fmt: skip
    results = ran(session, [1, 0, 4], predict=cell["predict"], launcher=launcher)
    assert values(results) == [1.0, "division by zero", 0.25]
    error = _error(results[1])
    assert error.kind == "ZeroDivisionError"
    assert ", line 2, in predict\n    return [1 / x for x in batch]\n" in error.traceback
    assert "mgpu_magic" not in error.traceback


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return batch[1:]", "predict returned 3 results for 4 prompts"),
        ("return None", "predict returned NoneType; return a list"),
        ("return {'a': 1}", "predict returned dict; return a list"),
        ("return 'abcd'", "predict returned str; return a list"),
        ("return set(batch)", "predict returned set; return a list"),
        ("return pd.DataFrame({'a': batch})", 'DataFrame: pass a column of it, df["score"]; ret'),
        ("return torch.tensor(1.0)", "predict returned numpy.ndarray without a dimension; return"),
        ("return (x for x in batch)", "predict returned generator; return a list"),
    ],
)
def test_a_wrong_return_is_told(
    session: Session, launcher: LauncherName, body: str, message: str
) -> None:
    """The message says what came and how many were expected."""
    source = f"import pandas as pd, torch\ndef predict(state, batch):\n    {body}\n"
    cell = notebook(source)
    with pytest.raises(EngineError) as caught:
        ran(session, [1, 2, 3, 4], predict=cell["predict"], launcher=launcher, devices="cpu:1")
    assert message in str(caught.value)


def test_a_result_that_cannot_be_sent_fails_alone(session: Session, launcher: LauncherName) -> None:
    """It is named by its prompt; nobody waits for it."""
    cell = notebook(
        "import threading\n"
        "def predict(state, batch):\n"
        "    return [threading.Lock() if x == 2 else x for x in batch]\n"
    )
    results = ran(session, [1, 2, 3], predict=cell["predict"], launcher=launcher)
    first, told, last = values(results)
    assert (first, last) == (1, 3)
    assert told.startswith("the result of prompt 1 (_thread.lock) cannot be sent back: ")


def test_arrays_come_back_as_numpy(session: Session, launcher: LauncherName) -> None:
    """One array for a batch is one row per prompt; torch tensors need no torch in the kernel."""
    torch = pytest.importorskip("torch")
    cell = notebook(
        "def predict(state, batch):\n"
        "    return torch.tensor([[x, 2 * x] for x in batch], dtype=torch.bfloat16)\n",
        torch=torch,
    )
    first, second = values(ran(session, [1, 2], predict=cell["predict"], launcher=launcher))
    assert isinstance(first, np.ndarray)
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0], [2.0, 4.0])


@pytest.mark.parametrize("made", ["pd.Series(batch)", "pl.Series(batch)", "tuple(batch)"])
def test_a_column_of_results(session: Session, launcher: LauncherName, made: str) -> None:
    """One item per prompt, whatever the index says."""
    source = f"import pandas as pd, polars as pl\ndef predict(_, batch):\n    return {made}\n"
    results = ran(session, [5, 6, 7], predict=notebook(source)["predict"], launcher=launcher)
    assert values(results) == [5, 6, 7]


def test_a_prompt_is_the_object_that_it_was(session: Session, launcher: LauncherName) -> None:
    """Rows of an array stay arrays, and what looks like a chat for vLLM is a list of objects."""
    cell = notebook(
        "def predict(_, batch):\n"
        "    return [(type(x).__name__, str(getattr(x, 'dtype', ''))) for x in batch]\n"
    )
    images = np.zeros((3, 2, 2), dtype=np.uint8)
    results = ran(session, images, predict=cell["predict"], launcher=launcher)
    assert values(results) == [("ndarray", "uint8")] * 3
    users = [{"role": "admin"}, {"role": "user"}]
    results = ran(session, users, predict=cell["predict"], launcher=launcher, chat=True)
    assert values(results) == [("dict", "")] * 2


def test_another_objects_method_is_another_function(
    session: Session, launcher: LauncherName
) -> None:
    """A warm worker never answers with the method of an earlier object."""
    source = (
        "class Adder:\n"
        "    def __init__(self, by): self.by = by\n"
        "    def predict(self, state, batch): return [x + self.by for x in batch]\n"
    )
    adder = notebook(source)["Adder"]
    for by in (10, 1000):
        assert values(ran(session, [1], predict=adder(by).predict, launcher=launcher)) == [1 + by]


def test_a_failing_load_is_one_error(session: Session, launcher: LauncherName) -> None:
    """It is shown once, with the line of the cell."""
    cell = notebook(
        "def load(device):\n"
        "    raise OSError('no such weights')\n"
        "def predict(state, batch): return batch\n"
    )
    with pytest.raises(EngineError, match="no such weights") as caught:
        ran(session, [1], load=cell["load"], predict=cell["predict"], launcher=launcher)
    assert ", line 2, in load\n    raise OSError('no such weights')\n" in caught.value.traceback


def test_the_same_cell_again_loads_nothing(
    session: Session, launcher: LauncherName, tmp_path: Path
) -> None:
    """The state is kept; a changed function is loaded anew."""
    source = (
        "def load(device):\n"
        "    open(folder / f'{time.time_ns()}-{os.getpid()}', 'w').close()\n"
        "def predict(state, batch): return [x + {} for x in batch]\n"
    )

    def run(added: int) -> list[Any]:
        import time

        cell = notebook(source.replace("{}", str(added)), folder=tmp_path, time=time, os=os)
        functions = {"load": cell["load"], "predict": cell["predict"]}
        return values(ran(session, [1], devices="cpu:1", launcher=launcher, **functions))

    assert run(1) == run(1) == [2]
    assert len(list(tmp_path.iterdir())) == 1
    assert run(5) == [6]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_sent_is_named(session: Session, launcher: LauncherName) -> None:
    """A process needs what it uses as a copy; a thread uses the thing itself."""
    cell = notebook(
        "def predict(state, batch):\n"
        "    with lock:\n"
        "        return batch\n",
        lock=threading.Lock(),
    )  # fmt: skip

    def run() -> list[Any]:
        return values(ran(session, [1], predict=cell["predict"], launcher=launcher))

    if launcher == "thread":
        assert run() == [1]
        return
    with pytest.raises(SpecError) as caught:
        run()
    assert str(caught.value).startswith(
        "predict cannot be sent to another process: it uses lock (_thread.lock), which cannot be "
        "pickled (TypeError: "
    )
    assert str(caught.value).endswith(
        "make it inside load(device), or run in threads: --launcher thread"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load": len}, "no model: set"),
        ({"predict": len, "engine": "vllm", "model": "m"}, "predict is a function for the python"),
        ({"load": len, "engine": "python", "model": "m"}, "the python engine calls predict"),
        ({"predict": 3}, "predict is of type int; define a function"),
        ({"predict": len, "task": "embed", "choices": ["a", "b"]}, "choices are weighed by a gen"),
    ],
)
def test_a_wrong_cell_is_refused(
    session: Session, launcher: LauncherName, options: dict[str, Any], message: str
) -> None:
    """Nothing is started, and the message says what to do."""
    with pytest.raises(SpecError) as caught:
        ran(session, [1], launcher=launcher, **options)
    assert str(caught.value).startswith(message)


def test_an_unknown_argument_is_named(session: Session, launcher: LauncherName) -> None:
    """A misspelt argument is told with those that there are."""
    predict: Callable[..., Any] = notebook("def predict(state, batch): return batch")["predict"]
    with pytest.raises(EngineError, match="the python engine has no argument 'batchsize'; it know"):
        ran(session, [1], predict=predict, launcher=launcher, engine_args={"batchsize": 3})


def test_a_slow_device_is_known_the_next_time(session: Session, launcher: LauncherName) -> None:
    """One that took eight times as long gets few prompts at once in the next job, not half."""
    cell = notebook(
        "import os, time\n"
        "def predict(state, batch):\n"
        "    time.sleep(len(batch) * (0.001 if first in os.sched_getaffinity(0) else 0.008))\n"
        "    return [1] * len(batch)\n",
        first=min(os.sched_getaffinity(0)),
    )

    def shares(count: int) -> Counter[str]:
        asked = {"predict": cell["predict"], "batch_size": 20, "launcher": launcher}
        results = ran(session, range(count), **asked)
        return Counter(item.device for item in results if isinstance(item, Returned))

    assert shares(400)["cpu:1"] < 160
    assert 0 < shares(40)["cpu:1"] < 10
