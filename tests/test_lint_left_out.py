"""Targets that a loss leaves out: that its means are of unequal counts is likely, and said with that confidence."""

from __future__ import annotations

import json

import pytest

from gradcheck_accum.findings import LintResult
from gradcheck_accum.lint import lint_source
from gradcheck_accum.mistakes import Severity
from gradcheck_accum.report.as_json import lint_json

LOOP = """\
import torch
from torch import nn
import torch.nn.functional as F

def train(model, loader, optimizer, pad, criterion):
    {criterion}
    assert len(loader) % 3 == 0
    for i, (tokens, targets) in enumerate(loader):
        loss = {loss}
        {scaled}.backward()
        if {boundary}:
            optimizer.step()
            optimizer.zero_grad()
"""
MODULE = {"criterion": "criterion = nn.CrossEntropyLoss(ignore_index=pad)", "loss": "criterion(model(tokens), targets)"}
FUNCTION = {"criterion": "pass", "loss": "F.nll_loss(model(tokens), targets, ignore_index=-1)"}
PLAIN = {"criterion": "criterion = nn.CrossEntropyLoss()", "loss": "criterion(model(tokens), targets)"}


def found(
    criterion: str, loss: str, scaled: str = "(loss / 3)", boundary: str = "(i + 1) % 3 == 0"
) -> list[tuple[str, Severity]]:
    source = LOOP.format(criterion=criterion, loss=loss, scaled=scaled, boundary=boundary)
    return [(one.mistake.code, one.severity) for one in lint_source(source, "train.py")]


@pytest.mark.parametrize("made", [MODULE, FUNCTION], ids=["module", "function"])
def test_means_over_what_is_left_are_likely_means_of_means(made: dict[str, str]) -> None:
    assert found(**made) == [("GA104", Severity.WARNING)]


@pytest.mark.parametrize(
    "right",
    [
        PLAIN,
        {**MODULE, "boundary": "True", "scaled": "loss"},
        {**MODULE, "criterion": "criterion = nn.CrossEntropyLoss(ignore_index=pad, reduction='sum')"},
        {**MODULE, "scaled": "(loss * (targets != pad).sum() / counted(loader, i))"},
    ],
    ids=["none is left out", "no accumulation", "a sum", "weighed by what is left"],
)
def test_what_weighs_every_target_alike_is_none(right: dict[str, str]) -> None:
    assert found(**{"scaled": "loss", **right} if "sum" in right["criterion"] else right) == []


def test_a_loss_that_is_not_divided_at_all_is_the_other_mistake() -> None:
    assert found(**MODULE, scaled="loss") == [("GA101", Severity.ERROR)]


def test_counts_that_the_source_shows_are_no_likelihood() -> None:
    source = """\
import torch
from torch import nn

model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=2)
sizes = [5, 2, 4]
for window in range(2):
    for size in sizes:
        x, y = torch.randn(size, 6), torch.randint(0, 3, (size,))
        (criterion(model(x), y) / len(sizes)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    (finding,) = lint_source(source, "train.py")
    assert (finding.mistake.code, finding.severity) == ("GA104", Severity.ERROR)


def test_json_has_the_severity_of_the_finding() -> None:
    findings = lint_source(LOOP.format(**MODULE, scaled="(loss / 3)", boundary="(i + 1) % 3 == 0"), "train.py")
    report = json.loads(lint_json(LintResult(tuple(findings), (), 1)))
    assert [one["severity"] for one in report["findings"]] == ["warning"]
    assert findings[0].message.startswith("likely ")
