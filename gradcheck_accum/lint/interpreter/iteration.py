"""What loops run over: passes over the data, windows of micro-batches, counters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradcheck_accum.ledger.events import Listed
from gradcheck_accum.ledger.stated_names import names_size
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import ask
from gradcheck_accum.lint.program.facts import adds_one, last_part
from gradcheck_accum.lint.program.names import BEGINNING, GIVES_A_BATCH, MICRO_BATCHES
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind_steps
from gradcheck_accum.lint.state.control import OutOfBudget
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import Operator, children, text_of, walk
from gradcheck_accum.lint.torch_calls.data import assumed_length, batches_from, batches_of, given_by, length_of

_FEW = 24
"""Turns that are never too many: four times the fewest that stand for a loop without an end."""

_FEW_EPOCHS = 3
_FEW_LOADERS = 3


def plan(run: State, source: Any, loop: syntax.For, trains: bool) -> tuple[Iterable[Any], bool, bool]:
    """What a for loop yields, whether each item is a new micro-batch, and whether it is a pass over the data."""
    source = given_by(run, source) if trains else source
    match source:
        case v.Loader():
            inner = _given_to_inner_loop(run, source, loop) if trains else []
            if inner and all(map(_is_window, inner)):
                return inner, False, True
            if inner and all(map(v.is_loader, inner)):
                # A few stand for all: three, as the remainders of two passes may be a window together.
                return [*inner, inner[-1]][:_FEW_LOADERS] if len(inner) > 1 else inner, False, False
            batches = batches_from(run, source) if trains and run.knowledge.has_remainders else None
            if batches is not None:
                return batches, True, True
            run.recorder.learn_units(source.rows)
            if trains:
                run.recorder.counted |= {v.tag_of_length(source), v.tag_of_length(Symbol(source.dataset))}
            given = batches_of(source, length_of(run, source))
            if source.make is not None and run.reach.backward_in(loop.body):
                return [v.Unmade(batch, source.make) for batch in given], True, True
            return given, True, True
        case v.Chunks():
            # What a loop splits into windows is not a window itself: all of the data, split into micro-batches.
            is_pass = trains and run.loops.passes == 0 and run.reach.steps(loop.body)
            pieces = _windows_of(run, source, loop) if trains else source.batches()
            if is_pass and source.assumed:
                return pieces[:1] * assumed_length(run, source), True, True
            return pieces, True, is_pass
        case v.Data() if (along := _along(run, source, loop, trains)) is not None:
            return along
        case v.Stream(of=whole) if whole is not None and source.turn == run.loops.turn:
            # A loop takes all that an iterator gives. One that was made before the turn may have given some of it.
            return plan(run, whole, loop, trains)
        case v.Stream():
            return _some_batches(run), True, False
        case v.Parameters() | v.Gradient():
            return [source], False, False
        case v.Model(of_others=True):
            return list(source.keys or source.held), False, False
        case v.Model():
            # One of its members stands for all.
            return [v.Member(source=f"{source.name}.*")], False, False
        case ("range", *bounds):
            is_pass = trains and _counts_through_a_pass(run, bounds, loop)
            if is_pass and isinstance(bounds[-1], Symbol):
                length = assumed_length(run, bounds[-1])
                run.iterated.ends[bounds[-1].name] = length
                return [Num(i) for i in range(length)], False, True
            return _range(run, bounds, loop, trains), False, is_pass
        case ("enumerate", inner, start):
            items, draws, is_pass = plan(run, inner, loop, trains)
            first = start.value if isinstance(start, Num) else _first_number(loop) or 0
            if trains and draws and not isinstance(start, Num):
                return _numbered_from_somewhere(run, loop, items, int(first)), draws, is_pass
            numbered = [(Num(first + i), item) for i, item in enumerate(items)]
            return numbered, draws, is_pass
        case ("zip", *sources):
            sources = _cut_alike(sources)
            several = len(sources) > 1
            plans = [(several and _counting(one)) or plan(run, one, loop, trains) for one in sources]
            items = list(zip(*(items for items, _, _ in plans), strict=False))
            if trains and any(_ends_somewhere(one) for one in sources):
                # It ends after a number of steps, and not where the data do.
                items = items[: run.knowledge.counted_in(len(items))]
            return items, any(draws for _, draws, _ in plans), any(is_pass for _, _, is_pass in plans)
        case ("islice", inner, *bounds):
            if trains and isinstance(inner, v.Stream) and inner.is_endless and run.reach.steps(loop.body):
                counted = _as_many_as(run, bounds)
                if counted is not None:
                    return counted, True, False
            goes_on = isinstance(inner, v.Stream)
            items, draws, is_pass = (_some_batches(run), True, False) if goes_on else plan(run, inner, loop, trains)
            if trains and is_pass and len(bounds) == 1 and v.is_named(bounds[0]) and run.reach.steps(loop.body):
                return _as_far_as(run, items, bounds[0]), draws, is_pass
            limits = [bind_steps(run, bound) if trains and len(bounds) == 1 else bound for bound in bounds]
            if trains and len(limits) == 1 and isinstance(limits[0], Num) and not run.reach.steps(loop.body):
                run.knowledge.note_window(limits[0])
            numbers = [int(b.value) if isinstance(b, Num) else None for b in limits]
            known = numbers and all(n is None or n >= 0 for n in numbers[:2]) and numbers[2:] != [0]
            return list(itertools.islice(items, *numbers)) if known else items, draws, is_pass
        case dict():
            return list(source), False, False
        case list() if trains and id(source) in run.iterated.grown and not v.acts_on_gradients(source):
            return _unknown_iteration(run, source, loop, trains)
        case list() | tuple() if v.all_parameters(source):
            # One after the other is all of them, once.
            return [v.united(source)], False, False
        case list() | tuple():
            holds_data = v.is_data(source)
            # A list of batches inside a pass over the data is a part of that pass, and so is one in a loop that steps
            # once for all of it: a window.
            is_part = run.loops.passes or (run.loops.depth and not run.reach.steps(loop.body))
            is_pass = holds_data and len(source) > 1 and not is_part
            if trains and is_pass and all(map(_is_window, source)):
                inner_loop = inner_training_loop(run, loop.body)
                return list(source), inner_loop is None or not _consumes(inner_loop, loop), True
            return list(source), holds_data, is_pass
    return _unknown_iteration(run, source, loop, trains)


def _is_window(value: Any) -> bool:
    """Whether a value is a list of batches, or so many that a batch was split into."""
    return isinstance(value, v.Chunks) or (isinstance(value, list) and v.is_data(value))


def _windows_of(run: State, data: v.Chunks, loop: syntax.For) -> list[v.Data]:
    """What data are split into: batches, and no parts of one, where an inner loop splits each of them again."""
    inner = inner_training_loop(run, loop.body)
    splits_again = inner is not None and _consumes(inner, loop)
    return [replace(piece, is_part=False) for piece in data.batches()] if splits_again else data.batches()


def listed_in(run: State, source: Any) -> Listed | None:
    """The list that a loop over ``source`` runs over, where its length is known; None if there is none."""
    match source:
        case list() if id(source) in run.iterated.grown or not (source and v.is_data(source)):
            return None
        case list():
            return Listed(len(source), frozenset({run.iterated.origin_of_length(source)}))
        case v.Chunks() if not source.assumed:
            return Listed(source.count, frozenset({run.iterated.origin_of_length(source)}))
        case ("enumerate", inner, _):
            return listed_in(run, inner)
        case ("zip", *sources):
            found = [own for one in sources if (own := listed_in(run, one)) is not None]
            origins = frozenset[str]().union(*(own.origins for own in found))
            return Listed(min(own.items for own in found), origins) if found else None
    return None


def _some_batches(run: State) -> list[Any]:
    """Batches of a stream that does not show how many it has left."""
    run.recorder.assumed_turns = True
    return [v.Data()] * run.knowledge.unbounded_length()


def _as_far_as(run: State, items: Iterable[Any], most: Symbol) -> Iterable[Any]:
    """As many batches of a pass as a number says that is not shown: no window, where the loop steps in its turns.

    A number of steps ends the pass after whole windows, one of samples divided by the size of a batch anywhere.
    """
    run.recorder.assumed_length = True
    several = list(items)
    return several if _divides_by_size(most) else several[: run.knowledge.counted_in(len(several))]


def _as_many_as(run: State, bounds: Sequence[Any]) -> list[Any] | None:
    """As many batches of a stream without an end as the source says in a number; None where it does not."""
    match bounds:
        case [Num(value=int() as count)] if count > 0 and not bounds[0].tags:
            several = run.knowledge.enough_of(count) if count > 4 * run.knowledge.unbounded_length() > _FEW else count
            run.recorder.assumed_turns = run.recorder.assumed_turns or several < count
            return [v.Data()] * several
    return None


def _counting(source: Any) -> tuple[Iterable[Any], bool, bool] | None:
    """The plan of a count without an end, zipped with something that ends; None for anything else."""
    match source:
        case ("range", Num(value=int() as first), bound) if bound is v.WITHOUT_END:
            return map(Num, itertools.count(first)), False, False
    return None


def _ends_somewhere(source: Any) -> bool:
    """Whether a source is a count from a number, or up to one, that is not shown."""
    match source:
        case ("range", *bounds):
            shown = all(isinstance(bound, Num) for bound in bounds)
            return not shown and all(bound is not v.WITHOUT_END for bound in bounds)
    return False


def _cut_alike(sources: Sequence[Any]) -> list[Any]:
    """What is zipped with split data is split into as many pieces, and what is zipped with batches has as many."""
    cut = [one for one in sources if isinstance(one, v.Chunks) and not one.assumed]
    shaped = [one for one in sources if isinstance(one, v.Data) and len(one.shape) > 1]
    found: list[Any] = []
    for one in sources:
        if cut and isinstance(one, v.Chunks) and one.assumed:
            found.append(cut[0])
        elif shaped and isinstance(one, v.Data) and len(one.shape) < 2 and not one.sizes:
            found.append(replace(one, shape=shaped[0].shape[:2]))
        else:
            found.append(one)
    return found


def _along(run: State, data: v.Data, loop: syntax.For, trains: bool) -> tuple[Iterable[Any], bool, bool] | None:
    """What a loop goes through along the first of the dimensions that data was given; None where it trains on none.

    A loop that has another one over each of its parts goes from window to window.
    """
    sizes = data.sizes or (tuple(map(Num, data.shape)) if len(data.shape) > 1 else ())
    if not trains or not sizes:
        return None
    first, *rest = sizes
    rows = int(rest[0].value) if rest else None
    part = replace(data, rows=rows if rows and rows > 0 else None, shape=data.shape[1:])
    items = [replace(part, sizes=tuple(rest) if data.sizes else ())]
    inner = inner_training_loop(run, loop.body)
    is_pass = not run.loops.passes and run.reach.steps(loop.body)
    if inner is not None and _consumes(inner, loop):
        return items * _windows_along(run, first), False, is_pass
    if first.value <= 0:
        # The places of a data set, some of them at a time: a pass over it, of a length that is not shown.
        return (items * assumed_length(run, data), True, True) if is_pass and data.is_order else None
    if not run.reach.steps(loop.body):
        run.knowledge.note_window(first)
    count = int(first.value)
    if count > 4 * run.knowledge.unbounded_length() > _FEW:
        run.recorder.assumed_turns = True
        count = run.knowledge.enough_of(count)
    return items * count, True, is_pass


def _windows_along(run: State, count: Num) -> int:
    """How many windows are along a dimension; a few stand for a number that follows from others."""
    if count.value > 0:
        return int(count.value)
    run.recorder.assumed_turns = True
    return _FEW_EPOCHS


def _given_to_inner_loop(run: State, loader: v.Loader, loop: syntax.For) -> list[Any]:
    """What a generator gives a loop that has an inner one over each; nothing if the loop has none."""
    inner = inner_training_loop(run, loop.body) if loader.carry_out is not None else None
    if loader.carry_out is None or inner is None or not _consumes(inner, loop):
        return []
    return loader.carry_out() or []


def _unknown_iteration(run: State, source: Any, loop: syntax.For, trains: bool) -> tuple[Iterable[Any], bool, bool]:
    element = Symbol(f"{source.name}[]") if isinstance(source, Symbol) and source.name else Symbol()
    if isinstance(source, v.Got) and not source.name:
        element = source  # each part of what a turn has cut out of its data
    if not trains:
        return [element], False, False
    inner = inner_training_loop(run, loop.body)
    holds_a_pass = inner is not None and not _consumes(inner, loop) and not _goes_over_models(run, inner)
    if holds_a_pass and not _makes_gradients_itself(run, loop.body):
        return [element, element], False, False
    is_made = isinstance(source, (v.Data, Tensor)) and not _comes_before_data(run, source, loop)
    if run.loops.passes or is_made:
        if _counts_each_part(run, loop):
            run.recorder.assumed_length = True
            return [v.Data(), v.Data()], True, False
        return [element, element], False, False
    if isinstance(source, Symbol):
        run.recorder.counted.add(v.tag_of_length(source))
    return [v.Data()] * assumed_length(run, source), True, True


def _makes_gradients_itself(run: State, body: Iterable[syntax.Node]) -> bool:
    """Whether statements make gradients outside of the loops in them: of what the loop around gives them."""
    for statement in body:
        if isinstance(statement, (syntax.For, syntax.While)) or not run.reach.backward(statement):
            continue
        if not any(run.reach.is_training_loop(node) for node in walk(statement)):
            return True
        if _makes_gradients_itself(run, children(statement)):
            return True
    return False


def _comes_before_data(run: State, source: v.Data | Tensor, loop: syntax.For) -> bool:
    """Whether a loop that steps runs over what a call elsewhere made before any data was drawn that it could be of.

    A progress bar around a loader that is a parameter is that: the loop gets its data from it.
    """
    none_drawn = run.recorder.micro_batch < 0 or run.recorder.has_run
    return isinstance(source, Tensor) and none_drawn and run.reach.steps(loop.body)


def _counts_each_part(run: State, loop: syntax.For) -> bool:
    """Whether a loop in a pass, over what the pass gives, acts on gradients by a counter of its own turns.

    The source then counts each part as a micro-batch: the data give lists of batches.
    """
    counted = {text_of(s.target) for s in loop.body if adds_one(s)}
    return any(
        isinstance(s, syntax.If)
        and run.reach.acts(s.body)
        and any(
            isinstance(n, syntax.BinOp) and n.op is Operator.MOD and counted & {text_of(part) for part in walk(n.left)}
            for n in walk(s.test)
        )
        for s in loop.body
    )


def _goes_over_models(run: State, inner: _Inner) -> bool:
    """Whether an inner loop goes from model to model, each with the batch of the outer loop: then that is the pass."""
    if inner.function is not None or not isinstance(inner.loop, syntax.For) or not run.calls.frames:
        return False
    if inner_training_loop(run, inner.loop.body) is not None:
        return False
    if _calls_what_it_gets(inner.loop):
        return True
    return any(_are_models(run.evaluate(node, run.calls.frames[-1])) for node in _collections_in(inner.loop.iter))


def _calls_what_it_gets(loop: syntax.For) -> bool:
    """Whether a loop calls what it goes over with something: these are networks, or losses, and no batches."""
    names = {node.id for node in walk(loop.target) if isinstance(node, syntax.Name)}
    calls = (node for statement in loop.body for node in walk(statement) if isinstance(node, syntax.Call))
    return any(isinstance(call.func, syntax.Name) and call.func.id in names and bool(call.args) for call in calls)


def _collections_in(node: syntax.Expression) -> Iterator[syntax.Expression]:
    """What a loop runs over, without what numbers or joins it: ``nets`` in ``enumerate(nets.items())``."""
    match node:
        case syntax.Name() | syntax.Attribute():
            yield node
        case syntax.Call(func=syntax.Attribute(value=holder, attr="items" | "values" | "keys"), args=()):
            yield from _collections_in(holder)
        case syntax.Call(func=syntax.Name(id="enumerate" | "zip" | "list" | "tuple"), args=arguments):
            for argument in arguments:
                yield from _collections_in(argument)


def _are_models(value: Any) -> bool:
    """Whether a value is a collection of models, or of what is theirs."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        return any(isinstance(item, (v.Model, v.Optimizer)) for item in items)
    return isinstance(value, v.Model)


def _numbered_from_somewhere(
    run: State, loop: syntax.For, items: Iterable[Any], first: int
) -> Iterator[tuple[Num, Any]]:
    """Batches with their numbers, where the source does not show from which on they are counted.

    A pass is counted from its own beginning (another one is for those that go on with a training that was broken off),
    or on from where the pass before has ended, and then what that has left over goes with it. Either is a scenario, and
    what they agree on is certain.
    """
    goes_on = not ask(run, f"{text_of(loop.iter)} restarts its count")
    number = run.iterated.counted_to.get(loop, first) if goes_on else first
    for item in items:
        number += 1
        run.iterated.counted_to[loop] = number
        yield Num(number - 1), item


def with_numbers(loop: syntax.For, source: Any, items: Iterable[Any]) -> Iterable[Any]:
    """Batches from a source that does not show what it yields, each with its number where the loop counts by it.

    One that was wrapped elsewhere (``for i, batch in progress_bar``) may be an ``enumerate``, or a ``range`` where
    there is nothing but ``i``. The loop tells: it takes ``i`` modulo something. Where ``i + 1`` is what it takes, it
    counts from 0, else from 1.
    """
    hidden = isinstance(source, Symbol) or (isinstance(source, v.Loader) and source.generated)
    target = loop.target
    first = _first_number(loop) if hidden else None
    if first is None:
        return items
    if not isinstance(target, syntax.Tuple):
        return [Num(first + i) for i, _ in enumerate(items)]
    rest = len(target.elts) - 1
    return [(Num(first + i), *[item] * rest) for i, item in enumerate(items)]


def _first_number(loop: syntax.For) -> int | None:
    """What a loop's counter begins at, by what it takes modulo something; None where it takes nothing so."""
    target = loop.target
    several = isinstance(target, syntax.Tuple) and len(target.elts) > 1
    counter = target.elts[0] if isinstance(target, syntax.Tuple) and several else target
    if not isinstance(counter, syntax.Name):
        return None
    nodes = [node for statement in loop.body for node in walk(statement)]
    offsets = {counter.id: 0}
    for node in nodes:
        if isinstance(node, syntax.Assign) and isinstance(node.targets[0], syntax.Name):
            offset = _offset(node.value, offsets)
            if offset is not None:
                offsets[node.targets[0].id] = offset
    taken = [_offset(n.left, offsets) for n in nodes if isinstance(n, syntax.BinOp) and n.op is Operator.MOD]
    counted = [offset for offset in taken if offset is not None]
    if not counted:
        return None
    return 0 if any(counted) else 1


def _offset(node: syntax.Expression, offsets: dict[str, int]) -> int | None:
    """What an expression adds to the counter that it is, or None where it is none."""
    match node:
        case syntax.Name(id=name):
            return offsets.get(name)
        case syntax.BinOp(left=left, op=Operator.ADD, right=syntax.Constant(value=int() as more)):
            base = _offset(left, offsets)
            return None if base is None else base + more
    return None


def _range(run: State, bounds: Sequence[Any], loop: syntax.For, trains: bool) -> Iterable[Any]:
    if bounds and all(isinstance(bound, Num) for bound in bounds):
        numbers = [int(bound.value) for bound in bounds]
        counted = range(*numbers) if len(numbers) < 3 or numbers[2] else range(0)
        if trains and len(bounds) == 1 and v.COUNTED_OUT in bounds[0].tags:
            # As many as the source says, though not in a number: they may be whole windows.
            counted = range(run.knowledge.unbounded_length())
        if trains and any(v.WHOLE in bound.tags for bound in bounds):
            # As many turns as follow from the rows of a batch that does not show them.
            run.recorder.assumed_length = True
        # A range without a step inside is the window itself; one that a generator yields batches in is the data's.
        is_window = not run.reach.steps(loop.body)
        holds_it = is_window and run.reach.backward_in(loop.body)
        if trains and holds_it and len(bounds) == 1 and isinstance(bounds[0], Num):
            run.knowledge.note_window(bounds[0])
        # A stride over the rows of a tensor counts these, and not the micro-batches that are made of them.
        if trains and not is_window and len(bounds) == 3 and v.UNITS not in bounds[1].tags:
            _note_stride(run, bounds[2], loop)
        if trains and not is_window and not _counts_windows(bounds) and len(counted) > _FEW:
            length = run.knowledge.unbounded_length()
            if len(counted) > 4 * length:
                # So many turns show nothing that a few whole windows and the last few turns do not; a loop that can be
                # left earlier may not come to these.
                counted = counted[: length if is_left(loop.body) else run.knowledge.enough_of(len(counted))]
                run.recorder.assumed_turns = True
        if run.knowledge.hurries and len(counted) > _FEW_EPOCHS and inner_training_loop(run, loop.body) is not None:
            # What the first epochs leave behind, and what the last one does at its end.
            run.recorder.assumed_turns = True
            return [Num(i) for i in (*counted[: _FEW_EPOCHS - 1], counted[-1])]
        if run.knowledge.hurries and not trains and len(counted) > _FEW and _adds_nothing_up(run, loop.body):
            return [Num(i) for i in (counted[0], counted[1], counted[-1])]
        if len(counted) > v.LONGEST_LIST:
            raise OutOfBudget
        along = frozenset({v.POSITION} if _counts_windows(bounds) else ())
        return [Num(i, along) for i in counted]
    if not trains:
        return [Num(0), Num(1)]
    if inner_training_loop(run, loop.body) is not None:
        run.recorder.assumed_turns = True
        _note_turns(run, bounds, 2)
        if len(bounds) == 3 and isinstance(bounds[0], Num) and isinstance(bounds[2], Num):
            along = frozenset({v.POSITION})
            return [Num(bounds[0].value, along), Num(bounds[0].value + bounds[2].value, along)]
        begins = _first_of(bounds).value
        return [Num(begins), Num(begins + 1)]
    if not run.reach.steps(loop.body) and len(bounds) == 1 and run.reach.backward_in(loop.body):
        # Backward inside, the step outside: this range is the window itself.
        bind_steps(run, bounds[0])
        return [Num(0), Num(1)]
    if (
        len(bounds) == 1
        and isinstance(bounds[0], Symbol)
        and run.calls.stack
        and run.reach.steps_outside_of(run.calls.stack[-1], loop)
    ):
        run.knowledge.bounds.add(bounds[0].name)
    length = run.knowledge.length_of_count()
    run.recorder.assumed_turns = True
    if 1 <= len(bounds) < 3 and v.is_named(bounds[-1]):
        first = bounds[0].value if len(bounds) == 2 and isinstance(bounds[0], Num) else 0
        run.iterated.ends[bounds[-1].name] = int(first) + length
    if len(bounds) >= 2 and isinstance(bounds[0], Num):
        step = bounds[2] if len(bounds) == 3 else Num(1)
        if isinstance(step, Symbol):
            step = Num(run.recorder.units)
        first, stride = int(bounds[0].value), int(step.value) if isinstance(step, Num) else 1
        if len(bounds) == 3:
            run.recorder.assumed_length = True
            length = run.knowledge.pass_length()
        return [Num(first + stride * i) for i in range(length)]
    first = 0
    if len(bounds) == 2 and not (v.is_named(bounds[0]) and isinstance(bounds[0].default, int)):
        first = _first_number(loop) or 0
    return [Num(first + i) for i in range(length)]


def _counts_through_a_pass(run: State, bounds: Sequence[Any], loop: syntax.For) -> bool:
    """Whether a loop takes a batch from an iterator in each of as many turns as a loader has batches, and steps.

    What the source calls the number of a pass's micro-batches (``iters_per_epoch``) is that, if it shows nothing else,
    and so is the number of a data set's samples, divided by the size of a batch.
    """
    last = bounds[-1] if bounds else None
    is_length = isinstance(last, Num) and v.LENGTH in last.tags and v.DERIVED not in last.tags
    is_length = is_length or (len(bounds) == 1 and _divides_samples(last))
    name = last.name.rpartition(".")[2] if isinstance(last, Symbol) and v.is_setting(last) else ""
    is_called_so = len(bounds) == 1 and bool(MICRO_BATCHES.fits(name))
    if run.loops.passes or not (is_length or is_called_so):
        return False
    takes = run.reach.takes_next(loop.body) or (is_called_so and _asks_for_a_batch(loop))
    return takes and run.reach.steps(loop.body) and inner_training_loop(run, loop.body) is None


def _divides_samples(value: Any) -> bool:
    """Whether a value is how many samples a data set has, divided by what is called the size of a batch."""
    return isinstance(value, v.Computed) and isinstance(value.left, v.Samples) and _divides_by_size(value)


def _divides_by_size(value: Symbol) -> bool:
    """Whether a value is a number divided by what is called the size of a batch."""
    if not (isinstance(value, v.Computed) and value.op is Operator.FLOORDIV):
        return False
    size = value.right
    return isinstance(size, Symbol) and names_size({size.name.rpartition(".")[2]})


def _asks_for_a_batch(loop: syntax.For) -> bool:
    """Whether a loop gets its data from an object that gives a batch each time it is asked (``data.get_batch()``)."""
    assigned = (n.value for s in loop.body for n in walk(s) if isinstance(n, syntax.Assign))
    return any(isinstance(one, syntax.Call) and bool(GIVES_A_BATCH.fits(last_part(one.func))) for one in assigned)


def is_left(nodes: Iterable[syntax.Node], inner: bool = False) -> bool:
    """Whether nodes of a loop can end it: a break that is not an ``inner`` loop's, or a return."""
    for node in nodes:
        match node:
            case syntax.Return():
                return True
            case syntax.Break():
                if not inner:
                    return True
            case syntax.FunctionDef() | syntax.ClassDef():
                continue
            case _:
                if is_left(children(node), inner or isinstance(node, (syntax.For, syntax.While))):
                    return True
    return False


def _adds_nothing_up(run: State, body: Sequence[syntax.Statement]) -> bool:
    """Whether the turns of a loop leave no more behind than its last one does: it reports, or reads."""
    if run.reach.acts(body):
        return False
    for node in (node for statement in body for node in walk(statement)):
        match node:
            case syntax.AugAssign():
                return False
            case syntax.Assign(targets=targets) if any(
                isinstance(t, (syntax.Subscript, syntax.Attribute)) for t in targets
            ):
                return False
    return True


def _note_stride(run: State, stride: Num, loop: syntax.For) -> None:
    """Note the stride that splits batches into windows, if a loop has an inner loop over each window."""
    if inner_training_loop(run, loop.body) is not None:
        run.knowledge.note_window(stride)


def _note_turns(run: State, bounds: Sequence[Any], turns: int) -> None:
    """Remember how many turns stand for an unknown number of epochs: schedules are planned by it."""
    if not 1 <= len(bounds) <= 2:
        return
    first, last = bounds[0] if len(bounds) > 1 else Num(0), bounds[-1]
    if _is_beginning(first):
        first = _first_of(bounds)
    if _is_one_later(last):
        # `range(1, epochs + 1)` has as many turns as there are epochs.
        last, turns = last.left, turns - 1
    if isinstance(last, Symbol) and last.name and isinstance(first, Num) and turns + first.value > 0:
        run.iterated.turns[last.name] = turns + int(first.value)


def _first_of(bounds: Sequence[Any]) -> Num:
    """What epochs are counted from: 1, where the source does not show it and they end with the last of their number."""
    if len(bounds) > 1 and isinstance(bounds[0], Num):
        return Num(bounds[0].value)
    return Num(1 if len(bounds) > 1 and _is_one_later(bounds[-1]) else 0)


def _is_one_later(last: Any) -> bool:
    """Whether the end of a range is written as what comes after a number (``epochs + 1``)."""
    return isinstance(last, v.Computed) and last.op is Operator.ADD and last.right == Num(1)


def _is_beginning(value: Any) -> bool:
    """Whether epochs are counted from where a training begins, which is 0 but for those that go on with another."""
    return v.is_named(value) and not value.default and bool(BEGINNING.fits(value.name.rpartition(".")[2]))


def _counts_windows(bounds: Sequence[Any]) -> bool:
    return any(v.LENGTH in bound.tags for bound in bounds)


@dataclass(frozen=True, slots=True)
class _Inner:
    """A loop inside another; in ``function``, which ``call`` calls, where it does not stand there itself."""

    loop: syntax.For | syntax.While
    function: syntax.FunctionDef | None = None
    call: syntax.Call | None = None

    def head(self) -> set[str]:
        """The names that it runs over, and the names that the outer loop has for those that it was given."""
        names = _names_in(self.loop.iter if isinstance(self.loop, syntax.For) else self.loop.test)
        if self.function is None or self.call is None:
            return names
        spec = self.function.args
        parameters = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if parameters[:1] == ["self"] and isinstance(self.call.func, syntax.Attribute):
            parameters = parameters[1:]
        given = dict(zip(parameters, self.call.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in self.call.keywords if keyword.arg}
        return names.union(*(_names_in(given[name]) for name in names & given.keys()))


def inner_training_loop(run: State, body: Sequence[syntax.Statement]) -> _Inner | None:
    """The first loop inside ``body`` that makes gradients, here or in a function that it calls."""
    found = run.reach.training_loop_in(body)
    return None if found is None else _Inner(*found)


def items_of(run: State, source: Any, limit: int) -> list[Any] | None:
    """The items of a collection that the source shows, or None."""
    match source:
        case ("range", *bounds) if bounds and all(isinstance(b, Num) for b in bounds):
            counted = range(*(int(b.value) for b in bounds))
            return [Num(i) for i in counted] if len(counted) <= limit else None
        case ("range" | "islice" | "shape" | "slice", *_):
            return None
        case ("enumerate", inner, start):
            items = items_of(run, inner, limit)
            first = start.value if isinstance(start, Num) else 0
            return [(Num(first + i), item) for i, item in enumerate(items)] if items is not None else None
        case ("zip", *sources):
            several = [items_of(run, one, limit) for one in _cut_alike(sources)]
            known = [items for items in several if items is not None]
            return list(zip(*known, strict=False)) if len(known) == len(several) else None
        case list() | tuple() | dict():
            return list(source)
        case v.Chunks():
            run.recorder.assumed_length = run.recorder.assumed_length or source.assumed
            return source.batches()
        case v.Optimizer():
            return [source]
        case v.Model(of_others=True):
            return list(source.keys or source.held)
        case v.Model() if source.held:
            return [v.Member(source=f"{source.name}.{place}") for place in range(len(source.held))]
        case v.Data() if source.rows is not None and source.rows <= limit:
            return [v.Data(made=source.made) for _ in range(source.rows)]
    return None


def is_cut(source: Any) -> bool:
    """Whether a loop runs over the pieces of a batch."""
    match source:
        case v.Chunks():
            return True
        case ("zip" | "enumerate" | "islice", *sources):
            return any(map(is_cut, sources))
    return False


def origins_of_parts(source: Any) -> frozenset[str]:
    """The origins of the number of pieces of a batch that a loop runs over; empty where the source shows none."""
    match source:
        case v.Chunks():
            return source.origins
        case ("zip" | "enumerate", *sources):
            return frozenset[str]().union(*map(origins_of_parts, sources))
    return frozenset()


def is_guessed(run: State, source: Any) -> bool:
    """Whether a loop over a source that is no training takes a number of turns that the source does not show."""
    match source:
        case v.Loader():
            return source.length is None
    return has_grown(run, source) or items_of(run, source, v.LONGEST_LIST) is None


def has_grown(run: State, source: Any) -> bool:
    """Whether what a loop goes through has grown in one whose turns are guessed: its own are as many."""
    match source:
        case list():
            return id(source) in run.iterated.grown
        case ("enumerate", inner, _):
            return has_grown(run, inner)
        case ("zip", *sources):
            return any(has_grown(run, one) for one in sources)
    return False


def _consumes(inner: _Inner, loop: syntax.For) -> bool:
    """Whether an inner loop runs over what an outer one yields: its items, or a list that they are collected in."""
    names = _names_in(loop.target)
    calls = [n for statement in loop.body for n in walk(statement) if isinstance(n, syntax.Call)]
    for call in calls:
        if isinstance(call.func, syntax.Attribute) and call.func.attr == "append":
            collects = any(_names_in(argument) & names for argument in call.args)
            names = names | _names_in(call.func.value) if collects else names
    return bool(inner.head() & names)


def _names_in(node: syntax.Expression) -> set[str]:
    return {n.id for n in walk(node) if isinstance(n, syntax.Name)}
