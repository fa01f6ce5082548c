"""Functions of Python and of PyTorch that have a meaning for batches, losses and counters."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradcheck_accum.ledger.events import Factor, Reduction
from gradcheck_accum.ledger.stated_names import WHAT_REMAINS
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.interpreter.iteration import items_of
from gradcheck_accum.lint.interpreter.objects import attribute, value_of_field
from gradcheck_accum.lint.interpreter.samples import (
    by_weights,
    drawn_by_loader,
    of_all_rows,
    of_given_rows,
    random_split,
    subset,
)
from gradcheck_accum.lint.program.torch_names import (
    CUTS,
    CUTS_ALIKE,
    DIVIDES,
    JOINS,
    KEEPS_NUMBERS,
    METERS,
    MULTIPLIES,
    READS,
    SAMPLES_ALL,
    SUMS_PRODUCTS,
)
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import bind_steps
from gradcheck_accum.lint.state.control import Exhausted
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol, Tensor
from gradcheck_accum.lint.state.values.tensors import MOST_PARTS
from gradcheck_accum.lint.syntax import Operator, text_of
from gradcheck_accum.lint.torch_calls.arithmetic import binary, dot, reduced
from gradcheck_accum.lint.torch_calls.data import (
    are_loaders,
    chunks,
    draw_from,
    iterator_of,
    length_of_value,
    new_loader,
    one_after_another,
    split,
    stream,
)
from gradcheck_accum.lint.torch_calls.masks import chooses, counted, is_left_out, is_own_count, selected
from gradcheck_accum.lint.torch_calls.meters import new_meter
from gradcheck_accum.lint.torch_calls.metrics import mean
from gradcheck_accum.lint.torch_calls.models import sources_of


def _len(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return length_of_value(run, args[0]) if args else Symbol()


def _range(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("range", *args)


def _enumerate(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    start = args[1] if len(args) > 1 else kwargs.get("start", Num(0))
    return ("enumerate", args[0], start) if args else Symbol()


def _slice(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    match args:
        case [upper]:
            return ("slice", None, upper)
        case [lower, upper]:
            return ("slice", lower, upper)
    return Symbol()


def _zip(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and isinstance(args[0], v.Got):
        return args[0]  # the columns of the rows that were got
    return ("zip", *args)


def _islice(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("islice", *args) if args else Symbol()


def _iter(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return stream(run, args[0]) if args else Symbol()


def _next(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and isinstance(args[0], v.Parameters):
        return args[0]  # one of them stands for all, and no data are drawn
    if len(args) < 2:
        return draw_from(run, args[0]) if args else Symbol()
    run.loops.catching += 1
    try:
        return draw_from(run, args[0])
    except Exhausted:
        return args[1]
    finally:
        run.loops.catching -= 1


def _first(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("iterable", Symbol())


def _list(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return []
    if isinstance(args[0], (v.Loader, v.Parameters, v.Chunks)):
        return args[0]
    match args[0]:
        case ("islice", v.Stream() | v.Loader(generated=True) as source, stop):
            drawn = iterator_of(run, source) if isinstance(source, v.Loader) else source
            count = bind_steps(run, stop) if run.loops.depth else stop
            known = isinstance(count, Num) and isinstance(count.value, int) and 0 <= count.value <= v.LONGEST_LIST
            return list(itertools.islice(drawn.items, count.value)) if known else args[0]
    items = items_of(run, args[0], limit=v.LONGEST_LIST)
    return list(items) if items is not None else args[0]


def _number(function: Callable[..., Any]) -> Callable[[State, list[Any], dict[str, Any]], Any]:
    def apply(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
        counts = [value for value in args if is_own_count(run, value)]
        if len(counts) == 1 and all(isinstance(value, Num) for value in args if value is not counts[0]):
            return counts[0]  # kept from being nothing, say
        bounded_length = _length_that_is_bounded(args) if function is min else None
        if bounded_length is not None:
            return bounded_length
        values = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if values and all(isinstance(value, Num) for value in values):
            first, *rest = values
            try:
                number = first.derive(function(*(value.value for value in values)), *rest)
            except (ValueError, OverflowError, TypeError):
                return Symbol()
            if function is min and v.REMAINS in number.tags:
                number = replace(number, origins=number.origins | {WHAT_REMAINS})
            return v.bounded(number)
        fixed = not run.loops.depth or all(value == Num(1) or v.is_fixed(value) for value in values)
        if fixed and all(v.is_settled(value) for value in values):
            names = (value.name if isinstance(value, Symbol) else str(value.value) for value in values)
            return Symbol(f"{function.__name__}({', '.join(names)})")
        return Symbol()

    return apply


def _length_that_is_bounded(args: list[Any]) -> Num | None:
    """The length of a pass among bounds that are unknown, and assumed to be larger: a whole pass is as good as a part.

    What the loop compares with it is then the end of the pass, however that comes.
    """
    lengths = [value for value in args if isinstance(value, Num) and v.LENGTH in value.tags]
    others = [value for value in args if not (isinstance(value, Num) and v.LENGTH in value.tags)]
    return lengths[0] if len(lengths) == 1 and others and all(map(v.is_named, others)) else None


def _convert(function: Callable[[Any], Any]) -> Callable[[State, list[Any], dict[str, Any]], Any]:
    def apply(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], Num):
            value = function(args[0].value)
            return replace(args[0], value=value)
        if args and is_own_count(run, args[0]):
            return args[0]
        if args and isinstance(args[0], v.Word):
            return Symbol()  # a number that a text says
        # int(args.k) is still the same unknown number; float(loss) is a metric.
        return args[0] if args and isinstance(args[0], Symbol) else Symbol()

    return apply


def _float(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and isinstance(args[0], str) and args[0].lower().lstrip("+") in ("inf", "infinity"):
        return v.INFINITE
    return _convert(lambda value: value)(run, args, kwargs)


def _sum(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    if isinstance(items, (list, tuple)) and items:
        total = items[0]
        for item in items[1:]:
            total = binary(run, Operator.ADD, total, item)
        return total
    if isinstance(items, v.Parameters):
        return items
    if isinstance(items, Tensor):
        return items.reduced(Reduction.SUM) if items.elementwise else replace(items, is_each=False)
    return items if isinstance(items, v.Scaled) else Symbol()


def _deque(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    # One that holds the last few is no list of all.
    return _list(run, args, kwargs) if len(args) < 2 and not kwargs else NotImplemented


def _dict(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs and isinstance(args[0], Symbol):
        return args[0]  # what it is made of has the same entries
    match args:
        case [("zip", keys, (list() | tuple()) as values)] if not kwargs and _are_keys(keys):
            return dict(zip(keys, values, strict=False))
    known = all(isinstance(given, dict) for given in args) and "**" not in kwargs
    return {name: value for given in (*args, kwargs) for name, value in given.items()} if known else Symbol()


def _are_keys(value: Any) -> bool:
    """Whether a value is a list of names, or a dictionary that is gone through by its own."""
    return isinstance(value, (list, tuple, dict)) and all(isinstance(key, str) for key in value)


def _defaultdict(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    match args:
        case [Symbol(name="list")]:
            return v.Defaulting(list)
        case [Symbol(name="float" | "int")]:
            return v.Defaulting(lambda: Num(0))
    return Symbol()


def _getattr(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) >= 2 and isinstance(args[1], str):
        value = v.known_as(run.resolve(attribute(run, args[0], args[1])), args[1])
        by_default = args[2] if len(args) > 2 else None
        if type(value) is Symbol and value.default is None and isinstance(by_default, str):
            return replace(value, default=by_default)
        return value
    return Symbol()


_LISTS = frozenset({"Iterable", "Sequence", "list"})


def _isinstance(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Whether a value is of a class. What a call computed, of unknown kind, is the tensor that it may be."""
    match args:
        case [Tensor(), v.Reference() as cls] if cls.tail == "Tensor":
            return True
        case [model, v.Reference() as cls] if cls.tail == "DistributedDataParallel":
            return True if run.sync.is_wrapped(sources_of(model) or ()) else Symbol()
        case [list() | v.Optimizer() as value, v.Reference() | Symbol() as cls]:
            if (cls.tail if isinstance(cls, v.Reference) else cls.name) in _LISTS:
                return isinstance(value, list)
    return Symbol()


def _hasattr(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Whether a value is a tensor, asked by a method that only tensors have: ``hasattr(loss, "item")``."""
    match args:
        case [Tensor() | Num() | v.Figure() as value, str(name)] if name in READS | KEEPS_NUMBERS:
            return isinstance(value, Tensor)
    return Symbol()


def _ignored(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Symbol()


def _divide(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _of_two(run, Operator.DIV, args, kwargs)


def _multiply(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _of_two(run, Operator.MULT, args, kwargs)


def _of_two(run: State, operator: Operator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch's makes of ``input`` and ``other``."""
    operands = [*args, *(kwargs[name] for name in ("input", "other") if name in kwargs)]
    return binary(run, operator, operands[0], operands[1]) if len(operands) > 1 else Symbol()


def _dot(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``torch.dot(a, b)``: the sum of the products of their elements."""
    return (dot(run, *args) if len(args) == 2 else None) or NotImplemented


def _reduce(reduction: Reduction) -> Callable[[State, list[Any], dict[str, Any]], Any]:
    def apply(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
        value = args[0] if args else Symbol()
        if isinstance(value, list) and reduction is Reduction.MEAN and any(isinstance(i, v.Figure) for i in value):
            return mean(run, value)
        if isinstance(value, v.Data) and reduction is Reduction.SUM and len(args) + len(kwargs) == 1:
            return counted(run, value)
        if not isinstance(value, Tensor):
            return value
        return reduced(value, reduction)

    return apply


def _along(args: list[Any], kwargs: dict[str, Any]) -> int | None:
    """The dimension that a call joins tensors along, the first one where it does not say."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim", Num(0))
    return dim.value if isinstance(dim, Num) and isinstance(dim.value, int) else None


def _cat(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
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


def _stack(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    if isinstance(items, Tensor) and items.is_each:
        return items
    rows = _rows_of_each(items)
    if rows is not None and not run.loops.depth:
        along = _along(args, kwargs)
        return v.Data(len(rows) if along == 0 else rows[0] if along is not None else None)
    if isinstance(items, v.Parameters):
        return items
    if isinstance(items, (list, tuple)) and v.all_parameters(items):
        return v.united(items)
    if isinstance(items, (list, tuple)) and items and all(isinstance(item, Tensor) for item in items):
        if all(isinstance(part.flow, v.Detached) for item in items for part in item.parts):
            return list(items)  # numbers that were read from losses
        joined = tuple(part for item in items for part in item.parts)
        # How the stacked losses are reduced later decides their weights, so they are not known.
        parts = joined if len(joined) <= MOST_PARTS else joined[:1]
        return Tensor(parts, v.models_in(items)).scaled(Factor(None))
    return v.Data(made=v.turn_made(items) if isinstance(items, (list, tuple)) else None)


def _clamp(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args and isinstance(args[0], v.Data) else NotImplemented


def _masked_select(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return selected(args[0]) if args and isinstance(args[0], (Tensor, v.Data)) else NotImplemented


def _padded(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Data(varies=True, made=v.turn_made(args[0]) if args and isinstance(args[0], (list, tuple)) else None)


def _where(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and chooses(args[0]):
        return (v.Data(holds=v.Holds.PLACES, varies=True),)
    data = next((value for value in args[1:] if isinstance(value, v.Data)), None)
    return replace(data.changed(data.rows), ignored=True) if data and any(map(is_left_out, args)) else NotImplemented


def _cut(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return chunks(run, args[1]) if len(args) > 1 else Symbol()


def _chunk(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return chunks(run, args[1], args[0]) if len(args) == 2 and not kwargs else _cut(run, args, kwargs)


def _split(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    dimension = args[2] if len(args) > 2 else kwargs.get("dim")
    return split(run, args[0], args[1], dimension) if len(args) > 1 else Symbol()


def _data_loader(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    dataset = args[0] if args else kwargs.get("dataset")
    size = kwargs.get("batch_size", args[1] if len(args) > 1 else Num(1))
    return new_loader(run, drawn_by_loader(run, dataset, kwargs), size, kwargs)


def _tensor_dataset(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    known = [one for one in args if isinstance(one, v.Data) and one.rows is not None]
    shown = known[0] if known else args[0] if args and isinstance(args[0], v.Data) else None
    if shown is None:
        return Symbol()
    # What a batch takes of an order is no order.
    held = [one.holds if isinstance(one, v.Data) else v.Holds.VALUES for one in args]
    return replace(shown, columns=tuple(v.Holds.VALUES if holds is v.Holds.PLACES else holds for holds in held))


def _chain(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if are_loaders(args):
        return one_after_another(args)
    return v.united(args) if v.all_parameters(args) else Symbol()


def _cycle(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Stream.endless() if args else Symbol()


def _count(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    start = args[0] if args else kwargs.get("start", Num(0))
    return ("range", start, v.WITHOUT_END) if len(args) < 2 and "step" not in kwargs else Symbol()


def _partial(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Partial(args[0], args[1:], kwargs) if args else Symbol()


def _unfollowed(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Symbol()


def _filter(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not isinstance(args[1], v.Parameters):
        return Symbol()
    test, parameters = args
    if isinstance(test, v.Function) and isinstance(test.node, syntax.Lambda):
        holds = call_function(run, test, [parameters], {})
        return parameters if isinstance(holds, bool) else parameters.chosen(text_of(test.node.body))
    return parameters.chosen("chosen elsewhere")


def _divmod(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2:
        return Symbol()
    return binary(run, Operator.FLOORDIV, args[0], args[1]), binary(run, Operator.MOD, args[0], args[1])


def _namespace(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Settings that are read as attributes: given by name, or in a dictionary."""
    if not args and kwargs.keys() == {"**"}:
        return kwargs["**"]  # the very settings that it is made of
    attributes = _dict(run, args, kwargs)
    return v.Instance(v.Class(_NAMESPACE, v.Scope()), attributes) if isinstance(attributes, dict) else attributes


def _field(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return value_of_field(run, kwargs)


def _batch_sampler(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``BatchSampler(sampler, batch_size, drop_last)``: as many lists of places as a loader has batches."""
    given = {**dict(zip(("sampler", "batch_size", "drop_last"), args, strict=False)), **kwargs}
    options = {"drop_last": given.get("drop_last", Symbol())}
    return new_loader(run, given.get("sampler"), given.get("batch_size", Symbol()), options)


def _same_figure(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args and isinstance(args[0], v.Figure) else Symbol()


def _figures(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A number read from losses in another type, rounded, or as a perplexity; or a list of several of them."""
    match args:
        case [v.Figure() as figure, *_]:
            return figure
        case [[v.Figure(), *_] as figures, *_] if all(isinstance(one, v.Figure) for one in figures):
            return figures
    return NotImplemented


def _meter(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return new_meter()


_NAMESPACE = syntax.ClassDef(syntax.NOWHERE, None, "SimpleNamespace", (), (), (), (), ())


BUILTINS: dict[str, Callable[[State, list[Any], dict[str, Any]], Any]] = {
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
    "float": _float,
    "getattr": _getattr,
    "print": _ignored,
    "isinstance": _isinstance,
    "str": _same_figure,
    "hasattr": _hasattr,
    "bool": _first,
    "vars": _first,
}


LIBRARY: dict[str, Callable[[State, list[Any], dict[str, Any]], Any]] = {
    "partial": _partial,
    **dict.fromkeys(("SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "Munch"), _namespace),
    **dict.fromkeys(DIVIDES, _divide),
    **dict.fromkeys(MULTIPLIES, _multiply),
    **dict.fromkeys(SUMS_PRODUCTS, _dot),
    "mean": _reduce(Reduction.MEAN),
    "sum": _reduce(Reduction.SUM),
    "stack": _stack,
    **dict.fromkeys(JOINS, _cat),
    **dict.fromkeys(SAMPLES_ALL, of_all_rows),
    "SubsetRandomSampler": of_given_rows,
    "WeightedRandomSampler": by_weights,
    "Subset": subset,
    "random_split": random_split,
    "clamp": _clamp,
    "masked_select": _masked_select,
    "pad_sequence": _padded,
    "where": _where,
    **dict.fromkeys(CUTS, _cut),
    **dict.fromkeys(CUTS_ALIKE, _chunk),
    "split": _split,
    "DataLoader": _data_loader,
    "BatchSampler": _batch_sampler,
    "field": _field,
    "TensorDataset": _tensor_dataset,
    "chain": _chain,
    "count": _count,
    "deque": _deque,
    "cycle": _cycle,
    "islice": _islice,
    "tqdm": _first,
    "trange": _range,
    "track": _first,
    **dict.fromkeys(METERS, _meter),
    "defaultdict": _defaultdict,
    # A perplexity is as right as the mean that it is computed from.
    **dict.fromkeys(("round", "around", "array", "asarray", "tensor", "exp"), _figures),
    "GradScaler": _unfollowed,
    "autocast": _unfollowed,
    "ceil": _convert(lambda value: -int(-value // 1)),
    "floor": _convert(lambda value: int(value // 1)),
}
