"""Windows whose gradient is zero: right if the large batch's is zero too, and not if it is only that of each part."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from watching import trained, watch_source

from gradcheck_accum.results.verdict import Verdict


def triplets(model: nn.Module, a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return F.triplet_margin_loss(model(a), model(p), model(n), margin=0.1)


def in_batch_negatives(model: nn.Module, a: torch.Tensor, p: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.normalize(model(a)) @ F.normalize(model(p)).T, torch.arange(len(a)))


def windows(rows: int) -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    found = []
    for i in range(6):
        a = torch.randn(rows, 5)
        # The negatives of the second window are far away.
        found.append((a, a + 0.1 * torch.randn(rows, 5), torch.randn(rows, 5) + (100.0 if i >= 3 else 0.0)))
    return found


@pytest.mark.parametrize("reference", ["both", "replay"])
def test_hinges_that_no_sample_of_a_window_meets(reference: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    result = trained(model, windows(4), triplets, reference=reference)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert [w.grad_rel_error == 0 for w in result.windows][1]


def test_one_sample_with_itself_alone_has_no_gradient_but_a_large_batch_has() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    large = [torch.cat(parts) for parts in zip(*windows(1)[:3], strict=True)]
    assert float(torch.autograd.grad(in_batch_negatives(model, *large), model.weight)[0].norm()) > 1e-3
    result = trained(model, windows(1), in_batch_negatives)
    assert result.verdict in (Verdict.INCONCLUSIVE, Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION), result.reason
    assert "scaled differently" not in result.reason


REMAINDERS = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(5, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
K = 3
for epoch in range(2):
    held = 0
    for i in range(7):
        a = torch.randn(4, 5)
        # The negatives of the remainders are {far} away.
        n = torch.randn(4, 5) + ({far} if i == 6 else 0.0)
        loss = nn.functional.triplet_margin_loss(net(a), net(a + 0.1), net(n), margin=3.0)
        (loss / K).backward()
        held += 1
        if held == K:
            opt.step()
            opt.zero_grad()
            held = 0
    for p in net.parameters():
        p.grad.mul_({factor})
    opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("far", "factor", "codes"), [(100.0, "K / held", []), (0.0, "K / held", []), (0.0, "1.0", ["GA103"])]
)
def test_what_multiplied_gradients_that_are_zero_does_not_show(
    tmp_path: Path, far: float, factor: str, codes: list[str]
) -> None:
    result = watch_source(REMAINDERS.format(far=far, factor=factor), tmp_path)
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert [d.mistake.code for d in result.diagnosis] == codes
