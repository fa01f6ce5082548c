"""Criteria that call the model themselves: modules without weights, which are given the model and the batch.

Such a module is a function of the loop's: what the model is given, and what becomes of its outputs, is seen as it is
where the loop calls the model itself. Expected gradients are those of the window's sentences in one batch, in float64.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

SENTENCES = """
import torch
from torch import nn
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.read = nn.Embedding(20, 6), nn.GRU(6, 6, batch_first=True)
        self.said, self.write = nn.Embedding(20, 6), nn.GRU(6, 6, batch_first=True)
        self.out = nn.Linear(6, 20)
    def forward(self, source, lengths, before):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(source), lengths, batch_first=True, enforce_sorted=False
        )
        state = self.read(packed)[1]
        return self.out(self.write(self.said(before), state)[0])
class Criterion(nn.Module):
    def forward(self, {model}, batch):
        scores = {call}(batch["source"], batch["lengths"], batch["before"])
        {between}
        return nn.functional.cross_entropy(
            scores.flatten(0, 1), batch["after"].flatten(), ignore_index=0, reduction="sum"
        )
pad = nn.utils.rnn.pad_sequence
def batch_of(pairs):
    return dict(
        source=pad([source for source, _ in pairs], batch_first=True),
        lengths=torch.tensor([len(source) for source, _ in pairs]),
        before=pad([said[:-1] for _, said in pairs], batch_first=True),
        after=pad([said[1:] for _, said in pairs], batch_first=True),
    )
def words(n):
    return torch.randint(2, 20, (n,))
# Sorted by length; a batch may have as many words as sentences.
pairs = [(words(n), words(m)) for n, m in zip([2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 7, 8] * 2, [6, 5, 3, 4] * 6)]
batches = [[pairs[i] for i in own] for own in ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10, 11],
                                               [12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23])]
model, criterion = Translator(), Criterion()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for window in (batches[:3], batches[3:]):
    count = sum(len(said) - 1 for pairs in window for _, said in pairs)
    if {checked}:
        whole = batch_of([pair for pairs in window for pair in pairs])
        expected = torch.autograd.grad(criterion({given}, whole) / count, [*model.parameters()])
    for pairs in window:
        {backward}
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""


def of_sentences(folder: Path, **parts: object) -> VerifyResult:
    given = {"model": "model", "call": "model", "given": "model", "between": "", "checked": False, **parts}
    given.setdefault("backward", f"(criterion({given['given']}, batch_of(pairs)) / count).backward()")
    return watch_source(SENTENCES.format(**given), folder)


@pytest.mark.parametrize("given", ["model", "model.forward"])
def test_sentences_of_a_criterion_that_calls_the_model(given: str, tmp_path: Path) -> None:
    right = of_sentences(tmp_path, given=given, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


@pytest.mark.parametrize("between", ["scores = scores - scores.mean(0)", "scores = scores + scores.roll(1, 0)"])
def test_sentences_that_such_a_criterion_couples(between: str, tmp_path: Path) -> None:
    assert of_sentences(tmp_path, between=between).verdict is not Verdict.EQUIVALENT


def test_means_of_such_a_criterion_over_unlike_numbers(tmp_path: Path) -> None:
    """Each batch's mean is scaled as if all had equally many words: a mistake, whoever calls the model."""
    counted = "own = sum(len(said) - 1 for _, said in pairs)"
    wrong = f"{counted}; (criterion(model, batch_of(pairs)) / own / 3).backward()"
    assert of_sentences(tmp_path, backward=wrong).verdict is Verdict.DEVIATES


NORMALIZED = """
import torch
from torch import nn
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(4, 6), {norm}, nn.Tanh(), nn.Linear(6, 2))
class Criterion(nn.Module):
    def forward(self, model, x, y):
        return nn.functional.mse_loss(model(x), y)
criterion = Criterion()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    for _ in range(4):
        (criterion(model, torch.randn(4, 4), torch.randn(4, 2)) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
for counted in [b for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]:
    assert int(counted) == 12, f"batches were run {{int(counted)}} times"
"""


def test_statistics_of_a_model_that_a_criterion_is_given(tmp_path: Path) -> None:
    """They are as they would be unwatched, although batches are run again; and what couples samples has its name."""
    found = watch_source(NORMALIZED.format(norm="nn.BatchNorm1d(6)"), tmp_path)
    assert found.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    assert "BatchNorm1d" in found.diagnosis[0].message


def test_a_model_without_statistics_that_a_criterion_is_given(tmp_path: Path) -> None:
    assert watch_source(NORMALIZED.format(norm="nn.LayerNorm(6)"), tmp_path).verdict is Verdict.EQUIVALENT
