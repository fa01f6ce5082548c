"""The results of fuzzing: values that every report renders and that depend on no engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from gradcheck_accum.results.verdict import Verdict, VerifyResult


class TrialOutcome(Enum):
    """The outcome of one case of a loop; of several cases, the first of these that is not a success decides."""

    EQUIVALENT = "equivalent"
    DEVIATES = "deviates"
    RAISED = "raised"
    UNDECIDED = "undecided"
    NOTHING = "nothing to do"

    @classmethod
    def of(cls, result: VerifyResult) -> TrialOutcome:
        """The outcome that a verdict and its diagnosis stand for."""
        if result.exit_status == 1:
            return cls.DEVIATES
        return cls.EQUIVALENT if result.verdict is Verdict.EQUIVALENT else cls.UNDECIDED


@dataclass(frozen=True, slots=True)
class FailedCase:
    """The smallest case of one kind that was found: in words, what is wrong with it, and a test that shows it.

    ``result`` is None where the loop raised.
    """

    outcome: TrialOutcome
    case: str
    what: str
    test: str
    result: VerifyResult | None = None


@dataclass(frozen=True, slots=True)
class LoopTrial:
    """A loop that was tried on many cases: how many had which outcome, and the smallest failing case of each kind."""

    target: str
    outcomes: Counter[TrialOutcome]
    failures: tuple[FailedCase, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 equivalent in every case that had a step, 1 deviates, 2 raised, 3 not decided."""
        found = {failure.outcome for failure in self.failures}
        for outcome, status in ((TrialOutcome.DEVIATES, 1), (TrialOutcome.RAISED, 2), (TrialOutcome.UNDECIDED, 3)):
            if outcome in found:
                return status
        return 0 if self.outcomes[TrialOutcome.EQUIVALENT] else 3


@dataclass(slots=True)
class Tally:
    """What was counted over many loop variants.

    ``mutations``, ``boundaries`` and ``features`` count the variants, ``killed`` by engine and mutation how many were
    found of those that had to be (``demanded``: of a variant with two mistakes, none). ``unknown`` are the variants of
    which lint does not know every weight, ``compared`` those that were compared with themselves at K = 1, by verdict.
    ``problems`` counts them by what is wrong, ``undecided`` by what an engine left open, ``undecided_by`` the same by
    the mistake and by each wider dimension.
    """

    variants: int = 0
    clean: int = 0
    unknown: int = 0
    fixed: int = 0
    mutations: Counter[str] = field(default_factory=Counter)
    boundaries: Counter[str] = field(default_factory=Counter)
    unknown_at: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    demanded: Counter[tuple[str, str]] = field(default_factory=Counter)
    killed: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    undecided_by: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The simplest variant that shows one kind of disagreement: its source, both ledgers in lines, the problem."""

    source: str
    problems: tuple[str, ...]
    static: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    variant: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Many loop variants, linted and run."""

    tally: Tally
    disagreements: tuple[Disagreement, ...] = ()

    @property
    def exit_status(self) -> int:
        """0 where the engines agree, 1 where they disagree somewhere."""
        return 1 if self.disagreements else 0


class Interrupted(KeyboardInterrupt):
    """The user stopped the fuzzing (Ctrl-C); ``so_far`` are the results until then."""

    def __init__(self, so_far: LoopTrial | Campaign) -> None:
        super().__init__()
        self.so_far = so_far
