"""Methods of tensors, batches, gradients and of Python's lists and dicts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import Operation, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.arithmetic import scaled
from gradcheck_accum.lint.averages import is_update
from gradcheck_accum.lint.by_hand import change_gradients, changes_unknown
from gradcheck_accum.lint.chosen import counted, is_left_out, mask_of, selected
from gradcheck_accum.lint.data import chunks, rows_of, split
from gradcheck_accum.lint.functions import call_function
from gradcheck_accum.lint.graphs import appended
from gradcheck_accum.lint.losses import all_arguments, computation
from gradcheck_accum.lint.metrics import read
from gradcheck_accum.lint.objects import sources_of
from gradcheck_accum.lint.schedulers import without_schedulers
from gradcheck_accum.lint.values import Num, Symbol, Tensor

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

_SAME_MODEL = frozenset({"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "apply"})
_TELL_NO_LOSS = frozenset(
    {"all", "any", "dim", "ge", "gt", "isfinite", "isinf", "isnan", "le", "lt", "nelement", "numel"}
)
_KEEPS_ROWS = frozenset(
    "to cuda cpu float long double half bfloat16 bool int clone contiguous detach masked_fill clamp abs exp log sqrt "  # noqa: SIM905
    "square pow add sub mul div neg round sign tanh sigmoid cumsum softmax log_softmax".split()
)
"""What gives as many rows as it was asked of."""
_ALONG = frozenset({"unsqueeze", "squeeze", "argmax", "argmin", "flatten"})
"""The same, if it works along another dimension than the first."""
_ASKS = frozenset({"bool", "eq", "ne", "gt", "ge", "lt", "le", "isnan", "logical_not", "logical_and", "logical_or"})
"""What gives a mask of what it was asked of."""
_METRICS = frozenset({"item", "tolist", "numpy"})


def method_of_value(run: Interpreter, node: syntax.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = node.func.attr if isinstance(node.func, syntax.Attribute) else ""
    if name == "requires_grad_" and not isinstance(base, (Tensor, v.Data)):
        run.freeze(sources_of(run, base), all_arguments(args, kwargs)[0] if args or kwargs else True)
        return base
    if isinstance(node.func, syntax.Attribute) and changes_unknown(run, node.func.value, base, name):
        return base
    match base:
        case Tensor():
            return _tensor_method(run, node, base, name, args, kwargs)
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
        case v.Model():
            return base if name in _SAME_MODEL else computation(run, node, args, kwargs, frozenset({base.name}))
        case v.Instance() if base.cls.is_model and base.cls.methods.get(name) is None and name not in base.attributes:
            return base if name in _SAME_MODEL else Symbol()
        case v.Scaled() if name not in _METRICS:
            return base
        case list():
            return _list_method(run, node, base, name, args)
        case dict():
            return _dict_method(base, name, args)
        case Symbol() if name in _SAME_MODEL and base.name and name != "apply":
            return base
        case Symbol() if name == "chunk" and args:
            return chunks(run, args[0])
        case Symbol() if name == "items" and base.name and not args:
            # The values are what they are where they come alone, too.
            return ("zip", Symbol(f"{base.name}.keys()"), Symbol(f"{base.name}.values()"))
        case Symbol() if name == "get" and args and isinstance(args[0], str):
            return base.member(args[0])
        case Symbol() | v.Reference() if name in {"prepare", "setup", "setup_dataloaders", "setup_optimizers"} and args:
            prepared = without_schedulers(args)
            return tuple(prepared) if len(prepared) > 1 else prepared[0]
    return NotImplemented


def _tensor_method(
    run: Interpreter, node: syntax.Call, base: Tensor, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    if name in _METRICS:
        return read(run, node, base)
    if name in {"detach", "detach_"}:
        return base.detached()
    if name in {"mean", "sum", "nansum", "nanmean"}:
        along = args[0] if args else kwargs.get("dim")
        return base.reduced(Reduction.SUM if name.endswith("sum") else Reduction.MEAN, partly=isinstance(along, Num))
    if name in {"div", "div_", "true_divide", "true_divide_"} and args:
        return scaled(run, base, args[0], Operation.DIVIDE)
    if name in {"mul", "mul_", "multiply"} and args:
        return scaled(run, base, args[0], Operation.MULTIPLY)
    if name == "masked_select":
        return selected(base)
    if name in {"size", "chunk", "split", "argmax", "eq", "ne", "max", "min", "topk"} | _TELL_NO_LOSS:
        return Symbol()
    return base


def _data_method(run: Interpreter, base: v.Data, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name == "size":
        if not args:
            return ("shape", base)
        return rows_of(run, base) if isinstance(args[0], Num) and args[0].value == 0 else Symbol()
    if name == "chunk" and args:
        return chunks(run, args[0])
    if name in {"split", "tensor_split"} and args:
        return split(run, base, args[0])
    if name == "item" and base.counted is not None:
        return base
    if name == "numel" and base.varies:
        return counted(run, base)
    if name in {"numel", "item", "dim", "ndim", "tolist", "max", "min"}:
        return Symbol()
    if name in _ASKS:
        return mask_of(base)
    if name == "masked_select":
        return selected(base)
    if name == "nonzero":
        return v.Data(holds=v.Holds.PLACES, varies=True)
    if name == "tolist" and base.rows is not None and base.rows <= v.LONGEST_LIST:
        return [Symbol() for _ in range(base.rows)]
    along = args[0].value if args and isinstance(args[0], Num) else kwargs.get("dim")
    keeps = name in _KEEPS_ROWS or (name in _ALONG and isinstance(along, int) and along != 0)
    if name in {"sum", "count_nonzero"} and not args and not kwargs:
        return counted(run, base)
    changed = base.changed(base.rows) if keeps else replace(base.changed(), counted=None)
    return replace(changed, ignored=True) if name.startswith("masked_fill") and any(map(is_left_out, args)) else changed


def _list_method(run: Interpreter, node: syntax.Call, base: list[Any], name: str, args: list[Any]) -> Any:
    if run.guessed and name in {"append", "extend"}:
        run.grown[id(base)] = base
    match name:
        case "append" if args:
            base.append(args[0])
            appended(run, node, base, args[0])
        case "extend" if args and isinstance(args[0], v.Parameters):
            base.append(args[0])
        case "extend" if args and isinstance(args[0], (list, tuple)) and len(base) + len(args[0]) <= v.LONGEST_LIST:
            base.extend(args[0])
        case "clear":
            base.clear()
        case "pop":
            return base.pop() if base else Symbol()
        case "copy":
            return list(base)
        case _:
            return Symbol()
    return None


def _dict_method(base: dict[str, Any], name: str, args: list[Any]) -> Any:
    match name:
        case "get" if args and isinstance(args[0], str):
            return base.get(args[0], args[1] if len(args) > 1 else None)
        case "items":
            return list(base.items())
        case "values":
            return list(base.values())
        case "keys":
            return list(base)
    return Symbol()
