"""transformers models as an engine: one model on one device, in a process or a thread.

```
Request ─ Reader ─> Row ──> Batches      classify, score, embed, choices: one pass per batch
                       └──> Generation   the task generate: one token per step and row
```

Several of these may live in threads of one process. Nothing here sets a default device or
another state that they would share; what transformers itself shares is behind `LOADING`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from mgpu_magic.engines import Loaded
from mgpu_magic.engines.batching import alike, answered
from mgpu_magic.engines.downloads import Wanted, fetched
from mgpu_magic.engines.transformers_generate import ChoiceScorer, Generation
from mgpu_magic.engines.transformers_load import LOADING, load
from mgpu_magic.engines.transformers_prompts import Reader, Row
from mgpu_magic.engines.transformers_sampling import Decoding
from mgpu_magic.engines.transformers_score import (
    Classifier,
    Embedder,
    PairScorer,
    is_fatal,
    lacks_memory,
)
from mgpu_magic.engines.transformers_settings import Settings
from mgpu_magic.messages import Request, Stats, Tokens
from mgpu_magic.outcomes import Failure, RemoteError
from mgpu_magic.spec import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mgpu_magic.engines.transformers_load import LoadedModel
    from mgpu_magic.engines.transformers_score import Scorer
    from mgpu_magic.outcomes import Outcome
    from mgpu_magic.spec import WorkerSpec

WINDOW = 8  # batches at hand to sort by length
GENERATING_WINDOW = 2  # answers differ in length by themselves; a long tail costs more


class Work(Protocol):
    """Requests of one kind, and what answers them."""

    prompt_tokens: int
    output_tokens: int

    @property
    def running(self) -> int:
        """Requests that are being worked on."""

    def add(self, row: Row, fields: dict[str, Any]) -> None:
        """Take a row with its sampling fields, or raise for it alone."""

    def step(self) -> list[Outcome]:
        """Work a little."""

    def abort(self, indices: Iterable[int]) -> None:
        """Forget rows."""

    @property
    def held(self) -> int:
        """Requests that are not answered yet."""


class TransformersEngine:
    """A transformers model. `engine_args` are those of `Settings`."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._settings = Settings()
        self._loaded: LoadedModel | None = None
        self._reader: Reader | None = None
        self._batches: Work | None = None
        self._generation: Work | None = None

    def prepare(self) -> None:
        """See `Engine`."""
        self._settings = Settings.of(self._spec)
        device = self._spec.devices[0]
        in_thread = self._spec.launcher == "thread"
        # The lazy modules of transformers are no place for two threads either.
        with LOADING, _unpinned() if in_thread else contextlib.nullcontext():
            import torch
            from transformers import (  # noqa: F401
                AutoConfig,
                AutoModel,
                AutoModelForCausalLM,
                AutoModelForSequenceClassification,
                AutoTokenizer,
            )

            before = torch.get_num_threads()  # counts the cores, once for the whole process
            if device.kind == "cpu":
                torch.set_num_threads(len(device.cores))
                if in_thread:
                    _leave_to_others(before)

    def check(self, sampling: Sampling) -> None:
        """See `Engine`."""
        if self._spec.task == "generate":
            Decoding.of(sampling.fields, {})
        elif sampling.fields:
            raise TypeError(
                f"task {self._spec.task} takes no sampling, and there is "
                f"{', '.join(map(repr, sampling.fields))}; leave it out"
            )

    def load(self, report: Callable[[str, float | None], None]) -> Loaded:
        """See `Engine`."""
        self._fetch(report)
        report("loading", None)
        loaded = self._loaded = load(self._spec, self._settings)
        report("warming up", None)
        generates = self._spec.task == "generate"
        self._reader = Reader(loaded.tokenizer, loaded.limit, loaded.vocabulary, self._spec.task)
        scorer = self._scorer(loaded)
        self._batches = Batches(scorer, self._settings.batch_size)
        slots = self._settings.batch_size
        if generates:
            self._generation = Generation(loaded, slots)
            slots = self._generation.slots
        self._warm_up()
        return Loaded(
            capacity=self._settings.batch_size * (GENERATING_WINDOW if generates else WINDOW),
            slots=slots,
            max_model_len=loaded.limit,
            has_chat_template=bool(getattr(loaded.tokenizer, "chat_template", None)),
            notes=(*loaded.notes, *scorer.notes),
        )

    def add(self, request: Request) -> None:
        """See `Engine`."""
        assert self._reader is not None  # noqa: S101  # the worker loads first
        row = self._reader.row(request)
        if self._spec.task != "generate":
            self.check(request.sampling)
        work = self._batches if request.choices or self._generation is None else self._generation
        assert work is not None  # noqa: S101
        work.add(row, request.sampling.for_index(request.index))

    def step(self) -> list[Outcome]:
        """See `Engine`."""
        if self._loaded is not None:
            self._loaded.put_right()
        with self._on_device():
            return next((work.step() for work in self._works if work.held), [])

    def abort(self, indices: Iterable[int]) -> None:
        """See `Engine`."""
        forgotten = tuple(indices)
        for work in self._works:
            work.abort(forgotten)

    @property
    def busy(self) -> bool:
        """See `Engine`."""
        return any(work.held for work in self._works)

    def stats(self) -> Stats:
        """See `Engine`."""
        works = self._works
        running = sum(work.running for work in works)
        return Stats(
            running=running,
            waiting=max(sum(work.held for work in works) - running, 0),
            prompt_tokens=sum(work.prompt_tokens for work in works),
            output_tokens=sum(work.output_tokens for work in works),
        )

    def close(self) -> None:
        """See `Engine`. A model that the user built goes back to where it was."""
        loaded = self._loaded
        self._loaded = self._reader = self._batches = self._generation = None
        if loaded is None:
            return
        loaded.undo()
        device = loaded.device
        del loaded
        gc.collect()  # models hold themselves by their hooks
        if device.type == "cuda":
            import torch

            with torch.cuda.device(device):
                torch.cuda.empty_cache()

    @property
    def _works(self) -> list[Work]:
        return [work for work in (self._batches, self._generation) if work is not None]

    def _fetch(self, report: Callable[[str, float | None], None]) -> None:
        """Have the files of what is named by a hub id on this machine, and know them by path."""
        settings, model = self._settings, self._spec.model
        if isinstance(model, str):
            wanted = Wanted(
                name=model,
                reader="transformers",
                revision=settings.revision,
                subfolder=settings.subfolder,
            )
            model = fetched(wanted, report)
        paths: dict[str, Any] = {
            what: fetched(Wanted(name=name, what=what, reader="transformers"), report)
            for what in ("lora", "tokenizer")
            if isinstance(name := getattr(settings, what), str)
        }
        self._spec = replace(self._spec, model=model)
        self._settings = replace(settings, **paths)

    def _scorer(self, loaded: LoadedModel) -> Scorer:
        match self._spec.task:
            case "classify":
                return Classifier(loaded)
            case "score":
                return PairScorer(loaded)
            case "embed":
                return Embedder.of(loaded, self._settings, self._spec.model)
            case "generate":
                return ChoiceScorer(loaded, self._settings.batch_size)

    def _warm_up(self) -> None:
        """Meet what the first batch would meet, while it is still an error of loading."""
        assert self._reader is not None  # noqa: S101
        try:
            row = self._reader.row(Request(0, "a", Sampling()))
        except ValueError:  # a tokenizer without such a word
            row = self._reader.row(Request(0, Tokens((0,)), Sampling()))
        work = self._generation or self._batches
        assert work is not None  # noqa: S101
        work.add(row, {"max_tokens": 1})
        while work.held:
            for outcome in self.step():
                if isinstance(outcome, Failure):
                    raise RuntimeError(
                        f"the model fails on a first small prompt: {outcome.error.kind}: "
                        f"{outcome.error.message}"
                    )
        work.prompt_tokens = work.output_tokens = 0

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        """Kernels that ask for the current device get ours; it is a matter of this thread."""
        loaded = self._loaded
        if loaded is None or loaded.device.type != "cuda":
            yield
            return
        import torch

        with torch.cuda.device(loaded.device):
            yield


class Batches:
    """Rows that wait, and batches of those of like length.

    Args:
        score: Answers a batch.
        size: Rows of a batch.
    """

    def __init__(self, score: Scorer, size: int) -> None:
        self._score = score
        self._size = size
        self._rows: dict[int, Row] = {}
        self.running = 0
        self.prompt_tokens = 0
        self.output_tokens = 0

    def add(self, row: Row, fields: dict[str, Any]) -> None:
        """See `Work`. Sampling plays no part in it."""
        del fields
        self._rows[row.index] = row

    def step(self) -> list[Outcome]:
        """See `Work`: one batch."""
        chosen = alike({index: len(row.ids) for index, row in self._rows.items()}, self._size)
        batch = [self._rows[index] for index in chosen]
        self.running = len(batch)
        results = answered(batch, self._score, lacks_memory=lacks_memory, is_fatal=is_fatal)
        outcomes: list[Outcome] = []
        for row, result in zip(batch, results, strict=True):
            self._rows.pop(row.index)
            if isinstance(result, Exception):
                outcomes.append(Failure(row.index, RemoteError.of(result, with_traceback=False)))
            else:
                self.prompt_tokens += len(row.ids)
                outcomes.append(result)
        self.running = 0
        return outcomes

    def abort(self, indices: Iterable[int]) -> None:
        """See `Work`."""
        for index in indices:
            self._rows.pop(index, None)

    @property
    def held(self) -> int:
        """See `Work`."""
        return len(self._rows)


@contextlib.contextmanager
def _unpinned() -> Iterator[None]:
    """Let this thread see all cores of the process while libraries count them.

    What they find holds for the whole process, and so for the notebook's own cells.
    """
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _leave_to_others(threads: int) -> None:
    """Have the user's own threads start with this number again.

    What is set counts for the thread that sets it, and as the start value of all threads to
    come. So setting it back in another thread leaves ours as it is.
    """
    import torch

    restoring = threading.Thread(target=torch.set_num_threads, args=(threads,))
    restoring.start()
    restoring.join()
