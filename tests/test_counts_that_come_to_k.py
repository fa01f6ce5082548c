"""A count that begins again with each window, and that the loop steps for: where it has come to K, it is K.

Weights by hand: a mean that is divided by K twice has 1/K of its weight in the large batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult

COUNTED = """
import torch
from torch import nn
torch.manual_seed(5)
class Trainer:
    K = {steps}
    def __init__(self):
        self.model = nn.Linear(6, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.held = 0
    def train(self, x, y):
        (nn.functional.mse_loss(self.model(x), y){scale}).backward()
        self.held += 1
        if self.held == self.K:
            self.finish()
    def finish(self):
        for p in self.model.parameters():
            p.grad /= self.held
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.held = 0
trainer = Trainer()
for i in range(6 * Trainer.K + {more}):
    trainer.train(torch.randn({rows}, 6), torch.randn({rows}, 2))
if trainer.held:
    trainer.finish()
"""


def watched(folder: Path, *, scale: str, steps: int, rows: int, more: int = 0) -> VerifyResult:
    return watch_source(COUNTED.format(scale=scale, steps=steps, rows=rows, more=more), folder)


@pytest.mark.parametrize(("steps", "rows"), [(4, 4), (3, 5)])
@pytest.mark.parametrize(
    ("scale", "verdict", "codes"), [("", Verdict.EQUIVALENT, []), (" / self.K", Verdict.DEVIATES, ["GA102"])]
)
def test_gradients_divided_by_a_count_that_has_come_to_k(
    scale: str, verdict: Verdict, codes: list[str], steps: int, rows: int, tmp_path: Path
) -> None:
    """K and the rows of a batch may be the same number: what the count is, the source says."""
    result = watched(tmp_path, scale=scale, steps=steps, rows=rows)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason


def test_a_remainder_is_divided_by_what_it_holds(tmp_path: Path) -> None:
    result = watched(tmp_path, scale="", steps=4, rows=4, more=2)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


HEADS = """
import torch
from torch import nn
torch.manual_seed(1)
stem, first, second = nn.Linear(9, 6), nn.Linear(6, 4), nn.Linear(6, 2)
weights = [*stem.parameters(), *first.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(weights, lr=0.05)
k = 3
scales = {scales}
for i in range(12):
    x = torch.randn(5, 9)
    hidden = torch.tanh(stem(x))
    losses = [nn.functional.mse_loss(first(hidden), x[:, :4]), nn.functional.mse_loss(second(hidden), x[:, 7:])]
    torch.autograd.backward(losses, scales)
    if (i + 1) % k == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_gradients_of_several_losses_are_taken_apart(tmp_path: Path) -> None:
    """Each of two losses is given a third of its coefficient: K divides both, as the list says."""
    right = watch_source(HEADS.format(scales="[torch.tensor(1.0 / k), torch.tensor(0.4 / k)]"), tmp_path)
    assert not right.diagnosis
    assert all(weight == pytest.approx(1.0) for window in right.windows for weight in window.weights)
    wrong = watch_source(HEADS.format(scales="[torch.tensor(1.0), torch.tensor(0.4)]"), tmp_path)
    assert (wrong.verdict, [d.mistake.code for d in wrong.diagnosis]) == (Verdict.DEVIATES, ["GA101"])


SHOWN = """
import torch
from torch import nn
torch.manual_seed(76)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for i in range(16):
    loss = nn.functional.cross_entropy(model(torch.randn(5, 6)), torch.randint(0, 4, (5,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {shown}
"""


@pytest.mark.parametrize(
    ("shown", "codes"),
    [
        ("print(loss.exp().item()) if i % 8 == 0 else None", []),
        ("kept.append(loss)", ["GA801"]),
        ("kept = kept + [loss] if i % 5 else []", ["GA801"]),
    ],
)
def test_graphs_that_are_let_go_grow_again_where_losses_are_kept(shown: str, codes: list[str], tmp_path: Path) -> None:
    result = watch_source(SHOWN.format(shown=shown), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes


ENDED = """
import torch
from torch import nn
torch.manual_seed(6)
class Collector:
    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.held = 0
    def add(self, loss):
        loss.backward()
        self.held += 1
        if self.held == self.every:
            for p in self.model.parameters():
                p.grad /= self.held
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.held = 0
def fit(parts={steps}, heads={steps}):
    model = nn.Linear(6, 2)
    collector = Collector(model, torch.optim.SGD(model.parameters(), lr=0.1), every=parts)
    for i in range(5 * parts):
        x, y = torch.randn({rows}, 6), torch.randn({rows}, 2)
        collector.add(nn.functional.mse_loss(model(x), y){scale})
fit()
"""


@pytest.mark.parametrize(("steps", "rows"), [(4, 4), (3, 5)])
@pytest.mark.parametrize(
    ("scale", "verdict", "codes"),
    [
        ("", Verdict.EQUIVALENT, []),
        (" / parts", Verdict.DEVIATES, ["GA102"]),
        (" / heads", Verdict.EQUIVALENT, []),
    ],
)
def test_a_number_that_a_function_was_passed_once_is_known_after_it_has_ended(
    scale: str, verdict: Verdict, codes: list[str], steps: int, rows: int, tmp_path: Path
) -> None:
    """What the collector counts to is the function's ``parts``, and not its ``heads``, which is as many."""
    result = watch_source(ENDED.format(scale=scale, steps=steps, rows=rows), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason


def test_data_at_the_place_of_a_gradient_that_was_let_go_is_no_gradient(tmp_path: Path) -> None:
    """What divides the gradients is read, whatever was multiplied in memory that they had before."""
    source = ENDED.replace("lr=0.1", "lr=0.1, momentum=0.9").replace(
        "            self.held = 0\n",
        "            self.held = 0\n            self.made = "
        "[torch.zeros(p.shape).mul_(2) for p in self.model.parameters() for _ in range(16)]\n",
    )
    result = watch_source(source.format(scale=" / parts", steps=3, rows=5), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == ["GA102"], result.reason


SHARES = """
import torch
from torch import nn
torch.manual_seed(7)
K = 2
sizes = [3, 3, 4, 4, 6, 6]
batches = [(torch.randn(n, 6), torch.randn(n, 2)) for n in sizes]
totals = [sum(sizes[first:first + K]) for first in range(0, len(sizes), K)]
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches):
    loss = nn.functional.mse_loss(model(x), y)
    loss = loss * (len(y) / totals[i // K]){scale}
    loss.backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("scale", "verdict", "codes"), [("", Verdict.EQUIVALENT, []), (" / K", Verdict.DEVIATES, ["GA102"])]
)
def test_a_share_of_the_rows_that_is_as_much_as_1_by_k_in_every_window(
    scale: str, verdict: Verdict, codes: list[str], tmp_path: Path
) -> None:
    """The micro-batches of each window are of one size, so that K divides once more what their rows have divided."""
    result = watch_source(SHARES.format(scale=scale), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason


@pytest.mark.parametrize(
    "share",
    [
        "nn.functional.mse_loss(model(x), y) * (len(y) / totals[i // K])",
        "(y.shape[0] / totals[i // K]) * nn.functional.mse_loss(model(x), y)",
        "nn.functional.mse_loss(model(x), y) * (n / total)",
        "nn.functional.mse_loss(model(x), y) * share(y, i // K)",
    ],
)
@pytest.mark.parametrize(
    ("scale", "verdict", "codes"), [("", Verdict.EQUIVALENT, []), (" / K", Verdict.DEVIATES, ["GA102"])]
)
def test_a_share_next_to_the_call_of_a_loss(
    share: str, scale: str, verdict: Verdict, codes: list[str], tmp_path: Path
) -> None:
    """The loss has no name, and is no number: the other side is computed of numbers alone."""
    source = SHARES.format(scale="").replace(
        "    loss = loss * (len(y) / totals[i // K])\n",
        f"    n, total = len(y), totals[i // K]\n    loss = {share}{scale}\n",
    )
    source = source.replace("for i,", "def share(of, window):\n    return len(of) / totals[window]\nfor i,")
    result = watch_source(source, tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason


MULTIPLIED = """
import torch
from torch import nn
torch.manual_seed(8)
K = 3
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def squared():
    return K * K
for i in range(12):
    {before}
    loss = nn.functional.mse_loss(model(torch.randn(4, 5)), torch.randn(4, 2))
    (loss / {by}).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("before", "by", "verdict", "codes"),
    [
        ("parts = K; parts *= K", "parts", Verdict.DEVIATES, ["GA102"]),
        ("parts = 1; parts *= K; parts *= K", "parts", Verdict.DEVIATES, ["GA102"]),
        ("parts = K; parts *= 2", "parts", Verdict.EQUIVALENT, []),
        ("parts = squared()", "parts", Verdict.DEVIATES, ["GA102"]),
        ("pass", "squared()", Verdict.DEVIATES, ["GA102"]),
        ("pass", "(0.5 * squared())", Verdict.DEVIATES, ["GA102"]),
        ("pass", "(squared() / K)", Verdict.EQUIVALENT, []),
    ],
)
def test_a_number_that_a_function_returns_or_that_is_multiplied_next_is_a_product(
    before: str, by: str, verdict: Verdict, codes: list[str], tmp_path: Path
) -> None:
    """K * K divides twice, and 2 * K once, with a half for the loss's coefficient."""
    result = watch_source(MULTIPLIED.format(before=before, by=by), tmp_path)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason


KEEPS_COUNT = """
import torch
from torch import nn
torch.manual_seed(4)
K, ROWS, SIZE = {k}, {rows}, {size}
class Window:
    def __init__(self, weights, size):
        self.weights, self.size, self.held = list(weights), size, 0
    def add(self):
        self.held += 1
        return self.held == self.size
    @torch.no_grad()
    def average(self):
        for weight in self.weights:
            weight.grad /= self.held
        self.held = 0
def loss_of(out, target, n):
    return (out - target).abs().sum(1).mean(){scale}
net = nn.Linear(SIZE, SIZE)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
window = Window(net.parameters(), K)
for x in torch.randn(6 * K * ROWS, SIZE).split(ROWS):
    loss_of(net(x), x.flip(1), K).backward()
    if window.add():
        window.average()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("k", "rows", "size"), [(3, 5, 4), (4, 4, 4), (3, 3, 7)])
@pytest.mark.parametrize(("scale", "codes"), [("", []), (" / n", ["GA102"]), (" * n", ["GA101"])])
def test_a_count_that_an_object_keeps_comes_to_k(
    k: int, rows: int, size: int, scale: str, codes: list[str], tmp_path: Path
) -> None:
    result = watch_source(KEEPS_COUNT.format(k=k, rows=rows, size=size, scale=scale), tmp_path)
    assert [d.mistake.code for d in result.diagnosis] == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
