"""Many loop variants through both engines: what was counted, and the plainest of every kind on which they part."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from functools import partial

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from gradcheck_accum.fuzz.agreement import Comparison, Problem, compare, still_wrong_once_fixed
from gradcheck_accum.fuzz.render import render
from gradcheck_accum.fuzz.simplifying import plainest
from gradcheck_accum.fuzz.strategies import variants
from gradcheck_accum.fuzz.variants import OPERATORS, Variant
from gradcheck_accum.trials import Campaign, Disagreement, Interrupted, Tally

Progress = Callable[[int, int], None]

_ROUND = 500
"""Variants that one run of Hypothesis draws: what it has seen slows it down, and time is looked at between runs."""

_FIXED = 10
"""One variant in so many is fixed and run again: a fix is tried out on many texts, and costs as much as ten of them."""


def run_campaign(
    examples: int,
    *,
    random_seed: int = 0,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> Campaign:
    """Lint and run ``examples`` drawn variants and hold both engines against the arithmetic and one another.

    Of every kind of disagreement the plainest variant is kept that shows it. No round is begun after ``time_budget``
    seconds. ``random_seed`` decides what is drawn. Raises Interrupted, with what was seen so far, where somebody stops
    it.
    """
    compare(Variant(k=2, rows=(1, 1), units=(1, 1)))  # what PyTorch imports late is there once this has run
    gc.collect()
    gc.freeze()
    tally = Tally()
    kept: dict[str, Variant] = {}
    begun = time.monotonic()
    started = time.process_time()
    try:
        while tally.variants < examples and (time_budget is None or time.monotonic() - begun < time_budget):
            size = min(_ROUND, examples - tally.variants)
            number = random_seed * 1_000_003 + tally.variants
            _round(size, number, tally, kept, lambda done: progress and progress(done, examples))
        tally.seconds = time.process_time() - started
        for kind in kept:
            kept[kind] = plainest(kept[kind], partial(_shows, kind))
    except KeyboardInterrupt:
        tally.seconds = tally.seconds or time.process_time() - started
        raise Interrupted(Campaign(tally, _disagreements(kept))) from None
    finally:
        gc.unfreeze()
    return Campaign(tally, _disagreements(kept))


def _round(size: int, number: int, tally: Tally, kept: dict[str, Variant], progress: Callable[[int], object]) -> None:
    """Draw ``size`` variants; ``kept`` has the shortest that shows a disagreement, by its kind."""

    def test(variant: Variant) -> None:
        comparison, problems = judged(variant, fixes=variant.seed % _FIXED == 0)
        count(tally, variant, comparison, fixed=variant.seed % _FIXED == 0)
        for kind in kinds(variant, problems):
            tally.problems[kind] += 1
            kept[kind] = min(kept.get(kind, variant), variant, key=_length)
        progress(tally.variants)

    run = given(variant=variants(widened=True))(test)
    run = settings(
        max_examples=size,
        deadline=None,
        database=None,
        derandomize=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )(seed(number)(run))
    run()


def _length(variant: Variant) -> tuple[int, int]:
    return len(variant.features), len(render(variant))


def kinds(variant: Variant, problems: Iterable[Problem]) -> set[str]:
    """The kinds of disagreement that ``problems`` are of: who is wrong, how, and beside which planted mistake."""
    names = sorted(variant.mutations)
    planted = names[0] if len(names) == 1 else "two mistakes" if names else "no mistake"
    return {f"{problem.kind}, {planted}" for problem in problems}


def _shows(kind: str, variant: Variant) -> bool:
    return kind in kinds(variant, judged(variant, fixes="a fix" in kind)[1])


def judged(variant: Variant, *, fixes: bool) -> tuple[Comparison | None, tuple[Problem, ...]]:
    """One variant through both engines, and what is wrong; ``fixes`` runs it once more as lint would fix it.

    A crash of an engine is one of the things that can be wrong.
    """
    try:
        comparison = compare(variant)
        problems = comparison.problems
        if fixes and not problems:
            problems = still_wrong_once_fixed(comparison)
    except Exception as error:
        return None, (Problem(f"crash: {type(error).__name__}", " ".join(str(error).split())),)
    return comparison, problems


def count(tally: Tally, variant: Variant, comparison: Comparison | None, *, fixed: bool) -> None:
    """Count one variant."""
    tally.variants += 1
    tally.boundaries[variant.boundary] += 1
    tally.mutations.update(variant.mutations)
    tally.features.update(variant.features)
    tally.clean += not variant.mutations
    if comparison is None:
        return
    found = {
        "verify": {d.mistake.code for d in comparison.result.diagnosis},
        "lint": {code for _, code in comparison.found},
    }
    tally.unknown += comparison.unknown
    tally.unknown_at[variant.boundary] += comparison.unknown
    tally.fixed += fixed
    tally.undecided.update(comparison.undecided)
    if comparison.undecided:
        tally.undecided_by.update((*variant.features, *variant.mutations))
    for name in variant.mutations:
        for engine, wanted in (("verify", comparison.truth.in_run), ("lint", comparison.truth.in_source)):
            if OPERATORS[name].code in wanted:
                tally.demanded[engine, name] += 1
                tally.killed[engine, name] += OPERATORS[name].code in found[engine]


def _disagreements(kept: dict[str, Variant]) -> tuple[Disagreement, ...]:
    return tuple(_disagreement(kind, variant) for kind, variant in sorted(kept.items()))


def _disagreement(kind: str, variant: Variant) -> Disagreement:
    comparison, problems = judged(variant, fixes="a fix" in kind)
    said = tuple(map(str, problems))
    if comparison is None:
        return Disagreement(render(variant), said, variant=repr(variant), kind=kind)
    return Disagreement(
        comparison.source,
        said,
        tuple(str(page) for book in comparison.static for page in book),
        tuple(str(page) for book in comparison.dynamic for page in book),
        repr(variant),
        kind,
    )
