"""What the loop does by hand to a window's whole gradient: noise that is added to it, say, or centralization.

What a loop does to a gradient after the last backward of a window, it would do to the large batch's as well. So the
gradient is compared as it was before, and is kept here when the first such change is about to be made. If a backward
follows, it was no change of the whole gradient. Neither is one that may depend on single micro-batches: nothing of the
gradients may have been read between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gradcheck_accum.engine.memory import memory_of
from gradcheck_accum.engine.scalings import SCALINGS
from gradcheck_accum.engine.tape import CLAMPS
from gradcheck_accum.engine.tolerance import multiple_of, unit_roundoff
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.provenance.statements import Statements
from gradcheck_accum.verify.stack.frames import user_location

_SCALING = SCALINGS | {"__imul__", "__itruediv__"}
_ADDING = frozenset({"add_", "sub_", "subtract_", "__iadd__", "__isub__", "_foreach_add_", "_foreach_sub_"})


@dataclass(slots=True)
class Late:
    """A gradient ``before`` its first change that is not a factor, at ``where``, and the ``factor`` applied since.

    ``only_adds`` means that all other changes since have added something to it; ``origins`` are those of the numbers
    that the changes used.
    """

    before: torch.Tensor
    where: Location
    only_adds: bool = True
    factor: float = 1.0
    origins: frozenset[str] = frozenset()

    def as_it_was(self) -> torch.Tensor:
        """The gradient before the change, multiplied by what it was multiplied by afterwards."""
        return self.before if self.factor == 1.0 else self.before * self.factor


class LateChanges:
    """The changes of a window's gradients since its last backward, as the loop makes them."""

    def __init__(self, book: GradientBook) -> None:
        self._book = book
        self._reached: set[int] = set()
        """The parameters whose gradients no step has used yet."""
        self._at: dict[int, set[int]] = {}
        """The parameters whose gradients are at each place of the memory, of those that the loop has read."""
        self._read: set[int] = set()
        self._read_between: set[int] = set()
        """The parameters whose gradients were read between two micro-batches of a window."""
        self._scaled: dict[int, Location] = {}
        self._made: dict[int, Late] = {}
        self._statements = Statements()

    def backward_begins(self) -> None:
        """What was read and changed before it was not the gradient of a whole window."""
        self._read_between |= self._read
        self._forget_changes()

    def reached(self, keys: Iterable[int]) -> None:
        """A backward has added to the gradients of these parameters."""
        self._reached.update(keys)

    def are_whole(self, keys: Collection[int]) -> bool:
        """Whether nothing but the whole gradients of a window can be in what the loop computed from them."""
        return self._read_between.isdisjoint(keys) and not any(_has_hooks(self._book.parameters[key]) for key in keys)

    def used(self, keys: Collection[int]) -> None:
        """A step uses the gradients of these parameters: what follows is done to what is left of them."""
        self._reached.difference_update(keys)
        self._read_between.difference_update(keys)
        self._forget_changes()

    def _forget_changes(self) -> None:
        self._at.clear()
        self._read.clear()
        self._scaled.clear()
        self._made.clear()
        self._statements.forget()

    def read(self, parameter: torch.Tensor) -> None:
        """The loop reads ``.grad``."""
        key = id(parameter)
        if key in self._reached and key not in self._read:
            gradient = parameter.grad
            self._read.add(key)
            if gradient is not None:
                self._note_place(key, gradient)

    def assigned(self, parameter: torch.Tensor, value: Any) -> None:
        """The loop is about to assign ``value`` to ``.grad``."""
        key, now = id(parameter), parameter.grad
        if key not in self._reached or now is None or value is now:
            return
        if isinstance(value, torch.Tensor):
            self._note_place(key, value)
            factor = _quotient(value, now)
            if factor is not None:
                self._is_scaled(key, factor)
                return
        # The loop's own tensor is no longer the gradient, and need not be copied.
        self._begin(key, now, only_adds=False)

    def changed(self, name: str, args: Any) -> None:
        """A function of this name is about to write into its first argument, a tensor or several."""
        if not self._at or not args:
            return
        targets = args[0] if isinstance(args[0], (list, tuple)) else (args[0],)
        keys = {key for t in targets if isinstance(t, torch.Tensor) for key in self._at.get(memory_of(t) or 0, ())}
        if not keys or (name == "__set__" and _is_put_back(args)):
            return
        number = _number(args[1]) if name in _SCALING and len(args) == 2 else None
        for key in keys:
            if number:
                self._is_scaled(key, 1 / number if "div" in name else number)
            elif name not in CLAMPS or key in self._made:
                gradient = self._book.parameters[key].grad
                if gradient is not None:
                    self._begin(key, gradient.detach().clone(), only_adds=name in _ADDING)

    def _note_place(self, key: int, gradient: torch.Tensor) -> None:
        memory = memory_of(gradient)
        if memory is not None and not self._book.is_sketched(key) and not self._book.sharded:
            self._at.setdefault(memory, set()).add(key)

    def _is_scaled(self, key: int, factor: float) -> None:
        if key in self._made:
            self._made[key].factor *= factor
        else:
            self._scaled.setdefault(key, user_location())
        self._book.may_have_changed([key])

    def _begin(self, key: int, gradient: torch.Tensor, *, only_adds: bool) -> None:
        origins = self._statements.origins_here()
        if key in self._made:
            self._made[key].only_adds &= only_adds
            self._made[key].origins |= origins
            return
        self._made[key] = Late(gradient, user_location(), only_adds, origins=origins)
        self._book.may_have_changed([key])

    def of(self, keys: Collection[int]) -> Mapping[int, Late]:
        """The changes of these parameters' gradients, all of one store; none where they were read in between."""
        if not self.are_whole(keys):
            return {}
        made = {key: self._made[key] for key in keys if key in self._made}
        if made or not all(key in self._scaled for key in keys):
            return made
        # Each was multiplied by a factor of its own.
        found = ((key, self._book.before_scaling(key)) for key in keys)
        return {key: Late(then, self._scaled[key], only_adds=False) for key, then in found if then is not None}


def _has_hooks(parameter: torch.Tensor) -> bool:
    """Whether the script has put hooks on a parameter, which see each micro-batch's gradient; one is ours."""
    return len(parameter._backward_hooks or ()) > 1 or bool(parameter._post_accumulate_grad_hooks)


def _is_put_back(args: Any) -> bool:
    """Whether an attribute is assigned that changes no value: a tensor's own memory (``p.grad.data += 1`` ends so)."""
    target, value = args
    return not isinstance(value, torch.Tensor) or memory_of(value) == memory_of(target)


def _number(operand: Any) -> float | None:
    """The number that a tensor is scaled by, None where it is scaled by several, or by none."""
    if isinstance(operand, (int, float)):
        return float(operand)
    return float(operand) if isinstance(operand, torch.Tensor) and operand.numel() == 1 else None


def _quotient(value: torch.Tensor, before: torch.Tensor) -> float | None:
    """The number that ``value`` is the multiple of ``before`` by, None where it is none."""
    if value.shape != before.shape or value.is_sparse or before.is_sparse:
        return None
    now, then = value.detach().double(), before.detach().double()
    inner, squares, new = (float((a * b).sum()) for a, b in ((now, then), (then, then), (now, now)))
    return multiple_of(inner, squares, new, unit_roundoff(before.dtype))
