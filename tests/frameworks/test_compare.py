"""compare on scripts that train through a framework: the same script on the same data in batches of a whole window.

No ledger knows what these frameworks mean to divide by; the script on the large batch shows it. The ratios of norms
that are expected are those of the arithmetic: r / K of a remainder of r micro-batches, K where nothing divides.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from unittest import mock

import pytest
from frameworks.ground import APART, RUNS_ON, SCRIPTS
from frameworks.test_frameworks import PACKAGES, ready  # noqa: F401

from gradcheck_accum.comparing import compare_script, compared_loop
from gradcheck_accum.results.comparison import Compared
from gradcheck_accum.results.verdict import Verdict

COUNTS_OF_WINDOWS = {"transformers_trainer", "trl_sft"}
"""They count the targets of a whole window."""

here = [name for name in PACKAGES if name not in APART]


def train(name: str, arguments: list[str]) -> None:
    """Run a script of the suite, in a process of its own."""
    sys.modules.pop("toy", None)
    path = SCRIPTS / f"{name}.py"
    with (
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        mock.patch.object(sys, "path", [str(SCRIPTS), *sys.path]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        runpy.run_path(str(path), run_name="__main__")


def compare(name: str, *arguments: str) -> tuple[Verdict, Compared]:
    """A script in windows of 4 micro-batches of 4 and, for comparison, in one batch of 16 per step."""
    result = compared_loop(train, [dict(name=name, arguments=[*arguments, *more]) for more in ([], ["whole"])])
    assert not result.error, result.error
    (one,) = result.compared
    return result.verdict, one


def ratios(one: Compared) -> list[float]:
    return [step.grad_norm_ratio or 0.0 for step in one.steps]


@pytest.mark.parametrize("name", [name for name in here if name != "transformers_own_model"])
def test_windows_of_equal_counts_get_the_gradient_of_the_large_batch(name: str) -> None:
    verdict, one = compare(name, "equal")
    assert verdict is Verdict.EQUIVALENT, one.reason
    assert [step.micro_batches for step in one.steps] == [4] * 4


@pytest.mark.parametrize("name", ["accelerate_loop", "lightning_automatic"])
def test_tails_that_are_divided_by_the_full_k_are_too_short(name: str) -> None:
    verdict, one = compare(name, "remainder")
    assert verdict is Verdict.DEVIATES
    assert [step.micro_batches for step in one.steps] == [4, 4, 2] * 2
    assert ratios(one) == pytest.approx([1.0, 1.0, 0.5] * 2, rel=1e-4)


@pytest.mark.parametrize("name", [n for n in here if n not in {"accelerate_loop", "lightning_automatic", *RUNS_ON}])
def test_tails_of_the_others_are_what_they_hold(name: str) -> None:
    verdict, one = compare(name, "remainder")
    if name == "transformers_own_model":
        # Nothing divides: 4 times too large, and twice in the remainder.
        assert verdict is Verdict.DEVIATES
        assert ratios(one) == pytest.approx([4.0, 4.0, 2.0] * 2, rel=1e-4)
        return
    assert verdict is Verdict.EQUIVALENT, one.reason
    assert [step.micro_batches for step in one.steps] == [4, 4, 2] * 2


@pytest.mark.parametrize("name", [name for name in here if name != "sentence_similarity"])
def test_unequal_counts_are_right_where_the_whole_window_is_counted(name: str) -> None:
    verdict, one = compare(name, "unequal")
    assert verdict is (Verdict.EQUIVALENT if name in COUNTS_OF_WINDOWS else Verdict.DEVIATES), one.reason


@pytest.mark.parametrize("name", sorted(APART))
def test_what_needs_a_process_of_its_own_is_compared_as_a_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = str(SCRIPTS / f"{name}.py")

    def compared(condition: str) -> tuple[Verdict, Compared]:
        result = compare_script(path, [[condition], [condition, "whole"]])
        assert not result.error, result.error
        return result.verdict, result.compared[0]

    verdict, one = compared("equal")
    assert verdict is Verdict.EQUIVALENT, one.reason
    assert [step.micro_batches for step in one.steps] == [4] * 4
    verdict, one = compared("unequal")
    assert verdict is Verdict.DEVIATES, one.reason
    assert one.watched is not None
    assert [d.mistake.code for d in one.watched.diagnosis] == ["GA104"]
    # 10 micro-batches a pass: windows of 4 run on over its end, so that 2 end in the first pass and 3 in the second.
    verdict, one = compared("remainder")
    assert verdict is Verdict.DEVIATES
    assert one.reason.endswith("(2, 3 in its 2 epochs, the reference 3 in each epoch)")
