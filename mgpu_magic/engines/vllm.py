"""vLLM as an engine that is stepped. The modules `vllm*` alone know vLLM, from 0.20 to 0.33.

`LLM.generate` is not used: it loses a whole call on one bad prompt, starves the engine between
calls, and leaves requests behind when it is interrupted. `add_request`, `step` and
`abort_request` of its `LLMEngine` do none of that. What vLLM is asked for a prompt is the task's
to say, see `vllm_prompts`; here the requests are added, stepped and aborted.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mgpu_magic.engines import EngineGone, Loaded
from mgpu_magic.engines.downloads import Wanted, fetched
from mgpu_magic.engines.vllm_causes import cause_told
from mgpu_magic.engines.vllm_choices import Choices
from mgpu_magic.engines.vllm_fields import check_sampling, sampling_params
from mgpu_magic.engines.vllm_pooling import pooling
from mgpu_magic.engines.vllm_prompts import Ask, Talk, Task, checked, rendered
from mgpu_magic.engines.vllm_settings import (
    arguments,
    free_host_bytes,
    names_on_hub,
    ports,
    variables,
)
from mgpu_magic.messages import Stats
from mgpu_magic.outcomes import Completion, Failure, RemoteError, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mgpu_magic.messages import Request
    from mgpu_magic.outcomes import Logprobs, Outcome
    from mgpu_magic.spec import Sampling, WorkerSpec

# Priorities of requests, the smaller the sooner: what follows about a prompt comes before other
# prompts, as long as vLLM's prefix cache remembers this one. (Without the policy they do nothing.)
FIRST, FOLLOWING = 0, -1


@dataclass(slots=True, eq=False)
class _Prompt:
    """A prompt on its way: the talk about it, and what vLLM was asked last.

    Attributes:
        index: Its place among the prompts.
        talk: Its task's.
        adapter: vLLM's `LoRARequest`, or None.
        began: When it was taken, by the monotonic clock.
        missing: vLLM's ids of the requests that have not come back, with their places.
        outputs: What came back, by place.
    """

    index: int
    talk: Talk
    adapter: Any
    began: float
    missing: dict[str, int] = field(default_factory=dict)
    outputs: dict[int, Any] = field(default_factory=dict)


class VllmEngine:
    """One vLLM `LLM`. `engine_args` are its arguments, and `engine_process` (see `variables`)."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._llm: Any = None
        self._task: Any = None  # a `Task`, once it is loaded
        self._choices: Any = None
        self._prompts: dict[int, _Prompt] = {}  # by index
        self._asked: dict[str, _Prompt] = {}  # by vLLM's request id
        self._numbers = itertools.count()
        self._adapters: dict[str, Any] = {}  # by directory

    def prepare(self) -> None:
        """See `Engine`."""
        os.environ.update(variables(self._spec, os.environ, free_host_bytes()))
        os.environ.update(ports(self._spec, os.environ, os.getppid()))
        with _uncollected():
            # A name of it: `import vllm` alone puts most off until one is asked for, and then it
            # would be part of the load, for which some workers have to wait.
            from vllm import LLM  # noqa: F401

    def check(self, sampling: Sampling) -> None:
        """See `Engine`."""
        check_sampling(sampling.fields, self._spec)

    def load(self, report: Callable[[str, float | None], None]) -> Loaded:
        """See `Engine`."""
        from vllm import LLM

        chosen = self._fetched(report)
        report("loading", None)
        on_cpu = self._spec.devices[0].kind == "cpu"
        if on_cpu and self._spec.engine_args.get("enable_lora"):
            _mend_adapters_on_cpu()
        with _watched_log(report), cause_told():
            self._llm = LLM(**chosen)
        if self._spec.task == "generate":
            self._task = Generation(self._llm, self._spec.label)
            self._choices = Choices(self._llm, self._spec.label, on_cpu=on_cpu)
        else:
            self._task = pooling(self._llm, self._spec.task, self._spec.label)
        config = self._llm.llm_engine.vllm_config
        sequences = config.scheduler_config.max_num_seqs
        return Loaded(
            # A few more than it runs at once, so that a finished one is followed within the same
            # step instead of a round trip later; not many more, so that the tail stays short.
            capacity=sequences + max(2, sequences // 8),
            slots=sequences,
            max_model_len=config.model_config.max_model_len,
            has_chat_template=bool(getattr(self._llm.get_tokenizer(), "chat_template", None)),
        )

    def add(self, request: Request) -> None:
        """See `Engine`. Raises what vLLM raises for a prompt or a sampling that it refuses."""
        task: Task = self._choices if request.choices else self._task
        talk = task.talk(request)
        began = time.monotonic()
        prompt = _Prompt(request.index, talk, self._adapter(request.lora), began)
        self._ask(prompt, next(talk), FIRST)
        self._prompts[request.index] = prompt

    def step(self) -> list[Outcome]:
        """See `Engine`."""
        outcomes = []
        for output in self._llm.llm_engine.step():
            if output.finished and (prompt := self._asked.pop(output.request_id, None)):
                prompt.outputs[prompt.missing.pop(output.request_id)] = output
                if not prompt.missing and (outcome := self._continued(prompt)):
                    outcomes.append(outcome)
        return outcomes

    def abort(self, indices: Iterable[int]) -> None:
        """See `Engine`."""
        self._forget([prompt for index in indices if (prompt := self._prompts.pop(index, None))])

    @property
    def busy(self) -> bool:
        """See `Engine`."""
        return bool(self._prompts)

    def stats(self) -> Stats:
        """See `Engine`."""
        # The user may have set `disable_log_stats`, and then there are no metrics.
        metrics = self._llm.get_metrics() if self._llm.llm_engine.log_stats else ()
        values = {metric.name: getattr(metric, "value", None) for metric in metrics}
        return Stats(
            running=int(values.get("vllm:num_requests_running") or 0),
            waiting=int(values.get("vllm:num_requests_waiting") or 0),
            prompt_tokens=int(values.get("vllm:prompt_tokens") or 0),
            output_tokens=int(values.get("vllm:generation_tokens") or 0),
            kv_usage=values.get("vllm:kv_cache_usage_perc"),
        )

    def close(self) -> None:
        """See `Engine`."""
        with contextlib.suppress(Exception):  # the process ends anyway
            self._llm.llm_engine.engine_core.shutdown()

    def _fetched(self, report: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Arguments of `vllm.LLM`; what is named by a hub id is on this machine by then."""
        chosen = {"model": self._spec.model, **arguments(self._spec)}
        for what, name in names_on_hub(chosen, os.environ):
            found = fetched(self._wanted(name, what), report)
            # Files of this machine need no revision, and vLLM would ask the hub for it.
            chosen.pop("revision" if what == "model" else f"{what}_revision", None)
            chosen[what] = found
        return chosen

    def _wanted(self, name: str, what: str) -> Wanted:
        args = self._spec.engine_args
        revisions = {"model": "revision", "tokenizer": "tokenizer_revision"}
        return Wanted(
            name=name,
            what=what,
            reader="vllm",
            revision=args.get(revisions.get(what, "")),
            load_format=str(args.get("load_format", "auto")),
            cache=args.get("download_dir"),
            token=args.get("hf_token"),
        )

    def _ask(self, prompt: _Prompt, asks: Sequence[Ask], priority: int) -> None:
        """Hand all of them to vLLM, or none and raise."""
        prompt.outputs = {}
        try:
            for place, ask in enumerate(asks):
                key = str(next(self._numbers))
                with _death_told():
                    self._llm.llm_engine.add_request(
                        key,
                        ask.prompt,
                        ask.params,
                        lora_request=prompt.adapter,
                        priority=priority,
                    )
                prompt.missing[key] = place
                self._asked[key] = prompt
        except Exception:
            self._forget([prompt])
            raise

    def _continued(self, prompt: _Prompt) -> Outcome | None:
        """Go on with the talk; returns the outcome if that was its end."""
        try:
            outputs = [prompt.outputs[place] for place in sorted(prompt.outputs)]
            self._ask(prompt, prompt.talk.send(outputs), FOLLOWING)
        except StopIteration as end:
            outcome: Outcome = replace(end.value, seconds=time.monotonic() - prompt.began)
        except EngineGone:
            raise
        except Exception as error:  # noqa: BLE001  # it is the prompt's own
            outcome = Failure(prompt.index, RemoteError.of(error, with_traceback=False))
        else:
            return None
        del self._prompts[prompt.index]
        return outcome

    def _forget(self, prompts: Sequence[_Prompt]) -> None:
        keys = [key for prompt in prompts for key in prompt.missing]
        for prompt in prompts:
            prompt.talk.close()
            prompt.missing = {}
        for key in keys:
            del self._asked[key]
        if keys:
            self._llm.llm_engine.abort_request(keys)

    def _adapter(self, directory: str | None) -> Any:
        """Load an adapter where it is new: a bad one, met while stepping, would end the engine."""
        from vllm.lora.request import LoRARequest

        if directory is None:
            return None
        if directory not in self._adapters:
            # vLLM's prefix cache tells adapters apart by their names.
            path = fetched(self._wanted(directory, "lora"), lambda stage, fraction: None)
            made = LoRARequest(directory, len(self._adapters) + 1, path)
            with _death_told():
                self._llm.llm_engine.add_lora(made)
            self._adapters[directory] = made
        return self._adapters[directory]


class Generation:
    """The task of generating text."""

    def __init__(self, llm: Any, device: str) -> None:
        self._llm = llm
        self._device = device

    def talk(self, request: Request) -> Talk:
        """See `Task`."""
        params = self._params(request.sampling.for_index(request.index))
        (output,) = yield [Ask(rendered(self._llm, request.prompt), params)]
        parts = checked(output).outputs
        texts = tuple(part.text for part in parts)
        ids = tuple(tuple(part.token_ids) for part in parts)
        return Completion(
            index=request.index,
            texts=texts,
            finish_reasons=tuple(part.finish_reason for part in parts),
            prompt_tokens=len(output.prompt_token_ids or ()),
            output_tokens=sum(map(len, ids)),
            seconds=0.0,
            device=self._device,
            logprobs=_all_logprobs(parts),
            prompt_logprobs=_logprobs(output.prompt_logprobs),
            token_ids=None if any(texts) else ids,
            cached_tokens=output.num_cached_tokens,
        )

    def _params(self, fields: dict[str, Any]) -> Any:
        from vllm.sampling_params import RequestOutputKind

        # Without any, the model's own, as LLM.generate has it.
        params = sampling_params(fields) if fields else self._llm.get_default_sampling_params()
        params.output_kind = RequestOutputKind.FINAL_ONLY
        return params


def _mend_adapters_on_cpu() -> None:
    """Keep prompts without an adapter free of other prompts' (vllm#48421).

    Their index is -1, and the operations for CPUs take the last adapter for it.
    """
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    def mended(expand: Any) -> Any:
        def of_adapters_alone(
            inputs: Any, weights: Any, output: Any, indices: Any, *others: Any, **named: Any
        ) -> None:
            inputs = inputs.masked_fill((indices < 0).unsqueeze(1), 0)
            expand(inputs, weights, output, indices, *others, **named)

        return of_adapters_alone

    for name in ("bgmv_expand", "bgmv_expand_slice"):
        operation = mended(getattr(lora_ops, name))
        for module in (lora_ops, punica_cpu):
            setattr(module, name, operation)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Import without a search for garbage, which takes a quarter of the time and finds little.

    What is there at the end stays for good: later searches pass over it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@contextlib.contextmanager
def _death_told() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if type(error).__name__ == "EngineDeadError":  # vLLM's engine process died
            raise EngineGone(str(error)) from error
        raise


def _all_logprobs(outputs: Any) -> tuple[Logprobs, ...] | None:
    found = tuple(_logprobs(part.logprobs) for part in outputs)
    return None if None in found else found  # type: ignore[return-value]  # checked


def _logprobs(positions: Any) -> Logprobs | None:
    if positions is None:
        return None
    return tuple(
        tuple(
            TokenLogprob(token_id, entry.decoded_token, entry.logprob, entry.rank)
            for token_id, entry in (candidates or {}).items()
        )
        for candidates in positions
    )


@contextlib.contextmanager
def _watched_log(report: Callable[[str, float | None], None]) -> Iterator[None]:
    """Learn from vLLM's log where its load has come to; there is no other word of it."""

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if str(record.msg).startswith(("Model loading took", "Loading weights took")):
                report("warming up", None)

    watch, logger = Watch(), logging.getLogger("vllm")
    logger.addHandler(watch)
    try:
        yield
    finally:
        logger.removeHandler(watch)
