"""What ``compare`` reports: values that every report renders and that depend on no engine."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult, WindowReport


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way in which the script was run, on ``ranks`` processes together.

    ``name`` are its own arguments, ``steps`` is the number of its optimizer steps, ``micro_batches`` and ``rows`` are
    the numbers of micro-batches and data rows in most of them; None if it made no step, or its rows are unknown.
    ``steps_by_epoch`` are the steps of each pass over the data, if a `DataLoader` separates passes.
    """

    name: str
    micro_batches: int | None = None
    rows: int | None = None
    steps: int = 0
    ranks: int = 1
    steps_by_epoch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that no gradient shows.

    ``kind`` is "learning rate", "optimizer" (its class or settings), "update" (what a step makes of an equal gradient),
    "loss" or "gradient norm" (one that the script reads), ``message`` states it, ``path`` and ``line`` are its
    place. ``accepted`` is where it was accepted ("settings", or a "comment" in the source), if it was.
    """

    kind: str
    message: str
    path: str = ""
    line: int = 0
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """One ``configuration``, compared with the reference; ``watched`` is the result of ``verify`` for the same run.

    ``verdict`` and ``reason`` are those of this configuration. ``steps`` are those that use the same data as a step of
    the reference, compared with its gradient: before clipping if both are known, unless that is right and the gradient
    after clipping is not. Their units are rows, they have no weights, and ``drift`` is |w - w_ref| / |w_ref - w_0|
    after the step. ``differences`` are mistakes that no gradient shows, ``notes`` sentences on how it was compared,
    ``accepted`` diagnoses that do not affect the verdict.
    """

    configuration: Configuration
    verdict: Verdict
    reason: str
    steps: tuple[WindowReport, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    watched: VerifyResult | None = None
    accepted: tuple[Accepted, ...] = ()

    @property
    def disagrees(self) -> bool:
        """Whether ``verify``'s ledger has another verdict on this run than the comparison."""
        decided = {Verdict.EQUIVALENT, Verdict.DEVIATES}
        said = None if self.watched is None else self.watched.verdict
        return self.verdict in decided and said in decided and said is not self.verdict


@dataclass(frozen=True, slots=True)
class CompareResult:
    """The verdict on one ``script`` in several configurations, with its evidence.

    ``verdict`` and ``reason`` are those of the whole comparison, ``reference`` is the configuration that the others, in
    ``compared``, are compared with; None if no step was taken. ``help`` is what to do about an inconclusive verdict.
    ``error`` is set if they could not be compared because the script failed, or gradcheck-accum itself; the exit status
    is then 2.
    """

    script: str
    verdict: Verdict
    reason: str
    reference: Configuration | None = None
    compared: tuple[Compared, ...] = ()
    error: str = ""
    help: str = ""

    @classmethod
    def failed(cls, script: str, error: str) -> CompareResult:
        """The result where nothing could be compared at all."""
        return cls(script, Verdict.INCONCLUSIVE, error, error=error)

    @property
    def exit_status(self) -> int:
        """0 equivalent, 1 deviates or any other difference that is not accepted, 2 error, 3 not decided."""
        if self.error:
            return 2
        if self.verdict is Verdict.DEVIATES or any(
            not difference.accepted for one in self.compared for difference in one.differences
        ):
            return 1
        return 0 if self.verdict is Verdict.EQUIVALENT else 3
