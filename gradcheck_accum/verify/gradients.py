"""What every ``.grad`` should hold by now, so that a change by other means than a watched call is noticed.

For every parameter the sum of what arrived since it was cleared is kept beside it: one extra copy of the gradients.
Version counters tell cheaply that nothing was done to a gradient; what goes past them (``p.grad.data``) is found when
the gradient is compared, before it is cleared, clipped or used. Where nobody touches a gradient while it grows, the sum
is that of the window's one part as well (`gradcheck_accum.verify.parts`), and is kept and added to once for both.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from gradcheck_accum.engine.alone import is_flattened, is_sharded
from gradcheck_accum.engine.tolerance import unit_roundoff
from gradcheck_accum.events import Cause, Event, Factor, Opaque, Operation, Reason, ScaleGrads, Unscale, ZeroGrad
from gradcheck_accum.location import Location
from gradcheck_accum.verify.measure import dense, same_bits
from gradcheck_accum.verify.parts import Part
from gradcheck_accum.verify.shards import own_part

CHANGED_BY_HAND = Reason(
    "gradients were changed by hand, and not by one factor for all of them: clip with clip_grad_norm_() or "
    "clip_grad_value_(), whose effect is known",
    Cause.BY_HAND,
)
_LOSSY = (torch.bfloat16, torch.float16)
"""The dtypes in which rounding eats much of a sum: to see what, a part has a sum of its own there, in float32."""

PARTLY_CLEARED = Reason("only some of the gradients that a step uses were cleared: clear all of them")


class GradientBook:
    """The parameters of the watched optimizers and what their gradients should hold."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self.parameters: dict[int, torch.Tensor] = {}
        self.names: dict[int, str] = {}
        self.sharded = False
        """Whether there are parameters that are sharded over the ranks."""
        self.scale_inside: dict[int, float] = {}
        """The grad scaler's scale that is still to be divided out of a parameter's gradient."""
        self._expected: dict[int, torch.Tensor | None] = {}
        self._part = Part(None)
        self._sharing: dict[int, Part] = {}
        """The part whose sum is the very tensor that is expected of a parameter."""
        self._exact: set[int] = set()
        """The parameters whose gradients were found to be as expected bit for bit at the last look."""
        self._seen: dict[int, tuple[int, int]] = {}
        self._cells: dict[int, str] = {}
        self._size = (-1, -1)

    # Parameters and stores

    def adopt(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Take in an optimizer, or the parameters that it has got since; the parameters that are new."""
        if not any(known is optimizer for known in self.optimizers):
            self.optimizers.append(optimizer)
            same = sum(type(o) is type(optimizer) for o in self.optimizers)
            self.names[id(optimizer)] = type(optimizer).__name__ + (f" #{same}" if same > 1 else "")
        new = []
        for parameter in parameters_of(optimizer):
            self.sharded = self.sharded or is_sharded(parameter)
            if is_flattened(parameter):
                # Now it is one rank's part, now the whole, and its gradient is never the one that backward gave it.
                continue
            if id(parameter) not in self.parameters and parameter.is_leaf and parameter.requires_grad:
                self.parameters[id(parameter)] = parameter
                new.append(parameter)
                self.look([id(parameter)])
        return new

    def cells(self) -> dict[int, str]:
        """The store of every parameter: the parameters that the same optimizers own are filled and cleared together."""
        size = sum(len(group["params"]) for o in self.optimizers for group in o.param_groups), len(self.optimizers)
        if size != self._size:
            owners: dict[int, list[str]] = {}
            for optimizer in self.optimizers:
                for parameter in parameters_of(optimizer):
                    owners.setdefault(id(parameter), []).append(self.names[id(optimizer)])
            self._cells = self._renamed({key: " + ".join(names) for key, names in owners.items()})
            self._size = size
        return self._cells

    def _renamed(self, cells: dict[int, str]) -> dict[int, str]:
        """New cells, with the old name where one holds what it held: events that are past know it by that name."""
        before, after = _grouped(self._cells), _grouped(cells)
        kept = {name: old for old, own in before.items() for name, new in after.items() if new == own}
        names = {name: kept.get(name, name) for name in after}
        return {key: names[name] for key, name in cells.items()} if len({*names.values()}) == len(names) else cells

    def stores(self, keys: Iterable[int]) -> frozenset[str]:
        """The stores of parameters, by their identities."""
        cells = self.cells()
        return frozenset(cells[key] for key in keys if key in cells)

    # What is expected

    def look(self, keys: Iterable[int]) -> None:
        """Take the gradients as they are now for right."""
        for key in keys:
            if key in self.parameters:
                gradient = self.gradient(key)
                self._expected[key] = None if gradient is None else dense(gradient).detach().clone()
                self._sharing.pop(key, None)
                self._mark(key)

    def places(self) -> dict[int, int]:
        """The parameter whose gradient lies at each place of the memory."""
        grads = {key: p.grad for key, p in self.parameters.items()}
        return {g.data_ptr(): key for key, g in grads.items() if g is not None and g.layout is torch.strided}

    def gradient(self, key: int) -> torch.Tensor | None:
        """A parameter's gradient, of one that is sharded what this rank holds of it."""
        gradient = self.parameters[key].grad
        return own_part(gradient) if self.sharded else gradient

    def _mark(self, key: int) -> None:
        gradient = self.gradient(key)
        self._seen[key] = (0, 0) if gradient is None else (id(gradient), gradient._version)

    def part_of(self, kind: Hashable, scale: float) -> Part:
        """The part that a backward of this kind, with this grad scaler's scale inside, adds to."""
        if (self._part.kind, self._part.scale) != (kind, scale):
            self._part = Part(kind, scale)
        return self._part

    def close_part(self) -> None:
        """Somebody touched gradients, or stepped: what comes from here on is apart from what came before."""
        self._part = Part(None)

    def arrives(self, key: int, own: torch.Tensor) -> None:
        """A backward is about to add ``own`` to a parameter's gradient."""
        then, total = self._expected.get(key), self._part.total
        if then is None:
            self._expected[key] = then = own.clone()
            if key not in total and own.dtype not in _LOSSY:
                total[key] = then
                self._sharing[key] = self._part
                return
        else:
            shared = self._sharing.get(key)
            if shared is not None and shared is not self._part:
                # An earlier part's sum must stay as it is.
                del self._sharing[key]
                self._expected[key] = then = then.clone()
            then.add_(own)
            if shared is self._part:
                return
        if key in total:
            total[key].add_(own)
        else:
            total[key] = own.float() if own.dtype in _LOSSY else own.clone()

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
        values = dense(now).detach()
        if same_bits(values, expected):
            self._exact.add(key)
            return True
        room = 4 * unit_roundoff(now.dtype) * (expected.abs() if added is None else expected.abs() + added.sqrt())
        return bool(((values - expected).abs() <= room).all()) or not bool(torch.isfinite(expected).all())

    def _is_untouched(self, key: int, thoroughly: bool) -> bool:
        now, expected = self.gradient(key), self._expected.get(key)
        if now is None or expected is None:
            return now is expected
        # Operations on many sharded gradients at once are counted nowhere.
        counted = not (self.sharded and is_sharded(self.parameters[key]))
        if counted and self._seen.get(key) == (id(now), now._version) and not thoroughly:
            return True
        return self._holds(key)

    def changes(self, where: Location, *, thoroughly: bool) -> tuple[list[Event], list[int]]:
        """What was done to ``.grad`` since the last look by other means than a watched call, and to which parameters.

        ``thoroughly`` compares the values, and not the version counters alone.
        """
        self._exact.clear()
        changed = [key for key in self.parameters if not self._is_untouched(key, thoroughly)]
        if not changed:
            return [], []
        cells = self.cells()
        events = []
        for store in sorted({cells[key] for key in changed if key in cells}):
            filled = [k for k, cell in cells.items() if cell == store and self._expected.get(k) is not None]
            own = [k for k in changed if cells.get(k) == store]
            events.append(self._explain(where, store, own, filled))
        self.look(changed)
        return events, changed

    def unexpected(
        self, keys: Iterable[int], *, thoroughly: bool
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
        """Those of the parameters ``keys`` that have a gradient other than expected: what it is, what it should be."""
        found = {}
        for key in keys:
            now = self.gradient(key) if key in self.parameters else None
            if now is not None and not self._is_untouched(key, thoroughly):
                found[key] = dense(now).detach(), self._expected.get(key)
        return found

    def put_in(self, kind: Hashable, gradients: dict[int, torch.Tensor], factor: float) -> Part:
        """The loop has put gradients into ``.grad``, ``factor`` times each, which belong to the part of this kind."""
        part = self.part_of(kind, 1.0)
        for key, gradient in gradients.items():
            own = gradient.float() if gradient.dtype in _LOSSY else gradient
            before = part.total.get(key)
            part.total[key] = own * factor if before is None else before + own * factor
            self._sharing.pop(key, None)
        return part

    def _explain(self, where: Location, store: str, changed: list[int], filled: list[int]) -> Event:
        stores = frozenset({store})
        if all(is_cleared(self.gradient(key)) for key in changed):
            if set(filled) <= set(changed):
                return ZeroGrad(where=where, stores=stores)
            return Opaque(where=where, stores=stores, reason=PARTLY_CLEARED)
        inner = squares = new = 0.0
        for key in filled:
            now, then = self.gradient(key), self._expected[key]
            if now is None or then is None:
                return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND)
            if not bool(torch.isfinite(then).all()):
                # What has overflowed does not show what was done to it: the others do.
                continue
            a, b = dense(now).detach().double(), then.double()
            inner += float((a * b).sum())
            squares += float((b * b).sum())
            new += float((a * a).sum())
        ratio = inner / squares if squares else 1.0
        residual = math.sqrt(max(new - ratio * inner, 0.0))
        roundoff = unit_roundoff(self.parameters[filled[0]].dtype) if filled else 0.0
        scale = self.scale_inside.get(filled[0], 1.0) if filled else 1.0
        if scale != 1.0 and squares and math.isclose(ratio * scale, 1.0, rel_tol=1e-5):
            self.scale_inside.update(dict.fromkeys(filled, 1.0))
            return Unscale(where=where, stores=stores)
        if squares and ratio and residual <= max(16 * roundoff, 1e-7) * math.sqrt(new):
            operation = Operation.DIVIDE if abs(ratio) < 1 else Operation.MULTIPLY
            return ScaleGrads(where=where, stores=stores, factor=Factor(_tidy(ratio, roundoff), operation))
        return Opaque(where=where, stores=stores, reason=CHANGED_BY_HAND)

    def cleared(self, keys: set[int]) -> tuple[frozenset[str], frozenset[str]]:
        """The stores of which these parameters are all that was filled, and those of which they are only some."""
        cells = self.cells()
        whole: set[str] = set()
        part: set[str] = set()
        for store in self.stores(keys):
            own = {key for key, cell in cells.items() if cell == store}
            left = [k for k in own - keys if not is_cleared(self._expected.get(k))]
            (part if left else whole).add(store)
        for key in keys:
            self.scale_inside.pop(key, None)
        self.look(keys)
        return frozenset(whole), frozenset(part)

    def held(self, optimizer: Optimizer, *, beyond_change: bool = False) -> dict[int, torch.Tensor | None]:
        """An optimizer's gradients as they are, without the grad scaler's scale that is still to be divided out.

        Asked right after a thorough look for changes, so that most are what is expected, and no copy is needed for
        them to hold ``beyond_change`` of a gradient; what is expected grows with the next backward.
        """
        found: dict[int, torch.Tensor | None] = {}
        for parameter in parameters_of(optimizer):
            key, gradient = id(parameter), own_part(parameter.grad)
            if key in self._exact:
                gradient = self._expected[key]
            elif gradient is not None:
                gradient = gradient.detach().clone() if beyond_change else gradient.detach()
            found[key] = self._unscaled(key, gradient)
        return found

    def _unscaled(self, key: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        scale = self.scale_inside.get(key, 1.0)
        return gradient if gradient is None or scale == 1.0 else gradient / scale


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def with_subclasses(kind: type[Any]) -> list[type[Any]]:
    """A class and all that are made from it."""
    return [kind, *(below for own in type.__subclasses__(kind) for below in with_subclasses(own))]


def is_cleared(gradient: torch.Tensor | None) -> bool:
    """Whether there is no gradient, or only zeros."""
    return gradient is None or not bool(dense(gradient).any())


def _tidy(ratio: float, roundoff: float) -> float:
    """A measured ratio, as the reciprocal of a whole number where it is one within what rounding does to a gradient.

    A factor of 0.99995 is no 1: it is a number as any other, and 1 would leave an error that nothing explains.
    """
    if ratio and math.isclose(1 / ratio, round(1 / ratio), rel_tol=4 * roundoff):
        return 1 / round(1 / ratio)
    return ratio


def _grouped(cells: dict[int, str]) -> dict[str, set[int]]:
    """The members of every cell."""
    groups: dict[str, set[int]] = {}
    for key, name in cells.items():
        groups.setdefault(name, set()).add(key)
    return groups
