"""Losses in a vector: scalars that a loop stacks, to weight them together and to add them up.

What a sum, a mean or a dot product reduces is usually the rows of a batch, and these are its units. The elements of a
vector that was stacked from scalars are no rows: each is a loss with units of its own, and the numbers that the vector
is multiplied by are coefficients, one for each loss.
"""

from __future__ import annotations

from typing import Any

import torch

from gradcheck_accum.engine.graph_nodes import (
    LOSSES,
    PASSED_ON,
    Way,
    effect_of,
    factors_of,
    only_edge,
    shape_of,
    signs_of,
)
from gradcheck_accum.ledger.events import Factor, Operation, Purpose

_SCALARS = ("Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Mean", "Sum", "Dot", "Exp", "Log", "Pow")
_REDUCTIONS = ("MeanBackward", "SumBackward")
_DEEPEST = 20
"""How many operations between the stack and its reduction are followed."""


def losses_below(node: Any) -> list[Way] | None:
    """The losses in the vector that ``node`` reduces to a scalar, with their factors; None if there is no such vector.

    Where the vector is multiplied by one that has a graph too, the product as a whole is one of them: the node of a dot
    product is itself returned for it.
    """
    name = node.name()
    if shape_of(node, 0) or not name.startswith((*_REDUCTIONS, "DotBackward")):
        return None
    if name.startswith("DotBackward"):
        return _multiplied(node, name, _DEEPEST)
    inner, place = only_edge(node)
    if inner is None or len(shape_of(inner, place)) != 1:
        return None
    losses = _elements(inner, place, _DEEPEST)
    if losses is None or not name.startswith("MeanBackward"):
        return losses
    share = Factor(1 / shape_of(inner, place)[0], purpose=Purpose.OBJECTIVE)
    return [(element, at, (*factors, share)) for element, at, factors in losses]


def _elements(node: Any, place: int, depth: int) -> list[Way] | None:
    """The losses that the ``place``-th result of ``node`` holds, a vector; None if it was not stacked from scalars."""
    name: str = node.name()
    if not depth:
        return None
    if name.startswith(("StackBackward", "CatBackward")):
        return _stacked(node)
    if name.startswith(("MulBackward", "DivBackward")):
        return _multiplied(node, name, depth)
    if name.startswith(("AddBackward", "SubBackward")):
        return _added(node, name, depth)
    factor = {"Neg": -1.0, "Rsub": -float(getattr(node, "_saved_alpha", 1) or 1)}.get(name.partition("Backward")[0])
    if factor is None and not name.startswith(PASSED_ON):
        return None
    inner, at = only_edge(node)
    if inner is None or shape_of(inner, at) != shape_of(node, place):
        return None
    losses = _elements(inner, at, depth - 1)
    if losses is None or factor is None:
        return losses
    return [(element, own, (*factors, Factor(factor))) for element, own, factors in losses]


def _stacked(node: Any) -> list[Way] | None:
    """The scalars that a stack or concatenation consists of."""
    found = [(inner, at) for inner, at in node.next_functions if inner is not None]
    if not found or not all(_is_loss(inner, at) for inner, at in found):
        return None
    return [(inner, at, ()) for inner, at in found]


def _is_loss(node: Any, place: int) -> bool:
    name: str = node.name()
    if name.startswith(PASSED_ON):
        # A loss of one element may have become a vector of one, to be concatenated.
        inner, at = only_edge(node)
        return inner is not None and _is_loss(inner, at)
    return shape_of(node, place) in ((), (1,)) and name.startswith((*LOSSES, *_SCALARS))


def _multiplied(node: Any, name: str, depth: int) -> list[Way] | None:
    operands = [(inner, at) for inner, at in node.next_functions if inner is not None]
    below = [_elements(inner, at, depth - 1) for inner, at in operands if len(shape_of(inner, at)) == 1]
    if len(operands) > 1:
        return [(node, 0, ())] if any(losses is not None for losses in below) else None
    losses = below[0] if below else None
    if losses is None:
        return None
    coefficients = _coefficients(node, name, len(losses))
    if coefficients is None:
        return [(node, 0, ())]
    return [(e, at, (*own, *by)) for (e, at, own), by in zip(losses, coefficients, strict=True)]


def _coefficients(node: Any, name: str, count: int) -> list[tuple[Factor, ...]] | None:
    """The factors of each of ``count`` elements that a node multiplies or divides by numbers; None if unknown."""
    saved = (getattr(node, at, None) for at in ("_saved_other", "_saved_self", "_saved_tensor"))
    other = next((value for value in saved if isinstance(value, torch.Tensor)), None)
    divides = name.startswith("DivBackward")
    if other is None or other.numel() == 1:
        factors = None if name.startswith("DotBackward") else factors_of(node, name)
        return None if factors is None else [factors] * count
    if other.numel() != count:
        return None
    operation = Operation.DIVIDE if divides else Operation.MULTIPLY
    values: list[float] = other.detach().reshape(-1).tolist()
    return [(Factor(effect_of(value, divides), operation),) for value in values]


def _added(node: Any, name: str, depth: int) -> list[Way] | None:
    """The losses of a sum of vectors: of those that hold none, each is a term as a whole."""
    found: list[Way] = []
    holds_losses = False
    for (inner, at), factor in zip(node.next_functions, signs_of(node, name), strict=False):
        if inner is None:
            continue
        losses = _elements(inner, at, depth - 1) if len(shape_of(inner, at)) == 1 else None
        holds_losses |= losses is not None
        own = () if factor == 1.0 else (Factor(factor),)
        found += [(e, place, (*factors, *own)) for e, place, factors in losses or [(inner, at, ())]]
    return found if holds_losses else None
