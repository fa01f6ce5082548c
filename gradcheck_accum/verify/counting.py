"""What the source at an optimizer's step counts to before it steps: K, as the test or the loop says that decides on it.

A test decides on a step where the running line stands in its body, or behind a guard that leaves; and it decides on a
window's length where not all of the window's backwards ran behind it as well: a loop that trains something only every
so often does both there. What counts is a number taken modulo another, or one that starts anew where it has been
compared. A loop that ends before the step, and holds the backwards, counts to its bound. The length of the data is no
K: it tells where a pass ends.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType, FrameType

from gradcheck_accum.events import WindowBound
from gradcheck_accum.verify.bindings import assigned, attributes_bound, is_parameter, names_bound, owner_of, parameters
from gradcheck_accum.verify.frames import user_frames
from gradcheck_accum.verify.origins import Origins, Place, place_of
from gradcheck_accum.verify.readable import steps_of
from gradcheck_accum.verify.syntax import line_of, own_frame, syntax_of

MOST_FRAMES = 8
_MOST_PLACES = 1024
_MOST_NAMES = 4
"""How often a test, or what a loop runs over, may be given another name."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVES = (ast.Continue, ast.Return, ast.Break)
_ALONG = frozenset({"enumerate", "zip", "tqdm", "trange", "list", "tuple", "iter", "reversed"})
"""What runs over what it is given."""

_PARTED = frozenset({"chunk", "tensor_split", "array_split"})
"""What makes as many parts as its last argument says."""

CallChain = tuple[tuple[CodeType, int], ...]
"""The user's frames at some moment, innermost first: for each its code and the instruction that it is at."""

_Key = tuple[tuple[tuple[int, int], ...], frozenset[tuple[tuple[int, int], ...]]]


@dataclass(frozen=True, slots=True)
class _Bound:
    """Where K stands: in the ``level``-th of the user's frames."""

    node: ast.expr
    level: int
    origins: frozenset[str]


_read: dict[_Key, tuple[list[CallChain], _Bound | None]] = {}
"""What was read at each place of a step, for backwards at these places; code is held, so that its identity is its."""


def call_chain() -> CallChain:
    """Where the user's code is now."""
    return _chain(user_frames(MOST_FRAMES))


def bound_of_window(backwards: Iterable[CallChain]) -> WindowBound | None:
    """What the source counts to that decides on the step which is being made, with a window of these backwards."""
    frames = user_frames(MOST_FRAMES)
    own, ran = _chain(frames), list(backwards)
    key = _named(own), frozenset(map(_named, ran))
    known = _read.get(key)
    if known is None:
        if len(_read) >= _MOST_PLACES:
            _read.clear()
        known = _read[key] = [own, *ran], _search(frames, [chain for chain in ran if chain])
    bound = known[1]
    if bound is None:
        return None
    frame = own_frame(frames[bound.level])
    steps = None if frame is None else steps_of(bound.node, frame)
    return WindowBound(steps, bound.origins) if steps is not None or bound.origins else None


def _chain(frames: Iterable[FrameType]) -> CallChain:
    return tuple((frame.f_code, frame.f_lasti) for frame in frames)


def _named(chain: CallChain) -> tuple[tuple[int, int], ...]:
    return tuple((id(code), instruction) for code, instruction in chain)


def _search(frames: list[FrameType], backwards: list[CallChain]) -> _Bound | None:
    for level, frame in enumerate(frames):
        syntax = syntax_of(frame)
        own = own_frame(frame)
        if syntax is None or own is None:
            continue
        node = syntax.node_at(frame)
        code = own.f_code
        lines = [{line_of(c, instruction) for c, instruction in chain if c is code} for chain in backwards]
        search = _Search(place_of(frame, node, syntax), lines, node)
        decided, bounds = search.nearest(node)
        if bounds:
            # Two numbers that both decide are no K.
            alike = {ast.unparse(bound) for bound in bounds}
            if len(alike) > 1:
                return None
            return _Bound(bounds[0], level, Origins().of(bounds[0], search.place) or frozenset())
        if decided:
            return None
    return None


class _Search:
    """Looks in one function for what decides on the line that it is at."""

    def __init__(self, place: Place, backwards: list[set[int]], running: ast.AST | None = None) -> None:
        self.place = place
        self._running = "" if running is None else _called(running)
        """What is called at the line that runs, and makes the step."""
        self._backwards = backwards
        """The lines of this function at which each of the window's backwards ran."""

    def nearest(self, node: ast.AST) -> tuple[bool, list[ast.expr]]:
        """The bounds that the innermost deciding test or loop compares with.

        And whether the search is over: a loop held the backwards, however often it runs.
        """
        for outer in self.place.syntax.around(node):
            if outer is self.place.scope:
                in_block = self._before(outer, node)
                return in_block or (False, [])
            found = self._around(outer, node) or self._before(outer, node)
            if found is not None:
                return found
            node = outer
        return False, []

    def _around(self, outer: ast.AST, node: ast.AST) -> tuple[bool, list[ast.expr]] | None:
        """What ``outer`` tests before it comes to ``node``, which is a part of it."""
        tests: list[tuple[ast.expr, bool]] = []
        region: list[ast.AST] = [node]
        match outer:
            case ast.If(test=test) if node is not test:
                region = list(outer.body if node in outer.body else outer.orelse)
                tests = [(test, node in outer.body)]
            case ast.IfExp(test=test) if node is not test:
                tests = [(test, node is outer.body)]
            case ast.BoolOp(values=values):
                tests = [(value, isinstance(outer.op, ast.And)) for value in values[: values.index(node)]]  # type: ignore[arg-type]
        return self._decisive(tests, region)

    def _before(self, outer: ast.AST, node: ast.AST) -> tuple[bool, list[ast.expr]] | None:
        """What stands before ``node`` in its block: guards that leave, and loops that ended."""
        block = next((b for b in _blocks(outer) if node in b), [])
        position = block.index(node) if node in block else 0
        for number in range(position - 1, -1, -1):
            before = block[number]
            found = None
            if isinstance(before, ast.If) and isinstance(before.body[-1], _LEAVES) and not before.orelse:
                found = self._decisive([(before.test, False)], [*block[number + 1 :]])
            elif isinstance(before, _LOOPS) and self._any_ran_in(before.body):
                return True, self._bounds_of_loop(before)
            if found is not None:
                return found
        return None

    def _decisive(
        self, tests: Iterable[tuple[ast.expr, bool]], region: list[ast.AST]
    ) -> tuple[bool, list[ast.expr]] | None:
        """The bounds in tests that came out so, if they decide on a window: not all of it ran in their ``region``."""
        found = [bound for test, holds in tests for bound in self._bounds(test, holds, region)]
        if not found or (self._backwards and all(_is_in(lines, region) for lines in self._backwards)):
            return None
        return True, found

    def _any_ran_in(self, region: list[ast.stmt]) -> bool:
        return any(_is_in(lines, region) for lines in self._backwards)

    # Tests

    # In what follows a region of None is a loop that has ended: it counts from the start whenever it runs.

    def _bounds(
        self, test: ast.expr, holds: bool, region: list[ast.AST] | None, names: int = _MOST_NAMES
    ) -> Iterator[ast.expr]:
        """What counters have come to where a test holds, or does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                yield from self._bounds(inner, not holds, region, names)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._bounds(value, holds, region, names)
            case ast.NamedExpr(value=inner):
                yield from self._bounds(inner, holds, region, names)
            case ast.BinOp(left=counter, op=ast.Mod(), right=bound) if not holds:
                yield from self._modulus(counter, bound)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield from self._compared(left, op if holds else _opposite(op), right, region)
            case ast.Name() | ast.Attribute() if names:
                for value, place in self._assigned(test):
                    if not _is_counter(value):
                        elsewhere = _Search(place, self._backwards)
                        yield from elsewhere._bounds(value, holds, region, names - 1)

    def _compared(
        self, left: ast.expr, op: ast.cmpop | None, right: ast.expr, region: list[ast.AST] | None
    ) -> Iterator[ast.expr]:
        for counted in (left, right):
            match counted:
                case ast.BinOp(left=counter, op=ast.Mod(), right=bound) if isinstance(op, ast.Eq):
                    yield from self._modulus(counter, bound)
                    return
        pairs = {ast.Eq: [(left, right), (right, left)], ast.GtE: [(left, right)], ast.LtE: [(right, left)]}
        for counter, bound in pairs.get(type(op), ()):  # type: ignore[arg-type]
            if not self._is_length(bound) and (region is None or self._starts_anew(counter, region)):
                yield bound
                return

    def _modulus(self, counter: ast.expr, bound: ast.expr) -> Iterator[ast.expr]:
        if not self._is_length(bound) and not self._counts_passes(counter):
            yield bound

    def _is_length(self, node: ast.expr, names: int = _MOST_NAMES) -> bool:
        """Whether a number is made of the length of something."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len":
                return True
            if names and isinstance(inner, (ast.Name, ast.Attribute)):
                for value, place in self._assigned(inner):
                    if _Search(place, [])._is_length(value, names - 1):
                        return True
        return False

    def _assigned(self, node: ast.expr) -> list[tuple[ast.expr, Place]]:
        """What is assigned to a name, or to an attribute of a method's own object; nothing where that is not known."""
        syntax, scope = self.place.syntax, self.place.scope
        match node:
            case ast.Name(id=name):
                owner = owner_of(syntax, scope, name)
                if owner is None or is_parameter(owner, name):
                    return []
                found = names_bound(syntax, owner, name)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                owner = owner_of(syntax, scope, name)
                cls = None if owner is None else syntax.class_of(owner)
                if cls is None or isinstance(owner, ast.Module) or owner is None:
                    return []
                if not parameters(owner) or parameters(owner)[0].arg != name:
                    return []
                found = attributes_bound(cls, syntax.scope_of(cls), attribute)
            case _:
                return []
        values = [(b.value, replace(self.place, scope=b.scope)) for b in found if b.value is not None]
        return values if len(values) == len(found) else []

    # Counters

    def _starts_anew(self, counter: ast.expr, region: Iterable[ast.AST]) -> bool:
        """Whether what is compared counts windows: it grows, and starts anew in the loop that compares it."""
        match counter:
            case ast.BinOp(left=inner, op=ast.Add() | ast.Sub(), right=ast.Constant()):
                counter = inner
        match counter:
            case ast.Call(func=ast.Name(id="len"), args=[inner]):
                counter = inner
        match counter:
            case ast.Name() | ast.Attribute(value=ast.Name()):
                text = ast.unparse(counter)
            case _:
                return False
        cls = self.place.syntax.class_of(self.place.scope) if isinstance(counter, ast.Attribute) else None
        whole: ast.AST = cls or self.place.syntax.tree
        if not any(_grows(node, text) for node in ast.walk(whole)):
            return False
        roots = [*region, *self._around_counter(counter, cls)]
        return any(_resets(node, text) for root in roots for node in ast.walk(root))

    def _around_counter(self, counter: ast.expr, cls: ast.ClassDef | None) -> Iterator[ast.AST]:
        """Where a counter may start anew besides: in the loop around it, in its function, or in another method."""
        loop = next((n for n in self.place.syntax.around(counter) if isinstance(n, _LOOPS)), None)
        if loop is not None:
            yield from loop.body
        elif not isinstance(self.place.scope, (ast.Module, ast.Lambda)):
            yield from self.place.scope.body
        if cls is not None:
            yield from (m for m in cls.body if getattr(m, "name", "__init__") != "__init__")

    def _counts_passes(self, counter: ast.expr) -> bool:
        """Whether all that is counted belongs to loops around the one in which the micro-batches run."""
        names = {node.id for node in ast.walk(counter) if isinstance(node, ast.Name)}
        loops = [n for n in self.place.syntax.around(counter) if isinstance(n, _LOOPS)]
        own = next((n for n, loop in enumerate(loops) if self._any_ran_in(loop.body)), len(loops))
        outside = {
            node.id
            for loop in loops[own + 1 :]
            if isinstance(loop, (ast.For, ast.AsyncFor))
            for node in ast.walk(loop.target)
            if isinstance(node, ast.Name)
        }
        return bool(names) and names <= outside

    # Loops

    def _bounds_of_loop(self, loop: ast.stmt) -> list[ast.expr]:
        """How often a loop runs that has ended; nothing where that is not written, or where it steps itself.

        What comes after a loop that steps is for what the loop has left over.
        """
        if self._running and any(_called(node) == self._running for node in ast.walk(loop)):
            return []
        if isinstance(loop, ast.While):
            return list(self._bounds(loop.test, False, None))
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            bound = self._length_of(loop.iter)
            return [] if bound is None or self._is_length(bound) else [bound]
        return []

    def _length_of(self, node: ast.expr, names: int = _MOST_NAMES) -> ast.expr | None:
        """The number of turns of a loop over ``node``, where the source names it."""
        match node:
            case ast.Call(func=ast.Name(id="range"), args=[bound] | [ast.Constant(value=0), bound]):
                return bound
            case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=1), ast.BinOp(op=ast.Add()) as last]):
                return last.left if isinstance(last.right, ast.Constant) and last.right.value == 1 else None
            case ast.Call(func=ast.Name(id="islice") | ast.Attribute(attr="islice"), args=[_, bound]):
                return bound
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _PARTED:
                return _parts(node)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_]) if name in _ALONG:
                found = [self._length_of(own, names) for own in node.args]
                return next((bound for bound in found if bound is not None), None)
            case ast.Name() if names:
                assigned = self._assigned(node)
                return self._length_of(assigned[0][0], names - 1) if len(assigned) == 1 else None
        return None


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _is_in(lines: Iterable[int], region: list[ast.AST] | list[ast.stmt]) -> bool:
    """Whether one of the lines is one of the nodes'."""
    spans = [(getattr(n, "lineno", 0), getattr(n, "end_lineno", 0)) for n in region]
    return any(first <= line <= last for line in lines for first, last in spans)


def _opposite(op: ast.cmpop) -> ast.cmpop | None:
    opposites: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.Gt: ast.LtE}
    found = opposites.get(type(op))
    return found() if found is not None else None


def _is_counter(node: ast.expr) -> bool:
    """Whether it is a number and no test, so that its truth tells nothing of a window."""
    return isinstance(node, ast.Constant)


def _resets(node: ast.AST, text: str) -> bool:
    """Whether ``node`` lets what is written so start anew."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [pair for target in targets for pair in assigned(target, value)]
            return any(ast.unparse(own) == text and not _is_made_of(given, text) for own, given in pairs)
        case ast.Call(func=ast.Attribute(value=owner, attr="clear")):
            return ast.unparse(owner) == text
        case ast.Delete(targets=targets):
            return any(ast.unparse(t).partition("[")[0] == text for t in targets)
        case ast.AugAssign(target=target, op=ast.Sub()):
            return ast.unparse(target) == text
    return False


def _grows(node: ast.AST, text: str) -> bool:
    """Whether ``node`` counts one more, or collects it."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add()):
            return ast.unparse(target) == text
        case ast.Assign(targets=[target], value=ast.BinOp(op=ast.Add()) as value):
            return ast.unparse(target) == text and _is_made_of(value, text)
        case ast.Call(func=ast.Attribute(value=owner, attr="append" | "extend")):
            return ast.unparse(owner) == text
    return False


def _is_made_of(node: ast.expr | None, text: str) -> bool:
    nodes = () if node is None else ast.walk(node)
    return any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) == text for n in nodes)


def _called(node: ast.AST) -> str:
    """What a call calls, as it is written."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _parts(call: ast.Call) -> ast.expr | None:
    """The number of parts in ``x.chunk(K)`` or ``torch.chunk(x, K)``."""
    named = [k.value for k in call.keywords if k.arg in ("chunks", "indices_or_sections")]
    if named:
        return named[0]
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    position = 1 if owner is None or (isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy")) else 0
    return call.args[position] if len(call.args) > position else None
