"""What a `%%multigpu` cell does in a real kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from notebook.live import Notebook

JOB = """
    %%multigpu -o answers
    model = "m"
    prompts = ["a b", "c"]
"""


def test_two_cells_share_their_workers(shared: Notebook) -> None:
    """The second cell finds the model loaded: its workers are those of the first."""
    shared.run(JOB)
    workers = shared.workers()
    shared.run("""
        %%multigpu -o more
        model = "m"
        prompts = ["d", "e", "f g"]
    """)
    assert shared.value("answers.texts, more.texts") == (["a b", "c"], ["d", "e", "f g"])
    assert len(workers) == 2
    assert shared.workers() == workers


def test_an_ensemble_answers_by_model_name(shared: Notebook) -> None:
    """Each model has a device of its own; its results stand under its name, in prompt order."""
    shared.run("""
        %%multigpu -o results
        models = {"a": "left", "b": {"model": "right", "sampling": {"max_tokens": 1}}}
        prompts = ["one two", "three", "four five"]
    """)
    assert shared.value("results['a'].texts") == ["one two", "three", "four five"]
    assert shared.value("results['b'].texts") == ["one", "three", "four"]
    devices = "{name: {answer.device for answer in results[name]} for name in results}"
    assert shared.value(devices) == {"a": {"cpu:0"}, "b": {"cpu:1"}}


def test_the_results_are_the_value_of_the_cell(shared: Notebook) -> None:
    """Without -o the cell shows a table of the answers, and `_` holds them."""
    cell = shared.run("""
        %%multigpu
        model = "m"
        prompts = ["a b", "c"]
    """)
    assert (cell.result or "").splitlines()[0] == "2 prompts, 2 answered"
    assert shared.value("_.texts") == ["a b", "c"]


def test_out_names_the_results_and_shows_nothing(shared: Notebook) -> None:
    """With -o the results are in that variable and the panel is all that one sees."""
    cell = shared.run(JOB)
    assert cell.result is None
    assert shared.value("answers.texts") == ["a b", "c"]
    assert len(cell.displays) == 1


@pytest.mark.parametrize("end", [";", ";  # quiet\n"])
def test_a_semicolon_silences_the_cell(shared: Notebook, end: str) -> None:
    """A cell that ends in `;` shows no table."""
    cell = shared.run(f'%%multigpu\nmodel = "m"\nprompts = ["a"]{end}')
    assert cell.result is None
    assert "1 of 1 prompts" in cell.panel


def test_a_semicolon_within_the_cell_silences_nothing(shared: Notebook) -> None:
    """Only the end of a cell decides, and a `;` inside a string is no end."""
    cell = shared.run("""
        %%multigpu
        model = "m";
        prompts = ["a;"]  # ;
    """)
    assert (cell.result or "").startswith("1 prompt, 1 answered")


def test_the_body_is_an_ordinary_cell(shared: Notebook) -> None:
    """It sees the notebook's names and leaves its own; magics, `!` and functions work in it."""
    shared.run("suffixes = ['1', '2']")
    listing = "files = !echo listed"
    if shared.run(listing).errors:  # IPython 7 on Python 3.12 takes it in no cell
        listing = "files = ['listed']"
    cell = shared.run(f"""
        %%multigpu -o answers
        import string
        model = "m"
        def numbered(word):
            return [word + suffix for suffix in suffixes]
        class Prompts:
            all = [text for letter in string.ascii_lowercase[:2] for text in numbered(letter)]
        !echo from the shell
        {listing}
        %time prompts = Prompts.all
        lengths = [len(prompt) for prompt in prompts if prompt in prompts]
        "the last line's value"
    """)
    assert not cell.errors
    assert shared.value("answers.texts") == ["a1", "a2", "b1", "b2"]
    assert shared.value("numbered('z'), lengths, list(files)") == (
        ["z1", "z2"],
        [2, 2, 2, 2],
        ["listed"],
    )
    assert "from the shell" in cell.stdout
    assert "Wall time" in cell.stdout
    assert cell.displays[0]["text/plain"] == '"the last line\'s value"'


def test_time_can_stand_above(shared: Notebook) -> None:
    """`%%time` on top of the cell times it, and the results are still the cell's value."""
    cell = shared.run("""
        %%time
        %%multigpu
        model = "m"
        prompts = ["a"]
    """)
    assert "Wall time" in cell.stdout
    assert (cell.result or "").startswith("1 prompt, 1 answered")


def test_a_function_can_run_the_magic(shared: Notebook) -> None:
    """`run_cell_magic` gives a function the results, as it gives them to a cell."""
    shared.run("""
        def ask(*prompts):
            body = f'model = "m"\\nprompts = {list(prompts)}'
            return get_ipython().run_cell_magic("multigpu", "--max-tokens 1", body)
        texts = ask("a b", "c").texts
    """)
    assert shared.value("texts") == ["a", "c"]


def test_variables_of_the_notebook_can_be_named(shared: Notebook) -> None:
    """What an option names may come from any cell, and may be an expression."""
    shared.run("""
        class frame:
            body = ["a b", "c d"]
        short = {"max_tokens": 1}
        slow = {"delay": 0.0}
    """)
    options = "m --prompts frame.body --sampling short --engine-args slow -o answers"
    shared.run(f"%%multigpu {options}\npass")
    assert shared.value("answers.texts") == ["a", "c"]


def test_config_sets_defaults(shared: Notebook) -> None:
    """`%config MultiGPU.…` decides where the cell does not."""
    shared.run("%config MultiGPU.devices = 'cpu:1'\n%config MultiGPU.max_tokens = 1")
    try:
        shared.run(JOB)
        assert shared.value("answers.texts") == ["a", "c"]
        assert shared.value("{answer.device for answer in answers}") == {"cpu:0"}
        shared.run("""
            %%multigpu -o answers --devices cpu:2
            model = "m"
            prompts = ["a b"] * 20
            sampling = {"max_tokens": 2}
            engine_args = {"delay": 0.01}
        """)
        assert shared.value("set(answers.texts)") == {"a b"}
        assert shared.value("{answer.device for answer in answers}") == {"cpu:0", "cpu:1"}
    finally:
        shared.run("%config MultiGPU.devices = 'cpu:2'\n%config MultiGPU.max_tokens = None")


def test_help_is_complete(shared: Notebook) -> None:
    """`%%multigpu?` shows every option and every name that a body can bind."""
    [payload] = shared.run("%%multigpu?").reply()["payload"]
    text = payload["data"]["text/plain"]
    for word in (
        *("-o", "--prompts", "--model", "--models", "--sampling", "--engine-args"),
        *("--max-tokens", "--temperature", "--seed", "--chat", "--devices", "--engine"),
        *("--tensor-parallel-size", "--max-model-len", "--gpu-memory-utilization"),
        *("--stagger", "--no-panel"),
        *("model  ", "models  ", "prompts  ", "sampling  ", "engine_args "),
    ):
        assert word in text, word


def test_the_line_magic_tells_what_is_there(shared: Notebook) -> None:
    """`%multigpu` names the devices, what is loaded, the logs and the last results."""
    shared.run("%multigpu restart")
    shared.run("""
        %%multigpu -o answers
        model = "m"
        prompts = ["a"] * 40
        engine_args = {"print_bytes": 200, "delay": 0.02}
    """)
    workers = shared.workers()
    assert (shared.run("%multigpu devices").result or "").splitlines()[0].startswith("cpu:0  CPU")
    status = (shared.run("%multigpu status").result or "").splitlines()
    assert [line.split()[:2] for line in status[:2]] == [["cpu:0", "idle"], ["cpu:1", "idle"]]
    logs = shared.run("%multigpu logs").result or ""
    assert logs.count("--- ") >= len(workers) == 2
    assert "echo echo" in logs
    assert (shared.run("%multigpu last").result or "").startswith("40 prompts, 40 answered")
    assert "%multigpu free [MODEL]" in (shared.run("%multigpu help").result or "")
    refused = shared.run("%multigpu free other")
    assert refused.stderr.strip() == "UsageError: no worker holds 'other'; loaded: m"
    assert shared.workers() == workers
    assert shared.run("%multigpu free m").result == "Workers ended: 2"
    assert shared.workers() == []


def test_unloading_ends_the_workers_and_loading_again_works(notebook: Notebook) -> None:
    """`%unload_ext` leaves no process and no magic; `%load_ext` brings the magic back."""
    notebook.run(JOB)
    assert len(notebook.workers()) == 2
    notebook.run("%unload_ext mgpu_magic")
    assert notebook.workers() == []
    assert "UsageError: Cell magic `%%multigpu` not found." in notebook.run(JOB).stderr
    notebook.load()
    notebook.run("%reload_ext mgpu_magic")
    notebook.load()
    notebook.run("del answers")
    notebook.run(JOB)
    assert notebook.value("answers.texts") == ["a b", "c"]


def offered(notebook: Notebook, line: str) -> list[str]:
    """What the Tab key offers at the end of a line."""
    reply = notebook.client.complete(line, len(line), reply=True, timeout=20)
    matches: list[str] = reply["content"]["matches"]
    return matches


def test_the_tab_key_knows_options_values_and_models(shared: Notebook) -> None:
    """After the magics it offers their own words; models that are loaded are among them."""
    shared.run(JOB)
    assert offered(shared, "%%multigpu --engine t") == ["transformers"]
    assert "--max-model-len" in offered(shared, "%%multigpu --max-")
    assert "answers" in offered(shared, "%%multigpu --prompts an")
    assert "m" in offered(shared, "%multigpu free ")
    assert {"status", "stop"} <= set(offered(shared, "%multigpu st"))
