"""Counts of targets that only a device knows are presumed while it is not to be waited for, and asked at the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_accum.engine import late_counts
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

K, ROWS = 4, 6


def run(ignored: dict[int, int], windows: int = 12) -> VerifyResult:
    """Windows of K micro-batches of a mean divided by K, ``ignored`` being how many targets some of them ignore."""
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(reference="ledger") as observation:
        for step in range(windows * K):
            targets = torch.randint(0, 5, (ROWS,))
            targets[: ignored.get(step, 0)] = -100
            (nn.functional.cross_entropy(model(torch.randn(ROWS, 3)), targets) / K).backward()
            if (step + 1) % K == 0:
                optimizer.step()
                optimizer.zero_grad()
    return observation.result()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every count is one that a device would be waited for; how many targets the losses had that were presumed."""
    monkeypatch.setattr(late_counts, "is_waited_for", lambda counted: True)
    found: list[float] = []

    class Presumed(late_counts.Presumed):
        def __init__(self, counted: torch.Tensor, most: float, name: str = "") -> None:
            super().__init__(counted, most, name)
            found.append(most)

    monkeypatch.setattr(late_counts, "Presumed", Presumed)
    return found


def test_losses_that_count_all_of_their_targets_are_not_waited_for(asked: list[float]) -> None:
    result = run({})
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
    assert [w.units for w in result.windows] == [K * ROWS] * 12
    assert set(asked) == {ROWS}


def test_targets_that_are_ignored_from_the_start_are_counted_at_once(asked: list[float]) -> None:
    # 3 + 6 + 6 + 6 targets are counted: a large batch weighs the first micro-batch 3/21, and the loop 1/4.
    result = run({step: 3 for step in range(0, 48, K)})
    assert result.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == ["GA104"]
    assert result.windows[-1].weights == pytest.approx([(1 / 4) / (3 / 21), *[(1 / 4) / (6 / 21)] * 3])
    assert not asked


def test_a_target_ignored_after_many_that_were_not_is_noticed_at_its_step(asked: list[float]) -> None:
    late = 10 * K + 1
    result = run({late: 3, late + K: 3})
    first, second = result.windows[10:]
    assert first.verdict is Verdict.INCONCLUSIVE
    assert "CUDA_LAUNCH_BLOCKING=1" in first.reason
    assert first.units == second.units == K * ROWS - 3
    assert second.verdict is Verdict.DEVIATES
    assert second.weights == pytest.approx([(1 / 4) / (6 / 21), (1 / 4) / (3 / 21), *[(1 / 4) / (6 / 21)] * 2])
    assert all(w.verdict is Verdict.EQUIVALENT for w in result.windows[:10])
