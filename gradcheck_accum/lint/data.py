"""Data: loaders and their lengths, batches and the pieces that they are cut into."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.control import Exhausted
from gradcheck_accum.lint.functions import call_function
from gradcheck_accum.lint.knowledge import ASSUMED_STEPS, bind, bind_steps
from gradcheck_accum.lint.values import Num, Symbol

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

_DATASET_NAME = re.compile(r"dataset|data_set|_ds$|^ds$|samples|examples", re.IGNORECASE)
_LONGEST_PASS = 5_000


def stream(run: Interpreter, source: Any) -> Any:
    """``iter(source)``."""
    if isinstance(source, v.Loader):
        length = length_of(run, source)
        run.recorder.learn_units(source.rows)
        return v.Stream(iter(batches_of(source, length)))
    if isinstance(source, v.Stream):
        return source
    if isinstance(source, (list, tuple)) and not (source and isinstance(source[0], str)):
        return v.Stream(iter(source))
    return v.Stream(iter([v.Data()] * assumed_length(run, source)))


def draw_from(run: Interpreter, source: Any) -> Any:
    """``next(source)``: a new micro-batch."""
    run.draw()
    if isinstance(source, v.Stream) and run.stops:
        for item in source.items:
            run.recorder.learn_units(v.rows_in(item))
            return item
        raise Exhausted
    return v.Data()


def chunks(run: Interpreter, count: Any) -> Any:
    """A batch split into ``count`` micro-batches."""
    count = bind_steps(run, count) if run.loop_depth else count
    known = isinstance(count, Num) and isinstance(count.value, int) and 0 < count.value <= v.LONGEST_LIST
    return v.Chunks(count.value) if known else Symbol()


def split(run: Interpreter, data: Any, size: Any) -> Any:
    """A batch split into micro-batches of ``size`` rows: as many as are assumed where the source does not show."""
    if isinstance(data, v.Data) and data.rows and isinstance(size, Num) and isinstance(size.value, int) and size.value:
        count, left = -(-data.rows // size.value), data.rows % size.value
        return v.Chunks(count, None if left else size.value) if 0 < count <= v.LONGEST_LIST else Symbol()
    return v.Chunks(ASSUMED_STEPS, assumed=True) if isinstance(data, (v.Data, Symbol)) else Symbol()


def slice_of_data(run: Interpreter, data: Any, lower: Any, upper: Any) -> v.Data:
    """Data sliced by position: other bounds than the last are another micro-batch, which holds its own rows alone."""
    bounds = [bound for bound in (lower, upper) if bound is not None]
    numbers = tuple(bound.value for bound in bounds if isinstance(bound, Num))
    part = _part_of(data, lower, upper)
    if run.loop_depth and numbers and numbers != run.last_slice:
        if not run.last_slice:
            run.draw()
        run.last_slice = numbers
        run.recorder.learn_rows_of_part(part.rows)
    return part


def _part_of(data: Any, lower: Any, upper: Any) -> v.Data:
    """The rows between two bounds, as many as the source shows."""
    known = data if isinstance(data, v.Data) else v.Data()
    rows = known.rows
    places = [bound if bound is None else getattr(bound, "value", "") for bound in (lower, upper)]
    shown = rows is not None and all(place is None or isinstance(place, int) for place in places)
    count = len(range(*slice(*places).indices(rows))) if shown and rows is not None else None
    return replace(known.changed(count or None), counted=None, is_part=True)


def assumed_length(run: Interpreter, source: Any) -> int:
    """How many micro-batches are assumed of what does not show it: with a remainder, but where there may be none.

    That a length was assumed is noted, for what messages may state.
    """
    run.recorder.assumed_length = True
    if isinstance(source, (v.Loader, v.Configured)) and source.whole:
        return run.knowledge.unbounded_length()
    return run.knowledge.pass_length()


def length_of(run: Interpreter, loader: v.Loader) -> int:
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
    return [*[v.Data(loader.rows)] * (length - 1), v.Data(loader.last_rows)][:length]


def batch_at(run: Interpreter, loader: v.Loader, index: Any) -> v.Data:
    """A batch of a list of ``loader``'s, by its number: a new micro-batch."""
    run.draw()
    ends = (-1, length_of(run, loader) - 1) if loader.length is not None else ()
    batch = v.Data(loader.last_rows if isinstance(index, Num) and index.value in ends else loader.rows)
    run.recorder.learn_units(batch.rows)
    return batch


def length_of_value(run: Interpreter, value: Any) -> Any:
    """``len(value)``."""
    match value:
        case v.Loader():
            return Num(length_of(run, value), _tags_of_length(value, assumed=value.length is None))
        case v.Data():
            return rows_of(run, value)
        case v.Chunks():
            return Num(value.count, frozenset({v.LENGTH}))
        case ("enumerate", counted, _):
            return length_of_value(run, counted)
        case ("zip", *sources) if sources:
            lengths = [length_of_value(run, source) for source in sources]
            return _shortest([length for length in lengths if isinstance(length, Num)], len(lengths))
        case ("range" | "zip" | "islice" | "shape" | "slice", *_):
            return Symbol()
        case list() if id(value) in run.grown:
            return Num(assumed_length(run, value), _tags_of_length(value, assumed=True))
        case list() if is_list_of_batches(value):
            return Num(len(value), frozenset({v.TOTAL}))
        case list() | tuple() | dict() | str():
            return Num(len(value))
        case v.Instance():
            method = value.cls.bound("__len__", value)
            if method is not None:
                return call_function(run, method, [], {})
        case Symbol() if value.name and not _DATASET_NAME.search(value.name.rpartition(".")[2]):
            return Num(assumed_length(run, value), _tags_of_length(value, assumed=True))
    return Symbol()


def is_list_of_batches(value: Any) -> bool:
    """Whether a value is a list that a loop over data may run over."""
    return isinstance(value, list) and len(value) > 1 and v.is_data(value)


def _tags_of_length(source: Any, *, assumed: bool) -> frozenset[str]:
    return frozenset({v.LENGTH, v.tag_of_length(source)} | ({v.ASSUMED} if assumed else set()))


def _shortest(lengths: list[Num], sources: int) -> Any:
    return min(lengths, key=lambda length: length.value) if len(lengths) == sources else Symbol()


def rows_of(run: Interpreter, data: v.Data) -> Num:
    """The leading dimension of a batch; that of one that is cut into micro-batches is no micro-batch's."""
    whole = {v.WHOLE} if data.rows is None and not data.is_part else set[str]()
    return Num(data.rows or run.recorder.units, frozenset({v.UNITS} | whole))


def rows_of_dataset(run: Interpreter, dataset: Any) -> int | None:
    """How many rows a data set has, where the source shows it."""
    match dataset:
        case v.Data():
            return dataset.rows
        case list() if len(dataset) > 1 and id(dataset) not in run.grown:
            return len(dataset)
        case v.Instance():
            length = length_of_value(run, dataset)
            return int(length.value) if isinstance(length, Num) and v.LENGTH not in length.tags else None
    return None


def new_loader(run: Interpreter, dataset: Any, size: Any, options: dict[str, Any]) -> v.Loader:
    """``DataLoader(dataset, batch_size=size)``."""
    if isinstance(size, Symbol) and size.name:
        bind(run, size.name, Num(run.recorder.units, frozenset({v.UNITS})))
    rows = rows_of_dataset(run, options.get("sampler", dataset))
    if not isinstance(size, Num) or not isinstance(size.value, int) or size.value < 1:
        return v.Loader()
    known = v.UNITS not in size.tags
    if rows is None or not known or "batch_sampler" in options:
        return v.Loader(rows=size.value)
    whole, left = divmod(rows, size.value)
    ends_short = left > 0 and options.get("drop_last") is not True
    return v.Loader(whole + ends_short, size.value, last_rows=left if ends_short else size.value)
