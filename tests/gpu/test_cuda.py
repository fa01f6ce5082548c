"""On a machine with a GPU: pytest -m gpu. Everywhere else these are skipped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradcheck_accum.engine.late_counts import SURE
from gradcheck_accum.results.verdict import Verdict, VerifyResult
from gradcheck_accum.verify import observe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def run(
    divisor: float,
    autocast: torch.dtype | None = None,
    scaler: bool = False,
    *,
    model_of: Callable[[], nn.Module] = network,
    optimizer_of: Callable[[Any], torch.optim.Optimizer] = adamw,
    micro_batches: int = 8,
    clip: float | None = 0.1,
    inputs: torch.Tensor | None = None,
    **options: object,
) -> VerifyResult:
    """Windows of four micro-batches, the last of what is left; ``inputs`` have the device and dtype of the data."""
    torch.manual_seed(0)
    model = model_of()
    optimizer = optimizer_of(model.parameters())
    scale = torch.amp.GradScaler("cuda", enabled=scaler)
    like = torch.empty(8, 16, device="cuda") if inputs is None else inputs
    with observe(**options) as observation:  # type: ignore[arg-type]
        for i in range(micro_batches):
            x, y = torch.randn_like(like), torch.randint(0, 4, (8,), device="cuda")
            with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                loss = cross_entropy(model(x), y) / divisor
            scale.scale(loss).backward()
            if (i + 1) % 4 == 0 or i + 1 == micro_batches:
                if clip is not None:
                    scale.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
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


@pytest.mark.parametrize("allowed", [True, False])
def test_every_setting_of_the_kernels_is_put_back(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", allowed)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", allowed)
    mode = torch.get_deterministic_debug_mode()
    assert run(4).verdict is Verdict.EQUIVALENT
    assert torch.backends.cuda.matmul.allow_tf32 is allowed
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert torch.backends.cudnn.benchmark is allowed
    assert torch.get_deterministic_debug_mode() == mode


def test_convolutions_and_products_in_tf32_are_not_taken_for_coupling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 36, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe() as observation:
        for i in range(8):
            loss = cross_entropy(model(torch.randn(8, 8, 8, 8, device="cuda")), torch.arange(8, device="cuda") % 4)
            (loss / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


def test_a_micro_batch_waits_for_nothing_in_ledger_mode() -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = adamw(model.parameters())
    with observe(reference="ledger") as observation:
        for _ in range(3):
            inputs = [torch.randn(8, 16, device="cuda") for _ in range(4)]
            # PyTorch itself raises where the host is made to wait.
            torch.cuda.set_sync_debug_mode("error")
            try:
                for x in inputs:
                    (model(x).square().mean() / 4).backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            optimizer.step()
            optimizer.zero_grad()
    assert observation.result().verdict is Verdict.EQUIVALENT


def test_a_count_of_targets_is_not_waited_for_once_many_losses_have_counted_all() -> None:
    torch.manual_seed(0)
    model = network()
    optimizer = adamw(model.parameters())
    with observe(reference="ledger") as observation:
        for window in range(12):
            batches = [(torch.randn(8, 16, device="cuda"), torch.randint(0, 4, (8,), device="cuda")) for _ in range(4)]
            torch.cuda.set_sync_debug_mode("error" if 4 * window >= SURE else "default")
            try:
                for x, y in batches:
                    (cross_entropy(model(x), y) / 4).backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            optimizer.step()
            optimizer.zero_grad()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason
    assert [w.units for w in result.windows] == [32.0] * 12


def test_a_target_that_is_ignored_late_is_not_taken_for_counted() -> None:
    torch.manual_seed(0)
    model = nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(reference="ledger") as observation:
        for i in range(48):
            y = torch.randint(0, 4, (8,), device="cuda")
            y[: 5 if i in (41, 45) else 0] = -100
            (cross_entropy(model(torch.randn(8, 16, device="cuda")), y) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    result = observation.result()
    assert [w.units for w in result.windows] == [32.0] * 10 + [27.0] * 2
    assert result.windows[10].verdict is Verdict.INCONCLUSIVE
    assert result.windows[11].verdict is Verdict.DEVIATES
    assert [d.mistake.code for d in result.diagnosis] == ["GA104"]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "foreach Adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True, weight_decay=0.1),
    "capturable": lambda p: torch.optim.Adam(p, lr=1e-3, capturable=True),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("reference", ["both", "ledger", "sketch"])
@pytest.mark.parametrize("scaler", [False, True])
def test_optimizers_of_a_gpu(name: str, reference: str, scaler: bool) -> None:
    def result(divisor: float, micro_batches: int) -> VerifyResult:
        own = {"optimizer_of": OPTIMIZERS[name], "micro_batches": micro_batches, "clip": None, "reference": reference}
        return run(divisor, torch.float16 if scaler else None, scaler, **own)  # type: ignore[arg-type]

    right, undivided, remainder = result(4, 12), result(1, 12), result(4, 10)
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    assert [d.mistake.code for d in undivided.diagnosis] == ["GA101"], undivided.reason
    assert (remainder.verdict, [d.mistake.code for d in remainder.diagnosis]) == (Verdict.DEVIATES, ["GA103"])
    assert remainder.windows[-1].weights == pytest.approx([0.5, 0.5])


def test_weights_in_bfloat16() -> None:
    like = torch.empty(8, 16, device="cuda", dtype=torch.bfloat16)
    result = run(4, model_of=lambda: network().bfloat16(), micro_batches=12, clip=None, inputs=like)
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_trajectory(device: str | None) -> None:
    result = run(4, trajectory=True, device=device)
    assert result.verdict is Verdict.EQUIVALENT
    assert all(w.drift is not None and w.drift < 1e-3 for w in result.windows), result.windows


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_a_compiled_model() -> None:
    result = run(4, model_of=lambda: torch.compile(network()), optimizer_of=sgd, clip=None)  # type: ignore[arg-type, return-value]
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ()), result.reason


class Split(nn.Module):
    """Its first layer is on the CPU, its second on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 4).cuda()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu().cuda())  # type: ignore[no-any-return]


def test_a_model_on_two_devices() -> None:
    on_cpu = {"model_of": Split, "optimizer_of": sgd, "clip": 100.0, "inputs": torch.empty(8, 16)}
    right, wrong = (run(divisor, **on_cpu) for divisor in (4, 1))  # type: ignore[arg-type]
    assert (right.verdict, right.diagnosis) == (Verdict.EQUIVALENT, ()), right.reason
    assert [d.mistake.code for d in wrong.diagnosis] == ["GA101"], wrong.reason


SCRIPT = """
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
for i, (x, y) in enumerate(torch.utils.data.DataLoader(data, batch_size=args.batch_size, pin_memory=True)):
    loss = nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))DIVIDED
    loss.backward()
    if (i + 1) % args.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("command", ["verify", "compare"])
def test_commands_on_a_script_for_a_gpu(command: str, tmp_path: Path) -> None:
    options = ["--vary", "batch-size=8,32", "--vary", "accum=4,1"] if command == "compare" else []
    for divided, status in ((" / args.accum", 0), ("", 1)):
        script = tmp_path / "train.py"
        script.write_text(SCRIPT.replace("DIVIDED", divided))
        started = [sys.executable, "-m", "gradcheck_accum", command, *options, str(script)]
        done = subprocess.run(started, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr


def test_random_numbers_of_the_device_are_the_loops_own() -> None:
    def end(watched: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with observe() if watched else nullcontext() as observation:
            for i in range(8):
                loss = cross_entropy(model(torch.randn(8, 16, device="cuda")), torch.arange(8, device="cuda") % 4)
                (loss / 4).backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        if observation is not None:
            assert observation.result().verdict is Verdict.EQUIVALENT
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    torch.testing.assert_close(end(True), end(False), rtol=0, atol=0)


def test_a_large_batch_beyond_the_memory_is_streamed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(8)), nn.Linear(512, 4)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows, whole = 8192, torch.cuda.get_device_properties(0).total_memory
    # A micro-batch keeps about 16 MiB for each of the 8 layers; the budget holds a few micro-batches of the 16.
    budget = torch.cuda.memory_allocated() + 600 * 2**20
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(budget / whole, 1.0))
    try:
        with observe() as observation:
            for _ in range(16):
                x = torch.randn(rows, 512, device="cuda")
                (cross_entropy(model(x), torch.zeros(rows, dtype=torch.long, device="cuda")) / 16).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    result = observation.result()
    assert result.verdict is Verdict.EQUIVALENT, result.reason
    assert any("does not fit in memory" in note for note in result.notes)


@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="PyTorch has no NCCL here")
def test_a_rank_on_nccl() -> None:
    dist = torch.distributed
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4).cuda(), device_ids=[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with observe() as observation:
            for i in range(8):
                with model.no_sync() if (i + 1) % 4 else nullcontext():
                    loss = cross_entropy(model(torch.randn(8, 16, device="cuda")), torch.arange(8, device="cuda") % 4)
                    (loss / 4).backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    finally:
        dist.destroy_process_group()
    result = observation.result()
    assert (result.verdict, result.diagnosis) == (Verdict.EQUIVALENT, ())
