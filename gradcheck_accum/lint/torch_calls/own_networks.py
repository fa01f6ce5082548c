"""Networks of the file's own classes: what their methods do to losses and gradients, and the settings that they hold.

What else such a network is does not matter: it computes something from its batch with its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradcheck_accum.ledger.events import Factor
from gradcheck_accum.ledger.stated_names import names_steps
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Symbol, Tensor
from gradcheck_accum.lint.syntax import walk
from gradcheck_accum.lint.torch_calls.losses import computation
from gradcheck_accum.lint.torch_calls.models import perhaps_summed

_RUNS_IT = frozenset({"forward", "__call__"})


def held_by(run: State, model: v.Model, name: str) -> Any:
    """What an attribute of a network holds that is no part of it: a number, a text, an optimizer; else None."""
    held = _attributes(run, model).get(name)
    return None if isinstance(held, (v.Model, v.Member)) else held


def keep(run: State, model: v.Model, name: str, value: Any) -> None:
    """``model.name = value``."""
    _attributes(run, model)[name] = v.known_as(value, name)


def is_followed(run: State, model: v.Model, name: str) -> bool:
    """Whether a method is in the source, and may scale what it computes or do anything to gradients.

    So is one that gives several losses by name, of which the loop makes one.
    """
    method = model.cls.methods.get(name) if model.cls is not None and name not in _RUNS_IT else None
    if method is None:
        return False
    scales = run.reach.divides(method) or run.reach.gives_sums(method)
    return scales or run.reach.acts(method.body) or _gives_by_name(method)


def _gives_by_name(method: syntax.FunctionDef) -> bool:
    """Whether a method ends with a dictionary that it writes out."""
    last = method.body[-1]
    return isinstance(last, syntax.Return) and isinstance(last.value, syntax.Dict) and len(last.value.keys) > 1


def carried_out(
    run: State, node: syntax.Call, model: v.Model, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What a method that `is_followed` gives; where that is not known, something that the network computes."""
    result = _given_by(run, model, name, args, kwargs)
    lost = isinstance(result, dict) and not all(isinstance(one, Tensor) for one in result.values())
    if lost or (type(result) is Symbol and not result.name):
        return perhaps_summed(run, model.name, computation(run, node, args, kwargs, frozenset({model.name})))
    return result


def is_criterion(run: State, model: v.Model, given: Sequence[Any]) -> bool:
    """Whether what is called is a loss of the file's own that may divide by K: it is given what a network computed.

    It divides, and holds K, or settings.
    """
    if model.cls is None or "forward" not in model.cls.methods:
        return False
    is_of_outputs = any(isinstance(value, Tensor) and value.models for value in given)
    divides = is_of_outputs and any(map(run.reach.divides, model.cls.methods.values()))
    return divides and any(_tells_steps(run, held) for held in _attributes(run, model).values())


def _tells_steps(run: State, held: Any) -> bool:
    """Whether what an object holds may tell it K: settings, a number with a name of K, or K or 1/K by its value."""
    if not isinstance(held, v.Num):
        return v.carries_steps(held)
    by_name = names_steps(held.origins) or v.carries_steps(held)
    return by_name or (held.value != 0 and not run.knowledge.moduli.isdisjoint({held.value, 1 / held.value}))


def judged_by(run: State, node: syntax.Call, model: v.Model, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The loss that a criterion (`is_criterion`) gives; one of unknown weight where that is not known."""
    result = _given_by(run, model, "forward", args, kwargs)
    if isinstance(result, Tensor):
        return result
    return computation(run, node, args, kwargs, frozenset()).scaled(Factor(None))


def _given_by(run: State, model: v.Model, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    own = model.cls.bound(method, model) if model.cls is not None else None
    return call_function(run, own, args, kwargs) if own is not None else Symbol()


def _attributes(run: State, model: v.Model) -> dict[str, Any]:
    if model.attributes is None:
        model.attributes = {}
        init = model.cls.bound("__init__", model) if model.cls is not None else None
        if init is not None and isinstance(init.node, syntax.FunctionDef):
            call_function(run, replace(init, node=_what_it_sets(run, init.node)), list(model.args), dict(model.kwargs))
            # What it was given may be a network.
            known = {name: held for name, held in model.attributes.items() if not isinstance(held, Symbol)}
            model.attributes = known
    return model.attributes


def _what_it_sets(run: State, function: syntax.FunctionDef) -> syntax.FunctionDef:
    """A function with those of its assignments only that call nothing, or make an optimizer."""
    own = {field: getattr(function, field) for field in syntax.FunctionDef.FIELDS}
    body = tuple(s for s in function.body if isinstance(s, (syntax.Assign, syntax.AnnAssign)))
    return syntax.FunctionDef(
        **{**own, "body": tuple(s for s in body if not _calls(s) or run.reach.makes_optimizers(s))}
    )


def _calls(statement: syntax.Statement) -> bool:
    return any(isinstance(node, syntax.Call) for node in walk(statement))
