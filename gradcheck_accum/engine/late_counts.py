"""How many targets a loss has counted, where to ask its device for it would make the loop wait.

A cross-entropy leaves out the targets that it has to ignore, and how many are left only its device knows. A loop
that runs ahead of its device must not wait for that in every micro-batch. So when many losses have counted all of their
targets, the next ones are presumed to, and are asked together at the step, where the loop waits in any case. Once a
loss has ignored a target, each is asked at once again: its gradient may need another weight than the others', and is
then kept apart from them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

SURE = 16
"""How many losses in a row must have counted all of their targets before the next are presumed to."""


@dataclass(frozen=True, slots=True)
class Presumed:
    """A loss, the term ``name``, is presumed to have ``counted`` all of its ``most`` targets.

    What it really has is a tensor of one element on its device.
    """

    counted: torch.Tensor
    most: float
    name: str = ""


class LateCounts:
    """Asks how many targets losses have counted, and presumes it where that would make the loop wait."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._has_ignored = False
        self._presumed: list[Presumed] = []

    def of(self, counted: torch.Tensor, most: float) -> float:
        """What a loss over ``most`` targets has ``counted``, a tensor of one element."""
        if self._in_a_row >= SURE and not self._has_ignored and is_waited_for(counted):
            self._presumed.append(Presumed(counted, most))
            return most
        count = float(counted)
        self._in_a_row += 1
        self._has_ignored |= count != most
        return count

    def presumed(self) -> list[Presumed]:
        """What has been presumed since this was last asked."""
        presumed, self._presumed = self._presumed, []
        return presumed

    def has_ignored(self) -> None:
        """A loss has not counted all of its targets, against what was presumed."""
        self._has_ignored = True


def is_waited_for(counted: torch.Tensor) -> bool:
    """Whether to read a tensor would make the loop wait: not where it waits for its device after every call."""
    return counted.device.type == "cuda" and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") in ("", "0")
