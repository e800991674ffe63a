"""Columns of Python values as a pandas frame, a Polars frame or an Arrow table.

Each library is imported by the function that builds its frame. The columns' types are given, not
guessed: a frame looks the same whether or not a row failed, and without rows.
Imports nothing of the package.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """A named column; any value may be None.

    Attributes:
        name: Its name, unlike that of every other column of the frame.
        kind: What the values are: `"object"` anything, `"text"` str, `"texts"` list of str,
            `"int"`, `"float"`.
        values: As many as the frame has rows.
    """

    name: str
    kind: Literal["object", "text", "texts", "int", "float"]
    values: Sequence[Any]


def to_pandas(columns: Sequence[Column]) -> pd.DataFrame:
    """A pandas frame. Text stays `object`, as pandas' own text type takes no lone surrogate.

    Raises:
        ImportError: pandas is not installed.
    """
    pandas = _library("pandas")
    types = {"int": "Int64", "float": "Float64"}
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
    types = {"int": polars.Int64, "float": polars.Float64, "texts": polars.List(text)}
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
    types = {"int": arrow.int64(), "float": arrow.float64(), "texts": arrow.list_(text)}
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
        case "int" | "float":
            return list(column.values)


def _utf8(value: object) -> str:
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=_jsonable)
    return value.encode("utf-8", "backslashreplace").decode()


def _jsonable(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else repr(value)
