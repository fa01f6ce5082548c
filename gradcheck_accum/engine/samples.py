"""Which parts of a micro-batch's tensors belong to which sample, and the replacement of samples.

A sample is replaced by a copy of another one of the same micro-batch, so whatever a model requires of its data (labels
within the classes, lengths within the padding) remains true.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import torch
from torch import nn

from gradcheck_accum.engine.containers import Packed, leaves_of, tensors_in
from gradcheck_accum.engine.lent_weights import has_weights
from gradcheck_accum.engine.memory import versions_of
from gradcheck_accum.engine.program import Leaf, Produced, Program

_FIRST = 16
"""Numbers of a tensor that are looked at before all of them are."""

_CallWithWeights = tuple[object, list[int], list[object]]
"""The function or the weights of a call with weights, the leaves that it was given, and all of its arguments."""

Rows = Callable[[int], Sequence[int]]
"""The positions along a leaf's axis that belong to a sample."""


@dataclass(frozen=True, slots=True)
class SampleAxis:
    """Where a leaf holds its samples: along ``axis``, at ``rows(sample)``."""

    leaf: int
    axis: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Samples:
    """``count`` samples of one program: rows of leaves, or one leaf each if a loop processes them one by one.

    ``may_be_parts`` says that they may be parts of one sample (the steps of a sequence), so that a coupling between
    them need not be one between samples. ``keeps_lengths`` says that each leaf keeps its length: what replaces it is
    repeated, or cut.
    """

    program: Program
    count: int
    held: tuple[SampleAxis, ...]
    single: tuple[tuple[int, ...], ...] = ()
    may_be_parts: bool = False
    keeps_lengths: bool = False

    @property
    def leaves(self) -> set[int]:
        """All leaves that hold them."""
        return {held.leaf for held in self.held} | {leaf for each in self.single for leaf in each}

    def replaced(self, chosen: Sequence[int]) -> Program:
        """The program with each ``chosen`` sample replaced by a copy of the next one."""
        leaves = list(self.program.leaves)
        for each in self.single:
            for sample in chosen:
                other = self.program.leaves[each[(sample + 1) % self.count]]
                leaves[each[sample]] = _of_length(len(leaves[each[sample]]), other) if self.keeps_lengths else other
        for held in self.held:
            to = [row for sample in chosen for row in held.rows(sample)]
            source = [row for sample in chosen for row in held.rows((sample + 1) % self.count)]
            leaf = leaves[held.leaf]
            index = torch.tensor(source, device=leaf.device)
            other = leaf.detach().index_select(held.axis, index)
            changed = leaf.detach().clone().index_copy_(held.axis, torch.tensor(to, device=leaf.device), other)
            leaves[held.leaf] = changed.requires_grad_(leaf.requires_grad)
        return replace(self.program, leaves=leaves, versions=versions_of(leaves))

    def only(self, wanted: Callable[[torch.Tensor], bool]) -> Samples:
        """The same samples, only in those leaves that are ``wanted``."""
        held = tuple(held for held in self.held if wanted(self.program.leaves[held.leaf]))
        single = tuple(each for each in self.single if wanted(self.program.leaves[each[0]]))
        return replace(self, held=held, single=single)


def own_leaves(program: Program, others: Sequence[Program]) -> list[int]:
    """The leaves that belong to one micro-batch, not to all of its window."""
    shared = {id(leaf) for other in others if other is not program for leaf in other.leaves}
    lent = program.lent()
    free = [
        i
        for i, leaf in enumerate(program.leaves)
        if leaf.dim() and i not in lent and not isinstance(leaf, nn.Parameter)
    ]
    # If a loop trains on the same batch repeatedly, all leaves are shared.
    return [i for i in free if id(program.leaves[i]) not in shared] or free


def data_in(program: Program, others: Sequence[Program]) -> list[int]:
    """Those of a micro-batch's own leaves that may hold samples: neither indices nor constants."""
    alike = [other for other in others if other is not program and len(other.leaves) == len(program.leaves)]
    return [
        i
        for i in own_leaves(program, others)
        if not are_places(leaf := program.leaves[i])
        and not (alike and all(_is_equal(other.leaves[i], leaf) for other in alike))
    ]


def inputs_of(program: Program) -> set[int]:
    """The leaves that calls with weights were given: others (targets, say) do not show how a model treats samples.

    What a loss was given itself is a target, even if a model was given the whole batch that holds it. Empty if a call
    with weights was given tensors in an object of an unknown type.
    """
    found = _inputs_among(_calls_with_weights(program))
    return found - _targets_in_batches(program) or found


def _targets_in_batches(program: Program) -> set[int]:
    """The leaves that models were only given in containers, and that calls without weights were given themselves."""
    held, alone, of_losses = set[int](), set[int](), set[int]()
    for function, args, kwargs, _ in program.steps:
        if not has_weights(function):
            of_losses |= _leaves_in((args, kwargs))
            continue
        for given in (*args, *kwargs.values()):
            (alone if isinstance(given, Leaf) else held).update(_leaves_in(given))
    return (held - alone) & of_losses


def _leaves_in(value: object) -> set[int]:
    return {leaf.index for leaf in leaves_of(value) if isinstance(leaf, Leaf)}


def _inputs_among(calls: Iterable[_CallWithWeights]) -> set[int]:
    found: set[int] = set()
    for _, own, given in calls:
        if any(_hides_tensors(value) for value in given):
            return set()
        found |= {*own}
    return found


def _calls_with_weights(program: Program) -> Iterator[_CallWithWeights]:
    """Every call with weights of a program."""
    for function, args, kwargs, _ in program.steps:
        given = list(leaves_of((args, kwargs)))
        given = [item for value in given for item in (value.fields if isinstance(value, Packed) else (value,))]
        own = [value.index for value in given if isinstance(value, Leaf)]
        weights = tuple(i for i in own if isinstance(program.leaves[i], nn.Parameter))
        if isinstance(function, nn.Module) and any(p.requires_grad for p in function.parameters()):
            yield function, own, given
        elif weights:
            yield weights, own, given


def _hides_tensors(value: object) -> bool:
    known = isinstance(value, (Leaf, Produced, nn.Module, type))
    return not known and next(tensors_in(value), None) is not None


def by_sample(program: Program, data: Sequence[int], own: Sequence[int]) -> Iterator[Samples]:
    """The samples of one micro-batch, as the leaves ``data`` may hold them; ``own`` are all its leaves.

    If a leaf has several rows for each sample, these are adjacent, or one in each of several parts of the leaf; or the
    number is a coincidence, and the leaf is left out. A square leaf may have been transposed. Yields nothing if there
    is one sample.

    What a function was given one by one may have unlike lengths (the boxes of each row), which its other numbers
    follow: it is replaced as it is, and then with its lengths kept.

    First, the tensors of a list, or those that the same weights were applied to one by one, may be one sample each, of
    any length (a set, a sequence), if there are as many as other leaves have rows. So may all that the items of a list
    hold (the boxes of each image, with their classes).
    """
    calls = [*_calls_with_weights(program)]
    for groups in (*((each,) for each in _listed(program, data, calls)), *_items_with_rows(program, own)):
        apart = {leaf for each in groups for leaf in each}
        rows = [i for i in data if i not in apart and len(program.leaves[i]) == len(groups[0])]
        held = tuple(SampleAxis(i, 0, lambda sample: [sample]) for i in rows)
        if rows:
            yield Samples(program, len(groups[0]), held, groups, may_be_parts=True)
    of_items = holds_lists(program)
    count = _count(program, own)
    if count is None:
        return
    parts, called = _one_by_one(program, data, count), _called_one_by_one(program, own, count)
    for single in (parts, called) if called and called != parts else (parts,):
        seen: list[list[tuple[int, int, list[int]]]] = []
        apart = {leaf for each in single for leaf in each}
        keeps_lengths = any(_are_ragged(program, own) for own in single) and all(len(program.leaves[i]) for i in apart)
        for several, axes in product((_together, _in_parts, None), ((0, 1), (1, 0))):
            places = (_held(i, program.leaves[i], count, several, axes) for i in data if i not in apart)
            held = tuple(one for one in places if one is not None)
            known = [(h.leaf, h.axis, list(h.rows(1))) for h in held]
            if known not in seen:
                seen.append(known)
                yield Samples(program, count, held, single, may_be_parts=of_items)
                if keeps_lengths:
                    yield Samples(program, count, held, single, may_be_parts=of_items, keeps_lengths=True)


def along_second(program: Program, data: Sequence[int], own: Sequence[int]) -> Samples | None:
    """The samples along the second dimension of all data of a micro-batch, or one in each part of a flat leaf.

    None if some of the data has none there, or if the micro-batch's samples are looked for there anyway.
    """
    second = {program.leaves[i].shape[1] for i in inputs_of(program) & {*data} if program.leaves[i].dim() > 1}
    if len(second) != 1 or second & {1, _count(program, own)}:
        return None
    (count,) = second
    held: list[SampleAxis] = []
    for i in data:
        leaf = program.leaves[i]
        flat = _held(i, leaf, count, _in_parts, ()) if leaf.dim() == 1 and len(leaf) > count else None
        place = flat if leaf.dim() == 1 else _held(i, leaf, count, None, (1,))
        if place is None:
            return None
        held.append(place)
    return Samples(program, count, tuple(held))


def stand_before_states(samples: Samples, others: Sequence[Program]) -> bool:
    """Whether a micro-batch was given states, which have ``samples`` along the second dimension and rows of no other.

    Another one of the window shows it too, if it holds all that this one does and more: the first segment of a
    sequence has no state.
    """
    own = _kinds(samples.program, others)
    for one in (samples.program, *others):
        data = data_in(one, others)
        along = along_second(one, data, own_leaves(one, others)) if own <= _kinds(one, others) else None
        if along is None or along.count != samples.count:
            continue
        given = [one.leaves[i] for i in inputs_of(one) & {*data}]
        rows = max(len(leaf) for leaf in given)
        if any(leaf.is_floating_point() and leaf.dim() > 2 and len(leaf) % rows for leaf in given):
            return True
    return False


def _kinds(program: Program, others: Sequence[Program]) -> Counter[tuple[torch.dtype, torch.Size]]:
    """What the data of a micro-batch is, apart from the number of its rows."""
    every = (program.leaves[i] for i in data_in(program, others))
    return Counter((leaf.dtype, leaf.shape[1:]) for leaf in every)


def by_item(program: Program, others: Sequence[Program]) -> Iterator[Samples]:
    """The samples of micro-batches that a model is given as lists, whose items have unlike lengths: sentences, images.

    A sample is all that the lists hold at its place: an image, and the dictionary of its boxes. Of lists of tensors
    alone, what else a micro-batch has may be of all their elements (a label for every word), so each keeps its length.
    Two batches of unlike sizes in a list are no samples: of samples there are more, or their lengths follow no place.
    """
    own = {*own_leaves(program, others)}
    alike = [other for other in others if program.same_shape(other)]
    for groups in _lists_for_models(program):
        leaves = [leaf for group in groups for leaf in group]
        if not {*leaves} <= own or len({*leaves}) < len(leaves):
            continue
        if len(groups) == 1:
            items = [program.leaves[i] for i in leaves]
            is_list = len({(item.shape[1:], item.dtype) for item in items}) == 1 and len(items) > 2
            if is_list and _differ_everywhere(leaves, alike):
                yield Samples(program, len(leaves), (), (groups[0],), may_be_parts=True, keeps_lengths=True)
        elif any(_are_ragged(program, group) and _differ_everywhere(group, alike[:-1]) for group in groups):
            yield Samples(program, len(groups[0]), (), tuple(groups), may_be_parts=True)


def holds_lists(program: Program) -> bool:
    """Whether a model is given lists of samples of unlike lengths: joined one by one, they are no larger batch."""
    return any(_are_ragged(program, group) for groups in _lists_for_models(program) for group in groups)


def _are_ragged(program: Program, group: Sequence[int]) -> bool:
    return len({len(program.leaves[i]) for i in group}) > 1


def _differ_everywhere(leaves: Sequence[int], alike: Sequence[Program]) -> bool:
    """Whether every one of these leaves has another length in another micro-batch."""
    return all(len({len(one.leaves[i]) for one in alike}) > 1 for i in leaves)


def _lists_for_models(program: Program) -> Iterator[list[tuple[int, ...]]]:
    """The leaves in the lists of one length that a model with weights is given, if their items hold as many each.

    For each tensor of an item, those of all items.
    """
    for function, args, kwargs, _ in program.steps:
        if not isinstance(function, nn.Module) or not any(p.requires_grad for p in function.parameters()):
            continue
        lists = [given for given in (*args, *kwargs.values()) if isinstance(given, (list, tuple)) and len(given) > 1]
        for length in sorted({len(given) for given in lists}):
            groups = _by_place([[given[i] for given in lists if len(given) == length] for i in range(length)])
            if groups and all(program.leaves[i].dim() and len(program.leaves[i]) for group in groups for i in group):
                yield groups


def _by_place(items: Sequence[object]) -> list[tuple[int, ...]]:
    """For each tensor of an item, those of all items; empty if these hold unlike numbers of leaves, or made tensors."""
    held = [[*leaves_of(item)] for item in items]
    leaves = [[value.index for value in own if isinstance(value, Leaf)] for own in held]
    is_made = any(isinstance(value, Produced) for own in held for value in own)
    return [] if is_made or len({len(own) for own in leaves}) > 1 else [*zip(*leaves, strict=True)]


def _items_with_rows(program: Program, own: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """What the items of a list that a call was given hold, if that is a micro-batch's own; lists of tensors apart."""
    for _, args, kwargs, _ in program.steps:
        for given in (*args, *kwargs.values()):
            if not isinstance(given, (list, tuple)) or len(given) < 2 or any(isinstance(item, Leaf) for item in given):
                continue
            groups = _by_place(given)
            leaves = [leaf for group in groups for leaf in group]
            if leaves and {*leaves} <= {*own} and len({*leaves}) == len(leaves):
                yield tuple(groups)


def _of_length(length: int, other: torch.Tensor) -> torch.Tensor:
    index = torch.arange(length, device=other.device) % len(other)
    return other.detach()[index].requires_grad_(other.requires_grad)


def _listed(program: Program, data: Sequence[int], with_weights: Iterable[_CallWithWeights]) -> list[tuple[int, ...]]:
    """Data that a call was given in a list, or one leaf for each of several calls with the same weights."""
    calls: dict[object, list[list[int]]] = {}
    for called, own, _ in with_weights:
        of_data = [i for i in own if i in data]
        if of_data:
            calls.setdefault(called, []).append(of_data)
    found = [[own[0] for own in each] for each in calls.values() if all(len(own) == 1 for own in each)]
    for _, args, kwargs, _ in program.steps:
        lists = [given for given in (*args, *kwargs.values()) if isinstance(given, (list, tuple))]
        found += [[item.index for item in given if isinstance(item, Leaf) and item.index in data] for given in lists]
    return list(dict.fromkeys(tuple(each) for each in found if len({*each}) == len(each) > 1))


def _one_by_one(program: Program, data: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Groups of ``count`` leaves that are disjoint parts of one tensor, in its order.

    Overlapping parts (the inputs and the shifted targets of a forecast) are not separate samples.
    """
    found: dict[tuple[int, torch.Size], list[int]] = {}
    for i in data:
        leaf = program.leaves[i]
        if leaf.layout is torch.strided:
            found.setdefault((leaf.untyped_storage().data_ptr(), leaf.shape), []).append(i)
    parts = (sorted(own, key=lambda i: program.leaves[i].storage_offset()) for own in found.values())
    return tuple(
        tuple(own)
        for own in parts
        if len(own) == count and not any(_overlap(program.leaves[i], program.leaves[j]) for i, j in pairwise(own))
    )


def _called_one_by_one(program: Program, own: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Groups of ``count`` of a micro-batch's ``own`` leaves that a function was given one by one.

    They are each sample's own targets, or its indices.
    """
    found = dict.fromkeys(group for group in _given_in_turn(program, own) if len(group) == count)
    groups: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for group in found:
        if len({*group}) == count and taken.isdisjoint(group):
            groups.append(group)
            taken |= {*group}
    return tuple(groups)


def _given_in_turn(program: Program, own: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The leaves that several calls of one function were given, for each place among its arguments."""
    calls: dict[object, list[list[int]]] = {}
    for function, args, kwargs, _ in program.steps:
        given = [leaf.index for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Leaf) and leaf.index in own]
        if given:
            calls.setdefault(function, []).append(given)
    for each in calls.values():
        if len(each) > 1 and len({len(given) for given in each}) == 1:
            yield from zip(*each, strict=True)


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two views of the same memory and shape have an element in common."""
    sizes = sorted(((s, n) for s, n in zip(left.stride(), left.shape, strict=True) if n > 1), reverse=True)
    distance = int(right.storage_offset()) - int(left.storage_offset())
    return left.stride() == right.stride() and _is_reached(distance, sizes)


def _is_reached(distance: int, sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether ``distance`` lies between two elements of a tensor whose (stride, size) are ``sizes``, largest first."""
    if not sizes:
        return distance == 0
    (stride, size), inner = sizes[0], sizes[1:]
    if not stride:
        return _is_reached(distance, inner)
    reach = sum(s * (n - 1) for s, n in inner)
    first, last = -((reach - distance) // stride), (distance + reach) // stride
    steps = range(max(first, 1 - size), min(last, size - 1) + 1)
    return any(_is_reached(distance - step * stride, inner) for step in steps)


def by_row(program: Program, leaf: int) -> Samples | None:
    """The rows of one leaf, each possibly less than a sample; None if it has one row."""
    shape = program.leaves[leaf].shape
    axis = next((axis for axis, size in enumerate(shape[:2]) if size > 1), None)
    return None if axis is None else Samples(program, shape[axis], (SampleAxis(leaf, axis, lambda row: [row]),))


def _count(program: Program, own: Sequence[int]) -> int | None:
    """How many samples there are: the most common size of the leaves' first dimensions, usually; None for one.

    It is one that what a model was given has: targets may have as many columns. Of tensors of unlike lengths that a
    function was given one by one (each image's boxes), it is their number, unless they are of the rows that models were
    given (`_are_of_parts`). If two sizes are equally common, it is the one that more leaves have: if time comes first,
    labels have no time dimension.
    """
    found: Counter[int] = Counter()
    leaves: Counter[int] = Counter()
    inputs = inputs_of(program) & {*own}
    if inputs and all(program.leaves[i].shape[:1] == (1,) for i in inputs):
        return None
    if inputs and all(program.leaves[i].dim() < 2 and program.leaves[i].is_floating_point() for i in inputs):
        # The features of one sample at a time: what a policy observes at each moment.
        return None
    in_turn = [group for group in _given_in_turn(program, own) if _are_ragged(program, group)]
    in_turn = [group for group in in_turn if inputs.isdisjoint(group) and not _are_of_parts(program, group, inputs)]
    found.update({len(group): 2 for group in in_turn})
    for i in {*own}.difference(*in_turn):
        first, *others = program.leaves[i].shape
        found[first] += 3 if i in inputs else 2
        found.update(size for size in others[:1] if size != first)
        leaves.update({first, *others[:1]})
    of_inputs = {size for i in inputs for size in program.leaves[i].shape[:2]}
    for size in {0} | (found.keys() - of_inputs if of_inputs else set()):
        del found[size]
    count = min(found, key=lambda size: (-found[size], -leaves[size], size), default=1)
    return count if count > 1 else None


def _are_of_parts(program: Program, group: Sequence[int], inputs: set[int]) -> bool:
    """Whether a group of leaves has a row for each row of a batch that models were given whole, or in parts.

    They are then the targets of its parts (labelled and unlabelled samples), not each one sample's, unless a model was
    given as many rows as there are of them.
    """
    lengths = Counter(len(program.leaves[i]) for i in group)
    rows = Counter(len(program.leaves[i]) for i in inputs if program.leaves[i].dim())
    return len(group) not in rows and (sum(lengths.elements()) in rows or lengths <= rows)


def _held(
    leaf: int,
    tensor: torch.Tensor,
    count: int,
    several: Callable[[int, int], Rows] | None,
    axes: Sequence[int],
) -> SampleAxis | None:
    for axis in axes:
        if axis < tensor.dim() and tensor.shape[axis] == count:
            return SampleAxis(leaf, axis, lambda sample: [sample])
    each, rest = divmod(tensor.shape[0], count)
    return SampleAxis(leaf, 0, several(each, count)) if several is not None and each and not rest else None


def _together(each: int, count: int) -> Rows:
    return lambda sample: range(sample * each, (sample + 1) * each)


def _in_parts(each: int, count: int) -> Rows:
    return lambda sample: range(sample, count * each, count)


def _is_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left is not right and left.shape == right.shape and torch.equal(left, right)


def are_places(leaf: torch.Tensor) -> bool:
    """Whether a leaf looks like indices into another: offsets of its parts, their lengths, or an order of rows."""
    if leaf.is_floating_point() or leaf.is_complex() or leaf.dtype is torch.bool or leaf.dim() > 1 or len(leaf) < 2:
        return False
    # Nearly all labels show at once that they are none: by their first numbers, and by the least and the greatest.
    first = leaf[:_FIRST].tolist()
    ordered = sorted(first)
    if first == ordered and bool((leaf[1:] >= leaf[:-1]).all()):
        return True
    if first == ordered[::-1] and bool((leaf[1:] <= leaf[:-1]).all()):
        return True
    if int(leaf.min()) or int(leaf.max()) != len(leaf) - 1:
        return False
    return torch.equal(leaf.sort().values, torch.arange(len(leaf), dtype=leaf.dtype, device=leaf.device))
