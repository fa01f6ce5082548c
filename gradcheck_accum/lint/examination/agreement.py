"""What all scenarios of a loop agree on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.events import Step
from gradcheck_accum.ledger.windows import Ledger
from gradcheck_accum.lint.examination.scenario import OF_REMAINDERS, OF_SCALES, Claim, Scenario
from gradcheck_accum.wording import message

_SCALER_BYPASSED = "GA503"
_STEPS_EVERY_TIME = "GA304"


class _Vote:
    """What all scenarios found at a line which had a voice in it."""

    __slots__ = ("_silent", "claims")

    def __init__(self) -> None:
        self.claims: set[Claim] = set()
        self._silent: set[str] | None = None
        """The codes that none of them could judge; None before the first."""

    def hear(self, found: set[Claim], silent: frozenset[str]) -> None:
        """Count one scenario's vote, which can say nothing of the codes that it is ``silent`` about."""
        if self._silent is None:
            self.claims, self._silent = set(found), set(silent)
        else:
            unheard = {Claim(code) for code in self._silent}
            self.claims = self.claims & (found | {Claim(code) for code in silent}) | (found & unheard)
            self._silent &= silent

    @property
    def knows_scales(self) -> bool:
        """Whether any of them could judge by what losses are divided."""
        return self._silent is not None and self._silent.isdisjoint(OF_SCALES)


class Agreement:
    """What the scenarios so far agree on: per line the codes that every known one which ran it has found.

    A scenario has no voice in what it cannot show: averaging where there are no ranks, a clip of scaled gradients
    where nothing was scaled, where windows close if it ends before two of them are whole, remainders where no pass
    over the data ends. One that steps with every micro-batch has none at a line that no answer passes by: whether such
    a line is right depends on the very branch that accumulates.
    """

    def __init__(self) -> None:
        self._votes: dict[int, _Vote] = {}
        """Per line what every one has found."""
        self._of_windows: dict[int, _Vote] = {}
        """Per line what every one has found which accumulates."""
        self._ran: Counter[int] = Counter()
        """How many have run each line."""
        self._trained = 0
        """How many have made gradients."""
        self._is_short = True
        """Whether none was long enough to show what a window is."""

    def hear(self, scenario: Scenario) -> None:
        """Take one scenario's diagnoses for its vote; one of which little is known objects to nothing."""
        if scenario.is_unknown and not scenario.diagnoses:
            return
        accumulates = scenario.accumulates
        self._trained += scenario.trains
        self._is_short = self._is_short and not scenario.has_windows
        for line in scenario.lines:
            for votes in (self._votes, self._of_windows) if accumulates else (self._votes,):
                votes.setdefault(line, _Vote()).hear(scenario.claims_at(line), scenario.silent_at(line))
            self._ran[line] += scenario.trains

    def holds(self, diagnosis: Diagnosis) -> bool:
        """Whether every known scenario that ran the line of ``diagnosis``, and has a voice in it, found the same."""
        code, line = diagnosis.mistake.code, diagnosis.where.line
        never_passed = self._ran[line] == self._trained
        votes = (self._votes, self._of_windows) if never_passed else (self._votes,)
        return any(line in one and any(claim.code == code for claim in one[line].claims) for one in votes)

    def is_settled(self, lines: set[int]) -> bool:
        """Whether no further scenario could bring a finding, if only ``lines`` can do anything to gradients."""
        heard = self._votes.keys() if all(vote.knows_scales for vote in self._votes.values()) else set[int]()
        return not self.has_any and not self._is_short and lines <= heard

    @property
    def has_any(self) -> bool:
        """Whether anything is found so far that no scenario objects to."""
        return any(vote.claims for votes in (self._votes, self._of_windows) for vote in votes.values())


def agreed_by(scenarios: list[Scenario]) -> list[tuple[Diagnosis, Ledger]]:
    """What holds in every scenario that runs its line and has a voice in it, each with a ledger that shows it."""
    agreement = Agreement()
    for scenario in scenarios:
        agreement.hear(scenario)
    found: dict[tuple[str, int], tuple[Diagnosis, Ledger]] = {}
    for scenario in scenarios:
        for diagnosis in scenario.diagnoses:
            found.setdefault((diagnosis.mistake.code, diagnosis.where.line), (diagnosis, scenario.ledger))
    doubted = set()
    if _steps_through_a_scaler(scenarios):
        doubted.add(_SCALER_BYPASSED)
    if any(_never_steps(scenario) for scenario in scenarios):
        # Whether it steps is an open condition, which may hold at some of the micro-batches.
        doubted.add(_STEPS_EVERY_TIME)
    kept = [e for e in found.values() if agreement.holds(e[0]) and e[0].mistake.code not in doubted]
    return [(_with_its_condition(diagnosis, scenarios), ledger) for diagnosis, ledger in kept]


def _with_its_condition(diagnosis: Diagnosis, scenarios: list[Scenario]) -> Diagnosis:
    """A diagnosis that only some scenarios have a voice in, with the settings that tell them from the others."""
    code, line = diagnosis.mistake.code, diagnosis.where.line
    heard = [s for s in scenarios if not s.is_unknown and line in s.lines]
    voiced = [s.decisions for s in heard if not _is_silent(s, code, line)]
    silent = [s.decisions for s in heard if _is_silent(s, code, line)]
    common = {q: answer for q, answer in voiced[0].items() if all(d.get(q) is answer for d in voiced)} if voiced else {}
    differing = [[q for q, answer in common.items() if d.get(q) is (not answer)] for d in silent]
    deciding = dict.fromkeys(questions[0] for questions in differing if len(questions) == 1)
    if not deciding or any(deciding.keys().isdisjoint(questions) for questions in differing):
        return diagnosis
    wordings = {question: words for s in heard for question, words in s.wordings.items()}
    words = " and ".join(wordings[q][common[q]] for q in deciding if q in wordings)
    return replace(diagnosis, said=message(f"when {words}, ", diagnosis.said)) if words else diagnosis


def _is_silent(scenario: Scenario, code: str, line: int) -> bool:
    """Whether a scenario has nothing to say of a mistake at a line, nor of a remainder whose end it does not see."""
    if code not in scenario.silent_at(line):
        return False
    return code not in OF_REMAINDERS or not any(claim.code == code for claim in scenario.claims_at(line))


def _never_steps(scenario: Scenario) -> bool:
    return scenario.trains and not any(isinstance(event, Step) for event in scenario.ledger.trace.events)


def _steps_through_a_scaler(scenarios: list[Scenario]) -> bool:
    """Whether any scenario steps through a grad scaler.

    The condition that passes it by in another is then the one that switches it off (``GradScaler(enabled=use_amp)``),
    and its scale is 1 there.
    """
    return any(isinstance(event, Step) and event.through_scaler for s in scenarios for event in s.ledger.trace.events)
