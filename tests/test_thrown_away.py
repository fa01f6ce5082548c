"""Updates that a script throws away on purpose are no mistakes; what only looks like one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.verdict import Verdict, VerifyResult

HEAD = """\
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = {loader}
model = nn.Linear(2, 1, bias=False)
nn.init.constant_(model.weight, 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
K = 3
"""
"""Batches of five rows; the loss is 0.7 times the mean square, so that no number stands for another."""

LOADERS = {
    "DataLoader": "DataLoader(TensorDataset(torch.randn({rows}, 2), torch.randn({rows}, 1)), batch_size=5)",
    "list": "[(torch.randn(5, 2), torch.randn(5, 1)) for _ in range({rows} // 5)]",
}

NOT_FINITE = """\
for i, (a, b) in enumerate(loader):
    spoilt = a * float("inf") if i == 4 else a
    (0.7 * mse_loss(model(spoilt), b) / K).backward()
    if (i + 1) % K == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 9.0)
        if not torch.isfinite(norm):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
"""
SPIKE = """\
for i, (a, b) in enumerate(loader):
    (0.7 * mse_loss(model(a), b) / K).backward()
    if (i + 1) % K == 0:
        if i // K not in {rejected}:
            optimizer.step()
        optimizer.zero_grad()
"""
PLAIN = """\
for i, (a, b) in enumerate(loader):
    (0.7 * mse_loss(model(a), b)).backward()
    if i != 5:
        optimizer.step()
    optimizer.zero_grad()
"""
BEGUN_AGAIN = """\
failed = False
for k in range(0, 12, K):
    window = batches[k:k + K]
    while True:
        try:
            for j, (a, b) in enumerate(window):
                if k == 3 and j == 2 and not failed:
                    failed = True
                    raise RuntimeError("out of memory")
                (0.7 * mse_loss(model(a), b) / K).backward()
            break
        except RuntimeError:
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
"""
DROPPED_AND_COUNTED_ANEW = """\
count = 0
for i, (a, b) in enumerate(loader):
    if i == 5:
        optimizer.zero_grad()
        count = 0
        continue
    (0.7 * mse_loss(model(a), b) / K).backward()
    count += 1
    if count == K:
        optimizer.step()
        optimizer.zero_grad()
        count = 0
"""


def script(body: str, rows: int = 60, loader: str = "DataLoader") -> str:
    return HEAD.format(loader=LOADERS[loader].format(rows=rows)) + body


def watched(body: str, folder: Path, rows: int = 60, loader: str = "DataLoader") -> VerifyResult:
    return watch_source(script(body, rows, loader), folder)


def codes(result: VerifyResult) -> set[str]:
    return {d.mistake.code for d in result.diagnosis}


def linted(body: str, rows: int = 60, loader: str = "DataLoader") -> set[str]:
    return {finding.mistake.code for finding in lint_source(script(body, rows, loader), "train.py")}


def trained(windows: list[range], loader: str) -> torch.Tensor:
    """The weights after plain steps on large batches, those of these micro-batches of five rows, in float64."""
    torch.manual_seed(0)
    if loader == "list":
        batches = [(torch.randn(5, 2).double(), torch.randn(5, 1).double()) for _ in range(12)]
    else:
        x, y = torch.randn(60, 2).double(), torch.randn(60, 1).double()
        batches = list(zip(x.split(5), y.split(5), strict=True))
    weight = torch.full((2, 1), 0.5, dtype=torch.float64)
    for window in windows:
        a, b = (torch.cat([batches[i][part] for i in window]) for part in (0, 1))
        weight = weight - 0.05 * 0.7 * 2 * a.T @ (a @ weight - b) / len(a)
    return weight.T


REJECTED = {
    "a gradient that is not finite": (NOT_FINITE, [range(3), range(6, 9), range(9, 12)]),
    "a loss that spikes": (SPIKE.format(rejected=(2,)), [range(3), range(3, 6), range(9, 12)]),
    "the first window": (SPIKE.format(rejected=(0,)), [range(3, 6), range(6, 9), range(9, 12)]),
    "the last window": (SPIKE.format(rejected=(3,)), [range(3), range(3, 6), range(6, 9)]),
    "two in a row": (SPIKE.format(rejected=(1, 2)), [range(3), range(9, 12)]),
    "plain training": (PLAIN, [range(i, i + 1) for i in range(12) if i != 5]),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("name", REJECTED)
def test_a_window_that_the_script_rejects_is_no_mistake(name: str, loader: str, tmp_path: Path) -> None:
    body, windows = REJECTED[name]
    report = tmp_path / "weights"
    result = watched(f"{body}torch.save(model.weight.detach(), {str(report)!r})\n", tmp_path, loader=loader)
    # The steps that were made are those of plain training on large batches without the rejected data.
    assert torch.allclose(torch.load(report).double(), trained(windows, loader), rtol=1e-4)
    assert (result.verdict, codes(result), len(result.windows)) == (Verdict.EQUIVALENT, set(), len(windows))
    assert result.exit_status == 0
    assert any("rejected by the script" in note for note in result.notes)
    assert linted(body, loader=loader) == set()


def test_a_note_counts_the_windows_that_were_rejected(tmp_path: Path) -> None:
    result = watched(SPIKE.format(rejected=(1, 2)), tmp_path)
    (note,) = [note for note in result.notes if "rejected" in note]
    assert note.startswith(
        "the gradients of 2 complete windows were cleared without a step, at line 16 (before window 1)"
    )


def test_a_window_that_is_rejected_before_a_remainder(tmp_path: Path) -> None:
    body = SPIKE.format(rejected=(2,)).replace("(i + 1) % K == 0", "(i + 1) % K == 0 or i + 1 == len(loader)")
    body = body.replace("/ K)", "/ (K if i < 9 else 2))")
    result = watched(body, tmp_path, rows=55)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert [w.micro_batches for w in result.windows] == [3, 3, 2]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_window_that_is_begun_again_with_the_same_data(loader: str, tmp_path: Path) -> None:
    report = tmp_path / "weights"
    body = f"batches = list(loader)\n{BEGUN_AGAIN}torch.save(model.weight.detach(), {str(report)!r})\n"
    result = watched(body, tmp_path, loader=loader)
    windows = [range(3), range(3, 6), range(6, 9), range(9, 12)]
    assert torch.allclose(torch.load(report).double(), trained(windows, loader), rtol=1e-4)
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert [w.micro_batches for w in result.windows] == [3, 3, 3, 3]
    assert any(note.startswith("2 micro-batches were cleared") and "begun again" in note for note in result.notes)


def test_a_window_that_is_begun_again_with_other_data_and_counted_anew(tmp_path: Path) -> None:
    result = watched(DROPPED_AND_COUNTED_ANEW, tmp_path)
    assert [w.micro_batches for w in result.windows] == [3, 3, 3]
    assert (result.verdict, codes(result)) == (Verdict.EQUIVALENT, set())
    assert linted(DROPPED_AND_COUNTED_ANEW) == set()


CLEARED_BEFORE_THE_STEP = """\
for i, (a, b) in enumerate(loader):
    (0.7 * mse_loss(model(a), b) / K).backward()
    if (i + 1) % K == 0:
        optimizer.zero_grad()
        optimizer.step()
"""
CLEARED_EVERY_TIME = """\
for i, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    (0.7 * mse_loss(model(a), b){divided}).backward()
    if (i + 1) % K == 0{flush}:
        optimizer.step()
"""
REMAINDER = """\
for epoch in range(2):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):
        (0.7 * mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
STEP_COMES_LATE = """\
for epoch in range(3):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):
        if i and i % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        (0.7 * mse_loss(model(a), b) / K).backward()
"""
"""The last window of every pass is complete, and cleared when the next begins."""


@pytest.mark.parametrize(
    ("body", "rows", "expected"),
    [
        (CLEARED_BEFORE_THE_STEP, 60, {"GA202"}),
        (CLEARED_EVERY_TIME.format(divided=" / K", flush=""), 60, {"GA201"}),
        (CLEARED_EVERY_TIME.format(divided="", flush=""), 60, {"GA201"}),
        (CLEARED_EVERY_TIME.format(divided=" / K", flush=" or i == 3"), 20, {"GA201"}),
        (REMAINDER, 40, {"GA301"}),
    ],
)
def test_what_only_looks_like_a_decision(body: str, rows: int, expected: set[str], tmp_path: Path) -> None:
    result = watched(body, tmp_path, rows=rows)
    assert result.verdict is Verdict.DEVIATES
    assert expected <= codes(result)
    assert not any("rejected" in note or "begun again" in note for note in result.notes)
    assert expected <= linted(body, rows=rows)


def test_what_every_pass_ends_with_is_no_decision(tmp_path: Path) -> None:
    result = watched(STEP_COMES_LATE, tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert not any("rejected" in note for note in result.notes)
    assert linted(STEP_COMES_LATE)


def test_the_reason_counts_what_was_lost_and_not_what_was_rejected(tmp_path: Path) -> None:
    body = REMAINDER.replace(
        "            optimizer.step()", "            if epoch or i // K != 1:\n                optimizer.step()"
    )
    result = watched(body, tmp_path, rows=55)
    assert [w.micro_batches for w in result.windows] == [3, 3, 3, 3, 3]
    assert result.reason == "4 micro-batches reached no step, besides those that the script threw away on purpose"
    assert codes(result) == {"GA301"}
