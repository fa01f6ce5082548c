"""Weights that were changed while losses computed with them wait for a step.

A gradient is compared at the weights at which it was computed. Most loops change weights by steps alone, which use up
the gradients: then the weights of all that waits are the current ones. But another optimizer may have updated them (two
networks that are trained on one another are often stepped together, each frozen while the other's loss is computed), or
the loop itself may have moved them, and perhaps back again (sharpness-aware minimization, the weights of a moving
average that are swapped in for an evaluation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager

import torch

from gradcheck_accum.engine.determinism import holding
from gradcheck_accum.verify.book.records import Record

_Values = dict[int, tuple[torch.Tensor, torch.Tensor | None]]
"""By identity, weights with their values before they were moved; None where these are not needed."""


class MovedWeights:
    """The values before each move of the weights; a move is all that changes them from one backward to the next.

    Only what is seen to be changed is copied, and only as long as a backward waits that used it.
    """

    def __init__(self) -> None:
        self._moves: list[_Values] = []
        self._is_open = False
        """Whether no backward has begun since the last move."""
        self._stepped = False
        """Whether an optimizer's step is a part of that move."""
        self._wanted: set[int] | None = None
        """The weights of all that waits; None where they are not known since the last backward."""

    @property
    def count(self) -> int:
        """How many moves there were so far: the `Record.moves` of a backward that begins now."""
        return len(self._moves)

    def before_step(self, parameters: Iterable[torch.Tensor], waiting: Iterable[Record]) -> None:
        """A step is about to update ``parameters``; other optimizers have yet to use the backwards ``waiting``.

        Those that reached any of these parameters have been replayed for this step already, so that the values are not
        needed for them again; but what they wait for may be a longer window, whose weights then differ.
        """
        own = {id(parameter): parameter for parameter in parameters}
        records = [*waiting]
        apart = {id(weight) for weight in _weights_of(r for r in records if own.keys().isdisjoint(r.squares))}
        reached = own.keys() & {key for record in records for key in record.squares}
        self._keep(parameter for key, parameter in own.items() if key in apart)
        self._note(parameter for key, parameter in own.items() if key in reached)
        self._stepped = self._stepped or self._is_open

    def before_write(self, parameters: Iterable[torch.Tensor], waiting: Iterable[Record]) -> None:
        """The loop itself is about to write into ``parameters`` while the backwards ``waiting`` wait."""
        if self._wanted is None:
            self._wanted = {id(weight) for weight in _weights_of(waiting)}
        self._keep(parameter for parameter in parameters if id(parameter) in self._wanted)

    def _keep(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            move = self._open_move()
            if move.get(id(parameter), (parameter, None))[1] is None:
                move[id(parameter)] = parameter, parameter.detach().clone()

    def _note(self, parameters: Iterable[torch.Tensor]) -> None:
        """These are moved, and their values are not needed."""
        for parameter in parameters:
            self._open_move().setdefault(id(parameter), (parameter, None))

    def _open_move(self) -> _Values:
        if not self._is_open:
            self._moves.append({})
            self._is_open = True
        return self._moves[-1]

    def settle(self) -> None:
        """A backward or a step begins: what the loop has put back, bit for bit, by now has not moved."""
        self._wanted = None
        if not self._is_open:
            return
        if not self._stepped:
            moved = {key: own for key, own in self._moves[-1].items() if not _are_same(*own)}
            self._moves[-1:] = [moved] if moved else []
        self._is_open = self._stepped = False

    def were_same_for(self, records: Collection[Record]) -> bool:
        """Whether all of these backwards ran with the same weights."""
        if not self._moves or len({record.moves for record in records}) < 2:
            return True
        wanted = {id(weight) for weight in _weights_of(records)}
        first, *others = sorted({record.moves for record in records})
        return all(
            _are_same(self._value(key, parameter, first), self._value(key, parameter, moves))
            for moves in others
            for move in self._moves[first:moves]
            for key, (parameter, _) in move.items()
            if key in wanted
        )

    def as_they_were(self, records: Collection[Record]) -> AbstractContextManager[None]:
        """Inside the block the weights have the values that the first of these backwards ran with."""
        first = min((record.moves for record in records), default=self.count)
        before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for move in self._moves[first:]:
            for key, (parameter, value) in move.items():
                if value is not None:
                    before.setdefault(key, (parameter, value))
        return holding(before.values())

    def forget(self) -> None:
        """Nothing is waiting any more."""
        self._moves.clear()
        self._is_open, self._stepped, self._wanted = False, False, None

    def _value(self, key: int, parameter: torch.Tensor, moves: int) -> torch.Tensor | None:
        """The value of a weight after so many moves; None where a step has changed one that was not needed."""
        return next((move[key][1] for move in self._moves[moves:] if key in move), parameter)


def _weights_of(records: Iterable[Record]) -> Iterator[torch.Tensor]:
    """The weights that the losses of these backwards were computed with."""
    programs = [record.program for record in records if record.program is not None]
    modules = {id(module): module for program in programs for module in program.modules}
    return (parameter for module in modules.values() for parameter in module.parameters())


def _are_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return False
    return one.shape == other.shape and torch.equal(one.detach(), other.detach())
