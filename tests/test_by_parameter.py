"""Which parameters a gradient's error is in, against plain arithmetic in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K, ROWS, COEFFICIENT = 3, 5, 0.7


def model_and_data(windows: int = 1) -> tuple[nn.Sequential, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, list(torch.randn(windows * K, ROWS, 3))


def watched(loop: Callable[[], object], **options: object) -> VerifyResult:
    with observe(**options) as observation:  # type: ignore[arg-type]
        loop()
    return observation.result()


def objective(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return COEFFICIENT * model(x).square().mean()


def gradient(model: nn.Module, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """That of the large batch, in float64."""
    twin = copy.deepcopy(model).double()
    return list(torch.autograd.grad(objective(twin, torch.cat(batches).double()), list(twin.parameters())))


def test_the_error_is_in_the_layer_that_is_never_cleared() -> None:
    model, data = model_and_data(windows=2)
    first, second = data[:K], data[K:]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stale: list[torch.Tensor] = []
    right: list[torch.Tensor] = []

    def loop() -> None:
        for window in (first, second):
            stale[:], right[:] = right, gradient(model, window)
            for x in window:
                (objective(model, x) / K).backward()
            optimizer.step()
            model[0].zero_grad()

    result = watched(loop)
    even, uneven = result.windows
    assert (even.verdict, even.by_parameter) == (Verdict.EQUIVALENT, None)
    taken = uneven.by_parameter
    assert taken is not None
    assert taken.parameters == 4
    wrong = [torch.zeros_like(right[0]), torch.zeros_like(right[1]), stale[2], stale[3]]
    total = sum(float(part.square().sum()) for part in wrong)
    expected = {
        name: (float(off.norm() / own.norm()), float(off.square().sum()) / total)
        for (name, _), off, own in zip(model.named_parameters(), wrong, right, strict=True)
    }
    assert [one.name for one in taken.worst][:2] == sorted(["2.weight", "2.bias"], key=lambda n: -expected[n][1])
    assert [one.share for one in taken.worst] == sorted((one.share for one in taken.worst), reverse=True)
    for one in taken.worst:
        error, share = expected[one.name]
        assert one.error == pytest.approx(error, rel=1e-4, abs=1e-6)
        assert one.share == pytest.approx(share, rel=1e-4, abs=1e-9)
    assert {one.name: one.shape for one in taken.worst} == {n: tuple(p.shape) for n, p in model.named_parameters()}


@pytest.mark.parametrize("reference", ["both", "ledger"])
def test_the_optimizer_says_what_no_module_is_known_to(reference: str) -> None:
    weight = torch.ones(3, 2, requires_grad=True)
    unnamed = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([("head", weight)], lr=0.1)
    other = torch.optim.SGD([unnamed], lr=0.1)
    _, data = model_and_data()

    def loop() -> None:
        for x in data:
            (COEFFICIENT * (x @ weight + unnamed).square().mean()).backward()
        optimizer.step()
        other.step()

    result = watched(loop, reference=reference)
    names = [w.by_parameter.worst[0].name for w in result.windows if w.by_parameter is not None]
    assert names == ["head", "parameter 0"]


def test_few_steps_of_a_long_run_are_taken_apart_and_one_is_about_the_worst() -> None:
    windows = 120
    model, data = model_and_data(windows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def loop() -> None:
        for i, x in enumerate(data):
            (objective(model, x) / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()  # never cleared: the error grows from window to window

    result = watched(loop, reference="ledger")
    taken = [w for w in result.windows if w.by_parameter is not None]
    assert 4 <= len(taken) <= 4 + 2 * 6
    worst = max(w.grad_rel_error or 0.0 for w in result.windows)
    assert 1.5 * max(w.grad_rel_error or 0.0 for w in taken) >= worst


def test_a_clip_hides_nothing_of_what_was_wrong_before_it() -> None:
    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    right = gradient(model, data)

    def loop() -> None:
        for x in data:
            objective(model, x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    (window,) = watched(loop).windows
    assert window.by_parameter is not None
    for one in window.by_parameter.worst:
        assert one.error == pytest.approx(K - 1, rel=1e-4)
    largest = max(right, key=lambda g: float(g.norm()))
    assert window.by_parameter.worst[0].shape == tuple(largest.shape)


def test_compare_takes_the_error_apart_beside_the_run_on_large_batches() -> None:
    model, data = model_and_data(windows=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    right, wrong = gradient(model, data[:K]), gradient(model, data[2:K])

    def loop(loader: list[torch.Tensor], k: int) -> None:
        for i, x in enumerate(loader):
            (objective(model, x) / k).backward()
            if k > 1 and i % k == 1:
                model[2].zero_grad()  # of the first window the last micro-batch alone is left in the second layer
            if (i + 1) % k == 0:
                optimizer.step()
                optimizer.zero_grad()

    large = [torch.cat(data[:K]), torch.cat(data[K:])]
    (one,) = compared_loop(loop, [dict(loader=data, k=K), dict(loader=large, k=1)]).compared
    taken = one.steps[0].by_parameter
    assert taken is not None
    assert {part.name for part in taken.worst if part.share > 1e-9} == {"2.weight", "2.bias"}
    expected = {f"2.{name}": i for i, name in ((2, "weight"), (3, "bias"))}
    for part in taken.worst[:2]:
        own = right[expected[part.name]]
        assert part.error == pytest.approx(float((wrong[expected[part.name]] / K - own).norm() / own.norm()), rel=1e-4)
