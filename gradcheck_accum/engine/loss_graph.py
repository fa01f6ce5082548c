"""Reads a loss's weights from its autograd graph: from the tensor that backward got, back to the reductions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gradcheck_accum.engine.graph_nodes import (
    LOSSES,
    PASSED_ON,
    SCALED_AT,
    Way,
    factors_of,
    only_edge,
    only_input,
    shape_of,
    signs_of,
    sizes_of,
)
from gradcheck_accum.engine.losses_in_vectors import losses_below
from gradcheck_accum.engine.transformed import all_samples, is_wrapped, number_of
from gradcheck_accum.engine.weighted_sums import SharesOf, counted_units, weighted_units
from gradcheck_accum.ledger.events import Factor, Purpose, Reduction, Term, product_of
from gradcheck_accum.ledger.same_number import Same
from gradcheck_accum.ledger.stated_names import DATA, is_extent, is_length, is_total, is_written_out, names_size

_same = Same()

Counts = Callable[[torch.Tensor, float], float]
"""Returns how many of its targets a loss has counted, given that as a tensor of one element, and how many it has."""

_MASKS = ("MaskedFillBackward", "MulBackward")
"""Nodes that keep every element in place, but may zero some."""
_FLATTENS = ("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")
_EACH_BY_ITSELF = ("_DDPSinkBackward",)
"""Nodes that pass each tensor of a model's output through unchanged."""
_ELEMENTWISE = (
    *("Pow", "Abs", "MulBackward", "Div", "AddBackward", "Sub", "Rsub", "Neg", "Square", "Sqrt", "Rsqrt", "Reciprocal"),
    *("ExpBackward", "Expand", "LogBackward", "Log1p", "Sigmoid", "Tanh", "Softplus", "Relu", "Clamp", "Lgamma", "Erf"),
    *("Maximum", "Minimum"),
)
"""Nodes whose result has the broadcast shape of their operands."""
_WITHIN = (
    *("TBackward", "Transpose", "Permute", "Select", "Slice", "Split", "Unbind", "Diagonal", "Tril", "Triu", "Trace"),
    *("Softmax", "LogSoftmax", "Logsumexp", "MaxBackward", "MinBackward", "Amax", "Amin", "Prod", "Var", "Std"),
    *("LinalgSlogdet", "LinalgDet", "LinalgSvd"),
)
"""Nodes that rearrange or reduce a single operand."""
_PRODUCTS = ("MmBackward", "BmmBackward", "MvBackward", "Addmm", "Addmv", "Cat", "Stack")
"""Nodes that combine operands without showing those that need no gradient."""
_REDUCTIONS = ("SumBackward", "MeanBackward", "Norm", "LinalgVectorNorm", "DotBackward", "VdotBackward")
_LARGEST_PENALTY = 2000
"""The number of graph nodes that are searched for data at most."""
CACHED = "a cached loss, whose gradients a hook computes in separate backward passes"
"""A loss whose graph leads nowhere: a number that was computed before, with a hook on it."""

_UNFOLLOWED = "a scalar that is not a sum, mean or loss"
_PRODUCT = "a product of losses"
_MANY_ALIKE = 64
"""How many similar terms of a loss are kept: more than a mean of terms, or a window, usually has."""

_MOST_NODES = 20_000
"""How many nodes are followed from a loss to its reductions at most."""


@dataclass(frozen=True, slots=True)
class LossReading:
    """The terms of a loss; ``scale`` is the grad scaler's scale in it (1 if there is none).

    ``reduced_by`` holds the graph nodes that reduced its terms, each with the kind of its term: keeping the loss,
    scaled or not, keeps them alive. ``kinds`` gives, for each kind of term, the number of terms and the sum of their
    factors (None if one is unknown). If many terms are alike in all but their place, ``terms`` holds only the first:
    the others have the same weight.
    """

    terms: tuple[Term, ...]
    scale: float = 1.0
    reduced_by: tuple[tuple[str, Any], ...] = ()
    kinds: dict[str, tuple[int, float | None]] = field(default_factory=dict)

    @property
    def reductions(self) -> list[Any]:
        """The graph nodes that reduced the terms."""
        return [node for _, node in self.reduced_by]

    def of_kind(self, kind: str) -> list[Any]:
        """The graph nodes that reduced the terms of a kind."""
        return [node for own, node in self.reduced_by if own == kind]

    def is_of_numbers(self, term: Term) -> bool:
        """Whether a term is computed from single numbers (``(score - target) ** 2``), and reduces nothing itself."""
        nodes = self.of_kind(term.kind) if term.units is None and term.rows is None else []
        operands = [shape_of(*edge) for node in nodes for edge in node.next_functions if edge[0] is not None]
        return bool(operands) and all(math.prod(shape) == 1 for shape in operands)


def read_losses(
    losses: Sequence[torch.Tensor],
    scales: dict[Any, float],
    weights: Sequence[tuple[Factor, ...]] | None = None,
    shares_of: SharesOf = lambda *_: None,
    counts: Counts = lambda counted, most: float(counted),
) -> LossReading:
    """Read the terms of scalar losses whose gradients are summed.

    ``scales`` maps the graph nodes that a grad scaler made to its scale; ``weights`` are the factors in the gradients
    that ``backward`` was given, for each loss. ``shares_of`` returns the data that normalized weights were computed
    from, to which they are proportional. ``counts`` returns how many of its targets a loss has counted, given that
    number as a tensor, and how many targets it has.
    """
    walk = _Walk(scales, shares_of, counts)
    for loss, outer in zip(losses, weights or [()] * len(losses), strict=True):
        if is_cached(loss):
            walk.add(Term(CACHED, Reduction.MEAN, None, outer), None)
        walk.follow(loss.grad_fn, loss.output_nr, outer)
    kinds: dict[str, tuple[int, float | None]] = {}
    for term in walk.found:
        number, total = kinds.get(term.name, (0, 0.0))
        product = product_of(term.factors)
        kinds[term.name] = number + 1, None if total is None or product is None else total + product
    terms = tuple(numbered(_without_many_alike(walk.found, kinds), Counter()))
    nodes = [(term.name, node) for term, node in zip(walk.found, walk.reductions, strict=True) if node is not None]
    return LossReading(terms, walk.scale, tuple(nodes), kinds)


def _without_many_alike(found: Sequence[Term], kinds: dict[str, tuple[int, float | None]]) -> Iterator[Term]:
    """The terms, with only some of those that are like many others: the losses of a thousand time steps, say."""
    if all(number <= _MANY_ALIKE for number, _ in kinds.values()):
        yield from found
        return
    seen: Counter[Term] = Counter()
    for term in found:
        number = kinds[term.name][0]
        if number > _MANY_ALIKE:
            # The factor of a mean over so many terms is not explained by the few that are kept.
            mean = (f.value is not None and _same(f.value * number, 1.0) for f in term.factors)
            factors = zip(term.factors, mean, strict=True)
            own = tuple(replace(f, purpose=Purpose.OBJECTIVE) if is_mean else f for f, is_mean in factors)
            term = replace(term, factors=own)
        seen[term] += 1
        if seen[term] <= _MANY_ALIKE:
            yield term


def numbered(found: Iterable[Term], before: Counter[str]) -> Iterator[Term]:
    """The terms, numbered where several are of one kind; ``before`` counts those already numbered."""
    for term in found:
        kind = term.kind
        before[kind] += 1
        name = kind if before[kind] == 1 else f"{kind} #{before[kind]}"
        yield term if term.name == name else replace(term, name=name)


@dataclass(slots=True)
class _Walk:
    """Walks from a loss inwards over scalar nodes; ``found`` are its terms, ``scale`` what grad scalers contributed."""

    scales: dict[Any, float]
    shares_of: SharesOf
    counts: Counts
    found: list[Term] = field(default_factory=list)
    scale: float = 1.0
    reductions: list[Any] = field(default_factory=list)

    def follow(self, node: Any, place: int, outer: tuple[Factor, ...]) -> None:
        """Walk on from the ``place``-th result of ``node``; ``outer`` are the factors after it, innermost first.

        Iterative, because a running sum of thousands of losses would exceed the recursion limit.
        """
        pending = [(node, place, outer)]
        followed = 0
        while pending:
            node, place, outer = pending.pop()
            if node is None:
                continue
            followed += 1
            if followed > _MOST_NODES:
                self.add(Term("more losses than can be followed", Reduction.MEAN, None, (Factor(None),)), node)
                return
            pending.extend(reversed(self._inwards(node, place, outer)))

    def _inwards(self, node: Any, place: int, outer: tuple[Factor, ...]) -> list[Way]:
        """The next nodes to follow from a node's result; none if it was reduced, in which case the term is recorded."""
        name = node.name()
        if node in self.scales:
            self.scale *= self.scales[node]
            return [(*only_edge(node), outer)]
        if name.startswith(("MulBackward", "DivBackward")):
            mean = _mean_of_a_function(node, outer) if name.startswith("DivBackward") else None
            if mean is not None:
                self.add(mean, only_input(node))
                return []
            factors = factors_of(node, name)
            if factors is None:
                # Whatever it is, it belongs to the objective: K is not a number that requires a gradient.
                self.add(Term(_PRODUCT, Reduction.MEAN, None, outer), node)
                return []
            return [(*only_edge(node), (*factors, *outer))]
        if name.startswith("RsubBackward"):
            return [(*only_edge(node), (Factor(-float(node._saved_alpha)), *outer))]
        if name.startswith("NegBackward"):
            return [(*only_edge(node), (Factor(-1.0), *outer))]
        if name.startswith(PASSED_ON):
            return [(*only_edge(node), outer)]
        if name.startswith(_EACH_BY_ITSELF) and place < len(node.next_functions):
            return [(*node.next_functions[place], outer)]
        if name.startswith("WhereBackward") and node._saved_condition.numel() == 1:
            # torch.where has chosen one of two numbers, for example to avoid a division by zero: the loss is that one.
            chosen = node.next_functions[0 if node._saved_condition else 1]
            return [(*chosen, outer)] if chosen[0] is not None else []
        if name.startswith(("AddBackward", "SubBackward")):
            return _summands(node, name, outer)
        if name.startswith(("MeanBackward0", "SumBackward0")) and _is_of_a_loss(node):
            return [(*only_edge(node), outer)]
        losses = losses_below(node)
        if losses is not None:
            inwards = [(inner, at, (*factors, *outer)) for inner, at, factors in losses if inner is not node]
            if len(inwards) < len(losses):
                self.add(Term(_PRODUCT, Reduction.MEAN, None, outer), node)
            return inwards
        term = _frontier(node, name, (*_factors_below(node), *outer), self.counts)
        self.add(_of_weighted(term, node, self.shares_of) if term.units else term, node)
        return []

    def add(self, term: Term, node: Any) -> None:
        """Record a term, reduced by ``node`` if that is known."""
        self.found.append(term)
        self.reductions.append(node)


def _summands(node: Any, name: str, outer: tuple[Factor, ...]) -> list[Way]:
    return [
        (inner, place, outer if factor == 1.0 else (Factor(factor), *outer))
        for (inner, place), factor in zip(node.next_functions, signs_of(node, name), strict=False)
    ]


def _frontier(node: Any, name: str, factors: tuple[Factor, ...], counts: Counts) -> Term:
    short = name.partition("Backward")[0]
    if "AccumulateGrad" in name and is_cached(node.variable):
        return Term(CACHED, Reduction.MEAN, None, factors)
    if name.startswith(LOSSES):
        return _loss_term(node, short, factors, counts)
    inner = _over_samples_below(node) if name.startswith(("MeanBackward0", "SumBackward0")) else None
    if inner is not None:
        return _reduced_twice(node, inner, short, factors)
    if name.startswith("MeanBackward"):
        units = float(node._saved_self_sym_numel)
        return Term(short, Reduction.MEAN, units, factors, _rows(node))
    if _is_penalty(node):
        return Term("penalty", Reduction.NONE, None, factors)
    if name.startswith("SumBackward"):
        units = float(math.prod(sizes_of(node)))
        return Term(short, Reduction.SUM, units, factors, _rows(node), _summed_below(node))
    if name.startswith(("DotBackward", "VdotBackward")):
        units = float(_reduced_elements(node))
        return Term(short, Reduction.SUM, units, factors, _rows(node))
    if name.startswith("TraceBackward"):
        rows = float(min(sizes_of(node)))
        return Term(short, Reduction.SUM, rows, factors, rows)
    if name.startswith("NansumBackward"):
        values = node._saved_self
        return Term(short, Reduction.SUM, float(values.isnan().logical_not().sum()), factors, float(len(values)))
    return Term(f"{_UNFOLLOWED} ({short})", Reduction.MEAN, None, factors)


def _of_weighted(term: Term, node: Any, shares_of: SharesOf) -> Term:
    """A term whose elements are multiplied by data, a mask or weights, with the units that these select or count."""
    places = term.units or 0.0
    operands, by = _weights_in_data(node, places)
    if not operands or _is_of_one_distribution(node, places):
        return term
    units = weighted_units(operands, by, term.reduction is Reduction.MEAN, shares_of)
    if units is not None:
        return replace(term, reduction=Reduction.MEAN, units=units)
    is_mean = term.reduction is not Reduction.SUM or any(_divides_by(factor, places) for factor in term.factors)
    units = None if is_mean or by else counted_units(operands)
    return term if units is None else replace(term, units=units)


def _mean_of_a_function(node: Any, factors: tuple[Factor, ...]) -> Term | None:
    """The mean that a function of PyTorch computes as a sum, divided by as many as are not masked; None if it is none.

    No line of the source applied that division: it is the one inside a cross entropy with smoothed labels, say.
    """
    total, divisor = only_input(node), node._saved_other
    if SCALED_AT in node.metadata or not isinstance(divisor, torch.Tensor) or divisor.numel() != 1:
        return None
    if total is None or not total.name().startswith("SumBackward0") or is_wrapped(divisor):
        return None
    inner = only_input(total)
    mask = inner._saved_mask if inner is not None and inner.name().startswith("MaskedFillBackward") else None
    if mask is None or list(mask.shape) != list(sizes_of(total)) or is_wrapped(mask):
        return None
    units = float(mask.logical_not().sum())
    return Term("Mean", Reduction.MEAN, units, factors, _rows(total)) if _same(units, float(divisor)) else None


def _is_of_one_distribution(node: Any, places: float) -> bool:
    """Whether the elements that ``node`` reduces are log-probabilities that one softmax computed of all of them.

    What multiplies them is then the distribution that it is compared with: they are no losses of units of their own.
    """
    inner = only_input(node)
    while inner is not None and inner.name().startswith((*PASSED_ON, "MulBackward", "DivBackward", "NegBackward")):
        inner = only_input(inner)
    if inner is None or not inner.name().startswith("LogSoftmaxBackward"):
        return False
    sizes = shape_of(inner, 0)
    return bool(sizes) and sizes[_signed(inner._saved_dim) % len(sizes)] == places


def _divides_by(factor: Factor, number: float) -> bool:
    return factor.value is not None and _same(factor.value * number, 1.0)


def _factors_below(node: Any) -> tuple[Factor, ...]:
    """The numbers with a name that the elements were scaled by before ``node`` reduced them: they scale the result.

    What has no name of its own, counts the rows of something, or is computed from data, belongs to the loss of an
    element.
    """
    found = [factor for inner in _scalings_below(node) for factor in _named_factors(inner)]
    return tuple(reversed(found))


def _scalings_below(node: Any) -> Iterator[Any]:
    """The multiplications and divisions of the elements that ``node`` reduces, the last one first."""
    inner = only_input(node) if node.name().startswith(("SumBackward0", "MeanBackward0")) else None
    while inner is not None and inner.name().startswith((*PASSED_ON, "MulBackward", "DivBackward")):
        if inner.name().startswith(("MulBackward", "DivBackward")):
            yield inner
        inner = only_input(inner)


def _named_factors(node: Any) -> tuple[Factor, ...]:
    """The factors of a multiplication or division by a number with a name; empty where it is none."""
    factors = (factors_of(node, node.name()) or ()) if SCALED_AT in node.metadata else ()
    return factors if all(f.value is not None and _is_a_name(f.origins) for f in factors) else ()


def _is_a_name(origins: frozenset[str]) -> bool:
    counts = names_size(origins) or any(is_extent(o) or is_length(o) or is_total(o) for o in origins)
    return bool(origins) and DATA not in origins and not counts and not is_written_out(origins)


def _weights_in_data(node: Any, places: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The factors of the elements that ``node`` reduces: tensors of the same size, and scalars that divide them."""
    name = node.name()
    if _over_samples_below(node) is not None:
        return [], []
    if name.startswith("BinaryCrossEntropy"):
        weight = getattr(node, "_saved_weight", None)
        return ([weight] if weight is not None and weight.numel() == places else []), []
    if name.startswith("DotBackward"):
        first, second = (inner for inner, _ in node.next_functions)
        weight = node._saved_self if first is None else node._saved_tensor
        return ([weight] if (first is None) != (second is None) else []), []
    found: list[torch.Tensor] = []
    by: list[torch.Tensor] = []
    for inner in _scalings_below(node):
        if _named_factors(inner):
            continue
        operand = _operand(inner)
        divides = inner.name().startswith("DivBackward")
        if operand is None or operand.numel() != (1 if divides else places):
            break
        (by if divides else found).append(operand)
    return [operand.reshape(-1) for operand in found] if len(found) > 1 else found, by


def _is_weighted_by_data(node: Any) -> bool:
    return node.name().startswith(("MulBackward", "DivBackward")) and _operand(node) is not None


def _operand(node: Any) -> torch.Tensor | None:
    """The operand of a multiplication or division that needs no gradient; None if there is none."""
    if sum(inner is not None for inner, _ in node.next_functions) != 1:
        return None
    other = node._saved_other
    if other is None and node.name().startswith("MulBackward"):
        other = node._saved_self
    return other if isinstance(other, torch.Tensor) else None


def is_cached(loss: torch.Tensor) -> bool:
    """Whether a loss has a hook that computes its gradients in place of a graph: a scalar that is not a parameter."""
    is_number = loss.is_leaf and loss.requires_grad and loss.numel() == 1
    return is_number and not isinstance(loss, torch.nn.Parameter) and bool(loss._backward_hooks)


def _over_samples_below(node: Any) -> Any:
    """The mean or sum over samples (the first dimension) whose results ``node`` reduces; None if there is none.

    The results may have weights of their own, one for each output, say: no sample is left that these could count.
    """
    inner = only_input(node)
    while inner is not None and (inner.name().startswith(PASSED_ON) or _is_weighted_by_data(inner)):
        inner = only_input(inner)
    if inner is None or not inner.name().startswith(("MeanBackward1", "SumBackward1")):
        return None
    size = len(sizes_of(inner))
    return inner if any(_signed(dim) % size == 0 for dim in inner._saved_dim) else None


def _is_of_a_loss(node: Any) -> bool:
    """Whether ``node`` reduces one number only, which is a reduced loss itself: the mean of a mean is that mean."""
    inner = only_input(node) if math.prod(sizes_of(node)) == 1 else None
    while inner is not None and inner.name().startswith(PASSED_ON):
        inner = only_input(inner)
    if inner is None:
        return False
    name: str = inner.name()
    if name.startswith(LOSSES):
        return bool(inner._saved_reduction)
    return name.startswith(("MeanBackward0", "SumBackward0"))


def _summed_below(node: Any) -> int:
    """How many numbers each element that ``node`` reduces is a sum of; 1 if it is no sum, or that is unknown."""
    inner = only_input(node)
    while inner is not None and inner.name().startswith((*PASSED_ON, *_MASKS)):
        inner = only_input(inner)
    if inner is None or not inner.name().startswith("SumBackward1"):
        return 1
    sizes = sizes_of(inner)
    return math.prod(sizes[_signed(dim) % len(sizes)] for dim in inner._saved_dim)


def _reduced_twice(node: Any, inner: Any, short: str, factors: tuple[Factor, ...]) -> Term:
    """A loss reduced over samples first (``inner``), then over the rest: the first reduction counts the units."""
    rows, elements = float(sizes_of(inner)[0]), float(math.prod(sizes_of(inner)))
    if inner.name().startswith("MeanBackward1"):
        return Term(short, Reduction.MEAN, rows, factors, rows)
    if node.name().startswith("MeanBackward0"):
        share = Factor(1.0 / float(node._saved_self_sym_numel), purpose=Purpose.OBJECTIVE)
        factors = (share, *factors)
    return Term(short, Reduction.SUM, elements, factors, rows)


def _rows(node: Any) -> float | None:
    """The size of the first dimension of what was reduced, before it was flattened; None for a number."""
    sizes, inner = sizes_of(node), only_input(node)
    if len(sizes) < 2 and inner is not None and inner.name().startswith(_FLATTENS):
        sizes = sizes_of(inner)
    return float(sizes[0]) if sizes else None


def _signed(number: int) -> int:
    """A dimension as it was passed: graphs hold negative ones as unsigned 64-bit numbers."""
    return number - 2**64 if number >= 2**63 else number


def _loss_term(node: Any, short: str, factors: tuple[Factor, ...], counts: Counts) -> Term:
    reduction = Reduction.SUM if node._saved_reduction == 2 else Reduction.MEAN
    values = getattr(node, "_saved_self", None)
    rows = float(values.shape[0]) if isinstance(values, torch.Tensor) and values.dim() else 1.0
    units = float(values.numel()) if isinstance(values, torch.Tensor) else None
    if short.startswith("NllLoss"):
        units = _nll_units(node, counts)
    return Term(short, reduction, units, factors, rows)


def _nll_units(node: Any, counts: Counts) -> float | None:
    """The sum of the class weights of targets that are not ignored: what the mean divides by."""
    target, weight = node._saved_target, node._saved_weight
    if all_samples(target) is not None:
        # One sample of many, each of which is one unit.
        return None
    if node._saved_reduction == 1:
        total = node._saved_total_weight
        return counts(total, float(target.numel())) if weight is None else number_of(total)
    ignored = node._saved_ignore_index
    counted = target != _signed(ignored)
    if weight is None:
        return float(counted.sum())
    return float(weight[target[counted]].sum())


def _is_penalty(node: Any) -> bool:
    """Whether a scalar depends on parameters alone, so that it has no units.

    A graph contains data if and only if some input other than a parameter, with the batch's rows, flows into it. An
    input that needs no gradient does not appear as a leaf; but then a product has only one visible operand, or the
    result is larger than every operand that needs a gradient. A constant that is no larger than the parameters that it
    is combined with (their earlier values, a weight for each) does not change the number of units.
    """
    pending = [node]
    seen: set[Any] = set()
    while pending:
        inner = pending.pop()
        if inner in seen:
            continue
        seen.add(inner)
        if not _holds_no_data(inner) or len(seen) > _LARGEST_PENALTY:
            return False
        pending += [following for following, _ in inner.next_functions if following is not None]
    return True


def _holds_no_data(node: Any) -> bool:
    """Whether a node takes no data except through its visible operands."""
    name: str = node.name()
    if "AccumulateGrad" in name:
        return True
    if name.startswith(_PRODUCTS):
        return all(inner is not None for inner, _ in node.next_functions)
    if name.startswith(_ELEMENTWISE):
        return not _is_enlarged(node)
    return name.startswith((*_REDUCTIONS, *PASSED_ON, *_WITHIN))


def _is_enlarged(node: Any) -> bool:
    """Whether a result is larger than its operands that need a gradient, so that a hidden operand was broadcast in."""
    result = shape_of(node, 0)
    operands = [shape_of(inner, place) for inner, place in node.next_functions if inner is not None]
    if result in operands:
        return False
    return not operands or result != tuple(torch.broadcast_shapes(*operands))  # type: ignore[no-untyped-call]


def _reduced_elements(node: Any) -> int:
    """How many elements a reduction combines."""
    if hasattr(node, "_saved_self_sym_sizes"):
        return math.prod(sizes_of(node))
    saved = (getattr(node, name, None) for name in ("_saved_self", "_saved_tensor", "_saved_other"))
    return int(next(values for values in saved if values is not None).numel())
