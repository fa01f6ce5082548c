"""What a program refuses to run with: no loop is read with numbers that its own program rejects.

Where the source does not show how many micro-batches a pass has, the interpretation assumes a number that leaves a
remainder. A program that requires whole windows (``assert len(loader) % K == 0``) never runs with such a number: the
assumption is dropped, not the loop. One that refuses a combination of settings (``if fused and K > 1: raise``) never
runs with one of them if the other is known (`conditions.rule_out`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num
from gradcheck_accum.lint.syntax import Operator, call_name, text_of, walk


def gives_up(body: Sequence[syntax.Statement]) -> bool:
    """Whether statements end the program: what they do is not part of any training."""
    match body[-1] if body else None:
        case syntax.Raise(exc=exc):
            return exc is None or "StopIteration" not in text_of(exc)
        case syntax.Expr(value=syntax.Call(func=func)):
            return text_of(func) in {"exit", "quit", "sys.exit", "os._exit"}
    return False


def heed(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Apply a test that decides whether the program continues; returns whether it requires passes of whole windows.

    Raises Restart if the passes were assumed to end in the middle of a window.
    """
    asks = any(_asks_for_whole_windows(run, node, scope) for node in walk(test))
    if asks:
        run.knowledge.forget_remainders()
    return asks


def rests_on_a_guess(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a test asks for a length that the source does not show: the number assumed for it refuses nothing."""
    sides = [side for node in walk(test) if isinstance(node, syntax.Compare) for side in (node.left, *node.comparators)]
    return any(_is_open_length(value) for side in sides for value in _leaves(run, side, scope))


def _asks_for_whole_windows(run: State, node: syntax.Node, scope: v.Scope) -> bool:
    """Whether an expression is the remainder of a length that the source does not show, split into windows."""
    if not (isinstance(node, syntax.BinOp) and node.op is Operator.MOD):
        return False
    return any(map(_is_open_length, _leaves(run, node.left, scope))) and any(
        isinstance(value, Num) and _is_of_windows(run, value) for value in _leaves(run, node.right, scope)
    )


def _leaves(run: State, node: syntax.Expression, scope: v.Scope) -> Iterator[Any]:
    """The values of the names, numbers and lengths that an expression is computed from."""
    pending: list[syntax.Node] = [node]
    for part in pending:
        if isinstance(part, syntax.BinOp):
            pending += [part.left, part.right]
        elif isinstance(part, (syntax.Name, syntax.Attribute, syntax.Subscript, syntax.Constant)):
            yield run.evaluate(part, scope)
        elif isinstance(part, syntax.Call) and call_name(part) == "len":
            length = run.evaluate(part, scope)
            # The length of a data set, which determines the number of batches, has no number at all.
            yield length if isinstance(length, Num) else Num(0, frozenset({v.LENGTH, v.ASSUMED}))
        elif isinstance(part, syntax.Call):
            pending += part.args


def _is_open_length(value: Any) -> bool:
    return isinstance(value, Num) and {v.LENGTH, v.ASSUMED} <= value.tags


def _is_of_windows(run: State, number: Num) -> bool:
    """Whether a number is K, or counts a window's micro-batches as K does."""
    counted = (run.knowledge.moduli, run.knowledge.compared)
    return bool(number.tags & {v.STEPS, v.DERIVED}) or any(number.value in one for one in counted)
