"""What is said of a loop: text that names places of its source, put into words for whoever reads it at a place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradcheck_accum.ledger.location import Location


@dataclass(frozen=True, slots=True)
class Message:
    """Text with places in it; they stay places until a report writes it down."""

    parts: tuple[str | Location, ...]

    def seen_from(self, where: Location) -> str:
        """In words, for a reader at ``where``: another file's lines are named by their file."""
        return "".join(part if isinstance(part, str) else _line(part, where) for part in self.parts)

    def moved(self, move: Callable[[Location], Location]) -> Message:
        """The same with every place where ``move`` puts it."""
        return Message(tuple(part if isinstance(part, str) else move(part) for part in self.parts))


Said = str | Message
"""What names no place is plain text."""


def message(*parts: Said | Location) -> Message:
    """One message of texts, places and other messages in a row."""
    return Message(tuple(_flat(parts)))


def in_words(said: Said, where: Location) -> str:
    """What is said, for a reader at ``where``."""
    return said if isinstance(said, str) else said.seen_from(where)


def moved(said: Said, move: Callable[[Location], Location]) -> Said:
    """What is said, with every place where ``move`` puts it."""
    return said if isinstance(said, str) else said.moved(move)


def _flat(parts: tuple[Said | Location, ...]) -> Iterator[str | Location]:
    for part in parts:
        if isinstance(part, Message):
            yield from part.parts
        else:
            yield part


def _line(place: Location, where: Location) -> str:
    if place.path != where.path:
        cell = f"cell {place.cell}:" if place.cell else ""
        return f"{os.path.basename(place.path)}:{cell}{place.line}"
    return f"line {place.line} of cell {place.cell}" if place.cell else f"line {place.line}"


def amount_of_memory(size: float, base: int = 1024) -> str:
    """``size`` bytes with three digits: "1.5 KiB"; with ``base`` 1000 in the units that users write, "1.5 KB"."""
    infix = "i" if base == 1024 else ""
    unit = "bytes"
    for prefix in "KMG":
        if size < base:
            break
        size, unit = size / base, f"{prefix}{infix}B"
    return f"{size:.3g} {unit}"
