"""Which line of the user's own code is being run, and which framework it called."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

from gradcheck_accum.location import Location

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_STANDARD, _INSTALLED = (
    tuple(str(Path(sysconfig.get_paths()[name]).resolve()) + os.sep for name in names)
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)
_NO_FRAMEWORKS = {"torch", "functorch"}
"""Installed packages that everything goes through: to name them tells nothing."""


@lru_cache(maxsize=1024)
def is_users(filename: str) -> bool:
    """Whether a file is the user's own: none of Python's, of an installed package or of ours."""
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    return not path.startswith((_OURS, *_STANDARD, *_INSTALLED))


@lru_cache(maxsize=1024)
def package_of(filename: str) -> str:
    """The installed package that a file belongs to, or nothing: no file of one, or one of PyTorch's own."""
    path = os.path.realpath(filename)
    for folder in _INSTALLED:
        if path.startswith(folder) and not path.startswith(_OURS):
            package = path.removeprefix(folder).partition(os.sep)[0].removesuffix(".py")
            return "" if package in _NO_FRAMEWORKS else package
    return ""


@lru_cache(maxsize=64)
def with_version(package: str) -> str:
    """A package's name with its version, as far as it says one."""
    stated = getattr(sys.modules.get(package), "__version__", None)
    try:
        return f"{package} {stated or version(package)}"
    except PackageNotFoundError:
        return package


def frames_to_user() -> Iterator[FrameType]:
    """The frames that run now, innermost first, down to the user's own; all of them where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        if is_users(frame.f_code.co_filename):
            return
        frame = frame.f_back


def user_location() -> Location:
    """The innermost line of user code on the stack, and the package that it called to come here.

    The outermost frame's line where no user code is on the stack.
    """
    package = ""
    for frame in frames_to_user():
        package = package_of(frame.f_code.co_filename) or package
    return Location(frame.f_code.co_filename, frame.f_lineno, through=with_version(package) if package else "")


def scaling_location() -> Location:
    """The innermost line that is not PyTorch's or ours: who scaled a loss just now, user or framework."""
    for frame in frames_to_user():
        package = package_of(frame.f_code.co_filename)
        if package:
            break
    return Location(frame.f_code.co_filename, frame.f_lineno, through=with_version(package) if package else "")
