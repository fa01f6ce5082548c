"""compare on what a step does to the weights, where the gradient that it is given is equal.

The errors that are expected are those of float64 arithmetic on the large batch, written out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.report.compare_text import compare_text
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Verdict

pytestmark = pytest.mark.usefixtures("in_float64")

Make = Callable[[nn.Module, int], Optimizer | list[Optimizer]]
RATE = 0.3


class Shifted(nn.Module):
    """Three logits, and one number that is added to all of them: its gradient is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.shift


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    return torch.randn(count, 4), torch.randint(0, 3, (count,))


def compare(
    make: Make,
    count: int = 45,
    of: Sequence[tuple[int, int]] = ((5, 3), (15, 1)),
    clips: dict[int, float] | None = None,
    **how: Any,
) -> CompareResult:
    """A right loop with the optimizers that ``make`` makes for each K, one or several; it ``clips`` to a norm by K."""
    x, y = rows(count)

    def train(loader: list[tuple[torch.Tensor, torch.Tensor]], accumulation_steps: int) -> None:
        model = Shifted()
        made = make(model, accumulation_steps)
        optimizers = [made] if isinstance(made, Optimizer) else made
        for i, (rows_, labels) in enumerate(loader):
            (nn.functional.cross_entropy(model(rows_), labels) / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                if clips and accumulation_steps in clips:
                    nn.utils.clip_grad_norm_(model.parameters(), clips[accumulation_steps])
                for optimizer in optimizers:
                    optimizer.step()
                model.zero_grad()

    each = [dict(loader=list(zip(x.split(b), y.split(b), strict=True)), accumulation_steps=k) for b, k in of]
    return compared_loop(train, each, **how)


def gradient() -> torch.Tensor:
    """The gradient of the first 15 rows at the first weights, without that of the shift."""
    model = Shifted()
    x, y = rows(45)
    loss = nn.functional.cross_entropy(model(x[:15]), y[:15])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.linear.parameters()))])


def weights() -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in Shifted().linear.parameters()])


def errors(result: CompareResult) -> list[float | None]:
    (one,) = result.compared
    return [step.param_rel_error for step in one.steps]


def said(result: CompareResult) -> list[tuple[str, str]]:
    (one,) = result.compared
    return [(each.kind, each.message) for each in one.differences]


def sgd(model: nn.Module, k: int) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def adam(model: nn.Module, k: int) -> Optimizer:
    """Where a gradient is rounding alone, it moves the weight by a whole learning rate."""
    return torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-30)


@pytest.mark.parametrize(
    "make",
    [
        sgd,
        lambda model, k: torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1),
        # Two implementations of one optimizer.
        lambda model, k: torch.optim.AdamW(model.parameters(), lr=RATE, foreach=k > 1),
        lambda model, k: torch.optim.RMSprop(model.parameters(), lr=0.01, centered=True),
    ],
)
def test_equal_updates_are_equal(make: Make) -> None:
    result = compare(make)
    assert (result.verdict, result.exit_status, said(result)) == (Verdict.EQUIVALENT, 0, [])
    assert all(error is not None and error < 1e-6 for error in errors(result))


def test_an_update_of_rounding_alone_is_no_difference() -> None:
    """The look-alike: the updates are far apart, and each is what Adam makes of its own rounding."""
    result = compare(adam, count=150)
    assert max(error or 0.0 for error in errors(result)) > 0.01
    assert (result.exit_status, said(result)) == (0, [])
    assert not result.compared[0].notes


def test_another_weight_decay_is_said_and_its_update_is_as_far_off_as_arithmetic_says() -> None:
    def decaying(model: nn.Module, k: int) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=0.1 if k == 1 else 0.5)

    result = compare(decaying)
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 1)
    assert said(result) == [
        ("optimizer", "step 0 uses weight_decay=0.5, the reference weight_decay=0.1 (3 of 3 steps)")
    ]
    off = 0.4 * weights()
    assert errors(result)[0] == pytest.approx(float(off.norm() / (gradient() + 0.1 * weights()).norm()), rel=1e-9)
    assert "step 0 uses weight_decay=0.5" in compare_text(result)
    assert "update" in compare_text(result).split("compared:")[1]


def test_another_momentum_moves_the_weights_only_from_the_second_step_on() -> None:
    def heavy(model: nn.Module, k: int) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9 if k == 1 else 0.0)

    result = compare(heavy)
    assert said(result) == [("optimizer", "step 0 uses momentum=0.0, the reference momentum=0.9 (3 of 3 steps)")]
    first, second, _ = errors(result)
    assert first is not None and first < 1e-12
    assert second is not None and second > 0.1


def test_a_learning_rate_alone_is_said_once() -> None:
    result = compare(lambda model, k: torch.optim.SGD(model.parameters(), lr=RATE * k))
    assert [kind for kind, _ in said(result)] == ["learning rate"]
    # |3 lr g - lr g| / |lr g|
    assert errors(result) == pytest.approx([2.0] * 3, rel=1e-9)


def clipping_in_a_hook(limits: dict[int, float]) -> Make:
    """An optimizer that clips to the limit of K when its step is entered, after whoever else looks at it then."""

    def make(model: nn.Module, k: int) -> Optimizer:
        optimizer = sgd(model, k)
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), limits[k]) and None)
        return optimizer

    return make


def test_a_clip_inside_the_step_of_one_of_them_is_another_update_of_the_same_gradient() -> None:
    result = compare(clipping_in_a_hook({1: 1e9, 3: 0.01}))
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 1)
    short = 0.01 / float(gradient().norm())
    assert errors(result)[0] == pytest.approx(1 - short, rel=1e-3)
    ((kind, message),) = said(result)
    assert kind == "update"
    assert message.startswith(
        "step 0 makes another update of the same gradient: it differs from the reference's by 0.9"
    )
    assert message.endswith("times as long (3 of 3 steps)")


def test_the_same_clip_inside_both_steps_is_no_difference() -> None:
    result = compare(clipping_in_a_hook({1: 0.01, 3: 0.01}))
    assert (result.exit_status, said(result)) == (0, [])


def test_another_optimizer_is_named() -> None:
    def other(model: nn.Module, k: int) -> Optimizer:
        return sgd(model, k) if k == 1 else torch.optim.AdamW(model.parameters(), lr=RATE)

    result = compare(other)
    assert said(result) == [("optimizer", "step 0 is made by AdamW, that of the reference by SGD")]
    assert result.exit_status == 1


def test_a_second_optimizer_of_one_of_them_is_named() -> None:
    def with_another(model: nn.Module, k: int) -> list[Optimizer]:
        return [sgd(model, k), *([torch.optim.Adagrad(model.parameters(), lr=RATE)] if k > 1 else [])]

    result = compare(with_another)
    assert said(result) == [("optimizer", "step 1 is made by Adagrad, which makes no step in the reference")]


def test_only_the_first_update_is_compared_where_each_trains_its_own_weights() -> None:
    result = compare(sgd, free=True)
    first, *later = errors(result)
    assert first is not None and first < 1e-9
    assert later == [None, None]


@pytest.mark.parametrize("clips", [{3: 0.01}, {1: 10.0, 3: 0.01}])
def test_a_clip_of_one_of_them_is_said_of_the_gradient_after_it(clips: dict[int, float]) -> None:
    """The reference clips nothing, or to a norm that is never reached: its update is as long as its gradient."""
    result = compare(lambda model, k: torch.optim.SGD(model.parameters(), lr=RATE), clips=clips)
    assert result.verdict is Verdict.DEVIATES
    (one,) = result.compared
    assert [step.reason for step in one.steps] == ["the gradient differs after clipping, but not before it"] * 3
    assert errors(result)[0] == pytest.approx(1 - 0.01 / float(gradient().norm()), rel=1e-3)
