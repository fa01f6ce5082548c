"""What the docstrings of public names (docs/api.md) have to say: every parameter, every field, what is raised."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradcheck_accum.pytest_plugin.checking import AccumCheck

ROOT = Path(__file__).parents[1]
LISTED = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
FRAMEWORKS = "gradcheck_accum.callbacks."

DOCUMENTED_ELSEWHERE = {"AccumCheck.__call__": "gradcheck_accum.check", "AccumCheck.compare": "gradcheck_accum.compare"}
"""Doors to the same call: their docstrings name the one that lists the parameters."""


def found(name: str) -> Any:
    """What a dotted name is."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def callables() -> Iterator[tuple[str, Any]]:
    """The public functions, and the public methods of public classes, that people call."""
    for name in LISTED:
        if name.startswith(FRAMEWORKS):
            continue
        public = found(name)
        if inspect.isclass(public):
            for method, function in vars(public).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{public.__name__}.{method}", function
        elif not name.endswith("accum_cases"):  # a strategy, whose one parameter Hypothesis supplies
            yield name, public
    for method in ("__call__", "compare", "fuzz"):
        yield f"AccumCheck.{method}", getattr(AccumCheck, method)


CALLABLES = dict(callables())
CLASSES = [name for name in LISTED if not name.startswith(FRAMEWORKS) and inspect.isclass(found(name))]


def raised(function: Any) -> set[str]:
    """The exceptions that a function's own ``raise`` statements name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    errors = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None)
    return {ast.unparse(error.func if isinstance(error, ast.Call) else error) for error in errors}


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_documented(name: str) -> None:
    function = inspect.unwrap(CALLABLES[name])
    text = inspect.getdoc(function) or ""
    assert text.partition("\n")[0].endswith((".", ":"))
    if name in DOCUMENTED_ELSEWHERE:
        assert f"`{DOCUMENTED_ELSEWHERE[name]}`" in text
        return
    parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
    documented = re.findall(r"^:param (\w+): \S", text, re.MULTILINE)
    assert documented == parameters


@pytest.mark.parametrize("name", CALLABLES)
def test_what_is_raised_is_documented(name: str) -> None:
    function = inspect.unwrap(CALLABLES[name])
    documented = set(re.findall(r"^:raises ([\w.]+): \S", inspect.getdoc(function) or "", re.MULTILINE))
    assert raised(function) <= documented


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_is_documented(name: str) -> None:
    public = found(name)
    text = inspect.getdoc(public) or ""
    assert text.partition("\n")[0].endswith((".", "?"))
    if dataclasses.is_dataclass(public):
        missing = [field.name for field in dataclasses.fields(public) if f"``{field.name}``" not in text]
        assert not missing


@pytest.mark.parametrize(
    "path", sorted((ROOT / "gradcheck_accum" / "callbacks").glob("*.py")), ids=lambda path: path.stem
)
def test_callbacks_document_their_parameters(path: Path) -> None:
    # Read as source: their frameworks are not installed here.
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Accumulation"):
            (made,) = (n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
            given = [argument.arg for argument in (*made.args.args[1:], *made.args.kwonlyargs)]
            given += [made.args.kwarg.arg] if made.args.kwarg else []
            text = ast.get_docstring(node) or ""
            assert re.findall(r"^:param (\w+): \S", text, re.MULTILINE) == given
            assert ":raises ValueError: " in text


def test_the_checks_see_what_is_missing() -> None:
    def strict(one: int, two: int) -> None:
        """Check.

        :param one: the first.
        """
        if one:
            raise KeyError(one)
        raise ValueError

    assert raised(strict) == {"KeyError", "ValueError"}
    assert "gradcheck_accum.check" in CALLABLES and "AccumCase.arguments" in CALLABLES
    assert "gradcheck_accum.verdict.WindowReport" in CLASSES
