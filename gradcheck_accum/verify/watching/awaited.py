"""What waits for a step: backwards whose gradients no optimizer has used yet, and the weights that made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.ledger.events import Event
from gradcheck_accum.verify.book.given_data import NOTHING_GIVEN
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.records import Record
from gradcheck_accum.verify.measure.measurer import Measurer
from gradcheck_accum.verify.measure.saved_weights import MovedWeights

_WAITED_FOR = 3
"""Steps on the same parameters after which an optimizer that has made none is not expected to make one."""

_NOTHING: Mapping[int, torch.Tensor] = {}
"""The gradients of a backward of which only the numbers are kept, the same for all: a long run has very many."""


class Awaited:
    """The backwards since each optimizer's last step; an optimizer is expected to step until others make its steps."""

    def __init__(self, book: GradientBook, measurer: Measurer) -> None:
        self._book = book
        self._measurer = measurer
        self.moved = MovedWeights()
        self.unscaled: set[int] = set()
        """The optimizers whose gradients a grad scaler has unscaled since its last update."""
        self._since: dict[int, list[Record]] = {}
        self._weights: dict[int, int] = {}
        """The version counters of the parameters that a backward has reached since their last step."""
        self._stepped: Counter[int] = Counter()

    def add(self, record: Record, scale: float) -> None:
        """What a backward gave is in ``.grad``, with a grad scaler's ``scale`` inside."""
        record.moves = self.moved.count
        for optimizer in self._book.optimizers:
            own = [id(p) for p in parameters_of(optimizer) if id(p) in record.squares]
            if own:
                self._since.setdefault(id(optimizer), []).append(record)
            if id(optimizer) not in self.unscaled:
                # After unscale_ the scale of what still arrives is never divided out.
                self._book.scale_inside.update(dict.fromkeys(own, scale))

    def reached(self, keys: Iterable[int]) -> None:
        """A backward has reached the parameters ``keys``."""
        self._weights.update((key, self._book.parameters[key]._version) for key in keys)

    def has_changed(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of these weights was changed since a backward reached it, by something else than a step."""
        return any(p._version != self._weights.get(id(p), p._version) for p in parameters)

    def any_changed(self) -> bool:
        """Whether any weight at all was."""
        return any(self._book.parameters[key]._version != version for key, version in self._weights.items())

    def of(self, optimizer: Optimizer) -> Sequence[Record]:
        """The backwards that wait for a step of ``optimizer``."""
        return self._since.get(id(optimizer), ())

    def take(self, optimizer: Optimizer) -> list[Record]:
        """The backwards that a step of ``optimizer`` uses: they wait no longer."""
        return self._since.pop(id(optimizer), [])

    def save_weights(self, parameters: Sequence[torch.Tensor]) -> None:
        """A step is about to update ``parameters``, which the losses of other optimizers were computed with."""
        with torch.no_grad():
            self.moved.before_step(parameters, self._records())

    def about_to_write(self, keys: Iterable[int]) -> None:
        """The loop itself is about to write into these weights: what waits is replayed with what they were."""
        if self._measurer.replays:
            with torch.no_grad():
                self.moved.before_write([self._book.parameters[key] for key in keys], self._records())

    def waits(self) -> bool:
        """Whether any backward waits for a step."""
        return any(self._since.values())

    def reaches(self, key: int) -> bool:
        """Whether any of those that wait has reached a parameter."""
        return any(key in record.squares for record in self._records())

    def _records(self) -> Iterator[Record]:
        return (record for records in self._since.values() for record in records)

    def events(self) -> set[Event]:
        """The events of the backwards that wait for any step."""
        return {record.event for record in self._records()}

    def let_go(self, records: Iterable[Record]) -> None:
        """Keep no more than the numbers of a window that is over, unless another optimizer has yet to step on it."""
        awaited = set(self._records())
        for record in records:
            if record not in awaited:
                if record.part is not None:
                    record.part.is_over = all(r.part is not record.part for r in self._records())
                record.part, record.program, record.squares, record.called_from = None, None, _NOTHING, ()
                record.given, record.unread = NOTHING_GIVEN, frozenset()
        self._measurer.forget(awaited)
        if not awaited:
            self.moved.forget()

    def take_all(self, optimizers: Iterable[Optimizer]) -> list[Record]:
        """The backwards that wait for any of these optimizers, in order, whose gradients the loop itself has used.

        Nothing is known to have changed the weights since.
        """
        found = {id(r): r for r in self._records()}
        taken = {id(record) for optimizer in optimizers for record in self.take(optimizer)}
        for optimizer in optimizers:
            for parameter in parameters_of(optimizer):
                self._weights.pop(id(parameter), None)
        return [record for key, record in found.items() if key in taken]

    def has_stepped(self, optimizer: Optimizer) -> None:
        """Wait no longer for an optimizer that another has stepped for: one that wraps it, say, and never steps."""
        self.unscaled.discard(id(optimizer))
        own = {id(p) for p in parameters_of(optimizer)}
        for key in own:
            self._weights.pop(key, None)
        self._stepped[id(optimizer)] += 1
        if self._stepped[id(optimizer)] < _WAITED_FOR:
            return
        for other in self._book.optimizers:
            if not self._stepped[id(other)] and all(id(p) in own for p in parameters_of(other)):
                self._since.pop(id(other), None)

    def left_over(self) -> dict[str, list[Record]]:
        """The backwards that no step has followed so far, by the name of the optimizer that would have made it."""
        named = {id(o): self._book.names[id(o)] for o in self._book.optimizers}
        return {named[key]: records for key, records in self._since.items() if key in named and records}

    def restart(self) -> None:
        """Nothing is waiting any more."""
        self._since.clear()
        self._weights.clear()
        self.unscaled.clear()
        self.moved.forget()
