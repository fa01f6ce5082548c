"""Which node of a file an instruction was compiled from, on a Python without column positions (3.10).

The tree of the file is compiled again with a number in place of the line of every node of interest. Lines hardly ever
affect the instructions. If these are the same, the line of an instruction is the number of its node; if they are not
(another tool has rewritten the file, say), nothing is known.
"""

from __future__ import annotations

import ast
import contextlib
import copy
from collections.abc import Iterator
from types import CodeType

_NUMBERED = (ast.BinOp, ast.AugAssign, ast.Call)
"""The nodes that frames are looked up for: products, quotients and calls. Others keep their lines, because the compiler
keeps a jump whose line differs from its target's, and omits it otherwise."""


class Numbered:
    """The products, quotients and calls of a file, by the instructions that they became."""

    def __init__(self, filename: str, tree: ast.Module) -> None:
        self._nodes: dict[int, ast.AST] = {}
        self._codes: dict[CodeType, CodeType | None] = {}
        self._all: list[CodeType] = []
        # A tree that cannot be copied or compiled is nested too deep, or was compiled with other flags (a notebook's
        # await).
        with contextlib.suppress(RecursionError, SyntaxError, ValueError):
            self._all += _with_inner(compile(self._numbered(tree), filename, "exec", dont_inherit=True))

    def _numbered(self, tree: ast.Module) -> ast.Module:
        own = copy.deepcopy(tree)
        first = max((getattr(node, "end_lineno", None) or 0 for node in ast.walk(tree)), default=0) + 1
        for number, (node, twin) in enumerate(zip(ast.walk(tree), ast.walk(own), strict=True), start=first):
            if isinstance(twin, _NUMBERED):
                self._nodes[number] = node
                twin.lineno, twin.col_offset = twin.end_lineno, twin.end_col_offset = number, 0
                if isinstance(twin, ast.Call) and isinstance(twin.func, ast.Attribute):
                    twin.func.end_lineno = number  # a method is called at the line where its name ends
        return own

    def node(self, code: CodeType, instruction: int) -> ast.AST | None:
        """The node that an instruction of ``code`` is of; None where it is no such node's, or that is not known."""
        if code not in self._codes:
            self._codes[code] = self._twin(code)
        twin = self._codes[code]
        return None if twin is None else self._nodes.get(line_of(twin, instruction))

    def _twin(self, code: CodeType) -> CodeType | None:
        found = [other for other in self._all if _is_compiled_alike(code, other)]
        if len(found) > 1:  # the first line of a function with decorators may have become a number
            found = [other for other in found if other.co_firstlineno == code.co_firstlineno]
        return found[0] if len(found) == 1 else None


def line_of(code: CodeType, instruction: int) -> int:
    """The line of an instruction, 0 where it has none."""
    return next((line or 0 for first, last, line in code.co_lines() if first <= instruction < last), 0)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _is_compiled_alike(one: CodeType, other: CodeType) -> bool:
    names = "co_name", "co_names", "co_varnames", "co_cellvars", "co_freevars", "co_code"
    return all(getattr(one, name) == getattr(other, name) for name in names)
