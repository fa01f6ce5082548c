"""What every ``.grad`` should hold by now, so that changes by other means than a watched call are noticed.

For every parameter the sum of what arrived since it was cleared is kept: one extra copy of the gradients.
Version counters show cheaply that a gradient was not changed; what bypasses them (``p.grad.data``) is found when the
gradient is compared, before it is cleared, clipped or used. Where a gradient is not changed while it accumulates, the
sum is also that of the window's only part (`gradcheck_accum.verify.book.gradient_sums`), and is stored once for both.

There is no other copy: a known elementwise change of a gradient (a clip, a factor) is not applied to the copy, which is
still the part's sum, but recorded, and applied to one stretch at a time where the two are compared. The sums of further
parts, and the float32 sums of gradients in low precision, are kept as sketches
(`gradcheck_accum.verify.vectors.sketch`) where copies would take much memory.

Where not even that one copy may be held (``sketches``), only a sketch of each gradient is: the sum of sketches is the
sketch of the sum, and scaling a gradient scales its sketch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.engine.tolerance import Addends, multiple_of, sum_tolerance, tidied, unit_roundoff
from gradcheck_accum.ledger.events import (
    Cause,
    Clip,
    Event,
    Factor,
    Opaque,
    Operation,
    Reason,
    Rework,
    ScaleGrads,
    Unscale,
    ZeroGrad,
)
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.gradient_sums import GradientSum
from gradcheck_accum.verify.book.held import Change, Held, after, divided_by, times
from gradcheck_accum.verify.book.marks import NONE, Mark
from gradcheck_accum.verify.book.parameters import parameters_of
from gradcheck_accum.verify.book.unread import PARTLY_CLEARED, UnreadBook, is_cleared
from gradcheck_accum.verify.vectors.inner_products import dense, numbers, same_bits, stretches, which_are_same
from gradcheck_accum.verify.vectors.sharded import own_part
from gradcheck_accum.verify.vectors.sketch import Sketcher, width_of

CHANGED_BY_HAND = Reason(
    "gradients were modified manually, and not by one factor for all of them: clip with clip_grad_norm_() or "
    "clip_grad_value_(), whose effect is known",
    Cause.BY_HAND,
)
_LOSSY = (torch.bfloat16, torch.float16)
"""The dtypes in which a sum loses much to rounding: there a part has a sum of its own, in float32, to show how much."""

_SHRINK = 2.0**-600
"""What gradients are multiplied by before they are squared, where their squares would overflow."""


_AT_ONCE = 1 << 16
"""Elements up to which a gradient is compared whole, and not stretch by stretch."""

SMALL = 1 << 18
"""Elements of all gradients up to which copies are kept: these take no more memory than the signs of sketches."""


class GradientBook(UnreadBook):
    """The parameters of the watched optimizers and what their gradients should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.sketcher = Sketcher()
        self.sketches = False
        """Whether only the sketches of gradients are held."""
        self.scale_inside: dict[int, float] = {}
        """The grad scaler's scale that a parameter's gradient is still multiplied by."""
        self._expected: dict[int, torch.Tensor | None] = {}
        self._changes: dict[int, tuple[Change, ...]] = {}
        """The known changes of a gradient that are not applied to what is expected."""
        self._part = GradientSum(None)
        self._sharing: dict[int, GradientSum] = {}
        """The part whose sum is the same tensor as a parameter's expected gradient."""
        self._exact: set[int] = set()
        """The parameters whose gradients were bitwise equal to what is expected when last compared."""
        self._now: dict[int, tuple[Mark, torch.Tensor]] = {}
        """The last sketches of current gradients, with the mark of the tensor that each is of."""
        self._as_before: dict[int, torch.Tensor] = {}
        """Gradients as they were before a change, while they are looked at instead of what they are now."""
        self._squares: dict[int, list[torch.Tensor]] = {}
        """‖·‖² of the addends of an expected gradient, where that is a sketch."""

    def adopt(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Add an optimizer, or the parameters that were added to it since; returns the new parameters."""
        new = self.adopt_unseen(optimizer)
        self.look(id(parameter) for parameter in new)
        return new

    def adopt_unseen(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """As `adopt`, but gradients that are there already are not held: they are looked at later."""
        new = super().adopt(optimizer)
        for parameter in new:
            self.sketcher.place_of(id(parameter))
        return new

    # What is held

    def begin_sketches(self) -> None:
        """Hold only the sketches of gradients from now on."""
        self.sketches = True
        self.close_part()
        self.look(key for key, then in self._expected.items() if then is not None)

    def is_sketched(self, key: int) -> bool:
        """Whether only a sketch of a parameter's gradient is held."""
        return self.sketches and not (self.sharded and is_sharded(self.parameters[key]))

    def kept(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """What to hold of a gradient of this parameter: a copy, or its sketch."""
        own = dense(gradient).detach()
        return self.sketcher.of(key, own) if self.is_sketched(key) else own.clone()

    def _spares_copies(self, key: int) -> bool:
        """Whether the expected gradient of a parameter is to be its only copy."""
        return self.elements > SMALL and not (self.sharded and is_sharded(self.parameters[key]))

    def _as_it_is(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient as it is now, in the form in which it is held."""
        if not self.is_sketched(key):
            return dense(gradient).detach()
        seen, sketch = self._now.get(key, (NONE, None))
        if sketch is None or not seen.is_of(gradient):
            sketch = self.sketcher.of(key, gradient)
            self._now[key] = Mark.of(gradient), sketch
        return sketch

    def is_scaled(self, key: int) -> bool:
        """Whether a parameter's gradient still has a grad scaler's scale in it."""
        return self.scale_inside.get(key, 1.0) != 1.0

    # What is expected

    def look(self, keys: Iterable[int]) -> None:
        """Expect the gradients that there are now."""
        for key in list(keys):
            if key in self.unread:
                self._mark(key)
            elif key in self.parameters:
                gradient = self.gradient(key)
                self._expect(key, None if gradient is None else self.kept(key, gradient))

    # What is not read

    def leave_unread(self) -> None:
        """Read no gradients until `read_from_now_on`."""
        self.forget()
        self.unread = dict.fromkeys(self.parameters)
        for key in self.unread:
            self._mark(key)

    def read_left_over(self, where: Location) -> list[Event]:
        """Expect what is left of windows that were not read, before anything is added; what was done to it since."""
        events, left = self._left_over(where)
        self.look(left)
        return events

    def forget(self) -> None:
        """Drop everything held; `look` has to be called again before the next backward."""
        self.unread = {}
        self._expected.clear()
        self._changes.clear()
        self._sharing.clear()
        self._exact.clear()
        self._now.clear()
        self._squares.clear()
        self.close_part()

    def changed_by(self, keys: Iterable[int], change: Change) -> None:
        """``change`` was applied to every element of these gradients; it is a scaling where they are sketched."""
        for key in keys:
            then = self._expected.get(key)
            if then is not None and self.is_sketched(key):
                self._leave_to_part(key, is_written=False)
                self._expected[key] = scaled = change(then)
                before, after = float(torch.linalg.vector_norm(then)), float(torch.linalg.vector_norm(scaled))
                ratio = after / before if before else 1.0
                self._squares[key] = [square * ratio**2 for square in self._squares.get(key, ())]
            elif then is not None:
                self._changes[key] = (*self._changes.get(key, ()), change)
            self._mark(key)

    def unscaled(self, keys: Collection[int], scale: float) -> None:
        """The gradients of these parameters were divided by a grad scaler's scale."""
        self.scale_inside.update(dict.fromkeys(keys, 1.0))
        if self.sharded:
            self.look(keys)
        else:
            self.changed_by(keys, times(1 / scale))

    def _expect(self, key: int, gradient: torch.Tensor | None) -> None:
        self._leave_to_part(key, is_written=False)
        self._expected[key] = gradient
        self._changes.pop(key, None)
        self._squares.pop(key, None)
        self._now.pop(key, None)
        self._mark(key)

    def _leave_to_part(self, key: int, *, is_written: bool) -> None:
        """Separate a part's sum from what is expected; ``is_written`` means that the latter will change in place."""
        part = self._sharing.pop(key, None)
        if part is None or part.is_over:
            return
        if key not in part.sketched and self._spares_copies(key):
            part.total[key] = self.sketcher.of(key, part.total[key])
            part.sketched.add(key)
        elif is_written:
            part.total[key] = part.total[key].clone()

    def _expect_zero(self, keys: Iterable[int]) -> None:
        """The gradients of these parameters have been cleared; the zeros take no memory."""
        for key in keys:
            if key in self.unread:
                self._mark(key)
            elif key in self.parameters:
                gradient = self.gradient(key)
                self._expect(key, None if gradient is None else self._zeros(key, gradient))

    def _zeros(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """What is held of a gradient that was cleared: zeros that share one element."""
        if not self.is_sketched(key):
            return _zeros_like(gradient)
        return torch.zeros((), dtype=torch.float64, device=gradient.device).expand(width_of(gradient))

    def _now_expected(self, key: int) -> torch.Tensor | None:
        """The expected gradient, with its known changes."""
        then = self._expected.get(key)
        return None if then is None else after(then, self._changes.get(key, ()))

    def may_have_changed(self, keys: Iterable[int]) -> None:
        """These gradients are compared next time, whatever their version counters say (``p.grad.data`` has none)."""
        for key in keys:
            self._seen.pop(key, None)

    def part_of(self, kind: Hashable, scale: float) -> GradientSum:
        """The part that a backward of this kind, with this scale of a grad scaler, adds to."""
        if (self._part.kind, self._part.scale) != (kind, scale):
            self._part = GradientSum(kind, scale)
        return self._part

    def close_part(self) -> None:
        """Gradients were changed or used by a step: what arrives from now on belongs to another part."""
        self._part = GradientSum(None)

    def arrives(self, key: int, gradient: torch.Tensor) -> None:
        """A backward is about to add ``gradient`` to that of a parameter."""
        then, part = self._expected.get(key), self._part
        if then is not None and not self.sketches and self._sharing.get(key) is part and key not in self._changes:
            # Most are: one more of the same kind, and nothing was done to those before it.
            then.add_(gradient)
            return
        own = self.sketcher.of(key, gradient) if self.is_sketched(key) else gradient
        self._now.pop(key, None)
        if then is None or _takes_no_memory(then):
            self._expected[key] = then = own.clone()
            if key not in part.total and own.dtype not in _LOSSY:
                part.total[key] = then
                self._sharing[key] = part
                if own is not gradient:
                    part.sketched.add(key)
                return
        else:
            if self._sharing.get(key) is not part or key in self._changes:
                # An earlier part's sum must stay as it is.
                self._leave_to_part(key, is_written=key not in self._changes)
            if key in self._changes:
                self._expected[key] = after(then, self._changes.pop(key)) + own
            else:
                then.add_(own)
            if self._sharing.get(key) is part:
                return
        self._add_to(part, key, own)

    def _add_to(self, part: GradientSum, key: int, own: torch.Tensor) -> None:
        """Add a gradient, in the form in which it is held, to a part's own sum."""
        before = part.total.get(key)
        if not self.is_sketched(key) and not self._spares_copies(key):
            own = own.float() if own.dtype in _LOSSY else own
            part.total[key] = own.clone() if before is None else before.add_(own)
            return
        sketch = own if self.is_sketched(key) else self.sketcher.of(key, own)
        if before is not None and key not in part.sketched:
            before = self.sketcher.of(key, before)
        part.total[key] = sketch.clone() if before is None else before.add_(sketch)
        part.sketched.add(key)

    def arrives_apart(self, key: int, sketch: torch.Tensor) -> None:
        """A sharded parameter got a gradient with this sketch; what of it reaches ``.grad`` is seen later."""
        total = self._part.total
        if key in total:
            total[key].add_(sketch)
        else:
            total[key] = sketch

    def arrived(self, squares: dict[int, torch.Tensor]) -> bool:
        """A backward has added gradients of these ‖·‖²; returns whether something else changed gradients meanwhile."""
        changed = False
        for key, square in squares.items():
            if key in self.unread:
                self._mark(key)
                continue
            now = self.gradient(key)
            if self.is_sketched(key):
                self._squares.setdefault(key, []).append(square)
            if now is None:
                # ``autograd.grad`` inside a module, or a hook that applied and cleared the gradient at once.
                self.look([key])
                changed = True
                continue
            # The first gradient is stored as a new tensor; each of the others is added once. Comparing the first as
            # well would mean a device synchronization.
            seen = self._seen.get(key, NONE)
            added_once = now._version == 0 if seen.tensor is None else self._is_as_at(key, seen, writes=1)
            if not added_once and not self._holds(key, square):
                changed = True
                self.look([key])
            else:
                self._mark(key)
        return changed

    def _not_as_expected(self, keys: Iterable[int]) -> list[int]:
        """Those of the parameters whose gradients may not be what is expected; a device is waited for once.

        The others are that bit for bit, or, where only their sketches are held, up to rounding.
        """
        keys = list(keys)
        pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        sketched: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for key in keys:
            now, then = self.gradient(key), self._expected.get(key)
            if now is None or then is None or now.device.type == "cpu":
                continue
            if self.is_sketched(key):
                sketched[key] = now, then
            elif not self._changes.get(key) and now.layout is torch.strided:
                pairs[key] = now.detach(), then
        if pairs:
            same = which_are_same(list(pairs.values()))
            self._exact.update(key for key, is_same in zip(pairs, same, strict=True) if is_same)
        holding = self._exact | self._which_hold_by_sketch(sketched)
        return [key for key in keys if key not in holding]

    def _looked_at(self, key: int) -> torch.Tensor | None:
        """A gradient as it is, or as it was before a change that is set aside."""
        then = self._as_before.get(key)
        return self.gradient(key) if then is None else then

    def _holds(self, key: int, added: torch.Tensor | None = None) -> bool:
        """Whether a gradient is what is expected; ``added`` is ‖·‖² of the last addend."""
        now, expected = self._looked_at(key), self._expected[key]
        if now is None or expected is None:
            return now is expected
        if self.is_sketched(key):
            return key in self._which_hold_by_sketch({key: (now, expected)})
        if all(same_bits(values, then) for values, then in self._side_by_side(key)):
            self._exact.add(key)
            return True
        room = 4 * unit_roundoff(now.dtype)
        extra = 0.0 if added is None else added.sqrt()
        near = (
            bool(((values - then).abs() <= room * (then.abs() + extra)).all())
            for values, then in self._side_by_side(key)
        )
        return all(near) or not all(bool(torch.isfinite(then).all()) for _, then in self._side_by_side(key))

    def _which_hold_by_sketch(self, gradients: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> set[int]:
        """The parameters whose gradients are the sums of what arrived, up to rounding.

        Given are the gradients as they are, and the sketches of those sums.
        """
        if not gradients:
            return set()
        then = [expected for _, expected in gradients.values()]
        apart = [self._as_it_is(key, now) - expected for key, (now, expected) in gradients.items()]
        squares = [self._squares.get(key, []) for key in gradients]
        values = iter(numbers([*torch._foreach_norm(then), *torch._foreach_norm(apart), *chain(*squares)]))
        totals, distances = list(islice(values, len(then))), list(islice(values, len(then)))
        found = set()
        for (key, (now, _)), total, distance, own in zip(gradients.items(), totals, distances, squares, strict=True):
            norms = [math.sqrt(square) for square in islice(values, len(own))]
            allowed = sum_tolerance(Addends(norms or [total], total), now.dtype).usual * total
            if not math.isfinite(total) or distance <= allowed:
                found.add(key)
        return found

    def _side_by_side(self, key: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A gradient as it is and as it should be, a stretch of its elements at a time."""
        now, then = self._looked_at(key), self._expected[key]
        if now is None or then is None:
            return
        values, changes = self._as_it_is(key, now), self._changes.get(key, ())
        if values.numel() <= _AT_ONCE:
            yield values, after(then, changes)
            return
        values, then = values.reshape(-1), then.reshape(-1)
        for start, stop in stretches(now.numel(), now.device):
            yield values[start:stop], after(then[start:stop], changes)

    def _is_untouched(self, key: int, thoroughly: bool) -> bool:
        now, expected = self.gradient(key), self._expected.get(key)
        if now is None or expected is None:
            return now is expected
        # Foreach operations on sharded gradients do not change their version counters.
        counted = not (self.sharded and is_sharded(self.parameters[key]))
        if counted and self._seen.get(key, NONE).is_of(now) and not thoroughly:
            return True
        return self._holds(key)

    def _not_as_seen(self, thoroughly: bool) -> Iterable[int]:
        """The parameters whose gradients may have changed: version counters exclude the others.

        Every backward asks, for every parameter.
        """
        if thoroughly or self.sharded:
            return self.parameters.keys() - self.unread.keys() if self.unread else self.parameters
        found = []
        for key, parameter in self.parameters.items():
            if key in self.unread:
                continue
            now, then = parameter.grad, self._expected.get(key)
            if now is None or then is None:
                if now is not then:
                    found.append(key)
            elif not self._seen.get(key, NONE).is_of(now):
                found.append(key)
        return found

    def changes(
        self,
        where: Location,
        clamps: Mapping[int, float] | None = None,
        *,
        thoroughly: bool,
        as_they_were: Callable[[Collection[int]], Mapping[int, torch.Tensor]] | None = None,
    ) -> tuple[list[Event], list[int]]:
        """The changes of ``.grad`` since it was last compared by other means than a watched call, and their parameters.

        ``clamps`` are the limits that gradients were clamped to since then, by parameter. ``thoroughly`` means that
        values are compared, and not only version counters. ``as_they_were`` gives the gradients, of a store's that have
        changed, as they were before the loop reworked them: known where they are complete.
        """
        self._exact.clear()
        if thoroughly:
            self._now.clear()
            for key in self.unread:
                self._mark(key)
        doubtful = self._not_as_expected(self._not_as_seen(thoroughly))
        changed = [key for key in doubtful if not self._is_untouched(key, thoroughly)]
        if not changed:
            return [], []
        cells = self.cells()
        events = []
        for store in sorted({cells[key] for key in changed if key in cells}):
            filled = [k for k, cell in cells.items() if cell == store and self._expected.get(k) is not None]
            own = [k for k in changed if cells.get(k) == store]
            event, change = self._explain(where, store, own, filled, clamps or {})
            if isinstance(event, Opaque) and as_they_were is not None:
                scaled, is_reworked = self._reworked(where, store, own, filled, as_they_were(own))
                if is_reworked:
                    events += [*scaled, Rework(where=where, stores=frozenset({store}))]
                    self.look(own)
                    continue
            events.append(event)
            if isinstance(event, ZeroGrad):
                self._expect_zero(own)
            elif change is None:
                self.look(own)
            else:
                self.changed_by(own, change)
                self.look([key for key in own if not self._holds(key)])
        self.look(key for key in changed if key not in cells)
        return events, changed

    def _reworked(
        self, where: Location, store: str, changed: list[int], filled: list[int], before: Mapping[int, torch.Tensor]
    ) -> tuple[list[Event], bool]:
        """How the gradients of ``filled`` were scaled before those of ``before`` were reworked; whether that is all.

        What was no longer as it should be before that was changed earlier.
        """
        if not before or any(self._expected[key] is None for key in changed):
            return [], False
        self._as_before = dict(before)
        try:
            others = [key for key in changed if not self._holds(key)]
            if not others:
                return [], True
            event, _ = self._explain(where, store, others, filled, {})
            return [event], isinstance(event, ScaleGrads)
        finally:
            self._as_before = {}

    def before_scaling(self, key: int) -> torch.Tensor | None:
        """The gradient that a parameter's was before it was multiplied by one factor; None if that was not all."""
        now, then = self.gradient(key), self._now_expected(key)
        if now is None or then is None or self.is_sketched(key):
            return None
        is_scaled = multiple_of(*self._products([key]), unit_roundoff(now.dtype)) is not None
        return then.clone() if is_scaled else None

    def unexpected(
        self, keys: Iterable[int], *, thoroughly: bool
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
        """Those of the parameters ``keys`` with an unexpected gradient: what it is, and what it should be."""
        found = {}
        if thoroughly:
            self._now.clear()
        for key in keys:
            now = self.gradient(key) if key in self.parameters and key not in self.unread else None
            if now is not None and not self._is_untouched(key, thoroughly):
                found[key] = self._as_it_is(key, now), self._now_expected(key)
        return found

    def put_in(self, kind: Hashable, gradients: dict[int, torch.Tensor], factor: float) -> GradientSum:
        """The loop put gradients into ``.grad``, ``factor`` times each, which belong to the part of this kind.

        Each is passed in the form in which it is held.
        """
        part = self.part_of(kind, 1.0)
        for key, gradient in gradients.items():
            self._leave_to_part(key, is_written=True)
            self._add_to(part, key, (gradient.float() if gradient.dtype in _LOSSY else gradient) * factor)
        return part

    def _explain(
        self, where: Location, store: str, changed: list[int], filled: list[int], clamps: Mapping[int, float]
    ) -> tuple[Event, Change | None]:
        """What was done to the gradients ``changed`` of those ``filled``, as an event and, if known, elementwise."""
        stores = frozenset({store})
        if all(is_cleared(self._looked_at(key)) for key in changed):
            if set(filled) <= set(changed):
                return ZeroGrad(where=where, stores=stores, seen_later=True), None
            return Opaque(where=where, stores=stores, reason=PARTLY_CLEARED), None
        if any(self._looked_at(key) is None or self._expected[key] is None for key in filled):
            return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND), None
        inner, squares, new = self._products(filled)
        if not math.isfinite(inner + squares + new):
            # The squares of gradients of a training that diverges overflow before they do.
            inner, squares, new = self._products(filled, _SHRINK)
        dtype = self.parameters[filled[0]].dtype if filled else None
        roundoff = unit_roundoff(dtype) if dtype is not None else 0.0
        scale = self.scale_inside.get(filled[0], 1.0) if filled else 1.0
        if scale != 1.0 and squares and math.isclose(inner / squares * scale, 1.0, rel_tol=1e-5):
            self.scale_inside.update(dict.fromkeys(filled, 1.0))
            return Unscale(where=where, stores=stores), times(1 / scale)
        ratio = multiple_of(inner, squares, new, roundoff)
        if ratio is not None:
            operation = Operation.DIVIDE if abs(ratio) < 1 else Operation.MULTIPLY
            factor = tidied(ratio, roundoff)
            # In float64 the factor is measured with no more precision than the gradients have, so it is not applied.
            change = None if dtype is torch.float64 else times(factor)
            return ScaleGrads(where=where, stores=stores, factor=Factor(factor, operation)), change
        limits = {clamps.get(key) for key in changed}
        limit = limits.pop() if len(limits) == 1 else None
        if limit is not None and all(self._is_clamped(key, limit) for key in changed):
            return Clip(where=where, stores=stores), partial(torch.clamp, min=-limit, max=limit)
        return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND), None

    def _is_clamped(self, key: int, limit: float) -> bool:
        """Whether a gradient is what it should be, but for elements beyond a limit, which are at it."""
        now = self._looked_at(key)
        if now is None or self.is_sketched(key):
            return False
        room = 4 * unit_roundoff(now.dtype)
        return all(
            bool(((values - then.clamp(-limit, limit)).abs() <= room * then.abs().clamp(max=limit)).all())
            for values, then in self._side_by_side(key)
        )

    def _products(self, keys: Iterable[int], shrink: float = 1.0) -> tuple[float, float, float]:
        """<g, h>, ‖h‖² and ‖g‖² of gradients g as they are and h as they should be, all of them times ``shrink``.

        A gradient that has overflowed does not show what was done to it, and is left out; the others do.
        """
        inner = squares = new = 0.0
        for key in keys:
            sums = [0.0, 0.0, 0.0]
            for now, then in self._side_by_side(key):
                if not bool(torch.isfinite(then).all()):
                    break
                a, b = now.double(), then.double()
                if shrink != 1.0:
                    a, b = a * shrink, b * shrink
                for place, (one, other) in enumerate(((a, b), (b, b), (a, a))):
                    sums[place] += float((one * other).sum())
            else:
                inner, squares, new = inner + sums[0], squares + sums[1], new + sums[2]
        return inner, squares, new

    def cleared(self, keys: set[int]) -> tuple[frozenset[str], frozenset[str]]:
        """The stores that are cleared wholly with these parameters, and those that are cleared partly."""
        cells = self.cells()
        whole: set[str] = set()
        part: set[str] = set()
        for key in keys:
            if self.unread.get(key) is not None:
                del self.unread[key]
        for store in self.stores(keys):
            own = {key for key, cell in cells.items() if cell == store}
            left = [k for k in own - keys if not self._is_known_as_cleared(k)]
            (part if left else whole).add(store)
        for key in keys:
            self.scale_inside.pop(key, None)
        self._expect_zero(keys)
        return self._shared(frozenset(whole)), self._shared(frozenset(part))

    def _is_known_as_cleared(self, key: int) -> bool:
        """Whether a gradient should be zero; where that is not known, whether it is."""
        return is_cleared(self.gradient(key) if key in self.unread else self._now_expected(key))

    def held(
        self,
        optimizer: Optimizer,
        *,
        beyond_change: bool = False,
        before_last_of: Collection[int] = (),
        as_they_were: Mapping[int, torch.Tensor] | None = None,
    ) -> dict[int, Held | None]:
        """An optimizer's current gradients, without the grad scaler's scale that they are still multiplied by.

        Called right after a thorough comparison, when most are as expected, so that they need no copy to remain valid
        ``beyond_change`` of a gradient. What is expected changes at the next backward. Those of the parameters
        ``before_last_of`` are as they were before their last known change, and those in ``as_they_were`` are these.
        None are held where some were not read.
        """
        found: dict[int, Held | None] = {}
        if self.is_unread(optimizer):
            return found
        for parameter in parameters_of(optimizer):
            key, gradient = id(parameter), own_part(parameter.grad)
            changes, expected = self._changes.get(key, ()), self._expected.get(key)
            if as_they_were and key in as_they_were:
                found[key] = Held(as_they_were[key])
            elif key in before_last_of and changes and expected is not None:
                found[key] = Held(expected, changes[:-1])
            elif key in self._exact and expected is not None and (beyond_change or not changes):
                found[key] = Held(expected, changes)
            elif gradient is None:
                found[key] = None
            elif key in self.parameters and self.is_sketched(key):
                found[key] = Held(self._as_it_is(key, gradient), sketched=True)
            else:
                found[key] = Held(gradient.detach().clone() if beyond_change else gradient.detach())
            scale, own = self.scale_inside.get(key, 1.0), found[key]
            if own is not None and scale != 1.0:
                found[key] = replace(own, changes=(*own.changes, divided_by(scale)))
        return found


def _zeros_like(gradient: torch.Tensor) -> torch.Tensor:
    """Zeros in the shape of a gradient that share one element."""
    return torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)


def _takes_no_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one number for all of its elements."""
    return tensor.numel() > 1 and not any(tensor.stride())
