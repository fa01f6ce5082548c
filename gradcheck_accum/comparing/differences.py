"""Differences between two runs on the same data that no gradient shows: learning rates, and numbers that are read.

A loss that is read once a step in both runs is compared directly. One that is read at every micro-batch here and once
in the reference is right if the sum or the mean of a step's numbers is the reference's: which of the two the script
computes in Python is not seen. A gradient norm is compared where both runs read it as often, and where the gradients
themselves are equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradcheck_accum.comparing.lockstep import Course, Lockstep, Met
from gradcheck_accum.comparing.messages import NumberRead
from gradcheck_accum.results.comparison import Difference

_SAME_RATE = 1e-9


@dataclass(frozen=True, slots=True)
class _Window:
    """The numbers of one window that both runs read; ``micro_batches`` are those that it has here.

    ``allowed`` is the tolerance for its losses, ``norms_allowed`` that for its gradient norms; None if they are not
    equal.
    """

    mine: Sequence[NumberRead]
    theirs: Sequence[NumberRead]
    micro_batches: int
    allowed: float
    norms_allowed: float | None


def differences(
    course: Course, lockstep: Lockstep, number: int, *, is_right: bool
) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
    """The differences of run ``number``, and notes on those that need not be mistakes.

    ``is_right`` says that its gradients are.
    """
    met = list(_in_a_row(course))
    mine, theirs = lockstep.reads[number], lockstep.reads[lockstep.reference]
    windows = [
        _Window(
            mine.get(one.mine.index, ()),
            theirs.get(one.theirs.index, ()),
            one.mine.micro_batches_of_reader,
            one.mine.loss_tolerance,
            _allowed_of_norms(one),
        )
        for one in met
        if one.same_weights and one.same_losses and not (one.mine.random or one.theirs.random)
    ]
    found, notes = _losses(windows, is_right=is_right)
    updates, more = _updates(met)
    differing = (*_optimizers(course, lockstep, number), *_rates(met), *_settings(met), *updates)
    return (*differing, *found, *_norms(windows)), (*notes, *more)


def _allowed_of_norms(met: Met) -> float | None:
    """The tolerance for norms of a step's gradient; None where the gradients themselves differ."""
    numbers = met.numbers
    if numbers is None:
        return None
    both = [numbers.used] if numbers.before_clip is None else [numbers.used, numbers.before_clip]
    is_equal = all(apart.error is not None and apart.error <= apart.allowed for apart in both)
    return max(apart.allowed for apart in both) if is_equal else None


def _in_a_row(course: Course) -> Iterator[Met]:
    """The steps on the same data, up to the first place where the runs make different steps."""
    shift = None
    for met in course.met:
        apart = met.mine.index - met.theirs.index
        after_cut = bool(course.cuts) and course.cuts[0].at.index < met.mine.index
        if after_cut or (shift is not None and apart != shift):
            return
        shift = apart
        yield met


def _rates(met: Sequence[Met]) -> list[Difference]:
    other = [m for m in met if not _are_close(m.mine.rates, m.theirs.rates)]
    if not other:
        return []
    first = other[0]
    mine, theirs = (", ".join(f"{rate:.6g}" for rate in rates) for rates in (first.mine.rates, first.theirs.rates))
    message = (
        f"step {first.mine.index} uses a learning rate of {mine}, the reference {theirs} ({len(other)} of {len(met)} "
        "steps)"
    )
    return [Difference("learning rate", message, first.mine.path, first.mine.line)]


def _settings(met: Sequence[Met]) -> Iterator[Difference]:
    """The settings of the optimizer, except the learning rate, that differ from the reference's."""
    other: dict[str, list[Met]] = {}
    for one in met:
        theirs = dict(one.theirs.settings)
        for name, values in one.mine.settings:
            if name in theirs and values != theirs[name]:
                other.setdefault(name, []).append(one)
    for name, steps in other.items():
        first = steps[0]
        mine, theirs_ = (_shown(dict(each.settings)[name]) for each in (first.mine, first.theirs))
        message = (
            f"step {first.mine.index} uses {name}={mine}, the reference {name}={theirs_} ({len(steps)} of {len(met)} "
            "steps)"
        )
        yield Difference("optimizer", message, first.mine.path, first.mine.line)


def _shown(values: Sequence[object]) -> str:
    """The values of a setting, of all groups of parameters; once where all have the same."""
    return ", ".join(map(str, values if len(set(values)) > 1 else values[:1]))


def _optimizers(course: Course, lockstep: Lockstep, number: int) -> Iterator[Difference]:
    """An optimizer that steps in only one of the two runs, where they diverge."""
    if course.parted_at is None:
        return
    mine, theirs = course.parted_at
    here, there = ({arrival.optimizer for arrival in lockstep.arrivals[n]} for n in (number, lockstep.reference))
    only_here, only_there = mine.optimizer not in there, theirs.optimizer not in here
    if only_here and only_there:
        said = f"step {mine.index} is made by {mine.optimizer}, that of the reference by {theirs.optimizer}"
    elif only_here:
        said = f"step {mine.index} is made by {mine.optimizer}, which makes no step in the reference"
    elif only_there:
        said = f"{theirs.optimizer} makes no step here: in the reference it makes step {theirs.index}"
    else:
        return
    yield Difference("optimizer", said, mine.path, mine.line)


def _updates(met: Sequence[Met]) -> tuple[list[Difference], list[str]]:
    """Updates that differ though the gradients are equal, and a note on those where that could not be decided.

    Where the learning rate or another setting differs, so does the update, and the cause is reported already.
    """
    alike = [one for one in met if one.same_weights and _allowed_of_norms(one) is not None]
    alike = [one for one in alike if _are_close(one.mine.rates, one.theirs.rates)]
    alike = [one for one in alike if dict(one.mine.settings) == dict(one.theirs.settings)]
    moved = [(one, one.numbers.update) for one in alike if one.numbers is not None and one.numbers.update is not None]
    wrong = [(one, update) for one, update in moved if update.is_same is False]
    open_ = [update.error for _, update in moved if update.is_same is None]
    found, notes = [], []
    if wrong:
        first, update = wrong[0]
        size = "" if update.error is None else f" by {update.error:.2g} of its norm"
        ratio = "" if update.ratio is None else f", {update.ratio:.4g} times as long"
        message = (
            f"step {first.mine.index} makes another update of the same gradient: it differs from the reference's{size}"
            f"{ratio} ({len(wrong)} of {len(met)} steps)"
        )
        found.append(Difference("update", message, first.mine.path, first.mine.line))
    elif open_ and not any(update.ratio is not None and update.is_same for _, update in moved):
        # An optimizer is copied at the next step only: what that one shows of it holds for this.
        largest = max((error for error in open_ if error is not None), default=None)
        size = "" if largest is None else f" by up to {largest:.2g} of its norm"
        notes.append(
            f"the updates of {len(open_)} of {len(met)} steps differ from the reference's{size}, and whether rounding "
            "explains that could not be determined"
        )
    return found, notes


def _are_close(mine: Sequence[float], theirs: Sequence[float]) -> bool:
    return len(mine) == len(theirs) and all(
        math.isclose(a, b, rel_tol=_SAME_RATE) for a, b in zip(mine, theirs, strict=True)
    )


def _losses(windows: Sequence[_Window], *, is_right: bool) -> tuple[list[Difference], list[str]]:
    found, notes = [], []
    for path, line in _lines(windows, of_gradient=False):
        pairs = [pair for window in windows for pair in _pairs(window, path, line)]
        wrong = [pair for pair in pairs if not pair.is_same(1.0)]
        if not wrong:
            continue
        said = _factor(pairs)
        if said:
            right = "; the gradient is right" if is_right else ""
            found.append(Difference("loss", f"the loss that the script reads is {said}{right}", path, line))
        else:
            ratios = [pair.ratio for pair in pairs]
            notes.append(
                f"the loss that the script reads at line {line} is {min(ratios):.3g} to {max(ratios):.3g} times the "
                "reference's on the same data: it may be the loss of a single micro-batch"
            )
    return found, notes


def _norms(windows: Sequence[_Window]) -> Iterator[Difference]:
    """The gradient norms that are wrong by one factor where they are read, though the gradients are equal."""
    for path, line in _lines(windows, of_gradient=True):
        pairs: list[_Pair] = []
        for window in windows:
            mine, theirs = (_values(reads, path, line, True) for reads in (window.mine, window.theirs))
            if window.norms_allowed is not None and len(mine) == len(theirs):
                for own, other in zip(mine, theirs, strict=True):
                    pairs += _pair(own, other, window.norms_allowed, window.micro_batches)
        said = _factor(pairs) if any(not pair.is_same(1.0) for pair in pairs) else ""
        if said:
            message = f"the gradient norm that the script reads is {said}; the gradient is right"
            yield Difference("gradient norm", message, path, line)


def _lines(windows: Sequence[_Window], *, of_gradient: bool) -> list[tuple[str, int]]:
    """Where numbers of one kind are read."""
    reads = (read for window in windows for read in window.mine)
    return sorted({(read.path, read.line) for read in reads if read.is_of_gradient is of_gradient})


def _values(reads: Sequence[NumberRead], path: str, line: int, of_gradient: bool) -> list[float]:
    """The numbers of one kind that are read at a line."""
    return [read.value for read in reads if (read.path, read.line, read.is_of_gradient) == (path, line, of_gradient)]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A number that was read here, as a multiple of the reference's, and how exact that is."""

    ratio: float
    allowed: float
    micro_batches: int

    def is_same(self, factor: float) -> bool:
        """Whether it is ``factor`` times the reference's."""
        return math.isclose(self.ratio, factor, rel_tol=self.allowed)


def _pairs(window: _Window, path: str, line: int) -> Iterator[_Pair]:
    mine, theirs = (_values(reads, path, line, False) for reads in (window.mine, window.theirs))
    if len(mine) == len(theirs):
        pairs = list(zip(mine, theirs, strict=True))
    elif len(theirs) == 1 and len(mine) == window.micro_batches:
        total = math.fsum(mine)
        is_sum = math.isclose(total, theirs[0], rel_tol=window.allowed)
        pairs = [(total if is_sum else total / len(mine), theirs[0])]
    else:
        return
    for own, other in pairs:
        yield from _pair(own, other, window.allowed, window.micro_batches)


def _pair(own: float, other: float, allowed: float, micro_batches: int) -> Iterator[_Pair]:
    """One number as a multiple of the other, where that is defined."""
    if other and math.isfinite(own) and math.isfinite(other):
        yield _Pair(own / other, allowed, micro_batches)


def _factor(pairs: Sequence[_Pair]) -> str:
    """The factor that all of them are wrong by, in words; empty where there is no common factor."""
    several = [pair for pair in pairs if pair.micro_batches > 1]
    if not several:
        return ""
    many, _ = Counter(pair.micro_batches for pair in several).most_common(1)[0]
    if all(pair.is_same(pair.micro_batches) for pair in several):
        return f"{many} times too large: as many times as a step has micro-batches"
    if all(pair.is_same(1 / pair.micro_batches) for pair in several):
        return f"{many} times too small: it is divided by the number of micro-batches"
    first = pairs[0].ratio
    if len(pairs) > 1 and all(pair.is_same(first) for pair in pairs):
        return f"{first:.4g} times the reference's on the same data, at every step"
    return ""
