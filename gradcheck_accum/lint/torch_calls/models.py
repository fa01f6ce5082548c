"""Models: those that calls make, and which of them a value or a name stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import RUNS_MODEL
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Symbol, Tensor
from gradcheck_accum.lint.torch_calls.optimizers import name_of_made


def new_model(
    run: State, node: syntax.Call, cls: v.Class | None = None, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
) -> v.Model:
    """A network made by a call; the same call, reached in the same way, makes the same one."""
    way = (node.where.line, node.where.column - 1, *run.calls.sites)
    return run.made.models.setdefault(way, v.Model(name_of_made(run, node, run.made.models), cls, args, kwargs))


def new_container(run: State, node: syntax.Call, given: Sequence[Any]) -> v.Model:
    """A list or dictionary of networks made by a call: of those that have names, or of some that were made for it."""
    model = new_model(run, node)
    if len(given) == 1 and isinstance(given[0], dict) and all(isinstance(key, str) for key in given[0]):
        model.keys = tuple(given[0])
    items = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
    items = list(given[0].values()) if model.keys else items
    if items and all(isinstance(item, v.Model) for item in items):
        nodes = [part for argument in node.args for part in _written_out(argument)]
        named = all(isinstance(part, (syntax.Name, syntax.Attribute)) for part in nodes)
        model.held, model.of_others = tuple(items), named and len(nodes) == len(items)
    return model


def _written_out(argument: syntax.Expression) -> Sequence[syntax.Expression]:
    """The items of a list or a dictionary that is written out; else the argument itself."""
    match argument:
        case syntax.Dict():
            return argument.values
        case syntax.List() | syntax.Tuple():
            return argument.elts
    return (argument,)


def perhaps_summed(run: State, source: str, computed: Tensor) -> Tensor:
    """What a model, or a method of one, computed: a sum, for all that is known, if its class computes sums."""
    made = (one for one in run.made.models.values() if source == one.name or source.startswith(f"{one.name}."))
    cls = next((one.cls for one in made), None)
    if cls is None:
        return computed
    forward = cls.methods.get("forward")
    sums = run.reach.sums_losses(cls.node) or (forward is not None and run.reach.gives_sums(forward))
    return computed.maybe_summed() if sums else computed


def sources_of(base: Any) -> frozenset[str] | None:
    """The root name of a model whose parameters are asked for."""
    match base:
        case v.Model():
            return base.sources
        case v.Engine():
            return frozenset({base.name})
        case v.Instance():
            return frozenset({base.cls.node.name})
        case v.Parameters():
            return base.sources
        case v.Member():
            return frozenset({base.source})
        case Symbol() if base.name:
            return frozenset({base.name})
    return None


def root_of(name: str) -> frozenset[str]:
    """The model that an unresolved call runs."""
    parent, _, last = name.rpartition(".")
    own = parent and last in RUNS_MODEL
    return frozenset({parent if own else name})
