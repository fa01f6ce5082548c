"""Runs both engines on one variant, and says where they part: from one another, or from the arithmetic."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import warnings
from dataclasses import dataclass

from gradcheck_accum.events import Reduction
from gradcheck_accum.fuzz.oracle import Expectation, expect, simulations
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.variants import Variant
from gradcheck_accum.ledger import Entry, Fate, Ledger, Window
from gradcheck_accum.lint import Examination, examine
from gradcheck_accum.lint.document import open_document
from gradcheck_accum.lint.fixes import fixed
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

PATH = "variant.py"

ROUNDING = 0.01
"""Within this two weights are the same: a division in bfloat16 is no better, and no mistake is as small."""

REACHING = (Fate.LIVE, Fate.STALE)
"""The fates of what a step got."""

SCALE = frozenset({"GA101", "GA102", "GA103", "GA104", "GA302", "GA303", "GA304"})
"""The codes that lint can only give where it knows what every factor of a loss is worth."""


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a ledger as both engines see it: the micro-batch (numbered by its backward), its fate, its weight.

    ``coefficient`` is what the mean loss of the micro-batch was multiplied by on its way into the gradient; None where
    the engine does not know.
    """

    micro_batch: int
    fate: Fate
    coefficient: float | None

    def agrees(self, other: Line) -> bool:
        """Whether two entries say the same, wherever both claim to know."""
        if (self.micro_batch, self.fate) != (other.micro_batch, other.fate):
            return False
        if self.fate not in REACHING:
            return True  # what no step got may have been scaled unseen
        one, another = self.coefficient, other.coefficient
        return one is None or another is None or math.isclose(one, another, rel_tol=ROUNDING)

    def __str__(self) -> str:
        weight = "?" if self.coefficient is None else f"{self.coefficient:.4g}"
        return f"{self.micro_batch}:{weight}" + ("" if self.fate is Fate.LIVE else f" {self.fate.value}")


@dataclass(frozen=True, slots=True)
class Page:
    """One window as both engines see it: the line of its step (0 where none came) and its entries."""

    step: int
    lines: tuple[Line, ...]

    def agrees(self, other: Page) -> bool:
        """Whether two windows say the same."""
        return (
            self.step == other.step
            and len(self.lines) == len(other.lines)
            and all(one.agrees(another) for one, another in zip(self.lines, other.lines, strict=True))
        )

    def __str__(self) -> str:
        closed = f"step at line {self.step}" if self.step else "no step"
        return f"{closed}: {', '.join(str(line) for line in self.lines)}"


Book = tuple[Page, ...]
"""The windows of one store, those that no step closed last."""


def books(ledger: Ledger) -> list[Book]:
    """The ledger of every store, in the order of their first steps; stores have other names in each engine."""
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
    # A step that the grad scaler skipped had gradients that are not finite: whether they were divided does not show.
    unknown = window.unknown or (window.step is not None and window.step.skipped)
    lines = tuple(
        Line(order[e.backward.micro_batch], e.fate, None if unknown else _coefficient(e, assumed))
        for e in window.entries
    )
    return Page(window.step.where.line if window.step else 0, lines)


def _coefficient(entry: Entry, assumed: float | None) -> float | None:
    """What the first term of an entry's loss was multiplied by, as a mean over its units.

    The source may not show how many rows a batch has: the number that lint then assumes is no claim.
    """
    term = entry.backward.terms[0]
    factors = [factor.value for factor in (*term.factors, *(scaling.factor for scaling in entry.grad_factors))]
    units = [term.units] if term.reduction is Reduction.SUM else []
    claimed = None if assumed is None else 1 / assumed
    known = [value for value in (*factors, *units) if value is not None and value != claimed]
    return math.prod(known) if len(known) == len(factors) + len(units) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What both engines said of one variant, and every way in which they part; none where all is well.

    ``unknown`` says that lint does not know all weights, ``inconclusive`` that verify could not decide.
    """

    variant: Variant
    source: str
    examination: Examination
    expected: Expectation
    static: list[Book]
    dynamic: list[Book]
    found: frozenset[tuple[int, str]]
    result: VerifyResult
    unknown: bool
    problems: tuple[str, ...]

    @property
    def inconclusive(self) -> bool:
        """Whether verify could not decide, though there was something to decide."""
        undecided = self.result.verdict is Verdict.INCONCLUSIVE and self.expected.verdict != "inconclusive"
        return undecided and not self.expected.may_be_open


def compare(variant: Variant) -> Comparison:
    """Lint and run ``variant``, and hold both against its arithmetic."""
    source = render(variant)
    examination = examine(source, PATH)
    found = frozenset((f.where.line, f.mistake.code) for f, _ in examination.evidence)
    result, ledger = run(source, replay=variant.batch_norm)
    expected = expect(variant)
    dynamic = books(ledger)
    statics = [books(scenario.ledger) for scenario in examination.scenarios]
    static = next((one for one in statics if _agree(one, dynamic)), statics[0] if statics else [])
    lines = [line for book in static for page in book for line in page.lines]
    unknown = (not static and bool(dynamic)) or any(line.coefficient is None for line in lines)
    problems = [
        *_ledgers(static, dynamic),
        *_verdict(expected, result),
        *_diagnosis(variant, expected, result, found, unknown, _untold(ledger)),
        *_arithmetic(variant, dynamic),
    ]
    return Comparison(variant, source, examination, expected, static, dynamic, found, result, unknown, tuple(problems))


def run(source: str, *, replay: bool) -> tuple[VerifyResult, Ledger]:
    """Run a script under observation, in this process; what it prints and warns of is thrown away."""
    reference = "both" if replay else "ledger"
    names = {"__name__": "__main__", "__file__": PATH}
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        observe(script=PATH, reference=reference) as observation,  # type: ignore[arg-type]
    ):
        warnings.simplefilter("ignore")
        exec(compile(source, PATH, "exec"), names)
    # Its classes and functions hold these names, and the names them: the next script's observer would meet this
    # one's optimizers.
    names.clear()
    return observation.judged()


def still_wrong_once_fixed(comparison: Comparison) -> tuple[str, ...]:
    """What is wrong with a variant that lint has fixed: verify must call it equivalent once nothing is left to find.

    What only verify can see is left, and so are mistakes that no fix repairs.
    """
    repaired = fixed(open_document(comparison.source, PATH), comparison.examination, unsafe=True)
    left = comparison.expected.codes - {f.mistake.code for f in repaired.fixed}
    if not repaired.fixed or repaired.remaining or comparison.unknown or comparison.variant.uneven or left:
        return ()
    result, _ = run(repaired.source, replay=False)
    if result.verdict is Verdict.EQUIVALENT and not result.diagnosis:
        return ()
    codes = _listed({d.mistake.code for d in result.diagnosis})
    return (f"fixed, it {result.verdict.value} ({result.reason}; {codes}):\n{repaired.source}",)


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


def _verdict(expected: Expectation, result: VerifyResult) -> list[str]:
    if result.verdict.value == expected.verdict or (expected.may_be_open and result.verdict is Verdict.INCONCLUSIVE):
        return []
    return [f"verify says {result.verdict.value} ({result.reason}), the arithmetic {expected.verdict}"]


def _diagnosis(
    variant: Variant,
    expected: Expectation,
    result: VerifyResult,
    found: frozenset[tuple[int, str]],
    unknown: bool,
    untold: frozenset[int],
) -> list[str]:
    problems = []
    seen = {(d.where.line, d.mistake.code) for d in result.diagnosis}
    codes = {code for _, code in seen}
    # Of a remainder whose gradient has overflowed it shows that it was flushed, and not what it weighs.
    silent = frozenset({"GA103"} if untold else ())
    if not expected.in_run - silent <= codes <= expected.in_run | expected.hidden:
        problems.append(f"verify diagnoses {_listed(codes)}, expected {_listed(expected.in_run)}")
    # The source tells passes, and the run of a list does not: what is near a schedule's length, and what a place keeps
    # of a pass that is over, may be told by one of them where it is not certain.
    by_one = expected.unseen_in_run | expected.unseen_in_source | (expected.hidden & {"GA601", "GA603", "GA801"})
    told = {(line, code) for line, code in seen if CATALOGUE[code].shows_in_every_source and code not in by_one}
    own = {(line, code) for line, code in found if CATALOGUE[code].dynamic and code not in by_one}
    own = {(line, code) for line, code in own if line not in untold}
    if unknown or variant.uneven:
        # The source does not show how many units each batch holds.
        told, own = ({(n, c) for n, c in both if c not in SCALE} for both in (told, own))
    if variant.clearing == "none":
        # What is cleared by hand is seen at the next call that is watched: verify can not tell the line.
        told, own = ({(0 if c in ("GA201", "GA202") else n, c) for n, c in both} for both in (told, own))
    # What keeps graphs is a place in the source, and a step in a run.
    told, own = ({(0 if c == "GA801" else n, c) for n, c in both} for both in (told, own))
    if told != own:
        problems.append(f"lint finds {_placed(found)}, verify {_placed(seen)}")
    wanted = expected.in_source - (SCALE if unknown else frozenset())
    # Counts of units are in some sources: what the catalogue leaves to verify may be found there.
    if not wanted <= {code for _, code in found} <= expected.codes - expected.unseen_in_source | expected.hidden:
        problems.append(f"lint finds {_placed(found)}, expected {_listed(wanted)}")
    return problems


def _untold(ledger: Ledger) -> frozenset[int]:
    """The lines of steps of which verify says nothing: all of their windows are unknown to it."""
    every = {(w.step.where.line, bool(w.unknown)) for w in ledger.windows if w.step is not None}
    return frozenset(line for line, unknown in every if unknown and (line, False) not in every)


def _arithmetic(variant: Variant, dynamic: list[Book]) -> list[str]:
    """Whether verify's ledger is that of the arithmetic, store by store and entry by entry."""
    wanted = [[{i: float(c) for i, c in step.gradient.items()} for step in run.steps] for run in simulations(variant)]
    read = [[_reaching(page) for page in book if page.step] for book in dynamic]
    if not any(wanted) and not any(read):
        return []
    # Stores have other names in the script than here: they are known again by what is in them.
    if any(_close(read, list(order)) for order in itertools.permutations(wanted)):
        return []
    return [f"the arithmetic gives {wanted}, verify's ledger {read}"]


def _reaching(page: Page) -> dict[int, float]:
    """What every micro-batch counts in the gradient that a step got."""
    return {
        line.micro_batch: math.nan if line.coefficient is None else line.coefficient
        for line in page.lines
        if line.fate in REACHING
    }


def _close(one: list[list[dict[int, float]]], other: list[list[dict[int, float]]]) -> bool:
    """Whether two runs are the same, within what a loss in bfloat16 may have been rounded by."""
    return len(one) == len(other) and all(
        len(mine) == len(yours)
        and all(
            m.keys() == y.keys() and all(math.isnan(m[i]) or math.isclose(m[i], y[i], rel_tol=ROUNDING) for i in m)
            for m, y in zip(mine, yours, strict=True)
        )
        for mine, yours in zip(one, other, strict=True)
    )


def _listed(codes: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(codes)) or "nothing"


def _placed(found: set[tuple[int, str]] | frozenset[tuple[int, str]]) -> str:
    return ", ".join(f"{code} at line {line}" for line, code in sorted(found)) or "nothing"
