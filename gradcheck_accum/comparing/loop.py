"""Comparing a loop's configurations inside a user's own program, each in a copy of this process.

A copy has all that the program has at this moment: the same weights, the same random numbers. What a configuration
does to them is gone with its copy.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection

import torch
import torch._dynamo  # PyTorch imports it where an optimizer is first used, for a second: here once, for all copies

from gradcheck_accum.comparing.judging import compared
from gradcheck_accum.comparing.meeting_point import Manner, led
from gradcheck_accum.comparing.seat import Seat
from gradcheck_accum.comparing.working import Started
from gradcheck_accum.ledger.stated_names import stated_steps
from gradcheck_accum.portable import NotPortable
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import VerifyResult
from gradcheck_accum.verify import AccumulationError
from gradcheck_accum.verify.process.result_file import read_result, written
from gradcheck_accum.verify.session import acceptance_at, file_of, observe

_SHOWN = (bool, int, float, str)
"""What tells one configuration from another in a report."""


class ComparisonError(AccumulationError):
    """A configuration does not match the reference, or could not be checked; ``result`` is the `CompareResult`."""

    def __init__(self, result: CompareResult) -> None:
        AssertionError.__init__(self, f"{result.verdict.value}: {result.reason}")
        self.result = result  # type: ignore[assignment]


def compare(
    loop: Callable[..., object],
    configurations: Sequence[Mapping[str, object]],
    *,
    free: bool = False,
    no_dropout: bool = False,
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
) -> CompareResult:
    """Call ``loop`` with the arguments of each configuration, and compare its steps with those of the largest batch.

        gradcheck_accum.compare(train, [
            dict(model=model, optimizer=optimizer, loader=batches_of(5), accumulation_steps=3),
            dict(model=model, optimizer=optimizer, loader=batches_of(15), accumulation_steps=1),
        ])

    Each configuration is called in a copy of this process (a fork), all of them in parallel: they may share a model,
    and leave it unchanged. What the project accepts, in its settings or by a comment at a diagnosed line, does not
    count.

    :param loop: the training loop.
    :param configurations: the keyword arguments of the loop in each configuration, at least two;
        ``accumulation_steps``, or another usual name of K, states K. The reference is the configuration with the fewest
        micro-batches in its first step, and among these the one with the most rows.
    :param free: let every configuration train its own weights, instead of continuing with the reference's after each
        step.
    :param no_dropout: disable dropout in every configuration.
    :param loss_coefficient: as in `check`, for the diagnosis only.
    :param rtol: as in `check`, relative to the reference configuration's gradient.
    :param atol: as in `check`.
    :param select: as in `check`.
    :param ignore: as in `check`.
    :returns: the result, if every step matches the reference.
    :raises ComparisonError: if a step does not match, or could not be checked (an `AccumulationError`).
    :raises ValueError: if there are fewer than two configurations, only one of ``rtol`` and ``atol`` is given, or the
        process cannot be copied (no fork, or CUDA is in use).
    :raises SettingsError: if a code or a setting of the project is invalid.
    """
    result = compared_loop(
        loop,
        configurations,
        free=free,
        no_dropout=no_dropout,
        loss_coefficient=loss_coefficient,
        rtol=rtol,
        atol=atol,
        select=select,
        ignore=ignore,
    )
    if result.exit_status:
        raise ComparisonError(result)
    return result


def compared_loop(
    loop: Callable[..., object],
    configurations: Sequence[Mapping[str, object]],
    *,
    free: bool = False,
    no_dropout: bool = False,
    loss_coefficient: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
) -> CompareResult:
    """What `compare` comes to; a loop that raises is the result's ``error``."""
    if len(configurations) < 2:
        raise ValueError("compare needs at least two configurations")
    if (rtol is None) != (atol is None):
        raise ValueError("rtol and atol are given both or neither")
    if not hasattr(os, "fork") or (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        raise ValueError("this process cannot be copied (no fork, or CUDA is in use): compare a script instead")
    script = getattr(loop, "__qualname__", "the loop")
    acceptance = acceptance_at(file_of(loop), select=select, ignore=ignore)
    copies = multiprocessing.get_context("fork")

    def start(number: int, seat: Seat) -> Started:
        ours, theirs = copies.Pipe(duplex=False)
        process = copies.Process(
            target=_run, args=(loop, configurations[number], script, loss_coefficient, seat, theirs)
        )
        process.start()
        theirs.close()

        def until_end() -> VerifyResult:
            try:
                found = read_result(ours.recv_bytes())
            except (EOFError, NotPortable):
                found = VerifyResult.failed(script, "its process ended before a verdict could be given")
            process.join()
            return found

        return Started(until_end, process.terminate, process.kill)

    ended = led(start, len(configurations), Manner(free, no_dropout, rtol, atol))
    if ended.is_interrupted:
        raise KeyboardInterrupt
    return compared(script, _names(configurations), ended.lockstep, ended.results, to_the_end=True, by=acceptance)


def _run(
    loop: Callable[..., object],
    arguments: Mapping[str, object],
    script: str,
    loss_coefficient: float | None,
    seat: Seat,
    answer: Connection,
) -> None:
    """Run one configuration, in its own process."""
    # The threads that the original computed with are not in the copy.
    torch.set_num_threads(1)
    try:
        with observe(
            script=script,
            reference="ledger",
            accumulation_steps=stated_steps(arguments),
            loss_coefficient=loss_coefficient,
            companion=seat(),
        ) as observation:
            loop(**arguments)
        result = observation.result()
    except NotPortable as problem:
        result = VerifyResult.failed(script, str(problem))
    except Exception as problem:
        result = VerifyResult.failed(script, f"the loop raised {type(problem).__name__}: {problem}")
    answer.send_bytes(written(result))


def _names(configurations: Sequence[Mapping[str, object]]) -> list[str]:
    """What each configuration is called: by those of its arguments that others have another value of."""

    def differs(name: str) -> bool:
        values = [one.get(name) for one in configurations]
        return all(isinstance(value, _SHOWN) for value in values) and len({*values}) > 1

    names = [", ".join(f"{name}={value!r}" for name, value in one.items() if differs(name)) for one in configurations]
    return [name or f"configuration {number}" for number, name in enumerate(names)]
