"""Patterns of clearing: GA201, GA202, GA203, GA204."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from gradcheck_accum.diagnosis.account import Account, Diagnosis, diagnosis, interrupted, plural
from gradcheck_accum.diagnosis.assumed_numbers import counts_windows
from gradcheck_accum.ledger.events import Backward, Cause, Opaque, Step, ZeroGrad
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.ledger.windows import ByProduct, Entry, Fate, Window
from gradcheck_accum.wording import message


def find_zeroing(account: Account) -> Iterator[Diagnosis]:
    """GA201, GA202: entries cleared before the step that should have used them; GA303, where that is an exception."""
    exceptions = interrupted(account)
    every_batch = clears_every_batch(account)
    for window in account.known():
        wiped = window.with_fate(Fate.WIPED)
        if not wiped or window.step is None:
            continue
        live = window.with_fate(Fate.LIVE)
        cause = wiped[-1].wiped_by
        if cause is None or _left_by_an_earlier_pass(wiped, live) or _left_by_another_loop(account, wiped, live):
            continue
        if window.index in exceptions:
            yield _interrupted(account, window, window.step, cause)
            continue
        if not live:
            yield diagnosis(
                "GA202",
                cause.where,
                message(
                    "gradients are cleared between backward (at ",
                    wiped[-1].backward.where,
                    ") and the step at ",
                    window.step.where,
                    f": none of the {plural(window.micro_batches)} reaches the step",
                ),
                "clear gradients after the step, not before it",
                window,
            )
            continue
        gone = len({entry.backward.micro_batch for entry in wiped})
        yield diagnosis(
            "GA201" if every_batch else "GA202",
            cause.where,
            message(
                f"gradients are cleared {'at every micro-batch' if every_batch else 'in the middle of a window'}: "
                f"{gone} of {plural(window.micro_batches)} {'is' if gone == 1 else 'are'} lost before the step at ",
                window.step.where,
            ),
            "clear gradients only after a step",
            window,
        )


def _left_by_an_earlier_pass(wiped: Sequence[Entry], live: Sequence[Entry]) -> bool:
    """Whether what was cleared is the remainder of an earlier pass, which GA301 reports."""
    gone, used = ({entry.backward.epoch for entry in entries} for entries in (wiped, live))
    return bool(used) and None not in gone | used and gone.isdisjoint(used)


def _left_by_another_loop(account: Account, wiped: Sequence[Entry], live: Sequence[Entry]) -> bool:
    """Whether what was cleared is what another loop of the training left over: GA301 reports it.

    Each of the two has backwards of its own, and a step of its own that uses these alone.
    """
    gone, used = ({entry.backward.where for entry in entries} for entries in (wiped, live))
    loops: dict[frozenset[bool], set[Location]] = {}
    for window in account.known():
        if window.step is not None:
            own = {entry.backward.where for entry in window.with_fate(Fate.LIVE)}
            whose = frozenset(where in gone for where in own if where in gone | used)
            loops.setdefault(whose, set()).add(window.step.where)
    theirs, ours = (loops.get(frozenset({of}), set[Location]()) for of in (True, False))
    mixed = frozenset({True, False}) in loops
    return bool(theirs and ours) and theirs.isdisjoint(ours) and not mixed


def _interrupted(account: Account, window: Window, step: Step, cause: ZeroGrad) -> Diagnosis:
    left = len({entry.backward.micro_batch for entry in window.with_fate(Fate.LIVE)})
    gone = window.micro_batches - left
    skipped = account.ledger.skipped(window)
    others = f", and {plural(skipped)} never ran" if skipped else ""
    return diagnosis(
        "GA303",
        step.where,
        message(
            f"the window counts {plural(account.steps)}, but {f'only {left}' if left else 'none'} "
            f"{'reaches' if left < 2 else 'reach'} the step: {gone} {'was' if gone == 1 else 'were'} cleared at ",
            cause.where,
            others,
        ),
        "reset the counter where the gradients are cleared, or run those micro-batches again",
        window,
    )


def clears_every_batch(account: Account) -> bool:
    """Whether a loop clears at every micro-batch: what happens in a few windows is no habit (an error was handled)."""
    several = [window for window in account.known() if _shows_when_it_clears(account, window)]
    return 2 * sum(_clears_every_batch(window) for window in several) > len(several)


def _shows_when_it_clears(account: Account, window: Window) -> bool:
    """Whether a window tells a clearing at every micro-batch from one in its middle: the first of two does not.

    That between its two micro-batches is either, and the other would come after the step before, of which it has none.
    """
    if window.micro_batches == 2 and window is account.windows[0]:
        return _clears_every_batch(window)
    return window.micro_batches > 1


def _clears_every_batch(window: Window) -> bool:
    """Whether a window was cleared as often as it ran micro-batches, or between every two of several."""
    # Two clearings with no backward between them, one after a step and one where the next window begins, are one.
    acts = [type(event) for event in window.events if isinstance(event, (ZeroGrad, Backward))]
    zeros = sum(act is ZeroGrad for act, _ in itertools.groupby(acts))
    # The clearing after the last micro-batch, if there is one, comes when the step has closed the window.
    spared = 1 if window.micro_batches > 2 else 0
    return window.micro_batches > 1 and zeros >= window.micro_batches - spared


def _foreign(account: Account, step: Step, foreign: Sequence[Entry], stale: Sequence[Window]) -> Diagnosis:
    """GA204: what was never meant for this optimizer is in a gradient that it uses."""
    last = foreign[-1]
    count = len({entry.backward.micro_batch for entry in foreign})
    what = message("the gradients that the loss at ", last.backward.where, f" adds to {account.store} are not cleared")
    included = f"{plural(count)} of it {'is' if count == 1 else 'are'} included in the gradient that"
    if last.by_product is ByProduct.FOR_DATA:
        return diagnosis(
            "GA204",
            last.backward.where,
            message(
                what,
                f", although its backward was run for the gradient of its data only: {included} the step at ",
                step.where,
                " uses",
            ),
            "compute that gradient with torch.autograd.grad(), which leaves the weights' .grad alone",
            *stale,
        )
    why, remedy = "another optimizer's step has used them", ""
    if last.by_product is ByProduct.CUT_OFF:
        why = "it is the loss of another network, from which this network's own loss is detached"
        remedy = ", or freeze its weights (requires_grad_(False)) during the other network's backward"
    return diagnosis(
        "GA204",
        step.where,
        message(what, f", although {why}: {included} this step uses"),
        f"clear the gradients of {account.store} right before its own loss{remedy}",
        *stale,
    )


def _partly_cleared(account: Account) -> Iterator[Diagnosis]:
    """GA204: some of the gradients of one store are cleared, and the others still there when it is stepped on."""
    for window in account.windows:
        if window.step is None or not window.with_fate(Fate.STALE):
            continue
        partly = [e for e in window.events if isinstance(e, Opaque) and e.reason.cause is Cause.PARTLY_CLEARED]
        if partly:
            yield diagnosis(
                "GA204",
                window.step.where,
                message(
                    "only some of the gradients that this step uses are cleared (seen at ",
                    partly[0].where,
                    "): the others still hold those of earlier windows",
                ),
                f"clear all gradients of {account.optimizer}: it has more parameters than those that are cleared",
                window,
            )
            return


def _used_by(account: Account, window: Window) -> Step | None:
    """The step that has used the gradients of earlier windows which are in this one, where that is one step."""
    stale = {entry.backward for entry in window.with_fate(Fate.STALE)}
    users = {
        w.step.where: w.step
        for w in account.windows
        if w.step is not None and any(entry.backward in stale for entry in w.with_fate(Fate.LIVE))
    }
    return next(iter(users.values())) if len(users) == 1 else None


def find_stale(account: Account) -> Iterator[Diagnosis]:
    """GA203, GA204: entries of earlier windows that are in this one."""
    yield from _partly_cleared(account)
    stale = [w for w in account.known() if w.with_fate(Fate.STALE) and w.step is not None]
    if not stale:
        return
    # Where a run or a scenario ends decides on the last step that shows it, but not on the first.
    place = next(w.step.where for w in stale if w.step is not None)
    window = [w for w in stale if w.step is not None and w.step.where == place][-1]
    if window.step is None:
        return
    foreign = [e for e in window.with_fate(Fate.STALE) if e.by_product is not None]
    if foreign:
        yield _foreign(account, window.step, foreign, stale)
        return
    old = len({e.backward.micro_batch for e in window.with_fate(Fate.STALE)})
    # What is cleared before anything has been accumulated clears nothing.
    under_way = itertools.dropwhile(lambda event: not isinstance(event, Backward), account.ledger.trace.events)
    clearings = [event for event in under_way if isinstance(event, ZeroGrad)]
    elsewhere = [event for event in clearings if account.store not in event.stores]
    cleared_here = len(elsewhere) < len(clearings)
    is_fact = counts_windows(account)
    which = plural(old) if is_fact else "the micro-batches"
    held = f"still includes {which} of earlier windows"
    if elsewhere and not cleared_here:
        yield diagnosis(
            "GA204",
            window.step.where,
            message(
                f"gradients of {account.store} are never cleared after a step, although others are (at ",
                elsewhere[0].where,
                f"): the gradient that this step uses {held}",
            ),
            f"clear the gradients of {account.store} too, after the step",
            *stale,
            states_steps=is_fact,
        )
        return
    before = _used_by(account, window)
    if before is not None and before.where != window.step.where:
        yield diagnosis(
            "GA203",
            window.step.where,
            message("the gradients that the step at ", before.where, f" has used are not cleared: this one {held}"),
            "call zero_grad() after that step, too",
            *stale,
            states_steps=is_fact,
        )
        return
    yield diagnosis(
        "GA203",
        window.step.where,
        f"gradients are {'not' if cleared_here else 'never'} cleared after the step: the gradient that it uses {held}",
        "call zero_grad() after the step",
        *stale,
        states_steps=is_fact,
    )
