"""verify on sums whose elements are sums: smoothed labels as Transformers has them, K = 3 micro-batches of 2 rows of 7.

The loss is 0.9 of a sum over tokens and 0.1 of a sum over tokens and classes, each divided by how many it adds up. What
a step should get is one large batch by plain arithmetic in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from watching import watch_source

from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = pytest.mark.usefixtures("in_float64")

K, ROWS, LENGTH, CLASSES, IGNORED = 3, 2, 7, 5, -100
Batch = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(CLASSES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


def windows(*, unequal: bool, count: int = 2) -> list[list[Batch]]:
    drawn = torch.Generator().manual_seed(2)
    found = []
    for number in range(count * K):
        x, y = (torch.randint(0, CLASSES, (ROWS, LENGTH), generator=drawn) for _ in range(2))
        if unequal:
            y[:, LENGTH - number % 4 :] = IGNORED
        found.append((x, y))
    return [found[start : start + K] for start in range(0, count * K, K)]


def smoothed(scores: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | None = None) -> torch.Tensor:
    """Divided by the ``items`` that count, those of the micro-batch where none are given."""
    minus = -torch.log_softmax(scores, -1)
    padding = labels.eq(IGNORED).unsqueeze(-1)
    likely = minus.gather(-1, labels.clamp(min=0).unsqueeze(-1)).masked_fill_(padding, 0.0)
    alike = minus.sum(-1, keepdim=True).masked_fill_(padding, 0.0)
    active = padding.numel() - padding.long().sum() if items is None else items
    return 0.9 * (likely.sum() / active) + 0.1 * (alike.sum() / (active * minus.shape[-1]))


def truth(model: nn.Module, window: list[Batch]) -> torch.Tensor:
    """The large batch's gradient: every counted token has the weight 0.9 for its label and 0.1 for the mean class."""
    model = copy.deepcopy(model)
    x, y = (torch.cat([batch[i] for batch in window]).flatten() for i in (0, 1))
    minus = -torch.log_softmax(model(x[y != IGNORED]), -1)
    (0.9 * minus[torch.arange(len(minus)), y[y != IGNORED]] + 0.1 * minus.mean(-1)).mean().backward()
    return flat(model)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def trained(data: list[list[Batch]], backward: Callable[[nn.Module, list[Batch]], None]) -> tuple[VerifyResult, float]:
    """The verdict on a loop, and how far its first step's gradient is from the truth, as a part of that."""
    model, distances = network(), []
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in data:
            backward(model, window)
            distances.append((copy.deepcopy(model), flat(model).clone()))
            optimizer.step()
            optimizer.zero_grad()
    before, got = distances[0]
    before.zero_grad()
    wanted = truth(before, data[0])
    return observation.result(), float((got - wanted).norm() / wanted.norm())


def undivided(model: nn.Module, window: list[Batch]) -> None:
    for x, y in window:
        smoothed(model(x), y).backward()


def divided(model: nn.Module, window: list[Batch]) -> None:
    for x, y in window:
        (smoothed(model(x), y) / K).backward()


def by_the_window(model: nn.Module, window: list[Batch]) -> None:
    items = sum((y != IGNORED).sum() for _, y in window)
    assert isinstance(items, torch.Tensor)
    for x, y in window:
        smoothed(model(x), y, items).backward()


@pytest.mark.parametrize(
    ("backward", "unequal", "codes"),
    [
        (undivided, False, {"GA101"}),
        (undivided, True, {"GA101", "GA104"}),
        (divided, False, set()),
        (divided, True, {"GA104"}),
        (by_the_window, False, set()),
        (by_the_window, True, set()),
    ],
)
def test_a_smoothed_loss_is_the_mean_that_it_is(
    backward: Callable[[nn.Module, list[Batch]], None], unequal: bool, codes: set[str]
) -> None:
    result, distance = trained(windows(unequal=unequal), backward)
    assert {d.mistake.code for d in result.diagnosis} == codes, result.reason
    assert result.verdict is (Verdict.DEVIATES if codes else Verdict.EQUIVALENT), result.reason
    assert result.windows[0].grad_rel_error == pytest.approx(distance, rel=1e-6, abs=1e-12)


def test_a_batch_that_waits_for_its_turn_is_in_no_loss() -> None:
    """A loader that looks one batch ahead has given two before the first loss, of two terms of one kind."""

    def ahead(loader: torch.utils.data.DataLoader[Batch]) -> Iterator[Batch]:
        waiting = None
        for batch in loader:
            if waiting is not None:
                yield waiting
            waiting = batch
        assert waiting is not None
        yield waiting

    flat_rows = [(x[i], y[i]) for window in windows(unequal=False) for x, y in window for i in range(ROWS)]
    model = network()
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, (x, y) in enumerate(ahead(torch.utils.data.DataLoader(flat_rows, batch_size=ROWS))):
            (smoothed(model(x), y) / K).backward()
            if (number + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert observation.result().verdict is Verdict.EQUIVALENT, observation.result().reason


@pytest.mark.parametrize("extra", [0, 1])
def test_what_was_counted_for_another_window_is_that_windows_mistake(extra: int) -> None:
    """One micro-batch is left over, divided by its own number: the window that it leaks into is wrong, and no other.

    The divisor counts every target, or the first token of every row besides, as Transformers 4.46 to 5.11 counts.
    """
    passes = [batch for window in windows(unequal=False, count=3) for batch in window][:7]
    model, seen, weights = network(), [], []
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for first in range(0, len(passes), K):
                own = passes[first : first + K]
                items = sum(y.numel() + extra * len(y) for _, y in own)
                for position, (x, y) in enumerate(own):
                    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / items
                    loss.backward()
                    if (first + position + 1) % K == 0:
                        seen.append(flat(model).clone())
                        weights.append(copy.deepcopy(model))
                        optimizer.step()
                        optimizer.zero_grad()
    result = observation.result()
    assert [w.micro_batches for w in result.windows] == [3, 3, 4, 3]
    assert [w.verdict for w in result.windows] == [Verdict.EQUIVALENT] * 2 + [Verdict.DEVIATES, Verdict.EQUIVALENT]
    assert {d.mistake.code for d in result.diagnosis} == {"GA301"}
    share = LENGTH / (LENGTH + extra)
    for wrong, window in ((1, passes[3:6]), (2, [passes[6], *passes[:3]])):
        model = weights[wrong]
        model.zero_grad()
        x, y = (torch.cat([batch[i] for batch in window]).flatten() for i in (0, 1))
        (share * nn.functional.cross_entropy(model(x), y)).backward()
        distance = float((seen[wrong] - flat(model)).norm() / flat(model).norm())
        assert result.windows[wrong].grad_rel_error == pytest.approx(distance, rel=1e-6, abs=1e-12)


def test_what_changes_within_a_window_and_counts_too_much_is_not_known() -> None:
    """No mask leaves more than there are, and a number that follows no window counts none of them."""
    model = network()
    divisors = iter([61, 60, 47, 58, 39, 40])
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(unequal=False):
            for x, y in window:
                total = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
                (total / next(divisors)).backward()
            optimizer.step()
            optimizer.zero_grad()
    result = observation.result()
    assert result.verdict is Verdict.INCONCLUSIVE
    assert not result.diagnosis
    assert any("is summed over windows of 42" in note for note in result.notes)


def kept_from_zero(loss: torch.Tensor) -> torch.Tensor:
    """One of two numbers, as Keras divides: lest it divide by zero."""
    count = torch.tensor(float(ROWS * LENGTH))
    return torch.where(count == 0, 0.0, loss / torch.where(count == 0, 1.0, count))


@pytest.mark.parametrize("by", [K, 1])
def test_a_loss_that_was_chosen_of_two_numbers_is_the_one_that_it_is(by: int) -> None:
    model, ratios = network(), []
    data = windows(unequal=False)
    with observe() as observation:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in data:
            for x, y in window:
                total = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
                (kept_from_zero(total) / by).backward()
            large = copy.deepcopy(model)
            large.zero_grad()
            x, y = (torch.cat([batch[i] for batch in window]).flatten() for i in (0, 1))
            nn.functional.cross_entropy(large(x), y).backward()
            ratios.append(float(flat(model).norm() / flat(large).norm()))
            optimizer.step()
            optimizer.zero_grad()
    result = observation.result()
    assert result.verdict is (Verdict.EQUIVALENT if by == K else Verdict.DEVIATES), result.reason
    assert [w.units for w in result.windows] == [K * ROWS * LENGTH] * 2
    assert [w.grad_norm_ratio for w in result.windows] == pytest.approx(ratios, rel=1e-6)
    assert ratios == pytest.approx([K / by] * 2, rel=1e-6)


SEGMENTS = """
import torch
from torch import nn
from watching import watch_source
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
STEPS, PART = 12, 4
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for turn in range(4):
    series = torch.randn(5, STEPS + 1, 2)
    total = {total}
    for start in range(0, STEPS, PART):
        error = 0.0
        for t in range(start, start + PART):
            error = error + (model(series[:, t]) - series[:, t + 1]).square().sum()
        (error / total).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("total", "codes"),
    [
        ("series.size(0) * STEPS * 2", []),
        ("len(series) * 2 * STEPS", []),
        ("series.size(0) * PART * 2", ["GA101"]),
    ],
)
def test_a_sum_at_every_step_counts_with_all_of_its_window(total: str, codes: list[str], tmp_path: Path) -> None:
    """5 rows, 12 steps and 2 columns are all numbers of a window's 3 parts; 4 steps are those of one part."""
    result = watch_source(SEGMENTS.format(total=total), tmp_path)
    verdict = Verdict.DEVIATES if codes else Verdict.EQUIVALENT
    assert (result.verdict, [d.mistake.code for d in result.diagnosis]) == (verdict, codes), result.reason
