"""What ``verify`` reports: values that every report renders and that know neither engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.html_parts import bullets, paragraph, table

_SHOWN = 12
"""How many windows a notebook is shown of a result."""


class Verdict(Enum):
    """Does the gradient at every step equal that of the true large batch?"""

    EQUIVALENT = "equivalent"
    DEVIATES = "deviates"
    NOT_EQUIVALENT_BY_CONSTRUCTION = "not-equivalent-by-construction"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class ParameterError:
    """One parameter's part in the error of a window's gradient.

    ``error`` is |g - g_ref| / |g_ref| over its own elements, None where its reference is zero; ``share`` its part of
    |g - g_ref|² over all parameters.
    """

    name: str
    shape: tuple[int, ...]
    error: float | None
    share: float


@dataclass(frozen=True, slots=True)
class ByParameter:
    """The error of a window's gradient by ``parameters`` of them; ``worst`` are those with the largest shares first."""

    parameters: int
    worst: tuple[ParameterError, ...]


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a window costs in one way of running it: bytes kept for a backward pass, and seconds of all its passes."""

    kept_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostReport:
    """The largest window that was run both ways: in ``micro_batches``, and as one large batch.

    Of the micro-batches the largest was measured, once; ``accumulated.seconds`` is its time for the data of all.
    """

    micro_batches: int
    accumulated: PassCost
    large_batch: PassCost


@dataclass(frozen=True, slots=True)
class WindowReport:
    """One optimizer step beside the reference.

    ``weights`` are the ledger's relative weights (1 everywhere is right; None where one could not be read).
    ``grad_rel_error`` is |g - g_ref| / |g_ref| in the Euclidean norm over all parameters of the optimizer before
    any clip, ``grad_norm_ratio`` is |g| / |g_ref|, ``tolerance`` what the error was allowed to be. Where the gradient
    was right before the clip, and another one after it, they are those of what the step used and of the clipped
    reference.
    ``param_rel_error`` is |Δw - Δw_ref| / |Δw_ref| for the step's own update Δw. ``drift`` is
    |w - w_ref| / |w_ref - w_0| beside a reference run, where one was asked for. ``within`` are the bounds of
    ``grad_rel_error`` where it was measured by sketches (`ReferenceReport`). All are None where they could not be
    measured, and ``reason``, or a note of the result, then says why. ``line`` is the step's line in the user's file.
    ``by_parameter`` takes the error before any clip apart, of the first windows that deviate and of those that are far
    worse than any before.
    """

    index: int
    optimizer: str
    micro_batches: int
    units: float | None
    weights: tuple[float | None, ...]
    grad_rel_error: float | None
    grad_norm_ratio: float | None
    tolerance: float | None
    param_rel_error: float | None
    verdict: Verdict
    drift: float | None = None
    reason: str = ""
    path: str = ""
    line: int = 0
    within: tuple[float, float] | None = None
    accepted: tuple[str, ...] = ()
    """The codes that explain the verdict, where the loop's owner has accepted all of them: it then decides nothing."""
    by_parameter: ByParameter | None = None

    def _cells(self) -> tuple[str, ...]:
        """What a notebook shows of it, under `_HEADINGS`."""
        known = [weight for weight in self.weights if weight is not None]
        unknown = len(known) < len(self.weights) or not known
        least, most = (_number(None),) * 2 if unknown else (_number(min(known)), _number(max(known)))
        return (
            str(self.index),
            str(self.micro_batches),
            _number(self.units),
            least if least == most else f"{least} to {most}",
            *(_number(value) for value in (self.grad_rel_error, self.tolerance, self.grad_norm_ratio)),
            self.verdict.value + (" (accepted)" if self.accepted else ""),
        )


_HEADINGS = ("window", "micro-batches", "units", "weights", "gradient error", "allowed", "norm ratio", "verdict")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class ReferenceReport:
    """What the loop was compared with: the engines used, the dtype and device they ran in.

    ``mode`` is the name of the references (as ``--reference`` has it), and ``why`` says why these where nobody named
    them. ``confidence`` is how sure the bounds of errors are, where some were measured by sketches.
    """

    kind: str
    dtype: str
    device: str
    settings: str = ""
    mode: str = ""
    why: str = ""
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A diagnosis that the loop's owner has accepted: ``by`` says where ("settings", or a "comment" in the source)."""

    diagnosis: Diagnosis
    by: str


@dataclass(frozen=True, slots=True, repr=False)
class VerifyResult:
    """The verdict on one run, with its evidence. As text it is the verdict and the causes, in a notebook windows too.

    ``notes`` are sentences for the reader (how the loss's scale was read, what was left unchecked); ``details`` those
    of them that nobody needs who does not ask. ``help`` says what to do about an inconclusive verdict.
    ``error`` is set where the run could not be judged through the script's or our own fault; it makes the exit
    status 2. ``ranks`` is how many processes of distributed training were watched together.
    """

    script: str
    verdict: Verdict
    reason: str
    device: str
    reference: ReferenceReport
    windows: tuple[WindowReport, ...] = ()
    diagnosis: tuple[Diagnosis, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    ranks: int = 1
    details: tuple[str, ...] = ()
    help: str = ""
    accepted: tuple[Accepted, ...] = ()
    """What was diagnosed and does not count (`gradcheck_accum.accepting`); none of ``diagnosis``."""
    settled_by: str = ""
    """The command that would decide an inconclusive run, where one is known."""
    cost: CostReport | None = None
    """What accumulation buys, where a window was run as one large batch too."""

    def __str__(self) -> str:
        return "\n".join((" ".join(self._headline()), *self._causes()))

    def __repr__(self) -> str:
        many = len(self.windows)
        found = ", ".join(f"{one.mistake.code} at {one.where}" for one in self.diagnosis)
        counted = f"{many} window{'' if many == 1 else 's'}"
        return f"<VerifyResult of {' '.join(self._headline())} ({counted}{f'; {found}' if found else ''})>"

    def _repr_html_(self) -> str:
        # The windows that decide come first, where not all are shown.
        decisive = sorted(self.windows, key=lambda w: w.verdict is Verdict.EQUIVALENT or bool(w.accepted))[:_SHOWN]
        rows = [window._cells() for window in sorted(decisive, key=lambda w: w.index)]
        left = len(self.windows) - len(rows)
        more = [f"{left} more window{'' if left == 1 else 's'}"] if left else []
        return paragraph(*self._headline()) + bullets(self._causes()) + table(_HEADINGS, rows) + bullets(more)

    def _headline(self) -> tuple[str, str]:
        return f"{self.script}: {'error' if self.error else self.verdict.value}:", self.error or self.reason

    def _causes(self) -> list[str]:
        """Every mistake in a line, with what to do, and what does not count."""
        found = [(f"{_said(one)}{f'; {one.help}' if one.help else ''}") for one in self.diagnosis]
        if self.help:
            found.append(self.help)
        return found + [f"accepted: {_said(one.diagnosis)}" for one in self.accepted]

    @classmethod
    def failed(cls, script: str, error: str) -> VerifyResult:
        """The result of a run that could not be judged at all."""
        return cls(script, Verdict.INCONCLUSIVE, error, "", ReferenceReport("none", "", ""), error=error)

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers of the last window that were measured, by names under which a tracker (W&B, …) can log them."""
        if not self.windows:
            return {}
        last = self.windows[-1]
        values = {"gradient_error": last.grad_rel_error, "norm_ratio": last.grad_norm_ratio, "units": last.units}
        return {f"accumulation/{name}": value for name, value in values.items() if value is not None}

    @property
    def exit_status(self) -> int:
        """0 equivalent, 1 deviates or any mistake of the loop's, 2 error, 3 not decided."""
        if self.error:
            return 2
        if any(not d.mistake.by_construction for d in self.diagnosis) or self.verdict is Verdict.DEVIATES:
            return 1
        return 0 if self.verdict is Verdict.EQUIVALENT else 3


def _said(diagnosis: Diagnosis) -> str:
    mistake = diagnosis.mistake
    return f"{mistake.code} [{mistake.name}] at {diagnosis.where}: {diagnosis.in_words}"


def verdict_on(windows: Sequence[WindowReport], total: int, *, lost: str, diagnosed: bool) -> tuple[Verdict, str]:
    """What windows come to together, and why: the worst of what was measured, and no pass of what was not.

    They are those of ``total`` that decide. ``lost`` says in words which data reached no step, ``diagnosed`` whether
    a mistake that moves gradients is known.
    """
    by_verdict = {verdict: [w for w in windows if w.verdict is verdict] for verdict in Verdict}
    if wrong := by_verdict[Verdict.DEVIATES]:
        return Verdict.DEVIATES, f"{len(wrong)} of {total} steps got another gradient than the large batch's"
    if lost:
        return Verdict.DEVIATES, lost
    unchecked = by_verdict[Verdict.INCONCLUSIVE]
    if unchecked and diagnosed:
        reason = f"{len(unchecked)} of {total} steps could not be compared: {unchecked[0].reason}"
        return Verdict.INCONCLUSIVE, f"{reason}; a mistake was diagnosed all the same"
    if coupled := by_verdict[Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION]:
        return Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, coupled[0].reason
    if unchecked:
        return Verdict.INCONCLUSIVE, f"{len(unchecked)} of {total} steps: {unchecked[0].reason}"
    if not windows:
        return Verdict.EQUIVALENT, "every step departs from the large batch's gradient only as accepted"
    taken = sum(window.grad_rel_error is not None for window in windows)
    if not taken:
        return Verdict.INCONCLUSIVE, f"not one step was taken: {windows[0].reason}"
    counted = f"all {taken}" if len(windows) == total else f"{taken} of {total}"
    skipped = f"; the grad scaler skipped {len(windows) - taken}" if taken < len(windows) else ""
    return Verdict.EQUIVALENT, f"{counted} steps got the large batch's gradient{skipped}"
