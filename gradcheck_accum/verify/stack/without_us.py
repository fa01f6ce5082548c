"""The stack as it would be without this package, for a script's tracebacks and warnings.

Our patches of PyTorch add frames between the script and what it calls. These are removed from an exception's traceback;
and the ``stacklevel`` of a warning is changed so that it refers to the same place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch

from gradcheck_accum.engine import callers

PACKAGE = str(Path(__file__).parents[2]) + os.sep
_BEFORE_THE_SCRIPT = str(Path(__file__).parents[1] / "process" / "child.py")
_OVERRIDES = torch.overrides.__file__


def is_ours(code: CodeType) -> bool:
    """Whether code is this package's own, or calls in another's name for it."""
    return code.co_filename.startswith(PACKAGE) or code.co_name == callers.NAME


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from ``frame`` outwards that would be there without us."""
    while frame is not None and frame.f_code.co_filename != _BEFORE_THE_SCRIPT:
        if is_ours(frame.f_code):
            is_mode = frame.f_code.co_name == "__torch_function__"
            frame = frame.f_back
            if is_mode and frame is not None and _hands_over(frame.f_code):
                # PyTorch gave a function of its own to our mode, which calls it once more.
                frame = frame.f_back and frame.f_back.f_back
            continue
        yield frame
        frame = frame.f_back


def _hands_over(code: CodeType) -> bool:
    return code.co_filename == _OVERRIDES and code.co_name == "handle_torch_function"


def level(stacklevel: int, frame: FrameType) -> int:
    """The ``stacklevel`` of a warning from ``frame`` that leads where the given one would lead without us."""
    wanted = max(stacklevel, 1)
    without_us = (own for own in frames(frame) if own is frame or not _is_import(own.f_code))
    meant = next((own for count, own in enumerate(without_us, 1) if count == wanted), None)
    passed = 0
    here: FrameType | None = frame
    while here is not None:
        passed += here is frame or not _is_import(here.f_code)
        if here is meant:
            return passed
        here = here.f_back
    # More frames than there are: Python handles that itself.
    return passed + 1


def _is_import(code: CodeType) -> bool:
    """Whether a frame is one of those of the import system that warnings do not count."""
    return "importlib" in code.co_filename and "_bootstrap" in code.co_filename


def clean(problem: BaseException) -> BaseException:
    """The exception, with its causes, contexts and grouped exceptions, without the frames that are ours."""
    known: set[int] = set()
    waiting: list[BaseException | None] = [problem]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        one.__traceback__ = _rebuilt(_own(one.__traceback__))
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return problem


def _own(traceback: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback that are the script's and its libraries', outermost first."""
    found: list[TracebackType] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_ours(code):
            if found or not _runs_modules(code):
                found.append(traceback)
        elif code.co_name == "__torch_function__" and len(found) > 1 and _hands_over(found[-1].tb_frame.f_code):
            del found[-2:]
        traceback = traceback.tb_next
    return found


def _runs_modules(code: CodeType) -> bool:
    return code.co_filename in ("<frozen runpy>", getattr(sys.modules.get("runpy"), "__file__", ""))


def _rebuilt(entries: Iterable[TracebackType]) -> TracebackType | None:
    following = None
    for entry in reversed(list(entries)):
        following = TracebackType(following, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return following
