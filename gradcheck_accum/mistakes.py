"""The catalogue: every mistake that gradcheck-accum knows, by code.

The pages in ``rules/`` describe the same mistakes for people; a test keeps the two consistent.
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

    ``static`` and ``dynamic`` say which engines detect it, ``where_visible`` that `lint` detects it only if the source
    shows the numbers involved, so that no finding proves nothing; ``moves_gradient`` is False if every gradient is
    right nevertheless, so that it never affects the verdict of ``verify``; ``by_construction`` is True if no loop could
    avoid it.
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
        """Whether `lint` detects it wherever it occurs."""
        return self.static and not self.where_visible


_ALL = (
    Mistake("GA101", "missing-loss-scaling", "the loss is not divided by the number of micro-batches"),
    Mistake("GA102", "double-loss-scaling", "the loss is divided twice"),
    Mistake("GA103", "remainder-misscaled", "the loss of a shorter last window is still divided by K"),
    Mistake(
        "GA104",
        "mean-of-means",
        "micro-batches with unequal unit counts are averaged with equal weight",
        where_visible=True,
    ),
    Mistake("GA201", "zero-grad-every-batch", "gradients are cleared at every micro-batch"),
    Mistake("GA202", "zero-grad-misplaced", "gradients are cleared before the step uses them"),
    Mistake("GA203", "missing-zero-grad", "gradients are never cleared after a step"),
    Mistake("GA204", "partial-zero-grad", "some of the gradients that a step uses are never cleared"),
    Mistake(
        "GA301",
        "remainder-dropped",
        "the last micro-batches of an epoch never reach their step",
        severity=Severity.WARNING,
    ),
    Mistake("GA302", "off-by-one-window", "the step comes one micro-batch too early or too late"),
    Mistake(
        "GA303",
        "window-interrupted",
        "skipped micro-batches are still counted in their window",
    ),
    Mistake("GA304", "step-every-batch", "the loss is divided by K, but the optimizer steps at every micro-batch"),
    Mistake("GA401", "clip-before-complete", "gradients are clipped before the window is complete"),
    Mistake(
        "GA402",
        "clip-misplaced",
        "gradients are clipped after the step or after they were cleared",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake("GA501", "clip-without-unscale", "gradients are clipped before unscale_(), while they are still scaled"),
    Mistake(
        "GA502",
        "scaler-every-batch",
        "the grad scaler is updated, or gradients unscaled, at every micro-batch",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA503",
        "scaler-bypassed",
        "the optimizer steps on scaled gradients, bypassing the grad scaler",
    ),
    Mistake(
        "GA601",
        "scheduler-every-batch",
        "the learning rate advances at every micro-batch, although the weights do not",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA602",
        "ema-every-batch",
        "the moving average is updated with the same weights at every micro-batch",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA603",
        "schedule-cut-short",
        "the learning rate schedule is sized in micro-batches but advances once per step",
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
        "losses are stored with their autograd graphs",
        severity=Severity.WARNING,
        moves_gradient=False,
    ),
    Mistake(
        "GA802",
        "metric-misreported",
        "a loss that was divided for accumulation is reported as the loss",
        severity=Severity.WARNING,
        dynamic=False,
        moves_gradient=False,
    ),
    Mistake(
        "GA901",
        "batch-coupled",
        "the model couples the samples of a batch, so accumulation cannot equal the large batch",
        severity=Severity.WARNING,
        static=False,
        moves_gradient=False,
        by_construction=True,
    ),
    Mistake(
        "GA902",
        "low-precision-accumulation",
        "rounding loses a visible part of the gradient while it is accumulated",
        severity=Severity.WARNING,
        static=False,
        moves_gradient=False,
    ),
)

CATALOGUE: dict[str, Mistake] = {mistake.code: mistake for mistake in _ALL}
"""Every mistake by its code, in the order of the codes."""


def rule_names() -> list[str]:
    """All names for mistakes: their codes and their names."""
    return [called for mistake in _ALL for called in (mistake.code, mistake.name)]
