"""Tensors that were made in inference mode have no version counter: batches of an evaluation, outputs of a teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model, teacher = nn.Linear(5, 2), nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(36, 5), torch.randn(36, 2)), batch_size=4)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        with torch.inference_mode():
            target = {target}
        ((model(x) - target).abs().mean(){scale}).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    with torch.inference_mode():
        print(torch.stack([(model(x) - y).abs().mean() for x, y in loader]).mean().item())
"""


@pytest.mark.parametrize("target", ["y + 0", "teacher(x)"])
@pytest.mark.parametrize(("scale", "verdict"), [(" / 3", Verdict.EQUIVALENT), ("", Verdict.DEVIATES)])
def test_a_loop_that_evaluates_and_teaches_in_inference_mode(
    target: str, scale: str, verdict: Verdict, tmp_path: Path
) -> None:
    result = watch_source(LOOP.format(target=target, scale=scale), tmp_path)
    assert (result.verdict, len(result.windows)) == (verdict, 6), result.reason
