"""Which tests and loops of a function decide on the running line, and on the length of its window.

A test decides on a line that is in its body, or after it if it is a guard that leaves the block; and it decides on a
window's length if not all of the window's backwards ran behind it, too, as in a loop that trains something only every
n-th turn. A loop that ends before the line and contains backwards counts to its bound.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence

from gradcheck_accum.verify.provenance.counters import bounds_of_test, is_length
from gradcheck_accum.verify.provenance.following import Place, sources_of
from gradcheck_accum.verify.provenance.lines import LOOPS, Bound, Line, called
from gradcheck_accum.verify.provenance.syntax import what_may_run

_LEAVES = (ast.Continue, ast.Return, ast.Break)
_ALONG = frozenset({"enumerate", "zip", "tqdm", "list", "tuple", "iter", "reversed"})
"""Functions that yield one item for each of their argument's."""

_PARTED = frozenset({"chunk", "tensor_split", "array_split"})
"""Functions that split data into as many parts as their last argument says."""

_MADE = (ast.Call, ast.Subscript, ast.ListComp, ast.GeneratorExp)
"""What a variable may be bound to that gives as many items as the source says."""


def deciding_bounds(line: Line) -> list[Bound] | None:
    """What the innermost test or loop that decides on a line counts to; None where there is none in its function.

    The list is empty where a loop contained the backwards and the source does not show its number of turns.
    """
    node = line.node
    for outer in line.place.syntax.around(node):
        found = None if outer is line.place.scope else _around(line, outer, node)
        found = _before(line, outer, node) if found is None else found
        if found is not None or outer is line.place.scope:
            return found
        node = outer
    return None


def number_of_parts(line: Line) -> ast.expr | None:
    """The number of parts that the innermost loop around a line cuts data into, to train on one in each turn."""
    loop = line.loops[0] if line.loops else None
    if loop is None or isinstance(loop, ast.While) or not line.any_ran_in(loop.body):
        return None
    return _number_of_parts(loop.iter, line.place)


def _number_of_parts(node: ast.expr, place: Place) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PARTED:
            return _parts(node)
    return _first(_number_of_parts, _as_many(node, place))


def _around(line: Line, outer: ast.AST, node: ast.AST) -> list[Bound] | None:
    """What ``outer`` tests before it reaches its child ``node``."""
    match outer:
        case ast.If(test=test, body=body, orelse=orelse) if node is not test:
            return _decisive(line, [(test, node in body)], body if node in body else orelse)
        case ast.IfExp(test=test, body=chosen) if node is not test:
            return _decisive(line, [(test, node is chosen)], [node])
        case ast.BoolOp(values=values, op=op):
            earlier = values[: next(number for number, value in enumerate(values) if value is node)]
            return _decisive(line, [(value, isinstance(op, ast.And)) for value in earlier], [node])
    return None


def _before(line: Line, outer: ast.AST, node: ast.AST) -> list[Bound] | None:
    """What comes before ``node`` in its block: guards that leave, and loops that have ended."""
    block = next((block for block in _blocks(outer) if node in block), [])
    position = next((number for number, own in enumerate(block) if own is node), 0)
    for number in range(position - 1, -1, -1):
        before, found = block[number], None
        if isinstance(before, ast.If) and isinstance(before.body[-1], _LEAVES) and not before.orelse:
            found = _decisive(line, [(before.test, False)], block[number + 1 :])
        elif isinstance(before, LOOPS) and line.any_ran_in(before.body):
            found = _bounds_of_loop(line, before)
        if found is not None:
            return found
    return None


def _decisive(line: Line, tests: Sequence[tuple[ast.expr, bool]], region: Sequence[ast.AST]) -> list[Bound] | None:
    """The bounds of tests with these results, if they decide on a window: not all of it ran in their ``region``."""
    found = [bound for test, holds in tests for bound in bounds_of_test(test, holds, line, region)]
    return found if found and not line.all_ran_in(region) else None


def _bounds_of_loop(line: Line, loop: ast.For | ast.AsyncFor | ast.While) -> list[Bound]:
    """The number of turns of a loop that has ended; empty where it is not explicit, or where the loop itself steps.

    A step after a loop that steps is for what the loop has left over. Calls in a function that is only defined in the
    loop, or in code that never runs, are ignored.
    """
    scope_of, scope = line.place.syntax.scope_of, line.place.scope
    if line.calls and any(called(node) == line.calls and scope_of(node) is scope for node in what_may_run(loop)):
        return []
    if isinstance(loop, ast.While):
        # It counts from the start whenever it is entered.
        return list(bounds_of_test(loop.test, False, line, None))
    bound = _length_of(loop.iter, line.place)
    if bound is not None and is_length(bound, line.place):
        bound = None
    listed = tuple(_lists_in(loop.iter))
    return [Bound(bound, line.place, listed=listed)] if bound is not None or listed else []


def _lists_in(node: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """What has as many items as a loop over ``node`` has turns, by name: ``window`` in ``range(len(window))``."""
    match node:
        case ast.Name() | ast.Attribute():
            yield node
        case ast.Call(func=ast.Name(id="range"), args=[ast.Call(func=ast.Name(id="len"), args=[inner])]):
            yield from _lists_in(inner)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_]) if name in _ALONG:
            for inner in node.args:
                yield from _lists_in(inner)


def _length_of(node: ast.expr, place: Place) -> ast.expr | None:
    """The number of turns of a loop over ``node``, where the source shows it."""
    match node:
        case ast.Call(func=ast.Name(id="range"), args=[bound] | [ast.Constant(value=0), bound]):
            return bound
        case ast.Call(
            func=ast.Name(id="range"),
            args=[ast.Constant(value=1), ast.BinOp(left=bound, op=ast.Add(), right=ast.Constant(value=1))],
        ):
            return bound
        case ast.Call(func=ast.Name(id="islice") | ast.Attribute(attr="islice"), args=[_, bound]):
            return bound
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PARTED:
            return _parts(node)
        case ast.Subscript(slice=ast.Slice(lower=None | ast.Constant(value=0), upper=ast.expr() as bound, step=None)):
            return bound
        case ast.Subscript(
            slice=ast.Slice(lower=ast.expr() as first, upper=ast.BinOp(op=ast.Add()) as last, step=None)
        ):
            return last.right if ast.unparse(last.left) == ast.unparse(first) else None
        case ast.ListComp(generators=[ast.comprehension(iter=source, ifs=[])]):
            return _length_of(source, place)
        case ast.GeneratorExp(generators=[ast.comprehension(iter=source, ifs=[])]):
            return _length_of(source, place)
    return _first(_length_of, _as_many(node, place))


def _as_many(node: ast.expr, place: Place) -> list[tuple[ast.expr, Place]]:
    """What has one item for each of an expression's: what it goes along, or the value that its name is bound to."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_]) if name in _ALONG:
            return [(own, place) for own in node.args]
        case ast.Name():
            values = sources_of(node, place).values
            is_known = len(values) == 1 and isinstance(values[0][0], _MADE) and values[0][1].scope is place.scope
            return list(values) if is_known else []
    return []


def _first(
    look: Callable[[ast.expr, Place], ast.expr | None], where: Iterable[tuple[ast.expr, Place]]
) -> ast.expr | None:
    found = (look(node, place) for node, place in where)
    return next((number for number in found if number is not None), None)


def _parts(call: ast.Call) -> ast.expr | None:
    """The number of parts in ``x.chunk(K)`` or ``torch.chunk(x, K)``."""
    named = [k.value for k in call.keywords if k.arg in ("chunks", "indices_or_sections")]
    if named:
        return named[0]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    first_is_data = owner is None or (isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy"))
    own = call.args[1:] if first_is_data else call.args
    return own[0] if own else None


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
