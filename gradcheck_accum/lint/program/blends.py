"""Moving averages of the weights that are written by hand: ``d * average + (1 - d) * p``, in all its forms."""

from __future__ import annotations

import math

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import KEEPS_NUMBERS
from gradcheck_accum.lint.syntax import Operator, text_of


def blended(node: syntax.Expression) -> list[tuple[syntax.Expression, syntax.Expression]]:
    """The average and what it takes in, in either order, where an expression blends the two by d and 1 - d."""
    match node:
        case syntax.BinOp(
            op=Operator.ADD,
            left=syntax.BinOp(op=Operator.MULT) as left,
            right=syntax.BinOp(op=Operator.MULT) as right,
        ):
            for one, first in ((left.left, left.right), (left.right, left.left)):
                for other, second in ((right.left, right.right), (right.right, right.left)):
                    if _add_up(one, other):
                        return [(_bare(first), _bare(second)), (_bare(second), _bare(first))]
        case syntax.Call(func=syntax.Attribute(value=target, attr="lerp_"), args=[weights, _]):
            return [(_bare(target), _bare(weights))]
        case syntax.Call(
            func=syntax.Attribute(
                value=syntax.Call(func=syntax.Attribute(value=target, attr="mul_"), args=[decay]), attr="add_"
            ),
            args=[added],
            keywords=keywords,
        ):
            alpha = next((k.value for k in keywords if k.arg == "alpha"), None)
            if alpha is not None and _add_up(decay, alpha):
                return [(_bare(target), _bare(added))]
            if isinstance(added, syntax.BinOp) and added.op is Operator.MULT and alpha is None:
                for one, other in ((added.left, added.right), (added.right, added.left)):
                    if _add_up(decay, one):
                        return [(_bare(target), _bare(other))]
    return []


def _add_up(one: syntax.Expression, other: syntax.Expression) -> bool:
    """Whether two expressions are the parts of one: d and 1 - d, or two such numbers."""
    for part, rest in ((one, other), (other, one)):
        if isinstance(rest, syntax.BinOp) and rest.op is Operator.SUB and _is_one(rest.left):
            return text_of(rest.right) == text_of(part)
    numbers = [n.value for n in (one, other) if isinstance(n, syntax.Constant) and isinstance(n.value, float)]
    return len(numbers) == 2 and math.isclose(sum(numbers), 1.0)


def _is_one(node: syntax.Expression) -> bool:
    return isinstance(node, syntax.Constant) and node.value == 1


def _bare(node: syntax.Expression) -> syntax.Expression:
    """An operand without what changes no number: ``p.data``, ``p.detach()``, ``p.clone()``."""
    while True:
        match node:
            case syntax.Attribute(value=inner, attr="data"):
                node = inner
            case syntax.Call(func=syntax.Attribute(value=inner, attr=name)) if name in KEEPS_NUMBERS:
                node = inner
            case _:
                return node
