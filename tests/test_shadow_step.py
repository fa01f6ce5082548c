"""The copy of an optimizer that steps with the reference gradient, and what a watched run leaves behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from gradcheck_accum.verify import observe
from gradcheck_accum.verify.measure.shadow_step import ShadowStep


class Buffered(Optimizer):
    """Steps by a running sum, whose pieces are parts of one buffer, and doubles it as a whole."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})
        own = self.param_groups[0]["params"]
        buffer = torch.zeros(sum(p.numel() for p in own))
        start = 0
        for parameter in own:
            self.state[parameter]["buffer"] = buffer
            self.state[parameter]["sum"] = buffer[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        own = self.param_groups[0]["params"]
        for parameter in own:
            self.state[parameter]["sum"].add_(parameter.grad)
        self.state[own[0]]["buffer"].mul_(2)
        for parameter in own:
            parameter.sub_(self.state[parameter]["sum"])


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.1),
        Buffered,
    ],
    ids=["momentum", "Adam", "one buffer"],
)
def test_the_copy_steps_as_the_optimizer_would_and_leaves_it_alone(
    make: Callable[[Iterable[torch.Tensor]], Optimizer],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = make(model.parameters())
    parameters = list(model.parameters())
    for turn in range(3):
        gradients = [torch.randn_like(p) for p in parameters]
        shadow = ShadowStep.prepare(optimizer, parameters, gradients)
        assert shadow is not None
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone() if turn < 2 else 2 * gradient
        optimizer.step()
        update = shadow.finish()
        # The same gradient makes the same update; twice the gradient makes another.
        assert update is not None and update.error is not None
        assert update.error == pytest.approx(0.0, abs=1e-6) if turn < 2 else update.error > 0.1


def test_a_watched_run_is_gone_when_nobody_holds_it() -> None:
    gc.collect()
    gc.disable()
    try:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gone = [weakref.ref(model), weakref.ref(optimizer)]
        with observe(reference="ledger") as observation:
            model(torch.randn(2, 4)).mean().backward()
            optimizer.step()
        observation.result()
        del model, optimizer, observation
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
