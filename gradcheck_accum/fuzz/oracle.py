"""What is true of a variant, by plain arithmetic: both engines are compared with it.

The variant is simulated with rational numbers: which micro-batches reach which step, and with which weight. The
generator wrote every factor and knows its role, so nothing has to be inferred from numbers. The oracle neither reads
the rendered source nor uses or repeats any rule of an engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations

from gradcheck_accum.fuzz.tokens import contents
from gradcheck_accum.fuzz.variants import COUNTED, NEUTRAL_NAMES, OPERATORS, PLAIN, Number, Variant
from gradcheck_accum.mistakes import CATALOGUE

ROLES = frozenset({"divisor", "again"})
"""The factors of a variant that are due to accumulation: the division, and a second one.

The others, ``constant`` and ``mean``, are the objective's.
"""


@dataclass(slots=True)
class Stepped:
    """One step: the coefficient of every micro-batch in its gradient, and the micro-batches since the previous step.

    A coefficient multiplies the gradient of a micro-batch's objective: whatever the objective is, in the large batch it
    is the micro-batch's share of the units. ``spoiled`` lists errors of the step other than weights: clipping part of a
    window, a grad scaler's scale that was not removed. ``is_rest`` says that some of the micro-batches since the
    previous step were rejected: whether the large batch includes them is left open.
    """

    gradient: dict[int, Fraction]
    own: tuple[int, ...]
    spoiled: tuple[str, ...] = ()
    is_rest: bool = False


@dataclass(slots=True)
class Simulation:
    """A whole run: the units of every micro-batch, the factor of its mean loss, and every step.

    ``positions`` are the micro-batches' positions in their passes, ``contents`` what each loss is the mean over, if
    micro-batches may have equal contents; ``lost`` are those that reached no step by the end of the run and were not
    rejected. ``second`` says that it is the run of a second model, which has its own objective.
    """

    units: list[int] = field(default_factory=list)
    coefficients: list[Fraction] = field(default_factory=list)
    steps: list[Stepped] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    contents: list[Counter[tuple[int, int]]] = field(default_factory=list)
    lost: tuple[int, ...] = ()
    second: bool = False

    @property
    def is_right(self) -> bool:
        """Whether every step got the gradient of the large batch of all that ran since the previous step."""
        return not self.lost and all(self.is_right_step(step) for step in self.steps)

    def is_right_step(self, step: Stepped) -> bool:
        """Whether one step did."""
        right = self.right(step)
        if step.spoiled or step.gradient.keys() - right.keys():
            return False
        return step.gradient == right or (bool(self.contents) and self._sum(step.gradient) == self._sum(right))

    def right(self, step: Stepped) -> dict[int, Fraction]:
        """The coefficient of each of a step's micro-batches in the large batch."""
        total = sum(self.units[i] for i in step.own)
        return {i: Fraction(self.units[i], total) for i in step.own}

    def has_uneven_weights(self, step: Stepped) -> bool:
        """Whether the units of a step's own micro-batches have different weights."""
        return len({self.coefficients[i] / self.units[i] for i in step.own}) > 1 and bool(self._reached(step))

    def has_a_mean_of_means(self, step: Stepped) -> bool:
        """Whether they do, and the micro-batches have different numbers of units."""
        return self.has_uneven_weights(step) and len({self.units[i] for i in step.own}) > 1

    def has_a_short_step_as_heavy(self) -> bool:
        """Whether a micro-batch of a short step has the same coefficient as one of a longer step."""
        every = [
            (len(step.own), {step.gradient.get(i) for i in step.own}) for step in self.steps if self._reached(step)
        ]
        return any(short < long and one & other for short, one in every for long, other in every)

    @staticmethod
    def _reached(step: Stepped) -> set[int]:
        return step.gradient.keys() & set(step.own)

    def _sum(self, gradient: dict[int, Fraction]) -> dict[tuple[int, int], Fraction]:
        """The coefficient, in a gradient, of each element that the losses average over."""
        total: dict[tuple[int, int], Fraction] = {}
        for i, coefficient in gradient.items():
            for one, times in self.contents[i].items():
                total[one] = total.get(one, Fraction(0)) + coefficient * times / self.units[i]
        return total


class _Run:
    """The state of a run of one variant; the factors named in ``roles`` are due to accumulation."""

    def __init__(self, variant: Variant, store: str, roles: frozenset[str]) -> None:
        self.v = variant
        self.head = store == "head"
        self.roles = roles
        self.seen = Simulation()
        self.contents = contents(variant)
        self.gradient: dict[int, Fraction] = {}
        self.since: list[int] = []
        self.has_rejected = False
        self.scaled: set[int] = set()
        """The micro-batches in the gradient that still contain a grad scaler's scale."""
        self.unscaled = False

    def clear(self) -> None:
        if self.head and self.v.has("GA204"):
            return
        self.gradient = {}

    def reject(self) -> None:
        """The window so far is discarded on purpose."""
        self.clear()
        self.since = []
        self.has_rejected = True

    def backward(self, position: int, window: range) -> None:
        """One micro-batch of a pass; ``window`` are the positions of the window that it belongs to."""
        v = self.v
        if "GA201" in v.mutations:
            self.clear()
        number = len(self.seen.units)
        self.seen.units.append(v.units[position])
        self.seen.positions.append(position)
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
        """The factor of a micro-batch's objective before backward."""
        factors = {
            "divisor": self._divisor(window, position),
            "again": self._again(position),
            **_of_the_objective(self.v),
        }
        product = Fraction(1)
        for name in self.roles & factors.keys():
            product *= factors[name]
        return product

    def _again(self, position: int) -> Fraction:
        if "GA102" in self.v.mutations:
            return Fraction(1, self.v.k)
        return Fraction(1, self.v.rows[position]) if "GA102:rows" in self.v.mutations else Fraction(1)

    def _divisor(self, window: range, position: int) -> Fraction:
        v = self.v
        if v.has("GA101") or v.scale in ("gradients", "whole"):
            return Fraction(1)
        if v.scale in ("share", "total") and not v.has("GA104"):
            return Fraction(v.units[position], sum(v.units[i] for i in window))
        if v.scale == "steps" or v.has("GA103"):
            return Fraction(1, v.k)
        return Fraction(1, len(window))

    def step(self, length: int) -> None:
        """An update; ``length`` is what gradients are divided by, if they are."""
        v = self.v
        gradient = dict(self.gradient)
        if v.scale == "gradients" and not v.has("GA101") and "divisor" in self.roles:
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
        self.seen.steps.append(Stepped(gradient, tuple(self.since), tuple(spoiled), self.has_rejected))
        self.since, self.has_rejected = [], False
        self.gradient = dict(gradient)
        if not v.clears_first and not any(v.has(code) for code in ("GA201", "GA202", "GA203")):
            self.clear()


def _of_the_objective(v: Variant) -> dict[str, Fraction]:
    """The factors of the whole objective."""
    found = {}
    if v.objective.constant is not None:
        value = v.objective.constant.value
        found["constant"] = value if v.objective.operation == "*" else 1 / value
    if v.objective.mean is not None:
        found["mean"] = 1 / v.objective.mean.value
    return found


def simulations(variant: Variant, roles: frozenset[str] = ROLES) -> list[Simulation]:
    """The run of ``variant`` for each of its optimizers' gradients; ``roles`` are the factors due to accumulation."""
    found = [simulate(variant, store, roles) for store in (("model", "head") if variant.pair else ("model",))]
    return [*found, *([_second_rate(variant, int(variant.rate.value))] if variant.rate is not None else [])]


@lru_cache(maxsize=32)
def simulate(variant: Variant, store: str = "model", roles: frozenset[str] = ROLES) -> Simulation:
    """Simulate ``variant``, with the gradients of its model or, if it is a pair, of its head.

    A variant is asked about several times; what is returned must not be changed.
    """
    v = variant
    run = _Run(v, store, roles)
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
            if v.rejects == "batch" and position in v.outliers:
                run.reject()
                continue
            run.backward(position, window)
            count, running = count + 1, running + 1
            if _closes(v, position, count, running):
                if v.rejects == "window" and position in v.outliers:
                    run.reject()
                else:
                    run.step(v.k if v.has("GA103") or not v.remainder else _length(v, position, window))
                count = 0
            if "GA201:late" in v.mutations:
                run.clear()
        left = count if v.boundary == "counter" else v.remainder
        if v.flush == "after" and left and not v.has("GA301"):
            run.step(v.k if v.has("GA103") or not v.remainder else v.remainder)
    run.seen.lost = tuple(run.since)
    return run.seen


def _second_rate(v: Variant, every: int) -> Simulation:
    """The run of the second model, which steps at its own rate."""
    seen = Simulation(second=True)
    since: list[int] = []
    for number in range(v.epochs * v.count):
        seen.units.append(v.rows[number % v.count])
        seen.positions.append(number % v.count)
        seen.coefficients.append(Fraction(1, every))
        since.append(number)
        if (number % v.count + 1) % every == 0:
            seen.steps.append(Stepped({i: Fraction(1, every) for i in since}, tuple(since)))
            since = []
    seen.lost = tuple(since)
    return seen


def _length(v: Variant, position: int, window: range) -> int:
    """What the script divides gradients by at a step inside the loop, if there is a remainder."""
    if v.boundary not in COUNTED:
        return len(window)
    return position % v.k + 1 if v.flush == "or last" else v.k


def _closes(v: Variant, position: int, count: int, running: int) -> bool:
    """Whether a step follows the micro-batch at ``position``."""
    if v.has("GA304") or v.boundary == PLAIN:
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


A_NUMBER_IN_ANOTHER_ROLE = "a bare number may be there for either"
EVERY_MICRO_BATCH_STEPS = "whoever steps at every micro-batch divides by nothing but the objective's constants"

AMBIGUITIES = {
    A_NUMBER_IN_ANOTHER_ROLE: (
        "The objective's constant is written as the number that the accumulation's factor is, and stands where that "
        "could: read so, every step is right, and a right loop has the same source, character by character. A constant "
        "bound to a name of its own is none of these, unless the name says nothing and K has none to be told by."
    ),
    EVERY_MICRO_BATCH_STEPS: (
        "A loop that divides by a constant and steps at every micro-batch (GA304) is plain training with that constant "
        "in its objective: every number of a run is the same, and no step depends on what the constant is called."
    ),
}
"""Wrong loops for which *equivalent* is no false pass, and why neither source nor run shows the mistake."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a variant, and what may and must be reported.

    ``verdict`` is that of the arithmetic; "inconclusive" if there is nothing to decide. ``demanded`` are the codes that
    must be found, none unless exactly one mistake was planted; ``allowed`` those that may be. ``unseen_in_run`` and
    ``unseen_in_source`` leave no trace for one of the engines. ``ambiguity`` is why a wrong loop may pass, a key of
    `AMBIGUITIES`; ``open_to_verify`` says that the steps of a wrong loop cannot be compared, only diagnosed,
    ``level_is_open`` that the size of the error cannot be determined, because a bare number may belong to the
    objective.
    """

    verdict: str
    demanded: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    unseen_in_run: frozenset[str] = frozenset()
    unseen_in_source: frozenset[str] = frozenset()
    ambiguity: str = ""
    open_to_verify: bool = False
    level_is_open: bool = False

    @property
    def in_run(self) -> frozenset[str]:
        """What `verify` must find."""
        return frozenset(c for c in self.demanded - self.unseen_in_run if CATALOGUE[c].dynamic)

    @property
    def in_source(self) -> frozenset[str]:
        """What `lint` must find."""
        return frozenset(c for c in self.demanded - self.unseen_in_source if CATALOGUE[c].shows_in_every_source)


def truth(variant: Variant) -> Truth:
    """What is true of ``variant``."""
    v = variant
    runs = simulations(v)
    planted = frozenset(OPERATORS[name].code for name in v.mutations)
    if not any(run.steps for run in runs):
        return Truth("inconclusive", allowed=planted | _consequences(v, runs))
    right = all(run.is_right for run in runs)
    verdict = "deviates" if not right else "not-equivalent-by-construction" if v.has("GA901") else "equivalent"
    allowed = planted | _consequences(v, runs)
    if v.rate is not None and "GA203" in planted:
        # The second model's gradients are cleared, which the catalogue lists as GA204 for the other optimizer's.
        planted, allowed = planted - {"GA203"} | {"GA204"}, allowed | {"GA204"}
    if len(planted) > 1 and not right:
        # If there are several mistakes, any of them may show.
        allowed |= {code for code, mistake in CATALOGUE.items() if mistake.changes_gradient}
    if right and "GA901" not in planted:
        allowed &= {code for code in allowed if not CATALOGUE[code].changes_gradient} | planted
    # The source of a schedule without a length does not show what it was made for.
    in_source = frozenset({"GA601"} if v.schedule == "decay" else ())
    return Truth(
        verdict,
        demanded=planted
        if len(planted) == 1
        and _shows(v, runs)
        and not _is_the_right_loops(v)
        and not _is_off_by_one(v)
        and not (verdict == "equivalent" and _only_changes_steps(v))
        else frozenset(),
        allowed=allowed,
        unseen_in_run=frozenset({"GA304"} & planted),
        unseen_in_source=in_source | (planted if v.has("GA304") and not _k_is_named(v) else frozenset()),
        ambiguity="" if right else _ambiguity(v),
        # How gradients that are divided later would have been clipped is unknown, and so is the right share of a
        # micro-batch in another window.
        open_to_verify=(v.has("GA401") and v.scale == "gradients")
        or (v.has("GA302") and v.scale in ("share", "total")),
        level_is_open=not right and bool(_of_no_one(v)),
    )


def _only_changes_steps(v: Variant) -> bool:
    """Whether the planted mistakes can only change what a step gets: a skipped micro-batch may have no weight."""
    return all(CATALOGUE[OPERATORS[name].code].changes_gradient for name in v.mutations) and not v.has("GA902")


def _shows(v: Variant, runs: list[Simulation]) -> bool:
    """Whether the planted mistake changes what a step gets, loses more data, or changes the pace of another call."""
    (name,) = v.mutations
    if not (CATALOGUE[OPERATORS[name].code].changes_gradient or v.has("GA502")):
        return True
    if v.has("GA901") or v.has("GA902"):
        return True
    without = simulations(replace(v, mutations=frozenset()))
    return any(a.steps != b.steps or len(a.lost) > len(b.lost) for a, b in zip(runs, without, strict=True))


def _is_the_right_loops(v: Variant) -> bool:
    """Whether ``v`` would be the same loop without its mistake if one of its bare numbers had the other role.

    Errors of that loop too, such as a window that lost its micro-batches, are not due to the mistake; nor is the number
    that an undivided loop then divides a remainder by (GA103). If every step is then right, whatever its windows were
    meant to hold, all that may be wrong is that micro-batches never reached one (GA301).
    """
    others = [frozenset[str](), *([frozenset({"GA103"})] if v.has("GA101") and v.remainder else [])]
    alike = [simulations(replace(v, mutations=mutations)) for mutations in others]
    moved = _in_other_roles(v)
    only_loses = [own for own in moved if all(run.is_right_step(step) for run in own for step in run.steps)]
    if only_loses and _only_changes_steps(v) and not v.has("GA301"):
        return True
    return any(_are_alike(own, other) for own in moved for other in alike)


def _reads_as_divided(v: Variant) -> bool:
    """Whether an undivided loop has the same steps as the divided one if one of its bare numbers had the other role."""
    others = [v.mutations - {"GA101"}, v.mutations - {"GA101"} | {"GA103"}]
    alike = [simulations(replace(v, mutations=mutations)) for mutations in others]
    return any(_are_alike(own, other) for own in _in_other_roles(v) for other in alike)


def _in_other_roles(v: Variant) -> list[list[Simulation]]:
    """The runs of ``v`` if some of its bare numbers had the other role, for every choice of them."""
    return [simulations(v, ROLES ^ frozenset(names)) for names in _subsets(_of_no_one(v))]


def _is_off_by_one(v: Variant) -> bool:
    """Whether an undivided loop has the same source as one that divides by K and counts to K + 1 or K - 1."""
    constant = v.objective.constant
    bare = (
        constant is not None and "constant" in _of_no_one(v) and v.k_from == "literal" and v.objective.operation == "/"
    )
    return "GA101" in v.mutations and bare and constant is not None and abs(constant.value - v.k) == 1


def _are_alike(runs: list[Simulation], others: list[Simulation]) -> bool:
    """Whether two runs have the same steps and lose the same micro-batches."""
    return all(a.steps == b.steps and a.lost == b.lost for a, b in zip(runs, others, strict=True))


def _consequences(v: Variant, runs: list[Simulation]) -> frozenset[str]:
    """Codes of facts about these runs, whichever mistake causes them."""
    found = {"GA302"} if _is_off_by_one(v) else set()
    if any(run.lost for run in runs):
        found.add("GA301")
    steps = [(run, step) for run in runs for step in run.steps]
    if any(run.has_a_mean_of_means(step) for run, step in steps):
        found.add("GA104")
    if any(run.has_uneven_weights(step) for run, step in steps):
        found |= {"GA101", "GA102", "GA103"}
    if any(run.has_a_short_step_as_heavy() for run in runs):
        found.add("GA103")
    if v.metrics and v.has("GA101") and _reads_as_divided(v):
        # What is summed for display is then a loss that was divided.
        found.add("GA802")
    if any(len(step.gradient.keys() - set(step.own)) > 0 for _, step in steps):
        # With stale entries in the gradient, a clip after the step comes before the rest of its window.
        found |= {"GA401"} if v.has("GA402") else set()
    if v.rejects == "batch" and v.outliers and not all(run.is_right for run in runs):
        # A window that lost its micro-batches can be reported in several ways; any of them will do.
        found |= {"GA101", "GA102", "GA103", "GA201", "GA202", "GA301", "GA303"}
    return frozenset(found)


def _k_is_named(v: Variant) -> bool:
    """Whether the source has K under a name of its own."""
    return v.k_from in ("K", "argument") and "names that mislead" not in v.disguise


def _ambiguity(v: Variant) -> str:
    """Why neither source nor run shows that ``v`` is wrong; empty if they do."""
    if v.has("GA304"):
        return EVERY_MICRO_BATCH_STEPS
    is_right = any(all(run.is_right for run in moved) for moved in _in_other_roles(v))
    return A_NUMBER_IN_ANOTHER_ROLE if is_right else ""


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    """Every nonempty subset of ``names``."""
    return chain.from_iterable(combinations(names, many) for many in range(1, len(names) + 1))


def _of_no_one(v: Variant) -> list[str]:
    """The factors of ``v`` whose role (accumulation or objective) the source does not show."""
    bare_k = v.k_from == "literal"

    def is_bare(number: Number | None) -> bool:
        return number is not None and (not number.name or (bare_k and number.name in NEUTRAL_NAMES))

    o = v.objective
    found = [name for name, number in (("constant", o.constant), ("mean", o.mean)) if is_bare(number)]
    by_k = v.scale == "steps" or v.has("GA103") or (v.has("GA104") and not v.remainder)
    found += ["divisor"] if bare_k and by_k and not v.has("GA101") else []
    return [*found, *(["again"] if bare_k and "GA102" in v.mutations else [])]
