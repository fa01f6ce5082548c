"""The gradients of one backward, received parameter by parameter as autograd computes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.verify.book.gradient_book import GradientBook
from gradcheck_accum.verify.vectors.inner_products import dense, squared_norm
from gradcheck_accum.verify.vectors.sharded import Shards
from gradcheck_accum.verify.watching.attention import Attention
from gradcheck_accum.verify.watching.rank_averaging import Averaging

_UNREAD = torch.full((), torch.nan)
"""‖·‖² of a gradient that is not read."""


class Arrivals:
    """The hooks on a run's parameters, and what has come through them since a backward began."""

    def __init__(self, attention: Attention, book: GradientBook) -> None:
        self._attention = attention
        self._book = book
        self._hooks: list[Any] = []
        self._arriving: dict[int, list[torch.Tensor]] | None = None
        # A model holds its hooks, and must not hold the run's model and optimizers by them.
        filled = weakref.WeakMethod(self._shard_filled)

        def fills(key: int, gradient: torch.Tensor) -> None:
            listener = filled()
            if listener is not None:
                listener(key, gradient)

        self.shards = Shards(fills)
        self.averaging = Averaging(self.shards)

    def begin(self) -> None:
        """A backward begins: what arrives from here on is its own."""
        for optimizer in self._book.with_unfrozen():
            self.adopt(optimizer)
        self._arriving = {}

    def end(self) -> dict[int, torch.Tensor] | None:
        """‖·‖² of what each parameter got in the backward that has ended; None where none had begun."""
        if self._arriving is None:
            return None
        arriving, self._arriving = self._arriving, None
        # Reentrant checkpointing may fill one parameter several times in one backward: no norm is larger than the sum.
        return {
            key: own[0] if len(own) == 1 else torch.stack(own).sqrt().sum().square() for key, own in arriving.items()
        }

    def release(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.shards.release()

    def listen(self) -> None:
        """Put the hooks on all parameters again, after `release`."""
        self.release()
        self.follow(self._book.parameters.values())
        self.shards.listen()

    def adopt(self, optimizer: Optimizer) -> None:
        """An optimizer has been made, or has got more parameters."""
        self.follow(self._book.adopt(optimizer))

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """Put the hooks on these parameters too."""
        for parameter in parameters:
            if is_sharded(parameter):
                # Backward fills the whole weight, when a module has gathered it.
                self.shards.adopt(parameter)
                continue
            self._hooks.append(parameter.register_hook(self._arrival(id(parameter))))  # type: ignore[no-untyped-call]
            # Ours runs before all others, whose changes of a gradient belong to the script. Autograd uses the order of
            # insertion, which ``move_to_end`` does not change.
            hooks: dict[int, Any] = parameter._backward_hooks  # type: ignore[assignment]
            for other in [key for key in hooks if key != self._hooks[-1].id]:
                hooks[other] = hooks.pop(other)

    def _arrival(self, key: int) -> Callable[[torch.Tensor], None]:
        book, averaging, attention = self._book, self.averaging, self._attention

        def arrived(gradient: torch.Tensor) -> None:
            # Called for every parameter in every backward: what it does not do need not be measured.
            if self._arriving is not None and not attention.idle:
                averaging.gradient_arrived()
                if key in book.unread:
                    self._note(key, _UNREAD)
                    return
                # Our own arithmetic needs no mode of anybody's, the tape among them.
                with torch._C.DisableTorchFunction():
                    own = dense(gradient.detach() if gradient.requires_grad else gradient)
                    self._note(key, squared_norm(own))
                    book.arrives(key, own)

        return arrived

    def _note(self, key: int, norm: torch.Tensor) -> None:
        """A parameter has got a gradient of a norm² ``norm``; whatever interrupts this, there is no empty list."""
        if self._arriving is not None:
            before = self._arriving.get(key)
            self._arriving[key] = [norm] if before is None else [*before, norm]

    def _shard_filled(self, key: int, gradient: torch.Tensor) -> None:
        if self._arriving is not None and not self._attention.idle and key in self._book.parameters:
            if key in self._book.unread:
                self._note(key, _UNREAD)
                return
            with torch._C.DisableTorchFunction():
                own = dense(gradient.detach())
                self._note(key, squared_norm(own))
                self._book.arrives_apart(key, self.shards.sketch(key, own))
