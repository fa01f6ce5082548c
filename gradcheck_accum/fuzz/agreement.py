"""Runs both engines on one variant, and reports where they disagree with each other or with the arithmetic."""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import math
import warnings
from dataclasses import dataclass, replace
from fractions import Fraction

from gradcheck_accum.fuzz.oracle import Simulation, Stepped, Truth, simulations, truth
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.variants import OPERATORS, Variant
from gradcheck_accum.ledger.events import Reduction
from gradcheck_accum.ledger.windows import Entry, Fate, Ledger, Window
from gradcheck_accum.lint.examination.document import open_document
from gradcheck_accum.lint.examination.examine import Examination, examine
from gradcheck_accum.lint.fixes import fixed
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

PATH = "variant.py"

ROUNDING = 0.01
"""Weights within this are the same: a division in bfloat16 is no more exact, and no mistake is as small."""

REACHING = (Fate.LIVE, Fate.STALE)
"""The fates of entries that reached a step."""

SCALE = frozenset({"GA101", "GA102", "GA103", "GA104", "GA302", "GA303", "GA304"})
"""The codes that lint can only report if it knows every factor of a loss."""


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a ledger as both engines see it: the micro-batch (numbered by its backward), its fate, its weight.

    ``coefficient`` is the factor of the micro-batch's mean loss in the gradient; None if the engine does not know it.
    """

    micro_batch: int
    fate: Fate
    coefficient: float | None

    def agrees(self, other: Line) -> bool:
        """Whether two entries are the same, as far as both are known."""
        if (self.micro_batch, self.fate) != (other.micro_batch, other.fate):
            return False
        if self.fate not in REACHING:
            return True  # a lost micro-batch may have been scaled unseen
        one, another = self.coefficient, other.coefficient
        return one is None or another is None or math.isclose(one, another, rel_tol=ROUNDING)

    def __str__(self) -> str:
        weight = "?" if self.coefficient is None else f"{self.coefficient:.4g}"
        return f"{self.micro_batch}:{weight}" + ("" if self.fate is Fate.LIVE else f" {self.fate.value}")


@dataclass(frozen=True, slots=True)
class Page:
    """One window as both engines see it: the line of its step (0 if there is none) and its entries."""

    step: int
    lines: tuple[Line, ...]

    def agrees(self, other: Page) -> bool:
        """Whether two windows are the same."""
        return (
            self.step == other.step
            and len(self.lines) == len(other.lines)
            and all(one.agrees(another) for one, another in zip(self.lines, other.lines, strict=True))
        )

    def __str__(self) -> str:
        closed = f"step at line {self.step}" if self.step else "no step"
        return f"{closed}: {', '.join(str(line) for line in self.lines)}"


Book = tuple[Page, ...]
"""The windows of one store; those that no step closed come last."""


def books(ledger: Ledger) -> list[Book]:
    """The ledger of every store, in a canonical order, as stores have different names in each engine."""
    order: dict[int, int] = {}
    for event in ledger.trace.events:
        if hasattr(event, "micro_batch"):
            order.setdefault(event.micro_batch, len(order))
    found: list[Book] = []
    for optimizer, store in ledger.accounts():
        every = (*ledger.windows, *ledger.abandoned)
        own = [w for w in every if (w.optimizer, w.store) == (optimizer, store)]
        found.append(tuple(_page(w, order, ledger.trace.assumed_units) for w in own))
    return sorted(found, key=repr)


def _page(window: Window, order: dict[int, int], assumed: float | None) -> Page:
    # A step that the grad scaler skipped had non-finite gradients: they do not show whether they were divided.
    unknown = window.unknown or (window.step is not None and window.step.skipped)
    lines = tuple(
        Line(order[e.backward.micro_batch], e.fate, None if unknown else _coefficient(e, assumed))
        for e in window.entries
    )
    return Page(window.step.where.line if window.step else 0, lines)


def _coefficient(entry: Entry, assumed: float | None) -> float | None:
    """The factor of the first term of an entry's loss, as a mean over its units.

    If the source does not show how many rows a batch has, the number that lint assumes is not a claim.
    """
    term = entry.backward.terms[0]
    factors = [factor.value for factor in (*term.factors, *(scaling.factor for scaling in entry.grad_factors))]
    units = [term.units] if term.reduction is Reduction.SUM else []
    claimed = None if assumed is None else 1 / assumed
    known = [value for value in (*factors, *units) if value is not None and value != claimed]
    return math.prod(known) if len(known) == len(factors) + len(units) else None


@dataclass(frozen=True, slots=True)
class Problem:
    """One disagreement of an engine with the truth, or with the other engine; ``kind`` names the wrong one first."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both engines report for one variant, and all disagreements; none if all is well.

    ``unknown`` says that lint does not know all weights; ``undecided`` lists the engines that justifiably did not
    decide, and why: these are not problems.
    """

    variant: Variant
    source: str
    examination: Examination
    truth: Truth
    static: list[Book]
    dynamic: list[Book]
    found: frozenset[tuple[int, str]]
    result: VerifyResult
    unknown: bool
    problems: tuple[Problem, ...]
    undecided: tuple[str, ...]


def compare(variant: Variant) -> Comparison:
    """Lint and run ``variant``, and compare both results with its arithmetic."""
    source = render(variant)
    examination = examine(source, PATH)
    found = frozenset((f.where.line, f.mistake.code) for f, _ in examination.evidence)
    result, ledger = run(source, replay=variant.batch_norm)
    true = truth(variant)
    dynamic = books(ledger)
    statics = [books(scenario.ledger) for scenario in examination.scenarios]
    static = next((one for one in statics if _agree(one, dynamic)), statics[0] if statics else [])
    lines = [line for book in static for page in book for line in page.lines]
    unknown = (not static and bool(dynamic)) or any(line.coefficient is None for line in lines)
    judged = _Judged(variant, true, unknown)
    judged.verify(result)
    judged.lint({code for _, code in found})
    judged.problems += [
        # The data decides which windows are rejected.
        *(Problem("both ledgers", text) for text in _ledgers(static, dynamic) if not variant.outliers),
        *_places(variant, result, found, unknown, _untold(ledger)),
        *_arithmetic(variant, dynamic),
    ]
    if not any(problem.kind.startswith("verify") for problem in judged.problems):
        # The weights of a wrong reading are wrong too.
        judged.problems += _relative_weights(variant, true, result)
    return Comparison(
        variant,
        source,
        examination,
        true,
        static,
        dynamic,
        found,
        result,
        unknown,
        tuple(judged.problems),
        tuple(judged.undecided),
    )


class _Judged:
    """Compares what the engines report for one variant with what is true of it.

    A loop that uses none of the wider dimensions must be decided.
    """

    def __init__(self, variant: Variant, true: Truth, unknown: bool) -> None:
        self.true = true
        self.widened = bool(variant.features)
        self.has_another_number = bool(variant.objective.numbers) or variant.hands_on_a_bare_k
        self.unknown = unknown
        self.problems: list[Problem] = []
        self.undecided: list[str] = []

    def verify(self, result: VerifyResult) -> None:
        """Check the verdict, and the codes of the diagnosis."""
        true, codes = self.true, {d.mistake.code for d in result.diagnosis}
        said = f"{result.verdict.value} ({result.reason}; {_listed(codes)})"
        against = f"verify says {said}, the truth is {true.verdict}"
        match result.verdict.value, true.verdict:
            case verdict, other if verdict == other:
                pass
            case "inconclusive", _:
                self._leaves_open("verify: inconclusive", against, may=true.open_to_verify)
            case "deviates", _:
                self._is_wrong("verify: false alarm", against)
            case _, "deviates" if true.ambiguity:
                self.undecided.append(f"verify: passes, {true.ambiguity}")
            case _, "deviates":
                self._is_wrong("verify: false pass", against)
            case _:
                self._is_wrong("verify: wrong verdict", against)
        if "verify: false alarm" not in {problem.kind for problem in self.problems}:
            self._codes("verify", codes, said)
        missing = true.in_run - codes
        if missing and result.verdict.value == true.verdict:
            self._is_wrong("verify: missing cause", f"verify says {said}, but for {_listed(missing)}")

    def lint(self, codes: set[str]) -> None:
        """Check the codes of the findings."""
        true = self.true
        self._codes("lint", codes, _listed(codes))
        missing = true.in_source - codes
        if missing:
            text = f"lint finds {_listed(codes)}, but for {_listed(missing)}"
            by_roles = missing <= SCALE | {"GA802"} and self.has_another_number
            if by_roles or true.ambiguity or (self.unknown and missing <= SCALE):
                self.undecided.append("lint: silent")
            else:
                self._is_wrong("lint: missed", text)

    def _codes(self, engine: str, codes: set[str], said: str) -> None:
        wrong = codes - self.true.allowed
        if wrong == {"GA802"} and self.true.ambiguity:
            # Reading a bare number as K means reading what it divides as scaled.
            self.undecided.append(f"{engine}: {self.true.ambiguity}")
        elif wrong:
            kind = "wrong cause" if self.true.verdict == "deviates" else "false finding"
            self._is_wrong(f"{engine}: {kind}", f"{engine} says {said}, of which {_listed(wrong)} is not so")

    def _leaves_open(self, kind: str, text: str, *, may: bool) -> None:
        if self.widened or may:
            self.undecided.append(kind)
        else:
            self._is_wrong(kind, text)

    def _is_wrong(self, kind: str, text: str) -> None:
        self.problems.append(Problem(kind, text))


def run(source: str, *, replay: bool) -> tuple[VerifyResult, Ledger]:
    """Run a script under observation, in this process; its output and its warnings are discarded."""
    reference = "both" if replay else "ledger"
    names: dict[str, object] = {}
    with observe(script=PATH, reference=reference) as observation:  # type: ignore[arg-type]
        execute(source, names)
    # The script's classes and functions are in reference cycles with these names; otherwise, the next script's observer
    # would find this one's optimizers.
    names.clear()
    judged = observation.judged()
    # A file of that name may exist, and its reports would show these lines.
    linecache.cache.pop(PATH, None)
    return judged


def execute(source: str, names: dict[str, object]) -> None:
    """Run a script in this process, with its definitions in ``names``; its output and its warnings are discarded."""
    names |= {"__name__": "__main__", "__file__": PATH}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        # The source of a script is found here to read the origins of its numbers.
        linecache.cache[PATH] = len(source), None, source.splitlines(keepends=True), PATH
        exec(compile(source, PATH, "exec"), names)


def still_wrong_once_fixed(comparison: Comparison) -> tuple[Problem, ...]:
    """Problems of a variant that lint has fixed: verify must call it equivalent once nothing is left to find.

    Still left are mistakes that only verify can see, those that no fix repairs, and errors without a planted mistake: a
    window that lost its micro-batches.
    """
    repaired = fixed(open_document(comparison.source, PATH), comparison.examination, unsafe=True)
    planted = {OPERATORS[name].code for name in comparison.variant.mutations}
    left = planted - {f.mistake.code for f in repaired.fixed}
    if not repaired.fixed or repaired.remaining or comparison.unknown or comparison.variant.uneven or left:
        return ()
    if truth(replace(comparison.variant, mutations=frozenset())).verdict == "deviates":
        return ()
    result, _ = run(repaired.source, replay=False)
    # A fix decides nothing that the source leaves open.
    may_be = {Verdict.EQUIVALENT, comparison.result.verdict} - {Verdict.DEVIATES}
    if result.verdict in may_be and not result.diagnosis:
        return ()
    codes = _listed({d.mistake.code for d in result.diagnosis})
    text = f"fixed, it {result.verdict.value} ({result.reason}; {codes}):\n{repaired.source}"
    return (Problem("lint: a fix leaves it wrong", text),)


def _agree(one: list[Book], other: list[Book]) -> bool:
    return not _ledgers(one, other)


def _ledgers(static: list[Book], dynamic: list[Book]) -> list[str]:
    if [len(book) for book in static] != [len(book) for book in dynamic]:
        return ["the ledgers have different windows"]
    for mine, yours in zip(static, dynamic, strict=True):
        for number, (page, other) in enumerate(zip(mine, yours, strict=True)):
            if not page.agrees(other):
                return [f"the ledgers part in window {number}"]
    return []


def _places(
    variant: Variant,
    result: VerifyResult,
    found: frozenset[tuple[int, str]],
    unknown: bool,
    untold: frozenset[int],
) -> list[Problem]:
    """Whether a mistake that both engines report is at the same lines for both."""
    seen = {(d.where.line, d.mistake.code) for d in result.diagnosis}
    compared = {code for _, code in seen} & {code for _, code in found}
    if unknown or variant.uneven:
        # The source does not show how many units each batch has.
        compared -= SCALE
    if variant.clearing == "none":
        # Clearing by hand is only noticed at the next watched call: verify does not know its line.
        compared -= {"GA201", "GA202"}
    # A retained graph is reported at its place in the source, but at a step in a run.
    compared -= {"GA801"}
    told = {(line, code) for line, code in seen if code in compared}
    own = {(line, code) for line, code in found if code in compared and line not in untold}
    return [] if told == own else [Problem("both places", f"lint finds {_placed(own)}, verify {_placed(told)}")]


def _untold(ledger: Ledger) -> frozenset[int]:
    """The lines of steps that verify knows nothing about: all of their windows are unknown to it."""
    every = {(w.step.where.line, bool(w.unknown)) for w in ledger.windows if w.step is not None}
    return frozenset(line for line, unknown in every if unknown and (line, False) not in every)


def _arithmetic(variant: Variant, dynamic: list[Book]) -> list[Problem]:
    """Whether verify's ledger matches the arithmetic, store by store and entry by entry."""
    wanted = [
        [
            {i: tuple(float(c * factor) for factor in _losses(variant, run, i)) for i, c in step.gradient.items()}
            for step in run.steps
        ]
        for run in simulations(variant)
    ]
    read = [[_reaching(page) for page in book if page.step] for book in dynamic]
    if not any(wanted) and not any(read):
        return []
    # Stores have different names in the script: they are identified by their contents.
    if any(_close(read, list(order)) for order in itertools.permutations(wanted)):
        return []
    return [Problem("verify: wrong weights", f"the arithmetic gives {wanted}, verify's ledger {read}")]


def _relative_weights(variant: Variant, true: Truth, result: VerifyResult) -> list[Problem]:
    """Whether the weights that verify reports are the true ones, relative to the large batch."""
    if true.ambiguity or true.level_is_open or variant.has("GA902"):
        return []
    wanted = [[_relative(run, step) for step in run.steps] for run in simulations(variant)]
    reported: dict[str, list[tuple[float | None, ...]]] = {}
    for window in result.windows:
        reported.setdefault(window.optimizer, []).append(window.weights)
    read = list(reported.values())
    if not read and not any(wanted):
        return []
    if any(_weigh_the_same(read, list(order)) for order in itertools.permutations(wanted)):
        return []
    return [Problem("verify: wrong relative weights", f"the arithmetic gives {wanted}, verify {read}")]


def _relative(run: Simulation, step: Stepped) -> list[float] | None:
    """The weight of each of a step's own micro-batches, relative to its share of the units.

    None if they are from two passes, as a leak was meant for another large batch, or if they are the rest of a window.
    """
    if step.is_rest:
        return None
    places = [run.positions[i] for i in step.own]
    if places != sorted(places):
        return None
    right = run.right(step)
    return [float(step.gradient.get(i, Fraction(0)) / right[i]) for i in step.own]


def _weigh_the_same(read: list[list[tuple[float | None, ...]]], wanted: list[list[list[float] | None]]) -> bool:
    """Whether the last weights of every step are these; weights of earlier micro-batches may precede them."""
    return [len(steps) for steps in read] == [len(steps) for steps in wanted] and all(
        own is None or None in one or (len(one) >= len(own) and all(map(_is_close, one[len(one) - len(own) :], own)))
        for mine, yours in zip(read, wanted, strict=True)
        for one, own in zip(mine, yours, strict=True)
    )


def _is_close(one: float | None, other: float) -> bool:
    return one is not None and math.isclose(one, other, rel_tol=ROUNDING, abs_tol=1e-9)


def _losses(variant: Variant, run: Simulation, number: int) -> tuple[Fraction, ...]:
    """The factors of a micro-batch's losses in its objective."""
    return (Fraction(1),) if run.second else variant.objective.factors(run.positions[number])


def _reaching(page: Page) -> dict[int, float | None]:
    """The coefficient of every micro-batch in the gradient that a step got; None if verify does not know it."""
    return {line.micro_batch: line.coefficient for line in page.lines if line.fate in REACHING}


def _close(read: list[list[dict[int, float | None]]], wanted: list[list[dict[int, tuple[float, ...]]]]) -> bool:
    """Whether a run's ledger matches a computed one, within the rounding of a loss in bfloat16.

    For an objective with several losses, the ledger names the first one that it meets.
    """
    return len(read) == len(wanted) and all(
        len(mine) == len(yours)
        and all(
            m.keys() == y.keys() and all(_is_one_of(m[i], y[i]) for i in m) for m, y in zip(mine, yours, strict=True)
        )
        for mine, yours in zip(read, wanted, strict=True)
    )


def _is_one_of(value: float | None, values: tuple[float, ...]) -> bool:
    return value is None or any(math.isclose(value, one, rel_tol=ROUNDING) for one in values)


def _listed(codes: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(codes)) or "nothing"


def _placed(found: set[tuple[int, str]] | frozenset[tuple[int, str]]) -> str:
    return ", ".join(f"{code} at line {line}" for line, code in sorted(found)) or "nothing"
