"""Separates our arguments from those of the script that is run, which follow the first ``--``."""

from __future__ import annotations

import argparse
import shlex

from gradcheck_accum.cli.status import PROGRAM
from gradcheck_accum.spelling import did_you_mean


def split(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """Split our arguments from the script's, which follow the first ``--``."""
    if "--" not in arguments:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def joined(arguments: list[str], option: str) -> list[str]:
    """The arguments with each ``option`` and its value, which may begin with a dash, as one word.

    argparse would take ``-mb 7`` for our own ``-m``, and ``--accum=1`` for an option that we lack.
    """
    words: list[str] = []
    for argument in arguments:
        if words and words[-1] == option and argument.startswith("-") and argument != option:
            words[-1] += f"={argument}"
        else:
            words.append(argument)
    return words


def complaint_of_unknown(own: list[str], options: argparse.Namespace, unknown: list[str]) -> str:
    """The error message about unknown arguments before ``--``, which are assumed to be the script's."""
    # A word that follows one of the script's arguments was mistaken for the script itself.
    behind = own[own.index(unknown[0]) :] if unknown[0] in own else []
    mistaken = options.script in behind
    ours, theirs = _parted(own, unknown, options.script if mistaken else None)
    if not options.module and (mistaken or options.script is None):
        script = next((argument for argument in theirs if argument.endswith(".py")), "SCRIPT")
        theirs = [argument for argument in theirs if argument != script]
        ours.append(script)
    command = shlex.join([PROGRAM, *ours, "--", *theirs, *(options.arguments or [])])
    near = did_you_mean(unknown[0], options.parser.options())
    return f"unrecognized arguments: {' '.join(theirs)}: the script's own arguments go after --: {command}{near}"


def _parted(own: list[str], unknown: list[str], value: str | None) -> tuple[list[str], list[str]]:
    """Our arguments and the script's, in order; ``value`` is one that was mistaken for the script."""
    ours, theirs, left = list[str](), list[str](), list(unknown)
    for argument in own:
        if left and argument == left[0]:
            theirs.append(left.pop(0))
        elif argument == value and theirs:
            theirs.append(argument)
            value = None
        else:
            ours.append(argument)
    return ours, theirs
