"""Messages about a loop: text with places in its source, rendered for a reader at a given place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gradcheck_accum.ledger.location import Location


@dataclass(frozen=True, slots=True)
class Message:
    """Text with places in it, which stay places until a report renders them."""

    parts: tuple[str | Location, ...]

    def seen_from(self, where: Location) -> str:
        """In words, for a reader at ``where``: lines of other files are prefixed with the file."""
        return "".join(part if isinstance(part, str) else _line(part, where) for part in self.parts)

    def moved(self, move: Callable[[Location], Location]) -> Message:
        """The same message, with every place moved by ``move``."""
        return Message(tuple(part if isinstance(part, str) else move(part) for part in self.parts))


Said = str | Message
"""Text without places is a plain string."""


def message(*parts: Said | Location) -> Message:
    """A message concatenated from texts, places and other messages."""
    return Message(tuple(_flat(parts)))


def in_words(said: Said, where: Location) -> str:
    """A text or message in words, for a reader at ``where``."""
    return said if isinstance(said, str) else said.seen_from(where)


def moved(said: Said, move: Callable[[Location], Location]) -> Said:
    """A text or message, with every place moved by ``move``."""
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
