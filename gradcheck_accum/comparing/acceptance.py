"""What the user has accepted in a comparison, by the settings and comments that `verify` uses. Imports no torch.

A step is accepted as in `verify`: if every mistake that the ledger of the same run shows in it is accepted, and if
these account for the difference from the reference. What the comparison itself shows is a mistake of the catalogue too,
at a place of its own: samples that influence each other (GA901), at their backward, and a loss or a gradient norm that
is misreported (GA802), where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gradcheck_accum.comparing.lockstep import Course, Met
from gradcheck_accum.comparing.messages import Arrival
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.acceptance import accepted, counts, explained
from gradcheck_accum.results.comparison import Difference
from gradcheck_accum.results.verdict import Accepted, Verdict, VerifyResult, WindowReport

By = Callable[[Diagnosis], str]
"""Where a diagnosis has been accepted, empty if it has not."""


def nobody(diagnosis: Diagnosis) -> str:
    """The default: no diagnosis is accepted."""
    return ""


_COUPLED, _MISREPORTED, _REACHED_NO_STEP = "GA901", "GA802", "GA301"
_NUMBERS_READ = frozenset({"loss", "gradient norm"})
_OF_SCHEDULES = frozenset({"GA601", "GA603"})


class PutUpWith:
    """What was accepted of one run; ``watched`` is `verify`'s result for it, after acceptance."""

    def __init__(self, watched: VerifyResult | None, course: Course, steps: Sequence[WindowReport], by: By) -> None:
        self._by = by
        self.watched = None if watched is None else accepted(watched, by)
        known = () if self.watched is None else self.watched.accepted
        self._left = () if self.watched is None else self.watched.diagnosis
        coupled = _coupled(course.met, steps)
        known_codes = {one.diagnosis.mistake.code for one in known}
        more = [Accepted(one, where) for one in coupled if _COUPLED not in known_codes and (where := by(one))]
        self.accepted = (*known, *more)

    def steps(self, course: Course, steps: Sequence[WindowReport]) -> tuple[WindowReport, ...]:
        """The steps, those that are accepted with the codes that explain them."""
        return tuple(self._step(step, met.mine.window) for step, met in zip(steps, course.met, strict=True))

    def _step(self, step: WindowReport, window: int) -> WindowReport:
        found = explained(replace(step, index=window), self.accepted, self._left)
        return replace(found, index=step.index)

    def covers(self, stretch: Sequence[Arrival]) -> bool:
        """Whether a stretch that is split into other steps is accepted.

        An accepted mistake has to explain the split, and each of its steps has to be right for its data, or accepted
        itself.
        """
        windows = {one.window for one in stretch}
        judged = [] if self.watched is None else [w for w in self.watched.windows if w.index in windows]
        explained_by = [d for d in self._diagnoses if d.mistake.moves_gradient and windows.intersection(d.windows)]
        are_right = all(w.verdict is Verdict.EQUIVALENT or w.accepted for w in judged)
        return bool(explained_by) and len(judged) == len(windows) and are_right

    @property
    def _diagnoses(self) -> Sequence[Diagnosis]:
        return [one.diagnosis for one in self.accepted]

    @property
    def covers_what_is_left(self) -> bool:
        """Whether it is accepted that data reaches no step."""
        return any(one.mistake.code == _REACHED_NO_STEP for one in self._diagnoses)

    def difference(self, one: Difference) -> Difference:
        """A difference, with where it was accepted."""
        if one.kind in _NUMBERS_READ:
            where = Location(one.path, one.line)
            return replace(one, accepted=self._by(Diagnosis(CATALOGUE[_MISREPORTED], where, one.message, "")))
        if one.kind != "learning rate":
            return one
        of_schedules = [own for own in self.accepted if own.diagnosis.mistake.code in _OF_SCHEDULES]
        if not of_schedules or any(d.mistake.code in _OF_SCHEDULES for d in self._left):
            return one
        return replace(one, accepted=of_schedules[0].by)

    @property
    def words(self) -> str:
        """What was accepted, for the end of a reason."""
        return f"; accepted: {', '.join(counts(self.accepted))}" if self.accepted else ""


def _coupled(met: Sequence[Met], steps: Sequence[WindowReport]) -> list[Diagnosis]:
    """The places of the backwards of samples that influence each other."""
    found: dict[Location, Diagnosis] = {}
    for one, step in zip(met, steps, strict=True):
        if step.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION:
            where = Location(*one.mine.backward)
            known = found.setdefault(where, Diagnosis(CATALOGUE[_COUPLED], where, step.reason, ""))
            found[where] = replace(known, windows=(*known.windows, one.mine.window))
    return list(found.values())
