"""Functions of Python and of PyTorch that have a meaning for batches, losses and counters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import Factor, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.arithmetic import binary
from gradcheck_accum.lint.chosen import counted, is_left_out, is_own_count, selected
from gradcheck_accum.lint.data import chunks, draw_from, length_of_value, new_loader, rows_of_dataset, split, stream
from gradcheck_accum.lint.functions import call_function
from gradcheck_accum.lint.iteration import items_of
from gradcheck_accum.lint.knowledge import bind_steps
from gradcheck_accum.lint.metrics import mean
from gradcheck_accum.lint.objects import attribute, sources_of
from gradcheck_accum.lint.syntax import Operator, text_of
from gradcheck_accum.lint.values import Num, Symbol, Tensor

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter


def _len(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return length_of_value(run, args[0]) if args else Symbol()


def _range(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("range", *args)


def _enumerate(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    start = args[1] if len(args) > 1 else kwargs.get("start", Num(0))
    return ("enumerate", args[0], start) if args else Symbol()


def _slice(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    match args:
        case [upper]:
            return ("slice", None, upper)
        case [lower, upper]:
            return ("slice", lower, upper)
    return Symbol()


def _zip(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("zip", *args)


def _islice(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("islice", *args) if args else Symbol()


def _iter(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return stream(run, args[0]) if args else Symbol()


def _next(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return draw_from(run, args[0]) if args else Symbol()


def _first(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("iterable", Symbol())


def _list(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return []
    if isinstance(args[0], (v.Loader, v.Parameters, v.Chunks)):
        return args[0]
    match args[0]:
        case ("islice", v.Stream() as drawn, stop):
            count = bind_steps(run, stop) if run.loop_depth else stop
            known = isinstance(count, Num) and isinstance(count.value, int) and 0 <= count.value <= v.LONGEST_LIST
            return list(itertools.islice(drawn.items, count.value)) if known else args[0]
    items = items_of(run, args[0], limit=v.LONGEST_LIST)
    return list(items) if items is not None else args[0]


def _number(function: Callable[..., Any]) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    def apply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        counts = [value for value in args if is_own_count(run, value)]
        if len(counts) == 1 and all(isinstance(value, Num) for value in args if value is not counts[0]):
            return counts[0]  # kept from being nothing, say
        values = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if values and all(isinstance(value, Num) for value in values):
            first, *rest = values
            try:
                return v.bounded(first.derive(function(*(value.value for value in values)), *rest))
            except (ValueError, OverflowError, TypeError):
                return Symbol()
        fixed = not run.loop_depth or all(v.is_setting(value) or value == Num(1) for value in values)
        if fixed and all(v.is_settled(value) for value in values):
            names = (value.name if isinstance(value, Symbol) else str(value.value) for value in values)
            return Symbol(f"{function.__name__}({', '.join(names)})")
        return Symbol()

    return apply


def _convert(function: Callable[[Any], Any]) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    def apply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], Num):
            value = function(args[0].value)
            return replace(args[0], value=value)
        if args and is_own_count(run, args[0]):
            return args[0]
        # int(args.k) is still the same unknown number; float(loss) is a metric.
        return args[0] if args and isinstance(args[0], Symbol) else Symbol()

    return apply


def _sum(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    if isinstance(items, (list, tuple)) and items:
        total = items[0]
        for item in items[1:]:
            total = binary(run, Operator.ADD, total, item)
        return total
    if isinstance(items, Tensor):
        return items.reduced(Reduction.SUM) if items.elementwise else items
    return items if isinstance(items, v.Scaled) else Symbol()


def _dict(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    known = all(isinstance(given, dict) for given in args) and "**" not in kwargs
    return {name: value for given in (*args, kwargs) for name, value in given.items()} if known else Symbol()


def _getattr(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) >= 2 and isinstance(args[1], str):
        value = run.resolve(attribute(run, args[0], args[1]))
        by_default = args[2] if len(args) > 2 else None
        if type(value) is Symbol and value.default is None and isinstance(by_default, str):
            return replace(value, default=by_default)
        return value
    return Symbol()


def _isinstance(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    match args:
        case [model, v.Reference() as cls] if cls.tail == "DistributedDataParallel":
            return True if run.sync.is_wrapped(sources_of(run, model) or ()) else Symbol()
    return Symbol()


def _ignored(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Symbol()


def _divide(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return binary(run, Operator.DIV, args[0], args[1]) if len(args) > 1 else Symbol()


def _multiply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return binary(run, Operator.MULT, args[0], args[1]) if len(args) > 1 else Symbol()


def _reduce(reduction: Reduction) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    def apply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        value = args[0] if args else Symbol()
        if isinstance(value, list) and reduction is Reduction.MEAN and any(isinstance(i, v.Figure) for i in value):
            return mean(run, value)
        if isinstance(value, v.Data) and reduction is Reduction.SUM and len(args) + len(kwargs) == 1:
            return counted(run, value)
        if not isinstance(value, Tensor):
            return value
        return value.reduced(reduction)

    return apply


def _along(args: list[Any], kwargs: dict[str, Any]) -> int | None:
    """The dimension that a call joins tensors along, the first one where it does not say."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", Num(0))
    return dim.value if isinstance(dim, Num) and isinstance(dim.value, int) else None


def _cat(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    rows = _rows_of_each(items)
    if rows is None:
        return NotImplemented
    along = _along(args, kwargs)
    return v.Data(sum(rows) if along == 0 else rows[0] if along is not None else None)


def _rows_of_each(items: Any) -> list[int] | None:
    """How many rows each of several tensors of data has, where the source shows all of them."""
    if not isinstance(items, (list, tuple)) or not items:
        return None
    rows = [item.rows for item in items if isinstance(item, v.Data) and item.rows is not None]
    return rows if len(rows) == len(items) else None


def _stack(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    rows = _rows_of_each(items)
    if rows is not None and not run.loop_depth:
        along = _along(args, kwargs)
        return v.Data(len(rows) if along == 0 else rows[0] if along is not None else None)
    if isinstance(items, (list, tuple)) and items and all(isinstance(item, Tensor) for item in items):
        joined = tuple(part for item in items for part in item.parts)
        # How the stacked losses are reduced later decides their weights, so they are not known.
        return Tensor(joined, v.models_in(items)).scaled(Factor(None))
    return v.Data()


def _clamp(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args and isinstance(args[0], v.Data) else NotImplemented


def _masked_select(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return selected(args[0]) if args and isinstance(args[0], (Tensor, v.Data)) else NotImplemented


def _padded(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Data(varies=True)


def _where(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    data = next((value for value in args[1:] if isinstance(value, v.Data)), None)
    return replace(data.changed(data.rows), ignored=True) if data and any(map(is_left_out, args)) else NotImplemented


def _chunk(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return chunks(run, args[1]) if len(args) > 1 else Symbol()


def _split(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return split(run, args[0], args[1]) if len(args) > 1 else Symbol()


def _data_loader(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    dataset = args[0] if args else kwargs.get("dataset")
    size = kwargs.get("batch_size", args[1] if len(args) > 1 else Num(1))
    return new_loader(run, dataset, size, kwargs)


def _tensor_dataset(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    known = [one for one in args if isinstance(one, v.Data) and one.rows is not None]
    return known[0] if known else args[0] if args and isinstance(args[0], v.Data) else Symbol()


def _of_all_rows(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A sampler that draws every row of a data set once, in any order: as many as there are."""
    return args[0] if len(args) == 1 and not kwargs.keys() - {"generator"} else Symbol()


def _subset(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``Subset(dataset, indices)``: as many rows as indices."""
    indices = args[1] if len(args) > 1 else kwargs.get("indices")
    if isinstance(indices, v.Data) and indices.rows is not None:
        return v.Data(indices.rows)
    items = items_of(run, indices, limit=v.LONGEST_LIST)
    shown = not (isinstance(indices, list) and id(indices) in run.grown)
    if isinstance(indices, tuple) and indices[:1] == ("range",):
        shown = all(map(_is_shown, indices[1:]))
    return v.Data(len(items)) if items and shown else v.Data()


def _is_shown(number: Any) -> bool:
    """Whether a number is what the source shows, and was made of no number that is assumed."""
    return isinstance(number, Num) and number.tags.isdisjoint({v.WHOLE, v.ASSUMED})


def _random_split(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``random_split(dataset, lengths)``: the rows of each part, given as numbers or as shares."""
    lengths = args[1] if len(args) > 1 else kwargs.get("lengths")
    if not isinstance(lengths, (list, tuple)) or not lengths:
        return Symbol()
    rows = rows_of_dataset(run, args[0] if args else kwargs.get("dataset"))
    numbers = [length.value if _is_shown(length) else None for length in lengths]
    if rows is not None and all(isinstance(n, (float, Fraction)) for n in numbers):
        parts = [math.floor(rows * float(share)) for share in numbers if share is not None]
        for place in range(rows - sum(parts)):  # what is left over goes round, as PyTorch has it
            parts[place % len(parts)] += 1
        return tuple(v.Data(part or None) for part in parts)
    return tuple(v.Data(number if isinstance(number, int) and number > 0 else None) for number in numbers)


def _chain(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.united(args) if v.all_parameters(args) else Symbol()


def _cycle(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Stream.endless() if args else Symbol()


def _partial(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Partial(args[0], args[1:], kwargs) if args else Symbol()


def _unfollowed(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Symbol()


def _filter(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not isinstance(args[1], v.Parameters):
        return Symbol()
    test, parameters = args
    if isinstance(test, v.Function) and isinstance(test.node, syntax.Lambda):
        holds = call_function(run, test, [parameters], {})
        return parameters if isinstance(holds, bool) else parameters.chosen(text_of(test.node.body))
    return parameters.chosen("chosen elsewhere")


def _divmod(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2:
        return Symbol()
    return binary(run, Operator.FLOORDIV, args[0], args[1]), binary(run, Operator.MOD, args[0], args[1])


def _namespace(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Settings that are read as attributes: given by name, or in a dictionary."""
    if not args and kwargs.keys() == {"**"}:
        return kwargs["**"]  # the very settings that it is made of
    attributes = _dict(run, args, kwargs)
    return v.Instance(v.Class(_NAMESPACE, v.Scope()), attributes) if isinstance(attributes, dict) else Symbol()


_NAMESPACE = syntax.ClassDef(syntax.NOWHERE, None, "SimpleNamespace", (), (), (), (), ())


BUILTINS: dict[str, Callable[[Interpreter, list[Any], dict[str, Any]], Any]] = {
    "len": _len,
    "range": _range,
    "trange": _range,
    "enumerate": _enumerate,
    "slice": _slice,
    "zip": _zip,
    "divmod": _divmod,
    "filter": _filter,
    "iter": _iter,
    "next": _next,
    "tqdm": _first,
    "reversed": _first,
    "sorted": _first,
    "track": _first,
    "list": _list,
    "dict": _dict,
    "tuple": _list,
    "sum": _sum,
    "max": _number(max),
    "min": _number(min),
    "abs": _number(abs),
    "round": _convert(round),
    "int": _convert(int),
    "float": _convert(lambda value: value),
    "getattr": _getattr,
    "print": _ignored,
    "isinstance": _isinstance,
    "hasattr": _ignored,
    "bool": _first,
    "vars": _first,
}


LIBRARY: dict[str, Callable[[Interpreter, list[Any], dict[str, Any]], Any]] = {
    "partial": _partial,
    **dict.fromkeys(("SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "Munch"), _namespace),
    "div": _divide,
    "true_divide": _divide,
    "mul": _multiply,
    "mean": _reduce(Reduction.MEAN),
    "sum": _reduce(Reduction.SUM),
    "stack": _stack,
    "cat": _cat,
    "concat": _cat,
    **dict.fromkeys(("RandomSampler", "SequentialSampler"), _of_all_rows),
    "Subset": _subset,
    "random_split": _random_split,
    "clamp": _clamp,
    "masked_select": _masked_select,
    "pad_sequence": _padded,
    "where": _where,
    "chunk": _chunk,
    "split": _split,
    "DataLoader": _data_loader,
    "TensorDataset": _tensor_dataset,
    "chain": _chain,
    "cycle": _cycle,
    "islice": _islice,
    "tqdm": _first,
    "trange": _range,
    "track": _first,
    "GradScaler": _unfollowed,
    "autocast": _unfollowed,
    "ceil": _convert(lambda value: -int(-value // 1)),
    "floor": _convert(lambda value: int(value // 1)),
}
