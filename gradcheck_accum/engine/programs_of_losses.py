"""From losses back to the recorded calls that made them: the program that computes them from their leaves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gradcheck_accum.engine.containers import taken_apart, tensors_in
from gradcheck_accum.engine.determinism import loses_digits
from gradcheck_accum.engine.graph_nodes import scaling_of
from gradcheck_accum.engine.inner_steps import Data, InnerGradients, is_any_among, is_any_equal
from gradcheck_accum.engine.left_behind import Heard, LeftBehind, stored_in
from gradcheck_accum.engine.lent_weights import applied_after_steps, has_weights
from gradcheck_accum.engine.loss_graph import is_cached
from gradcheck_accum.engine.memory import memory_of, version_of, versions_of
from gradcheck_accum.engine.one_at_a_time import are_rows_of_another, are_some_rows
from gradcheck_accum.engine.prepared_data import Preparation, Preparations
from gradcheck_accum.engine.program import Leaf, Produced, Program
from gradcheck_accum.engine.recorded_calls import Call, constants_of, parts_rows
from gradcheck_accum.engine.repeated_rows import OneRow, RepeatedRows
from gradcheck_accum.engine.samples import are_places
from gradcheck_accum.engine.transformed import all_samples, as_outside

_AllLeftBehind = list[list[tuple[LeftBehind, torch.Tensor]]]
"""For each call, the tensors that its module leaves behind without returning them."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What was noted of tensors that are on no tape, as they have no graph."""

    preparations: Preparations
    inner: InnerGradients
    repeated: RepeatedRows


def program_of(
    calls: list[Call],
    losses: Sequence[torch.Tensor],
    notes: Notes,
    is_weight: Callable[[torch.Tensor], bool],
    as_weight: Callable[[torch.Tensor], torch.Tensor] = as_outside,
) -> Program | None:
    """How the losses of one backward were computed; None if part of it was not recorded."""
    # Few modules leave something behind that a loss depends on, and searching all of them is slow.
    nothing: _AllLeftBehind = [[] for _ in calls]
    return _program(calls, losses, nothing, notes, is_weight, as_weight) or _program(
        calls, losses, _left_behind(calls), notes, is_weight, as_weight
    )


def _program(
    calls: list[Call],
    losses: Sequence[torch.Tensor],
    left_behind: _AllLeftBehind,
    notes: Notes,
    is_weight: Callable[[torch.Tensor], bool],
    as_weight: Callable[[torch.Tensor], torch.Tensor],
) -> Program | None:
    outputs = [
        [*c.outputs, *(tensor for _, tensor in kept), *c.changed] for c, kept in zip(calls, left_behind, strict=True)
    ]
    needed = needed_calls(calls, outputs, losses)
    if needed is None or not _is_all_followed(calls, needed):
        return None
    before = {id(c.before[0]): c.before[1] for i in sorted(needed, reverse=True) if (c := calls[i]).before}
    buffers: set[int] = set()
    leaves: list[torch.Tensor] = []
    places: dict[int, Leaf] = {}
    renumbered = {old: new for new, old in enumerate(sorted(needed))}
    produced: dict[int, Produced] = {}
    prepared: dict[int, Preparation] = {}
    in_turn: set[int] = set()
    repeated: dict[int, OneRow] = {}
    originals: list[torch.Tensor] = []
    mapped: set[int] = set()

    def placed(value: torch.Tensor) -> Produced | Leaf:
        if id(value) in produced:
            return produced[id(value)]
        if id(value) in places:
            return places[id(value)]
        place = places[id(value)] = Leaf(len(leaves))
        given, samples = value, all_samples(value)
        value = as_outside(value) if samples is None else samples
        if samples is not None:
            mapped.add(place.index)
        if (row := notes.repeated.row_of(given)) is not None:
            repeated[place.index] = row
        how = notes.preparations.of(value)
        if how is not None:
            prepared[place.index] = how
            if notes.preparations.is_of_this_turn(value) is not False:
                in_turn.add(place.index)
        originals.append(value)
        if id(given) in before:
            buffers.add(place.index)
            value = before[id(given)]
        elif samples is None:
            value = as_weight(given)
        leaves.append(value if value.requires_grad else value.detach())
        return place

    steps = []
    for old in sorted(needed):
        call = calls[old]
        steps.append((call.function, taken_apart(call.args, placed), taken_apart(call.kwargs, placed), call.autocast))
        for position, output in enumerate(outputs[old]):
            produced[id(output)] = Produced(renumbered[old], position)
    if any(leaf.requires_grad and not leaf.is_leaf for leaf in leaves):
        return None
    chosen = [calls[old] for old in sorted(needed)]
    applied = applied_after_steps(
        ((call.function, call.args, call.given, call.made) for call in chosen),
        is_weight,
        lambda tensor: notes.inner.data_of(tensor) is not None,
    )
    if mapped and any(call.rng_state is not None for call in chosen):
        # What ``vmap`` draws for one sample is not that of a batch of another size.
        return None
    learns, learns_from_itself = _step_before(chosen, losses, applied, notes.inner) if applied else (False, False)
    # Inside ``vmap`` it is a sample that layers are given, and whose rows are parted.
    is_one_sample = not mapped and _is_one_sample(chosen)
    return Program(
        steps=steps,
        kept=[[place for place, _ in left_behind[old]] for old in sorted(needed)],
        written=[call.written for call in chosen],
        buffers=frozenset(buffers),
        leaves=leaves,
        versions=versions_of(leaves),
        results=[produced[id(loss)] for loss in losses],
        rng_states=[call.rng_state for call in chosen],
        constants=[constant for call in chosen for constant in constants_of(call)],
        by_position=not mapped and any(call.looks_up_rows or parts_rows(call) for call in chosen),
        looks_up_rows=not mapped and any(call.looks_up_rows for call in chosen),
        is_one_sample=is_one_sample,
        is_of_vectors=not mapped and _is_of_vectors(chosen),
        one_by_one=not mapped and _is_one_by_one(chosen, notes.preparations),
        may_have_samples=is_one_sample and any(map(are_rows_of_another, originals)),
        learns=learns,
        learns_from_itself=learns_from_itself,
        is_cached=any(is_cached(output) for call in chosen for output in call.outputs),
        places=[call.place for call in chosen],
        coarsest=_coarsest(losses),
        prepared=prepared,
        in_turn=frozenset(in_turn),
        repeated=repeated,
        is_first=notes.preparations.is_of_this_turn(losses[0]) is None,
        scaled={i: note for i, call in enumerate(chosen) if (note := scaling_of(call.outputs)) is not None},
        mapped=frozenset(mapped),
        is_cut=any(map(are_some_rows, originals)),
    )


def _step_before(
    calls: list[Call], losses: Sequence[torch.Tensor], applied: Mapping[int, list[torch.Tensor]], inner: InnerGradients
) -> tuple[bool, bool]:
    """Whether a loss is of weights that an inner step has updated, and whether that step used the very data.

    What the weights are ``applied`` to tells. If only targets are those of the step, it may have been made for other
    views of the same samples: nothing is known then. Numbers in order (the classes of a task) may be anyone's.
    """
    outside = [position for position, call in enumerate(calls) if not _is_gradient(call)]
    own = [calls[position] for position in outside]
    needed = needed_calls(own, [call.made for call in own], losses) or ()
    given = [tensor for index in needed for tensor in applied.get(outside[index], ())]
    of = _data_of_inner_steps(calls, inner)
    if is_any_equal(given, of):
        return True, True
    every = (t for t in data_below(own, losses) if inner.data_of(t) is None and not are_places(t))
    rest = [tensor for tensor in every if all(tensor is not one for one in given)]
    return not is_any_among(rest, of), False


def _is_gradient(call: Call) -> bool:
    return getattr(call.function, "__name__", "") == "grad"


def _data_of_inner_steps(calls: list[Call], inner: InnerGradients) -> Data:
    """The data of the gradients among these calls, and of those without a graph that they were given."""
    given = (inner.data_of(tensor) for call in calls for tensor in call.given)
    found = [own for own in given if own is not None]
    for index, call in enumerate(calls):
        if _is_gradient(call):
            found.append(frozenset(map(weakref.ref, data_below(calls[:index], tensors_in(call.args[0])))))
    return frozenset[weakref.ref[torch.Tensor]]().union(*found)


def data_below(calls: list[Call], losses: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The data that recorded calls were given to compute losses."""
    outputs = [call.made for call in calls]
    made = {id(tensor) for own in outputs for tensor in own}
    needed = needed_calls(calls, outputs, [loss for loss in losses if id(loss) in made]) or ()
    return [
        tensor
        for index in needed
        for tensor in calls[index].given
        if tensor.dim() and not tensor.requires_grad and id(tensor) not in made
    ]


def _is_one_sample(calls: Sequence[Call]) -> bool:
    """Whether layers took one sample each, without a dimension for samples, and none of them took several in turn."""
    layers = [layer for call in calls for layer in call.of_one_sample]
    return bool(layers) and len({*layers}) == len(layers)


def _is_of_vectors(calls: Sequence[Call]) -> bool:
    """Whether models were given vectors alone: data, or what another of them gave.

    What a model is given again, it has made itself, of the same data (the next moment of an equation that is solved).
    """
    models = _calls_of_models(calls)
    if not models or not all(call.of_vectors for call in models):
        return False
    outputs = {id(output) for call in models for output in call.outputs}
    given_first = {id(tensor) for tensor in models[0].given}
    makers = {id(output): call for call in calls for output in call.outputs}
    known, called = outputs | given_first, set[int]()
    for call in models:
        again = id(call.function) in called
        called.add(id(call.function))
        if again and not all(t.requires_grad and _is_made_of(t, known, makers) for t in call.given):
            return False
        if not again and not all(not t.requires_grad or id(t) in outputs for t in call.given):
            return False
    return True


def _is_one_by_one(calls: Sequence[Call], preparations: Preparations) -> bool:
    """Whether each call of a model was given one sample alone: a vector, or one row of numbers.

    What was reduced before may be a whole batch's mean.
    """
    models = _calls_of_models(calls)
    given = [tensor for call in models for tensor in call.given if not tensor.requires_grad]
    return (
        bool(given)
        and all(
            call.of_vectors or all(t.dim() == 2 and len(t) == 1 and t.is_floating_point() for t in call.given)
            for call in models
        )
        and all(preparations.of(tensor) is None for tensor in given)
    )


def _calls_of_models(calls: Iterable[Call]) -> list[Call]:
    """The calls of modules with weights."""
    return [call for call in calls if has_weights(call.function)]


def _is_made_of(tensor: torch.Tensor, known: Collection[int], makers: Mapping[int, Call]) -> bool:
    """Whether recorded calls made a tensor of nothing but ``known`` ones, and numbers without dimensions."""
    pending, seen = [tensor], set[int]()
    while pending:
        own = pending.pop()
        if id(own) in known or id(own) in seen:
            continue
        seen.add(id(own))
        if id(own) in makers:
            pending.extend(makers[id(own)].given)
        elif own.dim():
            return False
    return True


def needed_calls(
    calls: list[Call], outputs: list[list[torch.Tensor]], losses: Sequence[torch.Tensor]
) -> set[int] | None:
    """The recorded calls that tensors depend on; ``outputs`` are the calls' results. None if one was not recorded."""
    makers: dict[int, list[int]] = {}
    writers: dict[int, list[int]] = {}
    for index, own in enumerate(outputs):
        for output in own:
            makers.setdefault(id(output), []).append(index)
        for memory in map(memory_of, calls[index].changed):
            if memory is not None:
                writers.setdefault(memory, []).append(index)

    def made_by(tensors: Iterable[torch.Tensor], until: int) -> Iterator[int]:
        """The calls before ``until`` that returned tensors or wrote into their memory: not only the last one."""
        for tensor in tensors:
            wrote = writers.get(memory_of(tensor) or 0, ()) if writers else ()
            yield from (index for index in (*makers.get(id(tensor), ()), *wrote) if index < until)

    if any(id(loss) not in makers for loss in losses):
        return None
    needed: set[int] = set()
    pending = list(made_by(losses, len(calls)))
    while pending:
        index = pending.pop()
        if index not in needed:
            needed.add(index)
            pending.extend(made_by(calls[index].given, index))
    return needed


def _is_all_followed(calls: Sequence[Call], needed: set[int]) -> bool:
    """Whether running the needed calls again repeats everything that was done to their memory."""
    last: dict[int, tuple[torch.Tensor, int | None]] = {}
    for call in calls:
        for tensor, version in zip(call.made, call.versions, strict=True):
            memory = memory_of(tensor)
            if memory is not None and tensor.requires_grad:
                last[memory] = tensor, version
    memories = {memory_of(tensor) for index in needed for tensor in calls[index].made}
    seen = all(version_of(t) == version for memory, (t, version) in last.items() if memory in memories)
    return seen and all(calls[index].is_followed for index in needed)


def _left_behind(calls: list[Call]) -> _AllLeftBehind:
    """For each call the tensors with a graph that its module leaves behind without returning them."""
    found: _AllLeftBehind = [[] for _ in calls]
    last = {id(call.function): index for index, call in enumerate(calls) if isinstance(call.function, nn.Module)}
    for index, call in enumerate(calls):
        if isinstance(call.function, nn.Module) and last[id(call.function)] == index:
            found[index] += stored_in(call.function)
        tensors = ((Heard(position), one()) for position, one in enumerate(call.heard))
        found[index] += [(place, tensor) for place, tensor in tensors if tensor is not None and tensor.requires_grad]
    return found


def _coarsest(losses: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The dtype with the most rounding between losses and their leaves, wherever autocast was enabled."""
    nodes = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    known, found = set(nodes), set[torch.dtype]()
    on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    while nodes:
        # Every backward asks, for every node of its graph.
        node = nodes.pop()
        for given in node._input_metadata:
            dtype = given.dtype
            if on_device and dtype is torch.float32 and given.device.type == "cuda" and loses_digits(node.name()):
                # TF32 has as many significant digits as float16.
                dtype = torch.float16
            if dtype.is_floating_point:
                found.add(dtype)
        for following, _ in node.next_functions:
            if following is not None and following not in known:
                known.add(following)
                nodes.append(following)
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=None)
