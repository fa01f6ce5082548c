"""Whether a tensor is the one that was seen before, and has not been written into since."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """What a tensor was when it was seen: which one, and its version; no tensor at all where there was none.

    It is not kept alive. What has its address once it is gone is another tensor, so the address is no mark of it.
    """

    tensor: weakref.ref[torch.Tensor] | None = None
    version: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor | None, part: torch.Tensor | None = None) -> Mark:
        """The mark of a tensor; if it is sharded, ``part`` is this rank's, which has the version."""
        return NONE if tensor is None else cls(weakref.ref(tensor), (tensor if part is None else part)._version)

    def is_of(self, tensor: torch.Tensor | None, part: torch.Tensor | None = None, *, writes: int = 0) -> bool:
        """Whether it is the mark of this tensor, which has been written into ``writes`` times since."""
        if tensor is None or self.tensor is None:
            return tensor is None and self.tensor is None
        return self.tensor() is tensor and (tensor if part is None else part)._version == self.version + writes


NONE = Mark()
