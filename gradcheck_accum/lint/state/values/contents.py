"""What a value is, or holds: questions that look into lists, tuples and dictionaries too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gradcheck_accum.lint.program.names import SETTINGS
from gradcheck_accum.lint.program.torch_names import REDUCES
from gradcheck_accum.lint.state.values.copies import changed
from gradcheck_accum.lint.state.values.data import Data, Loader, Unmade
from gradcheck_accum.lint.state.values.definitions import Function, Instance
from gradcheck_accum.lint.state.values.numbers import DERIVED, STEPS, Num
from gradcheck_accum.lint.state.values.parameters import Gradient, Parameters
from gradcheck_accum.lint.state.values.symbols import Got, Symbol
from gradcheck_accum.lint.state.values.tensors import Tensor
from gradcheck_accum.lint.state.values.training import Engine, Model, Optimizer

_DEEPEST = 4
"""Lists in lists are looked into this far."""


class Defaulting(dict[Any, Any]):
    """A ``defaultdict`` of lists, or of numbers that begin at 0: ``stats["loss"] += loss.item()``."""

    def __init__(self, begins: Callable[[], Any]) -> None:
        self.begins = begins

    def __missing__(self, key: Any) -> Any:
        self[key] = self.begins()
        return self[key]


def _held(value: Any, depth: int = 0) -> Iterator[Any]:
    """A value, or what lists, tuples and dicts hold, as far as it is worth looking."""
    if isinstance(value, (list, tuple, dict)):
        items = value.values() if isinstance(value, dict) else value
        for item in itertools.islice(items, 8) if depth < _DEEPEST else ():
            yield from _held(item, depth + 1)
    else:
        yield value


def is_data(value: Any) -> bool:
    """Whether a value is, or holds, input data."""
    return any(isinstance(item, (Data, Unmade)) for item in _held(value))


def made_in(value: Any, turn: int) -> Any:
    """What a ``turn`` of a training loop has made of random numbers, where it is no number and no loss: data."""
    match value:
        case tuple() | list():
            return type(value)(made_in(item, turn) for item in value)
        case Tensor() if _is_no_loss(value):
            return Data(made=turn)
        case Symbol() if type(value) is Symbol and not value.name:
            return Data(made=turn)
        case Data() if value.made is None:
            return replace(value, made=turn)
    return value


def _is_no_loss(value: Tensor) -> bool:
    """Whether a tensor is made of data one by one, or by functions of PyTorch's that are no losses, and by no model."""
    others = [name for name in value.models if not name.startswith("torch.") or name.rpartition(".")[2] in REDUCES]
    return not others and (value.elementwise or bool(value.models))


def is_loader(value: Any) -> bool:
    """Whether a value is, or holds, a loader of data."""
    return any(isinstance(item, Loader) for item in _held(value))


def got_in(value: Any) -> Got | None:
    """What a value is, or what it is a list of, that one turn of a training loop has got; None for anything else."""
    held = list(_held(value))
    turns = {item.turn if isinstance(item, Got) else None for item in held}
    return held[0] if held and len(turns) == 1 and None not in turns else None


def acts_on_gradients(value: Any) -> bool:
    """Whether a value is, or holds, something that makes gradients or uses them."""
    kinds = (Tensor, Model, Optimizer, Engine, Parameters, Gradient, Instance, Function)
    return any(isinstance(item, kinds) for item in _held(value))


def may_be_reported(value: Any) -> bool:
    """Whether a value is, or holds, only what a report may give: words, numbers, scores, what nothing is known of."""
    plain = (str, bool, type(None), Num, Symbol, Tensor)
    return all(isinstance(item, plain) and not isinstance(item, Got) for item in _held(value))


def rows_in(value: Any) -> int | None:
    """The leading dimension of the input data that a value is or holds, where the source shows it."""
    data = (item.batch if isinstance(item, Unmade) else item for item in _held(value))
    return next((item.rows for item in data if isinstance(item, Data)), None)


def is_part_of_batch(value: Any) -> bool:
    """Whether the input data that a value is or holds was cut out of other data."""
    return next((item.is_part for item in _held(value) if isinstance(item, Data)), False)


def models_in(value: Any) -> frozenset[str]:
    """The models whose output flows into a value."""
    return frozenset().union(*(item.models for item in _held(value) if isinstance(item, Tensor)))


def cut_off_in(value: Any) -> frozenset[str]:
    """The models whose output went into a value without their graphs."""
    return frozenset().union(*(item.cut_off for item in _held(value) if isinstance(item, Tensor)))


def reach_beyond(value: Any) -> bool:
    """Whether a value is, or holds, a tensor of more than its micro-batch, of which only a part is that one's."""
    return any(isinstance(item, Tensor) and item.reaches_beyond for item in _held(value))


def drawn_with(value: Any, micro_batch: int) -> Any:
    """What a loop or an iterator gives with a new micro-batch: the data in it are that one's."""
    match value:
        case Data():
            return changed(value, drawn=micro_batch)
        case Unmade():
            return value.make(changed(value.batch, drawn=micro_batch))
        case tuple() if not hasattr(value, "_fields"):
            return tuple(drawn_with(item, micro_batch) for item in value)
    return value


def is_drawn_with(value: Any, micro_batch: int) -> bool:
    """Whether the data in a value are all those of one micro-batch, as far as it is known, and it holds some."""
    data = [item for item in _held(value) if isinstance(item, Data)]
    return bool(data) and all(item.drawn == micro_batch for item in data)


def carries_steps(value: Any) -> bool:
    """Whether a value could tell a function what K is: K itself, or an object of settings."""
    return any(_tells_steps(item) for item in _held(value) if not isinstance(value, dict))


def may_divide_by_steps(value: Any) -> bool:
    """Whether a loss that is multiplied by a value may be divided by K then: it tells K, or has been scaled itself."""
    return carries_steps(value) or (isinstance(value, Tensor) and any(part.factors for part in value.parts))


def _tells_steps(value: Any) -> bool:
    if isinstance(value, Num):
        return bool(value.tags & {STEPS, DERIVED})
    if isinstance(value, Instance):
        return not value.cls.is_model
    if isinstance(value, Data):
        return value.tells_steps
    return isinstance(value, Symbol) and bool(SETTINGS.fits(value.name.rpartition(".")[2]))
