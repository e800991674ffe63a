"""What the measurements of classifiers share: texts, models, and the loop that scripts run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import SEED, model
from mgpu_magic import ResultSet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mgpu_magic import Session

BATCH = 8
WORDS = ("the", "a", "of", "model", "price", "honestly", "winter", "train", "offer", "village")


def texts(count: int, words: tuple[int, int]) -> list[str]:
    """`count` texts of so many words, least and most."""
    chance = random.Random(SEED)
    return [" ".join(chance.choices(WORDS, k=chance.randint(*words))) for _ in range(count)]


def classifiers(folder: Path, count: int) -> list[str]:
    """Directories of that many classifiers of the size of MiniLM (22 million parameters).

    Their heads are random: speed alone is measured.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging, set_seed

    logging.set_verbosity_error()  # the heads are new
    logging.disable_progress_bar()
    source = model("embedder")
    made = []
    for number in range(count):
        set_seed(number)
        path = folder / f"classifier-{number}"
        AutoModelForSequenceClassification.from_pretrained(source).save_pretrained(path)
        AutoTokenizer.from_pretrained(source).save_pretrained(path)
        made.append(str(path))
    return made


class Loop:
    """A model and its tokenizer, and the loop over batches that a script of one's own has."""

    def __init__(self, path: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForSequenceClassification.from_pretrained(path).eval()

    def logits(self, prompts: Sequence[str]) -> Any:
        """Array of a row per prompt."""
        import torch

        rows = []
        with torch.inference_mode():
            for start in range(0, len(prompts), BATCH):
                batch = self._tokenizer(
                    prompts[start : start + BATCH],
                    padding=True,
                    truncation=True,
                    max_length=512,
                    return_tensors="pt",
                )
                rows.append(self._model(**batch).logits.numpy())
        return np.concatenate(rows)


def ours(session: Session, path: str, prompts: Sequence[str]) -> Any:
    """The same array from a thread of the session."""
    results = session.generate(
        path,
        prompts,
        engine="transformers",
        launcher="thread",
        task="classify",
        batch_size=BATCH,
    )
    assert isinstance(results, ResultSet)
    return results.logits
