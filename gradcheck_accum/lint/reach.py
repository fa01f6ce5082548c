"""What pieces of a file can do to gradients, asked of the syntax alone: which calls, which functions, which classes.

These answers only steer the interpretation (what to inline, which branches matter); they never make a finding.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from gradcheck_accum.lint.averages import UPDATES, blended
from gradcheck_accum.lint.source import children, text_of, walk

_BACKWARD = frozenset({"backward", "manual_backward"})
_TOUCH_GRADIENTS = _BACKWARD | frozenset(
    "step zero_grad unscale_ clip_grad_norm_ clip_grad_value_ clip_grad_norm clip_grads_with_norm_ clip_gradients "  # noqa: SIM905
    "div_ mul_ zero_ fill_ clamp_ clip_".split()
)
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
_DEEPEST_BASE = 4
_OTHER_STEPPERS = re.compile(r"sched|profil|\bprof\b|env|logger|timer", re.IGNORECASE)
_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_YIELDS = "yield"
"""Stands among the names that a statement calls where it yields: no function can have this name."""
_BLENDS = "(average)"
"""Stands there where it blends weights into an average."""
_CALLS_A_NAME = "()"
"""Stands there where what is called is a plain name, which may hold an object with a ``__call__``."""
_NO_PLAIN_NAME = frozenset({"", ".", "("})
"""How what stands among the names begins that is none: a method, or one of the above."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def call_name(node: ast.Call) -> str:
    """The last part of the name that is called."""
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _called_as(node: ast.Call) -> str:
    """How a call names what it calls: a method, whose name begins with a dot, or a plain function.

    The two are kept apart because training functions are often called ``train``, and call ``model.train()``.
    """
    return f".{call_name(node)}" if isinstance(node.func, ast.Attribute) else call_name(node)


def _names_of(node: ast.Call) -> set[str]:
    return {_called_as(node), _CALLS_A_NAME} if isinstance(node.func, ast.Name) else {_called_as(node)}


def _either(names: Iterable[str]) -> frozenset[str]:
    """Names as they are called, plainly or as methods."""
    return frozenset(form for name in names for form in (name, f".{name}"))


class Reach:
    """Answers about one parsed file, and the modules that its training runs on into."""

    def __init__(self, module: ast.Module, *others: ast.Module) -> None:
        self._functions: dict[str, list[_Function]] = {}
        """The functions by the name that they are called by: a method's begins with a dot."""
        self.classes: list[ast.ClassDef] = []
        self._last = (module.body[-1].end_lineno or 0) if module.body else 0
        """The last line of the file itself: those of other modules come after it."""
        self._calls: dict[int, set[str]] = {id(one): set() for one in (module, *others)}
        """The names that are called in each statement and below it, by the statement's identity."""
        self._inert: dict[int, bool] = {}
        self._touching = set(_TOUCH_GRADIENTS)
        stepped: set[str] = set()
        cleared: set[str] = set()
        updates = {_BLENDS}
        self.mentions_ranks = False
        """Whether the file has a word for leaving gradients local to their rank."""
        self.engines: set[str] = set()
        """Dotted names that are asked for a boundary as DeepSpeed's engines are."""
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.used_names: set[str] = set()
        """The plain names that are called or inherited from."""
        self.used_members: dict[str, set[str]] = {}
        """The same of attributes, by the name that they are attributes of."""
        statements: list[tuple[ast.stmt, ast.AST]] = []
        pairs: list[tuple[ast.AST, ast.AST]] = [(one, one) for one in (module, *others)]
        within: dict[int, ast.AST] = {}
        renamed: list[tuple[str, str]] = []
        named_otherwise: list[tuple[str, ast.AST]] = []
        mentioned: set[str] = set()
        for node, holder in pairs:
            if isinstance(node, ast.stmt):
                statements.append((node, holder))
                self._calls[id(node)] = set()
                holder = node
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    dot = "." if isinstance(within.get(id(node)), ast.ClassDef) else ""
                    self._functions.setdefault(dot + node.name, []).append(node)
                case ast.ClassDef():
                    self.classes.append(node)
                    for base in node.bases:
                        self._note_use(base)
                    within |= {id(member): node for member in node.body}
                case ast.Name(id=name):
                    mentioned.add(name)
                case ast.Import():
                    self.imports.append(node)
                case ast.ImportFrom():
                    self.imports.append(node)
                    renamed += [(a.asname, a.name) for a in node.names if a.asname]
                    self._touching |= {a.asname for a in node.names if a.asname and a.name in _TOUCH_GRADIENTS}
                case ast.Call(func=func):
                    self._note_use(func)
                    if _is_named_otherwise(node):
                        named_otherwise.append((text_of(node.func.value), holder))  # type: ignore[attr-defined]
                    else:
                        self._calls[id(holder)] |= _names_of(node)
                    updates.add(UPDATES.get(call_name(node), _BLENDS))
                    if isinstance(func, ast.Attribute) and func.attr in ("step", "zero_grad"):
                        (stepped if func.attr == "step" else cleared).add(text_of(func.value))
                case ast.Attribute(attr="is_gradient_accumulation_boundary"):
                    self.engines.add(text_of(node.value))
                case ast.Attribute(attr="no_sync" | "no_backward_sync" | "require_backward_grad_sync"):
                    self.mentions_ranks = True
                case ast.Yield() | ast.YieldFrom():
                    self._calls[id(holder)].add(_YIELDS)
            if isinstance(node, (ast.BinOp, ast.Call)) and blended(node):
                self._calls[id(holder)].add(_BLENDS)
            dead = node.body if isinstance(node, (ast.If, ast.While)) and _is_false(node.test) else ()
            pairs.extend([(child, holder) for child in children(node) if child not in dead])
        if others:
            for other in others:
                for f in other.body:
                    if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        self._functions.setdefault(f".{f.name}", []).append(f)  # as `module.f(...)`
            for name, original in renamed:
                if original in self._functions and name not in self._functions:
                    self._functions[name] = self._functions[original]
        imported = {alias.asname or alias.name for node in self.imports for alias in node.names}
        self._no_objects = {*dir(builtins), _YIELDS, *self._functions, *(c.name for c in self.classes), *imported}
        """The plain names that stand for functions and classes, and not for objects that can be called."""
        self.steppers = frozenset(stepped & cleared)
        """Dotted names that are both stepped and cleared in this file: optimizers, whatever they are called."""
        for owner, holder in named_otherwise:
            # A step that is written in this file may do anything.
            if owner in self.steppers or ".step" in self._functions:
                self._calls[id(holder)].add(".step")
        for statement, holder in reversed(statements):
            if _is_never_run(statement, holder, mentioned):
                self._calls[id(statement)] = set()
            self._calls[id(holder)] |= self._calls[id(statement)]
        self._to_backward = self._closure(_either(_BACKWARD))
        self._to_step = self._closure(_either({"step"}))
        self._to_gradients = self._closure(_either(_GRADIENT_CALLS))
        self._to_averages = self._closure(_either(updates))
        own = {cls.name for cls in self.classes} | {"object", "ABC"}
        self.open_classes = {c.name for c in self.classes if any(_last(b) not in own for b in c.bases)}

    def _note_use(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            self.used_names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self.used_members.setdefault(node.value.id, set()).add(node.attr)

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

    def _any(self, names: frozenset[str], node: ast.AST) -> bool:
        calls = self._calls.get(id(node))
        if calls is None:
            calls = self._calls[id(node)] = {c for n in walk(node) if isinstance(n, ast.Call) for c in _names_of(n)}
        if not names.isdisjoint(calls):
            return True
        # `loss_scaler(loss, ...)` may be an object of a class of this file that acts in __call__.
        objects_act = ".__call__" in names and ".__call__" in self._functions and _CALLS_A_NAME in calls
        return objects_act and any(name[:1] not in _NO_PLAIN_NAME and name not in self._no_objects for name in calls)

    def backward(self, node: ast.AST) -> bool:
        """Whether ``node`` calls ``backward``, itself or through this file's functions."""
        return self._any(self._to_backward, node)

    def backward_in(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements does."""
        return any(self.backward(statement) for statement in body)

    def steps(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements calls ``step``, itself or through this file's functions."""
        return any(self._any(self._to_step, statement) for statement in body)

    def steps_beside(self, function: ast.AST, loop: ast.AST) -> bool:
        """Whether a function steps an optimizer outside of one of its loops that the loop does not step."""
        within = self._stepped_in(loop)
        return bool(within) and bool(self._stepped_in(function) - within)

    def _stepped_in(self, node: ast.AST) -> set[str]:
        calls = [n.func for n in walk(node) if isinstance(n, ast.Call)]
        found = {text_of(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr == "step"}
        return found & self.steppers

    def acts(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements changes gradients."""
        return any(self._any(self._to_gradients - _either({"append", "clear", "next"}), s) for s in body)

    def draws(self, body: Iterable[ast.stmt]) -> bool:
        """Whether any of the statements may get a new batch, or runs over data in a loop of its own."""
        nodes = [n for statement in body for n in walk(statement)]
        return any(isinstance(n, ast.For) for n in nodes) or any(
            isinstance(n, ast.Call) and (call_name(n) == "next" or "batch" in call_name(n)) for n in nodes
        )

    def is_inert(self, body: Sequence[ast.stmt]) -> bool:
        """Whether statements can change nothing that a ledger records: no gradients, no control flow, no names."""
        return all(self._is_inert(statement) for statement in body)

    def _is_inert(self, statement: ast.stmt) -> bool:
        known = self._inert.get(id(statement))
        if known is None:
            known = not self._any(self._to_gradients | self._to_averages, statement) and not any(
                isinstance(n, (*_LEAVES, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr))
                for n in walk(statement)
            )
            self._inert[id(statement)] = known
        return known

    def averages(self, function: ast.AST | None) -> bool:
        """Whether a function takes weights into an average, itself or through this file's functions."""
        return function is not None and self._any(self._to_averages, function)

    def called(self, node: ast.Call) -> Iterator[_Function]:
        """The functions of this file that a call may mean and that reach ``backward``."""
        name = _called_as(node)
        if name in self._to_backward:
            yield from self._functions.get(name, [])

    def training_functions(self) -> list[_Function]:
        """The functions that reach ``backward``, those that no other of them calls first."""
        found = [
            (name, f) for name in sorted(self._to_backward) for f in self._functions.get(name, []) if self.backward(f)
        ]
        callers = {name for _, f in found for name in self._calls[id(f)]}
        own = [(name, f) for name, f in found if f.lineno <= self._last]
        return [f for name, f in sorted(own, key=lambda item: (item[0] in callers, item[1].lineno))]

    def inherited_training(self) -> Iterator[tuple[_Function, ast.ClassDef]]:
        """The methods that reach ``backward`` and that classes of this file have from other modules' classes.

        Of each class only those that no other of its methods calls.
        """
        for cls in self.classes:
            methods = self._methods_of(cls, 0) if cls.lineno <= self._last else {}
            training = {name: f for name, f in methods.items() if self.backward(f)}
            called = {name for f in training.values() for name in self._calls[id(f)]}
            for name, f in training.items():
                if f.lineno > self._last and f".{name}" not in called:
                    yield f, cls

    def _methods_of(self, cls: ast.ClassDef, depth: int) -> dict[str, _Function]:
        """The methods of a class and those that it inherits, as far as its bases are known by name."""
        methods: dict[str, _Function] = {}
        for base in reversed(cls.bases) if depth < _DEEPEST_BASE else ():
            for other in self.classes:
                if other.name == _last(base) and other is not cls:
                    methods |= self._methods_of(other, depth + 1)
        return methods | {m.name: m for m in cls.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))}

    def callees(self, functions: Collection[ast.AST], module: ast.Module | None) -> set[_Function]:
        """What functions, or a module's own statements, may call, directly or through one another.

        A name may mean any function of the file and any method of the functions' own classes.
        """
        classes = [c for c in self.classes if any(f in functions for f in c.body)]
        own = {id(m) for c in classes for m in c.body}
        methods = {id(m) for c in self.classes for m in c.body}
        found: set[_Function] = set()
        names = {name for f in functions for name in self._calls.get(id(f), ())}
        for statement in _own_statements(module):
            names |= {_called_as(n) for n in walk(statement) if isinstance(n, ast.Call)}
        while names:
            near = [f for name in names for f in self._functions.get(name, []) if id(f) in own or id(f) not in methods]
            new = [f for f in near if f not in found]
            found.update(new)
            names = {name for f in new for name in self._calls[id(f)]}
        return found

    def gradient_lines(self, functions: Collection[ast.AST], module: ast.Module | None) -> set[int]:
        """The lines that may do something to gradients in functions and in what they may call."""
        nodes = {*functions, *self.callees(functions, module), *_own_statements(module)}
        return {
            n.lineno
            for node in nodes
            for n in walk(node)
            if (isinstance(n, ast.Call) and call_name(n) in self._touching and not self._steps_no_weights(n))
            or (isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Store))
        }

    def _steps_no_weights(self, node: ast.Call) -> bool:
        """Whether a call is the step of a scheduler, a profiler or an environment, as its name says."""
        return _is_named_otherwise(node) and text_of(node.func.value) not in self.steppers  # type: ignore[attr-defined]

    def is_generator(self, node: _Function) -> bool:
        """Whether a function yields."""
        return _YIELDS in self._calls[id(node)]

    @staticmethod
    def never_ends(node: _Function) -> bool:
        """Whether a generator yields for ever: from a ``while True`` that nothing leaves."""
        return any(
            isinstance(s, ast.While)
            and _is_true(s.test)
            and not any(isinstance(n, (ast.Break, ast.Return)) for n in walk(s))
            for s in node.body
        )


def _is_named_otherwise(node: ast.Call) -> bool:
    """Whether a call is a step of something that is named like no optimizer."""
    return (
        call_name(node) == "step"
        and isinstance(node.func, ast.Attribute)
        and bool(_OTHER_STEPPERS.search(text_of(node.func.value)))
    )


def _is_never_run(statement: ast.stmt, holder: ast.AST, mentioned: set[str]) -> bool:
    """Whether a statement defines a function inside of other code that nothing calls or hands on by its name."""
    return (
        isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not isinstance(holder, (ast.ClassDef, ast.Module))
        and statement.name not in mentioned
        and not statement.decorator_list
    )


def _own_statements(module: ast.Module | None) -> list[ast.stmt]:
    """The statements that run when a module does."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [s for s in module.body if not isinstance(s, definitions)] if module else []


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _last(node: ast.expr) -> str:
    return text_of(node).rpartition(".")[2]
