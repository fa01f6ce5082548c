"""Methods of tensors, batches, gradients and of Python's lists and dicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcheck_accum.ledger.events import Operation, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import are_counted_out, call_function
from gradcheck_accum.lint.program.torch_names import (
    ASKS_EACH,
    COUNTS,
    COUNTS_ELEMENTS,
    CUTS,
    CUTS_ALIKE,
    CUTS_GRAPH,
    DIVIDES,
    DIVIDES_IN_PLACE,
    GIVES_AN_ORDER,
    GIVES_NO_DATA,
    KEEPS_NUMBERS,
    KEEPS_ROWS,
    KEEPS_ROWS_ALONG,
    LARGEST_OR_SMALLEST,
    MAKES_WORDS,
    MULTIPLIES,
    MULTIPLIES_IN_PLACE,
    NO_LOSS,
    PREPARES,
    READS,
    REDUCES,
    RESHAPES,
    SAME_MODEL,
    SPLITS,
    SUMS_PRODUCTS,
    SWAPS_DIMENSIONS,
)
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.bindings import begins_at_default
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol, Tensor
from gradcheck_accum.lint.torch_calls.arithmetic import divided, dot, reduced, scaled
from gradcheck_accum.lint.torch_calls.data import chunks, extent, rows_of, split
from gradcheck_accum.lint.torch_calls.gradient_changes import change_gradients, changes_unknown
from gradcheck_accum.lint.torch_calls.losses import all_arguments, computation
from gradcheck_accum.lint.torch_calls.masks import counted, is_left_out, mask_of, selected
from gradcheck_accum.lint.torch_calls.metrics import is_read, mean, read
from gradcheck_accum.lint.torch_calls.models import perhaps_summed, sources_of
from gradcheck_accum.lint.torch_calls.own_networks import carried_out, is_followed
from gradcheck_accum.lint.torch_calls.retained_graphs import appended
from gradcheck_accum.lint.torch_calls.schedulers import prepared
from gradcheck_accum.lint.torch_calls.weight_averages import is_update


def method_of_value(run: State, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = node.func.attr if isinstance(node.func, syntax.Attribute) else ""
    if name == "requires_grad_":
        run.freeze(sources_of(base), all_arguments(args, kwargs)[0] if args or kwargs else True)
        if not isinstance(base, (Tensor, v.Data)):
            return base
    if isinstance(node.func, syntax.Attribute) and changes_unknown(run, node.func.value, base, name):
        return base
    if "other" in kwargs and not args and isinstance(base, (Tensor, v.Gradient)):
        args = [kwargs["other"]]  # as arithmetic names its operand
    match base:
        case Tensor():
            return _tensor_method(run, node, base, name, args, kwargs)
        case v.Data() if name in MAKES_WORDS and not kwargs and args and all(isinstance(value, str) for value in args):
            return v.Word()  # what is given texts is one, and comes with the batch
        case v.Data():
            return _data_method(run, base, name, args, kwargs)
        case v.Gradient():
            change_gradients(run, node, base, name, args)
            return base
        case v.Parameters() if name == "clone" and base.sources is not None:
            # Their numbers are their own from here on.
            return v.Parameters(frozenset(f"a copy of {source}" for source in base.sources))
        case v.Parameters():
            return base
        case v.Optimizer():
            return Symbol()
        case v.Average() if is_update(base, name):
            run.recorder.average(node, base.name, base.since, base.sources)
            return Symbol()
        case v.Model() if base.cls is not None and run.reach.averages(base.cls.methods.get(name)):
            base.instance = base.instance or v.Instance(base.cls)
            own = base.cls.bound(name, base.instance)
            return call_function(run, own, args, kwargs) if own is not None else Symbol()
        case v.Model() if base.cls is not None and run.reach.makes_optimizers(base.cls.methods.get(name)):
            own = base.cls.bound(name, base)
            return call_function(run, own, args, kwargs) if own is not None else Symbol()
        case v.Model() if name == "module" and run.sync.is_wrapped({base.name}):
            return NotImplemented  # no method, but what is wrapped
        case v.Model(of_others=True) if base.keys and name in {"items", "values", "keys"}:
            return _dict_method(dict(zip(base.keys, base.held, strict=True)), name, args)
        case v.Model() if is_followed(run, base, name):
            return carried_out(run, node, base, name, args, kwargs)
        case v.Model():
            if name in SAME_MODEL:
                return base
            return perhaps_summed(run, base.name, computation(run, node, args, kwargs, base.sources))
        case v.Criterion() if name in SAME_MODEL:
            return base
        case v.Instance() if base.cls.is_model and base.cls.methods.get(name) is None and name not in base.attributes:
            if run.reach.is_empty(base.cls.node.name, name):
                return NotImplemented  # none of PyTorch's, but one that a derived class writes
            return base if name in SAME_MODEL else Symbol()
        case v.Figure() if name in READS | KEEPS_NUMBERS | {"round", "mean", "squeeze"}:
            return base
        case list() if name in {"mean", "sum"} and base and all(map(is_read, base)):
            return mean(run, base, divides=name == "mean")
        case v.Scaled() if name not in READS:
            return base
        case v.Chance():
            return base
        case list():
            return _list_method(run, node, base, name, args)
        case dict():
            return _dict_method(base, name, args)
        case v.Got() if name in KEEPS_ROWS:
            return base
        case Symbol() if name in MAKES_WORDS and not kwargs and all(isinstance(value, str) for value in args):
            return v.Word()
        case Symbol() if name in SAME_MODEL and (base.name or isinstance(base, v.Got)) and name != "apply":
            return base
        case Symbol() if name in CUTS and args:
            return chunks(run, args[0])
        case Symbol() if name == "items" and base.name and not args:
            # The values are what they are where they come alone, too.
            return ("zip", Symbol(f"{base.name}.keys()"), Symbol(f"{base.name}.values()"))
        case Symbol() if name == "get" and args and isinstance(args[0], str):
            # What has a number for its default is a setting, in whatever it is looked up.
            default = args[1].value if len(args) > 1 and isinstance(args[1], Num) else None
            held = base.member(args[0]) if base.name or default is None else Symbol(args[0])
            if begins_at_default(run, args[0], held, default):
                return Num(0)
            return replace(held, default=default) if isinstance(default, (int, float)) else held
        case Symbol() | v.Reference() if name in PREPARES and args:
            return prepared(name, args)
    return NotImplemented


def _tensor_method(
    run: State, node: syntax.Call, base: Tensor, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    run.use(all_arguments(args, kwargs))
    if name in READS:
        return read(run, node, base)
    if name in CUTS_GRAPH:
        return base.detached()
    if name in REDUCES:
        along = args[0] if args else kwargs.get("dim")
        reduction = Reduction.SUM if name.endswith("sum") else Reduction.MEAN
        return reduced(base, reduction, partly=isinstance(along, Num))
    if name in DIVIDES | DIVIDES_IN_PLACE and args:
        return divided(run, base, args[0])
    if name in MULTIPLIES | MULTIPLIES_IN_PLACE and args:
        return scaled(run, base, args[0], Operation.MULTIPLY)
    if name in SUMS_PRODUCTS and args:
        return dot(run, base, args[0]) or base
    if name == "masked_select":
        return selected(base)
    if name in NO_LOSS:
        return Symbol()
    return base


def _data_method(run: State, base: v.Data, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name == "size":
        if not args:
            return ("shape", base)
        if not isinstance(args[0], Num):
            return Symbol()
        return rows_of(run, base) if args[0].value == 0 else extent(base, args[0].value)
    if name in RESHAPES and len(args) > 1 and not v.is_named(args[0]):
        # A size that is not shown follows from others, as far as anybody knows.
        sizes = base.reshaped([size if isinstance(size, Num) else Num(-1) for size in args])
        first = int(sizes[0].value)
        whole = replace(base.changed(first if first > 0 else None), holds=base.holds, sizes=sizes)
        return replace(whole, is_counted_out=are_counted_out(run, [base, *args]))
    if name in CUTS and args:
        return chunks(run, args[0], base if name in CUTS_ALIKE and len(args) == 1 and not kwargs else None)
    if name in SPLITS and args:
        return split(run, base, args[0], args[1] if len(args) > 1 else kwargs.get("dim"))
    if name == "item" and base.counted is not None:
        return base
    if name in COUNTS_ELEMENTS and base.varies:
        return counted(run, base)
    if name == "tolist" and base.rows is not None and base.rows <= v.LONGEST_LIST:
        # A number that was drawn by chance is so in a list, too.
        return [Symbol() if base.made is None else v.Data(made=base.made) for _ in range(base.rows)]
    along_one = name in LARGEST_OR_SMALLEST and (args or kwargs)
    if name in GIVES_NO_DATA and not along_one:
        return Symbol()
    if name in ASKS_EACH:
        return mask_of(base)
    if name == "masked_select":
        return selected(base)
    if name in GIVES_AN_ORDER:
        return replace(base.changed(base.rows), holds=v.Holds.PLACES)
    if name == "nonzero":
        return v.Data(holds=v.Holds.PLACES, varies=True, is_counted_out=base.is_determined)
    if name == "unfold" and base.rows is not None and len(args) == 3:
        return _windows_along(base, *args)
    if name in SWAPS_DIMENSIONS and (exchanged := _exchanged(base, name, args)) is not None:
        return exchanged
    dimension = args[0] if args else kwargs.get("dim")
    along = dimension.value if isinstance(dimension, Num) else None
    keeps = name in KEEPS_ROWS or (name in KEEPS_ROWS_ALONG and isinstance(along, int) and along != 0)
    keeps = keeps or (name in SWAPS_DIMENSIONS and len(args) == 2 and all(map(_is_no_first_dimension, args)))
    if name in COUNTS and not args and not kwargs:
        return counted(run, base)
    # How many rows come of shown ones is the source's to say, also where no number here is it.
    is_counted_out = are_counted_out(run, [base, *all_arguments(args, kwargs)])
    lost = replace(base.changed(), counted=None, is_counted_out=is_counted_out)
    changed = base.changed(base.rows) if keeps else lost
    return replace(changed, ignored=True) if name.startswith("masked_fill") and any(map(is_left_out, args)) else changed


def _windows_along(data: v.Data, dimension: Any, size: Any, step: Any) -> v.Data:
    """The windows of ``size`` rows that begin ``step`` rows apart: as many as data have room for."""
    counts = [
        one.value if isinstance(one, Num) and isinstance(one.value, int) else None for one in (dimension, size, step)
    ]
    windows = replace(data.changed(), counted=None)
    match counts:
        case [0, int() as long, int() as apart] if data.rows is not None and apart > 0 and 0 < long <= data.rows:
            return replace(windows, rows=(data.rows - long) // apart + 1)
        case [int() as along, _, _] if along > 0:
            return replace(windows, rows=data.rows)
    return windows


def _exchanged(data: v.Data, name: str, dimensions: list[Any]) -> v.Data | None:
    """Data with two dimensions exchanged, or one moved to another's place, where the source shows its shape."""
    places = [one.value for one in dimensions if isinstance(one, Num) and isinstance(one.value, int)]
    sizes = list(data.shape)
    if len(places) != 2 or not all(-len(sizes) <= place < len(sizes) for place in places):
        return None
    one, other = (place % len(sizes) for place in places)
    if name == "movedim":
        sizes.insert(other, sizes.pop(one))
    else:
        sizes[one], sizes[other] = sizes[other], sizes[one]
    return replace(data.changed(sizes[0]), shape=tuple(sizes))


def _is_no_first_dimension(number: Any) -> bool:
    """Whether a number says which dimension is meant, from the beginning, and it is not the first."""
    return isinstance(number, Num) and number.value > 0


def function_of_data(run: State, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a function of PyTorch makes of data alone, row by row, as the method does; or NotImplemented.

    Before any training, what any of them makes of data is data, and so is what they make of random numbers of a turn.
    """
    name = path.removeprefix("torch.").removeprefix("nn.functional.")
    if not args or not isinstance(args[0], v.Data) or any(isinstance(a, Tensor) for a in all_arguments(args, kwargs)):
        return NotImplemented
    if name not in KEEPS_ROWS | ASKS_EACH | GIVES_AN_ORDER:
        turn = v.turn_made(args)
        is_data = path.startswith("torch.") and (not run.loops.depth or turn is not None)
        counted_out = are_counted_out(run, all_arguments(args, kwargs))
        return v.Data(made=turn, is_counted_out=counted_out) if is_data else NotImplemented
    return _data_method(run, args[0], name, args[1:], kwargs)


def _list_method(run: State, node: syntax.Call, base: list[Any], name: str, args: list[Any]) -> Any:
    if run.loops.guessed and name in {"append", "extend"}:
        run.iterated.grown[id(base)] = base
    match name:
        case "append" if args:
            base.append(args[0])
            appended(run, node, base, args[0])
        case "extend" if args and isinstance(args[0], v.Parameters):
            base.append(args[0])
        case "extend" if args and isinstance(args[0], (list, tuple)) and len(base) + len(args[0]) <= v.LONGEST_LIST:
            base.extend(args[0])
        case "extend" if args and isinstance(args[0], Symbol):
            # By how many things is not known: files that were looked for, say.
            run.iterated.grown[id(base)] = base
        case "clear":
            base.clear()
        case "pop" | "popleft":
            first = name == "popleft" or args[:1] == [Num(0)]
            taken = base.pop(0 if first else -1) if base else Symbol()
            # What a turn takes out of a list, and no other turn then finds there, is its data.
            anew = run.loops.depth > 0 and not run.loops.passes
            return v.made_in(taken, run.loops.turn) if anew and v.is_data(taken) else taken
        case "copy":
            return list(base)
        case _:
            return Symbol()
    return None


def _dict_method(base: dict[Any, Any], name: str, args: list[Any]) -> Any:
    match name:
        case "get" if args and isinstance(args[0], (str, Num, Symbol)):
            shown = isinstance(args[0], str) and v.shows_its_keys(base)
            return base.get(args[0], (args[1] if len(args) > 1 else None) if shown else Symbol())
        case "items":
            return list(base.items())
        case "values":
            return list(base.values())
        case "keys":
            return list(base)
        case "update" if args and isinstance(args[0], dict):
            base.update(args[0])
            return None
        case "clear":
            base.clear()
            return None
    return Symbol()
