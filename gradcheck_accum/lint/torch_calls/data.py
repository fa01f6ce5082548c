"""Data: loaders and their lengths, batches and the pieces that they are split into."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeGuard

from gradcheck_accum.ledger.stated_names import LOSSES, names_steps
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.program.names import DATASET
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind, bind_steps
from gradcheck_accum.lint.state.control import Exhausted, OutOfBudget, Raised
from gradcheck_accum.lint.state.knowledge import ASSUMED_STEPS
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol

_LONGEST_PASS = 5_000
_DEEPEST = 3
"""Objects in objects are looked into this far."""
_FOR_A_GENERATOR = 10_000
"""Evaluations in which a generator is to show how many batches it gives."""


def given_by(run: State, source: Any) -> Any:
    """What a loop over a source runs over: what the class of an object says that it gives (``__iter__``).

    What was made of a stream without an end has none that the source shows.
    """
    method = source.cls.bound("__iter__", source) if isinstance(source, v.Instance) else None
    if method is None:
        return source
    if _runs_on(run, source):
        return v.Stream.endless()
    given = call_function(run, method, [], {})
    return given if isinstance(given, (v.Loader, v.Stream)) else source


def _runs_on(run: State, source: Any, depth: int = 0) -> bool:
    """Whether an object is, or was made of, a stream without an end."""
    if isinstance(source, v.Stream):
        return source.is_endless
    if not isinstance(source, v.Instance) or depth > _DEEPEST:
        return False
    method = source.cls.methods.get("__iter__")
    if method is not None and run.reach.gives_endlessly(method):
        return True
    return any(_runs_on(run, held, depth + 1) for held in source.attributes.values())


def stream(run: State, source: Any) -> Any:
    """``iter(source)``."""
    source = given_by(run, source)
    if isinstance(source, v.Loader):
        length = length_of(run, source)
        run.recorder.learn_units(source.rows)
        return v.Stream(iter(batches_of(source, length)), run.recorder.micro_batch, source, run.loops.turn)
    if isinstance(source, v.Stream):
        return source
    if isinstance(source, (list, tuple)) and not (source and isinstance(source[0], str)):
        return v.Stream(iter(source))
    items = iter([v.Data()] * assumed_length(run, source))
    return v.Stream(items, run.recorder.micro_batch, source, run.loops.turn)


def batches_from(run: State, loader: v.Loader) -> list[Any] | None:
    """The batches that a generator gives, where the source shows how many; None where it gives others too."""
    if loader.carry_out is None:
        return None
    outer, run.budget = run.budget, min(run.budget, run.spent + _FOR_A_GENERATOR)
    try:
        found = run.knowledge.unguessed(loader.carry_out)
    except OutOfBudget:
        return None
    finally:
        run.budget = outer
    return found if found and all(v.is_data(one) and not isinstance(one, list) for one in found) else None


def iterator_of(run: State, generator: v.Loader) -> v.Stream:
    """What ``next`` and ``islice`` draw from, which a generator is itself: each of its batches is given once."""
    if generator.drawn_from is None:
        given = batches_from(run, generator) if run.knowledge.has_remainders else None
        items = batches_of(generator, length_of(run, generator)) if given is None else given
        generator.drawn_from = v.Stream(iter(items), run.recorder.micro_batch, generator, run.loops.turn)
    return generator.drawn_from


def draw_from(run: State, source: Any) -> Any:
    """``next(source)``: a new micro-batch, or what another iterator gives for the one under way.

    Those of several iterators are terms of one objective, unless the loop counts them before it steps.
    """
    if isinstance(source, v.Loader) and source.generated and run.loops.catching:
        source = iterator_of(run, source)
    counted = run.recorder.has_run and run.knowledge.counts_to_a_step()
    if counted or not (isinstance(source, v.Stream) and run.recorder.joins(source)):
        run.draw()
    if isinstance(source, v.Stream):
        run.recorder.drawn_from.append(source)
    if isinstance(source, v.Stream) and run.loops.catching:
        for item in source.items:
            run.recorder.learn_units(v.rows_in(item))
            return v.drawn_with(item, run.recorder.micro_batch)
        raise Exhausted
    return v.Data(drawn=run.recorder.micro_batch)


def chunks(run: State, count: Any, data: Any = None) -> Any:
    """Data split into ``count`` micro-batches, or at each of a list of places.

    PyTorch makes pieces of one size, and of what is left, where it is known how many rows are split.
    """
    if isinstance(count, (list, tuple)):
        return v.Chunks(len(count) + 1) if id(count) not in run.iterated.grown else Symbol()
    count = bind_steps(run, count) if run.loops.depth else count
    known = isinstance(count, Num) and isinstance(count.value, int) and 0 < count.value <= v.LONGEST_LIST
    if known and isinstance(data, v.Data) and data.rows and not run.recorder.is_assumed(data.rows):
        return v.Chunks.of_rows(data.rows, -(-data.rows // count.value), count.origins)
    return v.Chunks(count.value, origins=count.origins) if known else Symbol()


def split(run: State, data: Any, size: Any, dimension: Any = None) -> Any:
    """A batch split into micro-batches of ``size`` rows, or of a list of sizes.

    There are as many as are assumed where the source does not show it. Along another dimension than the first, each
    has all rows.
    """
    if dimension is not None and not (isinstance(dimension, Num) and dimension.value == 0):
        return _split_along(run, data, size, dimension)
    if isinstance(size, (list, tuple)) and id(size) not in run.iterated.grown:
        rows = [one.value if isinstance(one, Num) and isinstance(one.value, int) else None for one in size]
        return [v.Data(count, is_part=True) for count in rows]
    whole = data.rows if isinstance(data, v.Data) else None
    if whole and isinstance(size, Num) and isinstance(size.value, int) and size.value > 0:
        if -(-whole // size.value) > v.LONGEST_LIST:
            return Symbol()
        if not _is_guessed(run, whole, size.value):
            return v.Chunks.of_rows(whole, size.value)
    may_be_windows = isinstance(data, v.Data) and data.is_counted_out
    splits = isinstance(data, (v.Data, Symbol))
    return v.Chunks(ASSUMED_STEPS, assumed=True, whole=may_be_windows) if splits else Symbol()


def _is_guessed(run: State, rows: int, size: int) -> bool:
    """Whether how often a size goes into a number of rows follows from an assumed number, which it does not divide."""
    return run.recorder.is_assumed(rows) and (rows % size > 0 or not run.recorder.is_assumed(size))


def _split_along(run: State, data: Any, size: Any, dimension: Any) -> Any:
    """A batch split into parts that are ``size`` long along a dimension that is not the first, with all rows each."""
    if not isinstance(data, (v.Data, Symbol)):
        return Symbol()
    rows, whole = (data.rows, data.is_counted_out) if isinstance(data, v.Data) else (None, False)
    if isinstance(size, (list, tuple)) and id(size) not in run.iterated.grown:
        return [v.Data(rows, is_part=True) for _ in size]
    place = dimension.value if isinstance(dimension, Num) else None
    extent_there = data.size_along(place) if isinstance(data, v.Data) and isinstance(place, int) else None
    if extent_there and isinstance(size, Num) and isinstance(size.value, int) and size.value > 0:
        count = -(-extent_there // size.value)
        return v.Chunks(count, rows) if count <= v.LONGEST_LIST else Symbol()
    return v.Chunks(ASSUMED_STEPS, rows, assumed=True, whole=whole)


def slice_of_data(
    run: State,
    data: Any,
    lower: Any,
    upper: Any,
    stride: Any = None,
    *,
    is_cut_anew: bool = False,
    is_of_turn_around: bool = False,
) -> v.Data:
    """Data sliced by position: other bounds than the last are another micro-batch, which holds its own rows alone.

    ``is_cut_anew`` says that each turn of a training loop has others, where they are not known, and
    ``is_of_turn_around`` that only those of the loop around the innermost one have.
    """
    bounds = [bound for bound in (lower, upper) if bound is not None]
    numbers: tuple[Any, ...] = tuple(bound.value for bound in bounds if isinstance(bound, Num))
    if is_cut_anew and not numbers:
        numbers = (f"of turn {run.loops.turn}",)
    part = _part_of(data, lower, upper, stride)
    if isinstance(data, v.Data) and data.is_part and run.loops.last_slice:
        # What this turn has cut already is cut to its size: x[i * rows:][:rows].
        run.recorder.learn_rows_of_part(part.rows)
    elif _is_cut_around(run, numbers) if is_of_turn_around else _is_cut_elsewhere(run, numbers):
        run.recorder.learn_rows_of_part(part.rows)
    return part


def item_of_data(run: State, data: v.Data, place: Num) -> v.Data:
    """One of the batches in a tensor of batches, which a loop counts through: each is another micro-batch."""
    if _is_cut_elsewhere(run, (place.value,)):
        run.recorder.learn_rows_of_part(data.shape[1] if data.shape else None)
    return data.item()


def chosen_at_random(run: State, given: list[Any]) -> Any:
    """``random.sample(memory, n)``: rows that a turn of a training loop chooses by chance, its next data.

    Of numbers it gives as many as it is asked for. ``NotImplemented`` for what gives one thing, or chooses of what is
    shown.
    """
    if not run.loops.depth or len(given) < 2:
        return NotImplemented
    source, count = given[0], given[1]
    match source:
        case Num() | v.Data() | ("range", *_):
            known = isinstance(count, Num) and isinstance(count.value, int)
            return v.Data(count.value if known else None, made=run.loops.turn)
        case list() if id(source) not in run.iterated.grown:
            return NotImplemented
        case list() | Symbol():
            return v.Got(turn=run.loops.turn)
    return NotImplemented


def _is_cut_elsewhere(run: State, places: tuple[Any, ...]) -> bool:
    """Whether a loop cuts data at other places than last: then this is its data, and the turn's first cut draws it.

    What it cuts out of a batch that the very turn was given, before any backward, is still of that batch.
    """
    if not run.loops.depth or not places or places == run.loops.last_slice:
        return False
    if not run.loops.last_slice and (run.recorder.has_run or not run.loops.has_given):
        run.draw()
    run.loops.last_slice = places
    return True


def _is_cut_around(run: State, places: tuple[Any, ...]) -> bool:
    """Whether what a loop cuts is the first of the turn that it is in: the micro-batch of that turn, then."""
    if not run.loops.depth or not places or run.loops.has_given_around:
        return False
    run.draw()
    run.loops.has_given_around = True
    return True


def _part_of(data: Any, lower: Any, upper: Any, stride: Any) -> v.Data:
    """The rows between two bounds, as many as the source shows: with a stride, not how many the last one leaves."""
    known = data if isinstance(data, v.Data) else v.Data()
    rows = known.rows
    places = [bound if bound is None else getattr(bound, "value", "") for bound in (lower, upper)]
    shown = rows is not None and stride is None and all(place is None or isinstance(place, int) for place in places)
    count = len(range(*slice(*places).indices(rows))) if shown and rows is not None else None
    # What is cut out at a place that was drawn by chance is as new as the place.
    made = v.turn_made((known, lower, upper))
    # Some of the numbers of rows are numbers of rows.
    return replace(known.changed(count or None), counted=None, is_part=True, drawn=None, made=made, holds=known.holds)


def assumed_length(run: State, source: Any) -> int:
    """How many micro-batches are assumed of what does not show it: with a remainder, but where there may be none.

    That a length was assumed is noted, for what messages may state.
    """
    run.recorder.assumed_length = True
    if isinstance(source, (v.Loader, v.Configured, v.Chunks)) and source.whole:
        return run.knowledge.unbounded_length()
    return run.knowledge.pass_length()


def length_of(run: State, loader: v.Loader) -> int:
    """How many micro-batches a pass over ``loader`` has: what the source shows, else the assumed number."""
    if loader.length is not None and run.knowledge.has_remainders:
        # A number that the source shows is as good as one that the loop counts by.
        run.recorder.counted.add(v.tag_of_length(loader))
        if loader.length <= _LONGEST_PASS:
            return loader.length
        # So many micro-batches show nothing that a few whole windows and the remainder do not.
        run.recorder.assumed_turns = True
        return run.knowledge.enough_of(loader.length)
    return assumed_length(run, loader)


def batches_of(loader: v.Loader, length: int) -> list[v.Data]:
    """The batches of a pass over ``loader``, of which there are ``length``."""
    full, last = (v.Data(rows, columns=loader.columns) for rows in (loader.rows, loader.last_rows))
    return [*[full] * (length - 1), last][:length]


def are_loaders(value: Any) -> TypeGuard[Sequence[v.Loader]]:
    """Whether a value is several loaders of known batches, and no generator, which gives its own only once."""
    several = isinstance(value, (list, tuple)) and len(value) > 0
    return several and all(isinstance(one, v.Loader) and not one.generated for one in value)


def one_after_another(loaders: Sequence[v.Loader]) -> v.Loader:
    """The batches of several loaders in one stream, whose length the source shows where it shows theirs."""
    lengths = [loader.length for loader in loaders]
    known = [length for length in lengths if length is not None]
    sizes = {size for loader in loaders for size in (loader.rows, loader.last_rows)}
    rows = sizes.pop() if len(sizes) == 1 else None
    length = sum(known) if len(known) == len(lengths) else None
    return v.Loader(length, rows, whole=all(loader.whole for loader in loaders), last_rows=rows)


def batch_at(run: State, loader: v.Loader, index: Any) -> v.Data:
    """A batch of a list of ``loader``'s, by its number: a new micro-batch."""
    run.draw()
    ends = (-1, length_of(run, loader) - 1) if loader.length is not None else ()
    batch = v.Data(loader.last_rows if isinstance(index, Num) and index.value in ends else loader.rows)
    run.recorder.learn_units(batch.rows)
    return batch


def length_of_value(run: State, value: Any) -> Any:
    """``len(value)``."""
    match value:
        case v.Loader() if run.knowledge.has_remainders and (given := batches_from(run, value)) is not None:
            run.recorder.counted.add(v.tag_of_length(value))
            return Num(len(given), _tags_of_length(value, assumed=False))
        case v.Loader():
            return Num(length_of(run, value), _tags_of_length(value, assumed=value.length is None))
        case v.Data():
            return rows_of(run, value)
        case v.Chunks() if value.assumed and not run.loops.passes:
            return Num(assumed_length(run, value), frozenset({v.LENGTH, v.ASSUMED}))
        case v.Chunks():
            return Num(value.count, frozenset({v.LENGTH}), frozenset({run.iterated.origin_of_length(value)}))
        case ("enumerate", counted, _):
            return length_of_value(run, counted)
        case ("zip", *sources) if sources:
            lengths = [length_of_value(run, source) for source in sources]
            return _shortest([length for length in lengths if isinstance(length, Num)], len(lengths))
        case ("range" | "zip" | "islice" | "shape" | "slice", *_):
            return Symbol()
        case v.Tensor(is_each=True):
            return v.HowMany()
        case list() if id(value) in run.iterated.grown:
            return Num(assumed_length(run, value), _tags_of_length(value, assumed=True))
        case list() if value and v.is_data(value):
            tags = frozenset({v.TOTAL} if is_list_of_batches(value) else ())
            return Num(len(value), tags, frozenset({run.iterated.origin_of_length(value)}))
        case dict() if not v.shows_its_keys(value):
            return Symbol()
        case list() | tuple() | dict() if _holds_losses(value):
            return Num(len(value), origins=frozenset({LOSSES}))
        case list() | tuple() | dict() | str():
            return Num(len(value))
        case v.Instance():
            method = value.cls.bound("__len__", value)
            if method is not None:
                # The length that is asked for here may be one that the program never asks for.
                with suppress(Raised):
                    return call_function(run, method, [], {})
        case Symbol() if value.name and DATASET.fits(value.name.rpartition(".")[2]):
            return v.Samples(source=value.name)
        case Symbol() if value.name:
            return Num(assumed_length(run, value), _tags_of_length(value, assumed=True))
    return Symbol()


def _holds_losses(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> bool:
    """Whether the items of a list, or the values of a dictionary, are losses."""
    items = value.values() if isinstance(value, dict) else value
    return bool(value) and all(isinstance(one, v.Tensor) and one.parts and not one.elementwise for one in items)


def batches_in(run: State, samples: v.Samples, size: Num) -> Num | None:
    """How many batches of ``size`` a data set has: a pass over its loader, where that is the size of a micro-batch."""
    if v.UNITS not in size.tags:
        return None
    each = Fraction(size.value) / run.recorder.units
    tags = size.tags - {v.UNITS} | {v.LENGTH, v.ASSUMED, v.tag_of_length(Symbol(samples.source))}
    return Num(run.knowledge.pass_length() / each, frozenset(tags)) if each else None


def is_list_of_batches(value: Any) -> bool:
    """Whether a value is a list that a loop over data may run over."""
    return isinstance(value, list) and len(value) > 1 and v.is_data(value)


def _tags_of_length(source: Any, *, assumed: bool) -> frozenset[str]:
    return frozenset({v.LENGTH, v.tag_of_length(source)} | ({v.ASSUMED} if assumed else set()))


def _shortest(lengths: list[Num], sources: int) -> Any:
    return min(lengths, key=lambda length: length.value) if len(lengths) == sources else Symbol()


def rows_of(run: State, data: v.Data) -> Num:
    """The leading dimension of a batch; if it is split into micro-batches, this is not a micro-batch's."""
    whole = {v.WHOLE} if data.rows is None and not data.is_part else set[str]()
    counted_out = {v.COUNTED_OUT} if data.is_counted_out else set[str]()
    return Num(data.rows or run.recorder.units, frozenset({v.UNITS} | whole | counted_out))


def extent(data: v.Data, dimension: object) -> Num | v.Extent:
    """How long data is along a dimension that is not the leading one."""
    known = data.size_along(dimension) if isinstance(dimension, int) else None
    return v.Extent() if known is None else Num(known, frozenset({v.UNITS}))


def is_shown(number: Any) -> bool:
    """Whether a number is what the source shows, and was made of no number that is assumed."""
    return isinstance(number, Num) and number.tags.isdisjoint({v.WHOLE, v.ASSUMED})


def rows_of_dataset(run: State, dataset: Any) -> int | None:
    """How many rows a data set has, where the source shows it."""
    match dataset:
        case v.Data():
            return dataset.rows
        case ("range", *bounds) if bounds and all(map(is_shown, bounds)):
            return len(range(*(int(bound.value) for bound in bounds)))
        case list() if len(dataset) > 1 and id(dataset) not in run.iterated.grown:
            return len(dataset)
        case v.Instance():
            length = length_of_value(run, dataset)
            # The rows of data of which none are known are those of a micro-batch.
            known = isinstance(length, Num) and not length.tags & {v.LENGTH, v.WHOLE}
            return int(length.value) if known else None
    return None


def new_loader(run: State, dataset: Any, size: Any, options: dict[str, Any]) -> v.Loader | v.Stream:
    """``DataLoader(dataset, batch_size=size)``: without an end where the data set has none."""
    gives = dataset.cls.methods.get("__iter__") if isinstance(dataset, v.Instance) else None
    if gives is not None and run.reach.gives_endlessly(gives):
        return v.Stream.endless()
    if isinstance(size, Symbol) and size.name:
        bind(run, size.name, Num(run.recorder.units, frozenset({v.UNITS})))
    if isinstance(size, Num) and not names_steps(size.origins):
        run.recorder.sizes |= size.origins
    if "batch_sampler" in options:
        # How many batches there are is for it to say.
        if isinstance(options["batch_sampler"], v.Loader):
            return replace(options["batch_sampler"])
        return v.Loader(rows_of_dataset(run, options["batch_sampler"]))
    sampler = options.get("sampler")
    rows = rows_of_dataset(run, dataset if sampler is None else sampler)
    if size is None and rows is not None:
        # Not batched: what the data set gives are the batches.
        return v.Loader(rows)
    if not isinstance(size, Num) or not isinstance(size.value, int) or size.value < 1:
        return v.Loader()
    known = v.UNITS not in size.tags
    columns = dataset.columns if isinstance(dataset, v.Data) else ()
    if rows is None or not known:
        name = dataset.name if isinstance(dataset, Symbol) else ""
        may_be_whole = _is_counted_out(run, sampler or dataset)
        return v.Loader(rows=size.value, whole=may_be_whole, dataset=name, columns=columns)
    whole, left = divmod(rows, size.value)
    ends_short = left > 0 and options.get("drop_last") is not True
    return v.Loader(whole + ends_short, size.value, last_rows=left if ends_short else size.value, columns=columns)


def _is_counted_out(run: State, dataset: Any) -> bool:
    """Whether a data set is some of the rows of data that the source makes, as many as it was made for to have.

    Whoever makes both says how many batches there are, though not in a number: they may be whole windows.
    """
    if isinstance(dataset, v.Data):
        return dataset.is_counted_out
    length = length_of_value(run, dataset) if isinstance(dataset, v.Instance) else None
    return isinstance(length, Num) and v.COUNTED_OUT in length.tags
