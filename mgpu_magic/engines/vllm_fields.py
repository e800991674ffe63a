"""What the user writes by vLLM's own names: the fields of `sampling` and of prompt dicts.

vLLM's own errors of a wrong value may name neither the field nor the value, and it ignores fields
that it does not know in some places; here they are named.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


def check_prompt(fields: Mapping[str, Any]) -> None:
    """Refuse a prompt dict with a field that vLLM would ignore.

    Raises:
        TypeError: There is such a field.
    """
    import vllm.inputs

    known: set[str] = set()
    for kind in vars(vllm.inputs).values():
        known |= getattr(kind, "__required_keys__", frozenset())
        known |= getattr(kind, "__optional_keys__", frozenset())
    _refuse_unknown("a prompt dict", fields, known)


def _refuse_unknown(what: str, fields: Iterable[str], known: Iterable[str]) -> None:
    names = sorted(known)
    for name in fields:
        if names and name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            fix = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
            raise TypeError(f"Unexpected keyword argument {name!r} of {what}; {fix}")


def _most_logprobs() -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return getattr(EngineArgs, "max_logprobs", None)


def _made(kind: Any, fields: Mapping[str, Any]) -> Any:
    known: Any = getattr(kind, "__struct_fields__", getattr(kind, "__dataclass_fields__", ()))
    _refuse_unknown(kind.__name__, fields, [name for name in known if not name.startswith("_")])
    try:
        return kind(**fields)
    except TypeError as error:
        raise TypeError(_explained(kind, fields, error)) from error


def _explained(kind: Any, fields: Mapping[str, Any], error: TypeError) -> str:
    """The words of vLLM, and which of the fields they are about."""
    for name, value in fields.items():
        try:
            kind(**{name: value})
        except TypeError as same:
            if str(same) == str(error):
                return f"{name} is {value!r}, a {type(value).__name__}: {error}"
        except Exception:  # noqa: BLE001, S112  # by itself it is wrong in another way
            continue
    return str(error)
