"""As many targets as the data say: that a loss's means are of unequal counts is likely, and said so."""

from __future__ import annotations

import json

import pytest

from gradcheck_accum.lint import lint_source
from gradcheck_accum.mistakes import Severity
from gradcheck_accum.report.as_github import lint_github
from gradcheck_accum.report.as_json import lint_json
from gradcheck_accum.report.as_junit import lint_junit
from gradcheck_accum.report.as_sarif import lint_sarif
from gradcheck_accum.results.findings import LintResult

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


def test_other_reports_have_it_too() -> None:
    findings = lint_source(LOOP.format(**MODULE, scaled="(loss / 3)", boundary="(i + 1) % 3 == 0"), "train.py")
    result = LintResult(tuple(findings), (), 1)
    assert "::warning " in lint_github(result)
    assert '"level": "warning"' in lint_sarif(result, lambda mistake: None).partition('"results"')[2]
    assert 'type="warning"' in lint_junit(result)


LIKELY = [("GA104", Severity.WARNING)]
STEPS = """\
import torch
from torch import nn
import torch.nn.functional as F

def train(model, loader, optimizer, tokenizer, pad):
    assert len(loader) % 3 == 0
    for i, (x, y, mask) in enumerate(loader):
        {body}
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
NOT_REDUCED = "per = F.cross_entropy(model(x), y, reduction='none')"
BACK = "(loss / 3).backward()"


def found_in(*body: str) -> list[tuple[str, Severity]]:
    source = STEPS.format(body="\n        ".join(body))
    return [(one.mistake.code, one.severity) for one in lint_source(source, "train.py")]


@pytest.mark.parametrize(
    "body",
    [
        (NOT_REDUCED, "loss = (per * mask).sum() / mask.sum()", BACK),
        (NOT_REDUCED, "n = max((y != pad).sum().item(), 1)", "loss = torch.sum(per * mask) / n", BACK),
        (NOT_REDUCED, "keep = y.ne(pad).float()", "loss = (per * keep).sum() / keep.sum().clamp(min=1)", BACK),
        ("loss = F.cross_entropy(model(x), y, reduction='sum') / ((y != pad).sum() * 3)", "loss.backward()"),
        ("keep = y != pad", "loss = F.cross_entropy(model(x)[keep], y[keep])", BACK),
        (NOT_REDUCED, "loss = per.masked_select(mask.bool()).mean()", BACK),
        (NOT_REDUCED, "loss = per[(y != pad) & mask.bool()].mean()", BACK),
        ("kept = torch.rand(8, 9) < 0.4", "loss = (model(x) - x)[kept].square().mean()", BACK),
        ("kept = torch.rand(8, 9).argsort(1)[:, :5] < 4", "loss = (model(x) - x)[kept].square().mean()", BACK),
        ("y[y == pad] = -100", "loss = F.cross_entropy(model(x), y)", BACK),
        ("loss = model(x, labels=y.masked_fill(y == pad, -100)).loss", BACK),
        ("loss = model(x, labels=torch.where(y == pad, -100, y)).loss", BACK),
        ("y = nn.utils.rnn.pad_sequence(y)", "loss = F.cross_entropy(model(x), y)", BACK),
        ("batch = tokenizer(x, padding=True)", "loss = model(**batch, labels=batch['input_ids']).loss", BACK),
    ],
    ids=lambda body: body[-2],
)
def test_a_mean_over_as_many_as_the_data_say_is_likely_one_of_means(body: tuple[str, ...]) -> None:
    assert found_in(*body) == LIKELY


@pytest.mark.parametrize(
    "body",
    [
        (NOT_REDUCED, "loss = (per * mask).mean()", BACK),
        (NOT_REDUCED, "w = torch.ones(5, 7)", "loss = (per * w).sum() / w.sum()", BACK),
        (NOT_REDUCED, "loss = ((per * mask).sum(1) / mask.sum(1)).mean()", BACK),
        ("loss = F.cross_entropy(model(x), y, reduction='none', ignore_index=pad).mean()", BACK),
        ("y[y == pad] = 0", "loss = F.cross_entropy(model(x), y)", BACK),
        ("y[y == pad] = -100", "loss = F.mse_loss(model(x), y)", BACK),
        ("x = nn.utils.rnn.pad_sequence(x)", "loss = F.cross_entropy(model(x), y)", BACK),
        ("batch = tokenizer(x, padding=True)", "loss = model(**batch, labels=y).loss", BACK),
        ("batch = tokenizer(x, padding='max_length')", "loss = model(**batch, labels=batch['input_ids']).loss", BACK),
        ("rows = torch.randperm(8)[:5]", "loss = F.cross_entropy(model(x[rows]), y[rows])", BACK),
        ("kept = torch.rand(8, 9).argsort(1) < 4", "loss = (model(x) - x)[kept].square().mean()", BACK),
        ("kept = torch.argsort(x, dim=1) >= 4", "loss = (model(x) - x)[kept].square().mean()", BACK),
    ],
    ids=lambda body: body[-2],
)
def test_as_many_in_every_micro_batch_are_none(body: tuple[str, ...]) -> None:
    """The means are over counts that no data change, or over whole sequences; inputs alone are no targets."""
    assert found_in(*body) == []


def test_a_mean_over_its_own_count_that_nothing_divides_is_the_other_mistake() -> None:
    loss = "loss = F.cross_entropy(model(x), y, reduction='sum') / (y != pad).sum()"
    assert found_in(loss, "loss.backward()") == [("GA101", Severity.ERROR)]


WINDOWS = """\
import torch.nn.functional as F

def train(model, {data}, optimizer, pad, K):
    for {window}:
        n = {count}
        for {part}:
            (F.cross_entropy(model(x), y, ignore_index=pad, reduction="sum") / n).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "window",
    [
        ("windows", "window in windows", "sum((y != pad).sum() for _, y in window)", "x, y in window"),
        ("loader", "xs, ys in loader", "(ys != pad).sum()", "x, y in zip(xs.chunk(K), ys.chunk(K))"),
        ("loader", "xs, ys in loader", "(ys != pad).sum()", "x, y in zip(xs.split(5), ys.split(5))"),
    ],
    ids=["a list of micro-batches", "chunks", "pieces"],
)
def test_a_count_over_the_whole_window_is_right(window: tuple[str, str, str, str]) -> None:
    source = WINDOWS.format(**dict(zip(("data", "window", "count", "part"), window, strict=True)))
    assert lint_source(source, "train.py") == []
