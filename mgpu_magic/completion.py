"""What the Tab key offers after `%%multigpu` and `%multigpu`, and what a misspelt word meant.

Pure; imports nothing of the package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WORDS = (
    "status", "devices", "check", "logs", "last", "stop", "dashboard", "free", "restart", "help",
)  # fmt: skip
"""The words that `%multigpu` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What there is to offer.

    Attributes:
        options: The cell magic's options, each with values that it may have; None: it has none.
        models: Models that are loaded, as one would name them.
    """

    options: Mapping[str, Sequence[str] | None]
    models: Sequence[str] = ()


def completions(line: str, known: Known) -> list[str]:
    """What may stand in place of the word that ends at the cursor.

    Args:
        line: The line up to the cursor.
        known: What there is to offer.
    """
    magic, *before = line.split()
    word = "" if line[-1:].isspace() or not before else before.pop()
    if magic == "%multigpu":
        offered = _of_line(before, word, known)
    elif magic == "%%multigpu":
        offered = _of_cell(before, word, known)
    else:
        return []
    return [one for one in offered if one.startswith(word.rpartition("=")[2])]


def _of_line(before: Sequence[str], word: str, known: Known) -> Sequence[str]:
    match before:
        case []:
            return WORDS
        case ["free"]:
            return known.models
        case ["check", *options]:
            return _of_cell(options, word, known)
        case ["dashboard"]:
            return ("off",)
        case _:
            return ()


def _of_cell(before: Sequence[str], word: str, known: Known) -> Sequence[str]:
    option, equals, _ = word.partition("=")
    if equals:  # IPython replaces only what follows the sign
        return known.options.get(option) or ()
    values = known.options.get(before[-1]) if before else None
    if values is not None:
        return values
    unused = [option for option in known.options if option not in before]
    return [*([] if before else known.models), *unused]


def meant(word: str) -> str:
    """`"; did you mean status?"`, or a full stop."""
    close = get_close_matches(word, WORDS, n=1)
    return f"; did you mean {close[0]}?" if close else "."


def hinted(message: str, options: Iterable[str]) -> str:
    """What argparse says about a wrong option or value, with the closest right one."""
    for pattern, known in (
        (r"unrecognized arguments: (-\S+?)(?:=\S*)?(?= |$)", options),
        (r"invalid choice: '([^']*)'", re.findall(r"\w+", message.partition("(choose from")[2])),
    ):
        found = re.search(pattern, message)
        if found and (close := get_close_matches(found[1].replace("_", "-"), known, n=1)):
            at = found.end()
            return f"{message[:at]}; did you mean {close[0]}?{message[at:]}"
    if message.startswith("unrecognized"):
        return f"{message}. %%multigpu? lists the options."
    return message
