"""Repairs of clipping: GA401, GA402, GA501."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradcheck_accum.ledger.events import Unscale
from gradcheck_accum.lint.fixes.case import Case, Repair, is_visible
from gradcheck_accum.lint.fixes.expressions import call_statement, positional
from gradcheck_accum.lint.fixes.script import CannotEdit, Script, Statement
from gradcheck_accum.lint.fixes.zeroing import optimizer_of

_UNCONDITIONAL = (cst.For, cst.While, cst.With, cst.FunctionDef)
"""What a statement may be moved out of: it decides how often what it holds runs, not whether it may run at all."""


def clip_complete_window(case: Case) -> Iterator[Repair]:
    """GA401: move the clip to where the window is complete."""
    return _before_steps(case, safe=True)


def clip_what_is_used(case: Case) -> Iterator[Repair]:
    """GA402: move the clip to where there is something to clip; unsafe, for it limits what nothing limited before."""
    return _before_steps(case, safe=False)


def _before_steps(case: Case, *, safe: bool) -> Iterator[Repair]:
    script, call = case.script, case.call(case.finding.where)
    statement = script.statement(call)
    if not isinstance(statement, cst.Expr):
        raise CannotEdit("the norm is kept, and may be needed here")
    condition = _own_condition(script, statement)
    unscaling = _unscaling_before(case, statement) if condition is None else None
    for places in case.steps_near(statement):
        steps = [case.call(place) for place in places]
        if all(_can_move(script, condition or statement, step) for step in steps):
            edits = case.edits()
            lines = edits.take(*(moved for moved in (unscaling, condition or statement) if moved is not None))
            for step in steps:
                edits.before(script.statement(step), *lines)
            yield Repair("Clip right before the step", safe, edits)


def _can_move(script: Script, statement: Statement, step: cst.Call) -> bool:
    """Whether a statement does the same right before a step: it reads the same names, and no condition around it is
    left behind (``if fp16:`` may be all that keeps it from an error)."""
    around = set(script.parents(step))
    for parent in script.parents(statement):
        if parent in around:
            break
        if isinstance(parent, cst.BaseSuite) and not isinstance(script.parent(parent), _UNCONDITIONAL):
            return False
    return is_visible(script, statement, step)


def _own_condition(script: Script, statement: cst.Expr) -> cst.If | None:
    """The ``if`` that does nothing else than ask whether to clip."""
    condition = script.holder(statement)
    if not isinstance(condition, cst.If) or condition.orelse is not None:
        return None
    return condition if len(script.statements(condition.body)) == 1 else None


def _unscaling_before(case: Case, statement: cst.Expr) -> cst.BaseSmallStatement | None:
    """The call of ``unscale_`` right before the clip, if it belongs to it."""
    script = case.script
    places = {event.where for event in case.ledger.trace.events if isinstance(event, Unscale)}
    before = script.next_to(statement, -1)
    return before if before is not None and before in [script.statement(case.call(place)) for place in places] else None


def unscale_first(case: Case) -> Iterator[Repair]:
    """GA501: divide the grad scaler's scale out before the clip."""
    script, call = case.script, case.call(case.finding.where)
    if "GA401" in case.others:
        # Unscaling belongs to the complete window: the clip has to move there first.
        return
    for place in case.step_places():
        step = case.call(place)
        if positional(step) and isinstance(step.func, cst.Attribute) and is_visible(script, step, call):
            unscaling = call_statement(step.func.value, "unscale_", [cst.Arg(optimizer_of(step))])
            edits = case.edits().before(script.statement(call), unscaling)
            yield Repair("Unscale the gradients before the clip", True, edits)
