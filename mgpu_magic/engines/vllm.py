"""vLLM as an engine that is stepped. The only module that knows vLLM and its versions (0.20-0.33).

`LLM.generate` is not used: it loses a whole call on one bad prompt, starves the engine between
calls, and leaves requests behind when it is interrupted. `add_request`, `step` and
`abort_request` of its `LLMEngine` do none of that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import time
from typing import TYPE_CHECKING, Any, assert_never

from mgpu_magic.engines import EngineGone, Loaded
from mgpu_magic.messages import Chat, Pickled, Stats, Tokens
from mgpu_magic.outcomes import Completion, Failure, RemoteError, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mgpu_magic.messages import Prompt, Request
    from mgpu_magic.outcomes import Logprobs, Outcome
    from mgpu_magic.spec import WorkerSpec

GIB = 2**30
GPU_MEMORY_UTILIZATION = 0.92  # vLLM's own 0.9 wastes GPU memory where nothing else runs on it
CPU_KV_CACHE_GIB = 2  # vLLM fills it while it loads: its own 4 GiB can take longer than the rest


class VllmEngine:
    """One vLLM `LLM`. `engine_args` are its arguments, and `engine_process` (see `variables`)."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._llm: Any = None
        self._begun: dict[str, tuple[int, float]] = {}  # request id -> index, time taken

    def prepare(self) -> None:
        """See `Engine`."""
        os.environ.update(variables(self._spec, os.environ, _free_host_bytes()))
        import vllm  # noqa: F401

    def load(self, report: Callable[[str, float | None], None]) -> Loaded:
        """See `Engine`."""
        from vllm import LLM

        report("loading", None)
        with _watched_log(report):
            self._llm = LLM(model=self._spec.model, **arguments(self._spec))
        config = self._llm.llm_engine.vllm_config
        sequences = config.scheduler_config.max_num_seqs
        return Loaded(
            # A few more than it runs at once, so that a finished one is followed within the same
            # step instead of a round trip later; not many more, so that the tail stays short.
            capacity=sequences + max(2, sequences // 8),
            max_model_len=config.model_config.max_model_len,
            has_chat_template=bool(getattr(self._llm.get_tokenizer(), "chat_template", None)),
        )

    def add(self, request: Request) -> None:
        """See `Engine`. Raises what vLLM raises for a prompt or a sampling that it refuses."""
        key = str(request.index)
        params = self._params(request.sampling.for_index(request.index))
        prompt = self._input(request.prompt)
        try:
            self._llm.llm_engine.add_request(key, prompt, params)
        except Exception as error:
            if type(error).__name__ == "EngineDeadError":  # vLLM's engine process died
                raise EngineGone(str(error)) from error
            raise
        self._begun[key] = (request.index, time.monotonic())

    def step(self) -> list[Outcome]:
        """See `Engine`."""
        return [
            self._outcome(output, *begun)
            for output in self._llm.llm_engine.step()
            if output.finished and (begun := self._begun.pop(output.request_id, None))
        ]

    def abort(self, indices: Iterable[int]) -> None:
        """See `Engine`."""
        keys = [key for key in map(str, indices) if self._begun.pop(key, None)]
        if keys:
            self._llm.llm_engine.abort_request(keys)

    @property
    def busy(self) -> bool:
        """See `Engine`."""
        return bool(self._begun)

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

    def _params(self, fields: dict[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        if not fields:
            params = self._llm.get_default_sampling_params()  # the model's own, as LLM.generate
        else:
            if isinstance(constraint := fields.get("structured_outputs"), dict):
                fields["structured_outputs"] = StructuredOutputsParams(**constraint)
            params = SamplingParams(**fields)
        params.output_kind = RequestOutputKind.FINAL_ONLY
        return params

    def _input(self, prompt: Prompt) -> Any:
        """What `LLM.generate` and `LLM.chat` would hand to the engine.

        Raw prompts are deprecated there, and what renders them (Mistral's tokenizers and images
        included, unlike the tokenizer's own methods) has no public form that does not generate.
        """
        llm = self._llm
        match prompt:
            case str():
                _refuse_surrogates(prompt)
                (rendered,) = llm._preprocess_cmpl([prompt])
            case Tokens(ids):
                (rendered,) = llm._preprocess_cmpl([{"prompt_token_ids": list(ids)}])
            case Chat(messages):
                for message in messages:
                    _refuse_surrogates(message.get("content"))
                (rendered,) = llm._preprocess_chat([list(messages)])
            case Pickled(data):
                fields = pickle.loads(data)  # noqa: S301  # only from the pipe that we inherit
                (rendered,) = llm._preprocess_cmpl([fields])
            case _:
                assert_never(prompt)
        return rendered

    def _outcome(self, output: Any, index: int, begun: float) -> Outcome:
        reasons = tuple(part.finish_reason for part in output.outputs)
        if "error" in reasons:
            error = RemoteError("EngineError", "vLLM gave this request up with an internal error")
            return Failure(index, error)
        texts = tuple(part.text for part in output.outputs)
        ids = tuple(tuple(part.token_ids) for part in output.outputs)
        return Completion(
            index=index,
            texts=texts,
            finish_reasons=reasons,
            prompt_tokens=len(output.prompt_token_ids or ()),
            output_tokens=sum(map(len, ids)),
            seconds=time.monotonic() - begun,
            device=self._spec.label,
            logprobs=_all_logprobs(output.outputs),
            prompt_logprobs=_logprobs(output.prompt_logprobs),
            token_ids=None if any(texts) else ids,
        )


def variables(spec: WorkerSpec, environ: Mapping[str, str], free_bytes: int) -> dict[str, str]:
    """Environment variables of vLLM for this worker; what the user set stays as it is.

    `engine_args["engine_process"]` says whether vLLM runs its engine in a process of its own:
    its default on a GPU (tokenising overlaps the GPU), off on a CPU (where it costs half a
    minute and hides why a start failed).

    Args:
        spec: The worker.
        environ: What is set already.
        free_bytes: Free memory of the host, to be shared with the other workers.
    """
    wanted: dict[str, str] = {}
    on_cpu = spec.devices[0].kind == "cpu"
    own_process = spec.engine_args.get("engine_process", False if on_cpu else None)
    if own_process is not None:
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(own_process))
    if on_cpu:
        # The worker is pinned already; its own cores keep vLLM from choosing others. ("nobind"
        # says that more plainly, and is an IndexError in 0.20.)
        cores = [core for device in spec.devices for core in device.cores]
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
        if spec.engine_args.get("enforce_eager", True):
            # Else logprobs are compiled all the same, and the engine dies without a C++ compiler.
            wanted["TORCH_COMPILE_DISABLE"] = "1"
        if "kv_cache_memory_bytes" not in spec.engine_args:
            share = int(free_bytes * spec.host_share * 0.4 / GIB)
            wanted["VLLM_CPU_KVCACHE_SPACE"] = str(min(max(share, 1), CPU_KV_CACHE_GIB))
    chosen = {"VLLM_ENABLE_V1_MULTIPROCESSING"} if "engine_process" in spec.engine_args else set()
    return {name: value for name, value in wanted.items() if name in chosen or name not in environ}


def arguments(spec: WorkerSpec) -> dict[str, Any]:
    """Arguments of `vllm.LLM`: our defaults under the user's."""
    defaults: dict[str, Any] = {
        "tensor_parallel_size": len(spec.devices),
        "seed": spec.devices[0].index,  # with equal seeds, replicas would give identical samples
        "disable_log_stats": False,  # the panel's figures
    }
    if spec.devices[0].kind == "cpu":
        defaults["enforce_eager"] = True  # compiling costs more than a CPU job gains
    elif "mig" not in spec.devices[0].mask.lower():
        defaults["gpu_memory_utilization"] = GPU_MEMORY_UTILIZATION
    chosen = {k: v for k, v in spec.engine_args.items() if k != "engine_process"}
    return {**defaults, **chosen}


def _free_host_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _refuse_surrogates(text: object) -> None:
    if not isinstance(text, str):  # a chat's message of several parts
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the prompt contains a lone surrogate at position {error.start}, which is no text; "
            'clean it with text.encode("utf-8", "replace").decode()'
        ) from None


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
