"""Tokens after a prompt: generated ones, and the log-probabilities of given ones (choices).

```
waiting ── prompts, left-padded ──> KV cache ─┐
              joins the rows that run <───────┤      one row per answer
                                              ▼
              one token for every row ── ended? ──> Completion; its row leaves the cache
```

The loop is our own: transformers' `generate` has no seed per request, takes no row in before the
last has ended, and cannot be interrupted between tokens; its continuous batching is made for
GPUs (on a CPU eight prompts took it half a minute) and has no seed per request either.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mgpu_magic.engines.transformers_sampling import Decoding
from mgpu_magic.engines.transformers_score import (
    decode,
    empty_cache,
    is_fatal,
    is_stateful,
    joined,
    lacks_memory,
    padded,
    prediction,
    refused_nan,
    repeated,
)
from mgpu_magic.outcomes import Completion, Failure, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mgpu_magic.engines.transformers_load import LoadedModel
    from mgpu_magic.engines.transformers_prompts import Row
    from mgpu_magic.outcomes import Outcome, Prediction

CONTEXT = 6  # tokens before an answer that decide how its first one is written


@dataclass(slots=True, kw_only=True, eq=False)
class Answer:
    """One answer that is being written."""

    row: Row
    place: int
    decoding: Decoding
    generator: Any
    ids: list[int] = field(default_factory=list)
    reason: str | None = None
    text: str = ""


class Generation:
    """Answers of several prompts at a time; a new one begins as soon as an old one ends.

    Args:
        loaded: A causal model.
        slots: Answers at a time; one alone where the model's state cannot be shared.
    """

    def __init__(self, loaded: LoadedModel, slots: int) -> None:
        import torch

        self._loaded = loaded
        self._most = self._slots = 1 if is_stateful(loaded) else slots
        self._suspects: list[Answer] = []
        self._waiting: deque[Answer] = deque()
        self._rows: list[Answer] = []
        self._answers: dict[int, list[Answer]] = {}
        self._outcomes: list[Outcome] = []  # known, and kept if the step that made them fails
        self._cache: Any = None
        self._mask: Any = None
        self._defaults = _defaults(loaded.model)
        self._ends = _ends(loaded)
        self._chance = torch.Generator(loaded.device)
        self._chance.seed()  # of its own: replicas must not give the same samples
        self.prompt_tokens = 0
        self.output_tokens = 0

    @property
    def slots(self) -> int:
        """Answers at a time."""
        return self._slots

    @property
    def running(self) -> int:
        """See `Work`."""
        return len({answer.row.index for answer in list(self._rows)})

    @property
    def held(self) -> int:
        """See `Work`."""
        return len(self._answers)

    def add(self, row: Row, fields: dict[str, Any]) -> None:
        """See `Work`. Raises for sampling fields that are wrong or not known."""
        decoding = Decoding.of(fields, self._defaults)
        if wrong := [end for end in decoding.stop_token_ids if not self._knows(end)]:
            raise ValueError(
                f"stop_token_ids holds {wrong[0]!r}; the model has the tokens 0 to "
                f"{self._loaded.vocabulary - 1}"
            )
        answers = [
            Answer(
                row=row, place=place, decoding=decoding, generator=self._generator(decoding, place)
            )
            for place in range(decoding.n)
        ]
        self._answers[row.index] = answers
        self._waiting.extend(answers)

    def abort(self, indices: Iterable[int]) -> None:
        """See `Work`."""
        forgotten = {index for index in indices if self._answers.pop(index, None)}
        if forgotten:
            self._forget(forgotten)

    def step(self) -> list[Outcome]:
        """See `Work`: takes waiting rows in, then one token for each row."""
        import torch

        try:
            with torch.inference_mode():
                self._admit()
                if self._rows:
                    last = [[answer.ids[-1]] for answer in self._rows]
                    ids = torch.tensor(last, device=self._loaded.device)
                    self._mask = torch.cat([self._mask, torch.ones_like(ids)], 1)
                    logits = decode(self._loaded, ids, self._mask, self._cache)
                    self._extend(refused_nan(logits))
        except Exception as error:
            if is_fatal(error):
                raise
            self._begin_again(error)
        known, self._outcomes = self._outcomes, []
        return known

    def _admit(self) -> None:
        """Read the prompts of the next rows, and the answers so far of rows that begin again."""
        count = min(self._slots - len(self._rows), len(self._waiting))
        if count <= 0:
            return
        new = [self._waiting.popleft() for _ in range(count)]
        old, self._rows = self._rows, [*self._rows, *new]
        loaded = self._loaded
        texts = [(*answer.row.ids, *answer.ids) for answer in new]
        ids, mask = padded(texts, loaded.pad_id, loaded.device, left=True)
        cache = empty_cache(loaded)
        logits = refused_nan(decode(loaded, ids, mask, cache))
        for answer, row in zip(new, logits, strict=True):
            self._take(answer, self._next(answer, row))
        if old:
            cache, mask = joined(self._cache, self._mask, cache, mask)
        self._cache, self._mask = cache, mask
        self._leave()

    def _extend(self, logits: Any) -> None:
        likeliest = logits.argmax(-1).tolist()
        for answer, row, best in zip(self._rows, logits, likeliest, strict=True):
            plain = answer.decoding.greedy and answer.decoding.repetition_penalty == 1
            early = len(answer.ids) < answer.decoding.min_tokens
            self._take(answer, best if plain and not early else self._next(answer, row))
        self._leave()

    def _next(self, answer: Answer, logits: Any) -> int:
        """The next token of an answer."""
        import torch

        decoding = answer.decoding
        logits = logits.float().clone()
        if decoding.repetition_penalty != 1:
            seen = torch.tensor(sorted({*answer.row.ids, *answer.ids}), device=logits.device)
            found = logits[seen]
            penalty = decoding.repetition_penalty
            logits[seen] = torch.where(found > 0, found / penalty, found * penalty)
        if len(answer.ids) < decoding.min_tokens:
            logits[[*self._ends, *decoding.stop_token_ids]] = float("-inf")
        if decoding.greedy:
            return int(logits.argmax())
        probabilities, tokens = considered(logits / decoding.temperature, decoding)
        place = probabilities.multinomial(1, generator=answer.generator)
        return int(place if tokens is None else tokens[place])

    def _take(self, answer: Answer, token: int) -> None:
        """Write a token down, and whether the answer ends with it."""
        decoding = answer.decoding
        answer.ids.append(token)
        self.output_tokens += 1
        length = len(answer.ids)
        ended = token in decoding.stop_token_ids or (
            token in self._ends and not decoding.ignore_eos
        )
        if ended:
            answer.text, answer.reason = self._text(answer, answer.ids[:-1]), "stop"
            return
        if decoding.stop and length > decoding.min_tokens:
            text = self._text(answer, answer.ids)
            places = [place for stop in decoding.stop if (place := text.find(stop)) >= 0]
            if places:
                answer.text, answer.reason = text[: min(places)], "stop"
                return
        limit = self._loaded.limit
        full = limit is not None and len(answer.row.ids) + length >= limit
        if full or length == decoding.max_tokens:
            answer.text, answer.reason = self._text(answer, answer.ids), "length"

    def _text(self, answer: Answer, ids: Sequence[int]) -> str:
        """The text of `ids` where they stand: some tokenizers drop the space of a first word."""
        said: dict[str, Any] = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        before = list(answer.row.ids[-CONTEXT:])
        start = self._loaded.tokenizer.decode(before, **said)
        whole = self._loaded.tokenizer.decode([*before, *ids], **said)
        if whole.startswith(start):
            return str(whole[len(start) :])
        return str(self._loaded.tokenizer.decode(list(ids), **said))  # cut within a character

    def _leave(self) -> None:
        """Drop the rows that ended; an outcome for each prompt whose answers are all there."""
        ended = [answer for answer in self._rows if answer.reason]
        if not ended:
            return
        self._complete(ended)
        self._keep([place for place, answer in enumerate(self._rows) if not answer.reason])
        self._suspects = [answer for answer in self._suspects if not answer.reason]
        if not self._suspects:
            self._slots = self._most

    def _complete(self, ended: Iterable[Answer]) -> None:
        for index in {answer.row.index for answer in ended}:
            answers = self._answers.get(index, ())
            if answers and all(answer.reason for answer in answers):
                self._outcomes.append(self._completion(self._answers.pop(index)))

    def _completion(self, answers: Sequence[Answer]) -> Completion:
        row = answers[0].row
        self.prompt_tokens += len(row.ids)
        return Completion(
            index=row.index,
            texts=tuple(answer.text for answer in answers),
            finish_reasons=tuple(answer.reason for answer in answers),
            prompt_tokens=len(row.ids),
            output_tokens=sum(len(answer.ids) for answer in answers),
            seconds=time.monotonic() - row.began,
            device=self._loaded.label,
        )

    def _keep(self, places: list[int]) -> None:
        """Keep these rows in the cache, and no padding that none of them needs."""
        import torch

        self._rows = [self._rows[place] for place in places]
        if not places:
            self._cache = self._mask = None
            return
        chosen = torch.tensor(places, device=self._loaded.device)
        mask = self._mask[chosen]
        spare = mask.shape[1] - int(mask.sum(1).max())
        self._mask = mask[:, spare:]
        for layer in self._cache.layers:
            layer.keys = layer.keys[chosen, :, spare:]
            layer.values = layer.values[chosen, :, spare:]

    def _forget(self, indices: set[int]) -> None:
        import torch

        self._waiting = deque(a for a in self._waiting if a.row.index not in indices)
        places = [p for p, a in enumerate(self._rows) if a.row.index not in indices]
        if len(places) < len(self._rows):
            with torch.inference_mode():
                self._keep(places)

    def _begin_again(self, error: Exception) -> None:
        """After an error of a batch: its rows go on from where they were, fewer at a time.

        A row that fails alone is given up; when it is found, the others go on as before.
        """
        rows, self._rows = self._rows, []
        self._cache = self._mask = None
        self._complete([answer for answer in rows if answer.reason])
        unfinished = [answer for answer in rows if not answer.reason]
        if len(rows) > 1:
            if lacks_memory(error):
                self._most = self._slots = len(rows) // 2
            else:
                self._slots, self._suspects = 1, unfinished
            self._waiting.extendleft(reversed(unfinished))
            return
        for answer in unfinished:
            index = answer.row.index
            self._answers.pop(index)
            self._forget({index})
            told = RemoteError.of(error, with_traceback=False)
            self._outcomes.append(Failure(index, told))
        self._slots, self._suspects = self._most, []

    def _knows(self, token: object) -> bool:
        return isinstance(token, int) and 0 <= token < self._loaded.vocabulary

    def _generator(self, decoding: Decoding, place: int) -> Any:
        import torch

        if decoding.seed is None:
            return self._chance
        return torch.Generator(self._loaded.device).manual_seed(decoding.seed + place)


class ChoiceScorer:
    """The log-probability of each choice after a prompt, summed over the choice's tokens.

    The prompts are read once. Choices of one token need nothing else; the other tokens of longer
    ones follow on repeated copies of the prompts' KV cache, several choices at a time.
    """

    def __init__(self, loaded: LoadedModel, batch_size: int) -> None:
        self._loaded = loaded
        self._rows = 4 * batch_size  # of choices, which are short, at a time
        self.notes: tuple[str, ...] = ()
        if is_stateful(loaded):
            self.notes = (
                "one prompt at a time: this model keeps a state that rows of unlike length cannot "
                "share; the engine vllm can",
            )

    def __call__(self, rows: Sequence[Row]) -> list[Prediction]:
        """See `Scorer`. Rows with other choices than the first one's are asked in turn."""
        import torch

        by_choices: dict[Any, list[Row]] = {}
        for row in rows:
            by_choices.setdefault(row.continuations, []).append(row)
        values: dict[int, list[float]] = {}
        with torch.inference_mode():
            for continuations, alike in by_choices.items():
                sums = self._sums(alike, continuations)
                values.update({row.index: sums[place] for place, row in enumerate(alike)})
        return [
            prediction(
                self._loaded,
                row,
                "choices",
                values[row.index],
                labels=row.choices,
                activation="softmax",
            )
            for row in rows
        ]

    def _sums(self, rows: Sequence[Row], choices: Sequence[tuple[int, ...]]) -> list[list[float]]:
        """Prompts by choices."""
        import torch

        loaded = self._loaded
        if is_stateful(loaded):
            return [[self._read_anew(row, choice) for choice in choices] for row in rows]
        long = [place for place, choice in enumerate(choices) if len(choice) > 1]
        ids, mask = padded([row.ids for row in rows], loaded.pad_id, loaded.device, left=True)
        cache = empty_cache(loaded) if long else None
        logits = decode(loaded, ids, mask, cache)
        first = torch.tensor([choice[0] for choice in choices], device=loaded.device)
        sums = refused_nan(logits).float().log_softmax(-1)[:, first]
        size = max(self._rows // len(rows), 1)
        for start in range(0, len(long), size):
            places = long[start : start + size]
            sums[:, places] += self._continued([choices[place] for place in places], mask, cache)
        return sums.tolist()  # type: ignore[no-any-return]  # torch is untyped here

    def _continued(self, choices: Sequence[tuple[int, ...]], mask: Any, cache: Any) -> Any:
        """What the tokens after each choice's first add: a tensor, prompts by choices."""
        import torch

        loaded = self._loaded
        prompts, each = len(mask), len(choices)
        ids, own = padded([choice[:-1] for choice in choices], loaded.pad_id, loaded.device)
        targets, _ = padded([choice[1:] for choice in choices], 0, loaded.device)
        # The rows are: prompt 0 with every choice, prompt 1 with every choice, ...
        ids, own, targets = (tensor.repeat(prompts, 1) for tensor in (ids, own, targets))
        whole = torch.cat([mask.repeat_interleave(each, 0), own], 1)
        logits = decode(loaded, ids, whole, repeated(cache, each), only_last=False)
        found = logits.float().log_softmax(-1).gather(-1, targets[:, :, None])[:, :, 0]
        return (found * own).sum(1).view(prompts, each)

    def _read_anew(self, row: Row, choice: tuple[int, ...]) -> float:
        """The whole of prompt and choice in one pass."""
        import torch

        ids = torch.tensor([[*row.ids, *choice]], device=self._loaded.device)
        logits = decode(self._loaded, ids, torch.ones_like(ids), None, only_last=False)
        logprobs = logits[0, len(row.ids) - 1 : -1].float().log_softmax(-1)
        return float(logprobs.gather(-1, ids[0, len(row.ids) :, None]).sum())


def considered(logits: Any, decoding: Decoding) -> tuple[Any, Any]:
    """Weights of the tokens that may be drawn, and their ids (None: every token, in order)."""
    tokens = None
    if 0 < decoding.top_k < len(logits):
        logits, tokens = logits.topk(decoding.top_k)
    if decoding.top_p < 1:
        logits, order = logits.sort(descending=True)
        tokens = order if tokens is None else tokens[order]
        weights = logits.softmax(-1)
        before = weights.cumsum(-1) - weights
        logits = logits.masked_fill(before >= decoding.top_p, float("-inf"))
    weights = logits.softmax(-1)
    if decoding.min_p > 0:
        weights = weights.masked_fill(weights < decoding.min_p * weights.max(), 0)
    return weights, tokens


def _ends(loaded: LoadedModel) -> list[int]:
    """Tokens that end an answer, by the tokenizer and the model's generation config."""
    said = getattr(loaded.model.generation_config, "eos_token_id", None)
    ends = {loaded.tokenizer.eos_token_id, *(said if isinstance(said, list) else [said])}
    return sorted(end for end in ends if end is not None and end < loaded.vocabulary)


def _defaults(model: Any) -> dict[str, Any]:
    """What the model's authors recommend, as far as vLLM would take it too."""
    said = model.generation_config.to_diff_dict()
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    chosen = {name: said[name] for name in names if said.get(name) is not None}
    if said.get("max_new_tokens") is not None:
        chosen["max_tokens"] = said["max_new_tokens"]
    return chosen
