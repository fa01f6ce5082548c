"""On a machine with a GPU: pytest -m gpu. Everywhere else these are skipped."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradcheck_accum.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def run(divisor: float, autocast: torch.dtype | None = None, scaler: bool = False, **options: object) -> VerifyResult:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scale = torch.amp.GradScaler("cuda", enabled=scaler)
    with observe(**options) as observation:  # type: ignore[arg-type]
        for i in range(8):
            x, y = torch.randn(8, 16, device="cuda"), torch.randint(0, 4, (8,), device="cuda")
            with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                loss = cross_entropy(model(x), y) / divisor
            scale.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scale.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scale.step(optimizer)
                scale.update()
                optimizer.zero_grad()
    return observation.result()


@pytest.mark.parametrize(("autocast", "scaler"), [(None, False), (torch.bfloat16, False), (torch.float16, True)])
def test_right_and_unscaled_loops_on_the_gpu(autocast: torch.dtype | None, scaler: bool) -> None:
    right, wrong = run(4, autocast, scaler), run(1, autocast, scaler)
    assert (right.verdict, right.device, right.diagnosis) == (Verdict.EQUIVALENT, "cuda", ())
    assert wrong.verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"]
    assert [w.grad_norm_ratio for w in wrong.windows] == pytest.approx([4.0, 4.0], rel=1e-3)


def test_the_settings_of_the_device_are_put_back() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    run(4)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark) == before
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_replay_may_be_computed_on_another_device() -> None:
    result = run(4, device="cpu")
    assert result.verdict is Verdict.EQUIVALENT
    assert "cpu (replay)" in result.reference.device
