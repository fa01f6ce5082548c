"""Runs the skeleton of a training loop: counters, boundaries and calls on gradients, with symbols for all else.

Nothing of the file is imported or executed. Small concrete numbers stand in for K and for the loader's length, so that
there are full windows and a remainder; what guards, counters and flushes then do is simply carried out. A number that
turns out to be needed only later (K may divide the loss before it bounds the window) restarts the run with it known.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from gradcheck_accum.events import Factor, Operation, Reduction
from gradcheck_accum.lint import expressions
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.reach import Reach, call_name
from gradcheck_accum.lint.recorder import Recorder
from gradcheck_accum.lint.values import Num, Symbol, Tensor

ASSUMED_STEPS = 4
_LARGEST_STEPS = 64
_BUDGET = 150_000
_DEPTH = 12
_LENGTH_NAME = re.compile(r"len|num_?batch|n_?batch|n_?iter|total|per_epoch|last|num_?steps", re.IGNORECASE)
_DATASET_NAME = re.compile(r"dataset|data_set|_ds$|^ds$|samples|examples", re.IGNORECASE)


class Restart(Exception):
    """A number became known that earlier statements should have used."""


class OutOfBudget(Exception):
    """The file needs more interpretation than it is allowed; nothing is concluded from it."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Raise(Exception):
    pass


class _Exhausted(Exception):
    pass


class Knowledge:
    """What runs of one loop have learned about its numbers; it survives restarts."""

    def __init__(self) -> None:
        self.bindings: dict[str, Num] = {}
        self.moduli: set[int] = set()

    @property
    def window(self) -> list[int]:
        """The numbers that some counter is taken modulo, as far as they can be accumulation steps."""
        small = [m for m in self.moduli if m <= _LARGEST_STEPS]
        return small or [ASSUMED_STEPS]

    def pass_length(self) -> int:
        """How many micro-batches a pass gets: two windows and a remainder, whichever modulus is K."""
        length = 2 * max(self.window) + 1
        while any(length % m < min(2, m - 1) for m in self.window if m > 1):
            length += 1
            if length > 20 * max(self.window):
                break
        return length if any(m > 1 for m in self.window) else 3

    def unbounded_length(self) -> int:
        """How many micro-batches a loop without an end gets: whole windows, whichever modulus is K."""
        common = math.lcm(*self.window)
        common = common if common <= 512 else max(self.window)
        return common * max(1, -(-3 * max(self.window) // common)) if common > 1 else 6


class Interpreter:
    """One run of one loop under one set of answers to the conditions that the source leaves open."""

    def __init__(self, path: str, reach: Reach, knowledge: Knowledge, decisions: dict[str, bool]) -> None:
        self.recorder = Recorder(path)
        self.reach = reach
        self.knowledge = knowledge
        self.decisions = dict(decisions)
        self.steppers = reach.steppers
        self.visited: set[ast.AST] = set()
        self._spent = 0
        self._stack: list[ast.AST] = []
        self._assigned: dict[str, Any] = {}
        self._optimizers: dict[Any, v.Optimizer] = {}
        self._models: dict[Any, v.Model] = {}
        self._pass_depth = 0
        self._loop_depth = 0
        self._stops = 0
        self._in_boundary = False
        self._last_slice: tuple[Any, ...] = ()

    # Bookkeeping

    def spend(self) -> None:
        """Count one evaluation against the budget."""
        self._spent += 1
        if self._spent > _BUDGET:
            raise OutOfBudget

    @property
    def in_training(self) -> bool:
        """Whether a loop over data is under way, or has made gradients already."""
        return self._loop_depth > 0 or self.recorder.has_backward

    def evaluate(self, node: ast.expr, scope: v.Scope) -> Any:
        """The value of an expression."""
        return expressions.evaluate(self, node, scope)

    def attribute(self, value: Any, name: str) -> Any:
        """``value.name``."""
        return self.resolve(expressions.attribute(self, value, name))

    def binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        """``left op right``."""
        return expressions.binary(self, op, left, right)

    def scaled(self, tensor: Tensor, by: Any, operation: Operation) -> Tensor:
        """A loss multiplied or divided by a value."""
        return expressions.scaled(self, tensor, by, operation)

    def factor_of(self, value: Any, operation: Operation) -> Factor:
        """What multiplying or dividing by ``value`` does to a loss or gradient."""
        return expressions.factor_of(value, operation)

    def reaches_backward(self, node: ast.AST) -> bool:
        """Whether a piece of code calls ``backward``, itself or through this file's functions."""
        return self.reach.backward(node)

    def resolve(self, value: Any) -> Any:
        """A symbol's value where one has become known."""
        if isinstance(value, Symbol) and value.name:
            if value.name in self._assigned:
                return self._assigned[value.name]
            return self.knowledge.bindings.get(value.name, value)
        return value

    # Numbers that the source leaves open

    def bind_steps(self, value: Any) -> Any:
        """Make an unknown modulus a small number, and note a known one."""
        if isinstance(value, Num):
            if isinstance(value.value, int) and value.value > 0 and self.in_training:
                self._note_modulus(value.value)
            return value
        if isinstance(value, Symbol) and value.name:
            default = value.default if value.default and 2 <= value.default <= _LARGEST_STEPS else ASSUMED_STEPS
            self.knowledge.moduli.add(default)
            self._bind(value.name, Num(default, frozenset({v.STEPS})))
        return value

    def note_count(self, node: ast.AST, value: Any) -> None:
        """Note where the source names a number that the loop may count by."""
        if isinstance(value, Num) and isinstance(value.value, int) and value.value > 1 and self.in_training:
            self.recorder.counts[self.recorder.locate(node)] = value.value

    def _note_modulus(self, value: int) -> None:
        if value not in self.knowledge.moduli and value > 1:
            self.knowledge.moduli.add(value)
            if value <= _LARGEST_STEPS:
                raise Restart

    def _bind(self, name: str, number: Num) -> None:
        self.knowledge.bindings[name] = number
        raise Restart

    def bind_in_comparison(self, left: Any, right: Any, op: ast.cmpop, literal: bool) -> tuple[Any, Any]:
        """Give a symbol that a counter is compared with at a boundary its number: K, or the pass's length."""
        if literal or not isinstance(op, (ast.Eq, ast.GtE)):
            return left, right
        for number, other in ((left, right), (right, left)):
            if isinstance(number, Num) and isinstance(other, Symbol) and other.name:
                if _LENGTH_NAME.search(other.name.rpartition(".")[2]) and self._pass_depth:
                    self.recorder.assumed_length = True
                    self._bind(other.name, Num(self.knowledge.pass_length(), frozenset({v.LENGTH})))
                if self._in_boundary and isinstance(op, (ast.Eq, ast.GtE)) and number is left:
                    self.bind_steps(other)
        return left, right

    # Conditions

    def truth(self, value: Any) -> bool | None:
        """Whether a value is true, or None where that is not known."""
        match value:
            case bool():
                return value
            case Num():
                return value.value != 0
            case None:
                return False
            case str() | list() | tuple() | dict():
                return bool(value)
            case v.Model() | v.Instance() | v.Optimizer() | v.Function() | v.Class():
                return True
        return None

    def decide(self, node: ast.expr, value: Any) -> bool | None:
        """The scenario's answer to an open condition; None where it depends on the data."""
        negated = False
        while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node, negated = node.operand, not negated
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.IsNot, ast.NotEq)):
            op = ast.Is() if isinstance(node.ops[0], ast.IsNot) else ast.Eq()
            node, negated = ast.Compare(node.left, [op], node.comparators), not negated
        key = value.name if isinstance(value, Symbol) and value.name else ast.unparse(node)
        answer = self.decisions.setdefault(key, True)
        return answer != negated if not (isinstance(value, Symbol) and value.name) else answer

    def choose(self, test: ast.expr, scope: v.Scope, branches: Sequence[Sequence[ast.stmt]]) -> bool:
        """Which way a condition goes."""
        value = self.evaluate(test, scope)
        truth = self.truth(value)
        if truth is not None:
            return truth
        body, orelse = (list(branches[0]), list(branches[1])) if len(branches) == 2 else ([], [])
        if branches and self.reach.is_inert(body) and self.reach.is_inert(orelse):
            return False
        skips = self._loop_depth > 0 and _skips(body)
        if skips and not orelse and not self.reach.acts(body):
            # A guard that leaves the loop early (an empty batch, an early stop): the main path goes on.
            return False
        if self._depends_on_data(test, scope):
            return self.reach.acts(body)
        answer = self.decide(test, value)
        return bool(answer)

    def _depends_on_data(self, test: ast.expr, scope: v.Scope) -> bool:
        for node in ast.walk(test):
            if isinstance(node, ast.Name):
                holder = scope.find(node.id)
                value = holder.names[node.id] if holder else None
                if isinstance(value, (Tensor, v.Data, v.Gradient)):
                    return True
        return False

    # Statements

    def run(self, statements: Iterable[ast.stmt], scope: v.Scope) -> None:
        """Carry out statements in order."""
        for statement in statements:
            self.spend()
            handler = getattr(self, f"_do_{type(statement).__name__}", None)
            if handler is not None:
                handler(statement, scope)

    def _do_Expr(self, node: ast.Expr, scope: v.Scope) -> None:
        self.evaluate(node.value, scope)

    def _do_Assign(self, node: ast.Assign, scope: v.Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _do_AnnAssign(self, node: ast.AnnAssign, scope: v.Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope)

    def _do_AugAssign(self, node: ast.AugAssign, scope: v.Scope) -> None:
        current = self.evaluate(node.target, scope)
        change = self.evaluate(node.value, scope)
        if isinstance(current, v.Gradient):
            if isinstance(node.op, (ast.Div, ast.Mult)):
                operation = Operation.DIVIDE if isinstance(node.op, ast.Div) else Operation.MULTIPLY
                self.recorder.scale_grads(node, current.sources, self.factor_of(change, operation))
            else:
                self.recorder.opaque(node, "gradients changed by hand")
            return
        if isinstance(current, list) and isinstance(change, (list, tuple)) and isinstance(node.op, ast.Add):
            current.extend(change)
            return
        if isinstance(current, Num) and current.value == 0 and isinstance(change, Tensor):
            result: Any = change
        else:
            result = self.binary(node.op, current, change)
        if isinstance(result, Tensor) and not result.is_located:
            result = result.located(self.recorder.locate(node))
        target = node.target
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            holder = self.evaluate(target.value, scope)
            if isinstance(holder, Tensor) and isinstance(result, Tensor):
                # `outputs.loss /= K`: the output that holds the loss is what the name is bound to.
                self.assign(target.value, result, scope)
                return
        self.assign(target, result, scope)

    def _do_If(self, node: ast.If, scope: v.Scope) -> None:
        outer, self._in_boundary = self._in_boundary, self.reach.steps(node.body) or self.reach.steps(node.orelse)
        try:
            chosen = self.choose(node.test, scope, (node.body, node.orelse))
        finally:
            self._in_boundary = outer
        self.run(node.body if chosen else node.orelse, scope)

    def _do_For(self, node: ast.For, scope: v.Scope) -> None:
        source = self.evaluate(node.iter, scope)
        trains = self.reach.backward_in(node.body)
        items, draws, is_pass = self._plan(source, node, trains)
        if is_pass and trains:
            self.recorder.epoch = self.recorder.passes
            self.recorder.passes += 1
            self._pass_depth += 1
        elif trains and isinstance(source, tuple) and self._pass_depth == 0:
            self.recorder.epoch = None
        self._loop_depth += trains
        try:
            for item in items:
                if draws and trains:
                    self.recorder.draw()
                self._last_slice = ()
                self.assign(node.target, item, scope)
                try:
                    self.run(node.body, scope)
                except _Continue:
                    continue
            self.run(node.orelse, scope)
        except _Break:
            pass
        finally:
            self._loop_depth -= trains
            if is_pass and trains:
                self._pass_depth -= 1

    _do_AsyncFor = _do_For

    def _do_While(self, node: ast.While, scope: v.Scope) -> None:
        trains = self.reach.backward_in(node.body)
        limit = self.knowledge.unbounded_length() if trains else 2
        if trains and self._inner_training_loop(node.body) is not None:
            limit = 3
        if trains:
            self.recorder.epoch = None
        self._loop_depth += trains
        turns = 0
        try:
            while True:
                known = self.truth(self.evaluate(node.test, scope))
                endless = known is None or isinstance(node.test, ast.Constant)
                if known is False or (endless and turns >= limit) or turns > 5_000:
                    break
                turns += 1
                self._last_slice = ()
                try:
                    self.run(node.body, scope)
                except _Continue:
                    continue
        except _Break:
            pass
        finally:
            self._loop_depth -= trains

    def _do_With(self, node: ast.With, scope: v.Scope) -> None:
        for item in node.items:
            entered = item.context_expr
            value = self.evaluate(entered, scope)
            if isinstance(entered, ast.Call) and call_name(entered) == "accumulate":
                self.recorder.opaque(entered, "a framework that gates its own steps")
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        self.run(node.body, scope)

    _do_AsyncWith = _do_With

    def _do_Try(self, node: ast.Try, scope: v.Scope) -> None:
        catching = [h for h in node.handlers if h.type is None or "StopIteration" in ast.unparse(h.type)]
        self._stops += bool(catching)
        try:
            self.run(node.body, scope)
        except _Exhausted:
            if not catching:
                raise
            self.run(catching[0].body, scope)
        except _Raise:
            if not node.handlers:
                raise
        else:
            self.run(node.orelse, scope)
        finally:
            self._stops -= bool(catching)
        self.run(node.finalbody, scope)

    def _do_Return(self, node: ast.Return, scope: v.Scope) -> None:
        raise _Return(self.evaluate(node.value, scope) if node.value is not None else None)

    def _do_Break(self, node: ast.Break, scope: v.Scope) -> None:
        raise _Break

    def _do_Continue(self, node: ast.Continue, scope: v.Scope) -> None:
        raise _Continue

    def _do_Raise(self, node: ast.Raise, scope: v.Scope) -> None:
        raise _Raise

    def _do_FunctionDef(self, node: ast.FunctionDef, scope: v.Scope) -> None:
        scope.assign(node.name, v.Function(node, scope))

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef, scope: v.Scope) -> None:
        scope.assign(node.name, self._class(node, scope))

    def _do_Import(self, node: ast.Import, scope: v.Scope) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            scope.assign(name, v.Reference(alias.name if alias.asname else name))

    def _do_ImportFrom(self, node: ast.ImportFrom, scope: v.Scope) -> None:
        for alias in node.names:
            module = "." * node.level + (node.module or "")
            scope.assign(alias.asname or alias.name, v.Reference(f"{module}.{alias.name}"))

    def _do_Global(self, node: ast.Global | ast.Nonlocal, scope: v.Scope) -> None:
        scope.shared.update(node.names)

    _do_Nonlocal = _do_Global

    # Assignment

    def assign(self, target: ast.expr, value: Any, scope: v.Scope) -> None:
        """Bind a target to a value."""
        match target:
            case ast.Name():
                scope.assign(target.id, value)
            case ast.Starred():
                self.assign(target.value, value, scope)
            case ast.Tuple() | ast.List():
                for element, item in zip(target.elts, self._unpack(value, target.elts), strict=False):
                    self.assign(element, item, scope)
            case ast.Attribute():
                self._assign_attribute(target, self.evaluate(target.value, scope), value)
            case ast.Subscript():
                holder = self.evaluate(target.value, scope)
                key = self.evaluate(target.slice, scope) if not isinstance(target.slice, ast.Slice) else None
                if isinstance(holder, dict) and isinstance(key, str):
                    holder[key] = value
                elif (
                    isinstance(holder, list)
                    and isinstance(key, Num)
                    and isinstance(key.value, int)
                    and -len(holder) <= key.value < len(holder)
                ):
                    holder[key.value] = value

    def _assign_attribute(self, target: ast.Attribute, holder: Any, value: Any) -> None:
        if target.attr == "grad" and isinstance(holder, v.Parameters):
            if value is None:
                self.recorder.zero(target, holder.sources)
            elif isinstance(value, Symbol) or not isinstance(value, v.Gradient):
                self.recorder.opaque(target, "gradients replaced by hand")
        elif isinstance(holder, v.Instance):
            holder.attributes[target.attr] = value
        elif isinstance(holder, Symbol) and holder.name:
            self._assigned[holder.member(target.attr).name] = value

    @staticmethod
    def _unpack(value: Any, targets: list[ast.expr]) -> list[Any]:
        count = len(targets)
        if isinstance(value, (list, tuple)) and not (
            value and value[0] in ("range", "zip", "enumerate", "islice", "shape")
        ):
            return list(value) if len(value) >= count else [*value, *[Symbol()] * (count - len(value))]
        if isinstance(value, Symbol):
            return [value.member(str(i)) for i in range(count)]
        if isinstance(value, v.Parameters) and count == 2:
            return [Symbol(), value]
        return [value] * count

    # Iteration

    def _plan(self, source: Any, loop: ast.For, trains: bool) -> tuple[Iterable[Any], bool, bool]:
        """What a for loop yields, whether each item is a new micro-batch, and whether it is a pass over the data."""
        match source:
            case v.Loader():
                self.recorder.learn_units(source.rows)
                return [v.Data()] * self.length_of(source), True, True
            case v.Chunks():
                return [v.Data()] * source.count, True, False
            case v.Stream():
                return [v.Data()] * self.knowledge.unbounded_length(), True, False
            case v.Parameters():
                return [source], False, False
            case ("range", *bounds):
                return self._range(bounds, loop, trains), False, False
            case ("enumerate", inner, start):
                items, draws, is_pass = self._plan(inner, loop, trains)
                first = start.value if isinstance(start, Num) else 0
                numbered = [(Num(first + i), item) for i, item in enumerate(items)]
                return numbered, draws, is_pass
            case ("zip", *sources):
                plans = [self._plan(one, loop, trains) for one in sources]
                items = list(zip(*(items for items, _, _ in plans), strict=False))
                return items, any(draws for _, draws, _ in plans), any(is_pass for _, _, is_pass in plans)
            case ("islice", inner, *bounds):
                items, draws, is_pass = self._plan(inner, loop, trains)
                limits = [self.bind_steps(bound) if trains and len(bounds) == 1 else bound for bound in bounds]
                numbers = [int(b.value) if isinstance(b, Num) else None for b in limits]
                return list(itertools.islice(items, *numbers)) if numbers else items, draws, is_pass
            case list() | tuple():
                return list(source), v.is_data(source), v.is_data(source) and len(source) > 1
        return self._unknown_iteration(source, loop, trains)

    def _unknown_iteration(self, source: Any, loop: ast.For, trains: bool) -> tuple[Iterable[Any], bool, bool]:
        element = Symbol(f"{source.name}[]") if isinstance(source, Symbol) and source.name else Symbol()
        if not trains:
            return [element], False, False
        inner = self._inner_training_loop(loop.body)
        if inner is not None and not _mentions(inner, loop.target):
            return [element, element], False, False
        if self._pass_depth or isinstance(source, (v.Data, Tensor)):
            return [element, element], False, False
        self.recorder.assumed_length = True
        return [v.Data()] * self.knowledge.pass_length(), True, True

    def _range(self, bounds: Sequence[Any], loop: ast.For, trains: bool) -> Iterable[Any]:
        if bounds and all(isinstance(bound, Num) for bound in bounds):
            numbers = [int(bound.value) for bound in bounds]
            counted = range(*numbers) if len(numbers) < 3 or numbers[2] else range(0)
            if trains and len(counted) > 4 * self.knowledge.unbounded_length() and not self._counts_windows(bounds):
                # So many turns show nothing that a few whole windows and the last few turns do not.
                kept = len(counted) % math.lcm(*self.knowledge.window) + self.knowledge.unbounded_length()
                counted = counted[:kept]
            return [Num(i) for i in counted]
        if not trains:
            return [Num(0), Num(1)]
        if self._inner_training_loop(loop.body) is not None:
            return [Num(0), Num(1)]
        if not self.reach.steps(loop.body) and len(bounds) == 1:
            # Backward inside, the step outside: this range is the window itself.
            self.bind_steps(bounds[0])
            return [Num(0), Num(1)]
        length = self.knowledge.unbounded_length()
        if len(bounds) >= 2 and isinstance(bounds[0], Num):
            step = bounds[2] if len(bounds) == 3 else Num(1)
            if isinstance(step, Symbol):
                step = Num(self.recorder.units)
            first, stride = int(bounds[0].value), int(step.value) if isinstance(step, Num) else 1
            if len(bounds) == 3:
                self.recorder.assumed_length = True
                length = self.knowledge.pass_length()
            return [Num(first + stride * i) for i in range(length)]
        return [Num(i) for i in range(length)]

    @staticmethod
    def _counts_windows(bounds: Sequence[Any]) -> bool:
        return any(v.LENGTH in bound.tags for bound in bounds)

    def _inner_training_loop(self, body: Sequence[ast.stmt]) -> ast.For | ast.While | None:
        """The first loop inside ``body`` that makes gradients, here or in a function that it calls."""
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, (ast.For, ast.While)) and self.reach.backward_in(node.body):
                    return node
                if isinstance(node, ast.Call):
                    for function in self.reach.called(node):
                        inner = next((n for n in ast.walk(function) if self._is_training_loop(n)), None)
                        if inner is not None:
                            return inner  # type: ignore[return-value]
        return None

    def _is_training_loop(self, node: ast.AST) -> bool:
        return isinstance(node, (ast.For, ast.While)) and self.reach.backward_in(node.body)

    def items_of(self, source: Any, limit: int) -> list[Any] | None:
        """The items of a collection that the source shows, or None."""
        match source:
            case ("range", *bounds) if bounds and all(isinstance(b, Num) for b in bounds):
                counted = range(*(int(b.value) for b in bounds))
                return [Num(i) for i in counted] if len(counted) <= limit else None
            case ("range" | "islice" | "shape", *_):
                return None
            case ("enumerate", inner, start):
                items = self.items_of(inner, limit)
                first = start.value if isinstance(start, Num) else 0
                return [(Num(first + i), item) for i, item in enumerate(items)] if items is not None else None
            case ("zip", *sources):
                several = [self.items_of(one, limit) for one in sources]
                known = [items for items in several if items is not None]
                return list(zip(*known, strict=False)) if len(known) == len(several) else None
            case list() | tuple():
                return list(source)
            case v.Optimizer():
                return [source]
        return None

    def stream(self, source: Any) -> Any:
        """``iter(source)``."""
        if isinstance(source, v.Loader):
            length = self.length_of(source)
            self.recorder.learn_units(source.rows)
            return v.Stream(iter([v.Data()] * length), True)
        if isinstance(source, (list, tuple)) and not (source and isinstance(source[0], str)):
            return v.Stream(iter(source), v.is_data(source))
        return v.Stream(iter([v.Data()] * self.knowledge.pass_length()), True)

    def draw_from(self, source: Any) -> Any:
        """``next(source)``: a new micro-batch."""
        self.recorder.draw()
        if isinstance(source, v.Stream) and self._stops:
            for item in source.items:
                return item
            raise _Exhausted
        return v.Data()

    def chunks(self, count: Any) -> Any:
        """A batch split into ``count`` micro-batches."""
        count = self.bind_steps(count) if self._loop_depth else count
        return v.Chunks(count.value) if isinstance(count, Num) and isinstance(count.value, int) else Symbol()

    def split(self, data: Any, size: Any) -> Any:
        """A batch split into micro-batches of ``size`` rows: as many as are assumed where the source does not show."""
        if (
            isinstance(data, v.Data)
            and data.rows
            and isinstance(size, Num)
            and isinstance(size.value, int)
            and size.value
        ):
            return v.Chunks(-(-data.rows // size.value))
        return v.Chunks(ASSUMED_STEPS) if isinstance(data, (v.Data, Symbol)) else Symbol()

    def slice_of_data(self, bounds: list[Any]) -> None:
        """Data sliced by position: other bounds than the last are another micro-batch."""
        numbers = tuple(bound.value for bound in bounds if isinstance(bound, Num))
        if self._loop_depth and numbers and numbers != self._last_slice:
            if not self._last_slice:
                self.recorder.draw()
            self._last_slice = numbers

    def length_of(self, loader: v.Loader) -> int:
        """How many micro-batches a pass over ``loader`` has: what the source shows, else the assumed number."""
        if loader.length is not None:
            return loader.length
        self.recorder.assumed_length = True
        return self.knowledge.pass_length()

    def length(self, value: Any) -> Any:
        """``len(value)``."""
        match value:
            case v.Loader():
                return Num(self.length_of(value), frozenset({v.LENGTH}))
            case v.Data():
                return self.rows_of(value)
            case v.Chunks():
                return Num(value.count, frozenset({v.LENGTH}))
            case ("range" | "zip" | "enumerate" | "islice" | "shape", *_):
                return Symbol()
            case list() | tuple() | dict() | str():
                return Num(len(value))
            case v.Instance():
                method = self.find_method(value.cls, "__len__")
                if method is not None:
                    return self.call_function(v.Function(method, value.cls.scope, value), [], {})
            case Symbol() if value.name and not _DATASET_NAME.search(value.name.rpartition(".")[2]):
                self.recorder.assumed_length = True
                return Num(self.knowledge.pass_length(), frozenset({v.LENGTH}))
        return Symbol()

    def rows_of(self, data: v.Data) -> Num:
        """The leading dimension of a batch."""
        return Num(data.rows or self.recorder.units, frozenset({v.UNITS}))

    # Objects

    def new_loader(self, dataset: Any, size: Any, options: dict[str, Any]) -> v.Loader:
        """``DataLoader(dataset, batch_size=size)``."""
        if isinstance(size, Symbol) and size.name:
            self._bind(size.name, Num(self.recorder.units, frozenset({v.UNITS})))
        rows = dataset.rows if isinstance(dataset, v.Data) else None
        if isinstance(dataset, v.Instance):
            length = self.length(dataset)
            rows = int(length.value) if isinstance(length, Num) else None
        if not isinstance(size, Num) or not isinstance(size.value, int) or size.value < 1:
            return v.Loader()
        known = v.UNITS not in size.tags
        if rows is None or not known or "batch_sampler" in options or "sampler" in options:
            return v.Loader(rows=size.value)
        whole = rows // size.value
        return v.Loader(whole if options.get("drop_last") is True else -(-rows // size.value), size.value)

    def new_optimizer(self, node: ast.Call, args: list[Any]) -> v.Optimizer:
        """An optimizer made by a call; the same call makes the same one."""
        sources = [found for found in map(_sources_in, args) if found is not None]
        known = frozenset().union(*sources) if sources else None
        place = (node.lineno, node.col_offset)
        name = f"{ast.unparse(node.func)} (line {node.lineno})"
        return self._optimizers.setdefault(place, v.Optimizer(name, known or None))

    def optimizer_for(self, name: str) -> v.Optimizer:
        """The optimizer that an unknown name stands for."""
        return self._optimizers.setdefault(name, v.Optimizer(name))

    def new_model(self, node: ast.Call) -> v.Model:
        """A network made by a call; the same call makes the same one."""
        place = (node.lineno, node.col_offset)
        return self._models.setdefault(place, v.Model(f"{ast.unparse(node.func)} (line {node.lineno})"))

    def instantiate(self, node: ast.Call, cls: v.Class, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """An object of a class of this file."""
        if cls.is_model:
            return self.new_model(node)
        instance = v.Instance(cls)
        init = self.find_method(cls, "__init__")
        if init is not None:
            self.call_function(v.Function(init, cls.scope, instance), args, kwargs)
        elif any(
            isinstance(d, (ast.Name, ast.Call)) and "dataclass" in ast.unparse(d) for d in cls.node.decorator_list
        ):
            fields = [
                s.target.id for s in cls.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
            instance.attributes.update({**dict(zip(fields, args, strict=False)), **kwargs})
        return instance

    def sources_of(self, base: Any) -> frozenset[str] | None:
        """The root name of a model whose parameters are asked for."""
        match base:
            case v.Model():
                return frozenset({base.name})
            case v.Instance():
                return frozenset({base.cls.node.name})
            case v.Parameters():
                return base.sources
            case Symbol() if base.name:
                return frozenset({base.name})
        return None

    @staticmethod
    def root_of(name: str) -> frozenset[str]:
        """The model that an unresolved call runs."""
        parent, _, last = name.rpartition(".")
        own = parent and last in {"forward", "module", "loss", "compute_loss", "training_step", "generate"}
        return frozenset({parent if own else name})

    def result_of(self, node: ast.Call, args: list[Any]) -> Any:
        """What an unresolved call gives that got nothing that is known to be data."""
        if self._loop_depth and any(isinstance(value, Symbol) for value in args):
            part = v.Part(ast.unparse(node.func)[:60], Reduction.MEAN, (), self.recorder.micro_batch)
            return Tensor((part,), self.root_of(ast.unparse(node.func)))
        return Symbol(f"{ast.unparse(node)[:80]}")

    # Gradients

    def as_loss(self, value: Any) -> Tensor:
        """A value that ``backward`` is called on, as a loss: one that came from elsewhere may be scaled already."""
        if isinstance(value, Tensor):
            return value
        factors = () if isinstance(value, Symbol) and not value.name else (Factor(None),)
        return Tensor((v.Part("loss", Reduction.MEAN, factors, self.recorder.micro_batch),))

    def backward(self, node: ast.AST, value: Any, weighted: bool) -> None:
        """Record a backward; ``weighted`` says that it was given a gradient argument."""
        loss = self.as_loss(value)
        self.recorder.backward(node, loss.scaled(Factor(None)) if weighted else loss)

    def step(self, node: ast.AST, optimizer: v.Optimizer, through_scaler: bool = False) -> None:
        """Record an optimizer's step, with K if a loss has been divided by it."""
        bound = {number.value for number in self.knowledge.bindings.values() if v.STEPS in number.tags}
        divided = {
            round(1 / factor.value)
            for raw in self.recorder.raw
            if raw.kind == "backward"
            for term in raw.details["terms"]
            for factor in term.factors
            if factor.value and factor.operation is Operation.DIVIDE
        }
        stated = sorted((bound | self.knowledge.moduli) & divided)
        self.recorder.step(node, optimizer, int(stated[0]) if len(stated) == 1 else None, through_scaler)

    # Functions and classes

    def _class(self, node: ast.ClassDef, scope: v.Scope) -> v.Class:
        methods = {m.name: m for m in node.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}
        bases = [self.evaluate(base, scope) for base in node.bases]
        names = [ast.unparse(base) for base in node.bases]
        is_model = "forward" in methods or any(name.endswith("Module") and "Lightning" not in name for name in names)
        for base in bases:
            if isinstance(base, v.Class):
                methods = {**base.methods, **methods}
                is_model = is_model or base.is_model
        harmless = {"object", "ABC", "Generic", "Protocol"}
        complete = all(
            (isinstance(base, v.Class) and base.complete) or name.rpartition(".")[2] in harmless
            for base, name in zip(bases, names, strict=True)
        )
        return v.Class(node, scope, methods, complete, is_model)

    def find_method(self, cls: v.Class, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """A method of a class of this file, its own or inherited."""
        return cls.methods.get(name)

    def super_method(self, node: ast.Call, scope: v.Scope) -> v.Function | None:
        """The method that ``super().name(...)`` calls, where the base class is in this file."""
        func = node.func
        if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call)):
            return None
        if not (isinstance(func.value.func, ast.Name) and func.value.func.id == "super"):
            return None
        holder = scope.find("self")
        instance = holder.names["self"] if holder else None
        if not isinstance(instance, v.Instance):
            return None
        for base in instance.cls.node.bases:
            parent = self.evaluate(base, instance.cls.scope)
            if isinstance(parent, v.Class) and func.attr in parent.methods:
                return v.Function(parent.methods[func.attr], parent.scope, instance)
        return None

    def is_inherited(self, name: str) -> bool:
        """Whether a dotted name is a method that a class of this file has from a base elsewhere."""
        return name.partition(".")[0] in self.reach.open_classes

    def call_function(self, function: v.Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Carry out a function of this file."""
        node = function.node
        if len(self._stack) >= _DEPTH or node in self._stack:
            return Symbol()
        scope = v.Scope(outer=function.scope)
        self._bind_arguments(function, scope, args, kwargs)
        if isinstance(node, ast.Lambda):
            return self.evaluate(node.body, scope)
        if any(word in ast.unparse(d) for d in node.decorator_list for word in ("no_grad", "inference_mode")):
            return Symbol()
        self.visited.add(node)
        if self.reach.is_generator(node):
            return v.Loader()
        self._stack.append(node)
        try:
            self.run(node.body, scope)
        except _Return as returned:
            return returned.value
        finally:
            self._stack.pop()
        return None

    def _bind_arguments(self, function: v.Function, scope: v.Scope, args: list[Any], kwargs: dict[str, Any]) -> None:
        node, spec = function.node, function.node.args
        positional = [*spec.posonlyargs, *spec.args]
        static = any("staticmethod" in ast.unparse(d) for d in getattr(node, "decorator_list", []))
        if function.owner is not None and not static:
            args = [function.owner, *args]
        name = getattr(node, "name", "lambda")
        defaults: dict[str, ast.expr] = {
            a.arg: d for a, d in zip(reversed(positional), reversed(spec.defaults), strict=False)
        }
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        given = dict(zip((a.arg for a in positional), args, strict=False)) | kwargs
        for parameter in (*positional, *spec.kwonlyargs):
            if parameter.arg in given:
                scope.names[parameter.arg] = given[parameter.arg]
            elif parameter.arg in defaults and not kwargs.get("**"):
                scope.names[parameter.arg] = self.evaluate(defaults[parameter.arg], function.scope)
            else:
                scope.names[parameter.arg] = self.resolve(Symbol(f"{name}.{parameter.arg}"))
        if spec.vararg is not None:
            scope.names[spec.vararg.arg] = args[len(positional) :] or Symbol()
        if spec.kwarg is not None:
            scope.names[spec.kwarg.arg] = Symbol(f"{name}.{spec.kwarg.arg}")

    def call_from_outside(self, function: v.Function) -> None:
        """Carry out a function that nothing in the file calls, with unknown arguments."""
        node = function.node
        spec = node.args
        positional = [*spec.posonlyargs, *spec.args]
        if function.owner is not None:
            positional = positional[1:]
        constants = dict(zip(reversed([a.arg for a in positional]), reversed(spec.defaults), strict=False)) | {
            a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None
        }
        given: dict[str, Any] = {}
        for parameter in (*positional, *spec.kwonlyargs):
            default = constants.get(parameter.arg)
            number = default.value if isinstance(default, ast.Constant) else None
            known = number if isinstance(number, int) and not isinstance(number, bool) else None
            symbol = Symbol(f"{getattr(node, 'name', '')}.{parameter.arg}", known)
            given[parameter.arg] = self.resolve(symbol)
        with suppress(_Raise, _Exhausted, _Break, _Continue):
            self.call_function(function, [], given)

    def run_module(self, module: ast.Module, scope: v.Scope, definitions_only: bool) -> None:
        """Carry out a module's body, or only its definitions and constants."""
        body: Iterator[ast.stmt] | list[ast.stmt] = module.body
        if definitions_only:
            kinds = (
                ast.FunctionDef,
                ast.AsyncFunctionDef,
                ast.ClassDef,
                ast.Import,
                ast.ImportFrom,
                ast.Assign,
                ast.AnnAssign,
            )
            body = [
                s
                for s in module.body
                if (isinstance(s, kinds) and not self.reaches_backward(s)) or isinstance(s, kinds[:3])
            ]
        with suppress(_Raise, _Return, _Exhausted, _Break, _Continue):
            self.run(body, scope)


def _skips(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Break, ast.Continue, ast.Return, ast.Raise))


def _mentions(loop: ast.For | ast.While, target: ast.expr) -> bool:
    names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    head = loop.iter if isinstance(loop, ast.For) else loop.test
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(head))


def _sources_in(value: Any) -> frozenset[str] | None:
    if isinstance(value, v.Parameters):
        return value.sources
    if isinstance(value, v.Model):
        return frozenset({value.name})
    if isinstance(value, dict):
        return _sources_in(value.get("params"))
    if isinstance(value, (list, tuple)):
        found = [s for s in map(_sources_in, value) if s is not None]
        return frozenset().union(*found) if found else None
    return None
