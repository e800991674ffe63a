"""Columns of Python values as a pandas frame, a Polars frame or an Arrow table.

Each library is imported by the function that builds its frame. The columns' types are given, not
guessed: a frame looks the same whether or not a row failed, and without rows.
Imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import pyarrow as pa

Kind: TypeAlias = Literal["object", "text", "texts", "bool", "int", "float", "floats"]


@dataclass(frozen=True, slots=True)
class Column:
    """A named column; any value may be None.

    Attributes:
        name: Its name, unlike that of every other column of the frame.
        kind: What the values are: `"object"` anything, `"text"` str, `"texts"` list of str,
            `"bool"`, `"int"` (64 bits), `"float"`, `"floats"` list of float (kept as float32).
        values: As many as the frame has rows.
    """

    name: str
    kind: Kind
    values: Sequence[Any]


def to_pandas(columns: Sequence[Column]) -> pd.DataFrame:
    """A pandas frame. Text stays `object`, as pandas' own text type takes no lone surrogate.

    Raises:
        ImportError: pandas is not installed.
    """
    pandas = _library("pandas")
    types = {"bool": "boolean", "int": "Int64", "float": "Float64"}
    series = {
        column.name: pandas.Series(list(column.values), dtype=types.get(column.kind, "object"))
        for column in columns
    }
    frame: pd.DataFrame = pandas.DataFrame(series)
    return frame


def to_polars(columns: Sequence[Column]) -> Any:
    """A Polars frame. Objects that are not text become JSON.

    Raises:
        ImportError: Polars is not installed.
    """
    polars = _library("polars")
    text = polars.String
    types = {
        "texts": polars.List(text),
        "bool": polars.Boolean,
        "int": polars.Int64,
        "float": polars.Float64,
        "floats": polars.List(polars.Float32),
    }
    return polars.DataFrame(
        [polars.Series(c.name, _encodable(c), dtype=types.get(c.kind, text)) for c in columns]
    )


def to_arrow(columns: Sequence[Column]) -> pa.Table:
    """An Arrow table. Objects that are not text become JSON.

    Raises:
        ImportError: PyArrow is not installed.
    """
    arrow = _library("pyarrow")
    text = arrow.string()
    types = {
        "texts": arrow.list_(text),
        "bool": arrow.bool_(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "floats": arrow.list_(arrow.float32()),
    }
    return arrow.table(
        {c.name: arrow.array(_encodable(c), type=types.get(c.kind, text)) for c in columns}
    )


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}: pip install {name} ({error})") from error


def _encodable(column: Column) -> list[Any]:
    """Its values as Arrow and Polars can hold them: UTF-8, and columns of one type."""
    match column.kind:
        case "object" | "text":
            return [None if value is None else _utf8(value) for value in column.values]
        case "texts":
            return [value and [_utf8(text) for text in value] for value in column.values]
        case "bool" | "int" | "float" | "floats":
            return list(column.values)


def _utf8(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text.encode("utf-8", "backslashreplace").decode()


def _json(value: object) -> str:
    """JSON; else what `repr` says, where keys are no text or a list holds itself; else the type."""
    for text in (_dumped, repr):
        with contextlib.suppress(Exception):  # foreign code
            return text(value)
    return f"({type(value).__name__})"


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_jsonable)


def _jsonable(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)
