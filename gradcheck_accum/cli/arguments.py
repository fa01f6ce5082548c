"""The argument parser and the types of option values; every error is one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from gradcheck_accum import run_options, streams
from gradcheck_accum.errors import UsageError
from gradcheck_accum.run_options import MemoryBudget, OptionError
from gradcheck_accum.spelling import did_you_mean

_Value = TypeVar("_Value")


class Parser(argparse.ArgumentParser):
    """Reports errors in one line, without the usage of every option: ``--help`` prints that."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with an error about arguments that the command does not know."""
        near = did_you_mean(unknown[0], self.options())
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)} (see {self.prog} --help){near}")

    def options(self) -> list[str]:
        """The long options, as the help lists them."""
        return re.findall(r"--[a-z][a-z-]*", self.format_help())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse suggests nothing before Python 3.14.
        if action.choices is not None and value not in action.choices:
            near = did_you_mean(str(value), map(str, action.choices))
            listed = ", ".join(map(repr, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {listed}){near}")

    def print_help(self, file: Any = None) -> None:
        streams.write(self.format_help(), file, end="")


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not '{text}'") from None


def number(text: str) -> float:
    """Any number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not '{text}'") from None


def positive_int(text: str) -> int:
    """A whole number from 1."""
    return _sensible(run_options.positive_int, whole(text))


def memory_budget(text: str) -> MemoryBudget:
    """An amount of memory, or a fraction of what is free."""
    try:
        return run_options.memory_budget(text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(f"{error}, not '{text}'") from None


def positive(text: str) -> float:
    """A number above 0."""
    return _sensible(run_options.positive, number(text))


def not_negative(text: str) -> float:
    """A number from 0."""
    return _sensible(run_options.not_negative, number(text))


def _sensible(read: Callable[[_Value], _Value], value: _Value) -> _Value:
    try:
        return read(value)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_codes(parser: argparse.ArgumentParser, select: str, ignore: str) -> None:
    """Add the options that select codes, with a help text for each."""
    parser.add_argument("--select", metavar="CODES", action="append", help=select)
    parser.add_argument("--ignore", metavar="CODES", action="append", help=ignore)
