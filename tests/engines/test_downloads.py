"""A model of the hub comes to this machine once, in sight, and says what it lacks."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process.living import listening, run_script, workers
from stub_hub import StubHub

from engines import tiny_models
from mgpu_magic import EngineError, PlacementError, Prediction, ResultSet, Session
from mgpu_magic.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Fetch = Callable[..., list[dict[str, Any]]]

TOKEN = "hf_" + "aB3" * 11
TEXTS = ["the film was good", "very bad", "why"]
WEIGHTS = "own/bert/model.safetensors"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT classifier, with a copy of its weights that no engine needs."""
    folder = tmp_path_factory.mktemp("bert")
    tiny_models.bert(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nobody is logged in."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def apart() -> Iterator[Session]:
    """A session on two CPU devices, which leaves no worker."""
    before = workers()
    with Session("cpu:2") as session:
        yield session
    assert workers() == before


def downloads(hub: StubHub) -> dict[str, int]:
    """How often each file of the model went over the line."""
    return {file.rpartition("/")[2]: count for file, count in hub.fetched.items()}


ONCE = {"config.json": 1, "model.safetensors": 1, "tokenizer.json": 1, "tokenizer_config.json": 1}


def test_two_replicas_download_once(
    bert: Path, home: Path, apart: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One shows how far it is while the other waits; what the notebook set meanwhile counts."""
    with StubHub({"own/bert": bert}, token=TOKEN, seconds=2) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        options: dict[str, Any] = {"engine": "transformers", "task": "classify", "batch_size": 1}
        run = apart.submit(Options(model="own/bert", prompts=TEXTS * 20, **options).job())
        seen: set[tuple[str, ...]] = set()
        fractions: set[float | None] = set()
        while not run.done:
            views = [card.worker for card in run.snapshot.devices if card.worker]
            seen.add(tuple(sorted(view.phase for view in views)))
            fractions |= {view.fraction for view in views if view.phase == "downloading"}
            time.sleep(0.02)
        results = run.result(1)
        assert isinstance(results, ResultSet)
        assert [listening(pid) for pid in workers()] == [[], []]
        assert downloads(hub) == ONCE
        assert ("downloading", "waiting to load") in seen
        assert not [phases for phases in seen if phases.count("downloading") > 1]
        assert fractions
        assert all(fraction is not None and 0 <= fraction <= 1 for fraction in fractions)
        logits = tiny_models.logits(str(bert), TEXTS)
        for row, expected in zip(results, logits * 20, strict=True):
            assert isinstance(row, Prediction)
            assert list(row.values) == pytest.approx(expected, abs=1e-5)
        apart.generate("own/bert", TEXTS, **options)
        apart.free()
        again = apart.generate("own/bert", TEXTS, devices="cpu:1", **options)
        assert again.failures == ()
        assert downloads(hub) == ONCE


FETCH = """
import json, os
from mgpu_magic.engines.downloads import DownloadError, Wanted, fetched
told = []
for environ, fields in {calls!r}:
    os.environ.update(environ)
    stages = []
    try:
        what = fetched(Wanted(**fields), lambda stage, fraction: stages.append(stage))
    except DownloadError as error:
        what = str(error)
    told.append({{"what": what, "stages": stages}})
print(json.dumps(told))
"""


@pytest.fixture
def fetch(tmp_path: Path, home: Path) -> Fetch:
    """Calls `fetched` in a process of its own, several times: path or error, and the stages."""

    def call(hub: StubHub, *calls: tuple[dict[str, str], dict[str, Any]]) -> Any:
        body = FETCH.format(calls=[(set_, {"reader": "vllm", **of}) for set_, of in calls])
        path = os.pathsep.join(filter(None, sys.path))
        quiet = {"HF_ENDPOINT": hub.url, "HF_HUB_VERBOSITY": "critical", "PYTHONPATH": path}
        return run_script(tmp_path, body, **quiet)

    return call


def test_a_connection_that_breaks_is_taken_up(bert: Path, fetch: Fetch) -> None:
    """The rest of a file follows where it broke off, and the file is right."""
    with StubHub({"own/bert": bert}) as hub:
        hub.breaks[WEIGHTS] = 2
        [told] = fetch(hub, ({}, {"name": "own/bert"}))
        assert hub.fetched[WEIGHTS] == 3
    found = Path(told["what"], "model.safetensors").read_bytes()
    assert found == (bert / "model.safetensors").read_bytes()
    assert told["stages"][0] == "downloading"


def test_a_download_that_fails_goes_on_with_the_next_run(bert: Path, fetch: Fetch) -> None:
    """The error names the model and says that one may try again; files that came are kept."""
    wanted: tuple[dict[str, str], dict[str, Any]] = ({}, {"name": "own/bert"})
    with StubHub({"own/bert": bert}) as hub:
        hub.refused[WEIGHTS] = 500
        [told] = fetch(hub, wanted)
        assert told["what"].startswith(f"model 'own/bert' could not be downloaded from {hub.url} (")
        assert "Run the cell again: files that are complete are kept" in told["what"]
        hub.refused.clear()
        hub.fetched.clear()
        [told, again] = fetch(hub, wanted, wanted)
        assert Path(told["what"], "config.json").is_file()
        assert (again["what"], again["stages"]) == (told["what"], [])
        assert downloads(hub) == {"model.safetensors": 1}


def test_what_is_in_the_cache_needs_no_hub(bert: Path, fetch: Fetch) -> None:
    """With or without the word to stay offline, and whatever the hub says."""
    wanted = {"name": "own/bert"}
    with StubHub({"own/bert": bert}) as hub:
        [first] = fetch(hub, ({}, wanted))
        hub.models.clear()
        [gone, offline] = fetch(hub, ({}, wanted), ({"HF_HUB_OFFLINE": "1"}, wanted))
    [unreachable] = fetch(hub, ({}, wanted))
    assert {told["what"] for told in (gone, offline, unreachable)} == {first["what"]}


def test_a_part_of_a_model_is_not_taken_for_the_whole(bert: Path, fetch: Fetch) -> None:
    """A cache without the weights is none, when the hub cannot be asked."""
    wanted = {"name": "own/bert"}
    with StubHub({"own/bert": bert}) as hub:
        hub.refused[WEIGHTS] = 500
        fetch(hub, ({}, wanted))
        asked = hub.asked
        [told] = fetch(hub, ({"HF_HUB_OFFLINE": "1"}, wanted))
        assert hub.asked == asked
    assert "HF_HUB_OFFLINE forbids to download it" in told["what"]


def test_refusals_say_which_token_is_meant(bert: Path, fetch: Fetch, home: Path) -> None:
    """Gated, private or misspelt: what to do, and never the token itself."""
    wanted = {"name": "own/bert"}
    hint = 'set os.environ["HF_TOKEN"] before the cell'
    with StubHub({"own/bert": bert}, token=TOKEN, gated=True) as hub:
        wrong = "hf_" + "x1" * 17
        told = fetch(
            hub,
            ({}, wanted),
            ({"HF_TOKEN": wrong}, wanted),
            ({"HF_TOKEN": TOKEN}, wanted),
            ({}, {**wanted, "token": wrong}),
        )
        none, other, right, argument = [one["what"] for one in told]
        assert none.startswith(
            f"model 'own/bert' is gated on {hub.url}: ask for access on its page"
        )
        assert none.endswith(f"no token was sent: {hint}")
        assert "the token of HF_TOKEN was sent, which may be another account's" in other
        assert right == other
        assert 'the token of engine_args["hf_token"] was sent' in argument
        assert not [
            text for text in (none, other, right, argument) if TOKEN in text or wrong in text
        ]
    with StubHub({}) as hub:
        home.mkdir(exist_ok=True)
        (home / "token").write_text(TOKEN)
        [told_] = fetch(hub, ({}, {"name": "own/brt"}))
        assert told_["what"].startswith(f"model 'own/brt' is not on {hub.url}, or it is private")
        assert "the token that `hf auth login` stored was sent" in told_["what"]


def test_offline_a_model_that_is_not_here_is_refused(
    home: Path, apart: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started: the error has the model, the cache and what to do."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PlacementError) as refused:
        apart.generate("own/absent", TEXTS, engine="transformers", task="classify")
    assert str(refused.value) == (
        f"own/absent: this is no directory here, and is not in {home}/hub/models--own--absent; "
        "HF_HUB_OFFLINE=1 forbids the hub. Pass the directory that holds config.json, or unset "
        "the variable."
    )
    assert apart.logs() == {}


def test_offline_a_tokenizer_that_is_not_here_is_one_error_at_once(
    bert: Path, home: Path, apart: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both devices do not wait for a network: the job ends with its name, the cache, the fix."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    args = {"tokenizer": "own/absent"}
    with pytest.raises(EngineError) as failed:
        apart.generate(str(bert), TEXTS, engine="transformers", task="classify", engine_args=args)
    message = str(failed.value.args[0])
    assert "'own/absent' is not in the cache" in message
    assert str(home / "hub") in message
    assert failed.value.kind == "DownloadError"
    assert failed.value.results.stats.seconds < 60
