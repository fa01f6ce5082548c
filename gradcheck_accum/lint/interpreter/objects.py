"""Objects: classes of the file, their attributes and methods, and the models that calls make."""

from __future__ import annotations

from typing import Any

from gradcheck_accum.ledger.events import Factor, Reduction
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.program.facts import is_left_open
from gradcheck_accum.lint.program.names import CRITERION
from gradcheck_accum.lint.program.torch_names import CONSTANTS, MEMBERS_OF_LOADERS, SCHEDULERS
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import last_name, text_of
from gradcheck_accum.lint.torch_calls.models import new_model
from gradcheck_accum.lint.torch_calls.optimizers import new_optimizer
from gradcheck_accum.lint.torch_calls.own_networks import held_by
from gradcheck_accum.lint.torch_calls.schedulers import own_scheduler, with_own_schedule

_NO_CALL = syntax.Call(syntax.NOWHERE, None, syntax.Name(syntax.NOWHERE, None, ""), (), ())
"""Stands for the call that makes an object which no call of the source makes."""
_LOSS_OF_OUTPUT = frozenset({"loss", "item"})
"""The members of a model's output that may be the loss which it computed."""


def instantiate(run: State, node: syntax.Call, cls: v.Class, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """An object of a class of this file."""
    if cls.is_model:
        return new_model(run, node, cls, args, kwargs)
    if _is_optimizer(run, cls):
        return with_own_schedule(run, new_optimizer(run, node, [*args, *kwargs.values()]), kwargs)
    if any(path.startswith(SCHEDULERS) for path in _library_bases(run, cls)):
        return own_scheduler(run, cls, args, kwargs)
    instance = v.Instance(cls)
    init = cls.bound("__init__", instance)
    if init is not None:
        call_function(run, init, args, kwargs)
    elif any(map(_makes_a_dataclass, cls.node.decorator_list)):
        fields = {
            s.target.id: s.value
            for s in cls.node.body
            if isinstance(s, syntax.AnnAssign) and isinstance(s.target, syntax.Name)
        }
        given = {**dict(zip(fields, args, strict=False)), **kwargs}
        # What a field is made by is made for each object.
        made = {name: value for name, value in fields.items() if isinstance(value, syntax.Call) and name not in given}
        instance.attributes.update({name: run.evaluate(value, cls.scope) for name, value in made.items()})
        instance.attributes.update(given)
    return instance


def _makes_a_dataclass(decorator: syntax.Expression) -> bool:
    """``@dataclass``, with options or without, by whichever name its module is called."""
    return last_name(decorator.func if isinstance(decorator, syntax.Call) else decorator) == "dataclass"


def value_of_field(run: State, options: dict[str, Any]) -> Any:
    """``dataclasses.field(...)``: what an object has that was not given another value for this field."""
    factory = options.get("default_factory")
    match factory:
        case v.Function():
            return call_function(run, factory, [], {})
        case v.Class() if not factory.is_model and not _is_optimizer(run, factory):
            return instantiate(run, _NO_CALL, factory, [], {})
        case Symbol(name="list"):
            return []
        case Symbol(name="dict"):
            return {}
    return options.get("default", UNKNOWN)


def _is_optimizer(run: State, cls: v.Class) -> bool:
    """Whether a class derives from PyTorch's optimizers, and but for its own way to step does nothing to gradients."""
    derives = any(
        path.startswith("torch.optim.") and not path.startswith(SCHEDULERS) for path in _library_bases(run, cls)
    )
    if not derives:
        return False
    others = [method for name, method in cls.methods.items() if not name.startswith("_") and name != "step"]
    acting = [method.name for method in others if run.reach.touches_gradients(method.body)]
    return all(run.reach.is_part_of(name, "step") for name in acting)


def _library_bases(run: State, cls: v.Class) -> list[str]:
    """The dotted names of the classes of a library that a class derives from."""
    bases = (run.evaluate(base, cls.scope) for base in cls.node.bases)
    return [base.path for base in bases if isinstance(base, v.Reference)]


def _factors_of_each(part: v.Part) -> tuple[Factor, ...]:
    """What every item of a call's losses was multiplied by since; the call may have divided any of them before."""
    since = tuple(factor for factor in part.factors if factor.value is not None)
    return (Factor(None), *since) if part.given_divisor else since


def make_class(run: State, node: syntax.ClassDef, scope: v.Scope) -> v.Class:
    methods = {
        m.name: m for m in node.body if isinstance(m, syntax.FunctionDef) and not _is_setter(m) and not is_left_open(m)
    }
    bases = [run.evaluate(base, scope) for base in node.bases]
    names = [text_of(base) for base in node.bases]
    is_model = any(name.endswith("Module") and "Lightning" not in name for name in names)
    origins: dict[str, v.Scope] = {}
    for base in bases:
        if isinstance(base, v.Class):
            if base.scope is not scope:
                inherited = {name: base.origins.get(name, base.scope) for name in base.methods if name not in methods}
                origins = {**inherited, **origins}
            else:
                origins = {**base.origins, **origins}
            methods = {**base.methods, **methods}
            is_model = is_model or base.is_model
    harmless = {"object", "ABC", "Generic", "Protocol"}
    complete = all(
        (isinstance(base, v.Class) and base.complete) or name.rpartition(".")[2] in harmless
        for base, name in zip(bases, names, strict=True)
    )
    # What derives from nothing is no network, whatever its methods are called: its `forward` is one like others.
    is_model = is_model or ("forward" in methods and not complete)
    return v.Class(node, scope, methods, complete, is_model, origins)


def super_method(run: State, node: syntax.Call, scope: v.Scope) -> v.Function | None:
    """The method that ``super().name(...)`` calls, where the base class is in this file."""
    func = node.func
    if not (isinstance(func, syntax.Attribute) and isinstance(func.value, syntax.Call)):
        return None
    if not (isinstance(func.value.func, syntax.Name) and func.value.func.id == "super"):
        return None
    holder = scope.find("self")
    instance = holder.names["self"] if holder else None
    if not isinstance(instance, v.Instance):
        return None
    for base in instance.cls.node.bases:
        parent = run.evaluate(base, instance.cls.scope)
        if isinstance(parent, v.Class) and func.attr in parent.methods:
            return parent.bound(func.attr, instance)
    return None


def is_inherited(run: State, name: str) -> bool:
    """Whether a dotted name is a method that a class of this file has from a base elsewhere, or leaves to others.

    A method of an object that it holds (``self.writer.update``) is not its own.
    """
    owner, _, method = name.partition(".")
    reach = run.reach
    if "." in method:
        return False
    return owner in reach.open_classes or method in reach.left_open or reach.is_empty(owner, method)


def known_otherwise(node: syntax.Expression, value: Any) -> Any:
    """What is asked for a member: where that was None, somebody has put something there that is not in sight."""
    return Symbol(text_of(node)) if value is None else value


def attribute(run: State, value: Any, name: str) -> Any:
    """``value.name``."""
    match value:
        case v.Instance():
            if name in value.attributes:
                return value.attributes[name]
            function = value.cls.bound(name, value)
            if function is not None:
                return call_function(run, function, [], {}) if _is_property(function.node) else function
            held = _class_constant(run, value.cls, name)
            return held if held is not None else Symbol(f"{value.cls.node.name}.{name}")
        case v.Engine():
            return value if name == "module" else Symbol(f"{value.name}.{name}")
        case v.Model() | Symbol() if name == "module" and run.sync.is_wrapped({value.name}):
            return v.Unwrapped(f"{value.name}.module", source=value.name)
        case v.Model() if name == "no_sync":
            return Symbol(f"{value.name}.{name}")
        case v.Model() if name == "grad":
            # No module has one: this is a weight that the loop made by itself.
            return v.Gradient(frozenset({value.name}))
        case v.Model():
            held = held_by(run, value, name)
            if held is None and value.cls is not None:
                held = _setting_of_class(run, value.cls, name)
            return v.Member(source=f"{value.name}.{name}") if held is None else held
        case v.Class():
            held = _class_constant(run, value, name)
            return held if held is not None else Symbol(f"{value.node.name}.{name}")
        case v.Reference():
            path = f"{value.path}.{name}"
            if path in CONSTANTS:
                return Num(CONSTANTS[path], origins=frozenset({path}))
            return run.member_of_module(value.path, name) or v.Reference(path)
        case Tensor():
            if name == "grad":
                return UNKNOWN
            if name == "data":
                return value.detached()
            if value.parts and (value.parts[0].flow, name) in run.replaced:
                return run.replaced[value.parts[0].flow, name]
            if any(part.name == f".{name}" and part.factors for part in value.parts):
                return value  # `outputs.loss /= K` has left the loss where its output was
            parts = tuple(
                v.Part(
                    f".{name}",
                    Reduction.MEAN,
                    _factors_of_each(part),
                    part.micro_batch,
                    (part.flow, name),
                    given_divisor=part.given_divisor,
                    leaves_out=part.leaves_out and name in _LOSS_OF_OUTPUT,
                )
                for part in value.parts[:1]
            )
            return Tensor(parts, value.models, cut_off=value.cut_off)
        case v.Data():
            return ("shape", value) if name == "shape" else value
        case v.Parameters() if name == "grad":
            return v.Gradient(value.sources)
        case v.Parameters() if name == "data":
            return value
        case v.Parameters() if name == "requires_grad":
            # Those that take no gradients have none that anything could happen to.
            return True
        case v.Gradient():
            return value
        case v.Function() if name in value.attributes:
            return value.attributes[name]
        case v.Framework() if name == "gradient_accumulation_steps":
            return run.resolve(value.divisor)
        case v.Framework() if name == "sync_gradients":
            return not run.gate.is_shut
        case v.Optimizer() if name == "param_groups":
            return [v.Group(value.name, value.sources)]
        case v.Loader(rows=int(rows), generated=False) if name == "batch_size":
            return Num(rows, frozenset({v.UNITS}))  # as its batches say of themselves
        case v.Loader() if name in MEMBERS_OF_LOADERS:
            return UNKNOWN
        case v.Criterion() if name == "reduction":
            return UNKNOWN if value.reduction is None else value.reduction
        case Symbol() if name == "reduction" and CRITERION.fits(value.name):
            return "mean"  # as the losses are taken that it gives
        case Symbol():
            if name == "param_groups":
                return [v.Group(value.name, None)]
            return value.member(name)
    return UNKNOWN


def _is_setter(node: syntax.FunctionDef) -> bool:
    """Whether a method is what a property calls when it is assigned to or deleted."""
    return any(isinstance(d, syntax.Attribute) and d.attr in {"setter", "deleter"} for d in node.decorator_list)


def _is_property(node: syntax.Node) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(d, syntax.Name) and d.id in {"property", "cached_property"} for d in decorators)


def _class_constant(run: State, cls: v.Class, name: str) -> Any:
    """The value of a class attribute.

    If a method assigns it on the class itself, it is a setting, and the value in the class body is the default.
    """
    if name in cls.attributes:
        return cls.attributes[name]
    held = _written_in(run, cls, name)
    if held is not None and name in run.reach.settings_of(cls.node):
        default = held.value if isinstance(held, Num) and isinstance(held.value, (int, float)) else None
        return run.resolve(Symbol(f"{cls.node.name}.{name}", default))
    return held


def _setting_of_class(run: State, cls: v.Class, name: str) -> Any:
    """A number or a text that the class of a network, or one that this derives from, has for all its objects."""
    own: list[v.Class] = [cls]
    for each in own:
        if name in run.reach.set_on_objects(each.node):
            return None
        held = _class_constant(run, each, name)
        if held is not None:
            return held if isinstance(held, (Num, str, bool)) or v.is_setting(held) else None
        bases = (run.evaluate(base, each.scope) for base in each.node.bases)
        own += [base for base in bases if isinstance(base, v.Class) and base not in own]
    return None


def _written_in(run: State, cls: v.Class, name: str) -> Any:
    """What the body of a class gives a name."""
    for statement in cls.node.body:
        if not isinstance(statement, (syntax.Assign, syntax.AnnAssign)) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, syntax.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, syntax.Name) and target.id == name:
                return run.evaluate(statement.value, cls.scope)
            if isinstance(target, syntax.Tuple) and isinstance(statement.value, syntax.Tuple):
                pairs = zip(target.elts, statement.value.elts, strict=False)
                held = [value for one, value in pairs if isinstance(one, syntax.Name) and one.id == name]
                if held:
                    return run.evaluate(held[0], cls.scope)
    return None
