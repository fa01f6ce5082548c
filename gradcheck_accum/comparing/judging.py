"""The verdicts on the runs of a comparison. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gradcheck_accum.comparing.acceptance import By, Waived
from gradcheck_accum.comparing.differences import differences
from gradcheck_accum.comparing.lockstep import Course, Cut, Lockstep, Met
from gradcheck_accum.comparing.messages import Arrival
from gradcheck_accum.diagnosis.account import plural
from gradcheck_accum.results.acceptance import accepted
from gradcheck_accum.results.comparison import Compared, CompareResult, Configuration
from gradcheck_accum.results.stopped import BEFORE_THE_END, ENOUGH, STOPPED
from gradcheck_accum.results.verdict import Verdict, VerifyResult, WindowReport

_DRAWS = 3.0
"""A difference of more than so many times that of two draws of random numbers is not due to these."""

_OTHER_WEIGHTS = "made from different weights than the reference's, so the gradients cannot be compared"
_COUPLED = (
    "the samples of a batch influence each other (replacing one changes what another contributes): micro-batches "
    "cannot equal the large batch"
)
_GONE = "one of the two runs ended before it was compared"
NO_DROPOUT = "run it with --no-dropout, which disables dropout in every configuration"

_EPOCHS_SHOWN = 8
"""Epochs whose numbers of steps are listed, where these differ."""

_OTHER_LENGTH = frozenset({"GA302", "GA304"})
"""Mistakes by which a window holds other micro-batches than K."""

_SEVERITY = (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.DEVIATES)


def compared(
    script: str,
    names: Sequence[str],
    lockstep: Lockstep,
    results: Mapping[int, VerifyResult | None],
    *,
    to_the_end: bool,
    by: By,
) -> CompareResult:
    """The result of a comparison; ``to_the_end`` means that no run was stopped before its end.

    ``by`` gives where a diagnosis has been accepted, empty if it has not.
    """
    each_failed = [n for n, result in results.items() if result is None or result.error]
    if each_failed:
        # Runs that are no longer led, because one died, may lose their own ranks in turn.
        failed = next((n for n in each_failed if n in lockstep.lost), each_failed[0])
        result = results[failed]
        return CompareResult.failed(script, f"with {names[failed]}: {result.error if result else 'it did not run'}")
    if lockstep.reference < 0:
        idle = next((n for n, arrivals in lockstep.arrivals.items() if not arrivals), 0)
        watched = results[idle]
        said = watched.reason if watched is not None else ""
        return CompareResult(script, Verdict.INCONCLUSIVE, f"with {names[idle]}: {said}")
    known = {n: _configuration(names[n], arrivals) for n, arrivals in lockstep.arrivals.items()}
    reference = known[lockstep.reference]
    is_stopped = any(result is not None and STOPPED in result.notes for result in results.values())
    to_the_end = to_the_end and not is_stopped
    if is_stopped:
        for course in lockstep.courses.values():
            # Where a run was stopped at a step, that has not been compared.
            course.met = [met for met in course.met if met.numbers is not None]
    of_reference = results[lockstep.reference]
    by_reference = None if of_reference is None else accepted(of_reference, by)
    each = tuple(
        _judged(known[n], reference, course, lockstep, n, results[n], by_reference, to_the_end=to_the_end, by=by)
        for n, course in lockstep.courses.items()
    )
    worst = max(each, key=lambda one: _SEVERITY.index(one.verdict))
    reason = f"with {worst.configuration.name}: {worst.reason}"
    if len({one.reason for one in each}) == 1:
        reason = worst.reason if len(each) == 1 else f"in each of {len(each)} configurations {worst.reason}"
    is_random = any(a.random for arrivals in lockstep.arrivals.values() for a in arrivals)
    help_ = NO_DROPOUT if worst.verdict is Verdict.INCONCLUSIVE and is_random else ""
    return CompareResult(script, worst.verdict, reason, reference, each, help=help_)


def _configuration(name: str, arrivals: Sequence[Arrival]) -> Configuration:
    """A configuration with the usual size of its steps."""
    rows = Counter(a.rows.count for a in arrivals if a.rows is not None)
    micro_batches = Counter(a.micro_batches for a in arrivals)
    ranks = max((a.ranks for a in arrivals), default=1)
    return Configuration(name, _usual(micro_batches), _usual(rows), len(arrivals), ranks, _by_epoch(arrivals))


def _by_epoch(arrivals: Sequence[Arrival]) -> tuple[int, ...]:
    """The number of steps of each pass over the data: a step belongs to the pass of its last micro-batch.

    Empty where passes are not distinguished at every step.
    """
    if any(a.micro_batches and not a.epochs for a in arrivals):
        return ()
    found: Counter[int] = Counter()
    epoch = None
    for arrival in arrivals:
        for epoch in arrival.epochs:
            found.setdefault(epoch, 0)
        if epoch is not None:
            found[epoch] += 1
    return tuple(found.values())


def _usual(counts: Counter[int]) -> int | None:
    return counts.most_common(1)[0][0] if counts else None


def _judged(
    own: Configuration,
    reference: Configuration,
    course: Course,
    lockstep: Lockstep,
    number: int,
    watched: VerifyResult | None,
    by_reference: VerifyResult | None,
    *,
    to_the_end: bool,
    by: By,
) -> Compared:
    is_diagnosed = watched is not None and any(d.mistake.changes_gradient for d in watched.diagnosis)
    measured = tuple(_step(met, is_diagnosed=is_diagnosed, is_free=lockstep.is_free) for met in course.met)
    waived = Waived(watched, course, measured, by)
    steps = waived.steps(course, measured)
    verdict, reason = _incomparable(own, reference, watched) or _verdict(steps, course, waived, to_the_end=to_the_end)
    if verdict is Verdict.EQUIVALENT and (codes := _made_by_both(waived.watched, by_reference)):
        verdict = Verdict.DEVIATES
        reason += f", which makes the same mistake: verify's ledger shows {' and '.join(codes)} in both runs"
    if to_the_end and verdict is not Verdict.EQUIVALENT and (counted := _counted(own, reference)):
        reason += f"; {counted}"
    is_right = all(step.verdict is Verdict.EQUIVALENT for step in steps) and verdict is Verdict.EQUIVALENT
    found, notes = differences(course, lockstep, number, is_right=is_right)
    if verdict is Verdict.EQUIVALENT and not to_the_end:
        reason += BEFORE_THE_END
    stopped = [note for note in (STOPPED, ENOUGH) if watched is not None and note in watched.notes]
    return Compared(
        own,
        verdict,
        reason + waived.words,
        steps,
        tuple(map(waived.difference, found)),
        (*_notes(course, steps), *notes, *stopped),
        waived.watched,
        waived.accepted,
    )


def _made_by_both(watched: VerifyResult | None, by_reference: VerifyResult | None) -> list[str]:
    """The mistakes in gradients that `verify` shows in both runs, at one place: no comparison of the two can see them.

    A run that deviates from the large batch itself is no reference, however similar another is to it.
    """
    if watched is None or by_reference is None or by_reference.verdict is not Verdict.DEVIATES:
        return []
    theirs = {(d.mistake.code, d.where.place) for d in by_reference.diagnosis if d.mistake.changes_gradient}
    return sorted({d.mistake.code for d in watched.diagnosis if (d.mistake.code, d.where.place) in theirs})


def _incomparable(
    own: Configuration, reference: Configuration, watched: VerifyResult | None
) -> tuple[Verdict, str] | None:
    """Why two configurations are none that could be compared, or None.

    Steps on another number of rows are what was asked for, unless the ledger shows that the loop steps too early.
    """
    is_asked_for = watched is None or not any(d.mistake.code in _OTHER_LENGTH for d in watched.diagnosis)
    if own.rows and reference.rows and own.rows != reference.rows and is_asked_for:
        return Verdict.INCONCLUSIVE, (
            f"the configurations differ in effective batch size: this one steps on {_made_of(own)}, the reference on "
            f"{_made_of(reference)}"
        )
    cuts = [(one.micro_batches, one.rows, one.ranks) for one in (own, reference)]
    if cuts[0] == cuts[1]:
        return Verdict.INCONCLUSIVE, (
            f"the configurations do not differ: both step on {_made_of(own)}; the script seems to ignore these "
            "arguments"
        )
    return None


def _counted(own: Configuration, reference: Configuration) -> str:
    """The numbers of steps, where these differ; empty where that was intended."""
    is_other = own.steps != reference.steps or own.steps_by_epoch != reference.steps_by_epoch
    if not is_other or own.rows != reference.rows:
        return ""
    said = f"it makes {_many(own.steps, 'step')} in all, the reference {reference.steps}"
    epochs = [_in_epochs(one.steps_by_epoch) for one in (own, reference)]
    return f"{said} ({epochs[0]}, the reference {epochs[1]})" if all(epochs) else said


def _in_epochs(counts: Sequence[int]) -> str:
    """How many steps an epoch has."""
    if len(set(counts)) == 1:
        return f"{counts[0]} in each epoch" if len(counts) > 1 else f"{counts[0]} in its epoch"
    listed = ", ".join(map(str, counts[:_EPOCHS_SHOWN]))
    return f"{listed}{', ...' if len(counts) > _EPOCHS_SHOWN else ''} in its {len(counts)} epochs" if counts else ""


def _many(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else noun + 's'}"


def _made_of(configuration: Configuration) -> str:
    on_ranks = f" on {configuration.ranks} ranks" if configuration.ranks > 1 else ""
    return f"{plural(configuration.micro_batches or 0)}{on_ranks} of {configuration.rows} rows together"


def _step(met: Met, *, is_diagnosed: bool, is_free: bool) -> WindowReport:
    mine, numbers = met.mine, met.numbers
    shown = None
    if numbers is not None:
        before = numbers.before_clip
        # What a clip leaves is another gradient already where the one before it is.
        shown = numbers.used if before is None or _is_within(before.error, before.allowed) else before
    verdict, reason = _verdict_of_step(met, is_diagnosed=is_diagnosed)
    return WindowReport(
        index=mine.index,
        optimizer=mine.optimizer,
        micro_batches=mine.micro_batches,
        units=float(mine.rows.count) if mine.rows is not None else None,
        weights=(),
        grad_rel_error=shown.error if shown else None,
        grad_norm_ratio=shown.ratio if shown else None,
        tolerance=shown.allowed if shown else None,
        param_rel_error=numbers.update.error if numbers is not None and numbers.update and met.same_weights else None,
        verdict=verdict,
        drift=numbers.drift if numbers is not None and is_free else None,
        reason=reason,
        path=mine.path,
        line=mine.line,
        by_parameter=shown.by_parameter if shown and verdict is Verdict.DEVIATES else None,
    )


def _verdict_of_step(met: Met, *, is_diagnosed: bool) -> tuple[Verdict, str]:
    numbers = met.numbers
    if numbers is None:
        return Verdict.INCONCLUSIVE, _GONE
    if not met.same_weights:
        return Verdict.INCONCLUSIVE, _OTHER_WEIGHTS
    both = [numbers.used] if numbers.before_clip is None else [numbers.before_clip, numbers.used]
    wrong = [apart for apart in both if not _is_within(apart.error, apart.allowed)]
    if not wrong:
        return Verdict.EQUIVALENT, ""
    if met.mine.random or met.theirs.random:
        return _within_spread(wrong[0].error, numbers.spread)
    # Labels of two rows may be 0 and 1 by chance: those of the large batch are not.
    couples = [each for each in met.mine.couples if each in met.theirs.couples]
    if couples and not is_diagnosed:
        return Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, (
            f"{' and '.join(couples)} uses statistics of all rows of a batch: micro-batches cannot equal the large "
            "batch"
        )
    if numbers.is_coupled and not is_diagnosed:
        return Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, _COUPLED
    after = " after clipping, but not before it" if numbers.before_clip is not None and len(wrong) == 1 else ""
    return Verdict.DEVIATES, f"the gradient differs{after}" if after and wrong[0] is numbers.used else ""


def _within_spread(error: float | None, spread: float | None) -> tuple[Verdict, str]:
    """The verdict on a step whose losses draw random numbers: masks depend on the rows that they are drawn for."""
    if error is None or spread is None:
        return Verdict.INCONCLUSIVE, "its losses draw random numbers, which depend on how the batch is split"
    said = f"different random numbers alone change the reference's own gradient by {spread:.2g} of its norm"
    if error > _DRAWS * spread:
        return Verdict.DEVIATES, f"{said}, which does not explain the difference"
    return Verdict.INCONCLUSIVE, f"{said}, so an error of {error:.2g} says nothing about the loop"


def _is_within(error: float | None, allowed: float) -> bool:
    return error is not None and error <= allowed


def _verdict(steps: Sequence[WindowReport], course: Course, waived: Waived, *, to_the_end: bool) -> tuple[Verdict, str]:
    """The verdict on what has not been accepted."""
    total = len(steps)
    decisive = [step for step in steps if not step.accepted]
    by_verdict = {verdict: [s for s in decisive if s.verdict is verdict] for verdict in Verdict}
    cuts = [cut for cut in course.cuts if not waived.covers(cut.steps)]
    said = []
    if wrong := by_verdict[Verdict.DEVIATES]:
        said.append(f"{len(wrong)} of {total} steps do not match the reference gradient on the same data")
    if cuts:
        said.append(_on_cuts(cuts))
    if course.unused and to_the_end and not waived.covers_what_is_left:
        said.append(f"{_many(course.unused, 'row')} used by the reference never reached a step")
    if to_the_end and (without := _without_data(course)):
        said.append(without)
    if said:
        return Verdict.DEVIATES, "; ".join(said)
    if coupled := by_verdict[Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION]:
        return Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, coupled[0].reason
    if open_ := by_verdict[Verdict.INCONCLUSIVE]:
        return Verdict.INCONCLUSIVE, f"{len(open_)} of {total} steps: {open_[0].reason}"
    other = _on_other_data(course, to_the_end=to_the_end)
    if other:
        right = f"{len(decisive)} steps on the same data match the reference gradient, but " if decisive else ""
        return Verdict.INCONCLUSIVE, right + other
    if not total and not course.cuts:
        return Verdict.INCONCLUSIVE, "no step used the same data as a step of the reference"
    if not decisive:
        return Verdict.EQUIVALENT, "every mismatch with the reference gradient has an accepted cause"
    counted = f"all {total}" if len(decisive) == total else f"{len(decisive)} of {total}"
    return Verdict.EQUIVALENT, f"{counted} steps match the reference gradient"


def _on_cuts(cuts: Sequence[Cut]) -> str:
    first = cuts[0]
    mine, theirs = (" and ".join(map(str, each)) for each in (first.mine, first.theirs))
    places = "one place" if len(cuts) == 1 else f"{len(cuts)} places"
    return (
        f"the same data is split into different steps in {places}: from step {first.at.index} on, steps have {mine} "
        f"rows where the reference has {theirs}"
    )


def _without_data(course: Course) -> str:
    """The last steps of one run without new data, where the other has none; empty otherwise."""
    here, there = (
        [step for step in missed if step.rows is not None and not step.rows.count] for missed in course.missing[::-1]
    )
    if not here and not there:
        return ""
    who, many = ("it makes", len(here)) if here else ("the reference makes", len(there))
    return f"{who} {_many(many, 'step')} more, on no new data, which may move the weights all the same"


def _on_other_data(course: Course, *, to_the_end: bool) -> str:
    """From where on the data differed, and why; empty where it was the same to the end."""
    if course.parted_at is not None:
        mine, theirs = course.parted_at
        return (
            f"from step {mine.index} on (step {theirs.index} of the reference) they cannot be compared: "
            f"{course.parted_by}"
        )
    missing, more = ([step for step in steps if step.rows is None or step.rows.count] for steps in course.missing)
    if not to_the_end or not (missing or more):
        return ""
    if missing:
        if course.unused:
            return ""
        return (
            f"the reference makes {_many(len(missing), 'step')} more, on {_many(_count(missing), 'row')} that reach "
            "no step here (drop_last, or a different sampler)"
        )
    return (
        f"it makes {_many(len(more), 'step')} more, on {_many(_count(more), 'row')} that reach no step in the reference"
    )


def _count(steps: Sequence[Arrival]) -> int:
    return sum(step.rows.count for step in steps if step.rows is not None)


def _notes(course: Course, steps: Sequence[WindowReport]) -> list[str]:
    notes = []
    drifts = [step.drift for step in steps if step.drift is not None]
    if drifts:
        notes.append(
            f"after {len(drifts)} steps the weights differ from the reference's by {drifts[-1]:.1e} of the distance "
            "moved"
        )
    return notes
