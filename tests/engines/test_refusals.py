"""Settings that a real engine refuses: one error, its own words, and nothing loaded for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mgpu_magic import EngineError, ResultSet

if TYPE_CHECKING:
    from mgpu_magic import Session
    from mgpu_magic.spec import EngineName, LauncherName

MANY = [f"number {i}" for i in range(10_000)]


@pytest.fixture
def without_template(model: str, tmp_path: Path) -> str:
    """The model as one that was never trained on chats has it."""
    folder = tmp_path / "base"
    folder.mkdir()
    for file in Path(model).iterdir():
        if not file.name.startswith("chat_template"):
            (folder / file.name).symlink_to(file)
    config = folder / "tokenizer_config.json"
    fields = json.loads(config.read_text(encoding="utf-8"))
    fields.pop("chat_template", None)
    config.unlink()
    config.write_text(json.dumps(fields), encoding="utf-8")
    return str(folder)


def test_what_no_prompt_can_have_is_one_error(apart: Session, without_template: str) -> None:
    """A misspelt field is told before the model is loaded, a missing template at the first chat.

    Of ten thousand prompts none is tried for the first, and one batch at most for the second.
    """

    def ask(prompts: object, **options: Any) -> ResultSet:
        results = apart.generate(
            without_template, prompts, devices="cpu:1", max_model_len=256, **options
        )
        assert isinstance(results, ResultSet)
        return results

    with pytest.raises(EngineError) as refused:
        ask(MANY, sampling={"max_token": 4})
    assert str(refused.value) == (
        "base: the sampling {'max_token': 4} is refused: TypeError: Unexpected keyword argument "
        "'max_token' of SamplingParams; did you mean 'max_tokens'? (nothing was loaded)"
    )
    assert len(refused.value.results) == len(MANY)
    assert not any("Loading weights" in log for log in apart.logs().values())
    with pytest.raises(EngineError, match="all 10000 prompts failed alike: ChatTempl") as no:
        ask(MANY, chat=True)
    assert no.value.kind == "ChatTemplateResolutionError"
    results = ask(["The capital of France is"], temperature=0, max_tokens=4)
    assert "Paris" in str(results.texts[0])
    with pytest.raises(EngineError, match="argument 'multi_modal_dta' of a prompt dict; did you"):
        ask([{"prompt": text, "multi_modal_dta": {}} for text in MANY[:9]])


@pytest.mark.timeout(300)  # vLLM needs up to a minute for it, and more on a busy machine
def test_the_root_cause_of_vllms_engine_process_is_told(
    apart: Session, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It prints it and tells its parent to look there; the cell's first line has it."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "5000")
    with pytest.raises(EngineError) as failed:
        apart.generate(
            model, ["a"], devices="cpu:1", max_model_len=256, engine_args={"engine_process": True}
        )
    first = str(failed.value).splitlines()[0]
    assert "could not be loaded on cpu:0: RuntimeError: vLLM's engine process failed: Va" in first
    assert "less than requested memory for kv (5000.0 GiB)" in first
    assert "VLLM_CPU_KVCACHE_SPACE" in first


@pytest.mark.parametrize(
    ("engine", "launcher"),
    [("vllm", "process"), ("transformers", "process"), ("transformers", "thread")],
)
def test_code_of_a_model_does_not_run_unasked(
    apart: Session, tmp_path: Path, engine: EngineName, launcher: LauncherName
) -> None:
    """The error names the argument that would allow it."""
    names = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    config = {"model_type": "own", "architectures": ["Own"], "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    witness = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(witness)!r}, 'w')\n", encoding="utf-8")
    with pytest.raises(EngineError, match="pass the argument `trust_remote_code=True` to allow"):
        apart.generate(str(tmp_path), ["a", "b"], devices="cpu:1", engine=engine, launcher=launcher)
    assert not witness.exists()
