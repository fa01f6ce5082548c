"""Micro-batches that give no gradient now and then: a loss that is not finite, data with nothing to learn from, an
error that is caught.

A reading of the main path alone would never see what the loop makes of them. So every place that may skip one is
remembered, and the loop is read once more for each, with one micro-batch skipped there in the midst of a pass: whether
it is still counted, the ledger shows. Who clears the gradients there gives the window up, which is another matter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import depends_on_input, values_named_in
from gradcheck_accum.lint.control_flow.refusals import gives_up
from gradcheck_accum.lint.interpreter.iteration import inner_training_loop
from gradcheck_accum.lint.program.names import FINITE
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.syntax import Comparison, call_name, text_of, walk
from gradcheck_accum.lint.torch_calls.losses import compares_loss

_NO_ERROR = re.compile(r"StopIteration|KeyboardInterrupt|SystemExit|GeneratorExit")


def leaves_out(run: State, node: syntax.If, scope: v.Scope) -> bool:
    """Whether a branch leaves this micro-batch out, because its loss is not finite or by what its data hold.

    It ends the turn, or the backward is in the other branch.
    """
    others = bool(node.orelse) and run.reach.backward_in(node.orelse) and not run.reach.acts(node.body)
    backs_out = bool(node.body) and (others or _ends_the_turn(run, node.body[-1]))
    return backs_out and _asks(run, node.test, scope) and _skipped_here(run, node)


def keeps_out(run: State, node: syntax.If, scope: v.Scope) -> bool:
    """Whether a branch that is taken only for finite losses, or by what data hold, is not for this micro-batch."""
    if run.reach.acts(node.orelse) or not run.reach.backward_in(node.body):
        return False
    if not run.loops.depth and not _asks_whether_finite(node.test):
        return False
    return _asks(run, node.test, scope) and _skipped_here(run, node)


def handler_of(run: State, node: syntax.Try) -> syntax.ExceptHandler | None:
    """What handles an error that this micro-batch meets before its backward; None where it meets none.

    The backward is tried too, or is what `else` does, or comes after what is tried, and the handler goes on to the
    next micro-batch.
    """
    carried_out = (*node.body, *node.orelse)
    if not run.loops.depth or inner_training_loop(run, carried_out) is not None:
        return None
    has_backward, is_before = run.reach.backward_in(carried_out), _is_before_the_backward(run, node)
    handlers = [h for h in node.handlers if h.type is None or not _NO_ERROR.search(text_of(h.type))]
    handlers = [h for h in handlers if has_backward or (is_before and isinstance(h.body[-1], syntax.Continue))]
    swallowing = [h for h in handlers if not gives_up(h.body) and not run.reach.acts(h.body)]
    return swallowing[0] if swallowing and _skipped_here(run, node) else None


def _is_before_the_backward(run: State, node: syntax.Try) -> bool:
    """Whether a turn of the innermost training loop tries something that its backward comes after."""
    in_turn = run.reach.backward_in(run.loops.body) and inner_training_loop(run, run.loops.body) is None
    return in_turn and not run.reach.acts(node.body)


def skip(run: State, body: Sequence[syntax.Statement], scope: v.Scope) -> None:
    """Carry out what is done of a micro-batch that is left out: who clears gradients gives its window up."""
    recorded = len(run.recorder.raw)
    try:
        run.execute(body, scope)
    finally:
        clears = any(raw.kind == "zero" for raw in run.recorder.raw[recorded:])
        run.skips.gives_up = clears or run.reach.acts(body)


def _skipped_here(run: State, node: syntax.Statement) -> bool:
    place = node.where.line, node.where.column - 1
    count = run.skips.passed.get(place, 0)
    run.skips.passed[place] = count + 1
    return run.skips.wanted == (place, count)


def _asks(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a condition asks what a micro-batch is like: its loss, or what its data hold."""
    return _asks_whether_finite(test) or _asks_the_data(run, test, scope) or _asks_how_great(run, test, scope)


def _asks_how_great(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a condition asks how great this micro-batch's loss is, itself or by the name of what was found.

    One that is 0 has no gradient: to skip it changes nothing.
    """
    if any(isinstance(value, v.HowGreat) for value in values_named_in(test, scope)):
        return True
    for node in walk(test):
        if isinstance(node, syntax.Compare) and len(node.ops) == 1:
            sides = (node.left, *node.comparators)
            values = [value for side in sides for value in values_named_in(side, scope)]
            if any(compares_loss(run, value, node.ops[0], *map(_constant, sides)) for value in values):
                return True
    return False


def _constant(node: syntax.Expression) -> object:
    return node.value if isinstance(node, syntax.Constant) else None


def _asks_whether_finite(test: syntax.Expression) -> bool:
    calls = (call_name(node) for node in walk(test) if isinstance(node, syntax.Call))
    names = (node.id for node in walk(test) if isinstance(node, syntax.Name))
    return any(FINITE.fits(name) for name in (*calls, *names))


def _asks_the_data(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a condition asks what a micro-batch holds: a mask that may be empty, a mark that it bears.

    How many rows it has is another question (only the last of a pass has fewer), and so is whether it is there at all.
    """
    return depends_on_input(test, scope) and not any(map(_asks_something_else, walk(test)))


def _asks_something_else(node: syntax.Node) -> bool:
    match node:
        case syntax.Call():
            return call_name(node) in {"len", "size"}
        case syntax.Attribute():
            return node.attr == "shape"
        case syntax.Compare():
            return not {Comparison.IS, Comparison.ISNOT}.isdisjoint(node.ops)
    return False


def _ends_the_turn(run: State, last: syntax.Statement) -> bool:
    """Whether a statement goes on to the next micro-batch, from the loop or from a function that it calls.

    What a function gives in place of a loss skips nothing: there is still a backward to come.
    """
    if isinstance(last, syntax.Return):
        function = run.calls.stack[-1] if run.calls.stack else None
        own = function.body if isinstance(function, syntax.FunctionDef) else []
        gives = last.value is not None and not (isinstance(last.value, syntax.Constant) and last.value.value is None)
        replaces = gives and not run.reach.backward_in(own)
        return run.loops.depth > 0 and not replaces and inner_training_loop(run, own) is None
    return isinstance(last, syntax.Continue) and run.loops.depth > 0
