"""The modules that have watched weights, and whether a copy of these weights computes what they do."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakSet

import torch
from torch import nn

from gradcheck_accum.engine.copied_models import CopyOfModel
from gradcheck_accum.engine.lent_weights import lent_weights
from gradcheck_accum.verify.book.parameters import ParameterBook, with_subclasses
from gradcheck_accum.verify.book.same_functions import Data, same_function


@dataclass(slots=True)
class ModelsOfWeights:
    """Knows the modules that are alive, and compares copies with them: data again where it changed, or after a step."""

    _book: ParameterBook
    _alive: WeakSet[nn.Module] = field(default_factory=WeakSet)
    _looked: bool = False
    """Whether the modules that are alive were looked for since the last step."""
    _data: Data = field(default_factory=Data)

    def forget(self) -> None:
        """A step has been taken: what was compared is compared again."""
        self._looked = False
        self._data = Data()

    def compute_as(self, module: nn.Module, copied: CopyOfModel) -> bool:
        """Whether a copy computes what all modules do that have the weights which it stands for.

        It does where none has them: the loop keeps them by themselves, or runs their own module with others.
        """
        sources = {name: pair.source for name, pair in copied.pairs.items()}
        models = self._models(module, sources)
        if not models and not self._looked:
            self._look()
            models = self._models(module, sources)
        if not models:
            is_trained = all(weight.requires_grad for weight in lent_weights(module).values())
            return is_trained and not self._are_in_others(module, sources)
        return all(same_function(module, model, self._is_updated, self._data) for model in models)

    def _is_updated(self, weight: torch.Tensor) -> bool:
        return id(weight) in self._book.parameters

    def _look(self) -> None:
        kinds = set(with_subclasses(nn.Module))
        # The type is checked, not the object: some objects emit a warning for isinstance.
        self._alive = WeakSet(own for own in gc.get_objects() if type(own) in kinds)
        self._looked = True

    def _models(self, module: nn.Module, sources: Mapping[str, torch.Tensor]) -> list[nn.Module]:
        """The modules of a copy's class that have the weights under the names that the copy has its own under."""
        found = (own for own in self._alive if type(own) is type(module) and own is not module)
        return [own for own in found if all(_weight(own, name) is source for name, source in sources.items())]

    def _are_in_others(self, module: nn.Module, sources: Mapping[str, torch.Tensor]) -> bool:
        wanted, own = set(map(id, sources.values())), set(module.modules())
        others = (other for other in self._alive if other not in own)
        return any(id(weight) in wanted for other in others for weight in _weights(other).values())


def _weight(module: nn.Module, name: str) -> torch.Tensor | None:
    *path, last = name.split(".")
    own: nn.Module | None = module
    for step in path:
        own = None if own is None else own._modules.get(step)
    return None if own is None else _weights(own).get(last)


def _weights(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """A module's own weights; none where it is compiled, or is only being made."""
    found = vars(module).get("_parameters")
    return found if isinstance(found, dict) else {}
