"""The report on all ranks of one launch, made by rank 0 when their scripts have ended."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradcheck_accum.ledger.events import Backward
from gradcheck_accum.portable import NotPortable
from gradcheck_accum.results.stopped import ENOUGH, INTERRUPTED, STOPPED, stopped_early
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify.judge.run import judge_ranks
from gradcheck_accum.verify.ranks.launch import Launch, origin
from gradcheck_accum.verify.ranks.rank_report import RankReport
from gradcheck_accum.verify.session import Observation

_PATIENCE = 5.0
"""Seconds that rank 0 waits for running ranks when its own script failed."""

_TRANSPORTS = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


def lost_connection(problem: BaseException) -> bool:
    """Whether an exception means that another rank could not be reached, which then is the one that failed."""
    return isinstance(problem, torch.distributed.DistError) or (
        isinstance(problem, RuntimeError) and any(word in str(problem) for word in _TRANSPORTS)
    )


def report_of_rank(
    launch: Launch, observation: Observation, script: str, error: str, *, cut_off: bool = False
) -> VerifyResult | None:
    """The one report, on rank 0; every other rank only delivers its own part.

    ``error`` is how the rank's own script failed, ``cut_off`` whether only because another rank was gone. None where
    rank 0 was interrupted: another rank may wait for it in a collective until this process has ended, so the parent
    process makes the report (`gathered`).
    """
    if error and error != INTERRUPTED:
        launch.fail(error, cut_off=cut_off)
    account = RankReport(observation.seen().portable(), observation.options, error)
    if launch.rank == 0 and error != INTERRUPTED:
        result = gathered(launch, script, account)
        return stopped_early(result, ENOUGH) if observation.has_seen_enough else result
    launch.deliver(account.written())
    return VerifyResult.failed(script, launch.orphaned() or error) if launch.rank else None


def gathered(launch: Launch, script: str, first: RankReport) -> VerifyResult:
    """The one report on all ranks, from rank 0's own part ``first`` and those that the others delivered."""
    patience = _PATIENCE if first.error else None
    try:
        accounts = [first, *(_account_of(launch, rank, patience) for rank in range(1, launch.ranks))]
    except NotPortable as problem:
        return replace(judge_ranks([first.seen], script, first.asked), error=str(problem), ranks=launch.ranks)
    known = [own for own in accounts if own is not None]
    judged = known if len(known) == launch.ranks else [first]
    result = judge_ranks([own.seen for own in judged], script, first.asked)
    if any(own.error == INTERRUPTED for own in known):
        result = stopped_early(result, STOPPED)
    return replace(result, error=_error(launch, accounts), ranks=launch.ranks)


def _account_of(launch: Launch, rank: int, patience: float | None) -> RankReport | None:
    """What a rank has delivered, None if it has not. Raises NotPortable if it is not a rank's report."""
    content = launch.wait_for(rank, patience)
    try:
        return None if content is None else RankReport.read(content)
    except NotPortable as problem:
        raise NotPortable(f"the account of rank {rank} cannot be read: {problem}") from None


def _error(launch: Launch, accounts: list[RankReport | None]) -> str:
    failures = launch.failures()
    first = origin(failures)
    is_interrupted = any(account is not None and account.error == INTERRUPTED for account in accounts)
    # A rank that only lost its connection may have lost it to one that was interrupted.
    if first is None or (failures[first].cut_off and is_interrupted):
        silent = next((rank for rank, account in enumerate(accounts) if account is None), None)
        return "" if silent is None else f"rank {silent} did not report"
    message = f"rank {first}: {failures[first].message}"
    if not failures[first].cut_off:
        return message
    silent = next((rank for rank, account in enumerate(accounts) if account is None), None)
    if silent is not None:
        return f"{message}; rank {silent} did not report (process or host lost)"
    # No rank failed by itself: the others were waiting for ranks that had ended.
    ended = [rank for rank, account in enumerate(accounts) if account is not None and not account.error]
    if ended:
        ran = [_micro_batches(account) for account in accounts]
        message += (
            f"; rank {ended[0]} had ended by then, after {ran[ended[0]]} micro-batches, rank {first} ran {ran[first]}: "
            "give every rank the same number, or train inside the model's join()"
        )
    return message


def _micro_batches(account: RankReport | None) -> int:
    events = account.seen.trace.events if account is not None else ()
    return len({event.micro_batch for event in events if isinstance(event, Backward)})
