"""Which losses are kept with their graphs, and by what: a sum over micro-batches, or a list of their losses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.torch_names import NO_GRAPHS
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Tensor
from gradcheck_accum.lint.syntax import Operator, call_name

_DEEPEST = 6


def makes_no_graphs(context: syntax.Expression) -> bool:
    """Whether a ``with`` statement's expression disables graphs."""
    return isinstance(context, syntax.Call) and call_name(context) in NO_GRAPHS


def summed(run: State, node: syntax.BinOp | syntax.AugAssign, result: Any) -> Any:
    """The result of an operation, with its place if it is the one that adds up losses of several micro-batches."""
    if not isinstance(result, Tensor):
        return result
    if run.no_graphs:
        return result.detached()
    if node.op is Operator.ADD and len({part.micro_batch for part in result.parts}) > 1:
        where = run.recorder.locate(node)
        run.recorder.keepers.setdefault(where)
        return replace(result, summed_at=where)
    return result


def appended(run: State, node: syntax.Node, items: list[Any], item: Any) -> None:
    """Note the place that collects losses in a list."""
    if any(True for _ in _losses_in(item)):
        where = run.recorder.locate(node)
        run.recorder.keepers.setdefault(where)
        # The list itself is kept, so that no other can come to have its identity.
        run.collected[id(items)] = items, where


def _losses_in(item: Any) -> Iterator[Tensor]:
    """The tensors that one item of a list is, or holds by names."""
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, dict):
        yield from (value for value in item.values() if isinstance(value, Tensor))


def count_held_graphs(run: State) -> None:
    """Tell the recorder, at a step, how many micro-batches' graphs each place holds."""
    keepers = run.recorder.keepers
    if not keepers:
        return
    held = dict.fromkeys(keepers, 0)
    for holder in _reachable([*(frame.names for frame in _live(run)), run.assigned]):
        if isinstance(holder, Tensor):
            where, parts = holder.summed_at, holder.parts
        else:
            items, where = run.collected.get(id(holder), (holder, None))
            parts = tuple(part for item in items for tensor in _losses_in(item) for part in tensor.parts)
        if where in held:
            batches = {part.micro_batch for part in parts if part.flow in run.recorder.graphs}
            held[where] = max(held[where], len(batches))
    for where, count in held.items():
        run.recorder.held(where, count)


def _live(run: State) -> Iterator[v.Scope]:
    """The scopes whose names can still be read."""
    for frame in run.calls.frames:
        scope: v.Scope | None = frame
        while scope is not None:
            yield scope
            scope = scope.outer


def _reachable(roots: list[Any]) -> Iterator[Tensor | list[Any]]:
    """The sums and lists of losses below some values, each once."""
    seen: set[int] = set()
    pending = [(root, 0) for root in roots]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict, v.Instance)) and id(value) not in seen and depth < _DEEPEST:
            seen.add(id(value))
            if isinstance(value, list):
                yield value
            items = value.attributes if isinstance(value, v.Instance) else value
            below = items.values() if isinstance(items, dict) else items
            pending.extend((item, depth + 1) for item in itertools.islice(below, v.LONGEST_LIST))
