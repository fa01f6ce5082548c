"""Calls in a training loop: what PyTorch, Python and the file's own functions do to gradients and batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcheck_accum.ledger.events import Factor, Purpose, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.frameworks.accelerate import as_framework, framework_method, new_framework
from gradcheck_accum.lint.frameworks.deepspeed import as_engine, engine_method, initialized
from gradcheck_accum.lint.frameworks.ignite import drive, new_driver
from gradcheck_accum.lint.interpreter.argument_parsers import Parser, new_parser, parser_method
from gradcheck_accum.lint.interpreter.assignment import assign_in_place
from gradcheck_accum.lint.interpreter.library import BUILTINS, LIBRARY
from gradcheck_accum.lint.interpreter.objects import (
    attribute,
    instantiate,
    is_inherited,
    known_otherwise,
    super_method,
)
from gradcheck_accum.lint.interpreter.written_settings import settings_of_json
from gradcheck_accum.lint.program import names
from gradcheck_accum.lint.program.torch_names import (
    BLENDS_IN_PLACE,
    CHOOSES_AT_RANDOM,
    CHOOSES_ONE,
    CLIPS,
    COMPUTES,
    DIVIDES_IN_PLACE,
    GATES,
    GENERATORS,
    MAKES_ARRAYS,
    MAKES_AT_RANDOM,
    MAKES_CONSTANTS,
    MAKES_DATA,
    MEASURES,
    MULTIPLIES_IN_PLACE,
    OPTIMIZERS,
    PLACE_OF_SIZE,
    RESHAPES,
    STARTS_PROCESSES,
    TAKES_SIZES,
    TAKES_VALUES,
    WRAPPERS,
)
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import call_name, text_of
from gradcheck_accum.lint.torch_calls.data import are_loaders, chosen_at_random, is_shown, one_after_another
from gradcheck_accum.lint.torch_calls.distributed import pause
from gradcheck_accum.lint.torch_calls.gradient_changes import foreach
from gradcheck_accum.lint.torch_calls.gradients import METHODS, backward, clip
from gradcheck_accum.lint.torch_calls.losses import IGNORED, all_arguments, computation, loss
from gradcheck_accum.lint.torch_calls.masks import is_left_out, pads_to_the_longest, weighs_targets
from gradcheck_accum.lint.torch_calls.methods import function_of_data, method_of_value
from gradcheck_accum.lint.torch_calls.metrics import fields_of_text, read, shown_by_call
from gradcheck_accum.lint.torch_calls.models import new_container, new_model, perhaps_summed, root_of, sources_of
from gradcheck_accum.lint.torch_calls.optimizers import as_optimizer, looks_like_optimizer, new_optimizer
from gradcheck_accum.lint.torch_calls.own_networks import is_criterion, judged_by
from gradcheck_accum.lint.torch_calls.schedulers import new_scheduler, with_own_schedule
from gradcheck_accum.lint.torch_calls.stepping_callables import makes_it_step
from gradcheck_accum.lint.torch_calls.weight_averages import new_average, note_update

_FLOAT, _RANGE = Symbol("float"), Symbol("range")
_SCALES_IN_PLACE = DIVIDES_IN_PLACE | MULTIPLIES_IN_PLACE


def call(run: State, node: syntax.Call, scope: v.Scope) -> Any:
    """The value of a call, after what it does to gradients has been recorded."""
    inherited = super_method(run, node, scope)
    if inherited is not None:
        args, kwargs = _arguments(run, node, scope)
        return call_function(run, inherited, args, kwargs)
    if isinstance(node.func, syntax.Attribute):
        base = known_otherwise(node.func.value, run.evaluate(node.func.value, scope))
        method = METHODS.get(node.func.attr)
        if node.func.attr in BLENDS_IN_PLACE:
            note_update(run, node, scope)
        args, kwargs = _arguments(run, node, scope)
        engine = as_engine(run, node, base)
        if engine is not None:
            return engine_method(run, node, engine, node.func.attr, args, kwargs)
        if isinstance(base, v.Driver) and node.func.attr == "run":
            return drive(run, base, args, kwargs)
        if isinstance(base, Parser):
            return parser_method(run, base, node.func.attr, args, kwargs)
        framework = as_framework(base)
        if framework is not None:
            return framework_method(run, node, framework, node.func.attr, args, kwargs)
        fields = fields_of_text(base, args, kwargs) if isinstance(base, str) and node.func.attr == "format" else ()
        shown_by_call(run, node, base, [*all_arguments(args, kwargs), *fields])
        if isinstance(base, v.Measured) or (isinstance(base, v.Gradient) and node.func.attr in MEASURES):
            return v.MEASURED
        if method is not None and not _defines(base, node.func.attr):
            handled = method(run, node, base, args, kwargs)
            if handled is not NotImplemented:
                _keep_in_place_result(run, node, base, handled, scope)
                return handled
        handled = method_of_value(run, node, base, args, kwargs)
        if handled is not NotImplemented:
            if isinstance(handled, v.Chunks) and isinstance(args[0], Num) and args[0].value == handled.count:
                run.note_count(node.args[0], args[0])
            _keep_in_place_result(run, node, base, handled, scope)
            return handled
        callee = run.resolve(attribute(run, base, node.func.attr))
    else:
        callee = run.evaluate(node.func, scope)
        args, kwargs = _arguments(run, node, scope)
        shown_by_call(run, node, callee, all_arguments(args, kwargs))
        if type(callee) is Symbol and callee == _FLOAT and len(args) == 1 and isinstance(args[0], Tensor):
            return read(run, node, args[0])
    if type(callee) is Symbol and callee == _RANGE and node.args and args:
        run.note_count(node.args[-1], args[-1])
    return call_value(run, node, callee, args, kwargs)


def _arguments(run: State, node: syntax.Call, scope: v.Scope) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    for argument in node.args:
        if isinstance(argument, syntax.Starred):
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
            kwargs.update((name, given) for name, given in value.items() if isinstance(name, str))
        else:
            kwargs["**"] = value
    return args, kwargs


def _defines(base: Any, name: str) -> bool:
    return isinstance(base, v.Instance) and name in base.cls.methods


def _keep_in_place_result(run: State, node: syntax.Call, before: Any, result: Any, scope: v.Scope) -> None:
    """``loss.div_(K)`` changes the tensor that the name is bound to."""
    func = node.func
    if isinstance(func, syntax.Attribute) and func.attr in _SCALES_IN_PLACE and isinstance(result, Tensor):
        assign_in_place(run, func.value, before, result, scope)


def _measures(callee: v.Reference | Symbol, args: list[Any]) -> bool:
    """Whether a function of a library computes a number from gradients, or from what was computed from them."""
    given = [one for value in args for one in (value if isinstance(value, (list, tuple)) else [value])]
    if isinstance(callee, Symbol):
        return callee.name in BUILTINS and any(isinstance(one, v.Measured) for one in given)
    if any(isinstance(one, v.Measured) for one in given):
        return callee.path.startswith(COMPUTES) and not callee.tail.endswith("_")
    return (
        callee.tail in MEASURES
        and callee.path.startswith("torch.")
        and any(isinstance(one, v.Gradient) for one in given)
    )


def _draws_a_batch(run: State, name: str, given: list[Any]) -> bool:
    """Whether a call in a training loop gives the next batch: its name says so, and it was given none."""
    named = run.loops.depth > 0 and bool(names.BATCH.fits(name))
    return named and not any(isinstance(a, Tensor) or v.is_data(a) for a in given)


def _is_made_of_chance(run: State, function: v.Function, given: list[Any]) -> bool:
    """Whether what a function gives is made of random numbers alone: it draws some, and was given no data."""
    if not run.loops.depth or not run.reach.draws_at_random(function.node) or run.reach.acts((function.node,)):
        return False
    plain = (Num, str, bool, type(None), v.Chance)
    return all(isinstance(value, plain) or _is_a_number(value) or _is_a_generator(value) for value in given)


def _is_a_generator(value: Any) -> bool:
    """Whether a value is one of Python's or NumPy's generators of random numbers."""
    return isinstance(value, v.Reference) and value.path in GENERATORS.values()


def _is_a_number(value: Any) -> bool:
    """Whether a setting has a number for its default."""
    return v.is_named(value) and isinstance(value.default, (int, float))


def call_value(run: State, node: syntax.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call a value that has been evaluated."""
    match callee:
        case v.Function():
            before = run.recorder.micro_batch
            run.calls.sites.append((node.where.line, node.where.column - 1))
            try:
                result = _carry_out(run, node, callee, args, kwargs)
            finally:
                run.calls.sites.pop()
            if run.recorder.micro_batch == before and _draws_a_batch(run, call_name(node), [*args, *kwargs.values()]):
                # One of this file's functions that cuts a batch out of data it knows of.
                run.draw()
                return result if v.is_data(result) else v.Data()
            if _is_made_of_chance(run, callee, [*args, *kwargs.values()]):
                return v.made_in(result, run.loops.turn)
            if type(result) is Symbol and not result.name and not run.loops.depth and not run.reach.is_own(callee.node):
                # What a module that is read along does not show has the name that it has where that is not read.
                return Symbol(f"{text_of(node)[:80]}{run.calls.turn}")
            return result
        case v.Class():
            return instantiate(run, node, callee, args, kwargs)
        case v.Instance():
            method = None if callee.cls.is_model else callee.cls.bound("__call__", callee)
            if method is not None:
                return _carry_out(run, node, method, args, kwargs)
            return computation(run, node, args, kwargs, sources_of(callee) or frozenset())
        case v.Model() if is_criterion(run, callee, all_arguments(args, kwargs)):
            return judged_by(run, node, callee, args, kwargs)
        case v.Model(of_others=True):
            return computation(run, node, args, kwargs, callee.sources)
        case v.Model() | v.Engine():
            return perhaps_summed(run, callee.name, computation(run, node, args, kwargs, frozenset({callee.name})))
        case v.Criterion():
            return loss(run, callee.name, callee.reduction, args, kwargs, leaves_out=callee.leaves_out)
        case v.BoundMethod():
            return METHODS[callee.node.attr](run, callee.called(node), callee.owner, args, kwargs)
        case v.Partial():
            return call_value(run, node, callee.callee, [*callee.args, *args], {**callee.kwargs, **kwargs})
        case v.Unwrapped() if any(isinstance(a, Tensor) or v.is_data(a) for a in all_arguments(args, kwargs)):
            with run.sync.passed_by(callee.source):
                return computation(run, node, args, kwargs, frozenset({callee.source}))
        case v.Member() if any(isinstance(a, Tensor) or v.is_data(a) for a in all_arguments(args, kwargs)):
            return perhaps_summed(run, callee.source, computation(run, node, args, kwargs, frozenset({callee.source})))
        case v.Configured():
            given = all_arguments(args, kwargs)
            if not any(isinstance(value, Tensor) or v.is_data(value) for value in given):
                return callee  # an object that will compute them
            return computation(run, node, args, kwargs, frozenset()).scaled(Factor(None))
        case v.Optimizer():
            # No optimizer can be called: what a call named so gave is what makes them.
            return new_optimizer(run, node, all_arguments(args, kwargs))
        case v.Reference() | Symbol() if _measures(callee, args):
            return v.MEASURED
        case v.Reference():
            return _library(run, node, callee, args, kwargs)
        case Symbol():
            builtin = BUILTINS.get(callee.name)
            if builtin is not None:
                return builtin(run, args, kwargs)
            if makes_it_step(run, node, args, kwargs):
                return Symbol()
            if callee.name.isidentifier():
                # Nothing in the file defines it: it came with a star import.
                return _library(run, node, v.Reference(callee.name), args, kwargs)
            return _unresolved(run, node, callee.name, args, kwargs)
    return computation(run, node, args, kwargs, frozenset())


def _carry_out(run: State, node: syntax.Call, function: v.Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Execute a function. What another module's function steps is located at the call, if that is a step itself.

    It is called one (an optimizer that another one is wrapped in), is an optimizer's own, or takes a flag for it.
    """
    is_elsewhere = not run.reach.is_own(function.node)
    is_gated = is_elsewhere and any(keyword.arg in GATES for keyword in node.keywords)
    is_an_optimizers = is_elsewhere and _is_an_optimizers(run, node, function)
    is_a_step = is_elsewhere and getattr(function.node, "name", "") == "step" and not run.reach.backward(function.node)
    outer = run.calls.called_at
    run.calls.called_at = node if is_gated or is_an_optimizers else outer or (node if is_a_step else None)
    run.calls.by[function.node] = node
    try:
        return call_function(run, function, args, kwargs)
    finally:
        run.calls.called_at = outer


def _is_an_optimizers(run: State, node: syntax.Call, function: v.Function) -> bool:
    """Whether this file calls a method of an object that only steps and clears: an optimizer of the project's own."""
    if not (run.reach.is_own(node) and isinstance(function.owner, v.Instance)):
        return False
    methods = function.owner.cls.methods.values()
    return run.reach.steps(methods) and not run.reach.backward_in(methods)


def _turn(run: State, maker: str) -> int | None:
    """The turn of a training loop under way, if a function makes other numbers in each."""
    return run.loops.turn if run.loops.depth and maker in MAKES_AT_RANDOM else None


def _library(run: State, node: syntax.Call, callee: v.Reference, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tail, path = callee.tail, callee.path
    handler = LIBRARY.get(tail)
    handled = handler(run, args, kwargs) if handler is not None else NotImplemented
    if handled is not NotImplemented:
        return handled
    if foreach(run, node, path, args):
        return Symbol()
    if tail in CLIPS:
        clip(run, node, args, kwargs)
        return Symbol()
    scheduler = new_scheduler(run, path, args, kwargs)
    if scheduler is not None:
        return scheduler
    average = new_average(run, path, sources_of(args[0]) if args else None)
    if average is not None:
        return average
    if tail in OPTIMIZERS or (path.startswith("torch.optim.") and tail[:1].isupper() and "sched" not in path):
        rate = kwargs.get("lr", args[1] if len(args) > 1 else None)
        optimizer = with_own_schedule(run, new_optimizer(run, node, all_arguments(args, kwargs), rate), kwargs)
        if run.loops.depth:
            run.recorder.renew(node, optimizer)
        return optimizer
    if tail.endswith("Loss") and tail[:1].isupper():
        varies = IGNORED in kwargs or weighs_targets(tail, args[:1], kwargs)
        return v.Criterion(tail, kwargs.get("reduction", "mean"), leaves_out=varies)
    if tail in WRAPPERS and args:
        if path.startswith("torch.") and tail == "DistributedDataParallel":
            run.sync.wrap(sources_of(args[0]) or ())
        if tail == "deepcopy" and isinstance(args[0], v.Model):
            # Its weights are its own from here on.
            return new_model(run, node, args[0].cls)
        return args[0]
    if path.startswith("torch.") and tail.endswith("_like") and args and isinstance(args[0], v.Data):
        kind = tail.removesuffix("_like")
        is_blank = kind == "full" and any(map(is_left_out, args[1:]))
        return v.Data(args[0].rows, made=_turn(run, kind), holds=_held(kind), is_blank=is_blank)
    got = v.got_in(args[0]) if path.startswith("torch.") and tail in MAKES_DATA and args else None
    if got is not None:
        return got  # the same data, as a tensor
    if path.startswith("torch.") and tail in TAKES_VALUES and args and isinstance(args[0], v.Data):
        return replace(args[0], is_tensor=True)
    shape = _shape(run, tail, args, kwargs) if tail in MAKES_DATA | MAKES_ARRAYS else []
    is_array = path.startswith("numpy.") and tail in MAKES_ARRAYS and shape and shape[0] is not None
    if is_array or (path.startswith("torch.") and tail in MAKES_DATA):
        rows = shape[0] if shape else None
        whole = tuple(size for size in shape if size is not None)
        return v.Data(
            rows,
            made=_turn(run, tail),
            holds=v.Holds.CONSTANTS if _are_all_alike(args) else _held(tail),
            is_tensor=True,
            is_blank=tail == "full" and any(map(is_left_out, args[1:])),
            shape=whole if len(whole) == len(shape) else (),
            # Rows for so many windows: whoever made them said so, though not in a number.
            is_counted_out=rows is None and any(map(v.is_multiple_of_steps, _sizes(tail, args, kwargs)[:1])),
        )
    if path.startswith("torch.nn.functional.") and (
        tail.endswith("loss") or tail.startswith(("cross_", "binary_cross", "kl_div"))
    ):
        return loss(run, tail, kwargs.get("reduction", "mean"), args, kwargs)
    if path in ("torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.Sequential"):
        return new_container(run, node, args)
    if path.startswith("torch.nn.") and tail[:1].isupper():
        return new_model(run, node)
    framework = new_framework(path, kwargs) or new_driver(path, args) or new_parser(path)
    if framework is not None:
        return framework
    made_of_data = function_of_data(run, path, args, kwargs)
    if made_of_data is not NotImplemented:
        return made_of_data
    if path == "torch.Generator":
        return v.Chance(f"{path}()")
    if path in GENERATORS:
        return v.Reference(GENERATORS[path])
    if tail in CHOOSES_AT_RANDOM | CHOOSES_ONE and path.removesuffix(f".{tail}") in GENERATORS.values():
        chosen = chosen_at_random(run, all_arguments(args, kwargs))
        if chosen is not NotImplemented:
            return chosen
    if path == "json.loads" and args and isinstance(args[0], str) and not kwargs:
        written = settings_of_json(args[0], node.where)
        if written is not UNKNOWN:
            return written
    if path == "itertools.repeat" and len(args) == 1 and not kwargs:
        return v.Repeated(text_of(node))
    if path == "itertools.chain.from_iterable" and args and isinstance(args[0], v.Repeated):
        return v.Stream.endless()
    if path == "itertools.chain.from_iterable" and args and are_loaders(args[0]):
        return one_after_another(args[0])
    if path in STARTS_PROCESSES and args:
        further = kwargs.get("args", args[1] if len(args) > 1 else ())
        known = list(further) if isinstance(further, (list, tuple)) else []
        call_value(run, node, args[0], [Symbol("process_index"), *known], {})
        return Symbol()
    if path == "deepspeed.initialize":
        return initialized(run, node, args, kwargs)
    if path == "torch.autograd.backward":
        return backward(run, node, v.Reference("torch.autograd"), args, kwargs)
    return _unresolved(run, node, path, args, kwargs)


def _are_all_alike(args: list[Any]) -> bool:
    """Whether a tensor is made of one number, written several times."""
    values = args[0] if args else None
    numbers = values if isinstance(values, list) and values and isinstance(values[0], Num) else []
    return bool(numbers) and all(one == numbers[0] for one in numbers)


def _held(tail: str) -> v.Holds:
    """What a function of PyTorch that makes data makes."""
    if tail in ("randperm", "permutation"):
        return v.Holds.PLACES
    return v.Holds.CONSTANTS if tail in MAKES_CONSTANTS else v.Holds.VALUES


def _shape(run: State, tail: str, args: list[Any], kwargs: dict[str, Any]) -> list[int | None]:
    """The shape of what a function of PyTorch makes, as far as its arguments show it: of values, how many there are."""
    if tail in TAKES_VALUES:
        return _shape_of_values(run, args[0]) if args else []
    if tail == "arange" and len(args) > 1:
        known = [one.value for one in args[:3] if is_shown(one) and isinstance(one.value, int)]
        return [len(range(*known)) if len(known) == len(args) and known[2:] != [0] else None]
    sizes = _sizes(tail, args, kwargs)
    # The order of all rows of data that do not show how many they are: they are no micro-batch's.
    sizes = [None if tail in ("randperm", "permutation") and not is_shown(one) else one for one in sizes]
    return [one.value if isinstance(one, Num) and isinstance(one.value, int) else None for one in sizes]


def _sizes(tail: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """What a function of PyTorch that makes data is asked for, one size for each dimension."""
    place = PLACE_OF_SIZE.get(tail, 0)
    size = kwargs.get("size", args[place] if len(args) > max(place, 0) else None)
    if isinstance(size, (list, tuple)) and size:
        return list(size)
    if tail == "eye" and len(args) == 1:
        return [*args, *args]
    return args if tail in TAKES_SIZES else [size]


def _shape_of_values(run: State, values: Any) -> list[int | None]:
    """The shape of a tensor of these values; a None for what else there may be, where they may be lists themselves."""
    if not isinstance(values, list) or not values or id(values) in run.iterated.grown:
        return [] if isinstance(values, Num) else [None]
    inner = [_shape_of_values(run, one) for one in values]
    return [len(values), *(inner[0] if all(one == inner[0] for one in inner) else [None])]


def _unresolved(run: State, node: syntax.Call, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call of something that this file does not define."""
    given = all_arguments(args, kwargs)
    owner, _, tail = name.rpartition(".")
    if tail == "no_sync" and owner:
        return pause(run, Symbol(owner), True)
    if names.STEPS.fits(tail):
        return Symbol(text_of(node))
    inherited = is_inherited(run, name)
    acts = bool(names.ACTS_ON_GRADIENTS.fits(tail)) and not names.SCHEDULE.fits(tail)
    acts = acts and not names.WRITTEN_DOWN.fits(tail)
    has_optimizer = any(as_optimizer(run, value) is not None for value in given)
    makes_optimizer = looks_like_optimizer(tail) and not names.SETTINGS.fits(tail)
    if makes_optimizer and not (run.in_training and has_optimizer and tail[:1].islower()):
        return with_own_schedule(run, new_optimizer(run, node, given), kwargs)
    changes = bool(names.CHANGES_GRADIENTS.fits(tail))
    if run.in_training and ((acts and (has_optimizer or inherited)) or changes):
        run.recorder.opaque(node, f"a call of {tail}, which is defined elsewhere")
        acted = run.recorder.raw[-1]
        result = _unseen(run, node, name, args, kwargs)
        if isinstance(result, Tensor) and not (has_optimizer or changes):
            run.recorder.gave(acted, result)
        return result
    return _unseen(run, node, name, args, kwargs)


def _unseen(run: State, node: syntax.Call, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What a call gives of something that this file does not define."""
    given, tail, inherited = all_arguments(args, kwargs), name.rpartition(".")[2], is_inherited(run, name)
    if _draws_a_batch(run, tail or call_name(node), given):
        run.draw()
        return v.Data()
    if given and names.ENDLESS.fits(tail):
        return v.Stream.endless()
    if run.loops.depth and pads_to_the_longest(kwargs):
        return v.Data(varies=True)
    computes = (
        isinstance(one, (Tensor, v.Data)) or v.is_data(one) or v.models_in(one) or v.cut_off_in(one) for one in given
    )
    if any(computes):
        computed = computation(run, node, args, kwargs, root_of(name) | _wrapped_models(run, given))
        # Its definition may divide its loss, for accumulation too, unless the loop does that itself.
        return computed.scaled(Factor(None, purpose=Purpose.OBJECTIVE)) if inherited else computed
    if len(given) == 1 and isinstance(given[0], (v.Model, v.Parameters, v.Loader)):
        return given[0]
    if name.startswith("torch.") and given and isinstance(given[0], v.Parameters) and _are_numbers(given[1:]):
        return given[0]
    whole = any(map(v.is_multiple_of_steps, given))
    if whole or any(isinstance(value, Num) and value.tags & {v.STEPS, v.DERIVED} for value in given):
        return v.Configured(f"{name}()", whole=whole)
    wrapped = _wrapped_loader(given)
    if wrapped is not None:
        return wrapped
    if inherited or any(v.carries_steps(value) for value in given):
        return Symbol(f"{name}()")
    if not given and (name or run.loops.depth):
        got = f"{name}()" if name else ""
        return v.Got(got, turn=run.loops.turn) if run.loops.depth else Symbol(got)
    return _result_of(run, node, name, given)


def _are_numbers(given: list[Any]) -> bool:
    """Whether all values are numbers, or say how to compute one: which norm, along which dimension."""
    return all(isinstance(value, (Num, str, bool, type(None))) or v.is_setting(value) for value in given)


def _wrapped_models(run: State, given: list[Any]) -> frozenset[str]:
    """The models that a call elsewhere was given to compute something with, and whose gradients are averaged then."""
    sources = [sources_of(value) or frozenset[str]() for value in given if not isinstance(value, v.Parameters)]
    return run.sync.averaged_elsewhere(frozenset[str]().union(*sources))


def _wrapped_loader(given: list[Any]) -> v.Loader | None:
    """What goes on giving the batches of a loader: a progress bar that was given its parent and its title, say.

    What else it was given may have said how many of them, so that this is not known.
    """
    loaders = [value for value in given if isinstance(value, v.Loader)]
    others = [value for value in given if not isinstance(value, v.Loader)]
    if len(loaders) != 1 or not all(isinstance(value, (Symbol, str)) or value is None for value in others):
        return None
    return loaders[0] if not any(isinstance(value, Symbol) for value in others) else replace(loaders[0], length=None)


def _result_of(run: State, node: syntax.Call, name: str, args: list[Any]) -> Any:
    """What an unresolved call gives that got nothing that is known to be data."""
    gives_shape = isinstance(node.func, syntax.Attribute) and node.func.attr in RESHAPES  # and makes no data of it
    if run.loops.depth and not gives_shape and any(isinstance(value, Symbol) for value in args):
        run.draw_made(args)
        factors = (Factor(None),) if any(isinstance(value, v.Scaled) for value in args) else ()
        # What is given the number of rows may give something for each of them.
        for_rows = any(isinstance(value, Num) and v.UNITS in value.tags for value in args)
        part = v.Part(text_of(node.func)[:60], Reduction.MEAN, factors, run.recorder.micro_batch, assumed=for_rows)
        models = root_of(name or text_of(node.func)) | _wrapped_models(run, args)
        if not run.no_graphs:
            run.sync.forward(models)
        return Tensor((part,), models)
    result = f"{text_of(node)[:80]}{run.calls.turn}"
    if run.loops.depth:
        run.forget(result)
    return Symbol(result)
