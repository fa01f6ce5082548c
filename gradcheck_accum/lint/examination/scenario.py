"""One run of a loop under one set of answers to its open conditions: what it found, and what it has a voice in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.events import Backward, LossShown, Opaque, Step, product_of
from gradcheck_accum.ledger.weights import Readings
from gradcheck_accum.ledger.window_length import usual_steps
from gradcheck_accum.ledger.windows import Ledger, Window
from gradcheck_accum.lint.program.names import ACCUMULATION
from gradcheck_accum.mistakes import CATALOGUE

_EVERY_CODE = frozenset(CATALOGUE)
_OF_RANKS = frozenset({"GA701", "GA702"})
"""What nothing can be said of at a line without ranks: there is nothing to average."""
_OF_CLIPS = frozenset({"GA401", "GA402", "GA501"})
"""What nothing can be said of where no step is made: there is nothing that gradients were clipped for."""
_OF_SCALERS = frozenset({"GA501"})
"""What nothing can be said of where no loss was scaled by a grad scaler."""
_OF_WINDOWS = frozenset({"GA302"})
"""What nothing can be said of where fewer than two windows are whole: a first one is like no other."""
_OF_MEANS = frozenset({"GA802"})
"""What nothing can be said of at a line where no mean of several losses was read that is shown."""
OF_SCALES = frozenset({"GA101", "GA102", "GA103", "GA104"})
"""What nothing can be said of at a line whose losses are multiplied by what is not known."""
_LOST = frozenset({"GA201", "GA202"})
"""What loses the gradients of most micro-batches of a window."""
OF_REMAINDERS = frozenset({"GA103", "GA301"})
"""What depends on how many micro-batches a pass has.

Nothing can be said of it where none but the last is kept, or where passes do not end.
"""


class Claim(NamedTuple):
    """A code that was found at a line; of remainders, with or without a pass that shows its end."""

    code: str
    sees_end: bool = True


@dataclass(frozen=True)
class Scenario:
    """The ledger of one loop under one set of answers, given by condition, and what is wrong with it."""

    decisions: dict[str, bool]
    ledger: Ledger
    diagnoses: tuple[Diagnosis, ...]
    readings: Readings = field(repr=False, compare=False)
    """The weights that the diagnoses were derived from."""
    wordings: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """How the source says that a decision was taken: that it does not hold, and that it does."""

    @property
    def is_unknown(self) -> bool:
        """Whether nothing can be concluded from this scenario."""
        windows = (*self.ledger.windows, *self.ledger.abandoned)
        if not windows:
            return any(isinstance(event, Opaque) for event in self.ledger.trace.events)
        return all(window.unknown for window in windows)

    @cached_property
    def is_readable(self) -> bool:
        """Whether nothing in its windows is unknown."""
        return is_readable(self.readings, (*self.ledger.windows, *self.ledger.abandoned))

    @property
    def trains(self) -> bool:
        """Whether it has made any gradients."""
        return any(isinstance(event, Backward) for event in self.ledger.trace.events)

    @property
    def lines(self) -> set[int]:
        """The lines that did something to gradients."""
        return {event.where.line for event in self.ledger.trace.events}

    @cached_property
    def averaging_lines(self) -> set[int]:
        """The lines of the backwards that may average gradients over ranks."""
        return {e.where.line for e in self.ledger.trace.events if isinstance(e, Backward) and e.synced is not None}

    @cached_property
    def scales(self) -> bool:
        """Whether a grad scaler has scaled any loss."""
        return any(isinstance(event, Backward) and event.grad_scaled for event in self.ledger.trace.events)

    @cached_property
    def loses_most(self) -> bool:
        """Whether it loses the gradients of most micro-batches, those of a remainder among them."""
        return any(diagnosis.mistake.code in _LOST for diagnosis in self.diagnoses)

    @cached_property
    def ends_passes(self) -> bool:
        """Whether it shows where every pass over the data ends: a stream goes on where the next one begins."""
        passes = self.ledger.passes
        return all(passes.of(event) is not None for event in self.ledger.trace.events if isinstance(event, Backward))

    @cached_property
    def mean_lines(self) -> set[int]:
        """The lines at which losses were read of which several are shown as one number."""
        return {e.where.line for e in self.ledger.trace.events if isinstance(e, LossShown) and len(e.losses) > 1}

    @cached_property
    def known_lines(self) -> dict[int, bool]:
        """The lines of the backwards, and whether the weight of any of the terms there is known."""
        known: dict[int, bool] = {}
        for event in self.ledger.trace.events:
            if isinstance(event, Backward):
                shows = any(product_of(term.factors) is not None for term in event.terms)
                known[event.where.line] = shows or known.get(event.where.line, False)
        return known

    def knows_scale_at(self, line: int) -> bool:
        """Whether the scale of the losses of a backward at this line is known, or of any where it has none.

        Where a setting about accumulation was asked, what is not known may be the division that it decides on.
        """
        known = self.known_lines.get(line, not self.known_lines or any(self.known_lines.values()))
        return known or any(map(ACCUMULATION.fits, self.decisions))

    @cached_property
    def has_windows(self) -> bool:
        """Whether it has trained long enough to show how long a window is."""
        every = [self.ledger.account(*names) for names in self.ledger.accounts()]
        usual = ((windows, usual_steps(windows, self.ledger.same)) for windows in every)
        return any(sum(window.micro_batches == steps for window in windows) > 1 for windows, steps in usual)

    def claims_at(self, line: int) -> set[Claim]:
        """What it found at a line; of remainders where passes end what it would find where no end is seen, too."""
        found = {d.mistake.code for d in self.diagnoses if d.where.line == line}
        unseen = {Claim(code, sees_end=False) for code in found & OF_REMAINDERS}
        return unseen | {Claim(code) for code in (found if self.ends_passes else found - OF_REMAINDERS)}

    def silent_at(self, line: int) -> frozenset[str]:
        """The codes of what it can say nothing of at a line: where its windows are unknown, all but what it found."""
        if self.is_unknown:
            return _EVERY_CODE - {d.mistake.code for d in self.diagnoses if d.where.line == line}
        of_ranks = frozenset() if line in self.averaging_lines else _OF_RANKS
        of_windows = frozenset() if self.has_windows else _OF_WINDOWS
        of_means = frozenset() if line in self.mean_lines else _OF_MEANS
        shows_remainders = self.ends_passes and not self.loses_most
        of_remainders = frozenset() if shows_remainders else OF_REMAINDERS
        of_scalers = frozenset() if self.scales else _OF_SCALERS
        of_scales = self.silent_of_scales(line)
        of_clips = frozenset() if any(isinstance(event, Step) for event in self.ledger.trace.events) else _OF_CLIPS
        return of_ranks | of_windows | of_means | of_remainders | of_scalers | of_scales | of_clips

    def silent_of_scales(self, line: int) -> frozenset[str]:
        """Those of them that it has no scale of the losses for."""
        return frozenset() if self.knows_scale_at(line) else OF_SCALES

    @property
    def has_short_windows(self) -> bool:
        """Whether a window is shorter than they usually are."""
        every = [self.ledger.account(*names) for names in self.ledger.accounts()]
        usual = ((windows, usual_steps(windows, self.ledger.same)) for windows in every)
        return any(window.micro_batches < steps for windows, steps in usual if steps for window in windows)

    @property
    def accumulates(self) -> bool:
        """Whether any step waited for several micro-batches."""
        return any(window.micro_batches > 1 for window in self.ledger.windows)


def is_readable(readings: Readings, windows: Iterable[Window]) -> bool:
    """Whether nothing in the windows is unknown: neither events nor the weight of any entry."""
    return not any(
        window.unknown
        or any(
            weight.relative is None
            for series in readings.series_of(window)
            for weight in readings.weights(window, series)
        )
        for window in windows
    )
