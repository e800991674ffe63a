"""What choices weigh, computed in the plainest way: one text after the other, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def load(model: str) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)  # a second one waits for the engine's, and all are slow
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return loaded, AutoTokenizer.from_pretrained(model)


def weighed(model: Any, tokenizer: Any, prompt: str, choices: Sequence[str]) -> list[float]:
    """The log-probability of each whole choice after the prompt."""
    import torch

    read = tokenizer(prompt)["input_ids"]
    sums = []
    for choice in choices:
        ids = tokenizer(choice, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([read + ids])).logits[0]
        logprobs = logits.log_softmax(-1)[len(read) - 1 : -1]
        sums.append(sum(float(row[token]) for row, token in zip(logprobs, ids, strict=True)))
    return sums
