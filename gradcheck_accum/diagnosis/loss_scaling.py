"""Patterns of weight: GA101, GA102, GA103, GA104, GA303, GA304."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import reduce
from itertools import groupby

from gradcheck_accum.diagnosis.account import (
    Account,
    Diagnosis,
    Shares,
    diagnosis,
    holds_remainders_alone,
    interrupted,
    opens_long,
    opens_short,
    plural,
    scalers,
    times,
)
from gradcheck_accum.diagnosis.assumed_numbers import if_any_is_left_over, says_steps_by_name, steps_in_words
from gradcheck_accum.diagnosis.window_boundary import outgrowing
from gradcheck_accum.ledger.events import Operation, Purpose, Reduction, Step, Term, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.stated_names import names_steps
from gradcheck_accum.ledger.weights import Series
from gradcheck_accum.ledger.window_length import divides_by
from gradcheck_accum.ledger.windows import Fate, Window
from gradcheck_accum.wording import Said, message


def find_scale(account: Account) -> Iterator[Diagnosis]:
    """GA101, GA102, GA104: every entry of a full window too heavy or too light, or entries uneven."""
    leaking = outgrowing(account)
    for series in account.series():
        if _is_scaled_for_other_windows(account, series):
            continue
        for window in account.known():
            shares = account.shares(window, series)
            if shares is None or _holds_a_leaked_remainder(account, window):
                continue
            if len(shares.weights) + len(shares.elsewhere) < 2:
                yield from _judge_alone(account, shares)
                continue
            where = shares.live[0].entry.backward.where
            # A term that some of the micro-batches do not have is no evidence of how many add up.
            whole = shares.elsewhere or shares.length == window.micro_batches
            if whole and (_is_full(account, shares, leaking) or _is_undivided_remainder(account, series, shares)):
                yield from _judge_level(account, shares, where)
            if shares.length == account.steps:
                yield from _judge_undivided(account, shares)
            if shares.kind is not Reduction.NONE:
                yield from _judge_evenness(account, shares, where)


def find_left_out(account: Account) -> Iterator[Diagnosis]:
    """GA104 where it is likely: means of equal weight over targets of which as many count as the data say.

    So it is where a loss leaves targets out by their value, where a mask chooses them, and where a sum is divided by a
    count of its own micro-batch's data: padding, what is masked, what bears no label.
    """
    if account.steps < 2:
        return
    for series in account.series():
        for window in account.known():
            shares = account.shares(window, series)
            if shares is None or shares.kind is not Reduction.MEAN or shares.length != account.steps:
                continue
            terms = [t for w in shares.live for t in w.entry.backward.terms if t.name == series.name and t.leaves_out]
            even = all(w.share is not None and account.same(w.share, 1 / shares.length) for w in shares.weights)
            alike = all(w.units == shares.weights[0].units for w in shares.weights)
            if terms and even and alike:
                found = diagnosis(
                    "GA104",
                    shares.live[0].entry.backward.where,
                    "likely a mean of means: the number of targets that the loss averages over depends on the data "
                    "(ignore_index, a mask, a selection, padding), yet every micro-batch has the same weight: where "
                    "these numbers differ, a target in a micro-batch with few targets is weighted more than in the "
                    "large batch",
                    "sum the loss over the micro-batch and divide by the number of targets in the whole window",
                    window,
                    states_steps=False,
                )
                yield replace(found, likely=True)
                break


def find_divided_again(account: Account) -> Iterator[Diagnosis]:
    """GA102 where what a loss weighs is not known: it is divided by K twice, and whatever else there is divides too.

    A count of rows or tokens, which the source does not show, is at least 1: no division undoes another.
    """
    if account.steps < 2:
        return
    for window in account.known():
        if window.micro_batches != account.steps or window.step is None:
            continue
        for entry in window.with_fate(Fate.LIVE):
            for term in entry.backward.terms:
                first = _divided_again(account, term)
                if first is not None:
                    yield _divides_twice(account, window, entry.backward.where, first)
                    return


def _divided_again(account: Account, term: Term) -> Location | None:
    """Where a term of unknown weight is divided by K in the source, if that is done twice in all."""
    if product_of(term.factors) is not None:
        return None  # its weight says more
    if not all(f.operation is Operation.DIVIDE or f.purpose is Purpose.OBJECTIVE for f in term.factors):
        return None
    places = {
        f.where
        for f in term.factors
        if f.purpose is Purpose.ACCUMULATION and divides_by(f, account.steps, account.readings.same)
    }
    shown = sorted(place for place in places if place is not None)
    return shown[0] if shown and len(places) > 1 else None


def _divides_twice(account: Account, window: Window, where: Location, first: Location) -> Diagnosis:
    return diagnosis(
        "GA102",
        where,
        message(
            f"the loss is divided twice by {steps_in_words(account)}: at ",
            first,
            f", and again by what runs this backward; each of {plural(window.micro_batches)} is weighted "
            f"{times(1 / account.steps)} of what it would be if it were divided once",
        ),
        "divide by the accumulation steps only once",
        window,
    )


def _is_scaled_for_other_windows(account: Account, series: Series) -> bool:
    """Whether each window holds losses that were scaled for two: then neither a level nor a share says what was meant.

    So it is where the boundary is off by one and losses are divided by something that changes from window to window.
    """
    if not (opens_short(account) or opens_long(account)):
        return False
    weights = [w for window in account.known() for w in account.readings.weights(window, series)]
    shares = [w.share for w in weights if w.share is not None]
    return any(not account.same(share, shares[0]) for share in shares)


def _holds_a_leaked_remainder(account: Account, window: Window) -> bool:
    """Whether what an earlier pass over the data left over stands in it: those were scaled for another window."""
    return len(window.passes(account.steps)) > 1


def _is_full(account: Account, shares: Shares, leaking: Collection[Window]) -> bool:
    """Whether a window says what losses are divided by: not one that is merely shorter than they are divided for.

    Where K changes, the windows of each of its values do; ``leaking`` are those that are longer for another reason.
    """
    if shares.window.is_short_of_ranks:
        return False
    held, step = shares.window.micro_batches, shares.window.step
    if held > account.steps > 1 and held in account.recurring and not shares.window.spans_passes:
        is_counted = step is not None and step.counted_by is not None and step.counted_by.steps == account.steps
        return not is_counted and shares.window not in leaking
    short = account.same(shares.level * account.steps, float(shares.length))
    return held == account.steps or (_windows_differ(account) and not short)


def _is_undivided_remainder(account: Account, series: Series, shares: Shares) -> bool:
    """Whether a window shorter than K counts each of its micro-batches in full, though the windows of K are right."""
    if shares.window.micro_batches >= account.steps or not account.same(shares.level, float(shares.length)):
        return False
    full = [account.shares(w, series) for w in account.known() if w.micro_batches == account.steps]
    return bool(full) and all(own is not None and account.same(own.level, 1.0) for own in full)


def _judge_undivided(account: Account, shares: Shares) -> Iterator[Diagnosis]:
    """GA101 where some losses of a window are divided by K and others are not: that is no difference where K is 1."""
    steps = account.steps
    if steps == 1:
        return
    odd = [w for w in shares.weights if w.share is not None and account.same(w.share, 1.0)]
    divided = [w for w in shares.weights if w.share is not None and account.same(w.share * steps, 1.0)]
    step = shares.window.step
    if shares.kind is not Reduction.MEAN or not odd or not divided or len(odd) + len(divided) < steps or step is None:
        return
    yield diagnosis(
        "GA101",
        odd[0].entry.backward.where,
        message(
            f"the loss of {len(odd)} of {plural(steps)} is not divided by the number of micro-batches, unlike the "
            "others before the step at ",
            step.where,
            f": {'it is' if len(odd) == 1 else 'each is'} weighted {times(float(steps))} relative to the large batch",
        ),
        f"divide the loss by {steps} (the accumulation steps) at every micro-batch",
        shares.window,
    )


def _windows_differ(account: Account) -> bool:
    """Whether no length is the usual one, as where K changes during training."""
    lengths = account.lengths
    return lengths[account.steps] * 2 < len(account.windows) and len(lengths) > 2


def _judge_level(account: Account, shares: Shares, where: Location) -> Iterator[Diagnosis]:
    level, length = shares.level, shares.length
    if shares.kind is Reduction.SUM and not account.same(level, 1.0) and level > 1:
        return
    if account.same(level, 1.0) or level <= 0 or shares.is_mixed(account.same):
        return
    step = shares.window.step
    closes = message(" before the step at ", step.where) if step else ""
    if level > 1:
        if not account.same(level, float(length)) and _is_near_miss(account, level, length):
            return
        rescale = shares.live[0].entry.backward.rescale
        if rescale != 1.0 and account.same(level, rescale):
            yield diagnosis(
                "GA101",
                where,
                message(
                    "the sum of the ranks' gradients is not divided by the number of ranks (a divide factor was set): "
                    f"each micro-batch is weighted {times(level)} relative to the large batch",
                    closes,
                ),
                "divide the summed loss by the units of all ranks, or keep the default averaging over the ranks",
                shares.window,
            )
            return
        other = _other_divisor(account, shares)
        counts = f"each is weighted {times(level)} relative to the large batch"
        if other:
            counts += f", or {times(length / other)} if the division by {other} is not part of the objective"
        yield diagnosis(
            "GA101",
            where,
            message(
                f"the loss is not divided by the number of micro-batches: {length} are accumulated",
                closes,
                f", and {counts}",
            ),
            f"divide the loss by {steps_in_words(account, length)} ({_length_in_words(account, length)}) before "
            "backward()",
            shares.window,
        )
        return
    stated = step.accumulation_steps if step is not None else None
    if _is_near_miss(account, level, length) and stated in (None, length + 1):
        return
    yield diagnosis(
        "GA102",
        where,
        message(
            f"the loss is divided twice: {length} micro-batches are accumulated",
            closes,
            f", and each is weighted only {_extent(account, shares)} relative to the large batch"
            f"{_second_divisor(account, shares, level)}",
            _by_whom(shares),
        ),
        "divide by the accumulation steps only once; a mean-reduced loss already averages over its batch",
        shares.window,
        framework=_scaling_framework(shares),
    )


def _length_in_words(account: Account, length: int) -> str:
    return "the number of micro-batches in this window" if length < account.steps else "the accumulation steps"


def _judge_alone(account: Account, shares: Shares) -> Iterator[Diagnosis]:
    """GA102 where nothing is accumulated, as the K that is stated says: only a count of units is surely no K."""
    step = shares.window.step
    own = _second_divisor(account, shares, shares.level)
    if step is None or step.accumulation_steps != 1 or shares.level >= 1 or not own:
        return
    yield diagnosis(
        "GA102",
        shares.live[0].entry.backward.where,
        f"the loss is a mean and is divided again: each micro-batch is weighted only {_extent(account, shares)} "
        f"relative to the large batch{own}",
        "a mean-reduced loss already averages over its batch",
        shares.window,
    )


def _other_divisor(account: Account, shares: Shares) -> int:
    """What a window's losses are divided by that was taken for their objective's, where nothing states K; else 0.

    A window that is shorter than all the loop would make looks like that: N of it are divided by a K that never shows.
    """
    if account.states_steps or not account.same(shares.level, float(shares.length)):
        return 0
    terms = [term for weight in shares.live for term in weight.entry.backward.terms]
    factors = {f.value for term in terms for f in term.factors if f.operation is Operation.DIVIDE and f.value}
    counts = [round(1 / value) for value in factors if account.same(value * round(1 / value), 1.0)]
    return counts[0] if len(factors) == len(counts) == 1 and counts[0] > shares.length else 0


def _scaling_framework(shares: Shares) -> str:
    """The package that scaled the losses, where one did."""
    return next((place.through for place in scalers(shares) if place.through), "")


def _by_whom(shares: Shares) -> Said:
    """Who scaled the losses, where one of several was a framework."""
    places = scalers(shares)
    if len(places) < 2 or not any(place.through for place in places):
        return ""
    each = (message("by ", place.through) if place.through else message("at ", place) for place in places)
    first = message(": ", next(each))
    return reduce(lambda said, other: message(said, " and ", other), each, first)


def _extent(account: Account, shares: Shares) -> str:
    """What a unit weighs, in words; a size that the source does not show is called by what it is."""
    size = account.ledger.trace.assumed_units
    if size is not None and all(w.units == size for w in shares.weights):
        for times_more in (1, shares.length):
            if account.same(shares.level * size * times_more, 1.0):
                return f"1/(batch size{f' x {times_more}' if times_more > 1 else ''})"
    return times(shares.level)


def _second_divisor(account: Account, shares: Shares, level: float) -> str:
    if all(w.units and account.same(level * w.units, 1.0) for w in shares.weights):
        shown = (
            "" if shares.weights[0].units == account.ledger.trace.assumed_units else f"1/{shares.weights[0].units:g}: "
        )
        return f" ({shown}also divided by the batch size)"
    ranks = shares.window.divisor
    if ranks > 1 and account.same(level * ranks, 1.0):
        return f" (1/{ranks}: the average over the ranks divides by their number again)"
    if account.same(level * shares.length, 1.0):
        return f" (1/{shares.length}: divided by the accumulation steps a second time)"
    return ""


def _is_near_miss(account: Account, level: float, length: int) -> bool:
    """Whether the loss was divided by a K that is one off the window's length: the window is wrong, not the scale."""
    return any(account.same(level, length / divisor) for divisor in (length - 1, length + 1) if divisor > 1)


def _judge_evenness(account: Account, shares: Shares, where: Location) -> Iterator[Diagnosis]:
    weights = (*shares.weights, *shares.elsewhere)
    counting = [w.relative or 0.0 for w in weights if w.units != 0]
    if not counting:
        return
    low, high = _bounds(counting)
    # The mean of no units at all (every target ignored) takes its share from the others.
    robbed = shares.kind is Reduction.MEAN and any(w.units == 0 and w.share for w in weights)
    if account.same(low, high) and not robbed:
        return
    if shares.elsewhere and account.same(*_bounds(w.relative or 0.0 for w in shares.weights)):
        yield from _judge_evenness_of_ranks(account, shares, where, low, high)
        return
    counts = [w.units for w in weights]
    if None in counts or all(account.same(count or 0.0, counts[0] or 0.0) for count in counts):
        return
    spoken = ", ".join(f"{count:g}" for count in counts[:8]) + (", …" if len(counts) > 8 else "")
    yield diagnosis(
        "GA104",
        where,
        f"mean of means: the micro-batches of this window hold {spoken} units, but their means have equal weight, so "
        f"per-unit weights range from {times(low)} to {times(high)} relative to the large batch",
        "sum the loss over the micro-batch and divide by the units of the whole window",
        shares.window,
    )


def _judge_evenness_of_ranks(
    account: Account, shares: Shares, where: Location, low: float, high: float
) -> Iterator[Diagnosis]:
    """GA104 over ranks: each rank's loss is a mean over its own units, and the ranks hold unequal numbers of them."""
    units = {w.entry: w.units or 0.0 for w in (*shares.live, *shares.elsewhere)}
    sums = [math.fsum(units.get(entry, 0.0) for entry in own) for own in shares.window.by_rank()]
    if account.same(*_bounds(sums)):
        return
    spoken = ", ".join(f"{total:g}" for total in sums[:8]) + (", …" if len(sums) > 8 else "")
    yield diagnosis(
        "GA104",
        where,
        f"mean of means: {len(sums)} ranks hold {spoken} units of this window, but averaging over the ranks gives "
        f"their means equal weight, so per-unit weights range from {times(low)} to {times(high)} relative to the large "
        "batch",
        "sum the loss, divide it by the window's units on all ranks (all_reduce the count), and multiply it by the "
        "number of ranks, by which averaging divides",
        shares.window,
    )


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def find_remainder_scale(account: Account) -> Iterator[Diagnosis]:
    """GA103, GA303, GA304: a shorter window whose entries keep the weight that the full windows' have."""
    exceptions = interrupted(account)
    at_once = set(_stepping_at_once(account))
    for series in account.series():
        full = [account.shares(w, series) for w in account.known() if w.micro_batches == account.steps]
        complete = [s for s in full if s is not None and s.length == account.steps]
        levels = [s.level for s in complete]
        if not levels and not holds_remainders_alone(account) and not _all_lack_what_was_counted(account):
            continue
        usual = levels[0] if levels else 1.0
        if account.steps > 1 and account.same(usual, float(account.steps)):
            continue
        for window in account.known():
            shares = account.shares(window, series)
            if shares is None or not 0 < shares.length_over_ranks < account.steps:
                continue
            divisor, share = float(account.steps), shares.length_over_ranks / account.steps
            if shares.kind is Reduction.SUM:
                divisor = complete[0].units if complete else 0.0
                share = shares.units / divisor if divisor else 0.0
            if not share or account.same(share, 1.0) or not account.same(shares.level, usual * share):
                continue
            if account.same(shares.level, 1.0):
                # The full windows are off, and this one is as long as they were meant to be.
                continue
            if window.index in exceptions:
                # What was cleared is missing too, and is reported with it.
                continue
            off_by_one = opens_short(account) and not _closes_pass(account, window)
            if off_by_one and not account.ledger.skipped(window):
                # A window that is short at the start of a pass is off by one, not a remainder.
                continue
            step = window.step
            if step is None:
                continue
            phase = _is_of_a_phase(account, window)
            if window in at_once:
                yield _steps_at_every_micro_batch(window, step, account.steps, " after the first full windows")
                continue
            missing = account.steps - shares.length
            counted = account.ledger.skipped(window) >= missing
            if not window.is_short_of_ranks and (counted or (not phase and _is_inside_a_pass(account, window))):
                skips = account.ledger.trace.skips_at
                yield diagnosis(
                    "GA303",
                    step.where,
                    message(
                        "a micro-batch that is skipped (at ",
                        skips,
                        f") is still counted: its window holds fewer than {steps_in_words(account)} micro-batches, and "
                        "each one that ran is weighted less than in the large batch",
                    )
                    if skips
                    else f"the window holds {plural(shares.length)} instead of {account.steps}, in the middle of an "
                    f"epoch: {plural(missing)} {'was' if missing == 1 else 'were'} skipped but still counted, "
                    f"and each one that ran is weighted {times(shares.level)} relative to the large batch",
                    "count only micro-batches whose backward has run",
                    window,
                    states_steps=not skips or not says_steps_by_name(account),
                )
                continue
            if window.is_short_of_ranks:
                yield _short_of_ranks(account, shares, step)
                continue
            of = "units" if shares.kind is Reduction.SUM else "micro-batches"
            # What is divided by at several places is no one's divisor.
            framework = _scaling_framework(shares) if len(scalers(shares)) == 1 else ""
            divided = f"{framework} still divides the loss" if framework else "the loss is still divided"
            which = "first window of an epoch" if _goes_on(account, window) else "last window"
            which = "window, like the ones next to it," if phase else which
            condition = if_any_is_left_over(account)
            by = "the units of a full window" if shares.kind is Reduction.SUM else steps_in_words(account)
            yield diagnosis(
                "GA103",
                step.where,
                f"{condition}, the {which} holds fewer micro-batches, but {divided} by {by}: each is weighted less "
                "than in the large batch"
                if condition
                else f"the {which} holds {plural(shares.length)}, but {divided} by "
                f"{divisor:g}: each is weighted {times(shares.level)} relative to the large batch",
                f"divide by the number of {of} that the window actually holds",
                window,
                framework=framework,
                states_steps=not condition or not says_steps_by_name(account),
            )


def _short_of_ranks(account: Account, shares: Shares, step: Step) -> Diagnosis:
    held = [len(own) for own in shares.window.by_rank()]
    held += [0] * (shares.window.divisor - len(held))
    return diagnosis(
        "GA103",
        step.where,
        f"the ranks hold {', '.join(map(str, held))} micro-batches of this window, but the loss is divided by "
        f"{account.steps} and the sum over the ranks by {shares.window.divisor}: each is weighted "
        f"{times(shares.level)} relative to the large batch",
        "give every rank the same number of micro-batches, or divide by the number that all ranks actually hold",
        shares.window,
    )


def _is_inside_a_pass(account: Account, window: Window) -> bool:
    """Whether a window is short though its pass over the data goes on, and did not just begin after a loss."""
    own = window.fresh()[-1].epoch
    if own is None:
        # A remainder comes at the end of every pass, and so at the end of the run too.
        last = account.windows[-1]
        return account.ledger.trace.complete and not account.abandoned and last.micro_batches == account.steps
    before = account.pass_bounds[own][0] < window.index
    # A pass's first window is short too where the one before lost its remainder and the counter went on.
    return _goes_on(account, window) and (before or not account.abandoned)


def _all_lack_what_was_counted(account: Account) -> bool:
    """Whether in every window as many micro-batches as are missing were counted and never ran."""
    return all(w.micro_batches + account.ledger.skipped(w) == account.steps for w in account.windows)


def _is_of_a_phase(account: Account, window: Window) -> bool:
    """Whether windows are as long as this one for a part of the run: K changes, and nothing was skipped."""
    return window.micro_batches in account.phases


def _stepping_at_once(account: Account) -> Iterator[Window]:
    """The windows of one micro-batch that follow a full one of the same pass over the data, two or more in a row.

    A remainder is one window at the end of its pass, and a K that changes does so between two passes, as far as passes
    are known. A step at which the source's counter has come to K is one of every K, however many of them ran.
    """
    if opens_short(account):
        # Off by one, each pass ends and begins with a short window.
        return
    before: Window | None = None
    for length, run in groupby(account.windows, lambda w: w.micro_batches):
        own = list(run)
        same = [w for w in own if _epoch_of(w) == _epoch_of(before) and not _was_counted_up_to(w, account.steps)]
        if before is not None and before.micro_batches == account.steps > length == 1 < len(same):
            yield from same
        before = own[-1]


def _was_counted_up_to(window: Window, steps: int) -> bool:
    """Whether the counter that decides on a window's step had come to a multiple of ``steps`` there."""
    counted = window.step.counted_by if window.step is not None else None
    return counted is not None and counted.steps == steps and (counted.reached or 1) % steps == 0


def _epoch_of(window: Window | None) -> int | None:
    """The pass over the data that a window ends in, where it has micro-batches of its own."""
    return window.fresh()[-1].epoch if window is not None and window.fresh() else None


def _closes_pass(account: Account, window: Window) -> bool:
    """Whether a window, not the first, is the last of its pass over the data, as far as passes are known."""
    return window is not account.windows[0] and not _goes_on(account, window)


def _goes_on(account: Account, window: Window) -> bool:
    """Whether a later window holds a micro-batch of the same pass over the data, where passes are known."""
    own = window.fresh()[-1].epoch
    return own is not None and account.pass_bounds[own][1] > window.index


def find_step_every_batch(account: Account) -> Iterator[Diagnosis]:
    """GA304: every micro-batch is a window of its own, yet carries the weight of one of K.

    K is what is stated, never a guess: where nothing is added up, no number of micro-batches can be held against one.
    """
    if set(account.lengths) - {1} or holds_remainders_alone(account):
        return
    if len(account.windows) == 1 and not all(window.is_followed for window in account.abandoned):
        return
    for window in account.known():
        for series in account.series():
            shares = account.shares(window, series)
            if shares is None or window.step is None or not shares.level or window.is_short_of_ranks:
                continue
            steps = window.step.accumulation_steps or _stated_divisor(account, shares)
            if steps >= 2 and account.same(shares.level, 1.0 / steps):
                yield _steps_at_every_micro_batch(window, window.step, steps)


def _stated_divisor(account: Account, shares: Shares) -> int:
    """What a loss is divided by under a name of K, or beside a coefficient that the caller states; 0 if neither is."""
    named = any(
        names_steps(factor.origins)
        for weight in shares.live
        for term in weight.entry.backward.terms
        for factor in term.factors
    )
    return round(1.0 / shares.level) if named or account.readings.coefficient is not None else 0


def _steps_at_every_micro_batch(window: Window, step: Step, steps: int, since: str = "") -> Diagnosis:
    return diagnosis(
        "GA304",
        step.where,
        f"the loss is divided by {steps}, but the optimizer steps at every micro-batch{since}: nothing is accumulated, "
        f"and each gradient is {times(1.0 / steps)} what it should be",
        "step only when the window is complete",
        window,
    )
