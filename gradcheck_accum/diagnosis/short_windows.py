"""Patterns of windows that do not hold as many micro-batches as their losses are divided by: GA103, GA303, GA304."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from gradcheck_accum.diagnosis.account import (
    Account,
    Diagnosis,
    Shares,
    diagnosis,
    holds_remainders_alone,
    interrupted,
    lacks_what_was_cleared,
    opens_short,
    plural,
    scalers,
    scaling_framework,
    times,
)
from gradcheck_accum.diagnosis.assumed_numbers import if_any_is_left_over, says_steps_by_name, steps_in_words
from gradcheck_accum.ledger.events import Reduction, Step
from gradcheck_accum.ledger.stated_names import names_steps
from gradcheck_accum.ledger.windows import Window
from gradcheck_accum.wording import message


def find_remainder_scale(account: Account) -> Iterator[Diagnosis]:
    """GA103, GA303, GA304: a shorter window whose entries keep the weight that the full windows' have."""
    exceptions = interrupted(account)
    at_once = set(_stepping_at_once(account))
    for series in account.series():
        full = [account.shares(w, series) for w in account.full()]
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
            if account.ledger.trace.complete and lacks_what_was_cleared(account, window):
                # So it is where the clearing came between two passes (GA301).
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
            # A division at several places has no single author.
            framework = scaling_framework(shares) if len(scalers(shares)) == 1 else ""
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


def find_partly_scaled_remainder(account: Account) -> Iterator[Diagnosis]:
    """GA103: some micro-batches of a remainder are divided by their number, and the others still by K."""
    exceptions = interrupted(account)
    for series in account.series():
        full = [shares for w in account.full() if (shares := account.shares(w, series)) is not None]
        if not full or any(not account.same(shares.level, 1.0) for shares in full):
            continue
        for window in account.known():
            shares, step = account.shares(window, series), window.step
            if shares is None or step is None or shares.kind is not Reduction.MEAN or shares.elsewhere:
                continue
            if window.index in exceptions or _is_of_a_phase(account, window) or _is_inside_a_pass(account, window):
                continue
            length, of_each = shares.length, [weight.share or 0.0 for weight in shares.live]
            still = sum(account.same(share, 1.0 / account.steps) for share in of_each)
            own = sum(account.same(share, 1.0 / length) for share in of_each)
            if length < account.steps and still and own and still + own == length:
                yield diagnosis(
                    "GA103",
                    step.where,
                    f"the last window holds {plural(length)}, but {still} of them {'is' if still == 1 else 'are'} "
                    f"still divided by {account.steps}: weighted {times(length / account.steps)} relative to the large "
                    "batch",
                    "divide each by the number of micro-batches that the window actually holds",
                    window,
                )


def find_skipped_step(account: Account) -> Iterator[Diagnosis]:
    """GA303: the micro-batch at which a window should have ended was counted but skipped, and its step with it.

    What follows until the counter has come to K once more is in the same window, which is longer than K, and lacks of
    a multiple of K just what was counted and never ran.
    """
    if account.steps < 2 or account.steps not in account.lengths:
        return
    for window in account.known():
        skipped, step = account.ledger.skipped(window), window.step
        length = window.micro_batches
        if step is None or not skipped or length <= account.steps or (length + skipped) % account.steps:
            continue
        if window.spans_passes or window.is_short_of_ranks or _is_of_a_phase(account, window):
            continue
        for series in account.series():
            shares = account.shares(window, series)
            if shares is None or shares.kind is Reduction.SUM or shares.length <= account.steps:
                continue  # where terms have data of their own, a window of K of each holds more of all
            if account.same(shares.level, shares.length / account.steps):
                yield diagnosis(
                    "GA303",
                    step.where,
                    f"the window holds {plural(length)} instead of {account.steps}: {plural(skipped)} "
                    f"{'was' if skipped == 1 else 'were'} skipped but still counted, at the end of a window, and its "
                    f"step with it: each one is weighted {times(shares.level)} relative to the large batch",
                    "count only micro-batches whose backward has run, or test for the end of the window in any case",
                    window,
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
    # A pass's first window is short too where the counter went on, and the one before lost or used its remainder.
    goes_over = not before and (bool(account.abandoned) or _completes_the_one_before(account, window))
    return _goes_on(account, window) and not goes_over


def _completes_the_one_before(account: Account, window: Window) -> bool:
    """Whether a window is what a remainder before it lacked: a step used that, and the counter went on."""
    earlier = [w for w in account.windows if w.index < window.index and w.micro_batches]
    remainder = earlier[-1].micro_batches % account.steps if earlier else 0
    return bool(remainder) and (remainder + window.micro_batches) % account.steps == 0


def _all_lack_what_was_counted(account: Account) -> bool:
    """Whether in every window as many micro-batches as are missing were counted and never ran.

    Where that which never ran would have stepped, the counter has gone on to the next time that it does.
    """
    return all((w.micro_batches + account.ledger.skipped(w)) % account.steps == 0 for w in account.windows)


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

    K has to be stated: where nothing is accumulated, there is no number of micro-batches to infer it from.
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
            steps = window.step.accumulation_steps or _stated_divisor(account, shares, window.step)
            if steps >= 2 and account.same(shares.level, 1.0 / steps):
                yield _steps_at_every_micro_batch(window, window.step, steps)


def _stated_divisor(account: Account, shares: Shares, step: Step) -> int:
    """What a loss is divided by, if by a name of K or the number of parts of the data, or its coefficient is stated.

    0 if none of these applies.
    """
    counted = step.counted_by.parts if step.counted_by is not None else frozenset[str]()
    named = any(
        names_steps(factor.origins) or not counted.isdisjoint(factor.origins)
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
