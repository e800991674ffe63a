"""What results have in common: frames of their columns, and a short table for a notebook.

Imports `frames` and `tables` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from mgpu_magic import frames

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from mgpu_magic.frames import Column
    from mgpu_magic.tables import Table


class Views(ABC):
    """Frames of the columns and displays of the table that a subclass makes."""

    @abstractmethod
    def _columns(self) -> list[Column]: ...

    @abstractmethod
    def _table(self, *, prompt_width: int, answer_width: int) -> Table: ...

    def to_pandas(self) -> pd.DataFrame:
        """A pandas frame of the columns that the class describes; needs pandas."""
        return frames.to_pandas(self._columns())

    def to_polars(self) -> Any:
        """A Polars frame; objects that are not text become JSON. Needs Polars."""
        return frames.to_polars(self._columns())

    def to_arrow(self) -> pa.Table:
        """An Arrow table; objects that are not text become JSON. Needs PyArrow."""
        return frames.to_arrow(self._columns())

    def __repr__(self) -> str:
        return self._table(prompt_width=32, answer_width=60).text()

    def _repr_html_(self) -> str:
        return self._table(prompt_width=80, answer_width=160).html()
