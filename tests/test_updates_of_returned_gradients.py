"""Updates that a loop makes itself of gradients that torch.autograd.grad returned, against plain arithmetic.

K is 3, a micro-batch has 4 rows (or 4, 2 and 5). What an update uses is measured by arithmetic of its own: of plain
descent, the weights move by the rate times the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, WINDOWS, RATE = 3, 3, 0.3
Batch = tuple[torch.Tensor, torch.Tensor]
Weights = list[torch.Tensor]
Update = Callable[[Weights, list[Batch]], None]
BOTH = pytest.mark.parametrize("reference", ["both", "ledger"])


def weights() -> Weights:
    drawn = torch.Generator().manual_seed(3)
    shapes = (5, 7), (7,), (7, 3), (3,)
    return [(torch.randn(*shape, generator=drawn) / 2).requires_grad_() for shape in shapes]


def batches(rows: Sequence[int] = (4, 4, 4), windows: int = WINDOWS) -> list[list[Batch]]:
    drawn = torch.Generator().manual_seed(4)
    sizes = [list(rows)] * windows
    return [
        [(torch.randn(n, 5, generator=drawn), torch.randint(0, 3, (n,), generator=drawn)) for n in own] for own in sizes
    ]


def loss_of(own: Weights, x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return cross_entropy(torch.tanh(x @ own[0] + own[1]) @ own[2] + own[3], y, reduction=reduction)


def true_gradient(own: Weights, window: list[Batch], reduction: str) -> torch.Tensor:
    twin = [w.detach().clone().requires_grad_() for w in own]
    x, y = torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss_of(twin, x, y, reduction), twin)])


def watched(
    update: Update, windows: list[list[Batch]], reference: str = "both", reduction: str = "mean"
) -> tuple[VerifyResult, list[float]]:
    """The result, and for each window |what the weights moved by| / (rate |g_true|)."""
    own = weights()
    seen = [[w.detach().clone() for w in own]]
    with observe(reference=reference) as observation:
        for window in windows:
            update(own, window)
            seen.append([w.detach().clone() for w in own])
    ratios = []
    for window, before, after in zip(windows, seen, seen[1:], strict=False):
        moved = torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)])
        ratios.append(float(moved.norm() / (RATE * true_gradient(before, window, reduction).norm())))
    return observation.result(), ratios


def running_mean(own: Weights, window: list[Batch]) -> None:
    mean, seen = [torch.zeros_like(w) for w in own], 0
    for x, y in window:
        found = torch.autograd.grad(loss_of(own, x, y), own)
        seen += len(x)
        for m, g in zip(mean, found, strict=True):
            m.lerp_(g, len(x) / seen)
    with torch.no_grad():
        for w, m in zip(own, mean, strict=True):
            w.sub_(m, alpha=RATE)


def summed(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t += g
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w -= RATE * (t / K)


def of_divided_losses(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        total = [t + g for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y) / K, own), strict=True)]
    with torch.no_grad():
        torch._foreach_sub_(own, total, alpha=RATE)


def divided_twice(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y) / K, own), strict=True):
            t += g
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w -= RATE * (t / K)


def by_rows(own: Weights, window: list[Batch]) -> None:
    """Each gradient is weighted by its share of the window's rows."""
    count = sum(len(x) for x, _ in window)
    total: Weights = []
    for x, y in window:
        share = len(x) / count
        found = [share * g for g in torch.autograd.grad(loss_of(own, x, y), own)]
        total = [t + g for t, g in zip(total, found, strict=True)] if total else found
    with torch.no_grad():
        torch._foreach_add_(own, total, alpha=-RATE)


def by_rows_of_another_number(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t.add_(g, alpha=len(x) / 9)
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(RATE * t)


def in_data(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t.add_(g, alpha=1 / len(window))
    for w, t in zip(own, total, strict=True):
        w.data = w.data - RATE * t


def copied(own: Weights, window: list[Batch]) -> None:
    found = [torch.autograd.grad(loss_of(own, x, y) / len(window), own) for x, y in window]
    with torch.no_grad():
        for w, several in zip(own, zip(*found, strict=True), strict=True):
            w.copy_(w - RATE * sum(several))


def without_division(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t += g
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(t, alpha=RATE)


@BOTH
@pytest.mark.parametrize(
    ("update", "rows"),
    [
        (running_mean, (4, 2, 5)),
        (summed, (4, 4, 4)),
        (of_divided_losses, (4, 4, 4)),
        (by_rows, (4, 2, 5)),
        (in_data, (4, 4, 4)),
        (copied, (4, 4, 4)),
    ],
)
def test_a_right_update_is_equivalent(update: Update, rows: tuple[int, ...], reference: str) -> None:
    result, ratios = watched(update, batches(rows), reference)
    assert ratios == pytest.approx([1.0] * WINDOWS)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)
    assert [w.micro_batches for w in result.windows] == [K] * WINDOWS


@BOTH
@pytest.mark.parametrize(
    ("update", "rows", "ratio"),
    [
        (without_division, (4, 4, 4), K),
        (by_rows_of_another_number, (4, 4, 4), 12 / 9),
        (by_rows_of_another_number, (4, 2, 5), 11 / 9),
        (divided_twice, (4, 4, 4), 1 / K),
    ],
)
def test_a_wrong_scale_deviates(update: Update, rows: tuple[int, ...], ratio: float, reference: str) -> None:
    result, ratios = watched(update, batches(rows), reference)
    assert ratios == pytest.approx([ratio] * WINDOWS)
    assert result.verdict is Verdict.DEVIATES, result.reason
    if update is not by_rows_of_another_number:
        # The same share of each is read as a coefficient of the loss.
        assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)


def test_a_plain_mean_of_means_over_uneven_rows_deviates() -> None:
    result, ratios = watched(summed, batches((4, 2, 5)))
    assert result.verdict is Verdict.DEVIATES, result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_remainder_that_is_thrown_away_is_lost_and_one_that_is_used_is_not(keeps: bool) -> None:
    # Two passes over 4 batches.
    own = weights()
    with observe() as observation:
        for window in batches((4, 4, 4, 4), windows=2):
            total, count = [torch.zeros_like(w) for w in own], 0
            for i, (x, y) in enumerate(window):
                for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
                    t += g
                count += 1
                if count == K or (keeps and i == len(window) - 1):
                    with torch.no_grad():
                        for w, t in zip(own, total, strict=True):
                            w.sub_(t / count, alpha=RATE)
                            t.zero_()
                    count = 0
    result = observation.result()
    assert result.verdict is (Verdict.EQUIVALENT if keeps else Verdict.DEVIATES), result.reason
    assert [d.mistake.code for d in result.diagnosis] == ([] if keeps else ["GA301"])


def with_momentum(divisor: float) -> Update:
    velocity = [torch.zeros_like(w) for w in weights()]

    def update(own: Weights, window: list[Batch]) -> None:
        total = [torch.zeros_like(w) for w in own]
        for x, y in window:
            for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
                t += g / divisor
        with torch.no_grad():
            for w, v, t in zip(own, velocity, total, strict=True):
                v.mul_(0.8).add_(t)
                w.add_(v, alpha=-RATE)

    return update


@BOTH
@pytest.mark.parametrize("divisor", [K, 1.0])
def test_momentum_mixes_in_earlier_windows_and_the_gradient_of_this_one_is_compared(
    divisor: float, reference: str
) -> None:
    result, moved = watched(with_momentum(divisor), batches(windows=5), reference)
    assert moved[0] == pytest.approx(K / divisor)
    assert moved[1] != pytest.approx(K / divisor)
    assert result.verdict is (Verdict.EQUIVALENT if divisor == K else Verdict.DEVIATES), result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([K / divisor] * 5)


def of_sums(divides: bool) -> Update:
    def update(own: Weights, window: list[Batch]) -> None:
        total, rows = [torch.zeros_like(w) for w in own], sum(len(x) for x, _ in window)
        for x, y in window:
            for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y, "sum"), own), strict=True):
                t += g
        with torch.no_grad():
            for w, t in zip(own, total, strict=True):
                w.sub_(t / rows if divides else t, alpha=RATE)

    return update


def test_sums_divided_by_the_rows_of_the_window_are_right_and_undivided_ones_are_undecided() -> None:
    result, ratios = watched(of_sums(divides=True), batches((4, 2, 5)), reduction="mean")
    assert ratios == pytest.approx([1.0] * WINDOWS)
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    result, _ = watched(of_sums(divides=False), batches((4, 2, 5)))
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason
    assert "the losses are sums" in result.reason


def adaptive(own: Weights, window: list[Batch]) -> None:
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t += g
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w -= RATE * t / (t.square().mean().sqrt() + 1e-8)


def by_one_number(own: Weights, window: list[Batch]) -> None:
    """The rate is divided, not the gradient: what the number is for is not known."""
    rate = RATE / len(window)
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t += g
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(t, alpha=rate)


def by_a_reciprocal(own: Weights, window: list[Batch]) -> None:
    third = 0.3333333333333333
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            t += g
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(third * t, alpha=RATE)


def with_the_rate_inside(own: Weights, window: list[Batch]) -> None:
    change = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for c, g in zip(change, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
            c -= RATE * g / len(window)
    with torch.no_grad():
        for w, c in zip(own, change, strict=True):
            w += c


def of_an_array(own: Weights, window: list[Batch]) -> None:
    """The first gradient goes through memory that PyTorch knows nothing of."""
    kept: list[Any] = []
    for x, y in window:
        kept.append([g.numpy().copy() for g in torch.autograd.grad(loss_of(own, x, y), own)])
        total = [torch.from_numpy(sum(several)) for several in zip(*kept, strict=True)]
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(t / len(window), alpha=RATE)


def in_part(own: Weights, window: list[Batch]) -> None:
    found = [torch.autograd.grad(loss_of(own, x, y), own) for x, y in window]
    with torch.no_grad():
        for w, several in zip(own[:2], zip(*found, strict=True), strict=False):
            w.sub_(sum(several) / len(window), alpha=RATE)


@pytest.mark.parametrize(
    "update",
    [adaptive, by_one_number, by_a_reciprocal, with_the_rate_inside, of_an_array, in_part],
    ids=lambda update: update.__name__,
)
def test_what_is_not_followed_is_not_judged(update: Update) -> None:
    result, _ = watched(update, batches())
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason


def test_a_sum_that_is_not_cleared_is_not_judged() -> None:
    total = [torch.zeros_like(w) for w in weights()]

    def update(own: Weights, window: list[Batch]) -> None:
        for x, y in window:
            for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
                t += g / len(window)
        with torch.no_grad():
            for w, t in zip(own, total, strict=True):
                w.sub_(t, alpha=RATE)

    result, _ = watched(update, batches())
    assert result.verdict is Verdict.INCONCLUSIVE, result.reason


def test_gradients_that_are_only_looked_at_are_no_lost_remainder() -> None:
    own = weights()

    def gradients(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(loss_of(own, x, y), own)

    with observe() as observation:
        for window in batches():
            whole = [torch.zeros_like(w) for w in own]
            for x, y in window:
                whole = [t + g for t, g in zip(whole, gradients(x, y), strict=True)]
            assert float(torch.cat([t.flatten() for t in whole]).norm()) > 0
            total = [torch.zeros_like(w) for w in own]
            for x, y in window:
                total = [t + g / len(window) for t, g in zip(total, gradients(x, y), strict=True)]
            with torch.no_grad():
                for w, t in zip(own, total, strict=True):
                    w.sub_(t, alpha=RATE)
    result = observation.result()
    assert result.verdict is Verdict.EQUIVALENT, result.reason


def moved_by_mean(own: Weights, window: list[Batch], gradients_of: Callable[..., Sequence[torch.Tensor]]) -> None:
    """Subtract the mean of what ``gradients_of`` gives for each micro-batch."""
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        for t, g in zip(total, gradients_of(x, y), strict=True):
            t += g / len(window)
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(t, alpha=RATE)


def learns_to_learn(own: Weights, window: list[Batch], *, second_order: bool) -> None:
    def gradients_of(x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        inner = torch.autograd.grad(loss_of(own, x[:2], y[:2]), own, create_graph=second_order)
        fast = [w - 0.1 * g for w, g in zip(own, inner, strict=True)]
        return torch.autograd.grad(loss_of(fast, x[2:], y[2:]), own)

    moved_by_mean(own, window, gradients_of)


def penalized(own: Weights, window: list[Batch]) -> None:
    def gradients_of(x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(own, x, y), x, create_graph=True)
        return torch.autograd.grad(loss_of(own, x, y) + slope.square().sum(), own)

    moved_by_mean(own, window, gradients_of)


def attacked(own: Weights, window: list[Batch]) -> None:
    """Each micro-batch is moved along its own gradient first, and no weight is."""

    def gradients_of(x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        noise = torch.zeros_like(x).requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(loss_of(own, x + noise, y), noise)
            with torch.no_grad():
                noise += 0.1 * slope
        return torch.autograd.grad(loss_of(own, x + noise.detach(), y), own)

    moved_by_mean(own, window, gradients_of)


def of_two_tasks(own: Weights, window: list[Batch]) -> None:
    """A part of the loss has a weight of its own, and a gradient of its own."""
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        first = torch.autograd.grad(loss_of(own, x, y) / K, own)
        second = torch.autograd.grad(loss_of(own, x, 2 - y) / K, own)
        total = [t + g + 0.3 * h for t, g, h in zip(total, first, second, strict=True)]
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(t, alpha=RATE)


def limited(own: Weights, window: list[Batch]) -> None:
    """Each micro-batch's gradient has a limit of its own, which is meant (differential privacy)."""
    total = [torch.zeros_like(w) for w in own]
    for x, y in window:
        found = torch.autograd.grad(loss_of(own, x, y), own)
        norm = float(torch.stack([g.norm() for g in found]).norm())
        for t, g in zip(total, found, strict=True):
            t.add_(g, alpha=min(1.0, 0.3 / norm))
    with torch.no_grad():
        for w, t in zip(own, total, strict=True):
            w.sub_(t / len(window), alpha=RATE)


@pytest.mark.parametrize("update", [of_two_tasks, limited], ids=lambda update: update.__name__)
def test_numbers_of_the_objective_are_no_uneven_weights(update: Update) -> None:
    result, _ = watched(update, batches())
    assert result.verdict is not Verdict.DEVIATES, result.reason


@pytest.mark.parametrize("written_as", ["blended", "multiplied", "of the rate"])
def test_a_moving_average_of_gradients_is_no_wrong_scale(written_as: str) -> None:
    velocity = [torch.zeros_like(w) for w in weights()]
    beta = 0.9

    def update(own: Weights, window: list[Batch]) -> None:
        total = [torch.zeros_like(w) for w in own]
        for x, y in window:
            for t, g in zip(total, torch.autograd.grad(loss_of(own, x, y), own), strict=True):
                t.add_(g / len(window))
        with torch.no_grad():
            for i, (w, t) in enumerate(zip(own, total, strict=True)):
                if written_as == "blended":
                    velocity[i].lerp_(t, 1 - beta)
                elif written_as == "multiplied":
                    velocity[i].mul_(beta).add_(t, alpha=1 - beta)
                else:
                    velocity[i] = beta * velocity[i] - RATE * t
                if written_as == "of the rate":
                    w.data.add_(velocity[i])
                else:
                    w.data -= RATE * velocity[i]

    result, _ = watched(update, batches(windows=4))
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("second_order", [False, True])
def test_inner_steps_are_no_updates(second_order: bool) -> None:
    result, _ = watched(lambda own, window: learns_to_learn(own, window, second_order=second_order), batches())
    assert result.verdict is not Verdict.DEVIATES, result.reason


@pytest.mark.parametrize("update", [penalized, attacked], ids=lambda update: update.__name__)
def test_gradients_of_data_are_no_updates(update: Update) -> None:
    result, _ = watched(update, batches())
    assert result.verdict is not Verdict.DEVIATES, result.reason


def test_a_generator_that_is_given_the_gradient_of_its_output_makes_no_update_of_the_loop() -> None:
    torch.manual_seed(0)
    maker, judge = nn.Linear(3, 5), nn.Linear(5, 1)
    with observe() as observation:
        for _ in range(2):
            for _ in range(K):
                made = maker(torch.randn(4, 3))
                leaf = made.detach().requires_grad_()
                (slope,) = torch.autograd.grad(-judge(leaf).mean(), leaf)
                made.backward(slope / K)
            with torch.no_grad():
                for p in maker.parameters():
                    p -= RATE * p.grad
                    p.grad = None
    assert observation.result().verdict is not Verdict.DEVIATES


def test_an_optimizer_that_is_made_later_is_watched_as_always() -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    with observe() as observation:
        x, y = torch.randn(4, 5), torch.randint(0, 3, (4,))
        slopes = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        assert all(g.abs().sum() > 0 for g in slopes)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for window in batches():
            for x, y in window:
                (cross_entropy(model(x), y) / K).backward()
            optimizer.step()
            optimizer.zero_grad()
    result = observation.result()
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert len(result.windows) == WINDOWS


@pytest.mark.parametrize("update", [running_mean, summed, by_rows, in_data, copied, adaptive, in_part])
def test_watching_changes_no_bit(update: Update) -> None:
    runs = []
    for watches in (False, True):
        own = weights()
        if watches:
            with observe():
                for window in batches((4, 2, 5)):
                    update(own, window)
        else:
            for window in batches((4, 2, 5)):
                update(own, window)
        runs.append([w.detach().clone() for w in own])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_weights_of_a_module_are_followed_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    with observe() as observation:
        for window in batches():
            own = list(model.parameters())
            total = [torch.zeros_like(p) for p in own]
            for x, _ in window:
                loss = mse_loss(model(x), x.sum(1, keepdim=True))
                for t, g in zip(total, torch.autograd.grad(loss, own), strict=True):
                    t.add_(g, alpha=1 / K)
            with torch.no_grad():
                for p, t in zip(own, total, strict=True):
                    p.mul_(1 - 0.01)
                    p.add_(t, alpha=-RATE)
    result = observation.result()
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx([1.0] * WINDOWS)


# A running mean that takes from what it holds: m + (g - m) / k


def incremental(own: Weights, window: list[Batch], late: int = 0, shares: bool = False) -> None:
    mean, seen = [torch.zeros_like(w) for w in own], 0
    for k, (x, y) in enumerate(window, start=1 + late):
        found = torch.autograd.grad(loss_of(own, x, y), own)
        seen += len(x)
        for m, g in zip(mean, found, strict=True):
            m += (g - m) * (len(x) / seen) if shares else (g - m) / k
    with torch.no_grad():
        for w, m in zip(own, mean, strict=True):
            w -= RATE * m


def incremental_of_shares(own: Weights, window: list[Batch]) -> None:
    incremental(own, window, shares=True)


def incremental_too_late(own: Weights, window: list[Batch]) -> None:
    incremental(own, window, late=1)


@BOTH
@pytest.mark.parametrize(
    ("update", "rows"),
    [(incremental, (4, 4, 4)), (incremental_of_shares, (4, 4, 4)), (incremental_of_shares, (4, 2, 5))],
)
def test_a_mean_that_takes_from_what_it_holds(update: Update, rows: Sequence[int], reference: str) -> None:
    result, ratios = watched(update, batches(rows), reference)
    assert ratios == pytest.approx([1.0] * WINDOWS)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@BOTH
@pytest.mark.parametrize(("update", "rows"), [(incremental_too_late, (4, 4, 4)), (incremental, (4, 2, 5))])
def test_one_that_weighs_otherwise_does_not_pass(update: Update, rows: Sequence[int], reference: str) -> None:
    result, ratios = watched(update, batches(rows), reference)
    assert ratios != pytest.approx([1.0] * WINDOWS)
    assert result.verdict in (Verdict.DEVIATES, Verdict.INCONCLUSIVE)
