"""What only a real GPU can show, in one script of a few minutes: `python tests/gpu/check.py`.

Needs an NVIDIA GPU, torch, transformers and nvidia-ml-py, but neither vLLM nor IPython. Prints a
table and exits with 0 only if all of it holds.

```
1 readings      NVML's figures follow an allocation of known size
2 logits        the transformers engine, in a thread and in a process, against float32 on the CPU
3 masks         a process sees its own GPU alone, from its first moment
4 memory        the memory of a killed, a freed and a cancelled worker is given back
5 throughput    a thread against the plain loop over batches, on mixed lengths
```
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # a clone that is not installed

from mgpu_magic import ResultSet, Session
from mgpu_magic.devices import discover, monitor_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Check = Callable[[Path], Iterator[tuple[str, str, bool]]]

MIB = 2**20
BATCH = 8
CLASSIFIER = {"engine": "transformers", "task": "classify", "batch_size": BATCH}


def build(folder: Path, *, layers: int, width: int) -> str:
    """A classifier with random weights and three labels, and a tokenizer of words for it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *(f"w{number}" for number in range(1000))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = folder / f"bert-{layers}-{width}"
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
    ).save_pretrained(path)
    torch.manual_seed(0)
    BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            num_labels=3,
        )
    ).save_pretrained(path)
    return str(path)


def texts(count: int, most: int) -> list[str]:
    """Texts of one to `most` words."""
    chance = random.Random(3)
    return [
        " ".join(f"w{chance.randrange(1000)}" for _ in range(chance.randint(1, most)))
        for _ in range(count)
    ]


def loop(path: str, prompts: list[str], device: str, dtype: Any) -> tuple[Any, float]:
    """Logits of the loop that a script of one's own has, and its seconds without the load."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=dtype).eval().to(device)
    rows: list[Any] = []

    def run(prompts: list[str]) -> None:
        for start in range(0, len(prompts), BATCH):
            batch = tokenizer(prompts[start : start + BATCH], padding=True, return_tensors="pt")
            rows.append(model(**batch.to(device)).logits.float().cpu().numpy())

    with torch.inference_mode():
        run(prompts[: 4 * BATCH])  # warms up
        rows.clear()
        began = time.perf_counter()
        run(prompts)
    return np.concatenate(rows), time.perf_counter() - began


def results(session: Session, model: Any, prompts: list[Any], **options: Any) -> ResultSet:
    """The results of one model, all of them answers."""
    found = session.generate(model, prompts, **options)
    assert isinstance(found, ResultSet)
    found.raise_for_failures()
    return found


def used_bytes() -> int:
    """Memory in use on the first GPU, as the panel shows it."""
    devices = discover(os.environ, "0").devices
    monitor = monitor_for(devices)
    try:
        used = monitor.read({})[devices[0].label].used_bytes
    finally:
        monitor.close()
    if used is None:
        raise RuntimeError("NVML does not say how much memory is in use")
    return used


def settled(expected: int, *, within: int, seconds: float = 20.0) -> int:
    """Memory in use, once it is near what is expected or the time is over."""
    deadline = time.monotonic() + seconds
    while abs((used := used_bytes()) - expected) > within and time.monotonic() < deadline:
        time.sleep(0.2)
    return used


def readings(_: Path) -> Iterator[tuple[str, str, bool]]:
    """NVML's figures follow an allocation of known size."""
    import torch

    torch.zeros(1, device="cuda:0")
    before = used_bytes()
    held = torch.zeros(1024 * MIB, dtype=torch.uint8, device="cuda:0")
    grown = (settled(before + 1024 * MIB, within=16 * MIB) - before) / MIB
    yield "1 readings", f"1024 MiB allocated: {grown:.0f} MiB more in use", abs(grown - 1024) <= 16
    del held
    torch.cuda.empty_cache()
    left = (settled(before, within=16 * MIB) - before) / MIB
    yield "1 readings", f"released: {left:.0f} MiB more in use", abs(left) <= 16


def logits(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Both launchers against float32 on the CPU."""
    path, prompts = build(folder, layers=4, width=256), texts(200, 100)
    expected, _ = loop(path, prompts, "cpu", "float32")
    with Session("0") as session:
        for launcher in ("thread", "process"):
            for dtype, limit in (("float32", 1e-3), ("float16", 2e-2)):
                args = {"dtype": dtype}
                found = results(
                    session, path, prompts, launcher=launcher, engine_args=args, **CLASSIFIER
                )
                error = float(np.abs(found.logits - expected).max())
                where = {item.device for item in found}  # type: ignore[union-attr]  # all answers
                told = f"{launcher}, {dtype}: largest difference {error:.1e} on {where}"
                yield "2 logits", told, error <= limit and where == {"cuda:0"}


def masks(_: Path) -> Iterator[tuple[str, str, bool]]:
    """A process sees its own GPU alone."""

    def predict(state: object, batch: list[int]) -> list[tuple[str, int, str]]:
        import torch

        name = torch.cuda.get_device_name(0)
        return [(os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), name)] * len(batch)

    (device,) = discover(os.environ, "0").devices
    with Session("0") as session:
        ((mask, count, name),) = results(session, None, [1], predict=predict).values
    right = (mask, count, name) == (device.mask, 1, device.name)
    yield "3 masks", f"CUDA_VISIBLE_DEVICES={mask}: {count} device, {name}", right


def memory(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Two GiB held by a worker are given back, however it ends."""

    def load(device: str) -> Any:
        import torch

        return torch.zeros(2048 * MIB, dtype=torch.uint8, device=device)

    def predict(state: Any, batch: list[int]) -> list[int]:
        return [os.getpid()] * len(batch)

    with Session("0") as session:
        before = used_bytes()
        (pid,) = results(session, None, [1], load=load, predict=predict).values
        held = (used_bytes() - before) / MIB
        os.kill(int(pid), signal.SIGKILL)
        left = (settled(before, within=64 * MIB) - before) / MIB
        yield "4 memory", f"killed: {held:.0f} MiB held, {left:.0f} left", held > 2000 > 64 >= left

        results(session, None, [1], load=load, predict=predict)
        session.free()
        left = (settled(before, within=64 * MIB) - before) / MIB
        yield "4 memory", f"a process let go: {left:.0f} MiB left", left <= 64

        path = build(folder, layers=8, width=512)
        for _ in range(2):  # the first time leaves CUDA's context and workspaces in this process
            before = used_bytes()
            results(session, path, texts(8, 20), launcher="thread", **CLASSIFIER)
            session.free()
        left = (settled(before, within=64 * MIB) - before) / MIB
        yield "4 memory", f"a thread let go: {left:.0f} MiB left", left <= 64


def throughput(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """A thread against the plain loop, loaded and warm on both sides."""
    path, prompts = build(folder, layers=12, width=768), texts(4000, 200)
    expected, plain = loop(path, prompts, "cuda:0", "float16")
    options = {"launcher": "thread", "engine_args": {"dtype": "float16"}, **CLASSIFIER}
    with Session("0") as session:
        results(session, path, prompts[: 4 * BATCH], **options)
        began = time.perf_counter()
        found = results(session, path, prompts, **options)
        ours = time.perf_counter() - began
    error = float(np.abs(found.logits - expected).max())
    told = f"{len(prompts) / ours:.0f} texts/s, the loop {len(prompts) / plain:.0f}"
    ratio = plain / ours
    yield "5 throughput", f"{told}: ratio {ratio:.2f}, difference {error:.1e}", ratio >= 1.0


CHECKS: tuple[Check, ...] = (readings, logits, masks, memory, throughput)


def main() -> int:
    """Returns the exit code: 0 if all checks hold."""
    import torch

    if not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 1
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        for check in CHECKS:
            try:
                for name, told, holds in check(Path(folder)):
                    passed &= holds
                    print(f"{'ok  ' if holds else 'FAIL'}  {name:<13} {told}", flush=True)
            except Exception as error:  # noqa: BLE001  # the other checks still tell something
                passed = False
                print(f"FAIL  {check.__name__:<13} {type(error).__name__}: {error}", flush=True)
    foreign = sorted({"vllm", "IPython"} & sys.modules.keys())
    print(
        f"{'FAIL' if foreign else 'ok  '}  0 imports     neither vllm nor IPython {foreign or ''}"
    )
    return 0 if passed and not foreign else 1


if __name__ == "__main__":
    sys.exit(main())
