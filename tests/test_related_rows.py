"""Graphs and masks: data that says which rows of a micro-batch belong together, joined as parts that are not connected.

The gradients are in float64, and each window's is compared here with that of all of its graphs, computed at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

GRAPHS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x, related):
        h = torch.tanh(self.first(x))
        {forward}
        return self.last(h)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sizes = {sizes}
def related(n, x):
    {related}
xs, ys = [torch.randn(n, 4) for n in sizes], [torch.randint(0, 3, (n,)) for n in sizes]
graphs = [(x, related(len(x), x), y) for x, y in zip(xs, ys)]
for start in range(0, 12, 4):
    window = graphs[start:start + 4]
    nodes = sum(len(y) for _, _, y in window)
    if {checked}:
        outputs = torch.cat([model(x, {in_turn}) for x, r, _ in window])
        mean = F.cross_entropy(outputs, torch.cat([y for *_, y in window]))
        expected = torch.autograd.grad(mean, [*model.parameters()])
    {ahead}
    for x, r, y in window:
        r = {in_turn}
        ({loss}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
EQUAL, UNEQUAL = "[5] * 12", "[3, 5, 4, 6, 7, 4, 5, 3, 6, 4, 5, 3]"
MATRIX = {
    "related": "return (torch.rand(n, n) < 0.4).double() + torch.eye(n)",
    "forward": "h = related @ h",
    "in_turn": "r / r.sum(1, keepdim=True)",
}
EDGES = {
    "related": "return torch.randint(0, n, (2, 3 * n))",
    "forward": "h = h.index_add(0, related[1], h[related[0]])",
    "in_turn": "r",
}
PAIRS = {
    "related": "return torch.randint(0, n, (3 * n, 2))",
    "forward": "h = h + torch.zeros_like(h).index_add(0, related[:, 1], h[related[:, 0]])",
    "in_turn": "r",
}
MASK = {
    "related": "return (torch.rand(n, n) < 0.4) | torch.eye(n, dtype=torch.bool)",
    "forward": "h = (h @ h.T).masked_fill(~related, -1e9).softmax(-1) @ h",
    "in_turn": "r",
}
NEAR = "(torch.cdist(x, x) < 2.5).double()"
"""Who is near whom among the rows of one micro-batch, which is another question among those of the large batch."""
SUM = 'F.cross_entropy(model(x, r), y, reduction="sum") / nodes'


def watched(folder: Path, **parts: object) -> VerifyResult:
    given = {"sizes": UNEQUAL, "loss": SUM, "checked": False, "ahead": "pass", **parts}
    return watch_source(GRAPHS.format(**given), folder)


@pytest.mark.parametrize("loss", [SUM, "F.cross_entropy(model(x, r), y) * len(y) / nodes"], ids=["sum", "share"])
@pytest.mark.parametrize("kind", [MATRIX, EDGES, PAIRS, MASK], ids=["matrix", "edges", "pairs", "mask"])
def test_graphs_are_joined_as_one_whose_parts_are_not_connected(
    kind: dict[str, object], loss: str, tmp_path: Path
) -> None:
    right = watched(tmp_path, **kind, loss=loss, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    wrong = watched(tmp_path, **kind, loss=loss.replace("nodes", "len(y)"))
    assert wrong.verdict is Verdict.DEVIATES, wrong.reason


@pytest.mark.parametrize(
    "parts",
    [
        # Nodes are compared with all others of their graph, or of the large batch.
        {"forward": "h = related @ (h - h.mean(0))"},
        # Rows of batches of one size may be samples.
        {"sizes": EQUAL},
        # What is computed from the rows of a micro-batch would be computed from all rows of the large batch.
        {"in_turn": NEAR},
        {"ahead": f"window = [(x, {NEAR}, y) for x, _, y in window]"},
        {"in_turn": "((x[:, None] - x[None]).norm(dim=-1) < 2.5).double()"},
    ],
    ids=["coupled nodes", "equal numbers", "near in turn", "near ahead", "by differences"],
)
def test_data_that_relates_samples_of_one_micro_batch(parts: dict[str, object], tmp_path: Path) -> None:
    result = watched(tmp_path, **{**MATRIX, "in_turn": "r", **parts})
    assert result.verdict in (Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION, Verdict.INCONCLUSIVE), result.reason
