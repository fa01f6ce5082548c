"""How the scripts that repairs make are read: each text once, and no further than is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gradcheck_accum.lint.examination.document import LintError
from gradcheck_accum.lint.examination.examine import Examination, examine_in_steps
from gradcheck_accum.lint.examination.scenario import Scenario


@dataclass(slots=True)
class Search:
    """The search for repairs in one file."""

    left: int
    """How many evaluations may still be spent on it."""
    examined: dict[str, Examination] = field(default_factory=dict)
    """The texts that have been read to the end: several findings may be repaired by one change.

    Without their syntax: one tree for every text would fill the memory.
    """


class Judgement:
    """What is known of a text, scenario by scenario."""

    def __init__(self, text: str, path: str, search: Search) -> None:
        self.text = text
        self._search = search
        self._steps = examine_in_steps(text, path, thorough=True)
        self._examination = search.examined.get(text)
        self.scenarios: tuple[Scenario, ...] = self._examination.scenarios if self._examination is not None else ()
        """Those so far."""
        self.is_refused = False
        """Whether it cannot be read."""
        self._spent = 0

    def goes_on(self) -> bool:
        """Run another scenario, if there may be one."""
        if self._examination is not None or self.is_refused:
            return False
        try:
            progress = next(self._steps)
        except LintError:
            self.is_refused = True
            return False
        except StopIteration as end:
            self._examination = self._search.examined[self.text] = replace(end.value, module=None)
            self._take(self._examination.scenarios, self._examination.cost)
            return False
        self._take(progress.scenarios, progress.cost)
        return True

    def _take(self, scenarios: Iterable[Scenario], cost: int) -> None:
        self.scenarios = tuple(scenarios)
        self._search.left -= cost - self._spent
        self._spent = cost

    def complete(self) -> Examination | None:
        """All that is found in the text; None where it cannot be read."""
        while self.goes_on():
            pass
        return self._examination
