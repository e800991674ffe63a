"""What the options of a job come to, and which contradict each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mgpu_magic.errors import SpecError
from mgpu_magic.options import Options
from mgpu_magic.spec import JobSpec, ModelSpec


def job(**options: Any) -> JobSpec:
    """The job of these options; model and prompts are given unless named."""
    if "models" not in options:
        options = {"model": "org/m", **options}
    return Options.of(**{"prompts": ["a"], **options}).job()


def only_model(**options: Any) -> ModelSpec:
    """The model of that job."""
    (model,) = job(**options).models
    return model


def test_a_job_in_short() -> None:
    """A model and prompts are enough; everything else is left to placement and engine."""
    assert job() == JobSpec(models=(ModelSpec(name="org/m", model="org/m"),), prompts=["a"])


def test_each_option_has_its_place() -> None:
    """Options of the job, the model, the engine and the sampling go where they belong."""
    assert job(
        sampling={"stop": ["\n"]},
        engine_args={"dtype": "half"},
        max_tokens=4,
        temperature=0.0,
        seed=7,
        chat=True,
        devices="0,1",
        engine="echo",
        tensor_parallel_size=2,
        max_model_len=512,
        gpu_memory_utilization=0.5,
        stagger=10,
    ) == JobSpec(
        models=(
            ModelSpec(
                name="org/m",
                model="org/m",
                engine="echo",
                engine_args={"dtype": "half", "max_model_len": 512, "gpu_memory_utilization": 0.5},
                tensor_parallel_size=2,
            ),
        ),
        prompts=["a"],
        sampling={"stop": ["\n"], "max_tokens": 4, "temperature": 0.0, "seed": 7},
        chat=True,
        devices="0,1",
        stagger=10.0,
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("/kaggle/input/qwen/1/", "1"),
        ("./models/tiny", "tiny"),
        (Path("/models/tiny"), "tiny"),
        ({"model": "~/models/tiny"}, "tiny"),
    ],
)
def test_a_single_model_has_a_short_name(model: object, name: str) -> None:
    """A hub id is its own name, a directory is called by its last part."""
    assert only_model(model=model).name == name


def test_a_path_is_a_model() -> None:
    """A local directory may be a `Path`, alone or in a dict."""
    assert only_model(model=Path("/models/tiny")).model == "/models/tiny"
    assert only_model(model={"model": Path("/models/tiny")}).model == "/models/tiny"


def test_a_model_may_be_a_dict_of_engine_arguments() -> None:
    """Its own keys are told from the engine's arguments by name."""
    assert only_model(
        model={
            "model": "org/m",
            "devices": [1, 0],
            "replicas": 1,
            "engine": "echo",
            "dtype": "half",
            "engine_args": {"seed": 3},
        }
    ) == ModelSpec(
        name="org/m",
        model="org/m",
        devices=(1, 0),
        replicas=1,
        engine="echo",
        engine_args={"dtype": "half", "seed": 3},
    )


# --- ensembles -------------------------------------------------------------------------------


def test_an_ensemble_keeps_the_order_of_its_models() -> None:
    """Results are asked for by name, also where there is one model alone."""
    spec = job(models={"z": "m1", "a": {"model": "m2"}})
    assert [(model.name, model.model) for model in spec.models] == [("z", "m1"), ("a", "m2")]
    assert spec.ensemble
    assert job(models={"z": "m1"}).ensemble
    assert not job().ensemble


def test_what_a_model_says_itself_counts_more() -> None:
    """Engine, engine arguments and sampling of the job are defaults for its models."""
    spec = job(
        models={
            "a": "m",
            "b": {"model": "m", "engine": "echo", "dtype": "float", "sampling": {"n": 2}},
        },
        engine="vllm",
        engine_args={"dtype": "half"},
        sampling={"n": 1},
        max_tokens=8,
    )
    a, b = spec.models
    assert (a.engine, a.engine_args, a.sampling) == ("vllm", {"dtype": "half"}, None)
    assert (b.engine, b.engine_args) == ("echo", {"dtype": "float"})
    assert b.sampling == {"n": 2, "max_tokens": 8}
    assert spec.sampling == {"n": 1, "max_tokens": 8}


def test_a_model_may_have_its_own_prompts() -> None:
    """Where each has its own, the job needs none."""
    models = {"a": {"model": "m", "prompts": ["x"], "sampling": [{"n": 2}]}}
    spec = Options(models=models).job()
    assert spec.prompts is None
    assert spec.models[0].prompts == ["x"]
    assert spec.models[0].sampling == [{"n": 2}]


def test_the_users_dicts_are_left_alone() -> None:
    """Nothing that was passed in is changed: the cell can run again."""
    model = {"model": "m", "engine_args": {"dtype": "half"}, "sampling": {"n": 1}, "devices": "0"}
    sampling = {"stop": "x"}
    before = {**model, "engine_args": {"dtype": "half"}, "sampling": {"n": 1}}
    for _ in range(2):
        job(models={"a": model}, sampling=sampling, max_tokens=3, max_model_len=9)
    assert model == before
    assert sampling == {"stop": "x"}


# --- forms of a value ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "text"),
    [(None, None), ("cpu:2", "cpu:2"), ("0,1", "0,1"), (1, "1"), ([0, 2], "0,2"), ((3,), "3")],
)
def test_devices_may_be_a_list(devices: object, text: str | None) -> None:
    """Indices may come as text, as a number or as a list."""
    assert job(devices=devices).devices == text


@pytest.mark.parametrize(
    ("devices", "indices"), [("0,1", (0, 1)), (2, (2,)), ([1, 0], (1, 0)), (("1",), (1,))]
)
def test_the_devices_of_a_model_may_be_a_list(devices: object, indices: tuple[int, ...]) -> None:
    """So may those of one model."""
    assert only_model(model={"model": "m", "devices": devices}).devices == indices


@pytest.mark.parametrize(
    ("stagger", "seconds"), [(None, None), ("auto", None), ("10", 10.0), (0, 0.0), (2.5, 2.5)]
)
def test_stagger_is_auto_or_seconds(stagger: object, seconds: float | None) -> None:
    """The magic gives text, a script numbers."""
    assert job(stagger=stagger).stagger == seconds


@pytest.mark.parametrize("odd", [True, "x", [5], {}])
def test_a_job_takes_no_odd_seconds(odd: Any) -> None:
    """Neither from the options nor from who builds the job itself; text of a number is fine."""
    assert job(hang_timeout="5").hang_timeout == 5.0
    for name in ("stagger", "hang_timeout"):
        with pytest.raises(SpecError, match=f"{name} is "):
            job(**{name: odd})
        with pytest.raises(SpecError, match=f"{name} is "):
            replace(job(), **{name: odd})


def test_sampling_options_fill_up_each_dict() -> None:
    """With one dict per prompt an option holds for all; a dict that says it too is an error."""
    sampling = [{"n": 2}, {"stop": ["."]}]
    assert job(sampling=sampling, max_tokens=5).sampling == [
        {"max_tokens": 5, "n": 2},
        {"max_tokens": 5, "stop": ["."]},
    ]
    assert job(sampling=sampling).sampling is sampling
    with pytest.raises(SpecError, match=r"twice: by --max-tokens and in sampling\[1\]"):
        job(sampling=[{}, {"max_tokens": 1}], max_tokens=5)


def test_names_of_models_are_text() -> None:
    """A number would become text, and `results[1]` a KeyError."""
    with pytest.raises(SpecError, match="models has the name 1; names are text"):
        Options.of(models={1: "m"}, prompts=["x"]).job()


@pytest.mark.parametrize("sampling", ["hot", 7, [1]])
def test_what_is_no_sampling_is_left_to_the_prompts(sampling: object) -> None:
    """It is refused where the prompts are read, which knows how many there are."""
    assert job(sampling=sampling, max_tokens=5).sampling == sampling


# --- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": None}, 'no model: set `model = "..."` or `models = {name: model, ...}`'),
        ({"models": {}}, "no model: name one, or set `models` to a non-empty dict"),
        ({"prompts": None}, "no prompts: set `prompts = [...]`"),
        (
            {"models": {"a": {"model": "m", "prompts": ["x"]}, "b": "m"}, "prompts": None},
            "no prompts: set `prompts = [...]`",
        ),
        (
            {"model": "m", "models": {"a": "m"}},
            "both model and models are given; one model, or an ensemble",
        ),
        ({"models": ["a", "b"]}, "models is of type list; pass a dict {name: model}"),
        (
            {"models": {"a": {"dtype": "half"}}},
            "model 'a' is a dict without the key 'model'; "
            'pass {"model": hub id or directory, ...}',
        ),
        (
            {"engine_args": ["half"]},
            "engine_args is of type list; pass a dict of the engine's arguments, such as "
            '{"max_model_len": 4096}',
        ),
        (
            {"model": {"model": "m", "engine_args": "half"}},
            "engine_args is of type str; pass a dict of the engine's arguments, such as "
            '{"max_model_len": 4096}',
        ),
        (
            {"devices": 1.5},
            'devices is 1.5; pass "all", "cpu:2" or indices such as "0,1"',
        ),
        (
            {"devices": True},
            'devices is True; pass "all", "cpu:2" or indices such as "0,1"',
        ),
        (
            {"models": {"a": {"model": "m", "devices": "cuda"}}},
            "model 'a': devices is 'cuda'; pass device indices such as [0, 1]",
        ),
        ({"stagger": "soon"}, "stagger is 'soon'; pass auto or seconds"),
        ({"stagger": -1}, "stagger is -1.0; pass auto or seconds of 0 or more"),
        ({"stagger": "inf"}, "stagger is inf; pass auto or seconds of 0 or more"),
        ({"stagger": True}, "stagger is True; pass auto or seconds"),
        ({"hang_timeout": True}, "hang_timeout is True; pass seconds, or inf"),
        ({"hang_timeout": "x"}, "hang_timeout is 'x'; pass seconds, or inf"),
        (
            {"hang_timeout": "nan"},
            "hang_timeout is nan; pass seconds of 1 or more, or inf to wait for ever",
        ),
        (
            {"models": {"a": {"model": "m", "sampling": "hot"}}},
            "models['a']['sampling'] is of type str; pass a dict, or one per prompt",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    """Before anything is started, with the value, the rule and the fix."""
    with pytest.raises(SpecError) as refused:
        job(**options)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_tokens": 5, "sampling": {"max_tokens": 5}},
            "max_tokens is given twice: by --max-tokens and in sampling; keep one of them",
        ),
        (
            {"seed": 0, "sampling": {"seed": 1}},
            "seed is given twice: by --seed and in sampling; keep one of them",
        ),
        (
            {"max_model_len": 9, "engine_args": {"max_model_len": 9}},
            "max_model_len is given twice: by --max-model-len and in engine_args; keep one of them",
        ),
        (
            {"gpu_memory_utilization": 0.5, "model": {"model": "m", "gpu_memory_utilization": 0.9}},
            "gpu_memory_utilization is given twice: by --gpu-memory-utilization and in "
            "engine_args; keep one of them",
        ),
        (
            {"tensor_parallel_size": 2, "models": {"a": {"model": "m", "tensor_parallel_size": 2}}},
            "tensor_parallel_size is given twice: by --tensor-parallel-size and in model 'a'; "
            "keep one of them",
        ),
        (
            {"seed": 0, "sampling": [{"n": 1}]},
            "seed is given together with one sampling dict per prompt; "
            "put a seed into each dict instead",
        ),
    ],
)
def test_a_value_in_two_places_is_refused(options: dict[str, Any], message: str) -> None:
    """The message names both, also where they are the same."""
    with pytest.raises(SpecError) as refused:
        job(**options)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("option", "hint"),
    [("max_token", "; did you mean max_tokens?"), ("top_k", "."), ("Prompts", "; did you mean")],
)
def test_an_unknown_option_is_refused(option: str, hint: str) -> None:
    """The closest one is named, and where engine and sampling arguments go."""
    with pytest.raises(SpecError) as refused:
        job(**{option: 1})
    message = str(refused.value)
    assert message.startswith(f"there is no option {option!r}{hint}")
    assert "Arguments of the engine go into engine_args" in message


# --- other tasks, functions, adapters --------------------------------------------------------


def test_what_a_model_is_asked_for() -> None:
    """Task, launcher, adapter and batch size go to the model, the choices to the job."""
    asked = job(
        engine="transformers",
        launcher="thread",
        task="classify",
        lora="adapters/one",
        batch_size=4,
        max_model_len=128,
    )
    (model,) = asked.models
    assert (model.engine, model.launcher, model.task) == ("transformers", "thread", "classify")
    assert model.lora == "adapters/one"
    assert model.engine_args == {"batch_size": 4, "max_model_len": 128}
    assert job(choices=(letter for letter in "AB")).choices == ("A", "B")


def test_each_model_of_an_ensemble_may_differ() -> None:
    """What a model says itself goes before what the job says."""
    asked = job(
        models={
            "vectors": {"model": "org/a", "task": "embed", "launcher": "process"},
            "logits": {"model": "org/b", "lora": "own"},
        },
        engine="transformers",
        task="classify",
        launcher="thread",
        lora="shared",
    )
    vectors, logits = asked.models
    assert (vectors.task, vectors.launcher, vectors.lora) == ("embed", "process", "shared")
    assert (logits.task, logits.launcher, logits.lora) == ("classify", "thread", "own")


def predict(state: object, batch: list[object]) -> list[object]:
    """A function as a cell defines it."""
    return batch


def test_functions_need_no_engine_and_no_model() -> None:
    """A `predict` is enough: the python engine runs it, under its name."""
    (model,) = Options(predict=predict, load=len, prompts=["a"], batch_size=2).job().models
    assert (model.name, model.model, model.engine) == ("predict", "predict", "python")
    assert set(model.engine_args) == {"load", "predict", "batch_size"}
    assert model.engine_args["predict"].pickled


def test_functions_of_an_ensemble() -> None:
    """Each model may have functions of its own."""
    functions = {"a": {"predict": predict}, "b": {"predict": len, "launcher": "thread"}}
    asked = job(models={**functions, "c": "org/m"}, engine="echo")
    first, second, third = asked.models
    assert (first.engine, second.engine, third.engine) == ("python", "python", "echo")
    assert first.engine_args["predict"].live is None
    assert second.engine_args["predict"].live is len


@pytest.mark.parametrize(
    ("option", "constraint"),
    [
        ({"json_schema": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"regex": "[0-9]+"}, {"regex": "[0-9]+"}),
        ({"choice": ("yes", "no")}, {"choice": ["yes", "no"]}),
    ],
)
def test_a_constraint_has_vllms_own_name(
    option: dict[str, Any], constraint: dict[str, Any]
) -> None:
    """It joins what else the sampling says."""
    asked = job(sampling={"max_tokens": 3}, **option)
    assert asked.sampling == {"max_tokens": 3, "structured_outputs": constraint}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regex": "a", "choice": ["a"]}, "an answer follows one constraint; given are regex, ch"),
        ({"batch_size": 4}, "batch_size is for the engines transformers and python; vLLM batches"),
        ({"choices": "AB"}, "choices is 'AB'; pass a list of texts"),
        ({"choices": 3}, "choices is 3; pass a list of texts"),
        ({"choices": []}, "choices is empty; pass two texts or more, or leave it out"),
        ({"choices": ["A", "B"], "max_tokens": 3}, "choices are weighed, not generated"),
        ({"load": len}, "load is a function for the python engine, and the engine is 'vllm'"),
        ({"engine": "python"}, "the python engine calls predict(state, batch); define it"),
        ({"model": None, "engine": "python"}, "no model: set"),
        ({"models": {"a": {"load": len}}}, "model 'a' is a dict without the key 'model'"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], said: str) -> None:
    """Each is refused before anything is started, with the way out."""
    with pytest.raises(SpecError) as caught:
        job(**options)
    assert str(caught.value).startswith(said)


def test_a_built_model_is_called_by_its_type() -> None:
    """It has no other name."""

    class TinyModel:
        config = None

        def __call__(self) -> None: ...

    asked = job(model=TinyModel(), engine="transformers", launcher="thread")
    assert asked.models[0].name == "TinyModel"


def test_a_journal_is_the_name_of_a_file() -> None:
    """As text or as a path; nothing else, and not nothing."""
    assert job(journal=Path("a") / "b.jsonl").journal == "a/b.jsonl"
    assert job().journal is None
    for wrong, words in [(5, "journal is 5; pass the name"), (b"a", "pass"), (" ", "is empty")]:
        with pytest.raises(SpecError, match=words):
            job(journal=wrong)
