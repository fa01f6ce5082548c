"""Comparing a script's configurations, each in a process of its own. Never imports torch."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gradcheck_accum.comparing.acceptance import By, accepts_nothing
from gradcheck_accum.comparing.configurations import variables_and_arguments
from gradcheck_accum.comparing.judging import compared
from gradcheck_accum.comparing.launched import (
    Meeting,
    NoMeeting,
    NotLaunched,
    Ports,
    announce,
    announced,
    launch_of,
    ranks_of,
)
from gradcheck_accum.comparing.meeting_point import Led, Manner, NoFolder, led
from gradcheck_accum.comparing.seat import Seat
from gradcheck_accum.comparing.working import Started, Working, until_all_end
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.verify.process.forked import Copies, copies_of_one
from gradcheck_accum.verify.process.parent import Ending, verify_script
from gradcheck_accum.verify.ranks.launch import Launch

_COMPARED_RUN = "gradcheck_accum.comparing.compared_run"
"""The module that a run imports to take part in a comparison."""

_NOTHING_COMPARED = "interrupted before any step was compared"


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

    The arguments of a configuration stand before the ``common`` ones, its variables before both, after ``env``; ``by``
    says where a diagnosis has been accepted, or nothing. Of several ranks that a launcher started, rank 0 has the
    result, and the others one that says nothing. What goes wrong with the script is the result's ``error``; nothing is
    raised for it.
    """
    name = script or module or ""
    options = {
        "module": module,
        "max_windows": max_windows,
        "reference": "ledger",
        "timeout": timeout,
        "loss_coefficient": loss_coefficient,
    }
    each = [_Configuration.of(words, common) for words in configurations]
    runs = _Runs(script, each, options, Manner(free, no_dropout, rtol, atol))
    try:
        with launch_of() as launch:
            if launch is not None and launch.rank:
                runs.follow(launch)
                return CompareResult.failed(name, "")
            ended = runs.lead(launch)
    except (NoFolder, NotLaunched) as error:
        return CompareResult.failed(name, str(error))
    names = [one.name for one in each]
    if ended.failure is not None:
        number, why = ended.failure
        return CompareResult.failed(name, f"with {names[number]}: {why}")
    if ended.is_interrupted and not any(course.met for course in ended.lockstep.courses.values()):
        return CompareResult.failed(name, _NOTHING_COMPARED)
    return compared(
        name, names, ended.lockstep, ended.results, to_the_end=max_windows is None, by=by or accepts_nothing
    )


@dataclass(frozen=True, slots=True)
class _Configuration:
    """What a configuration is called, what it sets in its environment, and all arguments that the script gets."""

    name: str
    variables: Mapping[str, str]
    arguments: Sequence[str]

    @classmethod
    def of(cls, words: Sequence[str], common: Sequence[str]) -> _Configuration:
        variables, arguments = variables_and_arguments(words)
        return cls(shlex.join(words) or "(no arguments)", variables, [*arguments, *common])


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of a script, one in each configuration."""

    script: str | None
    configurations: Sequence[_Configuration]
    options: Mapping[str, Any]
    manner: Manner

    def lead(self, launch: Launch | None) -> Led:
        """Lead them all, from their only rank or the first of several. Raises NoFolder and NotLaunched."""
        ports = Ports.free(len(self.configurations)) if launch is not None or "MASTER_PORT" in os.environ else None
        ranks = [ranks_of(one.variables, launch) for one in self.configurations]

        def tell(address: str) -> None:
            if launch is not None and ports is not None:
                announce(launch, Meeting(address, ports))

        with self._copies(ports) as copies:
            start = functools.partial(self._start, ports, copies)
            return led(start, len(ranks), self.manner, ranks=ranks, announce=tell)

    def follow(self, launch: Launch) -> None:
        """Run what another rank than the first runs of them; it is led from there. Raises NotLaunched."""
        try:
            meeting = announced(launch)
        except NoMeeting:
            return
        working = []
        for number, one in enumerate(self.configurations):
            if launch.rank < ranks_of(one.variables, launch):
                seat = self.manner.seat(meeting.address, number, launch.rank)
                working.append(Working(self._start(meeting.ports, None, number, seat)))
        until_all_end(working)

    @contextmanager
    def _copies(self, ports: Ports | None) -> Iterator[Copies | None]:
        """What starts them at less cost; None where they differ in more than what a copy can be given.

        Variables may have to be set before PyTorch is imported, and ports are variables too.
        """
        if ports is not None or any(one.variables for one in self.configurations):
            yield None
            return
        with copies_of_one([Seat], os.environ, [_COMPARED_RUN]) as copies:
            yield copies

    def _start(self, ports: Ports | None, copies: Copies | None, number: int, seat: Seat) -> Started:
        configuration, ending = self.configurations[number], Ending()
        variables = configuration.variables if ports is None else ports.variables(number, configuration.variables)
        until_end = functools.partial(
            verify_script,
            self.script,
            configuration.arguments,
            companion=seat,
            environment=variables,
            ending=ending,
            copies=copies,
            **self.options,
        )

        def kill() -> None:
            ending.kill()
            if copies is not None:
                copies.kill()

        return Started(until_end, ending.ask, kill)
