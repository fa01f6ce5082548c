"""What the commands that run a script, ``verify`` and ``compare``, have in common."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradcheck_accum import output, streams
from gradcheck_accum.cli.arguments import add_codes, not_negative, number, positive
from gradcheck_accum.cli.status import settings_are_usage
from gradcheck_accum.errors import UsageError
from gradcheck_accum.run_options import SETTINGS, OptionError, refuse_clashes

if TYPE_CHECKING:
    from gradcheck_accum.settings import Settings


def add_accepted(parser: argparse.ArgumentParser) -> None:
    """Add the options that select which findings of a run are accepted."""
    add_codes(
        parser,
        "accept all codes except these (GA101,GA2)",
        "accept these codes: report them without affecting the verdict",
    )


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Add the options of script-running commands that limit the run and set its tolerances."""
    parser.add_argument("--timeout", metavar="SECONDS", type=positive, help="stop after this many seconds")
    parser.add_argument(
        "--loss-coefficient",
        metavar="A",
        type=number,
        help="intended coefficient of the loss: its factor in the large batch",
    )
    parser.add_argument("--rtol", type=not_negative, help="allowed relative error (default: derived from rounding)")
    parser.add_argument("--atol", type=not_negative, help="allowed absolute error; requires --rtol")


def asked_of_run(
    options: argparse.Namespace, command: str, of: Iterable[str] = tuple(SETTINGS)
) -> tuple[Settings, dict[str, Any]]:
    """The settings that apply to the run, and the run's options for those settings ``of`` the command.

    Raises UsageError unless they name one thing to run.
    """
    _refuse_two_targets(options, command)
    with settings_are_usage():
        settings = _settings_of_run(options)
        return settings, _options_of_run(options, settings, of)


def _refuse_two_targets(options: argparse.Namespace, command: str) -> None:
    """Raise UsageError unless there is either a script or a module."""
    if bool(options.script) == bool(options.module):
        raise UsageError(f"{command} takes either a script or -m MODULE")


def _settings_of_run(options: argparse.Namespace) -> Settings:
    """The settings that apply to a script, as for lint; for a module, those of the working directory."""
    from gradcheck_accum.settings import settings_for, with_codes

    settings = settings_for([options.script or os.curdir]).of_verify()
    return with_codes(settings, select=options.select, ignore=options.ignore, called="--{}")


def _options_of_run(options: argparse.Namespace, settings: Settings, of: Iterable[str]) -> dict[str, Any]:
    """The options of a run, by the names of ``verify_script``: those given, otherwise those of the settings.

    ``of`` are the settings that the command has.
    """
    names = [name.replace("-", "_") for name in of]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    usual: dict[str, Any] = {name: False for name in ("trajectory", "verbose") if name in names}
    settled = {name: value for name, value in settings.verify.options.items() if name in names}
    found = {**usual, **settled, **given}
    try:
        refuse_clashes(found, "--{}".format)
    except OptionError as error:
        raise UsageError(str(error)) from None
    return found


@contextmanager
def and_a_page(page: output.PageFile | None, made: Callable[[], str]) -> Iterator[None]:
    """Write the page, if there is one, after the report, even if the report failed (its reader has closed the pipe)."""
    try:
        yield
        streams.flush()
    finally:
        if page is not None:
            page.write(made())


@contextmanager
def ended_politely() -> Iterator[None]:
    """Inside the block, SIGTERM interrupts this process as Ctrl-C does.

    So it still terminates its child processes, removes its files, and reports what it has seen. A second Ctrl-C ends it
    at once, except under a launcher (``torchrun``): an interrupted launcher signals each of its processes, which the
    terminal has interrupted already, so a second signal is ignored there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_ending = False
    is_launched = "RANK" in os.environ

    def end(number: int, frame: Any) -> None:
        nonlocal is_ending
        was_ending, is_ending = is_ending, True
        if not was_ending or (number == signal.SIGINT and not is_launched):
            raise KeyboardInterrupt

    heard = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        heard.append(signal.SIGINT)
    before = {each: signal.signal(each, end) for each in heard}
    try:
        yield
    finally:
        for each, handler in before.items():
            if handler is not None:
                signal.signal(each, handler)
