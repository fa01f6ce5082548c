"""Patterns of the window's bounds: GA301, GA302."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradcheck_accum.diagnosis.account import (
    Account,
    Diagnosis,
    Shares,
    diagnosis,
    holds_remainders_alone,
    lacks_what_was_cleared,
    opens_long,
    opens_short,
    plural,
)
from gradcheck_accum.diagnosis.assumed_numbers import if_any_is_left_over, says_steps_by_name, steps_in_words
from gradcheck_accum.diagnosis.clearing import clears_every_batch
from gradcheck_accum.ledger.events import Reduction
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.passes import KnownBy
from gradcheck_accum.ledger.stated_names import names_size, names_steps
from gradcheck_accum.ledger.windows import Fate, Window


def find_remainder(account: Account) -> Iterator[Diagnosis]:
    """GA301: entries that no step consumed, or that leaked into a later pass's first window."""
    if not account.ledger.trace.complete or not all(w.is_followed for w in account.windows):
        return
    spans = [w for w in account.windows if w.spans_passes]
    # A counter that no epoch resets lets windows run on over the epoch's end: nothing is lost but what is left when
    # training ends, and that is none where the lengths or the number of the passes are only the engine's assumption.
    rolls_on = bool(spans) and all(w.micro_batches == account.steps for w in spans)
    trace = account.ledger.trace
    lost = [w for w in account.abandoned if not (rolls_on and (trace.assumed_length or trace.assumed_turns))]
    if not all(w.is_followed for w in account.abandoned):
        lost = []  # what is done after the last step may use what is left there; it undoes no leak into a window before
    if account.steps == 1 and trace.assumed_length:
        lost = []  # windows of one leave no remainder, whatever the length is
    lost = [w for w in lost if not (trace.assumed_turns and _makes_up_for_a_short_first(account, w))]
    if not any(w.step for w in account.windows) or clears_every_batch(account):
        return  # a loop that clears every micro-batch except a step's own loses a remainder's no more than the others'
    help = "after the loop, step once more for the remaining micro-batches, dividing by their number"
    longer = outgrowing(account)
    leaks = [
        w for w in account.windows if w.micro_batches > account.steps > 1 and (_runs_on(account, w) or w in longer)
    ]
    # A leak is reported first: it happens in every epoch, and what is lost at the very end is its last occurrence.
    stated = not account.ledger.trace.assumed_length or not says_steps_by_name(account)
    for window in leaks:
        message = _leaks(account, window, bool(lost))
        yield diagnosis("GA301", _usual_step(account, window), message, help, window, states_steps=stated)
    for window in lost:
        message = _never_reaches(account, window)
        yield diagnosis("GA301", _usual_step(account, window), message, help, states_steps=stated)


def _makes_up_for_a_short_first(account: Account, window: Window) -> bool:
    """Whether what is left of a stream without passes is what its first window lacks.

    The engine ends such a stream after as many micro-batches as whole windows have. Where the loop itself ends it is
    not known, and what an early first step leaves over at that end is the engine's choice.
    """
    first = account.windows[0] if account.windows else None
    if first is None or any(entry.epoch is not None for entry in window.entries):
        return False
    return first.micro_batches < account.steps and first.micro_batches + window.micro_batches == account.steps


def _leaks(account: Account, window: Window, loses: bool) -> str:
    """That what one epoch leaves over is in the next one's first window, in words."""
    condition = if_any_is_left_over(account)
    if condition:
        return (
            f"the loop steps every {steps_in_words(account)} micro-batches: {condition}, the remainder of each epoch "
            "leaks into the next epoch's first window"
            f"{', and the remainder of the last epoch never reaches a step' if loses else ''}"
        )
    extra = window.micro_batches - account.steps
    return (
        f"the loop steps every {account.steps} micro-batches: the {plural(extra)} left over from each epoch "
        f"{'leaks' if extra == 1 else 'leak'} into the next epoch's first window, which then holds "
        f"{window.micro_batches}{', and the remainder of the last epoch never reaches a step' if loses else ''}"
    )


def _never_reaches(account: Account, window: Window) -> str:
    """In words, that the last micro-batches of an epoch are lost."""
    how = "left over when the loop ends" if window.entries[-1].fate is Fate.LEFT else "cleared before any step"
    counted = any(w.index == window.index and lacks_what_was_cleared(account, w) for w in account.windows)
    how += " but still counted (the next window holds as many fewer)" if counted else ""
    condition = if_any_is_left_over(account)
    if condition:
        return (
            f"the loop steps every {steps_in_words(account)} micro-batches: {condition}, the last micro-batches of an "
            f"epoch never reach a step and are {how}"
        )
    count = window.micro_batches
    return (
        f"{plural(count)} at the end of an epoch never {'reaches' if count == 1 else 'reach'} a step: "
        f"{'it is' if count == 1 else 'they are'} {how}, because the loop steps every {account.steps} micro-batches"
    )


def outgrowing(account: Account) -> list[Window]:
    """The windows that are longer than the usual one where passes over the data cannot be distinguished."""
    usual = [w for w in account.windows if w.micro_batches == account.steps]
    longer = [
        w
        for w in account.windows[1:]
        if w.micro_batches > account.steps
        and not w.unknown
        and all(e.epoch is None for e in w.fresh())
        and not _has_its_own_divisor(account, w)
    ]
    if len(usual) < 2 or not longer or not _leaves_some(account):
        return []
    # That some windows are shorter than another does not make theirs the usual length where no loss is divided by it.
    return longer if any(_has_its_own_divisor(account, w) for w in usual) else []


def _runs_on(account: Account, window: Window) -> bool:
    """Whether a window began in an earlier pass; what steps alone tell of passes, a right window contradicts."""
    seen = account.ledger.passes.known_by is KnownBy.ENGINE
    return window.spans_passes and (seen or not _has_its_own_divisor(account, window))


def _has_its_own_divisor(account: Account, window: Window) -> bool:
    """Whether the losses of a window are divided by as much as it holds: K has changed, and nothing leaked."""
    own = account.series()
    shares = [account.shares(window, series) for series in own]
    right = all(s is not None and account.same(s.level, 1.0) for s in shares)
    return right and all(account.readings.is_normalised(window, series) for series in own)


def _leaves_some(account: Account) -> bool:
    """Whether micro-batches are left over when the run ends, without a step or with one of their own.

    Those that leak at every epoch's end have no later epoch to leak into at the last.
    """
    return bool(account.abandoned) or account.windows[-1].micro_batches < account.steps


def _usual_step(account: Account, window: Window) -> Location:
    """The step that most windows have whose gradients are made where this one's are: that of its own loop."""
    made = {entry.backward.where for entry in window.entries}
    stepped = [(w.step.where, w) for w in account.windows if w.step is not None]
    own = [where for where, w in stepped if any(entry.backward.where in made for entry in w.with_fate(Fate.LIVE))]
    places = Counter(own or [where for where, _ in stepped])
    return max(places, key=lambda where: places[where])


def find_off_by_one(account: Account) -> Iterator[Diagnosis]:
    """GA302: windows that begin short, or are all one longer or shorter than the K that the loss is divided by."""
    first, *rest = account.known() or [None]
    if first is None or first.step is None or account.steps < 2 or set(account.lengths) == {1}:
        # Where every micro-batch steps, the step does not come early by one: nothing is accumulated at all.
        return
    if holds_remainders_alone(account):
        return
    if (opens_short(account) or opens_long(account)) and not _is_right(account, first):
        if first.micro_batches + account.ledger.skipped(first) == account.steps:
            # What never ran makes it short, not the test for its boundary.
            return
        yield diagnosis(
            "GA302",
            first.step.where,
            f"the first window closes after {plural(first.micro_batches)} instead of {account.steps}: the boundary "
            "test counts from 0",
            "test (i + 1) % K == 0 if i starts at 0",
            first,
        )
        return
    usual = account.lengths.most_common(1)[0][0]
    if usual < account.steps and account.steps in account.lengths:
        # The boundary lets windows hold K: something else cuts the others short.
        return
    for series in account.series():
        every = [shares for w in (first, *rest) if (shares := account.shares(w, series)) is not None]
        full = [s for s in every if s.window.micro_batches == usual and not s.window.spans_passes]
        divisors = [s.length / s.level for s in full if s.level and not s.window.is_short_of_ranks]
        if not all(account.same(divisor, divisors[0]) for divisor in divisors):
            # What changes from window to window is no K: the objective decays, say.
            continue
        for shares in full:
            yield from _judge_divisor(account, shares)


def _judge_divisor(account: Account, shares: Shares) -> Iterator[Diagnosis]:
    """GA302 where a window's losses are divided by one more or one less than it holds."""
    window = shares.window
    if shares.kind is Reduction.SUM or window.step is None or not shares.level or window.is_short_of_ranks:
        return
    if account.same(shares.level, 1.0):
        return
    divisor = float(account.steps) if account.has_no_full_window else shares.length / shares.level
    if account.same(divisor, float(shares.length + account.ledger.skipped(window))):
        # What was counted and never ran makes it short.
        return
    if _is_a_size(account, window, divisor):
        # What happens to be one more or one less than K counts the rows of a batch.
        return
    near = any(account.same(divisor, float(d)) for d in (shares.length - 1, shares.length + 1) if d > 1)
    if near and window.step.accumulation_steps in (None, round(divisor)):
        yield diagnosis(
            "GA302",
            window.step.where,
            f"the window holds {plural(window.micro_batches)}, but the loss is divided by {divisor:.4g}: "
            "the step is off by one micro-batch",
            "use the same K in the boundary test and as the divisor",
            window,
        )


def _is_a_size(account: Account, window: Window, divisor: float) -> bool:
    """Whether the losses of a window are divided by this number as the size of a batch, by where the source has it."""
    factors = [factor for entry in window.fresh() for term in entry.backward.terms for factor in term.factors]
    dividing = [f for f in factors if f.value and account.same(f.value * divisor, 1.0)]
    return bool(dividing) and all(names_size(f.origins) and not names_steps(f.origins) for f in dividing)


def _is_right(account: Account, window: Window) -> bool:
    shares = [account.shares(window, series) for series in account.series()]
    known = [s for s in shares if s is not None]
    scaled_elsewhere = any(
        s is not None and account.same(s.level, 1.0)
        for w in account.known()
        if w.micro_batches == account.steps
        for s in [account.shares(w, series) for series in account.series()]
    )
    return bool(known) and scaled_elsewhere and all(account.same(s.level, 1.0) for s in known)
