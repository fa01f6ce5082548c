"""Repairs of weights: GA101, GA102, GA103."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from gradcheck_accum.ledger.events import Backward, Factor
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import read_weights
from gradcheck_accum.lint.fixes.case import Case, Repair, is_repeatable
from gradcheck_accum.lint.fixes.counting import NumberedLoop, numbered_loop
from gradcheck_accum.lint.fixes.edits import Edits
from gradcheck_accum.lint.fixes.expressions import binds_tighter, divided, in_parentheses, positional
from gradcheck_accum.lint.fixes.script import CannotEdit, Script
from gradcheck_accum.lint.program.torch_names import DIVIDES


def divide(case: Case) -> Iterator[Repair]:
    """GA101: divide what ``backward`` is called on by K, or where windows differ by the window's own number."""
    script, call = case.script, case.call(case.finding.where)
    events = (e for e in case.ledger.trace.events if isinstance(e, Backward))
    scaled = any(event.grad_scaled for event in events if event.where == case.finding.where)
    names = case.names_of_steps(call)
    for name in [*names, *_lengths_of_inner_loops(case, call)]:
        edits = _divide_loss(case.edits(), script, call, name, scaled)
        yield Repair(f"Divide the loss by {script.code(name)}", True, edits)
    loop = numbered_loop(script, call)
    if loop is not None:
        for name in filter(loop.leaves_alone, names):
            edits = case.edits()
            window = loop.name_of_window(script.code(name), edits)
            _divide_loss(edits, script, call, window, scaled)
            yield Repair("Divide the loss by the window's own number of micro-batches", _is_sized(case, loop), edits)


def _is_sized(case: Case, loop: NumberedLoop) -> bool:
    """Whether ``len`` of what the loop runs over is certain to work: taken before, or seen in the source."""
    return loop.is_sized or not case.ledger.trace.assumed_length


def _lengths_of_inner_loops(case: Case, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """The length of a loop over the window's micro-batches: it holds the backward, and not the step."""
    outside = {loop for place in case.step_places() for loop in case.script.loops_of(case.call(place))}
    for loop in case.script.loops_of(call):
        if loop not in outside and isinstance(loop.iter, cst.Name):
            yield cst.Call(cst.Name("len"), [cst.Arg(loop.iter)])


def _divide_loss(edits: Edits, script: Script, call: cst.Call, divisor: cst.BaseExpression, scaled: bool) -> Edits:
    """``loss.backward()`` with the loss divided; inside ``scaler.scale(...)`` where there is one."""
    func = call.func
    if not isinstance(func, cst.Attribute):
        raise CannotEdit("not a method")
    loss = func.value
    if script.code(loss).rpartition(".")[2] == "autograd":
        return _divide_argument(edits, call, divisor)
    if scaled and isinstance(loss, cst.Call):
        return _divide_argument(edits, loss, divisor)
    return edits.replace(loss, in_parentheses(divided(loss, divisor)))


def _divide_argument(edits: Edits, call: cst.Call, divisor: cst.BaseExpression) -> Edits:
    given = positional(call)
    if not given:
        raise CannotEdit("no plain argument")
    if isinstance(given[0], (cst.List, cst.Tuple)):
        raise CannotEdit("several losses")
    return edits.replace(given[0], divided(given[0], divisor))


def undivide(case: Case) -> Iterator[Repair]:
    """GA102: take one of the divisions out, the last first."""
    for where, factor in reversed(_scaling(case)):
        if not factor.value or factor.value >= 1:
            continue
        place = _Division.find(case.script, where)
        if place is not None:
            safe = not _is_read_elsewhere(case, place)
            edits = place.removed(case.edits())
            yield Repair(f"Do not also divide by {case.script.code(place.divisor)}", safe, edits)


def divide_by_window(case: Case) -> Iterator[Repair]:
    """GA103: divide by the number of micro-batches that a window really holds, not by K."""
    for where, factor in _scaling(case):
        if not factor.value or not case.ledger.same(factor.value * case.steps(), 1.0):
            continue
        place = _Division.find(case.script, where)
        if place is None or not is_repeatable(place.divisor):
            continue
        loop = numbered_loop(case.script, place.node)
        if loop is not None and loop.leaves_alone(place.divisor):
            edits = case.edits()
            edits.replace(place.divisor, loop.name_of_window(case.script.code(place.divisor), edits))
            safe = _is_sized(case, loop) and not _is_read_elsewhere(case, place)
            yield Repair("Divide by the window's own number of micro-batches", safe, edits)


def _scaling(case: Case) -> list[tuple[Location, Factor]]:
    """The factors that are read as the accumulation's in the finding's windows, each place of a loss once."""
    windows = case.windows()
    scaled_at = read_weights(case.ledger).scaled_at(windows)
    found: dict[Location, Factor] = {}
    for window in windows:
        for entry in window.entries:
            for term in entry.backward.terms:
                for factor in term.factors:
                    if factor.where is not None and factor.where in scaled_at:
                        found.setdefault(factor.where, factor)
    return list(found.items())


@dataclass(frozen=True, slots=True)
class _Division:
    """The source that divides a loss: ``loss / K``, ``loss /= K``, ``loss.div(K)`` or ``torch.div(loss, K)``."""

    statement: cst.BaseSmallStatement
    node: cst.AugAssign | cst.BaseExpression
    dividend: cst.BaseExpression
    divisor: cst.BaseExpression

    @classmethod
    def find(cls, script: Script, where: Location) -> _Division | None:
        """The division that spans ``where``."""
        match script.find(where, cst.AugAssign):
            case cst.AugAssign(target, cst.DivideAssign(), value) as augmented:
                return cls(augmented, augmented, target, value)
        match script.find(where, cst.BinaryOperation):
            case cst.BinaryOperation(left, cst.Divide(), right) as binary:
                return cls(script.statement(binary), binary, left, right)
        match script.find(where, cst.Call):
            case cst.Call(cst.Attribute(value, cst.Name(name))) as call if name in DIVIDES:
                given = positional(call)
                if len(given) == len(call.args) == 1:
                    return cls(script.statement(call), call, value, given[0])
                if len(given) == len(call.args) == 2:
                    return cls(script.statement(call), call, given[0], given[1])
        return None

    def removed(self, edits: Edits) -> Edits:
        """The edits that take this division out."""
        if isinstance(self.node, cst.AugAssign):
            return edits.remove(self.statement)
        match self.statement:
            case cst.Assign([cst.AssignTarget(target)], value) if value is self.node:
                if target.deep_equals(self.dividend):  # `loss = loss / K`
                    return edits.remove(self.statement)
        dividend = self.dividend
        if self.node.lpar and not binds_tighter(dividend):
            dividend = dividend.with_changes(lpar=self.node.lpar, rpar=self.node.rpar)
        return edits.replace(self.node, dividend)


def _is_read_elsewhere(case: Case, place: _Division) -> bool:
    """Whether the divided loss serves another end than ``backward``: what is logged would change as well."""
    script = case.script
    statement = place.statement
    match statement:
        case cst.Assign(targets=[cst.AssignTarget(target)]):
            bound = target
        case cst.AugAssign(target=bound) | cst.AnnAssign(target=bound):
            pass
        case cst.Assign():
            return True
        case _:
            # Divided inside the backward's own statement; a helper's return value may go anywhere.
            return isinstance(statement, cst.Return)
    if not isinstance(bound, cst.Name):
        return True
    backwards = {script.statement(case.call(e.where)) for e in case.ledger.trace.events if isinstance(e, Backward)}
    own = script.start(statement)
    for mention in script.names(bound.value, script.function_of(statement)):
        if script.start(mention) <= own:
            continue
        holder = script.small_statement(mention)
        rebinds = isinstance(holder, cst.Assign) and any(target.target is mention for target in holder.targets)
        if holder not in backwards and holder is not statement and not rebinds:
            return True
    return False
