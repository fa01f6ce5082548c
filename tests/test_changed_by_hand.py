"""Gradients that a loop changes itself before its step, and weights that it updates without an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K = 4
Weights = Sequence[nn.Parameter]
Change = Callable[[Weights], None]
Batches = list[tuple[Tensor, Tensor]]


def nothing(weights: Weights) -> None:
    pass


def noise(weights: Weights) -> None:
    for p in weights:
        p.grad.add_(torch.randn_like(p), alpha=0.1)


def noise_in_data(weights: Weights) -> None:
    for p in weights:
        p.grad.data += 0.1 * torch.randn_like(p)


def noise_assigned(weights: Weights) -> None:
    for p in weights:
        p.grad = p.grad + 0.1 * torch.randn_like(p)


def noise_then_mean(weights: Weights) -> None:
    noise(weights)
    for p in weights:
        p.grad.div_(K)


def mean_then_centralized(weights: Weights) -> None:
    for p in weights:
        p.grad /= K
        if p.dim() > 1:
            p.grad -= p.grad.mean(dim=1, keepdim=True)


def layer_by_layer(weights: Weights) -> None:
    for depth, p in enumerate(weights):
        p.grad.mul_(0.7**depth)


def signs(weights: Weights) -> None:
    for p in weights:
        p.grad.sign_()


def some_left_out(weights: Weights) -> None:
    weights[0].grad[0] = 0
    weights[-1].grad = None


def clipped_then_noise(weights: Weights) -> None:
    nn.utils.clip_grad_norm_(weights, 0.1)
    noise(weights)


def model_and_batches(count: int) -> tuple[nn.Module, Batches]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    return model, [(torch.randn(3, 5).double(), torch.randn(3, 2).double()) for _ in range(count)]


def watched(
    change: Change, *, scaled: bool = True, each: Change = nothing, count: int = 3 * K, zeroes: str = "after"
) -> VerifyResult:
    """The verdict on a loop that does ``change`` before its step, and ``each`` after every micro-batch."""
    model, batches = model_and_batches(count)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / (K if scaled else 1)).backward()
            each(weights)
            if (i + 1) % K == 0:
                change(weights)
                optimizer.step()
                if zeroes == "after":
                    optimizer.zero_grad()
            elif zeroes == "each":
                optimizer.zero_grad()
    return watch.result()


def error_of_the_first_window(scale: float) -> float:
    """How far ``scale`` times the sum of the first K micro-batches' gradients is from one batch's, by arithmetic."""
    model, batches = model_and_batches(K)
    weights = list(model.parameters())
    x, y = (torch.cat(part) for part in zip(*batches, strict=True))
    whole = torch.autograd.grad(nn.functional.mse_loss(model(x), y), weights)
    own = [torch.autograd.grad(nn.functional.mse_loss(model(x), y), weights) for x, y in batches]
    apart = [scale * sum(parts) - g for *parts, g in zip(*own, whole, strict=True)]
    return float(torch.cat([a.flatten() for a in apart]).norm() / torch.cat([g.flatten() for g in whole]).norm())


@pytest.mark.parametrize(
    ("change", "scaled"),
    [
        (noise, True),
        (noise_in_data, True),
        (noise_assigned, True),
        (noise_then_mean, False),
        (mean_then_centralized, False),
        (layer_by_layer, True),
        (signs, True),
        (some_left_out, True),
        (clipped_then_noise, True),
    ],
)
def test_what_is_done_to_whole_gradients_is_the_objectives(change: Change, scaled: bool) -> None:
    assert error_of_the_first_window(1 / K) < 1e-12
    result = watched(change, scaled=scaled)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert [window.grad_rel_error < 1e-12 for window in result.windows] == [True] * 3
    assert all(window.param_rel_error is None for window in result.windows), "the update is not compared"
    assert any("modified manually before 3 steps" in note and "is not checked" in note for note in result.notes)


@pytest.mark.parametrize(("change", "code"), [(noise, "GA101"), (noise_in_data, "GA101")])
def test_an_addition_makes_up_for_no_missing_division(change: Change, code: str) -> None:
    result = watched(change, scaled=False)
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == [code]
    assert result.windows[0].grad_rel_error == pytest.approx(error_of_the_first_window(1.0))


@pytest.mark.parametrize("change", [signs, layer_by_layer, noise_assigned, some_left_out])
def test_other_changes_may_make_up_for_a_scale(change: Change) -> None:
    """Signs of a sum are those of the mean, and a layer's factor may contain 1/K: neither a mistake, nor right."""
    result = watched(change, scaled=False)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "each micro-batch is weighted 4x in .grad" in result.reason


@pytest.mark.parametrize("each", [noise, noise_in_data, layer_by_layer])
def test_a_change_after_every_micro_batch_is_not_the_large_batchs(each: Change) -> None:
    result = watched(nothing, each=each)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "modified manually" in result.reason


def test_a_change_that_may_depend_on_single_micro_batches_is_not_followed() -> None:
    norms: list[list[Tensor]] = []

    def by_norms(weights: Weights) -> None:
        for p, *own in zip(weights, *norms, strict=True):
            p.grad.div_(sum(own))
        norms.clear()

    result = watched(by_norms, each=lambda weights: norms.append([p.grad.norm() for p in weights]))
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())


def test_a_change_that_may_depend_on_what_a_hook_saw_is_not_followed() -> None:
    model, batches = model_and_batches(3 * K)
    weight, seen = model[0].weight, []
    weight.register_hook(lambda gradient: seen.append(gradient.square()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / K).backward()
            if (i + 1) % K == 0:
                weight.grad.div_(sum(seen).sqrt() + 1e-3)
                optimizer.step()
                optimizer.zero_grad()
                seen.clear()
    assert (watch.result().verdict, watch.result().diagnosis) == (Verdict.INCONCLUSIVE, ())


def test_other_mistakes_beside_noise_are_found() -> None:
    lost = watched(noise, count=3 * K + 2)
    assert (lost.verdict, [d.mistake.code for d in lost.diagnosis]) == (Verdict.DEVIATES, ["GA301"])
    kept = watched(noise, zeroes="never")
    assert (kept.verdict, [d.mistake.code for d in kept.diagnosis]) == (Verdict.DEVIATES, ["GA203"])
    cleared = watched(noise, zeroes="each")
    assert cleared.verdict is Verdict.INCONCLUSIVE, "what was cleared may have been put back"


def updated_by_hand(
    *,
    scaled: bool = True,
    divides: float = 1.0,
    count: int = 3 * K,
    clears: str = "after",
    reference: str | None = None,
) -> VerifyResult:
    """The verdict on a loop with momentum of its own, and no optimizer."""
    model, batches = model_and_batches(count)
    velocities = [torch.zeros_like(p) for p in model.parameters()]
    with observe(reference=reference) as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / (K if scaled else 1)).backward()
            is_full = (i + 1) % K == 0
            with torch.no_grad():
                for p, v in zip(model.parameters(), velocities, strict=True):
                    if is_full:
                        v.mul_(0.9).add_(p.grad / divides)
                        p -= 0.1 * v
                    if clears == "each" or (is_full and clears == "after"):
                        p.grad = None
    return watch.result()


@pytest.mark.parametrize("reference", [None, "ledger"])
def test_an_update_without_an_optimizer_is_compared(reference: str | None) -> None:
    result = updated_by_hand(reference=reference)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert [(w.micro_batches, w.grad_rel_error < 1e-12) for w in result.windows] == [(K, True)] * 3


@pytest.mark.parametrize(
    ("count", "clears", "code"), [(14, "after", "GA301"), (12, "never", "GA203"), (12, "each", "GA201")]
)
def test_mistakes_before_an_update_without_an_optimizer_are_found(count: int, clears: str, code: str) -> None:
    result = updated_by_hand(count=count, clears=clears)
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (Verdict.DEVIATES, [code])


def decayed(weights: Weights) -> None:
    for p in weights:
        p.mul_(0.99)


def clamped(weights: Weights) -> None:
    for p in weights:
        p.data = p.data.clamp(-0.3, 0.3)


def descended(weights: Weights) -> None:
    for p in weights:
        p -= 0.1 * p.grad
        p.grad = None


@pytest.mark.parametrize("other", [decayed, clamped])
def test_a_write_that_uses_no_gradient_is_no_step(other: Change) -> None:
    """The gradient is compared at the weights that it was computed with, though they are changed before the update."""
    model, batches = model_and_batches(3 * K)
    weights = list(model.parameters())
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / K).backward()
            if (i + 1) % K == 0:
                with torch.no_grad():
                    other(weights)
                    descended(weights)
                    other(weights)
    result = watch.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert [(w.micro_batches, w.optimizer) for w in result.windows] == [(K, "by hand")] * 3
    assert {w.line for w in result.windows} == {descended.__code__.co_firstlineno + 2}


@pytest.mark.parametrize("divides", [1.0, K])
def test_what_a_loop_adds_up_itself_is_not_lost(divides: float) -> None:
    """Without an optimizer, and with sums in tensors of its own: .grad holds the last micro-batch's alone."""
    model, batches = model_and_batches(3 * K)
    weights = list(model.parameters())
    sums = [torch.zeros_like(p) for p in weights]
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / divides).backward()
            for p, total in zip(weights, sums, strict=True):
                total += p.grad
                p.grad = None
            if (i + 1) % K == 0:
                with torch.no_grad():
                    for p, total in zip(weights, sums, strict=True):
                        p -= 0.1 * total
                        total.zero_()
    result = watch.result()
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())


@pytest.mark.parametrize("divides", [1.0, K])
def test_a_division_in_the_update_itself_is_not_seen(divides: float) -> None:
    result = updated_by_hand(scaled=False, divides=divides)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "each micro-batch is weighted 4x in .grad" in result.reason


@pytest.mark.parametrize("reference", [None, "ledger"])
@pytest.mark.parametrize(("scaled", "divides"), [(True, 1.0), (False, K), (False, 1.0)])
def test_an_optimizer_that_only_clears_leaves_the_update_to_the_loop(
    scaled: bool, divides: float, reference: str | None
) -> None:
    """Judged as without one: where the division is, or whether there is any, does not show in .grad."""
    model, batches = model_and_batches(3 * K)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(reference=reference) as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / (K if scaled else 1)).backward()
            if (i + 1) % K == 0:
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * p.grad / divides
                optimizer.zero_grad()
    result = watch.result()
    assert (result.verdict is Verdict.EQUIVALENT, result.diagnosis) == (scaled, ())
    assert [(w.micro_batches, w.optimizer) for w in result.windows] == [(K, "by hand")] * 3
    assert scaled or "each micro-batch is weighted 4x in .grad" in result.reason


def test_an_optimizer_that_is_made_after_a_trial_backward_has_no_update_by_hand_beside_it() -> None:
    model, batches = model_and_batches(3 * K)
    with observe() as watch:
        model(batches[0][0]).sum().backward()
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / K).backward()
            if (i + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = watch.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert [window.optimizer for window in result.windows] == ["SGD"] * 3
