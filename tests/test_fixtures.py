"""Every fixture: lint and verify say what the file next to it expects, and watching changes nothing."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import watch_script

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify import observe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parents[1] / "fixtures"
SCRIPTS = sorted(FIXTURES.glob("*.py"))
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])


def expected(script: Path) -> dict[str, Any]:
    return tomllib.loads(script.with_suffix(".toml").read_text(encoding="utf-8"))


def rows(findings: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return sorted((finding["line"], finding["code"]) for finding in findings)


@every_script
def test_lint_finds_exactly_what_is_expected(script: Path) -> None:
    got = [(f.where.line, f.mistake.code) for f in lint_source(script.read_bytes(), str(script))]
    assert sorted(got) == rows(expected(script)["lint"]["findings"])


@every_script
def test_verify_measures_what_is_expected(script: Path) -> None:
    wanted = expected(script)["verify"]
    result = watch_script(script)
    assert result.verdict is Verdict(wanted["verdict"]), result.reason
    assert sorted((d.where.line, d.mistake.code) for d in result.diagnosis) == rows(wanted["diagnosis"])
    if "norm_ratio" in wanted:
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(wanted["norm_ratio"], rel=1e-4)
    if result.verdict is Verdict.EQUIVALENT:
        # What bfloat16 rounds away of 64 micro-batches is not in the update.
        allowed = 0.05 if result.reference.dtype == "bfloat16" else 1e-3
        assert all(w.param_rel_error is not None and w.param_rel_error < allowed for w in result.windows)


@every_script
def test_watching_leaves_the_final_weights_bit_for_bit(script: Path) -> None:
    plain, watched = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(plain):
        runpy.run_path(str(script), run_name="__main__")
    with contextlib.redirect_stdout(watched), observe():
        runpy.run_path(str(script), run_name="__main__")
    assert "weights" in plain.getvalue()
    assert watched.getvalue() == plain.getvalue()


def test_every_loop_that_peers_were_tried_on_gets_its_cause() -> None:
    # benchmarks/verify_peers.py runs these as scripts; what verify says of each is in the file next to it.
    listed = runpy.run_path(str(FIXTURES.parent / "benchmarks" / "verify_peers.py"))["ROWS"]
    for row in listed:
        wanted = expected(FIXTURES / row.script)["verify"]
        assert {d["code"] for d in wanted["diagnosis"]} == row.causes
        assert wanted["verdict"] == ("deviates" if row.causes else "equivalent")
