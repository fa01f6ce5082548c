"""How a micro-batch computed data without a gradient, if a reduction over its rows is part of that.

Preprocessing that treats each row separately (an image divided by 255, a padding mask, a mean and a deviation that were
computed before training) gives the same rows in a large batch, which is joined from its results. A reduction over rows
that is applied back to them (weights divided by their sum, standardized targets) gives different results in a large
batch: such data has to be prepared again, from all rows.

So calls and their arguments are noted, from the first reduction on. Data is *prepared by its micro-batch* if

- a subset of the micro-batch's rows gives different values for these rows;
- and it was made from this micro-batch's own rows, not from those of others (weights divided by the sum over a window
  or a data set do not qualify).

Nothing is noted inside modules, of weights and their gradients, or of calls that neither reduce nor use the result of a
reduction. A number that was converted to a Python number (``.item()``) is treated as a constant of the source.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.copies import CopiesOnWrite
from gradcheck_accum.engine.memory import is_plain, may_write, memory_of, version_of, versions_of
from gradcheck_accum.engine.randomness import State, random_state, same_state

_OVER_ROWS = frozenset(
    {
        *("sum", "nansum", "mean", "nanmean", "std", "var", "std_mean", "var_mean", "norm", "vector_norm", "logsumexp"),
        *("max", "min", "amax", "amin", "aminmax", "median", "nanmedian", "quantile", "nanquantile", "prod"),
        *("mode", "kthvalue", "histc", "cov", "corrcoef"),
        *("softmax", "log_softmax", "softmin", "normalize", "argsort", "sort", "bincount"),
        *("linalg_norm", "linalg_vector_norm", "count_nonzero"),
    }
)
"""Calls that may make one number of several rows, by name. An unnecessary name only costs a check of its results."""

_TAKES_ROWS = frozenset(
    {"__getitem__", "chunk", "split", "tensor_split", "unbind", "narrow", "select", "index_select", "take"}
)
"""Calls that may select rows of a tensor: their results are where the micro-batch's data begins."""

_DEEPEST = 64
"""The depth of nested calls beyond which none is noted: a running mean depends on all calls before it."""


_ADD_UP = 1e-4
"""How far a sum of weights may be from 1 due to rounding in float32 or lower precision."""


@dataclass(frozen=True, slots=True)
class _Raw:
    """Placeholder for an argument that no noted call returned: its index among these."""

    index: int


@dataclass(frozen=True, slots=True)
class _Made:
    """Placeholder for an argument that a noted call returned: the call, and the index of the tensor."""

    note: Any
    output: int


@dataclass(eq=False)
class _Held:
    """An argument that no noted call returned."""

    held: tuple[list[torch.Tensor], list[int | None]]


@dataclass(slots=True, eq=False)
class _Note:
    """A noted call. Tensors among its arguments that another noted call returned are `_Made`, others `_Held`."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    depth: int
    segment: int
    preparations: dict[int, Preparation] = field(default_factory=dict)
    """The preparations of its results that were requested, so that one tensor has one preparation."""


@dataclass(eq=False)
class Preparation:
    """How a tensor was computed from ``raw`` tensors by ``steps``; ``result`` is its step and position.

    ``whole`` computes, from the ``raw`` tensors, the weights before they were normalized, if the units of a loss are
    read from them; ``is_mean`` says that they were normalized to a mean of 1, not to a sum of 1.
    """

    steps: list[tuple[Callable[..., Any], Any, Any]]
    raw: list[torch.Tensor]
    versions: list[int | None]
    result: tuple[int, int]
    whole: Callable[[Sequence[torch.Tensor]], torch.Tensor] | None = None
    is_mean: bool = False
    _mixes: bool | None = None

    def run(self, raw: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor, computed from other ``raw`` ones. Raises whatever a call raises that does not fit them."""
        made: list[list[torch.Tensor]] = []
        with torch.no_grad():
            for function, args, kwargs in self.steps:
                args, kwargs = _filled((args, kwargs), raw, made)
                if may_write(function):
                    args = args[0].clone(), *args[1:]
                given = function(*args, **kwargs)
                made.append([args[0]] if may_write(function) else _tensors(given))
        step, output = self.result
        return made[step][output]

    def of_all_rows(self, raw: Sequence[torch.Tensor], made: torch.Tensor) -> torch.Tensor:
        """The tensor of a large batch, computed from all its rows as ``made`` was from a micro-batch's.

        Normalized weights may depend on the number of rows (``w / w.sum() * len(w)``), which is not noted.
        """
        if self.whole is None:
            return self.run(raw)
        whole = self.whole(raw)
        total = whole.mean() if self.is_mean else whole.sum()
        return (whole.reshape(-1, *made.shape[1:]) / total if made.dim() else total).to(made.dtype)

    @property
    def held(self) -> tuple[list[torch.Tensor], list[int | None]]:
        """The tensors that it was computed from, with their versions at that time."""
        return self.raw, self.versions

    @property
    def is_intact(self) -> bool:
        """Whether none of the tensors that it was computed from has been changed since."""
        return versions_of(self.raw) == self.versions

    def mixes(self, made: torch.Tensor) -> bool:
        """Whether the rows of its result, ``made``, depend on each other: half of them alone would be different.

        A number has no rows: it mixes them if the units of a loss are counted by it.
        """
        if not made.dim():
            return self.whole is not None
        if self._mixes is None:
            self._mixes = self.is_intact and self._changes_with_rows(made)
        return self._mixes

    def _changes_with_rows(self, made: torch.Tensor) -> bool:
        rows = len(made)
        if not any(raw.dim() and len(raw) == rows for raw in self.raw):
            return False
        fewer = max(rows // 2, 1)
        # One row has no half: it is doubled instead.
        order = torch.arange(fewer) if rows > 1 else torch.tensor([0, 0])
        raw = [own[order.to(own.device)] if own.dim() and len(own) == rows else own for own in self.raw]
        try:
            again = self.run(raw)[:fewer]
        except Exception:
            # The script's own calls run here, on fewer rows: their errors say nothing about the rows.
            return False
        return _differ(again, made[:fewer])

    def depends_on_all_of(self, whole: torch.Tensor, rows: slice) -> bool:
        """Whether it would be different if ``whole``, of which it was computed, had but some of its rows."""
        given = [own[rows] if own is whole else own for own in self.raw]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made, again = self.run(self.raw), self.run(given)
        except Exception:
            # The script's own calls run here, on fewer rows: their errors say nothing about the rows.
            return False
        return _differ(again, made)

    def count(self, weights: torch.Tensor, made: torch.Tensor, *, is_mean: bool) -> torch.Tensor | None:
        """The ``weights`` before it normalized them, by which units are counted; None if it did not.

        Its result, ``made``, are these weights, or a number that divides their products with something.
        """
        total = weights.double().mean() if is_mean else weights.double().sum()
        if not math.isclose(float(total if made.dim() else total / made.double()), 1.0, rel_tol=_ADD_UP):
            return None
        for whole in self._wholes():
            found = whole(self.raw)
            if found.numel() == weights.numel() and _are_parts(made, weights, found):
                self.whole, self.is_mean = whole, is_mean
                return found
        return None

    def _wholes(self) -> Iterator[Callable[[Sequence[torch.Tensor]], torch.Tensor]]:
        """What it may have normalized: the tensors that it was computed from, or the exponentials of a softmax."""
        for function, args, _ in self.steps:
            if getattr(function, "__name__", "") == "softmax" and args and isinstance(args[0], _Raw):
                yield partial(_exponential, args[0].index)
        yield from (partial(_itself, index) for index, own in enumerate(self.raw) if not own.is_complex())


def _differ(again: torch.Tensor, made: torch.Tensor) -> bool:
    """Whether two tensors of one kind have different values; those of two kinds cannot be compared."""
    alike = again.shape == made.shape and again.dtype is made.dtype
    return alike and not torch.allclose(again.double(), made.double(), 1e-4, 1e-7, equal_nan=True)


def _itself(index: int, raw: Sequence[torch.Tensor]) -> torch.Tensor:
    return raw[index].double()


def _exponential(index: int, raw: Sequence[torch.Tensor]) -> torch.Tensor:
    return raw[index].double().exp()


def _are_parts(made: torch.Tensor, weights: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether ``made`` is proportional to ``whole``, or is a divisor for ``weights``, which equal ``whole``."""
    if made.dim():
        return _is_proportional(made, whole)
    return torch.equal(weights.double().reshape(-1), whole.reshape(-1))


def _is_proportional(made: torch.Tensor, whole: torch.Tensor) -> bool:
    made, whole = made.double().reshape(-1), whole.reshape(-1)
    largest = int(whole.abs().argmax())
    return torch.allclose(whole * (made[largest] / whole[largest]), made, 1e-4, 1e-8)


@dataclass(slots=True)
class Preparations:
    """Notes the calls of a running loop; `of` returns how a tensor was computed.

    A note is kept while its results are alive, for at most ``segments`` backwards.
    """

    copies: CopiesOnWrite
    segments: int
    _made: dict[int, tuple[weakref.ref[torch.Tensor], _Note, int]] = field(default_factory=dict)
    _segment: int = 0
    _not_data: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)

    def about_to_write(self, function: Any, args: Any, kwargs: Any) -> _Note | None:
        """Called before a call writes into its first tensor; the note of how its new contents will be computed."""
        if not self._made or not args or not isinstance(args[0], torch.Tensor):
            return None
        tensor, known = args[0], self._known_among(args, kwargs)
        return self._noting(function, args, kwargs, known) if known and self._is_data(tensor) else None

    def written(self, tensor: object, note: _Note | None) -> None:
        """Called after a call has written into a tensor, with its ``note`` if there is one."""
        if self._made and isinstance(tensor, torch.Tensor):
            self._made.pop(id(tensor), None)
            if note is not None and not tensor.requires_grad:
                self._keep(tensor, note, 0)

    @property
    def is_noting(self) -> bool:
        """Whether a call may be noted because of its arguments, whatever it does."""
        return bool(self._made)

    def note(self, name: str, function: Any, args: Any, kwargs: Any, result: Any, state: State | None) -> None:
        """Note a call that writes into no tensor, if it is relevant; most calls are not.

        ``state`` is the state of the random generators before it, if something has been noted.
        """
        if name in ("__get__", "detach") and isinstance(result, torch.Tensor) and args:
            self._note_of_weights(function, args[0], result)
        if name not in _OVER_ROWS and not self._made:
            return
        results = _tensors(result)
        if all(tensor.requires_grad for tensor in results):
            return
        known, given = self._known_among(args, kwargs), _tensors((args, kwargs))
        if not known and (name not in _OVER_ROWS or not all(map(self._is_data, given))):
            return
        takes_rows = name in _TAKES_ROWS and results[0].shape[:1] != given[0].shape[:1]
        if takes_rows or kwargs.get("out") is not None:
            return
        if state is not None and not same_state(state, random_state()):
            return
        note = self._noting(function, args, kwargs, known)
        for position, tensor in enumerate(results):
            if note is not None and not tensor.requires_grad:
                self._keep(tensor, note, position)

    def of(self, tensor: torch.Tensor) -> Preparation | None:
        """How a tensor was computed; None if that was not noted."""
        known = self._known(tensor)
        if known is None:
            return None
        note, output = known
        if output not in note.preparations:
            built = _Builder()
            result = built.step_of(note), output
            note.preparations[output] = Preparation(built.steps, built.raw, built.versions, result)
            self.copies.hold(note.preparations[output])
        return note.preparations[output]

    def is_of_this_turn(self, tensor: torch.Tensor) -> bool | None:
        """Whether a tensor was computed since the last backward; None before the first, when that is not known."""
        known = self._known(tensor)
        return known is not None and known[0].segment == self._segment if self._segment else None

    def shares_of(self, weights: torch.Tensor, divisor: torch.Tensor | None, is_mean: bool) -> torch.Tensor | None:
        """The weights before they were normalized, up to a factor; None if that was not noted.

        They were normalized before they were used, or by a ``divisor`` of their products. The units of a loss are
        counted by the result.
        """
        made = weights if divisor is None else divisor
        how = self.of(made)
        if how is None or not how.is_intact or not weights.numel():
            return None
        return how.count(weights, made, is_mean=is_mean)

    def next_segment(self) -> None:
        """Called after a backward: old notes are discarded."""
        self._segment += 1
        oldest = self._segment - self.segments
        for key in [key for key, (_, note, _) in self._made.items() if note.segment <= oldest]:
            del self._made[key]

    def _known(self, tensor: torch.Tensor) -> tuple[_Note, int] | None:
        found = self._made.get(id(tensor))
        return found[1:] if found is not None and found[0]() is tensor else None

    def _keep(self, tensor: torch.Tensor, note: _Note, output: int) -> None:
        key, made = id(tensor), self._made
        made[key] = weakref.ref(tensor, lambda gone: _drop(made, key, gone)), note, output

    def _known_among(self, args: Any, kwargs: Any) -> list[_Note]:
        return [found[0] for tensor in _tensors((args, kwargs)) if (found := self._known(tensor)) is not None]

    def _noting(self, function: Any, args: Any, kwargs: Any, known: Sequence[_Note]) -> _Note | None:
        depth = 1 + max((note.depth for note in known), default=0)
        given = _tensors((args, kwargs))
        if depth > _DEEPEST or not all(is_plain(own) and version_of(own) is not None for own in given):
            return None
        return _Note(function, self._encoded(args), self._encoded(kwargs), depth, self._segment)

    def _encoded(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self._known(value)
            if known is not None:
                return _Made(*known)
            # A tensor with a graph would keep the graph alive.
            own = value.detach() if value.requires_grad else value
            held = _Held(([own], [version_of(own)]))
            self.copies.hold(held)
            return held
        if isinstance(value, dict):
            return {key: self._encoded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._encoded(item) for item in value]
        return tuple(self._encoded(item) for item in value) if type(value) is tuple else value

    def _note_of_weights(self, function: Any, owner: Any, result: torch.Tensor) -> None:
        """Gradients, and the memory of weights, are not data: noting a norm of them would keep all of them alive."""
        is_gradient = getattr(function, "__self__", None) is torch.Tensor.grad
        if is_gradient or not self._is_data(owner):
            key, known = id(result), self._not_data
            known[key] = weakref.ref(result, lambda gone: _drop_alone(known, key, gone))

    def _is_data(self, tensor: torch.Tensor) -> bool:
        apart = self._not_data.get(id(tensor))
        return is_plain(tensor) and not isinstance(tensor, nn.Parameter) and (apart is None or apart() is not tensor)


def own_preparations(programs: Sequence[Any]) -> dict[int, list[Preparation]]:
    """For each leaf that every program has prepared from its own rows: how each program did."""
    found: dict[int, list[Preparation]] = {}
    for leaf in programs[0].prepared:
        each = [program.prepared.get(leaf) for program in programs]
        if all(each) and _are_of_own_rows(each, [program.leaves[leaf] for program in programs]):
            found[leaf] = each
    return found


def _are_of_own_rows(each: Sequence[Preparation], made: Sequence[torch.Tensor]) -> bool:
    """Whether every micro-batch prepared such data from its own rows; an order of rows does not count."""
    is_order = made[0].dim() and not made[0].is_floating_point()
    if is_order or _is_constant(made) or not _are_apart(each, made):
        return False
    return any(map(Preparation.mixes, each, made))


def _is_constant(made: Sequence[torch.Tensor]) -> bool:
    """Whether several micro-batches computed the same values, which belong to no row: class weights, say."""
    return len(made) > 1 and bool(made[0].dim()) and all(torch.equal(own, made[0]) for own in made[1:])


def _are_apart(each: Sequence[Preparation], made: Sequence[torch.Tensor]) -> bool:
    """Whether no two micro-batches' data was computed from the same rows."""
    memories = [
        {raw.data_ptr() for raw in how.raw if raw.dim() and (not own.dim() or len(raw) == len(own))}
        for how, own in zip(each, made, strict=True)
    ]
    return len(set[int]().union(*memories)) == sum(map(len, memories))


def prepared_alike(each: Sequence[Preparation]) -> bool:
    """Whether all were computed by the same calls with the same numbers."""
    calls = [[(getattr(f, "__name__", f), args, kwargs) for f, args, kwargs in how.steps] for how in each]
    return all(own == calls[0] for own in calls[1:])


@dataclass(slots=True)
class _Builder:
    """Puts noted calls in order, without the tensors in between.

    A class, because recursive closures are reference cycles that keep their tensors alive until garbage collection.
    """

    steps: list[tuple[Callable[..., Any], Any, Any]] = field(default_factory=list)
    raw: list[torch.Tensor] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)
    _numbers: dict[object, int] = field(default_factory=dict)

    def step_of(self, note: _Note) -> int:
        """The position of a call, after those that returned its arguments."""
        if id(note) not in self._places:
            args, kwargs = self._placed(note.args), self._placed(note.kwargs)
            self._places[id(note)] = len(self.steps)
            self.steps.append((note.function, args, kwargs))
        return self._places[id(note)]

    def _placed(self, value: Any) -> Any:
        match value:
            case _Made():
                return _Made(self.step_of(value.note), value.output)
            case _Held():
                return _Raw(self._number(value.held[0][0], value.held[1][0]))
            case dict():
                return {key: self._placed(item) for key, item in value.items()}
            case list():
                return [self._placed(item) for item in value]
            case tuple() if type(value) is tuple:
                return tuple(self._placed(item) for item in value)
        return value

    def _number(self, tensor: torch.Tensor, version: int | None) -> int:
        place = memory_of(tensor)
        lies = place, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        key = id(tensor) if place is None else lies
        if key not in self._numbers:
            self._numbers[key] = len(self.raw)
            self.raw.append(tensor)
            self.versions.append(version)
        return self._numbers[key]


def _filled(value: Any, raw: Sequence[torch.Tensor], made: Sequence[Sequence[torch.Tensor]]) -> Any:
    match value:
        case _Raw():
            return raw[value.index]
        case _Made():
            return made[value.note][value.output]
        case dict():
            return {key: _filled(item, raw, made) for key, item in value.items()}
        case list():
            return [_filled(item, raw, made) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(_filled(item, raw, made) for item in value)
    return value


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a call's arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _drop(made: dict[int, Any], key: int, gone: object) -> None:
    if key in made and made[key][0] is gone:
        del made[key]


def _drop_alone(known: dict[int, Any], key: int, gone: object) -> None:
    if known.get(key) is gone:
        del known[key]
