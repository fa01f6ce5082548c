"""The catalogue: every mistake that gradcheck-accum knows, by code.

The pages in ``rules/`` describe the same mistakes for people; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """``error``: the gradients are wrong. ``warning``: likely wrong, or right but wasteful."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One entry of the catalogue.

    ``static`` and ``dynamic`` say which engine can see it today, ``where_visible`` that `lint` sees it only where the
    source shows the numbers that it is about, so that its silence says nothing; ``moves_gradient`` is False for what
    leaves every gradient right and so never touches the verdict of ``verify``; ``by_construction`` is True for what no
    loop could do better.
    """

    code: str
    name: str
    summary: str
    severity: Severity = Severity.ERROR
    static: bool = True
    dynamic: bool = True
    where_visible: bool = False
    moves_gradient: bool = True
    by_construction: bool = False

    @property
    def shows_in_every_source(self) -> bool:
        """Whether `lint` sees it wherever it stands."""
        return self.static and not self.where_visible


_ALL = (
    Mistake("GA101", "missing-loss-scaling", "the loss is not divided by the number of micro-batches"),
    Mistake("GA102", "double-loss-scaling", "the loss is divided twice"),
    Mistake("GA103", "remainder-misscaled", "a shorter last window is still divided by the full K"),
    Mistake(
        "GA104",
        "mean-of-means",
        "micro-batches of unequal unit counts are averaged with equal weight",
        where_visible=True,
    ),
    Mistake("GA201", "zero-grad-every-batch", "gradients are cleared at every micro-batch"),
    Mistake("GA202", "zero-grad-misplaced", "gradients are cleared before the step has used them"),
    Mistake("GA203", "missing-zero-grad", "gradients are never cleared after a step"),
    Mistake("GA204", "partial-zero-grad", "some of the gradients that a step uses are never cleared"),
    Mistake(
        "GA301",
        "remainder-dropped",
        "the last micro-batches of an epoch never reach the step that they belong to",
        severity=Severity.WARNING,
    ),
    Mistake("GA302", "off-by-one-window", "the step comes one micro-batch too early or too late"),
    Mistake(
        "GA303",
        "window-interrupted",
        "micro-batches that never ran are still counted in the window that they are missing from",
    ),
    Mistake("GA304", "step-every-batch", "the loss is divided by K, yet every micro-batch steps"),
    Mistake("GA401", "clip-before-complete", "gradients are clipped before the window is complete"),
    Mistake(
        "GA402",
        "clip-misplaced",
        "gradients are clipped where there is nothing left to clip",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake("GA501", "clip-without-unscale", "gradients are clipped while the grad scaler's scale is in them"),
    Mistake(
        "GA502",
        "scaler-every-batch",
        "the grad scaler is updated, or its scale divided out, at every micro-batch",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA503",
        "scaler-bypassed",
        "the optimizer steps by itself on gradients that hold the grad scaler's scale",
    ),
    Mistake(
        "GA601",
        "scheduler-every-batch",
        "the learning rate moves at every micro-batch, though the weights do not",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA602",
        "ema-every-batch",
        "the moving average takes in the same weights at every micro-batch",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA603",
        "schedule-cut-short",
        "the learning rate's schedule is made for micro-batches but moves once per step",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA701",
        "sync-every-batch",
        "gradients are averaged over the ranks at every micro-batch: slow, not wrong",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake("GA702", "unsynced-step", "the step uses gradients that were not averaged over the ranks"),
    Mistake(
        "GA801",
        "graph-retained",
        "losses are kept with their graphs, micro-batch after micro-batch",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA802",
        "metric-misreported",
        "a loss that was divided for the gradients' sake is shown as the loss",
        severity=Severity.WARNING,
        dynamic=False,
        moves_gradient=False,
    ),
    Mistake(
        "GA901",
        "batch-coupled",
        "the model couples the samples of a batch, so that no accumulation equals the large batch",
        severity=Severity.WARNING,
        static=False,
        moves_gradient=False,
        by_construction=True,
    ),
    Mistake(
        "GA902",
        "low-precision-accumulation",
        "rounding eats a visible part of the gradient while it is added up",
        severity=Severity.WARNING,
        static=False,
        moves_gradient=False,
    ),
)

CATALOGUE: dict[str, Mistake] = {mistake.code: mistake for mistake in _ALL}
"""Every mistake by its code, in the order of the codes."""


def rule_names() -> list[str]:
    """All that a person may call a mistake by: the codes and the names."""
    return [called for mistake in _ALL for called in (mistake.code, mistake.name)]
