"""Every fixture in every dtype: the same verdict, the same mistakes on the same lines; and none once it is fixed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from watching import watch_script, watch_source

from gradcheck_accum.lint.fixes import fix_source
from gradcheck_accum.results.verdict import Verdict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPTS = sorted((Path(__file__).parents[1] / "fixtures").glob("*.py"))
DTYPES = ["float64", "bfloat16", "float16", "bfloat16 autocast"]
"""What the fixtures themselves leave out: they are in float32."""
UNFIXED = ("class_trainer_off_by_one", "stepped_every_batch")
"""Whose mistakes only a person can correct."""


def expected(script: Path) -> dict[str, Any]:
    """What verify says of a fixture."""
    wanted: dict[str, Any] = tomllib.loads(script.with_suffix(".toml").read_text(encoding="utf-8"))["verify"]
    return wanted


def skip_where_it_cannot_run(source: str, dtype: str) -> None:
    if dtype == "float16" and ("Adam" in source or "GradScaler" in source):
        pytest.skip("Adam's eps is 0 in float16, and a GradScaler refuses gradients in float16")


@contextmanager
def computing_in(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Weights, data and gradients that a script makes have this dtype, or its operations run under autocast."""
    before, to_numpy = torch.get_default_dtype(), torch.Tensor.numpy

    def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # NumPy has no bfloat16, and the scripts print a digest of their weights.
        return to_numpy(tensor.float() if tensor.dtype is torch.bfloat16 else tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with ExitStack() as stack:
        if name.endswith(" autocast"):
            stack.enter_context(torch.autocast("cpu", getattr(torch, name.removesuffix(" autocast"))))
        else:
            torch.set_default_dtype(getattr(torch, name))
            stack.callback(torch.set_default_dtype, before)
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_fixture_gets_its_verdict_in_every_dtype(script: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = script.read_text(encoding="utf-8")
    skip_where_it_cannot_run(source, dtype)
    wanted = expected(script)
    with computing_in(dtype, monkeypatch):
        result = watch_script(script)
    assert result.verdict is Verdict(wanted["verdict"]), (result.reason, result.notes)
    got = sorted((d.where.line, d.mistake.code) for d in result.diagnosis)
    assert got == sorted((row["line"], row["code"]) for row in wanted["diagnosis"])
    if not dtype.endswith("autocast") and "dtype" not in source and ".to(torch" not in source:
        assert result.reference.dtype == dtype


FAULTY = [script for script in SCRIPTS if expected(script)["diagnosis"] and script.stem not in UNFIXED]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("script", FAULTY, ids=lambda path: path.stem)
def test_a_fixture_that_was_fixed_is_right_in_every_dtype(
    script: Path, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = fix_source(script.read_bytes().decode(), script.name, unsafe=True)
    skip_where_it_cannot_run(fixed.source, dtype)
    with computing_in(dtype, monkeypatch):
        result = watch_source(fixed.source, tmp_path)
    assert result.verdict is Verdict.EQUIVALENT, (result.reason, result.notes)
    assert result.diagnosis == ()
    if dtype == "float64":
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1.0] * len(result.windows))
