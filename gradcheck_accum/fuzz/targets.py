"""Loops and factories, as named on the command line."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType


class BadTarget(ValueError):
    """A file or a function that cannot be loaded; the message is one line that says why."""


def load_function(target: str) -> Callable[..., object]:
    """The function that ``train.py::train_one_epoch`` names. Raises BadTarget if there is none."""
    path, separator, name = target.partition("::")
    if not separator or not path or not name:
        raise BadTarget(f"{target}: must be FILE.py::FUNCTION")
    found: object = load_module(path)
    owner: object = None
    for part in name.split("."):
        owner, found = found, getattr(found, part, None)
    if not callable(found):
        raise BadTarget(f"{path} has no function {name}")
    if inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, part)):
        raise BadTarget(f"{name} is a method: give a function that creates the {owner.__name__} and calls it")
    if inspect.isgeneratorfunction(found) or inspect.iscoroutinefunction(found):
        kind = "a generator" if inspect.isgeneratorfunction(found) else "a coroutine"
        raise BadTarget(f"{name} is {kind}, and calling it runs nothing: give a function that runs it")
    return found


def load_module(path: str) -> ModuleType:
    """The module in a file, executed as by an import. Raises BadTarget if that fails."""
    file = Path(path)
    if not file.is_file():
        raise BadTarget(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if spec is None or spec.loader is None:
        raise BadTarget(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Modules in the file's directory can be imported from it, as when it is run as a script.
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        raise BadTarget(f"{path} cannot be imported: {type(error).__name__}: {text}") from None
    return module
