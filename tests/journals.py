"""Journals of jobs whose prompts are letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mgpu_magic.journal import Journal
from mgpu_magic.matching import Asked
from mgpu_magic.outcomes import Completion, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KEY = "key-of-16-bytes-"


def keys(prompts: Iterable[str]) -> bytes:
    """A key for each prompt; equal prompts have equal ones."""
    return b"".join((prompt + KEY)[:16].encode() for prompt in prompts)


def opened(file: Path, prompts: str = "abc", model: str = "m") -> Journal:
    """The journal of a job whose prompts are letters."""
    return Journal(str(file), [Asked(model, keys(prompts), list(prompts))], ["numpy", "no-such"])


def written(journal: Journal, *outcomes: Outcome, model: str = "m") -> tuple[str, ...]:
    """Write outcomes and let go; returns what it said meanwhile."""
    said: list[str] = []
    journal.begin(said.append)
    journal.add(model, outcomes)
    journal.end(lambda: said.append("over"))
    journal.wait(10)
    assert said.pop() == "over"
    return tuple(said)


def taken(file: Path, prompts: str = "abc") -> list[tuple[int, str]]:
    """Places and texts of the answers that a job takes from a journal."""
    journal = opened(file, prompts)
    journal.abandon()
    found = [(o.index, o.text) for o in journal.recorded["m"] if isinstance(o, Completion)]
    return sorted(found)
