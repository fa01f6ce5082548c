"""What is accepted in compare: it is reported, decides nothing, and hides no more than it explains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from gradcheck_accum.comparing import compared_loop
from gradcheck_accum.results.comparison import Compared, CompareResult
from gradcheck_accum.results.verdict import Verdict
from gradcheck_accum.settings import SettingsError

pytestmark = pytest.mark.usefixtures("in_float64")

Batch = tuple[torch.Tensor, torch.Tensor]
Loop = Callable[..., None]


def batches(rows: int, size: int) -> list[Batch]:
    torch.manual_seed(7)
    return list(zip(torch.randn(rows, 4).split(size), torch.randint(0, 3, (rows,)).split(size), strict=True))


def compare(loop: Loop, rows: int = 45, ignore: Iterable[str] = (), **options: Any) -> CompareResult:
    """A loop on so many rows, with 3 micro-batches of 5 per step, and with 1 of 15."""
    each = [dict(loader=batches(rows, b), accumulation_steps=k) for b, k in ((5, 3), (15, 1))]
    return compared_loop(loop, each, ignore=ignore, **options)


def only(result: CompareResult) -> Compared:
    (one,) = result.compared
    return one


def model_of(*between: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.3)


def undivided(loader: list[Batch], accumulation_steps: int) -> None:
    model, optimizer = model_of()
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def undivided_and_said_so(loader: list[Batch], accumulation_steps: int) -> None:
    model, optimizer = model_of()
    for i, (x, y) in enumerate(loader):
        nn.functional.cross_entropy(model(x), y).backward()  # gradcheck-accum: ignore[GA101]
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def divided(*between: nn.Module, by: float = 1.0) -> Loop:
    def loop(loader: list[Batch], accumulation_steps: int) -> None:
        model, optimizer = model_of(*between)
        for i, (x, y) in enumerate(loader):
            divisor = 1.0 if accumulation_steps == 1 else accumulation_steps / by
            (nn.functional.cross_entropy(model(x), y) / divisor).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return loop


@pytest.mark.parametrize(("loop", "ignore"), [(undivided, ["GA101"]), (undivided_and_said_so, [])])
def test_steps_are_accepted_with_the_mistake_that_explains_them(loop: Loop, ignore: list[str]) -> None:
    assert compare(undivided).verdict is Verdict.DEVIATES
    result = compare(loop, ignore=ignore)
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert result.reason == (
        "every mismatch with the reference gradient has an accepted cause; accepted: GA101 in 3 windows"
    )
    one = only(result)
    # What was measured stays: 3 g instead of g.
    assert [step.grad_rel_error for step in one.steps] == pytest.approx([2.0] * 3, rel=1e-9)
    assert [(step.verdict, step.accepted) for step in one.steps] == [(Verdict.DEVIATES, ("GA101",))] * 3
    assert one.watched is not None
    assert (one.watched.verdict, one.disagrees) == (Verdict.EQUIVALENT, False)
    assert [each.by for each in one.accepted] == ["settings" if ignore else "comment"]


def test_what_is_not_selected_is_accepted_and_another_code_accepts_nothing() -> None:
    assert compare(undivided, select=["GA2"]).exit_status == 0
    result = compare(undivided, ignore=["GA104", "GA102"])
    assert (result.verdict, result.exit_status, only(result).accepted) == (Verdict.DEVIATES, 1, ())
    with pytest.raises(SettingsError, match="unknown rule 'GA777'"):
        compare(undivided, ignore=["GA777"])


def test_what_is_more_than_the_accepted_mistake_explains_deviates() -> None:
    def undivided_and_pulled(loader: list[Batch], accumulation_steps: int) -> None:
        model, optimizer = model_of()
        for i, (x, y) in enumerate(loader):
            nn.functional.cross_entropy(model(x), y).backward()
            if (i + 1) % accumulation_steps == 0:
                if accumulation_steps > 1:
                    for p in model.parameters():
                        assert p.grad is not None
                        p.grad.add_(torch.ones_like(p))
                optimizer.step()
                optimizer.zero_grad()

    result = compare(undivided_and_pulled, ignore=["GA101"])
    assert (result.verdict, result.exit_status) == (Verdict.DEVIATES, 1)
    assert all(not step.accepted for step in only(result).steps)


def test_batch_norm_is_accepted_with_ga901_alone() -> None:
    right, wrong = divided(nn.BatchNorm1d(6)), divided(nn.BatchNorm1d(6), by=3.0)
    assert compare(right).verdict is Verdict.NOT_EQUIVALENT_BY_CONSTRUCTION
    result = compare(right, ignore=["GA901"])
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert result.reason.endswith("has an accepted cause; accepted: GA901 in 3 windows")
    assert [(one.diagnosis.mistake.code, one.diagnosis.windows) for one in only(result).accepted] == [
        ("GA901", (0, 1, 2))
    ]
    assert compare(wrong, ignore=["GA901"]).verdict is Verdict.DEVIATES


def dropping(loader: list[Batch], accumulation_steps: int) -> None:
    divided()(loader, accumulation_steps)


def test_rows_that_reached_no_step_are_accepted_with_ga301() -> None:
    # 40 rows: the reference steps on the last 10, this loop never.
    assert "10 rows used by the reference never reached a step" in compare(dropping, rows=40).reason
    result = compare(dropping, rows=40, ignore=["GA301"])
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert result.reason == "all 2 steps match the reference gradient; accepted: GA301"


def off_by_one(loader: list[Batch], accumulation_steps: int) -> None:
    model, optimizer = model_of()
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_a_stretch_that_is_cut_into_other_steps_is_accepted_with_what_is_diagnosed_in_it() -> None:
    result = compare(off_by_one)
    assert result.verdict is Verdict.DEVIATES
    watched = only(result).watched
    assert watched is not None
    codes = {one.mistake.code for one in watched.diagnosis}
    assert "GA302" in codes
    assert compare(off_by_one, ignore=codes - {"GA302"}).verdict is Verdict.DEVIATES
    assert compare(off_by_one, ignore=codes).exit_status == 0


def logging(loader: list[Batch], accumulation_steps: int) -> None:
    model, optimizer = model_of()
    total = torch.zeros(())
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        total += loss.detach()
        (loss / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            total.item()
            total.zero_()


def scheduled(loader: list[Batch], accumulation_steps: int) -> None:
    model, optimizer = model_of()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for i, (x, y) in enumerate(loader):
        (nn.functional.cross_entropy(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


@pytest.mark.parametrize(("loop", "code", "other"), [(logging, "GA802", "GA601"), (scheduled, "GA601", "GA802")])
def test_what_no_gradient_shows_is_accepted_with_its_own_code(loop: Loop, code: str, other: str) -> None:
    assert compare(loop, ignore=[other]).exit_status == 1
    result = compare(loop, ignore=[code])
    assert (result.verdict, result.exit_status) == (Verdict.EQUIVALENT, 0)
    assert [one.accepted for one in only(result).differences] == ["settings"]
