"""For how many moves a function of a LambdaLR was made, as read from what it computes.

Such a function gets the number of moves so far. Where it divides what has been done of a phase by all of that phase,
or what is left of it, the phase ends when the quotient is 1, or 0: ``(step - warmup) / (total - warmup)`` ends at
``total``, and so does ``(total - step) / (total - warmup)``. The last phase that is written down ends the schedule,
unless its quotient is the rate itself: a rate that has grown to its full value is warm, and stays so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gradcheck_accum.ledger.stated_names import NAME_OF_LENGTH
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import CONSTANTS
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.syntax import Operator, text_of, walk

_CONVERSIONS = frozenset({"float", "int"})
_PI = {"np.pi"}.union(path for path in CONSTANTS if path.endswith(".pi"))


def planned_moves(run: State, function: Any) -> Any:
    """The number of moves that a function of a LambdaLR was made for, or None where the source does not say."""
    given: dict[str, Any] = {}
    if isinstance(function, v.Partial):
        if NAME_OF_LENGTH in function.kwargs:
            return function.kwargs[NAME_OF_LENGTH]
        function, given = function.callee, function.kwargs
    if not isinstance(function, v.Function):
        return None
    holder = function.scope.find(NAME_OF_LENGTH)
    if holder is not None:
        return holder.names[NAME_OF_LENGTH]
    end = _end(function.node)
    return None if end is None else run.evaluate(end, v.Scope(dict(given), outer=function.scope))


def _end(node: syntax.FunctionDef | syntax.Lambda) -> syntax.Expression | None:
    """What the number of moves is at the end of the last phase of a schedule."""
    positional = [*node.args.posonlyargs, *node.args.args]
    if not positional:
        return None
    moves = positional[0].arg
    rates = _rates(node)
    quotients = [n for n in walk(node) if isinstance(n, syntax.BinOp) and n.op is Operator.DIV]
    quotients.sort(key=lambda n: n.where)
    ends = [_end_of_phase(one, moves, is_rate=one in rates) for one in quotients]
    return next((end for end in reversed(ends) if end is not None), None)


def _rates(node: syntax.FunctionDef | syntax.Lambda) -> list[syntax.Expression]:
    """What a function gives back, without the bounds that it is kept in."""
    if isinstance(node, syntax.Lambda):
        given: list[syntax.Expression] = [node.body]
    else:
        given = [n.value for n in walk(node) if isinstance(n, syntax.Return) and n.value is not None]
    for value in given:
        match value:
            case syntax.Call(func=syntax.Name(id="min" | "max" | "float"), args=arguments):
                given += arguments
            case syntax.IfExp(body=body, orelse=orelse):
                given += [body, orelse]
    return given


def _end_of_phase(quotient: syntax.BinOp, moves: str, *, is_rate: bool) -> syntax.Expression | None:
    """What the number of moves is where a quotient is 1 if it grows with it, and 0 if it shrinks."""
    words: dict[str, syntax.Expression] = {}
    done, whole = _terms(quotient.left, words), _terms(quotient.right, words)
    grows = done.pop(moves, 0)
    if grows == 1 and not is_rate:
        done.subtract(whole)
        done = Counter({text: -count for text, count in done.items()})
    elif grows != -1:
        return None
    left = [(text, count) for text, count in done.items() if count]
    return words[left[0][0]] if len(left) == 1 and left[0][1] == 1 else None


def _terms(node: syntax.Expression, words: dict[str, syntax.Expression], sign: int = 1) -> Counter[str]:
    """The terms of a sum with their signs, as they are written; ``words`` gets the expression of each."""
    match node:
        case syntax.BinOp(left=left, op=Operator.ADD | Operator.SUB as op, right=right):
            terms = _terms(left, words, sign)
            terms.update(_terms(right, words, sign if op is Operator.ADD else -sign))
            return terms
        case syntax.BinOp(left=left, op=Operator.MULT, right=right) if text_of(left) in _PI:
            return _terms(right, words, sign)  # half a turn of a cosine
        case syntax.Call(func=syntax.Name(id=name), args=(inner,)) if name in _CONVERSIONS:
            return _terms(inner, words, sign)
        case syntax.Call(func=syntax.Name(id="max"), args=(one, other)):
            # `max(1, total)`: never less than one.
            bounds = [inner for inner in (one, other) if not isinstance(inner, syntax.Constant)]
            if len(bounds) == 1:
                return _terms(bounds[0], words, sign)
    text = text_of(node)
    words[text] = node
    return Counter({text: sign})
