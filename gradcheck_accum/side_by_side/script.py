"""Comparing a script's configurations, each in a process of its own. Never imports torch."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Sequence

from gradcheck_accum.comparison import CompareResult
from gradcheck_accum.side_by_side.judging import compared
from gradcheck_accum.side_by_side.meeting import Manner, led
from gradcheck_accum.side_by_side.messages import Seat
from gradcheck_accum.side_by_side.put_up_with import By, nobody
from gradcheck_accum.verdict import VerifyResult
from gradcheck_accum.verify.script import verify_script

_RANKS = "compare runs each configuration in one process, and this is one of several ranks"


def compare_script(
    script: str | None,
    configurations: Sequence[Sequence[str]],
    common: Sequence[str] = (),
    *,
    module: str | None = None,
    max_windows: int | None = None,
    timeout: float | None = None,
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    free: bool = False,
    no_dropout: bool = False,
    by: By | None = None,
) -> CompareResult:
    """Run a script (or a module) in each of its ``configurations`` and compare them step by step.

    The arguments of a configuration stand before the ``common`` ones; ``by`` says where a diagnosis has been accepted,
    or nothing. What goes wrong with the script is the result's
    ``error``; nothing is raised for it.
    """
    name = script or module or ""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        return CompareResult.failed(name, _RANKS)

    def start(number: int, seat: Seat) -> Callable[[], VerifyResult]:
        return functools.partial(
            verify_script,
            script,
            [*configurations[number], *common],
            module=module,
            max_windows=max_windows,
            reference="ledger",
            timeout=timeout,
            loss_coefficient=loss_coefficient,
            companion=seat,
        )

    results, lockstep = led(start, len(configurations), Manner(free, no_dropout, rtol, atol))
    names = [shlex.join(one) or "(no arguments)" for one in configurations]
    return compared(name, names, lockstep, results, to_the_end=max_windows is None, by=by or nobody)
