"""compare on the number of steps: how many each configuration makes of the same data, in all and in an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.report.as_json import compare_json
from gradcheck_accum.report.compare_text import compare_text
from gradcheck_accum.results.comparison import CompareResult
from gradcheck_accum.results.verdict import Verdict

pytestmark = pytest.mark.usefixtures("in_float64")

Loop = Callable[..., None]


def compare(
    loop: Loop,
    rows: int,
    of: Sequence[tuple[int, int]] = ((5, 3), (15, 1)),
    epochs: int = 2,
    drop_last: bool = False,
    **options: Any,
) -> CompareResult:
    """``loop`` over a `DataLoader` of so many rows, in configurations of (batch size, K)."""
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(rows, 4), torch.randint(0, 3, (rows,)))
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def run(loader: Any, accumulation_steps: int) -> None:
        loop(model, optimizer, loader, accumulation_steps, epochs)

    each = [dict(loader=DataLoader(data, batch_size=b, drop_last=drop_last), accumulation_steps=k) for b, k in of]
    return compared_loop(run, each, **options)


def at(
    is_step: Callable[[int, int, int], bool],
    *,
    across: bool = False,
    to_zeros: bool = False,
    after: Callable[[Any, Any], object] | None = None,
) -> Loop:
    """A loop that steps where ``is_step`` says so of the micro-batches done, how many an epoch has, and K.

    ``across`` counts them over all epochs; ``to_zeros`` clears gradients to zeros, and ``after`` is
    what it does at the end of each epoch.
    """

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, k: int, epochs: int) -> None:
        done = 0
        for _ in range(epochs):
            done = done if across else 0
            for x, y in loader:
                done += 1
                (nn.functional.cross_entropy(model(x), y) / k).backward()
                if is_step(done, len(loader), k):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=not to_zeros)
            if after is not None:
                after(model, optimizer)

    return loop


def every_k(done: int, length: int, k: int) -> bool:
    return done % k == 0


def every_k_or_last(done: int, length: int, k: int) -> bool:
    return done % k == 0 or done == length


def clearing(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What is left of an epoch is discarded."""
    optimizer.zero_grad()


def stepping(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step at the end of an epoch, whatever is left of it."""
    optimizer.step()
    optimizer.zero_grad()


def reason(result: CompareResult) -> str:
    (one,) = result.compared
    return one.reason


def counts(result: CompareResult) -> list[tuple[int, tuple[int, ...]]]:
    """The steps in all, by epoch, of the compared configuration and of the reference."""
    assert result.reference is not None
    each = (result.compared[0].configuration, result.reference)
    return [(one.steps, one.steps_by_epoch) for one in each]


def test_a_remainder_that_is_thrown_away_is_a_step_less_in_each_epoch() -> None:
    # 40 rows are 8 micro-batches of 5, of which the last 2 reach no step; or 15, 15 and 10 rows at once.
    result = compare(at(every_k, after=clearing), rows=40)
    assert result.verdict is Verdict.DEVIATES
    assert counts(result) == [(4, (2, 2)), (6, (3, 3))]
    assert reason(result).endswith(
        "; it makes 4 steps in all, the reference 6 (2 in each epoch, the reference 3 in each epoch)"
    )


def test_a_remainder_that_leaks_moves_steps_from_one_epoch_to_the_next() -> None:
    # 16 micro-batches of 2 epochs: steps after 3 and 6 of the first, and after 1, 4 and 7 of the second.
    result = compare(at(every_k, across=True), rows=40)
    assert result.verdict is Verdict.DEVIATES
    assert counts(result) == [(5, (2, 3)), (6, (3, 3))]
    assert "(2, 3 in its 2 epochs, the reference 3 in each epoch)" in reason(result)


def test_a_loader_that_drops_its_last_batch_is_said_with_numbers_and_no_mistake() -> None:
    # Of 40 rows, batches of 15 leave 10 out, and batches of 5 none.
    result = compare(at(every_k_or_last), rows=40, drop_last=True, epochs=1)
    assert (result.verdict, result.exit_status) == (Verdict.INCONCLUSIVE, 3)
    assert counts(result) == [(3, (3,)), (2, (2,))]
    assert reason(result) == (
        "2 steps on the same data match the reference gradient, but it makes 1 step more, on 10 rows that reach no "
        "step in the reference; it makes 3 steps in all, the reference 2 (3 in its epoch, the reference 2 in its epoch)"
    )


def test_a_remainder_that_is_stepped_on_is_as_many_steps() -> None:
    """The look-alike: its means are of unequal sizes at most, and no step is missing."""
    result = compare(at(every_k_or_last), rows=45)
    assert result.verdict is Verdict.EQUIVALENT
    assert counts(result) == [(6, (3, 3))] * 2
    assert reason(result) == "all 6 steps match the reference gradient"
    assert "(6 steps in 2 epochs, of 3 micro-batches, 15 rows together)" in " ".join(compare_text(result).split())
    assert '"steps_by_epoch": [' in compare_json(result)


def test_steps_of_other_sizes_are_as_many_others_as_was_asked_for() -> None:
    result = compare(at(every_k), rows=45, of=((5, 3), (9, 1)))
    assert "differ in effective batch size" in reason(result)
    assert "it makes" not in reason(result)


@pytest.mark.parametrize("to_zeros", [True, False])
def test_a_step_that_nothing_is_left_for_is_the_same_in_both(to_zeros: bool) -> None:
    # 45 rows: neither has anything left.
    result = compare(at(every_k, to_zeros=to_zeros, after=stepping), rows=45)
    assert result.verdict is Verdict.EQUIVALENT
    # Without any gradient it is no step: nothing is changed.
    assert counts(result) == [(8 if to_zeros else 6, (4, 4) if to_zeros else (3, 3))] * 2


def test_a_step_on_zeros_that_only_one_of_them_makes_deviates() -> None:
    """Momentum moves the weights once more: 42 rows leave 6 to K = 2, and nothing to K = 1."""
    loop = at(every_k, to_zeros=True, after=stepping)
    result = compare(loop, rows=42, of=((6, 2), (12, 1)), epochs=1)
    assert result.verdict is Verdict.DEVIATES
    assert "the reference makes 1 step more, on no new data" in reason(result)
    assert "it makes 4 steps in all, the reference 5" in reason(result)
    twice = compare(loop, rows=42, of=((6, 2), (12, 1)), epochs=2)
    assert "steps have 12 rows where the reference has 0 and 12" in reason(twice)


def test_a_step_on_nothing_that_only_one_of_them_makes_changes_nothing() -> None:
    loop = at(every_k, after=stepping)
    result = compare(loop, rows=42, of=((6, 2), (12, 1)))
    assert "more" not in reason(result)
    assert counts(result) == [(8, (4, 4))] * 2
