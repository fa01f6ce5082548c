"""Repairs of weights: GA101, GA102, GA103."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcheck_accum.events import Backward, Factor
from gradcheck_accum.lint.fixes.case import Case, Repair, is_repeatable
from gradcheck_accum.lint.fixes.counting import NumberedLoop, name_of_window, numbered_loop
from gradcheck_accum.lint.fixes.script import CannotEdit, Change, Script
from gradcheck_accum.location import Location

_DIVIDING_METHODS = frozenset({"div", "true_divide"})
_BINDS_TIGHTER = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Await)


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
        for name in filter(loop.leaves_alone, names):
            window, made = name_of_window(script, loop, name)
            changes = [*made, _divided(script, call, window, scaled)]
            yield Repair("Divide the loss by the window's own number of micro-batches", _is_sized(case, loop), changes)


def _is_sized(case: Case, loop: NumberedLoop) -> bool:
    """Whether ``len`` of what the loop runs over is certain to work: taken before, or seen in the source."""
    return loop.is_sized or not case.ledger.trace.assumed_length


def _lengths_of_inner_loops(case: Case, call: ast.Call) -> Iterator[str]:
    """The length of a loop over the window's micro-batches: it holds the backward, and not the step."""
    outside = {id(loop) for place in case.step_places() for loop in case.script.loops_of(case.call(place))}
    for loop in case.script.loops_of(call):
        if id(loop) not in outside and isinstance(loop.iter, ast.Name):
            yield f"len({loop.iter.id})"


def _divided(script: Script, call: ast.Call, divisor: str, scaled: bool) -> Change:
    """``loss.backward()`` with the loss divided; inside ``scaler.scale(...)`` where there is one."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        raise CannotEdit("not a method")
    loss = func.value
    if script.code(loss).rpartition(".")[2] == "autograd":
        return _divided_argument(script, call, divisor)
    if scaled and isinstance(loss, ast.Call):
        return _divided_argument(script, loss, divisor)
    return script.replace(func.value, f"({operand(script, loss)} / {divisor})")


def _divided_argument(script: Script, call: ast.Call, divisor: str) -> Change:
    if not call.args or isinstance(call.args[0], ast.Starred):
        raise CannotEdit("no plain argument")
    loss = call.args[0]
    if isinstance(loss, (ast.List, ast.Tuple)):
        raise CannotEdit("several losses")
    return script.replace(loss, f"{operand(script, loss)} / {divisor}")


def operand(script: Script, node: ast.expr) -> str:
    """The source of an expression as the left side of a division, or with a method behind it."""
    code = script.code(node)
    return code if isinstance(node, _BINDS_TIGHTER) or script.is_parenthesised(node) else f"({code})"


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
        if place is None or not is_repeatable(place.divisor):
            continue
        loop = numbered_loop(case.script, place.node)
        if loop is not None and loop.leaves_alone(place.divisor_text):
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

    def __init__(self, script: Script, node: ast.AST, dividend: ast.expr, divisor: ast.expr):
        self.script = script
        self.node = node
        self.dividend = dividend
        self.divisor = divisor

    @classmethod
    def find(cls, script: Script, where: Location) -> _Division | None:
        """The division that spans ``where``."""
        augmented = script.find(where, ast.AugAssign)
        if augmented is not None and isinstance(augmented.op, ast.Div):
            return cls(script, augmented, augmented.target, augmented.value)
        binary = script.find(where, ast.BinOp)
        if binary is not None and isinstance(binary.op, ast.Div):
            return cls(script, binary, binary.left, binary.right)
        call = script.find(where, ast.Call)
        if call is None or call.keywords:
            return None
        if isinstance(call.func, ast.Attribute) and call.func.attr in _DIVIDING_METHODS:
            if len(call.args) == 1:
                return cls(script, call, call.func.value, call.args[0])
            if len(call.args) == 2:
                return cls(script, call, call.args[0], call.args[1])
        return None

    @property
    def divisor_text(self) -> str:
        """The source of what is divided by."""
        return self.script.code(self.divisor)

    def removed(self) -> Change | None:
        """The source without this division; None where a block would be left empty."""
        statement = self.script.statement(self.node)
        if isinstance(statement, ast.Assign) and statement.value is self.node and len(statement.targets) == 1:
            # `loss = loss / K`
            alone = self.script.code(statement.targets[0]) == self.script.code(self.dividend)
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
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = [statement.target]
    else:
        # Divided inside the backward's own statement; a helper's return value may go anywhere.
        return isinstance(statement, ast.Return)
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return True
    backwards = {id(script.statement(case.call(e.where))) for e in case.ledger.trace.events if isinstance(e, Backward)}
    own = script.start(statement)
    for mention in script.names(targets[0].id, script.function_of(place.node)):
        if script.start(mention) <= own:
            continue
        holder = script.small_statement(mention)
        rebinds = isinstance(holder, ast.Assign) and any(target is mention for target in holder.targets)
        if id(holder) not in backwards and holder is not statement and not rebinds:
            return True
    return False
