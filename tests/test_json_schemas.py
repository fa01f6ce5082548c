"""The JSON of lint, verify and compare: real reports hold to documented schemas, which say no more than there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from plain_loops import plain_loop
from torch.utils.data import DataLoader

from gradcheck_accum.cli import main
from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.diagnosis import Diagnosis
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.mistakes import CATALOGUE
from gradcheck_accum.report.as_json import compare_json, verify_json
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Accepted, ReferenceReport, Verdict, VerifyResult, WindowReport

DOCS = Path(__file__).parents[1] / "docs"

LOOP = plain_loop(3)
SUPPRESSED = LOOP.replace("loss.backward()", "loss.backward()  # gradcheck-accum: ignore[GA101, GA401]")
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {},
    "cells": [{"cell_type": "code", "id": "b", "metadata": {}, "outputs": [], "execution_count": None, "source": LOOP}],
}

SCRIPT = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(8, 5, 3)):
    loss = 0.7 * model(x).pow(2).mean()
    loss.backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def schema(name: str) -> dict[str, Any]:
    return json.loads((DOCS / "schemas" / f"{name}.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object with named fields in a schema."""
    if isinstance(value, dict):
        if value.get("type") == "object" and "properties" in value:
            yield value
        for inner in value.values():
            yield from objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from objects(inner)


def holds(report: Any, name: str) -> None:
    """A report holds to its schema, and has no field that the schema does not name."""
    closed = schema(name)
    for found in objects(closed):
        found["additionalProperties"] = False
    jsonschema.validate(report, closed)


def fields(value: Any) -> set[str]:
    """The names of all fields in a report."""
    if isinstance(value, dict):
        return set(value).union(*map(fields, value.values()))
    return set().union(*map(fields, value)) if isinstance(value, list) else set()


def named(name: str) -> set[str]:
    """The names of all fields in a schema."""
    return set().union(*(found["properties"] for found in objects(schema(name))))


@pytest.mark.parametrize("name", ["lint", "verify", "compare"])
def test_the_schemas_are_schemas_and_the_page_explains_their_fields(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    page = (DOCS / "json.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`(\w+)`", page))
    assert named(name) <= explained


def test_reports_of_lint_hold_to_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(LOOP)
    (tmp_path / "quiet.py").write_text(SUPPRESSED)
    (tmp_path / "train.ipynb").write_text(json.dumps(NOTEBOOK))
    main(["lint", "bad.py", "--write-baseline", "known.json"])
    (tmp_path / "worse.py").write_text(LOOP.replace("% 3", "% 5"))
    capsys.readouterr()
    seen: set[str] = set()
    for options in (
        [],
        ["gone.py", "--report-unused-suppressions"],
        ["--baseline", "known.json"],
        ["--fix", "--select", "GA101"],
        ["--ignore", "GA"],
    ):
        main(["lint", "bad.py", "quiet.py", "train.ipynb", "worse.py", *options, "--output-format", "json"])
        report = json.loads(capsys.readouterr().out)
        holds(report, "lint")
        seen |= fields(report)
    assert named("lint") <= seen


@pytest.mark.slow
def test_a_report_of_verify_holds_to_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    main(["verify", "train.py", "--output-format", "json", "--ignore", "GA301"])
    report = json.loads(capfd.readouterr().out)
    holds(report, "verify")
    # What only ranks, an open verdict, sketches or long runs have.
    left = {"ranks", "settled_by", "grad_rel_error_within", "more_like_it", "windows_in_all"}
    assert named("verify") - fields(report) == left
    assert "GA101" in {one["code"] for one in report["diagnosis"]}
    assert {one["code"] for one in report["accepted"]} == {"GA301"}


def test_every_result_of_verify_holds_to_the_schema() -> None:
    window = WindowReport(0, "SGD", 0, None, (None, 1.0), float("inf"), None, None, None, Verdict.INCONCLUSIVE)
    lost = Diagnosis(CATALOGUE["GA301"], Location("train.py", 5, through="accelerate 1.15.0"), "lost", "step once more")
    result = VerifyResult(
        "train.py", Verdict.DEVIATES, "lost", "cpu", ReferenceReport("ledger", "float32", "cpu"), (window,), (lost,)
    )
    for made in (
        result,
        replace(result, ranks=2, notes=("a note",), help="state it", accepted=(Accepted(lost, "comment"),)),
        replace(result, windows=(replace(window, verdict=Verdict.DEVIATES, drift=0.5, accepted=("GA301",)),)),
        replace(result, verdict=Verdict.INCONCLUSIVE, settled_by="gradcheck-accum compare train.py"),
        VerifyResult.failed("train.py", "ValueError: no"),
    ):
        holds(json.loads(verify_json(made)), "verify")


def test_what_compare_takes_over_from_verify_is_as_verify_has_it() -> None:
    known, own = schema("verify"), schema("compare")["$defs"]
    assert {name: own[name] for name in known["$defs"]} == known["$defs"]
    assert own["verify"] == {name: known[name] for name in ("type", "required", "properties")}
    assert own["step"]["properties"].pop("rows") == {"type": ["number", "null"]}
    assert own["step"]["properties"] == own["window"]["properties"]


def never_divided(loader: Iterable[torch.Tensor], accumulation_steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    total = torch.zeros(())
    for i, x in enumerate(loader):
        loss = 0.7 * model(x).pow(2).mean()
        loss.backward()
        total += loss.detach()
        scheduler.step()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            total.item()
            total.zero_()


@pytest.mark.parametrize("ignore", [(), ("GA802", "GA101")])
def test_a_report_of_compare_holds_to_the_schema(ignore: tuple[str, ...]) -> None:
    x = torch.randn(30, 3)
    each = [dict(loader=DataLoader(x, batch_size=b), accumulation_steps=k) for b, k in ((5, 3), (15, 1))]
    report = json.loads(compare_json(compared_loop(never_divided, each, ignore=ignore)))
    holds(report, "compare")
    (one,) = report["compared"]
    assert {each["kind"] for each in one["differences"]} == {"loss", "learning rate"}
    assert {each.get("accepted") for each in one["differences"]} == ({"settings", None} if ignore else {None})
    assert {each["code"] for each in one.get("accepted", [])} == set(ignore) - {"GA802"}
    if ignore:
        # What only ranks, an open verdict, sketches or long runs have, and a large batch that is run in the run itself.
        left = {"ranks", "settled_by", "grad_rel_error_within", "more_like_it", "windows_in_all"}
        cost = {"cost", "accumulated", "large_batch", "kept_bytes", "seconds"}
        assert named("compare") - fields(report) == left | cost


def test_what_could_not_be_compared_holds_to_the_schema() -> None:
    holds(json.loads(compare_json(CompareResult.failed("train.py", "with --k 3: it did not run"))), "compare")
