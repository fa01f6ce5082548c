"""Data, models and the rest for a user's loop: one case, and the arguments that it supplies by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradcheck_accum.ledger.stated_names import NAMES_OF_SIZE, NAMES_OF_STEPS, NAMES_THAT_MAY_BE_STEPS

FEATURES, CLASSES = 4, 3

_NAMES = {
    "model": ("net", "network", "module"),
    "loader": ("dataloader", "data_loader", "train_loader", "train_dataloader", "batches"),
    "optimizer": ("optim", "opt"),
    "criterion": ("loss_fn", "loss_function", "loss_func"),
    "accumulation_steps": (*NAMES_OF_STEPS[1:], *NAMES_THAT_MAY_BE_STEPS),
    "scaler": ("grad_scaler",),
    "scheduler": ("lr_scheduler", "sched"),
    "device": (),
    "batch_size": NAMES_OF_SIZE[1:],
    "epochs": ("num_epochs", "n_epochs"),
    "epoch": (),
}
"""What a case can supply, and the argument names for it."""

_CANONICAL = {name: canonical for canonical, others in _NAMES.items() for name in (canonical, *others)}

_LEFT_ALONE = frozenset({"scaler", "scheduler", "device", "epoch"})
"""Arguments that keep their defaults if they have any."""


class CannotSupply(ValueError):
    """An argument that cannot be supplied; the message is one line that says what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumCase:
    """One way to call a training loop.

    ``samples`` is N, ``batch_size`` the number of samples in a micro-batch (the last one may be smaller),
    ``accumulation_steps`` is K, ``epochs`` the number of passes over the samples. ``ignored`` are the indices of
    samples whose target is -100, so that the loss ignores them. ``dtype`` is the name of a floating-point dtype of
    PyTorch, ``seed`` seeds its random numbers.
    """

    samples: int
    batch_size: int
    accumulation_steps: int
    epochs: int = 1
    ignored: tuple[int, ...] = ()
    dtype: str = "float32"
    seed: int = 0

    def __str__(self) -> str:
        text = f"N={self.samples}, micro-batch {self.batch_size}, K={self.accumulation_steps}"
        if self.epochs > 1:
            text += f", {self.epochs} epochs"
        if self.ignored:
            several = len(self.ignored) > 1
            listed = ", ".join(str(i) for i in self.ignored)
            text += f", the target{'s' if several else ''} of sample{'s' if several else ''} {listed} ignored"
        return text if self.dtype == "float32" else f"{text}, {self.dtype}"

    def at_k_1(self) -> AccumCase:
        """The same samples in batches of a whole window each."""
        return replace(self, batch_size=self.batch_size * self.accumulation_steps, accumulation_steps=1)

    def code(self) -> str:
        """The expression that creates this case."""
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"AccumCase({', '.join(given)})"

    def arguments(
        self,
        loop: Callable[..., object],
        factories: ModuleType | None = None,
        made: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """The keyword arguments to call ``loop`` with.

        :param loop: the training loop; its arguments are supplied by name (docs/fuzz.md).
        :param factories: a module whose functions supply the arguments of the same names, and get their own arguments
            the same way; ``case`` is this case, and its dtype is PyTorch's default while they run.
        :param made: arguments that are used as they are, by name.
        :returns: the arguments by name.
        :raises CannotSupply: if an argument without a default is not supplied.
        """
        torch.manual_seed(self.seed)
        with self.in_dtype():
            return _Supply(self, factories, made or {}).arguments(loop)

    @contextmanager
    def in_dtype(self) -> Iterator[None]:
        """Make the case's dtype PyTorch's default inside the block."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self.dtype))
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class _Supply:
    """The values of one case, each made once."""

    def __init__(self, case: AccumCase, factories: ModuleType | None, made: Mapping[str, object]) -> None:
        self._case = case
        self._own = _functions(factories)
        self._made: dict[str, Any] = {"case": case, **{_CANONICAL.get(name, name): made[name] for name in made}}
        self._pending: list[str] = []

    def arguments(self, function: Callable[..., object]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, parameter in _parameters(function).items():
            optional = parameter.default is not parameter.empty
            mine = _CANONICAL.get(name, name) in self._made or self._factory(name) is not None
            known = mine or name in _CANONICAL
            if not known and not optional:
                place = getattr(function, "__name__", "the loop")
                raise CannotSupply(
                    f"no value for argument {name!r} of {place}: write a function of that name, and pass its module as "
                    "factories"
                )
            if known and (mine or not optional or _CANONICAL[name] not in _LEFT_ALONE):
                found[name] = self._value(name)
        return found

    def _factory(self, name: str) -> Callable[..., object] | None:
        alike = (name, *(other for other in _CANONICAL if _CANONICAL[other] == _CANONICAL.get(name)))
        return next((self._own[other] for other in alike if other in self._own), None)

    def _value(self, name: str) -> Any:
        key = _CANONICAL.get(name, name)
        if key not in self._made:
            if key in self._pending:
                raise CannotSupply(f"the factory of {name!r} needs itself")
            self._pending.append(key)
            factory = self._factory(name) or _BUILT_IN[key]
            self._made[key] = factory(**self.arguments(factory))
            self._pending.pop()
        return self._made[key]


def _functions(factories: ModuleType | None) -> Mapping[str, Callable[..., object]]:
    """The public functions that a module defines itself."""
    if factories is None:
        return {}
    return {
        name: value
        for name, value in vars(factories).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == factories.__name__
    }


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """The parameters that can be passed by name. Raises CannotSupply if one cannot."""
    try:
        every = _signature(function).parameters
    except (TypeError, ValueError):
        raise CannotSupply(
            f"the arguments of {getattr(function, '__name__', 'the loop')} cannot be determined"
        ) from None
    for name, parameter in every.items():
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise CannotSupply(f"the argument {name!r} cannot be passed by name")
    open_ones = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return {name: parameter for name, parameter in every.items() if parameter.kind not in open_ones}


@cache
def _signature(function: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(function)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def _loader(case: AccumCase) -> Any:
    x = torch.randn(case.samples, FEATURES)
    y = torch.randint(0, CLASSES, (case.samples,))
    for sample in case.ignored:
        y[sample] = -100
    return DataLoader(TensorDataset(x, y), batch_size=case.batch_size)


_BUILT_IN: dict[str, Callable[..., Any]] = {
    "model": _model,
    "loader": _loader,
    "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "criterion": lambda: nn.CrossEntropyLoss(),
    "accumulation_steps": lambda case: case.accumulation_steps,
    "scaler": lambda: torch.amp.GradScaler("cpu", init_scale=256.0),
    "scheduler": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0),
    "device": lambda: torch.device("cpu"),
    "batch_size": lambda case: case.batch_size,
    "epochs": lambda case: case.epochs,
    "epoch": lambda: 0,
}
