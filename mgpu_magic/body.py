"""The body of a cell magic, run as IPython runs a cell.

Knows IPython; imports nothing of the package.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from IPython.display import display

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_body(shell: Any, cell: str, names: Sequence[str]) -> dict[str, Any]:
    """Run a body in the notebook's namespace; returns what it bound of `names`.

    Args:
        shell: The `InteractiveShell`.
        cell: The body; magics and `!` work in it, and an error points at its own line.
        names: Those that are asked for.
    """
    __tracebackhide__ = True
    # The empty line stands for the magic's own, so that line numbers are those of the cell.
    source = "\n" + shell.transform_cell(cell)
    # not `execution_count`, which newer releases of IPython raise before a cell runs
    number = len(shell.history_manager.input_hist_parsed) - 1
    file = shell.compile.cache(source, number)
    tree = shell.transform_ast(ast.parse(source, file))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    scope = Scope(shell.user_ns)
    before = {name: shell.user_ns.get(name) for name in names}
    exec(compile(tree, file, "exec"), shell.user_ns, scope)  # noqa: S102  # the user's cell
    if last is not None:
        expression = compile(ast.Expression(last.value), file, "eval")
        value = eval(expression, shell.user_ns, scope)  # noqa: S307  # the user's cell
        if value is not None and not silenced(cell):
            display(value)
    after = {name: shell.user_ns[name] for name in names if name in shell.user_ns}
    # `%time prompts = ...` and `global prompts` bind names past the scope
    return {
        name: value
        for name, value in after.items()
        if name in scope.bound or value is not before[name]
    }


def silenced(cell: str) -> bool:
    """Whether the cell ends in a semicolon, comments and space aside."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    try:
        tokens = tokenize.generate_tokens(io.StringIO(cell).readline)
        texts = [token.string for token in tokens if token.type not in skipped]
    except (tokenize.TokenError, SyntaxError):  # magics and the like
        return cell.rstrip().endswith(";")
    return bool(texts) and texts[-1] == ";"


class Scope(MutableMapping[str, Any]):
    """The notebook's namespace, remembering which names were bound through it."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self.bound: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        return self._namespace[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._namespace[name] = value
        self.bound.add(name)

    def __delitem__(self, name: str) -> None:
        del self._namespace[name]
        self.bound.discard(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._namespace)

    def __len__(self) -> int:
        return len(self._namespace)
