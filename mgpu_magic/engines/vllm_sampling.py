"""What the user's `sampling` is for vLLM: `SamplingParams`, or `PoolingParams` of a pooling task.

vLLM's own errors of a wrong value may name neither the field nor the value; here they do.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mgpu_magic.spec import WorkerSpec

_LOGPROBS = ("logprobs", "prompt_logprobs")


def sampling_params(fields: Mapping[str, Any]) -> Any:
    """`SamplingParams` with these fields.

    Raises:
        TypeError: A field is not known, or its value is of a wrong type.
        ValueError: What vLLM raises for a value that is out of range.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    chosen = dict(fields)
    if isinstance(constraint := chosen.get("structured_outputs"), dict):
        chosen["structured_outputs"] = _made(StructuredOutputsParams, constraint)
    return _made(SamplingParams, chosen)


def check_sampling(fields: Mapping[str, Any], spec: WorkerSpec) -> None:
    """Refuse what can be known to be wrong before there is a model.

    Raises:
        Exception: No prompt could be answered with these fields.
    """
    if spec.task != "generate":
        from vllm import PoolingParams

        _made(PoolingParams, fields)
        return
    sampling_params(fields)
    most = spec.engine_args.get("max_logprobs", _most_logprobs())
    for name in _LOGPROBS:
        asked = fields.get(name)
        if isinstance(asked, int) and isinstance(most, int) and asked > most >= 0:
            raise ValueError(
                f"{name} is {asked}, greater than max_logprobs, which is {most}; raise it with "
                f'engine_args = {{"max_logprobs": {asked}}}'
            )


def _most_logprobs() -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return getattr(EngineArgs, "max_logprobs", None)


def _made(kind: Any, fields: Mapping[str, Any]) -> Any:
    try:
        return kind(**fields)
    except TypeError as error:
        raise TypeError(_explained(kind, fields, error)) from error


def _explained(kind: Any, fields: Mapping[str, Any], error: TypeError) -> str:
    """The words of vLLM, and which of the fields they are about."""
    known = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", ())
    for name, value in fields.items():
        if known and name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            return f"{error} ({kind.__name__})" + "".join(f"; did you mean {c!r}?" for c in close)
        try:
            kind(**{name: value})
        except TypeError as same:
            if str(same) == str(error):
                return f"{name} is {value!r}, a {type(value).__name__}: {error}"
        except Exception:  # noqa: BLE001, S112  # by itself it is wrong in another way
            continue
    return str(error)
