"""Mini-batches of graphs, as libraries for graphs make them: all nodes in one table, numbered by edges.

A larger batch has all the graphs, and numbers go on. The gradients of right loops are compared here with those of the
window's graphs in one batch, computed in float64 by the script itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

LOOP = """
import torch
from dataclasses import dataclass
from torch import nn
torch.manual_seed(8)
torch.set_default_dtype(torch.float64)
@dataclass
class Batch:
    x: torch.Tensor
    edges: torch.Tensor
    of: torch.Tensor
    y: torch.Tensor
def collated(graphs):
    begins = [sum(len(g.x) for g in graphs[:i]) for i in range(len(graphs))]
    return Batch(
        torch.cat([g.x for g in graphs]),
        torch.cat([g.edges + begin for g, begin in zip(graphs, begins)], 1),
        torch.cat([torch.full((len(g.x),), i) for i, g in enumerate(graphs)]),
        torch.cat([g.y for g in graphs]),
    )
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.others, self.norm, self.out = nn.Linear(4, 6), nn.Linear(4, 6), {norm}, nn.Linear(6, 1)
    def forward(self, batch):
        summed = torch.zeros_like(batch.x).index_add(0, batch.edges[1], batch.x[batch.edges[0]])
        nodes = torch.relu(self.norm(self.first(batch.x) + self.others(summed)))
        return self.out({pooled})
def graph(n):
    return Batch(torch.randn(n, 4), torch.randint(0, n, (2, 2 * n)), None, torch.randn({targets}, 1))
graphs = [graph(n) for n in {sizes}]
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of(batch):
    return nn.functional.mse_loss(model(batch), batch.y)
for start in range(0, len(graphs), 6):
    window = graphs[start:start + 6]
    expected = torch.autograd.grad(loss_of(collated(window)), [*model.parameters()]) if {checked} else None
    for first in range(0, 6, 2):
        (loss_of(collated(window[first:first + 2])){scale}).backward()
    if expected is not None:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
POOLED = "torch.zeros(int(batch.of.max()) + 1, 6).index_add(0, batch.of, nodes)"
UNLIKE, ALIKE = "[3, 7, 4, 5, 6, 3, 8, 4, 5, 3, 6, 7]", "[5] * 12"
OF_GRAPHS = {"pooled": POOLED, "targets": "1", "sizes": UNLIKE}
OF_NODES = {"pooled": "nodes", "targets": "n"}
CENTRED = "type('Centred', (nn.Module,), {'forward': lambda self, h: h - h.mean(0)})()"


def watched(folder: Path, **parts: object) -> VerifyResult:
    given = {**OF_GRAPHS, "norm": "nn.Identity()", "checked": False, "scale": " / 3", **parts}
    return watch_source(LOOP.format(**given), folder)


@pytest.mark.parametrize("sizes", [UNLIKE, ALIKE])
def test_the_mean_over_graphs(sizes: str, tmp_path: Path) -> None:
    result = watched(tmp_path, sizes=sizes, checked=True)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


def test_dropout_draws_for_every_node_what_the_loop_drew(tmp_path: Path) -> None:
    assert watched(tmp_path, norm="nn.Dropout(0.4)").verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize("sizes", [UNLIKE, ALIKE])
def test_the_mean_over_graphs_that_is_not_divided(sizes: str, tmp_path: Path) -> None:
    result = watched(tmp_path, sizes=sizes, scale="")
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA101"])


def test_the_mean_over_nodes_of_batches_with_as_many(tmp_path: Path) -> None:
    assert watched(tmp_path, sizes=ALIKE, checked=True, **OF_NODES).verdict is Verdict.EQUIVALENT


def test_the_mean_over_nodes_of_batches_with_different_numbers(tmp_path: Path) -> None:
    result = watched(tmp_path, sizes=UNLIKE, **OF_NODES)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA104"])


@pytest.mark.parametrize("sizes", [UNLIKE, ALIKE])
def test_layers_that_normalize_over_all_nodes(sizes: str, tmp_path: Path) -> None:
    result = watched(tmp_path, sizes=sizes, norm="nn.BatchNorm1d(6)")
    assert result.verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION


@pytest.mark.parametrize("sizes", [UNLIKE, ALIKE])
def test_what_is_computed_over_all_nodes_is_not_passed(sizes: str, tmp_path: Path) -> None:
    assert watched(tmp_path, sizes=sizes, norm=CENTRED).verdict is not Verdict.EQUIVALENT


MATRICES = """
import torch
from torch import nn
torch.manual_seed(8)
torch.set_default_dtype(torch.float64)
def graph(n):
    related = (torch.rand(n, n) < 0.5).double() + torch.eye(n)
    return related / related.sum(1, keepdim=True), torch.randn(n, 4), torch.randn(n, 2)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(4, 6), {norm}, nn.Linear(6, 2)
    def forward(self, related, x):
        return self.out(related @ torch.tanh(self.norm(self.first(related @ x))))
graphs = [graph(n) for n in {sizes}]
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of(related, x, y):
    found = model(related, x)
    return {loss}
for start in range(0, len(graphs), 3):
    window = graphs[start:start + 3]
    nodes = sum(len(x) for _, x, _ in window)
    if {checked}:
        blocks = torch.block_diag(*(related for related, _, _ in window))
        together = [torch.cat([one[i] for one in window]) for i in (1, 2)]
        expected = torch.autograd.grad(loss_of(blocks, *together) / nodes, [*model.parameters()])
    for related, x, y in window:
        (loss_of(related, x, y) / {divisor}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""
SQUARES = "(found - y).square().sum()"
PAIRS = "(found @ found.T - related).square().sum()"


AS_MANY_AS_FEATURES = ("[4] * 12", "[3, 7, 5, 4, 4, 4, 6, 3, 3, 4, 4, 4]")
"""How many nodes graphs have, of which those of some windows have as many as their nodes have features."""


def of_matrices(folder: Path, **parts: object) -> VerifyResult:
    given = {"norm": "nn.Identity()", "sizes": UNLIKE, "loss": SQUARES, "divisor": "nodes", "checked": False, **parts}
    return watch_source(MATRICES.format(**given), folder)


@pytest.mark.parametrize("sizes", [UNLIKE, ALIKE, *AS_MANY_AS_FEATURES])
def test_graphs_whose_nodes_a_matrix_relates(sizes: str, tmp_path: Path) -> None:
    """A larger batch has no relation between the nodes of two graphs: their matrices are its blocks."""
    right = of_matrices(tmp_path, sizes=sizes, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


def test_means_over_the_nodes_of_unlike_graphs(tmp_path: Path) -> None:
    wrong = of_matrices(tmp_path, loss="(found - y).square().mean()", divisor="len(window)")
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA104"]), wrong.reason


@pytest.mark.parametrize("sizes", [UNLIKE, ALIKE, *AS_MANY_AS_FEATURES])
@pytest.mark.parametrize("parts", [{"norm": CENTRED}, {"loss": PAIRS}], ids=["normalized", "pairs"])
def test_nodes_that_more_than_their_matrix_relates_are_not_passed(
    parts: dict[str, object], sizes: str, tmp_path: Path
) -> None:
    found = of_matrices(tmp_path, sizes=sizes, **parts)
    assert found.verdict not in (Verdict.EQUIVALENT, Verdict.DEVIATES), found.reason


KNOWN_NODES = """
import torch
from torch import nn
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
def graph(n):
    linked = (torch.rand(n, n) < 0.4).double() + torch.eye(n)
    known = torch.rand(n) < 0.6
    known[-1] = True
    return linked / linked.sum(1, keepdim=True), torch.randn(n, 4), torch.randint(0, 3, (n,)), known
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(4, 6), {norm}, nn.Linear(6, 3)
    def forward(self, linked, x):
        return self.out(linked @ torch.tanh(self.norm(self.first(linked @ x))))
graphs = [graph(n) for n in [3, 7, 4, 5, 6, 3, 8, 4, 5, 3, 6, 7]]
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for start in range(0, len(graphs), 3):
    window = graphs[start:start + 3]
    labelled = sum(int(known.sum()) for *_, known in window)
    if {checked}:
        blocks = torch.block_diag(*(linked for linked, *_ in window))
        x, y, known = (torch.cat([one[i] for one in window]) for i in (1, 2, 3))
        whole = nn.functional.cross_entropy(model(blocks, x)[known], y[known])
        expected = torch.autograd.grad(whole, [*model.parameters()])
    for linked, x, y, known in window:
        found = {found}
        loss = nn.functional.cross_entropy(found[known], y[known])
        ({loss}).backward()
    if {checked}:
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
    optimizer.step()
    optimizer.zero_grad()
"""


def of_known_nodes(folder: Path, **parts: object) -> VerifyResult:
    given = {"norm": "nn.Identity()", "found": "model(linked, x)", "loss": SHARES[0], "checked": False, **parts}
    return watch_source(KNOWN_NODES.format(**given), folder)


SHARES = ("loss * (known.sum() / labelled)", "known.sum() * loss / labelled", "loss / (labelled / known.sum()) - 0.0")
"""The share of a graph's labelled nodes among those of its window, as a tensor."""


@pytest.mark.parametrize("loss", SHARES)
def test_graphs_weighted_by_a_number_that_a_tensor_holds(loss: str, tmp_path: Path) -> None:
    """It is a factor of the loss, as one of Python's own is, and not what a larger batch is made of."""
    right = of_known_nodes(tmp_path, loss=loss, checked=True)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason


def test_graphs_of_unlike_sizes_with_equal_weights(tmp_path: Path) -> None:
    wrong = of_known_nodes(tmp_path, loss="loss * (known[-1].sum() / len(window))")
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA104"]), wrong.reason


@pytest.mark.parametrize(
    "parts",
    [
        {"norm": CENTRED},
        {"found": "model(linked, x) * x.abs().mean()"},
        {"loss": "(loss * (known.sum() / labelled) - x.abs().mean()) ** 2"},
    ],
    ids=["normalized", "outputs", "compared"],
)
def test_a_number_that_more_than_the_loss_is_computed_with_is_data(parts: dict[str, object], tmp_path: Path) -> None:
    found = of_known_nodes(tmp_path, **parts)
    assert found.verdict is not Verdict.EQUIVALENT, found.reason


# A batch keeps a number with its tensors, which the larger batch has again.

KEPT = LOOP.replace("    y: torch.Tensor\n", "    y: torch.Tensor\n    kept: int = 0\n").replace(
    "torch.cat([g.y for g in graphs]),", "torch.cat([g.y for g in graphs]), KEPT,"
)
NODES = "sum(len(g.x) for g in graphs)"
SHARE = " * (sum(len(g.x) for g in window[first:first + 2]) / sum(len(g.x) for g in window))"


def with_number(kept: str, folder: Path, **parts: object) -> VerifyResult:
    given = {**OF_NODES, "sizes": UNLIKE, "norm": "nn.Identity()", "checked": False, "scale": SHARE, **parts}
    return watch_source(KEPT.replace("KEPT", kept).format(**given), folder)


@pytest.mark.parametrize("kept", [NODES, "sum(g.edges.shape[1] for g in graphs)"])
def test_a_number_of_nodes_or_edges_is_that_of_all(kept: str, tmp_path: Path) -> None:
    result = with_number(kept, tmp_path, checked=True)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())


def test_with_it_a_mistake_is_still_one(tmp_path: Path) -> None:
    result = with_number(NODES, tmp_path, scale=" / 3")
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, ["GA104"])


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"kept": NODES, "pooled": "4 * nodes / batch.kept"}, id="the model divides by it"),
        pytest.param({"kept": "round(10 * float(graphs[0].y[0]))"}, id="it counts nothing"),
    ],
)
def test_another_large_batch_is_not_passed(parts: dict[str, str], tmp_path: Path) -> None:
    assert with_number(folder=tmp_path, **parts).verdict is Verdict.INCONCLUSIVE
