"""Known numbers, and what they were made from: K, a length, a size, a name of the source."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gradcheck_accum.ledger.stated_names import (
    is_name_of_steps,
    name_of_parameter,
    names_size,
    origin_of_computed,
)

STEPS = "steps"
"""Tag of a number that is K, the accumulation steps."""
DERIVED = "derived"
"""Tag of a number that was computed from K."""
LENGTH = "length"
"""Tag of a number that counts the micro-batches of a pass over the data."""
TOTAL = "total"
"""Tag of a number that counts the micro-batches of a list that the source shows."""
REMAINS = "remains"
"""Tag of the difference between such a length, or number of batches, and another number."""
POSITION = "position"
"""Tag of a number that goes along such a length, or was computed from one that does."""
UNITS = "units"
"""Tag of a number that counts the units of one micro-batch."""
WHOLE = "whole"
"""Tag of the size of a batch that was not cut out of another: no micro-batch's, where micro-batches are."""
COUNTED_OUT = "counted out"
"""Tag of the number of rows that a choice leaves of data whose rows the source shows."""
ASSUMED = "assumed"
"""Tag of a length that the source does not show, and of what was computed from it."""
END = "end"
"""Tag of the assumed end of a count that is no multiple of K by its source, and of what was computed from it."""

_NAME = "name of "


def tag_of_name(name: str) -> str:
    """Tag of a number that was taken for a name whose number the source leaves open."""
    return f"{_NAME}{name}"


@dataclass(frozen=True, slots=True)
class Num:
    """A known number; ``tags`` say what it was made from, ``origins`` by which names of K and constants of the source.

    Two numbers of the same origin are the same binding; two that are merely equal may be there for different things.
    ``multiplied`` are the two that a product is made of, where one of them is written out (``2 * K``). ``quotient`` is
    what was divided, and by what, where both are constants or settings of the source (``0.5 / K``).
    """

    value: int | float | Fraction
    tags: frozenset[str] = frozenset()
    origins: frozenset[str] = field(default=frozenset(), compare=False)
    multiplied: tuple[Num, ...] = field(default=(), compare=False)
    quotient: tuple[Num, ...] = field(default=(), compare=False)

    @property
    def names(self) -> set[str]:
        """The tags of the names that it was made from."""
        return {tag for tag in self.tags if tag.startswith(_NAME)}

    def derive(self, value: int | float | Fraction, *others: Num) -> Num:
        """The result of arithmetic on this number and ``others``."""
        tags = self.tags.union(*(other.tags for other in others))
        if STEPS in tags:
            tags = tags - {STEPS} | {DERIVED}
        return Num(value, tags, self.origins.union(*(other.origins for other in others)))

    def known_as(self, name: str) -> Num:
        """The same number once it is bound to ``name``.

        The name of K or of a size says what a number is, whatever it was made from; any other, that a constant of the
        source is no bare number.
        """
        if not self.origins and not is_name_of_steps(name) and not names_size((name,)):
            return self
        return Num(self.value, self.tags, self.origins | {name}, self.multiplied, self.quotient)


def known_as(value: Any, name: str) -> Any:
    """A value that the source binds to ``name``, or reads by it: a number has all of its names."""
    return value.known_as(name) if isinstance(value, Num) else value


def is_left_off(value: Any, name: str) -> bool:
    """Whether a default value is a K of 1: accumulation is offered there, and left to whoever sets it."""
    return isinstance(value, Num) and value.value == 1 and is_name_of_steps(name)


def passed_as(value: Any, name: str) -> Any:
    """A value that a call passes for the parameter ``name``."""
    return value.known_as(name_of_parameter(name, value.origins)) if isinstance(value, Num) else value


_LONGEST_ORIGIN = 200


def computed_from(left: Num, right: Num) -> frozenset[str]:
    """The origin of a number that was computed from two others: one of its own, and none of theirs.

    It has none where one of them has none: a counter, say, or a length.
    """
    known = bool(left.origins) and bool(right.origins)
    origin = origin_of_computed(left.origins | right.origins) if known else ""
    return frozenset({origin}) if 0 < len(origin) <= _LONGEST_ORIGIN else frozenset()
