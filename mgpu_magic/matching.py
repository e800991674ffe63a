"""Which row an answer of a journal belongs to.

```
line: key, model, index ──> its own row, if that has the key still ─────────────> taken
                       └──> kept; a row of that key that got none of its own ──> taken
```

Pure. Imports `identity` alone.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mgpu_magic.identity import KEY_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mgpu_magic.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompts of one model.

    Attributes:
        model: Its name.
        keys: Of all its requests, see `identity.request_keys`.
        prompts: What the user passed for each.
    """

    model: str
    keys: bytes
    prompts: Sequence[object]

    def key(self, index: int) -> bytes:
        """The key of one request."""
        return self.keys[KEY_CHARS * index : KEY_CHARS * (index + 1)]


class Rows:
    """The rows that have no answer yet, by key; several rows may have one key."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._asked = asked
        self._first: dict[bytes, int] = {}
        count = sum(len(of_model.prompts) for of_model in asked)
        self._next = array("q", bytes(8 * count))
        self._taken = bytearray(count)
        self._starts: dict[object, int] = {}  # first row by model name
        row = count
        for of_model in reversed(asked):
            for index in reversed(range(len(of_model.prompts))):
                row -= 1
                key = of_model.key(index)
                self._next[row] = self._first.get(key, -1)
                self._first[key] = row
            self._starts[of_model.model] = row

    def is_free(self, key: bytes) -> bool:
        """Whether a row of that key has no answer."""
        return self._free(key) >= 0

    def own(self, key: bytes, fields: Mapping[str, Any]) -> tuple[str, int] | None:
        """Model and index of the row that an answer was given to; None if it has it no more.

        Raises:
            ValueError: The fields are no line of a journal.
        """
        named, index = fields.get("model"), fields.get("index", -1)
        if not isinstance(index, int):
            raise ValueError(f"the index is {index!r}")
        for of_model in self._asked:
            model = of_model.model
            if (named == model or named not in self._starts) and (
                0 <= index < len(of_model.prompts)
                and of_model.key(index) == key
                and not self._taken[self._starts[model] + index]
            ):
                return model, index
        return None

    def take(self, model: str, index: int) -> None:
        """The row has its answer."""
        self._taken[self._starts[model] + index] = True

    def any(self, key: bytes) -> tuple[str, int] | None:
        """Take the next row of that key; None where there is none."""
        row = self._free(key)
        if row < 0:
            return None
        self._taken[row] = True
        for of_model in self._asked:
            if row < len(of_model.prompts):
                break
            row -= len(of_model.prompts)
        return of_model.model, row

    def room(self, key: bytes) -> int:
        """How many rows of that key have no answer."""
        row, count = self._free(key), 0
        while row >= 0:
            count += not self._taken[row]
            row = self._next[row]
        return count

    def _free(self, key: bytes) -> int:
        row = before = self._first.get(key, -1)
        while row >= 0 and self._taken[row]:
            row = self._next[row]
        if row != before:
            self._first[key] = row
        return row


class Strays:
    """Answers whose own row has another prompt now: for rows that get none of their own.

    A row's own comes first, wherever it stands in the file: with a seed it is another sample.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._kept: list[tuple[bytes, Outcome]] = []
        self._room: dict[bytes, int] = {}
        self.left = 0

    def keep(self, key: bytes, outcome: Outcome) -> None:
        """Keep it, unless there are as many as there are rows."""
        room = self._room.get(key)
        if room is None:
            room = self._rows.room(key)
        if room:
            self._kept.append((key, outcome))
            room -= 1
        else:
            self.left += 1
        self._room[key] = room

    def placed(self) -> Iterator[tuple[str, Outcome]]:
        """Each with the model whose row it takes."""
        for key, outcome in self._kept:
            place = self._rows.any(key)
            if place is None:
                self.left += 1
            else:
                yield place[0], replace(outcome, index=place[1])
