"""Distributed training: the ledgers of several ranks, joined where their gradients are averaged.

Every rank runs the same loop on data of its own. What reaches the optimizer is the sum of the ranks' gradients divided
by their number, so the large batch of a step is the data of all of them. The windows of one step are joined: each rank
keeps its own, which is read and diagnosed as a single process's would be, and holds the entries of the others as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradcheck_accum.ledger.events import Backward, Cause, Reason, Trace
from gradcheck_accum.ledger.windows import Entry, Ledger, Window


def averages(trace: Trace) -> bool:
    """Whether any gradient of this run is, or should be, averaged with those of other ranks."""
    return any(isinstance(event, Backward) and event.ranks != 1 for event in trace.events)


def joined(ledgers: Sequence[Ledger]) -> list[Ledger]:
    """The ledgers of all ranks, in order, with the same step's entries on other ranks added to every closed window.

    A step is the same if it is its optimizer's n-th on that store. A rank whose data has ended takes no part in the
    steps that the others still make. What is averaged with ranks that have no ledger here is unknown.
    """
    accounts = [{account: ledger.account(*account) for account in ledger.accounts()} for ledger in ledgers]
    found = []
    for rank, own in enumerate(ledgers):
        others = [account for r, account in enumerate(accounts) if r != rank]
        numbers = {w: number for account in accounts[rank].values() for number, w in enumerate(account)}
        windows = tuple(_joined(window, numbers[window], others) for window in own.windows)
        found.append(replace(own, windows=windows))
    return found


def _joined(window: Window, number: int, others: Sequence[Mapping[tuple[str, str], Sequence[Window]]]) -> Window:
    """``window``, the ``number``-th of its account, with the entries of the same one in the accounts of ``others``."""
    stated = next((entry.backward.ranks for entry in reversed(window.fresh())), 1)
    if stated == 1:
        return window
    if not others:
        reason = _unshared(f"{stated or 'several'} ranks, of which this one alone is watched")
        return replace(window, unknown=window.unknown or reason)
    ranks = 1 + len(others)
    if stated is not None and stated < ranks:
        return replace(window, unknown=_unshared(f"groups of {stated} of the {ranks} ranks"))
    accounts = (other.get((window.optimizer, window.store), ()) for other in others)
    same = [windows[number] for windows in accounts if number < len(windows)]
    unknown = window.unknown or next(filter(None, map(_by_hand, (window, *same))), None)
    if any(entry.backward.kept_apart for entry in window.fresh()):
        # Every rank has a shard of the gradient: what one rank does to its shard, it does to the whole gradient.
        unknown = next((w.unknown for w in (window, *same) if w.unknown), unknown)
    divisor = 1 + len(same) if stated is None else stated
    return replace(window, elsewhere=tuple(w.fresh() for w in same), divisor=divisor, unknown=unknown)


def _by_hand(window: Window) -> Reason | None:
    """Why a step is unknown which the loop makes, or whose gradient it changes, on every rank for itself."""
    if window.rework is None and (window.step is None or not window.step.by_hand):
        return None
    return Reason(
        "gradients were modified or used for an update by hand on each rank, and whether all ranks did the same is "
        "unknown: to compare, watch the loop in one process",
        Cause.USED_BY_HAND,
    )


def _unshared(over: str) -> Reason:
    """Why a step is unknown whose gradients are averaged with those of ranks without a ledger."""
    return Reason(f"gradients are averaged over {over}", Cause.UNSHARED)


def left_local(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of one rank that are not averaged by the step: all after the last that was synchronized."""
    last = max((i for i, entry in enumerate(entries) if entry.backward.synced), default=-1)
    return [entry for entry in entries[last + 1 :] if entry.backward.synced is False]
