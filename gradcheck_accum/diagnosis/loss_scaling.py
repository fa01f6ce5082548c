"""Patterns of weights: GA101, GA102; windows whose weights are uneven as well are also judged here (GA104)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import reduce

from gradcheck_accum.diagnosis.account import (
    Account,
    Diagnosis,
    Shares,
    diagnosis,
    opens_long,
    opens_short,
    plural,
    scalers,
    scaling_framework,
    times,
)
from gradcheck_accum.diagnosis.assumed_numbers import is_length_assumed, steps_in_words
from gradcheck_accum.diagnosis.mean_of_means import judge_evenness
from gradcheck_accum.diagnosis.window_boundary import outgrowing
from gradcheck_accum.ledger.events import Operation, Purpose, Reduction, Term, product_of
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.weights import Series
from gradcheck_accum.ledger.window_length import divides_by
from gradcheck_accum.ledger.windows import Fate, Window
from gradcheck_accum.wording import Said, message


def find_scale(account: Account) -> Iterator[Diagnosis]:
    """GA101, GA102, GA104: every entry of a full window has a wrong weight, or the weights are uneven."""
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
            # A term that only some of the micro-batches have is no evidence of how many are summed.
            whole = shares.elsewhere or shares.length == window.micro_batches
            if whole and (_is_full(account, shares, leaking) or _is_undivided_remainder(account, series, shares)):
                yield from _judge_level(account, shares, where)
            if shares.length == account.steps:
                yield from _judge_undivided(account, shares)
            if shares.kind is not Reduction.NONE:
                yield from judge_evenness(account, shares, where)


def find_divided_again(account: Account) -> Iterator[Diagnosis]:
    """GA102 where a loss's weight is not known: it is divided by K twice, and all other factors are divisions too.

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
    """Whether a window holds what an earlier pass over the data left over, which was scaled for another window."""
    return len(window.passes(account.steps)) > 1


def _is_full(account: Account, shares: Shares, leaking: Collection[Window]) -> bool:
    """Whether a window shows what losses are divided by, because it is not just shorter than they are divided for.

    Where K changes, the windows of each value do; ``leaking`` are those that are longer for another reason.
    """
    if shares.window.is_short_of_ranks:
        return False
    if account.has_no_full_window:
        return True
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
    full = [account.shares(w, series) for w in account.full()]
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
    if account.has_no_full_window and shares.kind is not Reduction.SUM and not account.same(level, 1.0):
        level *= account.steps / length
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
        if is_length_assumed(account):
            yield diagnosis(
                "GA101",
                where,
                message(
                    "the loss is not divided by the number of micro-batches: all of them are accumulated",
                    closes,
                    ", and each is weighted by their number relative to the large batch",
                ),
                "divide the loss by the number of micro-batches in this window before backward()",
                shares.window,
            )
            return
        counts = f"each is weighted {times(level)} relative to the large batch"
        other = _other_divisor(account, shares)
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
        framework=scaling_framework(shares),
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


def _by_whom(shares: Shares) -> Said:
    """What scaled the losses, if one of several places was a framework's."""
    places = scalers(shares)
    if len(places) < 2 or not any(place.through for place in places):
        return ""
    each = (message("by ", place.through) if place.through else message("at ", place) for place in places)
    first = message(": ", next(each))
    return reduce(lambda said, other: message(said, " and ", other), each, first)


def _extent(account: Account, shares: Shares) -> str:
    """The weight of a unit, in words; a size that the source does not show is named, not stated."""
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
