"""Items and slices of what a training loop holds: of lists, batches, loaders, tensors, and of what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.interpreter.chosen_settings import one_of
from gradcheck_accum.lint.interpreter.iteration import inner_training_loop
from gradcheck_accum.lint.interpreter.objects import attribute
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import text_of, walk
from gradcheck_accum.lint.torch_calls.data import (
    batch_at,
    batches_of,
    extent,
    item_of_data,
    length_of,
    length_of_value,
    rows_of,
    slice_of_data,
)
from gradcheck_accum.lint.torch_calls.masks import chooses, selected


def subscript(run: State, node: syntax.Subscript, scope: v.Scope) -> Any:
    """What is at an index, or in a slice."""
    value = run.evaluate(node.value, scope)
    index = UNKNOWN if isinstance(node.slice, syntax.Slice) else run.evaluate(node.slice, scope)
    match value:
        case ("shape", v.Data() as data):
            if not isinstance(index, Num):
                return UNKNOWN
            return rows_of(run, data) if index.value == 0 else extent(data, index.value)
        case v.Word():
            return value
        case ("zip" | "enumerate" | "islice" | "range" | "shape" | "slice", *_):
            # What stands for an iterator is no tuple of its parts.
            return UNKNOWN
        case list() | tuple() if isinstance(index, Num) and isinstance(index.value, int):
            if isinstance(value, list) and len(value) > 1 and not run.loops.passes and v.is_data(value):
                # A list of batches that is counted through by hand.
                slice_of_data(run, value, index, None)
                chosen = value[index.value] if -len(value) <= index.value < len(value) else UNKNOWN
                run.recorder.learn_units(v.rows_in(chosen))
                return chosen
            return value[index.value] if -len(value) <= index.value < len(value) else UNKNOWN
        case list() if isinstance(node.slice, syntax.Slice) and id(value) in run.iterated.grown:
            # Of how many there are nothing is known, and so it is of a part of them.
            if not v.acts_on_gradients(value) and _is_cut_anew(run, node.slice, _bounds(run, node.slice, scope)):
                return v.Got(turn=run.loops.turn)
            part = list(value)
            run.iterated.grown[id(part)] = part
            return part
        case list() | tuple() if isinstance(node.slice, syntax.Slice):
            part = _slice(run, value, node.slice, scope)
            is_list = isinstance(value, list) and isinstance(part, list) and v.is_data(value)
            if is_list and run.loops.depth and not run.loops.passes and _cuts_another_part(run, node.slice, scope):
                # Joined together they are the data of the turn, unless a loop goes through them.
                return [v.made_in(item, run.loops.turn) for item in part]
            return part
        case dict():
            key = v.key_of(index, text_of(node.slice))
            if isinstance(key, Symbol) and key not in value and (chosen := one_of(value, text_of(node))) is not None:
                return chosen
            held = value[key] if isinstance(value, v.Defaulting) and isinstance(key, str) else value.get(key, UNKNOWN)
            if isinstance(key, Num) and isinstance(held, Num):
                return UNKNOWN  # a table of numbers has another one for every turn
            return v.known_as(held, key) if isinstance(key, str) else held
        case v.Data():
            # Rows are what the first of several dimensions counts.
            rows = node.slice.elts[0] if isinstance(node.slice, syntax.Tuple) and node.slice.elts else node.slice
            if isinstance(rows, syntax.Constant) and rows.value is ...:
                return value
            match index:
                case ("slice", lower, upper):
                    anew = None not in (lower, upper) and run.loops.depth > 0
                    anew = anew and not _is_the_same_in_every_turn(run, node.slice)
                    return slice_of_data(run, value, lower, upper, is_cut_anew=anew)
            if isinstance(rows, syntax.Slice):
                ends = (rows.lower, rows.upper, rows.step)
                lower, upper, stride = (None if end is None else run.evaluate(end, scope) for end in ends)
                is_cut_anew = None not in (lower, upper) and run.loops.depth > 0 and _changes(run, rows)
                around = _is_cut_around(run, rows)
                rows_cut = slice_of_data(
                    run, value, lower, upper, stride, is_cut_anew=is_cut_anew, is_of_turn_around=around
                )
                return replace(rows_cut, shape=_shape_of_part(value.shape, rows_cut.rows, node.slice))
            # Rows that are chosen at random are as new as the choice, and as many where their places are.
            if isinstance(index, v.Data):
                rows_chosen = index.rows if index.holds is v.Holds.PLACES else None
                is_counted_out = rows_chosen is None and value.is_determined
                varies = value.varies or chooses(index)
                return v.Data(rows_chosen, made=index.made, varies=varies, is_counted_out=is_counted_out)
            unshown = value.is_tensor and not value.shape and _is_counted(run, rows)
            if isinstance(index, Num) and (unshown or len(value.shape) > 1):
                # A tensor of batches that a call made, counted through by hand, or one of windows.
                counts = run.loops.depth and not run.loops.passes and inner_training_loop(run, run.loops.body) is None
                return item_of_data(run, value, index) if counts else value.item()
            # What is at a number may be a tensor of the batch, or a row of one.
            return replace(value.changed(), counted=None, drawn=None)
        case v.Chunks() if isinstance(node.slice, syntax.Slice):
            length = length_of_value(run, value)
            pieces = value.batches() if length.value == value.count else [value.piece] * int(length.value)
            return _slice(run, pieces, node.slice, scope)
        case v.Loader():
            if isinstance(node.slice, syntax.Slice):
                # A list of batches, sliced: the micro-batches of one window, say.
                return _slice(run, batches_of(value, length_of(run, value)), node.slice, scope)
            return batch_at(run, value, index)
        case Tensor() if chooses(index):
            return selected(value)
        case Tensor():
            item = attribute(run, value, str(index) if isinstance(index, str) else "item")
            if isinstance(index, str) and isinstance(item, Tensor) and item is not value:
                return replace(item, parts=tuple(replace(part, by_name=True) for part in item.parts))
            return item.element(index) if isinstance(item, Tensor) and isinstance(index, Num) else item
        case v.Parameters() | v.Gradient():
            return value
        case v.Model() if isinstance(index, (Num, str)):
            own = value.member(int(index.value) if isinstance(index, Num) else index)
            if own is not None:
                return own
            return v.Member(source=f"{value.name}.{index.value if isinstance(index, Num) else index}")
        case Symbol():
            if isinstance(index, str):
                return value.member(index)
            if (
                isinstance(index, Num)
                and isinstance(node.slice, syntax.Constant)
                and value.name
                and (not run.in_training or _is_the_same_in_every_turn(run, node.value))
            ):
                return value.member(str(index.value))  # one of several things that a call gave together
            if _are_places_cut_anew(run, node.slice, index):
                return v.Got(turn=run.loops.turn)
            return _slice_of_batches(run, value, node.slice, scope)
    return UNKNOWN


def _shape_of_part(shape: tuple[int, ...], rows: int | None, index: syntax.Expression) -> tuple[int, ...]:
    """The shape of ``data[a:b]`` and ``data[:, None]``, which has so many rows; nothing where that is not shown."""
    if rows is None or not shape:
        return ()
    _, *others = index.elts if isinstance(index, syntax.Tuple) else (index,)
    cut, left = [rows], list(shape[1:])
    for place in others:
        if isinstance(place, syntax.Constant) and place.value is None:
            cut.append(1)
        elif isinstance(place, syntax.Slice) and place.lower is place.upper is place.step is None and left:
            cut.append(left.pop(0))
        else:
            return ()
    return (*cut, *left)


def _slice(run: State, items: Any, node: syntax.Slice, scope: v.Scope) -> Any:
    bounds: list[int | None] = []
    for bound in (node.lower, node.upper, node.step):
        number = run.evaluate(bound, scope) if bound is not None else None
        if number is not None and not (isinstance(number, Num) and isinstance(number.value, int)):
            return UNKNOWN
        bounds.append(number.value if isinstance(number, Num) else None)  # type: ignore[arg-type]
    return items[slice(*bounds)] if bounds[2] != 0 else UNKNOWN


def _slice_of_batches(run: State, batches: Symbol, index: syntax.Expression, scope: v.Scope) -> Any:
    """An unknown sequence cut at a multiple of K, or along its own length: so only lists of batches are.

    What else a turn of a training loop cuts out of one, elsewhere in every turn, is its data, as far as anybody knows.
    """
    if not isinstance(index, syntax.Slice):
        return UNKNOWN
    bounds = _bounds(run, index, scope)
    if not any(map(_counts_batches, bounds)):
        return v.Got(turn=run.loops.turn) if _is_cut_anew(run, index, bounds) else UNKNOWN
    length = length_of_value(run, batches)
    if not isinstance(length, Num):
        # No one takes an empty window: it is as long as the bounds are apart.
        length = max((b for b in bounds if isinstance(b, Num)), key=lambda bound: bound.value)
        run.recorder.assumed_length = True
    return _slice(run, [v.Data()] * int(length.value), index, scope)


def _bounds(run: State, index: syntax.Slice, scope: v.Scope) -> list[Any]:
    """The bounds of a slice that it states."""
    return [run.evaluate(bound, scope) for bound in (index.lower, index.upper) if bound is not None]


def _counts_batches(bound: Any) -> bool:
    """Whether a bound counts batches: by K, or along the length of them all."""
    return isinstance(bound, Num) and bool(bound.tags & {v.STEPS, v.DERIVED, v.LENGTH, v.POSITION})


def _is_cut_anew(run: State, index: syntax.Slice, bounds: list[Any]) -> bool:
    """Whether each turn of a training loop cuts out another part of what holds its data, and no list of batches."""
    # With a stride, one bound is enough: from another start on, other rows are taken.
    stated = len(bounds) == 2 or (len(bounds) == 1 and index.lower is not None and index.step is not None)
    return run.loops.depth > 0 and stated and not any(map(_counts_batches, bounds)) and _changes(run, index)


def _cuts_another_part(run: State, index: syntax.Slice, scope: v.Scope) -> bool:
    """Whether a slice has other bounds than the last time, which are numbers and count no batches."""
    bounds = _bounds(run, index, scope)
    places = tuple(bound.value for bound in bounds if isinstance(bound, Num))
    if len(places) < 2 or len(places) < len(bounds) or any(map(_counts_batches, bounds)):
        return False
    before, run.iterated.cuts[index] = run.iterated.cuts.get(index), (places, run.loops.turn)
    return before is None or before[0] != places or before[1] == run.loops.turn


def _are_places_cut_anew(run: State, node: syntax.Expression, index: Any) -> bool:
    """Whether an index is the places of rows that this turn of a training loop has cut out of all places."""
    if isinstance(index, v.Got):
        return not index.name and index.turn == run.loops.turn
    places = isinstance(index, list) and len(index) > 1 and all(isinstance(place, Num) for place in index)
    return places and run.loops.depth > 0 and not _is_the_same_in_every_turn(run, node)


def _is_the_same_in_every_turn(run: State, node: syntax.Expression) -> bool:
    """Whether no loop of the function binds a name in an expression, and the expression calls nothing."""
    changing = run.bound_in_loops
    return all(not isinstance(inner, syntax.Call) and text_of(inner) not in changing for inner in walk(node))


def _is_counted(run: State, place: syntax.Expression) -> bool:
    """Whether a place is a name that a loop binds: another number in every turn."""
    changing = run.bound_in_loops
    return isinstance(place, syntax.Name) and place.id in changing


def _is_cut_around(run: State, index: syntax.Slice) -> bool:
    """Whether both bounds of a slice change with the turns of a loop around the innermost, not with its own."""
    within = run.loops.bound_within
    return within is not None and _changes(run, index) and not within & {text_of(inner) for inner in walk(index)}


def _changes(run: State, index: syntax.Slice) -> bool:
    """Whether both bounds of a slice are made of what changes with the turns of a loop."""
    changing = run.bound_in_loops
    bounds = [bound for bound in (index.lower, index.upper) if bound is not None]
    return all(changing & {text_of(inner) for inner in walk(bound)} for bound in bounds)
