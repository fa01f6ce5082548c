"""Tests and numbers that a function of the same file computes for its caller: ``if self.is_full(i):``."""

from __future__ import annotations

import ast
import copy

from gradcheck_accum.verify.provenance.bindings import is_parameter, names_bound, owner_of, parameters
from gradcheck_accum.verify.provenance.calls import argument_of, default_of
from gradcheck_accum.verify.provenance.following import Place, class_of_object


def returned_by(call: ast.Call, place: Place, *, may_do_more: bool = False) -> ast.expr | None:
    """What a function of the same file returns, as an expression of its caller.

    None if it does more than return; where it ``may_do_more``, as long as it returns at its end alone.
    """
    match call.func:
        case ast.Name(id=name):
            owner = owner_of(place.syntax, place.scope, name)
            found = [] if owner is None else [b.node for b in names_bound(place.syntax, owner, name)]
            cls = None
        case ast.Attribute(value=ast.Name(id=owner_name), attr=name):
            cls = class_of_object(owner_name, place)
            found = [] if cls is None else [m for m in cls.body if getattr(m, "name", "") == name]
        case _:
            return None
    function = found[0] if len(found) == 1 else None
    if not isinstance(function, ast.FunctionDef):
        return None
    match [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]:
        case [ast.Return(value=ast.expr() as value)]:
            return _in_words_of(call, function, cls, value, place)
        case [*before, ast.Return(value=ast.expr() as value)] if may_do_more:
            nodes = [node for statement in before for node in ast.walk(statement)]
            changed = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
            names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
            if changed.isdisjoint(names) and not any(isinstance(n, ast.Return | ast.Yield) for n in nodes):
                return _in_words_of(call, function, cls, value, place)
    return None


def _in_words_of(
    call: ast.Call, function: ast.FunctionDef, cls: ast.ClassDef | None, value: ast.expr, place: Place
) -> ast.expr | None:
    """``value`` with the arguments of ``call`` in place of the function's parameters."""
    given: dict[str, ast.expr] = {}
    for name in {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}:
        if is_parameter(function, name):
            own = call.func.value if isinstance(call.func, ast.Attribute) else None
            is_object = own is not None and cls is not None and parameters(function)[0].arg == name
            argument = own if is_object else argument_of(call, function, name, cls) or default_of(function, name)
            if argument is None:
                return None
            given[name] = argument
        elif owner_of(place.syntax, function, name) is not owner_of(place.syntax, place.scope, name):
            # The name refers to another variable in the caller.
            return None
    return _Given(given).visit(copy.deepcopy(value))  # type: ignore[no-any-return]


class _Given(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, given: dict[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The expression that is given for a name."""
        return self._given.get(node.id, node)
