"""Comprehensions of a training loop: of batches, of parameters, and of whatever else can be counted through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.control_flow.conditions import choose, settled
from gradcheck_accum.lint.interpreter.assignment import assign
from gradcheck_accum.lint.interpreter.iteration import has_grown, items_of
from gradcheck_accum.lint.program.torch_names import CASTS
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.knowledge import ASSUMED_STEPS
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import UNKNOWN, Num, Symbol, Tensor
from gradcheck_accum.lint.syntax import text_of, walk
from gradcheck_accum.lint.torch_calls.data import batches_of, length_of
from gradcheck_accum.lint.torch_calls.gradient_changes import is_gradient


def comprehension(run: State, node: syntax.ListComp | syntax.GeneratorExp | syntax.SetComp, scope: v.Scope) -> Any:
    """A list of what is made of each item; batches of batches, parameters of parameters, a loop of what trains."""
    return _comprehended(run, node.elt, node.generators, scope)


@lru_cache(maxsize=64)
def mapped_by(node: syntax.Call) -> syntax.GeneratorExp:
    """``(f(a) for a in ...)``, which a call of ``map`` is; the same each time."""
    where, origin = node.where, node.origin
    function, *sources = node.args
    items = tuple(syntax.Name(where, origin, f"item {number} of map") for number in range(len(sources)))
    zipped = syntax.Call(where, origin, syntax.Name(where, origin, "zip"), tuple(sources), ())
    target, source = (syntax.Tuple(where, origin, items), zipped) if len(sources) > 1 else (items[0], sources[0])
    generator = syntax.Comprehension(where, origin, target, source, ())
    return syntax.GeneratorExp(where, origin, syntax.Call(where, origin, function, items, ()), (generator,))


def _comprehended(
    run: State, elt: syntax.Expression, generators: Sequence[syntax.Comprehension], scope: v.Scope
) -> Any:
    generator, *inner_generators = generators
    if not inner_generators and run.reach.backward(elt):
        run.execute((_loop_of(elt, generator),), v.Scope(outer=scope))
        return UNKNOWN
    source = run.evaluate(generator.iter, scope)
    inner = v.Scope(outer=scope)

    def element(of: Any) -> Any:
        assign(run, generator.target, of, inner)
        return _comprehended(run, elt, inner_generators, inner) if inner_generators else run.evaluate(elt, inner)

    if isinstance(source, (list, tuple)) and v.all_parameters(source):
        source = v.united(source)
    if isinstance(source, v.Parameters):
        # What is made of them is as good as they are; what is done to their gradients counts.
        chosen = _chosen(run, source, generator, inner)
        made = element(chosen)
        return made if isinstance(made, (v.Gradient, v.Measured, v.Parameters)) else chosen
    if isinstance(source, (v.Gradient, v.Measured)):
        return element(source)
    if inner_generators:
        return _flattened(run, source, element)
    if isinstance(source, v.Chunks):
        made = element(source.piece)
        return source if v.is_data(made) else [made] * source.count
    if isinstance(source, v.Loader):
        return _of_every_batch(run, elt, generator.target, source, scope)
    each = _each_of_outputs(source)
    if each is not None:
        # The losses that a model returned in a dictionary, or one for each of its heads, or of its rows.
        made = element(each)
        return replace(made, is_each=True) if isinstance(made, Tensor) else made
    items = items_of(run, source, limit=v.LONGEST_LIST)
    if items is None:
        if isinstance(source, v.Data):
            # What is made of each tensor of a batch, however many it has, is a batch still.
            made = v.Data(made=source.made)
            return made if v.is_data(element(made)) else UNKNOWN
        if isinstance(source, tuple) and source[:1] == ("range",) and _cuts_data(run, elt, generator, inner):
            return v.Chunks(ASSUMED_STEPS, assumed=True)
        if isinstance(source, v.Got) and not source.name and not v.acts_on_gradients(element(source)):
            return source
        if any(is_gradient(part) for part in walk(elt)):
            element(Symbol())
        return UNKNOWN
    results: list[Any] = []
    for number, item in enumerate(items):
        assign(run, generator.target, item, inner)
        if all(choose(run, test, inner, ()) for test in generator.ifs):
            with run.calls.in_turn(number):
                results.append(run.evaluate(elt, inner))
    if has_grown(run, source):
        run.iterated.grown[id(results)] = results
    return results


def _each_of_outputs(source: Any) -> Any:
    """Any one item of what a model has computed, alone or with what belongs to it; None for anything else."""
    match source:
        case Tensor():
            return source
        case ("enumerate", inner, _):
            each = _each_of_outputs(inner)
            return None if each is None else (UNKNOWN, each)
        case ("zip", *sources) if any(isinstance(one, Tensor) for one in sources):
            if all(isinstance(one, Tensor) or v.is_data(one) for one in sources):
                return tuple(one if isinstance(one, Tensor) else v.Data() for one in sources)
    return None


def _cuts_data(run: State, elt: syntax.Expression, generator: syntax.Comprehension, scope: v.Scope) -> bool:
    """Whether a comprehension cuts a piece out of data for each turn: as many micro-batches as are not shown."""
    cuts = any(isinstance(node, syntax.Subscript) and isinstance(node.slice, syntax.Slice) for node in walk(elt))
    if not cuts or generator.ifs:
        return False
    assign(run, generator.target, UNKNOWN, scope)
    return v.is_data(run.evaluate(elt, scope))


@lru_cache(maxsize=64)
def _loop_of(elt: syntax.Expression, generator: syntax.Comprehension) -> syntax.For:
    """The loop that a comprehension is which makes gradients; the same each time."""
    where, origin = generator.where, generator.origin
    body: syntax.Statement = syntax.Expr(elt.where, elt.origin, elt)
    for test in reversed(generator.ifs):
        body = syntax.If(test.where, test.origin, test, (body,), ())
    return syntax.For(where, origin, generator.target, generator.iter, (body,), ())


def _chosen(run: State, source: v.Parameters, generator: syntax.Comprehension, scope: v.Scope) -> v.Parameters:
    """The parameters of a comprehension's source that its conditions choose."""
    assign(run, generator.target, source, scope)
    for test in generator.ifs:
        if settled(run, test, scope) is None:
            source = source.chosen(text_of(test))
    return source


def _flattened(run: State, source: Any, element: Callable[[Any], Any]) -> Any:
    """What several ``for`` in one comprehension make: the parameters of several models, or nothing that is known."""
    items = items_of(run, source, limit=v.LONGEST_LIST)
    pieces = [element(item) for item in ([Symbol()] if items is None else items)]
    return v.united(pieces) if v.all_parameters(pieces) else UNKNOWN


def dict_comprehension(run: State, node: syntax.DictComp, scope: v.Scope) -> Any:
    """``{k: t.to(device) for k, t in batch.items()}`` is a batch still; what is made of other items has their keys."""
    generator, *others = node.generators
    source = run.evaluate(generator.iter, scope)
    if v.is_data(source) and not isinstance(source, list):
        return v.Data(v.rows_in(source))
    items = None if others else items_of(run, source, limit=v.LONGEST_LIST)
    inner = v.Scope(outer=scope)
    if isinstance(source, Tensor) and not others:
        # The losses that a call gave in a dictionary: what is made of each is one of as many.
        assign(run, generator.target, source, inner)
        of_each = run.evaluate(node.value, inner)
        return of_each if isinstance(of_each, Tensor) else UNKNOWN
    if items is None:
        cut = _cut(node.value)
        if others or cut is None or not run.loops.depth:
            return UNKNOWN
        # What is cut out of each tensor of a batch is one batch.
        assign(run, generator.target, UNKNOWN, inner)
        part = run.evaluate(cut, inner)
        return part if isinstance(part, v.Got) and not part.name else UNKNOWN
    made: dict[Any, Any] = {}
    for number, item in enumerate(items):
        assign(run, generator.target, item, inner)
        if all(choose(run, test, inner, ()) for test in generator.ifs):
            key = v.key_of(run.evaluate(node.key, inner), text_of(node.key))
            with run.calls.in_turn(number):
                made[key] = run.evaluate(node.value, inner)
    return made


def _cut(node: syntax.Expression) -> syntax.Subscript | None:
    """What an expression cuts out of something, to whichever device it is moved."""
    while isinstance(node, syntax.Call) and isinstance(node.func, syntax.Attribute) and node.func.attr in CASTS:
        node = node.func.value
    return node if isinstance(node, syntax.Subscript) else None


def _of_every_batch(
    run: State, element: syntax.Expression, target: syntax.Expression, loader: v.Loader, scope: v.Scope
) -> Any:
    """What a comprehension makes of a loader's batches: batches or objects again, or something counted of each."""
    inner = v.Scope(outer=scope)

    def of(batch: v.Data) -> Any:
        assign(run, target, batch, inner)
        return run.evaluate(element, inner)

    value = of(v.Data(loader.rows))
    if isinstance(value, Num):
        if loader.length is None or loader.length > v.LONGEST_LIST:
            return UNKNOWN
        batches = batches_of(loader, loader.length)
        each = {batch: of(batch) for batch in dict.fromkeys(batches)}
        return [each[batch] for batch in batches]
    length = length_of(run, loader) if loader.length is not None else None
    return replace(loader, length=length, make=of if isinstance(value, v.Instance) else None)
