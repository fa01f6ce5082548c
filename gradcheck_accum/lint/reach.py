"""What pieces of a file can do to gradients, asked of the syntax alone: which calls, which functions, which classes.

These answers only steer the interpretation (what to inline, which branches matter); they never make a finding.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

_BACKWARD = frozenset({"backward", "manual_backward"})
_GRADIENT_CALLS = _BACKWARD | frozenset(
    {
        "step",
        "zero_grad",
        "unscale_",
        "clip_grad_norm_",
        "clip_grad_value_",
        "clip_grad_norm",
        "div_",
        "mul_",
        "zero_",
        "append",
        "clear",
        "next",
    }
)
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def call_name(node: ast.Call) -> str:
    """The last part of the name that is called."""
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


class Reach:
    """Answers about one parsed file."""

    def __init__(self, module: ast.Module) -> None:
        self._functions: dict[str, list[_Function]] = {}
        self.classes: list[ast.ClassDef] = []
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes.append(node)
        self._calls = {
            id(f): frozenset(call_name(n) for n in ast.walk(f) if isinstance(n, ast.Call))
            for several in self._functions.values()
            for f in several
        }
        self._to_backward = self._closure(_BACKWARD)
        self._to_step = self._closure(frozenset({"step"}))
        self._to_gradients = self._closure(_GRADIENT_CALLS)
        own = {cls.name for cls in self.classes} | {"object", "ABC"}
        self.open_classes = {c.name for c in self.classes if any(_last(b) not in own for b in c.bases)}
        self.steppers = self._find_steppers(module)
        self._cache: dict[tuple[str, int], bool] = {}

    def _closure(self, seeds: frozenset[str]) -> frozenset[str]:
        """The names of this file's functions that call a seed, directly or through one another, and the seeds."""
        names = set(seeds)
        grown = True
        while grown:
            grown = False
            for name, several in self._functions.items():
                if name not in names and any(self._calls[id(f)] & names for f in several):
                    names.add(name)
                    # An object of a class that acts when called is called by the object's name, not this one.
                    grown = True
        return frozenset(names)

    @staticmethod
    def _find_steppers(module: ast.Module) -> frozenset[str]:
        """Dotted names that are both stepped and cleared in this file: optimizers, whatever they are called."""
        stepped: set[str] = set()
        cleared: set[str] = set()
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "step":
                    stepped.add(ast.unparse(node.func.value))
                elif node.func.attr == "zero_grad":
                    cleared.add(ast.unparse(node.func.value))
        return frozenset(stepped & cleared)

    def _any(self, kind: str, names: frozenset[str], node: ast.AST) -> bool:
        key = (kind, id(node))
        if key not in self._cache:
            self._cache[key] = any(isinstance(n, ast.Call) and self._names_of(n) & names for n in ast.walk(node))
        return self._cache[key]

    def _names_of(self, node: ast.Call) -> set[str]:
        names = {call_name(node)}
        # `loss_scaler(loss, ...)` may be an object of a class of this file that acts in __call__.
        return names | {"__call__"} if isinstance(node.func, ast.Name) and "__call__" in self._functions else names

    def backward(self, node: ast.AST) -> bool:
        """Whether ``node`` calls ``backward``, itself or through this file's functions."""
        return self._any("backward", self._to_backward, node)

    def backward_in(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements does."""
        return any(self.backward(statement) for statement in body)

    def steps(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements calls ``step``, itself or through this file's functions."""
        return any(self._any("step", self._to_step, statement) for statement in body)

    def acts(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements changes gradients."""
        return any(self._any("gradients", self._to_gradients - {"append", "clear", "next"}, s) for s in body)

    def is_inert(self, body: Sequence[ast.stmt]) -> bool:
        """Whether statements can change nothing that a ledger records: no gradients, no control flow, no names."""
        for statement in body:
            if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or self._any(
                "gradients", self._to_gradients, statement
            ):
                return False
            if any(isinstance(n, (*_LEAVES, ast.Assign, ast.AugAssign, ast.NamedExpr)) for n in ast.walk(statement)):
                return False
        return True

    def called(self, node: ast.Call) -> Iterator[_Function]:
        """The functions of this file that a call may mean and that reach ``backward``."""
        name = call_name(node)
        if name in self._to_backward:
            yield from self._functions.get(name, [])

    def training_functions(self) -> list[_Function]:
        """The functions that reach ``backward``, those that no other of them calls first."""
        found = [f for name in sorted(self._to_backward) for f in self._functions.get(name, []) if self.backward(f)]
        callers = {name for f in found for name in self._calls[id(f)]}
        return sorted(found, key=lambda f: (f.name in callers, f.lineno))

    def is_generator(self, node: _Function) -> bool:
        """Whether a function yields."""
        key = ("yield", id(node))
        if key not in self._cache:
            inner = [n for n in ast.walk(node) if isinstance(n, (ast.Yield, ast.YieldFrom))]
            self._cache[key] = bool(inner)
        return self._cache[key]

    @staticmethod
    def never_ends(node: _Function) -> bool:
        """Whether a generator yields for ever: from a ``while True`` that nothing leaves."""
        return any(
            isinstance(s, ast.While)
            and _is_true(s.test)
            and not any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(s))
            for s in node.body
        )


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _last(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]
