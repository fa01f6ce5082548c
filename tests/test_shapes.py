"""Every shape of a training loop gets its true verdict, and its wrong twins their diagnosis."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest
import torch
from shapes_table import SHAPES, Shape
from torch import nn
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

# What is compiled takes seconds to be.
EVERY = [
    pytest.param(shape, id=shape.name, marks=[pytest.mark.slow] if "compiled" in shape.name else []) for shape in SHAPES
]
WRONG = [(shape, marks, codes) for shape in SHAPES for marks, codes in shape.wrong]


@pytest.mark.parametrize("shape", EVERY)
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


def _end(path: Path) -> dict[str, torch.Tensor]:
    """Every weight and buffer that a script leaves behind, and the state of the random numbers."""
    with contextlib.redirect_stdout(io.StringIO()):
        left = runpy.run_path(str(path), run_name="__main__")
    modules = {name: value for name, value in left.items() if isinstance(value, nn.Module)}
    state = {f"{name}.{key}": t.clone() for name, m in modules.items() for key, t in m.state_dict().items()}
    return {**state, "random numbers": torch.get_rng_state()}


@pytest.mark.parametrize("shape", EVERY)
def test_watching_changes_no_bit(shape: Shape, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(shape.source(), encoding="utf-8")
    plain = _end(path)
    # A trajectory has everything in it that either reference does, and takes steps of its own.
    for options in ({"reference": "ledger"}, {"trajectory": True}):
        with observe(**options):  # type: ignore[arg-type]
            watched = _end(path)
        assert plain.keys() == watched.keys()
        assert [name for name in plain if not torch.equal(plain[name], watched[name])] == [], options
