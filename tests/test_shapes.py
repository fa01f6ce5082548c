"""Every shape of a training loop gets its true verdict, and its wrong twins their diagnosis."""

from __future__ import annotations

from pathlib import Path

import pytest
from shapes_table import SHAPES, Shape
from watching import watch_source

from gradcheck_accum.verdict import Verdict

WRONG = [(shape, marks, codes) for shape in SHAPES for marks, codes in shape.wrong]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_right_loop_of_this_shape(shape: Shape, tmp_path: Path) -> None:
    result = watch_source(shape.source(), tmp_path)
    assert result.verdict is Verdict(shape.verdict), result.reason
    assert shape.reason in result.reason
    assert all(d.mistake.by_construction for d in result.diagnosis)


@pytest.mark.parametrize(("shape", "marks", "codes"), WRONG, ids=[f"{s.name}-{'-'.join(c)}" for s, _, c in WRONG])
def test_a_wrong_loop_of_this_shape(shape: Shape, marks: dict[str, str], codes: frozenset[str], tmp_path: Path) -> None:
    result = watch_source(shape.source(**marks), tmp_path)
    assert {d.mistake.code for d in result.diagnosis} == codes, result.reason
    assert result.verdict is Verdict.DEVIATES, result.reason
