"""Nodes of an autograd graph: what is below them, the shapes of their results, and the factors that they apply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gradcheck_accum.engine.transformed import is_wrapped, number_of
from gradcheck_accum.ledger.events import Factor, Operation
from gradcheck_accum.ledger.location import Location

_MOST_NODES = 20_000
"""The most nodes of a graph that are searched for weights."""
PASSED_ON = (
    "ToCopyBackward",
    "CloneBackward",
    "ViewBackward",
    "UnsafeViewBackward",
    "ReshapeAliasBackward",
    "SqueezeBackward",
    "UnsqueezeBackward",
    "AliasBackward",
    "ExpandBackward",
)
"""Names of nodes that pass their operand on, by their beginnings."""
LOSSES = (
    "NllLoss",
    "MseLoss",
    "L1Loss",
    "SmoothL1Loss",
    "HuberLoss",
    "BinaryCrossEntropy",
    "KlDiv",
    "SoftMarginLoss",
    "MultiMarginLoss",
    "MultilabelMarginLoss",
)
"""Names of nodes that are losses of PyTorch's own, by their beginnings."""
SCALED_AT = "gradcheck-accum scaled at"
"""The key in the metadata of a multiplication or division for the place in the source that called it."""
SCALED_BY = "gradcheck-accum scaled by"
"""The key for the numbers that it consists of: each with its origins in the source, and whether it divides.

A number is None if it is the rest of the factor, after the others.
"""
Part = tuple[float | None, frozenset[str], bool]
"""One of these numbers, its origins, and whether the others are divided by it."""

Way = tuple[Any, int, tuple[Factor, ...]]
"""A node, the index of one of its results, and the factors after it."""


def only_edge(node: Any) -> tuple[Any, int]:
    """The first operand that has a graph, and which of its node's results it is; None and 0 if there is none."""
    return next(((inner, place) for inner, place in node.next_functions if inner is not None), (None, 0))


def only_input(node: Any) -> Any:
    """The node of the first operand that has a graph; None if there is none."""
    return only_edge(node)[0]


def factors_of(node: Any, name: str) -> tuple[Factor, ...] | None:
    """The constants that a multiplication or division applies; None if both operands come from the model."""
    divides = name.startswith("Div")
    if sum(inner is not None for inner, _ in node.next_functions) > 1:
        return None
    other = getattr(node, "_saved_other", None)
    if other is None:
        other = getattr(node, "_saved_self", None)
        if divides:
            return None
    where: Location | None = node.metadata.get(SCALED_AT)
    parts: Sequence[Part] = node.metadata.get(SCALED_BY, ((None, frozenset(), False),))
    number = other
    if isinstance(other, torch.Tensor) and other.numel() == 1:
        number = number_of(other) if is_wrapped(other) else float(other)
    if number is None or isinstance(number, torch.Tensor):
        operation = Operation.DIVIDE if divides else Operation.MULTIPLY
        return (Factor(None, operation, where=where, origins=frozenset().union(*(origins for _, origins, _ in parts))),)
    return factors_in(parts, float(number), where, divides=divides)


def factors_in(
    parts: Sequence[Part], whole: float, where: Location | None, *, divides: bool = False
) -> tuple[Factor, ...]:
    """The factors that a number, the ``whole``, consists of: it multiplies, or ``divides``, a loss."""
    known = [(1.0 / number if inverted else number) for number, _, inverted in parts if number is not None]
    rest, found = whole / math.prod(known), iter(known)
    factors = []
    for number, origins, inverted in parts:
        value = rest if number is None else next(found)
        operation = Operation.DIVIDE if divides != inverted else Operation.MULTIPLY
        factors.append(Factor(effect_of(value, divides), operation, where=where, origins=origins))
    return tuple(factors)


Scaling = tuple[Location, Sequence[Part]]
"""Where a tensor was scaled by a number, and what that consists of."""


def scaling_of(outputs: Sequence[torch.Tensor]) -> Scaling | None:
    """What was noted of the call that returned a tensor with dimensions; None if nothing was."""
    node = outputs[0].grad_fn if len(outputs) == 1 and outputs[0].dim() else None
    if node is None or SCALED_AT not in node.metadata:  # type: ignore[operator]
        return None
    return node.metadata[SCALED_AT], node.metadata[SCALED_BY]  # type: ignore[index]


def note_again(result: Any, scaling: Scaling) -> None:
    """Note the same of the result of a repeated call, as far as that has a graph."""
    node = result.grad_fn if isinstance(result, torch.Tensor) else None
    if node is not None:
        node.metadata[SCALED_AT], node.metadata[SCALED_BY] = scaling  # type: ignore[index]


def shape_of(node: Any, place: int) -> tuple[int, ...]:
    """The shape of a node's ``place``-th result."""
    return tuple(node._input_metadata[place].shape)


def sizes_of(node: Any) -> tuple[int, ...]:
    """The sizes of what a node reduced, as far as it has saved them."""
    return tuple(int(size) for size in getattr(node, "_saved_self_sym_sizes", ()) or ())


def effect_of(number: float, divides: bool) -> float | None:
    """What a multiplication or division by a number multiplies by; None for a division by 0."""
    if not divides:
        return number
    return 1 / number if number else None


def signs_of(node: Any, name: str) -> tuple[float, float]:
    """What an addition or subtraction multiplies its two operands by."""
    alpha = float(getattr(node, "_saved_alpha", 1) or 1)
    return 1.0, -alpha if name.startswith("Sub") else alpha


def weights_below(nodes: Iterable[Any], most: int | None = _MOST_NODES) -> list[torch.Tensor]:
    """The leaves that a graph accumulates gradients in, as far as its first ``most`` nodes show them."""
    pending = [node for node in nodes if node is not None]
    seen = set(pending)
    found: list[torch.Tensor] = []
    while pending and (most is None or len(seen) < most):
        node = pending.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            found.append(leaf)
        following = {inner for inner, _ in node.next_functions if inner is not None} - seen
        seen |= following
        pending += following
    return found
