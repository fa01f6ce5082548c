"""Networks of the file's own classes: what their methods do to losses and gradients, and the settings that they hold.

What else such a network is does not matter: it computes something from its batch with its weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.functions import call_function
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import walk
from gradcheck_accum.lint.torch_calls.losses import computation
from gradcheck_accum.lint.torch_calls.models import perhaps_summed

_RUNS_IT = frozenset({"forward", "__call__"})


def setting_of(run: State, model: v.Model, name: str) -> Any:
    """What an attribute of a network holds that is no part of it: a number, a text, a list of such; else None."""
    held = _attributes(run, model).get(name) if model.cls is not None else None
    return held if isinstance(held, (Num, str, bool, dict, list)) else None


def keep(run: State, model: v.Model, name: str, value: Any) -> None:
    """``model.name = value``."""
    if model.cls is not None:
        _attributes(run, model)[name] = v.known_as(value, name)


def is_followed(run: State, model: v.Model, name: str) -> bool:
    """Whether a method is in the source, and may scale what it computes or do anything to gradients."""
    method = model.cls.methods.get(name) if model.cls is not None and name not in _RUNS_IT else None
    return method is not None and (run.reach.divides(method) or run.reach.acts(method.body))


def carried_out(
    run: State, node: syntax.Call, model: v.Model, name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What a method that `is_followed` gives; where that is not known, something that the network computes."""
    own = model.cls.bound(name, model) if model.cls is not None else None
    result = call_function(run, own, args, kwargs) if own is not None else Symbol()
    if type(result) is Symbol and not result.name:
        return perhaps_summed(run, model.name, computation(run, node, args, kwargs, frozenset({model.name})))
    return result


def _attributes(run: State, model: v.Model) -> dict[str, Any]:
    """What its ``__init__`` has put into it, apart from what calls have made."""
    if model.instance is None and model.cls is not None:
        model.instance = v.Instance(model.cls)
        init = model.cls.bound("__init__", model.instance)
        if init is not None and isinstance(init.node, syntax.FunctionDef):
            call_function(run, replace(init, node=_without_calls(init.node)), list(model.args), dict(model.kwargs))
    return model.instance.attributes if model.instance is not None else {}


def _without_calls(function: syntax.FunctionDef) -> syntax.FunctionDef:
    """A function with only those of its assignments that call nothing."""
    own = {field: getattr(function, field) for field in syntax.FunctionDef.FIELDS}
    return syntax.FunctionDef(**{**own, "body": tuple(s for s in function.body if _calls_nothing(s))})


def _calls_nothing(statement: syntax.Statement) -> bool:
    is_plain = isinstance(statement, (syntax.Assign, syntax.AnnAssign))
    return is_plain and not any(isinstance(node, syntax.Call) for node in walk(statement))
