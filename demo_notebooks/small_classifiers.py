"""Three small classifiers and the comments they judge, made here in half a minute.

```
comments() ──> train three models once ──> paths(): {"minilm": dir, "bert": dir, "llama": dir}
```

The question is whether a comment advertises. The comments are put together from phrases; the
models are a fine-tuned all-MiniLM-L6-v2, and a tiny BERT and a tiny Llama trained from nothing.

    python demo_notebooks/small_classifiers.py     prints their directories
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from small_model import embedder, made_once, path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LABELS = ["fine", "advertising"]

_OPENINGS = ["Honestly,", "Well,", "I think", "In my view", "For what it is worth,", "Look,", ""]
_FINE = [
    "the second chapter explains this much better than the first one does",
    "your numbers do not add up, the population was smaller then",
    "my grandmother used to bake it without any sugar at all",
    "the train was late again and nobody told us why",
    "that goal should never have been given, he was clearly offside",
    "you can repair the old one with a bit of glue and patience",
    "the film is long, but the last scene makes up for it",
    "nobody in my village has seen a winter like this one",
]
_ADVERTISING = [
    "buy now at our shop and save half of the price today",
    "click the link in my profile for a free trial of the course",
    "we offer the best deals on watches, order before midnight",
    "use my code at checkout and get a discount on your first order",
    "earn money from home with this simple trick, sign up here",
    "visit our new store for cheap tickets and exclusive gifts",
    "subscribe to my channel and win a brand new phone",
    "limited offer, call this number and the delivery is free",
]
_ENDINGS = ["", "Anyway.", "Just saying.", "What do you think?", "See you there!", "Cheers."]


def comments(count: int, seed: int) -> tuple[list[str], list[int]]:
    """`count` comments, and for each the index of its label in `LABELS`."""
    chance = random.Random(seed)  # noqa: S311  # repeatable, not secret
    texts, labels = [], []
    for _ in range(count):
        label = chance.randrange(2)
        parts = [chance.choice(_OPENINGS), chance.choice((_FINE, _ADVERTISING)[label])]
        if label == 0 and chance.random() < 0.3:  # who complains of an advertisement is fine
            parts.insert(1, f'they wrote "{chance.choice(_ADVERTISING)}",')
        if chance.random() < 0.3:  # so that the texts differ in length
            parts.append("and besides, " + chance.choice(_FINE))
        texts.append(" ".join(part for part in (*parts, chance.choice(_ENDINGS)) if part))
        labels.append(label)
    return texts, labels


def paths() -> dict[str, Path]:
    """Directories of the three classifiers, trained on the first call."""
    folder = made_once("comment-classifiers", _train_all)
    return {name: folder / name for name in ("minilm", "bert", "llama")}


def _train_all(folder: Path) -> None:
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForSequenceClassification,
        logging,
        set_seed,
    )

    logging.set_verbosity_error()  # the heads are new, as they should be
    logging.disable_progress_bar()
    set_seed(7)
    labels: dict[str, Any] = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: index for index, label in enumerate(LABELS)},
    }
    words = AutoTokenizer.from_pretrained(embedder())
    pieces = AutoTokenizer.from_pretrained(path())
    minilm = AutoModelForSequenceClassification.from_pretrained(embedder(), **labels)
    bert = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=128,
            **labels,
        )
    )
    llama = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=len(pieces),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=128,
            pad_token_id=pieces.pad_token_id,
            **labels,
        )
    )
    _train(minilm, words, folder / "minilm", rate=2e-4, steps=16)
    _train(bert, words, folder / "bert", rate=1e-3, steps=40)
    _train(llama, pieces, folder / "llama", rate=1e-3, steps=60)


def _train(model: Any, tokenizer: Any, folder: Path, *, rate: float, steps: int) -> None:
    import torch

    texts, labels = comments(16 * steps, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for start in range(0, len(texts), 16):
        batch = tokenizer(texts[start : start + 16], padding=True, return_tensors="pt")
        loss = model(**batch, labels=torch.tensor(labels[start : start + 16])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def accuracy(predicted: Sequence[str | None], labels: Sequence[int]) -> float:
    """Part of the predictions that are right, 0 to 1."""
    right = sum(name == LABELS[label] for name, label in zip(predicted, labels, strict=True))
    return right / len(labels)


if __name__ == "__main__":
    for name, directory in paths().items():
        print(name, directory)
