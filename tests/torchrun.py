"""Commands on two ranks of this machine, started by torchrun as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO_RANKS = (*TORCHRUN, "--standalone", "--nproc-per-node", "2")

needs_ranks = [
    pytest.mark.slow,  # several processes, each of which loads PyTorch
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="PyTorch has no gloo here",
    ),
]


def environment(temporary: Path | None = None) -> dict[str, str]:
    """What ranks are started with: one thread each, this package, and a folder for their temporary files."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return found if temporary is None else {**found, "TMPDIR": str(temporary)}


def launch(folder: Path, *command: str, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command that has run on both ranks, in this folder."""
    return subprocess.run(
        [*TWO_RANKS, *command],
        cwd=folder,
        env=environment(temporary),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
