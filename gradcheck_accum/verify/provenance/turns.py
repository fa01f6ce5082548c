"""Whether two places of the source run together in each turn of a loop that makes several turns for a step."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import FrameType

from gradcheck_accum.verify.provenance.lines import LOOPS, CallChain
from gradcheck_accum.verify.provenance.numbered import line_of
from gradcheck_accum.verify.provenance.syntax import Syntax, syntax_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_BLOCKS = (ast.If, ast.Try, ast.Match, *LOOPS, *_FUNCTIONS)
_BLOCKS = ("body", "orelse", "finalbody")


def in_one_turn(before: CallChain, now: Sequence[FrameType]) -> bool:
    """Whether two places are in one block of a loop, its own or that of a function which it calls, and no step is.

    They are those of an earlier call chain and of running frames, innermost first. False where no source shows it.
    """
    outer = list(zip(reversed(before), reversed(now), strict=False))
    level = next((n for n, (own, frame) in enumerate(outer) if own != (frame.f_code, frame.f_lasti)), None)
    if level is None or outer[level][0][0] is not outer[level][1].f_code:
        return False
    lines = {line_of(*outer[level][0])}
    for _, frame in reversed(outer[: level + 1]):
        syntax = syntax_of(frame)
        lines.add(frame.f_lineno)
        for block, around in () if syntax is None else _blocks(syntax, syntax.node_at(frame)):
            if any(map(_steps, block)) or not all(any(_is_on(line, own) for own in block) for line in lines):
                return False
            if isinstance(around, LOOPS):
                return True
            if isinstance(around, _FUNCTIONS):
                break
            lines = {around.lineno}
        else:
            return False
        # That function runs both, and may be called in a turn.
        lines = set()
    return False


def _blocks(syntax: Syntax, node: ast.AST) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """The blocks that a node is in, innermost first: the statements that run whenever it does, and its owner."""
    inner = node
    for around in syntax.around(node):
        if isinstance(around, ast.stmt) and not isinstance(around, (ast.With, ast.AsyncWith)):
            held = next((own for field in _BLOCKS if inner in (own := getattr(around, field, []))), None)
            if held is not None:
                yield list(_run_each_time(held)), around
        inner = around


def _run_each_time(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _run_each_time(statement.body)
        else:
            yield statement


def _is_on(line: int, statement: ast.stmt) -> bool:
    """Whether a line is one of a statement that has no blocks, or the first of one that has."""
    last = statement.lineno if isinstance(statement, _WITH_BLOCKS) else statement.end_lineno or statement.lineno
    return statement.lineno <= line <= last


def _steps(statement: ast.stmt) -> bool:
    if isinstance(statement, _WITH_BLOCKS):
        return False
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Attribute) and called.attr == "step" for called in calls)
