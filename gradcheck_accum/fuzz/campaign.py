"""Many loop variants through both engines: what was counted, and the smallest on which they part."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from gradcheck_accum.fuzz.agreement import SCALE, Comparison, compare, still_wrong_once_fixed
from gradcheck_accum.fuzz.strategies import variants
from gradcheck_accum.fuzz.variants import OPERATORS, Variant
from gradcheck_accum.trials import Campaign, Disagreement, Interrupted, Tally

Progress = Callable[[int, int], None]

_ROUND = 500
"""Variants that one run of Hypothesis draws: what it has seen slows it down, and time is looked at between runs."""

_FIXED = 10
"""One variant in so many is fixed and run again: a fix is tried out on many texts, and costs as much as ten of them."""


class Parted(AssertionError):
    """Both engines, or an engine and the arithmetic, say different things of one variant."""


def run_campaign(
    examples: int,
    *,
    random_seed: int = 0,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> Campaign:
    """Lint and run ``examples`` drawn variants and hold both engines against the arithmetic and one another.

    A round of variants that holds a disagreement ends there, with the smallest variant that shows it. No round is begun
    after ``time_budget`` seconds. ``random_seed`` decides what is drawn. Raises Interrupted, with what was seen so far,
    where somebody stops it.
    """
    compare(Variant(k=2, rows=(1, 1), units=(1, 1)))  # what PyTorch imports late is there once this has run
    gc.collect()
    gc.freeze()
    tally = Tally()
    parted: list[Disagreement] = []
    begun = time.monotonic()
    started = time.process_time()
    try:
        while tally.variants < examples and (time_budget is None or time.monotonic() - begun < time_budget):
            size = min(_ROUND, examples - tally.variants)
            number = random_seed * 1_000_003 + tally.variants
            smallest: list[Disagreement] = []
            try:
                _round(size, number, tally, smallest, lambda done: progress and progress(done, examples))
            finally:
                parted += smallest
    except KeyboardInterrupt:
        tally.seconds = time.process_time() - started
        raise Interrupted(Campaign(tally, tuple(parted))) from None
    finally:
        gc.unfreeze()
    tally.seconds = time.process_time() - started
    return Campaign(tally, tuple(parted))


def _round(
    size: int, number: int, tally: Tally, smallest: list[Disagreement], progress: Callable[[int], object]
) -> None:
    """Draw ``size`` variants; ``smallest`` gets the smallest that shows a disagreement, if any does."""

    def test(variant: Variant) -> None:
        comparison, problems = judged(variant, fixes=variant.seed % _FIXED == 0)
        if not smallest:
            count(tally, comparison, fixed=variant.seed % _FIXED == 0)
            progress(tally.variants)
        if problems:
            smallest[:] = [_disagreement(variant, comparison, problems)]
            raise Parted

    run = given(variant=variants())(test)
    run = settings(
        max_examples=size,
        deadline=None,
        database=None,
        derandomize=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(seed(number)(run))
    try:
        run()
    except Exception:
        if not smallest:
            raise


def judged(variant: Variant, *, fixes: bool) -> tuple[Comparison | None, tuple[str, ...]]:
    """One variant through both engines, and what is wrong; ``fixes`` runs it once more as lint would fix it.

    A crash of an engine is one of the things that can be wrong.
    """
    try:
        comparison = compare(variant)
        problems = comparison.problems
        if fixes and not problems:
            problems = still_wrong_once_fixed(comparison)
    except Exception as error:
        return None, (f"{type(error).__name__}: {' '.join(str(error).split())}",)
    return comparison, problems


def count(tally: Tally, comparison: Comparison | None, *, fixed: bool) -> None:
    """Count one variant."""
    tally.variants += 1
    if comparison is None:
        return
    variant, found = comparison.variant, {code for _, code in comparison.found}
    seen = {d.mistake.code for d in comparison.result.diagnosis}
    tally.boundaries[variant.boundary] += 1
    tally.clean += not variant.mutations
    tally.unknown += comparison.unknown
    tally.unknown_at[variant.boundary] += comparison.unknown
    tally.inconclusive += comparison.inconclusive
    tally.fixed += fixed
    for name in variant.mutations:
        tally.mutations[name] += 1
        code = OPERATORS[name].code
        tally.hidden[name] += code not in comparison.expected.codes
        if code in comparison.expected.in_run:
            tally.shown["verify", name] += 1
            tally.killed["verify", name] += code in seen
        if code in comparison.expected.in_source and not (comparison.unknown and code in SCALE):
            tally.shown["lint", name] += 1
            tally.killed["lint", name] += code in found


def _disagreement(variant: Variant, comparison: Comparison | None, problems: tuple[str, ...]) -> Disagreement:
    from gradcheck_accum.fuzz.render import render

    if comparison is None:
        return Disagreement(render(variant), problems, variant=repr(variant))
    return Disagreement(
        comparison.source,
        problems,
        tuple(str(page) for book in comparison.static for page in book),
        tuple(str(page) for book in comparison.dynamic for page in book),
        repr(variant),
    )
