"""Optimizers of the script's own classes, whose ``step`` calls that of the class of PyTorch that they derive from."""

from __future__ import annotations

import inspect
from weakref import WeakKeyDictionary

from torch.optim.optimizer import Optimizer

_Kind = type[Optimizer]

_FOUND: WeakKeyDictionary[_Kind, _Kind | None] = WeakKeyDictionary()
"""What was found of classes: it is asked at every step."""


def calls_step_of_pytorch(kind: _Kind) -> _Kind | None:
    """The class of PyTorch whose ``step`` is called in that of ``kind``, None where it is not, or not shown to be."""
    if kind not in _FOUND:
        _FOUND[kind] = _base_whose_step_is_called(kind)
    return _FOUND[kind]


def make_step(optimizer: Optimizer) -> None:
    """Make the step that was compared, without what a class of the script's own does around it."""
    kind = type(optimizer)
    (calls_step_of_pytorch(kind) or kind).step(optimizer)


def _base_whose_step_is_called(kind: _Kind) -> _Kind | None:
    if _is_pytorchs(kind.step):
        return None
    base = next((own for own in kind.__mro__ if "step" in vars(own) and _is_pytorchs(vars(own)["step"])), None)
    code = getattr(inspect.unwrap(kind.step), "__code__", None)
    if base is None or base is Optimizer or code is None or "step" not in code.co_names:
        return None
    return base if not {"super", base.__name__}.isdisjoint(code.co_names) else None


def _is_pytorchs(step: object) -> bool:
    return str(getattr(step, "__module__", "")).startswith("torch.optim.")
