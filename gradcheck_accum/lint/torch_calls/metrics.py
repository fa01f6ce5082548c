"""Numbers that are read from losses: how they are summed and divided, and where they are displayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any

from gradcheck_accum.ledger.events import Factor, Purpose
from gradcheck_accum.ledger.stated_names import NAMES_OF_SIZE
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import may_vary
from gradcheck_accum.lint.program import names
from gradcheck_accum.lint.program.torch_names import COMPUTES, SHOWS
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Figure, Num, Tensor
from gradcheck_accum.lint.state.values.tensors import MOST_PARTS
from gradcheck_accum.lint.syntax import Operator, call_name, text_of

_DEEPEST = 3


def read(run: State, node: syntax.Node, tensor: Tensor | Figure) -> Figure:
    """The number that a loss holds: ``loss.item()``, ``float(loss)``."""
    return Figure(parts=tensor.parts, read_at=run.recorder.locate(node), may_be_sum=tensor.may_be_sum)


def combined(run: State, op: Operator, left: Any, right: Any) -> Any:
    """``left op right`` if at least one of them is a number read from losses."""
    figure, other = (left, right) if isinstance(left, Figure) else (right, left)
    if op is Operator.ADD:
        if isinstance(other, Figure) and len(figure.parts) + len(other.parts) <= MOST_PARTS:
            return replace(right, parts=(*left.parts, *right.parts), may_be_sum=True)
        return replace(figure, may_be_sum=True) if isinstance(other, Num) and other.value == 0 else UNKNOWN
    if isinstance(other, v.Samples) and op is Operator.DIV and figure is left:
        return _over_all_rows(run, figure)
    if isinstance(other, Num) and v.LENGTH in other.tags and not other.tags & run.recorder.counted:
        # The length of something else than what the loop runs over, a data set's say: its number is not known.
        return UNKNOWN
    if not isinstance(other, Num) or (op is Operator.DIV and (figure is right or other.value == 0)):
        return UNKNOWN
    if op in (Operator.MULT, Operator.DIV):
        value = float(other.value) if op is Operator.MULT else 1.0 / float(other.value)
        rows = NAMES_OF_SIZE[:1] if v.UNITS in other.tags and op is Operator.MULT else ()
        is_steps = op is Operator.MULT and value > 1 and run.knowledge.counts_windows(int(value), other.origins)
        purpose = Purpose.ACCUMULATION if is_steps else Purpose.UNKNOWN
        return _scaled(figure, Factor(value, purpose=purpose, origins=frozenset(rows)))
    return UNKNOWN


def _scaled(figure: Figure, factor: Factor) -> Figure:
    return replace(figure, parts=tuple(replace(part, factors=(*part.factors, factor)) for part in figure.parts))


def _over_all_rows(run: State, figure: Figure) -> Any:
    """A sum of losses, each times the rows of its micro-batch, over the number of rows that a data set has.

    It has as many as its micro-batches have together: that is how the mean over a pass is written.
    """
    weights = {part.factors[-1].value for part in figure.parts if part.factors and part.factors[-1].origins}
    counted = all(part.factors and NAMES_OF_SIZE[0] in part.factors[-1].origins for part in figure.parts)
    given = run.recorder.given()
    if not counted or len(weights) != 1 or not given:
        return UNKNOWN
    rows = weights.pop() or 0.0
    return _scaled(figure, Factor(1 / (rows * given))) if rows else UNKNOWN


def is_read(value: Any) -> bool:
    """Whether a value is a number that was read from losses, or a loss without its graph."""
    return isinstance(value, Figure) or (
        isinstance(value, Tensor) and all(isinstance(part.flow, v.Detached) for part in value.parts)
    )


def mean(run: State, values: list[Any], *, divides: bool = True) -> Any:
    """The mean of several numbers, or their sum."""
    total: Any = Num(0)
    for value in values:
        figure = Figure(parts=value.parts) if isinstance(value, Tensor) else value
        if not isinstance(figure, Figure) or not isinstance(total, (Figure, Num)):
            return UNKNOWN
        total = combined(run, Operator.ADD, total, figure)
    return combined(run, Operator.DIV, total, Num(len(values))) if divides and isinstance(total, Figure) else total


def fields_of_text(text: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The attributes of objects that a text is formatted with: of ``"{loss.avg}".format(loss=meter)`` the average.

    Of several of one object, only that over the most losses: the latest loss is in their mean.
    """
    found: dict[int, Any] = {}
    try:
        named = [(field or "").partition(".") for _, field, _, _ in Formatter().parse(text)]
    except ValueError:
        return
    for position, (name, _, attribute) in enumerate(named):
        number = int(name) if name.isdigit() else position
        given = kwargs.get(name, args[number] if number < len(args) and (name.isdigit() or not name) else None)
        if isinstance(given, v.Instance) and attribute in given.attributes:
            value, before = given.attributes[attribute], found.get(id(given))
            if _losses_in(value) >= _losses_in(before):
                found[id(given)] = value
    yield from found.values()


def _losses_in(value: Any) -> int:
    return len(value.parts) if isinstance(value, (Figure, Tensor)) else 0


def shows(node: syntax.Call) -> bool:
    """Whether a call shows something to a person, as its name says."""
    name = call_name(node)
    return name in SHOWS or bool(names.SHOWS.fits(name))


def shown_by_call(run: State, node: syntax.Call, base: Any, values: Iterable[Any]) -> None:
    """Record what a call shows to a person, if it is one that does.

    What a definition that is read does with a loss shows in there: it may only keep it.
    """
    computes = isinstance(base, v.Reference) and f"{base.path}.".startswith(COMPUTES)
    if shows(node) and not computes:
        method = base.cls.bound(call_name(node), base) if isinstance(base, v.Instance) else None
        is_read_along = method is not None or isinstance(base, v.Function)
        shown(run, node, values, to_a_person=not is_read_along)


def shown(
    run: State,
    node: syntax.Expression,
    values: Iterable[Any],
    depth: int = 0,
    *,
    label: syntax.Expression | None = None,
    to_a_person: bool = True,
) -> None:
    """Record the numbers among some values that an expression shows to a person, or hands to other code.

    The text of ``label``, or else of the expression, may say that they are scaled.
    """
    for value in values:
        if isinstance(value, (Figure, Tensor)) and not names.SAYS_SCALED.fits(text_of(label or node)):
            # If a sum is reset where it is displayed, how often that happens decides how many micro-batches it is over.
            if len({part.micro_batch for part in value.parts}) == 1 or not may_vary(run):
                figure = value if isinstance(value, Figure) and value.read_at else read(run, node, value)
                as_read = to_a_person and not figure.may_be_sum
                run.recorder.show(node, figure, as_read=as_read)
        elif isinstance(value, (list, tuple, dict)) and depth < _DEEPEST:
            inside = value.values() if isinstance(value, dict) else value[:8]
            shown(run, node, inside, depth + 1, label=label, to_a_person=to_a_person)
