"""Copies of the models that optimizers update: which weights they stand for when they run.

Nothing is asked of how a copy was made (``deepcopy``, ``clone``, ``copy_``, ``load_state_dict``): only that it equals
the weights, bit for bit, when it runs, and computes of them what the model does that has them. Its values are compared
again each time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gradcheck_accum.engine.copied_models import CopyOfModel, Pair
from gradcheck_accum.engine.lent_weights import stores_of
from gradcheck_accum.engine.transformed import are_transforms_active
from gradcheck_accum.verify.book.models_of_weights import ModelsOfWeights
from gradcheck_accum.verify.book.parameters import ParameterBook
from gradcheck_accum.verify.vectors.inner_products import same_bits


@dataclass(slots=True)
class _Known:
    """A copy as it last ran, and which weights it has ever equalled; ``copied`` is None after a step on these."""

    sources: dict[str, torch.Tensor]
    copied: CopyOfModel | None


@dataclass(slots=True)
class Copies:
    """The copies of the parameters of a book."""

    _book: ParameterBook
    _models: ModelsOfWeights
    _known: WeakKeyDictionary[nn.Module, _Known] = field(default_factory=WeakKeyDictionary)
    _places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each parameter, its group, and its position in that."""
    _alike: dict[tuple[object, ...], list[torch.Tensor]] = field(default_factory=dict)
    """The parameters of each shape."""

    @property
    def any_ran(self) -> bool:
        """Whether a copy has run since the last step on the weights that it stands for."""
        return any(known.copied is not None for known in self._known.values())

    def of(self, module: nn.Module) -> CopyOfModel | None:
        """What a module that is about to run is a copy of; None if it is none, or that is not known."""
        if not self._book.parameters or not self._may_be_one(module) or are_transforms_active():
            return None
        own = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        if any(not weight.is_leaf or id(weight) in self._book.parameters for weight in own.values()):
            return None
        known = self._known.get(module)
        sources = self._sources(own, {} if known is None else known.sources)
        if sources is not None:
            copied = CopyOfModel({name: Pair(weight, sources[name]) for name, weight in own.items()})
            if self._models.compute_as(module, copied):
                self._known[module] = _Known(sources, copied)
                return copied
        if known is not None:
            known.copied = None
        return None

    def below(self, leaves: Collection[torch.Tensor]) -> dict[int, Pair] | None:
        """What each of a graph's leaves stands for, by identity; None if one stands for no weight."""
        ran = [known.copied for known in self._known.values() if known.copied is not None]
        pairs = {id(pair.own): pair for copied in ran for pair in copied.pairs.values()}
        if not leaves or any(id(leaf) not in pairs for leaf in leaves):
            return None
        found = {id(leaf): pairs[id(leaf)] for leaf in leaves}
        return found if all(pair.is_as_it_was for pair in found.values()) else None

    def stepped(self, keys: Collection[int]) -> None:
        """The parameters ``keys`` are updated: what was copied from them before is not what they are."""
        self._models.forget()
        for known in self._known.values():
            if any(id(source) in keys for source in known.sources.values()):
                known.copied = None

    def _may_be_one(self, module: nn.Module) -> bool:
        """Whether the first weight of a module that requires a gradient is no parameter of the book itself."""
        for own in stores_of(module):
            for weight in own.values():
                if weight is not None and weight.requires_grad:
                    return id(weight) not in self._book.parameters
        return False

    def _sources(
        self, own: Mapping[str, torch.Tensor], known: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor] | None:
        """The parameter that each weight equals; None if one equals none, or it is not known which.

        Where several are equal (biases that begin as zeros), they are those of before, or in the same order.
        """
        self._look()
        if own.keys() == known.keys() and all(_is_equal(weight, known[name]) for name, weight in own.items()):
            return dict(known)
        equal: dict[str, list[torch.Tensor]] = {}
        for name, weight in own.items():
            candidates = self._alike.get(_kind(weight), ())
            equal[name] = [p for p in candidates if p is not weight and _is_equal(weight, p)]
            if not equal[name]:
                return None
        if all(any(p is known.get(name) for p in found) for name, found in equal.items()):
            return dict(known)
        sources: dict[str, torch.Tensor] = {}

        def key(name: str) -> tuple[int, ...]:
            return tuple(map(id, equal[name]))

        for _, group in groupby(sorted(own, key=key), key):
            names = list(group)
            found = equal[names[0]]
            if len(found) != len(names) or len({self._places[id(p)][0] for p in found}) > 1:
                return None
            sources.update(zip(names, sorted(found, key=lambda p: self._places[id(p)]), strict=True))
        return {name: sources[name] for name in own}

    def _look(self) -> None:
        if len(self._places) == len(self._book.parameters):
            return
        self._places, self._alike = {}, {}
        groups = [group["params"] for optimizer in self._book.optimizers for group in optimizer.param_groups]
        for number, group in enumerate(groups):
            for position, parameter in enumerate(group):
                if id(parameter) in self._book.parameters and id(parameter) not in self._places:
                    self._places[id(parameter)] = number, position
                    self._alike.setdefault(_kind(parameter), []).append(parameter)


def _is_equal(weight: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether two weights of a kind are the same; their first row is compared before the rest."""
    mine, theirs = weight.detach(), parameter.detach()
    if mine.dim() > 1 and len(mine) and not same_bits(mine[0], theirs[0]):
        return False
    return same_bits(mine, theirs)


def _kind(weight: torch.Tensor) -> tuple[object, ...]:
    return weight.shape, weight.dtype, weight.device
