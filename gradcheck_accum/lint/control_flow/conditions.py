"""Conditions: which way a branch goes, if the source shows it or a scenario has to choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.refusals import gives_up, heed, rests_on_a_guess
from gradcheck_accum.lint.program.torch_names import PAUSES, SYNC_SWITCH
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Restart
from gradcheck_accum.lint.state.knowledge import ASSUMED_STEPS
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import Comparison, Junction, Operator, UnaryOperator, text_of, walk

_NAMES = (syntax.Name, syntax.Attribute)
_GREATER = frozenset({Comparison.GT, Comparison.GTE})
_NEGATIVE = frozenset({Comparison.ISNOT, Comparison.NOTEQ, Comparison.NOTIN})
OPPOSITES = {
    Comparison.EQ: Comparison.NOTEQ,
    Comparison.LT: Comparison.GTE,
    Comparison.LTE: Comparison.GT,
    Comparison.IS: Comparison.ISNOT,
    Comparison.IN: Comparison.NOTIN,
}
OPPOSITES |= {after: before for before, after in OPPOSITES.items()}
MOST_REMOTE = 3
"""How far from the gradients an answer can be: it is asked by the setup, and decides on nothing that acts on them."""
ORDERED = _GREATER | {Comparison.LT, Comparison.LTE}
"""Comparisons that ask which of two is greater."""


def truth_of(run: State, value: Any) -> bool | None:
    """Whether a value is true; None if unknown."""
    match value:
        case bool():
            return value
        case Num():
            return value.value != 0
        case None:
            return False
        case str() | list() | tuple() | dict():
            return bool(value)
        case v.Model() | v.Engine() | v.Instance() | v.Optimizer() | v.Function() | v.Class():
            return True
    return None


def answered(run: State, node: syntax.Expression, value: Any) -> bool | None:
    """Whether a condition holds; None if that is open.

    ``or`` and ``and`` return one of their operands, whose truth has been decided already.
    """
    truth = truth_of(run, value)
    if truth is None and isinstance(node, syntax.BoolOp) and v.is_named(value):
        return run.decisions.get(value.name)
    return truth


def decide(run: State, node: syntax.Expression, value: Any, acts: bool, holds_first: bool | None = None) -> bool | None:
    """The scenario's answer to an open condition; ``acts`` says that it decides on what happens to gradients.

    ``holds_first`` says whether the scenarios in which it holds come first: if None, those in which what it asks does,
    without its negation, unless the loop asks whether it was given something. A default value comes before all others.
    A guard gets no answer: whether a loop is left early is not a setting.
    """
    if run.question.in_guard:
        return None
    run.question.was_open = True
    key, negated = _question(node, value)
    run.wordings.setdefault(key, _in_words(node, negated))
    if holds_first is None:
        first = not (negated and run.loops.depth and _asks_for_something(node))
    else:
        first = holds_first != negated
    if isinstance(value, v.ByDefault):
        first = value.holds != negated
    elif type(value) is Symbol and value.default is not None:
        # What is asked is the setting itself: 0 and an empty text do not hold.
        first = bool(value.default)
    if key in run.ruled and key not in run.decisions:
        return run.ruled[key] != negated
    answer = run.decisions.setdefault(key, run.knowledge.preferred(key, first))
    # Conditions in the training loop are worth trying both ways before those of the setup outside it.
    remoteness = 0 if acts else 1 if run.loops.depth else MOST_REMOTE
    run.remoteness[key] = min(remoteness, run.remoteness.get(key, remoteness))
    return answer != negated


def _question(node: syntax.Expression, value: Any) -> tuple[str, bool]:
    """What an open condition asks, which others may ask too, and whether it holds where the answer is no."""
    plain, negated = _without_negation(node)
    if isinstance(value, v.Negation):
        return value.of, True
    if v.is_named(value):
        return value.name, False
    return text_of(plain), negated


def _without_negation(node: syntax.Expression) -> tuple[syntax.Expression, bool]:
    negated = False
    while isinstance(node, syntax.UnaryOp) and node.op is UnaryOperator.NOT:
        node, negated = node.operand, not negated
    if isinstance(node, syntax.Compare) and len(node.ops) == 1 and node.ops[0] in _NEGATIVE:
        return _opposite(node), not negated
    return node, negated


def _opposite(node: syntax.Compare) -> syntax.Compare:
    """A comparison that holds where ``node`` does not."""
    return syntax.Compare(node.where, node.origin, node.left, (OPPOSITES[node.ops[0]],), node.comparators)


def _asks_for_something(node: syntax.Expression) -> bool:
    """Whether a condition asks that there is something: ``scaler is not None``."""
    match node:
        case syntax.Compare(ops=(Comparison.ISNOT,), comparators=(syntax.Constant(value=None),)):
            return True
    return False


def _in_words(node: syntax.Expression, negated: bool) -> tuple[str, str]:
    """A condition that holds where a question is answered with no, and one where it is with yes."""
    plain, holds_without = _without_negation(node)
    opposite = (
        text_of(_opposite(plain))
        if isinstance(plain, syntax.Compare) and len(plain.ops) == 1
        else f"not {text_of(plain)}"
        if isinstance(plain, (syntax.Name, syntax.Attribute, syntax.Subscript, syntax.Call))
        else f"not ({text_of(plain)})"
    )
    words = opposite, text_of(plain)
    return words if negated == holds_without else words[::-1]


def prefer_ranks(
    run: State, test: syntax.Expression, scope: v.Scope, branches: tuple[Sequence[syntax.Node], Sequence[syntax.Node]]
) -> None:
    """Let those scenarios come first in which models average their gradients over ranks, where ``test`` decides that.

    Whoever offers that setting offers it for training: no other scenario shows anything of ranks, and what
    holds without them holds with them, or is found in those that come later.
    """
    body, orelse = (run.reach.averages_over_ranks(branch) for branch in branches)
    if body is orelse or run.loops.depth:
        return
    wrapping = branches[0] if body else branches[1]
    leaves = isinstance(wrapping[-1], syntax.Return) and not run.reach.averages_over_ranks(wrapping[-1:])
    if not leaves or any(map(run.reach.backward, wrapping)):
        for key in _prefer(run, test, scope, holds=body):
            run.remoteness[key] = 0


def _prefer(run: State, test: syntax.Expression, scope: v.Scope, *, holds: bool) -> list[str]:
    """Let the scenarios come first in which a condition ``holds``, or does not; the questions that decide on it."""
    match test:
        case syntax.UnaryOp(op=UnaryOperator.NOT, operand=operand):
            return _prefer(run, operand, scope, holds=not holds)
        case syntax.BoolOp(values=operands):
            # One operand that does not hold is enough for an ``and``.
            needed = operands if holds is (test.op is Junction.AND) else operands[:1]
            return [key for operand in needed for key in _prefer(run, operand, scope, holds=holds)]
        case _:
            value = settled_value(run, test, scope)
            if answered(run, test, value) is not None:
                return []
            key, negated = _question(test, value)
            if key in run.ruled:
                return []
            answer = holds != negated
            is_new = run.knowledge.prefer(key, answer)
            if is_new and key not in run.given and run.decisions.get(key, answer) != answer:
                raise Restart
            return [key]


def ask(run: State, question: str) -> bool:
    """The scenario's answer to a question about the training loop that no condition asks."""
    run.remoteness[question] = 0
    return run.decisions.setdefault(question, True)


def choose(run: State, test: syntax.Expression, scope: v.Scope, branches: Sequence[Sequence[syntax.Statement]]) -> bool:
    """Which way a condition goes."""
    body, orelse = (tuple(branches[0]), tuple(branches[1])) if len(branches) == 2 else ((), ())
    # A guard that leaves the loop early (an empty batch, an early stop, a loss that is not finite): the main path
    # continues. Clearing the gradients on the way out is part of giving up.
    guards = (
        (run.loops.depth > 0 or _goes_on(body))
        and (_skips(body) or (not orelse and run.reach.ends_loop(body)))
        and (not orelse or isinstance(body[-1], (syntax.Break, syntax.Continue)))
        and not run.reach.backward_in(body)
        and not run.reach.steps(body)
    )
    # What it leaves out is the step: it counts as a condition around that would.
    ends = guards and not run.question.steps_otherwise
    refuses = gives_up(body) or gives_up(orelse)
    of_data = _is_a_call_about_data(run, test, scope)
    leaves = not orelse and _may_return(body) and not run.reach.backward_in(body)
    if leaves and not (guards or refuses or of_data or run.loops.depth) and _is_to_train(run):
        # Who leaves here does not train: the scenarios come first that do.
        _prefer(run, test, scope, holds=False)
    trains, otherwise = run.reach.backward_in(body), run.reach.backward_in(orelse)
    if trains is not otherwise and not (guards or refuses or of_data or run.loops.depth) and _is_to_train(run):
        # So do those in which the branch that trains is taken.
        _prefer(run, test, scope, holds=trains)
    outer, run.question.in_guard = run.question.in_guard, run.question.in_guard or ends or refuses or of_data
    try:
        value = run.evaluate(test, scope)
    finally:
        run.question.in_guard = outer
    truth = answered(run, test, value)
    if ends and truth is False and run.recorder.assumed_length:
        # The data may have more micro-batches than are assumed, and then this ends the pass.
        _note_end(run, test, scope)
        if _ends_the_only_pass(run, test, scope, body):
            run.knowledge.forget_remainders()
    gives = refuses and truth is not None and gives_up(body if truth else orelse)
    if truth is not None and not (gives and (heed(run, test, scope) or rests_on_a_guess(run, test, scope))):
        return truth
    if guards:
        if ends:
            _note_end(run, test, scope)
        if run.recorder.has_run and run.loops.acts and isinstance(body[-1], syntax.Continue) and _counts(test):
            # What comes after it in the turn, a step too, happens in some turns only.
            run.recorder.doubt_length(test)
            return _waits(run, test)
        # Continuing after the backward skips no micro-batch.
        ends_early = isinstance(body[-1], syntax.Continue) and not run.recorder.has_run
        leaves_out = ends_early and depends_on_data(run, test, scope)
        ends_with_a_window = _ends_with_a_window(run, test, scope) or _ends_the_only_pass(run, test, scope, body)
        if (ends and ends_with_a_window) or (leaves_out and not run.recorder.assumed_length):
            # The source does not show how many of its micro-batches are left.
            run.knowledge.forget_remainders()
        return False
    if refuses:
        heed(run, test, scope)
        rule_out(run, test, scope, holds=gives_up(orelse))
        return gives_up(orelse)  # the program does not train with settings that it refuses here
    if branches and run.reach.is_inert(body) and run.reach.is_inert(orelse):
        return not orelse and _is_for_a_report(run, test, scope, body)
    if depends_on_data(run, test, scope):
        return run.reach.acts(body)
    if run.loops.depth and _leaves_local((*body, *orelse)) and _counts_to_what_may_change(run, test, scope):
        run.sync.doubt()
    # Before any training, filling and zeroing tensors is part of setting up a model.
    acts = any(run.reach.acts(one) and (run.in_training or run.reach.backward_in(one)) for one in (body, orelse))
    acts = acts or run.reach.hands_on_a_clip((*body, *orelse))
    phase = _last_phase(run, test, scope) if run.loops.depth else None
    if phase is not None:
        return bool(decide(run, test, v.ByDefault(holds=phase), acts))
    # What a turn does besides, and nothing to gradients, is a report more often than not.
    adds = run.loops.depth > 0 and bool(body) and not (orelse or acts)
    return bool(decide_in_turn(run, test, value, scope, acts, False if leaves else True if adds else None))


def ends_pass(run: State, node: syntax.If) -> bool:
    """Whether a statement does nothing but leave a pass over the data, in which the loop steps."""
    leaves = not node.orelse and isinstance(node.body[-1], (syntax.Break, syntax.Return))
    in_a_pass = run.loops.passes > 0 and run.reach.steps(run.loops.body)
    return leaves and in_a_pass and not run.reach.acts(node.body)


def decide_in_turn(
    run: State, test: syntax.Expression, value: Any, scope: v.Scope, acts: bool, holds_first: bool | None = None
) -> bool | None:
    """The scenario's answer to an open condition (`decide`), whose turn to hold is yet to come where a step waits."""
    is_doubted = _doubt_boundary(run, test, scope)
    answer = decide(run, test, value, acts, holds_first)
    if is_doubted and answer is not run.question.steps_otherwise and _waits(run, test):
        return not answer
    return answer


def _waits(run: State, test: syntax.Expression) -> bool:
    """Whether the step of a window whose length is unknown is yet to come: that it comes with each would be a guess."""
    asked = run.question.doubted.get(test, 0)
    run.question.doubted[test] = asked + 1
    return asked < ASSUMED_STEPS - 1


def _doubt_boundary(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Note that a window's length is unknown where an open condition, or a part of one, counts to what may change.

    Whether it is.
    """
    asks = run.question.in_boundary and not run.question.in_guard and run.loops.depth
    if not (asks and _counts_to_what_may_change(run, test, scope)):
        return False
    run.recorder.doubt_length(test)
    return True


def rule_out(run: State, test: syntax.Expression, scope: v.Scope, *, holds: bool) -> None:
    """Note the settings with only one possible answer, if the program continues only if ``test`` is ``holds``.

    If an ``and`` holds, all of its operands do, and if an ``or`` does not, none does; otherwise the only open operand
    decides. Functions in a test are not called again.
    """
    match test:
        case syntax.UnaryOp(op=UnaryOperator.NOT, operand=operand):
            rule_out(run, operand, scope, holds=not holds)
        case syntax.BoolOp(values=operands) if not any(isinstance(node, syntax.Call) for node in walk(test)):
            known = [settled(run, operand, scope) for operand in operands]
            open_ones = [operand for operand, truth in zip(operands, known, strict=True) if truth is None]
            if holds is (test.op is Junction.AND) or (len(open_ones) == 1 and holds not in known):
                for operand in open_ones:
                    rule_out(run, operand, scope, holds=holds)
        case syntax.Name() | syntax.Attribute() | syntax.Subscript():
            value = settled_value(run, test, scope)
            if v.is_setting(value) and truth_of(run, value) is None:
                run.ruled.setdefault(value.name, holds)
        case syntax.Compare(left=left, ops=(_,), comparators=(right,)):
            # A setting that is compared with what is written there: a count would be another number the next time.
            asked = settled_value(run, left, scope)
            written = isinstance(settled_value(run, right, scope), (Num, str, bool, type(None)))
            if written and v.is_named(asked) and not isinstance(asked, v.Figure) and settled(run, test, scope) is None:
                key, negated = _question(test, v.UNKNOWN)
                run.ruled.setdefault(key, holds != negated)


def _note_end(run: State, test: syntax.Expression, scope: v.Scope) -> None:
    """Note the comparison of a guard that may end training: a count of the loop with a setting, or with a number."""
    if not (isinstance(test, syntax.Compare) and test.ops[0] in (Comparison.EQ, *ORDERED)):
        return
    count = settled_value(run, test.left, scope)
    end = _end_of_training(run, test, scope)
    if isinstance(count, Num) and end:
        run.recorder.approach(end, count)


def _end_of_training(run: State, test: syntax.Expression, scope: v.Scope) -> str:
    """What names the end that a guard compares a count with: a setting, or the place of a number; empty if neither."""
    end = settled_value(run, test.comparators[0], scope) if isinstance(test, syntax.Compare) else None
    if isinstance(end, Num):
        return f"the number at {test.where.line}:{test.where.column}"
    return end.name if isinstance(end, Symbol) and not isinstance(end, v.Figure) else ""


def _ends_with_a_window(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a guard may end a pass after a number of windows: it compares their count with an unknown number."""
    if not (isinstance(test, syntax.Compare) and test.ops[0] in (Comparison.EQ, Comparison.GT, Comparison.GTE)):
        return False
    windows, most = (settled_value(run, side, scope) for side in (test.left, test.comparators[0]))
    is_open = isinstance(most, Symbol) and not isinstance(most, v.Figure)
    return is_open and isinstance(windows, Num) and v.DERIVED in windows.tags and isinstance(windows.value, int)


def _ends_the_only_pass(run: State, test: syntax.Expression, scope: v.Scope, body: Sequence[syntax.Statement]) -> bool:
    """Whether a guard ends training after so many steps, which is the only pass over the data.

    It compares a count that has grown, but not with every micro-batch, with a setting, or a count of the micro-batches
    that have run with a number of whole windows. The source says so how long training is, and not that the data end
    before. A guard between passes ends none. What is set back where something
    has got better (early stopping) says nothing of how long training is.
    """
    is_only_pass = run.loops.depth == run.loops.passes == run.recorder.passes == 1
    if not is_only_pass or not run.reach.ends_loop(body):
        return False
    if isinstance(test, syntax.Compare) and run.reach.is_set_back(test.left):
        return False
    asked = run.recorder.ends.get(_end_of_training(run, test, scope), {})
    counts = list(asked.values())
    if len(set(counts)) < 2 or counts not in (sorted(counts), sorted(counts, reverse=True)):
        return False
    if _counts_out_windows(run, test, scope):
        return True
    # Where it is asked only at steps, what counts micro-batches has grown by as many as ran between two of them.
    return len(set(counts)) < len(counts) or max(counts) - min(counts) < max(asked) - min(asked)


def _counts_out_windows(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a guard ends training when as many micro-batches have run as the source says, which are whole windows."""
    if not (isinstance(test, syntax.Compare) and test.ops[0] in (Comparison.EQ, Comparison.GTE)):
        return False
    ran, most = (settled_value(run, side, scope) for side in (test.left, test.comparators[0]))
    if not (isinstance(ran, Num) and ran.value == (run.recorder.given() or 0) - (not run.recorder.has_run)):
        return False
    shown = isinstance(most, Num) and isinstance(most.value, int) and run.knowledge.shows_whole_windows(most.value)
    return shown or v.is_multiple_of_steps(most)


def _last_phase(run: State, test: syntax.Expression, scope: v.Scope) -> bool | None:
    """Whether a comparison of what the loop counts with a setting holds in the end; None for any other condition.

    It divides the training into phases (a warm-up and the rest). The last phase lasts, so its scenario comes first.
    """
    if not (isinstance(test, syntax.Compare) and len(test.ops) == 1 and test.ops[0] in ORDERED):
        return None
    sides = (test.left, test.comparators[0])
    left, right = (settled_value(run, side, scope) for side in sides)
    changing = run.bound_in_loops | _bound_in_a_turn(run)
    counts = [
        isinstance(value, Num) and any(text_of(part) in changing for part in walk(side) if isinstance(part, _NAMES))
        for value, side in zip((left, right), sides, strict=True)
    ]
    settings = [v.is_named(value) and not isinstance(value, v.Figure) for value in (left, right)]
    if [*counts, *settings] not in ([True, False, False, True], [False, True, True, False]):
        return None
    return (test.ops[0] in _GREATER) == counts[0]


def _bound_in_a_turn(run: State) -> frozenset[str]:
    """What a function binds that a turn of a training loop calls: it is of that turn, as what the loop binds is."""
    function = run.calls.stack[-1] if run.calls.stack else None
    if function is None or any(map(run.reach.is_training_loop, walk(function))):
        return frozenset()
    return run.reach.bound_in_turns(function)


def _counts_to_what_may_change(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a boundary counts to a value without a number or a name, which may differ in every iteration.

    No answer of a scenario is then valid for all iterations (K grows during a warm-up, and is constant afterwards).
    """
    pairs = [(n.left, n.right) for n in walk(test) if isinstance(n, syntax.BinOp) and n.op is Operator.MOD]
    pairs += [(n.left, n.comparators[0]) for n in walk(test) if isinstance(n, syntax.Compare)]
    values = [(settled_value(run, left, scope), settled_value(run, right, scope)) for left, right in pairs]
    unshown = (Symbol, v.Member, v.Samples)
    return any(isinstance(count, Num) and type(to) in unshown and not to.name for count, to in values)


def _leaves_local(statements: Sequence[syntax.Statement]) -> bool:
    """Whether statements have a word for leaving gradients on their rank."""
    attributes = (node.attr for one in statements for node in walk(one) if isinstance(node, syntax.Attribute))
    return any(attr in PAUSES or attr == SYNC_SWITCH for attr in attributes)


def _counts(test: syntax.Expression) -> bool:
    """Whether a condition is one on a count modulo a number."""
    return any(isinstance(node, syntax.BinOp) and node.op is Operator.MOD for node in walk(test))


def _is_for_a_report(run: State, test: syntax.Expression, scope: v.Scope, body: Sequence[syntax.Statement]) -> bool:
    """Whether an open condition in a loop asks a setting whether there is a report: a writer, a level of detail.

    Where it asks the data, what is done is a warning, and what it counts may be anything.
    """
    tests = (test, *(branch.test for branch in run.question.branches))
    of_data = any(depends_on_data(run, one, scope) for one in tests)
    return run.loops.depth > 0 and not (of_data or _counts(test) or any(map(run.reach.yields, body)))


def may_vary(run: State) -> bool:
    """Whether an enclosing branch may be taken in some iterations of its loop only.

    That is so if its condition depends on a value without a number or a name: a counter that could not be followed.
    """
    return any(
        isinstance(value, Symbol) and not value.name
        for test, scope in run.question.open_around
        for node in walk(test)
        if isinstance(node, (syntax.Name, syntax.Attribute))
        for value in (run.evaluate(node, scope),)
    )


def settled(run: State, test: syntax.Expression, scope: v.Scope) -> bool | None:
    """Whether a condition holds, without a scenario's answers; None if that is open."""
    return answered(run, test, settled_value(run, test, scope))


def settled_value(run: State, node: syntax.Expression, scope: v.Scope) -> Any:
    """The value of an expression, evaluated as in a guard: without a scenario's answers."""
    outer, run.question.in_guard = run.question.in_guard, True
    try:
        return run.evaluate(node, scope)
    finally:
        run.question.in_guard = outer


def depends_on_data(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    return any(isinstance(value, (Tensor, v.Data, v.Gradient, v.Measured)) for value in values_named_in(test, scope))


def _is_a_call_about_data(run: State, test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a condition asks a function what it says of data: whatever decides in there is no setting."""
    plain, _ = _without_negation(test)
    return isinstance(plain, syntax.Call) and not run.reach.acts((plain,)) and depends_on_data(run, plain, scope)


def depends_on_input(test: syntax.Expression, scope: v.Scope) -> bool:
    """Whether a condition depends on input data, and not only on what a model computed from it."""
    return any(isinstance(value, v.Data) for value in values_named_in(test, scope))


def values_named_in(test: syntax.Node, scope: v.Scope) -> Iterator[Any]:
    """The values of the names in a condition, or in what it decides on."""
    for node in walk(test):
        if isinstance(node, syntax.Name):
            holder = scope.find(node.id)
            yield holder.names[node.id] if holder else None


def _is_to_train(run: State) -> bool:
    """Whether what is being executed, a function or the module itself, has training to come to."""
    return not run.calls.stack or run.reach.backward(run.calls.stack[-1])


def _may_return(body: Sequence[syntax.Statement]) -> bool:
    """Whether a block ends with a return, or one of the branches in it does."""
    return bool(body) and (
        isinstance(body[-1], syntax.Return)
        or any(isinstance(s, syntax.If) and (_may_return(s.body) or _may_return(s.orelse)) for s in body)
    )


def _goes_on(body: Sequence[syntax.Statement]) -> bool:
    return bool(body) and isinstance(body[-1], (syntax.Break, syntax.Continue))


def _skips(body: Sequence[syntax.Statement]) -> bool:
    return bool(body) and isinstance(body[-1], (syntax.Break, syntax.Continue, syntax.Return, syntax.Raise))
