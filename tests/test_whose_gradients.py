"""What is meant for an optimizer's steps, and what only fills the same weights: K = 3 micro-batches of 5 rows.

What the steps should get is computed here, before each of them: the gradient of the mean over the window's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset
from watching import watch_source

from gradcheck_accum.lint import lint_source
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, WINDOWS = 3, 5, 4

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Loop:
    """One network that is trained; ``ratios`` are |g| / |g_true| of its steps."""

    model: nn.Module = field(default_factory=lambda: nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
    ratios: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def loss(self, rows: Sequence[Batch]) -> torch.Tensor:
        x, y = (torch.cat(own) for own in zip(*rows, strict=True))
        return cross_entropy(self.model(x), y)

    def step(self, rows: Sequence[Batch]) -> None:
        own = list(self.model.parameters())
        true = torch.autograd.grad(self.loss(rows), own)
        got = [torch.zeros_like(p) if p.grad is None else p.grad for p in own]
        norm, due = (torch.cat([g.flatten() for g in each]).norm() for each in (got, true))
        self.ratios.append(float(norm / due))
        self.optimizer.step()


def drawn(windows: int = WINDOWS) -> list[Batch]:
    own = torch.Generator().manual_seed(3)
    return [
        (torch.randn(ROWS, 4, generator=own), torch.randint(0, 3, (ROWS,), generator=own)) for _ in range(K * windows)
    ]


def batches(*, loader: bool) -> list[Batch] | DataLoader[Batch]:
    given = drawn()
    x, y = (torch.cat(own) for own in zip(*given, strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=ROWS) if loader else given


def train(
    around: Callable[[Loop, Batch], object], *, after: Callable[[Loop, int], object] | None = None, loader: bool = False
) -> tuple[VerifyResult, list[float]]:
    """A right loop, but for what ``around`` does before every micro-batch, and ``after`` a window."""
    torch.manual_seed(1)
    with observe() as observation:
        loop, window = Loop(), list[Batch]()
        for x, y in batches(loader=loader):
            around(loop, (x, y))
            window.append((x, y))
            (cross_entropy(loop.model(x), y) / K).backward()
            if len(window) == K:
                loop.step(window)
                loop.optimizer.zero_grad()
                window.clear()
                if after is not None:
                    after(loop, len(loop.ratios))
    return observation.result(), loop.ratios


def nothing(loop: Loop, batch: Batch) -> None:
    """What a right loop does in addition."""


def fisher(loop: Loop, done: int) -> None:
    """The squares of each sample's gradient, halfway through: no step is to learn from them."""
    if done != 2:
        return
    found = [torch.zeros_like(p) for p in loop.model.parameters()]
    for x, y in drawn(1)[:2]:
        for row, wanted in zip(x, y, strict=True):
            loop.model.zero_grad()
            cross_entropy(loop.model(row[None]), wanted[None]).backward()
            for square, p in zip(found, loop.model.parameters(), strict=True):
                square += p.grad**2 if p.grad is not None else 0
    loop.model.zero_grad()


@pytest.mark.parametrize("loader", [False, True])
def test_what_no_step_misses_was_not_meant_for_one(loader: bool) -> None:
    result, ratios = train(nothing, after=fisher, loader=loader)
    assert ratios == pytest.approx([1.0] * WINDOWS)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert not any("rejected" in note for note in result.notes)


CONTINUAL = """\
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()

def fit(batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

def squares(batches):
    found = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in batches:
        model.zero_grad()
        criterion(model(x), y).backward()
        for square, p in zip(found, model.parameters()):
            square += p.grad.detach() ** 2
    model.zero_grad()

fit([(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(7)])
squares([(torch.randn(1, 4), torch.randint(0, 3, (1,))) for _ in range(9)])
fit([(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(6)])
"""


def test_what_a_second_optimizer_uses_up_is_no_remainder_of_the_first(tmp_path: Path) -> None:
    result = watch_source(CONTINUAL, tmp_path)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert not any("rejected" in note for note in result.notes)
    assert lint_source(CONTINUAL, "train.py") == []


def test_micro_batches_of_a_place_of_their_own_that_windows_lack_are_missed(tmp_path: Path) -> None:
    """The first of each window go back at another line, as they do outside no_sync(), and are cleared every time."""
    lines = [
        "for i, (x, y) in enumerate(loader):",
        "    optimizer.zero_grad()",
        "    if (i + 1) % 3:",
        "        (criterion(model(x), y) / 3).backward()",
        "    else:",
        "        (criterion(model(x), y) / 3).backward()",
        "        optimizer.step()",
    ]
    head = CONTINUAL.partition("\ndef ")[0] + "\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    head += "loader = [(torch.randn(5, 4), torch.randint(0, 3, (5,))) for _ in range(9)]\n"
    result = watch_source(head + "\n".join(lines) + "\n", tmp_path)
    assert result.verdict is Verdict.DEVIATES
    assert "GA201" in {d.mistake.code for d in result.diagnosis}


# Data whose gradient is sought: nothing in the weights is meant, unless it is divided for the window as well.


def sampled(loop: Loop, batch: Batch, *, asks: bool = False, divided: bool = False, clears: bool = False) -> None:
    x = batch[0].clone().requires_grad_(True)
    for _ in range(2):
        energy = loop.model(x).logsumexp(1).sum() / (K if divided else 1)
        if asks:
            (gradient,) = torch.autograd.grad(energy, x)
        else:
            energy.backward()
            gradient = x.grad if x.grad is not None else torch.zeros_like(x)
        x = (x - 0.1 * gradient).detach().requires_grad_(True)
    if clears:
        loop.optimizer.zero_grad()


def test_what_was_sent_back_for_the_gradient_of_data_is_a_leak() -> None:
    result, ratios = train(sampled)
    assert min(abs(ratio - 1.0) for ratio in ratios) > 0.1
    assert result.verdict is Verdict.DEVIATES
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)
    assert [(d.mistake.code, d.windows) for d in result.diagnosis] == [("GA204", tuple(range(WINDOWS)))]


def test_a_gradient_of_data_that_is_asked_for_leaves_nothing() -> None:
    result, ratios = train(lambda loop, batch: sampled(loop, batch, asks=True))
    assert ratios == pytest.approx([1.0] * WINDOWS)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_training_on_the_clean_batch_and_on_the_adversarial_one_is_meant() -> None:
    torch.manual_seed(1)
    with observe() as observation:
        loop = Loop()
        for i, (x, y) in enumerate(drawn()):
            own = x.clone().requires_grad_(True)
            (0.5 * cross_entropy(loop.model(own), y) / K).backward()
            assert own.grad is not None
            adversarial = (own + 0.1 * own.grad.sign()).detach()
            (0.5 * cross_entropy(loop.model(adversarial), y) / K).backward()
            if (i + 1) % K == 0:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
    result = observation.result()
    assert not result.diagnosis, result.reason
    assert result.verdict is not Verdict.DEVIATES


# Two networks: what flows through both is the other's where a loss of its own keeps them apart.


def pair(*, cut: bool, how: str = "detach") -> tuple[VerifyResult, list[float]]:
    """A reader of codes is trained on a maker's output, and the maker through the reader, in one window."""
    torch.manual_seed(1)
    ratios = []
    with observe() as observation:
        maker, reader = nn.Linear(4, 6), Loop(nn.Linear(6, 3))
        of_maker = torch.optim.SGD(maker.parameters(), lr=0.05)
        for i, (x, y) in enumerate(drawn()):
            code = maker(x)
            if cut and how == "detach":
                code = code.detach()
            elif cut:
                with torch.no_grad():
                    code = maker(x)
            (cross_entropy(reader.model(code), y) / K).backward()
            (0.7 * mse_loss(reader.model(maker(x)), torch.zeros(ROWS, 3)) / K).backward()
            if (i + 1) % K == 0:
                xs, ys = (torch.cat(own) for own in zip(*drawn()[i + 1 - K : i + 1], strict=True))
                weights = list(reader.model.parameters())
                with torch.no_grad():
                    codes = maker(xs)
                true = torch.autograd.grad(cross_entropy(reader.model(codes), ys), weights)
                got = [p.grad for p in weights if p.grad is not None]
                norm, due = (torch.cat([g.flatten() for g in each]).norm() for each in (got, true))
                ratios.append(float(norm / due))
                reader.optimizer.step()
                of_maker.step()
                reader.optimizer.zero_grad()
                of_maker.zero_grad()
    return observation.result(), ratios


@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_a_loss_that_is_cut_off_from_a_network_keeps_that_networks_losses_out(how: str) -> None:
    result, ratios = pair(cut=True, how=how)
    assert min(abs(ratio - 1.0) for ratio in ratios) > 0.05
    assert result.verdict is Verdict.DEVIATES
    assert {d.mistake.code for d in result.diagnosis} == {"GA204"}
    assert [w.grad_norm_ratio for w in result.windows][::2] == pytest.approx(ratios)


def test_two_losses_that_flow_through_two_networks_are_meant_for_both() -> None:
    result, _ = pair(cut=False)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_a_network_that_is_cut_off_first_and_trained_along_later_is_meant() -> None:
    """A head is trained on the features of an encoder as it is, and then both of them together."""
    torch.manual_seed(1)
    with observe() as observation:
        encoder, head = nn.Linear(4, 6), nn.Linear(6, 3)
        optimizers = [torch.optim.SGD(own.parameters(), lr=0.05) for own in (head, encoder)]
        for i, (x, y) in enumerate(drawn()):
            with torch.no_grad():
                features = encoder(x)
            (cross_entropy(head(features), y) / K).backward()
            if (i + 1) % K == 0:
                optimizers[0].step()
                optimizers[0].zero_grad()
        for i, (x, y) in enumerate(drawn()):
            (cross_entropy(head(encoder(x)), y) / K).backward()
            if (i + 1) % K == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_training_on_data_whose_gradient_is_read_is_meant_where_nothing_else_is() -> None:
    """A perturbation of the data is trained along with the weights, before batches are accumulated."""
    torch.manual_seed(1)
    with observe() as observation:
        loop, shift = Loop(), torch.zeros(ROWS, 4)
        for x, y in drawn(2):
            own = (x + shift).requires_grad_(True)
            cross_entropy(loop.model(own), y).backward()
            assert own.grad is not None
            shift = shift + 0.1 * own.grad.sign()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        for i, (x, y) in enumerate(drawn()):
            (cross_entropy(loop.model(x), y) / K).backward()
            if (i + 1) % K == 0:
                loop.optimizer.step()
                loop.optimizer.zero_grad()
    result = observation.result()
    assert "GA204" not in {d.mistake.code for d in result.diagnosis}
    assert result.verdict is not Verdict.DEVIATES
