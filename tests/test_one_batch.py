"""Where nothing was accumulated, the large batch is the batch that the loop itself ran."""

from __future__ import annotations

from pathlib import Path

from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

AUTOENCODER = """\
import torch
from torch import nn
torch.manual_seed(3)
encoder, decoder = nn.Linear(6, 4), nn.Linear(2, 6)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.05)
K = {steps}
for i in range(6):
    x = torch.rand(7, 6)
    mean, log_var = encoder(x).chunk(2, 1)
    z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
    divergence = -0.5 * torch.sum(1 + log_var - mean**2 - log_var.exp())
    loss = ((decoder(z) - x) ** 2).mean() + 0.3 * divergence
    (loss / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_sum_beside_a_mean_is_no_question_of_one_batch(tmp_path: Path) -> None:
    """Its noise cannot be drawn again row by row, so that no large batch can be assembled: none has to be."""
    result = watch_source(AUTOENCODER.format(steps=1), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


TWO_SUMS = "((decoder(z) - x) ** 2).sum() / 7 + 0.3 * divergence / 7"


def test_two_sums_are_of_one_batch_where_each_model_runs_once(tmp_path: Path) -> None:
    source = AUTOENCODER.format(steps=1).replace("((decoder(z) - x) ** 2).mean() + 0.3 * divergence", TWO_SUMS)
    result = watch_source(source, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


def test_of_several_batches_it_stays_open(tmp_path: Path) -> None:
    assert watch_source(AUTOENCODER.format(steps=2), tmp_path).verdict is Verdict.INCONCLUSIVE
