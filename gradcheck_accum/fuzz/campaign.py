"""Many loop variants through both engines: the counts, and the simplest variant of every kind of disagreement."""

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
from gradcheck_accum.fuzz.third_judge import Opinion, opinion
from gradcheck_accum.fuzz.variants import OPERATORS, Variant
from gradcheck_accum.lint.examination.collecting import without_collecting
from gradcheck_accum.results.fuzzing import Campaign, Disagreement, Interrupted, Tally
from gradcheck_accum.results.verdict import Verdict

Progress = Callable[[int, int], None]

_ROUND = 500
"""Variants per run of Hypothesis, whose history slows it down; the time budget is checked between runs."""

_FIXED = 10
"""One in this many variants is fixed and run again: trying fixes costs as much as ten variants."""

_COMPARED_WITH_ITSELF = 50
"""One in this many variants is compared with itself at K = 1, in two more processes, which costs as much as several."""


@without_collecting()
def run_campaign(
    examples: int,
    *,
    random_seed: int = 0,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> Campaign:
    """Lint and run ``examples`` drawn variants and compare both engines with the arithmetic and with each other.

    For every kind of disagreement, the simplest variant that shows it is kept. No round starts after ``time_budget``
    seconds. ``random_seed`` determines what is drawn. Raises Interrupted, with the results so far, on Ctrl-C.
    """
    compare(Variant(k=2, rows=(1, 1), units=(1, 1)))  # to load what PyTorch imports lazily
    tally = Tally()
    kept: dict[str, Variant] = {}
    begun = time.monotonic()
    started = time.process_time()
    try:
        while tally.variants < examples and (time_budget is None or time.monotonic() - begun < time_budget):
            size = min(_ROUND, examples - tally.variants)
            number = random_seed * 1_000_003 + tally.variants
            gc.unfreeze()
            _settle()
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
    """Draw ``size`` variants; ``kept`` has the shortest one for each kind of disagreement."""

    def test(variant: Variant) -> None:
        _settle()
        comparison, problems = judged(variant, fixes=variant.seed % _FIXED == 0)
        count(tally, variant, comparison, fixed=variant.seed % _FIXED == 0)
        if not problems and variant.seed % _COMPARED_WITH_ITSELF == 1:
            problems = _third(variant, tally)
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


def _settle() -> None:
    """Collect what the variant before left in circles, and freeze all that exists.

    A variant leaves next to nothing in circles, and ends before the collector has to run on its own. Neither the
    collector nor verify's search for optimizers then visits what there was before.
    """
    gc.collect()
    gc.freeze()


def _length(variant: Variant) -> tuple[int, int]:
    return len(variant.features), len(render(variant))


def kinds(variant: Variant, problems: Iterable[Problem]) -> set[str]:
    """The kinds of disagreement in ``problems``: which engine is wrong, how, and with which planted mistake."""
    names = sorted(variant.mutations)
    planted = names[0] if len(names) == 1 else "two mistakes" if names else "no mistake"
    return {f"{problem.kind}, {planted}" for problem in problems}


def _third(variant: Variant, tally: Tally) -> tuple[Problem, ...]:
    """What is wrong with the result of `compare` for a variant; it is counted."""
    said = _opinion(variant)
    if said is None:
        return ()
    tally.compared[said.verdict.value] += 1
    tally.undecided.update(said.undecided)
    return said.problems


def _opinion(variant: Variant) -> Opinion | None:
    """The result of `compare` for a variant; a crash is a problem too."""
    try:
        return opinion(variant)
    except Exception as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Opinion(Verdict.INCONCLUSIVE, (Problem("compare: crash", text),))


def _problems(kind: str, variant: Variant) -> tuple[Comparison | None, tuple[Problem, ...]]:
    """What is wrong with a variant, according to the judges of this kind of disagreement."""
    comparison, problems = judged(variant, fixes="a fix" in kind)
    if kind.startswith("compare"):
        said = _opinion(variant)
        return comparison, said.problems if said is not None else ()
    return comparison, problems


def _shows(kind: str, variant: Variant) -> bool:
    return kind in kinds(variant, _problems(kind, variant)[1])


def judged(variant: Variant, *, fixes: bool) -> tuple[Comparison | None, tuple[Problem, ...]]:
    """One variant through both engines, and what is wrong; ``fixes`` also runs it as fixed by lint.

    A crash of an engine is a problem too.
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
    comparison, problems = _problems(kind, variant)
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
