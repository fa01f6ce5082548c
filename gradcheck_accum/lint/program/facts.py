"""What one module says about itself by its syntax alone, gathered in one walk.

`gradcheck_accum.lint.program.reach` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeGuard

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.blends import blended
from gradcheck_accum.lint.program.names import STEPS_NO_OPTIMIZER
from gradcheck_accum.lint.program.torch_names import (
    ASKED_OF_OPTIMIZERS,
    AVERAGES,
    BACKWARD,
    BLENDS_ALL,
    BLENDS_IN_PLACE,
    BOUNDS_IN_PLACE,
    CLIPS,
    CLIPS_OF_FRAMEWORKS,
    DIVIDES_IN_PLACE,
    DRIVER,
    ENGINE_BOUNDARY,
    FOREACH,
    GATES,
    MULTIPLIES_IN_PLACE,
    PARAMETERS,
    PAUSES,
    SETS_IN_PLACE,
    STARTS_PROCESSES,
    SYNC_SWITCH,
)
from gradcheck_accum.lint.syntax import Operator, call_name, children, text_of, walk

_IN_PLACE = SETS_IN_PLACE | DIVIDES_IN_PLACE | MULTIPLIES_IN_PLACE | BOUNDS_IN_PLACE
WRITES = "(gradient)"
"""An entry for a statement that writes a ``.grad``."""
TOUCH_GRADIENTS = frozenset({WRITES}).union(
    *(BACKWARD, ASKED_OF_OPTIMIZERS, CLIPS, CLIPS_OF_FRAMEWORKS),
    *(_IN_PLACE, (FOREACH + name for name in _IN_PLACE)),
)
"""All that does something to gradients."""
YIELDS = "yield"
"""An entry among a statement's called names if it yields: no function can have this name."""
BLENDS = "(average)"
"""An entry for a statement that blends weights into an average."""
CALLS_A_NAME = "()"
"""An entry for a call of a plain name, which may be bound to an object with a ``__call__``."""

_STARTS = frozenset(path.rpartition(".")[2] for path in STARTS_PROCESSES)
_SYNCHRONISE = PAUSES | {SYNC_SWITCH}
_STATEMENTS = frozenset(syntax.Statement.__subclasses__())
_SILENT = frozenset({syntax.Name, syntax.Constant, syntax.Alias, syntax.Arg})
"""Kinds of nodes that say nothing here."""

Function = syntax.FunctionDef


def called_as(node: syntax.Call) -> str:
    """How a call names what it calls: a method, whose name begins with a dot, or a plain function.

    The two are kept apart because training functions are often called ``train``, and call ``model.train()``.
    """
    return f".{call_name(node)}" if isinstance(node.func, syntax.Attribute) else call_name(node)


def mapped(node: syntax.Call) -> syntax.Expression | None:
    """What Python's ``map`` calls with each item; None for any other call."""
    is_map = isinstance(node.func, syntax.Name) and node.func.id == "map" and not node.keywords
    shown = len(node.args) > 1 and not any(isinstance(one, syntax.Starred) for one in node.args)
    return node.args[0] if is_map and shown else None


def names_called(node: syntax.Node) -> set[str]:
    """The names that are called in a node and below it."""
    return {name for n in walk(node) if isinstance(n, syntax.Call) for name in _names_of(n)}


def _names_of(node: syntax.Call) -> tuple[str, ...]:
    if any(keyword.arg in GATES for keyword in node.keywords):
        return (called_as(node), "backward", "step")
    if call_name(node) in _STARTS and node.args and isinstance(node.args[0], syntax.Name):
        return (called_as(node), node.args[0].id)
    function = mapped(node)
    if function is not None:
        return ("map", *_names_of(syntax.Call(node.where, node.origin, function, (), ())))
    return (node.func.id, CALLS_A_NAME) if isinstance(node.func, syntax.Name) else (called_as(node),)


def stepper(node: syntax.Call) -> str | None:
    """What a call steps, if that is named like a scheduler, a profiler or an environment, and not like an optimizer."""
    if not isinstance(node.func, syntax.Attribute) or node.func.attr != "step":
        return None
    owner = text_of(node.func.value)
    return owner if STEPS_NO_OPTIMIZER.fits(owner) else None


def switched(node: syntax.Call) -> str | None:
    """What a call puts into training mode, if that is a network: ``model.train()``."""
    func = node.func
    if not (isinstance(func, syntax.Attribute) and func.attr == "train") or text_of(func.value) in {"self", "super()"}:
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_mode = len(given) <= 1 and all(isinstance(value, syntax.Constant) for value in given)
    return text_of(func.value) if is_mode else None


def adds_one(node: syntax.Node) -> TypeGuard[syntax.AugAssign]:
    """Whether a statement counts one more: ``count += 1``."""
    if not isinstance(node, syntax.AugAssign) or node.op is not Operator.ADD:
        return False
    return isinstance(node.value, syntax.Constant) and node.value.value == 1


def is_left_open(function: Function) -> bool:
    """Whether a method is there to be written in classes that derive from this one: all that it does is to refuse."""
    first = next((statement for statement in function.body if not _is_constant(statement)), function.body[-1])
    # What follows an exception never runs.
    refuses = isinstance(first, syntax.Raise) and first.exc is not None and "NotImplemented" in text_of(first.exc)
    is_short = all(map(_is_constant, function.body[:-1]))
    return refuses or (is_short and any("abstract" in text_of(decorator) for decorator in function.decorator_list))


def _is_constant(statement: syntax.Statement) -> bool:
    """Whether a statement is a text or another constant, which does nothing."""
    return isinstance(statement, syntax.Expr) and isinstance(statement.value, syntax.Constant)


def does_nothing(function: Function) -> bool:
    """Whether a method has no statement that does anything, nor gives anything back."""
    return not function.decorator_list and all(map(_does_nothing, function.body))


def _does_nothing(statement: syntax.Statement) -> bool:
    if isinstance(statement, syntax.Return):
        return statement.value is None or (
            isinstance(statement.value, syntax.Constant) and statement.value.value is None
        )
    return isinstance(statement, syntax.Pass) or _is_constant(statement)


def last_part(node: syntax.Expression) -> str:
    """The last part of a dotted name."""
    return text_of(node).rpartition(".")[2]


class Facts:
    """The facts of one module; dictionaries keyed by a statement's identity are valid as long as this object lives."""

    def __init__(self, module: syntax.Module) -> None:
        self.module = module
        self.functions: list[tuple[str, Function]] = []
        """The functions with the name that they are called by: a method's begins with a dot."""
        self.left_open: set[str] = set()
        """The names of methods that are left to classes that derive from these."""
        self.classes: list[syntax.ClassDef] = []
        self.calls: dict[int, set[str]] = {id(module): set()}
        """The names that are called in each statement and below it, but for steps of what is no optimizer by name."""
        self.around: dict[int, syntax.Node] = {}
        """The statement that contains each statement."""
        self.named_otherwise: list[tuple[str, syntax.Node]] = []
        """The receivers of such steps, and the statements that contain these."""
        self.stepped: set[str] = set()
        self.cleared: set[str] = set()
        """Dotted names whose ``step`` or ``zero_grad`` is called."""
        self.networks: set[str] = set()
        """Dotted names that are asked for their parameters."""
        self.switches: list[tuple[str, syntax.Node]] = []
        """What is put into training mode if it is a network, and the statements that do so."""
        self.updates = {BLENDS}
        """The methods that take weights into averages, as far as they are called."""
        self.mentions_ranks = False
        """Whether there is a word for leaving gradients local to their rank."""
        self.engines: set[str] = set()
        """Dotted names that are asked for a boundary as DeepSpeed's engines are."""
        self.driven: set[str] = set()
        """The last part of what is given to something called like Ignite's Engine, which calls it with every batch."""
        self.imports: list[syntax.Import | syntax.ImportFrom] = []
        self.used_names: set[str] = set()
        """The plain names that are called or inherited from."""
        self.used_members: dict[str, set[str]] = {}
        """The same of attributes, by the name that they are attributes of."""
        self._methods: set[int] = set()
        self._gather(module)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The whole numbers that are written in the module."""
        constants = (n.value for n in syntax.walk(self.module) if isinstance(n, syntax.Constant))
        return frozenset(abs(value) for value in constants if type(value) is int and value)

    @property
    def calls_backward(self) -> bool:
        """Whether the module calls ``backward`` itself."""
        return any(name.removeprefix(".") in BACKWARD for name in self.calls[id(self.module)])

    @property
    def renamed(self) -> Iterator[tuple[str, str]]:
        """Imported names with what they are called here, where that is another name."""
        for node in self.imports:
            if isinstance(node, syntax.ImportFrom):
                yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)

    def _gather(self, module: syntax.Module) -> None:
        statements: list[syntax.Node] = [module]
        for statement in statements:
            nodes = [statement]
            for node in nodes:
                note = _NOTES.get(node.__class__)
                if note is not None:
                    note(self, node, statement)
                dead = node.body if isinstance(node, (syntax.If, syntax.While)) and _is_false(node.test) else ()
                for child in _relevant_children(node):
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

    def _never_run(self, statements: list[syntax.Node]) -> set[int]:
        """The functions inside of other code that nothing calls or hands on by their names."""
        inside = [
            node
            for node in statements
            if isinstance(node, syntax.FunctionDef)
            and not node.decorator_list
            and not isinstance(self.around[id(node)], (syntax.ClassDef, syntax.Module))
        ]
        mentioned = {node.id for node in walk(self.module) if isinstance(node, syntax.Name)} if inside else set[str]()
        return {id(node) for node in inside if node.name not in mentioned}

    def _function(self, node: Function, statement: syntax.Node) -> None:
        dot = "." if id(node) in self._methods else ""
        if dot and is_left_open(node):
            self.left_open.add(node.name)
        self.functions.append((dot + node.name, node))

    def _class(self, node: syntax.ClassDef, statement: syntax.Node) -> None:
        self.classes.append(node)
        self._methods.update(map(id, node.body))
        for base in node.bases:
            self._use(base)

    def _import(self, node: syntax.Import | syntax.ImportFrom, statement: syntax.Node) -> None:
        self.imports.append(node)

    def _yield(self, node: syntax.Node, statement: syntax.Node) -> None:
        self.calls[id(statement)].add(YIELDS)

    def _blend(self, node: syntax.BinOp, statement: syntax.Node) -> None:
        if node.op is Operator.ADD and blended(node):
            self.calls[id(statement)].add(BLENDS)

    def _write(self, node: syntax.Assign | syntax.AugAssign, statement: syntax.Node) -> None:
        for target in node.targets if isinstance(node, syntax.Assign) else (node.target,):
            holder = target.value if isinstance(target, syntax.Attribute) and target.attr == "data" else target
            if isinstance(holder, syntax.Attribute) and holder.attr == "grad":
                self.calls[id(statement)].add(WRITES)

    def _attribute(self, node: syntax.Attribute, statement: syntax.Node) -> None:
        if node.attr in _SYNCHRONISE:
            self.mentions_ranks = True
        elif node.attr == ENGINE_BOUNDARY:
            self.engines.add(text_of(node.value))

    def _call(self, node: syntax.Call, statement: syntax.Node) -> None:
        func = node.func
        self._use(func)
        owner, network = stepper(node), switched(node)
        if owner is not None:
            self.named_otherwise.append((owner, statement))
        elif network is not None:
            self.switches.append((network, statement))
        else:
            self.calls[id(statement)].update(_names_of(node))
        if isinstance(func, syntax.Attribute):
            match func.attr:
                case "step":
                    self.stepped.add(text_of(func.value))
                case "zero_grad":
                    self.cleared.add(text_of(func.value))
                case name if name in PARAMETERS:
                    self.networks.add(text_of(func.value))
                case name if name == BLENDS_ALL or (name in BLENDS_IN_PLACE and blended(node)):
                    self.calls[id(statement)].add(BLENDS)
        name = call_name(node)
        if name in AVERAGES:
            self.updates.add(AVERAGES[name])
        elif name == DRIVER and len(node.args) == 1:
            self.driven.add(last_part(node.args[0]))

    def _use(self, node: syntax.Expression) -> None:
        if isinstance(node, syntax.Name):
            self.used_names.add(node.id)
        elif isinstance(node, syntax.Attribute) and isinstance(node.value, syntax.Name):
            self.used_members.setdefault(node.value.id, set()).add(node.attr)


def _relevant_children(node: syntax.Node) -> list[syntax.Node]:
    """The nodes directly below one that say anything here."""
    return [child for child in children(node) if child.__class__ not in _SILENT]


def _is_false(node: syntax.Expression) -> bool:
    return isinstance(node, syntax.Constant) and not node.value


_NOTES: dict[type[syntax.Node], Callable[[Facts, Any, syntax.Node], None]] = {
    syntax.FunctionDef: Facts._function,
    syntax.ClassDef: Facts._class,
    syntax.Import: Facts._import,
    syntax.ImportFrom: Facts._import,
    syntax.Call: Facts._call,
    syntax.Attribute: Facts._attribute,
    syntax.Assign: Facts._write,
    syntax.AugAssign: Facts._write,
    syntax.BinOp: Facts._blend,
    syntax.Yield: Facts._yield,
    syntax.YieldFrom: Facts._yield,
}
