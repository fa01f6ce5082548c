"""Which optimizer a value or a name stands for, and whose parameters it updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcheck_accum.ledger.stated_names import names_size
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.program.names import NO_OPTIMIZER, OPTIMIZER
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.state import State
from gradcheck_accum.lint.state.values import Num, Symbol
from gradcheck_accum.lint.syntax import Operator, text_of

_DEEPEST = 4
_MOST_GROUPS = 64


def new_optimizer(run: State, node: syntax.Call, args: list[Any], rate: Any = None) -> v.Optimizer:
    """An optimizer made by a call; the same call, reached in the same way and for the same models, makes the same one.

    A helper that is called twice makes two. ``rate`` is its learning rate, as far as that is known.
    """
    sources = [found for found in map(sources_in, args) if found is not None]
    known = frozenset().union(*sources) if sources else None
    way = (node.where.line, node.where.column - 1, *run.calls.sites, known or None)
    name = name_of_made(run, node, run.made.optimizers)
    return run.made.optimizers.setdefault(way, v.Optimizer(name, known or None, takes_sums=_is_for_sums(rate)))


def may_take_sums(run: State, models: frozenset[str]) -> bool:
    """Whether an optimizer of any of ``models`` has a learning rate that may be there for losses that are sums."""
    return any(one.takes_sums and one.may_update(models) for one in run.made.optimizers.values())


def _is_for_sums(rate: Any) -> bool:
    """Whether a learning rate was divided by the size of a batch, or by K, as it is for losses that are sums."""
    if not isinstance(rate, v.Computed):
        return False
    if rate.op is Operator.DIV:
        return _is_for_sums(rate.left) or _counts(rate.right)
    return rate.op is Operator.MULT and (_is_for_sums(rate.left) or _is_for_sums(rate.right))


def _counts(divisor: Any) -> bool:
    """Whether a number is the size of a batch, K, or a product with one of them."""
    if isinstance(divisor, v.Computed):
        return divisor.op is Operator.MULT and (_counts(divisor.left) or _counts(divisor.right))
    if isinstance(divisor, Num):
        return not divisor.tags.isdisjoint({v.UNITS, v.STEPS, v.DERIVED})
    return v.is_named(divisor) and names_size({divisor.name.rpartition(".")[2]})


def name_of_made(run: State, node: syntax.Call, others: Mapping[Any, v.Optimizer | v.Model]) -> str:
    """A name for what a call makes, which tells it from others that the same call has made."""
    name = f"{text_of(node.func)} ({node.where.line}:{node.where.column - 1})"
    made = sum(other.name.partition(" #")[0] == name for other in others.values())
    return f"{name} #{made + 1}" if made else name


def optimizer_for(run: State, name: str) -> v.Optimizer:
    """The optimizer that an unknown name stands for."""
    return run.made.optimizers.setdefault(name, v.Optimizer(name))


def sources_in(value: Any, depth: int = 0) -> frozenset[str] | None:
    """The models whose parameters a value is or holds, or None where it is not known whose."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, v.Parameters):
        return value.sources
    if isinstance(value, v.Model):
        return value.sources
    if isinstance(value, dict):
        return sources_in(value.get("params"), depth + 1)
    if isinstance(value, (list, tuple)):
        found = [s for s in (sources_in(item, depth + 1) for item in value[:_MOST_GROUPS]) if s is not None]
        return frozenset().union(*found) if found else None
    return None


def looks_like_optimizer(name: str) -> bool:
    """Whether a name is one that people give to optimizers; a call's result is named by what is called."""
    last = name.partition("(")[0].rpartition(".")[2]
    return bool(OPTIMIZER.fits(last)) and not NO_OPTIMIZER.fits(last)


def as_optimizer(run: State, value: Any) -> v.Optimizer | None:
    if isinstance(value, v.Optimizer):
        return value
    if (
        isinstance(value, Symbol)
        and value.name
        and (looks_like_optimizer(value.name) or value.name in run.reach.steppers)
    ):
        return optimizer_for(run, value.name)
    return None


def optimizer_called_on(run: State, node: syntax.Call, base: Any) -> v.Optimizer | None:
    """The optimizer that a method is called on."""
    func = node.func
    return optimizer_passed(run, func.value, base) if isinstance(func, syntax.Attribute) else as_optimizer(run, base)


def optimizer_given(run: State, node: syntax.Call, args: list[Any], kwargs: dict[str, Any]) -> v.Optimizer | None:
    """The optimizer that a method, a grad scaler's say, is given first, or by that name."""
    named = next((keyword.value for keyword in node.keywords if keyword.arg == "optimizer"), None)
    if named is not None and not args:
        return optimizer_passed(run, named, kwargs["optimizer"])
    if not args:
        return None
    return optimizer_passed(run, node.args[0], args[0]) if node.args else as_optimizer(run, args[0])


def is_lost_optimizer(run: State, node: syntax.Call, base: Any) -> bool:
    """Whether a method is called on what the source calls an optimizer, while it is not known which one it is."""
    return isinstance(node.func, syntax.Attribute) and _is_lost(run, node.func.value, base)


def optimizer_passed(run: State, node: syntax.Expression, value: Any) -> v.Optimizer | None:
    """The optimizer that a value is, or what the source calls it.

    A value that came from a call elsewhere (``instantiate(cfg)``) is known by its own name wherever it is.
    """
    optimizer = as_optimizer(run, value)
    if optimizer is None and _is_lost(run, node, value) and value.name:
        return optimizer_for(run, value.name)
    return optimizer


def _is_lost(run: State, node: syntax.Expression, value: Any) -> bool:
    if not isinstance(value, Symbol):
        return False
    text = text_of(node)
    return looks_like_optimizer(text) or text in run.reach.steppers
