"""Numbers that the source leaves open: K, the length of a pass, and what runs of a loop learn about them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from gradcheck_accum.events import WindowBound
from gradcheck_accum.lint import values as v
from gradcheck_accum.lint.control import Restart
from gradcheck_accum.lint.syntax import Comparison
from gradcheck_accum.lint.values import Num, Symbol
from gradcheck_accum.stated import names_steps

if TYPE_CHECKING:
    from gradcheck_accum.lint.interpreter import Interpreter

ASSUMED_STEPS = 4
_WORDS = re.compile(r"[^\W\d]\w*")
_LARGEST_STEPS = 64
_LENGTH_NAME = re.compile(r"len|num_?batch|n_?batch|n_?iter|total|per_epoch|last|num_?steps", re.IGNORECASE)


def bind_steps(run: Interpreter, value: Any) -> Any:
    """Make an unknown modulus a small number, and note a known one."""
    value = v.as_setting(value)
    if isinstance(value, Num):
        if isinstance(value.value, int) and value.value > 0 and run.in_training:
            run.knowledge.note_modulus(value, run.condition_acts)
        return value
    if isinstance(value, Symbol) and value.name:
        known = isinstance(value.default, int) and 2 <= value.default <= _LARGEST_STEPS
        default = value.default if known and isinstance(value.default, int) else ASSUMED_STEPS
        run.knowledge.take_for_modulus(default)
        tag = v.tag_of_name(value.name)
        bind(run, value.name, Num(default, frozenset({v.STEPS, tag}), frozenset({tag})))
    return value


def bind(run: Interpreter, name: str, number: Num) -> None:
    run.knowledge.bindings[name] = number
    raise Restart


def bind_in_comparison(run: Interpreter, left: Any, right: Any, op: Comparison, literal: bool) -> tuple[Any, Any]:
    """Give a symbol that a counter is compared with at a boundary its number: K, or the pass's length."""
    if literal or run.in_guard or op not in (Comparison.EQ, Comparison.GTE):
        # What a guard leaves a loop at may be the end of all passes, and says nothing of how long one is.
        return left, right
    for number, other in ((left, right), (right, left)):
        other = v.as_setting(other)
        if isinstance(number, Num) and isinstance(other, Symbol) and other.name:
            if _LENGTH_NAME.search(other.name.rpartition(".")[2]) and run.pass_depth:
                run.recorder.assumed_length = True
                bind(run, other.name, Num(run.knowledge.pass_length(), frozenset({v.LENGTH})))
            if run.in_boundary and number is left and v.UNITS in number.tags:
                # A window that is full when it has seen so many samples: the whole window's units.
                bind(run, other.name, Num(ASSUMED_STEPS * run.recorder.units, frozenset({v.UNITS})))
            if run.in_boundary and number is left:
                bind_steps(run, other)
    return left, right


class Knowledge:
    """What runs of one loop have learned about its numbers; it survives restarts.

    ``as_written`` lets every setting be what the source has for its default, and great numbers of epochs be few.
    """

    def __init__(self, *, as_written: bool = False) -> None:
        self.as_written = as_written
        self.bindings: dict[str, Num] = {}
        self._moduli: set[int] = set()
        self._is_relied_on = False
        """Whether a run has gone by the moduli known so far: another one starts it anew."""
        self._acting: set[int] = set()
        """Those of the moduli that may decide on what happens to gradients."""
        self._origins: dict[int, frozenset[str]] = {}
        self._windows: dict[int, frozenset[str]] = {}
        """What ends the loops that are a window each, by the number's value: where it comes from."""
        """The origins of each of the moduli."""
        self._ignored: set[int] = set()
        """Those that do not, once they have made passes too long to be followed."""
        self.hurries = as_written
        """Whether a run has needed more than its budget, so that of many epochs a few have to do."""
        self.bounds: set[str] = set()
        """Names that loops with a step inside and another after them count to: K, if losses are divided by them."""
        self._whole = False
        self._data_is_given = False
        self._data_is_made = False

    @property
    def moduli(self) -> set[int]:
        """The numbers that some counter is taken modulo; what is found after they were asked for starts a run anew."""
        self._is_relied_on = True
        return self._moduli

    def take_for_modulus(self, value: int) -> None:
        """Note a number that some counter is taken modulo, in a run that is about to start anew."""
        self._moduli.add(value)

    def note_modulus(self, number: Num, acts: Callable[[], bool]) -> None:
        """Note a whole number that some counter is taken modulo. Raises Restart where this run has gone by less.

        ``acts`` says whether that decides on what happens to gradients.
        """
        value = int(number.value)
        before = value in self._acting, self._origins.get(value), value in self._moduli
        if value not in self._acting and acts():
            self._acting.add(value)
        if value in self._ignored and value not in self._acting:
            return
        if value > 1:
            self._moduli.add(value)
            self._origins[value] = self._origins.get(value, frozenset()) | number.origins
            now = value in self._acting, self._origins[value], True
            if now != before and value <= _LARGEST_STEPS and self._is_relied_on:
                raise Restart

    def counts_windows(self, value: int, origins: frozenset[str]) -> bool:
        """Whether what losses are divided by, a number of these origins, is stated to be K.

        It is where the loop steps, clears or goes on by a counter modulo that number; where a counter is taken modulo
        the very same number, whatever for; where it is bound in the place of K; and where its name says so. A number
        that merely equals the one by which a loop reports is none.
        """
        self._is_relied_on = True
        bound = {v.tag_of_name(name) for name, number in self.bindings.items() if v.STEPS in number.tags}
        counted = self._origins.get(value, frozenset()) | bound
        return value in self._acting or not origins.isdisjoint(counted) or names_steps(origins)

    @property
    def counter(self) -> WindowBound | None:
        """What the loop counts to where it steps, clears or goes on, if that is one number.

        Where it asks no counter, that is the number that ends the loop right before, or that its batches are cut by.
        """
        self._is_relied_on = True
        counted = {value: self._origins.get(value, frozenset()) for value in self._acting} or self._windows
        if len(counted) != 1:
            return None
        ((value, origins),) = counted.items()
        return WindowBound(value, origins)

    def note_window(self, number: Num) -> None:
        """Note the number of turns of a loop that is a window: it has backwards, and the step comes after it."""
        value = int(number.value)
        self._windows[value] = self._windows.get(value, frozenset()) | number.origins

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
        """What ``work`` comes to, or None where that goes by a number that the source leaves open."""
        outer, self._is_relied_on = self._is_relied_on, False
        try:
            found = work()
            return None if self._is_relied_on else found
        finally:
            self._is_relied_on = self._is_relied_on or outer

    def forget_remainders(self) -> None:
        """Let every pass hold whole windows only: what becomes of a remainder is not the loop's to decide."""
        if not self._whole:
            self._whole = True
            raise Restart

    def hurry(self) -> bool:
        """Let a few epochs stand for many; False where they do already."""
        before, self.hurries = self.hurries, True
        return not before

    def ignore_idle(self) -> bool:
        """Leave out of account the numbers by which a loop only reports; False where that makes no pass shorter."""
        idle = {number for number in self._moduli - self._acting if number > ASSUMED_STEPS}
        self._moduli -= idle
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
        small = [m for m in self.moduli if m <= _LARGEST_STEPS]
        return small or [ASSUMED_STEPS]

    def pass_length(self) -> int:
        """How many micro-batches a pass gets: three windows and a remainder, whichever modulus is K.

        Three, so that what is usual can be told where the first window is not.
        """
        if self._whole:
            return self.unbounded_length()
        length = 3 * max(self.window) + 1
        while any(length % m < min(2, m - 1) for m in self.window if m > 1):
            length += 1
            if length > 20 * max(self.window):
                break
        return length if any(m > 1 for m in self.window) else 3

    def unbounded_length(self) -> int:
        """How many micro-batches a loop without an end gets: whole windows, whichever modulus is K."""
        common = math.lcm(*self.window)
        common = common if common <= 512 else max(self.window)
        return common * max(1, -(-3 * max(self.window) // common)) if common > 1 else 6

    def enough_of(self, length: int) -> int:
        """How many of a great number of micro-batches show as much as all: whole windows, and the remainder."""
        return length % math.lcm(*self.window) + self.unbounded_length()
