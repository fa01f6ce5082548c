"""The configurations that a script is run in, from the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


class BadConfigurations(Exception):
    """The arguments do not give two configurations; the message is one line that says why."""


def configurations(given: Sequence[str], varied: Sequence[str]) -> list[list[str]]:
    """The script's own arguments in each configuration.

    ``given`` are lines as for a shell ("--batch-size 5 --accum 3"), ``varied`` name one argument each with its values
    ("accum=1,3"), of which the i-th ones belong together. Raises BadConfigurations.
    """
    if given and varied:
        raise BadConfigurations("--with and --vary both define the configurations: use one of them")
    found = [_words(line) for line in given] if given else _zipped(varied)
    if len(found) < 2:
        raise BadConfigurations("compare needs at least two configurations: give --with twice, or --vary NAME=V1,V2")
    if len({tuple(one) for one in found}) < len(found):
        raise BadConfigurations("two of the configurations are the same")
    return found


def variables_and_arguments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """What a configuration sets in its environment, and the script's arguments.

    Its words are those that a shell has around a script's name: after ``env`` stand variables (``env BATCH=4 ACCUM=6
    --epochs 2``). Without it ``NAME=value`` is an argument, as Hydra's overrides are.
    """
    if words[:1] != ["env"]:
        return {}, list(words)
    end = next((i for i, word in enumerate(words) if i and not _ASSIGNMENT.match(word)), len(words))
    return dict(word.split("=", 1) for word in words[1:end]), list(words[end:])


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
            raise BadConfigurations(f"--vary {one}: must be NAME=V1,V2")
        values[name] = listed.split(",")
    if len({len(each) for each in values.values()}) > 1:
        counts = ", ".join(f"{name} has {len(each)}" for name, each in values.items())
        raise BadConfigurations(f"every --vary needs the same number of values: {counts}")
    return [
        [word for name, value in zip(values, each, strict=True) for word in _argument(name, value)]
        for each in zip(*values.values(), strict=True)
    ]


def _argument(name: str, value: str) -> list[str]:
    """An option as argparse takes it, or an override as Hydra does, whose names have a dot or begin with a sign."""
    is_override = "." in name or name.startswith(("+", "~"))
    return [f"{name}={value}"] if is_override else [f"--{name.lstrip('-')}", value]
