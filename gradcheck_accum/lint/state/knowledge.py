"""Numbers that the source leaves open: K, the length of a pass, and what runs of a loop learn about them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from gradcheck_accum.ledger.events import WindowBound
from gradcheck_accum.ledger.stated_names import is_literal, is_place, names_steps
from gradcheck_accum.lint import syntax
from gradcheck_accum.lint.state import values as v
from gradcheck_accum.lint.state.control import Restart
from gradcheck_accum.lint.state.values import Num

ASSUMED_STEPS = 4
_WORDS = re.compile(r"[^\W\d]\w*")
LARGEST_STEPS = 64
LONGEST_INTERVAL = 200
"""Micro-batches after which a loop may report for a pass to be long enough for that."""


class Knowledge:
    """What runs of one loop have learned about its numbers; it survives restarts.

    ``as_written`` lets every setting be what the source has for its default, and great numbers of epochs be few.
    """

    def __init__(self, *, as_written: bool = False) -> None:
        self.as_written = as_written
        self.bindings: dict[str, Num] = {}
        self.lengths: set[str] = set()
        """The names that the number of a pass's micro-batches has."""
        self._moduli: set[int] = set()
        self._is_relied_on = False
        """Whether a run has used the moduli known so far: another modulus then restarts it."""
        self._acting: dict[int, frozenset[str]] = {}
        """Those of the moduli that may decide on what happens to gradients."""
        self._origins: dict[int, frozenset[str]] = {}
        """The origins of each of the moduli."""
        self._window: WindowBound | None = None
        """The bound of the last loop that is a window."""
        self._boundaries: dict[syntax.If, dict[int, frozenset[str]]] = {}
        """The moduli, each with its origins, in the conditions that decide on steps."""
        self._bounds: dict[syntax.If, WindowBound] = {}
        """What a count was last compared with in such a condition."""
        self._interval = 0
        """The longest number of micro-batches after which the loop reports losses, of those above all windows."""
        self._ignored: set[int] = set()
        """Those that do not, once they have made passes too long to be followed."""
        self.hurries = as_written
        """Whether a run has needed more than its budget, so that of many epochs a few have to do."""
        self.skims = False
        """Whether runs have needed so much that long reports are not carried out again."""
        self.reports: set[syntax.Node] = set()
        """The functions of training loops that take long and do nothing to gradients."""
        self.evaluations: set[syntax.Node] = set()
        """The functions that only report what they find in data of their own: what they give is not known again."""
        self.bounds: set[str] = set()
        """Names that loops with a step inside and another after them count to: K, if losses are divided by them."""
        self._preferred: dict[str, bool] = {}
        self._whole = False
        self._ends_anywhere = False
        self._data_is_given = False
        self._data_is_made = False

    def known(self, name: str) -> Num | None:
        """The number that runs have learned for a name; the length of a pass is what it is by now."""
        if name in self.lengths:
            return Num(self.pass_length(), frozenset({v.LENGTH}))
        return self.bindings.get(name)

    @property
    def moduli(self) -> set[int]:
        """The numbers that some counter is taken modulo; if another is found after this was used, the run restarts."""
        self._is_relied_on = True
        return self._moduli

    def take_for_modulus(self, value: int) -> None:
        """Note a number that some counter is taken modulo, in a run that is about to restart."""
        self._moduli.add(value)

    def note_modulus(self, number: Num, acts: Callable[[], bool], boundary: syntax.If | None) -> None:
        """Note a whole number that some counter is taken modulo. Raises Restart where this run has gone by less.

        ``acts`` says whether that decides on what happens to gradients; ``boundary`` is the statement that it decides
        on a step in.
        """
        value = int(number.value)
        if boundary is not None:
            own = self._boundaries.setdefault(boundary, {})
            own[value] = own.get(value, frozenset()) | number.origins
        before = self._acting.get(value), self._origins.get(value), value in self._moduli
        if not (value in self._acting and number.origins <= self._acting[value]) and acts():
            self._acting[value] = self._acting.get(value, frozenset()) | number.origins
        if value in self._ignored and value not in self._acting:
            return
        if value > 1 and (v.LENGTH not in number.tags or v.DERIVED in number.tags):  # a whole pass is no window
            self._moduli.add(value)
            self._origins[value] = self._origins.get(value, frozenset()) | number.origins
            now = self._acting.get(value), self._origins[value], True
            if now != before and value <= LARGEST_STEPS and self._is_relied_on:
                raise Restart

    def note_interval(self, value: int) -> None:
        """Let a pass have as many micro-batches as the loop reports losses after. Raises Restart if it has fewer."""
        if LARGEST_STEPS < value <= LONGEST_INTERVAL and value not in self._ignored and value > self._interval:
            self._interval = value
            raise Restart

    def counts_windows(self, value: int, origins: frozenset[str]) -> bool:
        """Whether what losses are divided by, a number of these origins, is stated to be K.

        It is where the loop steps, clears or goes on by a counter modulo that very number, or compares one with it
        there; where it is bound in the place of K; and where its name says so. Two equal literals are one number
        without a name. The number by which a loop reports is none.
        """
        self._is_relied_on = True
        if names_steps(origins):
            return True
        acting = frozenset[str]().union(*self._acting.values())
        idle = frozenset[str]().union(*self._origins.values()) - acting
        bound = {v.tag_of_name(name) for name, number in self.bindings.items() if v.STEPS in number.tags}
        compared = (own.origins for own in self._bounds.values())
        counted = acting.union(bound - idle, *compared)
        if not origins.isdisjoint(counted):
            return True
        bare = not origins or is_literal(origins)
        return bare and value in self._acting and all(map(is_place, self._acting[value]))

    def counter(self, branches: Iterable[syntax.If]) -> WindowBound | None:
        """What the loop counts to where it makes a step, if that is one number; ``branches`` are those around it.

        What their conditions count by decides on it. Where they count nothing, what decides on no other step does: the
        loop clears or goes on by it. Else that is the number that ends the loop right before, or that its batches are
        cut by.
        """
        self._is_relied_on = True
        around = tuple(branches)
        counted = [moduli for branch in around if (moduli := self._boundaries.get(branch))]
        if not counted:
            bounds = [bound for branch in around if (bound := self._bounds.get(branch))]
            if bounds:
                return bounds[-1] if len(bounds) == 1 else None
            elsewhere = {value for moduli in self._boundaries.values() for value in moduli}
            counted = [{value: self._origins.get(value, frozenset()) for value in self._acting.keys() - elsewhere}]
        found = [WindowBound(value, origins) for moduli in counted for value, origins in moduli.items()]
        if not found:
            return self._window
        return found[0] if len(found) == 1 else None

    def note_bound(self, number: Num, boundary: syntax.If, count: frozenset[str]) -> None:
        """Note what a count is compared with in a condition that decides on a step.

        ``count`` are the origins of that count, if it has just come to the number: it is K then.

        Raises Restart where this run has gone by other numbers, and no whole window may be of this one.
        """
        value, is_new = int(number.value), boundary not in self._bounds
        matters = is_new and self._is_relied_on and value <= LARGEST_STEPS
        length = self.pass_length() if matters else 0
        self._bounds[boundary] = WindowBound(value, number.origins, count=count)
        if matters and (math.lcm(*self.window) % value or self.pass_length() != length):
            raise Restart

    def note_window(self, number: Num) -> None:
        """Note the number of turns of a loop that is a window: it has backwards, and the step comes after it."""
        self._window = WindowBound(int(number.value), number.origins)

    def counts_to_a_step(self) -> bool:
        """Whether the loop counts what it runs before it steps, as far as it has shown yet."""
        self._is_relied_on = True
        return bool(self._boundaries or self._bounds or self._window)

    def note_given_data(self) -> None:
        """The loop gets data from elsewhere: what it makes itself is none. Raises Restart where it was taken for it."""
        self._data_is_given = True
        if self._data_is_made:
            self._data_is_made = False
            raise Restart

    def note_made_data(self) -> bool:
        """Take what the loop makes for its data; whether nothing is known that speaks against it."""
        self._data_is_made = not self._data_is_given
        return self._data_is_made

    def unguessed(self, work: Callable[[], list[Any]]) -> list[Any] | None:
        """The result of ``work``; None if that depends on a number that the source leaves open."""
        outer, self._is_relied_on = self._is_relied_on, False
        try:
            found = work()
            return None if self._is_relied_on else found
        finally:
            self._is_relied_on = self._is_relied_on or outer

    def prefer(self, question: str, answer: bool) -> bool:
        """Let the scenarios come first that give a question this answer; whether that was not known yet."""
        is_new = question not in self._preferred
        self._preferred.setdefault(question, answer)
        return is_new

    def prefers(self, question: str) -> bool:
        """Whether the scenarios come first in which a question has a certain answer."""
        return question in self._preferred

    def preferred(self, question: str, otherwise: bool) -> bool:
        """The answer to a question with which the first scenarios run."""
        return self._preferred.get(question, otherwise)

    def forget_remainders(self) -> None:
        """Let every pass hold whole windows only: what becomes of a remainder is not the loop's to decide."""
        if not self._whole:
            self._whole = True
            raise Restart

    def end_anywhere(self) -> None:
        """Let counts to a number that the source does not show end within a window: the loop steps at their end too."""
        if not self._ends_anywhere:
            self._ends_anywhere = True
            raise Restart

    def length_of_count(self) -> int:
        """How many micro-batches a count gets to a number that the source does not show."""
        return self.pass_length() if self._ends_anywhere else self.unbounded_length()

    def counted_in(self, length: int) -> int:
        """How many of some micro-batches such a count takes: whole windows, unless it may end anywhere."""
        return length if self._ends_anywhere else self.whole_windows_in(length)

    def hurry(self) -> bool:
        """Let a few epochs stand for many; False where they do already."""
        before, self.hurries = self.hurries, True
        return not before

    def skim(self) -> bool:
        """Let what a long report gives be unknown; False if it is already, or no report has been seen to take long."""
        before, self.skims = self.skims, bool(self.reports)
        return self.skims and not before

    def ignore_idle(self) -> bool:
        """Ignore the numbers by which a loop only reports; False if that makes no pass shorter."""
        idle = {number for number in self._moduli - self._acting.keys() if number > ASSUMED_STEPS}
        self._moduli -= idle
        self._interval = 0
        self._ignored |= idle
        return bool(idle)

    @property
    def has_remainders(self) -> bool:
        """Whether passes may end in the middle of a window."""
        return not self._whole

    def assumed_steps(self, relied_on: Collection[str]) -> tuple[tuple[str, int], ...]:
        """The names that were taken for K, as the source has them, and their numbers: those of these tags."""
        found = {
            (name if "/" in name or "*" in name else _WORDS.findall(name)[-1]): int(number.value)
            for name, number in self.bindings.items()
            if v.STEPS in number.tags and v.tag_of_name(name) in relied_on and _WORDS.search(name)
        }
        return tuple(found.items())

    @property
    def window(self) -> list[int]:
        """The numbers that some counter is taken modulo, as far as they can be accumulation steps."""
        small = [m for m in self.moduli if m <= LARGEST_STEPS]
        return small or [ASSUMED_STEPS]

    def pass_length(self) -> int:
        """How many micro-batches a pass gets: three windows and a remainder, whichever modulus is K.

        Three, so that the usual window can be recognized even if the first one differs.
        """
        if self._whole:
            return self.unbounded_length()
        # What decides on a step need not be a modulus.
        counted = [*self.window, *self.compared]
        least = length = max(3 * max(counted), self._interval) + 1
        while any(length % m < min(2, m - 1) for m in counted if m > 1):
            length += 1
            if length > least + 20 * max(counted):
                break
        return length if any(m > 1 for m in counted) else 3

    @property
    def compared(self) -> list[int]:
        """What counts are compared with where the loop steps, as far as that can be accumulation steps."""
        bounds = (bound.steps for bound in self._bounds.values())
        return [steps for steps in bounds if steps is not None and steps <= LARGEST_STEPS]

    def windows_of_a_pass(self) -> int:
        """How many whole windows a pass gets."""
        return self.pass_length() // max(self.window)

    def unbounded_length(self) -> int:
        """How many micro-batches a loop without an end gets: whole windows, whichever modulus is K."""
        common = math.lcm(*self.window)
        common = math.lcm(common, *self.compared)
        common = common if common <= 512 else max(self.window)
        return common * max(1, -(-3 * max(self.window) // common)) if common > 1 else 6

    def whole_windows_in(self, length: int) -> int:
        """How many of some micro-batches are whole windows, whichever modulus is K; all if none is whole."""
        common = math.lcm(*self.window, *self.compared)
        return length - length % common or length - length % max(self.window) or length

    def shows_whole_windows(self, count: int) -> bool:
        """Whether so many micro-batches are whole windows, by numbers that the source shows, all that steps ask for."""
        counted = {*self._acting, *self.compared}
        is_shown = not any(v.STEPS in number.tags for number in self.bindings.values())
        return is_shown and bool(counted) and all(count % number == 0 for number in counted)

    def enough_of(self, length: int) -> int:
        """How many of a great number of micro-batches show as much as all: whole windows, and the remainder."""
        return length % math.lcm(*self.window, *self.compared) + self.unbounded_length()
