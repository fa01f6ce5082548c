"""The parameters of the watched optimizers, and which of them are filled and cleared together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.rank_local import is_flattened, is_sharded
from gradcheck_accum.engine.transformed import as_outside, is_wrapped
from gradcheck_accum.verify.book.interning import Shared
from gradcheck_accum.verify.vectors.sharded import own_part


class ParameterBook:
    """Knows parameters by their identities, optimizers by their names, and the store of every parameter."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self.parameters: dict[int, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        self.sharded = False
        """Whether there are parameters that are sharded over the ranks."""
        self.elements = 0
        """The number of elements of the parameters on this rank."""
        self._at: dict[int, torch.Tensor] = {}
        """The parameter at each place of the memory, as far as they were there when they were adopted."""
        self._frozen: dict[int, torch.Tensor] = {}
        """The parameters that required no gradient when their optimizer was last looked at."""
        self._cells: dict[int, str] = {}
        self._size = (-1, -1)
        self._shared = Shared()

    def adopt(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Add an optimizer, or the parameters that were added to it since; returns the new parameters."""
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
            same = sum(type(o) is type(optimizer) for o in self.optimizers)
            self.names[id(optimizer)] = type(optimizer).__name__ + (f" #{same}" if same > 1 else "")
        new = []
        for parameter in parameters_of(optimizer):
            self.sharded = self.sharded or is_sharded(parameter)
            if is_flattened(parameter):
                # It is sometimes one rank's shard, sometimes whole, and its gradient is never the one from backward.
                continue
            if id(parameter) in self.parameters:
                continue
            if not parameter.requires_grad:
                self._frozen[id(parameter)] = parameter
            elif parameter.is_leaf:
                self._frozen.pop(id(parameter), None)
                self.parameters[id(parameter)] = parameter
                own = own_part(parameter)
                self.elements += own.numel() if own is not None else 0
                new.append(parameter)
        return new

    def with_unfrozen(self) -> list[Optimizer]:
        """The optimizers with parameters that did not require a gradient when last looked at, and do now."""
        unfrozen = {key for key, parameter in self._frozen.items() if parameter.requires_grad}
        if not unfrozen:
            return []
        return [own for own in self.optimizers if any(id(p) in unfrozen for p in parameters_of(own))]

    def dismiss(self, optimizer: Optimizer) -> None:
        """Forget an optimizer, but not its parameters."""
        self.optimizers = [known for known in self.optimizers if known is not optimizer]
        self.names.pop(id(optimizer), None)
        self._cells, self._size = {}, (-1, -1)

    def cells(self) -> dict[int, str]:
        """The store of every parameter: the parameters that the same optimizers own are filled and cleared together."""
        size = sum(len(group["params"]) for o in self.optimizers for group in o.param_groups), len(self.optimizers)
        if size != self._size:
            owners: dict[int, list[str]] = {}
            for optimizer in self.optimizers:
                for parameter in parameters_of(optimizer):
                    owners.setdefault(id(parameter), []).append(self.names[id(optimizer)])
            self._cells = self._renamed({key: " + ".join(names) for key, names in owners.items()})
            self._size = size
        return self._cells

    def _renamed(self, cells: dict[int, str]) -> dict[int, str]:
        """New cells, with the old name for one that has the same members: past events refer to it by that name."""
        before, after = _grouped(self._cells), _grouped(cells)
        kept = {name: old for old, own in before.items() for name, new in after.items() if new == own}
        names = {name: kept.get(name, name) for name in after}
        return {key: names[name] for key, name in cells.items()} if len({*names.values()}) == len(names) else cells

    def stores(self, keys: Iterable[int]) -> frozenset[str]:
        """The stores of parameters, by their identities."""
        cells = self.cells()
        return self._shared(frozenset(cells[key] for key in keys if key in cells))

    def users_of(self, keys: Collection[int]) -> list[Optimizer]:
        """One optimizer for each of the largest sets of parameters that one has, and some of ``keys`` are in."""
        found: dict[frozenset[int], Optimizer] = {}
        for optimizer in self.optimizers:
            own = frozenset(id(parameter) for parameter in parameters_of(optimizer))
            if not own.isdisjoint(keys):
                found.setdefault(own, optimizer)
        return [optimizer for own, optimizer in found.items() if not any(own < other for other in found)]

    def sharing(self, optimizer: Optimizer) -> list[Optimizer]:
        """The optimizers all of whose parameters an optimizer has too, itself among them."""
        own = {id(parameter) for parameter in parameters_of(optimizer)}
        return [other for other in self.optimizers if all(id(p) in own for p in parameters_of(other))]

    def has_shared(self) -> bool:
        """Whether several optimizers have the same parameter."""
        known = [id(parameter) for optimizer in self.optimizers for parameter in parameters_of(optimizer)]
        return len(set(known)) < len(known)

    def places(self) -> dict[int, int]:
        """The parameter whose gradient is at each memory address."""
        grads = {key: p.grad for key, p in self.parameters.items()}
        return {g.data_ptr(): key for key, g in grads.items() if g is not None and g.layout is torch.strided}

    def as_weight(self, tensor: torch.Tensor) -> torch.Tensor:
        """The parameter that a tensor inside ``torch.func.grad`` stands for; any other tensor itself.

        It wraps the parameter, or a detached tensor of the same memory.
        """
        own = as_outside(tensor)
        if own is tensor or id(own) in self.parameters or is_wrapped(own):
            return own
        if len(self._at) != len(self.parameters):
            self._at = {p.data_ptr(): p for p in self.parameters.values()}
        parameter = self._at.get(own.data_ptr())
        is_whole = parameter is not None and parameter.data_ptr() == own.data_ptr() and parameter.shape == own.shape
        return parameter if parameter is not None and is_whole and parameter.stride() == own.stride() else own

    def gradient(self, key: int) -> torch.Tensor | None:
        """A parameter's gradient; of a sharded one, the part on this rank."""
        gradient = self.parameters[key].grad
        return own_part(gradient) if self.sharded else gradient


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def with_subclasses(kind: type[Any]) -> list[type[Any]]:
    """A class and all of its subclasses."""
    return [kind, *(below for own in type.__subclasses__(kind) for below in with_subclasses(own))]


def _grouped(cells: dict[int, str]) -> dict[str, set[int]]:
    """The members of every cell."""
    groups: dict[str, set[int]] = {}
    for key, name in cells.items():
        groups.setdefault(name, set()).add(key)
    return groups
