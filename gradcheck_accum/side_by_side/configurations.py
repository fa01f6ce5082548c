"""The configurations that a script is run in, as they are asked for on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


class BadConfigurations(Exception):
    """What was asked for is no two configurations; the message is one line that says why."""


def configurations(given: Sequence[str], varied: Sequence[str]) -> list[list[str]]:
    """The script's own arguments in each configuration.

    ``given`` are lines as for a shell ("--batch-size 5 --accum 3"), ``varied`` name one argument each with its values
    ("accum=1,3"), of which the i-th ones belong together. Raises BadConfigurations.
    """
    if given and varied:
        raise BadConfigurations("--with and --vary both say what the configurations are: give one of them")
    found = [_words(line) for line in given] if given else _zipped(varied)
    if len(found) < 2:
        raise BadConfigurations("compare takes two configurations or more: give --with twice, or --vary NAME=V1,V2")
    if len({tuple(one) for one in found}) < len(found):
        raise BadConfigurations("two of the configurations are the same")
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadConfigurations(f"--with {line!r}: {str(error).lower()}") from None


def _zipped(varied: Sequence[str]) -> list[list[str]]:
    values = {}
    for one in varied:
        name, equals, listed = one.partition("=")
        if not (name and equals and listed):
            raise BadConfigurations(f"--vary {one}: it is NAME=V1,V2")
        values[name] = listed.split(",")
    if len({len(each) for each in values.values()}) > 1:
        counts = ", ".join(f"{name} has {len(each)}" for name, each in values.items())
        raise BadConfigurations(f"the i-th values of every --vary belong together: {counts}")
    return [
        [word for name, value in zip(values, each, strict=True) for word in _argument(name, value)]
        for each in zip(*values.values(), strict=True)
    ]


def _argument(name: str, value: str) -> list[str]:
    """An option as argparse takes it, or an override as Hydra does, whose names have a dot or begin with a sign."""
    is_override = "." in name or name.startswith(("+", "~"))
    return [f"{name}={value}"] if is_override else [f"--{name.lstrip('-')}", value]
