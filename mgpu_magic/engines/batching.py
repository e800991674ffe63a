"""Which requests make the next batch, and what becomes of a batch that fails.

```
held requests ─── alike ───> batch ── answered ──> a result or an error per row
                               ▲            │ out of memory: halves
                               └────────────┘ another error: row by row
```

Pure; imports nothing of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Row = TypeVar("Row")
Result = TypeVar("Result")


def alike(lengths: Mapping[int, int], size: int) -> list[int]:
    """The batch that holds the oldest request and wastes the least padding on it.

    A window of eight batches then computes 1.1 to 1.3 times the tokens that there are, batches in
    the order of arrival 1.7 to 3 times. (The longest first would be no better than that order:
    what is new and long always drags along what is short and has waited.)

    Args:
        lengths: Tokens of each request that is held, by its index, in the order of arrival.
        size: Rows of a batch, 1 or more.

    Returns:
        Indices of at most `size` requests, the shortest first.
    """
    if not lengths:
        return []
    ordered = sorted(lengths, key=lengths.__getitem__)
    place = ordered.index(next(iter(lengths)))
    first, last = max(place - size + 1, 0), max(min(place, len(ordered) - size), 0)
    batches = [ordered[start : start + size] for start in range(first, last + 1)]
    tokens = [[lengths[index] for index in batch] for batch in batches]
    wasted = [each[-1] * len(each) - sum(each) for each in tokens]
    return batches[wasted.index(min(wasted))]


def answered(
    rows: Sequence[Row],
    run: Callable[[Sequence[Row]], Sequence[Result]],
    *,
    lacks_memory: Callable[[Exception], bool],
    is_fatal: Callable[[Exception], bool],
) -> list[Result | Exception]:
    """What `run` gives for each row, or the error that concerns this row alone.

    Args:
        rows: A batch; not empty.
        run: Answers a batch, one result per row, in order.
        lacks_memory: Whether a smaller batch may help.
        is_fatal: Whether no batch can be answered any more.

    Raises:
        Exception: The fatal error.
    """
    try:
        return list(run(rows))
    except Exception as error:
        if is_fatal(error):
            raise
        if len(rows) == 1:
            return [error]
        half = (len(rows) + 1) // 2 if lacks_memory(error) else 1
    # Outside of the handler: the error's traceback would keep the tensors of the batch alive.
    results: list[Result | Exception] = []
    for start in range(0, len(rows), half):
        part = rows[start : start + half]
        results += answered(part, run, lacks_memory=lacks_memory, is_fatal=is_fatal)
    return results
