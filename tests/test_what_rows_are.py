"""What the rows of a micro-batch are: samples, parts of one, or what a task's weights are made of.

The expected gradients are worked out in the scripts, in float64: a window's from all of its samples, or graphs, or
tasks, each by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

SHIFTED = """
import torch
from torch import nn
torch.manual_seed(4)
lengths = [5, 9, 3, 12, 7, 4, 11, 6, 8, 3, 10, 5]
series = [torch.randn(n, 2).cumsum(0) * 0.3 for n in lengths]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(2, 5, batch_first=True)
        self.head = nn.Linear(5, 2)
    def forward(self, x):
        return self.head(self.rnn(x)[0])
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = 0
for start in range(0, 12, 2):
    pair = series[start:start + 2]
    padded = nn.utils.rnn.pad_sequence(pair, batch_first=True)
    mask = torch.zeros(padded.shape[:2], dtype=torch.bool)
    for row, one in enumerate(pair):
        mask[row, :len(one) - 1] = True
    x, y, mask = padded[:, :-1], padded[:, 1:], mask[:, :-1]
    error = ((model(x) - y) ** 2).sum(-1)
    {loss}.backward()
    held += int(mask.sum())
    if start % 6 == 4:
        for p in model.parameters():
            p.grad /= held
        held = 0
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        ("error[mask].sum()", Verdict.EQUIVALENT),
        # Each series' error counts by what the other's is.
        ("(error * error.flip(0))[mask].sum()", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION),
        pytest.param(
            "(error * error.flip(0).detach().mean())[mask].sum()",
            Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
            marks=pytest.mark.xfail(strict=True, reason="what is computed from detached outputs is taken for data"),
        ),
    ],
)
def test_inputs_and_their_shifted_targets_are_no_two_samples(loss: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(SHIFTED.format(loss=loss), tmp_path)
    assert result.verdict is verdict, result.reason


GRAPHS = """
import torch
from torch import nn
torch.manual_seed(26)
def graph():
    n = int(torch.randint(6, 15, (1,)))
    source, target = torch.randint(n, (2, 3 * n))
    mask = torch.rand(n) < 0.6
    mask[0] = True
    dense = (torch.rand(n, n) < 0.4).float() + torch.eye(n)
    return torch.randn(n, 5), source, target, dense / dense.sum(1, keepdim=True), torch.randn(n), mask
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.near, self.out = nn.Linear(5, 9), nn.Linear(5, 9), nn.Linear(9, 1)
    def forward(self, x, {arguments}):
        return self.out(torch.relu(self.own(x) + self.near({neighbours}))).squeeze(-1)
pool = [graph() for _ in range(9)]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for start in range(0, 9, 3):
    graphs = pool[start:start + 3]
    nodes = sum(int(g[5].sum()) for g in graphs)
    for x, source, target, dense, y, mask in graphs:
        loss = nn.functional.huber_loss(model(x, {arguments})[mask], y[mask], reduction="{reduction}")
        (loss / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BY_EDGES = {"arguments": "source, target", "neighbours": "torch.zeros_like(x).index_add(0, target, x[source])"}
BY_MATRIX = {"arguments": "dense", "neighbours": "dense @ x"}


@pytest.mark.parametrize("kind", [BY_EDGES, BY_MATRIX], ids=["edges", "matrix"])
def test_the_nodes_of_a_graph_are_not_samples_that_are_coupled(kind: dict[str, str], tmp_path: Path) -> None:
    right = watch_source(GRAPHS.format(**kind, reduction="sum", divisor="nodes"), tmp_path)
    assert right.verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE), right.reason
    assert right.diagnosis == ()
    means = watch_source(GRAPHS.format(**kind, reduction="mean", divisor="3"), tmp_path)
    assert (means.verdict, [d.mistake.code for d in means.diagnosis]) == (Verdict.DEVIATES, ["GA104"]), means.reason


@pytest.mark.parametrize("nodes", ["8", "5"], ids=["more nodes than features", "as many nodes as features"])
def test_a_graph_may_have_as_many_nodes_as_they_have_features(nodes: str, tmp_path: Path) -> None:
    source = GRAPHS.replace("int(torch.randint(6, 15, (1,)))", nodes).format(
        **BY_MATRIX, reduction="sum", divisor="nodes"
    )
    result = watch_source(source, tmp_path)
    assert result.verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE), result.reason
    assert result.diagnosis == ()


TASKS = """
import torch
from torch import nn
from torch.func import functional_call
torch.manual_seed(25)
model = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def adapted(x, y):
    slow = dict(model.named_parameters())
    delta = {k: torch.zeros_like(w) for k, w in slow.items()}
    for _ in range(2):
        fast = {k: (slow[k].detach() + delta[k]).requires_grad_() for k in slow}
        loss = nn.functional.cross_entropy(functional_call(model, fast, (x,)), y)
        for k, g in zip(fast, torch.autograd.grad(loss, list(fast.values()))):
            delta[k] -= 0.2 * g
    return {k: slow[k] + delta[k] for k in slow}
for step in range(3):
    for task in range(4):
        x, y = torch.randn(10, 4), torch.randint(0, 5, (10,))
        logits = functional_call(model, adapted(x, y), (torch.randn(10, 4),))
        (nn.functional.cross_entropy(logits, y) / {divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("divisor", "verdict"), [("4", Verdict.EQUIVALENT), ("1", Verdict.DEVIATES)])
def test_what_a_task_adds_to_the_weights_is_no_data(divisor: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(TASKS.replace("{divisor}", divisor), tmp_path)
    assert result.verdict is verdict, result.reason


ONCE = """
import torch
from torch import nn
torch.manual_seed(62)
model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start, goal = torch.zeros(1, 1), torch.tensor([[1.0, 0.5]])
for step in range(4):
    points = torch.rand(17, 1)
    ({weight} * ((model(start) - goal) ** 2).sum()).backward()
    for part in points.split(5):
        (model(part).square().sum() / 17).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("weight", ["1.9", "0.25"])
def test_what_goes_back_once_a_window_is_its_own_large_batch(weight: str, tmp_path: Path) -> None:
    result = watch_source(ONCE.format(weight=weight), tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


RETURNS = """
import torch
from torch import nn
torch.manual_seed(7)
policy = nn.Linear(3, 3)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
episodes = [(torch.randn(n, 3), torch.randint(0, 3, (n,)), torch.rand(n)) for n in (4, 7, 3, 6, 5, 8)]
for start in range(0, 6, 3):
    for states, actions, rewards in episodes[start:start + 3]:
        togo = {togo}
        chosen = policy(states).log_softmax(-1).gather(1, actions[:, None])[:, 0]
        {backward}
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("backward", "codes"),
    [("(-(togo * chosen).mean() / 3).backward()", ["GA104"]), ("(-(togo * chosen).sum() / 3).backward()", [])],
)
def test_a_running_sum_is_along_one_sample(backward: str, codes: list[str], tmp_path: Path) -> None:
    source = RETURNS.format(togo="rewards.flip(0).cumsum(0).flip(0)", backward=backward)
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason


def test_what_is_reduced_over_the_rows_is_made_by_its_micro_batch(tmp_path: Path) -> None:
    source = RETURNS.format(togo="rewards / rewards.sum()", backward="(-(togo * chosen).sum() / 3).backward()")
    result = watch_source(source, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] != [], result.reason


LABELS = """
import torch
from torch import nn
torch.manual_seed(22)
X, Y = torch.randn(16, 5), torch.tensor([0, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0])
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(zip(X.split(2), Y.split(2))):
    {loss}
    if i % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        # In the first window, and one that follows others, the labels are 0 and 1: so are the numbers of the rows.
        ("(nn.functional.cross_entropy(model(x), y) / 2).backward()", Verdict.EQUIVALENT),
        (
            "(nn.functional.cross_entropy(model(x) @ model(x.flip(1)).T, torch.arange(2)) / 2).backward()",
            Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
        ),
    ],
)
def test_labels_that_happen_to_number_the_rows(loss: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(LABELS.format(loss=loss), tmp_path)
    assert result.verdict is verdict, result.reason


QUANTILES = """
import torch
torch.manual_seed(6)
TAU = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])
X, Y = torch.rand(36, 3), torch.rand(36)
W, b = torch.zeros(3, 5, requires_grad=True), torch.zeros(5, requires_grad=True)
optimizer = torch.optim.SGD([W, b], lr=0.2)
for i, (x, y) in enumerate(zip(X.split(6), Y.split(6))):
    error = y[:, None] - (x @ W + b)
    ({loss} / 18).backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("loss", "verdict"),
    [
        ("torch.where(error >= 0, TAU * error, (TAU - 1) * error).sum()", Verdict.EQUIVALENT),
        # Of another batch's mean it is another loss.
        ("(error - error.mean(0)).pow(2).mul(TAU - 1).sum()", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION),
    ],
)
def test_a_constant_that_is_made_anew_has_no_rows(loss: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(QUANTILES.format(loss=loss), tmp_path)
    assert result.verdict is verdict, result.reason


PICKED = """
import torch
from torch import nn
torch.manual_seed(2)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(5, 6), torch.rand(5, 4) < 0.5, torch.randn(5, 4)) for _ in range(9)]
for start in range(0, 9, 3):
    block = batches[start:start + 3]
    found = sum(int(hit.sum()) for _, hit, _ in block)
    for x, hit, t in block:
        out = model(x).view(5, 4, 2)
        there = nn.functional.binary_cross_entropy_with_logits(out[..., 0], hit.float()) / {number}
        where = nn.functional.smooth_l1_loss(out[..., 1][hit], t[hit], reduction="sum") / {count}
        (there + 0.7 * where).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("number", "count", "right"),
    [("len(block)", "found", True), ("len(block)", "int(hit.sum())", False), ("1", "found", False)],
)
def test_terms_that_are_divided_each_in_its_own_way(number: str, count: str, right: bool, tmp_path: Path) -> None:
    """A mean over the cells by how many micro-batches there are, a sum over what a mask picks by the window's count."""
    result = watch_source(PICKED.format(number=number, count=count), tmp_path)
    assert (result.diagnosis == ()) is right, result.reason
    assert result.verdict in (
        (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE) if right else (Verdict.DEVIATES, Verdict.INCONCLUSIVE)
    )


GROUPS = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(5)
groups = [torch.randint(0, 9, (n,)) for n in (4, 7, 5, 6, 8, 4)]
words, body, head = nn.Embedding(9, 4), nn.RNN(4, 5, batch_first=True), nn.Linear(5, 9)
optimizer = torch.optim.SGD([*words.parameters(), *body.parameters(), *head.parameters()], lr=0.05)
for first in range(0, len(groups), 3):
    window = groups[first : first + 3]
    total = sum(len(group) - 1 for group in window)
    for group in window:
        found = head(body(words(group[None, :-1]))[0][0])
        (F.cross_entropy(found, group[1:], reduction="sum") / total).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_sums_over_groups_of_unlike_sizes_are_no_coupling_of_samples(tmp_path: Path) -> None:
    """Each micro-batch is one sequence: what its rows do to each other is none of the batch's business."""
    result = watch_source(GROUPS, tmp_path)
    assert result.verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE) and not result.diagnosis, result.reason


NEGATIVES = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(5)
model = nn.Linear(4, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(torch.randn(7, 4), torch.randn(7, 4)) for _ in range(6)]
for i, (x, other) in enumerate(data):
    alike = model(x) @ model(other).T
    (F.cross_entropy(alike, torch.arange(7), reduction="sum") / 21).backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_sums_over_micro_batches_of_one_size_that_couple_samples(tmp_path: Path) -> None:
    result = watch_source(NEGATIVES, tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA901"], result.reason


BOXES = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(3)
model = nn.Linear(6, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
counts = [1, 3, 2, 4, 3, 1, 2, 2, 4, 1, 3, 2]
data = [(torch.randn(6), torch.rand(n, 2)) for n in counts]
for first in range(0, 12, 6):
    window = data[first : first + 6]
    boxes = sum(len(wanted) for _, wanted in window)
    for at in range(0, 6, 2):
        part = window[at : at + 2]
        found = model(torch.stack([x for x, _ in part])).view(2, 4, 2)
        own = [F.l1_loss(found[i, : len(w)], w, reduction="sum") for i, (_, w) in enumerate(part)]
        (sum(own) / boxes).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_samples_with_targets_of_their_own_number_are_not_swapped_for_others(tmp_path: Path) -> None:
    result = watch_source(BOXES, tmp_path)
    assert result.verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE) and not result.diagnosis, result.reason


SETS = """
import torch
from torch import nn
torch.manual_seed(4)
lengths = [3, 2, 5, 4, 3, 2, 6, 3, 2, 4, 3, 5]
sets = [torch.randn(n, 2, dtype=torch.float64) for n in lengths]
targets = torch.stack([one.norm(dim=1).max() for one in sets])
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(2, 7), nn.Tanh()).double()
        self.head = nn.Linear(7, 1).double()
    def forward(self, sets):
        return torch.cat([self.head(self.each(one).sum(0)) for one in sets])
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(12).split(3):
    output = model([sets[i] for i in rows])
    error = output - targets[rows]
    (error.abs().mean() / 2 {and_more}).backward()
    if int(rows[-1]) % 6 == 5:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("and_more", "verdict"),
    [
        ("", Verdict.EQUIVALENT),
        # A set is compared with the other two.
        ("+ torch.tanh(output - output.flip(0).roll(1)).square().mean() / 2", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION),
    ],
    ids=["apart", "coupled"],
)
def test_a_tensor_of_a_list_is_a_sample_however_long(and_more: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(SETS.format(and_more=and_more), tmp_path)
    assert result.verdict is verdict, result.reason


STEPS_OF_A_SEQUENCE = """
import torch
from torch import nn
torch.manual_seed(0)
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Linear(3, 4), nn.RNNCell(4, 5), nn.Linear(5, 1)
    def forward(self, steps):
        state, out = torch.zeros(1, 5), []
        for x in steps:
            state = self.cell(self.embed(x), state)
            out.append(self.head(state)[0])
        return torch.cat(out)
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    steps, targets = list(torch.randn(6, 1, 3)), torch.randn(6)
    (nn.functional.mse_loss(model(steps), targets) / 2).backward()
    if i % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_tensors_of_a_list_that_depend_on_each_other_may_be_one_sample(tmp_path: Path) -> None:
    result = watch_source(STEPS_OF_A_SEQUENCE, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ()), result.reason
    assert "each of its micro-batches is one sample" in result.reason


PARTS = """
import torch
from torch import nn
F = nn.functional
torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
# As many channels as losses: no image's rows, nor the two parts of a batch, are its samples.
model = nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.Tanh(), nn.Linear(8, 4))
teacher = nn.Sequential(nn.Flatten(), nn.Linear(18, 4)).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
K = 2
batches = [(torch.randn(3, 2, 3, 3), torch.randint(4, (3,)), torch.randn(6, 2, 3, 3)) for _ in range(6)]
def loss_of(known, labels, unknown):
    with torch.no_grad():
        sure, guessed = teacher(unknown).softmax(1).max(1)
    {outputs}
    guesses = F.cross_entropy(others, guessed, reduction="none") * sure.ge(0.4)
    return F.cross_entropy(first, labels) + 0.5 * guesses.mean(){and_more}
for start in range(0, 6, K):
    window = batches[start:start + K]
    for batch in window:
        loss = loss_of(*batch)
        (loss{scale}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
JOINED = "first, others = model(torch.cat([known, unknown])).split([3, 6])"
APART = "first, others = model(known), model(unknown)"


@pytest.mark.parametrize("outputs", [JOINED, APART], ids=["joined", "apart"])
def test_parts_of_a_batch_with_a_loss_each_are_no_two_samples(outputs: str, tmp_path: Path) -> None:
    result = watch_source(PARTS.format(outputs=outputs, and_more="", scale=" / K"), tmp_path)
    assert result.verdict is Verdict.EQUIVALENT
    undivided = watch_source(PARTS.format(outputs=outputs, and_more="", scale=""), tmp_path)
    assert [d.mistake.code for d in undivided.diagnosis] == ["GA101"]


@pytest.mark.parametrize(
    ("and_more", "verdict"),
    [
        pytest.param(
            " + (first.mean(0) - others.mean(0)).square().sum()",
            Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION,
            id="parts-compared",
        ),
        # Some rows depend on each other, and others do not.
        pytest.param(
            " - (others @ others.T).log_softmax(1).diagonal().mean()", Verdict.INCONCLUSIVE, id="negatives-in-a-part"
        ),
    ],
)
def test_parts_of_a_batch_whose_samples_depend_on_each_other(and_more: str, verdict: Verdict, tmp_path: Path) -> None:
    result = watch_source(PARTS.format(outputs=JOINED, and_more=and_more, scale=" / K"), tmp_path)
    assert result.verdict is verdict, result.reason


QUERIES = """
import torch
from torch import nn
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
queries = [torch.randn({rows}, 5) for i in range(9)]
for i, documents in enumerate(queries):
    scores = model(documents).squeeze(1)
    ((scores.logsumexp(0) - scores[0]) / 3).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("rows", "verdict"), [("3 + i % 4", Verdict.INCONCLUSIVE), ("4", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION)]
)
def test_one_number_of_all_rows_is_no_mean_over_them(rows: str, verdict: Verdict, tmp_path: Path) -> None:
    """Micro-batches with different numbers of rows may be one query each, whose documents compete."""
    result = watch_source(QUERIES.format(rows=rows), tmp_path)
    assert result.verdict is verdict, result.reason
    assert ("no mean is taken" in result.reason) is (verdict is Verdict.INCONCLUSIVE)


ITEMS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(2)
torch.set_default_dtype(torch.float64)
class Series(torch.utils.data.Dataset):
    def __len__(self): return {number}
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn({shape}, generator=g)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 1)
    def forward(self, x):
        h = self.first(x)
        return self.last(torch.tanh(h - h.mean(0)))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, x in enumerate(DataLoader(Series(), batch_size={size})):
    (model(x{item}).pow(2).mean() / 3).backward()
    if (i + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("number", "shape", "size", "item", "verdict"),
    [
        (9, "7, 5", None, "", Verdict.INCONCLUSIVE),
        (9, "7, 5", 1, "[0]", Verdict.INCONCLUSIVE),
        (36, "5", 4, "", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION),
    ],
)
def test_what_a_loader_gives_as_one_item_may_be_one_sample(
    number: int, shape: str, size: int | None, item: str, verdict: Verdict, tmp_path: Path
) -> None:
    """Rows that are centred over an item may be one series; over a batch that the loader put together, they are not."""
    result = watch_source(ITEMS.format(number=number, shape=shape, size=size, item=item), tmp_path)
    assert result.verdict is verdict, result.reason
    assert ("one item of its data set" in result.reason) is (verdict is Verdict.INCONCLUSIVE)


def test_a_slice_of_an_item_is_a_batch(tmp_path: Path) -> None:
    """The loop cuts the rows of one item itself: it takes them for samples."""
    source = ITEMS.format(number=3, shape="12, 5", size=None, item="")
    source = source.replace("    (model(x)", "    for part in x.split(4):\n        (model(part)")
    source = source.replace("if (i + 1) % 3 == 0:", "if True:")
    assert "x.split(4)" in source
    assert watch_source(source, tmp_path).verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
