"""Which line of the user's own code is running, and which framework it called.

Whether a file is the user's depends on its location: PyTorch, the standard library, this package and other installed
packages are not, wherever a machine keeps them. Code without a file (typed, in a cell, passed to ``exec``) is the
user's if its module is: what a library generates runs in one of the library's modules.
"""

from __future__ import annotations

import linecache
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType

import torch

from gradcheck_accum.ledger.location import Location

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
_STANDARD = tuple(str(Path(sysconfig.get_paths()[name]).resolve()) + os.sep for name in ("stdlib", "platstdlib"))
_NO_FRAMEWORKS = {"torch", "functorch"}
"""Installed packages that all code goes through, so that naming them is no information."""

_FOR_PACKAGES = {"site-packages", "dist-packages"}
_CELL_OF_IPYTHON = re.compile(r"<ipython-input-(\d+)-")

_shown: dict[str, str] = {}
"""The names of files that are shown differently from how Python names them."""


def show_as(filename: str, name: str) -> None:
    """Show a file as ``name`` in all locations: the script as the user wrote it on the command line."""
    _shown[filename] = name


def shown(filename: str) -> str:
    """The name of a file of code in a report."""
    return _shown.get(filename) or _cell(filename) or filename


def installed_folders(path: Iterable[str], torch_folder: str, program: str | None) -> tuple[str, ...]:
    """The folders that hold installed packages, each with its last separator.

    ``path`` is ``sys.path``. The folder that contains PyTorch is included if an installer put it there, unless the
    ``program`` is in that folder too.
    """
    folders = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    folders += [*getattr(site, "getsitepackages", list)(), site.getusersitepackages()]
    folders += [folder for folder in path if os.path.basename(folder.rstrip(os.sep)) in _FOR_PACKAGES]
    site_packages = Path(torch_folder).parent
    is_programs = program is not None and Path(program).resolve().parent == site_packages
    if any(site_packages.glob("torch-*.dist-info")) and not is_programs:
        folders.append(str(site_packages))
    return tuple(dict.fromkeys(str(Path(folder).resolve()) + os.sep for folder in folders))


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...], program: str | None) -> tuple[str, ...]:
    return installed_folders(path, _TORCH, program)


def _installed_now() -> tuple[str, ...]:
    path = tuple(folder for folder in sys.path if isinstance(folder, str))
    return _installed(path, getattr(sys.modules.get("__main__"), "__file__", None))


@lru_cache(maxsize=1024)
def is_users_file(filename: str) -> bool:
    """Whether a file is the user's own: not Python's, an installed package's or ours."""
    path = os.path.realpath(filename)
    return not path.startswith((_OURS, _TORCH, *_STANDARD, *_installed_now()))


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if not name.startswith("<"):
        return is_users_file(name)
    if name.startswith("<frozen "):
        return False
    if frame.f_globals.get("__name__") == "__main__":
        return True
    file = frame.f_globals.get("__file__")
    return is_users_file(file) if isinstance(file, str) else name == "<string>"


@lru_cache(maxsize=1024)
def package_of(filename: str) -> str:
    """The installed package that a file belongs to; empty if there is none, or it is PyTorch or ours."""
    path = os.path.realpath(filename)
    if path.startswith((_OURS, _TORCH)):
        return ""
    for folder in _installed_now():
        if path.startswith(folder):
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
        if _is_users(frame):
            return
        frame = frame.f_back


def user_location() -> Location:
    """The innermost line of user code on the stack, and the package that it called into.

    The outermost frame's line where no user code is on the stack.
    """
    package = ""
    frame = sys._getframe(1)
    # Called for every event, from deep inside PyTorch: a generator takes twice as long.
    while True:
        package = package_of(frame.f_code.co_filename) or package
        if frame.f_back is None or _is_users(frame):
            return _location(frame, package)
        frame = frame.f_back


def scaling_frame() -> FrameType:
    """The innermost frame that is not PyTorch's or ours: who scaled a loss just now, user or framework."""
    for frame in frames_to_user():
        if package_of(frame.f_code.co_filename):
            break
    return frame


def is_followed(frame: FrameType) -> bool:
    """Whether a caller may be followed through: no framework's code, which the user did not write."""
    return not package_of(frame.f_code.co_filename)


def user_frames(most: int) -> list[FrameType]:
    """The frames of the user's own code that run now, innermost first, up to the module that runs.

    It ends at a framework that called them; frames of PyTorch, Python or ours between them (a decorator) are skipped.
    """
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < most:
        if _is_users(frame):
            found.append(frame)
            if frame.f_code.co_name == "<module>":
                break
        elif found and not is_followed(frame):
            break
        frame = frame.f_back
    return found


def location_of(frame: FrameType) -> Location:
    """The line that a frame is at, and the package that it belongs to, where it is one's."""
    return _location(frame, package_of(frame.f_code.co_filename))


def _location(frame: FrameType, package: str) -> Location:
    return _place(shown(frame.f_code.co_filename), frame.f_lineno, with_version(package) if package else "")


@lru_cache(maxsize=1 << 12)
def _place(path: str, line: int, through: str) -> Location:
    """One Location object for each place, however often it is reached."""
    return Location(path, line, through=through)


def _cell(filename: str) -> str:
    """The name of the IPython cell that a filename stands for, empty where it is none.

    Its text, which is in no file, can then be found in `linecache` by that name too.
    """
    if "IPython" not in sys.modules and not filename.startswith("<"):
        # Asked for every event, and a script's file is no cell.
        return ""
    number = _number_of_cell(filename)
    if not number:
        return ""
    name, lines = f"cell {number}", linecache.getlines(filename)
    linecache.cache[name] = len("".join(lines)), None, lines, name
    return name


def running_cell() -> int | None:
    """The number that IPython shows next to the running cell; None outside of one."""
    *_, frame = frames_to_user()
    number = _number_of_cell(frame.f_code.co_filename)
    return int(number) if number.isdigit() else None


def _number_of_cell(filename: str) -> str:
    """The number that IPython shows next to the cell: In [3]."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(filename)
    if named:
        # ("Cell", "In[3]")
        return str(named[-1]).strip("In[]")
    found = _CELL_OF_IPYTHON.match(filename)
    return found[1] if found else ""
