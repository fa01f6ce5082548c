"""The processes that a script starts: they are not watched, which is reported if nothing else was seen."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

_RUN_PYTHON = ("python", "torchrun", "accelerate", "deepspeed")
"""Beginnings of the names of programs that run Python."""

_LOADS_DATA = "torch.utils.data"
"""The package of what a data loader's workers run: they train nothing."""


def may_train(process: Any) -> bool:
    """Whether a process of `multiprocessing` may train: a data loader's worker does not."""
    target = getattr(process, "_target", None)
    return not str(getattr(target, "__module__", "")).startswith(_LOADS_DATA)


def runs_python(command: Any) -> bool:
    """Whether the words of a command, or of a line for the shell, name a program that runs Python."""
    if isinstance(command, (str, bytes, os.PathLike)):
        line = os.fsdecode(command)
        try:
            words = shlex.split(line)
        except ValueError:
            words = line.split()
    elif not isinstance(command, Sequence):
        return False
    else:
        words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    return any(os.path.basename(word).startswith(_RUN_PYTHON) for word in words)


def unwatched(children: int) -> str:
    """That so many processes were started, and how to watch them, in words."""
    if not children:
        return ""
    started = "1 process, which is" if children == 1 else f"{children} processes, which are"
    return (
        f": the script started {started} not watched; start its ranks with torchrun -m gradcheck_accum verify, or call "
        "gradcheck_accum.check() inside the process that trains"
    )
