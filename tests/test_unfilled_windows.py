"""What a loop takes from a data loader for a window, and never runs because the loader ends before it is full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.engine.reference import ReferenceEngine
from gradcheck_accum.ledger.events import Trace
from gradcheck_accum.ledger.location import Location
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.verify.judge.observed_run import ObservedRun
from gradcheck_accum.verify.judge.options import Options
from gradcheck_accum.verify.ranks.rank_report import RankReport
from gradcheck_accum.verify.watching.unfilled_windows import GivenUp

PAGE = """\
from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
K = 4
loader = DataLoader(TensorDataset(torch.randn({rows}, 3), torch.randn({rows}, 1)), batch_size=2)
others = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=2)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(window):
    for x, y in window:
        (nn.functional.mse_loss(model(x), y) / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()


{loop}
"""

ZIPPED = """\
for epoch in range(2):
    for window in zip(*[iter(loader)] * K):
        train(window)"""
LEFT_BY_A_CONDITION = """\
for epoch in range(2):
    batches = iter(loader)
    while len(window := list(islice(batches, K))) == K:
        train(window)"""
NEVER_FLUSHED = """\
def full(batches):
    held = []
    for batch in batches:
        held.append(batch)
        if len(held) == K:
            yield held
            held = []

for epoch in range(2):
    for window in full(loader):
        train(window)"""
WITH_THE_REST = """\
for epoch in range(2):
    batches = iter(loader)
    while window := list(islice(batches, K)):
        train(window)"""
OVER_THE_END = """\
def endless():
    while True:
        yield from loader

batches = endless()
for step in range(11):
    train([next(batches) for _ in range(K)])"""
ENDED_EARLY = """\
for window, _ in zip(zip(*[iter(loader)] * K), range(3)):
    train(window)"""
ONE_AT_A_TIME = """\
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        if i >= len(loader) // K * K:
            continue
        (nn.functional.mse_loss(model(x), y) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()"""
WITHOUT_TRAINING = """\
for epoch in range(2):
    for window in zip(*[iter(loader)] * K):
        train(window)
    with torch.no_grad():
        for pair in zip(*[iter(others)] * 3):
            [model(x) for (x,) in pair]"""


@pytest.mark.parametrize(("rows", "batches"), [(46, "6 batches"), (52, "4 batches"), (17, "2 batches")])
def test_what_zip_gives_up_is_in_doubt(rows: int, batches: str, tmp_path: Path) -> None:
    result = watch_source(PAGE.format(rows=rows, loop=ZIPPED), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert result.reason.startswith(f"zip() at line 23 took {batches} from a data loader and gave them up")


@pytest.mark.parametrize(("loop", "line"), [(LEFT_BY_A_CONDITION, 24), (NEVER_FLUSHED, 24)])
def test_what_the_loop_has_had_is_noted(loop: str, line: int, tmp_path: Path) -> None:
    result = watch_source(PAGE.format(rows=46, loop=loop), tmp_path)
    assert result.verdict is Verdict.EQUIVALENT
    (note,) = [note for note in result.notes if "no backward ran" in note]
    assert note.startswith(f"6 batches were taken at line {line} for windows")


@pytest.mark.parametrize(
    ("rows", "loop"),
    [
        (48, ZIPPED),
        (48, NEVER_FLUSHED),
        (46, WITH_THE_REST),
        (46, OVER_THE_END),
        (46, ENDED_EARLY),
        (46, ONE_AT_A_TIME),
        (48, WITHOUT_TRAINING),
    ],
)
def test_nothing_is_given_up(rows: int, loop: str, tmp_path: Path) -> None:
    """All have run, or run later; or the loader has not ended; or each was there alone; or none was for training."""
    result = watch_source(PAGE.format(rows=rows, loop=loop), tmp_path)
    assert result.verdict is Verdict.EQUIVALENT
    assert not any("no backward ran" in note for note in result.notes)


def test_a_rank_reports_it() -> None:
    found = GivenUp(3, Location("train.py", 4), by_zip=True)
    seen = replace(ObservedRun(Trace(()), (), True, ReferenceEngine()), given_up=found)
    assert RankReport.read(RankReport(seen, Options(), "").written()).seen.given_up == found
