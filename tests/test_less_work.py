"""What is done in less time does the same: copies of values, walks through a script's syntax, rare collections."""

from __future__ import annotations

import ast
import gc
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gradcheck_accum.ledger.events import Factor, Reduction
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.lint import lint_paths
from gradcheck_accum.lint.examination.collecting import collecting_rarely
from gradcheck_accum.lint.state.values.copies import changed
from gradcheck_accum.lint.state.values.data import Data
from gradcheck_accum.lint.state.values.tensors import Figure, Part, Tensor
from gradcheck_accum.verify.provenance.syntax import Syntax

PART = Part("loss", Reduction.SUM, (Factor(0.5),), 3, ("flow", 1), assumed=True, may_be_sum=0)


@pytest.mark.parametrize(
    "value",
    [
        PART,
        Tensor((PART,), frozenset({"model"}), grad_scaled=True, summed_at=Location("a.py", 3)),
        Figure("shown", parts=(PART,), read_at=Location("a.py", 4)),
        Data(4, made=2, drawn=7),
        Factor(0.25, where=Location("a.py", 5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_changed_value_is_what_replace_makes_of_it(value: object) -> None:
    name = fields(value)[1].name  # type: ignore[arg-type]
    before = getattr(value, name)
    made, other = changed(value, **{name: None}), replace(value, **{name: None})  # type: ignore[type-var]
    assert type(made) is type(value)
    assert [getattr(made, f.name) for f in fields(made)] == [getattr(other, f.name) for f in fields(other)]  # type: ignore[arg-type]
    assert getattr(value, name) is before


def test_a_script_is_walked_as_ast_walks_it() -> None:
    tree = ast.parse(Path(__file__).read_text())
    syntax = Syntax(__file__, tree)
    for node in (tree, tree.body[-1]):
        assert [id(one) for one in syntax.walk(node)] == [id(one) for one in ast.walk(node)]


def test_scopes_are_the_functions_around() -> None:
    tree = ast.parse("x = 1\ndef f():\n    y = 2\n    class A:\n        z = 3\n    return lambda: y")
    syntax = Syntax("a.py", tree)
    numbers = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    function = tree.body[1]
    assert [syntax.scope_of(node) for node in numbers] == [tree, function, function]
    inner = next(node for node in ast.walk(tree) if isinstance(node, ast.Lambda))
    assert syntax.scope_of(inner.body) is inner
    assert syntax.scope_of(inner) is function


def test_the_collector_looks_as_often_as_before_once_files_are_analyzed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("loss.backward()\noptimizer.step()\n")
    before = gc.get_threshold()
    lint_paths([str(tmp_path)])
    assert gc.get_threshold() == before


def test_the_collector_stays_off_where_it_is_off() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with collecting_rarely():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
    with pytest.raises(KeyError), collecting_rarely():
        assert gc.get_threshold()[0] > before[0]
        raise KeyError
    assert gc.get_threshold() == before
