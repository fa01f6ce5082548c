"""Optimizers that call their closure several times in a step: each call computes a gradient, and each is compared.

What is expected is plain arithmetic: the gradient of a window's mean loss, at the weights of the call.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from watching import watch_source

LBFGS = """
import torch
torch.manual_seed(0)
K = 3
data = torch.utils.data.TensorDataset(torch.randn(44, 6), torch.randint(0, 5, (44,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5)).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter={calls}, line_search_fn={search})
seen = []

def step(window):
    def closure():
        {clear}
        total = 0.0
        for x, y in window:
            loss = torch.nn.functional.cross_entropy(model(x.double()), y) / {divisor}
            loss.backward()
            total += loss.item()
        seen.append([p.grad.clone() for p in model.parameters()])
        return total
    optimizer.step(closure)

for epoch in range(2):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == K:
            step(window)
            window = []
    if window:
        step(window)
"""


def source(
    *, clear: str = "optimizer.zero_grad()", divisor: str = "len(window)", calls: int = 4, search: str = "None"
) -> str:
    return LBFGS.format(clear=clear, divisor=divisor, calls=calls, search=search)


@pytest.mark.parametrize("search", ["None", "'strong_wolfe'"])
def test_every_call_of_a_right_closure_is_compared(search: str, tmp_path: Path) -> None:
    result = watch_source(source(search=search), tmp_path)
    assert (result.verdict.value, result.diagnosis) == ("equivalent", ())
    # Four windows and two passes; without a search an optimizer calls its closure as often as it iterates.
    steps = len(result.windows)
    assert steps == 32 if search == "None" else steps > 8
    assert all(window.grad_rel_error is not None for window in result.windows)


@pytest.mark.parametrize(
    ("wrong", "code", "ratio"),
    [
        ({"divisor": "1"}, "GA101", 3.0),
        # The last window of each pass holds two micro-batches.
        ({"divisor": "K"}, "GA103", 2 / 3),
    ],
)
def test_a_wrong_scale_shows_at_every_call(wrong: dict[str, str], code: str, ratio: float, tmp_path: Path) -> None:
    result = watch_source(source(**wrong), tmp_path)
    assert result.verdict.value == "deviates"
    assert [d.mistake.code for d in result.diagnosis] == [code]
    short = slice(12, 16) if code == "GA103" else slice(0, 12)
    assert [window.grad_norm_ratio for window in result.windows[short]] == pytest.approx(
        [ratio] * len(range(40)[short])
    )


def test_a_closure_that_never_clears_adds_its_calls_up(tmp_path: Path) -> None:
    result = watch_source(source(clear="pass"), tmp_path)
    assert result.verdict.value == "deviates"
    assert [d.mistake.code for d in result.diagnosis] == ["GA203"]


def test_a_step_that_calls_its_closure_once_is_one_window(tmp_path: Path) -> None:
    result = watch_source(source(calls=1), tmp_path)
    assert (result.verdict.value, len(result.windows)) == ("equivalent", 8)


def test_watching_changes_no_bit_of_what_the_closure_computes(tmp_path: Path) -> None:
    alone: dict[str, list[list[torch.Tensor]]] = {}
    text = source()
    exec(compile(text, "train.py", "exec"), alone)
    watched = watch_source(
        text + "torch.save(seen, 'seen.pt')\n".replace("seen.pt", str(tmp_path / "seen.pt")), tmp_path
    )
    assert watched.verdict.value == "equivalent"
    seen = torch.load(tmp_path / "seen.pt")
    assert len(seen) == len(alone["seen"])
    assert all(
        torch.equal(a, b)
        for own, other in zip(seen, alone["seen"], strict=True)
        for a, b in zip(own, other, strict=True)
    )


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        pytest.param("for p in model.parameters(): p.sub_(p.grad, alpha=0.1)", "never called it", id="own"),
        # The step of PyTorch's class was given no closure, and so used what the backward has computed.
        pytest.param("super().step()", "", id="that of PyTorch's class"),
    ],
)
def test_a_closure_that_is_never_called_leaves_a_step_open_that_is_given_it(
    step: str, reason: str, tmp_path: Path
) -> None:
    text = f"""
import torch
class Deaf(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        {step}
model = torch.nn.Linear(3, 2)
optimizer = Deaf(model.parameters(), lr=0.1)
for _ in range(3):
    torch.nn.functional.mse_loss(model(torch.randn(4, 3)), torch.randn(4, 2)).backward()
    optimizer.step(lambda: 0.0)
    optimizer.zero_grad()
"""
    result = watch_source(text, tmp_path)
    assert result.verdict.value == ("inconclusive" if reason else "equivalent")
    assert reason in (result.reason or "")
