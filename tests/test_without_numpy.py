"""PyTorch runs without NumPy, and so do verify and compare."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradcheck_accum.engine.tensor_bytes import raw

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "fixtures/demo/train_options.py"


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "numpy").mkdir()
    (folder / "numpy" / "__init__.py").write_text("raise ModuleNotFoundError('no numpy here')\n")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "gradcheck_accum", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_compare_runs_without_numpy(tmp_path: Path) -> None:
    run = _run(tmp_path, "compare", SCRIPT, "--vary", "batch-size=5,15", "--vary", "accum=3,1", "--", "--epochs", "1")
    assert run.returncode == 1, run.stderr
    assert "GA101" in run.stdout


@pytest.mark.slow
def test_verify_runs_without_numpy(tmp_path: Path) -> None:
    run = _run(tmp_path, "verify", SCRIPT, "--", "--epochs", "1")
    assert run.returncode == 1, run.stderr
    assert "GA101" in run.stdout


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.arange(6, dtype=torch.int64).reshape(2, 3).t(), struct.pack("<6q", 0, 3, 1, 4, 2, 5)),
        (torch.tensor([[1.5, -2.0]])[:, 1:], struct.pack("<f", -2.0)),
        (torch.tensor([1 + 2j]).conj(), struct.pack("<2f", 1.0, -2.0)),
        (torch.tensor([1.0, -1.0], dtype=torch.bfloat16), bytes.fromhex("803f80bf")),
        (torch.tensor([True, False]).expand(2, 2), bytes([1, 0, 1, 0])),
        (torch.empty(0, 4), b""),
        (torch.nn.Parameter(torch.tensor(0.5)), struct.pack("<f", 0.5)),
    ],
    ids=["transposed", "a slice", "conjugated", "bfloat16", "expanded", "empty", "one number"],
)
def test_the_bytes_of_a_tensor_are_those_of_its_elements_in_order(tensor: torch.Tensor, expected: bytes) -> None:
    assert bytes(raw(tensor)) == expected


def test_the_bytes_of_a_tensor_outlive_it() -> None:
    content = raw(torch.full((1000,), 7, dtype=torch.uint8).clone())
    for _ in range(20):
        torch.zeros(1000, dtype=torch.uint8)
    assert bytes(content) == bytes([7]) * 1000
