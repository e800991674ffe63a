"""Real transformers models with few weights, made in a moment: small copies of big families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

if TYPE_CHECKING:
    from pathlib import Path

WORDS = (
    "the",
    "a",
    "film",
    "was",
    "good",
    "bad",
    "long",
    "short",
    "and",
    "very",
    "not",
    "I",
    "you",
    "it",
    "we",
    "saw",
    "liked",
    "why",
    "how",
)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SIZE = len(SPECIALS) + len(WORDS)
PAD, UNKNOWN, START, END = range(4)
LABELS = ["bad", "so-so", "good"]


def tokenizer(*, framed: bool = True, pad: bool = True, limit: int | None = None) -> Any:
    """A tokenizer of words.

    Args:
        framed: Whether a text is put between a start and an end token, as BERT has it.
        pad: Whether it has a pad token.
        limit: What it says to be the longest text.
    """
    vocabulary = {word: place for place, word in enumerate([*SPECIALS, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if framed:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", START), ("[SEP]", END)],
        )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        eos_token="[SEP]",
        model_input_names=names if framed else [names[0], names[2]],
        **({"pad_token": "[PAD]"} if pad else {}),
        **({} if limit is None else {"model_max_length": limit}),
    )


def saved(directory: Path, model: Any, words: Any) -> str:
    """The directory, with the model and its tokenizer in it."""
    for module in model.modules():  # as small as a family's own start values are, logits are alike
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            module.weight.data.normal_(std=0.2)
    model.tie_weights()
    model.save_pretrained(directory)
    words.save_pretrained(directory)
    return str(directory)


def labelled(**more: Any) -> dict[str, Any]:
    """Config fields of a classifier of three labels."""
    return {"num_labels": 3, "id2label": dict(enumerate(LABELS)), **more}


def bert(
    directory: Path, *, seed: int = 0, positions: int = 64, limit: int | None = None, **more: Any
) -> str:
    """A BERT classifier with learned positions; reads pairs."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=positions,
        pad_token_id=PAD,
        **(more or labelled()),
    )
    return saved(directory, BertForSequenceClassification(config), tokenizer(limit=limit))


def roberta(directory: Path) -> str:
    """A RoBERTa classifier: its 65 positions are counted from the one after the pad token."""
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=65,
        type_vocab_size=1,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        **labelled(),
    )
    return saved(directory, RobertaForSequenceClassification(config), tokenizer())


def llama_config(**more: Any) -> LlamaConfig:
    """A config of a tiny Llama."""
    return LlamaConfig(
        vocab_size=SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=START,
        eos_token_id=END,
        **more,
    )


def llama_classifier(directory: Path, *, pad: bool = True) -> str:
    """A Llama classifier whose config knows no pad token."""
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(llama_config(**labelled()))
    return saved(directory, model, tokenizer(framed=False, pad=pad))


def llama(directory: Path, *, seed: int = 0, tied: bool = True, **more: Any) -> str:
    """A Llama that generates, with one matrix for words coming in and going out, or with two."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(tie_word_embeddings=tied, pad_token_id=PAD, **more))
    return saved(directory, model, tokenizer(framed=False))


def bart(directory: Path, *, seed: int = 0) -> str:
    """A BART classifier, whose encoder and decoder share one matrix of words."""
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=SIZE,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=END,
        forced_eos_token_id=END,
        **labelled(),
    )
    return saved(directory, BartForSequenceClassification(config), tokenizer())


def logits(directory: str, prompts: list[Any], *, limit: int = 10**6) -> list[list[float]]:
    """What the classifier says, in the plainest way: one prompt after the other, in float32.

    Args:
        directory: Of the model and its tokenizer.
        prompts: Texts and pairs of texts.
        limit: Tokens after which a prompt is cut.
    """
    words = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    found = []
    for prompt in prompts:
        texts = (prompt,) if isinstance(prompt, str) else prompt
        inputs = words(*texts, truncation=True, max_length=limit, return_tensors="pt")
        with torch.inference_mode():
            found.append(model.eval()(**inputs).logits[0].tolist())
    return found
