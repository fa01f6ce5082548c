"""Calls in a training loop: what PyTorch, Python and the file's own functions do to gradients and batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import Factor, Operation, Reduction
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.values import Num, Symbol, Tensor

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

_OPTIMIZER_NAME = re.compile(r"(^|[_.\[])(opt|optim|optimi[sz]er)(s|\d)*($|[_.\[\]])|optimi[sz]er", re.IGNORECASE)
_NOT_OPTIMIZER = re.compile(r"sched|scaler|hook|param|args|config|cfg", re.IGNORECASE)
_OPTIMIZER_CLASSES = frozenset(
    "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD Lamb LBFGS Lion Muon NAdam RAdam RMSprop Rprop SGD "  # noqa: SIM905
    "SparseAdam".split()
)
_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"})
_SAME_MODEL = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "apply", "requires_grad_"}
)
_WRAPPERS = frozenset(
    {"DataParallel", "DistributedDataParallel", "DDP", "compile", "FullyShardedDataParallel", "FSDP", "deepcopy"}
)
_METRICS = frozenset({"item", "tolist", "numpy"})
_MAKES_DATA = frozenset(
    "arange as_tensor empty from_numpy full linspace ones rand randint randn randperm tensor zeros".split()  # noqa: SIM905
)
_ACTS_ON_GRADIENTS = re.compile(r"step|optim|update|grad|flush|backward|accum|finish|finalize|train", re.IGNORECASE)
_CHANGES_GRADIENTS = re.compile(
    r"(scale|accum|reduce|sync|average|normali[sz]e|zero|clear|update|apply)\w*_?grad"
    r"|grad\w*_?(scale|accum|reduce|sync|average|zero|clear|update|apply)",
    re.IGNORECASE,
)
_SETTINGS_OF_LOSS = re.compile(r"loss|criterion|objective", re.IGNORECASE)


def call(run: Interpreter, node: ast.Call, scope: v.Scope) -> Any:
    """The value of a call, after what it does to gradients has been recorded."""
    inherited = run.super_method(node, scope)
    if inherited is not None:
        args, kwargs = _arguments(run, node, scope)
        return run.call_function(inherited, args, kwargs)
    if isinstance(node.func, ast.Attribute):
        base = run.evaluate(node.func.value, scope)
        method = _METHODS.get(node.func.attr)
        args, kwargs = _arguments(run, node, scope)
        if method is not None and not _defines(run, base, node.func.attr):
            handled = method(run, node, base, args, kwargs)
            if handled is not NotImplemented:
                _keep_in_place_result(run, node, handled, scope)
                return handled
        handled = _method_of_value(run, node, base, args, kwargs)
        if handled is not NotImplemented:
            if isinstance(handled, v.Chunks) and isinstance(args[0], Num) and args[0].value == handled.count:
                run.note_count(node.args[0], args[0])
            _keep_in_place_result(run, node, handled, scope)
            return handled
        callee = run.attribute(base, node.func.attr)
    else:
        callee = run.evaluate(node.func, scope)
        args, kwargs = _arguments(run, node, scope)
    if callee == Symbol("range") and node.args and args:
        run.note_count(node.args[-1], args[-1])
    return call_value(run, node, callee, args, kwargs)


def _arguments(run: Interpreter, node: ast.Call, scope: v.Scope) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            value = run.evaluate(argument.value, scope)
            args.extend(value if isinstance(value, (list, tuple)) else [value])
        else:
            args.append(run.evaluate(argument, scope))
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        value = run.evaluate(keyword.value, scope)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs.update(value)
        else:
            kwargs["**"] = value
    return args, kwargs


def _defines(run: Interpreter, base: Any, name: str) -> bool:
    return isinstance(base, v.Instance) and run.find_method(base.cls, name) is not None


def _keep_in_place_result(run: Interpreter, node: ast.Call, result: Any, scope: v.Scope) -> None:
    """``loss.div_(K)`` changes the tensor that the name is bound to."""
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in {"div_", "mul_"} and isinstance(result, Tensor):
        run.assign(func.value, result, scope)


def looks_like_optimizer(name: str) -> bool:
    """Whether a name is one that people give to optimizers."""
    last = name.rpartition(".")[2]
    return bool(_OPTIMIZER_NAME.search(last)) and not _NOT_OPTIMIZER.search(last)


def _as_optimizer(run: Interpreter, value: Any) -> v.Optimizer | None:
    if isinstance(value, v.Optimizer):
        return value
    if isinstance(value, Symbol) and value.name and (looks_like_optimizer(value.name) or value.name in run.steppers):
        return run.optimizer_for(value.name)
    return None


# Methods that mean the same whatever they are called on -------------------------------------------------------------


def _backward(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Reference) and base.path == "torch.autograd":
        base, args = (args[0] if args else Symbol()), args[1:]
        if isinstance(base, (list, tuple)):
            base = base[0] if len(base) == 1 else Symbol("losses")
    elif not isinstance(base, Tensor) and any(isinstance(a, (Tensor, Symbol)) for a in args[:1]):
        run.recorder.opaque(node, "a backward that a framework makes")
        return None
    if isinstance(base, v.Instance):
        return NotImplemented
    gradient = args[:1] + [kwargs[k] for k in ("gradient", "grad_tensors") if k in kwargs]
    run.backward(node, base, weighted=any(g is not None for g in gradient))
    return None


def _step(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    given = [o for o in (_as_optimizer(run, a) for a in args[:1]) if o is not None]
    optimizer = _as_optimizer(run, base)
    if optimizer is not None:
        if args or kwargs.get("closure") is not None:
            run.recorder.opaque(node, "an optimizer step with a closure")
        else:
            run.step(node, optimizer)
        return None
    if given and isinstance(base, (Symbol, v.Reference)):
        run.step(node, given[0], through_scaler=True)
        return None
    if _is_lost_optimizer(run, node, base):
        run.recorder.opaque(node, "a step of an optimizer that could not be told")
    return NotImplemented if isinstance(base, v.Instance) else None


def _is_lost_optimizer(run: Interpreter, node: ast.Call, base: Any) -> bool:
    """Whether a method is called on what the source calls an optimizer, while it is not known which one it is."""
    if not isinstance(base, Symbol) or not isinstance(node.func, ast.Attribute):
        return False
    text = ast.unparse(node.func.value)
    return looks_like_optimizer(text) or text in run.steppers


def _zero_grad(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = _as_optimizer(run, base)
    if optimizer is None and _is_lost_optimizer(run, node, base):
        run.recorder.opaque(node, "gradients of an optimizer that could not be told")
        return None
    run.recorder.zero(node, optimizer if optimizer is not None else run.sources_of(base))
    return None


def _unscale(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    optimizer = _as_optimizer(run, args[0]) if args else None
    if optimizer is not None:
        run.recorder.unscale(node, optimizer)
    return None


def _scale(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args or isinstance(base, (v.Instance, Tensor, v.Data)):
        return NotImplemented
    loss = args[0] if isinstance(args[0], Tensor) else run.as_loss(args[0])
    return replace(loss, grad_scaled=True)


def _parameters(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return v.Parameters(run.sources_of(base))


def _clip_method(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if isinstance(base, v.Reference):
        _clip(run, node, args, kwargs)
    elif isinstance(base, v.Instance):
        return NotImplemented
    else:
        run.recorder.opaque(node, "a clip that a framework makes")
    return Symbol()


_METHODS: dict[str, Callable[[Interpreter, ast.Call, Any, list[Any], dict[str, Any]], Any]] = {
    "backward": _backward,
    "manual_backward": _backward,
    "step": _step,
    "zero_grad": _zero_grad,
    "unscale_": _unscale,
    "scale": _scale,
    "parameters": _parameters,
    "named_parameters": _parameters,
    **dict.fromkeys(_CLIPS, _clip_method),
}


# Methods by what they are called on ---------------------------------------------------------------------------------


def _method_of_value(run: Interpreter, node: ast.Call, base: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    match base:
        case Tensor():
            return _tensor_method(run, base, name, args, kwargs)
        case v.Data():
            return _data_method(run, base, name, args, kwargs)
        case v.Gradient():
            return _gradient_method(run, node, base, name, args)
        case v.Parameters():
            return base
        case v.Optimizer():
            return Symbol()
        case v.Model():
            return base if name in _SAME_MODEL else call_value(run, node, base, args, kwargs)
        case v.Instance() if base.cls.is_model and run.find_method(base.cls, name) is None:
            return base if name in _SAME_MODEL else Symbol()
        case list():
            return _list_method(base, name, args)
        case dict():
            return _dict_method(base, name, args)
        case Symbol() if name in _SAME_MODEL and base.name and name != "apply":
            return base
        case Symbol() if name == "chunk" and args:
            return run.chunks(args[0])
        case Symbol() if name == "get" and args and isinstance(args[0], str):
            return base.member(args[0])
        case Symbol() | v.Reference() if name in {"prepare", "setup", "setup_dataloaders", "setup_optimizers"} and args:
            return tuple(args) if len(args) > 1 else args[0]
    return NotImplemented


def _tensor_method(run: Interpreter, base: Tensor, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name in _METRICS:
        return Symbol()
    if name in {"detach", "detach_"}:
        return replace(base, models=frozenset())
    if name in {"mean", "sum", "nansum", "nanmean"}:
        return base.reduced(Reduction.SUM if name.endswith("sum") and _is_loss(base) else Reduction.MEAN)
    if name in {"div", "div_", "true_divide", "true_divide_"} and args:
        return run.scaled(base, args[0], Operation.DIVIDE)
    if name in {"mul", "mul_", "multiply"} and args:
        return run.scaled(base, args[0], Operation.MULTIPLY)
    if name in {"size", "chunk", "split", "argmax", "eq", "ne", "max", "min", "topk"}:
        return Symbol()
    return base


def _is_loss(tensor: Tensor) -> bool:
    return tensor.elementwise or any(_SETTINGS_OF_LOSS.search(part.name) for part in tensor.parts)


def _data_method(run: Interpreter, base: v.Data, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if name == "size":
        if not args:
            return ("shape", base)
        return run.rows_of(base) if isinstance(args[0], Num) and args[0].value == 0 else Symbol()
    if name == "chunk" and args:
        return run.chunks(args[0])
    if name in {"split", "tensor_split"} and args:
        return run.split(base, args[0])
    if name in {"numel", "item", "dim", "ndim", "tolist", "max", "min"}:
        return Symbol()
    keeps = name in {"to", "cuda", "cpu", "float", "long", "double", "clone"}
    keeps = keeps or (name == "unsqueeze" and bool(args) and isinstance(args[0], Num) and args[0].value != 0)
    return v.Data(base.rows if keeps else None)


def _gradient_method(run: Interpreter, node: ast.Call, base: v.Gradient, name: str, args: list[Any]) -> Any:
    if name in {"zero_", "fill_"}:
        run.recorder.zero(node, base.sources)
    elif name in {"div_", "mul_"} and args:
        operation = Operation.DIVIDE if name == "div_" else Operation.MULTIPLY
        run.recorder.scale_grads(node, base.sources, run.factor_of(args[0], operation))
    elif name in {"clamp_", "clip_"}:
        run.recorder.clip(node, base.sources)
    elif name in {"add_", "copy_", "sub_"}:
        run.recorder.opaque(node, "gradients changed by hand")
    return base


def _list_method(base: list[Any], name: str, args: list[Any]) -> Any:
    match name:
        case "append" if args:
            base.append(args[0])
        case "extend" if args and isinstance(args[0], (list, tuple)):
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


# Calls by what is called --------------------------------------------------------------------------------------------


def call_value(run: Interpreter, node: ast.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a value that has been evaluated."""
    match callee:
        case v.Function():
            return run.call_function(callee, args, kwargs)
        case v.Class():
            return run.instantiate(node, callee, args, kwargs)
        case v.Instance():
            method = None if callee.cls.is_model else run.find_method(callee.cls, "__call__")
            if method is not None:
                return run.call_function(v.Function(method, callee.cls.scope, callee), args, kwargs)
            return _computation(run, node, args, kwargs, run.sources_of(callee) or frozenset())
        case v.Model():
            return _computation(run, node, args, kwargs, frozenset({callee.name}))
        case v.Criterion():
            return _loss(run, callee.name, callee.reduction, args, kwargs)
        case v.Reference():
            return _library(run, node, callee, args, kwargs)
        case Symbol():
            builtin = _BUILTINS.get(callee.name)
            if builtin is not None:
                return builtin(run, args, kwargs)
            return _unresolved(run, node, callee.name, args, kwargs)
    return _computation(run, node, args, kwargs, frozenset())


def _all_arguments(args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [*args, *kwargs.values()]


def _computation(
    run: Interpreter, node: ast.Call, args: list[Any], kwargs: dict[str, Any], models: frozenset[str]
) -> Any:
    """A call that computes a tensor from tensors."""
    given = _all_arguments(args, kwargs)
    name = ast.unparse(node.func)[:60]
    factors = (Factor(None),) if any(v.carries_steps(value) for value in given) else ()
    part = v.Part(name, Reduction.MEAN, factors, run.recorder.micro_batch)
    scaled = any(isinstance(value, Tensor) and value.grad_scaled for value in given)
    return Tensor((part,), models | v.models_in(given), scaled)


def _loss(run: Interpreter, name: str, reduction: Any, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
    models = v.models_in(_all_arguments(args, kwargs))
    kind = Reduction.SUM if reduction == "sum" else Reduction.MEAN
    factors = () if reduction is None or isinstance(reduction, str) else (Factor(None),)
    part = v.Part(name, kind, factors, run.recorder.micro_batch)
    return Tensor((part,), models, elementwise=reduction == "none")


def _library(run: Interpreter, node: ast.Call, callee: v.Reference, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tail, path = callee.tail, callee.path
    handler = _LIBRARY.get(tail)
    if handler is not None:
        return handler(run, args, kwargs)
    if tail in _CLIPS:
        _clip(run, node, args, kwargs)
        return Symbol()
    if tail in _OPTIMIZER_CLASSES or (path.startswith("torch.optim.") and tail[:1].isupper() and "sched" not in path):
        return run.new_optimizer(node, _all_arguments(args, kwargs))
    if tail.endswith("Loss") and tail[:1].isupper():
        return v.Criterion(tail, kwargs.get("reduction", "mean"))
    if tail in _WRAPPERS and args:
        return args[0]
    if path.startswith("torch.") and tail in _MAKES_DATA:
        return v.Data(_rows(tail, args, kwargs))
    if path.startswith("torch.nn.functional.") and (
        tail.endswith("loss") or tail.startswith(("cross_", "binary_cross"))
    ):
        return _loss(run, tail, kwargs.get("reduction", "mean"), args, kwargs)
    if path.startswith("torch.nn.") and tail[:1].isupper():
        return run.new_model(node)
    if path == "torch.autograd.backward":
        return _backward(run, node, v.Reference("torch.autograd"), args, kwargs)
    return _unresolved(run, node, path, args, kwargs)


def _rows(tail: str, args: list[Any], kwargs: dict[str, Any]) -> int | None:
    place = {"randint": -1, "linspace": 2}.get(tail, 0)
    sizes = kwargs.get("size", args[place] if len(args) > max(place, 0) else None)
    if isinstance(sizes, (list, tuple)) and sizes:
        sizes = sizes[0]
    if tail in {"tensor", "as_tensor", "from_numpy", "full"}:
        return None
    return sizes.value if isinstance(sizes, Num) and isinstance(sizes.value, int) else None


def _clip(run: Interpreter, node: ast.Call, args: list[Any], kwargs: dict[str, Any]) -> None:
    parameters = args[0] if args else kwargs.get("parameters")
    if isinstance(parameters, (list, tuple)) and parameters:
        parameters = parameters[0]
    known = parameters.sources if isinstance(parameters, (v.Parameters, v.Gradient)) else None
    run.recorder.clip(node, known)


def _unresolved(run: Interpreter, node: ast.Call, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of something that this file does not define."""
    given = _all_arguments(args, kwargs)
    tail = name.rpartition(".")[2]
    inherited = run.is_inherited(name)
    if looks_like_optimizer(tail):
        return run.new_optimizer(node, given)
    acts = bool(_ACTS_ON_GRADIENTS.search(tail)) and "sched" not in tail.lower()
    handed = inherited or any(_as_optimizer(run, value) is not None for value in given)
    if run.in_training and ((acts and handed) or _CHANGES_GRADIENTS.search(tail)):
        run.recorder.opaque(node, f"a call of {tail}, which is defined elsewhere")
    if any(isinstance(value, (Tensor, v.Data)) or v.is_data(value) or v.models_in(value) for value in given):
        computed = _computation(run, node, args, kwargs, run.root_of(name))
        return computed.scaled(Factor(None)) if inherited else computed
    if len(given) == 1 and isinstance(given[0], (v.Model, v.Parameters, v.Loader)):
        return given[0]
    if inherited or any(v.carries_steps(value) for value in given):
        return Symbol(f"{name}()")
    return Symbol(f"{name}()") if not given else run.result_of(node, given)


# Python's own functions ---------------------------------------------------------------------------------------------


def _len(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.length(args[0]) if args else Symbol()


def _range(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("range", *args)


def _enumerate(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    start = args[1] if len(args) > 1 else kwargs.get("start", Num(0))
    return ("enumerate", args[0], start) if args else Symbol()


def _zip(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("zip", *args)


def _islice(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ("islice", *args) if args else Symbol()


def _iter(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.stream(args[0]) if args else Symbol()


def _next(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.draw_from(args[0]) if args else Symbol()


def _first(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("iterable", Symbol())


def _list(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return []
    if isinstance(args[0], (v.Loader, v.Parameters, v.Chunks)):
        return args[0]
    items = run.items_of(args[0], limit=10_000)
    return list(items) if items is not None else args[0]


def _number(function: Callable[..., Any]) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    def apply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        values = list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        if values and all(isinstance(value, Num) for value in values):
            first, *rest = values
            try:
                return first.derive(function(*(value.value for value in values)), *rest)
            except (ValueError, OverflowError, TypeError):
                return Symbol()
        return Symbol()

    return apply


def _convert(function: Callable[[Any], Any]) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    def apply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and isinstance(args[0], Num):
            value = function(args[0].value)
            return replace(args[0], value=value)
        # int(args.k) is still the same unknown number; float(loss) is a metric.
        return args[0] if args and isinstance(args[0], Symbol) else Symbol()

    return apply


def _sum(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    if isinstance(items, (list, tuple)) and items:
        total = items[0]
        for item in items[1:]:
            total = run.binary(ast.Add(), total, item)
        return total
    return Symbol()


def _getattr(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) >= 2 and isinstance(args[1], str):
        return run.attribute(args[0], args[1])
    return Symbol()


def _ignored(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Symbol()


_BUILTINS: dict[str, Callable[[Interpreter, list[Any], dict[str, Any]], Any]] = {
    "len": _len,
    "range": _range,
    "trange": _range,
    "enumerate": _enumerate,
    "zip": _zip,
    "iter": _iter,
    "next": _next,
    "tqdm": _first,
    "reversed": _first,
    "sorted": _first,
    "track": _first,
    "list": _list,
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
    "isinstance": _ignored,
    "hasattr": _ignored,
    "bool": _first,
}


# The library's ------------------------------------------------------------------------------------------------------


def _divide(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.binary(ast.Div(), args[0], args[1]) if len(args) > 1 else Symbol()


def _multiply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.binary(ast.Mult(), args[0], args[1]) if len(args) > 1 else Symbol()


def _reduce(reduction: Reduction) -> Callable[[Interpreter, list[Any], dict[str, Any]], Any]:
    def apply(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
        value = args[0] if args else Symbol()
        if not isinstance(value, Tensor):
            return value
        return value.reduced(reduction if _is_loss(value) else Reduction.MEAN)

    return apply


def _stack(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else None
    if isinstance(items, (list, tuple)) and items and all(isinstance(item, Tensor) for item in items):
        joined = tuple(part for item in items for part in item.parts)
        # How the stacked losses are reduced later decides their weights, so they are not known.
        return Tensor(joined, v.models_in(items)).scaled(Factor(None))
    return v.Data()


def _chunk(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.chunks(args[1]) if len(args) > 1 else Symbol()


def _split(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.split(args[0], args[1]) if len(args) > 1 else Symbol()


def _data_loader(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    dataset = args[0] if args else kwargs.get("dataset")
    size = kwargs.get("batch_size", args[1] if len(args) > 1 else Num(1))
    return run.new_loader(dataset, size, kwargs)


def _tensor_dataset(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args and isinstance(args[0], v.Data) else Symbol()


def _chain(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if args and all(isinstance(value, v.Parameters) for value in args):
        known = [value.sources for value in args]
        return v.Parameters(None if None in known else frozenset().union(*known))
    return Symbol()


def _cycle(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return run.stream(Symbol("cycle")) if args else Symbol()


def _partial_symbol(run: Interpreter, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return Symbol()


_LIBRARY: dict[str, Callable[[Interpreter, list[Any], dict[str, Any]], Any]] = {
    "div": _divide,
    "true_divide": _divide,
    "mul": _multiply,
    "mean": _reduce(Reduction.MEAN),
    "sum": _reduce(Reduction.SUM),
    "stack": _stack,
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
    "GradScaler": _partial_symbol,
    "autocast": _partial_symbol,
    "ceil": _convert(lambda value: -int(-value // 1)),
    "floor": _convert(lambda value: int(value // 1)),
}
