"""verify on copies of a model that have its trained weights, and compute the same of them or not.

K is 3. The truth is the gradient of the mean over a window's rows, of the model itself, by `torch.func`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, WINDOWS = 3, 4, 3


class Settings:
    """What a network is made by."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.names = ["a", "b"]


class Network(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.settings = Settings(scale)
        self.register_buffer("mean", torch.zeros(5))
        self.base = nn.Linear(5, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6, affine=False).eval()
        self.inner = nn.GRU(6, 6)
        self.head = nn.Linear(6, 2)
        self.shift = torch.zeros(6)
        self.seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.tanh(self.base(x - self.mean)))
        self.seen = self.head(self.inner(hidden[None])[0][0] + self.shift)
        return self.seen * self.settings.scale


Prepare = Callable[[Network, Network, int, int], object]


def frozen_apart(model: Network, worker: Network, window: int, turn: int) -> None:
    with torch.no_grad():
        worker.base.weight.add_(0.5)


def mean_moves(model: Network, worker: Network, window: int, turn: int) -> None:
    """The model's own statistics go on in the middle of a window; the copy's are those of its beginning."""
    if turn == 1:
        model.mean.add_(0.3)


def mean_replaced(model: Network, worker: Network, window: int, turn: int) -> None:
    model.mean = torch.full((5,), 0.1 * (turn + 1))
    worker.mean = torch.full((5,), 0.1)


def mean_of_window(model: Network, worker: Network, window: int, turn: int) -> None:
    if turn == 0:
        model.mean.copy_(torch.full((5,), 0.1 * window))


def mean_moves_by_data(model: Network, worker: Network, window: int, turn: int) -> None:
    if turn == 0:
        model.mean.data.add_(0.3)


def setting(model: Network, worker: Network, window: int, turn: int) -> None:
    worker.settings.scale = 0.5


def own_tensor(model: Network, worker: Network, window: int, turn: int) -> None:
    worker.shift = torch.full((6,), 0.2)


def mode(model: Network, worker: Network, window: int, turn: int) -> None:
    worker.norm.train()


def hook(model: Network, worker: Network, window: int, turn: int) -> None:
    if turn == 0 and window == 0:
        worker.head.register_forward_hook(lambda module, given, out: out * 0.5)


def frozen_in_the_copy(model: Network, worker: Network, window: int, turn: int) -> None:
    worker.head.bias.requires_grad_(False)


def another_forward(model: Network, worker: Network, window: int, turn: int) -> None:
    worker.head.forward = lambda x: nn.functional.linear(x, worker.head.weight)  # type: ignore[method-assign]


def both(change: Prepare) -> Prepare:
    """What is done to the copy, done to the model as well."""

    def prepare(model: Network, worker: Network, window: int, turn: int) -> None:
        change(worker, model, window, turn)
        change(model, worker, window, turn)

    return prepare


def nothing(model: Network, worker: Network, window: int, turn: int) -> None:
    """The copy stays what it was made."""


def watched(prepare: Prepare, made: str = "once") -> tuple[VerifyResult, float]:
    """The result, and the largest relative error of a step's gradient."""
    torch.manual_seed(1)
    model = Network()
    optimizer = torch.optim.SGD([*model.inner.parameters(), *model.head.parameters()], lr=0.1)
    worker = copy.deepcopy(model)
    errors: list[float] = []
    with observe() as observation:
        for window in range(WINDOWS):
            data = [(torch.randn(ROWS, 5), torch.randn(ROWS, 2)) for _ in range(K)]
            trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
            true = {n: torch.zeros_like(p) for n, p in trained.items()}
            if made == "each window":
                worker = copy.deepcopy(model)
            worker.load_state_dict(model.state_dict())
            worker.zero_grad()
            for turn, (x, y) in enumerate(data):
                prepare(model, worker, window, turn)

                def loss(w: dict[str, torch.Tensor], x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                    return mse_loss(functional_call(copy.deepcopy(model), w, (x,)), y) / K

                own = torch.func.grad(loss)({n: p.detach().clone() for n, p in trained.items()})
                true = {n: true[n] + own[n] for n in true}
                (mse_loss(worker(x), y) / K).backward()
            got = {n: p.grad for n, p in worker.named_parameters()}
            for name, p in trained.items():
                given = got[name]
                p.grad = None if given is None else given.clone()
            apart = [p.grad - true[n] if p.grad is not None else true[n] for n, p in trained.items()]
            whole = torch.cat([t.flatten() for t in true.values()]).norm()
            errors.append(float(torch.cat([a.flatten() for a in apart]).norm() / whole))
            optimizer.step()
    return observation.result(), max(errors)


@pytest.mark.parametrize(
    "prepare",
    [
        frozen_apart,
        mean_moves,
        mean_replaced,
        setting,
        own_tensor,
        mode,
        hook,
        frozen_in_the_copy,
        another_forward,
    ],
)
def test_a_copy_that_computes_otherwise_stands_for_nothing(prepare: Prepare) -> None:
    result, error = watched(prepare)
    assert error > 1e-3
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason


def test_what_a_copy_lacks_is_stated() -> None:
    result, _ = watched(setting)
    assert "computes the same" in result.reason


def test_what_is_written_past_the_versions_is_seen_in_the_next_window() -> None:
    result, error = watched(mean_moves_by_data, made="each window")
    assert error > 1e-3
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason


@pytest.mark.parametrize("made", ["once", "each window"])
@pytest.mark.parametrize("prepare", [nothing, both(setting), both(own_tensor), both(mean_of_window)])
def test_a_copy_that_computes_the_same_is_read(prepare: Prepare, made: str) -> None:
    result, error = watched(prepare, made)
    assert error < 1e-12
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
