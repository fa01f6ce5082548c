"""Finds the number that a test compares a counter of micro-batches with.

A counter of micro-batches is a number taken modulo another, or one that is reset where it has been compared; and it
counts one at a time, since samples and tokens have other bounds. The length of the data is not K: it shows where a pass
ends. The modulus of that length, in a test for a remainder, is K.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from gradcheck_accum.verify.provenance.bindings import assigned, owner_of
from gradcheck_accum.verify.provenance.following import Place, class_of_object, sources_of
from gradcheck_accum.verify.provenance.lines import Bound, Line
from gradcheck_accum.verify.provenance.returned import returned_by

_MOST_NAMES = 4
"""The number of names that a test, or a length, is followed through."""

_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


def bounds_of_test(
    test: ast.expr, holds: bool, line: Line, region: Sequence[ast.AST] | None, names: int = _MOST_NAMES
) -> Iterator[Bound]:
    """The bounds that counters have reached at ``line``, given that a test holds or does not.

    ``region`` is the code that runs because of that; None where it follows a loop that counts by itself.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from bounds_of_test(inner, not holds, line, region, names)
        case ast.BoolOp(values=values):
            for value in values:
                yield from bounds_of_test(value, holds, line, region, names)
        case ast.NamedExpr(value=inner):
            yield from bounds_of_test(inner, holds, line, region, names)
        case ast.BinOp(left=counter, op=ast.Mod(), right=bound) if not holds or is_length(counter, line.place):
            yield from _modulus(counter, bound, line)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            kind = type(op) if holds else _OPPOSITES.get(type(op))
            yield from _compared(left, kind, right, line, region)
        case ast.Name() | ast.Attribute() if names:
            sources = sources_of(test, line.place)
            for value, at in sources.values if sources.known else ():
                if _is_test(value):
                    yield from bounds_of_test(value, holds, Line(at, value, line.chains), region, names - 1)
        case ast.Call() if names:
            inner_test = returned_by(test, line.place, may_do_more=True)
            if inner_test is not None:
                yield from bounds_of_test(inner_test, holds, line, region, names - 1)


def is_length(node: ast.expr, place: Place, names: int = _MOST_NAMES) -> bool:
    """Whether a number is computed from the length of something."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len":
            return True
        if names and isinstance(inner, (ast.Name, ast.Attribute)):
            values = sources_of(inner, place).values
            if any(is_length(value, at, names - 1) for value, at in values):
                return True
    return False


def _compared(
    left: ast.expr, kind: type[ast.cmpop] | None, right: ast.expr, line: Line, region: Sequence[ast.AST] | None
) -> Iterator[Bound]:
    for counted in (left, right):
        match counted:
            case ast.BinOp(left=counter, op=ast.Mod(), right=bound):
                is_asked = kind is ast.Eq or is_length(counter, line.place)
                yield from _modulus(counter, bound, line) if is_asked else ()
                return
    # ``count > K`` counts to K, too: whether a window has one more or one less is observed, not read from the source.
    pairs = {
        ast.Eq: [(left, right), (right, left)],
        ast.GtE: [(left, right)],
        ast.Gt: [(left, right)],
        ast.LtE: [(right, left)],
        ast.Lt: [(right, left)],
    }
    for counter, bound in pairs.get(kind, ()) if kind is not None else ():
        if not is_length(bound, line.place) and _counts_windows(counter, line, region):
            number = _named_bound(bound)
            yield Bound(number, line.place, count=counter if number is bound else None)
            return


def _modulus(counter: ast.expr, bound: ast.expr, line: Line) -> Iterator[Bound]:
    if is_length(counter, line.place):
        yield Bound(bound, line.place)
        return
    parts = [node for node in ast.walk(counter) if _is_plain(node)]
    in_groups = any(isinstance(node, ast.FloorDiv) for node in ast.walk(counter))
    by_one = not in_groups and all(_grows_by_one(part, line) for part in parts)
    if by_one and not is_length(bound, line.place) and not _counts_passes(counter, line):
        yield Bound(bound, line.place, counter, _first_of(counter, line))


def _first_of(counter: ast.expr, line: Line) -> int | None:
    """The value of ``i``, or ``i`` plus a constant, in the first turn of its loop; None where that is not explicit."""
    match counter:
        case ast.BinOp(left=inner, op=ast.Add() | ast.Sub() as op, right=ast.Constant(value=int(constant))):
            first = _first_of(inner, line)
            return None if first is None else first + (constant if isinstance(op, ast.Add) else -constant)
        case ast.Name(id=name):
            loops = [loop for loop in line.loops if isinstance(loop, (ast.For, ast.AsyncFor))]
            return next((_start(loop.iter) for loop in loops if _counts(loop.target, name)), None)
    return None


def _counts(target: ast.expr, name: str) -> bool:
    """Whether a loop's target names the number of its turn: ``for name in`` or ``for name, item in``."""
    match target:
        case ast.Name(id=own) | ast.Tuple(elts=[ast.Name(id=own), _]):
            return own == name
    return False


def _start(source: ast.expr) -> int | None:
    """The first number of ``enumerate`` or ``range``, where it is explicit."""
    match source:
        case (
            ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[])
            | ast.Call(func=ast.Name(id="range"), args=[_])
        ):
            return 0
        case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(start)), _]):
            return start
        case ast.Call(func=ast.Name(id="enumerate"), args=[_, ast.Constant(value=int(start))]):
            return start
        case ast.Call(
            func=ast.Name(id="enumerate"),
            args=[_],
            keywords=[ast.keyword(arg="start", value=ast.Constant(value=int(start)))],
        ):
            return start
        case ast.Call(func=ast.Name(id="tqdm") | ast.Attribute(attr="tqdm"), args=[inner, *_]):
            return _start(inner)
    return None


def _named_bound(bound: ast.expr) -> ast.expr:
    """The K of ``count == K - 1``: whether a window has one more or one less is observed, not read from the source."""
    match bound:
        case ast.BinOp(left=inner, op=ast.Sub(), right=ast.Constant(value=1)):
            return inner
    return bound


def _counts_windows(counter: ast.expr, line: Line, region: Sequence[ast.AST] | None) -> bool:
    """Whether what is compared grows by one, and is reset with each window."""
    match counter:
        case ast.BinOp(left=inner, op=ast.Add() | ast.Sub(), right=ast.Constant()):
            counter = inner
    match counter:
        case ast.Call(func=ast.Name(id="len"), args=[inner]):
            counter = inner
    if not _is_plain(counter):
        return False
    texts = _texts(counter, line)
    if not any(_grows(node, texts) for node in _changes(counter, line)) or not _grows_by_one(counter, line):
        return False
    return region is None or any(
        _resets(n, texts) for root in _may_reset(counter, line, region) for n in ast.walk(root)
    )


def _is_plain(node: ast.AST) -> TypeGuard[ast.Name | ast.Attribute]:
    """Whether it is a name, or an attribute of one."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))


def _may_reset(counter: ast.expr, line: Line, region: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Where a counter may be reset: behind the test, in a method called there, or in the loop or function around it."""
    yield from region
    scope = line.place.scope
    if line.loops:
        yield from line.loops[0].body
    elif isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from scope.body
    cls = _class_about(counter, line)
    calls = {node.attr for root in region for node in ast.walk(root) if isinstance(node, ast.Attribute)}
    if cls is not None:
        yield from (method for method in cls.body if getattr(method, "name", None) in calls)


def _changes(counter: ast.expr, line: Line) -> Iterator[ast.AST]:
    """The nodes that may change a counter: in its class, or where its name is the same variable."""
    cls, syntax = _class_about(counter, line), line.place.syntax
    name = next(node.id for node in ast.walk(counter) if isinstance(node, ast.Name))
    owner = owner_of(syntax, line.place.scope, name)
    kinds = (ast.AugAssign, ast.Assign, ast.For, ast.Call)
    for node in (node for node in syntax.walk(cls or owner or syntax.tree) if isinstance(node, kinds)):
        if cls is not None or owner_of(syntax, syntax.scope_of(node), name) is owner:
            yield node


def _texts(counter: ast.Name | ast.Attribute, line: Line) -> frozenset[str]:
    """How a counter is written: ``window.held`` of an object is ``self.held`` in the methods of its class."""
    texts = {ast.unparse(counter)}
    if isinstance(counter, ast.Attribute) and _class_about(counter, line) is not None:
        texts.add(f"self.{counter.attr}")
    return frozenset(texts)


def _class_about(counter: ast.expr, line: Line) -> ast.ClassDef | None:
    match counter:
        case ast.Attribute(value=ast.Name(id=name)):
            return class_of_object(name, line.place)
    return None


def _grows_by_one(counter: ast.Name | ast.Attribute, line: Line) -> bool:
    """Whether nothing shows that a number grows by something else than one."""
    texts = _texts(counter, line)
    for node in _changes(counter, line):
        match node:
            case ast.AugAssign(target=target, op=ast.Add(), value=value) if ast.unparse(target) in texts:
                if not (isinstance(value, ast.Constant) and value.value == 1):
                    return False
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=[_, _, _])):
                if name in texts:
                    return False
    return True


def _counts_passes(counter: ast.expr, line: Line) -> bool:
    """Whether everything counted belongs to loops around the one that runs the micro-batches."""
    names = {node.id for node in ast.walk(counter) if isinstance(node, ast.Name)}
    own = next((number for number, loop in enumerate(line.loops) if line.any_ran_in(loop.body)), len(line.loops))
    outside = {
        node.id
        for loop in line.loops[own + 1 :]
        if isinstance(loop, (ast.For, ast.AsyncFor))
        for node in ast.walk(loop.target)
        if isinstance(node, ast.Name)
    }
    return bool(names) and names <= outside


def _resets(node: ast.AST, texts: frozenset[str]) -> bool:
    """Whether ``node`` resets a variable that is written in one of the ways ``texts``."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [pair for target in targets for pair in assigned(target, value)]
            return any(ast.unparse(own) in texts and not _is_made_of(given, texts) for own, given in pairs)
        case ast.Call(func=ast.Attribute(value=owner, attr="clear")):
            return ast.unparse(owner) in texts
        case ast.Delete(targets=targets):
            return any(ast.unparse(t).partition("[")[0] in texts for t in targets)
        case ast.AugAssign(target=target, op=ast.Sub()):
            return ast.unparse(target) in texts
    return False


def _grows(node: ast.AST, texts: frozenset[str]) -> bool:
    """Whether ``node`` increments a variable that is written in one of the ways ``texts``, or appends to it."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add()):
            return ast.unparse(target) in texts
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add(), right=ast.Constant(value=1)) as value):
            return ast.unparse(target) in texts and _is_made_of(value, texts)
        case ast.Call(func=ast.Attribute(value=owner, attr="append")):
            return ast.unparse(owner) in texts
    return False


def _is_made_of(node: ast.expr | None, texts: frozenset[str]) -> bool:
    nodes = () if node is None else ast.walk(node)
    return any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) in texts for n in nodes)


def _is_test(node: ast.expr) -> bool:
    """Whether a name's value is computed: a constant is no test."""
    return not isinstance(node, ast.Constant)
