"""What a loop's owner has accepted: it is reported as accepted, and no longer decides the verdict; nothing else is."""

from __future__ import annotations

import functools
import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gradcheck_accum
from gradcheck_accum.cli import main
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.verify_text import verify_text
from gradcheck_accum.results.acceptance import accepted
from gradcheck_accum.results.verdict import ReferenceReport, Verdict, VerifyResult, WindowReport
from gradcheck_accum.settings import SettingsError

TRAIN = """\
import torch
from torch import nn


def train(norm=False, divisors=(3, 3, 3, 3, 3), sizes=(5, 5, 5, 5, 5), flush=True, signs=False):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3), *([nn.BatchNorm1d(3)] if norm else []), nn.Linear(3, 1)]
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(n, 3).double(), torch.randn(n, 1).double()) for n in sizes]
    for i, (x, y) in enumerate(batches):
        loss = nn.functional.mse_loss(model(x), y) / divisors[i]
        loss.backward()
        if (i + 1) % 3 == 0 or (flush and i + 1 == len(batches)):
            if signs:
                for parameter in model.parameters():
                    parameter.grad.sign_()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    train(norm=True, divisors=(3,) * 6, sizes=(5,) * 6)
"""
BACKWARD, STEP = 13, 18
"""The lines of backward() and of step() in there."""

WHOLE = {"divisors": (3,) * 6, "sizes": (5,) * 6}
"""Six micro-batches: no remainder."""

Train = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Train]:
    """Writes a project: the script with a comment at some of its lines, and settings; its function ``train``."""
    monkeypatch.chdir(tmp_path)

    def make(settings: str = "", comments: dict[int, str] | None = None) -> Train:
        lines = TRAIN.splitlines()
        for line, comment in (comments or {}).items():
            lines[line - 1] += f"  # {comment}"
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / "train.py").write_text("\n".join(lines) + "\n")
        if settings:
            (tmp_path / "pyproject.toml").write_text(f"[tool.gradcheck-accum]\n{settings}\n")
        train: Train = runpy.run_path(str(tmp_path / "src" / "train.py"))["train"]
        return train

    return make


def checked(train: Train, ignore: Any = None, select: Any = None, **arguments: Any) -> VerifyResult:
    """The result of check(), also where it raises."""
    try:
        return gradcheck_accum.check(train, ignore=ignore, select=select, **arguments)
    except gradcheck_accum.AccumulationError as error:
        return error.result


def codes(result: VerifyResult) -> tuple[list[str], list[str]]:
    """What is diagnosed and counts, and what is accepted."""
    return [d.mistake.code for d in result.diagnosis], [a.diagnosis.mistake.code for a in result.accepted]


# the ways to accept


@pytest.mark.parametrize(
    ("settings", "comments", "by"),
    [
        ('ignore = ["GA901"]', {}, "settings"),
        ('ignore = ["batch-coupled"]', {}, "settings"),
        ('select = ["GA1", "GA2"]', {}, "settings"),
        ('per-file-ignores = {"src/*.py" = ["GA9"]}', {}, "settings"),
        ("", {BACKWARD: "gradcheck-accum: ignore[GA901]"}, "comment"),
        ("", {BACKWARD: "noqa: GA901"}, "comment"),
    ],
)
def test_settings_and_comments_of_the_project_count(
    project: Callable[..., Train], settings: str, comments: dict[int, str], by: str
) -> None:
    result = checked(project(settings, comments), norm=True, **WHOLE)
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert codes(result) == ([], ["GA901"])
    assert [one.by for one in result.accepted] == [by]
    assert [w.verdict for w in result.windows] == [Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION] * 2
    assert [w.accepted for w in result.windows] == [("GA901",)] * 2
    assert "GA901 in 2 windows" in result.reason


@pytest.mark.parametrize(
    ("settings", "comments"),
    [
        ("", {}),
        ('ignore = ["GA902"]', {}),
        ('per-file-ignores = {"tests/*.py" = ["GA9"]}', {}),
        ("", {BACKWARD: "gradcheck-accum: ignore[GA101]"}),
        ("", {STEP: "noqa: GA901"}),
    ],
)
def test_what_is_accepted_elsewhere_or_of_another_code_does_not_count(
    project: Callable[..., Train], settings: str, comments: dict[int, str]
) -> None:
    result = checked(project(settings, comments), norm=True, **WHOLE)
    assert (result.verdict, result.exit_status) == (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, 3)
    assert codes(result) == (["GA901"], [])


def test_arguments_take_the_place_of_the_settings(project: Callable[..., Train]) -> None:
    train = project('ignore = ["GA901"]')
    assert checked(train, ignore="GA301, GA103", norm=True, **WHOLE).exit_status == 3
    assert checked(train, select=["GA1"], ignore=[], norm=True, **WHOLE).exit_status == 0


def test_settings_that_make_no_sense_are_said_before_anything_is_run(project: Callable[..., Train]) -> None:
    def never() -> None:
        raise AssertionError("was run")

    with pytest.raises(SettingsError, match="ignore: unknown rule 'GA999'"):
        gradcheck_accum.check(never, ignore=["GA999"])
    with pytest.raises(SettingsError, match="select: unknown rule"), gradcheck_accum.watch(select="nope"):
        never()


# what is accepted with a code


def test_a_remainder_that_is_divided_by_k_is_accepted_with_its_window(project: Callable[..., Train]) -> None:
    train = project()
    assert codes(checked(train)) == (["GA103"], [])
    result = checked(train, ignore=["GA103"])
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert [w.accepted for w in result.windows] == [(), ("GA103",)]
    assert result.reason == "1 of 2 steps match the large-batch gradient; accepted: GA103 in 1 window"
    # The numbers stay, as they are measured: (g_4 + g_5) / 3 instead of (g_4 + g_5) / 2, in float64 by hand.
    parts = torch.tensor([[0.3, -0.7], [0.2, 0.4]], dtype=torch.float64)
    given, large = parts.sum(0) / 3, parts.mean(0)
    last = result.windows[1]
    assert last.verdict is Verdict.DEVIATES
    assert last.grad_rel_error == pytest.approx(float((given - large).norm() / large.norm()), rel=1e-12)
    assert last.grad_norm_ratio == pytest.approx(float(given.norm() / large.norm()), rel=1e-12)


def test_data_that_reaches_no_step_is_accepted(project: Callable[..., Train]) -> None:
    train = project(comments={STEP: "gradcheck-accum: ignore[GA301]"})
    result = checked(train, flush=False)
    assert (result.verdict, result.exit_status, codes(result)) == (Verdict.EQUIVALENT, 0, ([], ["GA301"]))
    assert result.reason == "all 1 steps match the large-batch gradient; accepted: GA301"


def test_a_window_with_another_mistake_still_deviates(project: Callable[..., Train]) -> None:
    """The last micro-batch holds 2 rows instead of 5: a mean of means, in the window of the remainder."""
    train = project()
    result = checked(train, ignore=["GA103"], sizes=(5, 5, 5, 5, 2))
    assert (result.verdict, result.exit_status, codes(result)) == (Verdict.DEVIATES, 1, (["GA104"], ["GA103"]))
    assert result.windows[1].accepted == ()
    result = checked(train, ignore=["GA103", "GA104"], sizes=(5, 5, 5, 5, 2))
    assert (result.exit_status, result.windows[1].accepted) == (0, ("GA103", "GA104"))


def test_a_window_that_deviates_by_more_than_is_accepted_still_deviates(project: Callable[..., Train]) -> None:
    """1/6 and 1/2 have the mean weight of a remainder that is divided by 3, and are more than that."""
    result = checked(project(), ignore=["GA"], divisors=(3, 3, 3, 6, 2))
    assert (result.verdict, result.exit_status) == (Verdict.DEVIATES, 1)
    assert [w.accepted for w in result.windows] == [(), ()]
    assert "by more than the accepted mistakes explain" in result.reason


def test_what_was_not_checked_is_never_accepted(project: Callable[..., Train]) -> None:
    # Whether the signs of an undivided gradient are those of the whole is not known.
    result = checked(project(), ignore=["GA"], signs=True, divisors=(1,) * 6, sizes=(5,) * 6)
    assert (result.verdict, result.exit_status) == (Verdict.INCONCLUSIVE, 3)


def test_a_departure_that_nobody_recognised_is_never_accepted(project: Callable[..., Train]) -> None:
    """One undivided micro-batch of three in one window: wrong, or not decided, whatever is accepted."""
    result = checked(project(), ignore=["GA"], divisors=(3, 1, 3, 3, 3, 3), sizes=(5,) * 6)
    assert result.exit_status in (1, 3)


# the same on made-up results, where no loop is needed


def made(*windows: tuple[Verdict, float, float], verdict: Verdict = Verdict.DEVIATES, **parts: Any) -> VerifyResult:
    """A result whose windows have these verdicts, errors and ratios of norms."""
    reports = [
        WindowReport(i, "SGD", 3, 15.0, (ratio,) * 3, error, ratio, 1e-6, None, own)
        for i, (own, error, ratio) in enumerate(windows)
    ]
    reference = ReferenceReport("ledger", "float32", "cpu")
    return VerifyResult("train.py", verdict, "said", "cpu", reference, windows=tuple(reports), **parts)


def diagnosed(code: str, *windows: int) -> Diagnosis:
    return Diagnosis(CATALOGUE[code], Location("train.py", 7), f"message of {code}", "", windows)


def accepting(*accept: str) -> Callable[[Diagnosis], str]:
    return lambda diagnosis: "settings" if diagnosis.mistake.code in accept else ""


RIGHT = (Verdict.EQUIVALENT, 0.0, 1.0)
WRONG = (Verdict.DEVIATES, 2.0, 3.0)
COUPLED = (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, 0.0, 1.0)
OPEN = (Verdict.INCONCLUSIVE, 0.0, 1.0)


def test_nothing_is_changed_where_nothing_is_accepted() -> None:
    result = made(WRONG, diagnosis=(diagnosed("GA101", 0),))
    assert accepted(result, accepting("GA103")) is result


@pytest.mark.parametrize(
    ("windows", "diagnosis", "accept", "verdict", "status"),
    [
        ([WRONG, RIGHT], ["GA101:0"], "GA101", Verdict.EQUIVALENT, 0),
        ([WRONG, OPEN], ["GA101:0"], "GA101", Verdict.INCONCLUSIVE, 3),
        ([WRONG, COUPLED], ["GA101:0", "GA901:1"], "GA101", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, 3),
        ([WRONG, COUPLED], ["GA101:0", "GA901:1"], "GA901", Verdict.DEVIATES, 1),
        ([WRONG, COUPLED], ["GA101:0", "GA901:1"], "GA101 GA901", Verdict.EQUIVALENT, 0),
        ([WRONG, WRONG], ["GA101:0"], "GA101", Verdict.DEVIATES, 1),
        ([WRONG, RIGHT], ["GA101:0", "GA301:"], "GA101", Verdict.DEVIATES, 1),
        ([WRONG, RIGHT], ["GA101:0", "GA301:"], "GA101 GA301", Verdict.EQUIVALENT, 0),
        ([OPEN, RIGHT], ["GA103:0"], "GA103", Verdict.INCONCLUSIVE, 3),
        ([OPEN, RIGHT], ["GA103:0", "GA104:0"], "GA103", Verdict.INCONCLUSIVE, 1),
        ([WRONG, RIGHT], ["GA101:0", "GA601:1"], "GA601", Verdict.DEVIATES, 1),
        ([WRONG, RIGHT], ["GA101:0", "GA601:1"], "GA101", Verdict.EQUIVALENT, 1),
        # another mistake, which no gradient shows, explains no gradient
        ([WRONG], ["GA601:0"], "GA601", Verdict.DEVIATES, 1),
        # an error of 2.3 where the norm is threefold: not three times the reference
        ([(Verdict.DEVIATES, 2.3, 3.0)], ["GA101:0"], "GA101", Verdict.DEVIATES, 1),
        ([(Verdict.DEVIATES, 2.3, 3.0)], ["GA203:0"], "GA203", Verdict.EQUIVALENT, 0),
    ],
)
def test_the_verdict_is_that_of_the_rest(
    windows: list[Any], diagnosis: list[str], accept: str, verdict: Verdict, status: int
) -> None:
    parts = (part.split(":") for part in diagnosis)
    found = tuple(diagnosed(code, *map(int, shown.split())) for code, shown in parts)
    result = accepted(made(*windows, diagnosis=found), accepting(*accept.split()))
    assert (result.verdict, result.exit_status) == (verdict, status)


def test_a_script_that_failed_stays_an_error() -> None:
    result = made(WRONG, diagnosis=(diagnosed("GA101", 0),), error="the script raised ValueError")
    assert accepted(result, accepting("GA101")).exit_status == 2


def test_a_loop_without_a_step_stays_undecided() -> None:
    result = replace(made(verdict=Verdict.INCONCLUSIVE), diagnosis=(diagnosed("GA301"),))
    assert accepted(result, accepting("GA301")).exit_status == 3


def test_the_text_lists_what_is_accepted_in_a_line() -> None:
    result = accepted(made(WRONG, RIGHT, diagnosis=(diagnosed("GA101", 0),)), accepting("GA101"))
    lines = verify_text(result).splitlines()
    (line,) = (line for line in lines if line.startswith("accepted: "))
    assert line == "accepted: GA101 [missing-loss-scaling] at train.py:7 (window 0, by the settings): message of GA101"
    assert [row for row in lines if row.endswith("deviates (accepted)")] != []
    assert lines[0] == "train.py: equivalent: 1 of 2 steps match the large-batch gradient; accepted: GA101 in 1 window"


# the doors


@pytest.mark.slow
def test_verify_takes_codes_and_its_json_says_what_was_accepted(
    project: Callable[..., Train], capfd: pytest.CaptureFixture[str]
) -> None:
    project()
    assert main(["verify", "src/train.py", "--ignore", "GA901", "--output-format", "json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["verdict"], report["diagnosis"]) == ("equivalent", [])
    (one,) = report["accepted"]
    assert (one["code"], one["line"], one["windows"], one["by"]) == ("GA901", BACKWARD, [0, 1], "settings")
    assert [(w["verdict"], w["accepted"]) for w in report["windows"]] == [
        ("not-equivalent-by-construction", ["GA901"])
    ] * 2


@pytest.mark.slow
def test_verify_reads_the_settings_that_lint_reads(
    project: Callable[..., Train], capfd: pytest.CaptureFixture[str]
) -> None:
    project('ignore = ["GA9"]')
    assert main(["verify", "src/train.py"]) == 0
    assert "accepted: GA901" in capfd.readouterr().out


@pytest.mark.parametrize("settings", ["ignre = []", 'ignore = ["GA999"]'])
def test_verify_says_a_bad_setting_before_the_script_runs(
    project: Callable[..., Train], settings: str, capfd: pytest.CaptureFixture[str]
) -> None:
    project(settings)
    assert main(["verify", "src/train.py"]) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "pyproject.toml: [tool.gradcheck-accum]" in err


def test_watch_says_nothing_of_what_is_accepted(project: Callable[..., Train]) -> None:
    train = project()
    with pytest.raises(gradcheck_accum.AccumulationError, match="GA101"), gradcheck_accum.watch():
        train(divisors=(1,) * 6, sizes=(5,) * 6)
    with gradcheck_accum.watch(ignore=["GA101"]):
        train(divisors=(1,) * 6, sizes=(5,) * 6)
    with gradcheck_accum.watch(ignore=["GA301"]):
        train(flush=False)


def test_an_argument_of_the_loops_own_is_not_taken_from_it() -> None:
    def loop(ignore: str = "") -> None:
        raise RuntimeError(f"ignores {ignore}")

    with pytest.raises(TypeError, match="'ignore' is an argument of both the check and the loop"):
        gradcheck_accum.check(loop, ignore="GA901")
    with pytest.raises(RuntimeError, match="ignores this"):
        gradcheck_accum.check(functools.partial(loop, ignore="this"), ignore="GA901")
    with pytest.raises(RuntimeError, match="ignores that"):
        gradcheck_accum.check(loop, "that", ignore="GA901")
