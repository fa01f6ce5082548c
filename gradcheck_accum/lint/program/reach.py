"""What pieces of a file can do to gradients, asked of the syntax alone: which calls, which functions, which classes.

These answers only steer the interpretation (what to inline, which branches matter); they never make a finding.
"""

from __future__ import annotations

import builtins
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeGuard, TypeVar

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.facts import (
    CALLS_A_NAME,
    TOUCH_GRADIENTS,
    YIELDS,
    Facts,
    Function,
    adds_one,
    called_as,
    does_nothing,
    last_part,
    names_called,
    stepper,
    switched,
)
from gradcheck_accum.lint.program.torch_names import (
    AVERAGES_OVER_RANKS,
    BACKWARD,
    CHOOSES_AT_RANDOM,
    CLIPS,
    MAKES_AT_RANDOM,
    MOVES_WEIGHTS,
    OPTIMIZERS,
)
from gradcheck_accum.lint.syntax import Comparison, Operator, UnaryOperator, call_name, children, text_of, walk


def _either(names: Iterable[str]) -> frozenset[str]:
    """Names as they are called, plainly or as methods."""
    return frozenset(form for name in names for form in (name, f".{name}"))


_GATHERS = _either({"append", "clear", "next"})
_DEEPEST_BASE = 4
_DEEPEST_SOURCE = 4
"""How many generators may pass on what another one yields."""
_IDENTITIES = frozenset({Comparison.IS, Comparison.ISNOT, Comparison.IN, Comparison.NOTIN})
_LEAVES = (syntax.Break, syntax.Continue, syntax.Return, syntax.Raise)
_NO_PLAIN_NAME = frozenset({"", ".", "("})
"""Prefixes of called names that are not plain names: methods, and the special entries."""
_BUILTINS = frozenset(dir(builtins))

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def remembered(ask: Callable[Concatenate[Reach, _Asked], _Answer]) -> Callable[Concatenate[Reach, _Asked], _Answer]:
    """A question about nodes that is answered once: every turn of a loop asks it, in every scenario."""

    @wraps(ask)
    def answer(reach: Reach, *asked: Any) -> Any:
        answers = reach.answers[ask]
        try:
            return answers[asked]
        except KeyError:
            known = answers[asked] = ask(reach, *asked)  # type: ignore[call-arg]
            return known
        except TypeError:  # a list, or what gives the nodes one by one: no key
            return answer(reach, *(one if isinstance(one, syntax.Node) else tuple(one) for one in asked))

    return answer  # type: ignore[return-value]


class Reach:
    """Answers about one parsed file, and the modules that its training runs on into."""

    def __init__(self, own: Facts, *others: Facts) -> None:
        every = self._facts = (own, *others)
        self.module = own.module
        body = own.module.body
        self._last = body[-1].where.end_line if body else 0
        """The last line of the file itself: those of other modules come after it."""
        self.classes = [cls for facts in every for cls in facts.classes]
        self._functions = _functions_of(own, others)
        """The functions by the name that they are called by: a method's begins with a dot."""
        self.steppers = frozenset().union(*(f.stepped for f in every)) & frozenset().union(*(f.cleared for f in every))
        """Dotted names that are both stepped and cleared in this file: optimizers, whatever they are called."""
        self.switched = frozenset(owner for one in every for owner, _ in one.switches)
        """Dotted names that are put into training mode: models, even if they step themselves, as an engine does."""
        self._networks = frozenset().union(*(f.networks for f in every))
        """Dotted names that are asked for their parameters: their ``train`` is PyTorch's, and none of this file's."""
        self._calls = self._calls_of(every)
        """The names that are called in each statement and below it, by the statement's identity."""
        self.answers: dict[Any, dict[Any, Any]] = defaultdict(dict)
        """What has been asked of these modules' nodes, by the question (`remembered`)."""
        self._asked_of: list[syntax.Node] = []
        """Nodes that are no statements of these modules, kept because another would be taken for one that is gone."""
        self._touching = _as_called(TOUCH_GRADIENTS, every)
        self.mentions_ranks = any(facts.mentions_ranks for facts in every)
        """Whether the file has a word for leaving gradients local to their rank."""
        self.engines = frozenset().union(*(facts.engines for facts in every))
        """Dotted names that are asked for a boundary as DeepSpeed's engines are."""
        imported = {a.asname or a.name for facts in every for node in facts.imports for a in node.names}
        classes = {cls.name for cls in self.classes}
        self._no_objects = _BUILTINS.union({YIELDS}, self._functions, classes, imported)
        """The plain names that stand for functions and classes, and not for objects that can be called."""
        callers = self._callers()
        self._to_backward = _closure(_either(BACKWARD), callers)
        self._to_step = _closure(_either({"step"}), callers)
        self._to_gradients = _closure(_either(TOUCH_GRADIENTS) | _GATHERS, callers)
        self._to_averages = _closure(_either(set().union(*(facts.updates for facts in every))), callers)
        self._to_optimizers = _closure(_either(OPTIMIZERS), callers)
        self._to_draws = _closure(_either({"next", "islice"}), callers)
        self._to_chance = _closure(_either(MAKES_AT_RANDOM | CHOOSES_AT_RANDOM), callers)
        self._to_ranks = _closure(_either(_as_called(AVERAGES_OVER_RANKS, every)), callers)
        self.driven = frozenset(own.driven)
        """The last part of what this file gives to Ignite's engines (`gradcheck_accum.lint.frameworks.ignite`)."""
        self.left_open = frozenset().union(*(facts.left_open for facts in every))
        """The names of methods that are left to classes that derive from these."""
        self.open_classes = {
            cls.name for cls in self.classes if any(last_part(b) not in classes | {"object", "ABC"} for b in cls.bases)
        }

    def _calls_of(self, every: Sequence[Facts]) -> dict[int, set[str]]:
        calls = {key: names for facts in every for key, names in facts.calls.items()}

        def add(name: str, around: syntax.Node | None, facts: Facts) -> None:
            while around is not None:
                calls[id(around)] = calls[id(around)] | {name}
                around = facts.around.get(id(around))

        written = self._act_if_called(".step", calls)
        for facts in every:
            for owner, statement in facts.named_otherwise:
                # A step that is written in this file may be an optimizer's, whatever has it.
                if written or owner in self.steppers:
                    add(".step", statement, facts)
            for owner, statement in facts.switches:
                if owner not in self._networks:
                    add(".train", statement, facts)
        return calls

    def _act_if_called(self, name: str, calls: dict[int, set[str]]) -> bool:
        """Whether any function of this name does something to gradients, itself or through others that it calls."""
        known = new = {name}
        while new:
            functions = [function for one in new for function in self._functions.get(one, [])]
            if any(isinstance(node, syntax.Attribute) and node.attr == "grad" for f in functions for node in walk(f)):
                return True
            called = set[str]().union(*(calls[id(function)] for function in functions))
            if not called.isdisjoint(_either(TOUCH_GRADIENTS)):
                return True
            known, new = known | called, called - known
        return False

    def _callers(self) -> dict[str, set[str]]:
        """For each name the functions that call it, and the classes whose objects call it as they are made."""
        callers: dict[str, set[str]] = {}
        for name, several in self._functions.items():
            for function in several:
                for called in self._calls[id(function)]:
                    callers.setdefault(called, set()).add(name)
        for cls in self.classes:
            # Whoever makes an object runs what its class does to set it up: a trainer's whole training, say.
            for method in cls.body:
                if isinstance(method, syntax.FunctionDef) and method.name == "__init__":
                    for called in self._calls[id(method)] - {".__init__"}:
                        callers.setdefault(called, set()).add(cls.name)
        return callers

    def _any(self, names: frozenset[str], node: syntax.Node) -> bool:
        calls = self._calls.get(id(node))
        if calls is None:
            calls = self._calls[id(node)] = names_called(node)
            self._asked_of.append(node)
        if not names.isdisjoint(calls):
            return True
        # `loss_scaler(loss, ...)` may be an object of a class of this file that acts in __call__.
        objects_act = ".__call__" in names and ".__call__" in self._functions and CALLS_A_NAME in calls
        return objects_act and any(name[:1] not in _NO_PLAIN_NAME and name not in self._no_objects for name in calls)

    def backward(self, node: syntax.Node) -> bool:
        """Whether ``node`` calls ``backward``, itself or through this file's functions."""
        return self._any(self._to_backward, node)

    @remembered
    def backward_in(self, body: Iterable[syntax.Statement]) -> bool:
        """Whether any of the statements does."""
        return any(self.backward(statement) for statement in body)

    @remembered
    def steps(self, body: Iterable[syntax.Node]) -> bool:
        """Whether any of the statements calls ``step``, itself or through this file's functions."""
        return any(self._any(self._to_step, statement) for statement in body)

    @remembered
    def steps_otherwise(self, branch: syntax.If, orelse: Sequence[syntax.Statement]) -> bool:
        """Whether a branch leaves out a step that is made ``orelse``, and no backward."""
        if self.steps(branch.body) or not self.steps(orelse):
            return False
        return not (self.backward_in(branch.body) or self.backward_in(orelse))

    @remembered
    def is_gate(self, branch: syntax.If, after: Sequence[syntax.Statement]) -> bool:
        """Whether a branch that asks for a number ends the turn before a step, which a backward has come before."""
        ends_the_turn = isinstance(branch.body[-1], (syntax.Continue, syntax.Return))
        return ends_the_turn and self.steps_otherwise(branch, after) and any(map(_asks_for_a_number, walk(branch.test)))

    def steps_outside_of(self, function: syntax.Node, loop: syntax.Node) -> bool:
        """Whether a function steps an optimizer outside of one of its loops that the loop does not step."""
        within = self._stepped_in(loop)
        return bool(within) and bool(self._stepped_in(function) - within)

    def _stepped_in(self, node: syntax.Node) -> set[str]:
        calls = [n.func for n in walk(node) if isinstance(n, syntax.Call)]
        found = {text_of(f.value) for f in calls if isinstance(f, syntax.Attribute) and f.attr == "step"}
        return found & self.steppers

    @remembered
    def bound_in_loops(self, function: syntax.Node | None) -> frozenset[str]:
        """What a function, or the module itself, binds in its loops, as it is written: it changes with their turns."""
        node = self.module if function is None else function
        loops = [n for n in walk(node) if isinstance(n, (syntax.For, syntax.While))]
        return frozenset[str]().union(*map(self.bound_in_turns, loops))

    @remembered
    def bound_in_turns(self, repeated: syntax.Node) -> frozenset[str]:
        """What a loop binds in its turns, or a function that they call, as it is written."""
        targets: list[syntax.Node] = []
        for inner in walk(repeated):
            if isinstance(inner, syntax.Assign):
                targets += inner.targets
            elif isinstance(inner, (syntax.AugAssign, syntax.For)):
                targets.append(inner.target)
        named = (n for target in targets for n in walk(target) if isinstance(n, (syntax.Name, syntax.Attribute)))
        return frozenset(text_of(n) for n in named)

    @remembered
    def counters(self, function: syntax.FunctionDef) -> frozenset[str]:
        """The names that a function adds 1 to in its loops."""
        return frozenset(
            inner.target.id
            for loop in walk(function)
            if isinstance(loop, (syntax.For, syntax.While))
            for inner in walk(loop)
            if adds_one(inner) and isinstance(inner.target, syntax.Name)
        )

    @remembered
    def acts(self, body: Iterable[syntax.Node]) -> bool:
        """Whether any of the statements, or expressions, changes gradients."""
        return any(self._any(self._to_acting, s) for s in body)

    @cached_property
    def _to_acting(self) -> frozenset[str]:
        return self._to_gradients - _GATHERS

    @remembered
    def touches_gradients(self, body: Iterable[syntax.Statement]) -> bool:
        """Whether any of the statements does something to gradients, itself or through this file's functions."""
        return any(self._any(self._to_touching, s) for s in body)

    @cached_property
    def _to_touching(self) -> frozenset[str]:
        return _closure(_either(TOUCH_GRADIENTS), self._callers())

    def clips_itself(self, node: syntax.Node) -> bool:
        """Whether a node clips gradients, in its own text."""
        return self._any(_either(CLIPS), node)

    @remembered
    def hands_on_a_clip(self, body: Iterable[syntax.Statement]) -> bool:
        """Whether any of the statements names what clips gradients without calling it: ``partial(clip_grad_norm_)``."""
        nodes = [node for statement in body for node in walk(statement)]
        called = {id(node.func) for node in nodes if isinstance(node, syntax.Call)}
        named = (node for node in nodes if isinstance(node, (syntax.Name, syntax.Attribute)) and id(node) not in called)
        return any(last_part(node) in CLIPS for node in named)

    def is_part_of(self, method: str, caller: str) -> bool:
        """Whether nothing calls a method but methods of one name: it is a part of them (``step`` and what it needs)."""
        called = f".{method}"
        in_functions = {name for name, several in self._functions.items() if self._call(called, several)}
        defines = (syntax.FunctionDef, syntax.ClassDef)
        others = [s for facts in self._facts for s in facts.module.body if not isinstance(s, defines)]
        return in_functions == {f".{caller}"} and not self._call(called, others)

    def _call(self, name: str, nodes: Iterable[syntax.Node]) -> bool:
        return any(name in self._calls[id(node)] for node in nodes)

    @cached_property
    def unwritten_number(self) -> int:
        """A number that no number of the source can be taken for: the first prime from 7 on that divides none."""
        written = frozenset[int]().union(*(facts.numbers for facts in self._facts))
        return next(n for n in itertools.count(7) if _is_prime(n) and all(other % n for other in written))

    @remembered
    def decides(self, body: Iterable[syntax.Statement]) -> bool:
        """Whether any of the statements changes gradients, or leaves the block around it."""
        return any(self._any(self._to_gradients, s) or any(isinstance(n, _LEAVES) for n in walk(s)) for s in body)

    def is_set_back(self, count: syntax.Expression) -> bool:
        """Whether a condition either adds to a count or sets it back to a number, as early stopping does."""
        return text_of(count) in self._set_back

    @cached_property
    def _set_back(self) -> frozenset[str]:
        """The names of such counts."""
        found: set[str] = set()
        for node in (n for facts in self._facts for n in walk(facts.module)):
            if isinstance(node, syntax.If) and node.orelse:
                sides = [[n for statement in side for n in walk(statement)] for side in (node.body, node.orelse)]
                added = [{text_of(n.target) for n in side if isinstance(n, syntax.AugAssign)} for side in sides]
                bound = [
                    {text_of(n.targets[0]) for n in side if isinstance(n, syntax.Assign) and _is_a_number(n.value)}
                    for side in sides
                ]
                found |= (added[0] & bound[1]) | (added[1] & bound[0])
        return frozenset(found)

    @remembered
    def ends_loop(self, body: Sequence[syntax.Statement]) -> bool:
        """Whether a block ends the loop around it: itself, or by a flag that the loop asks (``stop = True``)."""
        match body[-1] if body else None:
            case syntax.Break() | syntax.Return():
                return True
            case syntax.Assign(targets=(flag,), value=syntax.Constant(value=bool() as holds)):
                return (text_of(flag), holds) in self._flags
        return False

    @cached_property
    def _flags(self) -> frozenset[tuple[str, bool]]:
        """The names that loops are left by, and whether they hold then: ``if stop: break``, ``while running:``."""
        tests: list[tuple[syntax.Expression, bool]] = []
        for node in (n for facts in self._facts for n in walk(facts.module)):
            match node:
                case syntax.If(test=test, body=(*_, syntax.Break() | syntax.Return()), orelse=()):
                    tests.append((test, True))
                case syntax.While(test=syntax.UnaryOp(op=UnaryOperator.NOT, operand=test)):
                    tests.append((test, True))
                case syntax.While(test=test):
                    tests.append((test, False))
        named = ((test, holds) for test, holds in tests if isinstance(test, (syntax.Name, syntax.Attribute)))
        return frozenset((text_of(test), holds) for test, holds in named)

    @remembered
    def other_branches(self, branch: syntax.If) -> Sequence[syntax.Statement]:
        """What a function does if it does not return in a branch, where it returns in others or raises an exception.

        Who chooses by names may return in each branch, and refuse all other names at the end, as ``elif`` would.
        """
        around = next((facts.around[id(branch)] for facts in self._facts if id(branch) in facts.around), None)
        if not isinstance(around, syntax.FunctionDef) or not _returns(branch):
            return ()
        *others, last = around.body[around.body.index(branch) + 1 :] or (branch,)
        if not isinstance(last, syntax.Raise) or not all(map(_returns, others)):
            return ()
        return others or (last,)

    @remembered
    def draws(self, body: Iterable[syntax.Statement]) -> bool:
        """Whether any of the statements may get a new batch, or runs over data in a loop of its own."""
        statements = list(body)
        nodes = [n for statement in statements for n in walk(statement)]
        return self.takes_next(statements) or any(
            isinstance(n, syntax.For) or (isinstance(n, syntax.Call) and "batch" in call_name(n)) for n in nodes
        )

    @remembered
    def takes_next(self, body: Iterable[syntax.Statement]) -> bool:
        """Whether any of the statements takes the next few of an iterator, itself or in a function of this file."""
        return any(self._any(self._to_draws, statement) for statement in body)

    def draws_at_random(self, node: syntax.Node) -> bool:
        """Whether a function draws random numbers, itself or in others of this file."""
        return self._any(self._to_chance, node)

    @remembered
    def is_inert(self, body: Sequence[syntax.Statement]) -> bool:
        """Whether statements can change nothing that a ledger records: no gradients, no control flow, no names."""
        changes = (*_LEAVES, syntax.Assign, syntax.AugAssign, syntax.AnnAssign, syntax.NamedExpr)
        acting = self._to_gradients | self._to_averages
        return not any(self._any(acting, s) or any(isinstance(n, changes) for n in walk(s)) for s in body)

    def settings_of(self, cls: syntax.ClassDef) -> frozenset[str]:
        """The attributes that methods of a class set on the class itself: ``cls.every = args.every``."""
        return frozenset(name for holder, name in self._stored_in(cls) if holder in {"cls", cls.name})

    def set_on_objects(self, cls: syntax.ClassDef) -> frozenset[str]:
        """The attributes that methods of a class set on its objects: ``self.every = every``."""
        return frozenset(name for holder, name in self._stored_in(cls) if holder == "self")

    @remembered
    def _stored_in(self, cls: syntax.ClassDef) -> frozenset[tuple[str, str]]:
        """The attributes that a class sets anywhere, each with the name of what it sets them on."""
        stored = (node for node in walk(cls) if isinstance(node, syntax.Attribute) and node.is_stored)
        return frozenset((node.value.id, node.attr) for node in stored if isinstance(node.value, syntax.Name))

    @remembered
    def sums_losses(self, cls: syntax.ClassDef) -> bool:
        """Whether a class computes losses that are sums (``reduction="sum"``), so that what it gives may be one."""
        calls = (node for node in walk(cls) if isinstance(node, syntax.Call))
        return any(_is_a_sum(keyword) for call in calls for keyword in call.keywords)

    @remembered
    def gives_sums(self, function: syntax.FunctionDef) -> bool:
        """Whether a function returns something that it has added up to one number, and divided by nothing since."""
        return any(map(_has_a_whole_sum, _returned(function)))

    def is_own(self, node: syntax.Node) -> bool:
        """Whether a node is in the file itself, not in a module that it imports."""
        return node.where.line <= self._last

    @remembered
    def handles_gradients(self, function: syntax.FunctionDef) -> bool:
        """Whether a function that makes no graphs does anything to gradients, or takes weights into an average.

        If it also moves weights by hand (sharpness-aware minimization), what it begins or ends is not a window.
        """
        attributes = {n.attr for n in walk(function) if isinstance(n, syntax.Attribute)}
        by_hand = "grad" in attributes or self.acts(function.body)
        return self.averages(function) or (by_hand and attributes.isdisjoint(MOVES_WEIGHTS))

    def averages(self, function: syntax.Node | None) -> bool:
        """Whether a function takes weights into an average, itself or through this file's functions."""
        return function is not None and self._any(self._to_averages, function)

    def divides(self, function: syntax.FunctionDef) -> bool:
        """Whether a function divides anything, itself or through this file's functions."""
        return _divides(function) or self._any(self._to_division, function)

    @cached_property
    def _to_division(self) -> frozenset[str]:
        own = {name for name, several in self._functions.items() if any(map(_divides, several))}
        return _closure(frozenset(own), self._callers())

    def makes_optimizers(self, function: syntax.Node | None) -> bool:
        """Whether a function makes an optimizer, itself or through this file's functions."""
        return function is not None and self._any(self._to_optimizers, function)

    @remembered
    def averages_over_ranks(self, nodes: Iterable[syntax.Node]) -> bool:
        """Whether any of the nodes puts something around a model that averages its gradients over the ranks."""
        return any(self._any(self._to_ranks, node) for node in nodes)

    def is_training_loop(self, node: syntax.Node) -> TypeGuard[syntax.For | syntax.While]:
        """Whether a node is a loop that makes gradients, itself or through this file's functions."""
        return isinstance(node, (syntax.For, syntax.While)) and self.backward_in(node.body)

    @remembered
    def training_loop_in(
        self, body: Iterable[syntax.Statement]
    ) -> tuple[syntax.For | syntax.While, Function | None, syntax.Call | None] | None:
        """The first loop in statements that makes gradients; or in a function that they call, with it and the call."""
        for node in (node for statement in body for node in walk(statement)):
            if self.is_training_loop(node):
                return node, None, None
            if isinstance(node, syntax.Call):
                for function in self.called(node):
                    for inner in walk(function):
                        if self.is_training_loop(inner):
                            return inner, function, node
        return None

    def called(self, node: syntax.Call) -> Iterator[Function]:
        """The functions of this file that a call may mean and that reach ``backward``."""
        name = called_as(node)
        if name in self._to_backward and switched(node) not in self._networks:
            yield from self._functions.get(name, [])

    def training_functions(self) -> list[Function]:
        """The functions that reach ``backward``, those that no other of them calls first."""
        found = [
            (name, f) for name in sorted(self._to_backward) for f in self._functions.get(name, []) if self.backward(f)
        ]
        callers = {name for _, f in found for name in self._calls[id(f)]}
        own = [(name, f) for name, f in found if f.where.line <= self._last]
        return [f for name, f in sorted(own, key=lambda item: (item[0] in callers, item[1].where.line))]

    def inherited_training(self) -> Iterator[tuple[Function, syntax.ClassDef]]:
        """The methods that reach ``backward`` and that classes of this file have from other modules' classes.

        Of each class only those that no other of its methods calls.
        """
        for cls in self.classes:
            methods = self._methods_of(cls, 0) if cls.where.line <= self._last else {}
            training = {name: f for name, f in methods.items() if self.backward(f)}
            called = {name for f in training.values() for name in self._calls[id(f)]}
            for name, f in training.items():
                if f.where.line > self._last and f".{name}" not in called:
                    yield f, cls

    def _methods_of(self, cls: syntax.ClassDef, depth: int) -> dict[str, Function]:
        """The methods of a class and those that it inherits, as far as its bases are known by name."""
        methods: dict[str, Function] = {}
        for base in reversed(cls.bases) if depth < _DEEPEST_BASE else ():
            for other in self.classes:
                if other.name == last_part(base) and other is not cls:
                    methods |= self._methods_of(other, depth + 1)
        return methods | {m.name: m for m in cls.body if isinstance(m, syntax.FunctionDef)}

    def left_empty(self, methods: Iterable[Function]) -> frozenset[str]:
        """Those of a class's methods that do nothing, although these ask for their result: a derived class writes them.

        (A hook, whose result is not asked for, may do nothing.)
        """
        methods = tuple(methods)
        empty = {m.name for m in methods if does_nothing(m)}
        if not empty:
            return frozenset()
        nodes = [n for method in methods for n in walk(method)]
        alone = {id(n.value) for n in nodes if isinstance(n, syntax.Expr)}
        asked = {
            n.func.attr
            for n in nodes
            if isinstance(n, syntax.Call) and isinstance(n.func, syntax.Attribute) and id(n) not in alone
            if text_of(n.func.value) == "self"
        }
        return frozenset(empty & asked)

    def is_empty(self, owner: str, method: str) -> bool:
        """Whether a class of these modules has a method that does nothing."""
        own = [m for cls in self.classes if cls.name == owner for m in cls.body if isinstance(m, syntax.FunctionDef)]
        return any(m.name == method and does_nothing(m) for m in own)

    def bases(self, cls: syntax.ClassDef, depth: int = 0) -> set[str]:
        """The names of the classes that a class derives from, as far as those are known by name."""
        names = {last_part(base) for base in cls.bases}
        if depth < _DEEPEST_BASE:
            names.update(*(self.bases(c, depth + 1) for c in self.classes if c.name in names and c is not cls))
        return names

    def callees(self, functions: Collection[syntax.Node], module: syntax.Module | None) -> set[Function]:
        """What functions, or a module's own statements, may call, directly or through one another.

        A name may mean any function of the file and any method of the functions' own classes.
        """
        classes = [c for c in self.classes if any(f in functions for f in c.body)]
        own = {id(m) for c in classes for m in c.body}
        methods = {id(m) for c in self.classes for m in c.body}
        found: set[Function] = set()
        names = {name for f in functions for name in self._calls.get(id(f), ())}
        for statement in _own_statements(module):
            names |= {called_as(n) for n in walk(statement) if isinstance(n, syntax.Call)}
        while names:
            near = [f for name in names for f in self._functions.get(name, []) if id(f) in own or id(f) not in methods]
            new = [f for f in near if f not in found]
            found.update(new)
            names = {name for f in new for name in self._calls[id(f)]}
        return found

    def gradient_lines(self, functions: Collection[syntax.Node], module: syntax.Module | None) -> set[int]:
        """The lines that may do something to gradients in functions and in what they may call."""
        nodes = {*functions, *self.callees(functions, module), *_own_statements(module)}
        return {
            n.where.line
            for node in nodes
            for n in walk(node)
            if (isinstance(n, syntax.Call) and call_name(n) in self._touching and not self._steps_no_weights(n))
            or (isinstance(n, syntax.Attribute) and n.attr == "grad" and n.is_stored)
        }

    def _steps_no_weights(self, node: syntax.Call) -> bool:
        """Whether a call is the step of a scheduler, a profiler or an environment, as its name says."""
        owner = stepper(node)
        return owner is not None and owner not in self.steppers

    def yields(self, node: syntax.Statement) -> bool:
        """Whether a function yields, or a statement of one does."""
        return self._any(frozenset({YIELDS}), node)

    def never_ends(self, node: Function, depth: int = 0) -> bool:
        """Whether a generator yields for ever: in a loop that nothing leaves, and that runs on by itself.

        Such a loop is a ``while True``, or goes over what another generator yields without an end (``yield from`` too).
        """
        return any(
            (
                (isinstance(s, syntax.While) and _is_true(s.test))
                or (
                    isinstance(s, syntax.Expr)
                    and isinstance(s.value, syntax.YieldFrom)
                    and self._runs_on(s.value.value, depth + 1)
                )
                or (isinstance(s, syntax.For) and depth < _DEEPEST_SOURCE and self._runs_on(s.iter, depth + 1))
            )
            and not any(isinstance(n, (syntax.Break, syntax.Return)) for n in walk(s))
            for s in node.body
        )

    def gives_endlessly(self, node: Function) -> bool:
        """Whether what a function gives never ends: it is a generator that does not, or returns what one gives."""
        if self.yields(node):
            return self.never_ends(node)
        last = node.body[-1] if isinstance(node, syntax.FunctionDef) else None
        given = last.value if isinstance(last, syntax.Return) else None
        if isinstance(given, syntax.Call) and called_as(given) == "iter" and len(given.args) == 1:
            given = given.args[0]
        return given is not None and self._runs_on(given, 0)

    def _runs_on(self, source: syntax.Expression, depth: int) -> bool:
        """Whether an expression calls a generator of this file that never ends."""
        if not isinstance(source, syntax.Call):
            return False
        functions = self._functions.get(called_as(source), [])
        return bool(functions) and all(self.yields(f) and self.never_ends(f, depth) for f in functions)


def _as_called(names: frozenset[str], every: Sequence[Facts]) -> frozenset[str]:
    """Names, and those that modules import them as."""
    return names.union(here for facts in every for here, name in facts.renamed if name in names)


def _functions_of(own: Facts, others: Sequence[Facts]) -> dict[str, list[Function]]:
    """The functions by the name that they are called by, those of other modules by what they are imported as too."""
    functions: dict[str, list[Function]] = {}
    for facts in (own, *others):
        for name, function in facts.functions:
            functions.setdefault(name, []).append(function)
    for facts in others:
        for statement in facts.module.body:
            if isinstance(statement, syntax.FunctionDef):
                functions.setdefault(f".{statement.name}", []).append(statement)  # as `module.f(...)`
    for facts in (own, *others) if others else ():
        for name, original in facts.renamed:
            if original in functions and name not in functions:
                functions[name] = functions[original]
    return functions


def _divides(function: syntax.Node) -> bool:
    return any(isinstance(n, (syntax.BinOp, syntax.AugAssign)) and n.op is Operator.DIV for n in walk(function))


def _closure(seeds: frozenset[str], callers: dict[str, set[str]]) -> frozenset[str]:
    """The seeds and the names of the functions that call one, directly or through one another.

    An object of a class that acts when called is called by the object's name, which is not among them.
    """
    names = set(seeds)
    new = list(seeds)
    for name in new:
        more = callers.get(name, set()) - names
        names |= more
        new += more
    return frozenset(names)


def _own_statements(module: syntax.Module | None) -> list[syntax.Statement]:
    """The statements that run when a module does."""
    definitions = (syntax.FunctionDef, syntax.ClassDef)
    return [s for s in module.body if not isinstance(s, definitions)] if module else []


def _is_a_sum(keyword: syntax.Keyword) -> bool:
    """Whether an argument asks a loss for a sum, by its name of today or by the one before."""
    value = keyword.value.value if isinstance(keyword.value, syntax.Constant) else None
    return (keyword.arg == "reduction" and value == "sum") or (keyword.arg == "size_average" and value is False)


def _has_a_whole_sum(node: syntax.Node) -> bool:
    """Whether an expression has a sum over all of something in it (``x.sum()``), other than in a quotient."""
    match node:
        case syntax.BinOp(op=Operator.DIV | Operator.FLOORDIV):
            return False
        case syntax.Call(func=syntax.Attribute(value=syntax.Name(id="torch"), attr="sum"), args=(_,), keywords=()):
            return True
        case syntax.Call(func=syntax.Attribute(attr="sum"), args=(), keywords=()):
            return True
    return any(map(_has_a_whole_sum, children(node)))


def _returned(function: syntax.FunctionDef) -> list[syntax.Expression]:
    """What a function returns, and what it has bound the names in that to."""
    nodes = list(walk(function))
    found = [node.value for node in nodes if isinstance(node, syntax.Return) and node.value is not None]
    bound: dict[str, list[syntax.Expression]] = {}
    for node in nodes:
        match node:
            case syntax.Assign(targets=(syntax.Name(id=name),), value=value):
                bound.setdefault(name, []).append(value)
            case syntax.AugAssign(target=syntax.Name(id=name), op=Operator.ADD, value=value):
                bound.setdefault(name, []).append(value)
    for value in found:
        if isinstance(value, syntax.Name):
            found += bound.pop(value.id, [])
    return found


def _returns(node: syntax.Statement) -> bool:
    """Whether a statement is a branch that returns."""
    return isinstance(node, syntax.If) and not node.orelse and isinstance(node.body[-1], syntax.Return)


def _asks_for_a_number(node: syntax.Node) -> bool:
    """Whether a part of a condition compares a number with another, or asks whether it divides one."""
    if isinstance(node, syntax.Compare):
        return not any(op in _IDENTITIES for op in node.ops)
    return isinstance(node, syntax.BinOp) and node.op is Operator.MOD


def _is_true(node: syntax.Expression) -> bool:
    return isinstance(node, syntax.Constant) and bool(node.value)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, number))


def _is_a_number(node: syntax.Expression) -> bool:
    return isinstance(node, syntax.Constant) and isinstance(node.value, (int, float))
