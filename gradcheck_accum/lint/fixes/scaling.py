"""Repairs of weights: GA101, GA102, GA103."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradcheck_accum.events import Backward, Factor
from gradcheck_accum.lint.fixes.case import SIMPLE, Case, Repair
from gradcheck_accum.lint.fixes.counting import NumberedLoop, name_of_window, numbered_loop
from gradcheck_accum.lint.fixes.script import CannotEdit, Change, Script
from gradcheck_accum.location import Location

_DIVIDING_METHODS = frozenset({"div", "true_divide"})
_BINDS_TIGHTER = (
    cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float, cst.Await
)  # fmt: skip


def divide(case: Case) -> Iterator[Repair]:
    """GA101: divide what ``backward`` is called on by K, or where windows differ by the window's own number."""
    script, call = case.script, case.call(case.finding.where)
    events = (e for e in case.ledger.trace.events if isinstance(e, Backward))
    scaled = any(event.grad_scaled for event in events if event.where == case.finding.where)
    names = case.names_of_steps(call)
    for name in [*names, *_lengths_of_inner_loops(case, call)]:
        yield Repair(f"Divide the loss by {name}", True, [_divided(script, call, name, scaled)])
    loop = numbered_loop(script, call)
    if loop is not None:
        for name in names:
            window, made = name_of_window(script, loop, name)
            changes = [*made, _divided(script, call, window, scaled)]
            yield Repair("Divide the loss by the window's own number of micro-batches", _is_sized(case, loop), changes)


def _is_sized(case: Case, loop: NumberedLoop) -> bool:
    """Whether ``len`` of what the loop runs over is certain to work: taken before, or seen in the source."""
    return loop.is_sized or not case.ledger.trace.assumed_length


def _lengths_of_inner_loops(case: Case, call: cst.Call) -> Iterator[str]:
    """The length of a loop over the window's micro-batches: it holds the backward, and not the step."""
    outside = {id(loop) for place in case.step_places() for loop in case.script.loops_of(case.call(place))}
    for loop in case.script.loops_of(call):
        if id(loop) not in outside and isinstance(loop.iter, cst.Name):
            yield f"len({loop.iter.value})"


def _divided(script: Script, call: cst.Call, divisor: str, scaled: bool) -> Change:
    """``loss.backward()`` with the loss divided; inside ``scaler.scale(...)`` where there is one."""
    func = call.func
    if not isinstance(func, cst.Attribute):
        raise CannotEdit("not a method")
    loss = func.value
    if script.code(loss).rpartition(".")[2] == "autograd":
        return _divided_argument(script, call, divisor)
    if scaled and isinstance(loss, cst.Call):
        return _divided_argument(script, loss, divisor)
    return script.replace(func.value, f"({operand(script, loss)} / {divisor})")


def _divided_argument(script: Script, call: cst.Call, divisor: str) -> Change:
    if not call.args or call.args[0].keyword is not None or call.args[0].star:
        raise CannotEdit("no plain argument")
    loss = call.args[0].value
    if isinstance(loss, (cst.List, cst.Tuple)):
        raise CannotEdit("several losses")
    return script.replace(loss, f"{operand(script, loss)} / {divisor}")


def operand(script: Script, node: cst.BaseExpression) -> str:
    """The source of an expression as the left side of a division, or with a method behind it."""
    code = script.code(node)
    return code if isinstance(node, _BINDS_TIGHTER) or node.lpar else f"({code})"


def undivide(case: Case) -> Iterator[Repair]:
    """GA102: take one of the divisions out, the last first."""
    for factor in reversed(_factors(case)):
        if factor.where is None or not factor.value or factor.value >= 1:
            continue
        place = _Division.find(case.script, factor.where)
        removed = place.removed() if place is not None else None
        if place is not None and removed is not None:
            safe = not _is_read_elsewhere(case, place)
            yield Repair(f"Do not divide by {place.divisor_text} too", safe, [removed])


def divide_by_window(case: Case) -> Iterator[Repair]:
    """GA103: divide by the number of micro-batches that a window really holds, not by K."""
    for factor in _factors(case):
        if factor.where is None or not factor.value or abs(factor.value * case.steps() - 1) > 1e-9:
            continue
        place = _Division.find(case.script, factor.where)
        if place is None or not isinstance(place.divisor, SIMPLE):
            continue
        loop = numbered_loop(case.script, place.node)
        if loop is not None:
            window, made = name_of_window(case.script, loop, place.divisor_text)
            safe = _is_sized(case, loop) and not _is_read_elsewhere(case, place)
            changes = [*made, case.script.replace(place.divisor, window)]
            yield Repair("Divide by the window's own number of micro-batches", safe, changes)


def _factors(case: Case) -> list[Factor]:
    """The factors of the losses in the finding's windows, each place once."""
    found: dict[Location | None, Factor] = {}
    for window in case.windows():
        for entry in window.entries:
            for term in entry.backward.terms:
                for factor in term.factors:
                    found.setdefault(factor.where, factor)
    return list(found.values())


class _Division:
    """The source that divides a loss: ``loss / K``, ``loss /= K``, ``loss.div(K)`` or ``torch.div(loss, K)``."""

    def __init__(self, script: Script, node: cst.CSTNode, dividend: cst.BaseExpression, divisor: cst.BaseExpression):
        self.script = script
        self.node = node
        self.dividend = dividend
        self.divisor = divisor

    @classmethod
    def find(cls, script: Script, where: Location) -> _Division | None:
        """The division that spans ``where``."""
        augmented = script.find(where, cst.AugAssign)
        if augmented is not None and isinstance(augmented.operator, cst.DivideAssign):
            return cls(script, augmented, augmented.target, augmented.value)
        binary = script.find(where, cst.BinaryOperation)
        if binary is not None and isinstance(binary.operator, cst.Divide):
            return cls(script, binary, binary.left, binary.right)
        call = script.find(where, cst.Call)
        if call is not None and isinstance(call.func, cst.Attribute) and call.func.attr.value in _DIVIDING_METHODS:
            arguments = [argument.value for argument in call.args if argument.keyword is None]
            if len(arguments) == len(call.args) == 1:
                return cls(script, call, call.func.value, arguments[0])
            if len(arguments) == len(call.args) == 2:
                return cls(script, call, arguments[0], arguments[1])
        return None

    @property
    def divisor_text(self) -> str:
        """The source of what is divided by."""
        return self.script.code(self.divisor)

    def removed(self) -> Change | None:
        """The source without this division; None where a block would be left empty."""
        statement = self.script.statement(self.node)
        if isinstance(statement, cst.Assign) and statement.value is self.node and len(statement.targets) == 1:
            # `loss = loss / K`
            alone = self.script.code(statement.targets[0].target) == self.script.code(self.dividend)
        else:
            alone = statement is self.node
        undivided = self.script.code(self.dividend)
        try:
            return self.script.remove(statement) if alone else self.script.replace(self.node, undivided)
        except CannotEdit:
            return None


def _is_read_elsewhere(case: Case, place: _Division) -> bool:
    """Whether the divided loss serves another end than ``backward``: what is logged would change as well."""
    script = case.script
    statement = script.statement(place.node)
    if isinstance(statement, cst.Assign):
        targets = [target.target for target in statement.targets]
    elif isinstance(statement, cst.AugAssign):
        targets = [statement.target]
    else:
        # Divided inside the backward's own statement; a helper's return value may go anywhere.
        return isinstance(statement, cst.Return)
    if len(targets) != 1 or not isinstance(targets[0], cst.Name):
        return True
    backwards = {id(script.statement(case.call(e.where))) for e in case.ledger.trace.events if isinstance(e, Backward)}
    own = script.start(statement)
    for mention in script.names(targets[0].value, script.function_of(place.node)):
        if script.start(mention) <= own:
            continue
        holder = script.small_statement(mention)
        rebinds = isinstance(holder, cst.Assign) and any(target.target is mention for target in holder.targets)
        if id(holder) not in backwards and holder is not statement and not rebinds:
            return True
    return False
