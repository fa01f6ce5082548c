"""Statements, carried out one by one: branches, loops, assignments and definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from gradcheck_accum.ledger.events import Operation, Purpose
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import (
    choose,
    ends_pass,
    prefer_ranks,
    rule_out,
    settled,
    settled_value,
    values_named_in,
)
from gradcheck_accum.lint.control_flow.functions import call_function, run_around
from gradcheck_accum.lint.control_flow.refusals import heed
from gradcheck_accum.lint.frameworks import self_counting
from gradcheck_accum.lint.frameworks.accelerate import accumulate
from gradcheck_accum.lint.interpreter.assignment import assign, assign_in_place
from gradcheck_accum.lint.interpreter.iteration import (
    inner_training_loop,
    is_cut,
    is_guessed,
    listed_in,
    origins_of_parts,
    plan,
    with_numbers,
)
from gradcheck_accum.lint.interpreter.objects import make_class
from gradcheck_accum.lint.interpreter.skipped_batches import handler_of, keeps_out, leaves_out, skip
from gradcheck_accum.lint.interpreter.turns import foreseen, turns_of
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Broke, Continued, Exhausted, OutOfBudget, Raised, Returned
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.under_way import Sorting
from gradcheck_accum.lint.state.values import Num, Tensor
from gradcheck_accum.lint.syntax import Comparison, Operator, call_name, text_of, walk
from gradcheck_accum.lint.torch_calls.arithmetic import binary
from gradcheck_accum.lint.torch_calls.distributed import context_of
from gradcheck_accum.lint.torch_calls.gradient_changes import changes_unknown, scale_gradients
from gradcheck_accum.lint.torch_calls.learning_rates import note_rate
from gradcheck_accum.lint.torch_calls.metrics import shown, shows
from gradcheck_accum.lint.torch_calls.optimizers import looks_like_optimizer
from gradcheck_accum.lint.torch_calls.retained_graphs import appended, makes_no_graphs, summed


def execute(run: State, statements: Sequence[syntax.Statement], scope: v.Scope) -> None:
    """Carry out statements in order."""
    for number, statement in enumerate(statements, 1):
        run.spend()
        if isinstance(statement, syntax.If) and not run.sorting and run.reach.is_gate(statement, statements[number:]):
            _if(run, statement, scope, statements[number:])
            return
        handler = _HANDLERS.get(type(statement))
        if handler is not None:
            handler(run, statement, scope)


def _expr(run: State, node: syntax.Expr, scope: v.Scope) -> None:
    outer = run.question.only_shows
    run.question.only_shows = isinstance(node.value, syntax.Call) and shows(node.value) and not run.reach.acts((node,))
    try:
        run.evaluate(node.value, scope)
    finally:
        run.question.only_shows = outer


def _assign(run: State, node: syntax.Assign, scope: v.Scope) -> None:
    value = run.evaluate(node.value, scope)
    note_rate(run, node, value, scope)
    for target in node.targets:
        if isinstance(value, v.Gradient) and _is_of_another(target, node.value):
            value = v.UNKNOWN
        if not _gives_optimizer_back(run, target, node.value, value):
            assign(run, target, value, scope)


def _is_of_another(target: syntax.Expression, value: syntax.Expression) -> bool:
    """Whether the ``.grad`` of one parameter is set to that of another, of a model whose name may be the same."""
    if not (isinstance(target, syntax.Attribute) and target.attr == "grad"):
        return False
    read = {text_of(n.value) for n in walk(value) if isinstance(n, syntax.Attribute) and n.attr == "grad"}
    return bool(read) and text_of(target.value) not in read


def _gives_optimizer_back(run: State, target: syntax.Expression, node: syntax.Expression, value: Any) -> bool:
    """Whether a call elsewhere gives an optimizer back that a training loop gave it, to set its rate say.

    What is called an optimizer, and is given to a call whose result takes its name, is the same one afterwards.
    """
    if not run.loops.depth or not isinstance(node, syntax.Call) or isinstance(value, (v.Optimizer, v.Instance)):
        return False
    name = text_of(target)
    given = (*node.args, *(keyword.value for keyword in node.keywords))
    return looks_like_optimizer(name) and any(text_of(one) == name for one in given)


def _annotated(run: State, node: syntax.AnnAssign, scope: v.Scope) -> None:
    if node.value is not None:
        assign(run, node.target, run.evaluate(node.value, scope), scope)


def _augmented(run: State, node: syntax.AugAssign, scope: v.Scope) -> None:
    current = run.evaluate(node.target, scope)
    change = run.evaluate(node.value, scope)
    self_counting.begin(run, node, current)
    if isinstance(current, v.Gradient):
        if node.op in (Operator.DIV, Operator.MULT):
            operation = Operation.DIVIDE if node.op is Operator.DIV else Operation.MULTIPLY
            scale_gradients(run, node, current, change, operation)
        else:
            run.recorder.opaque(node, "gradients changed by hand")
        return
    if changes_unknown(run, node.target, current):
        return
    note_rate(run, node, change, scope)
    if isinstance(current, list) and isinstance(change, (list, tuple)) and node.op is Operator.ADD:
        if len(current) + len(change) > v.LONGEST_LIST:
            raise OutOfBudget
        current.extend(change)
        if run.loops.guessed:
            run.iterated.grown[id(current)] = current
        for item in change:
            appended(run, node, current, item)
        return
    if isinstance(current, list) and isinstance(change, v.Parameters) and node.op is Operator.ADD:
        current.append(change)
        return
    adds = current.cls.bound("__iadd__", current) if isinstance(current, v.Instance) else None
    if adds is not None and node.op is Operator.ADD:
        assign(run, node.target, call_function(run, adds, [change], {}), scope)
        return
    result = summed(run, node, binary(run, node.op, current, change))
    if isinstance(result, Tensor) and not result.is_located:
        result = result.located(run.recorder.locate(node))
    target = node.target
    if isinstance(target, (syntax.Attribute, syntax.Subscript)):
        holder = run.evaluate(target.value, scope)
        if isinstance(holder, Tensor) and isinstance(result, Tensor):
            # `outputs.loss /= K`: the output that holds the loss is what the name is bound to.
            assign(run, target.value, result, scope)
            return
    if isinstance(current, Tensor) and isinstance(result, Tensor) and node.op in (Operator.DIV, Operator.MULT):
        assign_in_place(run, target, current, result, scope)
        return
    assign(run, target, result, scope)
    self_counting.carry(run, target, result)


def _if(run: State, node: syntax.If, scope: v.Scope, gated: Sequence[syntax.Statement] = ()) -> None:
    """Carry out one branch; what is ``gated`` comes after them, and is done where the first does not end the turn."""
    if run.sorting and _sorts(run, node, scope):
        return
    if leaves_out(run, node, scope):
        skip(run, node.body, scope)
        return
    if keeps_out(run, node, scope):
        skip(run, node.orelse, scope)
        return
    orelse = (*node.orelse, *gated)
    decides = run.reach.steps(node.body) or run.reach.steps(orelse) or _collects(run, node)
    outer, run.question.in_boundary = run.question.in_boundary, decides
    outer_side, run.question.steps_otherwise = run.question.steps_otherwise, run.reach.steps_otherwise(node, orelse)
    outer_condition, run.question.branch = run.question.branch, node
    outer_end, run.question.ends_pass = run.question.ends_pass, ends_pass(run, node)
    run.question.was_open = False
    prefer_ranks(run, node.test, scope, (node.body, node.orelse))
    try:
        chosen = choose(run, node.test, scope, (node.body, node.orelse or run.reach.other_branches(node)))
    finally:
        run.question.in_boundary, run.question.branch = outer, outer_condition
        run.question.steps_otherwise = outer_side
        run.question.ends_pass = outer_end
    is_open = run.question.was_open and run.loops.depth > 0
    if is_open:
        run.question.open_around.append((node.test, scope))
    if chosen and decides:
        _know_as_equal(run, node.test, scope)
    if not chosen and run.loops.passes:
        _wait_for_report(run, node, scope)
    run.question.branches.append(node)
    try:
        run.execute(node.body if chosen else orelse, scope)
    finally:
        run.question.branches.pop()
        if is_open:
            run.question.open_around.pop()


def _wait_for_report(run: State, node: syntax.If, scope: v.Scope) -> None:
    """Let a pass last until losses are reported that were divided for accumulation, after a number of micro-batches.

    Raises Restart.
    """
    tests = [part for part in walk(node.test) if isinstance(part, syntax.BinOp) and part.op is Operator.MOD]
    if len(tests) != 1 or run.reach.acts(node.body):
        return
    every = settled_value(run, tests[0].right, scope)
    is_number = isinstance(every, Num) and isinstance(every.value, int) and v.LENGTH not in every.tags
    if is_number and any(_holds_divided_losses(value) for s in node.body for value in values_named_in(s, scope)):
        run.knowledge.note_interval(int(every.value))


def _holds_divided_losses(value: Any) -> bool:
    """Whether a value is a number read from losses that are divided for accumulation, or a meter of such."""
    values = value.attributes.values() if isinstance(value, v.Instance) else (value,)
    parts = (part for one in values if isinstance(one, v.Figure) for part in one.parts)
    return any(_share_in_accumulation(part) != 1.0 for part in parts)


def _share_in_accumulation(part: v.Part) -> float:
    """By what a loss was multiplied for accumulation, and to undo that."""
    return math.prod(f.value or 1.0 for f in part.factors if f.purpose is Purpose.ACCUMULATION)


def _know_as_equal(run: State, test: syntax.Expression, scope: v.Scope) -> None:
    """Where a loop steps because a count equals a number of the source, the count is that number."""
    match test:
        case syntax.Compare(
            left=syntax.Name() as name,
            ops=(Comparison.EQ,),
            comparators=((syntax.Name() | syntax.Attribute() | syntax.Constant()) as other,),
        ):
            count, number = run.evaluate(name, scope), run.evaluate(other, scope)
            shown = isinstance(number, Num) and not number.tags & {v.LENGTH, v.TOTAL, v.UNITS}
            if shown and isinstance(count, Num) and count.value == number.value:
                assign(run, name, replace(count, origins=count.origins | number.origins), scope)


def _sorts(run: State, node: syntax.If, scope: v.Scope) -> bool:
    """Carry out both branches where a condition sorts parameters, each for those that it chooses; whether it does."""
    name, names = run.sorting[-1]
    parameters = scope.names.get(name)
    mentioned = {n.id for n in walk(node.test) if isinstance(n, syntax.Name)}
    if not isinstance(parameters, v.Parameters) or mentioned.isdisjoint(names):
        return False
    leaves = (branch[-1] for branch in (node.body, node.orelse) if branch)
    if any(isinstance(last, (syntax.Return, syntax.Raise, syntax.Break)) for last in leaves):
        return False  # it asks for a parameter that has something (a gradient that is not finite), and chooses none
    if settled(run, node.test, scope) is not None:
        return False
    test = text_of(node.test)
    left: list[v.Parameters] = []
    for branch, chosen in ((node.body, parameters.chosen(test)), (node.orelse, parameters.chosen(f"not ({test})"))):
        scope.names[name] = chosen
        try:
            run.execute(branch, scope)
            left.append(chosen)
        except Continued:
            pass
    if not left:
        raise Continued
    scope.names[name] = parameters if len(left) == 2 else left[0]
    return True


def _are_drawn_together(source: Any, micro_batch: int) -> bool:
    """Whether a loop runs over batches of one micro-batch: those that several loaders gave together, one of each task.

    A list of batches is one of micro-batches.
    """
    match source:
        case ("enumerate", inner, _):
            return _are_drawn_together(inner, micro_batch)
        case ("zip", *sources):
            return any(_are_drawn_together(one, micro_batch) for one in sources)
        case tuple() if len(source) > 1:
            return all(v.is_drawn_with(one, micro_batch) for one in source)
    return False


def _for(run: State, node: syntax.For, scope: v.Scope) -> None:
    source = run.evaluate(node.iter, scope)
    trains = run.reach.backward_in(node.body)
    items, draws, is_pass = plan(run, source, node, trains or _collects(run, node))
    if draws and _are_drawn_together(source, run.recorder.micro_batch):
        draws = is_pass = False
    if draws and trains:
        items = with_numbers(node, source, items)
    if is_pass and trains:
        run.recorder.open_pass()
        run.loops.passes += 1
    elif trains and isinstance(source, tuple) and run.loops.passes == 0:
        run.recorder.epoch = None
    cuts = draws and not is_pass and is_cut(source)
    guessed = not (trains or run.in_training or run.calls.yielded is not None) and is_guessed(run, source)
    run.loops.guessed += guessed
    run.loops.depth += trains
    outer = run.loops.turn, run.loops.body, run.loops.holds_a_window, run.loops.parts
    outer_data = run.loops.has_given_around, run.loops.bound_within
    outer_acts, run.loops.acts = run.loops.acts, trains or run.reach.acts(node.body)
    if trains:
        is_counted = isinstance(source, tuple) and source[:1] == ("range",)
        steps = run.reach.steps(node.body)
        run.loops.body = node.body
        run.loops.holds_a_window = is_counted and not is_pass and not steps
        run.loops.parts = origins_of_parts(source) if steps else frozenset()
        takes_what_is_given = run.loops.depth > 1 and not (draws or run.loops.holds_a_window)
        run.loops.bound_within = run.reach.bound_in_turns(node) if takes_what_is_given else None
        run.loops.has_given_around = run.loops.has_given
    listed = listed_in(run, source) if trains and not run.reach.steps(node.body) else None
    before = len(run.recorder.raw)
    try:
        items = foreseen(run, node, items) if trains else turns_of(run, node, source, items, scope)
        for number, item in enumerate(items):
            run.loops.begin_turn(trains)
            if draws and trains:
                run.draw()
                # The batches of a list may differ in size.
                is_part = cuts or (not is_pass and v.is_part_of_batch(item))
                learn = run.recorder.learn_rows_of_part if is_part else run.recorder.learn_units
                learn(v.rows_in(item))
                item = v.drawn_with(item, run.recorder.micro_batch)
            run.loops.last_slice = ()
            assign(run, node.target, item, scope)
            try:
                apart = nullcontext() if run.loops.depth else run.calls.in_turn(number)
                with _sorting(run, source, node.target), apart:
                    run.execute(node.body, scope)
            except Continued:
                continue
        run.execute(node.orelse, scope)
    except Broke:
        pass
    finally:
        run.loops.guessed -= guessed
        run.loops.depth -= trains
        run.loops.turn, run.loops.body, run.loops.holds_a_window, run.loops.parts = outer
        run.loops.has_given_around, run.loops.bound_within = outer_data
        run.loops.acts = outer_acts
        if is_pass and trains:
            run.loops.passes -= 1
        if listed is not None:
            run.iterated.ended = listed, before


@contextmanager
def _sorting(run: State, source: Any, target: syntax.Expression) -> Iterator[None]:
    """A loop over parameters, with or without their names, may sort them."""
    names = [n.id for n in walk(target) if isinstance(n, syntax.Name)]
    sorts = isinstance(source, v.Parameters) and 0 < len(names) <= 2
    if sorts:
        run.sorting.append(Sorting(names[-1], frozenset(names)))
    try:
        yield
    finally:
        if sorts:
            run.sorting.pop()


def _collects(run: State, node: syntax.Statement) -> bool:
    """Whether a statement belongs to a generator that is being carried out for the lists of batches that it yields."""
    return run.calls.yielded is not None and run.reach.yields(node)


def _most_turns(run: State, loop: syntax.While, trains: bool) -> int:
    """How often a loop is run whose condition is open."""
    run.recorder.assumed_turns = run.recorder.assumed_turns or trains
    if trains and inner_training_loop(run, loop.body) is not None:
        # What ends with its data comes to what these leave over, and to the turn in which there are none.
        return run.knowledge.windows_of_a_pass() + 2 if run.reach.takes_next(loop.body) else 3
    return run.knowledge.unbounded_length() if trains or _collects(run, loop) else 2


def _from_its_data_on(loop: syntax.While, scope: v.Scope) -> Sequence[syntax.Statement]:
    """The turns of a loop that ends where it gets no more data, each with the call that gets them.

    ``batch = data.next()`` before the loop, and again at the end of each turn, gets the data of the turn that follows.
    """
    *others, last = loop.body
    if not (isinstance(last, syntax.Assign) and isinstance(last.value, syntax.Call) and not last.value.args):
        return loop.body
    asked = {part.id for part in walk(loop.test) if isinstance(part, syntax.Name)}
    got = {part.id for target in last.targets for part in walk(target) if isinstance(part, syntax.Name)}
    held = [holder.names[name] for name in asked & got if (holder := scope.find(name)) is not None]
    unknown = bool(held) and all(type(value) in (v.Symbol, v.Got) for value in held)
    return (last, *others) if unknown and not last.value.keywords else loop.body


def _while(run: State, node: syntax.While, scope: v.Scope) -> None:
    trains = run.reach.backward_in(node.body)
    if trains and run.loops.depth and isinstance(node.test, syntax.Constant) and not run.reach.draws(node.body):
        run.recorder.opaque(node, "how often a loop runs over one batch")
    if trains:
        run.recorder.epoch = None
    run.loops.depth += trains
    outer_turn, outer_body, turns = run.loops.turn, run.loops.body, 0
    outer_window = run.loops.holds_a_window
    outer_acts, run.loops.acts = run.loops.acts, trains or run.reach.acts(node.body)
    run.loops.body = node.body if trains else outer_body
    run.loops.holds_a_window = outer_window and not trains
    guessed = False
    body = _from_its_data_on(node, scope) if trains else node.body
    gets_in_test = trains and any(isinstance(part, syntax.NamedExpr) for part in walk(node.test))
    try:
        while True:
            if gets_in_test:
                run.loops.begin_turn(trains)
            known = settled(run, node.test, scope)  # whether a loop goes on is no setting
            if known is None and not (guessed or trains or run.calls.yielded is not None):
                guessed = True
                run.loops.guessed += 1
            many = trains and run.knowledge.hurries
            endless = known is None or many or isinstance(node.test, syntax.Constant)
            cut_off = endless and turns >= _most_turns(run, node, trains)
            if known is False or cut_off or turns > 5_000:
                only_a_break_ends = trains and cut_off and isinstance(node.test, syntax.Constant)
                run.recorder.is_cut_off = run.recorder.is_cut_off or only_a_break_ends
                break
            turns += 1
            if not gets_in_test:
                run.loops.begin_turn(trains)
            run.loops.last_slice = ()
            try:
                run.execute(body, scope)
            except Continued:
                continue
    except Broke:
        pass
    finally:
        run.loops.guessed -= guessed
        run.loops.depth -= trains
        run.loops.turn, run.loops.body, run.loops.holds_a_window = outer_turn, outer_body, outer_window
        run.loops.acts = outer_acts


def _with(run: State, node: syntax.With, scope: v.Scope) -> None:
    entries: list[tuple[syntax.Expression, Any]] = []
    for item in node.items:
        entered = item.context_expr
        value = run.evaluate(entered, scope)
        entries.append((entered, value))
        if isinstance(entered, syntax.Call) and call_name(entered) == "accumulate":
            owner = run.evaluate(entered.func.value, scope) if isinstance(entered.func, syntax.Attribute) else None
            is_own = isinstance(value, v.Paused) or isinstance(owner, v.Instance)
            if not (is_own or accumulate(run, owner)):
                run.recorder.opaque(entered, "a framework that gates its own steps")
        given = _of_its_own(run, value, "__enter__")
        if item.optional_vars is not None and not isinstance(value, v.Paused):
            assign(run, item.optional_vars, value if given is None else given, scope)
    contexts = [context_of(run, entered, value, scope) for entered, value in entries]
    without_graphs = any(makes_no_graphs(item.context_expr) for item in node.items)
    run.no_graphs += without_graphs
    try:
        with ExitStack() as stack:
            for context in filter(None, contexts):
                stack.enter_context(run.sync.entered(context))
            _run_block(run, node, [value for _, value in entries], scope)
    finally:
        run.no_graphs -= without_graphs
    for _, value in reversed(entries):
        _of_its_own(run, value, "__exit__", None, None, None)


def _run_block(run: State, node: syntax.With, values: list[Any], scope: v.Scope) -> None:
    """The block of a ``with``, inside the contexts, among those that it enters, that are generators of this file."""
    place = next((i for i, value in enumerate(values) if isinstance(value, v.Paused)), None)
    if place is None:
        run.execute(node.body, scope)
        return
    target = node.items[place].optional_vars

    def run_inside(value: Any) -> None:
        if target is not None:
            assign(run, target, value, scope)
        _run_block(run, node, [None if i == place else value for i, value in enumerate(values)], scope)

    run_around(run, values[place], run_inside)


def _of_its_own(run: State, value: Any, name: str, *args: Any) -> Any:
    """What a method gives of an object whose class the source shows; None where it shows no such method."""
    method = value.cls.bound(name, value) if isinstance(value, v.Instance) else None
    return None if method is None else call_function(run, method, list(args), {})


def _try(run: State, node: syntax.Try, scope: v.Scope) -> None:
    handler = handler_of(run, node)
    if handler is not None:
        skip(run, handler.body, scope)
        run.execute(node.finalbody, scope)
        return
    catching = [h for h in node.handlers if h.type is None or "StopIteration" in text_of(h.type)]
    run.loops.catching += bool(catching)
    try:
        run.execute(node.body, scope)
    except Exhausted:
        if not catching:
            raise
        run.execute(catching[0].body, scope)
    except Raised:
        if not node.handlers:
            raise
    else:
        run.execute(node.orelse, scope)
    finally:
        run.loops.catching -= bool(catching)
    run.execute(node.finalbody, scope)


def _assert(run: State, node: syntax.Assert, scope: v.Scope) -> None:
    heed(run, node.test, scope)
    rule_out(run, node.test, scope, holds=True)


def _match(run: State, node: syntax.Match, scope: v.Scope) -> None:
    for case in node.cases:
        match case.pattern:
            case syntax.MatchValue(value=value):
                test = syntax.Compare(value.where, None, node.subject, (Comparison.EQ,), (value,))
            case syntax.MatchAs(pattern=None, name=None) if case.guard is None:
                run.execute(case.body, scope)
                return
            case _:
                if run.reach.acts(case.body):
                    run.recorder.opaque(case.body[0], "what a match by structure chooses")
                continue
        if choose(run, test, scope, (case.body, [])):
            run.execute(case.body, scope)
            return


def _return(run: State, node: syntax.Return, scope: v.Scope) -> None:
    value = run.evaluate(node.value, scope) if node.value is not None else None
    if node.value is not None and run.calls.answers_outside:
        # A mean that a training returns is there to be reported: the caller has nothing else to do with it.
        shown(run, node.value, [value], to_a_person=False)
    raise Returned(value)


def _break(run: State, node: syntax.Break, scope: v.Scope) -> None:
    raise Broke


def _continue(run: State, node: syntax.Continue, scope: v.Scope) -> None:
    raise Continued


def _raise(run: State, node: syntax.Raise, scope: v.Scope) -> None:
    raise Raised


def _function(run: State, node: syntax.FunctionDef, scope: v.Scope) -> None:
    scope.assign(node.name, v.Function(node, scope))


def _class(run: State, node: syntax.ClassDef, scope: v.Scope) -> None:
    scope.assign(node.name, make_class(run, node, scope))


def _import(run: State, node: syntax.Import, scope: v.Scope) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        scope.assign(name, v.Reference(alias.name if alias.asname else name))


def _import_from(run: State, node: syntax.ImportFrom, scope: v.Scope) -> None:
    for alias in node.names:
        module = "." * node.level + (node.module or "")
        defined = run.imported_name(node, alias.name)
        scope.assign(alias.asname or alias.name, defined or v.Reference(f"{module}.{alias.name}"))


def _global(run: State, node: syntax.Global, scope: v.Scope) -> None:
    scope.shared.update(node.names)


_HANDLERS: dict[type[syntax.Statement], Callable[[State, Any, v.Scope], None]] = {
    syntax.Expr: _expr,
    syntax.Assign: _assign,
    syntax.AnnAssign: _annotated,
    syntax.AugAssign: _augmented,
    syntax.If: _if,
    syntax.For: _for,
    syntax.While: _while,
    syntax.With: _with,
    syntax.Try: _try,
    syntax.Assert: _assert,
    syntax.Match: _match,
    syntax.Return: _return,
    syntax.Break: _break,
    syntax.Continue: _continue,
    syntax.Raise: _raise,
    syntax.FunctionDef: _function,
    syntax.ClassDef: _class,
    syntax.Import: _import,
    syntax.ImportFrom: _import_from,
    syntax.Global: _global,
}
