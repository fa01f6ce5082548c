"""What one module says about itself by its syntax alone, gathered in one walk: `gradcheck_accum.lint.reach` asks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from gradcheck_accum.lint.averages import UPDATES, blended
from gradcheck_accum.lint.source import FIELDS, call_name, text_of, walk

BACKWARD = frozenset({"backward", "manual_backward"})
TOUCH_GRADIENTS = BACKWARD | frozenset(
    "step zero_grad unscale_ clip_grad_norm_ clip_grad_value_ clip_grad_norm clip_grads_with_norm_ clip_gradients "  # noqa: SIM905
    "div_ mul_ zero_ fill_ clamp_ clip_".split()
)
GATES = ("update_grad", "need_update")
"""The arguments by which callables that run backward are told to step as well (`gradcheck_accum.lint.told_to_step`)."""
YIELDS = "yield"
"""Stands among the names that a statement calls where it yields: no function can have this name."""
BLENDS = "(average)"
"""Stands there where it blends weights into an average."""
CALLS_A_NAME = "()"
"""Stands there where what is called is a plain name, which may hold an object with a ``__call__``."""

_OTHER_STEPPERS = re.compile(r"sched|profil|\bprof\b|env|logger|timer", re.IGNORECASE)
_SYNCHRONISE = frozenset({"no_sync", "no_backward_sync", "require_backward_grad_sync"})
_STATEMENTS = frozenset(ast.stmt.__subclasses__())
_SILENT = frozenset({ast.Name, ast.Constant, ast.alias, ast.arg})
"""Kinds of nodes that say nothing here."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def called_as(node: ast.Call) -> str:
    """How a call names what it calls: a method, whose name begins with a dot, or a plain function.

    The two are kept apart because training functions are often called ``train``, and call ``model.train()``.
    """
    return f".{call_name(node)}" if isinstance(node.func, ast.Attribute) else call_name(node)


def names_called(node: ast.AST) -> set[str]:
    """The names that are called in a node and below it."""
    return {name for n in walk(node) if isinstance(n, ast.Call) for name in _names_of(n)}


def _names_of(node: ast.Call) -> tuple[str, ...]:
    if any(keyword.arg in GATES for keyword in node.keywords):
        return (called_as(node), "backward", "step")
    return (node.func.id, CALLS_A_NAME) if isinstance(node.func, ast.Name) else (called_as(node),)


def stepper(node: ast.Call) -> str | None:
    """What a call steps, if that is named like a scheduler, a profiler or an environment, and not like an optimizer."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return None
    owner = text_of(node.func.value)
    return owner if _OTHER_STEPPERS.search(owner) else None


def switched(node: ast.Call) -> str | None:
    """What a call puts into training mode, if that is a network: ``model.train()``."""
    func = node.func
    if not (isinstance(func, ast.Attribute) and func.attr == "train") or text_of(func.value) in {"self", "super()"}:
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_mode = len(given) <= 1 and all(isinstance(value, ast.Constant) for value in given)
    return text_of(func.value) if is_mode else None


def is_left_open(function: Function) -> bool:
    """Whether a method is there to be written in classes that derive from this one: all that it does is to refuse."""
    *before, last = function.body
    for statement in before:
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            return False
    refuses = isinstance(last, ast.Raise) and last.exc is not None and "NotImplemented" in text_of(last.exc)
    return refuses or any("abstract" in text_of(decorator) for decorator in function.decorator_list)


def last_part(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return text_of(node).rpartition(".")[2]


class Facts:
    """What stands in one module; dictionaries by a statement's identity hold as long as this does."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self.functions: list[tuple[str, Function]] = []
        """The functions with the name that they are called by: a method's begins with a dot."""
        self.left_open: set[str] = set()
        """The names of methods that are left to classes that derive from these."""
        self.classes: list[ast.ClassDef] = []
        self.calls: dict[int, set[str]] = {id(module): set()}
        """The names that are called in each statement and below it, but for steps of what is no optimizer by name."""
        self.around: dict[int, ast.AST] = {}
        """The statement that each statement stands in."""
        self.named_otherwise: list[tuple[str, ast.AST]] = []
        """What such steps are called on, and the statements that they stand in."""
        self.stepped: set[str] = set()
        self.cleared: set[str] = set()
        """Dotted names whose ``step`` or ``zero_grad`` is called."""
        self.networks: set[str] = set()
        """Dotted names that are asked for their parameters."""
        self.switches: list[tuple[str, ast.AST]] = []
        """What is put into training mode if it is a network, and the statements that do so."""
        self.updates = {BLENDS}
        """The methods that take weights into averages, as far as they are called."""
        self.mentions_ranks = False
        """Whether there is a word for leaving gradients local to their rank."""
        self.engines: set[str] = set()
        """Dotted names that are asked for a boundary as DeepSpeed's engines are."""
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.used_names: set[str] = set()
        """The plain names that are called or inherited from."""
        self.used_members: dict[str, set[str]] = {}
        """The same of attributes, by the name that they are attributes of."""
        self._methods: set[int] = set()
        self._gather(module)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The whole numbers that are written in the module."""
        constants = (n.value for n in ast.walk(self.module) if isinstance(n, ast.Constant))
        return frozenset(abs(value) for value in constants if type(value) is int and value)

    @property
    def renamed(self) -> Iterator[tuple[str, str]]:
        """Imported names with what they are called here, where that is another name."""
        for node in self.imports:
            if isinstance(node, ast.ImportFrom):
                yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)

    def _gather(self, module: ast.Module) -> None:
        statements: list[ast.AST] = [module]
        for statement in statements:
            nodes = [statement]
            for node in nodes:
                note = _NOTES.get(node.__class__)
                if note is not None:
                    note(self, node, statement)
                dead = node.body if isinstance(node, (ast.If, ast.While)) and _is_false(node.test) else ()
                for child in _told_by(node):
                    if child.__class__ not in _STATEMENTS:
                        nodes.append(child)
                    elif child not in dead:
                        self.around[id(child)] = statement
                        self.calls[id(child)] = set()
                        statements.append(child)
        never = self._never_run(statements)
        for statement in reversed(statements[1:]):
            if id(statement) in never:
                self.calls[id(statement)] = set()
            self.calls[id(self.around[id(statement)])] |= self.calls[id(statement)]

    def _never_run(self, statements: list[ast.AST]) -> set[int]:
        """The functions inside of other code that nothing calls or hands on by their names."""
        inside = [
            node
            for node in statements
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and not node.decorator_list
            and not isinstance(self.around[id(node)], (ast.ClassDef, ast.Module))
        ]
        mentioned = {node.id for node in walk(self.module) if isinstance(node, ast.Name)} if inside else set[str]()
        return {id(node) for node in inside if node.name not in mentioned}

    def _function(self, node: Function, statement: ast.AST) -> None:
        dot = "." if id(node) in self._methods else ""
        if dot and is_left_open(node):
            self.left_open.add(node.name)
        self.functions.append((dot + node.name, node))

    def _class(self, node: ast.ClassDef, statement: ast.AST) -> None:
        self.classes.append(node)
        self._methods.update(map(id, node.body))
        for base in node.bases:
            self._use(base)

    def _import(self, node: ast.Import | ast.ImportFrom, statement: ast.AST) -> None:
        self.imports.append(node)

    def _yield(self, node: ast.AST, statement: ast.AST) -> None:
        self.calls[id(statement)].add(YIELDS)

    def _blend(self, node: ast.BinOp, statement: ast.AST) -> None:
        if isinstance(node.op, ast.Add) and blended(node):
            self.calls[id(statement)].add(BLENDS)

    def _attribute(self, node: ast.Attribute, statement: ast.AST) -> None:
        if node.attr in _SYNCHRONISE:
            self.mentions_ranks = True
        elif node.attr == "is_gradient_accumulation_boundary":
            self.engines.add(text_of(node.value))

    def _call(self, node: ast.Call, statement: ast.AST) -> None:
        func = node.func
        self._use(func)
        owner, network = stepper(node), switched(node)
        if owner is not None:
            self.named_otherwise.append((owner, statement))
        elif network is not None:
            self.switches.append((network, statement))
        else:
            self.calls[id(statement)].update(_names_of(node))
        if isinstance(func, ast.Attribute):
            match func.attr:
                case "step":
                    self.stepped.add(text_of(func.value))
                case "zero_grad":
                    self.cleared.add(text_of(func.value))
                case "parameters" | "named_parameters":
                    self.networks.add(text_of(func.value))
                case "add_" | "lerp_" if blended(node):
                    self.calls[id(statement)].add(BLENDS)
                case "_foreach_lerp_":
                    self.calls[id(statement)].add(BLENDS)
        name = call_name(node)
        if name in UPDATES:
            self.updates.add(UPDATES[name])

    def _use(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            self.used_names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            self.used_members.setdefault(node.value.id, set()).add(node.attr)


def _told_by(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one that say anything here."""
    found: list[ast.AST] = []
    for name in FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if item.__class__ not in _SILENT and item is not None]
        elif value is not None and value.__class__ not in _SILENT:
            found.append(value)
    return found


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


_NOTES: dict[type[ast.AST], Callable[[Facts, Any, ast.AST], None]] = {
    ast.FunctionDef: Facts._function,
    ast.AsyncFunctionDef: Facts._function,
    ast.ClassDef: Facts._class,
    ast.Import: Facts._import,
    ast.ImportFrom: Facts._import,
    ast.Call: Facts._call,
    ast.Attribute: Facts._attribute,
    ast.BinOp: Facts._blend,
    ast.Yield: Facts._yield,
    ast.YieldFrom: Facts._yield,
}
