"""What every ``.grad`` should hold by now, so that a change by other means than a watched call is noticed.

For every parameter the sum of what arrived since it was cleared is kept beside it: one extra copy of the gradients.
Version counters tell cheaply that nothing was done to a gradient; what goes past them (``p.grad.data``) is found when
the gradient is compared, before it is cleared, clipped or used. Where nobody touches a gradient while it grows, the sum
is that of the window's one part as well (`gradcheck_accum.verify.book.gradient_sums`), and is kept and added to once
for both.

One copy is all that there is: what is known to have been done to every element of a gradient (a clip, a factor) is not
done to the copy, which is the part's sum still, but written down beside it and done to a stretch of it at a time where
the two are compared. The sums of further parts, and those in float32 of what rounding eats much of, are kept as
sketches (`gradcheck_accum.verify.vectors.sketch`) where copies of them would take much memory.

Where not even that one copy may be held (``sketches``), all that is held of a gradient is its sketch: a sum of sketches
is the sketch of the sum, and a sketch of a gradient that was scaled by one factor is scaled by it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import replace

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.rank_local import is_sharded
from gradcheck_accum.engine.tolerance import Addends, sum_tolerance, unit_roundoff
from gradcheck_accum.ledger.events import Cause, Event, Factor, Opaque, Operation, Reason, ScaleGrads, Unscale, ZeroGrad
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.verify.book.gradient_sums import GradientSum
from gradcheck_accum.verify.book.held import Change, Held, after, divided_by, times
from gradcheck_accum.verify.book.parameters import ParameterBook, parameters_of
from gradcheck_accum.verify.vectors.inner_products import dense, numbers, same_bits, stretches
from gradcheck_accum.verify.vectors.sharded import own_part
from gradcheck_accum.verify.vectors.sketch import Sketcher, width_of

CHANGED_BY_HAND = Reason(
    "gradients were modified manually, and not by one factor for all of them: clip with clip_grad_norm_() or "
    "clip_grad_value_(), whose effect is known",
    Cause.BY_HAND,
)
_LOSSY = (torch.bfloat16, torch.float16)
"""The dtypes in which rounding eats much of a sum: to see what, a part has a sum of its own there, in float32."""


_AT_ONCE = 1 << 16
"""Elements up to which a gradient is compared as it lies, and not stretch by stretch."""

SMALL = 1 << 18
"""Elements of all gradients up to which copies of them are kept: they take no more than the signs of sketches do."""

PARTLY_CLEARED = Reason(
    "only some of the gradients that a step uses were cleared: clear all of them", Cause.PARTLY_CLEARED
)


class GradientBook(ParameterBook):
    """The parameters of the watched optimizers and what their gradients should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.sketcher = Sketcher()
        self.sketches = False
        """Whether nothing of a gradient is held but its sketch."""
        self.scale_inside: dict[int, float] = {}
        """The grad scaler's scale that is still to be divided out of a parameter's gradient."""
        self._expected: dict[int, torch.Tensor | None] = {}
        self._changes: dict[int, tuple[Change, ...]] = {}
        """What was done to a gradient since it was what is expected."""
        self._part = GradientSum(None)
        self._sharing: dict[int, GradientSum] = {}
        """The part whose sum is the very tensor that is expected of a parameter."""
        self._exact: set[int] = set()
        """The parameters whose gradients were found to be as expected bit for bit at the last look."""
        self._seen: dict[int, tuple[int, int]] = {}
        self._now: dict[int, tuple[tuple[int, int], torch.Tensor]] = {}
        """The sketches of gradients as they were at the last look, with what told them from others then."""
        self._squares: dict[int, list[torch.Tensor]] = {}
        """‖·‖² of what has been added up in what is expected, where that is a sketch."""

    def adopt(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Take in an optimizer, or the parameters that it has got since; the parameters that are new."""
        new = super().adopt(optimizer)
        for parameter in new:
            self.sketcher.place_of(id(parameter))
        self.look(id(parameter) for parameter in new)
        return new

    # What is held

    def begin_sketches(self) -> None:
        """Hold nothing of a gradient but its sketch from now on."""
        self.sketches = True
        self.close_part()
        self.look(key for key, then in self._expected.items() if then is not None)

    def is_sketched(self, key: int) -> bool:
        """Whether the sketch is all that is held of a parameter's gradient."""
        return self.sketches and not (self.sharded and is_sharded(self.parameters[key]))

    def kept(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """What is held of a gradient of this parameter: a copy, or its sketch."""
        own = dense(gradient).detach()
        return self.sketcher.of(key, own) if self.is_sketched(key) else own.clone()

    def _spares_copies(self, key: int) -> bool:
        """Whether there is to be no further copy of a parameter's gradients than the one that is expected."""
        return self.elements > SMALL and not (self.sharded and is_sharded(self.parameters[key]))

    def _as_it_is(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient as it is now, in the form of what is held of it."""
        if not self.is_sketched(key):
            return dense(gradient).detach()
        mark = id(gradient), gradient._version
        seen, sketch = self._now.get(key, (None, None))
        if seen != mark or sketch is None:
            sketch = self.sketcher.of(key, gradient)
            self._now[key] = mark, sketch
        return sketch

    # What is expected

    def look(self, keys: Iterable[int]) -> None:
        """Take the gradients as they are now for right."""
        for key in list(keys):
            if key in self.parameters:
                gradient = self.gradient(key)
                self._expect(key, None if gradient is None else self.kept(key, gradient))

    def forget(self) -> None:
        """Hold nothing of any gradient: to be looked at anew before the next backward."""
        self._expected.clear()
        self._changes.clear()
        self._sharing.clear()
        self._exact.clear()
        self._now.clear()
        self._squares.clear()
        self.close_part()

    def changed_by(self, keys: Iterable[int], change: Change) -> None:
        """The same was done to every element of these parameters' gradients: a scaling where they are sketched."""
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
        """A grad scaler's scale was divided out of the gradients of these parameters."""
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
        """Let a part alone have its sum, which was what is expected too; ``is_written`` says that it will grow on."""
        part = self._sharing.pop(key, None)
        if part is None or part.is_over:
            return
        if key not in part.sketched and self._spares_copies(key):
            part.total[key] = self.sketcher.of(key, part.total[key])
            part.sketched.add(key)
        elif is_written:
            part.total[key] = part.total[key].clone()

    def _expect_zero(self, keys: Iterable[int]) -> None:
        """The gradients of these parameters have been cleared: zeros take no memory."""
        for key in keys:
            if key in self.parameters:
                gradient = self.gradient(key)
                self._expect(key, None if gradient is None else self._zeros(key, gradient))

    def _zeros(self, key: int, gradient: torch.Tensor) -> torch.Tensor:
        """What is held of a gradient that was cleared: zeros, of which one is held."""
        if not self.is_sketched(key):
            return _zeros_like(gradient)
        return torch.zeros((), dtype=torch.float64, device=gradient.device).expand(width_of(gradient))

    def _now_expected(self, key: int) -> torch.Tensor | None:
        """What a gradient should be by now."""
        then = self._expected.get(key)
        return None if then is None else after(then, self._changes.get(key, ()))

    def _mark(self, key: int) -> None:
        gradient = self.gradient(key)
        self._seen[key] = (0, 0) if gradient is None else (id(gradient), gradient._version)

    def part_of(self, kind: Hashable, scale: float) -> GradientSum:
        """The part that a backward of this kind, with this grad scaler's scale inside, adds to."""
        if (self._part.kind, self._part.scale) != (kind, scale):
            self._part = GradientSum(kind, scale)
        return self._part

    def close_part(self) -> None:
        """Somebody touched gradients, or stepped: what comes from here on is apart from what came before."""
        self._part = GradientSum(None)

    def arrives(self, key: int, gradient: torch.Tensor) -> None:
        """A backward is about to add ``gradient`` to that of a parameter."""
        own = self.sketcher.of(key, gradient) if self.is_sketched(key) else gradient
        self._now.pop(key, None)
        then, part = self._expected.get(key), self._part
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
        """Add what is held of a gradient to a part's own sum."""
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
        """A backward gave a sharded parameter a gradient of this sketch; what of it reaches ``.grad`` is seen later."""
        total = self._part.total
        if key in total:
            total[key].add_(sketch)
        else:
            total[key] = sketch

    def arrived(self, squares: dict[int, torch.Tensor]) -> bool:
        """A backward has added gradients of these ‖·‖²; whether something else had its hands on them."""
        changed = False
        for key, square in squares.items():
            now = self.gradient(key)
            if self.is_sketched(key):
                self._squares.setdefault(key, []).append(square)
            if now is None:
                # ``autograd.grad`` inside a module, or a hook that applied the gradient at once.
                self.look([key])
                changed = True
                continue
            # The first gradient is stored as a new tensor; each of the others is added once. To compare the first as
            # well would be to wait for the device that it is on.
            seen = self._seen.get(key, (0, 0))
            added_once = seen == (id(now), now._version - 1) or (seen == (0, 0) and now._version == 0)
            if not added_once and not self._holds(key, square):
                changed = True
                self.look([key])
            else:
                self._seen[key] = (id(now), now._version)
        return changed

    def _holds(self, key: int, added: torch.Tensor | None = None) -> bool:
        """Whether a gradient is what is expected; ``added`` is ‖·‖² of the last to be added."""
        now, expected = self.gradient(key), self._expected[key]
        if now is None or expected is None:
            return now is expected
        if self.is_sketched(key):
            return self._holds_by_sketch(key, now)
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

    def _holds_by_sketch(self, key: int, now: torch.Tensor) -> bool:
        """Whether a gradient is what was added up, within what it was rounded to since."""
        values, then = self._as_it_is(key, now), self._expected[key]
        if then is None or not bool(torch.isfinite(then).all()):
            return True
        total = float(torch.linalg.vector_norm(then))
        addends = Addends([math.sqrt(square) for square in numbers(self._squares.get(key, ()))] or [total], total)
        apart = float(torch.linalg.vector_norm(values - then))
        return apart <= sum_tolerance(addends, now.dtype).usual * total

    def _side_by_side(self, key: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A gradient as it is and as it should be, a stretch of its elements at a time."""
        now, then = self.gradient(key), self._expected[key]
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
        # Operations on many sharded gradients at once are counted nowhere.
        counted = not (self.sharded and is_sharded(self.parameters[key]))
        if counted and self._seen.get(key) == (id(now), now._version) and not thoroughly:
            return True
        return self._holds(key)

    def _not_as_seen(self, thoroughly: bool) -> Iterable[int]:
        """The parameters whose gradients are to be looked at: not those of which version counters tell enough.

        It is asked before every backward, for every parameter.
        """
        if thoroughly or self.sharded:
            return self.parameters
        found = []
        for key, parameter in self.parameters.items():
            now, then = parameter.grad, self._expected.get(key)
            if now is None or then is None:
                if now is not then:
                    found.append(key)
            elif self._seen.get(key) != (id(now), now._version):
                found.append(key)
        return found

    def changes(self, where: Location, *, thoroughly: bool) -> tuple[list[Event], list[int]]:
        """What was done to ``.grad`` since the last look by other means than a watched call, and to which parameters.

        ``thoroughly`` compares the values, and not the version counters alone.
        """
        self._exact.clear()
        if thoroughly:
            self._now.clear()
        changed = [key for key in self._not_as_seen(thoroughly) if not self._is_untouched(key, thoroughly)]
        if not changed:
            return [], []
        cells = self.cells()
        events = []
        for store in sorted({cells[key] for key in changed if key in cells}):
            filled = [k for k, cell in cells.items() if cell == store and self._expected.get(k) is not None]
            own = [k for k in changed if cells.get(k) == store]
            event, change = self._explain(where, store, own, filled)
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

    def unexpected(
        self, keys: Iterable[int], *, thoroughly: bool
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
        """Those of the parameters ``keys`` that have a gradient other than expected: what it is, what it should be."""
        found = {}
        if thoroughly:
            self._now.clear()
        for key in keys:
            now = self.gradient(key) if key in self.parameters else None
            if now is not None and not self._is_untouched(key, thoroughly):
                found[key] = self._as_it_is(key, now), self._now_expected(key)
        return found

    def put_in(self, kind: Hashable, gradients: dict[int, torch.Tensor], factor: float) -> GradientSum:
        """The loop has put gradients into ``.grad``, ``factor`` times each, which belong to the part of this kind.

        What is given of each is in the form of what is held.
        """
        part = self.part_of(kind, 1.0)
        for key, gradient in gradients.items():
            self._leave_to_part(key, is_written=True)
            self._add_to(part, key, (gradient.float() if gradient.dtype in _LOSSY else gradient) * factor)
        return part

    def _explain(
        self, where: Location, store: str, changed: list[int], filled: list[int]
    ) -> tuple[Event, Change | None]:
        """What was done to the gradients ``changed`` of those ``filled``; and to each element, where that is one."""
        stores = frozenset({store})
        if all(is_cleared(self.gradient(key)) for key in changed):
            if set(filled) <= set(changed):
                return ZeroGrad(where=where, stores=stores, seen_later=True), None
            return Opaque(where=where, stores=stores, reason=PARTLY_CLEARED), None
        inner = squares = new = 0.0
        for key in filled:
            if self.gradient(key) is None or self._expected[key] is None:
                return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND), None
            products = self._products(key)
            if products is not None:
                inner, squares, new = inner + products[0], squares + products[1], new + products[2]
        ratio = inner / squares if squares else 1.0
        residual = math.sqrt(max(new - ratio * inner, 0.0))
        dtype = self.parameters[filled[0]].dtype if filled else None
        roundoff = unit_roundoff(dtype) if dtype is not None else 0.0
        scale = self.scale_inside.get(filled[0], 1.0) if filled else 1.0
        if scale != 1.0 and squares and math.isclose(ratio * scale, 1.0, rel_tol=1e-5):
            self.scale_inside.update(dict.fromkeys(filled, 1.0))
            return Unscale(where=where, stores=stores), times(1 / scale)
        if squares and ratio and residual <= max(16 * roundoff, 1e-7) * math.sqrt(new):
            operation = Operation.DIVIDE if abs(ratio) < 1 else Operation.MULTIPLY
            factor = _tidy(ratio, roundoff)
            # In float64 the measurement is as coarse as what it measures, and what was done is known less well.
            change = None if dtype is torch.float64 else times(factor)
            return ScaleGrads(where=where, stores=stores, factor=Factor(factor, operation)), change
        return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND), None

    def _products(self, key: int) -> tuple[float, float, float] | None:
        """<g, h>, ‖h‖² and ‖g‖² of a gradient g as it is and h as it should be; None where h is not finite.

        What has overflowed does not show what was done to it: the others do.
        """
        inner = squares = new = 0.0
        for now, then in self._side_by_side(key):
            if not bool(torch.isfinite(then).all()):
                return None
            a, b = now.double(), then.double()
            inner += float((a * b).sum())
            squares += float((b * b).sum())
            new += float((a * a).sum())
        return inner, squares, new

    def cleared(self, keys: set[int]) -> tuple[frozenset[str], frozenset[str]]:
        """The stores of which these parameters are all that was filled, and those of which they are only some."""
        cells = self.cells()
        whole: set[str] = set()
        part: set[str] = set()
        for store in self.stores(keys):
            own = {key for key, cell in cells.items() if cell == store}
            left = [k for k in own - keys if not is_cleared(self._now_expected(k))]
            (part if left else whole).add(store)
        for key in keys:
            self.scale_inside.pop(key, None)
        self._expect_zero(keys)
        return self._shared(frozenset(whole)), self._shared(frozenset(part))

    def held(self, optimizer: Optimizer, *, beyond_change: bool = False) -> dict[int, Held | None]:
        """An optimizer's gradients as they are, without the grad scaler's scale that is still to be divided out.

        Asked right after a thorough look for changes, so that most are what is expected, and no copy is needed for
        them to hold ``beyond_change`` of a gradient; what is expected grows with the next backward.
        """
        found: dict[int, Held | None] = {}
        for parameter in parameters_of(optimizer):
            key, gradient = id(parameter), own_part(parameter.grad)
            changes, expected = self._changes.get(key, ()), self._expected.get(key)
            if key in self._exact and expected is not None and (beyond_change or not changes):
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


def is_cleared(gradient: torch.Tensor | None) -> bool:
    """Whether there is no gradient, or only zeros."""
    return gradient is None or not bool(dense(gradient).any())


def _zeros_like(gradient: torch.Tensor) -> torch.Tensor:
    """Zeros in the form of a gradient, of which one is held."""
    return torch.zeros((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)


def _takes_no_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one number for all of its elements."""
    return tensor.numel() > 1 and not any(tensor.stride())


def _tidy(ratio: float, roundoff: float) -> float:
    """A measured ratio, as the reciprocal of a whole number where it is one within what rounding does to a gradient.

    A factor of 0.99995 is no 1: it is a number as any other, and 1 would leave an error that nothing explains.
    """
    if ratio and math.isclose(1 / ratio, round(1 / ratio), rel_tol=4 * roundoff):
        return 1 / round(1 / ratio)
    return ratio
