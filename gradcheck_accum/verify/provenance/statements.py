"""The numbers that a running statement uses: whether K is among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType, FrameType

from gradcheck_accum.verify.provenance.following import Place, place_of, sources_of
from gradcheck_accum.verify.provenance.origins import Origins
from gradcheck_accum.verify.provenance.syntax import syntax_of
from gradcheck_accum.verify.stack.frames import user_frames

_MOST_NAMES = 3
"""The number of variables that a number is followed through, each computed from the one before."""

_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.FunctionDef, ast.ClassDef)


class Statements:
    """Reads each running statement once, until what was read is forgotten."""

    def __init__(self) -> None:
        self._read: dict[tuple[CodeType, int], frozenset[str]] = {}

    def origins_here(self) -> frozenset[str]:
        """The origins of the numbers that the innermost statement of the user's own code uses."""
        frames = user_frames(1)
        if not frames:
            return frozenset()
        place = frames[0].f_code, frames[0].f_lasti
        if place not in self._read:
            self._read[place] = origins_in_statement(frames[0])
        return self._read[place]

    def forget(self) -> None:
        """The same statements may be reached from elsewhere next."""
        self._read.clear()


def origins_in_statement(frame: FrameType) -> frozenset[str]:
    """The origins of all variables that the statement which ``frame`` is at uses, and of what these are computed from.

    Empty where no source shows it.
    """
    syntax = syntax_of(frame)
    if syntax is None:
        return frozenset()
    node = syntax.node_at(frame)
    statement = next((n for n in (node, *syntax.around(node)) if isinstance(n, ast.stmt)), None)
    if statement is None or isinstance(statement, _BLOCKS):
        return frozenset()
    place = place_of(frame, node, syntax)
    reader = Origins()
    found = [reader.of(own, at) for own, at in _variables(statement, place, _MOST_NAMES)]
    return frozenset[str]().union(*(origins for origins in found if origins))


def _variables(node: ast.AST, place: Place, names: int) -> Iterator[tuple[ast.expr, Place]]:
    for inner in _walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load):
            yield inner, place
            sources = sources_of(inner, place) if names else None
            for value, at in sources.values if sources is not None else ():
                yield from _variables(value, at, names - 1)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All that a number is made of: not what only says which item of a list it is."""
    yield node
    below = [node.value] if isinstance(node, ast.Subscript) else ast.iter_child_nodes(node)
    for inner in below:
        yield from _walk(inner)
