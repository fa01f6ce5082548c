"""How many turns of a loop are carried out: all that a training needs, and few of what only reports.

How often a validation runs, say, the source does not show: whatever number of turns stands for that is a guess, and
nothing that is found may rest on it. So where its turns take long, the first few and the last one stand for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.interpreter.iteration import is_guessed, is_left
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import OutOfBudget
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.syntax import call_name, walk

_FIRST = 2
"""Turns that are carried out before it is asked how long they take."""
_LONG = 500
"""Evaluations of all other turns together from which on those of a loop that only reports are left out."""


def foreseen(run: State, loop: syntax.For, items: Iterable[Any]) -> Iterator[Any]:
    """What a training loop yields. Raises OutOfBudget as soon as its turns are seen to take more than is left.

    The first turn is no measure: what it makes, the others meet. A loop that can be left may come to its end before:
    it is given up only where fewer epochs can still be tried.
    """
    if not isinstance(items, list) or (run.knowledge.hurries and is_left(loop.body)):
        yield from items
        return
    before, least = run.spent, 0
    for number, item in enumerate(items):
        if number > _FIRST:
            took = run.spent - before
            least = min(least, took) if least else took
            if least * (len(items) - number) > run.budget - run.spent:
                raise OutOfBudget
        before = run.spent
        yield item


def turns_of(run: State, loop: syntax.For, source: Any, items: Iterable[Any], scope: v.Scope) -> Iterator[Any]:
    """What a loop that trains nothing yields: the first few items and the last, where so many turns take long."""
    if not _is_idle(run, loop, source):
        yield from items
        return
    run.loops.idle += 1
    if not (isinstance(items, list) and len(items) > _FIRST + 1):
        yield from items
        return
    before = run.spent
    yield from items[:_FIRST]
    rest = items[_FIRST:]
    takes_long = (run.spent - before) // _FIRST * len(rest) > _LONG
    yield from rest[-1:] if takes_long and not _gathers(scope) else rest


def _is_idle(run: State, loop: syntax.For, source: Any) -> bool:
    """Whether a loop next to a training takes a guessed number of turns, and none does anything to gradients."""
    if not run.in_training or run.calls.yielded is not None or run.reach.acts(loop.body):
        return False
    if run.reach.takes_next(loop.body) and not _takes_of_its_own(run):
        return False
    return is_guessed(run, source)


def _takes_of_its_own(run: State) -> bool:
    """Whether the function under way takes the next items of iterators only that it has made itself."""
    nodes = walk(run.calls.stack[-1]) if run.calls.stack else []
    taken = [n.args[0] for n in nodes if isinstance(n, syntax.Call) and call_name(n) == "next" and n.args]
    made = {
        target.id
        for n in nodes
        if isinstance(n, syntax.Assign) and isinstance(n.value, syntax.Call) and call_name(n.value) == "iter"
        for target in n.targets
        if isinstance(target, syntax.Name)
    }
    return bool(taken) and all(isinstance(one, syntax.Name) and one.id in made for one in taken)


def _gathers(scope: v.Scope) -> bool:
    """Whether a list here holds data, which a training may run over as often as the list is long."""
    owner = scope.names.get("self")
    held = [*scope.names.values(), *(owner.attributes.values() if isinstance(owner, v.Instance) else ())]
    return any(isinstance(value, list) and v.is_data(value) for value in held)
