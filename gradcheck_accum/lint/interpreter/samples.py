"""How many samples a pass over a data set draws: as its sampler says, the part of it that it is, or what it yields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.interpreter.iteration import items_of
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Raised
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import text_of, walk
from gradcheck_accum.lint.torch_calls.data import is_shown, rows_of_dataset

_LEAVES = (syntax.Break, syntax.Continue, syntax.Return, syntax.Raise)


def of_all_rows(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A sampler that draws every row of a data set once, in any order, unless it is given how many to draw."""
    given = {**dict(zip(("data_source", "replacement", "num_samples"), args, strict=False)), **kwargs}
    if given.get("num_samples") is not None:
        return _so_many(given["num_samples"])
    known = given.keys() <= {"data_source", "replacement", "num_samples", "generator"}
    return given.get("data_source", Symbol()) if known else Symbol()


def by_weights(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``WeightedRandomSampler(weights, num_samples)``: as many as it is given, however many weights there are."""
    return _so_many(args[1] if len(args) > 1 else kwargs.get("num_samples"))


def of_given_rows(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``SubsetRandomSampler(indices)``: as many as indices."""
    return _of_indices(run, args[0] if args else kwargs.get("indices"))


def subset(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``Subset(dataset, indices)``: as many rows as indices."""
    return _of_indices(run, args[1] if len(args) > 1 else kwargs.get("indices"))


def random_split(run: State, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``random_split(dataset, lengths)``: the rows of each part, given as numbers or as shares."""
    lengths = args[1] if len(args) > 1 else kwargs.get("lengths")
    if not isinstance(lengths, (list, tuple)) or not lengths:
        return Symbol()
    rows = rows_of_dataset(run, args[0] if args else kwargs.get("dataset"))
    numbers = [length.value if is_shown(length) else None for length in lengths]
    if rows is not None and all(isinstance(n, (float, Fraction)) for n in numbers):
        parts = [math.floor(rows * float(share)) for share in numbers if share is not None]
        for place in range(rows - sum(parts)):  # what is left over goes round, as PyTorch has it
            parts[place % len(parts)] += 1
        return tuple(v.Data(part or None) for part in parts)
    return tuple(v.Data(number if isinstance(number, int) and number > 0 else None) for number in numbers)


def drawn_by_loader(run: State, dataset: Any, options: dict[str, Any]) -> Any:
    """What a loader draws from: of an iterable data set, as many samples as the loops of its ``__iter__`` yield.

    Each worker process would go through all of them.
    """
    is_iterable = isinstance(dataset, v.Instance) and "IterableDataset" in run.reach.bases(dataset.cls.node)
    gives = dataset.cls.bound("__iter__", dataset) if is_iterable else None
    workers = options.get("num_workers", Num(0))
    in_this_process = "**" not in options and isinstance(workers, Num) and workers.value == 0
    if gives is None or not isinstance(gives.node, syntax.FunctionDef) or not in_this_process:
        return dataset
    own = [*gives.node.args.posonlyargs, *gives.node.args.args]
    scope = v.Scope(names={own[0].arg: dataset} if own else {}, outer=gives.scope)
    with suppress(Raised):
        count = _yielded(run, gives.node, gives.node.body, scope)
        return v.Data(count) if count else dataset
    return dataset


def _so_many(number: Any) -> Any:
    """As many samples as a number, where the source shows it."""
    shown = is_shown(number) and isinstance(number.value, int) and number.value > 0
    return v.Data(number.value) if shown else Symbol()


def _of_indices(run: State, indices: Any) -> v.Data:
    if isinstance(indices, v.Data) and indices.rows is not None:
        return v.Data(indices.rows)
    items = items_of(run, indices, limit=v.LONGEST_LIST)
    shown = not (isinstance(indices, list) and id(indices) in run.iterated.grown)
    if isinstance(indices, tuple) and indices[:1] == ("range",):
        shown = all(map(is_shown, indices[1:]))
    return v.Data(len(items)) if items and shown else v.Data()


def _yielded(run: State, function: syntax.FunctionDef, body: Sequence[syntax.Statement], scope: v.Scope) -> int | None:
    """How many things statements of a generator yield; None where anything but loops of shown lengths decides on it."""
    total = 0
    for statement in body:
        match statement:
            case syntax.Expr(value=syntax.Yield()):
                total += 1
            case syntax.For(orelse=()) if run.reach.yields(statement):
                turns = _turns(run, function, statement.iter, scope)
                each = _yielded(run, function, statement.body, scope)
                if turns is None or each is None:
                    return None
                total += turns * each
            case _ if run.reach.yields(statement) or any(isinstance(node, _LEAVES) for node in walk(statement)):
                return None
            case syntax.Assign(targets=(syntax.Name(),)) if body is function.body and not run.reach.draws((statement,)):
                run.execute((statement,), scope)
            case _ if body is function.body and not run.reach.is_inert((statement,)):
                return None
    return total


def _turns(run: State, function: syntax.FunctionDef, source: syntax.Expression, scope: v.Scope) -> int | None:
    """How many turns a loop over an expression has, if nothing that changes with the turns of a loop is in it."""
    named = {text_of(node) for node in walk(source) if isinstance(node, (syntax.Name, syntax.Attribute))}
    changes = not named.isdisjoint(run.reach.bound_in_loops(function))
    return None if changes else rows_of_dataset(run, run.evaluate(source, scope))
