"""The options of the judgment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The caller's options: the loss's coefficient, and a tolerance in place of the derived one.

    ``replay_alone`` means that only a replayed large batch is accepted as a reference. Raises ValueError unless
    ``rtol`` and ``atol`` are given both or neither.
    """

    loss_coefficient: float | None = None
    rtol: float | None = None
    atol: float | None = None
    replay_alone: bool = False

    def __post_init__(self) -> None:
        if (self.rtol is None) != (self.atol is None):
            raise ValueError("rtol and atol are given both or neither")
