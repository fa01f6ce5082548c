"""What every micro-batch of a variant weighs, by plain arithmetic: what both engines are held against.

The variant is carried out here with numbers alone: a gradient is what each micro-batch's mean loss counts in it.
Nothing of this reads the source that was rendered, and nothing of it comes from an engine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction

from gradcheck_accum.fuzz.tokens import contents
from gradcheck_accum.fuzz.variants import COUNTED, OPERATORS, Variant
from gradcheck_accum.mistakes import CATALOGUE


@dataclass(slots=True)
class Stepped:
    """One step: what every micro-batch counted in its gradient, and the micro-batches that ran since the one before.

    ``spoiled`` says that something else than weights is wrong with it: a clip of a part, a grad scaler's scale inside.
    """

    gradient: dict[int, Fraction]
    own: tuple[int, ...]
    spoiled: tuple[str, ...] = ()


@dataclass(slots=True)
class Simulation:
    """A whole run: the units of every micro-batch, what its mean loss was multiplied by, and every step.

    ``contents`` is what each loss is the mean over, where micro-batches may hold the same; ``lost`` are the
    micro-batches that had no step when it ended.
    """

    units: list[int] = field(default_factory=list)
    coefficients: list[Fraction] = field(default_factory=list)
    steps: list[Stepped] = field(default_factory=list)
    contents: list[Counter[tuple[int, int]]] = field(default_factory=list)
    lost: tuple[int, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether every step got the gradient of the large batch of all that ran since the step before."""
        return not self.lost and all(self.is_right_step(step) for step in self.steps)

    def is_uneven(self, step: Stepped) -> bool:
        """Whether a unit of one of a step's own micro-batches was to count more than one of another."""
        each = {self.coefficients[i] / self.units[i] for i in step.own}
        reached = any(i in step.gradient for i in step.own)
        return reached and len(each) > 1 and len({self.units[i] for i in step.own}) > 1

    def flushes_a_remainder_as_full(self, k: int) -> bool:
        """Whether the last step got fewer than ``k`` micro-batches, each as heavy as the more of the step before."""
        if self.lost or len(self.steps) < 2:
            return False
        if len(self.steps[-1].own) >= min(k, len(self.steps[-2].own)):
            return False
        last, before = (self._weights(step) for step in self.steps[-2:])
        return len(last | before) == 1

    def _weights(self, step: Stepped) -> set[Fraction]:
        """What a step's own micro-batches count, those that were cleared as well; nothing where all of them were."""
        divided = {step.gradient[i] / self.coefficients[i] for i in step.own if i in step.gradient}
        return {self.coefficients[i] * by for i in step.own for by in divided}

    def is_right_step(self, step: Stepped) -> bool:
        """Whether one step did."""
        total = sum(self.units[i] for i in step.own)
        right = {i: Fraction(self.units[i], total) for i in step.own}
        if step.spoiled or step.gradient.keys() - right.keys():
            return False
        return step.gradient == right or (bool(self.contents) and self._sum(step.gradient) == self._sum(right))

    def _sum(self, gradient: dict[int, Fraction]) -> dict[tuple[int, int], Fraction]:
        """What each of the things that losses are means over counts in a gradient."""
        total: dict[tuple[int, int], Fraction] = {}
        for i, coefficient in gradient.items():
            for one, times in self.contents[i].items():
                total[one] = total.get(one, Fraction(0)) + coefficient * times / self.units[i]
        return total


class _Run:
    """The state of a run of one variant."""

    def __init__(self, variant: Variant, store: str) -> None:
        self.v = variant
        self.head = store == "head"
        self.seen = Simulation()
        self.contents = contents(variant)
        self.gradient: dict[int, Fraction] = {}
        self.since: list[int] = []
        self.scaled: set[int] = set()
        """The micro-batches in the gradient that still hold a grad scaler's scale."""
        self.unscaled = False

    def clear(self) -> None:
        if self.head and self.v.has("GA204"):
            return
        self.gradient = {}

    def backward(self, position: int, window: range) -> None:
        """One micro-batch of a pass; ``window`` are the positions of the window that it belongs to."""
        v = self.v
        if "GA201" in v.mutations:
            self.clear()
        number = len(self.seen.units)
        self.seen.units.append(v.units[position])
        self.seen.contents += self.contents[position : position + 1]
        self.since.append(number)
        self.seen.coefficients.append(self.coefficient(position, window))
        self.gradient[number] = self.seen.coefficients[-1]
        if v.amp == "scaler":
            self.scaled.add(number)
        if v.has("GA502") and not self.head and position % v.k == 0:
            self.scaled.clear()
            self.unscaled = True

    def coefficient(self, position: int, window: range) -> Fraction:
        """What a micro-batch's mean loss is multiplied by before backward."""
        v = self.v
        again = Fraction(1)
        if "GA102" in v.mutations:
            again = Fraction(1, v.k)
        elif "GA102:rows" in v.mutations:
            again = Fraction(1, v.rows[position])
        if v.has("GA101"):
            return again
        if v.scale == "gradients":
            return again
        if v.scale in ("share", "total") and not v.has("GA104"):
            return again * Fraction(v.units[position], sum(v.units[i] for i in window))
        if v.scale == "steps" or v.has("GA103"):
            return again * Fraction(1, v.k)
        return again * Fraction(1, len(window))

    def step(self, length: int) -> None:
        """An update; ``length`` is what gradients are divided by, where they are."""
        v = self.v
        gradient = dict(self.gradient)
        if v.scale == "gradients" and not v.has("GA101"):
            gradient = {i: c / length for i, c in gradient.items()}
        if v.has("GA202"):
            self.clear()
            gradient = {} if not (self.head and v.has("GA204")) else gradient
        spoiled = []
        if v.has("GA401") and not self.head and len(gradient) > 1:
            spoiled.append("clipped early")
        if v.has("GA501") and not self.head:
            spoiled.append("clipped while scaled")
        if not v.has("GA503") and not self.unscaled:
            self.scaled.clear()
        self.unscaled = False
        if self.scaled & gradient.keys():
            spoiled.append("the scale is inside")
        self.seen.steps.append(Stepped(gradient, tuple(self.since), tuple(spoiled)))
        self.since = []
        self.gradient = dict(gradient)
        if not v.clears_first and not any(v.has(code) for code in ("GA201", "GA202", "GA203")):
            self.clear()


def simulations(variant: Variant) -> list[Simulation]:
    """The run of ``variant`` for each of its optimizers' gradients."""
    return [simulate(variant, store) for store in (("model", "head") if variant.pair else ("model",))]


def simulate(variant: Variant, store: str = "model") -> Simulation:
    """Carry out ``variant``, with the gradients of its model or, where it is a pair, of its head."""
    v = variant
    run = _Run(v, store)
    running = 0
    for _ in range(v.epochs):
        count = 0
        for position in range(v.count):
            start = position // v.k * v.k
            window = range(start, min(start + v.k, v.count))
            if v.has("GA303") and position == v.skipped:
                continue
            opens = running % v.k == 0 if v.boundary == "running count" else position == start
            if v.clears_first and not v.has("GA203") and opens:
                run.clear()
            run.backward(position, window)
            count, running = count + 1, running + 1
            if _closes(v, position, count, running):
                run.step(v.k if v.has("GA103") or not v.remainder else _length(v, position, window))
                count = 0
            if "GA201:late" in v.mutations:
                run.clear()
        left = count if v.boundary == "counter" else v.remainder
        if v.flush == "after" and left and not v.has("GA301"):
            run.step(v.k if v.has("GA103") or not v.remainder else v.remainder)
    run.seen.lost = tuple(run.since)
    return run.seen


def _length(v: Variant, position: int, window: range) -> int:
    """What the script divides gradients by at a step inside the loop, where there is a remainder."""
    if v.boundary not in COUNTED:
        return len(window)
    return position % v.k + 1 if v.flush == "or last" else v.k


def _closes(v: Variant, position: int, count: int, running: int) -> bool:
    """Whether a step follows the micro-batch at ``position``."""
    if v.has("GA304"):
        return True
    if v.boundary == "running count":
        return running % v.k == 0
    if v.boundary not in COUNTED:
        return (position + 1) % v.k == 0 or position + 1 == v.count
    if v.flush == "or last" and not v.has("GA301") and position + 1 == v.count:
        return True
    off = v.has("GA302")
    if v.boundary == "counter":
        return count > v.k if off else count == v.k
    if v.boundary == "i from 1":
        return (position + 1 + off) % v.k == 0
    return (position + (0 if off else 1)) % v.k == 0


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is to be found in a variant: the verdict, and the codes of its mistakes.

    ``hidden`` are mistakes that need not show beside the others: they may be told all the same.
    ``unseen_in_run`` and ``unseen_in_source`` are those of ``codes`` that leave no trace for one of the engines.
    ``may_be_open`` says that verify need not compare the steps that are wrong, but must diagnose them all the same.
    """

    verdict: str
    codes: frozenset[str]
    hidden: frozenset[str] = frozenset()
    unseen_in_run: frozenset[str] = frozenset()
    unseen_in_source: frozenset[str] = frozenset()
    may_be_open: bool = False

    @property
    def in_run(self) -> frozenset[str]:
        """What `verify` must find."""
        return frozenset(c for c in self.codes - self.unseen_in_run if CATALOGUE[c].dynamic)

    @property
    def in_source(self) -> frozenset[str]:
        """What `lint` must find."""
        return frozenset(c for c in self.codes - self.unseen_in_source if CATALOGUE[c].shows_in_every_source)


def expect(variant: Variant) -> Expectation:
    """What both engines must say of ``variant``.

    A planted mistake counts if the run without it differs in what a step gets or in the pace of its other calls:
    one that changes nothing beside another hides behind it.
    """
    if _is_whole_one_late(variant):
        return expect(replace(variant, k=variant.k + 1, mutations=frozenset()))
    runs = simulations(variant)
    codes, planted = set(), {OPERATORS[name].code for name in variant.mutations}
    for name in variant.mutations:
        without = simulations(replace(variant, mutations=variant.mutations - {name}))
        moves = any(a.steps != b.steps or a.lost != b.lost for a, b in zip(runs, without, strict=True))
        if moves or not _moves_weights(OPERATORS[name].code):
            codes.add(OPERATORS[name].code)
    # Shares that differ are a mean of means only where the counts do, planted or not.
    codes.discard("GA104")
    if any(run.is_uneven(step) for run in runs for step in run.steps):
        codes.add("GA104")
    if any(run.lost for run in runs):
        codes.add("GA301")
    # A remainder is weighed like a full window where it is flushed, planted or not: one that leaks is no window.
    codes.discard("GA103")
    if not variant.has("GA101") and any(run.flushes_a_remainder_as_full(variant.k) for run in runs):
        codes.add("GA103")
    if variant.has("GA101"):
        # What is shown was not scaled either.
        codes.discard("GA802")
        planted.discard("GA802")
    if {"GA203", "GA402"} <= codes and any(len(run.steps) > 1 for run in runs):
        # Never cleared, gradients are still there after the step: they are clipped before the next ones come.
        codes.add("GA401")
    shown = codes - _hidden(variant, runs)
    hidden = (planted | codes) - shown
    # A run without a tape shows no names: where every micro-batch steps, each division may be the objective's.
    in_run = frozenset({"GA304"} if variant.has("GA304") else ())
    # The source of a schedule without a length does not say what it was made for, nor does that of a while loop how
    # many passes there are, where a remainder that has no step leaves one step out in each.
    unsaid = variant.schedule == "decay" or (variant.boundary == "while" and _left_out(variant, runs) > 1)
    in_source = frozenset({"GA601"} if unsaid else ())
    if not any(run.steps for run in runs):
        return Expectation("inconclusive", frozenset(), frozenset(planted | codes))
    if not in_run and not all(run.is_right for run in runs):
        verdict = "deviates"
    else:
        verdict = "not-equivalent-by-construction" if variant.has("GA901") else "equivalent"
    # What a clip would have made of gradients that are divided after it is not known.
    may_be_open = variant.has("GA401") and variant.scale == "gradients"
    return Expectation(verdict, frozenset(shown), frozenset(hidden), in_run, in_source, may_be_open)


def _is_whole_one_late(v: Variant) -> bool:
    """Whether a loop's mistakes make another right: it steps one late, and divides by rows that are one more than K.

    Nothing tells it from a loop with that many steps in a window, and 1/K in its objective.
    """
    if v.mutations != {"GA302", "GA102:rows"} or v.boundary != "counter" or set(v.rows) != {v.k + 1}:
        return False
    return v.scale == "steps" or not v.remainder


def _left_out(v: Variant, runs: list[Simulation]) -> int:
    """By how many steps a run falls short of those that its windows would make, or goes beyond."""
    return max(abs(len(run.steps) - v.epochs * -(-v.count // v.k)) for run in runs)


_STEPS_OF_A_LEAK = 3
"""Steps at which more and more losses are held, before that is no accident."""

_OF_WEIGHT = frozenset({"GA101", "GA102", "GA103", "GA104"})


def _hidden(v: Variant, runs: list[Simulation]) -> set[str]:
    """Planted mistakes that nothing shows any more beside the others."""
    hidden: set[str] = set()
    reached = any(set(step.gradient) & set(step.own) for run in runs for step in run.steps)
    if not reached:
        # Nothing of any window reaches its step: what it weighs, or should, shows nowhere.
        hidden |= {*_OF_WEIGHT, "GA303"}
    if v.has("GA101"):
        # A sum that nothing divides is as short as its window: none that is left out was counted.
        hidden |= {"GA303"}
    if v.boundary == "counter" and (not reached or v.has("GA101") or v.has("GA102")):
        # Windows that all close late are as long as one another, and no division says how long they should be.
        hidden |= {"GA302"}
    if v.has("GA101") and any(_usual_length(run) != v.k for run in runs):
        # Nor does it where the windows that opened short, or ended so, hold more than the others.
        hidden |= {"GA302"}
    if any(_is_mixed(v, step) for run in runs for step in run.steps):
        # Divided by what two windows hold: which of the two was meant can not be told.
        hidden |= _OF_WEIGHT
    if all(len(run.units) <= len(run.steps) + v.epochs for run in runs):
        # So few micro-batches that once for each step and each pass is as often.
        hidden |= {"GA601", "GA602"}
    # A list shows no passes when it runs.
    passes = v.epochs if v.data_loader else 1
    if v.schedule == "steps" and _left_out(v, runs) > passes:
        # The steps that were dropped are more than one for each pass: what the schedule was made for is another number.
        hidden |= {"GA601"}
    if all(len(run.steps) <= v.epochs for run in runs):
        # A schedule that has moved once in a pass may be one that moves once per pass.
        hidden |= {"GA603"}
    if all(len(run.steps) < _STEPS_OF_A_LEAK for run in runs):
        # Fewer may be a list that is about to be used.
        hidden |= {"GA801"}
    if v.has("GA203"):
        hidden |= {"GA402"}
    if v.has("GA102") or v.has("GA302") or v.has("GA303"):
        # What is shown is 1/K of the mean loss only where K divides each of them once, and all of them ran.
        hidden |= {"GA802"}
    if any(len(run.units) < v.count * v.epochs for run in runs):
        # Fewer micro-batches than the schedule was made for: training may have been cut short, not the schedule.
        hidden |= {"GA603"}
    return hidden


def _usual_length(run: Simulation) -> int:
    """How long the windows are that hold the most micro-batches together, the longer ones of two that hold as many."""
    lengths = Counter(len(step.own) for step in run.steps)
    return max(lengths, key=lambda length: (length * lengths[length], length), default=0)


def _is_mixed(v: Variant, step: Stepped) -> bool:
    """Whether a step's own losses were divided by the counts of several windows."""
    if v.has("GA101") or v.has("GA103") or v.scale in ("steps", "gradients"):
        return False
    starts = {number % v.count // v.k * v.k for number in step.own}
    counted = v.scale in ("share", "total") and not v.has("GA104")
    return len({sum(v.units[s : s + v.k]) if counted else len(v.units[s : s + v.k]) for s in starts}) > 1


def _moves_weights(code: str) -> bool:
    return CATALOGUE[code].moves_gradient or code == "GA502"
