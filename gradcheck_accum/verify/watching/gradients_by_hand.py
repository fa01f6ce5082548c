"""Gradients that ``torch.autograd.grad`` returns to a loop, and that the loop puts into ``.grad`` itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from gradcheck_accum.engine.copied_models import CopyOfModel, Pair
from gradcheck_accum.engine.graph_nodes import weights_below
from gradcheck_accum.engine.tolerance import tidied, unit_roundoff
from gradcheck_accum.engine.transformed import all_samples, as_outside, is_in_grad_of_samples, outside
from gradcheck_accum.ledger.events import Backward, Factor, Opaque, Operation, Reason, ZeroGrad
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import PUT_IN
from gradcheck_accum.verify.book.copies import Copies
from gradcheck_accum.verify.book.gradient_sums import kind_of
from gradcheck_accum.verify.book.models_of_weights import ModelsOfWeights
from gradcheck_accum.verify.book.records import Record
from gradcheck_accum.verify.provenance.counting import call_chain
from gradcheck_accum.verify.stack.frames import user_location
from gradcheck_accum.verify.vectors.inner_products import dense, norm_of, squared_norm
from gradcheck_accum.verify.watching.autograd_grad import KeptGradients, ReturnedGradients
from gradcheck_accum.verify.watching.loss_reader import BackwardLosses
from gradcheck_accum.verify.watching.run import Run

_Stands = dict[int, Pair]
"""What the weights of copies stand for, by identity."""


@dataclass(slots=True)
class _Asked:
    """Losses whose gradients are computed, and where; ``samples`` are those that ``vmap`` goes through at once.

    ``stands`` says what the weights of copies stand for, by identity, ``arrived`` holds what a backward gives these.
    """

    backward_losses: BackwardLosses
    where: Location
    samples: int = 1
    stands: _Stands = field(default_factory=dict)
    arrived: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)


class GradientsByHand:
    """Records each of them as a backward, once it is found in ``.grad``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._attention, self._journal, self._awaited = run.attention, run.journal, run.awaited
        self._losses, self._batches, self._book = run.losses, run.batches, run.book
        self._kept = KeptGradients()
        self._copies = Copies(run.book, ModelsOfWeights(run.book))
        self._asked: _Asked | None = None
        """What ``torch.autograd.grad`` is computing the gradients of."""
        self.on_returned: Callable[[int, torch.Tensor, ReturnedGradients], object] | None = None
        """Called with each gradient of a parameter that is returned, and with all that were returned with it."""
        self.unwatched: Location | None = None
        """Where it first computed gradients of what no optimizer has."""

    @property
    def waiting(self) -> set[int]:
        """The parameters with returned gradients that are not recorded yet."""
        return self._kept.keys

    def forget(self, keys: Collection[int]) -> None:
        """These parameters have been stepped on."""
        self._kept.forget(keys)
        self._copies.stepped(keys)

    # Gradients of copies

    def copy_of(self, module: nn.Module) -> CopyOfModel | None:
        """What a module that is about to run is a copy of, if it is one of weights that are watched."""
        return self._copies.of(module)

    def copies_below(self, losses: list[torch.Tensor]) -> _Stands | None:
        """What the weights of a loss stand for, if all of them are those of copies."""
        if not self._copies.any_ran:
            return None
        return self._copies.below(weights_below((loss.grad_fn for loss in losses), most=None))

    def of_copies(self, stands: _Stands, backward_losses: BackwardLosses, where: Location) -> None:
        """A backward of copies alone begins."""
        if backward_losses.program is None:
            return
        asked = self._asked = _Asked(backward_losses, where, stands=stands)
        for pair in stands.values():
            asked.hooks.append(pair.own.register_hook(_arrival(asked, pair.own)))  # type: ignore[no-untyped-call]

    def end_of_copies(self, failed: bool) -> bool:
        """It has ended; whether its gradients are known."""
        asked, self._asked = self._asked, None
        if asked is None:
            return False
        for hook in asked.hooks:
            hook.remove()
        if failed or not asked.arrived:
            return False
        owners, gradients = zip(*asked.arrived, strict=True)
        # The next segment begins where the backward ends.
        self._keep(asked, owners, gradients, keeps_graph=True)
        return True

    def before(self, outputs: Any, inputs: Any, weights: Any) -> bool:
        """``torch.autograd.grad`` is entered; whether its gradients are those of watched parameters."""
        if self._asked is not None:
            return False
        stands: _Stands = {}
        if not any(id(own) in self._book.parameters for own in self._weights(inputs)):
            stands = self.copies_below(listed(outputs)) or {}
        if not (stands or any(id(own) in self._book.parameters for own in self._weights(inputs))):
            self.unwatched = self.unwatched or user_location()
            return False
        samples = None
        if is_in_grad_of_samples():
            of_each = all_samples(listed(outputs)[0])
            if of_each is None:
                return False
            samples = len(of_each)
        self._run.choose_mode()
        tape = self._losses.tape
        tape.through_copies = bool(stands)
        backward_losses = self._losses.read(listed(outputs), weights, self._batches.drawn_since, samples=samples)
        tape.through_copies = False
        if stands and backward_losses.program is None:
            return False
        self._asked = _Asked(backward_losses, user_location(), samples or 1, stands)
        return True

    def after(self, inputs: Any, gradients: Any, *, keeps_graph: bool) -> None:
        """``torch.autograd.grad`` has returned gradients, or raised where they are None."""
        asked, self._asked = self._asked, None
        if not self._attention.idle and asked is not None and gradients is not None:
            with outside():
                self._keep(asked, inputs, gradients, keeps_graph=keeps_graph)

    def _keep(self, asked: _Asked, inputs: Any, gradients: Any, *, keeps_graph: bool) -> None:
        backward_losses, where, samples = asked.backward_losses, asked.where, asked.samples
        weights = [asked.stands[id(own)].source if id(own) in asked.stands else own for own in self._weights(inputs)]
        with self._attention.own_work():
            known = [
                (own, _of_all(gradient, samples))
                for own, gradient in zip(weights, listed(gradients), strict=True)
                if id(own) in self._book.parameters and gradient is not None
            ]
            squares = {id(own): squared_norm(dense(g.detach())) / backward_losses.reading.scale**2 for own, g in known}
            kept = {id(own): self._book.kept(id(own), gradient) for own, gradient in known}
        if backward_losses.reading.scale != 1.0:
            kept = {key: own / backward_losses.reading.scale for key, own in kept.items()}
        micro_batch = self._batches.backward(where, backward_losses.program, call_chain())
        returned = ReturnedGradients(
            where,
            backward_losses,
            micro_batch,
            self._batches.current_pass,
            kept,
            squares,
            self._run.given.latest(backward_losses.program),
        )
        self._kept.add(returned)
        if self.on_returned is not None:
            for own, gradient in zip(weights, listed(gradients), strict=True):
                if id(own) in kept:
                    self.on_returned(id(own), gradient, returned)
        if not keeps_graph:
            self._losses.next_segment()

    def _weights(self, inputs: Any) -> list[torch.Tensor]:
        """What gradients are asked for: inside ``torch.func.grad``, the weights that it was given."""
        return [self._book.as_weight(given) for given in listed(inputs)]

    def take_in(self, where: Location, *, thoroughly: bool) -> bool:
        """Record the returned gradients that the loop has put into ``.grad``, if there are any."""
        if not self._kept:
            return False
        changed = self._book.unexpected(self._kept.keys, thoroughly=thoroughly)
        if not changed:
            return False
        held = {key for key, (_, then) in changed.items() if then is not None and bool(then.any())}
        with self._attention.own_work():
            added = {key: now if then is None else now - then for key, (now, then) in changed.items()}
            roundoff = max(unit_roundoff(self._book.parameters[key].dtype) for key in changed)
            before = [then for _, then in changed.values() if then is not None]
            taken = self._kept.take(added, roundoff, norm_of(before) if before else 0.0)
            if not taken and held:
                taken = self._kept.take({key: now for key, (now, _) in changed.items()}, roundoff)
                if taken:
                    self._journal.add(ZeroGrad(where=where, stores=self._book.stores(held)))
        self._enter_all(taken, where, roundoff)
        self._book.look(changed if taken else ())
        return bool(taken)

    def holds(self, gradients: Collection[ReturnedGradients]) -> bool:
        """Whether all of these were returned since the last step, and are known still."""
        return self._kept.holds(gradients)

    def enter(
        self, factors: Mapping[ReturnedGradients, float], lost: Collection[ReturnedGradients], where: Location
    ) -> None:
        """Record the returned gradients that the loop uses in an update of its own, ``factors`` times each.

        Those of ``lost`` were added up as well, and are not in it.
        """
        taken = self._kept.take_out(factors, lost)
        keys = {key for returned, _ in taken for key in returned.gradients}
        roundoff = max((unit_roundoff(self._book.parameters[key].dtype) for key in keys), default=0.0)
        self._enter_all(taken, where, roundoff)

    def _enter_all(self, taken: Sequence[tuple[ReturnedGradients, float]], where: Location, roundoff: float) -> None:
        """Record gradients in order, each with how often it is used; those that are not used were discarded."""
        used = next((factor for _, factor in taken if factor), 1.0)
        for position, (returned, factor) in enumerate(taken):
            if factor and position and not taken[position - 1][1]:
                # Those before it were discarded, and would have had the same factor.
                self._journal.add(ZeroGrad(where=where, stores=self._book.stores(returned.gradients)))
            self._enter(returned, tidied(factor or used, roundoff), where)

    def _enter(self, returned: ReturnedGradients, factor: float, where: Location) -> None:
        """Record one of them, which the loop has put in ``factor`` times."""
        reading, terms = returned.backward_losses.reading, returned.backward_losses.reading.terms
        program = returned.backward_losses.program
        if not math.isclose(factor, 1.0, rel_tol=1e-6):
            program = None if program is None else program.times(factor)
            operation = Operation.DIVIDE if abs(factor) < 1 else Operation.MULTIPLY
            applied = Factor(factor, operation, where=where, origins=frozenset({PUT_IN}))
            terms = tuple(replace(term, factors=(*term.factors, applied)) for term in terms)
        stores = self._book.stores(returned.gradients)
        event = Backward(
            where=returned.where,
            micro_batch=returned.micro_batch,
            stores=stores,
            terms=terms,
            epoch=returned.epoch,
            grad_scaled=reading.scale != 1.0,
            computation=self._run.given.computation(returned.where, returned.given),
            of_one_batch=returned.backward_losses.of_one_batch,
        )
        self._journal.add(event)
        self._awaited.reached(returned.gradients)
        with self._attention.own_work():
            squares = {key: square * factor**2 for key, square in returned.squares.items()}
            part = self._book.put_in(kind_of(returned.where, terms, returned.epoch), returned.gradients, factor)
        self._awaited.add(Record(event, part, squares, program, given=returned.given), 1.0)
        self._run.uses.backward_ends()
        if returned.backward_losses.unknown:
            self._journal.add(
                Opaque(where=returned.where, stores=stores, reason=Reason(returned.backward_losses.unknown))
            )


def _arrival(asked: _Asked, owner: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def arrived(gradient: torch.Tensor) -> None:
        # What becomes of the tensor itself is autograd's affair.
        asked.arrived.append((owner, gradient.detach().clone()))

    return arrived


def _of_all(gradient: torch.Tensor, samples: int) -> torch.Tensor:
    """A gradient outside of transforms; the sum of those of all samples where ``vmap`` goes through some."""
    own = all_samples(gradient)
    if own is not None:
        return own.sum(0)
    return as_outside(gradient) if samples == 1 else as_outside(gradient) * samples


def listed(tensors: Any) -> list[torch.Tensor]:
    """Tensors as PyTorch takes and returns them: one, several, or (of some releases) a dictionary of them."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return list(tensors.values() if isinstance(tensors, dict) else tensors)
