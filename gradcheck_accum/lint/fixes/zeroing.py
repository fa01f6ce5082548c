"""Repairs of clearing: GA201, GA202, GA203, GA204."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcheck_accum.events import Backward, Clip, Event, Step, ZeroGrad
from gradcheck_accum.lint.fixes.case import Case, Repair, is_visible
from gradcheck_accum.lint.fixes.script import CannotEdit, Script
from gradcheck_accum.lint.source import walk
from gradcheck_accum.location import Location


def clear_after_step(case: Case) -> Iterator[Repair]:
    """GA201, GA202: move the clearing behind every step that it should follow."""
    script = case.script
    call = case.call(case.finding.where)
    statement = script.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        raise CannotEdit("not a statement of its own")
    arguments = script.arguments(call)
    for places in case.steps_near(statement):
        comment = script.comment_behind(statement)
        changes = [script.remove(statement)]
        for place in places:
            step = case.call(place)
            visible = is_visible(script, call.func, step)
            clearing = script.code(call) if visible else f"{optimizer_of(script, step)}.zero_grad({arguments})"
            if not _is_cleared_after(case, place, but=case.finding.where):
                changes.append(script.after(_last_of_step(case, step), [clearing + comment]))
                comment = ""
        yield Repair("Clear the gradients after the step", True, changes)


def add_clearing(case: Case) -> Iterator[Repair]:
    """GA203: clear the gradients after every step that nobody clears after."""
    if "GA304" in case.beside:
        # The clearing may well be right, and the step too early.
        return
    script = case.script
    changes = []
    for place in case.step_places():
        if not _is_cleared_after(case, place):
            step = case.call(place)
            changes.append(script.after(_last_of_step(case, step), [f"{optimizer_of(script, step)}.zero_grad()"]))
    yield Repair("Clear the gradients after the step", True, changes)


def clear_other(case: Case) -> Iterator[Repair]:
    """GA204: clear the other optimizer's gradients where the first one's are cleared."""
    script = case.script
    changes = []
    for place in case.step_places():
        step = case.call(place)
        own = script.statement(step)
        behind = [script.statement(case.call(e.where)) for e in case.ledger.trace.events if isinstance(e, ZeroGrad)]
        beside = [s for s in behind if script.block(s) is script.block(own) and script.start(s) > script.start(own)]
        last = max(beside, key=script.start, default=_last_of_step(case, step))
        changes.append(script.after(last, [f"{optimizer_of(script, step)}.zero_grad()"]))
    yield Repair("Clear the gradients of every optimizer", True, changes)


def optimizer_of(script: Script, step: ast.Call) -> str:
    """The source of the optimizer that a call of ``step`` is made on, or that a grad scaler's ``step`` is handed."""
    if step.args:
        return script.code(step.args[0])
    if not isinstance(step.func, ast.Attribute):
        raise CannotEdit("not a method")
    return script.code(step.func.value)


def _last_of_step(case: Case, step: ast.Call) -> ast.stmt:
    """The last statement that belongs to a step: its own, the scaler's ``update()``, or what reads its gradients."""
    script = case.script
    last = script.statement(step)
    scaler = script.code(step.func.value) if step.args and isinstance(step.func, ast.Attribute) else ""
    following = script.next_to(last, 1)
    if scaler and following is not None and script.code(following).startswith(f"{scaler}.update("):
        last = following
    # Gradients that are gone cannot be clipped or looked at, however late that is: to try it may raise an error.
    block = script.block(last)
    for statement in block[block.index(last) + 1 :]:
        happens = _happens_in(case, statement)
        if happens & {Backward, Step}:
            break
        if Clip in happens or _reads_gradients(statement):
            last = statement
    return last


def _happens_in(case: Case, statement: ast.stmt) -> set[type[Event]]:
    """The kinds of events that happen on the lines of a statement."""
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    path = case.finding.where.path
    return {type(e) for e in case.ledger.trace.events if e.where.path == path and e.where.line in lines}


def _reads_gradients(statement: ast.stmt) -> bool:
    named = (node for node in walk(statement) if isinstance(node, ast.Attribute) and node.attr == "grad")
    return any(isinstance(node.ctx, ast.Load) for node in named)


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
