"""Steps that a loop makes by hand of what is not the window: a part of its data, or what it read between its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K = 4
Batches = list[tuple[Tensor, Tensor]]


def model_and_batches(count: int, rows: Sequence[int] = (3,)) -> tuple[nn.Module, Batches]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    sizes = [rows[i % len(rows)] for i in range(count)]
    return model, [(torch.randn(n, 5).double(), torch.randn(n, 2).double() + 1) for n in sizes]


def sharpness_aware(first: slice, second: slice) -> tuple[VerifyResult, list[Tensor]]:
    """The verdict on two passes over parts of each window, each divided by its own length, and the last weights."""
    model, batches = model_and_batches(3 * K)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as watch:
        for start in range(0, len(batches), K):
            window = batches[start : start + K]
            for x, y in window[first]:
                (nn.functional.mse_loss(model(x), y) / len(window[first])).backward()
            with torch.no_grad():
                moves = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.add_(move)
            optimizer.zero_grad()
            for x, y in window[second]:
                (nn.functional.mse_loss(model(x), y) / len(window[second])).backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.sub_(move)
            optimizer.step()
            optimizer.zero_grad()
    return watch.result(), [p.detach() for p in model.parameters()]


WHOLE, LAST = slice(None), slice(-1, None)


@pytest.mark.parametrize(("first", "second"), [(WHOLE, LAST), (LAST, WHOLE), (slice(1, None), WHOLE)])
def test_two_passes_over_different_parts_of_a_window_are_not_those_of_its_large_batch(
    first: slice, second: slice
) -> None:
    """Each step is right for its own data; of one large batch there are no parts."""
    result, weights = sharpness_aware(first, second)
    whole = sharpness_aware(WHOLE, WHOLE)[1]
    assert max(float((a - b).abs().max()) for a, b in zip(weights, whole, strict=True)) > 1e-3
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "use different micro-batches of one window" in result.reason


@pytest.mark.parametrize("part", [WHOLE, LAST])
def test_two_passes_over_the_same_data_are_compared(part: slice) -> None:
    assert sharpness_aware(part, part)[0].verdict is Verdict.EQUIVALENT


def updated_by_hand(
    each: Callable[[list[nn.Parameter], list[Tensor]], object],
    full: Callable[[list[nn.Parameter], list[Tensor]], object],
) -> VerifyResult:
    """The verdict on momentum by hand: ``each`` is done to it after every micro-batch, ``full`` after a window."""
    model, batches = model_and_batches(3 * K)
    weights = list(model.parameters())
    buffers = [torch.zeros_like(p) for p in weights]
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / K).backward()
            with torch.no_grad():
                each(weights, buffers)
                if (i + 1) % K == 0:
                    full(weights, buffers)
                    for p, b in zip(weights, buffers, strict=True):
                        p -= 0.1 * b
                    model.zero_grad()
    return watch.result()


def into_buffers(weights: list[nn.Parameter], buffers: list[Tensor]) -> None:
    for p, b in zip(weights, buffers, strict=True):
        b.mul_(0.9).add_(p.grad)


def nothing(weights: list[nn.Parameter], buffers: list[Tensor]) -> None:
    pass


def test_an_update_of_what_was_read_between_micro_batches_is_not_passed_for_its_gradient() -> None:
    """.grad is right, but the momentum has seen every partial sum of it."""
    result = updated_by_hand(into_buffers, nothing)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "read between the micro-batches" in result.reason
    assert updated_by_hand(nothing, into_buffers).verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize("drops", [False, True])
def test_clearing_reads_nothing_for_the_loop(drops: bool) -> None:
    """What is left over at the end of a pass is cleared before the next, and lost; the steps after it are compared."""
    model, batches = model_and_batches(2 * K + 2 * drops)
    with observe() as watch:
        for _ in range(2):
            model.zero_grad()
            for i, (x, y) in enumerate(batches):
                (nn.functional.mse_loss(model(x), y) / K).backward()
                if (i + 1) % K == 0:
                    with torch.no_grad():
                        for p in model.parameters():
                            p -= 0.1 * p.grad
                    model.zero_grad()
    result = watch.result()
    expected = (Verdict.DEVIATES, ["GA301"]) if drops else (Verdict.EQUIVALENT, [])
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == expected, result.reason


def summed(counts: Callable[[list[int]], int | None]) -> VerifyResult:
    """The verdict on sums whose gradients are divided by what ``counts`` has of the rows so far (None: the same)."""
    model, batches = model_and_batches(2 * K, rows=(3, 5, 2, 4, 6, 3, 7, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    divisor = 14
    with observe() as watch:
        for _ in range(2):
            for i, (x, y) in enumerate(batches):
                nn.functional.mse_loss(model(x), y, reduction="sum").backward()
                seen.append(len(x))
                if (i + 1) % K == 0:
                    divisor = counts(seen) or divisor
                    for p in model.parameters():
                        p.grad.div_(divisor)
                    optimizer.step()
                    optimizer.zero_grad()
    return watch.result()


@pytest.mark.parametrize(
    "counts",
    [
        lambda seen: sum(seen[-2 * K : -K]) or None,
        lambda seen: sum(seen[-K:-1]),
        lambda seen: sum(seen[-2:]),
    ],
    ids=["the window before", "all but the last micro-batch", "the last two micro-batches"],
)
def test_a_count_of_something_else_than_the_window_is_no_mask(counts: Callable[[list[int]], int | None]) -> None:
    result = summed(counts)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "the intended weight of a unit is unknown" in " ".join(result.notes)


def test_the_windows_own_count_is_its_own() -> None:
    assert summed(lambda seen: sum(seen[-K:])).verdict is Verdict.EQUIVALENT


Change = Callable[[Sequence[nn.Parameter]], None]


def changed(change: Change, each: Change = lambda weights: None, *, divides: float = K) -> VerifyResult:
    """The verdict on a loop that does ``change`` before its step, and ``each`` after every backward."""
    model, batches = model_and_batches(3 * K)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / divides).backward()
            each(weights)
            if (i + 1) % K == 0:
                change(weights)
                optimizer.step()
                optimizer.zero_grad()
    return watch.result()


def centralized_times_k(weights: Sequence[nn.Parameter]) -> None:
    for p in weights:
        p.grad.copy_((p.grad - p.grad.mean()) * K)


def centralized_over_k(weights: Sequence[nn.Parameter]) -> None:
    scale = 1 / K
    for p in weights:
        p.grad = scale * (p.grad - p.grad.mean())


def decayed_k_times(weights: Sequence[nn.Parameter]) -> None:
    for p in weights:
        p.grad.add_(p.detach(), alpha=0.1 * K)


def centralized(weights: Sequence[nn.Parameter]) -> None:
    for p in weights:
        p.grad.copy_((p.grad - p.grad.mean()) * 3)


@pytest.mark.parametrize("change", [centralized_times_k, centralized_over_k, decayed_k_times])
def test_a_change_that_uses_k_again_is_not_the_objectives(change: Change) -> None:
    """At K = 1 it does something else, though the gradient was right before it."""
    result = changed(change)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "uses the number of micro-batches again" in result.reason


def test_a_change_that_uses_another_number_is_the_objectives() -> None:
    assert changed(centralized).verdict is Verdict.EQUIVALENT


@pytest.mark.parametrize("by_alpha", [False, True])
@pytest.mark.parametrize("divides", [1.0, K])
def test_an_update_by_hand_that_divides_by_k_again(by_alpha: bool, divides: float) -> None:
    """.grad is right if the losses are divided; the update then is not, and is not passed."""
    model, batches = model_and_batches(3 * K)
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            (nn.functional.mse_loss(model(x), y) / divides).backward()
            if (i + 1) % K == 0:
                with torch.no_grad():
                    for p in model.parameters():
                        if by_alpha:
                            p.add_(p.grad, alpha=-0.1 / K)
                        else:
                            p -= 0.1 * p.grad / K
                model.zero_grad()
    assert (watch.result().verdict, watch.result().diagnosis) == (Verdict.INCONCLUSIVE, ())


@pytest.mark.parametrize("kind", ["tensor", "float"])
def test_one_factor_made_of_what_was_read_between_micro_batches_is_no_part_of_the_loss(kind: str) -> None:
    norms: list[Tensor] = []

    def by_mean_of_norms(weights: Sequence[nn.Parameter]) -> None:
        scale = torch.stack(norms).mean()
        for p in weights:
            p.grad.div_(scale if kind == "tensor" else scale.item())
        norms.clear()

    def read(weights: Sequence[nn.Parameter]) -> None:
        norms.append(torch.stack([p.grad.norm() for p in weights]).norm())

    result = changed(by_mean_of_norms, read)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())
    assert "read between the micro-batches" in result.reason


def test_norms_that_are_read_for_a_log_change_no_factor() -> None:
    norms: list[float] = []

    def over_k(weights: Sequence[nn.Parameter]) -> None:
        for p in weights:
            p.grad.div_(K)

    def read(weights: Sequence[nn.Parameter]) -> None:
        norms.append(float(torch.stack([p.grad.norm() for p in weights]).norm()))

    assert changed(over_k, read, divides=1.0).verdict is Verdict.EQUIVALENT


def surgery(put: Callable[[Tensor, Tensor], Tensor], *, divides: float) -> VerifyResult:
    """The verdict on two tasks whose gradients are added up apart, and put into ``.grad`` as ``put`` makes it."""
    model, batches = model_and_batches(3 * K)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, lr=0.1)
    with observe() as watch:
        sums = [torch.zeros(()), torch.zeros(())]
        for i, (x, y) in enumerate(batches):
            out = model(x)
            first = nn.functional.mse_loss(out[:, 0], y[:, 0]) / divides
            second = nn.functional.mse_loss(out[:, 1], y[:, 1]) / divides
            sums[0] = sums[0] + torch.cat([g.flatten() for g in torch.autograd.grad(first, weights, retain_graph=True)])
            sums[1] = sums[1] + torch.cat([g.flatten() for g in torch.autograd.grad(second, weights)])
            if (i + 1) % K == 0:
                parts = put(*sums).split([p.numel() for p in weights])
                for p, part in zip(weights, parts, strict=True):
                    p.grad = part.view_as(p).clone()
                optimizer.step()
                sums = [torch.zeros(()), torch.zeros(())]
    return watch.result()


def projected(one: Tensor, other: Tensor) -> Tensor:
    """Each without its part along the other, as where tasks conflict."""
    dot = one @ other
    return one + other - dot / (other @ other) * other - dot / (one @ one) * one


@pytest.mark.parametrize(
    ("put", "divides", "verdict"),
    [
        (lambda one, other: one + other, K, Verdict.EQUIVALENT),
        (projected, K, Verdict.EQUIVALENT),
        (lambda one, other: (one + other) * K, K, Verdict.INCONCLUSIVE),
        (lambda one, other: one + other, 1.0, Verdict.DEVIATES),
        (lambda one, other: (one + other) / K, 1.0, Verdict.EQUIVALENT),
    ],
)
def test_what_a_loop_makes_of_the_gradients_of_its_tasks(
    put: Callable[[Tensor, Tensor], Tensor], divides: float, verdict: Verdict
) -> None:
    assert surgery(put, divides=divides).verdict is verdict


def test_gradients_that_are_divided_in_the_surgery_itself_are_no_mistake() -> None:
    """Windows in which tasks conflict have factors of their own, and the others 1/K."""
    calls = []

    def now_and_then(one: Tensor, other: Tensor) -> Tensor:
        calls.append(1)
        return (projected(one, other) if len(calls) == 2 else one + other) / K

    result = surgery(now_and_then, divides=1.0)
    assert (result.verdict, result.diagnosis) == (Verdict.INCONCLUSIVE, ())


@pytest.mark.parametrize("in_update", [False, True])
@pytest.mark.parametrize("stale", [False, True])
def test_sums_that_an_update_by_hand_divides(in_update: bool, stale: bool) -> None:
    """Divided in the update itself, a right count and one of the window before look the same."""
    model, batches = model_and_batches(3 * K, rows=(3, 5, 2, 4, 6, 3, 7, 2))
    seen: list[int] = []
    with observe() as watch:
        for i, (x, y) in enumerate(batches):
            nn.functional.mse_loss(model(x), y, reduction="sum").backward()
            seen.append(len(x))
            if (i + 1) % K == 0:
                count = sum(seen[-2 * K : -K]) or 14 if stale else sum(seen[-K:])
                for p in model.parameters() if not in_update else ():
                    p.grad /= count
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.1 * (p.grad / count if in_update else p.grad)
                model.zero_grad()
    expected = Verdict.INCONCLUSIVE if in_update or stale else Verdict.EQUIVALENT
    assert (watch.result().verdict, watch.result().diagnosis) == (expected, ())
