"""Repairs of clearing: GA201, GA202, GA203, GA204."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradcheck_accum.ledger.events import Backward, Clip, Event, Step, ZeroGrad
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint.fixes.case import Case, Repair, is_visible
from gradcheck_accum.lint.fixes.edits import Line
from gradcheck_accum.lint.fixes.expressions import call_statement, method_call, positional
from gradcheck_accum.lint.fixes.script import CannotEdit, Script, Statement


def clear_after_step(case: Case) -> Iterator[Repair]:
    """GA201, GA202: move the clearing behind every step that it should follow."""
    script = case.script
    call = case.call(case.finding.where)
    statement = script.statement(call)
    if not isinstance(statement, cst.Expr) or statement.value is not call:
        raise CannotEdit("not a statement of its own")
    for places in case.steps_near(statement):
        edits = case.edits()
        lines: list[Line] = []
        steps = [case.call(p) for p in places if not _is_cleared_after(case, p, but=case.finding.where)]
        for step in steps:
            # The comments are written once.
            line = cst.SimpleStatementLine([]) if lines else edits.take(statement)[0]
            own = is_visible(script, call.func, step)
            clearing = call if own else method_call(optimizer_of(step), "zero_grad", call.args)
            lines.append(line.with_changes(body=[cst.Expr(clearing)]))
            edits.after(_last_of_step(case, step), lines[-1])
        if not steps:
            edits.remove(statement)
        yield Repair("Clear the gradients after the step", True, edits)


def add_clearing(case: Case) -> Iterator[Repair]:
    """GA203: clear the gradients after every step that no clearing follows."""
    if "GA304" in case.others:
        # The clearing may well be right, and the step too early.
        return
    edits = case.edits()
    for place in case.step_places():
        if not _is_cleared_after(case, place):
            step = case.call(place)
            edits.after(_last_of_step(case, step), call_statement(optimizer_of(step), "zero_grad"))
    yield Repair("Clear the gradients after the step", True, edits)


def clear_other(case: Case) -> Iterator[Repair]:
    """GA204: clear the other optimizer's gradients where the first one's are cleared."""
    script = case.script
    edits = case.edits()
    for place in case.step_places():
        step = case.call(place)
        own = script.statement(step)
        behind = [script.statement(case.call(e.where)) for e in case.ledger.trace.events if isinstance(e, ZeroGrad)]
        others = [s for s in behind if script.block(s) is script.block(own) and script.start(s) > script.start(own)]
        last = max(others, key=script.start, default=_last_of_step(case, step))
        edits.after(last, call_statement(optimizer_of(step), "zero_grad"))
    yield Repair("Clear the gradients of every optimizer", True, edits)


def optimizer_of(step: cst.Call) -> cst.BaseExpression:
    """The optimizer whose ``step`` is called, or that is passed to a grad scaler's ``step``."""
    given = positional(step)
    if given:
        return given[0]
    if not isinstance(step.func, cst.Attribute):
        raise CannotEdit("not a method")
    return step.func.value


def _last_of_step(case: Case, step: cst.Call) -> Statement:
    """The last statement that belongs to a step: its own, the scaler's ``update()``, or what reads its gradients."""
    script = case.script
    last: Statement = script.statement(step)
    match script.next_to(last, 1):
        case cst.Expr(cst.Call(cst.Attribute(scaler, cst.Name("update")))) as update if positional(step):
            if isinstance(step.func, cst.Attribute) and scaler.deep_equals(step.func.value):
                last = update
    # Gradients that are gone cannot be clipped or looked at, however late that is: to try it may raise an error.
    block = script.statements(script.block(last))
    for statement in block[block.index(last) + 1 :]:
        happens = _happens_in(case, statement)
        if happens & {Backward, Step}:
            break
        if Clip in happens or _reads_gradients(script, statement):
            last = statement
    return last


def _happens_in(case: Case, statement: Statement) -> set[type[Event]]:
    """The kinds of events that happen in a statement."""
    path, events = case.finding.where.path, case.ledger.trace.events
    return {type(e) for e in events if e.where.path == path and case.script.holds(statement, e.where)}


def _reads_gradients(script: Script, statement: Statement) -> bool:
    named = (n for n in script.walk(statement) if isinstance(n, cst.Attribute) and n.attr.value == "grad")
    return any(not script.is_bound(node) for node in named)


def _is_cleared_after(case: Case, place: Location, but: Location | None = None) -> bool:
    """Whether every step at ``place`` is followed by a clearing (another than that at ``but``) before a backward."""
    answers = []
    events = case.ledger.trace.events
    for position, event in enumerate(events):
        if not isinstance(event, Step) or event.where != place:
            continue
        following = [e for e in events[position + 1 :] if isinstance(e, (ZeroGrad, Backward))]
        answers.append(_first_clears([e for e in following if e.stores & event.stores], but))
    known = [answer for answer in answers if answer is not None]
    return bool(known) and all(known)


def _first_clears(following: list[ZeroGrad | Backward], but: Location | None) -> bool | None:
    for event in following:
        if isinstance(event, Backward):
            return False
        if event.where != but:
            return True
    return None
