"""The text report of verify: what a person must be able to read from it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.frame import Sources
from gradcheck_accum.report.paint import Paint
from gradcheck_accum.report.verify_text import verify_text
from gradcheck_accum.report.words import count, error, number, shown_path, weights
from gradcheck_accum.results.verdict import Accepted, ReferenceReport, Verdict, VerifyResult, WindowReport

RIGHT = WindowReport(0, "SGD", 4, 32.0, (1.0,) * 4, 1.2e-07, 1.0, 3.1e-06, 2e-07, Verdict.EQUIVALENT, line=24)
WRONG = replace(
    RIGHT, weights=(4.0,) * 4, grad_rel_error=3.0, grad_norm_ratio=4.0, param_rel_error=3.0, verdict=Verdict.DEVIATES
)
REFERENCE = ReferenceReport("ledger and replay", "float32", "cpu", "TF32 off")
MISSING = Diagnosis(
    CATALOGUE["GA101"], Location("train.py", 2), "the loss is not divided", "divide the loss by 4", (0, 1, 2, 4)
)


def run(*windows: WindowReport, verdict: Verdict = Verdict.EQUIVALENT, **kwargs: object) -> VerifyResult:
    numbered = tuple(replace(window, index=index) for index, window in enumerate(windows))
    return VerifyResult("train.py", verdict, "", "cpu", REFERENCE, numbered, **kwargs)  # type: ignore[arg-type]


def test_a_run_that_deviates() -> None:
    result = run(WRONG, RIGHT, verdict=Verdict.DEVIATES, diagnosis=(MISSING,), notes=("one note",))
    text = verify_text(replace(result, reason="1 of 2 windows"), Sources({"train.py": "a\n    loss.backward()\nb\n"}))
    assert text == (
        "train.py: deviates: 1 of 2 windows\n"
        "help: divide the loss by 4 (train.py:2, GA101)\n"
        "\n"
        "2 windows watched, on cpu:\n"
        "same in all windows: step line 24\n"
        "         micro-         relative   gradient            norm   update\n"
        "window  batches  units  weights       error  allowed  ratio    error  verdict\n"
        "     0        4     32  4 x 4.000     3.000  3.1e-06  4.000    3.000  deviates\n"
        "     1        4     32  4 x 1.000   1.2e-07  3.1e-06  1.000  2.0e-07  equivalent\n"
        "\n"
        "train.py:2: GA101 [missing-loss-scaling] the loss is not divided (windows 0-2, 4)\n"
        "  |\n"
        "1 | a\n"
        "2 |     loss.backward()\n"
        "  |     ^^^^^^^^^^^^^^^\n"
        "3 | b\n"
        "  |\n"
        "\n"
        "note: one note"
    )


def test_what_is_compared_and_what_it_costs_is_shown_where_it_is_asked_for() -> None:
    result = run(RIGHT, notes=("one note", "it costs 3 KiB", "one note"), details=("it costs 3 KiB",))
    assert verify_text(result).endswith("\n\nnote: one note")
    assert verify_text(result, verbose=True).endswith(
        "\n\nnote: one note\nnote: it costs 3 KiB\nreference: ledger and replay, in float32 on cpu (TF32 off)"
    )


def test_the_mistake_that_explains_most_windows_is_the_one_to_act_on() -> None:
    other = replace(MISSING, where=Location("train.py", 9), help="do something else", windows=(0,))
    text = verify_text(run(*[WRONG] * 3, verdict=Verdict.DEVIATES, diagnosis=(other, MISSING)))
    assert text.splitlines()[1] == "help: divide the loss by 4 (train.py:2, GA101)"
    assert text.count("divide the loss by 4") == 1
    assert text.count("help: do something else") == 1


def test_an_undecided_run_says_what_to_state() -> None:
    text = verify_text(replace(run(verdict=Verdict.INCONCLUSIVE), help="state what was meant"))
    assert text.splitlines()[1] == "help: state what was meant"


def test_one_sentence_is_said_once() -> None:
    coupled = replace(RIGHT, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason="the model mixes samples")
    batch_norm = Diagnosis(CATALOGUE["GA901"], Location("train.py", 7), coupled.reason, "nothing", (0, 1))
    result = run(coupled, coupled, verdict=coupled.verdict, diagnosis=(batch_norm,))
    text = verify_text(replace(result, reason=coupled.reason))
    assert text.startswith("train.py: not-equivalent-by-construction: 2 of 2 windows: GA901 [batch-coupled]\n")
    assert text.count(coupled.reason) == 1
    undecided = replace(RIGHT, verdict=Verdict.INCONCLUSIVE, reason="it could not be read")
    text = verify_text(
        replace(run(undecided, undecided, verdict=Verdict.INCONCLUSIVE), reason="2 of 2 steps: it could not be read")
    )
    assert text.count("it could not be read") == 1


def test_a_coupling_is_told_once_though_every_window_has_a_number_of_its_own() -> None:
    said = [f"it differs by {part} of its norm: BatchNorm1d" for part in (0.787, 0.528, 0.67)]
    windows = [replace(RIGHT, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, reason=reason) for reason in said]
    batch_norm = Diagnosis(CATALOGUE["GA901"], Location("train.py", 7), said[0], "nothing", (0, 1, 2))
    result = run(*windows, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, diagnosis=(batch_norm,))
    assert verify_text(replace(result, reason=said[0])).count("BatchNorm1d") == 1
    known = replace(result, diagnosis=(), accepted=(Accepted(batch_norm, "settings"),), reason="GA901 in 3 windows")
    assert verify_text(known).count("BatchNorm1d") == 1
    other = replace(result, diagnosis=(replace(batch_norm, windows=(0, 2)),), reason=said[0])
    assert verify_text(other).count("BatchNorm1d") == 2  # a window that no diagnosis names says its own


def test_long_sentences_are_broken_but_not_what_programs_look_for() -> None:
    long = replace(MISSING, said="word " * 30 + "end", help="help " * 30 + "end")
    text = verify_text(run(WRONG, verdict=Verdict.DEVIATES, diagnosis=(long,), notes=("note " * 40 + "end",)), width=60)
    wide = [
        line
        for line in text.splitlines()
        if len(line) > 60 and "norm" not in line and "x 4.000" not in line and "error" not in line
    ]
    assert wide == [f"train.py:2: GA101 [missing-loss-scaling] {long.message} (windows 0-2, 4)"]


def test_many_windows_that_say_the_same_are_shown_twice() -> None:
    remainder = replace(RIGHT, micro_batches=2, weights=(0.5, 0.5), verdict=Verdict.DEVIATES)
    epochs = [*[RIGHT] * 6, remainder] * 3
    lines = verify_text(run(*epochs)).splitlines()
    assert "… 16 more windows like 0 (gradient error up to 1.2e-07)" in lines
    assert sum(line.endswith("equivalent") for line in lines if "x 1.000" in line) == 2
    assert sum("2 x 0.500" in line for line in lines) == 3


def test_a_reason_that_the_row_tells_is_not_told_again() -> None:
    told = replace(WRONG, reason="the gradient is 3 away from the reference")
    unreported = replace(RIGHT, verdict=Verdict.DEVIATES, reason="the update is another one")
    text = verify_text(run(told, unreported))
    assert told.reason not in text
    assert text.endswith(f"deviates\n\nwindow 1: {unreported.reason}")


def test_the_worst_of_the_hidden_windows_is_told() -> None:
    windows = [replace(RIGHT, grad_rel_error=index * 1e-8) for index in range(20)]
    assert "… 18 more windows like 0 (gradient error up to 1.9e-07)" in verify_text(run(*windows))


@pytest.mark.parametrize("windows", [[WRONG] * 3, [replace(RIGHT, index=10**4, units=123456.0, line=1234)] * 30])
def test_it_fits_eighty_columns(windows: list[WindowReport]) -> None:
    uneven = replace(WRONG, weights=tuple(0.7 + 0.1 * i for i in range(40)), grad_rel_error=None, grad_norm_ratio=None)
    by_construction = replace(RIGHT, verdict=Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, micro_batches=128)
    text = verify_text(run(*windows, uneven, by_construction))
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert max(map(len, verify_text(run(uneven, replace(RIGHT, optimizer="AdamW", drift=1.0))).splitlines())) <= 80


def test_what_was_not_measured_is_a_dash_with_its_reason() -> None:
    unknown = replace(
        RIGHT, grad_rel_error=None, grad_norm_ratio=None, verdict=Verdict.INCONCLUSIVE, reason="hooks never fired"
    )
    text = verify_text(run(unknown, verdict=Verdict.INCONCLUSIVE))
    assert re.search(r"4 x 1\.000 +- +3\.1e-06 +- +2\.0e-07 +inconclusive\n\nwindow 0: hooks never fired$", text)
    assert text.startswith("train.py: inconclusive: windows: 1 inconclusive\n")


def test_an_error_is_no_verdict() -> None:
    text = verify_text(replace(run(verdict=Verdict.INCONCLUSIVE), error="ValueError: no data"))
    assert text == "train.py: error: ValueError: no data"
    assert "inconclusive" not in text


def test_two_optimizers_are_told_apart() -> None:
    text = verify_text(run(RIGHT, replace(RIGHT, optimizer="AdamW")))
    assert "window  optimizer  " in text


def test_color_changes_no_word() -> None:
    result = run(WRONG, RIGHT, verdict=Verdict.DEVIATES, diagnosis=(MISSING,), notes=("one note",))
    sources = Sources({"train.py": "a\nb\n"})
    assert re.sub(r"\x1b\[[0-9;]*m", "", verify_text(result, sources, Paint(True))) == verify_text(result, sources)


def test_paths_below_the_working_directory_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(str(tmp_path / "a" / "train.py")) == os.path.join("a", "train.py")
    assert shown_path(str(tmp_path.parent / "train.py")) == str(tmp_path.parent / "train.py")


def test_words() -> None:
    assert weights((1.0,) * 4) == "4 x 1.000"
    assert weights((0.0, 0.0, 1.0)) == "2 x 0.000, 1.000"
    assert weights((1.0, None)) == "1.000, ?"
    assert weights(()) == "-"
    assert weights(tuple(i / 10 for i in range(40)), widest=20) == "0.000 to 3.900"
    assert weights((None, 1.0, 2.0, None, 3.0, 4.0), widest=20) == "2 of 6 unknown"
    assert [number(v) for v in (None, 0.0, 0.25, 4096.0, 1e-9, float("inf"))] == [
        "-", "0.000", "0.250", "4096", "1.0e-09", "inf",
    ]  # fmt: skip
    assert [error(v) for v in (None, 0.0, 1e-7, 0.5, 4096.0)] == ["-", "0", "1.0e-07", "0.500", "4.1e+03"]
    assert [count(v) for v in (None, 32.0, 3.5)] == ["-", "32", "3.50"]
