"""What ``verify`` reports: values that every report renders and that depend on neither engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.results.html_parts import bullets, paragraph, table

_SHOWN = 12
"""How many windows of a result a notebook shows."""


class Verdict(Enum):
    """Does the gradient at every step equal that of the true large batch?

    ``EQUIVALENT``: it does, up to rounding. ``DEVIATES``: a step does not match, or data never reached a step.
    ``NOT_EQUIVALENT_BY_CONSTRUCTION``: the model couples the samples of a batch, so accumulation cannot match.
    ``INCONCLUSIVE``: something could not be checked.
    """

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
    """One optimizer step, compared with the reference.

    ``index`` is the step's number, from 0; ``optimizer`` the class of its optimizer; ``path`` and ``line`` its place in
    the user's source. ``micro_batches`` is the number of micro-batches that it uses, ``units`` the number of elements
    (samples, tokens) that their losses average over.

    ``weights`` are the ledger's relative weights, one per micro-batch: w_j N for the weight w_j of one unit of it and
    the N units of the window (docs/ledger.md); 1 is right, None could not be read. ``grad_rel_error`` is
    |g - g_ref| / |g_ref| in the Euclidean norm over all parameters of the optimizer before clipping,
    ``grad_norm_ratio`` is |g| / |g_ref|, and ``tolerance`` the allowed error (docs/tolerances.md). If the gradient is
    right before clipping but not after it, they compare the gradient that the step used with the clipped reference.
    ``within`` are bounds of ``grad_rel_error`` if it was measured by sketches. ``param_rel_error`` is
    |Δw - Δw_ref| / |Δw_ref| for the step's own update Δw, ``drift`` is |w - w_ref| / |w_ref - w_0| relative to a
    reference run, if one was requested. ``by_parameter`` breaks the error before clipping down, for the first windows
    that deviate and for those that are far worse than any before. All are None if they were not measured; then
    ``reason``, or a note of the result, states why.

    ``verdict`` is that of this step, ``reason`` explains it. ``accepted`` are the codes that explain it, if all of them
    are accepted: it then does not affect the verdict on the run.
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
    by_parameter: ByParameter | None = None

    def _cells(self) -> tuple[str, ...]:
        """The row that a notebook shows, under `_HEADINGS`."""
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
    """What the loop was compared with.

    ``kind`` describes the references, ``dtype`` and ``device`` are those in which they were computed, ``settings`` are
    PyTorch's settings for it. ``mode`` is the value of ``--reference``, and ``why`` the reason for it if it was not
    requested. ``confidence`` (a probability) is that of the bounds of errors, if some were measured by sketches.
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
    """An accepted ``diagnosis``; ``by`` is where it was accepted: "settings", or a "comment" in the source."""

    diagnosis: Diagnosis
    by: str


@dataclass(frozen=True, slots=True, repr=False)
class VerifyResult:
    """The verdict on one run, with its evidence.

    As text it is the verdict and the causes; a notebook also shows windows.

    ``script`` is what was run, ``device`` where, ``ranks`` the number of processes that were watched together.
    ``verdict`` and ``reason`` are those of the whole run, ``reference`` what gradients were compared with, ``windows``
    the steps in order, ``diagnosis`` the mistakes with their causes. ``accepted`` are diagnoses that do not affect the
    verdict; none of them is in ``diagnosis``.

    ``notes`` are sentences on how the loop was read and what was not checked; ``details`` are those that only
    ``--verbose`` shows. ``help`` is what to do about an inconclusive verdict, ``settled_by`` the ``compare`` command
    that would decide it, if one is known. ``cost`` is that of the largest window, if it was also run as one large
    batch. ``error`` is set if the run could not be judged because the script failed, or gradcheck-accum itself; the
    exit status is then 2.
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
    settled_by: str = ""
    cost: CostReport | None = None

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
        """Every mistake in one line with its remedy, and what was accepted."""
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
    """The verdict on several windows, and why: the worst that was measured, and never a pass for what was not.

    They are those of ``total`` that decide. ``lost`` says in words which data reached no step, ``diagnosed`` whether
    a mistake that moves gradients is known.
    """
    by_verdict = {verdict: [w for w in windows if w.verdict is verdict] for verdict in Verdict}
    if wrong := by_verdict[Verdict.DEVIATES]:
        return Verdict.DEVIATES, f"{len(wrong)} of {total} steps do not match the large-batch gradient"
    if lost:
        return Verdict.DEVIATES, lost
    unchecked = by_verdict[Verdict.INCONCLUSIVE]
    if unchecked and diagnosed:
        reason = f"{len(unchecked)} of {total} steps could not be compared: {unchecked[0].reason}"
        return Verdict.INCONCLUSIVE, f"{reason}; a mistake was diagnosed nevertheless"
    if coupled := by_verdict[Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION]:
        return Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, coupled[0].reason
    if unchecked:
        return Verdict.INCONCLUSIVE, f"{len(unchecked)} of {total} steps: {unchecked[0].reason}"
    if not windows:
        return Verdict.EQUIVALENT, "every mismatch with the large-batch gradient has an accepted cause"
    taken = sum(window.grad_rel_error is not None for window in windows)
    if not taken:
        return Verdict.INCONCLUSIVE, f"no step was taken: {windows[0].reason}"
    counted = f"all {taken}" if len(windows) == total else f"{taken} of {total}"
    skipped = f"; the grad scaler skipped {len(windows) - taken}" if taken < len(windows) else ""
    return Verdict.EQUIVALENT, f"{counted} steps match the large-batch gradient{skipped}"
