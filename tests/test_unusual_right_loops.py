"""Right loops as strangers write them: a gradient that backward is given, bags of words, a scale that others set.

The expected errors of the wrong ones are those of float64 gradients of whole windows, computed here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict

GIVEN = """\
import torch
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
K = 3
model = torch.nn.Sequential(torch.nn.Linear(5, 4), {layer}, torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
share = torch.tensor({share})
for n in range(9):
    x, y = torch.randn(7, 5), torch.randn(7, 2)
    torch.nn.functional.mse_loss(model(x), y).backward({given})
    if (n + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("given", ["share", "gradient=share", "torch.full((), 1.0 / K)"])
def test_the_gradient_that_backward_is_given_multiplies_the_loss(given: str, tmp_path: Path) -> None:
    right = watch_source(GIVEN.format(layer="torch.nn.Tanh()", share="1.0 / K", given=given), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ())
    assert [w.weights for w in right.windows] == [pytest.approx((1.0, 1.0, 1.0))] * 3


def test_a_gradient_of_one_leaves_the_loss_as_large_as_it_was(tmp_path: Path) -> None:
    wrong = watch_source(GIVEN.format(layer="torch.nn.Tanh()", share="1.0", given="share"), tmp_path)
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]
    # Three means are added up where there should be their mean: the sum is off by twice the mean.
    assert [w.grad_rel_error for w in wrong.windows] == pytest.approx([2.0] * 3)


def test_samples_that_are_coupled_are_seen_beneath_a_gradient_that_is_given(tmp_path: Path) -> None:
    coupled = watch_source(GIVEN.format(layer="torch.nn.BatchNorm1d(4)", share="1.0 / K", given="share"), tmp_path)
    assert [d.mistake.code for d in coupled.diagnosis] == ["GA901"]


BAGS = """\
import torch
from torch import nn
torch.manual_seed({seed})
torch.set_default_dtype(torch.float64)

class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(13, 4, mode="{mode}")
        self.out = nn.Linear(4, 1)

    def forward(self, ids, offsets):
        return self.out(self.bag(ids, offsets)).squeeze(1)

def batch():
    rows = int(torch.randint(1, 5, (1,)))
    lengths = torch.randint(1, 4, (rows,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    return torch.randint(0, 13, (int(lengths.sum()),)), offsets, torch.randn(rows)

batches = [batch() for _ in range(9)]
model = Clicks()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for start in range(0, 9, 3):
    window = batches[start:start + 3]
    rows = sum(len(y) for _, _, y in window)
    for ids, offsets, y in window:
        ({loss}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SUM = "nn.functional.mse_loss(model(ids, offsets), y, reduction='sum') / rows"
MEAN = "nn.functional.mse_loss(model(ids, offsets), y) / 3"


def bags_error(seed: int, mode: str) -> list[float]:
    """How far the mean of means of each window is from the mean over all its bags: windows as one batch, by hand."""
    left: dict[str, object] = {}
    exec(BAGS.format(seed=seed, mode=mode, loss=SUM).replace("optimizer.step()", "pass"), left)
    model, batches = left["model"], left["batches"]
    assert isinstance(model, torch.nn.Module)
    assert isinstance(batches, list)

    def gradient(parts: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        begin = torch.tensor([0, *(len(ids) for ids, _, _ in parts[:-1])]).cumsum(0)
        offsets = torch.cat([own + first for (_, own, _), first in zip(parts, begin, strict=True)])
        out = model(torch.cat([ids for ids, _, _ in parts]), offsets)
        loss = (out - torch.cat([y for _, _, y in parts])).pow(2).mean()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    found = []
    for start in range(0, 9, 3):
        window = batches[start : start + 3]
        whole, means = gradient(window), sum(gradient([one]) for one in window) / 3
        found.append(float((means - whole).norm() / whole.norm()))
    return found


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("seed", [0, 3])
def test_bags_of_words_are_samples_whatever_their_lengths(seed: int, mode: str, tmp_path: Path) -> None:
    right = watch_source(BAGS.format(seed=seed, mode=mode, loss=SUM), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ())
    wrong = watch_source(BAGS.format(seed=seed, mode=mode, loss=MEAN), tmp_path)
    assert {d.mistake.code for d in wrong.diagnosis} == {"GA104"}
    assert [w.grad_rel_error for w in wrong.windows] == pytest.approx(bags_error(seed, mode), rel=1e-5, abs=1e-9)


SET_BY_OTHERS = """\
import torch
torch.manual_seed(0)

class Accumulate:
    def __init__(self, groups):
        self.groups = groups

    def begin(self, engine):
        engine.scale = {scale}

    def end(self, engine):
        if (engine.number + 1) % self.groups == 0:
            engine.optimizer.step()
            engine.optimizer.zero_grad()

class Engine:
    def __init__(self, model, callback):
        self.model, self.callback, self.scale = model, callback, 1.0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run(self):
        self.callback.begin(self)
        for self.number in range(9):
            x, y = torch.randn(5, 4), torch.randn(5, 2)
            loss = torch.nn.functional.mse_loss(self.model(x), y)
            (loss * self.scale).backward()
            self.callback.end(self)

Engine(torch.nn.Linear(4, 2), Accumulate(3)).run()
"""


def test_a_scale_that_another_object_sets_is_read_where_it_is_set(tmp_path: Path) -> None:
    right = watch_source(SET_BY_OTHERS.format(scale="1 / self.groups"), tmp_path)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ())
    wrong = watch_source(SET_BY_OTHERS.format(scale="1.0"), tmp_path)
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]
    assert [w.grad_rel_error for w in wrong.windows] == pytest.approx([2.0] * 3, rel=1e-4)


LENT = """\
import torch
from torch.func import functional_call
torch.manual_seed(1)
skeleton = torch.nn.Sequential(torch.nn.Linear(5, 4), {layer}, torch.nn.Linear(4, 2))
weights = {{name: p.detach().clone().requires_grad_() for name, p in skeleton.named_parameters()}}
optimizer = torch.optim.SGD(weights.values(), lr=0.1)
for _ in range(3):
    for x, y in zip(torch.randn(20, 5).split(8), torch.randn(20, 2).split(8)):
        (functional_call(skeleton, weights, (x,)) - y).square().mean(1).sum().div({divisor}).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("layer", "divisor", "verdict"),
    [
        ("torch.nn.Tanh()", "20", Verdict.EQUIVALENT),
        ("torch.nn.Tanh()", "len(x)", Verdict.DEVIATES),
        ("torch.nn.BatchNorm1d(4)", "20", Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION),
    ],
)
def test_a_network_whose_weights_are_kept_apart(layer: str, divisor: str, verdict: Verdict, tmp_path: Path) -> None:
    assert watch_source(LENT.format(layer=layer, divisor=divisor), tmp_path).verdict is verdict


LISTED = """\
import torch
torch.manual_seed(2)
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(12):
    x, y = torch.randn(7, 5), torch.randn(7, 2)
    losses.append(torch.nn.functional.mse_loss(model(x), y))
    if len(losses) == 4:
        loss = torch.stack(losses).mean()
        losses.clear()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_list_of_losses_that_is_cleared_before_their_backward(tmp_path: Path) -> None:
    assert watch_source(LISTED, tmp_path).verdict is Verdict.EQUIVALENT


EPISODES = """\
import torch
torch.manual_seed(5)
class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 6), torch.nn.Linear(6, 2)
    def forward(self, seen):
        return self.last(torch.tanh(self.first(seen)))
policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
lengths = [4, 4, 4, 3, 5, 4, 6, 4, 2]
for start in range(0, 9, 3):
    for length in lengths[start:start + 3]:
        chances = [torch.log_softmax(policy(torch.eye(3)[t % 3]), 0)[t % 2] for t in range(length)]
        returns = torch.full((length,), -1.0) if {fails} else torch.randn(length)
        (-(torch.stack(chances) * returns).sum() / 3).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("fails", ["start == 0", "start == 6", "False"])
def test_episodes_that_are_alike_in_one_window_by_chance(fails: str, tmp_path: Path) -> None:
    """What the other windows show of the samples holds for one that shows nothing, before or after them."""
    assert watch_source(EPISODES.format(fails=fails), tmp_path).verdict is Verdict.EQUIVALENT


def test_episodes_that_are_alike_in_every_window_show_nothing(tmp_path: Path) -> None:
    alike = EPISODES.format(fails="True").replace("[4, 4, 4, 3, 5, 4, 6, 4, 2]", "[4] * 9")
    assert watch_source(alike, tmp_path).verdict is Verdict.INCONCLUSIVE


UNFROZEN = """\
import torch
torch.manual_seed(7)
backbone = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh())
head = torch.nn.Linear(4, 2)
backbone.requires_grad_(False)
optimizer = torch.optim.SGD([*head.parameters(), *backbone.parameters()], lr=0.1)
for n in range(12):
    if n == {unfrozen}:
        backbone.requires_grad_(True)
    x, y = torch.randn(7, 5), torch.randn(7, 2)
    (torch.nn.functional.mse_loss(head(backbone(x)), y) / {divisor}).backward()
    if (n + 1) % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("unfrozen", [3, 6])
def test_weights_that_are_unfrozen_between_two_windows(unfrozen: int, tmp_path: Path) -> None:
    assert watch_source(UNFROZEN.format(unfrozen=unfrozen, divisor=3), tmp_path).verdict is Verdict.EQUIVALENT
    wrong = watch_source(UNFROZEN.format(unfrozen=unfrozen, divisor=1), tmp_path)
    assert [w.grad_rel_error for w in wrong.windows] == pytest.approx([2.0] * 4)
