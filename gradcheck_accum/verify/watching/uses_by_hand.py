"""What the loop itself does with gradients of weights: what it computes from them, and where it writes that.

Written into the weights, it uses the gradients, as an optimizer's step does (the first of the two of sharpness-aware
minimization, an update that is written out). Other writes use none: weights that are clipped, decayed, averaged or
loaded. So it matters where the numbers come from, and not that weights have changed. What is written into the gradients
changes them (`LateChanges`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from gradcheck_accum.engine.containers import tensors_in
from gradcheck_accum.engine.following import ASSIGN_GRADIENT, READ_GRADIENT, WRITE_DATA
from gradcheck_accum.engine.memory import may_write, memory_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.provenance.statements import Statements
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.watching.awaited import Awaited
from gradcheck_accum.verify.watching.late_changes import LateChanges


class UsesByHand:
    """Follows what is computed from gradients that wait for a step; it is off while none does.

    Before a weight is written into, whatever with, its value is kept for what waits (`Awaited.about_to_write`).
    """

    def __init__(self, book: GradientBook, awaited: Awaited) -> None:
        self._book, self._awaited = book, awaited
        self.late = LateChanges(book)
        self.on_write: Callable[[Collection[int], bool], object] | None = None
        """Called with weights that the loop is about to write into, and whether it uses their gradients for it."""
        self.is_off = True
        self.is_following = False
        self.written: set[int] = set()
        """The weights that something computed from their gradients was written into, while these waited."""
        self.at: Location | None = None
        """Where it was written first."""
        self.used: frozenset[str] = frozenset()
        """The origins of the numbers that it was written with."""
        self._statements = Statements()
        self._computed: dict[int, weakref.ref[torch.Tensor]] = {}
        """By identity: the tensors that were computed from gradients."""
        self._memories: dict[int, list[int]] | None = None
        """The weights that are in each memory; None where they may have moved to another."""
        self._steps = False
        """Whether a step is under way, which uses gradients itself."""

    def backward_ends(self) -> None:
        """A backward has filled gradients: these wait."""
        self.is_off = self._steps = False

    def looks_away(self) -> None:
        """A call of PyTorch's that is watched itself (a clip, say) is about to change gradients."""
        self.is_off = True

    def step_begins(self, *, is_pytorchs: bool) -> None:
        """An optimizer has read its gradients, and computes from them what it writes.

        It writes into no other weights than its own if ``is_pytorchs``: which backwards wait for others is known.
        """
        self.forget()
        self._steps = True
        self.is_off = is_pytorchs or not self._awaited.waits()

    def looks_again(self) -> None:
        """It has returned."""
        self.is_off = not self._awaited.waits()

    def step_ends(self, keys: Collection[int]) -> None:
        """A step has used the gradients of these parameters: what is left waits for other optimizers' steps."""
        self.late.used(keys)
        self._steps = False
        self.is_off = not self._awaited.waits()

    def forget(self) -> None:
        """The gradients have been used, or cleared."""
        self.is_following = False
        self.written, self.at, self.used = set(), None, frozenset()
        self._statements.forget()
        self._computed.clear()
        self._memories = None

    def before(self, function: Any, args: Any, kwargs: Any) -> None:
        """A call is about to be made: does it write into gradients, or into weights?"""
        name = getattr(function, "__name__", "")
        if not args or name == "__get__":
            return
        if name == "__set__":
            if function == ASSIGN_GRADIENT:
                self.late.assigned(*args)
            elif function == WRITE_DATA:
                self.late.changed(name, args)
                if id(args[0]) in self._book.parameters:
                    self._memories = None
                    self._writes([id(args[0])], args, kwargs)
        elif may_write(function):
            self.late.changed(name, args)
            if name.endswith("_"):
                self._writes(self._weights_in(args[0]), args, kwargs)

    def _writes(self, keys: Collection[int], args: Any, kwargs: Any) -> None:
        """A call is about to write into the weights ``keys``."""
        if not keys:
            return
        uses = self.is_following and self._are_computed(tensors_in((args[1:], kwargs)))
        if uses:
            self.used |= self._statements.origins_here()
        if self.on_write is not None:
            self.on_write(keys, uses)
        if self.is_off:
            # That was a step.
            return
        self._awaited.about_to_write(keys)
        if uses:
            self.written.update(keys)
            self.at = self.at or user_location()

    def after(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A call has returned: is its result computed from gradients?"""
        if self._steps:
            return
        if function == READ_GRADIENT:
            self.late.read(args[0])
            if id(args[0]) in self._book.parameters and self._awaited.reaches(id(args[0])):
                self._is_computed([result])
        elif self.is_following and self._are_computed(tensors_in((args, kwargs))):
            # Foreach functions write into lists, and return nothing.
            written = args[:1] if getattr(function, "__name__", "").endswith("_") else ()
            self._is_computed(tensors_in((result, written)))

    def _is_computed(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            # What a weight comes to is no gradient's any more.
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._book.parameters:
                self._computed[id(tensor)] = weakref.ref(tensor)
                self.is_following = True

    def _are_computed(self, tensors: Iterable[torch.Tensor]) -> bool:
        return any((made := self._computed.get(id(t))) is not None and made() is t for t in tensors)

    def _weights_in(self, written: Any) -> Collection[int]:
        """The weights, whole or in part, among the tensors that a call writes into."""
        if self._memories is None:
            self._memories = {}
            for key, parameter in self._book.parameters.items():
                memory = memory_of(parameter)
                if memory is not None:
                    self._memories.setdefault(memory, []).append(key)
        tensors = written if isinstance(written, (list, tuple)) else (written,)
        memories = (memory_of(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor))
        return [key for memory in memories if memory is not None for key in self._memories.get(memory, ())]
