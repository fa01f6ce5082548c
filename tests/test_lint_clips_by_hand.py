"""GA401 on gradients that the source's own code clips: by a number that it has computed from these gradients."""

from __future__ import annotations

import pytest
from loops_with_places import codes_in, filled

from gradcheck_accum.lint import lint_source

LOOP = """\
import math
import torch
import torch.nn.functional as F


def bound_all(parameters, limit, norm_type=2.0, apply=True):
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    grads = [p.grad for p in parameters if p.grad is not None]
    if len(grads) == 0:
        return torch.tensor(0.0)
    if norm_type == math.inf:
        norms = [g.detach().abs().max() for g in grads]
        total = norms[0] if len(norms) == 1 else torch.max(torch.stack(norms))
    else:
        total = torch.norm(torch.stack([torch.norm(g.detach(), norm_type) for g in grads]), norm_type)
    if apply:
        ratio = torch.clamp(limit / (total + 1e-6), max=1.0)
        for g in grads:
            g.detach().mul_(ratio.to(g.device))
    return total


def bound_each(net, limit):
    for _, p in net.named_parameters():
        if p.grad is not None:
            size = p.grad.data.norm(2)
            ratio = limit / (size + 1e-6)
            if ratio < 1:
                p.grad.data.mul_(ratio)


def measured(parameters):
    total = 0.0
    for p in parameters:
        if p.grad is not None:
            total += p.grad.detach().norm(2).item() ** 2
    return total**0.5


def train(net, loader, optimizer, K, warm):
    for step, (x, t) in enumerate(loader):
        loss = F.mse_loss(net(x), t) / K
        loss.backward()
        {each}
        if (step + 1) % K == 0:
            {inside}
            optimizer.step()
            optimizer.zero_grad()
"""

CLIPS = [
    "bound_all(net.parameters(), 1.0)",
    "bound_all(net.parameters(), 1.0, apply=step >= warm)",
    "bound_each(net, 3.0)",
    "scale = min(1.0, 1.0 / measured(net.parameters()))"
    "; torch._foreach_mul_([p.grad for p in net.parameters()], scale)",
    "norm = measured(net.parameters()); scale = 1.0 / norm if norm > 1.0 else 1.0"
    "; [p.grad.mul_(scale) for p in net.parameters()]",
    "norm = measured(net.parameters()); [p.grad.div_(norm) for p in net.parameters()]",
]


@pytest.mark.parametrize("clip", CLIPS)
def test_it_is_a_clip_wherever_it_is(clip: str) -> None:
    assert codes_in(filled(LOOP, each=clip)) == ["GA401", "GA301"]
    assert codes_in(filled(LOOP, inside=clip)) == ["GA301"]


@pytest.mark.parametrize(
    "measure",
    [
        "print(measured(net.parameters()))",
        "norm = bound_all(net.parameters(), 1.0, apply=False)",
        "norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm(); print(norm)",
    ],
)
def test_a_norm_that_is_only_measured_is_no_clip(measure: str) -> None:
    assert codes_in(filled(LOOP, each=measure)) == ["GA301"]


def test_a_condition_on_the_norm_decides_on_a_statement_that_writes_gradients() -> None:
    clip = """norm = measured(net.parameters())
        if norm > 1.0:
            for p in net.parameters(): p.grad {} 1.0"""
    for operator in ("*= 1.0 / norm *", "/= norm *"):
        assert codes_in(filled(LOOP, each=clip.format(operator))) == ["GA401", "GA301"]


def test_it_is_reported_where_the_function_is_called_that_does_nothing_else() -> None:
    source = filled(LOOP, each="bound_each(net, 3.0)")
    (found,) = [f for f in lint_source(source, "train.py") if f.mistake.code == "GA401"]
    assert found.text == "bound_each(net, 3.0)"


def test_a_division_by_k_is_none() -> None:
    divided = "[p.grad.div_(K) for p in net.parameters()]; bound_each(net, 3.0)"
    plain = LOOP.replace("F.mse_loss(net(x), t) / K", "F.mse_loss(net(x), t)")
    assert codes_in(filled(plain, inside=divided)) == ["GA301"]
