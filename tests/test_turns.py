"""Losses of data of several sources, each with a backward of its own, in the turns of one loop over micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K, ROWS, WINDOWS = 3, 5, 4


class Critic:
    """Trains a discriminator on images, and on what a generator makes in each turn."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.maker = nn.Linear(2, 6)
        self.judge = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1))
        self.optimizer = torch.optim.SGD(self.judge.parameters(), lr=0.1)
        self.images = torch.randn(WINDOWS * K * ROWS, 6)
        self.errors: list[float] = []
        """Of each step's gradient, relative to that of one batch of all images and one of all that was made."""

    def loss(self, batch: torch.Tensor, label: float) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.judge(batch), torch.full((len(batch), 1), label))

    def train(self, of_real: float, of_made: float) -> VerifyResult:
        seen: list[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]] = []
        with observe() as observation:
            for window in range(WINDOWS):
                self.optimizer.zero_grad()
                reals, made = [], []
                for k in range(K):
                    start = (window * K + k) * ROWS
                    reals.append(self.images[start : start + ROWS])
                    made.append(self.maker(torch.randn(ROWS, 2)).detach())
                    (self.loss(reals[-1], 1.0) / of_real).backward()
                    (self.loss(made[-1], 0.0) / of_made).backward()
                weights = [p.detach().clone() for p in self.judge.parameters()]
                gradients = [p.grad.clone() for p in self.judge.parameters() if p.grad is not None]
                seen.append((torch.cat(reals), torch.cat(made), weights, gradients))
                self.optimizer.step()
        for real, own, weights, gradients in seen:
            with torch.no_grad():
                for parameter, weight in zip(self.judge.parameters(), weights, strict=True):
                    parameter.copy_(weight)
            whole = torch.autograd.grad(self.loss(real, 1.0) + self.loss(own, 0.0), list(self.judge.parameters()))
            one, other = (torch.cat([g.flatten() for g in every]) for every in (gradients, whole))
            self.errors.append(float((one - other).norm() / other.norm()))
        return observation.result()


def test_data_of_two_sources_in_each_turn_are_two_terms_of_one_micro_batch() -> None:
    critic = Critic()
    result = critic.train(K, K)
    assert max(critic.errors) < 1e-5
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert [window.micro_batches for window in result.windows] == [K] * WINDOWS


@pytest.mark.parametrize(("of_real", "of_made", "lines"), [(1, 1, 2), (K, 1, 1)], ids=["neither", "one"])
def test_a_term_that_is_not_divided_is_reported_alone(of_real: float, of_made: float, lines: int) -> None:
    critic = Critic()
    result = critic.train(of_real, of_made)
    assert min(critic.errors) > 0.1
    assert result.verdict is Verdict.DEVIATES
    assert {d.mistake.code for d in result.diagnosis} == {"GA101"}
    assert len({d.where.line for d in result.diagnosis}) == lines


@pytest.mark.parametrize("copied", [False, True])
def test_rows_of_one_tensor_in_each_turn_are_micro_batches(copied: bool) -> None:
    """Two micro-batches a turn, each divided by the number of turns: twice the gradient of the large batch."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(WINDOWS * 2 * K * ROWS, 4)
    with observe() as observation:
        for window in range(WINDOWS):
            for k in range(K):
                start = (window * K + k) * 2 * ROWS
                first, other = range(start, start + ROWS), range(start + ROWS, start + 2 * ROWS)
                x = rows[list(first)] if copied else rows[first.start : first.stop]
                (model(x).square().mean() / K).backward()
                x = rows[list(other)] if copied else rows[other.start : other.stop]
                (model(x).square().mean() / K).backward()
            optimizer.step()
            optimizer.zero_grad()
    result = observation.result()
    assert result.verdict is Verdict.DEVIATES
    assert [window.grad_norm_ratio for window in result.windows] == pytest.approx([2.0] * WINDOWS, rel=1e-4)
