"""What ``compare`` reports: values that every report renders and that know no engine."""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_accum.verdict import Accepted, Verdict, VerifyResult, WindowReport


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way in which the script was run: its own arguments, and what its steps were made of.

    ``micro_batches`` and ``rows`` are those of most of its ``steps``, None where it made none, or its rows are not
    known.
    """

    name: str
    micro_batches: int | None = None
    rows: int | None = None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """What no gradient shows and is another all the same: the learning rate, or a loss that the script reads."""

    kind: str
    message: str
    path: str = ""
    line: int = 0
    accepted: str = ""
    """Where it was accepted ("settings", or a "comment" in the source), if it was."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration beside the reference; ``watched`` is what ``verify`` says of it, from the same run.

    ``steps`` are those on the same data as a step of the reference's, and measured against that one's gradient: before
    any clip where both are known, unless that was right and the one after it was not. Their units are rows, they have
    no weights, and the ``drift`` of one is |w - w_ref| / |w_ref - w_0| after it. ``notes`` are sentences for the
    reader.
    """

    configuration: Configuration
    verdict: Verdict
    reason: str
    steps: tuple[WindowReport, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    watched: VerifyResult | None = None
    accepted: tuple[Accepted, ...] = ()
    """What was diagnosed of this run, by `verify` or beside the reference, and does not count."""

    @property
    def disagrees(self) -> bool:
        """Whether ``verify``'s ledger says of this run what the comparison does not."""
        decided = {Verdict.EQUIVALENT, Verdict.DEVIATES}
        said = None if self.watched is None else self.watched.verdict
        return self.verdict in decided and said in decided and said is not self.verdict


@dataclass(frozen=True, slots=True)
class CompareResult:
    """The verdict on one script in several configurations, with its evidence.

    ``error`` is set where they could not be compared through the script's or our own fault; it makes the exit status 2.
    ``help`` says what to do about a verdict that is open.
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
        """0 equivalent, 1 deviates or any other difference that nobody accepted, 2 error, 3 not decided."""
        if self.error:
            return 2
        if self.verdict is Verdict.DEVIATES or any(
            not difference.accepted for one in self.compared for difference in one.differences
        ):
            return 1
        return 0 if self.verdict is Verdict.EQUIVALENT else 3
